//! What policies that decide online know of the devices: what each still has to do.
//!
//! [`Fleet`] keeps the runs in progress. A policy asks it with a score for [`Bid`]s, and the device
//! with the least score gets the task. Devices of one chip are one worker with one queue, which all
//! runs share.
//!
//! Expected times come from the costs of the graph. [`Fleet::observe`] corrects them with what has
//! really ended. A host may never call it: then a ready task proves that its producers have ended,
//! and a worker counts as idle when all that is expected of it has ended.
//!
//! Each run counts time from its own start, and no clock is common to runs. So a run starts at the
//! latest time that is known from the others when it begins.

use super::Offered;
use super::TaskGraph;
use super::lanes::later;
use super::lanes::sooner;
use super::offer;
use super::online;
use super::online::Decisions;
use crate::NONE;
use crate::algorithm::LinkMatrix;
use crate::devices::DeviceSet;
use crate::graph::Graph;
use crate::memory::MemoryBudget;
use crate::memory::is_tight;
use crate::plan::Plan;
use crate::policy::Completion;
use crate::policy::DeviceChange;
use crate::policy::ReadyTask;
use crate::source::Violation;

/// What a task would find on a device. All times are in ns.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bid {
    /// The device.
    pub device: u32,
    /// The time until all that is queued there is expected to end; 0 if it is idle.
    pub wait_ns: f64,
    /// The time of the task there; +inf if it cannot run there.
    pub work_ns: f64,
    /// The time to transfer the input there from its home.
    pub transfer_ns: f64,
    /// Whether the input is there.
    pub is_home: bool,
    /// The tasks that are queued there, those that are executed included.
    pub n_queued: u32,
}

/// The runs in progress, and the workers that they share.
#[derive(Debug, Default)]
pub struct Fleet {
    /// The latest time that is known.
    clock_ns: f64,
    /// Per chip.
    workers: Vec<Worker>,
    /// Per device.
    is_up: Vec<bool>,
    runs: Vec<Run>,
    /// Whether the host reports completions.
    is_observed: bool,
}

/// A chip, with what is expected of it.
#[derive(Debug, Clone, Copy, Default)]
struct Worker {
    /// When all that is queued is expected to end.
    end_ns: f64,
    /// The work that is queued.
    queued_ns: f64,
    n_queued: u32,
    /// The latest end that was reported.
    finished_ns: f64,
    /// It does not end before this, because inputs arrive late.
    bound_ns: f64,
    /// How often it became idle without a report. What was queued before has ended.
    epoch: u32,
}

/// A copy of what a run needs, because graph and devices are borrowed for its begin only.
#[derive(Debug)]
struct Run {
    id: u32,
    /// Its start on the common clock.
    origin_ns: f64,
    candidate_offsets: Vec<u32>,
    candidates: Vec<u32>,
    costs_ns: Vec<f64>,
    n_classes: usize,
    cost_row: Vec<u32>,
    candidate_set: Vec<u32>,
    executions: Vec<f64>,
    /// Per device.
    cost_class: Vec<u32>,
    chip: Vec<u32>,
    links: LinkMatrix,
    producer_offsets: Vec<u32>,
    producers: Vec<u32>,
    group: Vec<u32>,
    /// Per group: its device, or [`NONE`]. A node that is alone may move, if its device fails.
    of_group: Vec<u32>,
    /// Per group: whether it has several members.
    is_shared: Vec<bool>,
    /// Only if memory is tight.
    memory: Option<MemoryBudget>,
    /// Per node.
    queued: Vec<Queued>,
}

/// A task that is expected to be queued or executed.
#[derive(Debug, Clone, Copy)]
struct Queued {
    /// The worker, or [`NONE`] if the task is not queued.
    chip: u32,
    /// The worker's epoch.
    epoch: u32,
    work_ns: f64,
}

/// Nothing is queued.
const NOT_QUEUED: Queued = Queued {
    chip: NONE,
    epoch: 0,
    work_ns: 0.0,
};

