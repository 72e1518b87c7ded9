//! A run of online decisions, simulated: what a policy that decides while a graph runs would pick.
//!
//! Nodes become ready when their producers have finished. [`Decisions`] then picks a device, and
//! the transfers of the inputs start. A chip executes one node at a time. It takes the next of its
//! queue whose inputs have arrived; it does not wait for one whose inputs are still on their way.
//! As in all schedules of this module, a link carries any number of transfers.

use std::cmp::Ordering;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::Scheduled;
use super::TaskGraph;
use super::lanes::later;
use super::legal::LegalDevices;
use super::ready::ReadyQueue;
use crate::EdgeKind;
use crate::NONE;
use crate::memory::MemoryBudget;
use crate::policy::Completion;
use crate::policy::ReadyTask;

/// The run that simulated tasks belong to.
pub const RUN: u32 = 0;

/// What picks devices, and is notified of completions. A closure that picks is enough.
pub trait Decisions {
    /// Returns the device of a task whose inputs are ready. `legal` are the devices that it may
    /// take, most preferred first, never empty: one if its group is decided, else the candidates
    /// that have memory for it. For any other answer, the task goes to the first of them.
    fn pick(&mut self, task: &ReadyTask, legal: &[u32]) -> u32;

    /// Hears which tasks have completed since the last call, before it picks for those that they
    /// made ready.
    fn observe(&mut self, done: &[Completion]) {
        let _ = done;
    }
}

impl<F: FnMut(&ReadyTask, &[u32]) -> u32> Decisions for F {
    fn pick(&mut self, task: &ReadyTask, legal: &[u32]) -> u32 {
        self(task, legal)
    }
}

/// Returns the schedule of a run whose devices are decided when tasks become ready.
///
/// Tasks that become ready at one time are decided, and those in a queue executed, in the order in
/// which they became ready, or if there are `priorities`, one per node, by these, largest first;
/// ties by smaller id. Nodes only go to devices with enough of `memory`, if it is set, as in
/// [`super::ListSchedule`].
pub fn simulate(
    tasks: &TaskGraph<'_, '_>,
    memory: Option<MemoryBudget>,
    priorities: Option<&[f64]>,
    decisions: &mut impl Decisions,
) -> Scheduled {
    Simulation::new(tasks, memory, priorities).run(decisions)
}

/// What happens at a time.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Event {
    at_ns: f64,
    /// The chip that is free, or that a queued task's inputs have reached.
    chip: u32,
    /// The node that ends, or [`NONE`].
    node: u32,
}

impl Eq for Event {}

impl Ord for Event {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_time = self.at_ns.total_cmp(&other.at_ns);
        by_time.then((self.node, self.chip).cmp(&(other.node, other.chip)))
    }
}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

struct Simulation<'t, 'g> {
    tasks: &'t TaskGraph<'t, 'g>,
    legal: LegalDevices<'t, 'g>,
    priorities: Option<&'t [f64]>,
    /// The keys of queues: priorities, or minus the number of tasks that became ready before.
    keys: Vec<f64>,
    n_ready: f64,
    queues: Vec<ReadyQueue>,
    is_busy: Vec<bool>,
    is_started: Vec<bool>,
    n_waits: Vec<usize>,
    events: BinaryHeap<Reverse<Event>>,
    /// The chips that may start a node now.
    changed: Vec<u32>,
    scheduled: Scheduled,
    /// Bytes of the current task's inputs per device.
    held_bytes: Vec<u64>,
    /// Tensors of the current task.
    tensors: Vec<(u32, u32, u64)>,
}

impl<'t, 'g> Simulation<'t, 'g> {
    fn new(
        tasks: &'t TaskGraph<'t, 'g>,
        memory: Option<MemoryBudget>,
        priorities: Option<&'t [f64]>,
    ) -> Self {
        let n_nodes = tasks.graph().len();
        let mut n_waits = vec![0; n_nodes];
        for node in tasks.nodes() {
            n_waits[node as usize] = tasks.inputs(node).count();
        }
        Self {
            tasks,
            legal: LegalDevices::new(tasks, memory),
            priorities,
            keys: priorities.map_or_else(|| vec![0.0; n_nodes], <[f64]>::to_vec),
            n_ready: 0.0,
            queues: (0..tasks.n_chips())
                .map(|_| ReadyQueue::default())
                .collect(),
            is_busy: vec![false; tasks.n_chips()],
            is_started: vec![false; n_nodes],
            n_waits,
            events: BinaryHeap::new(),
            changed: Vec::new(),
            scheduled: Scheduled {
                devices: vec![NONE; n_nodes],
                start_ns: vec![0.0; n_nodes],
                ..Scheduled::default()
            },
            held_bytes: vec![0; tasks.n_devices()],
            tensors: Vec::new(),
        }
    }

