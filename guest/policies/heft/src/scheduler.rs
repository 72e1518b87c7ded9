//! The second phase of HEFT: places each task, in rank order, on the device where it finishes
//! first.

use placewright_guest::Assignment;
use placewright_guest::MemoryBudget;
use placewright_guest::NONE;
use placewright_guest::schedule::Scheduled;
use placewright_guest::schedule::lanes::LANES;
use placewright_guest::schedule::lanes::Lanes;
use placewright_guest::schedule::lanes::later;
use placewright_guest::schedule::timeline::BLOCK;
use placewright_guest::schedule::timeline::Hints;
use placewright_guest::schedule::timeline::Slot;
use placewright_guest::schedule::timeline::Timeline;

use crate::problem::DenseSet;
use crate::problem::Edge;
use crate::problem::Problem;
use crate::problem::Task;
use crate::problem::WINDOW;
use crate::problem::Window;

/// Why a task is on its device: the values that the policy compared.
pub(crate) struct Decision {
    pub(crate) node: u32,
    /// When the task finishes, in ns; with the costs of its group, if it has one.
    pub(crate) finish: f64,
    /// Whether the task decided for other members of its group.
    pub(crate) is_group: bool,
    /// The device where it would finish next, and when.
    pub(crate) second: Option<(u32, f64)>,
    /// The most preferred candidate without free memory, and the number of such candidates.
    pub(crate) full: Option<(u32, usize)>,
}

/// What the placement of later tasks needs to know about a placed task.
#[derive(Clone, Copy, Default)]
struct Placed {
    finish: f64,
    device: u32,
}

/// A possible device for a task, given by its slot as everywhere in this module.
#[derive(Clone, Copy)]
struct Choice {
    /// Finish time plus the cost of the task's group on the device. The smallest score wins.
    score: f64,
    preference: u32,
    device: u32,
    start: f64,
    /// The task's cost on the device.
    work: f64,
    /// The gap; `None` for the end of the schedule.
    slot: Option<Slot>,
}

impl Choice {
    const NONE: Self = Self {
        score: f64::INFINITY,
        preference: u32::MAX,
        device: NONE,
        start: 0.0,
        work: 0.0,
        slot: None,
    };

    #[inline]
    fn is_beaten_by(&self, score: f64, preference: u32) -> bool {
        score < self.score || (score == self.score && preference < self.preference)
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
    /// The tasks placed so far, by node.
    placed: Vec<Placed>,
    // Rows over devices, written for each task.
    ready: Vec<f64>,
    work: Vec<f64>,
    /// The task's finish time at the end of the device's schedule.
    appended: Vec<f64>,
    /// The earliest finish time that any schedule allows: ready time plus work.
    earliest: Vec<f64>,
    /// The minimum of each chunk of [`LANES`] entries of `earliest`.
    earliest_of_chunk: Vec<f64>,
}

impl<'p, 'a> Scheduler<'p, 'a> {
    /// Creates an empty schedule. `chip_of_device` is the chip of each device.
    pub(crate) fn new(
        problem: &'p Problem<'a>,
        chip_of_device: &[u32],
        with_insertion: bool,
    ) -> Self {
        let width = problem.width;
        let mut chips = chip_of_device.to_vec();
        chips.sort_unstable();
        chips.dedup();
        let timeline_of = |&device: &u32| {
            let chip = chip_of_device[device as usize];
            u32::try_from(chips.partition_point(|&other| other < chip)).unwrap_or(0)
        };
        let timeline_of: Vec<u32> = problem.device_at.iter().map(timeline_of).collect();
        let mut devices_of = vec![Vec::new(); chips.len()];
        for (device, &timeline) in (0_u32..).zip(&timeline_of) {
            devices_of[timeline as usize].push(device);
        }
        let shortest_task = problem.shortest_task();
        // Usually there are fewer gaps than tasks, distributed evenly over the devices.
        let n_blocks = problem.order.len() / chips.len().max(1) / BLOCK;
        let hints = Hints::new(problem.horizon, n_blocks);
        Self {
            problem,
            with_insertion,
            timelines: vec![Timeline::new(shortest_task, hints); chips.len()],
            timeline_of,
            devices_of,
            tail: vec![0.0; width],
            last_gap_end: vec![f64::NEG_INFINITY; width],
            placed: vec![Placed::default(); problem.is_free_constant.len()],
            ready: vec![0.0; width],
            work: vec![f64::INFINITY; width],
            appended: vec![0.0; width],
            earliest: vec![0.0; width],
            earliest_of_chunk: vec![0.0; width / LANES],
        }
    }

