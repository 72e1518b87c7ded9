//! What crosses from one device, or one memory, to another.

use crate::graph::{Graph, NodeId, TensorId};
use crate::names::DeviceId;
use crate::names::FrameIteration;
use crate::names::NameError;
use crate::names::RendezvousKey;

use super::ValueId;

/// What local sessions write for the incarnation of the source, as in TensorFlow: both ends are of
/// this process.
const LOCAL_INCARNATION: u64 = 1;

/// A transfer of one plan: its position in [`super::Plan::transfers`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TransferId(pub u32);

impl TransferId {
    /// As an index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Which memory of a device (TensorFlow `MemoryType`). Devices of type CPU have one memory, which
/// is always [`MemorySpace::Device`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum MemorySpace {
    /// The device's own.
    #[default]
    Device,
    /// The host's, on behalf of the device: strings, resources, and kernels' host-memory arguments.
    Host,
}

/// What a transfer carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Payload {
    /// A tensor.
    Tensor(TensorId),
    /// Only the fact that the node has run.
    Control(NodeId),
}

impl Payload {
    /// The node that it comes from.
    ///
    /// # Panics
    /// If the graph has no such tensor.
    pub fn producer(self, graph: &Graph) -> NodeId {
        match self {
            Self::Tensor(tensor) => graph.producer(tensor).0,
            Self::Control(node) => node,
        }
    }

    /// `NODE:SLOT`, or `^NODE` for control.
    ///
    /// # Panics
    /// If the graph has no such tensor or node.
    pub fn name(self, graph: &Graph) -> String {
        match self {
            Self::Tensor(tensor) => graph.tensor_name(tensor),
            Self::Control(node) => format!("^{}", graph.node_name(node)),
        }
    }

    /// The key of its transfer between the devices of these names, outside of loops. The edge is
    /// `edge_EDGE_NODE` with [`Transfer::edge`] and the producer. Made when somebody wants to see
    /// it: plans keep no texts.
    ///
    /// # Errors
    /// [`NameError::Key`], where the producer's name has a semicolon. Imported graphs have no such
    /// names, own graphs may.
    ///
    /// # Panics
    /// If the graph has no such tensor or node.
    pub fn key(
        self,
        graph: &Graph,
        edge: u32,
        source: &str,
        destination: &str,
    ) -> Result<RendezvousKey, NameError> {
        let producer = graph.node_name(self.producer(graph));
        let edge_name = format!("edge_{edge}_{producer}");
        let when = FrameIteration::default();
        RendezvousKey::new(source, LOCAL_INCARNATION, destination, &edge_name, when)
    }
}

/// One send/receive pair (TensorFlow `_Send` and `_Recv`): a tensor on its way to one device,
/// whatever the number of its consumers there, or a control edge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transfer {
    /// What it carries.
    pub payload: Payload,
    /// The device that sends.
    pub source: DeviceId,
    /// The memory that the tensor comes from.
    pub source_space: MemorySpace,
    /// The device that receives; the same as [`Self::source`] where only the memory differs.
    pub destination: DeviceId,
    /// The memory that the tensor goes to. [`MemorySpace::Host`] = the consumer wants host memory.
    pub destination_space: MemorySpace,
    /// Bytes; `None` where unknown before the run, 0 for control.
    pub bytes: Option<u64>,
    /// The edge that it was made for, a position in [`Graph::predecessors`]: the first, in node
    /// order, of those that it serves. No two transfers of a plan have one edge.
    pub edge: u32,
    /// Whether it is made once, when the plan is prepared, and never in a run: of a constant,
    /// which does not run.
    pub is_once: bool,
    /// The value that is sent; `None` for control.
    pub sent: Option<ValueId>,
    /// The value that arrives; `None` for control.
    pub received: Option<ValueId>,
}

impl Transfer {
    /// The first consumer, in node order (`_dst` in TensorFlow).
    ///
    /// # Panics
    /// If the graph is not the plan's.
    #[expect(clippy::cast_possible_truncation, reason = "node ids are 32 bits wide")]
    pub fn first_consumer(&self, graph: &Graph) -> NodeId {
        NodeId(graph.predecessors().row_of(self.edge as usize) as u32)
    }
}