impl Fleet {
    /// Begins a run, and copies what decisions need. If no other run is in progress, all devices
    /// are up and idle.
    pub fn begin(&mut self, run: u32, graph: &Graph<'_>, devices: &DeviceSet<'_>) {
        self.end(run);
        if self.runs.is_empty() {
            *self = Self::default();
        }
        let new = Run::new(run, self.clock_ns, graph, devices);
        let n_workers = new.chip.iter().max().map_or(0, |&last| last as usize + 1);
        if self.workers.len() < n_workers {
            self.workers.resize(n_workers, Worker::default());
        }
        if self.is_up.len() < devices.len() {
            self.is_up.resize(devices.len(), true);
        }
        self.runs.push(new);
    }

    /// Ends a run. What it had queued is gone.
    pub fn end(&mut self, run: u32) {
        let Some(at) = self.runs.iter().position(|other| other.id == run) else {
            return;
        };
        let run = self.runs.swap_remove(at);
        for &queued in run.queued.iter().filter(|it| it.chip != NONE) {
            self.dequeue(queued, self.clock_ns);
        }
    }

    /// Queues a task on the device with the least score, and returns it; of equal ones the most
    /// preferred. Allocates nothing.
    ///
    /// Only devices that are up count, and among them those with memory for the task, if there is
    /// one. If its group is decided, its device is the only one. `None` if no device is up, or the
    /// task belongs to no run.
    pub fn pick<K: PartialOrd>(
        &mut self,
        task: &ReadyTask,
        score: impl FnMut(&Bid) -> K,
    ) -> Option<u32> {
        self.pick_among(task, None, score)
    }

    /// Records completions and changes of devices, except those of unknown runs, nodes and devices.
    pub fn observe(&mut self, done: &[Completion], changes: &[DeviceChange]) {
        self.is_observed |= !done.is_empty();
        for completion in done {
            self.complete(completion);
        }
        for change in changes {
            if let Some(is_up) = self.is_up.get_mut(change.device as usize) {
                *is_up = change.is_up;
            }
        }
    }

    fn complete(&mut self, completion: &Completion) {
        let mut runs = self.runs.iter_mut();
        let Some(run) = runs.find(|run| run.id == completion.run) else {
            return;
        };
        let finished_ns = run.origin_ns + completion.finished_ns;
        let node = run.queued.get_mut(completion.node as usize);
        let chip = run.chip.get(completion.device as usize);
        let (Some(node), Some(&chip), true) = (node, chip, finished_ns.is_finite()) else {
            return;
        };
        let queued = std::mem::replace(node, NOT_QUEUED);
        self.clock_ns = later(self.clock_ns, finished_ns);
        if let Some(worker) = self.workers.get_mut(queued.chip as usize) {
            worker.remove(queued);
        }
        if let Some(worker) = self.workers.get_mut(chip as usize) {
            worker.finished_ns = later(worker.finished_ns, finished_ns);
            worker.end_ns = later(worker.finished_ns + worker.queued_ns, worker.bound_ns);
        }
    }

    /// Removes a task from its worker, which has ended it by `now_ns`.
    fn dequeue(&mut self, queued: Queued, now_ns: f64) {
        if let Some(worker) = self.workers.get_mut(queued.chip as usize) {
            worker.remove(queued);
            let end_ns = later(now_ns + worker.queued_ns, worker.bound_ns);
            worker.end_ns = sooner(worker.end_ns, end_ns);
        }
    }

    fn pick_among<K: PartialOrd>(
        &mut self,
        task: &ReadyTask,
        legal: Option<&[u32]>,
        mut score: impl FnMut(&Bid) -> K,
    ) -> Option<u32> {
        let at = self.runs.iter().position(|run| run.id == task.run)?;
        let node = task.node as usize;
        let run = &self.runs[at];
        let group = *run.group.get(node)?;
        let now_ns = run.origin_ns + if task.now_ns > 0.0 { task.now_ns } else { 0.0 };
        self.clock_ns = later(self.clock_ns, now_ns);
        self.end_producers(at, task.node, now_ns);
        let run = &self.runs[at];
        let forced = [run.of_group[group as usize]];
        let candidates = match forced {
            [NONE] => legal.unwrap_or_else(|| run.candidates_of(task.node)),
            _ => &forced,
        };
        let is_up = |device: &u32| self.is_up.get(*device as usize).is_some_and(|up| *up);
        let has_memory = |device: u32| {
            let memory = run.memory.as_ref();
            memory.is_none_or(|memory| memory.fits(group, device))
        };
        let is_decided = forced != [NONE];
        let any_fits = candidates.iter().any(|it| is_up(it) && has_memory(*it));
        let mut best: Option<(K, Bid)> = None;
        for &device in candidates.iter().filter(|device| is_up(device)) {
            if any_fits && !is_decided && !has_memory(device) {
                continue;
            }
            let Some(bid) = self.bid(run, task, device, now_ns) else {
                continue;
            };
            let score = score(&bid);
            if best.as_ref().is_none_or(|(least, _)| score < *least) {
                best = Some((score, bid));
            }
        }
        let (_, bid) = best?;
        self.queue(at, task.node, &bid, now_ns);
        Some(bid.device)
    }

