//! How much memory a schedule needs: start and finish of every node in, the most bytes per device out.

use crate::candidates::Candidates;
use crate::graph::Graph;
use crate::graph::NodeId;
use crate::graph::TensorId;
use crate::placement::estimate::Estimate;
use crate::placement::estimate::transfer_ns;
use crate::placement::transfers::for_each_transfer;
use crate::tensor::DType;

/// Per device the most bytes at one time: resident state, outputs from the start of their producer to the end of their last
/// consumer, copies from their arrival on, and workspaces. Sweeps over allocations and releases; at one instant releases come
/// first.
pub(super) fn peak_bytes(
    candidates: &Candidates,
    devices: &[u32],
    estimate: &Estimate,
) -> Vec<u64> {
    let graph = candidates.graph();
    let mut events: Vec<(f64, bool, u32, u64)> = Vec::new();
    let mut lives = |device: u32, from_ns: f64, to_ns: f64, bytes: u64| {
        if bytes > 0 {
            events.push((from_ns, true, device, bytes));
            events.push((to_ns, false, device, bytes));
        }
    };
    let mut held = vec![0u64; candidates.n_devices()];
    for node in graph.nodes() {
        let index = node.index();
        let device = devices[index];
        let resident = &mut held[device as usize];
        *resident = resident.saturating_add(graph.resident_bytes()[index]);
        let (start, finish) = (estimate.starts_ns[index], estimate.finish_ns[index]);
        lives(device, start, finish, graph.workspace_bytes()[index]);
        let last = graph
            .successors()
            .row(index)
            .iter()
            .map(|&consumer| estimate.finish_ns[consumer as usize])
            .fold(finish, f64::max);
        lives(device, start, last, output_bytes(graph, node));
    }
    for_each_transfer(graph, devices, |transfer| {
        let (tensor, destination) = (transfer.tensor, transfer.destination);
        let producer = graph.tensor_nodes()[tensor as usize] as usize;
        let arrival = estimate.finish_ns[producer]
            + transfer_ns(candidates, tensor, transfer.source, destination);
        let last = transfer
            .readers()
            .map(|reader| estimate.finish_ns[reader])
            .fold(arrival, f64::max);
        let bytes = graph.tensor_bytes()[tensor as usize];
        lives(destination, arrival, last, bytes);
    });
    events.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let mut peak = held.clone();
    for (_, allocates, device, bytes) in events {
        let now = &mut held[device as usize];
        if allocates {
            *now = now.saturating_add(bytes);
            peak[device as usize] = peak[device as usize].max(*now);
        } else {
            *now = now.saturating_sub(bytes);
        }
    }
    peak
}

/// Bytes of a node's outputs that it allocates when it runs. A constant hands out its resident bytes; references and resources
/// stand for state that is counted as resident where it lives.
fn output_bytes(graph: &Graph, node: NodeId) -> u64 {
    if graph.resident_bytes()[node.index()] > 0 && graph.op(node) == "Const" {
        return 0;
    }
    graph
        .output_range(node)
        .filter(|&tensor| {
            let id = TensorId(crate::placement::to_u32(tensor));
            !graph.tensor_is_ref(id) && graph.tensor_dtypes()[tensor] != DType::Resource
        })
        .map(|tensor| graph.tensor_bytes()[tensor])
        .fold(0, u64::saturating_add)
}
