//! The answer of a policy.

use crate::graph::EdgeKind;
use crate::graph::Graph;
use crate::graph::NONE;
use crate::graph::TensorId;

/// A complete assignment as a policy offered it: **untrusted** until [`crate::placement`] has
/// checked it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Proposal {
    /// Device per node, as an index into the device set.
    pub devices: Vec<u32>,
    /// Start order within each device, larger first; `None` if the host decides.
    pub start_order: Option<Vec<i32>>,
    /// Compute queue per node; `None` if the host decides.
    pub queues: Option<Vec<u32>>,
    /// Constants that stay on the device of their own node, and that each run copies to readers on
    /// other devices (weight streaming); ascending ids.
    pub streamed: Vec<u32>,
    /// The policy's reasons.
    pub explanations: Vec<Explanation>,
    /// The policy's metrics, by name.
    pub metrics: Vec<(String, f64)>,
}

/// The columns of a plan: of a proposal, of a placement, or of a plan under construction.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PlanColumns<'a> {
    pub(crate) devices: &'a [u32],
    pub(crate) start_order: Option<&'a [i32]>,
    pub(crate) queues: Option<&'a [u32]>,
    /// Ascending.
    pub(crate) streamed: &'a [u32],
}

impl Proposal {
    pub(crate) fn columns(&self) -> PlanColumns<'_> {
        PlanColumns {
            devices: &self.devices,
            start_order: self.start_order.as_deref(),
            queues: self.queues.as_deref(),
            streamed: &self.streamed,
        }
    }
}

impl<'a> PlanColumns<'a> {
    /// Returns a plan that leaves all but the devices to the host.
    pub(crate) fn of_devices(devices: &'a [u32]) -> Self {
        Self {
            devices,
            start_order: None,
            queues: None,
            streamed: &[],
        }
    }

    /// Returns whether an edge costs a run nothing: its tensor is on the reader's device before the
    /// run begins.
    pub(crate) fn is_preloaded(&self, graph: &Graph, edge: usize) -> bool {
        graph.edge_kinds()[edge] & EdgeKind::PRELOADED != 0 && !self.is_streamed(graph, edge)
    }

    /// Returns whether an edge carries a streamed constant, or what an `Identity` passes on of it.
    pub(crate) fn is_streamed(&self, graph: &Graph, edge: usize) -> bool {
        if self.streamed.is_empty() || graph.edge_kinds()[edge] & EdgeKind::PRELOADED == 0 {
            return false;
        }
        let tensor = graph.edge_tensors()[edge];
        let constant = || graph.constant_of(TensorId(tensor));
        tensor != NONE
            && constant().is_some_and(|constant| self.streamed.binary_search(&constant.0).is_ok())
    }
}

/// A policy's reason for placing some nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// The nodes, by id.
    pub nodes: Vec<u32>,
    /// The reason.
    pub reason: String,
}
