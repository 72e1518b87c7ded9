//! Events of a session, the Chrome trace and the summary that are made of them, and the spans and
//! metrics for an app's own `tracing` subscriber and `metrics` recorder.
//!
//! Every stage may record into a [`Recorder`]; a [`Trace`] has the recorded events, with the names
//! of nodes and devices. The module knows the ids of nodes and devices, but no device. Events cost
//! nothing while the recorder is off.
//!
//! # Spans and events
//!
//! Spans go to the subscriber of the calling thread. Kernels that other threads execute for it go
//! to the same subscriber.
//!
//! | target | level | span | fields |
//! |---|---|---|---|
//! | [`targets::SESSION`] | INFO | `build` | `graph`, `nodes`, `devices` |
//! | | DEBUG | `import`, `discover`, `enumerate`, `place`; `partition`, `prepare` | |
//! | [`targets::POLICY`] | DEBUG | `ask`: one rung of the ladder, with its check | `policy` |
//! | | DEBUG | `load` | `policy`, `bytes`, `is_cached`, `outcome` |
//! | | DEBUG | `call`: `place` and `begin` | `policy`, `call`, `is_native`, `nodes`, `outcome` |
//! | | TRACE | `online`: `pick`, `pick-batch`, `observe`, `end` | `policy`, `call`, `outcome` if it failed |
//! | | DEBUG | `check` | `policy` |
//! | [`targets::EXECUTE`] | DEBUG | `run` | `run` (its number), `feeds`, `fetches`, `outcome` |
//! | | DEBUG | `compile`: a plan, for the shapes of its feeds | `graph`, `operations`, `arena_bytes` |
//! | [`targets::KERNEL`] | TRACE | `kernel` | `run`, `node`, `op`, `device`, `queue_wait_ns`, `output_bytes` |
//!
//! Failures are events of level WARN in the span in which they happen: a session that cannot be
//! built and a run that fails (`error`); a call into a policy that fails or is cut off, and a plan
//! that breaks a rule (`policy`, `call`, `reason`, `fault`, `error`); a graph that another policy
//! placed than the requested one (`asked`, `answered_by`).
//!
//! # Metrics
//!
//! | metric | kind | labels | counts |
//! |---|---|---|---|
//! | `placewright_runs_total` | counter | `outcome`: ok, failed, cancelled, timed-out | runs that ended |
//! | `placewright_run_seconds` | histogram | | time of each run |
//! | `placewright_ops_total` | counter | | kernels that runs with outcome ok executed |
//! | `placewright_bytes_total` | counter | `kind`: feed, transfer, fetch | bytes that runs with outcome ok moved to, between and from devices |
//! | `placewright_plan_cache_hits_total` | counter | | runs whose plan was in the plan cache |
//! | `placewright_plan_cache_misses_total` | counter | | runs whose graph had to be partitioned and prepared |
//! | `placewright_variants_compiled_total` | counter | | plans compiled for the shapes of their feeds |
//! | `placewright_policy_calls_total` | counter | `call`: load, place, begin, pick, ..; `outcome`: ok, cut-off, failed | calls into policies that ended |
//! | `placewright_refusals_total` | counter | `reason`: the rule that a plan broke, or how the call ended, such as trap or deadline | policies without a usable answer |
//!
//! All are counted per run or call, never per op. [`meters`] has their names; [`describe_metrics`]
//! describes them to a recorder. Without a subscriber and a recorder they cost nothing measurable;
//! `placewright bench dispatch` measures what listening costs.

mod chrome;
mod event;
pub mod meters;
mod profile;
mod recorder;
mod summary;
pub mod targets;

pub use event::{Event, EventKind, FusedNodes, TransferWay};
pub use meters::describe_metrics;
pub use profile::{NodeTimes, ProfileError, RunProfile, TransferTimes};
pub use recorder::{Recorder, Trace, TraceNames};
pub use summary::{KernelRow, TraceSummary, TransferRow};
