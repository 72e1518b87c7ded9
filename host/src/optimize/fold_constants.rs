//! Replaces nodes that read only constants by constants.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::Tools;
use super::edit::Edit;
use super::edit::New;
use crate::backend::cpu::ThreadPoolDevice;
use crate::device::AllocatorAttributes;
use crate::device::IntraOpPool;
use crate::device::KernelContext;
use crate::device::KernelDevice;
use crate::device::create_kernel;
use crate::graph::AttrSet;
use crate::graph::AttrValue;
use crate::graph::Graph;
use crate::graph::IDENTITY;
use crate::graph::NodeId;
use crate::graph::Output;
use crate::graph::TensorId;
use crate::names::DeviceName;
use crate::tensor::Literal;
use crate::tensor::LiteralData;
use crate::tensor::PartialShape;
use crate::tensor::Tensor;

/// Maximum number of bytes of a tensor that is read or made: a small file may describe large ones.
const TENSOR_BYTES_MAX: u64 = 1 << 20;

/// Maximum number of bytes of a tensor that is larger than those that it is made of: constants are
/// in memory between runs.
const GROWN_BYTES_MAX: u64 = 64 << 10;

/// Maximum number of bytes of all tensors that are made.
const TOTAL_BYTES_MAX: u64 = 64 << 20;

/// Folds the constants of a graph with the kernels of a CPU device. A node that fails is left for
/// the run, whose error names it. So is a node that requests a device.
pub(super) fn fold_constants(edit: &mut Edit<'_>, tools: &Tools<'_>) {
    let graph = edit.graph();
    let Some(device) = cpu() else {
        return;
    };
    let mut values: FxHashMap<NodeId, Tensor> = FxHashMap::default();
    let mut bytes_left = TOTAL_BYTES_MAX;
    for node in graph.nodes() {
        let has_inputs = graph.data_inputs(node).next().is_some();
        let is_wanted =
            has_inputs && graph.op(node) != IDENTITY && graph.requested(node).is_empty();
        if !is_wanted || !edit.is_free(node) {
            continue;
        }
        let Some(bytes) = bytes_of_output(graph, node).filter(|&bytes| bytes <= bytes_left) else {
            continue;
        };
        if let Some(value) = compute(edit, tools, &device, &values, node) {
            bytes_left -= bytes;
            values.insert(node, value);
        }
    }
    for (&node, value) in &values {
        for tensor in graph.data_inputs(node) {
            edit.absorb(tensor);
        }
        let mut readers = graph.successors().row(node.index()).iter();
        let is_inner = |&reader: &u32| values.contains_key(&NodeId(reader));
        if readers.len() > 0 && readers.all(is_inner) {
            edit.remove(node);
        } else if let Some(constant) = replacement(edit, node, value) {
            edit.replace(node, constant);
        }
    }
}

/// Returns the bytes of a node's only output, if its shape is known and it is small.
fn bytes_of_output(graph: &Graph, node: NodeId) -> Option<u64> {
    if graph.output_range(node).len() != 1 {
        return None;
    }
    let output = graph.output(node, 0)?;
    let dtype = graph.tensor_dtypes()[output.index()];
    let is_value = dtype.size_bytes().is_some() && !graph.tensor_is_ref(output);
    let shape = graph.tensor_shape(output).to_shape()?;
    let bytes = shape.size_bytes(dtype).ok()? as u64;
    (is_value && bytes <= TENSOR_BYTES_MAX).then_some(bytes)
}

/// Returns a device that is no session's, so that what is folded does not depend on the session's
/// devices.
fn cpu() -> Option<ThreadPoolDevice> {
    let name = DeviceName::parse_full("/job:localhost/replica:0/task:0/device:CPU:0").ok()?;
    let pool = Arc::new(IntraOpPool::new(1));
    // Beside the results, the operands of one node and what its kernel needs.
    ThreadPoolDevice::new(&name, 4 * TOTAL_BYTES_MAX, pool).ok()
}

/// Computes the output of a node that reads only constants; `None` if it does not, or fails.
fn compute(
    edit: &Edit<'_>,
    tools: &Tools<'_>,
    device: &dyn KernelDevice,
    values: &FxHashMap<NodeId, Tensor>,
    node: NodeId,
) -> Option<Tensor> {
    let graph = edit.graph();
    let inputs = graph
        .data_inputs(node)
        .map(|tensor| value(edit, device, values, tensor));
    let inputs: Vec<Tensor> = inputs.collect::<Option<_>>()?;
    let given: u64 = inputs.iter().map(|it| it.len_bytes() as u64).sum();
    if bytes_of_output(graph, node)? > given.max(GROWN_BYTES_MAX) {
        return None;
    }
    let kernel = create_kernel(tools.kernels, Some(tools.ops), graph, node, device).ok()?;
    if kernel.as_async().is_some() {
        return None;
    }
    let mut context = KernelContext::new(device, graph.node_name(node), inputs, &[false]);
    device.compute(&*kernel, &mut context).ok()?;
    let [output] = <[Tensor; 1]>::try_from(context.into_outputs().ok()?).ok()?;
    let expected = graph.tensor_shape(graph.output(node, 0)?).to_shape()?;
    (*output.shape() == expected && output.as_bytes().is_ok()).then_some(output)
}

/// Returns the value of a tensor in the memory of `device`, if it is constant and small.
fn value(
    edit: &Edit<'_>,
    device: &dyn KernelDevice,
    values: &FxHashMap<NodeId, Tensor>,
    tensor: TensorId,
) -> Option<Tensor> {
    if let Some(value) = values.get(&edit.graph().producer(tensor).0) {
        return Some(value.clone());
    }
    let (_, literal) = edit.constant(tensor)?;
    if literal.size_bytes() > TENSOR_BYTES_MAX {
        return None;
    }
    device
        .make_tensor(literal, AllocatorAttributes::default())
        .ok()
}

/// Returns a constant of this value in place of a node.
fn replacement(edit: &Edit<'_>, node: NodeId, value: &Tensor) -> Option<New> {
    let bytes = value.as_bytes().ok()?.to_vec();
    let data = LiteralData::Dense(Arc::new(bytes));
    let literal = Literal::new(value.dtype(), value.shape().clone(), data).ok()?;
    Some(New {
        outputs: edit.outputs(node),
        ..constant(literal)
    })
}

/// Returns a constant.
pub(super) fn constant(literal: Literal) -> New {
    let output = Output {
        dtype: literal.dtype(),
        is_ref: false,
        shape: PartialShape::from(literal.shape().clone()),
    };
    New {
        op: "Const",
        attrs: constant_attrs(literal),
        inputs: Vec::new(),
        outputs: vec![output],
    }
}

/// Returns the attributes of a constant.
fn constant_attrs(literal: Literal) -> AttrSet {
    let dtype = AttrValue::Type {
        dtype: literal.dtype(),
        is_ref: false,
    };
    AttrSet::new([
        ("dtype".into(), dtype),
        ("value".into(), AttrValue::Tensor(Arc::new(literal))),
    ])
}
