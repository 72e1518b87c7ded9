//! `cpop`: Critical Path on a Processor (Topcuoglu, Hariri, Wu 2002, "Performance-effective and
//! low-complexity task scheduling for heterogeneous computing", section 4.2).
//!
//! The priority of a node is the length of the longest path through it: upward plus downward rank,
//! with mean costs and mean transfers. The nodes of the critical path all go to one device, that
//! on which they take the least time together. The others go, in the order of a ready list, to the
//! device where they finish first, in a gap if they fit (insertion).
//!
//! Beyond the paper: only legal devices are tried. A node of the critical path that may not run on
//! its device, or whose group is elsewhere, is placed like the others. What
//! [`placewright_guest::schedule`] says of groups, constants, memory and chips holds here.

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

/// The policy. It keeps no state between calls.
#[derive(Debug, Default)]
pub struct Cpop;

impl Policy for Cpop {
    const NAME: &'static str = "cpop";
    const DESCRIPTION: &'static str = "Critical Path on a Processor (Topcuoglu et al. 2002): the critical path on one device, \
        the other nodes where they finish first";

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
        let through = lengths_through(&tasks);
        let path = critical_path(&tasks, &through);
        let path_device = fastest_for(&tasks, &path);
        let mut is_on_path = vec![false; graph.len()];
        for node in path {
            is_on_path[node as usize] = true;
        }
        let order = tasks.ready_order(&through);
        let offered = schedule::offer(graph, devices, plan, |memory| {
            let mut schedule = ListSchedule::new(&tasks, memory);
            for &node in &order {
                let choice = match path_device {
                    Some(device)
                        if is_on_path[node as usize] && schedule.legal(node).contains(&device) =>
                    {
                        schedule.earliest(node, device)
                    }
                    _ => schedule.best(node, |choice| choice.finish_ns),
                };
                schedule.place(node, &choice);
            }
            schedule.finish()
        })?;
        offered.explain(graph, plan, "critical path, or earliest finish");
        Ok(())
    }
}

/// Returns the length of the longest path through each node.
fn lengths_through(tasks: &TaskGraph<'_, '_>) -> Vec<f64> {
    let upward = tasks.upward_ranks();
    let downward = tasks.downward_ranks();
    let both = upward.iter().zip(downward);
    both.map(|(up, down)| up + down).collect()
}

/// Returns the longest path, from its begin to its end.
fn critical_path(tasks: &TaskGraph<'_, '_>, through: &[f64]) -> Vec<u32> {
    let longest = |nodes: &mut dyn Iterator<Item = u32>| {
        // The first of equal ones.
        nodes.reduce(|best, node| {
            let is_longer = through[node as usize] > through[best as usize];
            if is_longer { node } else { best }
        })
    };
    let successors = tasks.graph().successors();
    let mut starts = tasks
        .nodes()
        .filter(|&node| tasks.inputs(node).count() == 0);
    let mut path = Vec::new();
    let mut next = longest(&mut starts);
    while let Some(node) = next {
        path.push(node);
        let consumers = successors.row(node).iter().copied();
        // Nobody waits for a constant.
        let mut waiting = consumers
            .filter(|&consumer| tasks.inputs(consumer).any(|input| input.producer == node));
        next = longest(&mut waiting);
    }
    path
}

/// Returns the device on which the nodes take the least time together, one after the other; `None`
/// if no device can run them all.
fn fastest_for(tasks: &TaskGraph<'_, '_>, nodes: &[u32]) -> Option<u32> {
    let n_devices = u32::try_from(tasks.n_devices()).unwrap_or(NONE);
    let mut best: Option<(f64, u32)> = None;
    for device in 0..n_devices {
        let mut sum = 0.0;
        for &node in nodes {
            if !tasks.candidates(node).contains(&device) {
                sum = f64::INFINITY;
                break;
            }
            sum += tasks.work_ns(node, device);
        }
        if sum < best.map_or(f64::INFINITY, |(least, _)| least) {
            best = Some((sum, device));
        }
    }
    best.map(|(_, device)| device)
}

export_policy!(Cpop, feature = "export");

#[cfg(test)]
mod tests {
    use placewright_guest::testing::GraphBuilder;
    use placewright_guest::testing::cluster;
    use placewright_guest::testing::papers;
    use placewright_guest::testing::place;

    use super::*;

    #[test]
    fn topcuoglus_example_has_the_published_makespan() {
        let (devices, graph) = papers::topcuoglu();
        let offer = place(&mut Cpop, &graph, &devices).unwrap();
        assert_eq!(offer.metric("makespan_ns"), Some(86.0));
        // n1, n2, n9 and n10 are the critical path; P2 takes the least time for them.
        for node in [0, 1, 8, 9] {
            assert_eq!(offer.devices[node], 1);
        }
    }

    #[test]
    fn a_node_that_may_not_run_there_leaves_the_path() {
        let devices = cluster("1xA,1xB").with_links(0.0, 1.0);
        let mut graph = GraphBuilder::new(&devices);
        let first = graph.node("first", &[10.0, 5.0]);
        let only_a = graph.node("only_a", &[10.0, 1.0]);
        let last = graph.node("last", &[10.0, 5.0]);
        graph.candidates(only_a, &[0]);
        graph.edge(first, only_a, 1);
        graph.edge(only_a, last, 1);
        let offer = place(&mut Cpop, &graph.build(), &devices).unwrap();
        // No device runs the whole path but A, where it takes 30.
        assert_eq!(offer.devices, [0, 0, 0]);
        // No device runs the whole path.
        let mut apart = GraphBuilder::new(&devices);
        let first = apart.node("first", &[10.0, 5.0]);
        let last = apart.node("last", &[10.0, 5.0]);
        apart.edge(first, last, 1);
        apart.candidates(first, &[1]);
        apart.pin(last, 0);
        let offer = place(&mut Cpop, &apart.build(), &devices).unwrap();
        assert_eq!(offer.devices, [1, 0]);
    }
}
