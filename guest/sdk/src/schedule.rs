//! List scheduling: nodes one after the other, each to a device and a time.
//!
//! Most published policies for task graphs consist of an order of nodes and a rule for the device.
//! [`TaskGraph`] has what such rules ask about: the work of a node on a device, the inputs of a
//! node, the transfer of an input, ranks. [`ListSchedule`] keeps the schedule so far, respects
//! groups, pins and memory, and finds gaps. [`offer`] offers the result, and schedules again where
//! memory is short. [`earliest_first`] is a whole list scheduler, for policies that differ in what
//! devices wait for. [`online`] and [`fleet`] are for policies that decide when tasks become ready.
//! The minimum completion time, with insertion:
//!
//! ```
//! use placewright_guest::schedule::{self, ListSchedule, TaskGraph};
//! use placewright_guest::testing::{GraphBuilder, cluster, place};
//! use placewright_guest::{DeviceSet, Graph, PlaceError, Plan, Policy};
//!
//! #[derive(Default)]
//! struct Mct;
//!
//! impl Policy for Mct {
//!     const NAME: &'static str = "mct";
//!
//!     fn place(&mut self, graph: &Graph<'_>, devices: &DeviceSet<'_>, plan: &Plan<'_>, _seed: u64) -> Result<(), PlaceError> {
//!         let tasks = TaskGraph::new(graph, devices);
//!         schedule::offer(graph, devices, plan, |memory| {
//!             let mut schedule = ListSchedule::new(&tasks, memory);
//!             for node in tasks.nodes() {
//!                 let choice = schedule.best(node, |choice| choice.finish_ns);
//!                 schedule.place(node, &choice);
//!             }
//!             schedule.finish()
//!         })?;
//!         Ok(())
//!     }
//! }
//!
//! let devices = cluster("1xCPU,1xGPU");
//! let mut graph = GraphBuilder::new(&devices);
//! graph.node("small", &[40.0, 5_000.0]); // ns on CPU, GPU
//! graph.node("large", &[90_000.0, 6_000.0]);
//! let offer = place(&mut Mct, &graph.build(), &devices)?;
//! assert_eq!(offer.devices, [0, 1]);
//! # Ok::<(), PlaceError>(())
//! ```
//!
//! As in the papers, a chip executes one task at a time, and a link carries any number of
//! transfers. The host's estimate of the offered plan is more exact.

mod earliest;
pub mod fleet;
pub mod lanes;
mod legal;
pub mod online;
pub mod ready;
mod tasks;
pub mod timeline;

use crate::NONE;
use crate::debug;
use crate::devices::DeviceSet;
use crate::graph::Graph;
use crate::memory::MemoryBudget;
use crate::memory::contiguous_stages;
use crate::memory::free_constants;
use crate::memory::is_tight;
use crate::memory::place_constants;
use crate::memory::stream;
use crate::plan::Plan;
use crate::plan::Reasons;
use crate::source::Violation;

pub use earliest::earliest_first;
use lanes::later;
use legal::LegalDevices;
pub use tasks::Input;
pub use tasks::TaskGraph;
use timeline::Hints;
use timeline::Slot;
use timeline::Timeline;

/// Attempts to schedule a graph again when memory is short.
const MEMORY_ROUNDS: u32 = 4;

/// A possible place of a node in a schedule. All times are in ns.
#[derive(Debug, Clone, Copy)]
pub struct Choice {
    /// The device.
    pub device: u32,
    /// When the node would start.
    pub start_ns: f64,
    /// When it would finish.
    pub finish_ns: f64,
    /// The work of the undecided nodes that would follow it to this device: the other members of
    /// its colocation group.
    pub group_ns: f64,
    /// The gap; `None` for the end of the schedule.
    gap: Option<Slot>,
}

/// A result: where nodes are, and when they start.
#[derive(Debug, Clone, Default)]
pub struct Scheduled {
    /// Device of each node; [`NONE`] for constants that are not scheduled ([`free_constants`]).
    pub devices: Vec<u32>,
    /// Start of each node, in ns; 0 for constants that are not scheduled.
    pub start_ns: Vec<f64>,
    /// When the last node finishes, in ns.
    pub makespan_ns: f64,
    /// Number of nodes that were placed in gaps.
    pub n_inserted: u32,
}

