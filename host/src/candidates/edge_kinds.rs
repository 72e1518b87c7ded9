//! Kinds of edges, as policies see them.

use crate::candidates::columns::NodeColumns;
use crate::candidates::host_memory::HostMemory;
use crate::graph::EdgeKind;
use crate::graph::Graph;
use crate::graph::NONE;
use crate::names::DeviceId;
use crate::tensor::DType;

/// Returns the graph's edge kinds, with [`EdgeKind::HOST_MEMORY`] if the consumer's kernel on its
/// most preferred device reads the argument in host memory, and for strings and resources, which
/// never leave it. A hint for policies: the actual kind depends on the device of the consumer.
pub(super) fn edge_kinds(graph: &Graph, nodes: &NodeColumns, host_memory: &HostMemory) -> Vec<u8> {
    let mut kinds = graph.edge_kinds().to_vec();
    let on_host: Vec<bool> = graph
        .tensor_dtypes()
        .iter()
        .map(|dtype| matches!(dtype, DType::String | DType::Resource))
        .collect();
    if on_host.contains(&true) {
        for (kind, &tensor) in kinds.iter_mut().zip(graph.edge_tensors()) {
            if tensor != NONE && on_host[tensor as usize] {
                *kind |= EdgeKind::HOST_MEMORY;
            }
        }
    }
    if host_memory.is_empty() {
        return kinds;
    }
    for node in graph.nodes() {
        let first = nodes.sets.row(nodes.candidate_set[node.index()] as usize)[0];
        let device = DeviceId(first);
        if !host_memory.concerns(graph, node, device) {
            continue;
        }
        for (slot, edge) in graph.predecessors().range(node.index()).enumerate() {
            if graph.edge_tensors()[edge] == NONE {
                break;
            }
            if host_memory.has_input(graph, node, device, slot) {
                kinds[edge] |= EdgeKind::HOST_MEMORY;
            }
        }
    }
    kinds
}
