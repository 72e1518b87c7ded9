//! The evaluation of plans while a policy searches: the contract's resource `plan`, without its
//! wire types.

use crate::candidates::Candidates;
use crate::candidates::PlanColumns;
use crate::candidates::Proposal;
use crate::cost::FEED_NS;
use crate::cost::FETCH_NS;
use crate::cost::RUN_NS;
use crate::graph::Graph;
use crate::graph::NodeId;
use crate::placement::check::Placement;
use crate::placement::estimate::MeasuredWork;
use crate::placement::estimate::PlanEstimate;
use crate::placement::estimate::is_fetched;
use crate::placement::legality::before_memory;
use crate::placement::legality::check_queues;
use crate::placement::legality::first_violation;
use crate::placement::memory::Capacity;
use crate::placement::transfers::for_each_run_transfer;
use crate::placement::violation::Violation;
use crate::trace::RunProfile;

/// The result of the rules for a plan.
#[derive(Debug)]
enum Standing {
    /// It breaks no rule.
    Legal,
    /// It breaks only the memory rule: it cannot run, but its memory use can be computed.
    LacksMemory,
    /// It breaks another rule.
    Illegal,
}

/// A plan under construction and its evaluation by the host. One per policy call; deterministic.
///
/// Evaluation is lazy: a policy that does not search pays only for a copy. Results are cached until
/// the plan changes.
#[derive(Debug)]
pub struct Evaluator {
    candidates: Candidates,
    devices: Vec<u32>,
    start_order: Option<Vec<i32>>,
    queues: Option<Vec<u32>>,
    /// Ascending.
    streamed: Vec<u32>,
    /// Created by the first evaluation.
    estimate: Option<PlanEstimate>,
    members: Option<Members>,
    /// The result of the rules for the current plan; `None` if unknown.
    standing: Option<Standing>,
    capacity: Capacity,
    offered: Option<Proposal>,
}

impl Placement {
    /// Returns an evaluator that begins with this placement.
    pub fn evaluator(&self) -> Evaluator {
        let mut evaluator = Evaluator::new(self.candidates());
        evaluator.set_devices(self.devices());
        evaluator.set_start_order(self.start_order().map(<[i32]>::to_vec));
        evaluator.set_queues(self.queues().map(<[u32]>::to_vec));
        evaluator.set_streamed(self.streamed());
        evaluator
    }

    /// Returns the expected time of one run, in ns, if the nodes take these times, and transfers
    /// what `profile` has measured.
    pub(crate) fn makespan_of_ns(&self, measured: &[MeasuredWork], profile: &RunProfile) -> f64 {
        let mut estimate = PlanEstimate::new(self.candidates(), Some(profile));
        estimate.makespan_ns(self.candidates(), self.columns(), Some(measured))
    }

    /// Returns the expected time of one run of the whole graph, in ns: the makespan by the cost
    /// model, and the overhead of runs, which was measured (`RunProfile::overhead_ns`) or follows
    /// from the numbers of feeds and of outputs that no node reads.
    pub fn expected_ns(&self) -> f64 {
        let profile = self.candidates().profile();
        let overhead_ns = match profile {
            Some(profile) if profile.has_times() => profile.overhead_ns,
            _ if self.candidates().are_stated() => 0.0,
            _ => run_overhead_ns(self.graph()),
        };
        self.evaluator().makespan_ns() + overhead_ns
    }
}

/// Returns the expected time of a run besides its nodes, in ns.
#[expect(clippy::cast_precision_loss, reason = "an estimate")]
fn run_overhead_ns(graph: &Graph) -> f64 {
    let nodes = || graph.nodes();
    let n_feeds = nodes().filter(|&node| graph.is_placeholder(node)).count();
    match nodes().filter(|&node| is_fetched(graph, node)).count() {
        0 => 0.0,
        n_fetches => RUN_NS + n_feeds as f64 * FEED_NS + n_fetches as f64 * FETCH_NS,
    }
}

impl Evaluator {
    /// Creates an empty plan, which is not legal until devices are set (unless the graph is empty).
    pub fn new(candidates: &Candidates) -> Self {
        Self {
            candidates: candidates.clone(),
            devices: Vec::new(),
            start_order: None,
            queues: None,
            streamed: Vec::new(),
            estimate: None,
            members: None,
            standing: None,
            capacity: Capacity::of(candidates),
            offered: None,
        }
    }

