//! What a user may choose about executing.

use std::sync::Arc;
use std::time::Duration;

use crate::device::CancelToken;
use crate::execute::pool::InterOpPool;
use crate::trace::Recorder;

/// How an executor is made.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ExecutorOptions {
    /// Steps of one run that may execute at one time, the caller's thread included (TensorFlow
    /// `inter_op_parallelism_threads`); 0 = one per core. More help wide graphs of small kernels;
    /// fewer leave the cores to the threads inside kernels. With 1 the order of steps is
    /// fixed.
    pub inter_op_parallelism_threads: usize,
    /// Threads that help runs, shared with whatever else has this pool, instead of threads of the
    /// executor's own; the number of threads is then the pool's. Where one process has many
    /// sessions, one pool keeps them from having a thread per core each.
    pub inter_op_pool: Option<InterOpPool>,
    /// Threads of its own in spite of [`Self::inter_op_pool`] (TensorFlow
    /// `use_per_session_threads`): runs wait for nobody else's kernels.
    pub use_per_session_threads: bool,
    /// Pools that runs choose from by [`RunOptions::inter_op_thread_pool`] (TensorFlow
    /// `session_inter_op_thread_pool`): large and urgent runs need not wait for one another's
    /// threads. Empty = the one pool that the options above say, which is then number
    /// 0; otherwise those are not used.
    pub session_inter_op_pools: Vec<InterOpPool>,
    /// Whether several threads work on one run.
    pub scheduling: Scheduling,
    /// Whether the devices' threads may look for the next loop, busily, for 100 us after the last
    /// one (ONNX Runtime `session.intra_op.allow_spinning`); with [`Scheduling::Measured`],
    /// where whole runs are measured to be faster so. True by default; an app that needs the
    /// cores for something else says no.
    pub allow_spinning: bool,
    /// Whether a run ends only when its devices are done with what they were given, where kernels
    /// return before that (TensorFlow `TF_SYNC_ON_FINISH`). True by default, so that a device
    /// that fails fails the run; what is fetched is there in any case.
    pub sync_on_finish: bool,
    /// Runs of one plan at one time that memory is kept for when kernels copy constants into the
    /// order in which they read them; 0 is 1. More may go on, where memory is left.
    pub n_concurrent_runs: usize,
    /// Hears of kernels, transfers and runs.
    pub recorder: Recorder,
    /// Whose stateful kernels are used: executors of one handle on the same devices share them, as
    /// long as one of them lives. `None` = a handle of its own.
    pub session_handle: Option<Arc<str>>,
    /// Ends all runs, and refuses others, once it is cancelled.
    pub closed: CancelToken,
}

/// Whether several threads work on one run. Runs of different callers go on at one time in any
/// case. Plans with operations that end later than they start (asynchronous kernels, copies out of
/// accelerators) are run by [`Self::Shared`] always: no thread may wait for one operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Scheduling {
    /// Where it pays: the first runs of a plan are measured, and the measurements say how the
    /// others go: with several threads, or with one that may have help inside its kernels.
    /// Operations that take less time than it costs to hand them to another thread stay on one.
    #[default]
    Measured,
    /// Never: the caller's thread executes everything, in the start order of the placement.
    Serial,
    /// Always.
    Shared,
}

impl Default for ExecutorOptions {
    fn default() -> Self {
        Self {
            inter_op_parallelism_threads: 0,
            inter_op_pool: None,
            use_per_session_threads: false,
            session_inter_op_pools: Vec::new(),
            scheduling: Scheduling::default(),
            allow_spinning: true,
            sync_on_finish: true,
            n_concurrent_runs: 1,
            recorder: Recorder::default(),
            session_handle: None,
            closed: CancelToken::default(),
        }
    }
}

impl ExecutorOptions {
    /// The number of concurrent runs that placement and executor keep memory for, whichever was
    /// told of it.
    pub(crate) fn agree_on_runs(&mut self, n_of_placement: usize) -> usize {
        self.n_concurrent_runs = self.n_concurrent_runs.max(n_of_placement);
        self.n_concurrent_runs
    }

    /// The same, with this number of threads; 0 = one per core.
    #[must_use]
    pub fn with_inter_op_parallelism_threads(mut self, n_threads: usize) -> Self {
        self.inter_op_parallelism_threads = n_threads;
        self
    }

    /// The same, with the threads of this pool.
    #[must_use]
    pub fn with_inter_op_pool(mut self, pool: InterOpPool) -> Self {
        self.inter_op_pool = Some(pool);
        self
    }

    /// The same, with threads of its own in spite of [`Self::inter_op_pool`], or not.
    #[must_use]
    pub fn with_per_session_threads(mut self, is_wanted: bool) -> Self {
        self.use_per_session_threads = is_wanted;
        self
    }

    /// The same, with these pools for runs to choose from.
    #[must_use]
    pub fn with_session_inter_op_pools(
        mut self,
        pools: impl IntoIterator<Item = InterOpPool>,
    ) -> Self {
        self.session_inter_op_pools = pools.into_iter().collect();
        self
    }

    /// The same, with this scheduling.
    #[must_use]
    pub fn with_scheduling(mut self, scheduling: Scheduling) -> Self {
        self.scheduling = scheduling;
        self
    }

    /// The same, with or without threads that look for work.
    #[must_use]
    pub fn with_spinning(mut self, is_allowed: bool) -> Self {
        self.allow_spinning = is_allowed;
        self
    }

    /// The same, with or without waiting for devices at the end of runs.
    #[must_use]
    pub fn with_sync_on_finish(mut self, is_wanted: bool) -> Self {
        self.sync_on_finish = is_wanted;
        self
    }

    /// The same, with memory kept for this many runs at one time.
    #[must_use]
    pub fn with_concurrent_runs(mut self, n_runs: usize) -> Self {
        self.n_concurrent_runs = n_runs;
        self
    }

    /// The same, recording into `recorder`.
    #[must_use]
    pub fn with_recorder(mut self, recorder: Recorder) -> Self {
        self.recorder = recorder;
        self
    }
}

/// How one run goes.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct RunOptions {
    /// Ends the run with [`super::ExecuteError::Cancelled`] when it is set; looked at between
    /// steps, and by long loops inside CPU kernels.
    pub cancel: Option<CancelToken>,
    /// Ends the run with [`super::ExecuteError::TimedOut`] after this time; looked at between
    /// steps, and by long loops inside CPU kernels.
    pub timeout: Option<Duration>,
    /// Hears of this run, instead of the executor's recorder.
    pub recorder: Option<Recorder>,
    /// Which of the executor's pools helps (TensorFlow `inter_op_thread_pool`): a position in
    /// [`ExecutorOptions::session_inter_op_pools`], 0 by default; -1 = none, the caller's thread
    /// executes everything but asynchronous kernels and copies and what the first pool helps
    /// them with.
    pub inter_op_thread_pool: i32,
}

impl RunOptions {
    /// The same, cancelled by `token`.
    #[must_use]
    pub fn with_cancel(mut self, token: CancelToken) -> Self {
        self.cancel = Some(token);
        self
    }

    /// The same, limited to this time.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// The same, recorded by `recorder` alone; [`Recorder::off`] = not recorded.
    #[must_use]
    pub fn with_recorder(mut self, recorder: Recorder) -> Self {
        self.recorder = Some(recorder);
        self
    }

    /// The same, helped by this one of the executor's pools; -1 = by none.
    #[must_use]
    pub fn with_inter_op_thread_pool(mut self, pool: i32) -> Self {
        self.inter_op_thread_pool = pool;
        self
    }
}
