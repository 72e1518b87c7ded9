//! The executor.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Instant;

use tracing::debug_span;
use tracing::field;
use tracing::warn;

use super::error::ExecuteError;
use super::listeners::Listeners;
use super::load::Load;
use super::options::{ExecutorOptions, RunOptions, Scheduling};
use super::pool::InterOpPool;
use super::prepare::{KernelCache, PreparedPlan, Program};
use super::run::{Request, pools, run_serially, run_with_helpers};
use super::variant::{ExecutionMode, RunConfig, Trial};
use crate::device::{CancelToken, DeviceSet, Interrupts, IntraOpPool, KernelRegistry};
use crate::graph::Graph;
use crate::memory::MemoryPlan;
use crate::ops::OpRegistry;
use crate::plan::{ExecutionPlan, Fetch};
use crate::tensor::Tensor;
use crate::trace::meters::{self, RunOutcome, RunTotals};
use crate::trace::targets;
use crate::trace::{EventKind, Recorder};

/// Runs the plans of one graph on one device set. Any number of threads may run plans concurrently.
#[derive(Debug)]
pub struct Executor {
    kernels: KernelCache,
    /// The thread pools that runs select from; at least one.
    pools: Vec<InterOpPool>,
    recorder: Recorder,
    scheduling: Scheduling,
    may_spin: bool,
    sync_on_finish: bool,
    n_runs: AtomicU64,
    load: Arc<Load>,
    /// The plans that are still in use: their idle run states are dropped when memory is short.
    prepared: Mutex<Vec<Weak<PreparedPlan>>>,
    /// The session that owns the stateful kernels.
    session: Arc<str>,
    closed: CancelToken,
}

impl Executor {
    /// Creates an executor and starts its threads. Kernels are created later.
    ///
    /// # Errors
    /// [`ExecuteError::Threads`] if the system cannot start the threads.
    pub fn new(
        graph: Arc<Graph>,
        devices: Arc<DeviceSet>,
        registry: Arc<KernelRegistry>,
        options: &ExecutorOptions,
    ) -> Result<Self, ExecuteError> {
        let mut pools = options.session_inter_op_pools.clone();
        if pools.is_empty() {
            pools.push(match &options.inter_op_pool {
                Some(pool) if !options.use_per_session_threads => pool.clone(),
                _ => InterOpPool::new(options.inter_op_parallelism_threads)?,
            });
        }
        let session = options
            .session_handle
            .clone()
            .unwrap_or_else(new_session_handle);
        // Held until the executor is dropped: the devices' stateful kernels of this session.
        for (_, device) in devices.iter() {
            device.op_segment().add_hold(&session);
        }
        let may_spin = options.allow_spinning
            && devices.iter().any(|(_, device)| {
                let device = device.as_kernel_device();
                device.is_some_and(|device| device.intra_op_pool().is_some())
            });
        Ok(Self {
            scheduling: options.scheduling,
            sync_on_finish: options.sync_on_finish,
            may_spin,
            kernels: KernelCache::new(
                graph,
                devices,
                registry,
                Arc::clone(&session),
                options.recorder.clone(),
                options.n_concurrent_runs,
            ),
            prepared: Mutex::default(),
            session,
            closed: options.closed.clone(),
            pools,
            recorder: options.recorder.clone(),
            n_runs: AtomicU64::new(0),
            load: Arc::new(Load::new()),
        })
    }

    /// Returns the session handle under which devices keep stateful kernels for this executor.
    pub fn session_handle(&self) -> &Arc<str> {
        &self.session
    }

    /// Checks the nodes of an unchecked graph ([`Graph::is_checked`]) against these ops before it
    /// creates their kernels.
    #[must_use]
    pub fn with_ops(mut self, ops: Arc<OpRegistry>) -> Self {
        self.kernels.ops = Some(ops);
        self
    }

