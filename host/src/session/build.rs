//! Builds a session, stage by stage.

use std::sync::Arc;
use std::time::Instant;

use tracing::Span;
use tracing::debug_span;
use tracing::field;
use tracing::info;
use tracing::info_span;
use tracing::warn;

use super::Session;
use super::builder::Assignment;
use super::builder::GraphSource;
use super::builder::SessionBuilder;
use super::group::Member;
use super::group::SessionGroup;
use super::lifecycle;
use super::one_of::OneOf;
use super::pins;
use super::placed::Parts;
use super::placed::Placed;
use super::placement_log;
use super::report::PlacedBy;
use super::report::SessionReport;
use super::report::StageClock;
use super::report::record_policy;
use crate::backend;
use crate::candidates;
use crate::candidates::Candidates;
use crate::candidates::PlacementOptions;
use crate::device::CancelToken;
use crate::device::DeviceManager;
use crate::device::DeviceOptions;
use crate::device::DeviceSet;
use crate::device::FactoryRegistry;
use crate::device::KernelRegistry;
use crate::device::discover_devices;
use crate::error::Error;
use crate::execute::Executor;
use crate::execute::ExecutorOptions;
use crate::functions;
use crate::graph::Graph;
#[cfg(feature = "graphdef")]
use crate::import;
use crate::ops::OpRegistry;
use crate::placement;
use crate::placement::Placement;
use crate::placement::Replacement;
use crate::policy;
use crate::policy::PolicyEngine;
use crate::policy::PolicyLimits;
use crate::policy::PolicyRequest;
use crate::policy::ShippedPolicy;
use crate::trace::describe_metrics;
use crate::trace::targets;

/// The policy that is asked if the user names none: TensorFlow's placer.
const DEFAULT_POLICY: &str = "priority";

/// The prefix of the device names of a local session.
const LOCAL_PREFIX: &str = "/job:localhost/replica:0/task:0";

/// The inputs of placement.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) graph: Arc<Graph>,
    pub(super) devices: Arc<DeviceSet>,
    pub(super) kernels: Arc<KernelRegistry>,
    pub(super) ops: Arc<OpRegistry>,
    pub(super) options: PlacementOptions,
}

impl SessionBuilder {
    /// Runs all stages up to the check of the placement. Kernels and constants are made by the
    /// first run that needs them, so a graph may be placed on devices that cannot execute it.
    ///
    /// # Errors
    /// The error of the stage that failed.
    pub fn build(self) -> Result<Session, Error> {
        self.build_placed().map(Session::new)
    }

