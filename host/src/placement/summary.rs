//! Statistics of a placement.

use serde::Serialize;

use crate::candidates::Candidates;
use crate::names::DeviceId;
use crate::placement::transfers::for_each_run_transfer;

/// Nodes and memory per device, and the transfers of one run.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct PlacementSummary {
    /// All devices, in the order of the set.
    pub devices: Vec<DeviceSummary>,
    /// Transfers of a run of the whole graph: one per tensor and memory of another device that
    /// reads it, and one per node and other device that waits for it without reading.
    /// Constants and placeholders need no transfers, since their outputs are on the reading
    /// devices before the run.
    pub n_transfers: u64,
    /// Bytes of the transfers with a known size.
    pub transfer_bytes: u64,
    /// Number of transfers with an unknown size.
    pub n_transfers_of_unknown_size: u64,
}

/// Statistics of one device.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct DeviceSummary {
    /// Full name.
    pub name: String,
    /// Nodes placed on it.
    pub n_nodes: u64,
    /// Parameters and other state that stay on it.
    pub resident_bytes: u64,
    /// Estimated time of all its nodes in sequence.
    pub work_ns: f64,
}

pub(super) fn summarize(candidates: &Candidates, devices: &[u32]) -> PlacementSummary {
    let graph = candidates.graph();
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
        transfer_bytes: 0,
        n_transfers_of_unknown_size: 0,
    };
    for (node, &device) in graph.nodes().zip(devices) {
        let entry = &mut summary.devices[device as usize];
        entry.n_nodes += 1;
        let resident = graph.resident_bytes()[node.index()];
        entry.resident_bytes = entry.resident_bytes.saturating_add(resident);
        entry.work_ns += candidates.work_ns(node, DeviceId(device));
    }
    for_each_run_transfer(candidates, devices, |transfer| {
        summary.n_transfers += 1;
        match transfer.bytes(graph) {
            Some(bytes) => summary.transfer_bytes = summary.transfer_bytes.saturating_add(bytes),
            None => summary.n_transfers_of_unknown_size += 1,
        }
    });
    summary
}
