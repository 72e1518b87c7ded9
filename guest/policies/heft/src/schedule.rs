//! The second phase of HEFT: nodes in the order of their ranks, each to the device where it finishes first.

use placewright_guest::Assignment;
use placewright_guest::MemoryBudget;
use placewright_guest::NONE;

use crate::problem::DenseSet;
use crate::problem::LANES;
use crate::problem::Problem;
use crate::timeline::Slot;
use crate::timeline::Timeline;
use crate::timeline::later;

/// What came of it.
pub(crate) struct Outcome {
    /// Start of each node, in ns.
    pub(crate) start: Vec<f64>,
    /// When the last node ends.
    pub(crate) makespan: f64,
    /// How many nodes went into gaps.
    pub(crate) n_inserted: u32,
}

/// Where and when a node was put.
#[derive(Clone, Copy)]
struct Placed {
    finish: f64,
    device: u32,
}

/// A device for a node.
#[derive(Clone, Copy)]
struct Choice {
    /// Finish time, with what its group costs there; what is minimized.
    score: f64,
    preference: u32,
    device: u32,
    start: f64,
    /// Its cost on the device.
    work: f64,
    /// The gap, or none for the end of the schedule.
    slot: Option<Slot>,
}

impl Choice {
    const NONE: Self = Self {
        score: f64::INFINITY,
        start: 0.0,
        work: 0.0,
        preference: u32::MAX,
        device: NONE,
        slot: None,
    };

    #[inline]
    fn consider(&mut self, other: Self) {
        if other.score < self.score
            || (other.score == self.score && other.preference < self.preference)
        {
            *self = other;
        }
    }
}

/// The state of one pass over the graph.
pub(crate) struct Scheduler<'p, 'a> {
    problem: &'p Problem<'a>,
    with_insertion: bool,
    timelines: Vec<Timeline>,
    /// Per device: its timeline. Devices of one chip share one.
    timeline_of: Vec<u32>,
    /// Per timeline: its devices.
    devices_of: Vec<Vec<u32>>,
    /// Per device: end of its schedule.
    tail: Vec<f64>,
    /// Per device: end of its last gap.
    last_gap_end: Vec<f64>,
    placed: Vec<Placed>,
    // Rows over devices, written for each node.
    ready: Vec<f64>,
    work: Vec<f64>,
    at_tail: Vec<f64>,
}

impl<'p, 'a> Scheduler<'p, 'a> {
    /// Nothing scheduled; `silicon` is the chip of each device.
    pub(crate) fn new(problem: &'p Problem<'a>, silicon: &[u32], with_insertion: bool) -> Self {
        let width = problem.width;
        let mut chips = silicon.to_vec();
        chips.sort_unstable();
        chips.dedup();
        let timeline_of: Vec<u32> = silicon
            .iter()
            .map(|chip| u32::try_from(chips.partition_point(|other| other < chip)).unwrap_or(0))
            .collect();
        let mut devices_of = vec![Vec::new(); chips.len()];
        for (device, &timeline) in (0_u32..).zip(&timeline_of) {
            devices_of[timeline as usize].push(device);
        }
        let shortest_task = problem.shortest_task();
        Self {
            problem,
            with_insertion,
            timelines: chips.iter().map(|_| Timeline::new(shortest_task)).collect(),
            timeline_of,
            devices_of,
            tail: vec![0.0; width],
            last_gap_end: vec![f64::NEG_INFINITY; width],
            placed: vec![
                Placed {
                    finish: 0.0,
                    device: NONE,
                };
                problem.n_nodes
            ],
            ready: vec![0.0; width],
            work: vec![f64::INFINITY; width],
            at_tail: vec![0.0; width],
        }
    }

