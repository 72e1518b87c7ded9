//! What moves between devices: one transfer per tensor and destination device.

use crate::candidates::Candidates;
use crate::graph::EdgeKind;
use crate::graph::Graph;
use crate::graph::NONE;
use crate::graph::NodeId;
use crate::graph::TensorId;
use crate::names::DeviceId;

/// A tensor on its way to one device, in a run or, if its producer does not run, before.
#[derive(Debug, Clone, Copy)]
pub(super) struct Transfer {
    pub(super) tensor: u32,
    pub(super) destination: u32,
}

/// Visits each tensor once per other device that consumes it, in node order. Each edge is looked at
/// once.
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

/// What a run of the whole graph moves once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunTransfer {
    /// The tensor; `None` where only control is carried.
    pub tensor: Option<TensorId>,
    /// The device that sends.
    pub source: DeviceId,
    /// The device that receives; the same where a tensor moves between a device's memory and the
    /// host's.
    pub destination: DeviceId,
}

impl RunTransfer {
    /// Bytes; `None` where unknown before the run, 0 for control.
    pub fn bytes(&self, graph: &Graph) -> Option<u64> {
        match self.tensor {
            None => Some(0),
            Some(tensor) => graph
                .tensor_shape(tensor)
                .size_bytes(graph.tensor_dtypes()[tensor.index()]),
        }
    }
}

/// Visits what a run of the whole graph moves, in the order of the producers: the transfers that
/// the cut of such a run has for each run ([`crate::plan::Plan::run_transfers`]). A tensor moves
/// once to each device and memory that reads it there, a reference once per edge, control once to
/// each device that waits. What does not run moves nothing: constants stand where they are read
/// before the run, placeholders are fed there.
pub(super) fn for_each_run_transfer(
    candidates: &Candidates,
    devices: &[u32],
    mut visit: impl FnMut(RunTransfer),
) {
    let graph = candidates.graph();
    let host_memory = candidates.host_memory();
    let has_two_memories: Vec<bool> = candidates
        .device_set()
        .iter()
        .map(|(_, device)| device.attributes().device_type != "CPU")
        .collect();
    let successors = graph.successors();
    // Tensor, destination, whether to host memory, and, of references, the edge.
    let mut moved: Vec<(u32, u32, bool, u32)> = Vec::new();
    for producer in graph.nodes() {
        let source = devices[producer.index()];
        moved.clear();
        for position in successors.range(producer.index()) {
            let edge = graph.successor_edges()[position];
            let reader = NodeId(successors.items[position]);
            let destination = devices[reader.index()];
            let is_idle = graph.edge_kinds()[edge as usize] & EdgeKind::PRELOADED != 0
                || graph.is_placeholder(reader);
            if is_idle || (source == destination && !has_two_memories[source as usize]) {
                continue;
            }
            let tensor = graph.edge_tensors()[edge as usize];
            if tensor == NONE {
                if source != destination {
                    moved.push((NONE, destination, false, NONE));
                }
                continue;
            }
            let id = TensorId(tensor);
            let slot = edge as usize - graph.predecessors().range(reader.index()).start;
            let to_host = has_two_memories[destination as usize]
                && host_memory.reads_on_host(graph, reader, DeviceId(destination), slot, id);
            let from_host = has_two_memories[source as usize]
                && host_memory.writes_on_host(graph, DeviceId(source), id);
            if (source, from_host) != (destination, to_host) {
                let own = if graph.tensor_is_ref(id) { edge } else { NONE };
                moved.push((tensor, destination, to_host, own));
            }
        }
        moved.sort_unstable();
        moved.dedup();
        for &(tensor, destination, ..) in &moved {
            visit(RunTransfer {
                tensor: (tensor != NONE).then_some(TensorId(tensor)),
                source: DeviceId(source),
                destination: DeviceId(destination),
            });
        }
    }
}
