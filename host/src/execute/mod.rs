//! Runs plans on devices: a [`crate::plan::Plan`] and fed tensors in, fetched tensors and events
//! out.
//!
//! An [`Executor`] belongs to one graph and one device set. It makes each kernel once per node and
//! device, each constant once per device, and shares both between all plans and runs. A run counts
//! dependencies: a step starts when the last step that it waits for has ended, on whichever thread
//! is free. Knows no policy and no format of graphs.

mod arena;
mod compile;
mod copy;
mod countdown;
mod error;
mod executor;
#[cfg(test)]
pub(crate) mod fake;
mod frame;
mod gate;
mod listeners;
mod load;
mod memory;
mod options;
mod pool;
mod prepare;
mod ready;
mod run;
mod step;
mod sync;
#[cfg(test)]
mod tests;
mod variant;

pub use crate::device::CancelToken;
pub use crate::memory::{MemoryPlan, PlannedMemory};
pub use error::{ExecuteError, NodeSite};
pub use executor::Executor;
pub use options::{ExecutorOptions, RunOptions, Scheduling};
pub use pool::InterOpPool;
pub use prepare::PreparedPlan;
pub use variant::N_RUNS_TO_SETTLE;
