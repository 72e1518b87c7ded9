//! Runs plans on devices. Input: an [`ExecutionPlan`](crate::plan::ExecutionPlan) and the fed
//! tensors. Output: the fetched tensors and events.
//!
//! An [`Executor`] belongs to one graph and one device set. It creates each kernel once per node
//! and device, creates each constant once per device, and shares both between all plans and runs. A
//! run counts dependencies: a step starts on any free thread as soon as the last step that it
//! depends on has ended. The executor does not depend on policies or graph formats.

mod arena;
mod compile;
mod copy;
mod countdown;
mod error;
mod executor;
#[cfg(test)]
pub(crate) mod fake;
mod flow;
mod gate;
mod listeners;
mod load;
mod memory;
mod offered;
mod options;
mod pool;
mod prepare;
mod ready;
mod run;
mod step;
mod sync;
#[cfg(test)]
mod tests;
mod values;
mod variant;

pub use crate::device::CancelToken;
pub use crate::memory::{MemoryPlan, PlannedMemory};
pub use error::{ExecuteError, NodeSite};
pub use executor::Executor;
pub use options::{ExecutorOptions, RunOptions, Scheduling};
pub use pool::InterOpPool;
pub use prepare::PreparedPlan;
pub use variant::N_RUNS_TO_SETTLE;
