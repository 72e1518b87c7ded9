//! Which nodes of a graph are in branches and loops that have the form of `Switch` and `Enter`.

use crate::graph::Graph;
use crate::graph::NodeId;
use crate::graph::is_enter;
use crate::graph::is_switch;

/// The nodes of a graph that are in a branch or loop which is written with `Switch` or `Enter`, or
/// behind one.
pub(super) struct Conditional {
    /// Per node; `None` if the graph has no such branches and loops.
    nodes: Option<Vec<bool>>,
}

impl Conditional {
    pub(super) fn of(graph: &Graph) -> Self {
        let mut ops = graph.op_names().iter();
        let has_any = ops.any(|op| is_switch(op) || is_enter(op));
        Self {
            nodes: has_any.then(|| vec![false; graph.n_nodes()]),
        }
    }

    /// Adds the next node, in topological order. Returns whether one of its inputs is conditional.
    pub(super) fn add(&mut self, graph: &Graph, node: NodeId) -> bool {
        let Some(nodes) = &mut self.nodes else {
            return false;
        };
        let inputs = graph.predecessors().row(node.index());
        let has_conditional_input = inputs.iter().any(|&input| nodes[input as usize]);
        let op = graph.op(node);
        nodes[node.index()] = has_conditional_input || is_switch(op) || is_enter(op);
        has_conditional_input
    }
}
