//! A plan that keeps what it is offered, and checks it by the host's rules.

use std::cell::RefCell;
use std::collections::BTreeSet;

use crate::NONE;
use crate::source::DeviceSource;
use crate::source::GraphSource;
use crate::source::PlanSink;
use crate::source::Violation;
use crate::testing::TestDevices;
use crate::testing::TestGraph;

/// A plan that was accepted.
#[derive(Debug, Clone, PartialEq)]
pub struct Offer {
    /// Device per node.
    pub devices: Vec<u32>,
    /// What was given to `set_start_order`.
    pub start_order: Option<Vec<i32>>,
    /// What was given to `set_queues`.
    pub queues: Option<Vec<u32>>,
    /// Expected by a simple model: one task per device at a time, any number of transfers.
    pub makespan_ns: f64,
    /// Metrics given until the end of the call.
    pub metrics: Vec<(String, f64)>,
    /// Reasons given until the end of the call.
    pub reasons: Vec<(Vec<u32>, String)>,
}

/// The plan of a test.
#[derive(Debug)]
pub struct TestPlan<'a> {
    graph: &'a TestGraph,
    devices: &'a TestDevices,
    state: RefCell<State>,
}

#[derive(Debug, Default)]
struct State {
    devices: Vec<u32>,
    start_order: Option<Vec<i32>>,
    queues: Option<Vec<u32>>,
    metrics: Vec<(String, f64)>,
    reasons: Vec<(Vec<u32>, String)>,
    offer: Option<Offer>,
    refused: Vec<Violation>,
}

impl<'a> TestPlan<'a> {
    /// An empty plan.
    pub fn new(graph: &'a TestGraph, devices: &'a TestDevices) -> Self {
        Self {
            graph,
            devices,
            state: RefCell::default(),
        }
    }

    /// The offers that were refused, in order.
    pub fn refused(&self) -> Vec<Violation> {
        self.state.borrow().refused.clone()
    }

    /// The last accepted offer, if there was one.
    pub fn into_offer(self) -> Option<Offer> {
        let State {
            offer,
            metrics,
            reasons,
            ..
        } = self.state.into_inner();
        offer.map(|offer| Offer {
            metrics,
            reasons,
            ..offer
        })
    }

    fn check(&self, placed: &[u32]) -> Result<(), Violation> {
        let graph = self.graph;
        let broken = |rule: &str, node: usize, explanation: String| {
            Err(Violation {
                rule: rule.to_owned(),
                node: u32::try_from(node).unwrap_or(NONE),
                explanation,
            })
        };
        let n_nodes = graph.names.len();
        if placed.len() != n_nodes {
            let n = placed.len();
            return broken(
                "length",
                n.min(n_nodes),
                format!("{n} devices for {n_nodes} nodes"),
            );
        }
        let mut of_group = vec![NONE; graph.counts.groups as usize];
        for (node, &device) in placed.iter().enumerate() {
            if device >= self.devices.count() {
                return broken("device", node, format!("there is no device {device}"));
            }
            let set = graph.candidate_set[node] as usize;
            let legal =
                graph.candidates.offsets[set] as usize..graph.candidates.offsets[set + 1] as usize;
            if !graph.candidates.items[legal].contains(&device) {
                return broken(
                    "candidate",
                    node,
                    format!("device {device} is no candidate"),
                );
            }
            let pin = graph.pinned[node];
            if pin != NONE && pin != device {
                return broken(
                    "pinned",
                    node,
                    format!("pinned to device {pin}, not {device}"),
                );
            }
            let first = &mut of_group[graph.group[node] as usize];
            if *first == NONE {
                *first = device;
            } else if *first != device {
                return broken(
                    "group",
                    node,
                    format!("its group is on device {first}, not {device}"),
                );
            }
        }
        let mut used = vec![0_u64; self.devices.memory_domains.len()];
        for (node, &device) in placed.iter().enumerate() {
            let domain = self.devices.memory_domains[device as usize] as usize;
            used[domain] += graph.resident_bytes[node];
            let capacity = self.devices.memory_capacity[device as usize];
            if used[domain] > capacity {
                let explanation = format!("device {device} needs more than {capacity} bytes");
                return broken("memory", node, explanation);
            }
        }
        Ok(())
    }

    /// Runs the plan in the simplest model; +inf when its start order contradicts the edges.
    fn simulate(&self, placed: &[u32], start_order: Option<&[i32]>) -> f64 {
        let graph = self.graph;
        let n_devices = self.devices.memory_domains.len();
        let mut queue: Vec<Vec<u32>> = vec![Vec::new(); n_devices];
        for (node, &device) in (0_u32..).zip(placed) {
            queue[device as usize].push(node);
        }
        if let Some(order) = start_order {
            for nodes in &mut queue {
                nodes.sort_by_key(|&node| (-i64::from(order[node as usize]), node));
            }
        }
        let mut next = vec![0; n_devices];
        let mut free_at = vec![0.0_f64; n_devices];
        let mut finish: Vec<Option<f64>> = vec![None; placed.len()];
        let mut n_done = 0;
        while n_done < placed.len() {
            let before = n_done;
            for device in 0..n_devices {
                while let Some(&node) = queue[device].get(next[device]) {
                    let Some(ready) = self.ready(node, placed, &finish) else {
                        break;
                    };
                    let to = placed[node as usize];
                    let work = graph.cost(node, to) * graph.executions[node as usize];
                    free_at[device] = free_at[device].max(ready) + work;
                    finish[node as usize] = Some(free_at[device]);
                    next[device] += 1;
                    n_done += 1;
                }
            }
            if n_done == before {
                return f64::INFINITY;
            }
        }
        free_at.into_iter().fold(0.0, f64::max)
    }

