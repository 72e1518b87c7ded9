//! The schedule of a plan: that of the host, with the costs and links of a test.

use crate::EdgeKind;
use crate::estimate::Durations;
use crate::estimate::Estimate;
use crate::estimate::Resources;
use crate::estimate::Transfer;
use crate::graph::Rows;
use crate::source::DeviceSource;
use crate::source::GraphSource;
use crate::testing::TestDevices;
use crate::testing::TestGraph;

/// Start and end of every node, in ns.
#[derive(Debug)]
pub(super) struct Schedule {
    estimate: Estimate,
    makespan_ns: f64,
}

impl Schedule {
    /// Schedules a plan, which may break the rule `memory` but no other rule.
    pub(super) fn new(
        graph: &TestGraph,
        devices: &TestDevices,
        placed: &[u32],
        start_order: Option<&[i32]>,
        queues: Option<&[u32]>,
        streamed: &[u32],
    ) -> Self {
        let mut estimate = Estimate::new(
            placed.len(),
            Resources::new(&devices.chips, &devices.queues),
        );
        let schedule = crate::estimate::Schedule {
            devices: placed,
            start_order,
            queues,
        };
        let makespan_ns = estimate.makespan_ns(
            &Costs {
                graph,
                devices,
                placed,
                streamed,
            },
            schedule,
        );
        Self {
            estimate,
            makespan_ns,
        }
    }

    pub(super) fn makespan_ns(&self) -> f64 {
        self.makespan_ns
    }

    /// Returns the peak bytes per device: state, constants that are read there, workspaces, outputs
    /// until their last reader has ended, and copies from their arrival on. At the same instant,
    /// releases come first.
    pub(super) fn peak_bytes(
        &self,
        graph: &TestGraph,
        devices: &TestDevices,
        placed: &[u32],
        streamed: &[u32],
    ) -> Vec<u64> {
        let (starts, ends) = (self.estimate.starts_ns(), self.estimate.finish_ns());
        let mut held = vec![0_u64; devices.memory_domains.len()];
        // Time, whether it is an allocation, device, bytes.
        let mut events: Vec<(f64, bool, u32, u64)> = Vec::new();
        let mut lives = |device: u32, from: f64, to: f64, bytes: u64| {
            events.push((from, true, device, bytes));
            events.push((to, false, device, bytes));
        };
        let mut last_reader = ends.to_vec();
        for node in 0..placed.len() {
            for edge in graph.edges_into(node) {
                let producer = graph.predecessors.items[edge] as usize;
                last_reader[producer] = ends[node].max(last_reader[producer]);
                let bytes = graph.edge_bytes(edge);
                let is_copied = placed[producer] != placed[node] && bytes > 0;
                if is_copied && !graph.is_constant(producer) {
                    let way = if graph.edge_kinds[edge] & EdgeKind::PRELOADED != 0 {
                        0.0
                    } else {
                        transfer_ns(devices, placed[producer], placed[node], bytes)
                    };
                    let arrival = ends[producer] + way;
                    lives(placed[node], arrival, ends[node], bytes);
                }
            }
        }
        for (node, &device) in placed.iter().enumerate() {
            let workspace = graph.workspace_bytes[node];
            lives(device, starts[node], ends[node], workspace);
            for (_, bytes) in graph.streamed_reads(placed, streamed, node) {
                lives(device, starts[node], ends[node], bytes);
            }
        }
        for (&node, &bytes) in graph.tensor_nodes.iter().zip(&graph.tensor_bytes) {
            let node = node as usize;
            // The output of a constant is its resident tensor.
            if !graph.is_constant(node) {
                lives(placed[node], starts[node], last_reader[node], bytes);
            }
        }
        for (_, device, bytes) in graph.staying(placed, streamed) {
            let held = &mut held[device as usize];
            *held = held.saturating_add(bytes);
        }
        events.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let mut peak = held.clone();
        for (_, allocates, device, bytes) in events {
            let now = &mut held[device as usize];
            if allocates {
                *now = now.saturating_add(bytes);
                peak[device as usize] = peak[device as usize].max(*now);
            } else {
                *now = now.saturating_sub(bytes);
            }
        }
        peak
    }
}

/// The durations of a test.
struct Costs<'a> {
    graph: &'a TestGraph,
    devices: &'a TestDevices,
    placed: &'a [u32],
    streamed: &'a [u32],
}

impl Durations for Costs<'_> {
    fn successors(&self) -> Rows<'_> {
        Rows {
            offsets: &self.graph.successors.offsets,
            items: &self.graph.successors.items,
        }
    }

    fn n_predecessors(&self, node: u32) -> usize {
        self.graph.edges_into(node as usize).len()
    }

    fn work_ns(&self, node: u32, device: u32) -> f64 {
        let times = self.graph.executions[node as usize];
        if times <= 0.0 {
            return 0.0;
        }
        let reads = self
            .graph
            .streamed_reads(self.placed, self.streamed, node as usize);
        let copies = reads.map(|(keeper, bytes)| transfer_ns(self.devices, keeper, device, bytes));
        self.graph.cost(node, device) * times + times.min(1.0) * copies.sum::<f64>()
    }

    fn transfer(&self, position: usize, source: u32, destination: u32) -> Transfer {
        let edge = self.graph.successor_edges[position] as usize;
        let producer = self.graph.predecessors.items[edge] as usize;
        let times = self.graph.executions[producer];
        let is_idle = self.graph.edge_kinds[edge] & EdgeKind::PRELOADED != 0 || times == 0.0;
        let once = match is_idle {
            true => 0.0,
            false => {
                let bytes = self.graph.edge_bytes(edge);
                times * transfer_ns(self.devices, source, destination, bytes)
            }
        };
        Transfer {
            tensor: self.graph.edge_tensors[edge],
            latency_ns: once,
            busy_ns: 0.0,
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "sizes are below 2^53")]
fn transfer_ns(devices: &TestDevices, from: u32, to: u32, bytes: u64) -> f64 {
    let link = devices.link(from, to);
    if bytes == 0 {
        // 0 times a rate of +inf would be NaN.
        return link.latency_ns;
    }
    link.latency_ns + bytes as f64 * link.ns_per_byte
}