    /// Schedules all nodes in `order`, which has producers before consumers. `memory` is asked where it is given.
    pub(crate) fn run(
        mut self,
        order: &[u32],
        assignment: &mut Assignment<'_>,
        mut memory: Option<&mut MemoryBudget>,
    ) -> Outcome {
        let problem = self.problem;
        let mut start = vec![0.0; problem.n_nodes];
        let mut n_inserted = 0;
        for &node in order {
            let forced = assignment.forced(node);
            let group = problem.group[node as usize];
            let choice = if forced != NONE {
                self.on_list(node, &[forced], &[])
            } else {
                self.decide(node, group, memory.as_deref())
            };
            let device = assignment.decide(node, choice.device);
            if let Some(memory) = &mut memory {
                memory.take(group, device);
            }
            n_inserted += u32::from(choice.slot.is_some());
            start[node as usize] = choice.start;
            self.commit(node, choice);
        }
        Outcome {
            start,
            makespan: self.tail.iter().copied().fold(0.0, later),
            n_inserted,
        }
    }

    /// The device for a node whose group is not decided.
    fn decide(&mut self, node: u32, group: u32, memory: Option<&MemoryBudget>) -> Choice {
        let problem = self.problem;
        let set = problem.candidate_set[node as usize];
        let members = problem.members.of(group);
        let dense = problem.dense_sets[set as usize].as_ref();
        if let (Some(set), None, []) = (dense, memory, members) {
            let choice = self.on_all(node, set);
            if choice.device != NONE {
                return choice;
            }
        }
        let legal = problem.candidates.row(set);
        if let Some(memory) = memory {
            let fitting: Vec<u32> = legal
                .iter()
                .copied()
                .filter(|&device| memory.fits(group, device))
                .collect();
            if !fitting.is_empty() {
                return self.on_list(node, &fitting, members);
            }
            // Nothing fits: where most is free, so that the host's refusal is as near to a plan as can be.
            let free = |&device: &u32| (memory.free_bytes(device), u32::MAX - device);
            let emptiest = legal.iter().copied().max_by_key(free);
            return self.on_list(node, emptiest.as_slice(), members);
        }
        self.on_list(node, legal, members)
    }

    /// Tries every device of a list, most preferred first. `members` are those of the node's group, whose costs count as
    /// if they ran right behind it.
    fn on_list(&mut self, node: u32, devices: &[u32], members: &[u32]) -> Choice {
        let problem = self.problem;
        let mut best = Choice::NONE;
        for (preference, &device) in (0_u32..).zip(devices) {
            let ready = self.ready_on(node, device);
            let work = problem.work_on(node, device);
            let others = members.iter().filter(|&&member| member != node);
            let rest: f64 = others.map(|&member| problem.work_on(member, device)).sum();
            let start = later(ready, self.tail[device as usize]);
            let at_tail = Choice {
                score: start + work + rest,
                preference,
                device,
                start,
                work,
                slot: None,
            };
            // Also +inf is better than no choice: where the cost table says that no device can run the node, the most
            // preferred one is taken.
            best.consider(at_tail);
            if let Some(slot) = self.gap(device, ready, work, best.score - rest) {
                best.consider(Choice {
                    score: slot.start + work + rest,
                    start: slot.start,
                    slot: Some(slot),
                    ..at_tail
                });
            }
        }
        best
    }

