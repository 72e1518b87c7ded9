//! Errors of preparing and running plans.
//!
//! A message contains its cause. The field of the cause is spelled `r#source`, so that `thiserror`
//! does not return it as [`std::error::Error::source`], too, and callers do not print it twice.

use std::fmt;
use std::time::Duration;

use crate::device::{DeviceError, KernelCreationError, KernelError, NoSuchSession, StatusCode};
use crate::tensor::{DType, OutOfMemory};

/// Why a plan cannot be prepared, or why a run ended without its fetches.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExecuteError {
    /// A worker thread could not be started.
    #[error("cannot start worker threads: {0}")]
    Threads(String),
    /// The plan belongs to another graph or device set than the executor.
    #[error("the plan belongs to another graph or device set than this executor")]
    ForeignPlan,
    /// The device does not execute single nodes.
    #[error(
        "device {device} does not execute single nodes, but the plan has {n_steps} steps on it; place these nodes on another device"
    )]
    NotAKernelDevice {
        /// Full name of the device.
        device: String,
        /// Number of the plan's steps on the device.
        n_steps: usize,
    },
    /// The node violates its op definition, or has no kernel on the device.
    #[error("{site}: {source}")]
    Create {
        /// The node and its device.
        site: Box<NodeSite>,
        /// The cause.
        r#source: Box<KernelCreationError>,
    },
    /// A kernel or a constant cannot be created.
    #[error("cannot prepare {site}: {source}")]
    Prepare {
        /// The node and its device.
        site: Box<NodeSite>,
        /// The cause.
        r#source: Box<KernelError>,
    },
    /// A fetched tensor has no value, because its node is in a branch that was not taken.
    #[error(
        "fetch `{tensor}` has no value: it is in a branch that this run did not take; fetch the \
         output of the Merge behind it, or feed another predicate"
    )]
    DeadFetch {
        /// `node:slot`.
        tensor: String,
    },
    /// The run selects a thread pool that the executor does not have.
    #[error(
        "invalid inter_op_thread_pool {pool}: expected {}, or -1 for the caller's thread alone",
        PoolNumbers(*n_pools)
    )]
    NoSuchPool {
        /// The index that the run selects.
        pool: i32,
        /// Number of pools.
        n_pools: usize,
    },
    /// The number of fed tensors differs from the number of feeds of the plan.
    #[error("expected {expected} fed tensors, found {found}")]
    FeedCount {
        /// Number of feeds of the plan.
        expected: usize,
        /// Number of fed tensors.
        found: usize,
    },
    /// A fed tensor has a dtype or shape that the feed does not accept.
    #[error("feed `{tensor}`: expected {expected}, found {found}")]
    FeedMismatch {
        /// `node:slot`.
        tensor: String,
        /// Expected dtype and shape, as text.
        expected: String,
        /// Dtype and shape of the fed tensor, as text.
        found: String,
    },
    /// A kernel returned an error.
    #[error("{site}, inputs {inputs}: {source}")]
    Kernel {
        /// The node and its device.
        site: Box<NodeSite>,
        /// Dtypes and shapes of the inputs.
        inputs: String,
        /// The cause.
        r#source: Box<KernelError>,
    },
    /// A kernel panicked, which is a bug of the kernel.
    #[error("{site}, inputs {inputs}: the kernel panicked: {message}")]
    Panic {
        /// The node and its device.
        site: Box<NodeSite>,
        /// Dtypes and shapes of the inputs.
        inputs: String,
        /// The panic message.
        message: String,
    },
    /// A kernel set an output of another dtype than the graph specifies, which is a bug of the
    /// kernel.
    #[error("{site}: output {slot} has dtype {found}, the graph specifies {expected}")]
    WrongOutput {
        /// The node and its device.
        site: Box<NodeSite>,
        /// Index of the output.
        slot: usize,
        /// The dtype in the graph.
        expected: DType,
        /// The dtype that the kernel set.
        found: DType,
    },
    /// A tensor could not be transferred.
    #[error("{what} from {source_device} to {destination_device}: {source}")]
    Transfer {
        /// The tensor as `node:slot`, with its role: transfer, feed or fetch.
        what: String,
        /// The device that sends it, or the caller.
        source_device: String,
        /// The device that receives it, or the caller.
        destination_device: String,
        /// The cause.
        r#source: Box<KernelError>,
    },
    /// There is not enough memory for the tensors of a run.
    #[error(
        "{}; increase the device's memory limit, reduce the number of concurrent runs, or place nodes on other devices",
        too_little_memory(device, *bytes, source, failure.as_deref())
    )]
    Arena {
        /// Full name of the device.
        device: String,
        /// Bytes that one run needs on the device.
        bytes: usize,
        /// The error of the allocator.
        r#source: Box<OutOfMemory>,
        /// The tensor that did not fit, if the run was tried nevertheless.
        failure: Option<Box<Self>>,
    },
    /// A device was removed from its manager.
    #[error(
        "device {device} was removed; build a new session on the remaining devices, or add the device again"
    )]
    DeviceRemoved {
        /// Full name of the device.
        device: String,
    },
    /// A device failed at an operation that concerns no single node.
    #[error("device {device} failed at {doing}: {source}")]
    Device {
        /// Full name of the device.
        device: String,
        /// The operation that failed.
        doing: &'static str,
        /// The cause.
        r#source: Box<DeviceError>,
    },
    /// The session is closed.
    #[error("the session is closed; build another one")]
    Closed,
    /// A device has no stateful kernels of the session.
    #[error(transparent)]
    NoSession(#[from] NoSuchSession),
    /// The resources of a run could not be released at its end.
    #[error("device {device} did not release the resources of the run: {message}")]
    StepResources {
        /// Full name of the device.
        device: String,
        /// The cause.
        message: String,
    },
    /// The caller cancelled the run.
    #[error("the run was cancelled")]
    Cancelled,
    /// The run exceeded its time limit.
    #[error("the run did not end within {0:?}")]
    TimedOut(Duration),
}