    /// Schedules all tasks. `assignment` contains the groups that are already decided. Respects
    /// `memory` if it is set. If `decisions` is set, adds a decision for each task that had a
    /// choice.
    #[inline(never)]
    pub(crate) fn run(
        mut self,
        mut assignment: Assignment<'_>,
        mut memory: Option<MemoryBudget>,
        mut decisions: Option<&mut Vec<Decision>>,
    ) -> Scheduled {
        let problem = self.problem;
        let n_nodes = problem.is_free_constant.len();
        let mut devices = vec![NONE; n_nodes];
        let mut start = vec![0.0; n_nodes];
        let mut n_inserted = 0;
        let mut window = Window::default();
        for order in problem.order.chunks(WINDOW) {
            problem.look_ahead(order, &mut window);
            for task in &window.tasks {
                let forced = if problem.is_constrained {
                    assignment.forced(task.node)
                } else {
                    NONE
                };
                let choice = if forced == NONE {
                    self.decide(&window, task, memory.as_ref())
                } else {
                    self.on_list(&window, task, &[problem.slot_of[forced as usize]], &[])
                };
                let device = problem.device_at[choice.device as usize];
                if let Some(decisions) = decisions.as_deref_mut()
                    && forced == NONE
                    && problem.candidates(task.set).len() > 1
                {
                    decisions.push(self.decision(&window, task, &choice, memory.as_ref()));
                }
                if problem.is_constrained {
                    assignment.decide(task.node, device);
                }
                if let Some(memory) = &mut memory {
                    memory.take(task.group, device);
                }
                n_inserted += u32::from(choice.slot.is_some());
                devices[task.node as usize] = device;
                start[task.node as usize] = choice.start;
                self.commit(task.node, &choice);
            }
        }
        Scheduled {
            devices,
            start_ns: start,
            makespan_ns: self.tail.iter().copied().fold(0.0, later),
            n_inserted,
        }
    }

    /// Describes a choice. Tries all other candidates again.
    #[inline(never)]
    fn decision(
        &mut self,
        window: &Window,
        task: &Task,
        choice: &Choice,
        memory: Option<&MemoryBudget>,
    ) -> Decision {
        let problem = self.problem;
        let members = problem.members.of(task.group);
        let mut decision = Decision {
            node: task.node,
            finish: choice.score,
            is_group: !members.is_empty(),
            second: None,
            full: None,
        };
        for &slot in problem.candidates(task.set) {
            if slot == choice.device {
                continue;
            }
            let device = problem.device_at[slot as usize];
            if memory.is_some_and(|memory| !memory.fits(task.group, device)) {
                decision.full.get_or_insert((device, 0)).1 += 1;
                continue;
            }
            let finish = self.on_list(window, task, &[slot], members).score;
            if decision.second.is_none_or(|(_, second)| finish < second) {
                decision.second = Some((device, finish));
            }
        }
        decision
    }

    /// Chooses the device of a task whose group is not decided.
    #[inline]
    fn decide(&mut self, window: &Window, task: &Task, memory: Option<&MemoryBudget>) -> Choice {
        let problem = self.problem;
        let members = problem.members.of(task.group);
        let dense = problem.dense_sets[task.set as usize].as_ref();
        if let (Some(set), None, []) = (dense, memory, members) {
            let choice = self.on_all(window, task, set);
            if choice.device != NONE {
                return choice;
            }
        }
        self.on_candidates(window, task, memory)
    }

    fn on_candidates(
        &mut self,
        window: &Window,
        task: &Task,
        memory: Option<&MemoryBudget>,
    ) -> Choice {
        let problem = self.problem;
        let members = problem.members.of(task.group);
        let legal = problem.candidates(task.set);
        let Some(memory) = memory else {
            return self.on_list(window, task, legal, members);
        };
        let device_at = |slot: u32| problem.device_at[slot as usize];
        let fits = |&slot: &u32| memory.fits(task.group, device_at(slot));
        let fitting: Vec<u32> = legal.iter().copied().filter(fits).collect();
        if !fitting.is_empty() {
            return self.on_list(window, task, &fitting, members);
        }
        // Nothing fits: take the device with the most free memory, so that the plan that the host
        // refuses is as close as possible to a legal one.
        let free = |&slot: &u32| {
            let device = device_at(slot);
            (memory.free_bytes(device), u32::MAX - device)
        };
        let emptiest = legal.iter().copied().max_by_key(free);
        self.on_list(window, task, emptiest.as_slice(), members)
    }

