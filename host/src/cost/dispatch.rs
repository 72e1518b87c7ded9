//! What the executor adds to the kernels of a run.

/// Time of an operation besides its kernel, in ns, if one thread executes all operations and if
/// several do; measured with empty kernels.
pub(crate) const SERIAL_DISPATCH_NS: u32 = 10;
pub(crate) const SHARED_DISPATCH_NS: u32 = 300;

/// Time in which other threads join a run and leave it, in ns.
pub(crate) const JOIN_NS: u32 = 10_000;

/// Time of a run besides its operations, of each feed, and of each fetch, whose tensor the caller
/// keeps, in ns; measured with graphs of one kernel.
pub(crate) const RUN_NS: f64 = 450.0;
pub(crate) const FEED_NS: f64 = 80.0;
pub(crate) const FETCH_NS: f64 = 200.0;

/// Time of a kernel from which on another thread helps it, and then one more for each further such
/// time, in ns.
pub(crate) const WORK_PER_THREAD_NS: f64 = 2_500.0;
