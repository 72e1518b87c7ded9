//! What a policy asks of its plan while it searches: the contract's resource `plan`, without its wire types.

use crate::candidates::Candidates;
use crate::candidates::Explanation;
use crate::candidates::Proposal;
use crate::graph::NodeId;
use crate::placement::estimate::Estimate;
use crate::placement::estimate::transfer_ns;
use crate::placement::legality::Plan;
use crate::placement::legality::first_violation;
use crate::placement::memory::MemoryUse;
use crate::placement::memory::capacity_of_domains;
use crate::placement::transfers::for_each_transfer;
use crate::placement::transfers::output_bytes;
use crate::placement::violation::Violation;

/// A plan in the making, and what the host thinks of it. One per policy call; deterministic.
///
/// Nothing is evaluated until it is asked for, so a policy that does not search pays a copy. After [`Self::move_nodes`] the next
/// [`Self::makespan_ns`] recomputes only from the first node moved.
#[derive(Debug)]
pub struct Evaluator {
    candidates: Candidates,
    devices: Vec<u32>,
    start_order: Option<Vec<i32>>,
    queues: Option<Vec<u32>>,
    explanations: Vec<Explanation>,
    metrics: Vec<(String, f64)>,
    /// Built at the first question.
    estimate: Option<Estimate>,
    members: Option<Members>,
    /// Whether the plan as it stands is legal, and what its memories hold; `None` = not known.
    legal: Option<(bool, MemoryUse)>,
    capacity_bytes: Vec<u64>,
    offered: Option<Proposal>,
}

impl Evaluator {
    /// An empty plan: not legal until devices are set (unless the graph is empty).
    pub fn new(candidates: &Candidates) -> Self {
        Self {
            candidates: candidates.clone(),
            devices: Vec::new(),
            start_order: None,
            queues: None,
            explanations: Vec::new(),
            metrics: Vec::new(),
            estimate: None,
            members: None,
            legal: None,
            capacity_bytes: capacity_of_domains(candidates),
            offered: None,
        }
    }

    /// What it evaluates against.
    pub fn candidates(&self) -> &Candidates {
        &self.candidates
    }

    /// Devices of the plan as it stands.
    pub fn devices(&self) -> &[u32] {
        &self.devices
    }

    /// Sets a complete assignment, one device per node. Anything is taken; rules are applied when asked.
    pub fn set_devices(&mut self, devices: &[u32]) {
        self.devices.clear();
        self.devices.extend_from_slice(devices);
        self.legal = None;
        if let Some(estimate) = &mut self.estimate {
            estimate.invalidate();
        }
    }

    /// Moves the whole groups of some nodes to a device. Nodes that do not exist, and a plan without devices, make it a plan of
    /// the wrong length, which [`Self::violation`] names.
    pub fn move_nodes(&mut self, nodes: &[u32], device: u32) {
        let n_nodes = self.candidates.graph().n_nodes();
        if self.devices.len() != n_nodes {
            return;
        }
        if self.candidates.nodes().n_groups as usize == n_nodes {
            for &node in nodes {
                self.move_node(node, device);
            }
            return;
        }
        let members = self
            .members
            .take()
            .unwrap_or_else(|| Members::of(&self.candidates));
        for &node in nodes {
            if let Some(&group) = self.candidates.nodes().group.get(node as usize) {
                for &member in members.of_group(group) {
                    self.move_node(member, device);
                }
            }
        }
        self.members = Some(members);
    }

    /// Start order within each device, larger first; `None` = the host decides.
    pub fn set_start_order(&mut self, order: Option<Vec<i32>>) {
        self.start_order = order;
        // The estimate's order follows; built anew at the next question.
        self.estimate = None;
        self.legal = None;
    }

    /// Compute queue per node; `None` = the host decides.
    pub fn set_queues(&mut self, queues: Option<Vec<u32>>) {
        self.queues = queues;
        self.legal = None;
        if let Some(estimate) = &mut self.estimate {
            estimate.invalidate();
        }
    }