    /// Tries every device of a list, most preferred first. `members` are the nodes of the task's
    /// group; their costs count as if they ran directly after the task.
    fn on_list(
        &mut self,
        window: &Window,
        task: &Task,
        devices: &[u32],
        members: &[u32],
    ) -> Choice {
        let problem = self.problem;
        let mut best = Choice::NONE;
        for (preference, &device) in (0_u32..).zip(devices) {
            let others = members.iter().filter(|&&member| member != task.node);
            let rest: f64 = others.map(|&member| problem.work_on(member, device)).sum();
            let ready = self.ready_on(window.edges(task), device);
            let work = problem.work_on(task.node, device);
            self.try_device(&mut best, device, preference, ready, work, rest);
        }
        best
    }

    /// Tries all devices at once. Makes the same decision as [`Self::on_list`] with the set's list,
    /// but mostly in loops without branches. Returns no device if none can run the task.
    #[inline(never)]
    fn on_all(&mut self, window: &Window, task: &Task, set: &DenseSet) -> Choice {
        let problem = self.problem;
        self.ready_on_all(window.edges(task));
        problem.work(window, task, &mut self.work);
        if !set.mask.is_empty() {
            for (work, &mask) in self.work.iter_mut().zip(&set.mask) {
                *work += mask;
            }
        }
        let (bound, first_chunk) = self.bounds();
        let mut best = Choice::NONE;
        if bound == f64::INFINITY {
            return best;
        }
        self.append_by(bound, set, &mut best);
        if !self.with_insertion {
            return best;
        }
        // Start with the chunk of the earliest possible finish: it often contains the best device,
        // and then one comparison rules out each of the others.
        self.try_gaps(first_chunk, set, &mut best);
        for chunk in 0..self.earliest_of_chunk.len() {
            if self.earliest_of_chunk[chunk] <= best.score && chunk != first_chunk {
                self.try_gaps(chunk, set, &mut best);
            }
        }
        best
    }

    /// Fills `appended`, `earliest` and `earliest_of_chunk`. Returns the earliest finish at the end
    /// of any schedule, and the chunk in which a gap might allow an earlier one.
    #[inline(never)]
    fn bounds(&mut self) -> (f64, usize) {
        let (ready, _) = self.ready.as_chunks::<LANES>();
        let (work, _) = self.work.as_chunks::<LANES>();
        let (tail, _) = self.tail.as_chunks::<LANES>();
        let (appended, _) = self.appended.as_chunks_mut::<LANES>();
        let (earliest, _) = self.earliest.as_chunks_mut::<LANES>();
        let mut soonest_appended = Lanes::splat(f64::INFINITY);
        let (mut soonest, mut first_chunk) = (f64::INFINITY, 0);
        let inputs = ready.iter().zip(work).zip(tail);
        let outputs = appended.iter_mut().zip(earliest);
        let outputs = outputs.zip(&mut self.earliest_of_chunk);
        for (chunk, (((ready, work), tail), ((appended, earliest), of_chunk))) in
            inputs.zip(outputs).enumerate()
        {
            let (ready, work) = (Lanes::load(ready), Lanes::load(work));
            let at_tail = ready.later(Lanes::load(tail)).plus(work);
            soonest_appended = soonest_appended.sooner(at_tail);
            *appended = at_tail.values();
            let in_gap = ready.plus(work);
            *earliest = in_gap.values();
            *of_chunk = in_gap.least();
            if *of_chunk < soonest {
                (soonest, first_chunk) = (*of_chunk, chunk);
            }
        }
        (soonest_appended.least(), first_chunk)
    }

    /// Takes the most preferred of the devices on which the task, appended, finishes at `bound`.
    #[inline]
    fn append_by(&self, bound: f64, set: &DenseSet, best: &mut Choice) {
        let (appended, _) = self.appended.as_chunks::<LANES>();
        let bound = Lanes::splat(bound);
        for (chunk, appended) in appended.iter().enumerate() {
            for device in lanes(chunk, Lanes::load(appended).at_most(bound)) {
                let (score, preference) = (self.appended[device], set.preference[device]);
                if best.is_beaten_by(score, preference) {
                    let start = later(self.ready[device], self.tail[device]);
                    *best = self.choice(device, preference, start, score, None);
                }
            }
        }
    }

