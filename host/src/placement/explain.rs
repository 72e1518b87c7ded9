//! Why a node is where it is: what its candidates cost, and what moving it would change.

use rustc_hash::FxHashSet;
use serde::Serialize;
use serde::Serializer;

use crate::candidates::Candidates;
use crate::candidates::Proposal;
use crate::graph::NodeId;
use crate::names::DeviceId;
use crate::placement::Evaluator;
use crate::placement::Placement;
use crate::placement::Simulation;
use crate::placement::Violation;
use crate::placement::check;
use crate::placement::simulation::Arrivals;
use crate::placement::simulation::tolerance_ns;
use crate::placement::to_u32;

/// Why a node is where it is.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct NodeExplanation {
    /// The node, by its id.
    pub node: u32,
    /// Its device.
    pub device: u32,
    /// Nodes that must be on the same device, with this one.
    pub group: Vec<u32>,
    /// Expected executions in one run.
    pub executions: f64,
    /// When it starts, in ns: as [`Simulation::starts_ns`].
    pub start_ns: f64,
    /// When it ends, in ns.
    pub end_ns: f64,
    /// By how much longer it may take before the run takes longer, in ns, if devices and order
    /// stay: as [`Simulation::slack_ns`].
    pub slack_ns: f64,
    /// Whether it is on the critical path.
    pub is_critical: bool,
    /// The policy's reasons, if it gave any.
    pub reasons: Vec<String>,
    /// The devices that it may run on, in the order of preference.
    pub candidates: Vec<CandidateExplanation>,
}

/// A device that a node may run on.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct CandidateExplanation {
    /// The device.
    pub device: u32,
    /// Expected time of one execution there, in ns.
    pub cost_ns: f64,
    /// Where the time comes from: as [`Candidates::cost_source`].
    pub cost_source: String,
    /// Number of measurements behind it; 0 if it is computed.
    pub cost_samples: u32,
    /// What moving the node there changes; `None` for its own device.
    #[serde(rename = "move")]
    pub moved: Option<Move>,
}

/// A move of a node to another device. Its colocation group moves with it. All other devices, the
/// start order and the queues stay.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Move {
    /// The node.
    pub node: u32,
    /// Its device.
    pub from: u32,
    /// The other device.
    pub to: u32,
    /// What becomes of the run.
    #[serde(flatten)]
    pub outcome: MoveOutcome,
}

/// What becomes of a run after a [`Move`].
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
#[non_exhaustive]
pub enum MoveOutcome {
    /// The plan stays legal.
    Legal {
        /// Expected time of a run, in ns: as [`Placement::expected_ns`] after the move.
        expected_ns: f64,
        /// The same, less the expected time without the move; below 0 if the run gets faster.
        change_ns: f64,
        /// Bytes that one run moves between devices.
        transfer_bytes: u64,
        /// Most bytes on the device that the node leaves, and on the one that it moves to. If a
        /// large graph has many devices, only the moves with the shortest runs have these peaks,
        /// and the others have `None`. The evaluator of [`Placement::with_move`] computes them.
        peak_bytes: Option<[u64; 2]>,
    },
    /// The plan would break a rule.
    Refused {
        /// The rule.
        #[serde(serialize_with = "as_text")]
        violation: Box<Violation>,
    },
}

fn as_text<S: Serializer>(violation: &Violation, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(violation)
}

impl Move {
    /// Returns by how much a run gets longer, in ns; `None` if the plan would break a rule.
    pub fn change_ns(&self) -> Option<f64> {
        match self.outcome {
            MoveOutcome::Legal { change_ns, .. } => Some(change_ns),
            MoveOutcome::Refused { .. } => None,
        }
    }
}

/// The work of [`Placement::best_moves`]: the number of evaluated moves times the number of nodes.
/// An evaluation visits each node once at most. It takes some 100 ns per node on few devices, and
/// 300 ns where most edges cross between hundreds of devices.
const EVALUATED_MAX: usize = 20_000_000;

/// The work of memory plans in [`Placement::explain`]: the number of plans times the number of
/// nodes. A plan takes some 2 us per node, so all plans together take some 0.3 s.
const PLANNED_MAX: usize = 150_000;

