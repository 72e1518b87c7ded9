//! `m-sct`: memory-constrained Small Communication Times (Jeon et al. 2020, "Baechi: Fast device
//! placement of machine learning graphs"; SCT is by Hanen, Munier 1995, "An approximation algorithm
//! for scheduling dependent tasks on m processors with small communication delays").
//!
//! A node has at most one favourite child, the consumer that should follow it on its device, and is
//! that of at most one producer. A linear program chooses them so that the longest path is as short
//! as possible if transfers to favourite children take no time. Its relaxation is rounded as in
//! Baechi. Then nodes are scheduled as by `m-etf`, except that a device waits for the favourite
//! child of its last node; an urgent node may start before that
//! ([`placewright_guest::schedule::earliest_first`]).
//!
//! Graphs with more than 1,000 edges have favourite children without a linear program, whose time
//! grows with their square: nodes on the longest paths choose first, and each takes the consumer on
//! the longest path. The metric `favourites_solved` is 1 if the program was used.
//!
//! Beyond the paper: work and transfers of the program are means over devices. What
//! [`placewright_guest::schedule`] says of groups, constants, memory and chips holds here. A node
//! whose candidates are all full goes where it finishes first.

mod favourites;

use placewright_guest::DeviceSet;
use placewright_guest::Graph;
use placewright_guest::NONE;
use placewright_guest::PlaceError;
use placewright_guest::Plan;
use placewright_guest::Policy;
use placewright_guest::export_policy;
use placewright_guest::schedule;
use placewright_guest::schedule::ListSchedule;
use placewright_guest::schedule::TaskGraph;

use favourites::Favourites;

/// The policy. It keeps no state between calls.
#[derive(Debug, Default)]
pub struct MSct;

impl Policy for MSct {
    const NAME: &'static str = "m-sct";
    const DESCRIPTION: &'static str = "memory-constrained Small Communication \
        Times (Baechi, Jeon et al. 2020): earliest start, but a device waits for the favourite \
        child of its last node";

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
        let favourites = Favourites::new(&tasks, &ranks);
        let offered = schedule::offer(graph, devices, plan, |memory| {
            let schedule = ListSchedule::new(&tasks, memory);
            schedule::earliest_first(&tasks, &ranks, &favourites.child, schedule)
        })?;
        let is_solved = u32::from(favourites.is_solved);
        plan.metric("favourites_solved", f64::from(is_solved));
        let placed = &offered.scheduled.devices;
        let mut follows = vec![false; graph.len()];
        for (&device, &child) in placed.iter().zip(&favourites.child) {
            if child != NONE {
                follows[child as usize] = placed[child as usize] == device;
            }
        }
        offered.explain_each(graph, plan, |node| match follows[node as usize] {
            true => "favourite child of a node there",
            false => "earliest start of all ready nodes",
        });
        Ok(())
    }
}

export_policy!(MSct, feature = "export");

#[cfg(test)]
mod tests {
    use placewright_guest::testing::GraphBuilder;
    use placewright_guest::testing::cluster;
    use placewright_guest::testing::papers;
    use placewright_guest::testing::place;
    use policy_m_etf::MEtf;

    use super::*;

    #[test]
    fn a_device_waits_for_the_favourite_child_of_its_last_node() {
        // `end` and `other` read 100 bytes of `a`. What `end` reads of `b` arrives 2 ns later than
        // what `other` reads. `m-etf` lets `other` in, and the longer path waits for it.
        let devices = cluster("2xA").with_links(0.0, 1.0);
        let mut graph = GraphBuilder::new(&devices);
        let a = graph.node("a", &[20.0]);
        let b = graph.node("b", &[25.0]);
        let end = graph.node("end", &[60.0]);
        let other = graph.node("other", &[50.0]);
        let after = graph.node("after", &[100.0]);
        graph.edge(a, end, 100);
        graph.edge(b, end, 2);
        graph.edge(a, other, 100);
        graph.control_edge(b, other);
        graph.edge(end, after, 1);
        let graph = graph.build();
        let offer = place(&mut MSct, &graph, &devices).unwrap();
        assert_eq!(offer.devices, [0, 1, 0, 1, 0]);
        assert_eq!(offer.metric("makespan_ns"), Some(27.0 + 60.0 + 100.0));
        assert_eq!(offer.metric("favourites_solved"), Some(1.0));
        let of_etf = place(&mut MEtf, &graph, &devices).unwrap();
        assert_eq!(of_etf.metric("makespan_ns"), Some(25.0 + 50.0 + 160.0));
        let reason = offer.reason_of(end);
        assert_eq!(reason, Some("favourite child of a node there"));
    }

