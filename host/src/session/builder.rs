//! Assembles a session, stage by stage.

use std::sync::Arc;
use std::time::Instant;

use tracing::Span;
use tracing::debug_span;
use tracing::field;
use tracing::info;
use tracing::info_span;
use tracing::warn;

use super::Session;
use super::group::Member;
use super::group::SessionGroup;
use super::lifecycle;
use super::placement_log;
use super::report::PlacedBy;
use super::report::SessionReport;
use super::report::StageClock;
use super::report::record_policy;
use super::reuse::Before;
use super::reuse::Reused;
use crate::backend;
use crate::candidates;
use crate::candidates::Candidates;
use crate::candidates::PlacementOptions;
use crate::candidates::Proposal;
use crate::cost::Calibrations;
use crate::device::CancelToken;
use crate::device::DeviceManager;
use crate::device::DeviceOptions;
use crate::device::DeviceSet;
use crate::device::DiscoveryOptions;
use crate::device::FactoryRegistry;
use crate::device::KernelDef;
use crate::device::KernelRegistry;
use crate::device::WorkerCache;
use crate::device::discover_devices;
use crate::error::Error;
use crate::execute::Executor;
use crate::execute::ExecutorOptions;
use crate::execute::InterOpPool;
use crate::graph::Graph;
#[cfg(feature = "graphdef")]
use crate::import;
#[cfg(feature = "graphdef")]
use crate::import::ImportOptions;
use crate::names::DeviceId;
use crate::ops::OpRegistry;
use crate::placement;
use crate::placement::Placement;
use crate::placement::Replacement;
use crate::policy;
use crate::policy::PlacementCache;
use crate::policy::PolicyEngine;
use crate::policy::PolicyLimits;
use crate::policy::PolicyRequest;
use crate::policy::ShippedPolicy;
use crate::registry::Registry;
use crate::trace::Recorder;
use crate::trace::describe_metrics;
use crate::trace::targets;

/// The policy that is asked when the user names none: TensorFlow's placer.
const DEFAULT_POLICY: &str = "priority";

/// Names of a local session's devices start so.
const LOCAL_PREFIX: &str = "/job:localhost/replica:0/task:0";

/// Assembles a [`Session`]. A graph is needed; everything else has a default.
#[derive(Debug, Clone, Default)]
pub struct SessionBuilder {
    graph: Option<GraphSource>,
    ops: Option<Arc<OpRegistry>>,
    #[cfg(feature = "graphdef")]
    import_options: ImportOptions,
    factories: Option<FactoryRegistry>,
    devices: Option<Arc<DeviceSet>>,
    device_options: DeviceOptions,
    device_manager: Option<Arc<DeviceManager>>,
    /// The manager that a session to be built again has its devices from.
    manager_of_devices: Option<Arc<DeviceManager>>,
    workers: Option<(Arc<dyn WorkerCache>, DiscoveryOptions)>,
    pub(super) calibrations: Option<Calibrations>,
    isolate_session_state: bool,
    group: Option<SessionGroup>,
    kernels: Option<Arc<KernelRegistry>>,
    more_kernels: Vec<KernelDef>,
    placement_options: Option<PlacementOptions>,
    allow_soft_placement: Option<bool>,
    log_device_placement: bool,
    candidates: Option<Candidates>,
    assignment: Assignment,
    policy_engine: Option<PolicyEngine>,
    pub(super) placement_cache: Option<PlacementCache>,
    /// A placement of which the new one keeps what it can.
    pub(super) before: Option<Before>,
    executor_options: ExecutorOptions,
    /// Whether it builds a session again that is there already, with its handle and its end,
    /// rather than a new one.
    is_rebuild: bool,
    /// Nodes that keep the devices that they had before the graph grew, by name.
    pub(super) kept: Vec<(String, DeviceId)>,
    /// Pins of the placement options, by name, while the graph is another one than theirs.
    pub(super) moved_pins: Option<Vec<(String, DeviceId)>>,
    /// Assigned devices of the placement options, likewise.
    pub(super) moved_assigned_devices: Vec<(String, String)>,
    /// The GraphDef that the graph of the session came from.
    #[cfg(feature = "graphdef")]
    graph_def: Option<bytes::Bytes>,
}