    /// When the inputs of a node are on its device, `None` while a producer has not run.
    #[expect(clippy::cast_precision_loss, reason = "sizes are below 2^53")]
    fn ready(&self, node: u32, placed: &[u32], finish: &[Option<f64>]) -> Option<f64> {
        let graph = self.graph;
        let to = placed[node as usize];
        let range = graph.predecessors.offsets[node as usize] as usize
            ..graph.predecessors.offsets[node as usize + 1] as usize;
        let mut ready = 0.0_f64;
        for edge in range {
            let producer = graph.predecessors.items[edge] as usize;
            let link = self.devices.link(placed[producer], to);
            let bytes = match graph.edge_tensors[edge] {
                NONE => 0,
                tensor => graph.tensor_bytes[tensor as usize],
            };
            let arrival = finish[producer]? + link.latency_ns + bytes as f64 * link.ns_per_byte;
            ready = ready.max(arrival);
        }
        Some(ready)
    }
}

impl PlanSink for TestPlan<'_> {
    fn set_devices(&self, device: &[u32]) {
        self.state.borrow_mut().devices = device.to_vec();
    }

    fn move_nodes(&self, nodes: &[u32], device: u32) {
        let mut state = self.state.borrow_mut();
        for &node in nodes {
            let group = self.graph.group[node as usize];
            for (placed, &other) in state.devices.iter_mut().zip(&self.graph.group) {
                if other == group {
                    *placed = device;
                }
            }
        }
    }

    fn makespan_ns(&self) -> f64 {
        let state = self.state.borrow();
        match self.check(&state.devices) {
            Ok(()) => self.simulate(&state.devices, state.start_order.as_deref()),
            Err(_) => f64::INFINITY,
        }
    }

    fn violation(&self) -> Option<Violation> {
        self.check(&self.state.borrow().devices).err()
    }

    fn transfer_bytes(&self) -> u64 {
        let state = self.state.borrow();
        let graph = self.graph;
        let mut moved = BTreeSet::new();
        for node in 0..graph.names.len() {
            let range = graph.predecessors.offsets[node] as usize
                ..graph.predecessors.offsets[node + 1] as usize;
            for edge in range {
                let producer = graph.predecessors.items[edge] as usize;
                let to = state.devices[node];
                if graph.edge_tensors[edge] != NONE && state.devices[producer] != to {
                    moved.insert((graph.edge_tensors[edge], to));
                }
            }
        }
        moved
            .iter()
            .map(|&(tensor, _)| graph.tensor_bytes[tensor as usize])
            .sum()
    }

    fn peak_bytes_per_device(&self) -> Vec<u64> {
        let mut peaks = vec![0; self.devices.memory_domains.len()];
        for (&device, &bytes) in self
            .state
            .borrow()
            .devices
            .iter()
            .zip(&self.graph.resident_bytes)
        {
            peaks[device as usize] += bytes;
        }
        peaks
    }

    fn set_start_order(&self, order: &[i32]) {
        self.state.borrow_mut().start_order = Some(order.to_vec());
    }

    fn set_queues(&self, queue: &[u32]) {
        self.state.borrow_mut().queues = Some(queue.to_vec());
    }

    fn explain_wanted(&self) -> bool {
        true
    }

    fn explain(&self, nodes: &[u32], reason: &str) {
        let reason = (nodes.to_vec(), reason.to_owned());
        self.state.borrow_mut().reasons.push(reason);
    }

    fn metric(&self, name: &str, value: f64) {
        self.state
            .borrow_mut()
            .metrics
            .push((name.to_owned(), value));
    }

    fn offer(&self) -> Result<(), Violation> {
        let checked = self.check(&self.state.borrow().devices);
        let makespan_ns = self.makespan_ns();
        let mut state = self.state.borrow_mut();
        match checked {
            Ok(()) => {
                state.offer = Some(Offer {
                    devices: state.devices.clone(),
                    start_order: state.start_order.clone(),
                    queues: state.queues.clone(),
                    makespan_ns,
                    metrics: Vec::new(),
                    reasons: Vec::new(),
                });
                Ok(())
            }
            Err(violation) => {
                state.refused.push(violation.clone());
                Err(violation)
            }
        }
    }

    fn budget_left(&self) -> u64 {
        u64::MAX
    }
}