/// The nodes that are placed so far.
#[derive(Debug)]
pub struct ListSchedule<'t, 'g> {
    tasks: &'t TaskGraph<'t, 'g>,
    legal: LegalDevices<'t, 'g>,
    /// Per chip.
    timelines: Vec<Timeline>,
    devices: Vec<u32>,
    start_ns: Vec<f64>,
    finish_ns: Vec<f64>,
    n_inserted: u32,
}

impl<'t, 'g> ListSchedule<'t, 'g> {
    /// Creates an empty schedule. Nodes only go to devices with enough of `memory`, if it is set.
    pub fn new(tasks: &'t TaskGraph<'t, 'g>, memory: Option<MemoryBudget>) -> Self {
        let graph = tasks.graph();
        let n_chips = tasks.n_chips();
        let hints = Hints::new(tasks.horizon_ns(), graph.len() / n_chips.max(1));
        Self {
            tasks,
            legal: LegalDevices::new(tasks, memory),
            timelines: vec![Timeline::new(0.0, hints); n_chips],
            devices: vec![NONE; graph.len()],
            start_ns: vec![0.0; graph.len()],
            finish_ns: vec![0.0; graph.len()],
            n_inserted: 0,
        }
    }

    /// Returns the devices that a node may take, most preferred first, at least one: that of its
    /// group if it is decided, else the candidates that have memory for its group. If none has,
    /// that with the most free memory, so that the plan that the host refuses is as close as
    /// possible to a legal one.
    pub fn legal(&mut self, node: u32) -> &[u32] {
        self.legal.of(node)
    }

    /// Returns whether the group of a node is decided, by a pin or by another member.
    pub fn is_decided(&self, node: u32) -> bool {
        self.legal.is_decided(node)
    }

    /// Returns the device of a node, [`NONE`] until it is placed.
    pub fn device(&self, node: u32) -> u32 {
        self.devices[node as usize]
    }

    /// Returns when the inputs of a node are on a device, in ns. The producers are placed.
    pub fn ready_ns(&self, node: u32, device: u32) -> f64 {
        let tasks = self.tasks;
        tasks.inputs(node).fold(0.0, |ready, input| {
            let producer = input.producer as usize;
            let transfer = tasks.transfer_ns(&input, self.devices[producer], device);
            later(ready, self.finish_ns[producer] + transfer)
        })
    }

    /// Returns when the last node on the chip of a device finishes, in ns.
    pub fn tail_ns(&self, device: u32) -> f64 {
        self.timelines[self.tasks.chip(device)].tail()
    }

    /// Returns the earliest place of a node on a device, in a gap if it fits (insertion).
    pub fn earliest(&self, node: u32, device: u32) -> Choice {
        let ready = self.ready_ns(node, device);
        let work = self.tasks.work_ns(node, device);
        let timeline = &self.timelines[self.tasks.chip(device)];
        let gap = timeline.earliest_gap(ready, work, f64::INFINITY);
        let start_ns = gap.map_or_else(|| later(ready, timeline.tail()), |gap| gap.start());
        Choice {
            device,
            start_ns,
            finish_ns: start_ns + work,
            group_ns: self.group_ns(node, device),
            gap,
        }
    }

    /// Returns when a node would finish on a device if one of its producers had this place, in ns.
    /// Producers that are not placed are ignored.
    pub fn finish_after_ns(&self, node: u32, device: u32, producer: (u32, &Choice)) -> f64 {
        let tasks = self.tasks;
        let (assumed, choice) = producer;
        let ready = tasks.inputs(node).fold(0.0, |ready, input| {
            let producer = input.producer as usize;
            let (from, finish_ns) = match input.producer == assumed {
                true => (choice.device, choice.finish_ns),
                false => (self.devices[producer], self.finish_ns[producer]),
            };
            match from {
                NONE => ready,
                from => later(ready, finish_ns + tasks.transfer_ns(&input, from, device)),
            }
        });
        let work = tasks.work_ns(node, device);
        let timeline = &self.timelines[tasks.chip(device)];
        let gap = timeline.earliest_gap(ready, work, f64::INFINITY);
        gap.map_or_else(|| later(ready, timeline.tail()), |gap| gap.start()) + work
    }

