//! The pipeline as one value: a graph, its devices, its placement, and runs. The only code that
//! knows all stages in order.
//!
//! [`Session::builder`] takes a graph and options and runs the stages up to the placement;
//! [`Session::run`] cuts, prepares and executes. A session keeps what does not change from run to
//! run: the plans used last by what is fed and fetched, kernels, constants.

mod build;
mod builder;
mod calibrated;
mod diagnose;
#[cfg(feature = "graphdef")]
mod graph_file;
mod group;
mod lifecycle;
mod names;
mod one_of;
mod pins;
mod placement_log;
mod recent;
mod replace;
mod report;
mod reuse;

pub use builder::SessionBuilder;
pub use group::SessionGroup;
pub use names::find_tensor;
pub use report::PlacedBy;
pub use report::SessionReport;
pub use report::StageTime;

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::OnceLock;
use std::sync::PoisonError;
use std::time::Instant;

use tracing::debug_span;

use self::group::Member;
use self::recent::Recent;
use crate::device::DeviceManager;
use crate::device::DeviceSet;
use crate::error::Error;
use crate::execute::Executor;
use crate::execute::MemoryPlan;
use crate::execute::PreparedPlan;
use crate::execute::RunOptions;
use crate::graph::Graph;
use crate::partition::RunRequest;
use crate::placement::Placement;
use crate::placement::PlacementIdentity;
use crate::plan::Plan;
use crate::tensor::Tensor;
use crate::trace::EventKind;
use crate::trace::Recorder;
use crate::trace::Trace;
use crate::trace::TraceNames;
use crate::trace::meters;
use crate::trace::targets;

/// Plans that a session keeps, with their kernels and constants; a service whose feeds or fetches
/// have more shapes than this prepares some of them again.
const N_PLANS_MAX: usize = 64;

/// A placed graph that can be run. Any number of threads may run it at one time.
#[cfg_attr(all(feature = "graphdef", feature = "kernels"), doc = "```")]
#[cfg_attr(not(all(feature = "graphdef", feature = "kernels")), doc = "```text")]
/// use placewright::device::DeviceOptions;
/// use placewright::policy::PolicyRequest;
/// use placewright::policy::ShippedPolicy;
/// use placewright::session::Session;
/// use placewright::tensor::Tensor;
///
/// // y = a + b, as TensorFlow froze it.
/// let bytes = include_bytes!("../../tests/models/tiny_add.pb");
/// // Two CPU devices and, on machines that have others, nothing else.
/// let mut devices = DeviceOptions::default();
/// devices.device_count.extend([("CPU".to_owned(), 2), ("SYCL".to_owned(), 0)]);
/// let session = Session::builder()
///     .with_graph_def(&bytes[..])
///     .with_device_options(devices)
///     .with_policy(PolicyRequest::new(ShippedPolicy::find("round-robin")?))
///     .build()?;
/// let summary = session.placement().summary();
/// assert!(summary.devices.iter().all(|device| device.n_nodes > 0));
///
/// let a = Tensor::from_values([3], &[1f32, 2.0, 3.0])?;
/// let b = Tensor::from_values([3], &[10f32, 20.0, 30.0])?;
/// let fetched = session.run(&[("a", a), ("b", b)], &["y:0"])?;
/// assert_eq!(fetched[0].as_slice::<f32>()?, [11.0, 22.0, 33.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Session {
    placement: Placement,
    executor: Executor,
    report: SessionReport,
    recorder: Recorder,
    plans: Mutex<Recent<RunRequest, Arc<PreparedPlan>>>,
    /// How it is built again with a larger graph.
    recipe: SessionBuilder,
    member: Arc<Member>,
    device_manager: OnceLock<Arc<DeviceManager>>,
    /// When the nodes got the numbers that they have, by the recorder's clock; `None` = they never
    /// had others.
    trace_after_ns: Option<u64>,
}

impl Session {
    /// Starts to assemble a session.
    pub fn builder() -> SessionBuilder {
        SessionBuilder::default()
    }

    fn assemble(
        placement: Placement,
        executor: Executor,
        report: SessionReport,
        recorder: Recorder,
        recipe: SessionBuilder,
        member: Arc<Member>,
    ) -> Self {
        Self {
            placement,
            executor,
            report,
            recorder,
            plans: Mutex::new(Recent::new(N_PLANS_MAX)),
            recipe,
            member,
            device_manager: OnceLock::new(),
            trace_after_ns: None,
        }
    }

    /// The graph.
    pub fn graph(&self) -> &Arc<Graph> {
        self.placement.graph()
    }

    /// The devices.
    pub fn devices(&self) -> &Arc<DeviceSet> {
        self.placement.device_set()
    }

    /// Where every node is.
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// The devices that describe themselves, a line `NAME -> DESCRIPTION` for each, after a line
    /// `Device mapping:`; or `Device mapping: no known devices.` where none does, as CPU
    /// devices do not.
    pub fn device_mapping(&self) -> String {
        placement_log::device_mapping(self.devices())
    }

