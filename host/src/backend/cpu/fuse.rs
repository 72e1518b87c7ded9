//! Which nodes a CPU device computes together.

use std::sync::Arc;

use crate::device::FusedNode;
use crate::device::PartitionGraph;
use crate::graph::AttrSet;
use crate::graph::AttrValue;
use crate::graph::NodeId;
use crate::tensor::DType;

/// The attribute that says what follows a product, as TensorFlow's fused ops have it.
pub(super) const FUSED_OPS: &str = "fused_ops";

/// Types of which there are fused kernels.
const FUSED_TYPES: [DType; 4] = [DType::F32, DType::F64, DType::F16, DType::BF16];

/// Replaces products that only a bias reads, and a bias that only an activation reads, by one kernel each: the sums stay in the
/// cache, and there are fewer nodes. The same operations in the same order, so the same numbers.
pub(super) fn fuse_products(graph: &mut PartitionGraph<'_>) {
    let nodes: Vec<NodeId> = graph.nodes().collect();
    // The longer chains first.
    for &node in &nodes {
        if matches!(graph.graph().op(node), "Relu" | "Relu6")
            && let Some((bias, _)) = graph.input_node(node, 0)
            && graph.is_read_only_by(bias, node)
        {
            fuse_bias(graph, bias, Some(node));
        }
    }
    for &node in &nodes {
        fuse_bias(graph, node, None);
    }
}

fn fuse_bias(graph: &mut PartitionGraph<'_>, bias: NodeId, activation: Option<NodeId>) {
    let all = graph.graph();
    let is_last_axis = |node| matches!(all.attrs(node).text("data_format"), None | Some("NHWC"));
    if all.op(bias) != "BiasAdd" || !is_last_axis(bias) {
        return;
    }
    let Some((product, _)) = graph.input_node(bias, 0) else {
        return;
    };
    let op = match all.op(product) {
        "MatMul" => "_FusedMatMul",
        "Conv2D" if is_last_axis(product) => "_FusedConv2D",
        _ => return,
    };
    let dtype = all.attrs(product).dtype("T");
    let nodes = [Some(product), Some(bias), activation];
    let nodes: Vec<NodeId> = nodes.into_iter().flatten().collect();
    // Kernels that an app has put in the place of ours are called.
    if !graph.is_read_only_by(product, bias)
        || !dtype.is_some_and(|dtype| FUSED_TYPES.contains(&dtype))
        || !nodes.iter().all(|&node| graph.has_plain_kernel(node))
    {
        return;
    }
    let follow = nodes[1..].iter().map(|&node| AttrValue::from(all.op(node)));
    let follow = (FUSED_OPS.into(), AttrValue::List(follow.collect()));
    let n_args = ("num_args".into(), AttrValue::Int(1));
    let own = all.attrs(product).iter();
    let own = own.map(|(name, value)| (Arc::from(name), value.clone()));
    let fused = FusedNode {
        op: op.to_owned(),
        attrs: AttrSet::new(own.chain([follow, n_args])),
        inputs: vec![(product, 0), (product, 1), (bias, 1)],
        nodes,
    };
    // Refused where one of them is part of another already.
    let _ = graph.fuse(fused);
}
