//! Creates the kernel that executes a node on a device: check, lookup, construction.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::panic::catch_unwind;

use crate::device::error::KernelError;
use crate::device::kernel::Kernel;
use crate::device::kernel::KernelConstruction;
use crate::device::kernel_registry::KernelLookupError;
use crate::device::kernel_registry::KernelRegistry;
use crate::device::traits::KernelDevice;
use crate::graph::AttrSet;
use crate::graph::AttrValue;
use crate::graph::Graph;
use crate::graph::NodeId;
use crate::ops::NodeDefError;
use crate::ops::OpDef;
use crate::ops::OpRegistry;
use crate::tensor::DType;
use crate::tensor::Literal;
use crate::tensor::PartialShape;

/// Why no kernel can be created for a node. Callers add node and device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KernelCreationError {
    /// The node contradicts the definition of its op.
    #[error(transparent)]
    NodeDef(#[from] NodeDefError),
    /// No kernel can be selected, or the kernel has arguments that the op does not have.
    #[error(transparent)]
    Lookup(#[from] KernelLookupError),
    /// No kernel of the device type accepts the node.
    #[error(
        "no kernel for op `{op}` is registered for device type {device_type}{}{}",
        mismatch_text(.mismatch.as_deref()),
        registered_text(.registered.as_deref())
    )]
    NotFound {
        /// The op.
        op: String,
        /// The device type.
        device_type: String,
        /// The node's attributes that kernels of the type constrain, if there are kernels that do
        /// not accept them.
        mismatch: Option<String>,
        /// The op's registrations ([`KernelRegistry::listing`]); `None` for symbolic types.
        registered: Option<String>,
    },
    /// The registration is for placement only.
    #[error(
        "the kernel is registered for placement only; register it with a factory to execute it"
    )]
    PlacementOnly,
    /// The kernel's factory rejected the node.
    #[error("cannot be prepared: {0}")]
    Kernel(KernelError),
}

impl From<KernelError> for KernelCreationError {
    fn from(error: KernelError) -> Self {
        Self::Kernel(error)
    }
}

fn mismatch_text(mismatch: Option<&str>) -> String {
    mismatch.map_or_else(String::new, |attrs| {
        format!(" that takes the node's attributes (kernels were found, but {attrs} did not match)")
    })
}

fn registered_text(registered: Option<&str>) -> String {
    registered.map_or_else(String::new, |listing| format!("; registered:{listing}"))
}

/// Creates the kernel of a node on a device, in TensorFlow's order: the node is checked against the
/// definition of its op in `ops` (if it has one, and the graph has not been checked before), then a
/// kernel is selected, then created.
///
/// # Errors
/// [`KernelCreationError`]; a factory that panics rejects the node.
///
/// # Panics
/// If the graph has no such node.
pub fn create_kernel(
    registry: &KernelRegistry,
    ops: Option<&OpRegistry>,
    graph: &Graph,
    node: NodeId,
    device: &dyn KernelDevice,
) -> Result<Box<dyn Kernel>, KernelCreationError> {
    let completed = check_node(ops, graph, node)?;
    let attrs = completed.as_ref().unwrap_or_else(|| graph.attrs(node));
    let dtypes = graph.tensor_dtypes();
    let input_dtypes: Vec<DType> = graph
        .data_inputs(node)
        .map(|tensor| dtypes[tensor.index()])
        .collect();
    let input_shapes: Vec<PartialShape> = graph
        .data_inputs(node)
        .map(|tensor| graph.tensor_shape(tensor))
        .collect();
    let construction = KernelConstruction {
        node: graph.node_name(node),
        op: graph.op(node),
        attrs,
        input_dtypes: &input_dtypes,
        input_shapes: &input_shapes,
        output_dtypes: &dtypes[graph.output_range(node)],
        device,
    };
    construct_kernel(registry, ops, &construction)
}

