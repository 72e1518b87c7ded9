//! `lookahead`: HEFT with lookahead (Bittencourt, Sakellariou, Madeira 2010, "DAG scheduling using
//! a lookahead variant of the heterogeneous earliest finish time algorithm").
//!
//! Nodes come in the order of HEFT, the longest path to the end first. Each goes to the device with
//! which its consumers can finish earliest: for each device the consumers are tried, each where it
//! would finish first, and the latest of them counts. A node without consumers goes where it
//! finishes first itself; so does one whose consumers finish equally early.
//!
//! Beyond the paper: what [`placewright_guest::schedule`] says of groups, constants, memory and
//! chips holds here.

use placewright_guest::DeviceSet;
use placewright_guest::Graph;
use placewright_guest::PlaceError;
use placewright_guest::Plan;
use placewright_guest::Policy;
use placewright_guest::export_policy;
use placewright_guest::schedule;
use placewright_guest::schedule::Choice;
use placewright_guest::schedule::ListSchedule;
use placewright_guest::schedule::TaskGraph;

/// Maximum number of edges times devices times devices: each is tried once.
const TRIALS_MAX: usize = 1 << 28;

/// The weight of the node's own finish, which decides between equal ones.
const OWN_WEIGHT: f64 = 1e-6;

/// The policy. It keeps no state between calls.
#[derive(Debug, Default)]
pub struct Lookahead;

impl Policy for Lookahead {
    const NAME: &'static str = "lookahead";
    const DESCRIPTION: &'static str = "HEFT with lookahead (Bittencourt, Sakellariou, Madeira 2010): each node where its \
        consumers can finish earliest";

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
        let n_devices = devices.len();
        if n_trials(graph, devices) > TRIALS_MAX {
            return Err(PlaceError::Declined(format!(
                "{} edges x {n_devices} x {n_devices} devices are too many to try; `heft` looks at \
                 each node alone",
                graph.counts().edges
            )));
        }
        let tasks = TaskGraph::new(graph, devices);
        let order = tasks.ready_order(&tasks.upward_ranks());
        let offered = schedule::offer(graph, devices, plan, |memory| {
            let mut schedule = ListSchedule::new(&tasks, memory);
            for &node in &order {
                let choice = best(&tasks, &mut schedule, node);
                schedule.place(node, &choice);
            }
            schedule.finish()
        })?;
        offered.explain(graph, plan, "its consumers finish earliest");
        Ok(())
    }
}

/// Returns how many pairs of places are tried: for each edge, each device of either end.
pub fn n_trials(graph: &Graph<'_>, devices: &DeviceSet<'_>) -> usize {
    (graph.counts().edges as usize)
        .saturating_mul(devices.len())
        .saturating_mul(devices.len())
}

/// Returns the place of a node with which its consumers can finish earliest.
fn best(tasks: &TaskGraph<'_, '_>, schedule: &mut ListSchedule<'_, '_>, node: u32) -> Choice {
    let legal = schedule.legal(node).to_vec();
    let mut best: Option<(f64, Choice)> = None;
    for device in legal {
        let choice = schedule.earliest(node, device);
        let finish_ns = |consumer: u32| {
            let devices = tasks.candidates(consumer).iter();
            let finishes =
                devices.map(|&device| schedule.finish_after_ns(consumer, device, (node, &choice)));
            finishes.fold(f64::INFINITY, f64::min)
        };
        let latest = tasks
            .consumers(node)
            .iter()
            .copied()
            .map(finish_ns)
            .fold(0.0, f64::max);
        let own = choice.finish_ns + choice.group_ns;
        let score = f64::max(latest, own) + OWN_WEIGHT * own;
        if best.is_none_or(|(least, _)| score < least) {
            best = Some((score, choice));
        }
    }
    // A node has a legal device, and a score that is not a number is worse than none.
    best.map_or_else(
        || schedule.best(node, |choice| choice.finish_ns),
        |(_, choice)| choice,
    )
}

export_policy!(Lookahead, feature = "export");

#[cfg(test)]
mod tests {
    use placewright_guest::testing::GraphBuilder;
    use placewright_guest::testing::cluster;
    use placewright_guest::testing::papers;
    use placewright_guest::testing::place;

    use super::*;

    #[test]
    fn a_node_finishes_later_if_its_consumers_gain() {
        // HEFT places `first` on A, where it finishes at 10, and then `second`, too: 110.
        let devices = cluster("1xA,1xB").with_links(0.0, 1.0);
        let mut graph = GraphBuilder::new(&devices);
        graph.node("first", &[10.0, 12.0]);
        let second = graph.node("second", &[100.0, 10.0]);
        graph.edge(0, second, 1_000);
        let offer = place(&mut Lookahead, &graph.build(), &devices).unwrap();
        assert_eq!(offer.devices, [1, 1]);
        assert_eq!(offer.metric("makespan_ns"), Some(22.0));
    }

    #[test]
    fn the_latest_consumer_counts() {
        // On A, `left` finishes at 11 and `right` at 41; on B, both at 32.
        let devices = cluster("1xA,1xB").with_links(0.0, 1.0);
        let mut graph = GraphBuilder::new(&devices);
        graph.node("first", &[1.0, 2.0]);
        let left = graph.node("left", &[10.0, 30.0]);
        let right = graph.node("right", &[40.0, 30.0]);
        graph.edge(0, left, 100);
        graph.edge(0, right, 100);
        let offer = place(&mut Lookahead, &graph.build(), &devices).unwrap();
        assert_eq!(offer.devices[0], 1);
    }

    #[test]
    fn equal_consumers_leave_the_choice_to_the_node() {
        let devices = cluster("1xA,1xB").with_links(0.0, 0.0);
        let mut graph = GraphBuilder::new(&devices);
        graph.node("early", &[20.0, 10.0]);
        let wait = graph.node("wait", &[50.0, 50.0]);
        let last = graph.node("last", &[5.0, 5.0]);
        graph.edge(0, last, 0);
        graph.edge(wait, last, 0);
        let offer = place(&mut Lookahead, &graph.build(), &devices).unwrap();
        assert_eq!(offer.devices[0], 1);
    }

    #[test]
    fn topcuoglus_example_is_placed_within_what_the_schedule_says() {
        let (devices, graph) = papers::topcuoglu();
        let offer = place(&mut Lookahead, &graph, &devices).unwrap();
        let planned = offer.metric("makespan_ns").unwrap();
        assert!(offer.makespan_ns <= planned);
        // HEFT: 80. The optimum: 73.
        assert!((73.0..=86.0).contains(&planned), "{planned}");
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
        let offer = place(&mut Lookahead, &graph.build(), &devices).unwrap();
        let on = |device| offer.devices.iter().filter(|&&it| it == device).count();
        assert_eq!((on(0), on(1), on(2)), (1, 2, 3));
    }
}
