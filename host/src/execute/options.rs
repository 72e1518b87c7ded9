//! Options of the executor and of single runs.

use std::sync::Arc;
use std::time::Duration;

use crate::device::CancelToken;
use crate::execute::pool::InterOpPool;
use crate::trace::Recorder;

/// Options of an [`super::Executor`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ExecutorOptions {
    /// Maximum number of steps of one run that execute concurrently, including the one on the
    /// caller's thread (TensorFlow `inter_op_parallelism_threads`); 0 means one per core. More
    /// threads help wide graphs of small kernels. Fewer threads leave the cores to the threads
    /// inside kernels. With 1, the order of steps is fixed.
    pub inter_op_parallelism_threads: usize,
    /// A thread pool to share with other executors, instead of threads of the executor's own. The
    /// number of threads is then the pool's. If one process has many sessions, a shared pool
    /// avoids one thread per core for each session.
    pub inter_op_pool: Option<InterOpPool>,
    /// Uses the executor's own threads even if [`Self::inter_op_pool`] is set (TensorFlow
    /// `use_per_session_threads`). Runs then never wait for kernels of other sessions.
    pub use_per_session_threads: bool,
    /// Thread pools that a run selects by [`RunOptions::inter_op_thread_pool`] (TensorFlow
    /// `session_inter_op_thread_pool`), so that large runs and urgent runs do not wait for each
    /// other's threads. If empty, the executor has one pool, number 0, as the options above
    /// specify; otherwise those options are ignored.
    pub session_inter_op_pools: Vec<InterOpPool>,
    /// Whether several threads execute the steps of one run.
    pub scheduling: Scheduling,
    /// Whether the devices' worker threads may spin for 100 us after a parallel loop while they
    /// wait for the next one (ONNX Runtime `session.intra_op.allow_spinning`). With
    /// [`Scheduling::Measured`] they spin only if whole runs measure faster that way. True by
    /// default; an app that needs the cores for other work sets false.
    pub allow_spinning: bool,
    /// Whether a run waits at its end until its devices have finished the work of kernels that
    /// return early (TensorFlow `TF_SYNC_ON_FINISH`). True by default, so that a failure of the
    /// device fails the run. Fetched tensors are complete in either case.
    pub sync_on_finish: bool,
    /// Number of concurrent runs of one plan to reserve memory for when constants are prepacked; 0
    /// means 1. More runs may execute concurrently if memory is free.
    pub n_concurrent_runs: usize,
    /// Records kernels, transfers and runs.
    pub recorder: Recorder,
    /// Session handle that owns the stateful kernels. Executors with the same handle on the same
    /// devices share stateful kernels as long as one of the executors lives. `None` creates a new
    /// handle.
    pub session_handle: Option<Arc<str>>,
    /// Cancelling this token ends all runs and rejects new ones.
    pub closed: CancelToken,
}

