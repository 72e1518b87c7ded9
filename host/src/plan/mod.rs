//! The plan of a run, as plain data.
//!
//! [`crate::placement::Placement::partition`] creates plans and [`crate::execute`] executes them
//! (later also a simulator, remote peers and compiled devices, each of which takes one
//! [`Partition`]). A plan refers to graph ids and device ids; it depends on no device and no
//! kernel.
//!
//! The parts of a plan:
//!
//! - [`Partition`]: the steps of one device, in topological order. A device that executes a
//!   partition as a whole, or a remote peer, needs only the partition and the [`Transfer`]s that
//!   its steps name: partitions interact only by transfers.
//! - [`Step`]: what a device does: execute a node, send, receive, take a feed, or output a fetch.
//!   [`ExecutionPlan::successors`] and [`Step::n_waits`] are for dependency counting.
//!   [`Step::body`] says whether it is executed once per run or once per iteration of a loop.
//! - [`Value`]: a tensor in one memory, with its number of readers. Dropping after the last reader
//!   and memory planning need it. Each value is written by one step, once per execution of its
//!   body.
//! - [`Transfer`]: one send/receive pair. Sending and receiving are separate steps, so they may be
//!   asynchronous.
//! - [`BackInput`]: an input that the previous iteration of a loop provides, which no step waits
//!   for.

mod fuse;
#[expect(clippy::module_inception, reason = "the type gives the file its name")]
mod plan;
mod settled;
mod transfer;

pub(crate) use fuse::FusedStep;
pub use plan::{
    BackInput, ExecutionPlan, Feed, Fetch, Partition, Step, StepId, StepKind, Value, ValueId,
};
pub(crate) use settled::{Settled, is_constant};
pub use transfer::{MemorySpace, Payload, Transfer, TransferId};