/// The valid numbers of so many pools.
struct PoolNumbers(usize);

impl fmt::Display for PoolNumbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 | 1 => f.write_str("0"),
            n => write!(f, "0 to {}", n - 1),
        }
    }
}

impl ExecuteError {
    /// Returns the status code of the error.
    pub fn code(&self) -> StatusCode {
        match self {
            Self::Threads(_) | Self::Arena { .. } => StatusCode::ResourceExhausted,
            Self::ForeignPlan
            | Self::NoSuchPool { .. }
            | Self::FeedCount { .. }
            | Self::FeedMismatch { .. }
            | Self::DeadFetch { .. } => StatusCode::InvalidArgument,
            Self::NotAKernelDevice { .. } => StatusCode::Unimplemented,
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

    /// Adds the error of the run that was tried without arenas. Other failures than a lack of
    /// memory stand for themselves.
    pub(super) fn with_failure(self, failed: Self) -> Self {
        match self {
            Self::Arena {
                device,
                bytes,
                source,
                ..
            } if failed.code() == StatusCode::ResourceExhausted => Self::Arena {
                device,
                bytes,
                source,
                failure: Some(Box::new(failed)),
            },
            _ => failed,
        }
    }
}

/// Returns what a run lacks: the memory of all its tensors, and the tensor that did not fit.
fn too_little_memory(
    device: &str,
    bytes: usize,
    source: &OutOfMemory,
    failure: Option<&ExecuteError>,
) -> String {
    match failure {
        Some(failure) => format!("{failure}; one run needs {bytes} bytes on device {device}"),
        None => format!(
            "device {device} has not enough memory for the {bytes} bytes that one run needs: \
             {source}"
        ),
    }
}

/// A node and the device that it is placed on, for error messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeSite {
    /// The node.
    pub node: String,
    /// Its op.
    pub op: String,
    /// Full name of the device.
    pub device: String,
    /// The function of the graph's library that the node comes from; `None` for a node of the graph
    /// itself.
    pub function: Option<String>,
    /// The iterations of the loops around the node, innermost first, such as ``iteration 3 of loop
    /// `while` ``; `None` outside of loops.
    pub iteration: Option<String>,
}

impl fmt::Display for NodeSite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node `{}` ({})", self.node, self.op)?;
        if let Some(function) = &self.function {
            write!(f, " of function `{function}`")?;
        }
        write!(f, " on {}", self.device)?;
        match &self.iteration {
            Some(iteration) => write!(f, ", {iteration}"),
            None => Ok(()),
        }
    }
}
