//! Transfers between devices: one per tensor and destination device.

use crate::candidates::Candidates;
use crate::candidates::PlanColumns;
use crate::graph::Graph;
use crate::graph::NONE;
use crate::graph::NodeId;
use crate::graph::TensorId;
use crate::names::DeviceId;

/// A copy of a tensor to one device, during a run, or before it if the producer does not run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Transfer {
    pub(super) tensor: u32,
    pub(super) destination: u32,
}

/// Visits each tensor once per other device that reads it, in node order. Reads each edge once.
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

/// One transfer in a run of the whole graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunTransfer {
    /// The tensor; `None` for a control dependency.
    pub tensor: Option<TensorId>,
    /// The sending device.
    pub source: DeviceId,
    /// The receiving device. It is the sending one if a tensor moves between the device's memory
    /// and host memory.
    pub destination: DeviceId,
}

impl RunTransfer {
    /// Returns the size in bytes: `None` if it is unknown before the run, 0 for a control
    /// dependency.
    pub fn bytes(&self, graph: &Graph) -> Option<u64> {
        match self.tensor {
            None => Some(0),
            Some(tensor) => graph
                .tensor_shape(tensor)
                .size_bytes(graph.tensor_dtypes()[tensor.index()]),
        }
    }
}

/// Visits the transfers of a run of the whole graph, in the order of the producers. These are the
/// transfers of the partitioned plan ([`crate::plan::ExecutionPlan::run_transfers`]): one per
/// tensor and memory that reads it, one per edge for a reference, and one per waiting device for a
/// control dependency. Constants and placeholders move nothing in a run: constants are copied to
/// their readers before it, and placeholders are fed there. Only streamed constants are copied in a
/// run, once for each reader.
pub(super) fn for_each_run_transfer(
    candidates: &Candidates,
    plan: PlanColumns<'_>,
    mut visit: impl FnMut(RunTransfer),
) {
    let devices = plan.devices;
    let graph = candidates.graph();
    let host_memory = candidates.host_memory();
    let has_two_memories: Vec<bool> = candidates
        .device_set()
        .iter()
        .map(|(_, device)| !device.attributes().has_one_memory())
        .collect();
    let successors = graph.successors();
    // Tensor, destination, whether it is read in host memory, and the edge of a transfer that
    // serves no other edge.
    let mut moved: Vec<(u32, u32, bool, u32)> = Vec::new();
    for producer in graph.nodes() {
        let source = devices[producer.index()];
        moved.clear();
        for position in successors.range(producer.index()) {
            let edge = graph.successor_edges()[position];
            let reader = NodeId(successors.items[position]);
            let destination = devices[reader.index()];
            let is_idle = plan.is_preloaded(graph, edge as usize) || graph.is_placeholder(reader);
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
                let is_own = graph.tensor_is_ref(id) || plan.is_streamed(graph, edge as usize);
                let own = if is_own { edge } else { NONE };
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
