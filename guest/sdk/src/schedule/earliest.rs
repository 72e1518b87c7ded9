//! Earliest task first, within the memory of devices.
//!
//! Of all nodes whose producers are placed, and all devices, the pair with the earliest start comes
//! next; of equal ones the node with the largest rank, then the more preferred device (Hwang, Chow,
//! Anger, Lee 1989). A node whose candidates are all full goes where it finishes first.
//!
//! With favourite children, a device may wait (Hanen, Munier 1995; Jeon et al. 2020). It is awake
//! if the favourite child of its last node is ready, and starts no earlier elsewhere. An awake
//! device takes the favourite child, or an urgent node before that: one whose inputs could be on
//! every device by then.

use std::cmp::Ordering;

use super::Choice;
use super::ListSchedule;
use super::Scheduled;
use super::TaskGraph;
use super::lanes::later;
use super::ready::ReadyQueue;
use crate::NONE;

/// Returns the schedule in which the pair of a ready node and a device with the earliest start
/// comes first.
///
/// `ranks` are the keys of nodes that could start at the same time, largest first, one per node.
/// `favourites` is the favourite child of each node, one of its consumers or [`NONE`]; empty if no
/// device waits. A node is the favourite child of at most one other. `schedule` is empty.
pub fn earliest_first<'t, 'g>(
    tasks: &'t TaskGraph<'t, 'g>,
    ranks: &'t [f64],
    favourites: &'t [u32],
    schedule: ListSchedule<'t, 'g>,
) -> Scheduled {
    Etf::new(tasks, ranks, favourites, schedule).run()
}

/// A schedule in progress.
struct Etf<'t, 'g> {
    tasks: &'t TaskGraph<'t, 'g>,
    ranks: &'t [f64],
    favourites: &'t [u32],
    /// Per node: the node whose favourite child it is, or [`NONE`]. Empty if there is none.
    parents: Vec<u32>,
    schedule: ListSchedule<'t, 'g>,
    /// Per device: ready nodes, by the arrival of their inputs there.
    ready: Vec<ReadyQueue>,
    /// Per device: the same nodes, by the arrival of their inputs on the last device. Not filled if
    /// no device waits.
    urgent: Vec<ReadyQueue>,
    /// Per chip: its last node.
    last: Vec<u32>,
    /// Per chip: the favourite child for which it waits.
    awake: Vec<Option<Awake>>,
    is_placed: Vec<bool>,
    /// Number of inputs whose producer is not placed.
    n_waits: Vec<usize>,
}

/// What a chip waits for.
#[derive(Debug, Clone, Copy)]
struct Awake {
    node: u32,
    device: u32,
    start_ns: f64,
}

impl<'t, 'g> Etf<'t, 'g> {
    fn new(
        tasks: &'t TaskGraph<'t, 'g>,
        ranks: &'t [f64],
        favourites: &'t [u32],
        schedule: ListSchedule<'t, 'g>,
    ) -> Self {
        let mut n_waits = vec![0; ranks.len()];
        for node in tasks.nodes() {
            n_waits[node as usize] = tasks.inputs(node).count();
        }
        let mut parents = vec![NONE; favourites.len()];
        for (parent, &favourite) in (0..).zip(favourites) {
            if let Some(of_child) = parents.get_mut(favourite as usize) {
                *of_child = parent;
            }
        }
        let queues = || (0..tasks.n_devices()).map(|_| ReadyQueue::default());
        Self {
            tasks,
            ranks,
            favourites,
            parents,
            schedule,
            ready: queues().collect(),
            urgent: queues().collect(),
            last: vec![NONE; tasks.n_chips()],
            awake: vec![None; tasks.n_chips()],
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
                }
            }
            n_left -= 1;
        }
        self.schedule.finish()
    }

    /// Adds a node whose producers are placed.
    fn add(&mut self, node: u32) {
        let legal = self.schedule.legal(node).to_vec();
        let waits = !self.favourites.is_empty();
        let mut everywhere_ns = 0.0;
        for &device in &legal {
            let arrives_ns = self.schedule.ready_ns(node, device);
            self.ready[device as usize].push(node, arrives_ns);
            everywhere_ns = later(everywhere_ns, arrives_ns);
        }
        if waits {
            for &device in &legal {
                self.urgent[device as usize].push(node, everywhere_ns);
            }
            self.wake(node, &legal);
        }
    }

    /// Lets the device of a node's parent wait for the node, if the node starts first there.
    fn wake(&mut self, node: u32, legal: &[u32]) {
        let parent = self.parents[node as usize];
        if parent == NONE {
            return;
        }
        let device = self.schedule.device(parent);
        if device == NONE || !legal.contains(&device) {
            return; // there is no memory for it, or it may not run there
        }
        let chip = self.tasks.chip(device);
        let schedule = &self.schedule;
        let start = |on: u32| later(schedule.ready_ns(node, on), schedule.tail_ns(on));
        let start_ns = start(device);
        let is_first = legal.iter().all(|&other| start_ns <= start(other));
        if self.last[chip] == parent && is_first {
            self.awake[chip] = Some(Awake {
                node,
                device,
                start_ns,
            });
        }
    }

    fn place(&mut self, node: u32, choice: &Choice) {
        self.schedule.place(node, choice);
        self.is_placed[node as usize] = true;
        let chip = self.tasks.chip(choice.device);
        self.last[chip] = node;
        self.awake[chip] = None;
        for &consumer in self.tasks.consumers(node) {
            // One entry per edge.
            self.n_waits[consumer as usize] -= 1;
            if self.n_waits[consumer as usize] == 0 {
                self.add(consumer);
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
            let preference = |node: u32, device: u32| {
                let mut candidates = self.tasks.candidates(node).iter();
                candidates.position(|&it| it == device)
            };
            let is_better = best.is_none_or(|(least, of_rank, of_node, of_device)| {
                let before = start.total_cmp(&least).then(of_rank.total_cmp(&rank));
                let before = before
                    .then(node.cmp(&of_node))
                    .then_with(|| preference(node, device).cmp(&preference(of_node, of_device)));
                before == Ordering::Less
            });
            if is_better {
                best = Some((start, rank, node, device));
            }
        }
        best.map(|(_, _, node, device)| (node, device))
    }

    /// Returns the start of the node that starts first on a device.
    fn earliest_on(&mut self, device: u32) -> Option<(f64, u32)> {
        let tail_ns = self.schedule.tail_ns(device);
        let (schedule, is_placed) = (&mut self.schedule, &self.is_placed);
        let mut may_take = |node: u32, device: u32| {
            !is_placed[node as usize] && schedule.legal(node).contains(&device)
        };
        let awake = self.awake[self.tasks.chip(device)];
        // It no longer waits if the memory for the favourite child is gone.
        let awake = awake.filter(|awake| may_take(awake.node, awake.device));
        let may_take = |node: u32| may_take(node, device);
        let Some(awake) = awake else {
            return self.ready[device as usize].first(tail_ns, self.ranks, may_take);
        };
        let favourite = Some((awake.start_ns, awake.node));
        let favourite = favourite.filter(|_| awake.device == device);
        let urgent = self.urgent[device as usize].first(tail_ns, self.ranks, may_take);
        match (favourite, urgent) {
            (Some(favourite), Some(urgent)) if favourite.0 <= urgent.0 => Some(favourite),
            (favourite, urgent) => urgent.or(favourite),
        }
    }
}