    /// The device of every node, in node order: `NODE: (OP): DEVICE`.
    pub fn placement_lines(&self) -> impl Iterator<Item = String> + '_ {
        placement_log::lines(&self.placement)
    }

    /// What the placement was made from, to tell it from others; without the
    /// policy's part unless the policy asked for has placed the graph, all of it. Computed anew
    /// on each call, in time proportional to the graph.
    pub fn placement_identity(&self) -> PlacementIdentity {
        let policy = self.report.policy().and_then(|report| report.identity);
        PlacementIdentity::of(self.placement.candidates()).with_policy(policy)
    }

    /// How the session came about.
    pub fn report(&self) -> &SessionReport {
        &self.report
    }

    /// What the recorder heard so far, with names; empty without a recorder. An extension
    /// ([`Self::extend`]) that gives old nodes other numbers starts it anew: earlier events
    /// would be called by wrong names. [`Recorder::events`] has them all.
    pub fn trace(&self) -> Trace {
        let mut events = self.recorder.events();
        if let Some(after_ns) = self.trace_after_ns {
            events.retain(|event| event.start_ns > after_ns);
        }
        Trace {
            events,
            names: TraceNames {
                graph: Arc::clone(self.graph()),
                devices: self
                    .devices()
                    .iter()
                    .map(|(_, device)| device.attributes().name.clone())
                    .collect(),
            },
        }
    }

    /// Feeds tensors, runs what the fetches need, and gives the fetched tensors in the order asked
    /// for.
    ///
    /// Tensors are named `node` (its output 0) or `node:slot`. Any tensor may be fed: what produces
    /// it does not run unless something else needs it. One tensor may be fetched twice.
    ///
    /// # Errors
    /// [`Error::UnknownNode`] or [`Error::NoSuchOutput`] for a name; [`Error::Partition`] for a
    /// placeholder that is needed and not fed; [`Error::Execute`] for a feed of the wrong type
    /// or shape, a node that cannot be executed where it is, or a kernel that fails. The
    /// session remains as good as before.
    pub fn run(&self, feeds: &[(&str, Tensor)], fetches: &[&str]) -> Result<Vec<Tensor>, Error> {
        self.run_with(feeds, fetches, &[], &RunOptions::default())
    }

    /// The same, running the nodes `targets` too, with options.
    ///
    /// # Errors
    /// As [`Self::run`], and when the run is cancelled or takes too long.
    pub fn run_with(
        &self,
        feeds: &[(&str, Tensor)],
        fetches: &[&str],
        targets: &[&str],
        options: &RunOptions,
    ) -> Result<Vec<Tensor>, Error> {
        let names: Vec<&str> = feeds.iter().map(|&(name, _)| name).collect();
        let prepared = self.prepare(&names, fetches, targets)?;
        let tensors: Vec<Tensor> = feeds.iter().map(|(_, tensor)| tensor.clone()).collect();
        Ok(self.executor.run(&prepared, &tensors, options)?)
    }

    /// The plan of a run with these feeds, fetches and targets. Nothing is executed, and no kernel
    /// is made.
    ///
    /// # Errors
    /// As [`Self::run`], as far as names and placeholders are concerned.
    pub fn plan(&self, feeds: &[&str], fetches: &[&str], targets: &[&str]) -> Result<Plan, Error> {
        let request = self.request(feeds, fetches, targets)?;
        Ok(self.placement.partition(&request)?)
    }

    /// What runs with these feeds, fetches and targets hold, by memory, for feeds of the shapes
    /// that the graph says. Makes their kernels and constants.
    ///
    /// # Errors
    /// As [`Self::run`], as far as names, placeholders, kernels and constants are concerned.
    pub fn memory_plan(
        &self,
        feeds: &[&str],
        fetches: &[&str],
        targets: &[&str],
    ) -> Result<MemoryPlan, Error> {
        let prepared = self.prepare(feeds, fetches, targets)?;
        Ok(self.executor.memory_plan(&prepared))
    }

    fn request(
        &self,
        feeds: &[&str],
        fetches: &[&str],
        targets: &[&str],
    ) -> Result<RunRequest, Error> {
        let graph = self.graph();
        Ok(RunRequest {
            feeds: feeds
                .iter()
                .map(|name| names::find_tensor(graph, "feed", name))
                .collect::<Result<_, _>>()?,
            fetches: fetches
                .iter()
                .map(|name| names::find_tensor(graph, "fetch", name))
                .collect::<Result<_, _>>()?,
            targets: targets
                .iter()
                .map(|name| names::find_target(graph, name))
                .collect::<Result<_, _>>()?,
        })
    }

    fn prepare(
        &self,
        feeds: &[&str],
        fetches: &[&str],
        targets: &[&str],
    ) -> Result<Arc<PreparedPlan>, Error> {
        let request = self.request(feeds, fetches, targets)?;
        let plans = || self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        let found = plans().get(&request).map(Arc::clone);
        meters::add_plan_lookup(found.is_some());
        if let Some(prepared) = found {
            return Ok(prepared);
        }
        // Not under the lock: other runs go on meanwhile. Two threads may cut one plan twice, which
        // harms nobody.
        let started = Instant::now();
        let plan = debug_span!(target: targets::SESSION, "cut")
            .in_scope(|| self.placement.partition(&request))?;
        let plan = Arc::new(plan);
        self.stage(started, "cut");
        let started = Instant::now();
        let prepared = debug_span!(target: targets::SESSION, "prepare")
            .in_scope(|| self.executor.prepare(&plan))?;
        self.stage(started, "prepare");
        plans().insert(request, Arc::clone(&prepared));
        Ok(prepared)
    }

    fn stage(&self, started: Instant, name: &'static str) {
        let kind = EventKind::Stage { name: name.into() };
        self.recorder.record_since(started, kind);
    }
}
