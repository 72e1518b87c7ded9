//! Placement hints: where TensorFlow's placer deviates from item 0.

use crate::candidates::columns::PlacementHint;
use crate::graph::Graph;
use crate::graph::NONE;
use crate::graph::NodeId;

const METADATA_OPS: [&str; 3] = ["Shape", "Size", "Rank"];

const CALL_OPS: [&str; 4] = [
    "PartitionedCall",
    "StatefulPartitionedCall",
    "SymbolicGradient",
    "RemoteCall",
];

/// Adds the hints of every node to `hints`; gives for metadata ops the producer of the first input.
pub(super) fn fill_hints(graph: &Graph, hints: &mut [u8]) -> Vec<u32> {
    let bit = |set: bool, bit: u8| if set { bit } else { 0 };
    let ops = graph.op_names().iter().map(AsRef::as_ref);
    let of_op: Vec<u8> = ops
        .map(|op: &str| {
            let is_call = CALL_OPS.contains(&op) || graph.find_function(op).is_some();
            bit(is_call, PlacementHint::FUNCTION_CALL)
                | bit(METADATA_OPS.contains(&op), PlacementHint::METADATA)
        })
        .collect();
    let classes = graph.classes().iter();
    let of_class: Vec<u8> = classes
        .map(|class| of_op[class.op as usize] | bit(class.stateful, PlacementHint::STATEFUL))
        .collect();
    let mut follow = vec![NONE; graph.n_nodes()];
    for node in graph.nodes() {
        let index = node.index();
        let bits = of_class[graph.class_ids()[index] as usize];
        if bits & PlacementHint::METADATA != 0 {
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

/// No data inputs (control inputs do not count) and one output that is no reference.
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
