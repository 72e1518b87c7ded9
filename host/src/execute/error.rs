//! Why a plan cannot be prepared or run.

use std::fmt;
use std::time::Duration;

use crate::device::{DeviceError, KernelCreationError, KernelError, NoSuchSession, StatusCode};
use crate::tensor::{DType, OutOfMemory};

/// Why a plan cannot be prepared, or why a run ended without its fetches.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExecuteError {
    /// No thread could be started.
    #[error("cannot start worker threads: {0}")]
    Threads(String),
    /// The plan is of another graph or device set than the executor.
    #[error("the plan does not belong to this executor's graph and devices")]
    ForeignPlan,
    /// The device does not execute node by node.
    #[error(
        "device {device} does not execute single nodes, and the plan has {n_steps} steps for it; place its nodes elsewhere"
    )]
    NotAKernelDevice {
        /// The device.
        device: String,
        /// Steps of the plan on it.
        n_steps: usize,
    },
    /// The node contradicts its op, or has no kernel there.
    #[error("{site}: {source}")]
    Create {
        /// Which node, and where.
        site: Box<NodeSite>,
        /// Why.
        r#source: Box<KernelCreationError>,
    },
    /// A kernel cannot be made, or a constant has no room.
    #[error("{site}: cannot be prepared: {source}")]
    Prepare {
        /// Which node, and where.
        site: Box<NodeSite>,
        /// Why.
        r#source: Box<KernelError>,
    },
    /// Loops and conditionals need dead tensors and frames, which this executor does not have.
    #[error("node `{node}` ({op}): control flow is not implemented")]
    ControlFlow {
        /// The node.
        node: String,
        /// Its op.
        op: String,
    },
    /// The run asks for a pool of threads that the executor does not have.
    #[error(
        "invalid inter_op_thread_pool: {pool}; there are {n_pools}, numbered from 0, and -1 means the caller's thread alone"
    )]
    NoSuchPool {
        /// What the run asks for.
        pool: i32,
        /// Pools that there are.
        n_pools: usize,
    },
    /// Another number of tensors is fed than the plan takes.
    #[error("the plan takes {expected} fed tensors, {found} were given")]
    FeedCount {
        /// What the plan takes.
        expected: usize,
        /// What was given.
        found: usize,
    },
    /// A fed tensor is of another type, or of a shape that cannot stand there.
    #[error("feed `{tensor}` takes {expected}, {found} was given")]
    FeedMismatch {
        /// `node:slot`.
        tensor: String,
        /// Type and shape that stand there, in words.
        expected: String,
        /// Type and shape that were given, in words.
        found: String,
    },
    /// A kernel failed.
    #[error("{site}, inputs {inputs}: {source}")]
    Kernel {
        /// Which node, and where.
        site: Box<NodeSite>,
        /// Types and shapes of its inputs.
        inputs: String,
        /// Why.
        r#source: Box<KernelError>,
    },
    /// A kernel panicked: a bug of the kernel.
    #[error("{site}, inputs {inputs}: the kernel panicked: {message}")]
    Panic {
        /// Which node, and where.
        site: Box<NodeSite>,
        /// Types and shapes of its inputs.
        inputs: String,
        /// What it said.
        message: String,
    },
    /// A kernel gave an output of another type than the graph says: a bug of the kernel.
    #[error("{site}: output {slot} is {found}, the graph says {expected}")]
    WrongOutput {
        /// Which node, and where.
        site: Box<NodeSite>,
        /// Which output.
        slot: usize,
        /// The type in the graph.
        expected: DType,
        /// The type that the kernel gave.
        found: DType,
    },
    /// A tensor could not be moved.
    #[error("{what} from {source_device} to {destination_device}: {source}")]
    Transfer {
        /// `node:slot`, a feed or a fetch.
        what: String,
        /// Where it came from.
        source_device: String,
        /// Where it should go.
        destination_device: String,
        /// Why.
        r#source: Box<KernelError>,
    },
    /// The tensors of a run have no room.
    #[error(
        "{device}: no room for the {bytes} bytes that one run takes: {source}; raise the device's memory, run fewer at one time, or place nodes elsewhere"
    )]
    Arena {
        /// The device.
        device: String,
        /// What a run takes there, in bytes.
        bytes: usize,
        /// What the allocator says.
        r#source: Box<OutOfMemory>,
    },
    /// A device was taken out of its manager.
    #[error(
        "device {device} was removed; build the session anew on the devices that are left, or add it again"
    )]
    DeviceRemoved {
        /// The device.
        device: String,
    },
    /// A device failed at something that concerns no single node.
    #[error("device {device}, {doing}: {source}")]
    Device {
        /// The device.
        device: String,
        /// What it was asked for.
        doing: &'static str,
        /// Why.
        r#source: Box<DeviceError>,
    },
    /// The session was closed.
    #[error("the session is closed; build another one")]
    Closed,
    /// A device does not keep the session's stateful kernels.
    #[error(transparent)]
    NoSession(#[from] NoSuchSession),
    /// What a run made for itself alone could not be dropped at its end.
    #[error("device {device}: the resources of the run were not dropped: {message}")]
    StepResources {
        /// The device.
        device: String,
        /// Why.
        message: String,
    },
    /// The caller cancelled the run.
    #[error("the run was cancelled")]
    Cancelled,
    /// The run took longer than allowed.
    #[error("the run did not end within {0:?}")]
    TimedOut(Duration),
}

impl ExecuteError {
    /// Its category.
    pub fn code(&self) -> StatusCode {
        match self {
            Self::Threads(_) | Self::Arena { .. } => StatusCode::ResourceExhausted,
            Self::ForeignPlan
            | Self::NoSuchPool { .. }
            | Self::FeedCount { .. }
            | Self::FeedMismatch { .. } => StatusCode::InvalidArgument,
            Self::NotAKernelDevice { .. } | Self::ControlFlow { .. } => StatusCode::Unimplemented,
            Self::Create { source, .. } => source.code(),
            Self::Prepare { source, .. }
            | Self::Kernel { source, .. }
            | Self::Transfer { source, .. } => source.code(),
            Self::Panic { .. } | Self::WrongOutput { .. } => StatusCode::Internal,
            Self::DeviceRemoved { .. } => StatusCode::Unavailable,
            Self::Device { source, .. } => source.code(),
            Self::NoSession(_) => StatusCode::NotFound,
            Self::StepResources { .. } => StatusCode::Internal,
            Self::Closed | Self::Cancelled => StatusCode::Cancelled,
            Self::TimedOut(_) => StatusCode::DeadlineExceeded,
        }
    }
}

/// A node on the device where it was placed, for messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeSite {
    /// The node.
    pub node: String,
    /// Its op.
    pub op: String,
    /// Full name of the device.
    pub device: String,
}

impl fmt::Display for NodeSite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node `{}` ({}) on {}", self.node, self.op, self.device)
    }
}
