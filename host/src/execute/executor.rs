//! The executor.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use tracing::debug_span;
use tracing::field;
use tracing::warn;

use super::error::ExecuteError;
use super::listeners::Listeners;
use super::load::Load;
use super::memory::MemoryPlan;
use super::options::{ExecutorOptions, RunOptions, Scheduling};
use super::pool::HelperPool;
use super::prepare::{PreparedPlan, Workshop};
use super::run::{Request, pools, run_serially, run_with_helpers};
use super::variant::{Crew, Means, Trial};
use crate::device::{DeviceSet, IntraOpPool, KernelRegistry};
use crate::graph::Graph;
use crate::plan::{Fetch, Plan};
use crate::tensor::Tensor;
use crate::trace::meters::{self, RunOutcome, RunTotals};
use crate::trace::targets;
use crate::trace::{EventKind, Recorder};

/// Runs the plans of one graph on one device set. Any number of threads may run plans at one time.
#[derive(Debug)]
pub struct Executor {
    workshop: Workshop,
    helpers: HelperPool,
    recorder: Recorder,
    means: Means,
    n_runs: AtomicU64,
    load: Arc<Load>,
}

impl Executor {
    /// Starts the threads; makes no kernel yet.
    ///
    /// # Errors
    /// [`ExecuteError::Threads`] if the system has no threads to give.
    pub fn new(
        graph: Arc<Graph>,
        devices: Arc<DeviceSet>,
        registry: Arc<KernelRegistry>,
        options: &ExecutorOptions,
    ) -> Result<Self, ExecuteError> {
        let n_threads = match options.inter_op_parallelism_threads {
            0 => thread::available_parallelism().map_or(1, usize::from),
            n_threads => n_threads,
        };
        // The thread that calls `run` is one of them.
        let helpers = HelperPool::new(n_threads - 1)
            .map_err(|error| ExecuteError::Threads(error.to_string()))?;
        let may_attend = options.allow_spinning
            && devices.iter().any(|(_, device)| {
                let device = device.as_kernel_device();
                device.is_some_and(|device| device.intra_op_pool().is_some())
            });
        Ok(Self {
            means: Means {
                scheduling: match (options.scheduling, n_threads) {
                    (Scheduling::Shared, 1) => Scheduling::Serial,
                    (scheduling, _) => scheduling,
                },
                n_threads,
                may_attend,
            },
            workshop: Workshop::new(graph, devices, registry),
            helpers,
            recorder: options.recorder.clone(),
            n_runs: AtomicU64::new(0),
            load: Arc::new(Load::new()),
        })
    }

    /// Makes the kernels and constants of a plan that do not exist yet.
    ///
    /// # Errors
    /// [`ExecuteError`], naming the node that cannot be executed where it was placed.
    pub fn prepare(&self, plan: &Arc<Plan>) -> Result<Arc<PreparedPlan>, ExecuteError> {
        self.workshop.prepare(plan).map(Arc::new)
    }

    /// What the runs of a plan hold at most, by memory, for feeds of the shapes that the graph says. A run's own part is allocated
    /// before it starts, or it fails with [`ExecuteError::Arena`].
    pub fn memory_plan(&self, prepared: &PreparedPlan) -> MemoryPlan {
        let is_shared =
            self.means.n_threads > 1 && !matches!(self.means.scheduling, Scheduling::Serial);
        MemoryPlan::new(&prepared.program, is_shared)
    }

    /// Runs a plan to its end: `feeds` in the order of [`Plan::feeds`] in, tensors that the host can read in the order of
    /// [`Plan::fetches`] out. The calling thread works too.
    ///
    /// # Errors
    /// [`ExecuteError`]: what the first failing step said, or that the run was cancelled or took too long. The executor
    /// remains as good as before.
    pub fn run(
        &self,
        prepared: &Arc<PreparedPlan>,
        feeds: &[Tensor],
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
        feeds: &[Tensor],
        options: &RunOptions,
        run: u64,
        started: Instant,
        listen: impl FnOnce(&Recorder, usize, bool) -> Listeners,
    ) -> Result<(Vec<Tensor>, RunTotals), ExecuteError> {
        self.check_feeds(prepared, feeds)?;
        let recorder = options.recorder.as_ref().unwrap_or(&self.recorder);
        let program = &prepared.program;
        let variant = prepared.variants.find(program, feeds, self.means);
        let (stage, way) = variant.take_stage(program)?;
        let trial_started = way.trial.map(|round| (round, Instant::now()));
        let trial_ended = || {
            trial_started.map(|(round, started)| Trial {
                round,
                crew: way.crew,
                duration: started.elapsed(),
                is_deserted: way.crew == Crew::Attended
                    && !pools(program).any(IntraOpPool::is_attended),
            })
        };
        let request = Request {
            feeds: feeds.to_vec(),
            options: options.clone(),
            listeners: listen(
                recorder,
                stage.compiled.operations.len(),
                way.crew != Crew::Shared,
            ),
            load: Arc::clone(&self.load),
            is_attended: way.crew == Crew::Attended,
        };
        let (mut stage, outcome) = if way.crew == Crew::Shared {
            run_with_helpers(stage, request, self.helpers.shared())
        } else {
            let outcome = run_serially(&stage, &request);
            (stage, outcome)
        };
        recorder.record_since(started, EventKind::Run { run });
        if let Err(failure) = outcome {
            if let (ExecuteError::TimedOut(_), Some(mut trial)) = (&failure, trial_ended()) {
                // Nobody knows how long it would have taken; another crew may be faster.
                trial.duration *= 2;
                variant.time_out(trial);
            }
            // Tensors that are left over may be an app's, and panic when they are let go.
            let cleared = catch_unwind(AssertUnwindSafe(move || {
                stage.clear();
                stage
            }));
            if let Ok(stage) = cleared {
                variant.give_back(stage);
            }
            return Err(failure);
        }
        let mut totals = RunTotals {
            n_ops: stage.compiled.n_kernels,
            transfer_bytes: stage.frame_mut().transferred_bytes(),
            ..RunTotals::default()
        };
        for &feed in &stage.compiled.feeds {
            totals.feed_bytes += feeds[feed as usize].len_bytes() as u64;
        }
        let fetches = program.plan.fetches().iter().enumerate();
        let fetched = fetches
            .map(|(index, fetch)| match *fetch {
                Fetch::Step(..) => {
                    let fetched = stage.frame_mut().take_fetched(index);
                    let fetched = fetched.expect("every fetch has been executed");
                    totals.fetch_bytes += fetched.len_bytes() as u64;
                    fetched
                }
                Fetch::Fed(_, feed) => feeds[feed as usize].clone(),
            })
            .collect();
        variant.learn(&mut stage, self.means, trial_ended());
        variant.give_back(stage);
        Ok((fetched, totals))
    }

    fn check_feeds(&self, prepared: &PreparedPlan, feeds: &[Tensor]) -> Result<(), ExecuteError> {
        let (graph, program) = (self.workshop.graph(), &prepared.program);
        if !Arc::ptr_eq(graph, &program.graph)
            || !Arc::ptr_eq(self.workshop.devices(), &program.devices)
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
