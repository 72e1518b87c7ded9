//! The check, and what has passed it.

use std::sync::Arc;

use crate::candidates::Candidates;
use crate::candidates::Explanation;
use crate::candidates::Proposal;
use crate::device::DeviceSet;
use crate::graph::Graph;
use crate::graph::NodeId;
use crate::names::DeviceId;
use crate::partition::Assignment;
use crate::partition::PartitionError;
use crate::partition::RunRequest;
use crate::partition::has_one_memory;
use crate::partition::partition;
use crate::placement::legality::Draft;
use crate::placement::legality::first_violation;
use crate::placement::memory::Capacity;
use crate::placement::summary::PlacementSummary;
use crate::placement::summary::summarize;
use crate::placement::transfers::RunTransfer;
use crate::placement::transfers::for_each_run_transfer;
use crate::placement::violation::Violation;
use crate::plan::Plan;

/// A device for every node of a graph: complete, legal, colocated and within memory. Only [`check`]
/// makes one.
#[derive(Debug, Clone)]
pub struct Placement {
    candidates: Candidates,
    devices: Vec<u32>,
    start_order: Option<Vec<i32>>,
    queues: Option<Vec<u32>>,
    explanations: Vec<Explanation>,
    metrics: Vec<(String, f64)>,
}

/// Holds a proposal to the rules, in this order: `length`, `device` (in range), `pinned`,
/// `candidate`, `group`, `memory` (each memory suffices for what the plan puts there: see
/// [`crate::memory`]), `queue`.
///
/// # Errors
/// The first [`Violation`]: the first broken rule, at its first node, with what would have been
/// legal.
pub fn check(candidates: &Candidates, proposal: Proposal) -> Result<Placement, Violation> {
    let plan = Draft {
        devices: &proposal.devices,
        start_order: proposal.start_order.as_deref(),
        queues: proposal.queues.as_deref(),
    };
    first_violation(candidates, plan, &Capacity::of(candidates))?;
    Ok(Placement {
        candidates: candidates.clone(),
        devices: proposal.devices,
        start_order: proposal.start_order,
        queues: proposal.queues,
        explanations: proposal.explanations,
        metrics: proposal.metrics,
    })
}

impl Placement {
    /// The same, held to other candidates for the same graph and devices.
    pub(super) fn checked_against(mut self, candidates: &Candidates) -> Result<Self, Violation> {
        let plan = Draft {
            devices: &self.devices,
            start_order: self.start_order.as_deref(),
            queues: self.queues.as_deref(),
        };
        first_violation(candidates, plan, &Capacity::of(candidates))?;
        self.candidates = candidates.clone();
        Ok(self)
    }

    /// The graph that it is a placement of.
    pub fn graph(&self) -> &Arc<Graph> {
        self.candidates.graph()
    }

    /// The devices that it places on.
    pub fn device_set(&self) -> &Arc<DeviceSet> {
        self.candidates.device_set()
    }

    /// What it was checked against.
    pub fn candidates(&self) -> &Candidates {
        &self.candidates
    }

    /// Device of a node.
    ///
    /// # Panics
    /// If the graph has no such node.
    pub fn device(&self, node: NodeId) -> DeviceId {
        DeviceId(self.devices[node.index()])
    }

    /// Device of every node, as an index into the device set.
    pub fn devices(&self) -> &[u32] {
        &self.devices
    }

    /// Start order within each device, larger first; `None` = the executor decides.
    pub fn start_order(&self) -> Option<&[i32]> {
        self.start_order.as_deref()
    }

    /// Compute queue of every node; `None` = the executor decides.
    pub fn queues(&self) -> Option<&[u32]> {
        self.queues.as_deref()
    }

    /// Reasons that the policy gave.
    pub fn explanations(&self) -> &[Explanation] {
        &self.explanations
    }

    /// Numbers that the policy gave, by name.
    pub fn metrics(&self) -> &[(String, f64)] {
        &self.metrics
    }

    /// Cuts the graph into one partition per device, for runs with these feeds, fetches and
    /// targets.
    ///
    /// Called once per kind of run; linear in the part of the graph that runs.
    ///
    /// # Errors
    /// [`PartitionError`] if the request does not fit the graph. A placement always does.
    pub fn partition(&self, request: &RunRequest) -> Result<Plan, PartitionError> {
        let has_one_memory = has_one_memory(self.device_set());
        let assignment = Assignment::new(
            &self.candidates,
            &has_one_memory,
            &self.devices,
            self.start_order.as_deref(),
            self.queues.as_deref(),
        );
        partition(&assignment, request)
    }

    /// What a run of the whole graph moves, in the order of the producers. Computed anew on each
    /// call.
    pub fn run_transfers(&self) -> Vec<RunTransfer> {
        let mut transfers = Vec::new();
        for_each_run_transfer(&self.candidates, &self.devices, |transfer| {
            transfers.push(transfer);
        });
        transfers
    }

    /// What is where, and what moves. Computed anew on each call, in time proportional to the
    /// graph.
    pub fn summary(&self) -> PlacementSummary {
        summarize(&self.candidates, &self.devices)
    }
}
