//! Fuses matmuls and convolutions with the bias and activation that follow: TensorFlow's
//! `_FusedMatMul` and `_FusedConv2D`.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::backend::plan::attr::bad_attr;
use crate::device::FusedNode;
use crate::device::KernelConstruction;
use crate::device::KernelError;
use crate::device::PartitionGraph;
use crate::graph::AttrSet;
use crate::graph::AttrValue;
use crate::graph::NodeId;
use crate::tensor::DType;
use crate::tensor::Shape;

/// The attribute that lists the fused ops, as in TensorFlow's fused ops.
const FUSED_OPS: &str = "fused_ops";

/// Fuses each matmul or convolution that only a bias reads with that bias, and with the activation
/// if only that reads the bias. The sums stay in registers or in the cache, and there are fewer
/// nodes. The same operations run in the same order, so the result is the same, except that f16 and
/// bf16 are rounded only once, at the end.
///
/// `types`: the types for which the device has fused kernels. `is_activation` checks whether these
/// support an op with one input.
pub(super) fn fuse_epilogues(
    graph: &mut PartitionGraph<'_>,
    types: &[DType],
    is_activation: impl Fn(&str) -> bool,
) {
    let nodes: Vec<NodeId> = graph.nodes().collect();
    // The longer chains first.
    for &node in &nodes {
        if is_activation(graph.graph().op(node))
            && let Some((bias, _)) = graph.input_node(node, 0)
            && graph.is_read_only_by(bias, node)
        {
            fuse_bias(graph, types, bias, Some(node));
        }
    }
    for &node in &nodes {
        fuse_bias(graph, types, node, None);
    }
}

fn fuse_bias(
    graph: &mut PartitionGraph<'_>,
    types: &[DType],
    bias: NodeId,
    activation: Option<NodeId>,
) {
    // Most are: the longer chains took them.
    if graph.is_replaced(bias) {
        return;
    }
    let all = graph.graph();
    let is_last_axis = |node| matches!(all.attrs(node).text("data_format"), None | Some("NHWC"));
    if all.op(bias) != "BiasAdd" || !is_last_axis(bias) {
        return;
    }
    let Some((base, _)) = graph.input_node(bias, 0) else {
        return;
    };
    let op = match all.op(base) {
        "MatMul" => "_FusedMatMul",
        "Conv2D" if is_last_axis(base) => "_FusedConv2D",
        _ => return,
    };
    let dtype = all.attrs(base).dtype("T");
    let nodes = [Some(base), Some(bias), activation];
    let nodes: Vec<NodeId> = nodes.into_iter().flatten().collect();
    // Not fused if an app has registered a kernel in place of the default one.
    if !graph.is_read_only_by(base, bias)
        || !dtype.is_some_and(|dtype| types.contains(&dtype))
        || !nodes.iter().all(|&node| graph.has_plain_kernel(node))
    {
        return;
    }
    let follow = nodes[1..].iter().map(|&node| AttrValue::from(all.op(node)));
    let follow = (FUSED_OPS.into(), AttrValue::List(follow.collect()));
    let n_args = ("num_args".into(), AttrValue::Int(1));
    let own = all.attrs(base).iter();
    let own = own.map(|(name, value)| (Arc::from(name), value.clone()));
    let fused = FusedNode {
        op: op.to_owned(),
        attrs: AttrSet::new(own.chain([follow, n_args])),
        inputs: vec![(base, 0), (base, 1), (bias, 1)],
        nodes,
    };
    // Fails if one of the nodes is already part of a fused node.
    let _ = graph.fuse(fused);
}

/// Returns the activation of a fused node, if it has one.
///
/// # Errors
/// [`KernelError::InvalidArgument`] if the list contains anything else.
pub(super) fn activation<'a>(
    node: &KernelConstruction<'a>,
    is_activation: impl Fn(&str) -> bool,
) -> Result<Option<&'a str>, KernelError> {
    let fused_ops = node.attrs.list(FUSED_OPS).unwrap_or(&[]);
    let names: Option<SmallVec<[&str; 2]>> = fused_ops
        .iter()
        .map(|op| match op {
            AttrValue::Bytes(name) => std::str::from_utf8(name).ok(),
            _ => None,
        })
        .collect();
    match names.as_deref() {
        Some(["BiasAdd"]) => Ok(None),
        Some(["BiasAdd", activation]) if is_activation(activation) => Ok(Some(activation)),
        _ => Err(bad_attr(
            node,
            FUSED_OPS,
            "list of BiasAdd and at most one activation that the device supports",
        )),
    }
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
