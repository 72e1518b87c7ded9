//! Constants of branches and loops. Builders of TensorFlow 1 give each of them a control edge, so
//! that it is in the branch or loop of its reader. If another input of the reader says the same,
//! the edge only costs time: without it, the constant is made once, and kernels can prepack it.

use crate::graph::Graph;
use crate::graph::NONE;
use crate::graph::NodeId;
use crate::graph::TensorId;
use crate::graph::is_merge;
use crate::graph::is_switch;

/// How many nodes are followed from an input of a reader.
const STEPS_MAX: usize = 32;

/// Returns whether a graph has constants that wait for other nodes of a branch or loop.
pub(super) fn has_bound_constants(graph: &Graph) -> bool {
    graph.op_names().iter().any(|op| is_switch(op))
        && graph.nodes().any(|node| is_bound_constant(graph, node))
}

/// Returns per node whether it is a constant whose control edges can be left out.
pub(super) fn free_constants(graph: &Graph) -> Vec<bool> {
    if !has_bound_constants(graph) {
        return Vec::new();
    }
    let is_free = |node| is_bound_constant(graph, node) && is_implied(graph, node);
    graph.nodes().map(is_free).collect()
}

fn is_bound_constant(graph: &Graph, node: NodeId) -> bool {
    graph.op(node) == "Const" && !graph.predecessors().row(node.index()).is_empty()
}

/// Checks that each reader of a constant is dead whenever the constant is.
fn is_implied(graph: &Graph, constant: NodeId) -> bool {
    let waits_for = graph.predecessors().row(constant.index());
    let readers = graph.successors().range(constant.index());
    readers.into_iter().all(|position| {
        let edge = graph.successor_edges()[position] as usize;
        let reader = NodeId(graph.successors().items[position]);
        // A node that only waits for the constant, and one that chooses among its inputs.
        if graph.edge_tensors()[edge] == NONE || is_merge(graph.op(reader)) {
            return false;
        }
        waits_for.iter().all(|&node| {
            let inputs = graph.data_inputs(reader);
            let mut n_steps = 0;
            let mut others = inputs.filter(|&input| graph.producer(input).0 != constant);
            others.any(|input| follows(graph, input, NodeId(node), &mut n_steps))
        })
    })
}

/// Checks whether a tensor is dead whenever a node is.
fn follows(graph: &Graph, tensor: TensorId, node: NodeId, n_steps: &mut usize) -> bool {
    let (producer, slot) = graph.producer(tensor);
    if producer == node || has_condition(graph, node, (producer, slot), n_steps) {
        return true;
    }
    *n_steps += 1;
    if *n_steps > STEPS_MAX || is_merge(graph.op(producer)) {
        return false;
    }
    let mut inputs = graph.data_inputs(producer);
    inputs.any(|input| follows(graph, input, node, n_steps))
}

/// Checks whether output `slot` of a node is dead whenever `pivot` is. The node and what `pivot`
/// passes on are this output of two `Switch`es with the same predicate. `pivot` passes on the
/// predicate of a branch itself, or a tensor of which the predicate is computed: a variable of a
/// loop.
fn has_condition(
    graph: &Graph,
    pivot: NodeId,
    (switch, slot): (NodeId, usize),
    n_steps: &mut usize,
) -> bool {
    if !is_switch(graph.op(switch)) {
        return false;
    }
    let Some(passed) = graph.output(pivot, 0) else {
        return false;
    };
    let (source, side) = graph.producer(through_identities(graph, passed));
    if !is_switch(graph.op(source)) || side != slot {
        return false;
    }
    let predicate = |switch: NodeId| graph.data_inputs(switch).nth(1);
    let data = graph.data_inputs(source).next();
    let same = |first: Option<TensorId>, second: Option<TensorId>| match (first, second) {
        (Some(first), Some(second)) => {
            through_identities(graph, first) == through_identities(graph, second)
        }
        _ => false,
    };
    let (Some(data), Some(decides)) = (data, predicate(source)) else {
        return false;
    };
    same(Some(decides), predicate(switch))
        && (same(Some(data), Some(decides))
            || follows(graph, decides, graph.producer(data).0, n_steps))
}

fn through_identities(graph: &Graph, mut tensor: TensorId) -> TensorId {
    for _ in 0..STEPS_MAX {
        let (node, _) = graph.producer(tensor);
        match graph.data_inputs(node).next() {
            Some(input) if graph.op(node) == "Identity" => tensor = input,
            _ => break,
        }
    }
    tensor
}
