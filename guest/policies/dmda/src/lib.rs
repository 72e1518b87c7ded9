//! `dmda`: deque model, data aware (Augonnet, Thibault, Namyst, Wacrenier 2011, "StarPU: a unified
//! platform for task scheduling on heterogeneous multicore architectures").
//!
//! A task goes to a device as soon as it is ready: to that with the least sum of the time until its
//! queue is expected to end, `alpha` times the task's execution, and `beta` times the transfer of
//! its input. With 1 and 1, StarPU's defaults, the sum is the expected completion. Queues are first
//! in, first out.
//!
//! Online, completions correct the expected ends ([`placewright_guest::schedule::fleet`]). A device
//! that is down gets no task. For a whole graph, the policy offers what it would pick in a run
//! ([`placewright_guest::schedule::online`]).
//!
//! Beyond StarPU: devices of one chip are one worker. A group stays together. A device takes a task
//! only if it has memory for its state, unless none has. The input comes from the device that holds
//! most of it; StarPU asks where each part is.

use placewright_guest::Completion;
use placewright_guest::Config;
use placewright_guest::ConfigError;
use placewright_guest::DeviceChange;
use placewright_guest::DeviceSet;
use placewright_guest::Graph;
use placewright_guest::OnlinePolicy;
use placewright_guest::PlaceError;
use placewright_guest::Plan;
use placewright_guest::Policy;
use placewright_guest::ReadyTask;
use placewright_guest::Setting;
use placewright_guest::export_policy;
use placewright_guest::schedule::fleet::Bid;
use placewright_guest::schedule::fleet::Fleet;
use placewright_guest::schedule::fleet::offer_simulated;

/// The policy. Between calls it keeps the online runs in progress.
#[derive(Debug, Default)]
pub struct Dmda {
    /// How a device is chosen.
    pub model: Model,
    fleet: Fleet,
}

/// The weights of the expected completion.
#[derive(Debug, Clone, Copy)]
pub struct Model {
    /// Weight of the execution.
    pub alpha: f64,
    /// Weight of the transfer.
    pub beta: f64,
}

impl Default for Model {
    /// StarPU's defaults.
    fn default() -> Self {
        Self {
            alpha: 1.0,
            beta: 1.0,
        }
    }
}

impl Model {
    /// The settings that [`Self::parse`] reads.
    pub const SETTINGS: &'static [Setting] = &[
        Setting {
            key: "alpha",
            kind: "f64",
            default: "1",
            description: "weight of the execution in the expected completion",
        },
        Setting {
            key: "beta",
            kind: "f64",
            default: "1",
            description: "weight of the transfer of the input in the expected completion",
        },
    ];

    /// Reads the settings.
    ///
    /// # Errors
    /// A value is no number, negative or infinite.
    pub fn parse(config: &Config) -> Result<Self, ConfigError> {
        let weight = |key: &str| {
            let weight: f64 = config.parse(key)?;
            if weight >= 0.0 && weight.is_finite() {
                return Ok(weight);
            }
            Err(ConfigError::BadValue {
                key: key.to_owned(),
                value: format!("{weight} (expected a number from 0)"),
            })
        };
        Ok(Self {
            alpha: weight("alpha")?,
            beta: weight("beta")?,
        })
    }

    /// Returns the expected completion after now, in ns, with the weights.
    pub fn completion_ns(&self, bid: &Bid) -> f64 {
        if bid.work_ns == f64::INFINITY {
            return f64::INFINITY; // also if alpha is 0
        }
        // 0 times a transfer of +inf would be NaN.
        let transfer_ns = match self.beta > 0.0 {
            true => self.beta * bid.transfer_ns,
            false => 0.0,
        };
        bid.wait_ns + self.alpha * bid.work_ns + transfer_ns
    }
}

impl Policy for Dmda {
    const NAME: &'static str = "dmda";
    const DESCRIPTION: &'static str = "deque model, data aware (StarPU, Augonnet et \
        al. 2011): each ready task where it is expected to complete first";
    const SETTINGS: &'static [Setting] = Model::SETTINGS;

    fn configure(&mut self, config: &Config) -> Result<(), ConfigError> {
        self.model = Model::parse(config)?;
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
        let model = self.model;
        let simulated =
            offer_simulated(graph, devices, plan, None, |bid| model.completion_ns(bid))?;
        let offered = simulated.offered;
        offered.explain(graph, plan, "expected to complete first there");
        Ok(())
    }
}

impl OnlinePolicy for Dmda {
    fn begin(
        &mut self,
        run: u32,
        graph: &Graph<'_>,
        devices: &DeviceSet<'_>,
        _seed: u64,
    ) -> Result<(), PlaceError> {
        self.fleet.begin(run, graph, devices);
        Ok(())
    }

    fn pick(&mut self, task: &ReadyTask) -> Option<u32> {
        let model = self.model;
        self.fleet.pick(task, |bid| model.completion_ns(bid))
    }

    fn observe(&mut self, done: &[Completion], changes: &[DeviceChange]) {
        self.fleet.observe(done, changes);
    }

    fn end(&mut self, run: u32) {
        self.fleet.end(run);
    }
}

export_policy!(Dmda, online, feature = "export");

#[cfg(test)]
mod tests;