/// Does the same without the check, for kernels that need not be of one node of a graph: several
/// nodes may be fused.
pub(crate) fn construct_kernel(
    registry: &KernelRegistry,
    ops: Option<&OpRegistry>,
    construction: &KernelConstruction<'_>,
) -> Result<Box<dyn Kernel>, KernelCreationError> {
    let (op, attrs) = (construction.op, construction.attrs);
    let device_type = &construction.device.attributes().device_type;
    let found = registry.look_up(op, device_type, attrs)?;
    let Some(def) = found.kernel else {
        let mismatch = found.has_mismatch.then(|| constrained(registry, op, attrs));
        return Err(KernelCreationError::NotFound {
            op: op.to_owned(),
            device_type: device_type.clone(),
            mismatch,
            registered: (!device_type.contains("JIT")).then(|| registry.listing(op)),
        });
    };
    if let Some(op_def) = ops.and_then(|ops| ops.get(op)) {
        def.check_host_memory_args(|arg| has_argument(op_def, arg))?;
    }
    let factory = def.factory.as_ref();
    let factory = factory.ok_or(KernelCreationError::PlacementOnly)?;
    let made = catch_unwind(AssertUnwindSafe(|| factory(construction)));
    let made = made.unwrap_or_else(|panic| {
        Err(KernelError::invalid(format!(
            "the kernel panicked while it was made: {}",
            panic_message(&*panic)
        )))
    });
    Ok(made?)
}

/// Checks a constant against the definition of its op and its own output, unless it was checked
/// before. Constants need no kernel.
///
/// # Errors
/// [`KernelCreationError::NodeDef`], and [`KernelCreationError::Kernel`] if the value has another
/// type than the output.
pub(crate) fn check_constant(
    ops: Option<&OpRegistry>,
    graph: &Graph,
    node: NodeId,
    value: &Literal,
) -> Result<(), KernelCreationError> {
    check_node(ops, graph, node)?;
    let declared = &graph.tensor_dtypes()[graph.output_range(node)];
    if declared != [value.dtype()] {
        let declared: Vec<&str> = declared.iter().map(|dtype| dtype.name()).collect();
        return Err(KernelCreationError::Kernel(KernelError::invalid(format!(
            "attribute `value` holds {}, the node's outputs are [{}]",
            value.dtype(),
            declared.join(", ")
        ))));
    }
    Ok(())
}

/// Returns the node's complete attributes, if this is the first check of the node.
pub(crate) fn check_node(
    ops: Option<&OpRegistry>,
    graph: &Graph,
    node: NodeId,
) -> Result<Option<AttrSet>, NodeDefError> {
    if graph.is_checked() {
        return Ok(None);
    }
    let op = ops.and_then(|ops| ops.get(graph.op(node)));
    op.map(|op| op.check_node(graph, node)).transpose()
}

/// Returns whether an op has an input or output argument of this name.
fn has_argument(op: &OpDef, name: &str) -> bool {
    let mut args = op.inputs().iter().chain(op.outputs());
    args.any(|arg| *arg.name == *name)
}

/// Returns the attributes of a node that some kernel of its op constrains: `T=DT_FLOAT,
/// Tidx=[DT_INT32, DT_INT64]`.
fn constrained(registry: &KernelRegistry, op: &str, attrs: &AttrSet) -> String {
    let of_def = registry.of_op(op).iter().flat_map(|def| &def.constraints);
    let mut names: Vec<&str> = of_def.map(|(attr, _)| attr.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    let strings = names.into_iter().filter_map(|name| {
        let value = attrs.get(name)?;
        Some(format!("{name}={}", type_text(value)))
    });
    strings.collect::<Vec<_>>().join(", ")
}

fn type_text(value: &AttrValue) -> String {
    match value {
        AttrValue::Type { dtype, is_ref } => {
            let suffix = if *is_ref { "_REF" } else { "" };
            format!("DT_{}{suffix}", dtype.name().to_uppercase())
        }
        AttrValue::List(values) => {
            let strings: Vec<String> = values.iter().map(type_text).collect();
            format!("[{}]", strings.join(", "))
        }
        other => format!("a {}", other.kind()),
    }
}

/// Returns the message of a panic.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned())
}
