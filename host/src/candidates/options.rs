//! Options of placement.

use std::fmt;
use std::sync::Arc;

use crate::cost::CostModel;
use crate::cost::CostSource;
use crate::graph::AttrSet;
use crate::graph::Graph;
use crate::graph::NodeId;
use crate::names::DeviceId;
use crate::names::DeviceName;
use crate::ops::NodeDefError;
use crate::ops::OpDef;
use crate::trace::RunProfile;

/// Options of [`super::enumerate`].
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct PlacementOptions {
    /// The outermost device scope (`--device`): fills the parts that a node's own request leaves
    /// unset.
    pub device_scope: DeviceName,
    /// If a requested device does not exist or has no kernel, drop its index and type instead of
    /// failing (TensorFlow `allow_soft_placement`). Job, replica and task are never dropped. Also
    /// drops `_class` requests that cannot be met.
    pub allow_soft_placement: bool,
    /// Devices fixed by the user or an earlier placement. A pin takes precedence over the node's
    /// request.
    pub pins: Vec<(NodeId, DeviceId)>,
    /// Fixed devices by full name, as in placements from other processes (TensorFlow
    /// `Node::assigned_device_name`).
    pub assigned_devices: Vec<(NodeId, String)>,
    /// A device that is preferred wherever it is legal, before the priorities of kernels and
    /// device types.
    pub default_local_device: Option<DeviceId>,
    /// The cost model, for work that no source knows.
    pub cost_model: CostModel,
    /// Sources of costs, best first: measured times ([`crate::cost::History`]), or an app's own.
    pub cost_sources: Vec<Arc<dyn CostSource>>,
    /// Measurements of earlier runs of the graph: policies see them (`last-run`), and expected
    /// executions are those that were measured. Costs come from [`Self::cost_sources`].
    pub profile: Option<Arc<RunProfile>>,
    /// Iterations of loops, by the name of the loop's frame, in place of estimates and
    /// measurements.
    pub trip_counts: Vec<(String, f64)>,
    /// Priorities of nodes that policies may follow, larger first, in place of the nodes' attribute
    /// `_priority`.
    pub priorities: Vec<(NodeId, i32)>,
    /// The arguments of ops: their names, which host-memory arguments refer to, and which of them
    /// are references.
    pub op_arguments: Option<Arc<dyn OpArguments>>,
    /// Number of concurrent runs for which memory must suffice; 0 means 1.
    pub n_concurrent_runs: usize,
    /// Number of nodes that threads of the host execute at one time
    /// (`ExecutorOptions::inter_op_parallelism_threads`), for estimates; 0 means one per processor.
    pub inter_op_threads: usize,
}

impl PlacementOptions {
    /// Sets the device scope.
    #[must_use]
    pub fn with_device_scope(mut self, scope: DeviceName) -> Self {
        self.device_scope = scope;
        self
    }

    /// Allows or disallows soft placement.
    #[must_use]
    pub fn with_soft_placement(mut self, allow: bool) -> Self {
        self.allow_soft_placement = allow;
        self
    }

    /// Fixes a node to a device.
    #[must_use]
    pub fn with_pin(mut self, node: NodeId, device: DeviceId) -> Self {
        self.pins.push((node, device));
        self
    }

    /// Fixes a node to the device of this full name.
    #[must_use]
    pub fn with_assigned_device(mut self, node: NodeId, device: impl Into<String>) -> Self {
        self.assigned_devices.push((node, device.into()));
        self
    }

    /// Sets the preferred device.
    #[must_use]
    pub fn with_default_local_device(mut self, device: DeviceId) -> Self {
        self.default_local_device = Some(device);
        self
    }

    /// Sets the cost model.
    #[must_use]
    pub fn with_cost_model(mut self, model: CostModel) -> Self {
        self.cost_model = model;
        self
    }

    /// Adds a source of costs, after those added before.
    #[must_use]
    pub fn with_cost_source(mut self, source: Arc<dyn CostSource>) -> Self {
        self.cost_sources.push(source);
        self
    }

    /// Sets the measurements of earlier runs.
    #[must_use]
    pub fn with_profile(mut self, profile: impl Into<Arc<RunProfile>>) -> Self {
        self.profile = Some(profile.into());
        self
    }

    /// Sets the iterations of a loop.
    #[must_use]
    pub fn with_trip_count(mut self, frame: impl Into<String>, n_iterations: f64) -> Self {
        self.trip_counts.push((frame.into(), n_iterations));
        self
    }

    /// Sets the priority of a node.
    #[must_use]
    pub fn with_priority(mut self, node: NodeId, priority: i32) -> Self {
        self.priorities.push((node, priority));
        self
    }

    /// Sets the number of concurrent runs.
    #[must_use]
    pub fn with_concurrent_runs(mut self, n_runs: usize) -> Self {
        self.n_concurrent_runs = n_runs;
        self
    }

    /// Sets the number of nodes that threads of the host execute at one time.
    #[must_use]
    pub fn with_inter_op_threads(mut self, n_threads: usize) -> Self {
        self.inter_op_threads = n_threads;
        self
    }

    /// Sets the arguments of ops.
    #[must_use]
    pub fn with_op_arguments(mut self, arguments: Arc<dyn OpArguments>) -> Self {
        self.op_arguments = Some(arguments);
        self
    }
}

/// The arguments of ops, which placement and partitioning need for nodes with references or with
/// kernels that have host-memory arguments.
///
/// Without them, every input that carries a reference counts as a reference. The host-memory
/// arguments of a kernel are then assumed to be its `int32` inputs, or its `int32` outputs if it
/// has no such inputs.
pub trait OpArguments: fmt::Debug + Send + Sync {
    /// Whether the op is defined. An undefined op without a kernel, such as a function's name, runs
    /// on any device type.
    fn is_known(&self, op: &str) -> bool;

    /// Returns the definition of an op. Placement inspects called functions only with definitions,
    /// since these determine the outputs of the nodes in their bodies.
    fn definition(&self, op: &str) -> Option<&OpDef> {
        let _ = op;
        None
    }

    /// Checks whether a node agrees with the definition of its op. Called for the first node
    /// without a kernel, since a contradiction is the better error message.
    ///
    /// # Errors
    /// The first contradiction.
    fn check_node(&self, graph: &Graph, node: NodeId) -> Result<(), NodeDefError> {
        let _ = (graph, node);
        Ok(())
    }

    /// Returns the argument of data input `slot`; `None` if the op is unknown or has fewer inputs.
    fn input(&self, op: &str, attrs: &AttrSet, slot: usize) -> Option<Argument<'_>>;

    /// Returns the argument of output `slot`; `None` if the op is unknown or has fewer outputs.
    fn output(&self, op: &str, attrs: &AttrSet, slot: usize) -> Option<Argument<'_>>;
}

/// The part of an op's argument (TensorFlow `OpDef.ArgDef`) that placement needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Argument<'a> {
    /// Its name, which kernels list in their host-memory arguments.
    pub name: &'a str,
    /// Whether it is a reference.
    pub is_ref: bool,
}