    /// Returns the place of a node on a device after all others there.
    pub fn last(&self, node: u32, device: u32) -> Choice {
        let start_ns = later(self.ready_ns(node, device), self.tail_ns(device));
        Choice {
            device,
            start_ns,
            finish_ns: start_ns + self.tasks.work_ns(node, device),
            group_ns: self.group_ns(node, device),
            gap: None,
        }
    }

    fn group_ns(&self, node: u32, device: u32) -> f64 {
        if self.is_decided(node) {
            return 0.0;
        }
        let members = self.tasks.members(node).iter();
        let others = members.filter(|&&member| member != node);
        others
            .map(|&member| self.tasks.work_ns(member, device))
            .sum()
    }

    /// Returns the choice with the least score, to which the work of the group is added; of equal
    /// ones that on the most preferred device. The producers of the node are placed.
    pub fn best(&mut self, node: u32, mut score: impl FnMut(&Choice) -> f64) -> Choice {
        self.legal.of(node);
        let choices = self.legal.found().iter().map(|&device| {
            let choice = self.earliest(node, device);
            (score(&choice) + choice.group_ns, choice)
        });
        let best = choices.reduce(|best, other| if other.0 < best.0 { other } else { best });
        best.expect("a node has a legal device").1
    }

    /// Places a node. The schedule must not have changed since the choice was returned.
    pub fn place(&mut self, node: u32, choice: &Choice) {
        let work = self.tasks.work_ns(node, choice.device);
        let timeline = &mut self.timelines[self.tasks.chip(choice.device)];
        match choice.gap {
            Some(gap) => {
                timeline.fill(gap, work);
                self.n_inserted += 1;
            }
            None => timeline.append(choice.start_ns, work),
        }
        self.legal.decide(node, choice.device);
        let node = node as usize;
        self.devices[node] = choice.device;
        self.start_ns[node] = choice.start_ns;
        self.finish_ns[node] = choice.finish_ns;
    }

    /// Returns the schedule.
    pub fn finish(self) -> Scheduled {
        let tails = self.timelines.iter().map(Timeline::tail);
        Scheduled {
            devices: self.devices,
            start_ns: self.start_ns,
            makespan_ns: tails.fold(0.0, later),
            n_inserted: self.n_inserted,
        }
    }
}

/// A plan that the host has accepted.
#[derive(Debug, Clone, Default)]
pub struct Offered {
    /// How often the graph was scheduled again because memory was short.
    pub memory_rounds: u32,
    /// Bytes per device that the last round left free, if it had to respect memory.
    pub reserved: Option<Vec<u64>>,
    /// The last schedule; its devices include those of constants.
    pub scheduled: Scheduled,
    /// Whether the plan is one of [`contiguous_stages`] instead.
    pub is_in_stages: bool,
}

impl Offered {
    /// Returns the memory that the last schedule respected, before any node was placed; `None` if
    /// memory was not tight.
    pub fn memory(&self, graph: &Graph<'_>, devices: &DeviceSet<'_>) -> Option<MemoryBudget> {
        let reserved = self.reserved.as_ref()?;
        Some(MemoryBudget::with_reserved(graph, devices, reserved))
    }

    /// Explains why nodes are on their devices: `rule` is the reason for those that had a choice.
    pub fn explain(&self, graph: &Graph<'_>, plan: &Plan<'_>, rule: &'static str) {
        self.explain_each(graph, plan, |_| rule);
    }

    /// Does the same with a reason for each node that had a choice.
    pub fn explain_each(
        &self,
        graph: &Graph<'_>,
        plan: &Plan<'_>,
        rule: impl Fn(u32) -> &'static str,
    ) {
        Reasons::by_rule(graph, plan, |node| match self.is_in_stages {
            true => "stage sized to the device's memory",
            false => rule(node),
        });
    }
}

