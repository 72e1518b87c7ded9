//! The traits that an author implements: [`Policy`], and [`OnlinePolicy`] to place ops while they
//! run.

use std::error::Error;
use std::fmt;

use crate::config::Config;
use crate::config::ConfigError;
use crate::config::Setting;
use crate::devices::DeviceSet;
use crate::graph::Graph;
use crate::plan::Plan;
use crate::source::Violation;

/// A placement policy.
///
/// An instance is created with `default()`, configured once, and then asked for any number of
/// placements, one at a time. In WebAssembly each instance has its own sandbox and may be dropped
/// after any call, so use state between calls only as a cache.
pub trait Policy: Default + Send + 'static {
    /// The name of the policy. Use the published name of the algorithm.
    const NAME: &'static str;

    /// A description in a sentence or two.
    const DESCRIPTION: &'static str = "";

    /// The configuration keys. Other keys are refused before [`Self::configure`] is called.
    const SETTINGS: &'static [Setting] = &[];

    /// Reads the configuration. Called once per instance, before anything else, also if the
    /// configuration is empty.
    ///
    /// # Errors
    /// A value is out of range or keys contradict each other; `?` on [`Config::parse`] covers
    /// values that do not parse.
    fn configure(&mut self, config: &Config) -> Result<(), ConfigError> {
        let _ = config;
        Ok(())
    }

    /// Places a whole graph: writes an assignment to `plan` and offers it. The last legal offer is
    /// the answer, so a policy that searches offers early, and again when it has found a better
    /// plan.
    ///
    /// The same graph, devices and seed must give the same plan: take random numbers from `seed`,
    /// break ties on ids, and do not iterate over hash maps.
    ///
    /// # Errors
    /// [`PlaceError::Declined`] if the policy does not handle the graph or the devices,
    /// [`PlaceError::Failed`] if it found no legal plan. The host then asks the next policy of its
    /// ladder. If a legal offer was made before, it remains the answer after a failure.
    fn place(
        &mut self,
        graph: &Graph<'_>,
        devices: &DeviceSet<'_>,
        plan: &Plan<'_>,
        seed: u64,
    ) -> Result<(), PlaceError> {
        let _ = (graph, devices, plan, seed);
        Err(PlaceError::Declined(format!(
            "`{}` places ops while they run, not whole graphs",
            Self::NAME
        )))
    }
}

/// A policy that places each op when it becomes ready. The policy keeps its state between `begin`
/// and `end`.
pub trait OnlinePolicy: Policy {
    /// Begins a run. Graph and devices are borrowed for this call only: copy what `pick` needs.
    ///
    /// # Errors
    /// As [`Policy::place`].
    fn begin(
        &mut self,
        run: u32,
        graph: &Graph<'_>,
        devices: &DeviceSet<'_>,
        seed: u64,
    ) -> Result<(), PlaceError>;

    /// Returns the device for a task, or `None` for no opinion: the host then uses its default.
    /// Called for every task, so it should neither allocate nor log.
    fn pick(&mut self, task: &ReadyTask) -> Option<u32>;

    /// Does the same for tasks that became ready together. Pushes one answer per task,
    /// [`crate::NONE`] for no opinion.
    fn pick_batch(&mut self, tasks: &[ReadyTask], devices: &mut Vec<u32>) {
        for task in tasks {
            let device = self.pick(task);
            devices.push(device.unwrap_or(crate::NONE));
        }
    }

    /// Receives the completions and changes since the last call, batched by the host.
    fn observe(&mut self, done: &[Completion], changes: &[DeviceChange]) {
        let _ = (done, changes);
    }

    /// Ends a run.
    fn end(&mut self, run: u32) {
        let _ = run;
    }
}

/// The reason why a policy returns no plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PlaceError {
    /// The policy does not handle this graph or device set.
    Declined(String),
    /// The policy found no legal plan.
    Failed(String),
}

/// A task whose inputs are ready.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ReadyTask {
    /// The run it belongs to.
    pub run: u32,
    /// Its node.
    pub node: u32,
    /// Row of the cost table.
    pub cost_row: u32,
    /// Row of the candidate sets.
    pub candidate_set: u32,
    /// Bytes to transfer if the task does not run on `home`.
    pub input_bytes: u64,
    /// The device that holds most of the input, or [`crate::NONE`].
    pub home: u32,
    /// Time since the run began, in ns.
    pub now_ns: f64,
}

/// A completed task.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Completion {
    /// The run it belonged to.
    pub run: u32,
    /// Its node.
    pub node: u32,
    /// The device that it ran on.
    pub device: u32,
    /// When it started, in ns since the run began.
    pub started_ns: f64,
    /// When it finished.
    pub finished_ns: f64,
}

/// A device whose state has changed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DeviceChange {
    /// The device.
    pub device: u32,
    /// Whether it is usable.
    pub is_up: bool,
    /// Free memory.
    pub memory_free_bytes: u64,
    /// 0.0 idle .. 1.0 saturated.
    pub load: f64,
}

impl fmt::Display for PlaceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Declined(reason) => write!(f, "declined: {reason}"),
            Self::Failed(reason) => f.write_str(reason),
        }
    }
}

impl Error for PlaceError {}

/// So that `plan.offer()?` works in [`Policy::place`].
impl From<Violation> for PlaceError {
    fn from(violation: Violation) -> Self {
        Self::Failed(violation.to_string())
    }
}
