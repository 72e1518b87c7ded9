//! Builds a session, stage by stage.

use std::sync::Arc;

use tracing::Span;
use tracing::debug_span;
use tracing::field;
use tracing::info;
use tracing::info_span;
use tracing::warn;

use super::Session;
use super::builder::SessionBuilder;
use super::given::Given;
use super::group::Member;
use super::pins;
use super::placed::Parts;
use super::placed::Placed;
use super::placement_log;
use super::report::SessionReport;
use super::report::StageClock;
use crate::candidates;
use crate::candidates::Candidates;
use crate::candidates::PlacementOptions;
use crate::device::CancelToken;
use crate::device::DeviceSet;
use crate::device::KernelRegistry;
use crate::error::Error;
use crate::execute::Executor;
use crate::execute::ExecutorOptions;
use crate::functions;
use crate::graph::Graph;
use crate::ops::OpRegistry;
use crate::optimize::Pass;
use crate::optimize::PassReport;
use crate::optimize::Tools;
use crate::optimize::optimize;
use crate::trace::describe_metrics;
use crate::trace::targets;

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
            recorder: self.execution.recorder.clone(),
            stages: earlier.cloned().unwrap_or_default(),
        };
        let (graph, ops) = self.open_graph(&mut clock)?;
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
            self.execution.closed = CancelToken::default();
        }
        let (devices, calibration_problems) = self.calibrated(devices);
        let (graph, given) = self.optimize(graph, &ops, &kernels, &mut clock);
        let recipe = self.recipe(&ops, &devices, &kernels);
        if self.placement.is_logged {
            info!(target: targets::SESSION, "{}", placement_log::device_mapping(&devices));
        }
        let candidates = match self.placement.candidates.take() {
            Some(made) => {
                self.placement.check_beside(&made, &graph, &devices)?;
                made
            }
            None => clock.time(
                "enumerate",
                &debug_span!(target: targets::SESSION, "enumerate"),
                || {
                    let options = self.take_placement_options(&graph, &devices, &ops)?;
                    pins::check_scope(&options, &devices)?;
                    let found = candidates::enumerate(&graph, &devices, &kernels, &options);
                    Ok::<_, Error>(found?)
                },
            )?,
        };
        let candidates = candidates.with_kernels(Arc::clone(&kernels));
        let (placement, placed_by, replacement) = self.policy.place(&candidates, &mut clock)?;
        let placement = Arc::new(placement);
        if self.placement.is_logged {
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
            _ => self.execution.recorder.stoppable(),
        };
        let executor_options = ExecutorOptions {
            recorder: recorder.clone(),
            ..self.execution
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
            given,
        }))
    }

    /// Returns what each pass of the optimizer changes in the graph. Places nothing.
    ///
    /// # Errors
    /// The errors of [`Self::build`] for the graph and the devices.
    pub fn pass_reports(mut self) -> Result<Vec<PassReport>, Error> {
        let clock = &mut StageClock::default();
        let (graph, ops) = self.open_graph(clock)?;
        let (_, kernels) = self.open_devices()?;
        let (_, given) = self.optimize(graph, &ops, &kernels, clock);
        Ok(given.map_or_else(Vec::new, |given| given.passes))
    }

    /// Opens the inputs of placement, and places nothing.
    pub(super) fn open(mut self) -> Result<Opened, Error> {
        let clock = &mut StageClock::default();
        let (graph, ops) = self.open_graph(clock)?;
        let (devices, kernels) = self.open_devices()?;
        let (devices, _) = self.calibrated(devices);
        let (graph, _) = self.optimize(graph, &ops, &kernels, clock);
        let options = self.take_placement_options(&graph, &devices, &ops)?;
        Ok(Opened {
            graph,
            devices,
            kernels,
            ops,
            options,
        })
    }

    /// Returns the graph that is placed, and the known ops.
    fn open_graph(
        &mut self,
        clock: &mut StageClock,
    ) -> Result<(Arc<Graph>, Arc<OpRegistry>), Error> {
        // Before anything is opened.
        self.graph.check()?;
        self.policy.check()?;
        self.devices.check()?;
        let ops = self.open_registry();
        let candidates = self.placement.candidates.as_ref();
        let graph = self
            .graph
            .open(candidates.map(Candidates::graph), &ops, clock)?;
        let graph = self.lower(graph, &ops, clock)?;
        self.placement.attach_pins(&graph);
        Ok((graph, ops))
    }

    /// Takes the registry apart; returns the ops.
    fn open_registry(&mut self) -> Arc<OpRegistry> {
        if let Some(registry) = self.registry.take() {
            let (ops, factories, kernels) = registry.into_parts();
            self.graph.ops.get_or_insert(ops);
            self.devices.complete(factories, kernels);
        }
        self.graph.ops.take().unwrap_or_default()
    }

    /// Replaces calls, branches and loops by nodes that policies place one by one. An app that has
    /// made candidates has decided which graph they are for.
    fn lower(
        &mut self,
        graph: Arc<Graph>,
        ops: &OpRegistry,
        clock: &mut StageClock,
    ) -> Result<Arc<Graph>, Error> {
        if self.placement.candidates.is_some() || !functions::is_lowered_by(&graph) {
            return Ok(graph);
        }
        let span = debug_span!(target: targets::SESSION, "lower");
        let lower = || Ok::<_, Error>(Arc::new(functions::lower(&graph, ops)?));
        let lowered = clock.time("lower", &span, lower)?;
        // The app's node ids are those of its graph.
        self.placement.renumber_pins(&graph, &lowered);
        Ok(lowered)
    }

    /// Applies the passes. Returns also the graph as it was given, if it has changed.
    fn optimize(
        &mut self,
        graph: Arc<Graph>,
        ops: &OpRegistry,
        kernels: &KernelRegistry,
        clock: &mut StageClock,
    ) -> (Arc<Graph>, Option<Given>) {
        let passes = self.graph.passes.as_deref().unwrap_or(&Pass::ALL);
        let is_by_id = self.placement.candidates.is_some() || self.policy.has_proposal();
        if passes.is_empty() || is_by_id {
            return (graph, None);
        }
        let named = self.placement.named_nodes(&graph);
        let tools = Tools { ops, kernels };
        let span = debug_span!(target: targets::SESSION, "optimize");
        let optimized = clock.time("optimize", &span, || {
            optimize(&graph, passes, &|name| named.contains(name), &tools)
        });
        let is_same = Arc::ptr_eq(&optimized.graph, &graph);
        if is_same || self.policy.names_removed(&graph, &optimized.graph) {
            return (graph, None);
        }
        self.placement.renumber_pins(&graph, &optimized.graph);
        let given = Given {
            graph,
            absorbed: optimized.absorbed(),
            passes: optimized.passes,
        };
        (optimized.graph, Some(given))
    }

    fn open_devices(&mut self) -> Result<(Arc<DeviceSet>, Arc<KernelRegistry>), Error> {
        let placement = &self.placement;
        let of_candidates = placement.candidates.as_ref().map(Candidates::device_set);
        self.devices
            .open(of_candidates, |devices| placement.with_client(devices))
    }

    /// Returns the devices with measured rates, and the problems of unusable entries. Candidates of
    /// the app keep their rates.
    fn calibrated(&self, devices: Arc<DeviceSet>) -> (Arc<DeviceSet>, Vec<String>) {
        match self.placement.candidates {
            Some(_) => (devices, Vec::new()),
            None => self.devices.calibrated(devices),
        }
    }

    fn take_placement_options(
        &mut self,
        graph: &Graph,
        devices: &DeviceSet,
        ops: &Arc<OpRegistry>,
    ) -> Result<PlacementOptions, Error> {
        let mut options =
            self.placement
                .take_options(graph, devices, Arc::clone(ops), &mut self.execution)?;
        if let Some(calibrations) = self.devices.calibrations() {
            // The measured times of whole kernels come before those of their families.
            options.cost_sources.push(Arc::new(calibrations.clone()));
        }
        Ok(options)
    }

    /// Returns a builder that builds the session again, with another graph on the same devices.
    fn recipe(
        &self,
        ops: &Arc<OpRegistry>,
        devices: &Arc<DeviceSet>,
        kernels: &Arc<KernelRegistry>,
    ) -> Self {
        let mut recipe = self.clone();
        recipe.graph.ops = Some(Arc::clone(ops));
        recipe.devices = self.devices.again(devices, kernels);
        recipe.placement.kept.clear();
        recipe.policy.before = None;
        recipe.previous = None;
        recipe
    }

    fn of_session(mut self, handle: &Arc<str>) -> Self {
        self.execution.session_handle = Some(Arc::clone(handle));
        self
    }

    /// Returns why the session that this has built cannot be built again with another graph, if
    /// it cannot.
    pub(super) fn is_bound_to_graph(&self) -> Option<&'static str> {
        self.policy.is_bound_to_graph().or_else(|| {
            let is_stated = self.placement.candidates.is_some();
            is_stated.then_some("the app has made its candidates; build another session")
        })
    }

    /// Returns a graph as a session of this builder would place it.
    pub(super) fn lowered(&self, graph: Arc<Graph>) -> Result<Arc<Graph>, Error> {
        match &self.graph.ops {
            Some(ops) if functions::is_lowered_by(&graph) => {
                Ok(Arc::new(functions::lower(&graph, ops)?))
            }
            _ => Ok(graph),
        }
    }
}
