//! Reasons for which nodes must share a device.

use std::sync::Arc;

use crate::candidates::calls::CallGroups;
use crate::graph::EdgeKind;
use crate::graph::Graph;
use crate::graph::NONE;
use crate::graph::NodeId;
use crate::tensor::DType;

/// A reason for which nodes must share a device, or need a certain device type, that depends on the
/// graph as a whole.
#[derive(Debug, Clone)]
pub(super) enum Tie<'a> {
    /// A reference or resource edge, or an edge that carries a variant between dataset ops.
    Edge {
        producer: u32,
        consumer: u32,
        /// Position among the predecessors.
        edge: u32,
    },
    /// A node reads a variant whose elements only exist in host memory, so it runs on a CPU.
    HostOnly {
        node: u32,
        /// The node that determines the element type.
        list: u32,
        dtype: DType,
    },
    /// A call whose function ties producers of its arguments to readers of its results.
    Call {
        call: NodeId,
        found: Arc<CallGroups>,
    },
    /// A node is in a colocation group.
    Class {
        node: u32,
        group: &'a str,
        /// Dense number of the group.
        number: u32,
        /// Whether the group has the node's own name and the membership is implicit.
        is_own: bool,
    },
}

/// Returns the neighbours of a call by group of the body of its function, and whether each reads or
/// produces a reference or resource.
pub(super) fn call_members(
    graph: &Graph,
    call: NodeId,
    found: &CallGroups,
) -> Vec<Vec<(u32, bool)>> {
    let mut members: Vec<Vec<(u32, bool)>> = vec![Vec::new(); found.groups.len()];
    let is_reference = |edge: usize| graph.edge_kinds()[edge] & EdgeKind::REFERENCE != 0;
    let inputs = graph.predecessors().range(call.index());
    for (edge, &group) in inputs.zip(&found.args) {
        if graph.edge_tensors()[edge] != NONE {
            let producer = graph.predecessors().items[edge];
            members[group as usize].push((producer, is_reference(edge)));
        }
    }
    let outputs = graph.output_range(call);
    for position in graph.successors().range(call.index()) {
        let edge = graph.successor_edges()[position] as usize;
        let tensor = graph.edge_tensors()[edge] as usize;
        let slot = tensor.checked_sub(outputs.start);
        // Control edges carry no tensor.
        let group = slot.and_then(|slot| found.results.get(slot));
        if let Some(&group) = group.filter(|_| outputs.contains(&tensor)) {
            let consumer = graph.successors().items[position];
            members[group as usize].push((consumer, is_reference(edge)));
        }
    }
    members
}
