//! Fuses matmuls and convolutions with the bias, sum and activation that follow: TensorFlow's
//! `_FusedMatMul`, `_FusedConv2D` and `_FusedDepthwiseConv2dNative`.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::backend::plan::attr::bad_attr;
use crate::device::FusedNode;
use crate::device::KernelConstruction;
use crate::device::KernelError;
use crate::device::PartitionGraph;
use crate::graph::AttrSet;
use crate::graph::AttrValue;
use crate::graph::Graph;
use crate::graph::NodeId;
use crate::tensor::DType;
use crate::tensor::PartialShape;
use crate::tensor::Shape;

const DEPTHWISE: &str = "DepthwiseConv2dNative";

/// TensorFlow's name of the fused op.
const FUSED_DEPTHWISE: &str = "_FusedDepthwiseConv2dNative";

/// The attribute that lists the fused ops, as in TensorFlow's fused ops.
const FUSED_OPS: &str = "fused_ops";

/// What the fused kernels of a device compute.
#[derive(Debug, Clone, Copy)]
pub(super) struct Epilogues<'a> {
    /// The types that they support.
    pub(super) types: &'a [DType],
    /// The types for which they add a tensor of the shape of the result after the bias.
    pub(super) added_types: &'a [DType],
    /// Whether there are fused depthwise convolutions. These add no tensor.
    pub(super) has_depthwise: bool,
    /// Returns whether they support an op with one input.
    pub(super) is_activation: fn(&str) -> bool,
}

/// Fuses each matmul or convolution that only a bias reads with that bias, with the sum if only
/// that reads the bias, and with the activation if only that reads the one before. The sums stay in
/// registers or in the cache, and there are fewer nodes. The same operations run in the same order,
/// so the result is the same, except that f16 and bf16 are rounded only once, at the end.
pub(super) fn fuse_epilogues(graph: &mut PartitionGraph<'_>, device: Epilogues<'_>) {
    let nodes: Vec<NodeId> = graph.nodes().collect();
    // The longer chains first.
    for &node in &nodes {
        if (device.is_activation)(graph.graph().op(node))
            && let Some((before, _)) = graph.input_node(node, 0)
            && graph.is_read_only_by(before, node)
        {
            let activation = Some(Activation {
                op: graph.graph().op(node),
                nodes: &[node],
            });
            fuse_sum(graph, device, before, activation);
            fuse_bias(graph, device, before, None, activation);
        }
    }
    for &node in &nodes {
        fuse_sum(graph, device, node, None);
    }
    for &node in &nodes {
        fuse_bias(graph, device, node, None, None);
    }
}

/// What follows the sums.
#[derive(Debug, Clone, Copy)]
pub(super) struct Activation<'a> {
    /// Its name in fused ops.
    pub(super) op: &'a str,
    /// Its nodes, in order. Only they read the sums.
    pub(super) nodes: &'a [NodeId],
}

/// A sum whose operand `index` is not a bias.
type Sum = (NodeId, usize);

/// Fuses a sum with the bias that it reads.
fn fuse_sum(
    graph: &mut PartitionGraph<'_>,
    device: Epilogues<'_>,
    sum: NodeId,
    activation: Option<Activation<'_>>,
) {
    if device.added_types.is_empty() || !matches!(graph.graph().op(sum), "Add" | "AddV2") {
        return;
    }
    // If both operands are such chains, the later one reads the result of the other.
    let operands = [0, 1].map(|index| (graph.input_node(sum, index).map(|(node, _)| node), index));
    let mut operands = operands.map(|(node, index)| (node, 1 - index));
    operands.sort_by_key(|(node, _)| std::cmp::Reverse(*node));
    for (node, other) in operands {
        if let Some(bias) = node
            && graph.is_read_only_by(bias, sum)
            && have_same_shape(graph.graph(), sum)
        {
            fuse_bias(graph, device, bias, Some((sum, other)), activation);
        }
    }
}

/// Returns whether the operands of a node have the shape of its result, as far as that is known.
fn have_same_shape(graph: &Graph, node: NodeId) -> bool {
    let Some(result) = graph.output(node, 0).map(|it| graph.tensor_shape(it)) else {
        return false;
    };
    let mut operands = graph.data_inputs(node);
    result.rank().is_some() && operands.all(|operand| graph.tensor_shape(operand) == result)
}

/// Returns which input of a node is a bias per column, and which the matrix.
pub(super) fn bias_inputs(graph: &Graph, node: NodeId) -> Option<(usize, usize)> {
    match graph.op(node) {
        "BiasAdd" => is_last_axis(graph, node).then_some((1, 0)),
        // As Keras writes it for products.
        "Add" | "AddV2" => {
            let shapes: Vec<PartialShape> = graph
                .data_inputs(node)
                .map(|tensor| graph.tensor_shape(tensor))
                .collect();
            [(1, 0), (0, 1)].into_iter().find(|&(bias, matrix)| {
                let dims = (shapes[bias].dims(), shapes[matrix].dims());
                matches!(dims, (Some(&[Some(n)]), Some([_, .., Some(last)])) if n == *last)
            })
        }
        _ => None,
    }
}

