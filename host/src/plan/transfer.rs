//! What crosses from one device, or one memory, to another.

use crate::graph::{NodeId, TensorId};
use crate::names::DeviceId;

use super::ValueId;

/// A transfer of one plan: its position in [`super::Plan::transfers`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TransferId(pub u32);

impl TransferId {
    /// As an index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Which memory of a device (TensorFlow `MemoryType`). Devices of type CPU have one memory, which is always
/// [`MemorySpace::Device`].
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

/// One send/receive pair (TensorFlow `_Send` and `_Recv`): a tensor on its way to one device, whatever the number of its
/// consumers there, or a control edge.
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
    /// The first consumer, in node order (`_dst` in TensorFlow).
    pub first_consumer: NodeId,
    /// The value that is sent; `None` for control.
    pub sent: Option<ValueId>,
    /// The value that arrives; `None` for control.
    pub received: Option<ValueId>,
}
