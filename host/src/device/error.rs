//! Errors of devices and kernels.

use super::numa::TopologyError;
use super::resource::ResourceError;
use crate::tensor::{OutOfMemory, TensorError};

/// Why a device is unavailable, or does not answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// A driver or library is not there. The remedy says what to install or set.
    #[error("{device_type}: {what}; {remedy}")]
    Absent {
        /// The type asked for.
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
    /// Work that was given to the device has failed there, after the kernel that gave it had
    /// returned.
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
    /// Inputs that an op does not allow, which the device found out after the kernel had returned.
    #[error("{device}: node `{node}` (op {op}): {message}")]
    Input {
        /// Name of the device.
        device: String,
        /// Name of the node.
        node: String,
        /// Its op.
        op: String,
        /// What is wrong.
        message: String,
    },
    /// A program does not compile for the device.
    #[error("{device}: program {program} cannot be built: {message}")]
    Build {
        /// Name of the device.
        device: String,
        /// The program and its macros.
        program: String,
        /// What the driver and its compiler say.
        message: String,
    },
    /// The device does not answer any more, and what stood in its memory is gone.
    #[error("{device}: the device is lost: {message}; build the session anew")]
    Lost {
        /// Name of the device.
        device: String,
        /// What it was doing.
        message: String,
    },
    /// What the system says of the machine is not understood.
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

/// Why a kernel did not give a result. The executor adds node, op, device and shapes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// Inputs or attributes that the op does not allow.
    #[error("{0}")]
    InvalidArgument(String),
    /// Allowed, but not implemented here.
    #[error("not implemented: {0}")]
    Unimplemented(String),
    /// A tensor could not be made or read.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A resource is not there, or is there already.
    #[error(transparent)]
    Resource(#[from] ResourceError),
    /// The run was cancelled.
    #[error("cancelled")]
    Cancelled,
}

impl KernelError {
    /// An [`KernelError::InvalidArgument`].
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::InvalidArgument(message.into())
    }
}
