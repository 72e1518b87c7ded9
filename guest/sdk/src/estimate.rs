//! Estimates the makespan of a plan: a list schedule, event by event, as the executor would run it.
//! The host and [`testing`](crate::testing) use it.
//!
//! A node may start when all its inputs have arrived on its device. A free queue of a chip starts
//! the ready node with the largest start order, ties by smaller id. A queue never waits for a node
//! whose inputs are still on their way while another node is ready. Devices of one chip share its
//! queues. A tensor arrives on another device once, `latency + bytes * ns_per_byte` after it is
//! produced. Links do not contend, as in the schedules of Topcuoglu et al. 2002. Tensors of
//! preloaded edges ([`EdgeKind::PRELOADED`](crate::EdgeKind::PRELOADED)) are on every device from
//! the start.

use std::cmp::Ordering;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::graph::Rows;

/// The input of a schedule: the graph, and the times of nodes and transfers.
pub trait Durations {
    /// Returns the consumers of every node, one per edge.
    fn successors(&self) -> Rows<'_>;

    /// Returns the number of edges into a node.
    fn n_predecessors(&self, node: u32) -> usize;

    /// Returns the time of all executions of a node on a device, in ns; never NaN.
    fn work_ns(&self, node: u32, device: u32) -> f64;

    /// Returns the time to transfer the tensor of an edge from one device to another, in ns.
    /// `position` is the index of the edge in [`Self::successors`].
    fn transfer_ns(&self, position: usize, source: u32, destination: u32) -> f64;
}

/// A plan to be scheduled.
#[derive(Debug, Clone, Copy)]
pub struct Schedule<'a> {
    /// One device per node, all in range.
    pub devices: &'a [u32],
    /// Start order, larger first; `None` means the order of ids.
    pub start_order: Option<&'a [i32]>,
    /// Queue per node; `None` means the queue of its device that is free first.
    pub queues: Option<&'a [u32]>,
}

/// The times of a plan's nodes. Keeps its buffers for the next plan.
#[derive(Debug)]
pub struct Estimate {
    starts_ns: Vec<f64>,
    finish_ns: Vec<f64>,
    /// When the inputs produced so far have arrived on the node's device.
    ready_ns: Vec<f64>,
    /// Number of edges whose producer has not finished.
    n_waits: Vec<u32>,
    /// First queue of each device's chip. A chip has as many queues as its device with the most
    /// queues.
    first_queue: Vec<u32>,
    /// Number of queues of a chip, indexed by its first queue.
    n_queues: Vec<u32>,
    /// Queues that are filled together: all queues of a chip, stored at the first one; or single
    /// queues if the plan assigns nodes to queues.
    pools: Vec<Pool>,
    /// Pending events, earliest first.
    events: BinaryHeap<Reverse<Event>>,
    is_up_to_date: bool,
    makespan_ns: f64,
}

#[derive(Debug, Default)]
struct Pool {
    n_free: u32,
    /// Ready nodes, by start order, then id.
    ready: BinaryHeap<(i32, Reverse<u32>)>,
}

/// An event of a node.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Event {
    at_ns: f64,
    node: u32,
    what: What,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    /// The node finishes and frees its queue.
    Finish,
    /// The node's last input arrives.
    Arrival,
}

impl Eq for Event {}

