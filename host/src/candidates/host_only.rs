//! Lists of elements that only exist in host memory (TensorFlow
//! `ColocationGraph::AddHostOnlyDataTypesConstraints`). A variant does not have an element type, so
//! the node that created the list is searched.

use std::ops::ControlFlow;

use hashbrown::HashSet;

use crate::candidates::tie::Tie;
use crate::graph::AttrValue;
use crate::graph::Graph;
use crate::graph::NONE;
use crate::graph::NodeId;
use crate::tensor::DType;

/// Visits the nodes that read a variant whose elements only exist in host memory.
pub(super) fn for_each_host_only<'g, B>(
    graph: &'g Graph,
    visit: &mut impl FnMut(Tie<'g>) -> ControlFlow<B>,
) -> ControlFlow<B> {
    let has_lists = graph.op_names().iter().any(|op| is_list_op(op));
    if !has_lists || !graph.tensor_dtypes().contains(&DType::Variant) {
        return ControlFlow::Continue(());
    }
    for node in graph.nodes() {
        if variant_inputs(graph, node).next().is_none() {
            continue;
        }
        if let Some((list, dtype)) = list_behind(graph, node)
            && is_always_on_host(dtype)
        {
            visit(Tie::HostOnly {
                node: node.0,
                list: list.0,
                dtype,
            })?;
        }
    }
    ControlFlow::Continue(())
}

/// Finds the first list op, backwards from the node along variants, that determines the element
/// type; an op on lists of lists does not.
fn list_behind(graph: &Graph, node: NodeId) -> Option<(NodeId, DType)> {
    let mut seen = HashSet::new();
    let mut stack = vec![node];
    while let Some(node) = stack.pop() {
        if !seen.insert(node) {
            continue;
        }
        if is_list_op(graph.op(node))
            && let Some(AttrValue::Type { dtype, .. }) = graph.attrs(node).get("element_dtype")
            && *dtype != DType::Variant
        {
            return Some((node, *dtype));
        }
        stack.extend(variant_inputs(graph, node));
    }
    None
}

fn variant_inputs(graph: &Graph, node: NodeId) -> impl Iterator<Item = NodeId> {
    graph.predecessors().range(node.index()).filter_map(|edge| {
        let tensor = graph.edge_tensors()[edge];
        let is_variant = tensor != NONE && graph.tensor_dtypes()[tensor as usize] == DType::Variant;
        is_variant.then(|| NodeId(graph.predecessors().items[edge]))
    })
}

fn is_list_op(op: &str) -> bool {
    op == "EmptyTensorList" || op.starts_with("TensorList")
}

/// TensorFlow `DataTypeAlwaysOnHost`.
fn is_always_on_host(dtype: DType) -> bool {
    matches!(dtype, DType::String | DType::Resource)
}