    fn run(mut self, decisions: &mut impl Decisions) -> Scheduled {
        let tasks = self.tasks;
        let is_ready = |node: &u32| self.n_waits[*node as usize] == 0;
        let mut ready: Vec<u32> = tasks.nodes().filter(is_ready).collect();
        let mut done: Vec<Completion> = Vec::new();
        let mut now_ns = 0.0;
        loop {
            self.decide(&mut ready, now_ns, decisions);
            let mut changed = std::mem::take(&mut self.changed);
            for &chip in &changed {
                self.start_next(chip, now_ns);
            }
            changed.clear();
            self.changed = changed;
            let Some(Reverse(first)) = self.events.peek() else {
                break;
            };
            now_ns = first.at_ns;
            while let Some(Reverse(event)) = self.events.peek().copied()
                && event.at_ns.total_cmp(&now_ns) == Ordering::Equal
            {
                self.events.pop();
                self.changed.push(event.chip);
                if event.node != NONE {
                    self.end(event, &mut done, &mut ready);
                }
            }
            if !done.is_empty() {
                decisions.observe(&done);
                done.clear();
            }
        }
        self.scheduled
    }

    /// Ends a node, and adds the nodes that waited only for it.
    fn end(&mut self, event: Event, done: &mut Vec<Completion>, ready: &mut Vec<u32>) {
        let node = event.node as usize;
        self.is_busy[event.chip as usize] = false;
        self.scheduled.makespan_ns = later(self.scheduled.makespan_ns, event.at_ns);
        done.push(Completion {
            run: RUN,
            node: event.node,
            device: self.scheduled.devices[node],
            started_ns: self.scheduled.start_ns[node],
            finished_ns: event.at_ns,
        });
        for &consumer in self.tasks.consumers(event.node) {
            // One entry per edge.
            let n_waits = &mut self.n_waits[consumer as usize];
            *n_waits -= 1;
            if *n_waits == 0 {
                ready.push(consumer);
            }
        }
    }

    /// Decides where ready nodes go, and queues them there.
    fn decide(&mut self, ready: &mut Vec<u32>, now_ns: f64, decisions: &mut impl Decisions) {
        if let Some(priorities) = self.priorities {
            let key = |node: u32| priorities[node as usize];
            ready.sort_by(|&a, &b| key(b).total_cmp(&key(a)).then(a.cmp(&b)));
        }
        for &node in ready.iter() {
            let task = self.task(node, now_ns);
            let legal = self.legal.of(node);
            let picked = decisions.pick(&task, legal);
            let device = match legal.contains(&picked) {
                true => picked,
                false => legal[0],
            };
            self.legal.decide(node, device);
            self.scheduled.devices[node as usize] = device;
            if self.priorities.is_none() {
                self.keys[node as usize] = -self.n_ready;
                self.n_ready += 1.0;
            }
            let tasks = self.tasks;
            let arrives_ns = tasks.inputs(node).fold(now_ns, |arrives, input| {
                let from = self.scheduled.devices[input.producer as usize];
                later(arrives, now_ns + tasks.transfer_ns(&input, from, device))
            });
            let chip = tasks.chip(device);
            self.queues[chip].push(node, arrives_ns);
            let chip = u32::try_from(chip).unwrap_or(NONE);
            if arrives_ns > now_ns {
                self.events.push(Reverse(Event {
                    at_ns: arrives_ns,
                    chip,
                    node: NONE,
                }));
            } else {
                self.changed.push(chip);
            }
        }
        ready.clear();
    }

    /// Starts the next node of a chip's queue, if the chip is idle and its inputs are there.
    fn start_next(&mut self, of_chip: u32, now_ns: f64) {
        let chip = of_chip as usize;
        if self.is_busy[chip] {
            return;
        }
        let is_started = &self.is_started;
        let first = self.queues[chip].first(now_ns, &self.keys, |node| !is_started[node as usize]);
        let Some((start_ns, node)) = first else {
            return;
        };
        if start_ns > now_ns {
            return;
        }
        self.is_busy[chip] = true;
        self.is_started[node as usize] = true;
        self.scheduled.start_ns[node as usize] = now_ns;
        let device = self.scheduled.devices[node as usize];
        let work_ns = self.tasks.work_ns(node, device);
        // No executions times a cost of +inf would be NaN.
        let work_ns = if work_ns > 0.0 { work_ns } else { 0.0 };
        self.events.push(Reverse(Event {
            at_ns: now_ns + work_ns,
            chip: of_chip,
            node,
        }));
    }

