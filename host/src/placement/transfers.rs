//! What moves between devices: one transfer per tensor and destination device.

use crate::graph::Graph;
use crate::graph::NONE;

/// A tensor on its way to one device.
#[derive(Debug, Clone, Copy)]
pub(super) struct Transfer<'a> {
    pub(super) tensor: u32,
    pub(super) source: u32,
    pub(super) destination: u32,
    /// Its readers there; never empty.
    readers: &'a [(u32, u32, u32)],
}

impl Transfer<'_> {
    /// The nodes that read it there, one entry per edge.
    pub(super) fn readers(&self) -> impl Iterator<Item = usize> {
        self.readers.iter().map(|&(_, _, node)| node as usize)
    }
}

/// Visits each tensor once per other device that consumes it, in node order. Each edge is looked at once.
pub(super) fn for_each_transfer(
    graph: &Graph,
    devices: &[u32],
    mut visit: impl FnMut(Transfer<'_>),
) {
    let successors = graph.successors();
    // (tensor, destination, reader)
    let mut moved: Vec<(u32, u32, u32)> = Vec::new();
    for producer in graph.nodes() {
        let source = devices[producer.index()];
        moved.clear();
        for position in successors.range(producer.index()) {
            let reader = successors.items[position];
            let destination = devices[reader as usize];
            if destination == source {
                continue;
            }
            let tensor = graph.edge_tensors()[graph.successor_edges()[position] as usize];
            if tensor != NONE {
                moved.push((tensor, destination, reader));
            }
        }
        moved.sort_unstable();
        for readers in moved.chunk_by(|a, b| (a.0, a.1) == (b.0, b.1)) {
            let (tensor, destination, _) = readers[0];
            visit(Transfer {
                tensor,
                source,
                destination,
                readers,
            });
        }
    }
}
