//! What restricts the placement of a session's nodes.

use std::sync::Arc;

use rustc_hash::FxHashSet;

use super::SessionBuilder;
use crate::candidates::Candidates;
use crate::candidates::PlacementOptions;
#[cfg(feature = "cluster")]
use crate::cluster::ClusterSpec;
use crate::cost::CostSource;
use crate::cost::History;
use crate::cost::ProfiledCosts;
use crate::device::DeviceSet;
use crate::error::Error;
use crate::execute::ExecutorOptions;
use crate::graph::Graph;
use crate::graph::NodeId;
use crate::names::DeviceId;
use crate::ops::OpRegistry;
use crate::session::pins;
use crate::trace::RunProfile;

/// What restricts the placement.
#[derive(Debug, Clone, Default)]
pub(in crate::session) struct PlacementSetup {
    pub(in crate::session) options: Option<PlacementOptions>,
    allow_soft_placement: Option<bool>,
    /// Nodes and devices by name.
    pub(in crate::session) pins: Vec<(String, String)>,
    /// Nodes and priorities, by name.
    priorities: Vec<(String, i32)>,
    trip_counts: Vec<(String, f64)>,
    /// Costs of the kernels of a cluster, and its threads that execute nodes.
    cluster: Option<(Arc<dyn CostSource>, Option<usize>)>,
    profile: Option<Arc<RunProfile>>,
    pub(in crate::session) history: Option<History>,
    pub(in crate::session) learns: bool,
    pub(in crate::session) is_logged: bool,
    pub(in crate::session) candidates: Option<Candidates>,
    /// Nodes that keep the devices that they had before the graph grew, by name.
    pub(in crate::session) kept: Vec<(String, DeviceId)>,
    /// Pins of the options, by name, until they are converted to ids of the new graph.
    moved_pins: Option<Vec<(String, DeviceId)>>,
    /// Assigned devices of the options, likewise.
    moved_assigned_devices: Vec<(String, String)>,
}

/// # What restricts the placement
impl SessionBuilder {
    /// Sets device scope, soft placement, pins, assigned devices, cost model and the number of
    /// concurrent runs. If [`Self::with_concurrent_runs`] sets that number as well, the larger one
    /// applies.
    #[must_use]
    pub fn with_placement_options(mut self, options: PlacementOptions) -> Self {
        self.placement.options = Some(options);
        self
    }

    /// Sets whether a node may be placed elsewhere if the device that it requests cannot run it
    /// ([`PlacementOptions::allow_soft_placement`], over which this takes precedence); false by
    /// default.
    #[must_use]
    pub fn with_soft_placement(mut self, allow: bool) -> Self {
        self.placement.allow_soft_placement = Some(allow);
        self
    }

    /// Adds a pin: the node of this name runs on the device of this name, whatever the node
    /// requests. The device name may be full (`/job:localhost/replica:0/task:0/device:CPU:1`) or
    /// partial (`/device:CPU:1`, `CPU:1`), but must match exactly one device. Pins are resolved
    /// when the session is built, and again when it gets a larger graph or other devices.
    ///
    /// [`Self::build`] fails with [`Error::Pin`](crate::Error::Pin) if the graph has no such node,
    /// or if the name does not match exactly one device; and with
    /// [`CandidatesError::PinNotLegal`](crate::candidates::CandidatesError::PinNotLegal) if the
    /// device cannot run the node, or if the node is pinned to another device as well.
    /// [`PlacementOptions::with_pin`] takes ids instead of names.
    #[must_use]
    pub fn with_pin(mut self, node: impl Into<String>, device: impl Into<String>) -> Self {
        self.placement.pins.push((node.into(), device.into()));
        self
    }

    /// Sets the priority of a node, larger first, in place of its attribute `_priority`. Policies
    /// see it (`user-priority`) and may follow it.
    #[must_use]
    pub fn with_priority(mut self, node: impl Into<String>, priority: i32) -> Self {
        self.placement.priorities.push((node.into(), priority));
        self
    }

    /// Sets the expected iterations of a loop, by the name of its frame, such as `while`. Other
    /// loops have the count that their condition tells, or that [`Self::with_profile`] has
    /// measured, or 10.
    #[must_use]
    pub fn with_trip_count(mut self, frame: impl Into<String>, n_iterations: f64) -> Self {
        self.placement
            .trip_counts
            .push((frame.into(), n_iterations));
        self
    }

    /// Sets measurements of earlier runs of the graph ([`Session::measure`]). Costs and executions
    /// of its nodes are those measured, and policies see the rest (`last-run`).
    ///
    /// [`Session::measure`]: crate::session::Session::measure
    #[must_use]
    pub fn with_profile(mut self, profile: impl Into<Arc<RunProfile>>) -> Self {
        self.placement.profile = Some(profile.into());
        self
    }

