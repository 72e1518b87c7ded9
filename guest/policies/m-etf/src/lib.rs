//! `m-etf`: memory-constrained Earliest Task First (Jeon et al. 2020, "Baechi: Fast device
//! placement of machine learning graphs"; ETF is by Hwang, Chow, Anger, Lee 1989).
//!
//! Of all nodes whose producers are placed, and all devices, the pair with the earliest start comes
//! next; of equal ones the node with the longest path to the end, then the more preferred device. A
//! device takes a node only if it has memory for its state.
//!
//! Beyond the paper: what [`placewright_guest::schedule`] says of groups, constants, memory and
//! chips holds here. A node whose candidates are all full goes where it finishes first.

use std::cmp::Ordering;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

use placewright_guest::DeviceSet;
use placewright_guest::Graph;
use placewright_guest::PlaceError;
use placewright_guest::Plan;
use placewright_guest::Policy;
use placewright_guest::export_policy;
use placewright_guest::schedule;
use placewright_guest::schedule::ListSchedule;
use placewright_guest::schedule::Scheduled;
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
            Etf::new(&tasks, &ranks, ListSchedule::new(&tasks, memory)).run()
        })?;
        offered.explain(graph, plan, "earliest start of all ready nodes");
        Ok(())
    }
}

/// A schedule in progress.
struct Etf<'t, 'g> {
    tasks: &'t TaskGraph<'t, 'g>,
    ranks: &'t [f64],
    schedule: ListSchedule<'t, 'g>,
    /// Per device: ready nodes whose inputs arrive after the device is free, earliest first.
    early: Vec<BinaryHeap<Reverse<Entry>>>,
    /// Per device: the other ready nodes, those with the longest path first. Entries of nodes that
    /// were placed elsewhere, or whose memory is gone, are dropped when they come up.
    waiting: Vec<BinaryHeap<Entry>>,
    is_placed: Vec<bool>,
    /// Number of inputs whose producer is not placed.
    n_waits: Vec<usize>,
}

/// A ready node, by a key: its rank, or the time when its inputs are there.
#[derive(PartialEq)]
struct Entry {
    key: f64,
    node: u32,
}

impl Eq for Entry {}

impl Ord for Entry {
    /// Of equal keys, the smaller id is the larger entry.
    fn cmp(&self, other: &Self) -> Ordering {
        let by_key = self.key.total_cmp(&other.key);
        by_key.then_with(|| other.node.cmp(&self.node))
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<'t, 'g> Etf<'t, 'g> {
    fn new(tasks: &'t TaskGraph<'t, 'g>, ranks: &'t [f64], schedule: ListSchedule<'t, 'g>) -> Self {
        let mut n_waits = vec![0; ranks.len()];
        for node in tasks.nodes() {
            n_waits[node as usize] = tasks.inputs(node).count();
        }
        let heaps = || (0..tasks.n_devices()).map(|_| BinaryHeap::new());
        Self {
            tasks,
            ranks,
            schedule,
            early: heaps().collect(),
            waiting: (0..tasks.n_devices()).map(|_| BinaryHeap::new()).collect(),
            is_placed: vec![false; ranks.len()],
            n_waits,
        }
    }

    fn run(mut self) -> Scheduled {
        let tasks = self.tasks;
        let mut n_left = 0;
        for node in tasks.nodes() {
            n_left += 1;
            if self.n_waits[node as usize] == 0 {
                self.add(node);
            }
        }
        while n_left > 0 {
            match self.earliest() {
                Some((node, device)) => {
                    let choice = self.schedule.last(node, device);
                    self.place(node, &choice);
                    n_left -= 1;
                }
                // Only nodes without memory anywhere are left of those that are ready.
                None => {
                    let is_ready = |&node: &u32| {
                        !self.is_placed[node as usize] && self.n_waits[node as usize] == 0
                    };
                    let Some(node) = tasks.nodes().find(is_ready) else {
                        break;
                    };
                    let choice = self.schedule.best(node, |choice| choice.finish_ns);
                    self.place(node, &choice);
                    n_left -= 1;
                }
            }
        }
        self.schedule.finish()
    }

    /// Adds a node whose producers are placed.
    fn add(&mut self, node: u32) {
        for device in self.schedule.legal(node).to_vec() {
            let key = self.schedule.ready_ns(node, device);
            self.early[device as usize].push(Reverse(Entry { key, node }));
        }
    }

    fn place(&mut self, node: u32, choice: &schedule::Choice) {
        self.schedule.place(node, choice);
        self.is_placed[node as usize] = true;
        let consumers = self.tasks.graph().successors();
        for &consumer in consumers.row(node) {
            let waits = self
                .tasks
                .inputs(consumer)
                .any(|input| input.producer == node);
            // One entry per edge; edges from constants are no inputs.
            if waits {
                self.n_waits[consumer as usize] -= 1;
                if self.n_waits[consumer as usize] == 0 {
                    self.add(consumer);
                }
            }
        }
    }

    /// Returns the ready node and the device with the earliest start.
    fn earliest(&mut self) -> Option<(u32, u32)> {
        let mut best: Option<(f64, f64, u32, u32)> = None;
        for device in (0_u32..).take(self.tasks.n_devices()) {
            let Some((start, node)) = self.earliest_on(device) else {
                continue;
            };
            let rank = self.ranks[node as usize];
            let preference = self
                .tasks
                .candidates(node)
                .iter()
                .position(|&it| it == device);
            let is_better = best.is_none_or(|(least, of_rank, of_node, of_device)| {
                let before = start.total_cmp(&least).then(of_rank.total_cmp(&rank));
                let before = before.then(node.cmp(&of_node));
                let other = self
                    .tasks
                    .candidates(of_node)
                    .iter()
                    .position(|&it| it == of_device);
                before.then(preference.cmp(&other)) == Ordering::Less
            });
            if is_better {
                best = Some((start, rank, node, device));
            }
        }
        best.map(|(_, _, node, device)| (node, device))
    }

    /// Returns the start of the node that starts first on a device.
    fn earliest_on(&mut self, device: u32) -> Option<(f64, u32)> {
        let tail = self.schedule.tail_ns(device);
        let at = device as usize;
        while let Some(Reverse(first)) = self.early[at].peek()
            && first.key <= tail
        {
            let node = first.node;
            self.early[at].pop();
            let key = self.ranks[node as usize];
            self.waiting[at].push(Entry { key, node });
        }
        while let Some(first) = self.waiting[at].peek() {
            let node = first.node;
            if self.may_take(node, device) {
                return Some((tail, node));
            }
            self.waiting[at].pop();
        }
        while let Some(Reverse(first)) = self.early[at].peek() {
            let (key, node) = (first.key, first.node);
            if self.may_take(node, device) {
                return Some((key, node));
            }
            self.early[at].pop();
        }
        None
    }

    fn may_take(&mut self, node: u32, device: u32) -> bool {
        !self.is_placed[node as usize] && self.schedule.legal(node).contains(&device)
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