#[derive(Debug, Clone)]
enum GraphSource {
    Graph(Arc<Graph>),
    #[cfg(feature = "graphdef")]
    Bytes(bytes::Bytes),
    #[cfg(feature = "graphdef")]
    File(std::path::PathBuf),
}

/// Who says where nodes go.
#[derive(Debug, Clone, Default)]
enum Assignment {
    #[default]
    DefaultPolicy,
    Policy(PolicyRequest),
    Saved(Reused),
    Proposal(Proposal),
}

/// What placing starts from.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) graph: Arc<Graph>,
    pub(super) devices: Arc<DeviceSet>,
    pub(super) kernels: Arc<KernelRegistry>,
    pub(super) ops: Arc<OpRegistry>,
    pub(super) options: PlacementOptions,
}

impl SessionBuilder {
    /// The graph, built with [`crate::builder::GraphBuilder`], put together with
    /// [`crate::graph::GraphAssembler`], or imported before.
    #[must_use]
    pub fn with_graph(mut self, graph: impl Into<Arc<Graph>>) -> Self {
        self.graph = Some(GraphSource::Graph(graph.into()));
        #[cfg(feature = "graphdef")]
        {
            self.graph_def = None;
        }
        self
    }

    /// The graph, as the bytes of a GraphDef.
    #[cfg(feature = "graphdef")]
    #[must_use]
    pub fn with_graph_def(mut self, bytes: impl Into<bytes::Bytes>) -> Self {
        self.graph = Some(GraphSource::Bytes(bytes.into()));
        self
    }

    /// The graph, as a file that holds a GraphDef.
    #[cfg(feature = "graphdef")]
    #[must_use]
    pub fn with_graph_def_file(mut self, path: impl Into<std::path::PathBuf>) -> Self {
        self.graph = Some(GraphSource::File(path.into()));
        self
    }

    /// How a GraphDef is read.
    #[cfg(feature = "graphdef")]
    #[must_use]
    pub fn with_import_options(mut self, options: ImportOptions) -> Self {
        self.import_options = options;
        self
    }

    /// The ops that are known, where they are others than [`OpRegistry::default`].
    #[must_use]
    pub fn with_ops(mut self, ops: impl Into<Arc<OpRegistry>>) -> Self {
        self.ops = Some(ops.into());
        self
    }

    /// The ops that are known, where devices come from, and all kernels: what the app made of
    /// [`Registry::default`]. As it is: which types the environment enables is for
    /// [`Registry::with_enabled_types_from_env`] to say. Of this, [`Self::with_ops`] and
    /// [`Self::with_factories`] the last counts.
    #[must_use]
    pub fn with_registry(mut self, registry: Registry) -> Self {
        let (ops, factories, kernels) = registry.into_parts();
        self.ops = Some(ops);
        self.factories = Some(factories);
        self.more_kernels.extend(kernels);
        self
    }

    /// Where devices and their kernels come from, instead of [`backend::default_factories`], less
    /// the types that the environment switches off
    /// ([`FactoryRegistry::with_enabled_types_from_env`]).
    #[must_use]
    pub fn with_factories(mut self, factories: FactoryRegistry) -> Self {
        self.factories = Some(factories);
        self
    }

    /// How many devices of which type, with how much memory. What they leave open, the environment
    /// may say ([`DeviceOptions::completed_from_env`]).
    #[must_use]
    pub fn with_device_options(mut self, options: DeviceOptions) -> Self {
        self.device_options = options;
        self
    }

    /// How many devices of a type ([`DeviceOptions::device_count`]), on top of
    /// [`Self::with_device_options`] before.
    #[must_use]
    pub fn with_device_count(mut self, device_type: impl Into<String>, count: u32) -> Self {
        self.device_options
            .device_count
            .insert(device_type.into(), count);
        self
    }

    /// Which devices there may be ([`DeviceOptions::device_filters`]), on top of
    /// [`Self::with_device_options`] before.
    #[must_use]
    pub fn with_device_filters<S: Into<String>>(
        mut self,
        filters: impl IntoIterator<Item = S>,
    ) -> Self {
        self.device_options.device_filters = filters.into_iter().map(Into::into).collect();
        self
    }

