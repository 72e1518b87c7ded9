//! What an author implements: [`Policy`], and [`OnlinePolicy`] where ops are placed while they run.

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
/// An instance is made with `default()`, configured once, and then asked for any number of
/// placements, one at a time. In WebAssembly an instance lives in a sandbox of its own and may be
/// dropped after any call, so what it keeps between calls is a cache at most.
pub trait Policy: Default + Send + 'static {
    /// The name by which users ask for it; use the published name of the algorithm.
    const NAME: &'static str;

    /// What it does, in a sentence or two.
    const DESCRIPTION: &'static str = "";

    /// The configuration keys it understands. Others are refused before [`Self::configure`] is
    /// called.
    const SETTINGS: &'static [Setting] = &[];

    /// Takes the configuration; called once per instance, before anything else, also when it is
    /// empty.
    ///
    /// # Errors
    /// A value is out of range or keys contradict each other; `?` on [`Config::parse`] covers
    /// values that do not parse.
    fn configure(&mut self, config: &Config) -> Result<(), ConfigError> {
        let _ = config;
        Ok(())
    }

    /// Places a whole graph: hands assignments to `plan` and offers them. The last offer that the
    /// host accepted is the answer, so a policy that searches offers early and offers again
    /// when it has found something better.
    ///
    /// The same graph, devices and seed must give the same plan: take random numbers from `seed`,
    /// break ties on ids, and do not iterate over hash maps.
    ///
    /// # Errors
    /// [`PlaceError::Declined`] when the graph or the devices are none for this policy,
    /// [`PlaceError::Failed`] when it found no legal plan. The host then asks the next policy
    /// of its ladder. After an accepted offer a failure leaves that offer the answer.
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

/// A policy that is asked about each op when it becomes ready. State lives in the policy between
/// `begin` and `end`.
pub trait OnlinePolicy: Policy {
    /// A run starts. Graph and devices are lent for this call only: keep what `pick` needs.
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

    /// The device for a task, or `None` for no opinion: the host then takes its default. Called for
    /// every task, so it should neither allocate nor log.
    fn pick(&mut self, task: &ReadyTask) -> Option<u32>;

    /// The same for tasks that became ready together: pushes one answer per task, [`crate::NONE`]
    /// for no opinion.
    fn pick_batch(&mut self, tasks: &[ReadyTask], devices: &mut Vec<u32>) {
        for task in tasks {
            let device = self.pick(task);
            devices.push(device.unwrap_or(crate::NONE));
        }
    }

    /// News since the last call, batched by the host.
    fn observe(&mut self, done: &[Completion], changes: &[DeviceChange]) {
        let _ = (done, changes);
    }

    /// The run is over.
    fn end(&mut self, run: u32) {
        let _ = run;
    }
}

/// Why a policy gives no plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PlaceError {
    /// Not a graph or device set for this policy.
    Declined(String),
    /// It should have worked, and did not.
    Failed(String),
}

/// A task all of whose inputs are there.
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
    /// Bytes to bring when the task does not run on `home`.
    pub input_bytes: u64,
    /// The device that holds most of the input, or [`crate::NONE`].
    pub home: u32,
    /// Time since the run began, in ns.
    pub now_ns: f64,
}

/// A task that has run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Completion {
    /// The run it belonged to.
    pub run: u32,
    /// Its node.
    pub node: u32,
    /// Where it ran.
    pub device: u32,
    /// When it started, in ns since the run began.
    pub started_ns: f64,
    /// When it was done.
    pub finished_ns: f64,
}

/// A device that is no longer as it was.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DeviceChange {
    /// The device.
    pub device: u32,
    /// Whether it can be used.
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
