//! Errors of devices and kernels.

use super::numa::TopologyError;
use super::resource::ResourceError;
use crate::graph::NodeId;
use crate::tensor::{OutOfMemory, TensorError};

/// Why a device is unavailable, or does not answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// A driver or library is missing. The remedy says what to install or set.
    #[error("{device_type}: {what}; {remedy}")]
    Absent {
        /// The requested type.
        device_type: String,
        /// What is missing.
        what: String,
        /// What the user can do.
        remedy: String,
    },
    /// An option is not valid.
    #[error("{0}")]
    InvalidArgument(String),
    /// Something that was named does not exist.
    #[error("{0}")]
    NotFound(String),
    /// The device failed.
    #[error("{device}: {message}")]
    Failed {
        /// Name of the device.
        device: String,
        /// What happened.
        message: String,
    },
    /// Work that was submitted to the device has failed after the kernel had returned.
    #[error("{device}: the work of node `{node}` (op {op}) failed: {message}")]
    Work {
        /// Name of the device.
        device: String,
        /// Name of the node.
        node: String,
        /// Its op.
        op: String,
        /// What happened.
        message: String,
    },
    /// The device found inputs that the op does not allow, after the kernel had returned.
    #[error("{device}: node `{node}` (op {op}): {message}")]
    Input {
        /// Name of the device.
        device: String,
        /// Name of the node.
        node: String,
        /// Its op.
        op: String,
        /// What is wrong with the inputs.
        message: String,
    },
    /// A program does not compile for the device.
    #[error("{device}: program {program} cannot be built: {message}")]
    Build {
        /// Name of the device.
        device: String,
        /// The program and its macros.
        program: String,
        /// The messages of the driver and its compiler.
        message: String,
    },
    /// The device no longer answers, and the contents of its memory are lost.
    #[error("{device}: the device is lost: {message}; build a new session")]
    Lost {
        /// Name of the device.
        device: String,
        /// What it was doing, or why it is lost.
        message: String,
    },
    /// The system's description of the machine cannot be understood.
    #[error("NUMA affinity: {0}")]
    Topology(TopologyError),
    /// The device has not enough memory.
    #[error(transparent)]
    OutOfMemory(#[from] OutOfMemory),
}

impl From<TopologyError> for DeviceError {
    fn from(error: TopologyError) -> Self {
        Self::Topology(error)
    }
}

/// Why a kernel has no result. The executor adds node, op, device and shapes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// Inputs or attributes that the op does not allow.
    #[error("{0}")]
    InvalidArgument(String),
    /// Allowed, but not implemented here.
    #[error("not implemented: {0}")]
    Unimplemented(String),
    /// A tensor cannot be created or read.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A resource does not exist, or already exists.
    #[error(transparent)]
    Resource(#[from] ResourceError),
    /// The run was cancelled.
    #[error("cancelled")]
    Cancelled,
    /// A queue or counter has reached its end.
    #[error("{0}")]
    OutOfRange(String),
    /// The queue is closed.
    #[error("{0}")]
    Closed(String),
    /// One node of a [`Cluster`](super::Cluster) has failed. The executor reports the error as that
    /// of this node.
    #[error("node {} of a cluster failed", node.0)]
    InNode {
        /// The node.
        node: NodeId,
        /// Its error.
        source: Box<KernelError>,
    },
}

impl KernelError {
    /// Returns [`KernelError::InvalidArgument`] with this message.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::InvalidArgument(message.into())
    }

    /// Returns the error of one node of a [`Cluster`](super::Cluster).
    pub fn in_node(self, node: NodeId) -> Self {
        Self::InNode {
            node,
            source: Box::new(self),
        }
    }
}