    /// Tries all devices at once: the same decision as [`Self::on_list`] with the list of the set, in loops without
    /// branches. Returns no device when none can run the node.
    fn on_all(&mut self, node: u32, set: &DenseSet) -> Choice {
        let problem = self.problem;
        self.ready_on_all(node);
        problem.work(node, &mut self.work[..problem.width]);
        if !set.mask.is_empty() {
            for (work, &mask) in self.work.iter_mut().zip(&set.mask) {
                *work += mask;
            }
        }
        let (ready, _) = self.ready.as_chunks::<LANES>();
        let (work, _) = self.work.as_chunks::<LANES>();
        let (tail, _) = self.tail.as_chunks::<LANES>();
        let (at_tail, _) = self.at_tail.as_chunks_mut::<LANES>();
        let mut least = [f64::INFINITY; LANES];
        for (((at_tail, ready), work), tail) in at_tail.iter_mut().zip(ready).zip(work).zip(tail) {
            for lane in 0..LANES {
                at_tail[lane] = later(ready[lane], tail[lane]) + work[lane];
                if at_tail[lane] < least[lane] {
                    least[lane] = at_tail[lane];
                }
            }
        }
        let bound =
            least.into_iter().fold(
                f64::INFINITY,
                |least, value| {
                    if value < least { value } else { least }
                },
            );
        let mut best = Choice::NONE;
        if bound == f64::INFINITY {
            return best;
        }
        best.score = bound;
        for device in 0..problem.n_devices {
            let (ready, work) = (self.ready[device], self.work[device]);
            let end_min = ready + work;
            if end_min > best.score {
                continue;
            }
            let at_tail = Choice {
                score: self.at_tail[device],
                preference: set.preference[device],
                device: u32::try_from(device).unwrap_or(NONE),
                start: later(ready, self.tail[device]),
                work,
                slot: None,
            };
            best.consider(at_tail);
            if let Some(slot) = self.gap(at_tail.device, ready, work, best.score) {
                best.consider(Choice {
                    score: slot.start + work,
                    start: slot.start,
                    slot: Some(slot),
                    ..at_tail
                });
            }
        }
        best
    }

    #[inline]
    fn gap(&self, device: u32, ready: f64, work: f64, limit: f64) -> Option<Slot> {
        if !self.with_insertion || self.last_gap_end[device as usize] < ready + work {
            return None;
        }
        self.timelines[self.timeline_of[device as usize] as usize].earliest_gap(ready, work, limit)
    }

    /// When all inputs of a node are on a device.
    fn ready_on(&self, node: u32, device: u32) -> f64 {
        let problem = self.problem;
        let mut ready = 0.0;
        for edge in problem.predecessors.range(node) {
            let producer = self.placed[problem.predecessors.items[edge] as usize];
            let mut arrival = producer.finish;
            if producer.device != device {
                let (latency, ns_per_byte) = problem.links.from(producer.device);
                arrival += latency[device as usize]
                    + problem.edge_bytes[edge] * ns_per_byte[device as usize];
            }
            ready = later(arrival, ready);
        }
        ready
    }

    /// The same for every device, into `ready`.
    fn ready_on_all(&mut self, node: u32) {
        let problem = self.problem;
        self.ready.fill(0.0);
        let range = problem.predecessors.range(node);
        let producers = &problem.predecessors.items[range.clone()];
        for (&producer, &bytes) in producers.iter().zip(&problem.edge_bytes[range]) {
            let Placed { finish, device } = self.placed[producer as usize];
            let (latency, ns_per_byte) = problem.links.from(device);
            let here = later(self.ready[device as usize], finish);
            for ((ready, &latency), &ns_per_byte) in
                self.ready.iter_mut().zip(latency).zip(ns_per_byte)
            {
                let arrival = finish + (latency + bytes * ns_per_byte);
                *ready = later(arrival, *ready);
            }
            self.ready[device as usize] = here;
        }
    }

    /// Puts a node where it was decided to go.
    fn commit(&mut self, node: u32, choice: Choice) {
        let device = choice.device;
        let timeline_idx = self.timeline_of[device as usize] as usize;
        // A node that cannot run on the device it must take costs nothing here: the host knows what to say about it.
        let work = if choice.work < f64::INFINITY {
            choice.work
        } else {
            0.0
        };
        let timeline = &mut self.timelines[timeline_idx];
        match choice.slot {
            Some(slot) => timeline.fill(slot, work),
            None => timeline.append(choice.start, work),
        }
        let (tail, last_gap_end) = (timeline.tail(), timeline.last_gap_end());
        for &device in &self.devices_of[timeline_idx] {
            self.tail[device as usize] = tail;
            self.last_gap_end[device as usize] = last_gap_end;
        }
        self.placed[node as usize] = Placed {
            finish: choice.start + work,
            device,
        };
    }
}
