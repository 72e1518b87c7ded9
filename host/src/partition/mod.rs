//! Cuts a placed graph into partitions: `Placement` and what the caller feeds and fetches in, [`Plan`] out.
//!
//! Only what the fetches and targets need is in the plan. Every tensor is sent once to each device (and memory) that
//! reads it, whatever the number of its readers there, as TensorFlow does it; control edges between devices are
//! transfers too. Knows no kernel and opens no device.

mod cutter;
mod prune;

use crate::graph::{Graph, NodeId, TensorId};
use crate::names::DeviceId;
use crate::plan::Plan;
use crate::tensor::{DType, PartialShape};

/// What one kind of run gives and wants.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct RunRequest {
    /// Tensors that the caller gives. Any tensor: what produces it runs only if something else needs it.
    pub feeds: Vec<TensorId>,
    /// Tensors that the caller wants, in this order; one may stand here twice.
    pub fetches: Vec<TensorId>,
    /// Nodes that must run although nothing of them is fetched.
    pub targets: Vec<NodeId>,
}

/// Why a request cannot be planned. A placement cannot be at fault: it was checked when it was made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PartitionError {
    /// A tensor id that the graph does not have.
    #[error("tensor {tensor} does not exist, the graph has {n_tensors}")]
    NoSuchTensor {
        /// The id.
        tensor: u32,
        /// Number of tensors.
        n_tensors: usize,
    },
    /// A node id that the graph does not have.
    #[error("node {node} does not exist, the graph has {n_nodes}")]
    NoSuchNode {
        /// The id.
        node: u32,
        /// Number of nodes.
        n_nodes: usize,
    },
    /// One tensor is fed twice.
    #[error("`{0}` is fed twice")]
    FedTwice(String),
    /// A placeholder is needed and not fed.
    #[error("placeholder `{node}` ({dtype}, shape {shape}) is needed and not fed")]
    UnfedPlaceholder {
        /// The placeholder.
        node: String,
        /// Element type that it takes.
        dtype: DType,
        /// What is known of the shape that it takes.
        shape: PartialShape,
    },
    /// Ids are 32 bits wide.
    #[error("the plan has more steps or values than 32-bit ids can name")]
    TooLarge,
}

/// What the cut reads of a placement.
pub(crate) struct Assignment<'a> {
    /// The graph.
    pub(crate) graph: &'a Graph,
    /// Device per node.
    pub(crate) devices: &'a [u32],
    /// Per device whether it is of type CPU, which has one memory.
    pub(crate) has_one_memory: &'a [bool],
    /// Kind bits per edge, host memory included.
    pub(crate) edge_kinds: &'a [u8],
    /// Start order, larger first.
    pub(crate) start_order: Option<&'a [i32]>,
    /// Compute queues.
    pub(crate) queues: Option<&'a [u32]>,
}

impl Assignment<'_> {
    fn device(&self, node: NodeId) -> DeviceId {
        DeviceId(self.devices[node.index()])
    }
}

/// Cuts.
pub(crate) fn cut_assigned(
    assignment: &Assignment<'_>,
    request: &RunRequest,
) -> Result<Plan, PartitionError> {
    let pruned = prune::prune(assignment.graph, request)?;
    cutter::Cutter::new(assignment, &pruned).cut(request)
}
