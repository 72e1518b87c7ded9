//! When the nodes of a plan run, in the simplest model.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::collections::BinaryHeap;

use crate::NONE;
use crate::source::DeviceSource;
use crate::source::GraphSource;
use crate::testing::TestDevices;
use crate::testing::TestGraph;

/// Start and end of every node, in ns.
#[derive(Debug)]
pub(super) struct Schedule {
    starts: Vec<f64>,
    ends: Vec<f64>,
}

impl Schedule {
    /// Takes the nodes one by one, among those whose producers were taken that of the largest start order, and lets each start
    /// when its inputs are there and its queue is free. The plan breaks no rule but, perhaps, that of memory.
    pub(super) fn new(
        graph: &TestGraph,
        devices: &TestDevices,
        placed: &[u32],
        start_order: Option<&[i32]>,
        queues: Option<&[u32]>,
    ) -> Self {
        let mut schedule = Self {
            starts: vec![0.0; placed.len()],
            ends: vec![0.0; placed.len()],
        };
        let mut free_at: BTreeMap<(u32, u32), f64> = BTreeMap::new();
        for node in order(graph, start_order) {
            let device = placed[node];
            let chip = devices.silicon[device as usize];
            let free = |queue: &u32| free_at.get(&(chip, *queue)).copied().unwrap_or(0.0);
            let queue = match queues {
                Some(queues) => queues[node],
                None => (0..devices.queues[device as usize])
                    .min_by(|a, b| free(a).total_cmp(&free(b)))
                    .unwrap_or(0),
            };
            let start = schedule
                .ready(graph, devices, placed, node)
                .max(free(&queue));
            let times = graph.executions[node];
            let id = u32::try_from(node).unwrap_or(NONE);
            let work = if times > 0.0 {
                graph.cost(id, device) * times
            } else {
                0.0
            };
            free_at.insert((chip, queue), start + work);
            schedule.starts[node] = start;
            schedule.ends[node] = start + work;
        }
        schedule
    }

    pub(super) fn makespan_ns(&self) -> f64 {
        self.ends.iter().copied().fold(0.0, f64::max)
    }

    /// Per device the most bytes at one time: resident bytes, workspaces, outputs until their last reader has ended, and copies
    /// from their arrival on. At one instant releases come first.
    pub(super) fn peak_bytes(
        &self,
        graph: &TestGraph,
        devices: &TestDevices,
        placed: &[u32],
    ) -> Vec<u64> {
        let mut held = vec![0_u64; devices.memory_domains.len()];
        // Time, whether it is an allocation, device, bytes.
        let mut events: Vec<(f64, bool, u32, u64)> = Vec::new();
        let mut lives = |device: u32, from: f64, to: f64, bytes: u64| {
            events.push((from, true, device, bytes));
            events.push((to, false, device, bytes));
        };
        let mut last_reader = self.ends.clone();
        for node in 0..placed.len() {
            for edge in graph.edges_into(node) {
                let producer = graph.predecessors.items[edge] as usize;
                last_reader[producer] = self.ends[node].max(last_reader[producer]);
                let bytes = graph.edge_bytes(edge);
                if placed[producer] != placed[node] && bytes > 0 {
                    let way = transfer_ns(devices, placed[producer], placed[node], bytes);
                    let arrival = self.ends[producer] + way;
                    lives(placed[node], arrival, self.ends[node], bytes);
                }
            }
        }
        for (node, &device) in placed.iter().enumerate() {
            held[device as usize] += graph.resident_bytes[node];
            let workspace = graph.workspace_bytes[node];
            lives(device, self.starts[node], self.ends[node], workspace);
        }
        for (&node, &bytes) in graph.tensor_nodes.iter().zip(&graph.tensor_bytes) {
            let node = node as usize;
            lives(placed[node], self.starts[node], last_reader[node], bytes);
        }
        events.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let mut peak = held.clone();
        for (_, allocates, device, bytes) in events {
            let now = &mut held[device as usize];
            if allocates {
                *now += bytes;
                peak[device as usize] = peak[device as usize].max(*now);
            } else {
                *now = now.saturating_sub(bytes);
            }
        }
        peak
    }

    /// When the inputs of a node are on its device; its producers were taken before.
    fn ready(&self, graph: &TestGraph, devices: &TestDevices, placed: &[u32], node: usize) -> f64 {
        let mut ready = 0.0_f64;
        for edge in graph.edges_into(node) {
            let producer = graph.predecessors.items[edge] as usize;
            let bytes = graph.edge_bytes(edge);
            let way = transfer_ns(devices, placed[producer], placed[node], bytes);
            ready = ready.max(self.ends[producer] + way);
        }
        ready
    }
}

#[expect(clippy::cast_precision_loss, reason = "sizes are below 2^53")]
fn transfer_ns(devices: &TestDevices, from: u32, to: u32, bytes: u64) -> f64 {
    let link = devices.link(from, to);
    if bytes == 0 {
        // Nothing times a rate of +inf would be NaN.
        return link.latency_ns;
    }
    link.latency_ns + bytes as f64 * link.ns_per_byte
}

/// Producers before consumers; among the nodes that may come next the largest start order, then the smallest id.
fn order(graph: &TestGraph, start_order: Option<&[i32]>) -> Vec<usize> {
    let n_nodes = graph.names.len();
    let wish = |node: usize| start_order.map_or(0, |order| order[node]);
    let mut n_waits: Vec<usize> = (0..n_nodes)
        .map(|node| graph.edges_into(node).len())
        .collect();
    let mut ready: BinaryHeap<(i32, Reverse<usize>)> = (0..n_nodes)
        .filter(|&node| n_waits[node] == 0)
        .map(|node| (wish(node), Reverse(node)))
        .collect();
    let mut order = Vec::with_capacity(n_nodes);
    while let Some((_, Reverse(node))) = ready.pop() {
        order.push(node);
        let range =
            graph.successors.offsets[node] as usize..graph.successors.offsets[node + 1] as usize;
        for &consumer in &graph.successors.items[range] {
            let consumer = consumer as usize;
            n_waits[consumer] -= 1;
            if n_waits[consumer] == 0 {
                ready.push((wish(consumer), Reverse(consumer)));
            }
        }
    }
    order
}
