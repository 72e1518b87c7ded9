//! The expected duration of a plan: the schedule of [`placewright_guest::estimate`], with the costs
//! and links of the candidates.

use placewright_guest::estimate::Durations;
use placewright_guest::estimate::Estimate;
use placewright_guest::graph::Rows;

use crate::candidates::Candidates;
use crate::graph::EdgeKind;
use crate::graph::NONE;
use crate::graph::NodeId;
use crate::names::DeviceId;

/// Creates an estimate for plans of these candidates.
pub(super) fn estimate(candidates: &Candidates) -> Estimate {
    let columns = candidates.devices();
    let n_nodes = candidates.graph().n_nodes();
    Estimate::new(n_nodes, &columns.chips, &columns.queues)
}

impl Durations for Candidates {
    fn successors(&self) -> Rows<'_> {
        let successors = self.graph().successors();
        Rows {
            offsets: &successors.offsets,
            items: &successors.items,
        }
    }

    fn n_predecessors(&self, node: u32) -> usize {
        self.graph().predecessors().range(node as usize).len()
    }

    fn work_ns(&self, node: u32, device: u32) -> f64 {
        Self::work_ns(self, NodeId(node), DeviceId(device))
    }

    fn transfer_ns(&self, position: usize, source: u32, destination: u32) -> f64 {
        let graph = self.graph();
        let edge = graph.successor_edges()[position] as usize;
        if graph.edge_kinds()[edge] & EdgeKind::PRELOADED != 0 {
            return 0.0;
        }
        let producer = NodeId(graph.predecessors().items[edge]);
        let once = transfer_ns(self, graph.edge_tensors()[edge], source, destination);
        match self.nodes().executions.get(producer.index()) {
            None => once,
            Some(0.0) => 0.0,
            Some(times) => times * once,
        }
    }
}

/// Returns the cost of an edge between two devices. A control edge costs the latency of the link.
pub(super) fn transfer_ns(candidates: &Candidates, tensor: u32, src: u32, dst: u32) -> f64 {
    let link = candidates.link(DeviceId(src), DeviceId(dst));
    let bytes = match tensor {
        NONE => 0,
        tensor => candidates.graph().tensor_bytes()[tensor as usize],
    };
    // 0 bytes times a rate of +inf would be NaN.
    if bytes == 0 {
        return link.latency_ns;
    }
    #[expect(
        clippy::cast_precision_loss,
        reason = "an estimate of bytes needs 53 bits at most"
    )]
    let bytes = bytes as f64;
    link.latency_ns + bytes * link.ns_per_byte
}