    /// Threads for loops inside one kernel, per pool of the devices; 0 = one per core
    /// ([`DeviceOptions::intra_op_parallelism_threads`]), on top of [`Self::with_device_options`]
    /// before.
    #[must_use]
    pub fn with_intra_op_parallelism_threads(mut self, n_threads: usize) -> Self {
        self.device_options.intra_op_parallelism_threads = n_threads;
        self
    }

    /// These devices, instead of those that factories make; other sessions may share them.
    /// [`Self::with_device_manager`] beside them is an error of [`Self::build`].
    #[must_use]
    pub fn with_devices(mut self, devices: impl Into<Arc<DeviceSet>>) -> Self {
        self.devices = Some(devices.into());
        self
    }

    /// The devices that this manager has now, in place of what factories make. When it loses one,
    /// the next run that uses it is
    /// told ([`ExecuteError::DeviceRemoved`](crate::execute::ExecuteError::DeviceRemoved)).
    #[must_use]
    pub fn with_device_manager(mut self, manager: impl Into<Arc<DeviceManager>>) -> Self {
        self.device_manager = Some(manager.into());
        self
    }

    /// The devices of other processes, too: they come before those of this one, and graphs may be
    /// placed on them. Runs are refused as long as the executor cannot send there. What is open
    /// is as the environment says ([`DiscoveryOptions::completed_from_env`]).
    #[must_use]
    pub fn with_workers(mut self, cache: Arc<dyn WorkerCache>, options: DiscoveryOptions) -> Self {
        self.workers = Some((cache, options));
        self
    }

    /// Whether the session has variables, tables and stateful kernels of its own on devices that
    /// other sessions use, too (TensorFlow `isolate_session_state`); false by default.
    #[must_use]
    pub fn with_isolated_session_state(mut self, is_isolated: bool) -> Self {
        self.isolate_session_state = is_isolated;
        self
    }

    /// The sessions with which it is reset.
    #[must_use]
    pub fn with_group(mut self, group: &SessionGroup) -> Self {
        self.group = Some(group.clone());
        self
    }

    /// These kernels, instead of those that come with the factories.
    #[must_use]
    pub fn with_kernel_registry(mut self, kernels: KernelRegistry) -> Self {
        self.kernels = Some(Arc::new(kernels));
        self
    }

    /// The app's own kernels, beside the others.
    #[must_use]
    pub fn with_kernels(mut self, kernels: impl IntoIterator<Item = KernelDef>) -> Self {
        self.more_kernels.extend(kernels);
        self
    }

    /// Device scope, soft placement, pins, cost model.
    #[must_use]
    pub fn with_placement_options(mut self, options: PlacementOptions) -> Self {
        self.placement_options = Some(options);
        self
    }

    /// Whether nodes go elsewhere when the device that they ask for cannot run them
    /// ([`PlacementOptions::allow_soft_placement`], over which this prevails); false by default.
    #[must_use]
    pub fn with_soft_placement(mut self, allow: bool) -> Self {
        self.allow_soft_placement = Some(allow);
        self
    }

    /// Whether [`Self::build`] tells the log of the devices and of the device of every node, as
    /// `tracing` events of level INFO and target `placewright::session`; false by default.
    /// [`Session::device_mapping`] and [`Session::placement_lines`] give the same lines.
    #[must_use]
    pub fn with_log_device_placement(mut self, is_wanted: bool) -> Self {
        self.log_device_placement = is_wanted;
        self
    }

    /// Candidates that the app made itself, with [`crate::candidates::CandidatesBuilder`]: they
    /// bring graph and devices, and no kernel is asked who may run what. Another graph, other
    /// devices or placement options beside them are an error of [`Self::build`].
    #[must_use]
    pub fn with_candidates(mut self, candidates: Candidates) -> Self {
        self.graph = Some(GraphSource::Graph(Arc::clone(candidates.graph())));
        self.devices = Some(Arc::clone(candidates.device_set()));
        self.candidates = Some(candidates);
        self
    }