    /// Returns a ready task as a host describes it.
    fn task(&mut self, node: u32, now_ns: f64) -> ReadyTask {
        let graph = self.tasks.graph();
        let devices = &self.scheduled.devices;
        self.tensors.clear();
        let is_read = |kind: u8| kind & (EdgeKind::PRELOADED | EdgeKind::CONTROL) == 0;
        let inputs = graph.edges_into(node).filter(|edge| is_read(edge.kind));
        // Two edges may carry one tensor.
        let tensor = |edge: crate::graph::InEdge| (edge.tensor, edge.from, edge.bytes);
        self.tensors.extend(inputs.map(tensor));
        self.tensors.sort_unstable();
        self.tensors.dedup();
        self.held_bytes.fill(0);
        let mut input_bytes = 0_u64;
        for &(_, from, bytes) in &self.tensors {
            input_bytes = input_bytes.saturating_add(bytes);
            if let Some(held) = self.held_bytes.get_mut(devices[from as usize] as usize) {
                *held = held.saturating_add(bytes);
            }
        }
        let mut home = NONE;
        let mut most = 0;
        for (device, &held) in (0..).zip(&self.held_bytes) {
            if held > most {
                (home, most) = (device, held);
            }
        }
        ReadyTask {
            run: RUN,
            node,
            cost_row: graph.cost_row()[node as usize],
            candidate_set: graph.candidate_set()[node as usize],
            input_bytes,
            home,
            now_ns,
        }
    }
}

#[cfg(all(test, not(target_arch = "wasm32")))]
mod tests {
    use super::*;
    use crate::DeviceSet;
    use crate::Graph;
    use crate::log::Log;
    use crate::memory::is_tight;
    use crate::testing::GraphBuilder;
    use crate::testing::TestDevices;
    use crate::testing::cluster;
    use crate::testing::papers;

    fn run(
        graph: GraphBuilder,
        devices: &TestDevices,
        priorities: Option<&[f64]>,
        decisions: &mut impl Decisions,
    ) -> Scheduled {
        let graph = graph.build();
        let log = Log::silent();
        let (graph, devices) = (Graph::new(&graph, &log), DeviceSet::new(devices, &log));
        let memory = is_tight(&graph, &devices).then(|| MemoryBudget::new(&graph, &devices));
        let tasks = TaskGraph::new(&graph, &devices);
        simulate(&tasks, memory, priorities, decisions)
    }

    /// Notes what it hears and sends everything to its device.
    #[derive(Default)]
    struct Notes {
        device: u32,
        asked: Vec<ReadyTask>,
        done: Vec<Completion>,
    }

    impl Decisions for Notes {
        fn pick(&mut self, task: &ReadyTask, _legal: &[u32]) -> u32 {
            self.asked.push(*task);
            self.device
        }

        fn observe(&mut self, done: &[Completion]) {
            self.done.extend_from_slice(done);
        }
    }

    #[test]
    fn tasks_say_where_their_inputs_are_and_completions_are_reported() {
        let devices = cluster("2xA").with_links(5.0, 1.0);
        let mut graph = GraphBuilder::new(&devices);
        let constant = graph.constant("constant", 1_000);
        let [a, b, end] = ["a", "b", "end"].map(|name| graph.node(name, &[10.0]));
        graph.candidates(a, &[0]);
        graph.edge(constant, end, 1_000);
        graph.edge(a, end, 30);
        graph.edge(b, end, 70);
        graph.control_edge(b, end);
        graph.executions(b, 2.0);
        let mut notes = Notes {
            device: 1,
            ..Notes::default()
        };
        let scheduled = run(graph, &devices, None, &mut notes);
        assert_eq!(scheduled.devices, [NONE, 0, 1, 1]);
        // `a` ends at 10, `b`, executed twice, at 20. Then 30 bytes move in 5 + 30.
        assert_eq!(scheduled.start_ns, [0.0, 0.0, 0.0, 55.0]);
        assert_eq!(scheduled.makespan_ns, 65.0);
        let last = notes.asked[2];
        assert_eq!((last.node, last.home, last.input_bytes), (end, 1, 100));
        assert_eq!(last.now_ns, 20.0);
        assert_eq!(notes.asked[0].home, NONE);
        let done: Vec<_> = notes
            .done
            .iter()
            .map(|it| (it.node, it.device, it.started_ns, it.finished_ns))
            .collect();
        assert_eq!(
            done,
            [(a, 0, 0.0, 10.0), (b, 1, 0.0, 20.0), (end, 1, 55.0, 65.0)]
        );
    }

