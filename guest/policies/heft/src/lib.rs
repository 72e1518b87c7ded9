//! `heft`: Heterogeneous Earliest Finish Time (Topcuoglu, Hariri, Wu 2002, "Performance-effective
//! and low-complexity task scheduling for heterogeneous computing").
//!
//! First, every node gets its upward rank: the longest path from its start to the end of the graph,
//! with mean costs and mean transfers (eq. 8). Then each node, in order of descending rank, goes to
//! the device where it finishes first: in a gap between tasks already placed there, if it fits
//! (insertion), or after them. Ties go to the smaller node id and the more preferred device.
//!
//! Beyond the paper:
//! - **Candidates and pins.** Only legal devices are tried, and the mean cost of a node is over
//!   these.
//! - **Groups.** The first member to be placed decides for its group. It goes where its own finish
//!   time plus the costs of the other members is smallest, as if they ran directly after it.
//! - **Constants.** The host creates them before any run, on each device that reads them. They take
//!   no time and are never transferred, so they are not scheduled; they follow their readers.
//! - **Memory.** State, and the constants that nodes read, stay within the capacity of each memory.
//!   If the host refuses the plan because the tensors of a run need more, that memory is reserved
//!   and the graph is scheduled again, up to four times. If that does not help, the graph is
//!   divided into stages of nodes in import order, and each device gets a stage that its memory
//!   holds.
//! - **Chips.** Devices of one chip share its time.
//! - **Executions.** A node's cost is multiplied by its expected number of executions, and the
//!   cost of a transfer by that of the node that produces the tensor.
//!
//! As in the paper, a device runs one task at a time, and a link carries any number of transfers.

mod lanes;
mod problem;
mod reasons;
mod schedule;
#[cfg(test)]
mod tests;
mod timeline;

use placewright_guest::Assignment;
use placewright_guest::Config;
use placewright_guest::ConfigError;
use placewright_guest::DeviceSet;
use placewright_guest::Graph;
use placewright_guest::MemoryBudget;
use placewright_guest::PlaceError;
use placewright_guest::Plan;
use placewright_guest::Policy;
use placewright_guest::Setting;
use placewright_guest::debug;
use placewright_guest::export_policy;
use placewright_guest::memory::contiguous_stages;
use placewright_guest::memory::place_constants;

use crate::problem::Problem;
use crate::schedule::Decision;
use crate::schedule::Scheduler;

/// Attempts to schedule a graph again when memory is short.
const MEMORY_ROUNDS: u32 = 4;

/// The policy.
#[derive(Debug)]
pub struct Heft {
    with_insertion: bool,
}

impl Default for Heft {
    fn default() -> Self {
        Self {
            with_insertion: true,
        }
    }
}

impl Policy for Heft {
    const NAME: &'static str = "heft";
    const DESCRIPTION: &'static str = "Heterogeneous Earliest Finish Time (Topcuoglu et al. 2002): nodes by upward rank, \
        each to the device where it finishes first";
    const SETTINGS: &'static [Setting] = &[Setting {
        key: "insertion",
        kind: "bool",
        default: "true",
        description: "whether a node may start in a gap between nodes scheduled before it, as published",
    }];

    fn configure(&mut self, config: &Config) -> Result<(), ConfigError> {
        self.with_insertion = config.parse("insertion")?;
        Ok(())
    }

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
        let problem = Problem::new(graph, devices);
        let mut reserved = vec![0; devices.len()];
        let budget = |reserved: &[u64]| MemoryBudget::with_reserved(graph, devices, reserved);
        let schedule = |memory: Option<&mut MemoryBudget>,
                        decisions: Option<&mut Vec<Decision>>| {
            let scheduler = Scheduler::new(&problem, devices.chips(), self.with_insertion);
            scheduler.run(Assignment::new(graph), memory, decisions)
        };
        let mut round = 0;
        loop {
            let mut memory = budget(&reserved);
            let is_tight = round > 0 || memory.is_tight();
            let mut outcome = schedule(is_tight.then_some(&mut memory), None);
            place_constants(graph, &problem.is_free_constant, &mut outcome.devices);
            plan.set_devices(&outcome.devices);
            plan.set_start_order(&start_order(&outcome.start, outcome.makespan));
            let Err(violation) = plan.offer() else {
                plan.metric("makespan_ns", outcome.makespan);
                plan.metric("nodes_inserted", f64::from(outcome.n_inserted));
                plan.metric("memory_rounds", f64::from(round));
                if plan.explain_wanted() {
                    let mut decisions = Vec::new();
                    if reasons::have_times(graph.len(), devices.len()) {
                        // Schedules again after the offer: if the fuel runs out while reasons are
                        // collected, the plan remains.
                        let mut memory = budget(&reserved);
                        schedule(is_tight.then_some(&mut memory), Some(&mut decisions));
                    }
                    let is_constant = &problem.is_free_constant;
                    reasons::explain(graph, devices, plan, is_constant, &decisions);
                }
                return Ok(());
            };
            if violation.rule != "memory" {
                return Err(violation.into());
            }
            if round == MEMORY_ROUNDS {
                debug!(
                    plan,
                    "not enough memory, contiguous stages are tried: {violation}"
                );
                plan.offer_devices(&contiguous_stages(graph, devices, plan))?;
                plan.metric("memory_rounds", f64::from(round));
                if plan.explain_wanted() {
                    reasons::explain_stages(graph, plan, &problem.is_free_constant);
                }
                return Ok(());
            }
            round += 1;
            debug!(plan, "not enough memory, round {round}: {violation}");
            if !is_tight {
                memory.take_all(graph, &outcome.devices);
            }
            memory.set_aside(&mut reserved, plan);
        }
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
fn start_order(start: &[f64], makespan: f64) -> Vec<i32> {
    let steps_per_ns = if makespan > 0.0 {
        f64::from(u32::MAX) / makespan
    } else {
        0.0
    };
    let step = |&start: &f64| {
        let steps = (start * steps_per_ns) as i64;
        (i64::from(i32::MAX) - steps).max(i64::from(i32::MIN)) as i32
    };
    start.iter().map(step).collect()
}

export_policy!(Heft, feature = "export");

/// The examples of guest/README.md compile.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
mod readme {}
