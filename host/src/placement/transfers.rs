//! What moves between devices: one transfer per tensor and destination device.

use crate::graph::Graph;
use crate::graph::NONE;

/// A tensor on its way to one device.
#[derive(Debug, Clone, Copy)]
pub(super) struct Transfer {
    pub(super) tensor: u32,
    pub(super) destination: u32,
}

/// Visits each tensor once per other device that consumes it, in node order. Each edge is looked at once.
pub(super) fn for_each_transfer(graph: &Graph, devices: &[u32], mut visit: impl FnMut(Transfer)) {
    let successors = graph.successors();
    // (tensor, destination)
    let mut moved: Vec<(u32, u32)> = Vec::new();
    for producer in graph.nodes() {
        let source = devices[producer.index()];
        moved.clear();
        for position in successors.range(producer.index()) {
            let destination = devices[successors.items[position] as usize];
            if destination == source {
                continue;
            }
            let tensor = graph.edge_tensors()[graph.successor_edges()[position] as usize];
            if tensor != NONE {
                moved.push((tensor, destination));
            }
        }
        moved.sort_unstable();
        moved.dedup();
        for &(tensor, destination) in &moved {
            visit(Transfer {
                tensor,
                destination,
            });
        }
    }
}