#[cfg(all(test, not(target_arch = "wasm32")))]
mod tests {
    use super::*;
    use crate::DeviceSet;
    use crate::Graph;
    use crate::log::Log;
    use crate::testing::GraphBuilder;
    use crate::testing::TestDevices;
    use crate::testing::cluster;

    fn schedule(graph: &GraphBuilder, devices: &TestDevices, favourites: &[u32]) -> Scheduled {
        let graph = graph.clone().build();
        let log = Log::silent();
        let (graph, devices) = (Graph::new(&graph, &log), DeviceSet::new(devices, &log));
        let tasks = TaskGraph::new(&graph, &devices);
        let ranks = tasks.upward_ranks();
        earliest_first(&tasks, &ranks, favourites, ListSchedule::new(&tasks, None))
    }

    #[test]
    fn an_awake_device_takes_its_favourite_before_others_that_are_not_urgent() {
        let devices = cluster("2xA").with_links(0.0, 1.0);
        let mut graph = GraphBuilder::new(&devices);
        let [x, a, b] = [5.0, 20.0, 25.0].map(|ns| graph.node("", &[ns]));
        let [end, other] = [60.0, 200.0].map(|ns| graph.node("", &[ns]));
        graph.candidates(b, &[1]);
        graph.control_edge(x, a);
        graph.edge(a, end, 100);
        graph.edge(b, end, 2);
        graph.edge(x, other, 100);
        graph.control_edge(b, other);
        // `other` may start at 25 on the first device, but on the second at 105: it is not urgent.
        let waits = schedule(&graph, &devices, &[NONE, end, NONE, NONE, NONE]);
        assert_eq!(waits.devices, [0, 0, 1, 0, 0]);
        assert_eq!(waits.start_ns, [0.0, 5.0, 0.0, 27.0, 87.0]);
        let without = schedule(&graph, &devices, &[]);
        assert_eq!(without.devices, [0, 0, 1, 1, 0]);
        assert_eq!(without.start_ns, [0.0, 5.0, 0.0, 125.0, 25.0]);
        // If it may run only there, it is urgent.
        let mut near = graph.clone();
        near.candidates(other, &[0]);
        let urgent = schedule(&near, &devices, &[NONE, end, NONE, NONE, NONE]);
        assert_eq!(urgent.start_ns, without.start_ns);
    }

    #[test]
    fn a_device_that_has_executed_another_node_since_does_not_wait() {
        let devices = cluster("2xA").with_links(0.0, 1.0);
        let mut graph = GraphBuilder::new(&devices);
        let [p, q, b, c] = [10.0, 10.0, 25.0, 5.0].map(|ns| graph.node("", &[ns]));
        let [child, other] = [60.0, 50.0].map(|ns| graph.node("", &[ns]));
        graph.candidates(q, &[0]);
        graph.candidates(b, &[1]);
        graph.candidates(c, &[1]);
        graph.control_edge(p, q);
        graph.control_edge(b, c);
        graph.edge(p, child, 100);
        graph.edge(c, child, 10);
        graph.edge(p, other, 100);
        graph.control_edge(c, other);
        let scheduled = schedule(&graph, &devices, &[child, NONE, NONE, NONE, NONE, NONE]);
        assert_eq!(scheduled.start_ns, [0.0, 10.0, 0.0, 25.0, 80.0, 30.0]);
    }
}
