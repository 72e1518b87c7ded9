//! What the cost model expects of a plan: a list schedule in one pass.
//!
//! Nodes are taken in one fixed topological order, each device's queues fill in that order, and a node starts when its inputs
//! have arrived and its queue is free. A tensor arrives on another device once, `latency + bytes * ns_per_byte` after it was
//! made; links do not contend, as in the schedules of Topcuoglu et al. 2002. The order is that of node ids, or, where the plan
//! sets a start order, the one in which a ready node of larger start order goes first.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::candidates::Candidates;
use crate::graph::NONE;
use crate::names::DeviceId;

/// States of the queues are kept this many times per pass, so that a later pass starts near the first change.
const N_CHECKPOINTS: usize = 32;

/// The schedule of one plan, kept for the next one.
#[derive(Debug)]
pub(super) struct Estimate {
    /// Nodes in the order they are taken, and where each stands in it.
    order: Vec<u32>,
    position: Vec<u32>,
    pub(super) starts_ns: Vec<f64>,
    pub(super) finish_ns: Vec<f64>,
    /// First queue of every device, and the number of all.
    queue_offsets: Vec<u32>,
    /// When each queue is free.
    free_ns: Vec<f64>,
    /// `free_ns` and the latest finish, before position `i * stride`.
    checkpoints: Vec<(Vec<f64>, f64)>,
    stride: usize,
    /// First position whose node changed since the last pass.
    dirty_from: usize,
    makespan_ns: f64,
}

impl Estimate {
    pub(super) fn new(candidates: &Candidates) -> Self {
        let n_nodes = candidates.graph().n_nodes();
        let mut queue_offsets = vec![0u32];
        for &queues in &candidates.devices().queues {
            let last = queue_offsets[queue_offsets.len() - 1];
            queue_offsets.push(last + queues.max(1));
        }
        let n_queues = queue_offsets[queue_offsets.len() - 1] as usize;
        let ids: Vec<u32> = candidates.graph().nodes().map(|node| node.0).collect();
        Self {
            position: ids.clone(),
            order: ids,
            starts_ns: vec![0.0; n_nodes],
            finish_ns: vec![0.0; n_nodes],
            queue_offsets,
            free_ns: vec![0.0; n_queues],
            checkpoints: Vec::new(),
            stride: n_nodes.div_ceil(N_CHECKPOINTS).max(64),
            dirty_from: 0,
            makespan_ns: 0.0,
        }
    }

    /// Everything has to be computed anew.
    pub(super) fn invalidate(&mut self) {
        self.dirty_from = 0;
    }

    /// This node's device changed.
    pub(super) fn invalidate_node(&mut self, node: u32) {
        self.dirty_from = self.dirty_from.min(self.position[node as usize] as usize);
    }

    /// Takes nodes in the order that ready nodes of larger `start_order` go first; ties go by id. `None` = by id.
    pub(super) fn set_order(&mut self, candidates: &Candidates, start_order: Option<&[i32]>) {
        self.order.clear();
        match start_order {
            None => self
                .order
                .extend(candidates.graph().nodes().map(|node| node.0)),
            Some(wish) => list_order(candidates, wish, &mut self.order),
        }
        for (position, &node) in self.order.iter().enumerate() {
            self.position[node as usize] = crate::placement::to_u32(position);
        }
        self.invalidate();
    }