impl Placement {
    /// Explains where a node is.
    ///
    /// # Panics
    /// If the graph has no such node.
    pub fn explain(&self, node: NodeId) -> NodeExplanation {
        let candidates = self.candidates();
        let simulation = self.simulate();
        let groups = &candidates.nodes().group;
        let group = groups[node.index()];
        let members = (0..to_u32(groups.len())).filter(|&other| groups[other as usize] == group);
        let reasons = self.explanations().iter();
        let executions = candidates.nodes().executions.get(node.index());
        NodeExplanation {
            node: node.0,
            device: self.device(node).0,
            group: members.collect(),
            executions: executions.copied().unwrap_or(1.0),
            start_ns: simulation.starts_ns[node.index()],
            end_ns: simulation.ends_ns[node.index()],
            slack_ns: simulation.slack_ns(self)[node.index()],
            is_critical: simulation.critical_path.contains(&node.0),
            reasons: reasons
                .filter(|explanation| explanation.nodes.contains(&node.0))
                .map(|explanation| explanation.reason.clone())
                .collect(),
            candidates: self.explained_candidates(candidates, node),
        }
    }

    fn explained_candidates(
        &self,
        candidates: &Candidates,
        node: NodeId,
    ) -> Vec<CandidateExplanation> {
        let mut plan = Moves::new(self);
        let own = self.device(node).0;
        let devices = candidates.of_node(node).iter();
        let mut explained: Vec<CandidateExplanation> = devices
            .map(|&device| CandidateExplanation {
                device,
                cost_ns: candidates.cost_ns(node, DeviceId(device)),
                cost_source: candidates.cost_source(node, DeviceId(device)).to_owned(),
                cost_samples: candidates.cost_samples(node, DeviceId(device)),
                moved: (device != own).then(|| plan.evaluate(node, device)),
            })
            .collect();
        let moves = explained.iter_mut().filter_map(|row| row.moved.as_mut());
        let mut moves: Vec<&mut Move> = moves.collect();
        let change_ns = |moved: &Move| moved.change_ns().unwrap_or(f64::INFINITY);
        moves.sort_by(|a, b| change_ns(a).total_cmp(&change_ns(b)));
        let n_planned = (PLANNED_MAX / self.devices().len().max(1)).max(1);
        for moved in moves.into_iter().take(n_planned) {
            plan.add_peaks(moved);
        }
        explained
    }

    /// Returns the single moves that shorten a run most, the best first, and at most `n_max`: of
    /// each node its best move. Moves that shorten nothing are left out.
    ///
    /// Only nodes on the critical path are tried: moving others removes none of the waits that
    /// determine the end. In a large graph these are the nodes that take longest.
    pub fn best_moves(&self, n_max: usize) -> Vec<Move> {
        let candidates = self.candidates();
        let simulation = self.simulate();
        let length_ns =
            |node: u32| simulation.ends_ns[node as usize] - simulation.starts_ns[node as usize];
        let mut path = simulation.critical_path.clone();
        path.sort_by(|&a, &b| length_ns(b).total_cmp(&length_ns(a)));
        let mut seen = FxHashSet::default();
        path.retain(|&node| seen.insert(candidates.nodes().group[node as usize]));
        let mut plan = Moves::new(self);
        let n_evaluated = EVALUATED_MAX / self.devices().len().max(1);
        let tried = path.into_iter().flat_map(|node| {
            let devices = candidates.of_node(NodeId(node)).iter();
            devices.map(move |&device| (NodeId(node), device))
        });
        let tried = tried.filter(|&(node, device)| device != self.device(node).0);
        let mut found: Vec<(f64, NodeId, u32)> = tried
            .take(n_evaluated)
            .filter_map(|(node, device)| Some((plan.change_ns(node, device)?, node, device)))
            .filter(|&(change_ns, ..)| change_ns < -tolerance_ns(simulation.end_ns))
            .collect();
        found.sort_by(|a, b| a.0.total_cmp(&b.0).then((a.1, a.2).cmp(&(b.1, b.2))));
        let mut seen = FxHashSet::default();
        found.retain(|&(_, node, _)| seen.insert(node));
        found.truncate(n_max);
        let best = found.into_iter();
        best.map(|(_, node, device)| {
            let mut moved = plan.evaluate(node, device);
            plan.add_peaks(&mut moved);
            moved
        })
        .collect()
    }

    /// Returns this placement after the move of a node, with its colocation group, to another
    /// device.
    ///
    /// # Errors
    /// The first rule that the plan then breaks.
    pub fn with_move(&self, node: NodeId, device: DeviceId) -> Result<Self, Violation> {
        let mut plan = self.evaluator();
        plan.move_nodes(&[node.0], device.0);
        let proposal = Proposal {
            devices: plan.devices().to_vec(),
            start_order: self.start_order().map(<[i32]>::to_vec),
            queues: self.queues().map(<[u32]>::to_vec),
            streamed: self.streamed().to_vec(),
            ..Proposal::default()
        };
        check(self.candidates(), proposal)
    }
}

/// A plan whose nodes are moved, one at a time, and moved back.
struct Moves<'a> {
    placement: &'a Placement,
    plan: Evaluator,
    makespan_ns: f64,
    /// Of a run, without its makespan.
    overhead_ns: f64,
}