    /// Adds a reason, for reports.
    pub fn explain(&mut self, nodes: &[u32], reason: impl Into<String>) {
        self.explanations.push(Explanation {
            nodes: nodes.to_vec(),
            reason: reason.into(),
        });
    }

    /// Adds a number for reports; of equal names the last counts.
    pub fn metric(&mut self, name: &str, value: f64) {
        match self.metrics.iter_mut().find(|(known, _)| known == name) {
            Some((_, old)) => *old = value,
            None => self.metrics.push((name.to_owned(), value)),
        }
    }

    /// Expected duration of one run of the plan as it stands, in ns: a list schedule over costs, links, start order and queues.
    /// +inf = not legal.
    pub fn makespan_ns(&mut self) -> f64 {
        if !self.is_legal() {
            return f64::INFINITY;
        }
        self.schedule().0
    }

    /// The first rule that the plan as it stands breaks, as [`super::check`] would say.
    pub fn violation(&mut self) -> Option<Violation> {
        if self.is_legal() {
            None
        } else {
            first_violation(&self.candidates, self.plan()).err()
        }
    }

    /// Bytes that one run moves between devices: one transfer per tensor and destination; unknown sizes count nothing. 0 for a
    /// plan that is not legal.
    pub fn transfer_bytes(&mut self) -> u64 {
        if !self.is_legal() {
            return 0;
        }
        let bytes = self.candidates.graph().tensor_bytes();
        let mut sum = 0u64;
        for_each_transfer(self.candidates.graph(), &self.devices, |tensor, _, _| {
            sum = sum.saturating_add(bytes[tensor as usize]);
        });
        sum
    }

    /// Per device the most bytes that it holds at once in the schedule behind [`Self::makespan_ns`]: resident state, outputs from
    /// the start of their producer to the end of their last consumer, copies from their arrival on, and workspaces. An upper
    /// estimate: kernels that work in place need less. Zeroes for a plan that is not legal.
    pub fn peak_bytes_per_device(&mut self) -> Vec<u64> {
        let n_devices = self.candidates.n_devices();
        if !self.is_legal() {
            return vec![0; n_devices];
        }
        self.schedule();
        let estimate = self.estimate.as_ref().expect("scheduled above");
        peak_bytes(&self.candidates, &self.devices, estimate)
    }

    /// Hands in the plan as it stands. The last legal offer is the answer.
    ///
    /// # Errors
    /// The first [`Violation`]; what was offered before stays the answer.
    pub fn offer(&mut self) -> Result<(), Violation> {
        match self.violation() {
            Some(violation) => Err(violation),
            None => {
                self.offered = Some(Proposal {
                    devices: self.devices.clone(),
                    start_order: self.start_order.clone(),
                    queues: self.queues.clone(),
                    explanations: self.explanations.clone(),
                    metrics: self.metrics.clone(),
                });
                Ok(())
            }
        }
    }

    /// The last legal offer.
    pub fn offered(&self) -> Option<&Proposal> {
        self.offered.as_ref()
    }

    /// The last legal offer, with all explanations and metrics, also those given after it.
    pub fn into_proposal(self) -> Option<Proposal> {
        self.offered.map(|offered| Proposal {
            explanations: self.explanations,
            metrics: self.metrics,
            ..offered
        })
    }

