//! The contract's `profile`: measurements of earlier runs, by the numbers of nodes and devices that
//! a policy sees.

use placewright_guest::source::Profile;

use crate::candidates::Candidates;
use crate::graph::NONE;
use crate::trace::RunProfile;

/// Returns a profile in the columns of the contract. Nodes and devices that the candidates do not
/// have are left out.
pub(super) fn last_run(candidates: &Candidates, profile: &RunProfile) -> Profile {
    let (graph, set) = (candidates.graph(), candidates.device_set());
    let n_nodes = graph.n_nodes();
    let mut found = Profile {
        devices: vec![NONE; n_nodes],
        makespan_ns: profile.run_ns,
        runs: profile.n_runs,
        starts_ns: vec![f64::INFINITY; n_nodes],
        transfer_mean_ns: vec![0.0; graph.n_edges()],
        ..Profile::default()
    };
    let mut most_executions = vec![0.0f64; n_nodes];
    // The others were not executed by themselves.
    let executed = profile.nodes.iter().filter(|times| times.executions > 0.0);
    for times in executed {
        let device = set.find_by_name(&times.device);
        let (Some(node), Some(device)) = (graph.find_node(&times.node), device) else {
            continue;
        };
        let index = node.index();
        if times.executions > most_executions[index] {
            most_executions[index] = times.executions;
            found.devices[index] = device.0;
        }
        found.starts_ns[index] = found.starts_ns[index].min(times.start_ns);
        found.node.push(node.0);
        found.device.push(device.0);
        found.mean_ns.push(times.ns);
        found.samples.push(times.samples);
    }
    for measured in candidates.measured_transfers(profile) {
        for position in graph.successors().range(measured.producer.index()) {
            let consumer = graph.successors().items[position] as usize;
            let edge = graph.successor_edges()[position] as usize;
            let is_carried = graph.edge_tensors()[edge] == measured.tensor;
            if is_carried && found.devices[consumer] == measured.destination.0 {
                found.transfer_mean_ns[edge] = measured.ns;
            }
        }
    }
    found
}