/// Whether several threads execute the steps of one run. Runs of different callers always execute
/// concurrently. Plans with operations that end later than they start (asynchronous kernels, copies
/// out of accelerators) always use [`Self::Shared`], because no thread may block on a single
/// operation. If memory is too short to reserve a place for every tensor, the steps of a run
/// execute one after the other, whatever is set here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Scheduling {
    /// Use several threads if that is faster. The first runs of a plan are measured, and the
    /// measurements decide how later runs execute: on several threads, or on one thread that may
    /// have help inside its kernels. Operations that take less time than handing them to another
    /// thread stay on one thread.
    #[default]
    Measured,
    /// Never: the caller's thread executes all steps in the start order of the placement.
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
    /// Sets and returns the number of concurrent runs that placement and executor reserve memory
    /// for: the larger of the two options.
    pub(crate) fn agree_on_runs(&mut self, n_of_placement: usize) -> usize {
        self.n_concurrent_runs = self.n_concurrent_runs.max(n_of_placement);
        self.n_concurrent_runs
    }

    /// Returns how many operations of one run execute at one time; 0 means one per core.
    pub(crate) fn n_inter_op_threads(&self) -> usize {
        if self.scheduling == Scheduling::Serial {
            return 1;
        }
        let of_session = self.session_inter_op_pools.first();
        let shared = self.inter_op_pool.as_ref();
        let pool = of_session.or(shared.filter(|_| !self.use_per_session_threads));
        pool.map_or(self.inter_op_parallelism_threads, InterOpPool::n_threads)
    }

    /// Sets the number of threads; 0 means one per core.
    #[must_use]
    pub fn with_inter_op_parallelism_threads(mut self, n_threads: usize) -> Self {
        self.inter_op_parallelism_threads = n_threads;
        self
    }

    /// Uses the threads of this pool.
    #[must_use]
    pub fn with_inter_op_pool(mut self, pool: InterOpPool) -> Self {
        self.inter_op_pool = Some(pool);
        self
    }

    /// Sets whether the executor uses its own threads even if [`Self::inter_op_pool`] is set.
    #[must_use]
    pub fn with_per_session_threads(mut self, is_wanted: bool) -> Self {
        self.use_per_session_threads = is_wanted;
        self
    }

    /// Sets the pools that runs select from.
    #[must_use]
    pub fn with_session_inter_op_pools(
        mut self,
        pools: impl IntoIterator<Item = InterOpPool>,
    ) -> Self {
        self.session_inter_op_pools = pools.into_iter().collect();
        self
    }

    /// Sets the scheduling.
    #[must_use]
    pub fn with_scheduling(mut self, scheduling: Scheduling) -> Self {
        self.scheduling = scheduling;
        self
    }

    /// Sets whether worker threads may spin.
    #[must_use]
    pub fn with_spinning(mut self, is_allowed: bool) -> Self {
        self.allow_spinning = is_allowed;
        self
    }

    /// Sets whether runs wait for their devices at the end.
    #[must_use]
    pub fn with_sync_on_finish(mut self, is_wanted: bool) -> Self {
        self.sync_on_finish = is_wanted;
        self
    }

    /// Sets the number of concurrent runs to reserve memory for.
    #[must_use]
    pub fn with_concurrent_runs(mut self, n_runs: usize) -> Self {
        self.n_concurrent_runs = n_runs;
        self
    }

    /// Sets the recorder.
    #[must_use]
    pub fn with_recorder(mut self, recorder: Recorder) -> Self {
        self.recorder = recorder;
        self
    }
}

/// Options of one run.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct RunOptions {
    /// Ends the run with [`super::ExecuteError::Cancelled`] once it is cancelled. Checked between
    /// steps and in long loops inside CPU kernels.
    pub cancel: Option<CancelToken>,
    /// Ends the run with [`super::ExecuteError::TimedOut`] after this time. Checked between steps
    /// and in long loops inside CPU kernels.
    pub timeout: Option<Duration>,
    /// Records this run, instead of the executor's recorder.
    pub recorder: Option<Recorder>,
    /// Whether the run waits for the device after each kernel, so that the recorded events of
    /// kernels last as long as their work, also on devices that work on after the kernel has
    /// returned; false by default. Such a run is slower. Has no effect on runs that are not
    /// recorded, and none on asynchronous kernels, whose events last as long as their work anyway.
    pub sync_kernels: bool,
    /// Which of the executor's thread pools executes steps besides the caller's thread (TensorFlow
    /// `inter_op_thread_pool`): an index into [`ExecutorOptions::session_inter_op_pools`], 0 by
    /// default. With -1 the caller's thread executes all steps, except that the first pool helps
    /// with asynchronous kernels and copies and with the steps that depend on them.
    pub inter_op_thread_pool: i32,
}

impl RunOptions {
    /// Sets the token that cancels the run.
    #[must_use]
    pub fn with_cancel(mut self, token: CancelToken) -> Self {
        self.cancel = Some(token);
        self
    }

    /// Sets the time limit.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Records the run with `recorder` only; [`Recorder::off`] turns recording off for this run.
    #[must_use]
    pub fn with_recorder(mut self, recorder: Recorder) -> Self {
        self.recorder = Some(recorder);
        self
    }

    /// Sets [`Self::sync_kernels`].
    #[must_use]
    pub fn with_sync_kernels(mut self, is_wanted: bool) -> Self {
        self.sync_kernels = is_wanted;
        self
    }

    /// Selects one of the executor's thread pools; -1 means none.
    #[must_use]
    pub fn with_inter_op_thread_pool(mut self, pool: i32) -> Self {
        self.inter_op_thread_pool = pool;
        self
    }
}