    /// The policy to ask, instead of `priority`. The last of `with_policy`,
    /// [`Self::with_saved_placement`] and [`Self::with_proposal`] counts.
    #[must_use]
    pub fn with_policy(mut self, request: PolicyRequest) -> Self {
        self.assignment = Assignment::Policy(request);
        self
    }

    /// The sandbox to ask it in, with its limits and its cache; sessions may share one. Without,
    /// policies get [`PolicyLimits::default`] and are compiled anew for each session.
    #[must_use]
    pub fn with_policy_engine(mut self, engine: PolicyEngine) -> Self {
        self.policy_engine = Some(engine);
        self
    }

    /// The app's own assignment, instead of a policy's. It is checked as a policy's is.
    #[must_use]
    pub fn with_proposal(mut self, proposal: Proposal) -> Self {
        self.assignment = Assignment::Proposal(proposal);
        self
    }

    /// Steps of one run that may execute at one time; 0 = one per core
    /// ([`ExecutorOptions::inter_op_parallelism_threads`]).
    #[must_use]
    pub fn with_inter_op_parallelism_threads(mut self, n_threads: usize) -> Self {
        self.executor_options.inter_op_parallelism_threads = n_threads;
        self
    }

    /// Threads that help runs, shared with other sessions, instead of threads of its own
    /// ([`ExecutorOptions::inter_op_pool`]).
    #[must_use]
    pub fn with_inter_op_pool(mut self, pool: InterOpPool) -> Self {
        self.executor_options.inter_op_pool = Some(pool);
        self
    }

    /// Whether the session has threads of its own in spite of [`Self::with_inter_op_pool`]
    /// ([`ExecutorOptions::use_per_session_threads`]); false by default.
    #[must_use]
    pub fn with_per_session_threads(mut self, is_wanted: bool) -> Self {
        self.executor_options.use_per_session_threads = is_wanted;
        self
    }

    /// Pools that runs choose from, by [`crate::execute::RunOptions::inter_op_thread_pool`]
    /// ([`ExecutorOptions::session_inter_op_pools`]).
    #[must_use]
    pub fn with_session_inter_op_pools(
        mut self,
        pools: impl IntoIterator<Item = InterOpPool>,
    ) -> Self {
        self.executor_options.session_inter_op_pools = pools.into_iter().collect();
        self
    }

    /// Runs of the whole graph that placements must have memory for at one time; 1 by default.
    #[must_use]
    pub fn with_concurrent_runs(mut self, n_runs: usize) -> Self {
        self.executor_options.n_concurrent_runs = n_runs;
        self
    }

    /// Whether threads may look for work busily between the kernels of one run and the next
    /// ([`ExecutorOptions::allow_spinning`]); true by default.
    #[must_use]
    pub fn with_spinning(mut self, is_allowed: bool) -> Self {
        self.executor_options.allow_spinning = is_allowed;
        self
    }

    /// Hears of stages, policy calls, kernels and transfers.
    #[must_use]
    pub fn with_recorder(mut self, recorder: Recorder) -> Self {
        self.executor_options.recorder = recorder;
        self
    }

    /// Runs all stages up to the check of the placement. Kernels and constants are made by the
    /// first run that needs them, so a graph may be placed on devices that cannot execute it.
    ///
    /// # Errors
    /// The error of the stage that failed.
    pub fn build(self) -> Result<Session, Error> {
        let span = info_span!(
            target: targets::SESSION,
            "build",
            graph = field::Empty,
            nodes = field::Empty,
            devices = field::Empty,
        );
        let _entered = span.enter();
        describe_metrics();
        self.assemble(&span).inspect_err(|error| {
            warn!(target: targets::SESSION, error = %error, "the session was not built");
        })
    }

