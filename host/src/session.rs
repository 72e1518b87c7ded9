//! The pipeline as one value: a graph, its devices, its placement, and runs. The only code that
//! knows all stages in order.
//!
//! [`Session::builder`] takes a graph and options and runs the stages up to the placement.
//! [`Session::run`] partitions the graph for its feeds and fetches, prepares the plan and executes
//! it. A session keeps everything that runs share: recent plans, kernels and constants.

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

/// Plans that a session keeps, with their kernels and constants. A service with more combinations
/// of feeds and fetches prepares some of them again.
const N_PLANS_MAX: usize = 64;

/// A placed graph that can be run. Any number of threads may run it at the same time.
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
/// // Two CPU devices, and no others, even on machines that have them.
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
    /// The builder of the same session with a larger graph or other devices.
    recipe: SessionBuilder,
    member: Arc<Member>,
    device_manager: OnceLock<Arc<DeviceManager>>,
    /// Time at which nodes or devices were last renumbered, by the recorder's clock; `None` if
    /// they never were.
    trace_after_ns: Option<u64>,
}

impl Session {
    /// Returns a builder.
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

    /// Returns the graph.
    pub fn graph(&self) -> &Arc<Graph> {
        self.placement.graph()
    }

    /// Returns the devices.
    pub fn devices(&self) -> &Arc<DeviceSet> {
        self.placement.device_set()
    }

    /// Returns the placement of the graph.
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// Returns the physical descriptions of devices, a line `NAME -> DESCRIPTION` for each, after a
    /// line `Device mapping:`. CPU devices have no description; if no device has one, the result is
    /// `Device mapping: no known devices.`
    pub fn device_mapping(&self) -> String {
        placement_log::device_mapping(self.devices())
    }

    /// Returns the device of every node, in node order: `NODE: (OP): DEVICE`.
    pub fn placement_lines(&self) -> impl Iterator<Item = String> + '_ {
        placement_log::lines(&self.placement)
    }

    /// Returns the identity of the inputs of the placement, which distinguishes it from others. It
    /// contains the policy's part only if the requested policy has placed the whole graph. Each
    /// call computes it anew, in time linear in the graph.
    pub fn placement_identity(&self) -> PlacementIdentity {
        let policy = self.report.policy().and_then(|report| report.identity);
        PlacementIdentity::of(self.placement.candidates()).with_policy(policy)
    }

    /// Returns how the session was built.
    pub fn report(&self) -> &SessionReport {
        &self.report
    }

    /// Returns the recorded events, with names; empty without a recorder. If [`Self::extend`] or
    /// [`Self::replace_devices`] renumbers nodes or devices, earlier events are left out, since
    /// their names would be wrong. [`Recorder::events`] returns all events.
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

    /// Feeds tensors, runs the nodes that the fetches need, and returns the fetched tensors in the
    /// order of `fetches`.
    ///
    /// Tensors are named `node` (its output 0) or `node:slot`. Any tensor may be fed; its producer
    /// then runs only if another fetch needs it. One tensor may be fetched twice.
    ///
    /// # Errors
    /// [`Error::UnknownNode`] or [`Error::NoSuchOutput`] for a name; [`Error::Partition`] for a
    /// placeholder that is needed and not fed; [`Error::Execute`] for a feed of the wrong type
    /// or shape, a node that cannot be executed on its device, or a kernel that fails. The session
    /// can still be used.
    pub fn run(&self, feeds: &[(&str, Tensor)], fetches: &[&str]) -> Result<Vec<Tensor>, Error> {
        self.run_with(feeds, fetches, &[], &RunOptions::default())
    }

    /// Like [`Self::run`], with options; also runs the nodes `targets`.
    ///
    /// # Errors
    /// As [`Self::run`], and if the run is cancelled or exceeds its time limit.
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

    /// Returns the plan of a run with these feeds, fetches and targets. Executes nothing, and
    /// creates no kernels.
    ///
    /// # Errors
    /// As [`Self::run`], as far as names and placeholders are concerned.
    pub fn plan(&self, feeds: &[&str], fetches: &[&str], targets: &[&str]) -> Result<Plan, Error> {
        let request = self.request(feeds, fetches, targets)?;
        Ok(self.placement.partition(&request)?)
    }

    /// Returns the memory plan of runs with these feeds, fetches and targets, for feeds of the
    /// shapes in the graph. Creates their kernels and constants.
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

    fn stage(&self, started: Instant, name: &'static str) {
        let kind = EventKind::Stage { name: name.into() };
        self.recorder.record_since(started, kind);
    }
}
