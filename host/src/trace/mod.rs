//! What happened, and when: events of a session with the Chrome trace and the summary that are made
//! of them, and what is told to the app's own `tracing` subscriber and `metrics` recorder.
//!
//! Every stage may record into a [`Recorder`]; [`Trace`] is what it heard, with the names to print.
//! Knows ids of nodes and devices, no device; events cost nothing while the recorder is off.
//!
//! # Spans and events
//!
//! Spans go to the subscriber of the thread that calls; kernels that other threads execute for it
//! go to the same one.
//!
//! | target | level | span | fields |
//! |---|---|---|---|
//! | [`targets::SESSION`] | INFO | `build` | `graph`, `nodes`, `devices` |
//! | | DEBUG | `import`, `discover`, `enumerate`, `place`; `cut`, `prepare` | |
//! | [`targets::POLICY`] | DEBUG | `ask`: one rung of the ladder, with its check | `policy` |
//! | | DEBUG | `load` | `policy`, `bytes`, `is_cached`, `outcome` |
//! | | DEBUG | `call`: `place` and `begin` | `policy`, `call`, `is_native`, `nodes`, `outcome` |
//! | | TRACE | `online`: `pick`, `pick-batch`, `observe`, `end` | `policy`, `call`, `outcome` where it failed |
//! | | DEBUG | `check` | `policy` |
//! | [`targets::EXECUTE`] | DEBUG | `run` | `run` (its number), `feeds`, `fetches`, `outcome` |
//! | | DEBUG | `compile`: a plan, for the shapes of its feeds | `graph`, `operations`, `arena_bytes` |
//! | [`targets::KERNEL`] | TRACE | `kernel` | `run`, `node`, `op`, `device`, `queue_wait_ns`, `output_bytes` |
//!
//! What goes wrong is an event of level WARN in the span where it does: a session that cannot be
//! built and a run that fails (`error`), a call into a policy that fails or is cut off, and a plan
//! that breaks a rule (`policy`, `call`, `reason`, `fault`, `error`), and a graph that another
//! policy placed than the one asked for (`asked`, `answered_by`).
//!
//! # Metrics
//!
//! [`meters`] names and explains them; [`describe_metrics`] tells them to a recorder.

mod chrome;
mod event;
pub mod meters;
mod recorder;
mod summary;
pub mod targets;

pub use event::{Event, EventKind, TransferWay};
pub use meters::describe_metrics;
pub use recorder::{Recorder, Trace, TraceNames};
pub use summary::{KernelRow, TraceSummary, TransferRow};