    fn assemble(mut self, span: &Span) -> Result<Session, Error> {
        let mut clock = StageClock {
            recorder: self.executor_options.recorder.clone(),
            ..StageClock::default()
        };
        let ops = self
            .ops
            .take()
            .unwrap_or_else(|| Arc::new(OpRegistry::default()));
        #[cfg(feature = "graphdef")]
        let graph = self.open_graph(&ops, &mut clock)?;
        #[cfg(not(feature = "graphdef"))]
        let graph = self.open_graph()?;
        self.attach_pins(&graph);
        span.record("graph", graph.name());
        span.record("nodes", graph.n_nodes());
        let (devices, kernels) = clock.time(
            "discover",
            &debug_span!(target: targets::SESSION, "discover"),
            || self.open_devices(),
        )?;
        span.record("devices", devices.len());
        if !self.is_rebuild {
            // Builders are cloned; each of their sessions ends for itself.
            self.executor_options.closed = CancelToken::default();
        }
        let (devices, calibration_problems) = self.calibrated(devices);
        let recipe = self.recipe(&ops, &devices, &kernels);
        if self.log_device_placement {
            info!(target: targets::SESSION, "{}", placement_log::device_mapping(&devices));
        }
        let candidates = match self.candidates.take() {
            Some(made) => {
                self.check_beside(&made, &graph, &devices)?;
                made
            }
            None => clock.time(
                "enumerate",
                &debug_span!(target: targets::SESSION, "enumerate"),
                || {
                    let options = self.take_placement_options(&graph, Arc::clone(&ops));
                    candidates::enumerate(&graph, &devices, &kernels, &options)
                },
            )?,
        };
        let candidates = candidates.with_kernels(Arc::clone(&kernels));
        let (placement, placed_by, replacement) = self.place(&candidates, &mut clock)?;
        if self.log_device_placement {
            for line in placement_log::lines(&placement) {
                info!(target: targets::SESSION, "{line}");
            }
        }
        let member = Arc::new(Member {
            devices: Arc::clone(&devices),
            closed: self.executor_options.closed.clone(),
        });
        if let Some(group) = &self.group {
            group.add(&member);
        }
        let executor =
            Executor::new(graph, devices, kernels, &self.executor_options)?.with_ops(ops);
        let recipe = recipe.of_session(executor.session_handle());
        let report = SessionReport {
            stages: clock.stages,
            placed_by,
            replacement,
            calibration_problems,
        };
        Ok(Session::assemble(
            placement,
            executor,
            report,
            self.executor_options.recorder,
            recipe,
            member,
        ))
    }

    /// How the session is built again, with another graph on the same devices.
    fn recipe(
        &self,
        ops: &Arc<OpRegistry>,
        devices: &Arc<DeviceSet>,
        kernels: &Arc<KernelRegistry>,
    ) -> Self {
        Self {
            ops: Some(Arc::clone(ops)),
            devices: Some(Arc::clone(devices)),
            kernels: Some(Arc::clone(kernels)),
            // Of a session whose state is isolated, the app's manager has other devices.
            manager_of_devices: self
                .device_manager
                .clone()
                .filter(|_| !self.isolate_session_state)
                .or_else(|| self.manager_of_devices.clone()),
            // They are in what was made with them.
            device_manager: None,
            workers: None,
            isolate_session_state: false,
            kept: Vec::new(),
            before: None,
            ..self.clone()
        }
    }

    fn of_session(mut self, handle: &Arc<str>) -> Self {
        self.executor_options.session_handle = Some(Arc::clone(handle));
        self.is_rebuild = true;
        self
    }