impl<'a> Moves<'a> {
    fn new(placement: &'a Placement) -> Self {
        let mut plan = placement.evaluator();
        let makespan_ns = plan.makespan_ns();
        Self {
            placement,
            plan,
            makespan_ns,
            overhead_ns: placement.expected_ns() - makespan_ns,
        }
    }

    /// Returns the change of the makespan; `None` if the plan is then not legal.
    fn change_ns(&mut self, node: NodeId, device: u32) -> Option<f64> {
        self.plan.move_nodes(&[node.0], device);
        let makespan_ns = self.plan.makespan_ns();
        let from = self.placement.device(node).0;
        self.plan.move_nodes(&[node.0], from);
        makespan_ns
            .is_finite()
            .then_some(makespan_ns - self.makespan_ns)
    }

    /// Returns a move, without its peaks.
    fn evaluate(&mut self, node: NodeId, device: u32) -> Move {
        let from = self.placement.device(node).0;
        self.plan.move_nodes(&[node.0], device);
        let makespan_ns = self.plan.makespan_ns();
        let outcome = match self.plan.violation() {
            Some(violation) => MoveOutcome::Refused {
                violation: Box::new(violation),
            },
            None => MoveOutcome::Legal {
                expected_ns: makespan_ns + self.overhead_ns,
                change_ns: makespan_ns - self.makespan_ns,
                transfer_bytes: self.plan.transfer_bytes(),
                peak_bytes: None,
            },
        };
        self.plan.move_nodes(&[node.0], from);
        Move {
            node: node.0,
            from,
            to: device,
            outcome,
        }
    }

    /// Computes the peaks of a move, if it is legal.
    fn add_peaks(&mut self, moved: &mut Move) {
        let MoveOutcome::Legal { peak_bytes, .. } = &mut moved.outcome else {
            return;
        };
        self.plan.move_nodes(&[moved.node], moved.to);
        let peaks = self.plan.peak_bytes_per_device();
        self.plan.move_nodes(&[moved.node], moved.from);
        *peak_bytes = Some([moved.from, moved.to].map(|device| peaks[device as usize]));
    }
}

impl Simulation {
    /// Returns per node by how much longer it may take before the last node ends later, in ns, if
    /// devices, order and the waits of transfers stay. On a device that executes several nodes at
    /// one time, it may be more: each node there delays the next one that starts after it.
    ///
    /// # Panics
    /// If the simulation is one of another graph.
    pub fn slack_ns(&self, placement: &Placement) -> Vec<f64> {
        let graph = placement.graph();
        let devices = placement.devices();
        let arrivals = Arrivals::new(&self.transfers);
        let mut by_start: Vec<u32> = (0..to_u32(devices.len())).collect();
        let start = |node: u32| self.starts_ns[node as usize];
        let end = |node: u32| self.ends_ns[node as usize];
        by_start.sort_unstable_by(|&a, &b| start(a).total_cmp(&start(b)).then(a.cmp(&b)));
        // Per device, the nodes that take time, by their start.
        let mut executed: Vec<Vec<u32>> = vec![Vec::new(); placement.device_set().len()];
        for &node in by_start.iter().filter(|&&node| end(node) > start(node)) {
            executed[devices[node as usize] as usize].push(node);
        }
        let mut slack_ns = vec![f64::INFINITY; devices.len()];
        let successors = graph.successors();
        for &node in by_start.iter().rev() {
            let own = devices[node as usize];
            let mut least_ns = self.end_ns - end(node);
            for &reader in successors.row(node as usize) {
                // What the next iteration of a loop reads came before.
                if start(reader) < end(node) - tolerance_ns(end(node)) {
                    continue;
                }
                let arrival_ns = arrivals.latest_ns(node, devices[reader as usize]);
                let arrival_ns = arrival_ns.unwrap_or(end(node)).max(end(node));
                let wait_ns = start(reader) - arrival_ns;
                least_ns = least_ns.min(wait_ns.max(0.0) + slack_ns[reader as usize]);
            }
            if end(node) > start(node) {
                let of_device = &executed[own as usize];
                let next = of_device
                    .partition_point(|&other| start(other) < end(node) - tolerance_ns(end(node)));
                let mut after = of_device[next..].iter();
                if let Some(&next) = after.find(|&&other| other != node) {
                    let wait_ns = start(next) - end(node);
                    least_ns = least_ns.min(wait_ns.max(0.0) + slack_ns[next as usize]);
                }
            }
            slack_ns[node as usize] = least_ns.max(0.0);
        }
        slack_ns
    }
}