    /// Sets the history of measured kernels. Work that it knows costs what was measured, on any
    /// graph. A profile takes precedence over it.
    #[must_use]
    pub fn with_history(mut self, history: History) -> Self {
        self.placement.history = Some(history);
        self
    }

    /// Sets whether runs of the session add to its history; false by default. The runs with the
    /// numbers 4, 16, 64 and so on are measured, and take longer.
    #[must_use]
    pub fn with_learning(mut self, is_wanted: bool) -> Self {
        self.placement.learns = is_wanted;
        self
    }

    /// Sets whether [`Self::build`] logs the devices and the device of every node, as `tracing`
    /// events of level INFO and target `placewright::session`; false by default.
    /// [`Session::device_mapping`](crate::session::Session::device_mapping) and
    /// [`Session::placement_lines`](crate::session::Session::placement_lines) return the same
    /// lines.
    #[must_use]
    pub fn with_log_device_placement(mut self, is_wanted: bool) -> Self {
        self.placement.is_logged = is_wanted;
        self
    }

    /// Sets candidates that the app built with [`crate::candidates::CandidatesBuilder`]. They
    /// contain the graph and the devices, and no kernel is asked which device can run what.
    /// Another graph, other devices or placement options in addition are an error of
    /// [`Self::build`].
    #[must_use]
    pub fn with_candidates(mut self, candidates: Candidates) -> Self {
        self.placement.candidates = Some(candidates);
        self
    }
}

impl PlacementSetup {
    /// Checks that nothing is set that candidates of the app contain: enumerating anew would drop
    /// their pins and costs.
    pub(in crate::session) fn check_beside(
        &self,
        made: &Candidates,
        graph: &Arc<Graph>,
        devices: &Arc<DeviceSet>,
    ) -> Result<(), Error> {
        let (part, call) = if !Arc::ptr_eq(made.graph(), graph) {
            ("graph", "with_graph")
        } else if !Arc::ptr_eq(made.device_set(), devices) {
            ("devices", "with_devices")
        } else if self.options.is_some() {
            ("placement options", "with_placement_options")
        } else if self.allow_soft_placement.is_some() {
            ("placement options", "with_soft_placement")
        } else if !self.pins.is_empty() {
            ("placement options", "with_pin")
        } else if !self.priorities.is_empty() {
            ("placement options", "with_priority")
        } else if !self.trip_counts.is_empty() {
            ("placement options", "with_trip_count")
        } else if self.profile.is_some() {
            ("placement options", "with_profile")
        } else {
            return Ok(());
        };
        Err(Error::BesideCandidates { part, call })
    }

