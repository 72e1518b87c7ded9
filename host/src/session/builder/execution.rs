//! How a session executes runs ([`ExecutorOptions`](crate::execute::ExecutorOptions)).

use super::SessionBuilder;
use crate::execute::InterOpPool;
use crate::trace::Recorder;

/// # How runs are executed
///
/// [`ExecutorOptions`](crate::execute::ExecutorOptions) says more about each option.
impl SessionBuilder {
    /// Sets how many ops of one run may execute at the same time; 0 means one per core
    /// (`ExecutorOptions::inter_op_parallelism_threads`).
    #[must_use]
    pub fn with_inter_op_parallelism_threads(mut self, n_threads: usize) -> Self {
        self.execution.inter_op_parallelism_threads = n_threads;
        self
    }

    /// Sets the threads that execute runs, shared with other sessions, instead of the session's
    /// own (`ExecutorOptions::inter_op_pool`).
    #[must_use]
    pub fn with_inter_op_pool(mut self, pool: InterOpPool) -> Self {
        self.execution.inter_op_pool = Some(pool);
        self
    }

    /// Sets whether the session has its own threads in spite of [`Self::with_inter_op_pool`]
    /// (`ExecutorOptions::use_per_session_threads`); false by default.
    #[must_use]
    pub fn with_per_session_threads(mut self, is_wanted: bool) -> Self {
        self.execution.use_per_session_threads = is_wanted;
        self
    }

    /// Sets the pools that runs choose from with
    /// [`crate::execute::RunOptions::inter_op_thread_pool`]
    /// (`ExecutorOptions::session_inter_op_pools`).
    #[must_use]
    pub fn with_session_inter_op_pools(
        mut self,
        pools: impl IntoIterator<Item = InterOpPool>,
    ) -> Self {
        self.execution.session_inter_op_pools = pools.into_iter().collect();
        self
    }

    /// Sets for how many simultaneous runs of the whole graph a placement must have memory; 1 by
    /// default. If `PlacementOptions::n_concurrent_runs` is larger, it applies instead.
    #[must_use]
    pub fn with_concurrent_runs(mut self, n_runs: usize) -> Self {
        self.execution.n_concurrent_runs = n_runs;
        self
    }

    /// Sets whether idle threads may spin between the kernels of a run and between runs
    /// (`ExecutorOptions::allow_spinning`); true by default.
    #[must_use]
    pub fn with_spinning(mut self, is_allowed: bool) -> Self {
        self.execution.allow_spinning = is_allowed;
        self
    }

    /// Sets the recorder of stages, policy calls, kernels and transfers.
    #[must_use]
    pub fn with_recorder(mut self, recorder: Recorder) -> Self {
        self.execution.recorder = recorder;
        self
    }
}