    /// Ends the producers of a task that is ready, and the task itself if it was queued before: it
    /// is asked about again, because its device failed.
    fn end_producers(&mut self, run: usize, node: u32, now_ns: f64) {
        let offsets = &self.runs[run].producer_offsets;
        let range = offsets[node as usize] as usize..offsets[node as usize + 1] as usize;
        for at in range.map(Some).chain([None]) {
            let run = &mut self.runs[run];
            let ended = at.map_or(node, |at| run.producers[at]);
            let queued = std::mem::replace(&mut run.queued[ended as usize], NOT_QUEUED);
            if queued.chip != NONE {
                self.dequeue(queued, now_ns);
            }
        }
    }

    fn bid(&self, run: &Run, task: &ReadyTask, device: u32, now_ns: f64) -> Option<Bid> {
        let worker = self.workers.get(*run.chip.get(device as usize)? as usize)?;
        let is_known = (task.home as usize) < run.chip.len();
        let transfer_ns = match is_known && task.home != device && task.input_bytes > 0 {
            true => run.links.transfer_ns(task.home, device, task.input_bytes),
            false => 0.0,
        };
        let wait_ns = worker.end_ns - now_ns;
        let is_idle = !self.is_observed && wait_ns <= 0.0;
        Some(Bid {
            device,
            wait_ns: if wait_ns > 0.0 { wait_ns } else { 0.0 },
            work_ns: run.work_ns(task.node, device),
            transfer_ns,
            is_home: task.home == device,
            n_queued: if is_idle { 0 } else { worker.n_queued },
        })
    }

    fn queue(&mut self, run: usize, node: u32, bid: &Bid, now_ns: f64) {
        let run = &mut self.runs[run];
        let chip = run.chip[bid.device as usize];
        let Some(worker) = self.workers.get_mut(chip as usize) else {
            return;
        };
        if !self.is_observed && worker.end_ns <= now_ns {
            worker.forget();
        }
        // A device that cannot run the task is only picked if no other can.
        let work_ns = if bid.work_ns.is_finite() {
            bid.work_ns
        } else {
            0.0
        };
        // The transfer goes on while the worker is busy (StarPU's prefetch).
        let arrives_ns = now_ns + bid.transfer_ns;
        worker.end_ns = later(later(worker.end_ns, now_ns), arrives_ns) + work_ns;
        if bid.transfer_ns > 0.0 {
            worker.bound_ns = later(worker.bound_ns, arrives_ns + work_ns);
        }
        worker.queued_ns += work_ns;
        worker.n_queued += 1;
        run.queued[node as usize] = Queued {
            chip,
            epoch: worker.epoch,
            work_ns,
        };
        let group = run.group[node as usize];
        if run.is_shared[group as usize] {
            run.of_group[group as usize] = bid.device;
        }
        if let Some(memory) = &mut run.memory {
            memory.take(group, bid.device);
        }
    }
}

impl Worker {
    fn remove(&mut self, queued: Queued) {
        if queued.epoch != self.epoch || self.n_queued == 0 {
            return;
        }
        self.n_queued -= 1;
        self.queued_ns = later(self.queued_ns - queued.work_ns, 0.0);
        if self.n_queued == 0 {
            (self.queued_ns, self.bound_ns) = (0.0, 0.0);
        }
    }

    /// Forgets what was queued: it is expected to have ended.
    fn forget(&mut self) {
        *self = Self {
            end_ns: self.end_ns,
            finished_ns: self.finished_ns,
            epoch: self.epoch.wrapping_add(1),
            ..Self::default()
        };
    }
}