    /// Makes the first device the client device, as TensorFlow's local sessions do, unless the
    /// devices or the options name another one.
    pub(in crate::session) fn with_client(&self, devices: Arc<DeviceSet>) -> Arc<DeviceSet> {
        let options = self.options.as_ref();
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

    /// Returns the options, with pins resolved, and agrees with the executor about the number of
    /// concurrent runs.
    pub(in crate::session) fn take_options(
        &mut self,
        graph: &Graph,
        devices: &DeviceSet,
        ops: Arc<OpRegistry>,
        execution: &mut ExecutorOptions,
    ) -> Result<PlacementOptions, Error> {
        let mut options = self.options.take().unwrap_or_default();
        if let Some(allow) = self.allow_soft_placement {
            options.allow_soft_placement = allow;
        }
        pins::resolve(&self.pins, graph, devices, &mut options)?;
        pins::prioritize(&self.priorities, graph, &mut options)?;
        for (frame, n_iterations) in &self.trip_counts {
            let bodies = graph.bodies().ok().into_iter();
            let loops = bodies.flat_map(|bodies| bodies.all().iter().skip(1));
            if !loops.clone().any(|body| *body.name == **frame) {
                return Err(Error::UnknownLoop {
                    frame: frame.clone(),
                    loops: loops.map(|body| body.name.to_string()).collect(),
                });
            }
            options.trip_counts.push((frame.clone(), *n_iterations));
        }
        if let Some(history) = &self.history {
            options.cost_sources.insert(0, Arc::new(history.clone()));
        }
        if let Some(profile) = &self.profile {
            let costs = ProfiledCosts::of(profile, graph, devices);
            options.cost_sources.insert(0, Arc::new(costs));
            options.profile = Some(Arc::clone(profile));
        }
        pin_kept(&mut options, graph, &self.kept);
        options.op_arguments.get_or_insert(ops);
        if let Some((costs, inter_op_threads)) = &self.cluster {
            options.cost_sources.push(Arc::clone(costs));
            if let (0, Some(n_threads)) = (options.inter_op_threads, inter_op_threads) {
                options.inter_op_threads = *n_threads;
            }
        }
        options.n_concurrent_runs = execution.agree_on_runs(options.n_concurrent_runs);
        if options.inter_op_threads == 0 {
            options.inter_op_threads = execution.n_inter_op_threads();
        }
        Ok(options)
    }

    #[cfg(feature = "cluster")]
    pub(in crate::session) fn set_cluster(&mut self, cluster: &ClusterSpec) {
        self.cluster = Some((cluster.costs(), cluster.inter_op_threads()));
    }

    /// Leaves out what was decided about the nodes of another graph.
    pub(in crate::session) fn forget_nodes(&mut self) {
        self.pins.clear();
        self.priorities.clear();
        self.kept.clear();
        self.moved_pins = None;
        self.moved_assigned_devices.clear();
        if let Some(options) = &mut self.options {
            options.pins.clear();
            options.assigned_devices.clear();
        }
    }

    /// Replaces the node ids of one graph in pins by those of another graph with the same names.
    pub(in crate::session) fn renumber_pins(&mut self, from: &Graph, to: &Graph) {
        if let Some(options) = &mut self.options {
            renumber_pins(options, from, to);
        }
    }

    /// Returns the names of nodes that are pinned, assigned or prioritized, or keep their devices.
    /// Ids are those of `graph`.
    pub(in crate::session) fn named_nodes(&self, graph: &Graph) -> FxHashSet<String> {
        let of_options = self.options.as_ref();
        let pinned = of_options.into_iter().flat_map(|options| &options.pins);
        let assigned = of_options
            .into_iter()
            .flat_map(|options| &options.assigned_devices);
        let prioritized = of_options
            .into_iter()
            .flat_map(|options| &options.priorities);
        let ids = pinned
            .map(|(node, _)| *node)
            .chain(assigned.map(|(node, _)| *node))
            .chain(prioritized.map(|(node, _)| *node));
        let ids = ids.filter(|node| node.index() < graph.n_nodes());
        let names = self.pins.iter().map(|(node, _)| node.clone());
        let names = names.chain(self.priorities.iter().map(|(node, _)| node.clone()));
        let names = names.chain(self.kept.iter().map(|(node, _)| node.clone()));
        ids.map(|node| graph.node_name(node).to_owned())
            .chain(names)
            .collect()
    }

    /// Records the user's pins by name, since the next graph may number its nodes differently.
    pub(in crate::session) fn detach_pins(&mut self, graph: &Graph) {
        let Some(options) = &mut self.options else {
            return;
        };
        let pins = options.pins.drain(..);
        let pins = pins.map(|(node, device)| (graph.node_name(node).to_owned(), device));
        let pins = pins.collect();
        let assigned = options.assigned_devices.drain(..);
        let assigned = assigned.map(|(node, device)| (graph.node_name(node).to_owned(), device));
        let assigned = assigned.collect();
        self.moved_pins = Some(pins);
        self.moved_assigned_devices = assigned;
    }

    /// Fixes nodes of `graph` to the devices that [`Self::detach_pins`] has recorded.
    pub(in crate::session) fn attach_pins(&mut self, graph: &Graph) {
        let pins = self.moved_pins.take().unwrap_or_default();
        let assigned = std::mem::take(&mut self.moved_assigned_devices);
        let Some(options) = &mut self.options else {
            return;
        };
        for (name, device) in pins {
            options
                .pins
                .extend(graph.find_node(&name).map(|node| (node, device)));
        }
        for (name, device) in assigned {
            options
                .assigned_devices
                .extend(graph.find_node(&name).map(|node| (node, device)));
        }
    }
}

/// Replaces the node ids of one graph in pins by those of another graph with the same names.
fn renumber_pins(options: &mut PlacementOptions, from: &Graph, to: &Graph) {
    let renumbered = |node: NodeId| {
        let is_known = node.index() < from.n_nodes();
        is_known
            .then(|| to.find_node(from.node_name(node)))
            .flatten()
    };
    for (node, _) in &mut options.pins {
        // A node that does not exist is reported when the pins are checked.
        *node = renumbered(*node).unwrap_or(NodeId(u32::MAX));
    }
    for (node, _) in &mut options.assigned_devices {
        *node = renumbered(*node).unwrap_or(NodeId(u32::MAX));
    }
}

/// Adds pins for nodes that keep their devices.
fn pin_kept(options: &mut PlacementOptions, graph: &Graph, kept: &[(String, DeviceId)]) {
    for (name, device) in kept {
        if let Some(node) = graph.find_node(name) {
            options.pins.retain(|&(pinned, _)| pinned != node);
            options
                .assigned_devices
                .retain(|(assigned, _)| *assigned != node);
            options.pins.push((node, *device));
        }
    }
}