impl Ord for Event {
    fn cmp(&self, other: &Self) -> Ordering {
        let key = |event: &Self| (event.node, event.what == What::Arrival);
        self.at_ns
            .total_cmp(&other.at_ns)
            .then_with(|| key(self).cmp(&key(other)))
    }
}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Estimate {
    /// Creates an estimate for graphs of `n_nodes` nodes. `chips` and `queues` are the chip and the
    /// number of queues of each device.
    pub fn new(n_nodes: usize, chips: &[u32], queues: &[u32]) -> Self {
        let n_chips = chips.iter().max().map_or(0, |&last| last + 1);
        let mut queues_of_chip = vec![0u32; n_chips as usize];
        for (&chip, &queues) in chips.iter().zip(queues) {
            let most = &mut queues_of_chip[chip as usize];
            *most = queues.max(*most).max(1);
        }
        let mut first_of_chip = vec![0u32];
        for &queues in &queues_of_chip {
            first_of_chip.push(first_of_chip[first_of_chip.len() - 1] + queues);
        }
        let n_pools = first_of_chip[first_of_chip.len() - 1] as usize;
        let mut n_queues = vec![0; n_pools];
        for (&first, &queues) in first_of_chip.iter().zip(&queues_of_chip) {
            if queues > 0 {
                n_queues[first as usize] = queues;
            }
        }
        let mut pools = Vec::new();
        pools.resize_with(n_pools, Pool::default);
        let of_chip = |&chip: &u32| first_of_chip[chip as usize];
        Self {
            starts_ns: vec![0.0; n_nodes],
            finish_ns: vec![0.0; n_nodes],
            ready_ns: vec![0.0; n_nodes],
            n_waits: vec![0; n_nodes],
            first_queue: chips.iter().map(of_chip).collect(),
            n_queues,
            pools,
            events: BinaryHeap::new(),
            is_up_to_date: false,
            makespan_ns: 0.0,
        }
    }

    /// Marks the schedule as outdated after the plan has changed.
    pub fn invalidate(&mut self) {
        self.is_up_to_date = false;
    }

    /// Returns when the last node ends, in ns. Computes the schedule only once after each
    /// [`Self::invalidate`].
    pub fn makespan_ns(&mut self, durations: &impl Durations, schedule: Schedule<'_>) -> f64 {
        if !self.is_up_to_date {
            self.makespan_ns = self.run(durations, schedule);
            self.is_up_to_date = true;
        }
        self.makespan_ns
    }

    /// Returns when each node starts in the last computed schedule, in ns.
    pub fn starts_ns(&self) -> &[f64] {
        &self.starts_ns
    }

    /// Returns when each node ends in the last computed schedule, in ns.
    pub fn finish_ns(&self) -> &[f64] {
        &self.finish_ns
    }

    fn run(&mut self, durations: &impl Durations, schedule: Schedule<'_>) -> f64 {
        self.reset(durations, schedule);
        let mut makespan_ns = 0.0f64;
        // Pools in which a node may start now.
        let mut touched: Vec<usize> = Vec::new();
        while let Some(&Reverse(Event { at_ns: now_ns, .. })) = self.events.peek() {
            // All events of one instant are processed before any node starts, so that the start
            // order decides and not chance.
            while let Some(&Reverse(event)) = self.events.peek()
                && event.at_ns <= now_ns
            {
                self.events.pop();
                let pool = self.pool(schedule, event.node as usize);
                match event.what {
                    What::Finish => {
                        makespan_ns = makespan_ns.max(event.at_ns);
                        self.pools[pool].n_free += 1;
                        self.release(durations, schedule, event.node);
                    }
                    What::Arrival => {
                        let node = event.node;
                        let order = schedule.start_order.map_or(0, |order| order[node as usize]);
                        self.pools[pool].ready.push((order, Reverse(node)));
                    }
                }
                touched.push(pool);
            }
            for pool in touched.drain(..) {
                self.start_nodes(durations, schedule, pool, now_ns);
            }
        }
        makespan_ns
    }

    fn reset(&mut self, durations: &impl Durations, schedule: Schedule<'_>) {
        self.events.clear();
        for (pool, &n_queues) in self.pools.iter_mut().zip(&self.n_queues) {
            pool.ready.clear();
            pool.n_free = if schedule.queues.is_some() {
                1
            } else {
                n_queues
            };
        }
        self.ready_ns.fill(0.0);
        for (node, n_waits) in (0u32..).zip(&mut self.n_waits) {
            *n_waits = to_u32(durations.n_predecessors(node));
            if *n_waits == 0 {
                self.events.push(Reverse(Event {
                    at_ns: 0.0,
                    node,
                    what: What::Arrival,
                }));
            }
        }
    }

    /// Returns the pool in which a node waits.
    fn pool(&self, schedule: Schedule<'_>, node: usize) -> usize {
        let first = self.first_queue[schedule.devices[node] as usize] as usize;
        let queue = schedule.queues.map_or(0, |queues| queues[node]);
        first + queue.min(self.n_queues[first] - 1) as usize
    }

    /// Starts nodes while queues of the pool are free.
    fn start_nodes(
        &mut self,
        durations: &impl Durations,
        schedule: Schedule<'_>,
        pool: usize,
        now_ns: f64,
    ) {
        let pool = &mut self.pools[pool];
        while pool.n_free > 0
            && let Some((_, Reverse(node))) = pool.ready.pop()
        {
            pool.n_free -= 1;
            let index = node as usize;
            let finish_ns = now_ns + durations.work_ns(node, schedule.devices[index]);
            self.starts_ns[index] = now_ns;
            self.finish_ns[index] = finish_ns;
            self.events.push(Reverse(Event {
                at_ns: finish_ns,
                node,
                what: What::Finish,
            }));
        }
    }

    /// Sends the outputs of a finished node to its consumers.
    fn release(&mut self, durations: &impl Durations, schedule: Schedule<'_>, producer: u32) {
        let source = schedule.devices[producer as usize];
        let finish_ns = self.finish_ns[producer as usize];
        let successors = durations.successors();
        for position in successors.range(producer) {
            let node = successors.items[position];
            let consumer = node as usize;
            let destination = schedule.devices[consumer];
            let mut arrival_ns = finish_ns;
            if destination != source {
                arrival_ns += durations.transfer_ns(position, source, destination);
            }
            let ready_ns = &mut self.ready_ns[consumer];
            *ready_ns = ready_ns.max(arrival_ns);
            self.n_waits[consumer] -= 1;
            if self.n_waits[consumer] == 0 {
                self.events.push(Reverse(Event {
                    at_ns: *ready_ns,
                    node,
                    what: What::Arrival,
                }));
            }
        }
    }
}

/// Converts a number of edges. Graphs have fewer than 2^32.
fn to_u32(n: usize) -> u32 {
    u32::try_from(n).expect("graphs have fewer than 2^32 edges")
}
