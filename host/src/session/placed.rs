//! The state of a session: a placed graph, and everything that its runs share.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::OnceLock;
use std::sync::PoisonError;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::time::Instant;

use tracing::debug_span;
use tracing::warn;

use super::builder::SessionBuilder;
use super::given::Given;
use super::group::Member;
use super::initialisation::Initialisation;
use super::names;
use super::recent::Recent;
use super::report::SessionReport;
use crate::cost::History;
use crate::device::DeviceManager;
use crate::device::DeviceSet;
use crate::error::Error;
use crate::error::NameRole;
use crate::execute::ExecuteError;
use crate::execute::Executor;
use crate::execute::PreparedPlan;
use crate::execute::RunOptions;
use crate::graph::Graph;
use crate::graph::NodeId;
use crate::graph::is_control_flow;
use crate::partition::RunRequest;
use crate::placement::MeasuredWork;
use crate::placement::Placement;
use crate::tensor::Tensor;
use crate::trace::Event;
use crate::trace::EventKind;
use crate::trace::Recorder;
use crate::trace::RunProfile;
use crate::trace::Trace;
use crate::trace::TraceNames;
use crate::trace::meters;
use crate::trace::targets;

/// Plans that a state keeps, with their kernels and constants. A service with more combinations of
/// feeds and fetches prepares some of them again, unless it keeps their callables.
const N_PLANS_MAX: usize = 64;

/// How long and how often a short run is repeated for one measurement.
const PLAIN_RUNS_TIME: Duration = Duration::from_millis(1);
const PLAIN_RUNS_MAX: usize = 64;

/// A graph on its devices, with its executor and its recent plans. It is complete when it is made:
/// a larger graph or other devices are another value. It lives until the session has another one
/// and all runs and callables of this one are gone.
#[derive(Debug)]
pub(super) struct Placed {
    pub(super) placement: Arc<Placement>,
    pub(super) executor: Executor,
    pub(super) report: Arc<SessionReport>,
    /// Stopped when nodes or devices are renumbered, since the ids in later events would be wrong.
    pub(super) recorder: Recorder,
    /// Whether nodes or devices had other numbers in the state before this one.
    pub(super) is_renumbered: bool,
    /// The first event whose ids are right; `None` if nothing was ever renumbered.
    pub(super) trace_start: Option<TraceStart>,
    /// The builder of the same session with a larger graph or other devices.
    pub(super) recipe: SessionBuilder,
    /// All states of a session share one.
    pub(super) member: Arc<Member>,
    plans: Mutex<Recent<RunRequest, Arc<PreparedPlan>>>,
    /// What runs before the first run. States whose devices have the same state share it.
    pub(super) initialisation: Arc<Initialisation>,
    device_manager: OnceLock<Arc<DeviceManager>>,
    /// The graph before the passes, if they have changed it.
    pub(super) given: Option<Given>,
    /// Runs so far, if the session learns from some of them.
    n_learning_runs: AtomicU64,
}

/// The times at which nodes or devices were last renumbered, by the recorder's clock.
#[derive(Debug, Clone, Copy)]
pub(super) struct TraceStart {
    /// When the new state began to be built.
    pub(super) built_ns: u64,
    /// When runs of the old state were no longer recorded.
    pub(super) stopped_ns: u64,
}

/// The parts of a state that the builder makes.
pub(super) struct Parts {
    pub(super) placement: Arc<Placement>,
    pub(super) executor: Executor,
    pub(super) report: SessionReport,
    pub(super) recorder: Recorder,
    pub(super) is_renumbered: bool,
    pub(super) recipe: SessionBuilder,
    pub(super) member: Arc<Member>,
    pub(super) given: Option<Given>,
}

impl Placed {
    pub(super) fn new(parts: Parts) -> Self {
        Self {
            initialisation: Arc::new(Initialisation::of(parts.placement.graph())),
            placement: parts.placement,
            executor: parts.executor,
            report: Arc::new(parts.report),
            recorder: parts.recorder,
            is_renumbered: parts.is_renumbered,
            trace_start: None,
            recipe: parts.recipe,
            member: parts.member,
            plans: Mutex::new(Recent::new(N_PLANS_MAX)),
            device_manager: OnceLock::new(),
            given: parts.given,
            n_learning_runs: AtomicU64::new(0),
        }
    }

    pub(super) fn graph(&self) -> &Arc<Graph> {
        self.placement.graph()
    }

    pub(super) fn devices(&self) -> &Arc<DeviceSet> {
        self.placement.device_set()
    }

    pub(super) fn device_manager(&self) -> &Arc<DeviceManager> {
        self.device_manager.get_or_init(|| {
            let given = self.recipe.devices.manager_of_devices.clone();
            given.unwrap_or_else(|| Arc::new(DeviceManager::of_set(self.devices())))
        })
    }