    /// Tries the gaps of those devices of a chunk on which a gap might match the best choice so
    /// far.
    #[inline]
    fn try_gaps(&self, chunk: usize, set: &DenseSet, best: &mut Choice) {
        let at = chunk * LANES..(chunk + 1) * LANES;
        let row = |row: &[f64]| Lanes::load(row[at.clone()].as_array().expect("a chunk"));
        let earliest = row(&self.earliest);
        let might_be_best = earliest.at_most(Lanes::splat(best.score));
        let has_late_gap = earliest.at_most(row(&self.last_gap_end));
        for device in lanes(chunk, might_be_best & has_late_gap) {
            let (ready, work) = (self.ready[device], self.work[device]);
            let timeline = &self.timelines[self.timeline_of[device] as usize];
            if let Some(slot) = timeline.earliest_gap(ready, work, best.score) {
                let (score, preference) = (slot.start() + work, set.preference[device]);
                if best.is_beaten_by(score, preference) {
                    *best = self.choice(device, preference, slot.start(), score, Some(slot));
                }
            }
        }
    }

    #[inline]
    fn choice(
        &self,
        device: usize,
        preference: u32,
        start: f64,
        score: f64,
        slot: Option<Slot>,
    ) -> Choice {
        Choice {
            score,
            preference,
            device: u32::try_from(device).unwrap_or(NONE),
            start,
            work: self.work[device],
            slot,
        }
    }

    /// Tries the end of a device's schedule and its gaps. A score of +inf is better than no choice:
    /// if the cost table allows no device of a list, the most preferred one is taken.
    #[inline]
    fn try_device(
        &self,
        best: &mut Choice,
        device: u32,
        preference: u32,
        ready: f64,
        work: f64,
        rest: f64,
    ) {
        let start = later(ready, self.tail[device as usize]);
        let mut choice = Choice {
            score: start + work + rest,
            preference,
            device,
            start,
            work,
            slot: None,
        };
        if best.is_beaten_by(choice.score, preference) {
            *best = choice;
        }
        if self.with_insertion && self.last_gap_end[device as usize] >= ready + work {
            let timeline = &self.timelines[self.timeline_of[device as usize] as usize];
            if let Some(slot) = timeline.earliest_gap(ready, work, best.score - rest) {
                choice.score = slot.start() + work + rest;
                choice.start = slot.start();
                choice.slot = Some(slot);
                if best.is_beaten_by(choice.score, preference) {
                    *best = choice;
                }
            }
        }
    }

    /// Returns when all inputs of a task are available on a device.
    fn ready_on(&self, edges: &[Edge], device: u32) -> f64 {
        let mut ready = 0.0;
        for edge in edges {
            let producer = self.placed[edge.producer as usize];
            let mut arrival = producer.finish;
            if producer.device != device {
                let (latency, ns_per_byte) = self.problem.links.from(producer.device);
                let once = latency[device as usize] + edge.bytes * ns_per_byte[device as usize];
                arrival += edge.times * once;
            }
            ready = later(arrival, ready);
        }
        ready
    }

    /// Writes the same for every device to `ready`.
    #[inline(never)]
    fn ready_on_all(&mut self, edges: &[Edge]) {
        self.ready.fill(0.0);
        let links = &self.problem.links;
        let (ready, _) = self.ready.as_chunks_mut::<LANES>();
        for edge in edges {
            let Placed { finish, device } = self.placed[edge.producer as usize];
            let (latency, ns_per_byte) = links.from(device);
            let (latency, _) = latency.as_chunks::<LANES>();
            let (ns_per_byte, _) = ns_per_byte.as_chunks::<LANES>();
            let (chunk, lane) = (device as usize / LANES, device as usize % LANES);
            let here = later(finish, ready[chunk][lane]);
            let (sent, bytes) = (Lanes::splat(finish), Lanes::splat(edge.bytes));
            let times = Lanes::splat(edge.times);
            for ((ready, latency), ns_per_byte) in ready.iter_mut().zip(latency).zip(ns_per_byte) {
                let once = Lanes::load(latency).plus(bytes.times(Lanes::load(ns_per_byte)));
                let arrival = sent.plus(times.times(once));
                *ready = Lanes::load(ready).later(arrival).values();
            }
            if !links.is_free_at_home {
                ready[chunk][lane] = here;
            }
        }
    }

    /// Puts a task where it was decided to go.
    #[inline]
    fn commit(&mut self, node: u32, choice: &Choice) {
        let timeline_idx = self.timeline_of[choice.device as usize] as usize;
        // A task that cannot run on the device it must take counts as free here; the host reports
        // it.
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
            device: choice.device,
        };
    }
}

/// Returns the devices of a chunk whose bits are set.
#[inline]
fn lanes(chunk: usize, mut bits: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let lane = bits.trailing_zeros() as usize;
        bits &= bits.wrapping_sub(1);
        (lane < LANES).then_some(chunk * LANES + lane)
    })
}
