//! Estimates the makespan of a plan: a list schedule, event by event, as the executor would run it.
//! The host and [`testing`](crate::testing) use it.
//!
//! A node may start when all its inputs have arrived on its device. A free queue starts the ready
//! node with the largest start order, ties by smaller id. A queue never waits for a node whose
//! inputs are still on their way while another node is ready. A node without work ends when its
//! inputs have arrived, and needs no queue.
//!
//! Nodes and transfers compete for [`Resources`]. Kernels of one chip that together use more
//! threads than it has slow each other down equally. A tensor is transferred once to each device
//! that reads it. Transfers over one link follow each other in the order in which their tensors are
//! produced; the next one begins when the bytes of the one before are through, without its latency.
//! Copies between devices that compute in host memory keep a thread of the host busy instead.
//! Tensors of preloaded edges ([`EdgeKind::PRELOADED`](crate::EdgeKind::PRELOADED)) are on every
//! device from the start.

use std::cmp::Ordering;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::graph::Rows;

mod chip;
mod journal;
mod resources;
#[cfg(test)]
mod tests;

pub use resources::Resources;

use chip::Chip;
use journal::Journal;
use resources::NONE;
use resources::Route;
use resources::to_u32;

/// The input of a schedule: the graph, and the times of nodes and transfers.
pub trait Durations {
    /// Returns the consumers of every node, one per edge.
    fn successors(&self) -> Rows<'_>;

    /// Returns the number of edges into a node.
    fn n_predecessors(&self, node: u32) -> usize;

    /// Returns the time of all executions of a node on a device that has its chip for itself, in
    /// ns; never NaN.
    fn work_ns(&self, node: u32, device: u32) -> f64;

    /// Returns how many threads of its chip the kernel of a node uses. Only asked of chips with
    /// threads ([`Resources::with_chip`]).
    fn n_threads(&self, node: u32, device: u32) -> f64 {
        let _ = (node, device);
        1.0
    }

    /// Returns whether an edge takes no time between any two devices. `position` is its index in
    /// [`Self::successors`].
    fn is_free(&self, position: usize) -> bool {
        let _ = position;
        false
    }

    /// Returns the transfer of an edge's tensor from one device to another. `position` is the index
    /// of the edge in [`Self::successors`].
    fn transfer(&self, position: usize, source: u32, destination: u32) -> Transfer;
}

/// The transfer of a tensor to another device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Transfer {
    /// The tensor. Edges of one producer with equal numbers are one transfer per device.
    pub tensor: u32,
    /// Time in which it occupies no link, in ns.
    pub latency_ns: f64,
    /// Time in which it occupies the links that it takes, in ns.
    pub busy_ns: f64,
}

/// A transfer in a schedule.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScheduledTransfer {
    /// The node that sends.
    pub producer: u32,
    /// The tensor, as in [`Transfer::tensor`].
    pub tensor: u32,
    /// The sending device.
    pub source: u32,
    /// The receiving device.
    pub destination: u32,
    /// When it starts, in ns.
    pub start_ns: f64,
    /// When the tensor arrives, in ns.
    pub end_ns: f64,
    /// Time in which it occupies its links, in ns.
    pub busy_ns: f64,
    /// The links that it occupies; `u32::MAX` is no link.
    pub links: [u32; 4],
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
    resources: Resources,
    starts_ns: Vec<f64>,
    finish_ns: Vec<f64>,
    nodes: Vec<Node>,
    /// Nodes that have moved since the last schedule.
    moved: Vec<u32>,
    /// Number of edges into each node; empty until the first plan.
    n_predecessors: Vec<u32>,
    /// Per queue: its pool is stored at the first one, or at each if the plan assigns nodes to
    /// queues.
    pools: Vec<Pool>,
    chips: Vec<Chip>,
    /// Per link, when it is free.
    link_free_ns: Vec<f64>,
    /// Copies that a pool executes. Their ids follow those of nodes.
    copies: Vec<Copy>,
    /// The nodes that wait for these copies.
    readers: Vec<u32>,
    /// Pending events, earliest first.
    events: BinaryHeap<Reverse<Event>>,
    /// Pools in which something may start now.
    touched: Vec<u32>,
    /// Nodes without work that have ended, and whose outputs are not sent yet.
    instant: Vec<u32>,
    /// Transfers of one node: with destination and reader.
    outgoing: Vec<(Transfer, u32, u32)>,
    /// From when the schedule is out of date; +inf if it is not.
    changed_from_ns: f64,
    makespan_ns: f64,
    /// Exists from the first move on.
    journal: Option<Box<Journal>>,
    /// The transfers of the schedule, if they are recorded.
    transfers: Option<Vec<ScheduledTransfer>>,
}