impl Run {
    fn new(id: u32, origin_ns: f64, graph: &Graph<'_>, devices: &DeviceSet<'_>) -> Self {
        let (candidates, producers) = (graph.candidates(), graph.predecessors());
        let mut of_group = vec![NONE; graph.counts().groups as usize];
        let mut n_members = vec![0_u32; of_group.len()];
        for &group in graph.group() {
            n_members[group as usize] += 1;
        }
        for (&group, &pin) in graph.group().iter().zip(graph.pinned()) {
            if pin != NONE {
                of_group[group as usize] = pin;
            }
        }
        let memory = is_tight(graph, devices).then(|| MemoryBudget::new(graph, devices));
        Self {
            id,
            origin_ns,
            candidate_offsets: candidates.offsets.to_vec(),
            candidates: candidates.items.to_vec(),
            costs_ns: graph.costs().to_vec(),
            n_classes: graph.counts().cost_classes as usize,
            cost_row: graph.cost_row().to_vec(),
            candidate_set: graph.candidate_set().to_vec(),
            executions: graph.executions().to_vec(),
            cost_class: devices.cost_classes().to_vec(),
            chip: super::tasks::chips(devices),
            links: LinkMatrix::new(devices),
            producer_offsets: producers.offsets.to_vec(),
            producers: producers.items.to_vec(),
            group: graph.group().to_vec(),
            of_group,
            is_shared: n_members.iter().map(|&n| n > 1).collect(),
            memory: memory.map(|memory| memory.without_allocations(devices.len())),
            queued: vec![NOT_QUEUED; graph.len()],
        }
    }

    fn candidates_of(&self, node: u32) -> &[u32] {
        let set = self.candidate_set[node as usize] as usize;
        let range = self.candidate_offsets[set] as usize..self.candidate_offsets[set + 1] as usize;
        &self.candidates[range]
    }

    /// Returns the time of a node on a device, all its executions together.
    fn work_ns(&self, node: u32, device: u32) -> f64 {
        let row = self.cost_row[node as usize] as usize * self.n_classes;
        let class = self.cost_class[device as usize] as usize;
        let work_ns = self.costs_ns[row + class] * self.executions[node as usize];
        // No executions times +inf.
        if work_ns.is_nan() { 0.0 } else { work_ns }
    }
}

/// The plan of a policy that decides online.
#[derive(Debug)]
pub struct Simulated {
    /// The plan that the host has accepted.
    pub offered: Offered,
    /// Per node, when it was decided: the device that had most of its input, or [`NONE`].
    pub homes: Vec<u32>,
}

/// Offers the plan that a policy would make online: it queues each task on the device with the
/// least score when the task becomes ready ([`online::simulate`]).
///
/// # Errors
/// The rule that the last plan breaks.
pub fn offer_simulated<K: PartialOrd>(
    graph: &Graph<'_>,
    devices: &DeviceSet<'_>,
    plan: &Plan<'_>,
    priorities: Option<&[f64]>,
    mut score: impl FnMut(&Bid) -> K,
) -> Result<Simulated, Violation> {
    let tasks = TaskGraph::new(graph, devices);
    let mut homes = vec![NONE; graph.len()];
    let offered = offer(graph, devices, plan, |memory| {
        let mut fleet = Fleet::default();
        fleet.begin(online::RUN, graph, devices);
        let mut run = Simulation {
            fleet,
            homes: &mut homes,
            score: &mut score,
        };
        online::simulate(&tasks, memory, priorities, &mut run)
    })?;
    Ok(Simulated { offered, homes })
}

/// A simulated run.
struct Simulation<'s, F> {
    fleet: Fleet,
    homes: &'s mut [u32],
    score: &'s mut F,
}

impl<K: PartialOrd, F: FnMut(&Bid) -> K> Decisions for Simulation<'_, F> {
    fn pick(&mut self, task: &ReadyTask, legal: &[u32]) -> u32 {
        self.homes[task.node as usize] = task.home;
        let picked = self.fleet.pick_among(task, Some(legal), &mut *self.score);
        picked.unwrap_or(NONE)
    }

    fn observe(&mut self, done: &[Completion]) {
        self.fleet.observe(done, &[]);
    }
}

#[cfg(all(test, not(target_arch = "wasm32")))]
mod tests;