    /// Whether a node or device of this state has another number in this graph and set.
    pub(super) fn is_renumbered(&self, graph: &Arc<Graph>, devices: &DeviceSet) -> bool {
        let old = self.graph();
        let has_moved = |node| graph.find_node(old.node_name(node)) != Some(node);
        let mut of_old = self.devices().iter();
        (!Arc::ptr_eq(old, graph) && old.nodes().any(has_moved))
            || of_old.any(|(id, device)| {
                let new = devices.get(id);
                new.is_none_or(|new| new.attributes().name != device.attributes().name)
            })
    }

    pub(super) fn trace(&self) -> Trace {
        let mut events = self.recorder.events();
        if let Some(start) = &self.trace_start {
            events.retain(|event| start.includes(event));
        }
        self.named(events)
    }

    /// Returns events with the names of this state.
    fn named(&self, events: Vec<Event>) -> Trace {
        let devices = self.devices().iter();
        let devices = devices.map(|(_, device)| device.attributes().name.clone());
        Trace {
            events,
            names: TraceNames {
                graph: Arc::clone(self.graph()),
                devices: devices.collect(),
            },
        }
    }

    pub(super) fn request<'a>(
        &self,
        feeds: impl Iterator<Item = &'a str>,
        fetches: &[&str],
        targets: &[&str],
    ) -> Result<RunRequest, Error> {
        let graph = self.graph();
        Ok(RunRequest {
            feeds: feeds
                .map(|name| names::find_tensor(graph, NameRole::Feed, name))
                .collect::<Result<_, _>>()?,
            fetches: fetches
                .iter()
                .map(|name| names::find_tensor(graph, NameRole::Fetch, name))
                .collect::<Result<_, _>>()?,
            targets: targets
                .iter()
                .map(|name| names::find_target(graph, name))
                .collect::<Result<_, _>>()?,
        })
    }

    /// Returns the plan of a request, which is prepared if it is not among the recent ones.
    pub(super) fn prepare(&self, request: RunRequest) -> Result<Arc<PreparedPlan>, Error> {
        let plans = || self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        let found = plans().get(&request).map(Arc::clone);
        meters::add_plan_lookup(found.is_some());
        if let Some(prepared) = found {
            return Ok(prepared);
        }
        // Not under the lock, so that other runs can continue. Two threads may prepare the same
        // plan, which is harmless.
        let started = Instant::now();
        let plan = debug_span!(target: targets::SESSION, "partition")
            .in_scope(|| self.placement.partition(&request))?;
        let plan = Arc::new(plan);
        self.stage(started, "partition");
        let started = Instant::now();
        let prepared = debug_span!(target: targets::SESSION, "prepare")
            .in_scope(|| self.executor.prepare(&plan))?;
        self.stage(started, "prepare");
        plans().insert(request, Arc::clone(&prepared));
        Ok(prepared)
    }

    /// Runs a plan of this state.
    pub(super) fn run(
        &self,
        prepared: &Arc<PreparedPlan>,
        feeds: Vec<Tensor>,
        options: &RunOptions,
    ) -> Result<Vec<Tensor>, Error> {
        let rest = self.initialise(options);
        let fetched = rest.and_then(|rest| self.run_initialised(prepared, feeds, &rest));
        fetched.map_err(|problem| match problem {
            // The caller's limit, not what initialisation has left of it.
            Error::Execute(ExecuteError::TimedOut(_)) => {
                ExecuteError::TimedOut(options.timeout.unwrap_or_default()).into()
            }
            other => other,
        })
    }

    fn run_initialised(
        &self,
        prepared: &Arc<PreparedPlan>,
        feeds: Vec<Tensor>,
        options: &RunOptions,
    ) -> Result<Vec<Tensor>, Error> {
        let setup = &self.recipe.placement;
        if let Some(history) = setup.history.as_ref().filter(|_| setup.learns) {
            let number = self.n_learning_runs.fetch_add(1, Ordering::Relaxed) + 1;
            if is_learned(number) && options.recorder.is_none() && !self.recorder.is_on() {
                return self.run_and_learn(prepared, feeds, options, history);
            }
        }
        Ok(self.executor.run_owned(prepared, feeds, options)?)
    }

    /// Runs a plan, and adds the times of its kernels to the history.
    fn run_and_learn(
        &self,
        prepared: &Arc<PreparedPlan>,
        feeds: Vec<Tensor>,
        options: &RunOptions,
        history: &History,
    ) -> Result<Vec<Tensor>, Error> {
        let recorder = Recorder::on();
        let measured = options.clone().with_recorder(recorder.clone());
        let measured = measured.with_sync_kernels(true);
        let fetched = self.executor.run_owned(prepared, feeds, &measured)?;
        let profile = self.named(recorder.events()).profile();
        if let Err(problem) = history.learn(&profile, self.graph(), self.devices()) {
            // The run is what the caller wants.
            warn!(target: targets::SESSION, %problem, "measured times are not kept");
        }
        Ok(fetched)
    }

    /// Runs a plan so often, after one run that is not measured, and returns what the runs took.
    /// `run` does the same as an app does it, so that its overhead is measured.
    pub(super) fn measure(
        &self,
        prepared: &Arc<PreparedPlan>,
        feeds: &[Tensor],
        n_runs: u32,
        run: impl Fn() -> Result<Vec<Tensor>, Error>,
    ) -> Result<RunProfile, Error> {
        self.initialise(&RunOptions::default())?;
        let recorder = Recorder::on();
        let options = RunOptions::default()
            .with_recorder(recorder.clone())
            .with_sync_kernels(true);
        let mut plain_ns = Vec::new();
        // In turns, since clocks drift.
        for round in 0..=n_runs.max(1) {
            let recorded = self
                .executor
                .run_owned(prepared, feeds.to_vec(), &options)?;
            // The memory plan counts the outputs of one run.
            drop(recorded);
            let of_round = plain_runs(&run)?;
            // The first one may have tried another mode of execution.
            if round > 0 {
                plain_ns.extend(of_round);
            }
        }
        let mut profile = self.named(recorder.events()).profile();
        plain_ns.sort_unstable();
        let plain_ns = u64::try_from(plain_ns[plain_ns.len() / 2]).unwrap_or(u64::MAX);
        self.fit(&mut profile, plain_ns);
        Ok(profile)
    }

    /// Completes the profile of runs that took `run_ns` each.
    fn fit(&self, profile: &mut RunProfile, run_ns: u64) {
        let (graph, placement) = (self.graph(), &self.placement);
        let device_of = |node: NodeId| placement.device(node);
        let others = graph.nodes().filter(|&node| !graph.is_preloaded(node));
        profile.add_others(others.map(|node| {
            let device = placement.candidates().device_name(device_of(node).0);
            let is_passed = is_control_flow(graph.op(node));
            (graph.node_name(node), device, is_passed)
        }));
        let on_its_device = profile.nodes.iter().map(|times| {
            let node = graph.find_node(&times.node)?;
            let device = self.devices().find_by_name(&times.device)?;
            (device == device_of(node)).then_some(node)
        });
        let nodes: Vec<Option<NodeId>> = on_its_device.collect();
        profile.set_run_time(run_ns, |profile| {
            let mut measured = vec![MeasuredWork::default(); graph.n_nodes()];
            for (times, node) in profile.nodes.iter().zip(&nodes) {
                if let Some(node) = node {
                    measured[node.index()] = MeasuredWork {
                        ns: times.ns,
                        executions: times.executions,
                    };
                }
            }
            placement.makespan_of_ns(&measured, profile)
        });
    }

    fn stage(&self, started: Instant, name: &'static str) {
        let kind = EventKind::Stage { name: name.into() };
        self.recorder.record_since(started, kind);
    }
}