/// What the schedule reads and writes of a node, in one half of a cache line: nodes are visited in
/// the order of their times, which in a large graph is no order of the memory.
#[derive(Debug, Clone, Copy, Default)]
#[repr(align(32))]
struct Node {
    /// When the inputs produced so far have arrived on its device.
    ready_ns: f64,
    /// Time on its device.
    work_ns: f64,
    device: u32,
    /// The pool in which it waits.
    pool: u32,
    start_order: i32,
    /// Number of edges whose producer has not finished.
    n_waits: u32,
}

#[derive(Debug, Default)]
struct Pool {
    n_free: u32,
    /// Ready nodes and copies, by start order, then id.
    ready: BinaryHeap<(i64, Reverse<u32>)>,
}

impl Clone for Pool {
    fn clone(&self) -> Self {
        Self {
            n_free: self.n_free,
            ready: self.ready.clone(),
        }
    }

    /// Keeps the buffer, unlike a derived implementation.
    fn clone_from(&mut self, other: &Self) {
        self.n_free = other.n_free;
        self.ready.clone_from(&other.ready);
    }
}

/// Copies start before nodes.
const COPY_ORDER: i64 = i64::MAX;

#[derive(Debug)]
struct Copy {
    pool: u32,
    work_ns: f64,
    /// Range of the readers.
    readers: (u32, u32),
    /// Index of the recorded transfer.
    transfer: u32,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Event {
    at_ns: f64,
    /// The node, copy or chip.
    id: u32,
    what: What,
}

/// What an event is: one of these, or for a chip's event its version beyond them, so that an event
/// takes 16 bytes.
type What = u32;

/// A node or copy finishes and frees its queue.
const FINISH: What = 0;

/// A node's last input arrives.
const ARRIVAL: What = 1;

/// A kernel of a chip with threads finishes, unless the version is out of date.
const CHIP: What = 2;

impl Eq for Event {}

impl Ord for Event {
    fn cmp(&self, other: &Self) -> Ordering {
        self.at_ns
            .total_cmp(&other.at_ns)
            .then_with(|| (self.id, self.what).cmp(&(other.id, other.what)))
    }
}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Estimate {
    /// Creates an estimate for plans of one graph of `n_nodes` nodes.
    pub fn new(n_nodes: usize, resources: Resources) -> Self {
        let mut pools = Vec::new();
        pools.resize_with(resources.pools.len(), Pool::default);
        Self {
            starts_ns: vec![0.0; n_nodes],
            finish_ns: vec![0.0; n_nodes],
            nodes: vec![Node::default(); n_nodes],
            moved: Vec::new(),
            n_predecessors: Vec::new(),
            pools,
            chips: resources
                .chip_threads
                .iter()
                .map(|&n| Chip::new(n))
                .collect(),
            link_free_ns: vec![0.0; resources.n_links as usize],
            copies: Vec::new(),
            readers: Vec::new(),
            events: BinaryHeap::new(),
            touched: Vec::new(),
            instant: Vec::new(),
            outgoing: Vec::new(),
            changed_from_ns: f64::NEG_INFINITY,
            makespan_ns: 0.0,
            journal: None,
            transfers: None,
            resources,
        }
    }

    /// Records the transfers of schedules from now on, which then are always computed as a whole.
    #[must_use]
    pub fn with_transfers(mut self) -> Self {
        self.transfers = Some(Vec::new());
        self
    }

    /// Returns the transfers of the last computed schedule, in the order in which they were sent;
    /// none unless [`Self::with_transfers`] was called.
    pub fn transfers(&self) -> &[ScheduledTransfer] {
        self.transfers.as_deref().unwrap_or_default()
    }

    /// Marks the schedule as out of date after the plan has changed.
    pub fn invalidate(&mut self) {
        self.changed_from_ns = f64::NEG_INFINITY;
    }

    /// Marks the schedule as out of date after a node has moved to another device. The next
    /// schedule costs only the part that depends on the moved nodes.
    pub fn invalidate_node(&mut self, node: u32) {
        match &self.journal {
            _ if self.transfers.is_some() => self.invalidate(),
            Some(journal) => {
                let from_ns = journal.depends_from_ns(node);
                self.changed_from_ns = self.changed_from_ns.min(from_ns);
                self.moved.push(node);
            }
            None => {
                self.journal = Some(Box::new(Journal::new(self.nodes.len())));
                self.changed_from_ns = f64::NEG_INFINITY;
            }
        }
    }

    /// Returns when the last node ends, in ns. Computes the schedule only if it is out of date.
    pub fn makespan_ns(&mut self, durations: &impl Durations, schedule: Schedule<'_>) -> f64 {
        if self.changed_from_ns < f64::INFINITY {
            self.run(durations, schedule);
            self.changed_from_ns = f64::INFINITY;
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

    fn run(&mut self, durations: &impl Durations, schedule: Schedule<'_>) {
        if !self.go_back(durations, schedule) {
            self.reset(durations, schedule);
            for node in 0..to_u32(self.nodes.len()) {
                if self.nodes[node as usize].n_waits == 0 {
                    self.arrive(node, 0.0);
                }
            }
            self.settle(durations, 0.0);
        }
        while let Some(&Reverse(Event { at_ns: now_ns, .. })) = self.events.peek() {
            let mut n_events = 0;
            // All events of one instant are processed before any node starts, so that the start
            // order decides and not chance.
            while let Some(&Reverse(event)) = self.events.peek()
                && event.at_ns <= now_ns
            {
                self.events.pop();
                n_events += 1;
                match event.what {
                    FINISH => {
                        let pool = match self.copy_of(event.id) {
                            Some(copy) => self.copies[copy].pool,
                            None => self.nodes[event.id as usize].pool,
                        };
                        self.pools[pool as usize].n_free += 1;
                        self.touched.push(pool);
                        self.end(durations, event.id, event.at_ns);
                    }
                    ARRIVAL => self.arrive(event.id, event.at_ns),
                    version => {
                        if self.chips[event.id as usize].version == version - CHIP {
                            self.end_running(durations, event.id, event.at_ns);
                        }
                    }
                }
            }
            self.settle(durations, now_ns);
            self.record(n_events, now_ns);
        }
    }

    /// Copies the state to a checkpoint if it is time for one.
    fn record(&mut self, n_events: usize, now_ns: f64) {
        let Some(journal) = &mut self.journal else {
            return;
        };
        let n_ready: usize = self.pools.iter().map(|pool| pool.ready.len() + 1).sum();
        let n_running: usize = self.chips.iter().map(|chip| chip.running.len() + 1).sum();
        let n_entries = n_ready + n_running + self.events.len() + self.link_free_ns.len();
        let Some(checkpoint) = journal.next_checkpoint(n_events, n_entries) else {
            return;
        };
        checkpoint.at_ns = now_ns;
        checkpoint.makespan_ns = self.makespan_ns;
        checkpoint.n_copies = self.copies.len();
        checkpoint.n_readers = self.readers.len();
        checkpoint.pools.clone_from(&self.pools);
        checkpoint.chips.clone_from(&self.chips);
        checkpoint.link_free_ns.clone_from(&self.link_free_ns);
        checkpoint.events.clone_from(&self.events);
    }

    /// Restores the state before the first change, if there is a checkpoint.
    fn go_back(&mut self, durations: &impl Durations, schedule: Schedule<'_>) -> bool {
        let Some(journal) = &mut self.journal else {
            return false;
        };
        let checkpoint = journal.go_back(self.changed_from_ns, |node, ready_before_ns| {
            let node = &mut self.nodes[node as usize];
            node.ready_ns = ready_before_ns;
            node.n_waits += 1;
        });
        let Some(checkpoint) = checkpoint else {
            return false;
        };
        self.makespan_ns = checkpoint.makespan_ns;
        self.copies.truncate(checkpoint.n_copies);
        self.readers.truncate(checkpoint.n_readers);
        self.pools.clone_from(&checkpoint.pools);
        self.chips.clone_from(&checkpoint.chips);
        self.link_free_ns.clone_from(&checkpoint.link_free_ns);
        self.events.clone_from(&checkpoint.events);
        while let Some(node) = self.moved.pop() {
            let of_node = self.node(durations, schedule, node);
            self.nodes[node as usize] = of_node;
        }
        true
    }

    fn reset(&mut self, durations: &impl Durations, schedule: Schedule<'_>) {
        self.makespan_ns = 0.0;
        if let Some(journal) = &mut self.journal {
            journal.clear();
        }
        if let Some(transfers) = &mut self.transfers {
            transfers.clear();
        }
        self.events.clear();
        self.copies.clear();
        self.readers.clear();
        self.link_free_ns.fill(0.0);
        for chip in &mut self.chips {
            chip.reset();
        }
        for (pool, shape) in self.pools.iter_mut().zip(&self.resources.pools) {
            pool.ready.clear();
            let is_single = schedule.queues.is_some() && shape.is_assignable;
            pool.n_free = if is_single { 1 } else { shape.n_queues };
        }
        if self.n_predecessors.is_empty() {
            let nodes = 0..to_u32(self.nodes.len());
            self.n_predecessors = nodes
                .map(|node| to_u32(durations.n_predecessors(node)))
                .collect();
        }
        self.moved.clear();
        for node in 0..to_u32(self.nodes.len()) {
            let of_node = self.node(durations, schedule, node);
            self.nodes[node as usize] = Node {
                ready_ns: 0.0,
                n_waits: self.n_predecessors[node as usize],
                ..of_node
            };
        }
    }

    /// Returns a node as the plan has it now.
    fn node(&self, durations: &impl Durations, schedule: Schedule<'_>, node: u32) -> Node {
        let index = node as usize;
        let device = schedule.devices[index];
        Node {
            work_ns: durations.work_ns(node, device),
            device,
            pool: self.pool(schedule, node),
            start_order: schedule.start_order.map_or(0, |order| order[index]),
            ..self.nodes[index]
        }
    }

    /// Returns the copy of an id that is no node's.
    fn copy_of(&self, id: u32) -> Option<usize> {
        (id as usize).checked_sub(self.nodes.len())
    }

    /// Returns the pool in which a node waits.
    fn pool(&self, schedule: Schedule<'_>, node: u32) -> u32 {
        let device = schedule.devices[node as usize];
        let first = self.resources.devices[device as usize].pool;
        match schedule.queues {
            Some(queues) if self.resources.pools[first as usize].is_assignable => {
                let last = self.resources.pools[first as usize].n_queues - 1;
                first + queues[node as usize].min(last)
            }
            _ => first,
        }
    }

    /// Handles the arrival of a node's last input.
    fn arrive(&mut self, node: u32, now_ns: f64) {
        if let Some(journal) = &mut self.journal {
            journal.depends(node, now_ns);
        }
        let Node {
            work_ns,
            pool,
            start_order,
            ..
        } = self.nodes[node as usize];
        if work_ns <= 0.0 {
            self.starts_ns[node as usize] = now_ns;
            self.finish_ns[node as usize] = now_ns;
            self.instant.push(node);
            return;
        }
        let ready = &mut self.pools[pool as usize].ready;
        ready.push((i64::from(start_order), Reverse(node)));
        self.touched.push(pool);
    }

    /// Sends the outputs of nodes without work, and starts what can start.
    fn settle(&mut self, durations: &impl Durations, now_ns: f64) {
        while let Some(node) = self.instant.pop() {
            self.makespan_ns = self.makespan_ns.max(now_ns);
            self.release(durations, node, now_ns);
        }
        while let Some(pool) = self.touched.pop() {
            self.start(durations, pool, now_ns);
        }
        for (index, chip) in (0u32..).zip(&mut self.chips) {
            if let Some(event) = chip.next_event(index, now_ns) {
                self.events.push(Reverse(event));
            }
        }
    }

    /// Starts nodes and copies while queues of the pool are free.
    fn start(&mut self, durations: &impl Durations, pool: u32, now_ns: f64) {
        let chip = self.resources.pools[pool as usize].chip;
        let place = &mut self.pools[pool as usize];
        while place.n_free > 0
            && let Some((_, Reverse(id))) = place.ready.pop()
        {
            place.n_free -= 1;
            let (work_ns, n_threads) = match (id as usize).checked_sub(self.nodes.len()) {
                Some(copy) => {
                    let Copy {
                        work_ns, transfer, ..
                    } = self.copies[copy];
                    let transfers = self.transfers.as_mut();
                    if let Some(found) = transfers.and_then(|all| all.get_mut(transfer as usize)) {
                        found.start_ns = now_ns;
                    }
                    (work_ns, 1.0)
                }
                None => {
                    self.starts_ns[id as usize] = now_ns;
                    let Node {
                        work_ns, device, ..
                    } = self.nodes[id as usize];
                    let n_threads = match chip {
                        NONE => 1.0,
                        _ => durations.n_threads(id, device),
                    };
                    (work_ns, n_threads)
                }
            };
            if chip == NONE {
                self.events.push(Reverse(Event {
                    at_ns: now_ns + work_ns,
                    id,
                    what: FINISH,
                }));
            } else {
                self.chips[chip as usize].add(id, pool, work_ns, n_threads, now_ns);
            }
        }
    }

    /// Ends the kernels of a chip that finish now.
    fn end_running(&mut self, durations: &impl Durations, chip: u32, now_ns: f64) {
        while let Some(ended) = self.chips[chip as usize].pop_ended(now_ns) {
            self.pools[ended.pool as usize].n_free += 1;
            self.touched.push(ended.pool);
            self.end(durations, ended.id, now_ns);
        }
    }

    /// Handles the end of a node or copy.
    fn end(&mut self, durations: &impl Durations, id: u32, now_ns: f64) {
        match self.copy_of(id) {
            Some(copy) => {
                let Copy {
                    readers: (first, end),
                    transfer,
                    ..
                } = self.copies[copy];
                let transfers = self.transfers.as_mut();
                if let Some(found) = transfers.and_then(|all| all.get_mut(transfer as usize)) {
                    found.end_ns = now_ns;
                    found.busy_ns = now_ns - found.start_ns;
                }
                for index in first..end {
                    let reader = self.readers[index as usize];
                    self.deliver(reader, now_ns, now_ns);
                }
            }
            None => {
                self.makespan_ns = self.makespan_ns.max(now_ns);
                self.finish_ns[id as usize] = now_ns;
                self.release(durations, id, now_ns);
            }
        }
    }

    /// Sends the outputs of a finished node to its consumers.
    fn release(&mut self, durations: &impl Durations, producer: u32, now_ns: f64) {
        let source = self.nodes[producer as usize].device;
        let successors = durations.successors();
        let mut outgoing = std::mem::take(&mut self.outgoing);
        for position in successors.range(producer) {
            let node = successors.items[position];
            let destination = self.nodes[node as usize].device;
            let is_free = durations.is_free(position);
            if let Some(journal) = &mut self.journal
                && !is_free
            {
                journal.depends(node, now_ns);
            }
            if is_free || destination == source {
                self.deliver(node, now_ns, now_ns);
            } else {
                let transfer = durations.transfer(position, source, destination);
                outgoing.push((transfer, destination, node));
            }
        }
        if outgoing.len() > 1 {
            outgoing.sort_unstable_by_key(|&(transfer, destination, node)| {
                (transfer.tensor, destination, node)
            });
        }
        let mut rest = outgoing.as_slice();
        while let Some(&(transfer, destination, _)) = rest.first() {
            let is_same = |&&(other, place, _): &&(Transfer, u32, u32)| {
                (other.tensor, place) == (transfer.tensor, destination)
            };
            let n_readers = rest.iter().take_while(is_same).count();
            let (readers, others) = rest.split_at(n_readers);
            let way = (producer, source, destination);
            self.send(way, readers, now_ns);
            rest = others;
        }
        outgoing.clear();
        self.outgoing = outgoing;
    }

    /// Starts a transfer to the readers of one device.
    fn send(
        &mut self,
        (producer, source, destination): (u32, u32, u32),
        readers: &[(Transfer, u32, u32)],
        now_ns: f64,
    ) {
        // Of several edges of a tensor, some may be preloaded, which take no time.
        let longer = |a: &Transfer, b: &Transfer| {
            (a.busy_ns + a.latency_ns).total_cmp(&(b.busy_ns + b.latency_ns))
        };
        let transfers = readers.iter().map(|&(transfer, ..)| transfer);
        let Some(transfer) = transfers.max_by(longer) else {
            return;
        };
        let total_ns = transfer.latency_ns + transfer.busy_ns;
        let mut arrival_ns = now_ns + total_ns;
        let mut scheduled = ScheduledTransfer {
            producer,
            tensor: transfer.tensor,
            source,
            destination,
            start_ns: now_ns,
            end_ns: arrival_ns,
            busy_ns: 0.0,
            links: [NONE; 4],
        };
        if total_ns > 0.0 {
            match self.resources.route(source, destination) {
                Route::Host(pool) => {
                    let first = to_u32(self.readers.len());
                    self.readers.extend(readers.iter().map(|&(.., node)| node));
                    let id = to_u32(self.nodes.len() + self.copies.len());
                    let index = self.transfers.as_mut().map_or(NONE, |transfers| {
                        transfers.push(scheduled);
                        to_u32(transfers.len() - 1)
                    });
                    self.copies.push(Copy {
                        pool,
                        work_ns: total_ns,
                        readers: (first, to_u32(self.readers.len())),
                        transfer: index,
                    });
                    let ready = &mut self.pools[pool as usize].ready;
                    ready.push((COPY_ORDER, Reverse(id)));
                    self.touched.push(pool);
                    return;
                }
                Route::Links(links) if transfer.busy_ns > 0.0 => {
                    let mut start_ns = now_ns;
                    for link in links {
                        if let Some(&free_ns) = self.link_free_ns.get(link as usize) {
                            start_ns = start_ns.max(free_ns);
                        }
                    }
                    for link in links {
                        if let Some(free_ns) = self.link_free_ns.get_mut(link as usize) {
                            *free_ns = start_ns + transfer.busy_ns;
                        }
                    }
                    arrival_ns = start_ns + total_ns;
                    scheduled.start_ns = start_ns;
                    scheduled.end_ns = arrival_ns;
                    scheduled.busy_ns = transfer.busy_ns;
                    scheduled.links = links;
                }
                Route::Links(..) => {}
            }
        }
        if let Some(transfers) = &mut self.transfers {
            transfers.push(scheduled);
        }
        for &(.., node) in readers {
            self.deliver(node, arrival_ns, now_ns);
        }
    }

    /// Records that an input of a node arrives at `arrival_ns`.
    fn deliver(&mut self, node: u32, arrival_ns: f64, now_ns: f64) {
        let of_node = &mut self.nodes[node as usize];
        let ready_before_ns = of_node.ready_ns;
        if let Some(journal) = &mut self.journal {
            journal.delivered(node, ready_before_ns);
        }
        let ready_ns = ready_before_ns.max(arrival_ns);
        of_node.ready_ns = ready_ns;
        of_node.n_waits -= 1;
        if of_node.n_waits > 0 {
            return;
        }
        if ready_ns <= now_ns {
            self.arrive(node, now_ns);
        } else {
            self.events.push(Reverse(Event {
                at_ns: ready_ns,
                id: node,
                what: ARRIVAL,
            }));
        }
    }
}