    #[test]
    fn queues_are_in_the_order_of_readiness_or_of_priorities() {
        let devices = cluster("1xA");
        let mut graph = GraphBuilder::new(&devices);
        for _ in 0..3 {
            graph.node("", &[10.0]);
        }
        let pick = |_: &ReadyTask, legal: &[u32]| legal[0];
        let by_time = run(graph.clone(), &devices, None, &mut { pick });
        assert_eq!(by_time.start_ns, [0.0, 10.0, 20.0]);
        let by_priority = run(graph, &devices, Some(&[1.0, 3.0, 3.0]), &mut { pick });
        assert_eq!(by_priority.start_ns, [20.0, 0.0, 10.0]);
    }

    #[test]
    fn groups_pins_and_memory_restrict_the_answers() {
        let devices = cluster("3xA").with_memory(0, 100);
        let mut graph = GraphBuilder::new(&devices);
        let nodes: Vec<u32> = (0..5).map(|_| graph.node("", &[10.0])).collect();
        graph.group(&[nodes[1], nodes[3]]);
        graph.pin(nodes[2], 2);
        graph.resident_bytes(nodes[0], 80);
        graph.resident_bytes(nodes[4], 80);
        let mut seen = Vec::new();
        let mut pick = |task: &ReadyTask, legal: &[u32]| {
            seen.push(legal.to_vec());
            if task.node == 1 { 1 } else { 0 }
        };
        let scheduled = run(graph, &devices, None, &mut pick);
        assert_eq!(scheduled.devices, [0, 1, 2, 1, 1]);
        let all = vec![0, 1, 2];
        assert_eq!(seen, [all.clone(), all, vec![2], vec![1], vec![1, 2]]);
    }

    #[test]
    fn a_chip_does_not_wait_for_inputs_on_their_way() {
        let devices = cluster("1xA,1xB").with_links(0.0, 1.0);
        let mut graph = GraphBuilder::new(&devices);
        let names = ["a", "early", "far", "near"];
        let [a, early, far, near] = names.map(|name| graph.node(name, &[10.0, 10.0]));
        graph.edge(a, far, 50);
        graph.edge(early, near, 1);
        let mut pick = |task: &ReadyTask, _: &[u32]| u32::from([far, near].contains(&task.node));
        let scheduled = run(graph, &devices, None, &mut pick);
        // `far` is queued first, and arrives at 60. `near` arrives at 21.
        assert_eq!(scheduled.start_ns, [0.0, 10.0, 60.0, 21.0]);
    }

    #[test]
    fn every_task_of_topcuoglus_example_is_asked_about_once() {
        let (devices, graph) = papers::topcuoglu();
        let log = Log::silent();
        let (graph, devices) = (Graph::new(&graph, &log), DeviceSet::new(&devices, &log));
        let tasks = TaskGraph::new(&graph, &devices);
        let mut notes = Notes::default();
        let scheduled = simulate(&tasks, None, None, &mut notes);
        let mut asked: Vec<u32> = notes.asked.iter().map(|task| task.node).collect();
        asked.sort_unstable();
        assert_eq!(asked, (0..10).collect::<Vec<u32>>());
        // All on the first processor, without transfers.
        let sum = [14, 13, 11, 13, 12, 13, 7, 5, 18, 21].iter().sum::<i32>();
        assert_eq!(scheduled.makespan_ns, f64::from(sum));
        assert_eq!(notes.done.len(), 10);
    }

    #[test]
    fn costs_of_infinity_end_the_simulation() {
        let devices = cluster("1xA,1xB").with_links(0.0, f64::INFINITY);
        let mut graph = GraphBuilder::new(&devices);
        let [a, b] = ["a", "b"].map(|name| graph.node(name, &[f64::INFINITY, 1.0]));
        let c = graph.node("c", &[f64::INFINITY, 1.0]);
        graph.edge(a, b, 8);
        graph.executions(c, 0.0);
        let mut pick = |task: &ReadyTask, _: &[u32]| task.node % 2;
        let scheduled = run(graph, &devices, None, &mut pick);
        assert_eq!(scheduled.devices, [0, 1, 0]);
        assert_eq!(scheduled.makespan_ns, f64::INFINITY);
    }
}