    /// Runs the same stages. A session that exists takes the result as its new state.
    pub(super) fn build_placed(self) -> Result<Placed, Error> {
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

    fn assemble(mut self, span: &Span) -> Result<Placed, Error> {
        let previous = self.previous.take();
        // Earlier stages belong to the same session.
        let earlier = previous.as_ref().map(|previous| &previous.report.stages);
        let mut clock = StageClock {
            recorder: self.executor_options.recorder.clone(),
            stages: earlier.cloned().unwrap_or_default(),
        };
        self.check_calls()?;
        let ops = self.open_registry();
        #[cfg(feature = "graphdef")]
        let graph = self.open_graph(&ops, &mut clock)?;
        #[cfg(not(feature = "graphdef"))]
        let graph = self.open_graph()?;
        let graph = self.lower(graph, &ops, &mut clock)?;
        self.attach_pins(&graph);
        span.record("graph", graph.name());
        span.record("nodes", graph.n_nodes());
        let (devices, kernels) = clock.time(
            "discover",
            &debug_span!(target: targets::SESSION, "discover"),
            || self.open_devices(),
        )?;
        span.record("devices", devices.len());
        if previous.is_none() {
            // Builders are cloned; each of their sessions is closed separately.
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
                    let options =
                        self.take_placement_options(&graph, &devices, Arc::clone(&ops))?;
                    pins::check_scope(&options, &devices)?;
                    let found = candidates::enumerate(&graph, &devices, &kernels, &options);
                    Ok::<_, Error>(found?)
                },
            )?,
        };
        let candidates = candidates.with_kernels(Arc::clone(&kernels));
        let (placement, placed_by, replacement) = self.place(&candidates, &mut clock)?;
        let placement = Arc::new(placement);
        if self.log_device_placement {
            for line in placement_log::lines(Arc::clone(&placement)) {
                info!(target: targets::SESSION, "{line}");
            }
        }
        let previous = previous.as_deref();
        let is_renumbered =
            previous.is_some_and(|previous| previous.is_renumbered(&graph, &devices));
        let recorder = match previous {
            // The two stop together, if a later state is renumbered.
            Some(previous) if !is_renumbered => previous.recorder.clone(),
            _ => self.executor_options.recorder.stoppable(),
        };
        let executor_options = ExecutorOptions {
            recorder: recorder.clone(),
            ..self.executor_options
        };
        let executor =
            Executor::new(graph, Arc::clone(&devices), kernels, &executor_options)?.with_ops(ops);
        let member = match previous {
            Some(previous) => Arc::clone(&previous.member),
            None => {
                let member = Arc::new(Member::new(devices, executor_options.closed));
                if let Some(group) = &self.group {
                    group.add(&member);
                }
                member
            }
        };
        let recipe = recipe.of_session(executor.session_handle());
        let report = SessionReport {
            stages: clock.stages,
            placed_by,
            replacement,
            calibration_problems,
        };
        Ok(Placed::new(Parts {
            placement,
            executor,
            report,
            recorder,
            is_renumbered,
            recipe,
            member,
        }))
    }

    /// Returns a builder that builds the session again, with another graph on the same devices.
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
            // If the session's state is isolated, the app's manager has other devices.
            manager_of_devices: self
                .device_manager
                .clone()
                .filter(|_| !self.isolate_session_state)
                .or_else(|| self.manager_of_devices.clone()),
            // The devices that these made are in the set above.
            device_manager: None,
            workers: None,
            isolate_session_state: false,
            kept: Vec::new(),
            before: None,
            previous: None,
            ..self.clone()
        }
    }

    fn of_session(mut self, handle: &Arc<str>) -> Self {
        self.executor_options.session_handle = Some(Arc::clone(handle));
        self
    }

    /// Returns why the session that this has built cannot be built again with another graph, if
    /// it cannot.
    pub(super) fn is_bound_to_graph(&self) -> Option<&'static str> {
        match self.assignment.get() {
            Some(Assignment::Saved(_)) => {
                Some("a saved placement places it; build another session with a policy")
            }
            Some(Assignment::Proposal(_)) => {
                Some("the app has placed it; build another session with the larger graph")
            }
            None if self.candidates.is_some() => {
                Some("the app has made its candidates; build another session")
            }
            None => None,
        }
    }

    pub(super) fn has_own_candidates(&self) -> bool {
        self.candidates.is_some()
    }

    /// Returns a graph as a session of this builder would place it.
    pub(super) fn lowered(&self, graph: Arc<Graph>) -> Result<Arc<Graph>, Error> {
        match &self.ops {
            Some(ops) if functions::is_lowered_by(&graph) => {
                Ok(Arc::new(functions::lower(&graph, ops)?))
            }
            _ => Ok(graph),
        }
    }

    /// Asks a policy, even if a saved placement or the app placed the graph before.
    pub(super) fn use_policy(&mut self) {
        self.assignment = OneOf::default();
    }

    /// Leaves out what was decided about the nodes of another graph.
    pub(super) fn forget_decisions(&mut self) {
        self.use_policy();
        self.pins.clear();
        self.kept.clear();
        self.moved_pins = None;
        self.moved_assigned_devices.clear();
        if let Some(options) = self.placement_options_mut() {
            options.pins.clear();
            options.assigned_devices.clear();
        }
    }

    /// Copies the GraphDef that the graph came from, of a builder for the same graph.
    pub(super) fn copy_graph_def(&mut self, other: &Self) {
        #[cfg(feature = "graphdef")]
        {
            self.graph_def.clone_from(&other.graph_def);
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

    /// Checks that no two methods set the same thing, before anything is opened.
    fn check_calls(&self) -> Result<(), Error> {
        self.graph.check("the graph")?;
        self.assignment.check("the placement")?;
        if self.devices.is_some() && self.device_manager.is_some() {
            return Err(Error::ConflictingCalls {
                what: "the devices",
                calls: vec!["with_device_manager", "with_devices"],
            });
        }
        Ok(())
    }

    /// Checks that nothing is set that candidates of the app contain: enumerating anew would drop
    /// their pins and costs.
    fn check_beside(
        &self,
        made: &Candidates,
        graph: &Arc<Graph>,
        devices: &Arc<DeviceSet>,
    ) -> Result<(), Error> {
        let (part, call) = if !Arc::ptr_eq(made.graph(), graph) {
            ("graph", "with_graph")
        } else if !Arc::ptr_eq(made.device_set(), devices) {
            ("devices", "with_devices")
        } else if self.placement_options.is_some() {
            ("placement options", "with_placement_options")
        } else if self.allow_soft_placement.is_some() {
            ("placement options", "with_soft_placement")
        } else if !self.pins.is_empty() {
            ("placement options", "with_pin")
        } else {
            return Ok(());
        };
        Err(Error::BesideCandidates { part, call })
    }

    fn take_graph_source(&mut self) -> Option<GraphSource> {
        let of_candidates = || {
            let candidates = self.candidates.as_ref()?;
            Some(GraphSource::Graph(Arc::clone(candidates.graph())))
        };
        self.graph.take().or_else(of_candidates)
    }

    /// Takes the registry apart; returns the ops.
    fn open_registry(&mut self) -> Arc<OpRegistry> {
        if let Some(registry) = self.registry.take() {
            let (ops, factories, mut kernels) = registry.into_parts();
            self.ops.get_or_insert(ops);
            self.factories.get_or_insert(factories);
            kernels.append(&mut self.more_kernels);
            self.more_kernels = kernels;
        }
        let ops = self.ops.take();
        ops.unwrap_or_else(|| Arc::new(OpRegistry::default()))
    }

    #[cfg(feature = "graphdef")]
    fn open_graph(
        &mut self,
        ops: &OpRegistry,
        clock: &mut StageClock,
    ) -> Result<Arc<Graph>, Error> {
        let source = self.take_graph_source();
        let options = &self.import_options;
        match source {
            None => Err(Error::NoGraph),
            Some(GraphSource::Graph(graph)) => {
                // An earlier GraphDef does not have all nodes of this graph.
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
        match self.take_graph_source() {
            None => Err(Error::NoGraph),
            Some(GraphSource::Graph(graph)) => Ok(graph),
        }
    }

    /// Replaces calls, branches and loops by nodes that policies place one by one. An app that has
    /// made candidates has decided which graph they are for.
    fn lower(
        &mut self,
        graph: Arc<Graph>,
        ops: &OpRegistry,
        clock: &mut StageClock,
    ) -> Result<Arc<Graph>, Error> {
        if self.candidates.is_some() || !functions::is_lowered_by(&graph) {
            return Ok(graph);
        }
        let lowered: Arc<Graph> = clock.time(
            "lower",
            &debug_span!(target: targets::SESSION, "lower"),
            || Ok::<_, Error>(Arc::new(functions::lower(&graph, ops)?)),
        )?;
        if let Some(options) = self.placement_options_mut() {
            // The app's node ids are those of its graph.
            lifecycle::renumber_pins(options, &graph, &lowered);
        }
        Ok(lowered)
    }

    fn open_devices(&mut self) -> Result<(Arc<DeviceSet>, Arc<KernelRegistry>), Error> {
        let factories = self
            .factories
            .take()
            .unwrap_or_else(|| backend::default_factories().with_enabled_types_from_env());
        let of_candidates = self.candidates.as_ref().map(Candidates::device_set);
        let devices = self.devices.take().or_else(|| of_candidates.cloned());
        let mut devices = match (devices, &self.device_manager) {
            // Only one of the two is set, so the devices are those of candidates.
            (Some(_), Some(_)) => {
                return Err(Error::BesideCandidates {
                    part: "devices",
                    call: "with_device_manager",
                });
            }
            (Some(devices), None) => devices,
            (None, Some(manager)) => Arc::new(factories.device_set(manager.devices())),
            (None, None) => {
                self.check_device_types(&factories)?;
                let options = self.take_device_options().completed_from_env()?;
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

    /// Checks that the types of `with_device_count` exist. (`DeviceOptions::device_count` ignores
    /// other types, as TensorFlow does.)
    fn check_device_types(&self, factories: &FactoryRegistry) -> Result<(), Error> {
        let mut counted = self.device_count.keys();
        let Some(unknown) = counted.find(|name| factories.factory(name).is_none()) else {
            return Ok(());
        };
        Err(Error::UnknownDeviceType {
            device_type: unknown.clone(),
            remedy: factories.suggest_type(unknown),
        })
    }

    fn take_device_options(&mut self) -> DeviceOptions {
        let mut options = std::mem::take(&mut self.device_options);
        options
            .device_count
            .extend(std::mem::take(&mut self.device_count));
        if let Some(filters) = self.device_filters.take() {
            options.device_filters = filters;
        }
        if let Some(n_threads) = self.intra_op_parallelism_threads {
            options.intra_op_parallelism_threads = n_threads;
        }
        options
    }

    /// Makes the first device the client device, as TensorFlow's local sessions do, unless the
    /// devices or the options name another one.
    fn with_client(&self, devices: Arc<DeviceSet>) -> Arc<DeviceSet> {
        let options = self.placement_options.as_ref();
        let is_set = options.is_some_and(|options| options.default_local_device.is_some());
        if is_set || devices.client_device().is_some() {
            return devices;
        }
        let first = devices.iter().next();
        match first.filter(|(_, device)| device.is_local()) {
            Some((id, _)) => Arc::new(DeviceSet::clone(&devices).with_client_device(id)),
            None => devices,
        }
    }

    fn take_placement_options(
        &mut self,
        graph: &Graph,
        devices: &DeviceSet,
        ops: Arc<OpRegistry>,
    ) -> Result<PlacementOptions, Error> {
        let mut options = self.placement_options.take().unwrap_or_default();
        if let Some(allow) = self.allow_soft_placement {
            options.allow_soft_placement = allow;
        }
        pins::resolve(&self.pins, graph, devices, &mut options)?;
        lifecycle::pin_kept(&mut options, graph, &self.kept);
        options.op_arguments.get_or_insert(ops);
        options.n_concurrent_runs = self
            .executor_options
            .agree_on_runs(options.n_concurrent_runs);
        Ok(options)
    }

    /// Opens the inputs of placement, and places nothing.
    pub(super) fn open(mut self) -> Result<Opened, Error> {
        self.check_calls()?;
        let ops = self.open_registry();
        #[cfg(feature = "graphdef")]
        let graph = self.open_graph(&ops, &mut StageClock::default())?;
        #[cfg(not(feature = "graphdef"))]
        let graph = self.open_graph()?;
        let graph = self.lower(graph, &ops, &mut StageClock::default())?;
        self.attach_pins(&graph);
        let (devices, kernels) = self.open_devices()?;
        let (devices, _) = self.calibrated(devices);
        let options = self.take_placement_options(&graph, &devices, Arc::clone(&ops))?;
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
        match self.assignment.take() {
            Some(Assignment::Saved(reused)) => {
                let placement = clock.time("place", &span, || reused.resolve(candidates))?;
                return Ok((placement, PlacedBy::Saved, None));
            }
            Some(Assignment::Proposal(proposal)) => {
                let check = || placement::check(candidates, proposal);
                let placement = clock.time("place", &span, check)?;
                return Ok((placement, PlacedBy::App, None));
            }
            None => {}
        }
        let request = match self.policy.take() {
            Some(request) => request,
            None => PolicyRequest::new(ShippedPolicy::find(DEFAULT_POLICY)?),
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
            // The policy has not placed the whole graph.
            report.identity = None;
            let (placement, replacement) = kept.settle(placement)?;
            Ok((placement, report, Some(replacement)))
        };
        let (placement, report, replacement) = clock.time("place", &span, ask)?;
        record_policy(&clock.recorder, Instant::now(), &report);
        Ok((placement, PlacedBy::Policy(Box::new(report)), replacement))
    }
}