/// Times runs that are not recorded, in ns: one, or several if they are short. A run after a
/// recorded one finds little of its own in the caches, so the first quarter does not count.
fn plain_runs(run: impl Fn() -> Result<Vec<Tensor>, Error>) -> Result<Vec<u128>, Error> {
    let began = Instant::now();
    let mut times_ns = Vec::new();
    while times_ns.is_empty()
        || times_ns.len() < PLAIN_RUNS_MAX && began.elapsed() < PLAIN_RUNS_TIME
    {
        let started = Instant::now();
        let fetched = run()?;
        times_ns.push(started.elapsed().as_nanos());
        drop(fetched);
    }
    let n_first = times_ns.len().div_ceil(4).min(times_ns.len() - 1);
    Ok(times_ns.split_off(n_first))
}

/// Whether a session that learns measures the run of this number: powers of 4 beyond the first, in
/// which kernels and constants are created.
fn is_learned(number: u64) -> bool {
    number > 1 && number.is_power_of_two() && number.trailing_zeros().is_multiple_of(2)
}

impl TraceStart {
    /// Whether an event has no ids of the old state.
    fn includes(&self, event: &Event) -> bool {
        let has_ids = !matches!(
            event.kind,
            EventKind::Stage { .. } | EventKind::PolicyCall { .. }
        );
        let start_ns = if has_ids {
            self.stopped_ns
        } else {
            self.built_ns
        };
        event.start_ns > start_ns
    }
}
