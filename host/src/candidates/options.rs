//! What a caller may ask of placement.

use std::fmt;
use std::sync::Arc;

use crate::cost::CostModel;
use crate::graph::AttrSet;
use crate::graph::Graph;
use crate::graph::NodeId;
use crate::names::DeviceId;
use crate::names::DeviceName;
use crate::ops::NodeDefError;
use crate::ops::OpDef;

/// Options of [`super::enumerate`].
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct PlacementOptions {
    /// The outermost device scope (`--device`): fills the parts that a node's own request leaves
    /// unset.
    pub device_scope: DeviceName,
    /// Where a requested device does not exist or has no kernel, give up its index and type rather
    /// than fail (TensorFlow `allow_soft_placement`). Job, replica and task never give way.
    /// Also drops `_class` requests that cannot be met.
    pub allow_soft_placement: bool,
    /// Devices fixed by the user or an earlier placement. A pin takes precedence over the node's
    /// request.
    pub pins: Vec<(NodeId, DeviceId)>,
    /// The same by the full names of devices, as other processes hand placements over (TensorFlow
    /// `Node::assigned_device_name`).
    pub assigned_devices: Vec<(NodeId, String)>,
    /// Preferred wherever it is legal, before priorities of kernels and device types.
    pub default_local_device: Option<DeviceId>,
    /// How work becomes nanoseconds.
    pub cost_model: CostModel,
    /// What is known of the arguments of ops: names for host-memory arguments, and which inputs
    /// are references.
    pub op_arguments: Option<Arc<dyn OpArguments>>,
    /// Runs that the devices' memories must suffice for at one time; 0 is 1.
    pub n_concurrent_runs: usize,
}

impl PlacementOptions {
    /// The same, inside this device scope.
    #[must_use]
    pub fn with_device_scope(mut self, scope: DeviceName) -> Self {
        self.device_scope = scope;
        self
    }

    /// The same, with soft placement as said.
    #[must_use]
    pub fn with_soft_placement(mut self, allow: bool) -> Self {
        self.allow_soft_placement = allow;
        self
    }

    /// The same, with a node fixed to a device.
    #[must_use]
    pub fn with_pin(mut self, node: NodeId, device: DeviceId) -> Self {
        self.pins.push((node, device));
        self
    }

    /// The same, with a node assigned before to the device of this full name.
    #[must_use]
    pub fn with_assigned_device(mut self, node: NodeId, device: impl Into<String>) -> Self {
        self.assigned_devices.push((node, device.into()));
        self
    }

    /// The same, preferring this device.
    #[must_use]
    pub fn with_default_local_device(mut self, device: DeviceId) -> Self {
        self.default_local_device = Some(device);
        self
    }

    /// The same, with this cost model.
    #[must_use]
    pub fn with_cost_model(mut self, model: CostModel) -> Self {
        self.cost_model = model;
        self
    }

    /// The same, with memory for this many runs at one time.
    #[must_use]
    pub fn with_concurrent_runs(mut self, n_runs: usize) -> Self {
        self.n_concurrent_runs = n_runs;
        self
    }

    /// The same, with this knowledge of ops.
    #[must_use]
    pub fn with_op_arguments(mut self, arguments: Arc<dyn OpArguments>) -> Self {
        self.op_arguments = Some(arguments);
        self
    }
}

/// What placing and cutting ask about the arguments of an op, for nodes with references or with
/// kernels that have host-memory arguments.
///
/// Without it, every input that carries a reference counts as a reference, and of a kernel with
/// host-memory arguments the `int32` inputs count as those, or, where it has none, the `int32`
/// outputs.
pub trait OpArguments: fmt::Debug + Send + Sync {
    /// Whether the op is defined at all. One that is not, such as a function's name, and has no
    /// kernel either, runs on any device type.
    fn is_known(&self, op: &str) -> bool;

    /// The definition of an op. Where it is known, placement looks into the functions that are
    /// called: their bodies' nodes say what they give only through it.
    fn definition(&self, op: &str) -> Option<&OpDef> {
        let _ = op;
        None
    }

    /// Whether a node agrees with the definition of its op. Asked of the first node that no device
    /// type has a kernel for: what is wrong with the node says more than that.
    ///
    /// # Errors
    /// The first contradiction.
    fn check_node(&self, graph: &Graph, node: NodeId) -> Result<(), NodeDefError> {
        let _ = (graph, node);
        Ok(())
    }

    /// The argument that data input `slot` belongs to; `None` if the op is unknown or has fewer
    /// inputs.
    fn input(&self, op: &str, attrs: &AttrSet, slot: usize) -> Option<Argument<'_>>;

    /// The argument that output `slot` belongs to; `None` if the op is unknown or has fewer
    /// outputs.
    fn output(&self, op: &str, attrs: &AttrSet, slot: usize) -> Option<Argument<'_>>;
}

/// An argument of an op (TensorFlow `OpDef.ArgDef`), as far as placement is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Argument<'a> {
    /// Its name, as kernels list it in their host-memory arguments.
    pub name: &'a str,
    /// Whether it takes a reference.
    pub is_ref: bool,
}
