//! The contract's `profile`: measurements of earlier runs, by the numbers of nodes and devices that
//! a policy sees.

use placewright_guest::source::Profile;

use crate::candidates::Candidates;
use crate::graph::NONE;
use crate::graph::TensorId;
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
    for times in &profile.nodes {
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
    for times in &profile.transfers {
        let Some(destination) = set.find_by_name(&times.destination) else {
            continue;
        };
        let (name, slot) = match times.tensor.strip_prefix('^') {
            Some(name) => (name, None),
            None => match times.tensor.rsplit_once(':') {
                Some((name, slot)) => (name, slot.parse().ok()),
                None => continue,
            },
        };
        let Some(producer) = graph.find_node(name) else {
            continue;
        };
        let tensor = slot.and_then(|slot| graph.output(producer, slot));
        let carried = tensor.map_or(NONE, |TensorId(tensor)| tensor);
        for position in graph.successors().range(producer.index()) {
            let consumer = graph.successors().items[position] as usize;
            let edge = graph.successor_edges()[position] as usize;
            if graph.edge_tensors()[edge] == carried && found.devices[consumer] == destination.0 {
                found.transfer_mean_ns[edge] = times.ns;
            }
        }
    }
    found
}
