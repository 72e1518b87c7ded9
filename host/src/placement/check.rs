//! The check of proposals, and placements.

use std::sync::Arc;

use crate::candidates::Candidates;
use crate::candidates::Explanation;
use crate::candidates::PlanColumns;
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
use crate::placement::legality::first_violation;
use crate::placement::memory::Capacity;
use crate::placement::summary::PlacementSummary;
use crate::placement::summary::summarize;
use crate::placement::transfers::RunTransfer;
use crate::placement::transfers::for_each_run_transfer;
use crate::placement::violation::Violation;
use crate::plan::ExecutionPlan;

/// A device for every node of a graph: complete, legal, colocated and within memory. Only [`check`]
/// creates placements.
#[derive(Debug, Clone)]
pub struct Placement {
    candidates: Candidates,
    devices: Vec<u32>,
    start_order: Option<Vec<i32>>,
    queues: Option<Vec<u32>>,
    streamed: Vec<u32>,
    explanations: Vec<Explanation>,
    metrics: Vec<(String, f64)>,
}

/// Checks a proposal against the rules, in this order: `length`, `device` (in range), `pinned`,
/// `candidate`, `group`, `streamed` (only constants are), `memory` (the plan fits into each memory,
/// see [`crate::memory`]), `queue`.
///
/// # Errors
/// The first [`Violation`]: the first broken rule, at its first node, with the legal alternatives.
pub fn check(candidates: &Candidates, mut proposal: Proposal) -> Result<Placement, Violation> {
    proposal.streamed.sort_unstable();
    proposal.streamed.dedup();
    first_violation(candidates, proposal.columns(), &Capacity::of(candidates))?;
    Ok(Placement {
        candidates: candidates.clone(),
        devices: proposal.devices,
        start_order: proposal.start_order,
        queues: proposal.queues,
        streamed: proposal.streamed,
        explanations: proposal.explanations,
        metrics: proposal.metrics,
    })
}

impl Placement {
    /// Checks the placement against other candidates for the same graph and devices.
    pub(super) fn checked_against(mut self, candidates: &Candidates) -> Result<Self, Violation> {
        first_violation(candidates, self.columns(), &Capacity::of(candidates))?;
        self.candidates = candidates.clone();
        Ok(self)
    }

    /// Returns the placed graph.
    pub fn graph(&self) -> &Arc<Graph> {
        self.candidates.graph()
    }

    /// Returns the devices.
    pub fn device_set(&self) -> &Arc<DeviceSet> {
        self.candidates.device_set()
    }

    /// Returns the candidates that it was checked against.
    pub fn candidates(&self) -> &Candidates {
        &self.candidates
    }

    /// Returns the device of a node.
    ///
    /// # Panics
    /// If the graph has no such node.
    pub fn device(&self, node: NodeId) -> DeviceId {
        DeviceId(self.devices[node.index()])
    }

    /// Returns the device of every node, as an index into the device set.
    pub fn devices(&self) -> &[u32] {
        &self.devices
    }

    /// Returns the start order within each device, larger first; `None` if the executor decides.
    pub fn start_order(&self) -> Option<&[i32]> {
        self.start_order.as_deref()
    }

    /// Returns the compute queue of every node; `None` if the executor decides.
    pub fn queues(&self) -> Option<&[u32]> {
        self.queues.as_deref()
    }

    /// Returns the constants that stay on the device of their own node, and that each run copies to
    /// readers on other devices; ascending.
    pub fn streamed(&self) -> &[u32] {
        &self.streamed
    }

    pub(crate) fn columns(&self) -> PlanColumns<'_> {
        PlanColumns {
            devices: &self.devices,
            start_order: self.start_order(),
            queues: self.queues(),
            streamed: &self.streamed,
        }
    }

    /// Returns the policy's reasons for its choices.
    pub fn explanations(&self) -> &[Explanation] {
        &self.explanations
    }

    /// Returns the policy's metrics, by name.
    pub fn metrics(&self) -> &[(String, f64)] {
        &self.metrics
    }

    /// Partitions the graph, with one partition per device, for runs with these feeds, fetches and
    /// targets. Takes time linear in the part of the graph that runs.
    ///
    /// # Errors
    /// [`PartitionError`] if the request does not fit the graph.
    pub fn partition(&self, request: &RunRequest) -> Result<ExecutionPlan, PartitionError> {
        let has_one_memory = has_one_memory(self.device_set());
        let assignment = Assignment::new(&self.candidates, &has_one_memory, self.columns());
        partition(&assignment, request)
    }

    /// Returns the transfers of a run of the whole graph, in the order of the producers. Each call
    /// computes them anew.
    pub fn run_transfers(&self) -> Vec<RunTransfer> {
        let mut transfers = Vec::new();
        for_each_run_transfer(&self.candidates, self.columns(), |transfer| {
            transfers.push(transfer);
        });
        transfers
    }

    /// Returns statistics of the placement. Each call computes them anew, in time linear in the
    /// graph.
    pub fn summary(&self) -> PlacementSummary {
        summarize(&self.candidates, self.columns())
    }
}
