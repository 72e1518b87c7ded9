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
//!   [`schedule::offer`] says what happens if the host refuses the plan because the tensors of a
//!   run need more.
//! - **Chips.** Devices of one chip share its time.
//! - **Executions.** A node's cost is multiplied by its expected number of executions, and the
//!   cost of a transfer by that of the node that produces the tensor.
//!
//! As in the paper, a device runs one task at a time, and a link carries any number of transfers.

mod problem;
mod reasons;
mod scheduler;
#[cfg(test)]
mod tests;

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
use placewright_guest::export_policy;
use placewright_guest::schedule;

use crate::problem::Problem;
use crate::scheduler::Decision;
use crate::scheduler::Scheduler;

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
        let schedule = |memory: Option<MemoryBudget>, decisions: Option<&mut Vec<Decision>>| {
            let scheduler = Scheduler::new(&problem, devices.chips(), self.with_insertion);
            scheduler.run(Assignment::new(graph), memory, decisions)
        };
        let offered = schedule::offer(graph, devices, plan, |memory| schedule(memory, None))?;
        if !plan.explain_wanted() {
            return Ok(());
        }
        if offered.is_in_stages {
            offered.explain(graph, plan, "");
            return Ok(());
        }
        let mut decisions = Vec::new();
        if reasons::have_times(graph.len(), devices.len()) {
            // Schedules again after the offer: if the fuel runs out while reasons are collected,
            // the plan remains.
            schedule(offered.memory(graph, devices), Some(&mut decisions));
        }
        let is_constant = &problem.is_free_constant;
        reasons::explain(graph, devices, plan, is_constant, &decisions);
        Ok(())
    }
}

export_policy!(Heft, feature = "export");

/// The examples of guest/README.md compile.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
mod readme {}
