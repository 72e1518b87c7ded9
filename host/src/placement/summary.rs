//! Statistics of a placement.

use serde::Serialize;

use crate::candidates::Candidates;
use crate::candidates::PlanColumns;
use crate::graph::Graph;
use crate::graph::NONE;
use crate::graph::NodeId;
use crate::names::DeviceId;
use crate::placement::transfers::for_each_run_transfer;

/// Nodes and memory per device, and the transfers of one run.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct PlacementSummary {
    /// All devices, in the order of the set.
    pub devices: Vec<DeviceSummary>,
    /// Transfers of tensors in a run of the whole graph: one per tensor and memory of another
    /// device that reads it. Constants and placeholders need no transfers, since their outputs are
    /// on the reading devices before the run.
    pub n_transfers: u64,
    /// Control signals of such a run: one per node and other device that waits for it without
    /// reading. They carry no bytes.
    pub n_signals: u64,
    /// Bytes of the transfers with a known size.
    pub transfer_bytes: u64,
    /// Number of transfers with an unknown size.
    pub n_transfers_of_unknown_size: u64,
    /// Constants that stay on the device of their node and are copied in each run
    /// ([`crate::placement::Placement::streamed`]).
    pub n_streamed: u64,
    /// Their bytes.
    pub streamed_bytes: u64,
}

/// Statistics of one device.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct DeviceSummary {
    /// Full name.
    pub name: String,
    /// Nodes placed on it.
    pub n_nodes: u64,
    /// Constants that its nodes read, and state of its nodes, such as variables. A constant is held
    /// by each device that reads it, wherever its node is placed; a streamed one by the device of
    /// its node only.
    pub resident_bytes: u64,
    /// Estimated time of all its nodes in sequence.
    pub work_ns: f64,
}

pub(super) fn summarize(candidates: &Candidates, plan: PlanColumns<'_>) -> PlacementSummary {
    let (graph, devices) = (candidates.graph(), plan.devices);
    let mut summary = PlacementSummary {
        devices: candidates
            .device_set()
            .iter()
            .map(|(_, device)| DeviceSummary {
                name: device.attributes().name.clone(),
                n_nodes: 0,
                resident_bytes: 0,
                work_ns: 0.0,
            })
            .collect(),
        n_transfers: 0,
        n_signals: 0,
        transfer_bytes: 0,
        n_transfers_of_unknown_size: 0,
        n_streamed: plan.streamed.len() as u64,
        streamed_bytes: 0,
    };
    for &constant in plan.streamed {
        let bytes = graph.resident_bytes()[constant as usize];
        summary.streamed_bytes = summary.streamed_bytes.saturating_add(bytes);
    }
    let mut holders = Vec::new();
    for (node, &device) in graph.nodes().zip(devices) {
        let entry = &mut summary.devices[device as usize];
        entry.n_nodes += 1;
        entry.work_ns += candidates.work_ns(node, DeviceId(device));
        let resident = graph.resident_bytes()[node.index()];
        if resident > 0 {
            holders_of(graph, node, plan, &mut holders);
            for &holder in &holders {
                let sum = &mut summary.devices[holder as usize].resident_bytes;
                *sum = sum.saturating_add(resident);
            }
        }
    }
    for_each_run_transfer(candidates, plan, |transfer| {
        if transfer.tensor.is_none() {
            summary.n_signals += 1;
            return;
        }
        summary.n_transfers += 1;
        match transfer.bytes(graph) {
            Some(bytes) => summary.transfer_bytes = summary.transfer_bytes.saturating_add(bytes),
            None => summary.n_transfers_of_unknown_size += 1,
        }
    });
    summary
}

/// Lists the devices that hold the resident bytes of a node: for a constant that does not run the
/// devices that read it, otherwise its own. A constant that nothing reads is fetched from its own,
/// and a streamed one is sent from there.
fn holders_of(graph: &Graph, node: NodeId, plan: PlanColumns<'_>, holders: &mut Vec<u32>) {
    let devices = plan.devices;
    holders.clear();
    if graph.is_preloaded(node) && plan.streamed.binary_search(&node.0).is_err() {
        add_readers_of(graph, node, devices, holders);
        holders.sort_unstable();
        holders.dedup();
    }
    if holders.is_empty() {
        holders.push(devices[node.index()]);
    }
}

/// Adds the devices whose runs read a constant, also behind nodes that pass it on and do not run.
fn add_readers_of(graph: &Graph, constant: NodeId, devices: &[u32], holders: &mut Vec<u32>) {
    let successors = graph.successors();
    let mut passing = vec![constant];
    while let Some(node) = passing.pop() {
        let readers = successors.range(node.index()).filter(|&position| {
            graph.edge_tensors()[graph.successor_edges()[position] as usize] != NONE
        });
        // It is fetched from where it is.
        if node != constant && readers.clone().next().is_none() {
            holders.push(devices[node.index()]);
        }
        for reader in readers.map(|position| NodeId(successors.items[position])) {
            if graph.is_preloaded(reader) {
                passing.push(reader);
            } else {
                holders.push(devices[reader.index()]);
            }
        }
    }
}