fn is_last_axis(graph: &Graph, node: NodeId) -> bool {
    matches!(graph.attrs(node).text("data_format"), None | Some("NHWC"))
}

/// Fuses a bias with the matmul or convolution that it follows. Returns whether they are.
pub(super) fn fuse_bias(
    graph: &mut PartitionGraph<'_>,
    device: Epilogues<'_>,
    bias: NodeId,
    sum: Option<Sum>,
    activation: Option<Activation<'_>>,
) -> bool {
    // Most are: the longer chains took them.
    if graph.is_replaced(bias) {
        return false;
    }
    let all = graph.graph();
    let is_last_axis = |node| is_last_axis(all, node);
    let Some((bias_input, base_input)) = bias_inputs(all, bias) else {
        return false;
    };
    let Some((base, _)) = graph.input_node(bias, base_input) else {
        return false;
    };
    let op = match all.op(base) {
        "MatMul" => "_FusedMatMul",
        "Conv2D" if is_last_axis(base) => "_FusedConv2D",
        DEPTHWISE if is_last_axis(base) && device.has_depthwise && sum.is_none() => FUSED_DEPTHWISE,
        _ => return false,
    };
    let types = match sum {
        Some(_) => device.added_types,
        None => device.types,
    };
    let dtype = all.attrs(base).dtype("T");
    let chain = [Some(base), Some(bias), sum.map(|(sum, _)| sum)];
    let chain: SmallVec<[NodeId; 3]> = chain.into_iter().flatten().collect();
    let mut nodes = chain.to_vec();
    nodes.extend(activation.iter().flat_map(|it| it.nodes));
    // Not fused if an app has registered a kernel in place of the default one.
    if !graph.is_read_only_by(base, bias)
        || !dtype.is_some_and(|dtype| types.contains(&dtype))
        || !nodes.iter().all(|&node| graph.has_plain_kernel(node))
    {
        return false;
    }
    // TensorFlow's names in fused ops.
    let follow = [
        Some("BiasAdd"),
        sum.map(|_| "Add"),
        activation.map(|it| it.op),
    ];
    let follow = follow.into_iter().flatten().map(AttrValue::from);
    let follow = (FUSED_OPS.into(), AttrValue::List(follow.collect()));
    let n_args = 1 + i64::from(sum.is_some());
    let n_args = ("num_args".into(), AttrValue::Int(n_args));
    let own = all.attrs(base).iter();
    let own = own.map(|(name, value)| (Arc::from(name), value.clone()));
    let mut inputs = vec![(base, 0), (base, 1), (bias, bias_input)];
    inputs.extend(sum);
    let fused = FusedNode {
        op: op.to_owned(),
        attrs: AttrSet::new(own.chain([follow, n_args])),
        inputs,
        nodes,
    };
    // Fails if one of the nodes is already part of a fused node.
    graph.fuse(fused).is_ok()
}

/// What follows the bias of a fused node.
#[derive(Debug, Clone, Copy)]
pub(super) struct FusedOps<'a> {
    /// Whether the input after the bias is added.
    pub(super) has_addend: bool,
    /// The last op, if it is an activation.
    pub(super) activation: Option<&'a str>,
}

/// Returns what follows the bias of a fused node.
///
/// # Errors
/// [`KernelError::InvalidArgument`] if the list contains anything else.
pub(super) fn fused_ops<'a>(
    node: &KernelConstruction<'a>,
    is_activation: impl Fn(&str) -> bool,
) -> Result<FusedOps<'a>, KernelError> {
    let fused_ops = node.attrs.list(FUSED_OPS).unwrap_or(&[]);
    let names: Option<SmallVec<[&str; 3]>> = fused_ops
        .iter()
        .map(|op| match op {
            AttrValue::Bytes(name) => std::str::from_utf8(name).ok(),
            _ => None,
        })
        .collect();
    let (has_addend, rest) = match names.as_deref() {
        Some(["BiasAdd", "Add", rest @ ..]) => (true, rest),
        Some(["BiasAdd", rest @ ..]) => (false, rest),
        _ => return Err(bad_fused_ops(node)),
    };
    let activation = match rest {
        [] => None,
        [activation] if is_activation(activation) => Some(*activation),
        _ => return Err(bad_fused_ops(node)),
    };
    Ok(FusedOps {
        has_addend,
        activation,
    })
}

/// Returns the error for a list of ops that the device does not support.
pub(super) fn bad_fused_ops(node: &KernelConstruction<'_>) -> KernelError {
    bad_attr(
        node,
        FUSED_OPS,
        "list of BiasAdd, a sum and at most one activation, as far as the device supports them",
    )
}

/// # Errors
/// [`KernelError::InvalidArgument`] if the bias does not have one number per column of the result.
pub(super) fn check_bias(bias: &Shape, base: &Shape) -> Result<(), KernelError> {
    let columns = base.dims().last();
    if bias.dims() == columns.map_or(&[][..], std::slice::from_ref) {
        return Ok(());
    }
    Err(KernelError::invalid(format!(
        "Must provide as many biases as the last dimension of the input tensor: {bias} vs. {base}"
    )))
}