    fn plan(&self) -> Plan<'_> {
        Plan {
            devices: &self.devices,
            start_order: self.start_order.as_deref(),
            queues: self.queues.as_deref(),
        }
    }

    fn is_legal(&mut self) -> bool {
        if let Some((legal, _)) = &self.legal {
            return *legal;
        }
        let legal = first_violation(&self.candidates, self.plan()).is_ok();
        let used = if legal {
            MemoryUse::of(&self.candidates, &self.devices)
        } else {
            MemoryUse::default()
        };
        self.legal = Some((legal, used));
        legal
    }

    /// Moves one node; its group follows with it.
    fn move_node(&mut self, node: u32, device: u32) {
        let Some(place) = self.devices.get_mut(node as usize) else {
            return;
        };
        let from = std::mem::replace(place, device);
        if from == device {
            return;
        }
        if let Some(estimate) = &mut self.estimate {
            estimate.invalidate_node(node);
        }
        // A legal plan stays legal if whole groups move to candidates of theirs and memory suffices; else ask again.
        let stays = self.candidates.is_legal(NodeId(node), device)
            && self.candidates.nodes().pinned[node as usize] == crate::graph::NONE
            && self.queues.is_none();
        match &mut self.legal {
            Some((true, used)) if stays => {
                used.remove_resident(&self.candidates, node as usize, from);
                used.add(&self.candidates, node as usize, device);
                if !used.fits(&self.capacity_bytes) {
                    self.legal = None;
                }
            }
            _ => self.legal = None,
        }
    }

    /// Brings the estimate up to date. The plan is legal.
    fn schedule(&mut self) -> (f64, &Estimate) {
        let estimate = self.estimate.get_or_insert_with(|| {
            let mut estimate = Estimate::new(&self.candidates);
            if self.start_order.is_some() {
                estimate.set_order(&self.candidates, self.start_order.as_deref());
            }
            estimate
        });
        let makespan_ns =
            estimate.makespan_ns(&self.candidates, &self.devices, self.queues.as_deref());
        (makespan_ns, estimate)
    }
}

/// Nodes of every group.
#[derive(Debug)]
struct Members {
    offsets: Vec<u32>,
    nodes: Vec<u32>,
}

impl Members {
    fn of(candidates: &Candidates) -> Self {
        let columns = candidates.nodes();
        let mut offsets = vec![0u32; columns.n_groups as usize + 1];
        for &group in &columns.group {
            offsets[group as usize + 1] += 1;
        }
        for group in 1..offsets.len() {
            offsets[group] += offsets[group - 1];
        }
        let mut next = offsets.clone();
        let mut nodes = vec![0u32; columns.group.len()];
        for (node, &group) in columns.group.iter().enumerate() {
            let slot = &mut next[group as usize];
            nodes[*slot as usize] = crate::placement::to_u32(node);
            *slot += 1;
        }
        Self { offsets, nodes }
    }

    fn of_group(&self, group: u32) -> &[u32] {
        let range =
            self.offsets[group as usize] as usize..self.offsets[group as usize + 1] as usize;
        &self.nodes[range]
    }
}

/// Sweeps over the schedule's allocations and releases; at one instant releases come first.
fn peak_bytes(candidates: &Candidates, devices: &[u32], estimate: &Estimate) -> Vec<u64> {
    let graph = candidates.graph();
    let mut events: Vec<(f64, bool, u32, u64)> = Vec::new();
    let mut lives = |device: u32, from_ns: f64, to_ns: f64, bytes: u64| {
        if bytes > 0 {
            events.push((from_ns, true, device, bytes));
            events.push((to_ns, false, device, bytes));
        }
    };
    let mut held = vec![0u64; candidates.n_devices()];
    for node in graph.nodes() {
        let index = node.index();
        let device = devices[index];
        let resident = &mut held[device as usize];
        *resident = resident.saturating_add(graph.resident_bytes()[index]);
        let (start, finish) = (estimate.starts_ns[index], estimate.finish_ns[index]);
        lives(device, start, finish, graph.workspace_bytes()[index]);
        let last = graph
            .successors()
            .row(index)
            .iter()
            .map(|&consumer| estimate.finish_ns[consumer as usize])
            .fold(finish, f64::max);
        lives(device, start, last, output_bytes(graph, node));
    }
    for_each_transfer(graph, devices, |tensor, src, dst| {
        let producer = NodeId(graph.tensor_nodes()[tensor as usize]);
        let arrival =
            estimate.finish_ns[producer.index()] + transfer_ns(candidates, tensor, src, dst);
        let successors = graph.successors();
        let last = successors
            .range(producer.index())
            .filter(|&position| {
                devices[successors.items[position] as usize] == dst
                    && graph.edge_tensors()[graph.successor_edges()[position] as usize] == tensor
            })
            .map(|position| estimate.finish_ns[successors.items[position] as usize])
            .fold(arrival, f64::max);
        lives(dst, arrival, last, graph.tensor_bytes()[tensor as usize]);
    });
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