    /// When the last node ends, in ns. `queues` = queue per node; without it a node takes the queue of its device that is free
    /// first. The plan is one device per node, all in range.
    pub(super) fn makespan_ns(
        &mut self,
        candidates: &Candidates,
        devices: &[u32],
        queues: Option<&[u32]>,
    ) -> f64 {
        let n_nodes = self.order.len();
        if self.dirty_from >= n_nodes {
            return self.makespan_ns;
        }
        let kept = (self.dirty_from / self.stride).min(self.checkpoints.len());
        let first = if kept < self.checkpoints.len() {
            kept * self.stride
        } else {
            0
        };
        let mut latest = 0.0f64;
        if first == 0 {
            self.checkpoints.clear();
            self.free_ns.fill(0.0);
        } else {
            let (free_ns, latest_then) = &self.checkpoints[kept];
            self.free_ns.copy_from_slice(free_ns);
            latest = *latest_then;
            self.checkpoints.truncate(kept);
        }
        for position in first..n_nodes {
            if position % self.stride == 0 {
                self.checkpoints.push((self.free_ns.clone(), latest));
            }
            let node = self.order[position] as usize;
            latest = latest.max(self.schedule(candidates, devices, queues, node));
        }
        self.dirty_from = n_nodes;
        self.makespan_ns = latest;
        latest
    }

    fn schedule(
        &mut self,
        candidates: &Candidates,
        devices: &[u32],
        queues: Option<&[u32]>,
        node: usize,
    ) -> f64 {
        let graph = candidates.graph();
        let device = devices[node];
        let mut ready = 0.0f64;
        for edge in graph.predecessors().range(node) {
            let producer = graph.predecessors().items[edge] as usize;
            let mut arrival = self.finish_ns[producer];
            if devices[producer] != device {
                arrival += transfer_ns(
                    candidates,
                    graph.edge_tensors()[edge],
                    devices[producer],
                    device,
                );
            }
            ready = ready.max(arrival);
        }
        let range = self.queue_offsets[device as usize] as usize
            ..self.queue_offsets[device as usize + 1] as usize;
        let queue = match queues {
            Some(queues) => range.start + (queues[node] as usize).min(range.len() - 1),
            None => earliest(&self.free_ns, range),
        };
        let columns = candidates.nodes();
        let cost = candidates.cost_ns(
            crate::graph::NodeId(crate::placement::to_u32(node)),
            DeviceId(device),
        );
        let times = columns.executions.get(node).copied().unwrap_or(1.0);
        // 0 executions of something that cannot run would be NaN.
        let duration = if times == 0.0 { 0.0 } else { times * cost };
        let start = ready.max(self.free_ns[queue]);
        let finish = start + duration;
        self.free_ns[queue] = finish;
        self.starts_ns[node] = start;
        self.finish_ns[node] = finish;
        finish
    }
}

/// What an edge between two devices costs; a control edge costs the latency of a message.
pub(super) fn transfer_ns(candidates: &Candidates, tensor: u32, src: u32, dst: u32) -> f64 {
    let link = candidates.link(DeviceId(src), DeviceId(dst));
    if tensor == NONE {
        return link.latency_ns;
    }
    #[expect(
        clippy::cast_precision_loss,
        reason = "an estimate of bytes needs 53 bits at most"
    )]
    let bytes = candidates.graph().tensor_bytes()[tensor as usize] as f64;
    link.latency_ns + bytes * link.ns_per_byte
}

fn earliest(free_ns: &[f64], range: std::ops::Range<usize>) -> usize {
    let mut best = range.start;
    for queue in range {
        if free_ns[queue] < free_ns[best] {
            best = queue;
        }
    }
    best
}

/// A topological order in which, among the nodes that are ready, the one of largest wish comes first.
fn list_order(candidates: &Candidates, wish: &[i32], order: &mut Vec<u32>) {
    let graph = candidates.graph();
    let mut waits_for: Vec<u32> = graph
        .nodes()
        .map(|node| crate::placement::to_u32(graph.predecessors().range(node.index()).len()))
        .collect();
    let mut ready: BinaryHeap<(i32, Reverse<u32>)> = graph
        .nodes()
        .filter(|node| waits_for[node.index()] == 0)
        .map(|node| (wish[node.index()], Reverse(node.0)))
        .collect();
    while let Some((_, Reverse(node))) = ready.pop() {
        order.push(node);
        for &consumer in graph.successors().row(node as usize) {
            let waits = &mut waits_for[consumer as usize];
            *waits -= 1;
            if *waits == 0 {
                ready.push((wish[consumer as usize], Reverse(consumer)));
            }
        }
    }
}