    /// Returns the candidates.
    pub fn candidates(&self) -> &Candidates {
        &self.candidates
    }

    /// Returns the devices of the current plan.
    pub fn devices(&self) -> &[u32] {
        &self.devices
    }

    /// Sets a complete assignment, one device per node. Any values are accepted; rules are applied
    /// later.
    pub fn set_devices(&mut self, devices: &[u32]) {
        self.devices.clear();
        self.devices.extend_from_slice(devices);
        self.standing = None;
        if let Some(estimate) = &mut self.estimate {
            estimate.invalidate();
        }
    }

    /// Moves the whole groups of some nodes to a device, each group once even if several members
    /// are listed. Ignores nodes that do not exist, and does nothing unless there is one device
    /// per node. Accepts a device that does not exist; [`Self::violation`] then names it.
    /// Returns the number of entries and members that were visited, which is the cost of the
    /// call.
    pub fn move_nodes(&mut self, nodes: &[u32], device: u32) -> usize {
        let n_nodes = self.candidates.graph().n_nodes();
        if self.devices.len() != n_nodes {
            return nodes.len();
        }
        if self.candidates.nodes().n_groups as usize == n_nodes {
            for &node in nodes {
                self.move_node(node, device);
            }
            return nodes.len();
        }
        let mut members = self
            .members
            .take()
            .unwrap_or_else(|| Members::of(&self.candidates));
        members.begin_visits();
        let mut n_visited = nodes.len();
        for &node in nodes {
            if let Some(&group) = self.candidates.nodes().group.get(node as usize)
                && members.is_first_visit(group)
            {
                n_visited += members.of_group(group).len();
                for &member in members.of_group(group) {
                    self.move_node(member, device);
                }
            }
        }
        self.members = Some(members);
        n_visited
    }

    /// Start order within each device, larger first; `None` = the host decides.
    pub fn set_start_order(&mut self, order: Option<Vec<i32>>) {
        self.start_order = order;
        self.standing = None;
        if let Some(estimate) = &mut self.estimate {
            estimate.invalidate();
        }
    }

    /// Sets the compute queue per node; `None` lets the host decide.
    pub fn set_queues(&mut self, queues: Option<Vec<u32>>) {
        self.queues = queues;
        self.standing = None;
        if let Some(estimate) = &mut self.estimate {
            estimate.invalidate();
        }
    }

    /// Sets the constants that stay on the device of their own node, and that each run copies to
    /// readers on other devices. Any values are accepted; rules are applied later.
    pub fn set_streamed(&mut self, constants: &[u32]) {
        self.streamed.clear();
        self.streamed.extend_from_slice(constants);
        self.streamed.sort_unstable();
        self.streamed.dedup();
        self.standing = None;
        if let Some(estimate) = &mut self.estimate {
            estimate.invalidate();
        }
    }

    /// Returns the expected duration of one run of the current plan, in ns: a list schedule over
    /// costs, links, start order, queues and chips. +inf if the plan is not legal.
    pub fn makespan_ns(&mut self) -> f64 {
        if !self.is_legal() {
            return f64::INFINITY;
        }
        self.schedule()
    }

    /// Returns the first rule that the current plan breaks, as [`super::check`] does.
    pub fn violation(&mut self) -> Option<Violation> {
        if self.is_legal() {
            None
        } else {
            first_violation(&self.candidates, self.columns(), &self.capacity).err()
        }
    }

    /// Returns the bytes that one run moves ([`super::RunTransfer`]), without transfers of unknown
    /// size. 0 if the plan is not legal.
    pub fn transfer_bytes(&mut self) -> u64 {
        if !self.is_legal() {
            return 0;
        }
        let graph = self.candidates.graph();
        let mut sum = 0u64;
        for_each_run_transfer(&self.candidates, self.columns(), |transfer| {
            sum = sum.saturating_add(transfer.bytes(graph).unwrap_or(0));
        });
        sum
    }

    /// Returns per device the most bytes that it holds at one time: the constants that runs read
    /// there, state, and for each concurrent run the largest sum of tensors that are alive together
    /// when one thread executes the plan. The rule `memory` compares these sums with the capacity.
    /// They are also computed for a plan that breaks only that rule, so that a policy learns how
    /// much is too much. Zeroes if the plan breaks another rule.
    pub fn peak_bytes_per_device(&mut self) -> Vec<u64> {
        let none = vec![0; self.candidates.n_devices()];
        if matches!(self.standing(), Standing::Illegal) {
            return none;
        }
        let plan = self.columns();
        let peaks = self.capacity.peak_bytes_per_device(&self.candidates, plan);
        peaks.unwrap_or(none)
    }

