//! What moves between devices: one transfer per tensor and destination device.

use crate::graph::Graph;
use crate::graph::NONE;
use crate::graph::NodeId;

/// Calls `visit(tensor, source, destination)` once per tensor and other device that consumes it, in node order.
pub(super) fn for_each_transfer(
    graph: &Graph,
    devices: &[u32],
    mut visit: impl FnMut(u32, u32, u32),
) {
    let successors = graph.successors();
    let mut moved: Vec<(u32, u32)> = Vec::new();
    for producer in graph.nodes() {
        let src = devices[producer.index()];
        moved.clear();
        for position in successors.range(producer.index()) {
            let dst = devices[successors.items[position] as usize];
            if dst == src {
                continue;
            }
            let tensor = graph.edge_tensors()[graph.successor_edges()[position] as usize];
            if tensor != NONE {
                moved.push((tensor, dst));
            }
        }
        if moved.len() > 1 {
            moved.sort_unstable();
            moved.dedup();
        }
        for &(tensor, dst) in &moved {
            visit(tensor, src, dst);
        }
    }
}

/// Bytes of a node's outputs that are not its resident state (a constant's output is its resident bytes).
pub(super) fn output_bytes(graph: &Graph, node: NodeId) -> u64 {
    if graph.resident_bytes()[node.index()] > 0 {
        return 0;
    }
    graph.tensor_bytes()[graph.output_range(node)]
        .iter()
        .fold(0, |sum: u64, &bytes| sum.saturating_add(bytes))
}
