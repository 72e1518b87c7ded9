//! Events of a session and what is made of them: a Chrome trace, a summary.
//!
//! Every stage may record into a [`Recorder`]; [`Trace`] is what it heard, with the names to print. Knows ids of nodes
//! and devices, no device; events cost nothing while the recorder is off.

mod chrome;
mod event;
mod recorder;
mod summary;

pub use event::{Event, EventKind};
pub use recorder::{Recorder, Trace, TraceNames};
pub use summary::{KernelRow, TraceSummary, TransferRow};
