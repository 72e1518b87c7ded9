//! Why a plan cannot be prepared or run.

use std::time::Duration;

use crate::device::{KernelError, KernelLookupError};
use crate::tensor::DType;

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
    /// The registry has no kernel for the node.
    #[error(
        "node `{node}`: no kernel of op {op} for device {device} fits; registered: {registered}"
    )]
    NoKernel {
        /// The node.
        node: String,
        /// Its op.
        op: String,
        /// The device.
        device: String,
        /// The kernels that are registered for the op, in words.
        registered: String,
    },
    /// The registration is good for placing only.
    #[error(
        "node `{node}`: the kernel of op {op} for device {device} is registered for placement only; register it with a factory to execute it"
    )]
    PlacementOnly {
        /// The node.
        node: String,
        /// Its op.
        op: String,
        /// The device.
        device: String,
    },
    /// The registry cannot say which kernel to take.
    #[error("node `{node}` on {device}: {source}")]
    Lookup {
        /// The node.
        node: String,
        /// The device.
        device: String,
        /// Why.
        source: KernelLookupError,
    },
    /// A kernel cannot be made, or a constant has no room.
    #[error("node `{node}` ({op}) cannot be prepared on {device}: {source}")]
    Prepare {
        /// The node.
        node: String,
        /// Its op.
        op: String,
        /// The device.
        device: String,
        /// Why.
        source: KernelError,
    },
    /// Loops and conditionals need dead tensors and frames, which this executor does not have.
    #[error("node `{node}` ({op}): control flow is not implemented")]
    ControlFlow {
        /// The node.
        node: String,
        /// Its op.
        op: String,
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
    #[error("node `{node}` ({op}) on {device}, inputs {inputs}: {source}")]
    Kernel {
        /// The node.
        node: String,
        /// Its op.
        op: String,
        /// The device.
        device: String,
        /// Types and shapes of its inputs.
        inputs: String,
        /// Why.
        source: KernelError,
    },
    /// A kernel panicked: a bug of the kernel.
    #[error("node `{node}` ({op}) on {device}, inputs {inputs}: the kernel panicked: {message}")]
    Panic {
        /// The node.
        node: String,
        /// Its op.
        op: String,
        /// The device.
        device: String,
        /// Types and shapes of its inputs.
        inputs: String,
        /// What it said.
        message: String,
    },
    /// A kernel gave an output of another type than the graph says: a bug of the kernel.
    #[error(
        "node `{node}` ({op}) on {device}: output {slot} is {found}, the graph says {expected}"
    )]
    WrongOutput {
        /// The node.
        node: String,
        /// Its op.
        op: String,
        /// The device.
        device: String,
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
        source: KernelError,
    },
    /// The caller cancelled the run.
    #[error("the run was cancelled")]
    Cancelled,
    /// The run took longer than allowed.
    #[error("the run did not end within {0:?}")]
    TimedOut(Duration),
}
