//! Native builds of policies, which hosts use as fallbacks, for tests and for benchmarks.
//!
//! [`crate::export_policy!`] defines a function `native()` in each policy crate, which returns an
//! instance. It runs the author's code on the host's memory, without a sandbox or limits.

use std::fmt;

use crate::config::Config;
use crate::config::ConfigError;
use crate::config::Setting;
use crate::devices::DeviceSet;
use crate::graph::Graph;
use crate::log::Log;
use crate::plan::Plan;
use crate::policy::Completion;
use crate::policy::DeviceChange;
use crate::policy::OnlinePolicy;
use crate::policy::PlaceError;
use crate::policy::Policy;
use crate::policy::ReadyTask;
use crate::source::DeviceSource;
use crate::source::GraphSource;
use crate::source::PlanSink;

/// The identity of a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Info {
    /// [`Policy::NAME`].
    pub name: &'static str,
    /// Version of the crate that exports it.
    pub version: &'static str,
    /// [`Policy::DESCRIPTION`].
    pub description: &'static str,
}

/// An instance of a policy, as an object.
pub trait NativePolicy: Send {
    /// Returns its identity.
    fn info(&self) -> Info;

    /// Returns its configuration keys.
    fn settings(&self) -> &'static [Setting];

    /// Configures it. Refuses unknown keys. Called once, before anything else.
    ///
    /// # Errors
    /// The configuration is invalid.
    fn configure(&mut self, entries: &[(String, String)], log: &Log) -> Result<(), ConfigError>;

    /// Places a whole graph.
    ///
    /// # Errors
    /// As [`Policy::place`].
    fn place(
        &mut self,
        graph: &dyn GraphSource,
        devices: &dyn DeviceSource,
        plan: &dyn PlanSink,
        seed: u64,
        log: &Log,
    ) -> Result<(), PlaceError>;

    /// Returns the policy as an online policy, if it is one.
    fn as_online(&mut self) -> Option<&mut dyn NativeOnlinePolicy>;
}

/// An online policy, as an object.
pub trait NativeOnlinePolicy: Send {
    /// As [`OnlinePolicy::begin`].
    ///
    /// # Errors
    /// As [`OnlinePolicy::begin`].
    fn begin(
        &mut self,
        run: u32,
        graph: &dyn GraphSource,
        devices: &dyn DeviceSource,
        seed: u64,
        log: &Log,
    ) -> Result<(), PlaceError>;

    /// As [`OnlinePolicy::pick`].
    fn pick(&mut self, task: &ReadyTask) -> Option<u32>;

    /// As [`OnlinePolicy::pick_batch`].
    fn pick_batch(&mut self, tasks: &[ReadyTask], devices: &mut Vec<u32>);

    /// As [`OnlinePolicy::observe`].
    fn observe(&mut self, done: &[Completion], changes: &[DeviceChange]);

    /// As [`OnlinePolicy::end`].
    fn end(&mut self, run: u32);
}

/// Returns a fresh instance of `P` for whole graphs; `version` is that of the exporting crate.
pub fn whole_graph<P: Policy>(version: &'static str) -> Box<dyn NativePolicy> {
    Box::new(Instance {
        policy: P::default(),
        version,
        online: |_| None,
    })
}

/// Returns a fresh instance of `P` that also places online.
pub fn online<P: OnlinePolicy>(version: &'static str) -> Box<dyn NativePolicy> {
    Box::new(Instance {
        policy: P::default(),
        version,
        online: |policy: &mut P| Some(policy),
    })
}

struct Instance<P> {
    policy: P,
    version: &'static str,
    online: fn(&mut P) -> Option<&mut dyn NativeOnlinePolicy>,
}

impl<P: Policy> NativePolicy for Instance<P> {
    fn info(&self) -> Info {
        Info {
            name: P::NAME,
            version: self.version,
            description: P::DESCRIPTION,
        }
    }

    fn settings(&self) -> &'static [Setting] {
        P::SETTINGS
    }

    fn configure(&mut self, entries: &[(String, String)], log: &Log) -> Result<(), ConfigError> {
        let config = Config::new(P::SETTINGS, entries.to_vec(), log.clone())?;
        self.policy.configure(&config)
    }

    fn place(
        &mut self,
        graph: &dyn GraphSource,
        devices: &dyn DeviceSource,
        plan: &dyn PlanSink,
        seed: u64,
        log: &Log,
    ) -> Result<(), PlaceError> {
        self.policy.place(
            &Graph::new(graph, log),
            &DeviceSet::new(devices, log),
            &Plan::new(plan, log),
            seed,
        )
    }

    fn as_online(&mut self) -> Option<&mut dyn NativeOnlinePolicy> {
        (self.online)(&mut self.policy)
    }
}

impl<P: OnlinePolicy> NativeOnlinePolicy for P {
    fn begin(
        &mut self,
        run: u32,
        graph: &dyn GraphSource,
        devices: &dyn DeviceSource,
        seed: u64,
        log: &Log,
    ) -> Result<(), PlaceError> {
        let (graph, devices) = (Graph::new(graph, log), DeviceSet::new(devices, log));
        OnlinePolicy::begin(self, run, &graph, &devices, seed)
    }

    fn pick(&mut self, task: &ReadyTask) -> Option<u32> {
        OnlinePolicy::pick(self, task)
    }

    fn pick_batch(&mut self, tasks: &[ReadyTask], devices: &mut Vec<u32>) {
        OnlinePolicy::pick_batch(self, tasks, devices);
    }

    fn observe(&mut self, done: &[Completion], changes: &[DeviceChange]) {
        OnlinePolicy::observe(self, done, changes);
    }

    fn end(&mut self, run: u32) {
        OnlinePolicy::end(self, run);
    }
}

impl fmt::Debug for dyn NativePolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("NativePolicy").field(&self.info()).finish()
    }
}
