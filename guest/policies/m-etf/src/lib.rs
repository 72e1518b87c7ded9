//! `m-etf`: memory-constrained Earliest Task First (Jeon et al. 2020, "Baechi: Fast device
//! placement of machine learning graphs"; ETF is by Hwang, Chow, Anger, Lee 1989).
//!
//! Of all nodes whose producers are placed, and all devices, the pair with the earliest start comes
//! next; of equal ones the node with the longest path to the end, then the more preferred device. A
//! device takes a node only if it has memory for its state.
//!
//! Beyond the paper: what [`placewright_guest::schedule`] says of groups, constants, memory and
//! chips holds here. A node whose candidates are all full goes where it finishes first.

use placewright_guest::DeviceSet;
use placewright_guest::Graph;
use placewright_guest::PlaceError;
use placewright_guest::Plan;
use placewright_guest::Policy;
use placewright_guest::export_policy;
use placewright_guest::schedule;
use placewright_guest::schedule::ListSchedule;
use placewright_guest::schedule::TaskGraph;

/// The policy. It keeps no state between calls.
#[derive(Debug, Default)]
pub struct MEtf;

impl Policy for MEtf {
    const NAME: &'static str = "m-etf";
    const DESCRIPTION: &'static str = "memory-constrained Earliest Task First (Baechi, Jeon et al. 2020): of all ready nodes and \
        devices, the pair with the earliest start";

    fn place(
        &mut self,
        graph: &Graph<'_>,
        devices: &DeviceSet<'_>,
        plan: &Plan<'_>,
        _seed: u64,
    ) -> Result<(), PlaceError> {
        if devices.is_empty() {
            return Err(PlaceError::Declined("there is no device".to_owned()));
        }
        let tasks = TaskGraph::new(graph, devices);
        let ranks = tasks.upward_ranks();
        let offered = schedule::offer(graph, devices, plan, |memory| {
            schedule::earliest_first(&tasks, &ranks, &[], ListSchedule::new(&tasks, memory))
        })?;
        offered.explain(graph, plan, "earliest start of all ready nodes");
        Ok(())
    }
}

export_policy!(MEtf, feature = "export");

#[cfg(test)]
mod tests {
    use placewright_guest::testing::GraphBuilder;
    use placewright_guest::testing::cluster;
    use placewright_guest::testing::papers;
    use placewright_guest::testing::place;

    use super::*;

    #[test]
    fn the_pair_with_the_earliest_start_comes_first() {
        // `b` may start on the idle device at once, although it is slower there.
        let devices = cluster("1xA,1xB").with_links(0.0, 1.0);
        let mut graph = GraphBuilder::new(&devices);
        graph.node("a", &[10.0, 100.0]);
        graph.node("b", &[10.0, 30.0]);
        let after = graph.node("after", &[10.0, 10.0]);
        graph.edge(0, after, 1_000);
        let offer = place(&mut MEtf, &graph.build(), &devices).unwrap();
        assert_eq!(offer.devices, [0, 1, 0]);
        assert_eq!(offer.metric("makespan_ns"), Some(30.0));
    }

    #[test]
    fn no_node_of_topcuoglus_example_starts_before_its_inputs() {
        let (devices, graph) = papers::topcuoglu();
        let offer = place(&mut MEtf, &graph, &devices).unwrap();
        // The schedule is legal: the estimate of the host is not longer.
        assert!(offer.makespan_ns <= offer.metric("makespan_ns").unwrap());
    }

    #[test]
    fn full_memories_are_skipped() {
        let devices = cluster("3xA")
            .with_memory(0, 100)
            .with_memory(1, 200)
            .with_memory(2, 300);
        let mut graph = GraphBuilder::new(&devices);
        for index in 0..6 {
            let node = graph.node(&format!("n{index}"), &[10.0]);
            graph.resident_bytes(node, 100);
        }
        let offer = place(&mut MEtf, &graph.build(), &devices).unwrap();
        let on = |device| offer.devices.iter().filter(|&&it| it == device).count();
        assert_eq!((on(0), on(1), on(2)), (1, 2, 3));
    }
}