    /// Creates the kernels and constants of a plan that do not exist yet.
    ///
    /// # Errors
    /// [`ExecuteError`], which names the node that cannot be executed on its device.
    pub fn prepare(&self, plan: &Arc<ExecutionPlan>) -> Result<Arc<PreparedPlan>, ExecuteError> {
        let prepared = Arc::new(self.kernels.prepare(plan)?);
        let mut known = self.prepared.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|plan| plan.strong_count() > 0);
        known.push(Arc::downgrade(&prepared));
        Ok(prepared)
    }

    /// Frees the arenas that no run uses.
    fn free_idle_memory(&self) {
        let known = self.prepared.lock().unwrap_or_else(PoisonError::into_inner);
        let plans: Vec<_> = known.iter().filter_map(Weak::upgrade).collect();
        drop(known);
        plans.iter().for_each(|plan| plan.variants.drop_idle());
    }

    /// Returns the maximum memory that runs of a plan hold, by memory space, for feeds of the
    /// shapes that the graph specifies. The memory of a run is allocated before it starts. If there
    /// is not enough memory, and on devices whose work may outlast their kernels, each tensor is
    /// allocated separately.
    pub fn memory_plan(&self, prepared: &PreparedPlan) -> MemoryPlan {
        let has_helpers = self.pools.iter().any(|pool| pool.n_threads() > 1);
        let may_share = has_helpers && !matches!(self.scheduling, Scheduling::Serial);
        let is_shared = prepared.program.is_async || may_share;
        let plan = MemoryPlan::new(&prepared.program, is_shared);
        plan.without_arenas_where_short(&prepared.program)
    }

    /// Runs a plan to its end. Takes `feeds` in the order of [`ExecutionPlan::feeds`] and returns
    /// host-readable tensors in the order of [`ExecutionPlan::fetches`]. The calling thread
    /// executes steps too.
    ///
    /// # Errors
    /// [`ExecuteError`]: the error of the first step that failed, or that the run was cancelled or
    /// exceeded its time limit. The executor remains usable.
    pub fn run(
        &self,
        prepared: &Arc<PreparedPlan>,
        feeds: &[Tensor],
        options: &RunOptions,
    ) -> Result<Vec<Tensor>, ExecuteError> {
        self.run_owned(prepared, feeds.to_vec(), options)
    }

    /// Like [`Self::run`]; saves the copy of `feeds`.
    pub(crate) fn run_owned(
        &self,
        prepared: &Arc<PreparedPlan>,
        feeds: Vec<Tensor>,
        options: &RunOptions,
    ) -> Result<Vec<Tensor>, ExecuteError> {
        let run = self.n_runs.fetch_add(1, Ordering::Relaxed);
        let started = Instant::now();
        let span = debug_span!(
            target: targets::EXECUTE,
            "run",
            run,
            feeds = feeds.len(),
            fetches = prepared.program.plan.fetches().len(),
            outcome = field::Empty,
        );
        let _entered = span.enter();
        let listen = |recorder: &Recorder, n_operations, is_alone| {
            Listeners::new(run, started, recorder, &span, n_operations, is_alone)
        };
        let ended = self.execute(prepared, feeds, options, run, started, listen);
        let outcome = match &ended {
            Ok(_) => RunOutcome::Ok,
            Err(ExecuteError::Cancelled) => RunOutcome::Cancelled,
            Err(ExecuteError::TimedOut(_)) => RunOutcome::TimedOut,
            Err(_) => RunOutcome::Failed,
        };
        span.record("outcome", outcome.as_str());
        let totals = ended.as_ref().map(|(_, totals)| totals);
        meters::add_run(outcome, started.elapsed(), totals.ok());
        ended.map(|(fetched, _)| fetched).inspect_err(|error| {
            warn!(target: targets::EXECUTE, run, error = %error, "a run failed");
        })
    }

    fn execute(
        &self,
        prepared: &PreparedPlan,
        feeds: Vec<Tensor>,
        options: &RunOptions,
        run: u64,
        started: Instant,
        listen: impl FnOnce(&Recorder, usize, bool) -> Listeners,
    ) -> Result<(Vec<Tensor>, RunTotals), ExecuteError> {
        if self.closed.is_cancelled() {
            return Err(ExecuteError::Closed);
        }
        self.check_feeds(prepared, &feeds)?;
        self.check_devices(&prepared.program)?;
        let recorder = options.recorder.as_ref().unwrap_or(&self.recorder);
        let program = &prepared.program;
        let pool = self.pool(program, options)?;
        let config = self.config(program, pool);
        let variant = prepared.variants.find(program, &feeds, config);
        let (mut state, choice) = variant.take_run_state(program, || self.free_idle_memory())?;
        // Unique across executors, whose runs may use the same devices.
        state.begin(next_step_number());
        let trial_started = choice.trial.map(|round| (round, Instant::now()));
        let trial_ended = || {
            trial_started.map(|(round, started)| Trial {
                round,
                mode: choice.mode,
                duration: started.elapsed(),
                no_worker_joined: choice.mode == ExecutionMode::Spinning
                    && !pools(program).any(IntraOpPool::has_spinning_workers),
            })
        };
        let deadline = options
            .timeout
            .and_then(|timeout| Instant::now().checked_add(timeout));
        // Read here, because the run takes the feeds.
        let fed_bytes = |&feed: &u32| feeds[feed as usize].len_bytes() as u64;
        let feed_bytes = state.compiled.feeds.iter().map(fed_bytes).sum();
        let fetched_feeds = program
            .plan
            .fetches()
            .iter()
            .filter_map(|fetch| match *fetch {
                Fetch::Step(..) => None,
                Fetch::Fed(_, feed) => Some(feeds[feed as usize].clone()),
            });
        let mut fetched_feeds = fetched_feeds.collect::<Vec<Tensor>>().into_iter();
        let request = Request {
            feeds,
            options: options.clone(),
            interrupts: Interrupts::new(self.closed.clone(), options.cancel.clone(), deadline),
            listeners: listen(
                recorder,
                state.compiled.operations.len(),
                choice.mode != ExecutionMode::Shared,
            ),
            load: Arc::clone(&self.load),
            has_spinning_workers: choice.mode == ExecutionMode::Spinning,
            async_cancel: CancelToken::default(),
        };
        let (mut state, outcome) = match pool {
            // Without arenas memory is short, and concurrent steps hold more of it: one operation
            // executes at a time. Even then this thread cannot execute all of them if some end
            // later, on other threads.
            Some(pool)
                if choice.mode == ExecutionMode::Shared
                    && (state.has_arenas || program.is_async) =>
            {
                run_with_helpers(state, request, pool.shared())
            }
            _ => {
                let outcome = run_serially(&state, &request);
                (state, outcome)
            }
        };
        recorder.record_since(started, EventKind::Run { run });
        let outcome = match self.sync_on_finish {
            true => outcome.and_then(|()| state.sync(recorder)),
            false => outcome,
        };
        let finished = state.finish(recorder);
        let outcome = outcome.and(finished);
        if let Err(failure) = outcome {
            if let (ExecuteError::TimedOut(_), Some(mut trial)) = (&failure, trial_ended()) {
                // Its full duration is unknown; another mode may be faster.
                trial.duration *= 2;
                variant.time_out(trial);
            }
            let failure = match state.out_of_memory.take() {
                Some(out_of_memory) => out_of_memory.with_failure(failure),
                None => failure,
            };
            // Remaining tensors may belong to an app and panic when they are dropped.
            let cleared = catch_unwind(AssertUnwindSafe(move || {
                state.clear();
                state
            }));
            if let Ok(state) = cleared {
                variant.give_back(state);
            }
            return Err(failure);
        }
        let mut totals = RunTotals {
            n_ops: state.compiled.n_kernels,
            feed_bytes,
            transfer_bytes: state.values_mut().transferred_bytes(),
            ..RunTotals::default()
        };
        let fetches = program.plan.fetches().iter().enumerate();
        let fetched = fetches
            .map(|(index, fetch)| match *fetch {
                Fetch::Step(..) => {
                    let fetched = state.values_mut().take_fetched(index);
                    let fetched = fetched.expect("every fetch has been executed");
                    totals.fetch_bytes += fetched.len_bytes() as u64;
                    fetched
                }
                Fetch::Fed(..) => fetched_feeds.next().expect("one per such fetch"),
            })
            .collect();
        variant.learn(&mut state, config, trial_ended());
        variant.give_back(state);
        Ok((fetched, totals))
    }

    /// Returns an error if the plan uses a removed device.
    fn check_devices(&self, program: &Program) -> Result<(), ExecuteError> {
        for partition in program.plan.partitions() {
            let device = self.kernels.devices().get(partition.device);
            if let Some(device) = device.filter(|device| device.is_removed()) {
                return Err(ExecuteError::DeviceRemoved {
                    device: device.attributes().name.clone(),
                });
            }
        }
        Ok(())
    }

    /// Returns the thread pool that a run uses; `None` if it uses none.
    fn pool(
        &self,
        program: &Program,
        options: &RunOptions,
    ) -> Result<Option<&InterOpPool>, ExecuteError> {
        let wanted = options.inter_op_thread_pool;
        if wanted == -1 {
            // Asynchronous kernels end on other threads than the caller's in any case.
            return Ok(self.pools.first().filter(|_| program.is_async));
        }
        let pool = usize::try_from(wanted).ok();
        let pool = pool.and_then(|index| self.pools.get(index));
        pool.map(Some).ok_or(ExecuteError::NoSuchPool {
            pool: wanted,
            n_pools: self.pools.len(),
        })
    }

    fn config(&self, program: &Program, pool: Option<&InterOpPool>) -> RunConfig {
        let n_threads = pool.map_or(1, InterOpPool::n_threads);
        RunConfig {
            scheduling: match (self.scheduling, n_threads) {
                // In serial order a thread would block on single operations.
                _ if program.is_async => Scheduling::Shared,
                (Scheduling::Shared, 1) => Scheduling::Serial,
                (scheduling, _) => scheduling,
            },
            n_threads,
            may_spin: self.may_spin,
        }
    }

    fn check_feeds(&self, prepared: &PreparedPlan, feeds: &[Tensor]) -> Result<(), ExecuteError> {
        let (graph, program) = (self.kernels.graph(), &prepared.program);
        if !Arc::ptr_eq(graph, &program.graph)
            || !Arc::ptr_eq(self.kernels.devices(), &program.devices)
        {
            return Err(ExecuteError::ForeignPlan);
        }
        let expected = program.plan.feeds();
        if expected.len() != feeds.len() {
            return Err(ExecuteError::FeedCount {
                expected: expected.len(),
                found: feeds.len(),
            });
        }
        for (feed, tensor) in expected.iter().zip(feeds) {
            let dtype = graph.tensor_dtypes()[feed.tensor.index()];
            let shape = graph.tensor_shape(feed.tensor);
            if tensor.dtype() != dtype || !shape.matches(tensor.shape()) {
                return Err(ExecuteError::FeedMismatch {
                    tensor: graph.tensor_name(feed.tensor),
                    expected: format!("{dtype} {shape}"),
                    found: format!("{} {}", tensor.dtype(), tensor.shape()),
                });
            }
        }
        Ok(())
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        for (_, device) in self.kernels.devices().iter() {
            device.op_segment().remove_hold(&self.session);
        }
    }
}

/// Identities only: no state is shared through them.
fn new_session_handle() -> Arc<str> {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    format!("direct/{}", NEXT.fetch_add(1, Ordering::Relaxed)).into()
}

fn next_step_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