    #[test]
    fn an_urgent_node_may_start_before_the_favourite_child() {
        // `end` waits for a transfer from `b` until 80. `early` has no inputs: it is urgent.
        let devices = cluster("2xA").with_links(0.0, 1.0);
        let mut graph = GraphBuilder::new(&devices);
        let a = graph.node("a", &[30.0]);
        let b = graph.node("b", &[25.0]);
        let end = graph.node("end", &[90.0]);
        let early = graph.node("early", &[20.0]);
        graph.edge(a, end, 100);
        graph.edge(b, end, 55);
        graph.candidates(early, &[0]);
        let graph = graph.build();
        let offer = place(&mut MSct, &graph, &devices).unwrap();
        assert_eq!(offer.devices, [0, 1, 0, 0]);
        assert_eq!(offer.metric("makespan_ns"), Some(170.0));
    }

    #[test]
    fn topcuoglus_example_is_scheduled_legally() {
        let (devices, graph) = papers::topcuoglu();
        let offer = place(&mut MSct, &graph, &devices).unwrap();
        // No node starts before its inputs: the estimate of the host is not longer.
        assert!(offer.makespan_ns <= offer.metric("makespan_ns").unwrap());
        assert_eq!(place(&mut MSct, &graph, &devices).unwrap(), offer);
    }

    #[test]
    fn without_edges_plans_are_those_of_m_etf() {
        let devices = cluster("2xA,1xB");
        let mut graph = GraphBuilder::new(&devices);
        for index in 1..9_u32 {
            let ns = f64::from(index * 7 % 5 + 1);
            graph.node("", &[ns, 2.0 * ns]);
        }
        let graph = graph.build();
        let offer = place(&mut MSct, &graph, &devices).unwrap();
        let of_etf = place(&mut MEtf, &graph, &devices).unwrap();
        assert_eq!(offer.devices, of_etf.devices);
    }

    #[test]
    fn groups_and_pins_are_kept() {
        let devices = cluster("3xA").with_links(0.0, 1.0);
        let mut graph = GraphBuilder::new(&devices);
        let nodes: Vec<u32> = (0..6).map(|_| graph.node("", &[10.0])).collect();
        for (&from, &to) in nodes.iter().zip(&nodes[1..]) {
            graph.edge(from, to, 40);
        }
        graph.group(&[nodes[0], nodes[4]]);
        graph.pin(nodes[1], 2);
        let offer = place(&mut MSct, &graph.build(), &devices).unwrap();
        assert_eq!(offer.devices[0], offer.devices[4]);
        assert_eq!(offer.devices[1], 2);
    }

    #[test]
    fn a_favourite_child_that_does_not_fit_is_not_waited_for() {
        let devices = cluster("3xA").with_links(0.0, 1.0);
        let devices = (0..3).fold(devices, |devices, device| devices.with_memory(device, 250));
        let mut graph = GraphBuilder::new(&devices);
        for index in 0..6 {
            let node = graph.node(&format!("n{index}"), &[10.0]);
            graph.resident_bytes(node, 100);
            if index > 0 {
                graph.edge(node - 1, node, 20);
            }
        }
        let offer = place(&mut MSct, &graph.build(), &devices).unwrap();
        // Two on each; two transfers.
        assert_eq!(offer.devices, [0, 0, 1, 1, 2, 2]);
        assert_eq!(offer.makespan_ns, 100.0);
    }
}
