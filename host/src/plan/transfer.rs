//! Transfers between devices and between memories.

use crate::graph::{Graph, NodeId, TensorId};
use crate::names::DeviceId;
use crate::names::FrameIteration;
use crate::names::NameError;
use crate::names::RendezvousKey;

use super::ValueId;

/// The incarnation of the source in keys of local sessions, as in TensorFlow: both ends are in this
/// process.
const LOCAL_INCARNATION: u64 = 1;

/// The id of a transfer of one plan: its index in [`super::ExecutionPlan::transfers`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TransferId(pub u32);

impl TransferId {
    /// Returns the id as an index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// The memory space of a device (TensorFlow `MemoryType`). Devices whose own memory is host memory
/// have one memory space, which is always [`MemorySpace::Device`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum MemorySpace {
    /// The device's own memory.
    #[default]
    Device,
    /// Host memory on behalf of the device: strings, resources, and host-memory arguments of
    /// kernels.
    Host,
}

/// The payload of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Payload {
    /// A tensor.
    Tensor(TensorId),
    /// Only the fact that the node has run (a control edge).
    Control(NodeId),
}

impl Payload {
    /// Returns the node that produces it.
    ///
    /// # Panics
    /// If the graph has no such tensor.
    pub fn producer(self, graph: &Graph) -> NodeId {
        match self {
            Self::Tensor(tensor) => graph.producer(tensor).0,
            Self::Control(node) => node,
        }
    }

    /// Returns `NODE:SLOT`, or `^NODE` for a control edge.
    ///
    /// # Panics
    /// If the graph has no such tensor or node.
    pub fn name(self, graph: &Graph) -> String {
        match self {
            Self::Tensor(tensor) => graph.tensor_name(tensor),
            Self::Control(node) => format!("^{}", graph.node_name(node)),
        }
    }

    /// Returns the rendezvous key of its transfer between the named devices, outside of loops. The
    /// edge name is `edge_EDGE_NODE`, from [`Transfer::edge`] and the producer. Computed on demand:
    /// plans store no strings.
    ///
    /// # Errors
    /// [`NameError::Key`] if the producer's name contains a semicolon. Names in imported graphs
    /// never do; names in graphs built by an app may.
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

/// One send/receive pair (TensorFlow `_Send` and `_Recv`): a tensor that is sent to one device,
/// regardless of the number of consumers there, or a control edge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transfer {
    /// The payload.
    pub payload: Payload,
    /// The device that sends.
    pub source: DeviceId,
    /// The memory space that the tensor comes from.
    pub source_space: MemorySpace,
    /// The device that receives; equal to [`Self::source`] if only the memory space differs.
    pub destination: DeviceId,
    /// The memory space that the tensor goes to. [`MemorySpace::Host`] means that the consumer
    /// reads host memory.
    pub destination_space: MemorySpace,
    /// Size in bytes; `None` if unknown before the run, 0 for a control edge.
    pub bytes: Option<u64>,
    /// The edge that it was created for, an index into [`Graph::predecessors`]: the first edge in
    /// node order of those that it serves. No two transfers of a plan have the same edge.
    pub edge: u32,
    /// Whether it is executed once, when the plan is prepared, and never in a run. True for
    /// constants, which do not run.
    pub is_once: bool,
    /// The value that is sent; `None` for a control edge.
    pub sent: Option<ValueId>,
    /// The value that is received; `None` for a control edge.
    pub received: Option<ValueId>,
}

impl Transfer {
    /// Returns the first consumer in node order (`_dst` in TensorFlow).
    ///
    /// # Panics
    /// If the graph is not the plan's graph.
    #[expect(clippy::cast_possible_truncation, reason = "node ids are 32 bits wide")]
    pub fn first_consumer(&self, graph: &Graph) -> NodeId {
        NodeId(graph.predecessors().row_of(self.edge as usize) as u32)
    }
}