/// Offers a schedule, with its start times as the start order.
///
/// `schedule` gets the memory that it has to respect, `None` while memory is not tight. If the host
/// refuses the plan because the tensors of a run need more, that memory is reserved and `schedule`
/// is called again, up to four times. If that does not help, the graph is divided into
/// [`contiguous_stages`]. If they lack memory, too, constants of a schedule without regard to
/// memory are streamed ([`stream`]).
///
/// # Errors
/// The rule that the last plan breaks.
pub fn offer(
    graph: &Graph<'_>,
    devices: &DeviceSet<'_>,
    plan: &Plan<'_>,
    mut schedule: impl FnMut(Option<MemoryBudget>) -> Scheduled,
) -> Result<Offered, Violation> {
    let is_free_constant = free_constants(graph);
    let mut reserved = vec![0; devices.len()];
    let mut memory_rounds = 0;
    loop {
        let is_tight = memory_rounds > 0 || is_tight(graph, devices);
        let memory = || MemoryBudget::with_reserved(graph, devices, &reserved);
        let mut scheduled = schedule(is_tight.then(memory));
        place_constants(graph, &is_free_constant, &mut scheduled.devices);
        plan.set_devices(&scheduled.devices);
        plan.set_start_order(&start_order(&scheduled.start_ns, scheduled.makespan_ns));
        let offered = plan.offer();
        let is_short = |violation: &Violation| violation.rule == "memory";
        let is_in_stages = match offered {
            Err(violation) if is_short(&violation) && memory_rounds == MEMORY_ROUNDS => {
                debug!(
                    plan,
                    "not enough memory, contiguous stages are tried: {violation}"
                );
                let stages = contiguous_stages(graph, devices, plan);
                match plan.offer_devices(&stages) {
                    Err(violation) if is_short(&violation) => {
                        debug!(plan, "stages lack memory, streaming is tried: {violation}");
                        scheduled = schedule(None);
                        place_constants(graph, &is_free_constant, &mut scheduled.devices);
                        let order = start_order(&scheduled.start_ns, scheduled.makespan_ns);
                        plan.set_start_order(&order);
                        if stream(graph, devices, plan, &mut scheduled.devices).is_none() {
                            return Err(violation);
                        }
                        plan.offer()?;
                        false
                    }
                    offered => {
                        offered?;
                        true
                    }
                }
            }
            Err(violation) if is_short(&violation) => {
                memory_rounds += 1;
                debug!(
                    plan,
                    "not enough memory, round {memory_rounds}: {violation}"
                );
                let mut memory = memory();
                memory.take_all(graph, &scheduled.devices);
                memory.set_aside(&mut reserved, plan);
                continue;
            }
            offered => {
                offered?;
                false
            }
        };
        plan.metric("makespan_ns", scheduled.makespan_ns);
        plan.metric("nodes_inserted", f64::from(scheduled.n_inserted));
        plan.metric("memory_rounds", f64::from(memory_rounds));
        return Ok(Offered {
            memory_rounds,
            reserved: is_tight.then_some(reserved),
            scheduled,
            is_in_stages,
        });
    }
}

/// Returns the start order within each device, larger first: the schedule's start times, counted
/// down from the largest number. One step is the 2^32nd part of the makespan, less than a ns in
/// schedules of up to four seconds.
#[expect(
    clippy::cast_possible_truncation,
    reason = "the quotient is between 0 and 1"
)]
#[inline(never)]
pub fn start_order(start_ns: &[f64], makespan_ns: f64) -> Vec<i32> {
    let steps_per_ns = if makespan_ns > 0.0 {
        f64::from(u32::MAX) / makespan_ns
    } else {
        0.0
    };
    let step = |&start: &f64| {
        let steps = (start * steps_per_ns) as i64;
        (i64::from(i32::MAX) - steps).max(i64::from(i32::MIN)) as i32
    };
    start_ns.iter().map(step).collect()
}
