//! The policy of the repository's README: branches of a graph run on the least loaded devices.
//!
//! It looks at neither the critical path nor links. `policies/heft` shows what they add.

use placewright_guest::{Assignment, CostMatrix, DeviceSet, EdgeKind, Graph};
use placewright_guest::{PlaceError, Plan, Policy, export_policy};

/// A node runs where its inputs are. A node that starts a branch runs on the least loaded device.
#[derive(Debug, Default)]
pub struct Branches;

impl Policy for Branches {
    const NAME: &'static str = "branches";

    fn place(
        &mut self,
        graph: &Graph<'_>,
        devices: &DeviceSet<'_>,
        plan: &Plan<'_>,
        _seed: u64,
    ) -> Result<(), PlaceError> {
        let costs = CostMatrix::new(graph, devices);
        let mut placed = Assignment::new(graph); // respects pins and colocation groups
        let mut load_ns = vec![0.0_f64; devices.len()];
        for node in graph.nodes() {
            let candidates = graph.candidates_of(node); // never empty
            let load = |device: u32| load_ns[device as usize];
            let least = |a: &&u32, b: &&u32| load(**a).total_cmp(&load(**b));
            let device = graph
                .edges_into(node)
                .filter(|edge| edge.kind & EdgeKind::PRELOADED == 0) // skip constants and feeds
                .map(|edge| placed.device(edge.from))
                .find(|device| candidates.contains(device))
                .unwrap_or_else(|| *candidates.iter().min_by(least).unwrap_or(&0));
            let device = placed.decide(node, device) as usize;
            load_ns[device] += costs.row(graph.cost_row()[node as usize])[device];
        }
        plan.offer_devices(placed.devices())?;
        Ok(())
    }
}

export_policy!(Branches);

#[cfg(test)]
mod tests {
    use placewright_guest::testing::{GraphBuilder, cluster, place};

    use super::Branches;

    #[test]
    fn branches_run_on_different_devices_and_stay_there() {
        let devices = cluster("2xCPU");
        let mut graph = GraphBuilder::new(&devices);
        let starts = [graph.node("a", &[50.0]), graph.node("b", &[50.0])];
        let ends = starts.map(|start| {
            let end = graph.node("", &[100.0]);
            graph.edge(start, end, 1_000);
            end
        });
        let offer = place(&mut Branches, &graph.build(), &devices).unwrap();
        let device_of = |node: u32| offer.devices[node as usize];
        assert_eq!(starts.map(device_of), [0, 1]);
        assert_eq!(ends.map(device_of), [0, 1]);
    }
}
