//! Fuses transpositions with batched matmuls, which read and write by strides anyway.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::constant_ints;
use crate::backend::source::kernels::transposed;
use crate::device::FusedNode;
use crate::device::PartitionGraph;
use crate::graph::AttrSet;
use crate::graph::AttrValue;
use crate::graph::NodeId;

/// Replaces matmuls by ones that read their operands before the transposition, and write their
/// result after it.
pub(super) fn fuse(graph: &mut PartitionGraph<'_>) {
    let nodes: Vec<NodeId> = graph.nodes().collect();
    let order: FxHashMap<NodeId, usize> = nodes.iter().copied().zip(0..).collect();
    // Matmuls with a transposed result come first: the transposition is then the root of the fused
    // node.
    for &node in &nodes {
        if let Some(permutation) = permutation(graph, node)
            && keeps_rows(&permutation)
            && let Some((matmul, _)) = graph.input_node(node, 0)
            && is_batch_matmul(graph, matmul)
            && graph.is_read_only_by(matmul, node)
        {
            around(graph, matmul, Some((node, permutation)), &order);
        }
    }
    for &node in &nodes {
        if is_batch_matmul(graph, node) {
            around(graph, node, None, &order);
        }
    }
}

/// Returns whether a node is a batched matmul. If all batches share one right side and nothing is
/// transposed, one matmul with many rows is faster.
fn is_batch_matmul(graph: &PartitionGraph<'_>, node: NodeId) -> bool {
    let all = graph.graph();
    let right = all.data_inputs(node).nth(1);
    let right = right.map(|tensor| all.tensor_shape(tensor));
    let batch = right
        .as_ref()
        .and_then(|shape| shape.dims()?.split_last_chunk::<2>());
    matches!(all.op(node), "BatchMatMul" | "BatchMatMulV2")
        && batch.is_some_and(|(batch, _)| batch.iter().any(|size| size.is_some_and(|n| n > 1)))
        && graph.has_plain_kernel(node)
        && !graph.is_replaced(node)
}

/// Returns whether a transposition keeps the elements of a row adjacent.
fn keeps_rows(axes: &[usize]) -> bool {
    axes.last() == Some(&(axes.len() - 1))
}

/// Returns the constant permutation of a transposition.
fn permutation(graph: &PartitionGraph<'_>, node: NodeId) -> Option<Vec<usize>> {
    if graph.graph().op(node) != "Transpose" || !graph.has_plain_kernel(node) {
        return None;
    }
    let axes = constant_ints(graph, node, 1)?;
    let axes = axes.into_iter().map(|axis| usize::try_from(axis).ok());
    let axes: Vec<usize> = axes.collect::<Option<_>>()?;
    (axes.len() >= 2 && transposed::is_permutation(&axes)).then_some(axes)
}

/// Fuses a matmul with transpositions before and after it.
fn around(
    graph: &mut PartitionGraph<'_>,
    matmul: NodeId,
    output: Option<(NodeId, Vec<usize>)>,
    order: &FxHashMap<NodeId, usize>,
) {
    let mut nodes = vec![matmul];
    let mut permutations: [Vec<usize>; 3] = Default::default();
    let mut inputs = Vec::new();
    for (side, own) in permutations[..2].iter_mut().enumerate() {
        let transposition = graph
            .input_node(matmul, side)
            .filter(|&(node, _)| graph.is_read_only_by(node, matmul) && !graph.is_replaced(node));
        let found = transposition.and_then(|(node, _)| Some((node, permutation(graph, node)?)));
        // Adjacent elements of a row of the left side are read one after the other, for each panel
        // of the right side.
        let found = found.filter(|(_, axes)| side == 1 || keeps_rows(axes));
        if let Some((node, permutation)) = found {
            *own = permutation;
            nodes.push(node);
            inputs.push((node, 0));
        } else {
            inputs.push((matmul, side));
        }
    }
    if let Some((node, permutation)) = output {
        nodes.push(node);
        permutations[2] = permutation;
    }
    nodes.sort_by_key(|node| order.get(node));
    // Both sides may read the same transposed tensor.
    nodes.dedup();
    if nodes.len() == 1 {
        return;
    }
    let all = graph.graph();
    let attrs = all.attrs(matmul).iter();
    let attrs = attrs.map(|(name, value)| (Arc::from(name), value.clone()));
    let broadcasts = AttrValue::Bool(all.op(matmul) != "BatchMatMul");
    let transposes = transposed::PERMUTATIONS.into_iter().zip(permutations);
    let transposes = transposes.map(|(name, axes)| {
        let axes = axes
            .into_iter()
            .map(|axis| i64::try_from(axis).unwrap_or(-1));
        (
            Arc::from(name),
            AttrValue::List(axes.map(AttrValue::Int).collect()),
        )
    });
    let attrs = attrs
        .chain([(transposed::BROADCASTS.into(), broadcasts)])
        .chain(transposes);
    let fused = FusedNode {
        op: transposed::OP.to_owned(),
        attrs: AttrSet::new(attrs),
        inputs,
        nodes,
    };
    // Fails if one of the nodes is already part of a fused node.
    let _ = graph.fuse(fused);
}