    /// Why the session that this has built cannot be built again with another graph, if so.
    pub(super) fn is_bound_to_graph(&self) -> Option<&'static str> {
        match self.assignment {
            Assignment::Saved(_) => {
                Some("a saved placement places it; build another session with a policy")
            }
            Assignment::Proposal(_) => {
                Some("the app has placed it; build another session with the larger graph")
            }
            _ if self.candidates.is_some() => {
                Some("the app has made its candidates; build another session")
            }
            _ => None,
        }
    }

    pub(super) fn has_own_candidates(&self) -> bool {
        self.candidates.is_some()
    }

    pub(super) fn with_reused(mut self, reused: Reused) -> Self {
        self.assignment = Assignment::Saved(reused);
        self
    }

    /// Asks a policy, whoever placed the graph before.
    pub(super) fn use_policy(&mut self) {
        if let Assignment::Saved(_) | Assignment::Proposal(_) = self.assignment {
            self.assignment = Assignment::DefaultPolicy;
        }
    }

    /// The GraphDef that the graph came from, of a builder for the same graph.
    pub(super) fn take_graph_def(&mut self, other: &mut Self) {
        #[cfg(feature = "graphdef")]
        {
            self.graph_def = other.graph_def.take();
        }
        #[cfg(not(feature = "graphdef"))]
        let _ = other;
    }

    pub(super) fn placement_options_mut(&mut self) -> Option<&mut PlacementOptions> {
        self.placement_options.as_mut()
    }

    pub(super) fn group(&self) -> Option<&SessionGroup> {
        self.group.as_ref()
    }

    pub(super) fn device_manager(&self) -> Option<Arc<DeviceManager>> {
        self.manager_of_devices.clone()
    }

    #[cfg(feature = "graphdef")]
    pub(super) fn graph_def_bytes(&self) -> Option<&bytes::Bytes> {
        self.graph_def.as_ref()
    }

    /// Enumerating anew would drop the pins and costs of candidates that the app made.
    fn check_beside(
        &self,
        made: &Candidates,
        graph: &Arc<Graph>,
        devices: &Arc<DeviceSet>,
    ) -> Result<(), Error> {
        let (part, call) = if !Arc::ptr_eq(made.graph(), graph) {
            ("a graph", "with_graph")
        } else if !Arc::ptr_eq(made.device_set(), devices) {
            ("devices", "with_devices")
        } else if self.placement_options.is_some() {
            ("placement options", "with_placement_options")
        } else if self.allow_soft_placement.is_some() {
            ("placement options", "with_soft_placement")
        } else {
            return Ok(());
        };
        Err(Error::BesideCandidates { part, call })
    }

    #[cfg(feature = "graphdef")]
    fn open_graph(
        &mut self,
        ops: &OpRegistry,
        clock: &mut StageClock,
    ) -> Result<Arc<Graph>, Error> {
        let options = &self.import_options;
        match self.graph.take() {
            None => Err(Error::NoGraph),
            Some(GraphSource::Graph(graph)) => {
                // An earlier one has not all of its nodes.
                self.graph_def = None;
                Ok(graph)
            }
            Some(GraphSource::Bytes(bytes)) => {
                self.graph_def = Some(bytes.clone());
                clock.time(
                    "import",
                    &debug_span!(target: targets::SESSION, "import"),
                    || Ok(Arc::new(import::import_graph(bytes, ops, options)?)),
                )
            }
            Some(GraphSource::File(path)) => clock.time(
                "import",
                &debug_span!(target: targets::SESSION, "import"),
                || {
                    let bytes = super::graph_file::read(path, options.size_bytes_max)?;
                    let bytes = bytes::Bytes::from(bytes);
                    self.graph_def = Some(bytes.clone());
                    Ok(Arc::new(import::import_graph(bytes, ops, options)?))
                },
            ),
        }
    }

    #[cfg(not(feature = "graphdef"))]
    fn open_graph(&mut self) -> Result<Arc<Graph>, Error> {
        match self.graph.take() {
            None => Err(Error::NoGraph),
            Some(GraphSource::Graph(graph)) => Ok(graph),
        }
    }

    fn open_devices(&mut self) -> Result<(Arc<DeviceSet>, Arc<KernelRegistry>), Error> {
        let factories = self
            .factories
            .take()
            .unwrap_or_else(|| backend::default_factories().with_enabled_types_from_env());
        let mut devices = match (self.devices.take(), &self.device_manager) {
            (Some(_), Some(_)) if self.candidates.is_some() => {
                return Err(Error::BesideCandidates {
                    part: "devices",
                    call: "with_device_manager",
                });
            }
            (Some(_), Some(_)) => return Err(Error::DevicesTwice),
            (Some(devices), None) => devices,
            (None, Some(manager)) => Arc::new(factories.device_set(manager.devices())),
            (None, None) => {
                let options = std::mem::take(&mut self.device_options).completed_from_env()?;
                Arc::new(factories.create_devices(&options, LOCAL_PREFIX)?)
            }
        };
        if self.candidates.is_none() {
            devices = self.with_client(devices);
        }
        if self.isolate_session_state {
            devices = Arc::new(devices.isolated()?);
        }
        if let Some((cache, options)) = self.workers.take() {
            let options = options.completed_from_env();
            devices = Arc::new(discover_devices(&*cache, &devices, &options)?);
        }
        let mut kernels = match self.kernels.take() {
            Some(kernels) => kernels,
            None => Arc::new(factories.kernels()),
        };
        for kernel in self.more_kernels.drain(..) {
            Arc::make_mut(&mut kernels).register(kernel);
        }
        Ok((devices, kernels))
    }

    /// The client's values are on the first device, as in TensorFlow's local sessions, unless
    /// something else is said.
    fn with_client(&self, devices: Arc<DeviceSet>) -> Arc<DeviceSet> {
        let options = self.placement_options.as_ref();
        let is_told = options.is_some_and(|options| options.default_local_device.is_some());
        if is_told || devices.client_device().is_some() {
            return devices;
        }
        let first = devices.iter().next();
        match first.filter(|(_, device)| device.is_local()) {
            Some((id, _)) => Arc::new(DeviceSet::clone(&devices).with_client_device(id)),
            None => devices,
        }
    }

    fn take_placement_options(&mut self, graph: &Graph, ops: Arc<OpRegistry>) -> PlacementOptions {
        let mut options = self.placement_options.take().unwrap_or_default();
        if let Some(allow) = self.allow_soft_placement {
            options.allow_soft_placement = allow;
        }
        lifecycle::pin_kept(&mut options, graph, &self.kept);
        options.op_arguments.get_or_insert(ops);
        options.n_concurrent_runs = self
            .executor_options
            .agree_on_runs(options.n_concurrent_runs);
        options
    }

    /// What the graph is placed from; nothing is placed.
    pub(super) fn open(mut self) -> Result<Opened, Error> {
        let ops = self.ops.take();
        let ops = ops.unwrap_or_else(|| Arc::new(OpRegistry::default()));
        #[cfg(feature = "graphdef")]
        let graph = self.open_graph(&ops, &mut StageClock::default())?;
        #[cfg(not(feature = "graphdef"))]
        let graph = self.open_graph()?;
        self.attach_pins(&graph);
        let (devices, kernels) = self.open_devices()?;
        let (devices, _) = self.calibrated(devices);
        let options = self.take_placement_options(&graph, Arc::clone(&ops));
        Ok(Opened {
            graph,
            devices,
            kernels,
            ops,
            options,
        })
    }

    fn place(
        &mut self,
        candidates: &Candidates,
        clock: &mut StageClock,
    ) -> Result<(Placement, PlacedBy, Option<Replacement>), Error> {
        let span = debug_span!(target: targets::SESSION, "place");
        let request = match std::mem::take(&mut self.assignment) {
            Assignment::Saved(reused) => {
                let placement = clock.time("place", &span, || reused.resolve(candidates))?;
                return Ok((placement, PlacedBy::Saved, None));
            }
            Assignment::Proposal(proposal) => {
                let check = || placement::check(candidates, proposal);
                let placement = clock.time("place", &span, check)?;
                return Ok((placement, PlacedBy::App, None));
            }
            Assignment::Policy(request) => request,
            Assignment::DefaultPolicy => PolicyRequest::new(ShippedPolicy::find(DEFAULT_POLICY)?),
        };
        let engine = self.policy_engine.take();
        let (before, cache) = (self.before.take(), self.placement_cache.take());
        let ask = || -> Result<_, Error> {
            let engine = match engine {
                Some(engine) => engine,
                None => PolicyEngine::new(PolicyLimits::default())?,
            };
            let Some(before) = before else {
                let (placement, report) = match cache {
                    Some(cache) => cache.place(&engine, candidates, &request)?,
                    None => policy::place_with_ladder(&engine, candidates, &request)?,
                };
                return Ok((placement, report, None));
            };
            let kept = before.keep(candidates)?;
            let (placement, mut report) =
                policy::place_with_ladder(&engine, kept.candidates(), &request)?;
            // It is not the policy's answer for all of the graph.
            report.identity = None;
            let (placement, replacement) = kept.settle(placement)?;
            Ok((placement, report, Some(replacement)))
        };
        let (placement, report, replacement) = clock.time("place", &span, ask)?;
        record_policy(&clock.recorder, Instant::now(), &report);
        Ok((placement, PlacedBy::Policy(Box::new(report)), replacement))
    }
}