    /// Offers the current plan. The last legal offer is the answer.
    ///
    /// # Errors
    /// The first [`Violation`]; the previous legal offer remains the answer.
    pub fn offer(&mut self) -> Result<(), Violation> {
        match self.violation() {
            Some(violation) => Err(violation),
            None => {
                self.offered = Some(Proposal {
                    devices: self.devices.clone(),
                    start_order: self.start_order.clone(),
                    queues: self.queues.clone(),
                    streamed: self.streamed.clone(),
                    ..Proposal::default()
                });
                Ok(())
            }
        }
    }

    /// Returns the last legal offer.
    pub fn offered(&self) -> Option<&Proposal> {
        self.offered.as_ref()
    }

    /// Converts into the last legal offer.
    pub fn into_proposal(self) -> Option<Proposal> {
        self.offered
    }

    fn columns(&self) -> PlanColumns<'_> {
        PlanColumns {
            devices: &self.devices,
            start_order: self.start_order.as_deref(),
            queues: self.queues.as_deref(),
            streamed: &self.streamed,
        }
    }

    fn is_legal(&mut self) -> bool {
        matches!(self.standing(), Standing::Legal)
    }

    fn standing(&mut self) -> &Standing {
        if self.standing.is_none() {
            self.standing = Some(self.find_standing());
        }
        self.standing.as_ref().expect("found above")
    }

    fn find_standing(&self) -> Standing {
        let (candidates, plan) = (&self.candidates, self.columns());
        let breaks_queues = |queues| check_queues(candidates, plan.devices, queues).is_err();
        if before_memory(candidates, plan).is_err() || plan.queues.is_some_and(breaks_queues) {
            return Standing::Illegal;
        }
        match self.capacity.is_short(candidates, plan) {
            true => Standing::LacksMemory,
            false => Standing::Legal,
        }
    }

    /// Moves one node. The caller moves the other nodes of its group, too.
    fn move_node(&mut self, node: u32, device: u32) {
        let Some(place) = self.devices.get_mut(node as usize) else {
            return;
        };
        let from = std::mem::replace(place, device);
        if from == device {
            return;
        }
        if let Some(estimate) = &mut self.estimate {
            match self.streamed.is_empty() {
                true => estimate.invalidate_node(node),
                // A constant that moves changes the work of its readers.
                false => estimate.invalidate(),
            }
        }
        // A legal plan stays legal if whole groups move to their candidates and memory suffices.
        // Otherwise the rules are applied again.
        let stays = self.candidates.is_legal(NodeId(node), device)
            && self.candidates.nodes().pinned[node as usize] == crate::graph::NONE
            && self.queues.is_none()
            && self.streamed.is_empty()
            && self.capacity.is_ample();
        if !(stays && matches!(self.standing, Some(Standing::Legal))) {
            self.standing = None;
        }
    }

    /// Updates the estimate of a plan that breaks at most the memory rule.
    fn schedule(&mut self) -> f64 {
        let estimate = self
            .estimate
            .get_or_insert_with(|| PlanEstimate::new(&self.candidates, self.candidates.profile()));
        let plan = PlanColumns {
            devices: &self.devices,
            start_order: self.start_order.as_deref(),
            queues: self.queues.as_deref(),
            streamed: &self.streamed,
        };
        estimate.makespan_ns(&self.candidates, plan, None)
    }
}

/// The nodes of every group.
#[derive(Debug)]
struct Members {
    offsets: Vec<u32>,
    nodes: Vec<u32>,
    /// Per group the number of the last visit, so that forgetting all visits costs nothing.
    visited: Vec<u64>,
    visit: u64,
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
        Self {
            offsets,
            nodes,
            visited: vec![0; columns.n_groups as usize],
            visit: 0,
        }
    }

    fn begin_visits(&mut self) {
        self.visit += 1;
    }

    fn is_first_visit(&mut self, group: u32) -> bool {
        std::mem::replace(&mut self.visited[group as usize], self.visit) != self.visit
    }

    fn of_group(&self, group: u32) -> &[u32] {
        let range =
            self.offsets[group as usize] as usize..self.offsets[group as usize + 1] as usize;
        &self.nodes[range]
    }
}
