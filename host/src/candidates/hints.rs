//! Placement hints: the nodes for which TensorFlow's placer does not choose item 0.

use crate::candidates::columns::PlacementHint;
use crate::graph::Graph;
use crate::graph::NONE;
use crate::graph::NodeId;
use crate::names::DeviceName;
use crate::ops::CallOp;

const METADATA_OPS: [&str; 3] = ["Shape", "Size", "Rank"];

/// Identity ops (TensorFlow `Node::IsIdentity`).
const IDENTITY_OPS: [&str; 2] = ["Identity", "RefIdentity"];

/// Adds the hints of every node to `hints`. Returns the producer of the first input for nodes that
/// follow a producer.
pub(super) fn fill_hints(
    graph: &Graph,
    pinned: &[u32],
    scope: &DeviceName,
    hints: &mut [u8],
) -> Vec<u32> {
    let bit = |set: bool, bit: u8| if set { bit } else { 0 };
    let ops = graph.op_names().iter().map(AsRef::as_ref);
    let of_op: Vec<u8> = ops
        .map(|op: &str| {
            let is_call = CallOp::of(op).is_some_and(CallOp::is_function_call)
                || graph.find_function(op).is_some();
            bit(is_call, PlacementHint::FUNCTION_CALL)
                | bit(METADATA_OPS.contains(&op), PlacementHint::METADATA)
                | bit(IDENTITY_OPS.contains(&op), PlacementHint::MATCHING_IDENTITY)
        })
        .collect();
    let classes = graph.classes().iter();
    let of_class: Vec<u8> = classes
        .map(|class| of_op[class.op as usize] | bit(class.stateful, PlacementHint::STATEFUL))
        .collect();
    let identities = Identities::of(graph, scope);
    let mut follow = vec![NONE; graph.n_nodes()];
    for node in graph.nodes() {
        let index = node.index();
        let mut bits = of_class[graph.class_ids()[index] as usize];
        if bits & PlacementHint::MATCHING_IDENTITY != 0
            && (pinned[index] != NONE || !identities.is_matching(node))
        {
            bits &= !PlacementHint::MATCHING_IDENTITY;
        }
        if bits & (PlacementHint::METADATA | PlacementHint::MATCHING_IDENTITY) != 0 {
            let first = graph.predecessors().row(index).first();
            follow[index] = first.copied().unwrap_or(NONE);
        }
        hints[index] |= bits;
        if is_generator(graph, node) {
            hints[index] |= PlacementHint::GENERATOR;
        }
    }
    follow
}

/// Finds the identities that follow their producers. TensorFlow's graph has a sink without a
/// request, with an edge from every node without successors. It has only one of several equal
/// control edges between two nodes.
struct Identities<'a> {
    graph: &'a Graph,
    /// Only the nodes' own requests count; inside a device scope every node has a request.
    is_unscoped: bool,
    /// Producers of back edges, sorted.
    closing: Vec<u32>,
}

impl<'a> Identities<'a> {
    fn of(graph: &'a Graph, scope: &DeviceName) -> Self {
        let mut closing: Vec<u32> = graph
            .back_edges()
            .chunks_exact(2)
            .map(|edge| edge[0])
            .collect();
        closing.sort_unstable();
        Self {
            graph,
            is_unscoped: *scope == DeviceName::default(),
            closing,
        }
    }

    fn is_matching(&self, node: NodeId) -> bool {
        let graph = self.graph;
        let &[producer] = graph.predecessors().row(node.index()) else {
            return false;
        };
        self.is_unscoped
            && graph.requested(node).is_empty()
            && self.requested_by_successor(node) == Some(graph.requested(NodeId(producer)))
    }

    /// Returns the request of the only successor, if there is only one edge.
    fn requested_by_successor(&self, node: NodeId) -> Option<&'a str> {
        let graph = self.graph;
        if self.closing.binary_search(&node.0).is_ok() {
            return None;
        }
        let edges = graph.successors().range(node.index());
        let consumers = graph.successors().row(node.index());
        let Some((&first, rest)) = consumers.split_first() else {
            return graph.sinkless().binary_search(&node).is_err().then_some("");
        };
        let is_control = |position: usize| {
            graph.edge_tensors()[graph.successor_edges()[position] as usize] == NONE
        };
        let is_repeated =
            rest.iter().all(|&consumer| consumer == first) && edges.clone().all(is_control);
        (rest.is_empty() || is_repeated).then(|| graph.requested(NodeId(first)))
    }
}

/// Whether a node has no data inputs (control inputs do not count) and one output that is not a
/// reference.
pub(super) fn is_generator(graph: &Graph, node: NodeId) -> bool {
    let inputs = graph.predecessors().range(node.index());
    let has_data_input = !inputs.is_empty() && graph.edge_tensors()[inputs.start] != NONE;
    let outputs = graph.output_range(node);
    !has_data_input
        && outputs.len() == 1
        && graph
            .output(node, 0)
            .is_some_and(|tensor| !graph.tensor_is_ref(tensor))
}
