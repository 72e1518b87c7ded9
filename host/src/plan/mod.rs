//! The plan of a run: data only.
//!
//! Comes from [`crate::placement::Placement::partition`], goes to [`crate::execute`] (and later to
//! a simulator, to remote peers and to compiled devices, each of which takes one [`Partition`]).
//! Knows graph ids and device ids, no device and no kernel.
//!
//! Which part is for what:
//!
//! - [`Partition`]: the steps of one device, in topological order. A device that executes a
//!   partition as a whole, or a remote peer, needs nothing else but the [`Transfer`]s that its
//!   steps name: partitions meet only in transfers.
//! - [`Step`]: what a device does: execute a node, send, receive, take a feed, hand out a fetch.
//!   [`Plan::successors`] and [`Step::n_waits`] are what dependency counting needs. Dead tensors
//!   will travel the same edges as live ones; a frame of a loop will be a fresh set of counters and
//!   values over the same steps.
//! - [`Value`]: where one tensor stands in one memory, and how many readers it has: what dropping
//!   after the last reader and memory planning need. Each value is written by one step, once in a
//!   run (later: once in an iteration).
//! - [`Transfer`]: one send/receive pair. Sending and receiving are steps of their own, so they may
//!   be asynchronous.
//! - [`Plan::back_edges`]: the loops' back edges, which no step waits for. They are kept so that
//!   nothing is lost; plans that have some cannot be executed yet, and [`crate::execute`] says so.

mod fuse;
#[expect(clippy::module_inception, reason = "the type gives the file its name")]
mod plan;
mod transfer;

pub(crate) use fuse::FusedStep;
pub use plan::{Feed, Fetch, Partition, Plan, Step, StepId, StepKind, Value, ValueId};
pub use transfer::{MemorySpace, Payload, Transfer, TransferId};
