//! Candidates without devices that cannot allocate a tensor of the node in one piece.

use hashbrown::HashMap;

use crate::candidates::columns::Candidates;
use crate::candidates::error::CandidatesError;
use crate::candidates::index::to_u32;
use crate::candidates::restrict::Restriction;
use crate::graph::Graph;
use crate::graph::NONE;
use crate::graph::NodeId;
use crate::graph::TensorId;
use crate::names::DeviceId;

/// A tensor that is larger than the largest allocation of a device.
#[derive(Debug, Clone, Copy)]
struct TooLarge {
    node: NodeId,
    tensor: TensorId,
}

/// Removes from the candidates of each group the devices whose largest allocation is smaller than
/// an input or output of one of its nodes. Tensors of unknown shape count as small. Most device
/// sets have no such limit; then this only compares two numbers per device.
///
/// # Errors
/// [`CandidatesError::TensorTooLarge`] for the first node without a remaining candidate.
pub(super) fn without_too_large(candidates: Candidates) -> Result<Candidates, CandidatesError> {
    let graph = candidates.graph();
    let largest = graph.tensor_bytes().iter().copied().max().unwrap_or(0);
    let devices = candidates.device_set().iter();
    let limits: Vec<(u32, u64)> = devices
        .map(|(id, device)| (id.0, device.max_allocation_bytes()))
        .filter(|&(_, limit_bytes)| limit_bytes < largest)
        .collect();
    if limits.is_empty() {
        return Ok(candidates);
    }
    let excluded = excluded(&candidates, &limits);
    if excluded.is_empty() {
        return Ok(candidates);
    }
    let nodes = candidates.nodes();
    let mut of_group = vec![Restriction::None; nodes.n_groups as usize];
    for (index, &group) in nodes.group.iter().enumerate() {
        let restriction = &mut of_group[group as usize];
        if *restriction != Restriction::None {
            continue;
        }
        let node = NodeId(to_u32(index));
        let set = candidates.of_node(node);
        let is_excluded = |device: &u32| excluded.contains_key(&(group, *device));
        if !set.iter().any(is_excluded) {
            continue;
        }
        let left: Vec<u32> = set.iter().copied().filter(|it| !is_excluded(it)).collect();
        let pin = nodes.pinned[index];
        if left.is_empty() || (pin != NONE && is_excluded(&pin)) {
            let device = if pin == NONE { set[0] } else { pin };
            return Err(error(&candidates, device, excluded[&(group, device)]));
        }
        *restriction = Restriction::Among(left);
    }
    Ok(candidates.restricted(&of_group))
}

/// Returns, by group and device, the first tensor that the device cannot allocate.
fn excluded(candidates: &Candidates, limits: &[(u32, u64)]) -> HashMap<(u32, u32), TooLarge> {
    let graph = candidates.graph();
    let smallest = limits.iter().map(|&(_, bytes)| bytes).min().unwrap_or(0);
    let mut excluded = HashMap::new();
    for node in graph.nodes() {
        let group = candidates.nodes().group[node.index()];
        for (tensor, slot) in tensors(graph, node) {
            let bytes = graph.tensor_bytes()[tensor.index()];
            if bytes <= smallest {
                continue;
            }
            for &(device, limit_bytes) in limits {
                let host_memory = candidates.host_memory();
                let id = DeviceId(device);
                let is_on_host = match slot {
                    Slot::Input(slot) => host_memory.has_input(graph, node, id, slot),
                    Slot::Output(slot) => host_memory.has_output(graph, node, id, slot),
                };
                if bytes > limit_bytes && !is_on_host {
                    let found = TooLarge { node, tensor };
                    excluded.entry((group, device)).or_insert(found);
                }
            }
        }
    }
    excluded
}

#[derive(Debug, Clone, Copy)]
enum Slot {
    Input(usize),
    Output(usize),
}

/// Returns the inputs and outputs of a node.
fn tensors(graph: &Graph, node: NodeId) -> impl Iterator<Item = (TensorId, Slot)> + '_ {
    let inputs = graph.data_inputs(node).enumerate();
    let inputs = inputs.map(|(slot, tensor)| (tensor, Slot::Input(slot)));
    let outputs = (0..graph.output_range(node).len())
        .filter_map(move |slot| Some((graph.output(node, slot)?, Slot::Output(slot))));
    inputs.chain(outputs)
}

fn error(candidates: &Candidates, device: u32, found: TooLarge) -> CandidatesError {
    let graph = candidates.graph();
    let limit = candidates.device_set().get(DeviceId(device));
    CandidatesError::TensorTooLarge {
        node: graph.node_name(found.node).to_owned(),
        tensor: graph.tensor_name(found.tensor),
        bytes: graph.tensor_bytes()[found.tensor.index()],
        device: candidates.device_name(device).to_owned(),
        limit_bytes: limit.map_or(0, |device| device.max_allocation_bytes()),
    }
}
