//! The sandbox side of the SDK: implements the contract's exports with the author's traits, and the
//! sources with the contract's imports.
//!
//! Compiled for wasm32 only; used through [`crate::export_policy!`], not by authors.

pub mod bindings;

mod sources;

use std::panic;
use std::sync::Arc;

pub use bindings::export_lifecycle::export_lifecycle;
pub use bindings::export_online::export_online;
pub use bindings::export_whole_graph::export_whole_graph;

use self::bindings::export_lifecycle::exports::placewright::policy::lifecycle;
use self::bindings::export_lifecycle::placewright::policy::devices;
use self::bindings::export_lifecycle::placewright::policy::graphs;
use self::bindings::export_lifecycle::placewright::policy::log as log_import;
use self::bindings::export_lifecycle::placewright::policy::planning;
use self::bindings::export_lifecycle::placewright::policy::types;
use self::bindings::export_online::exports::placewright::policy::online;
use self::bindings::export_whole_graph::exports::placewright::policy::whole_graph;
use self::sources::HostLog;
use crate::config::Config;
use crate::config::ConfigError;
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

/// [`crate::CONTRACT_VERSION`] as bytes, for the custom section.
pub const CONTRACT_VERSION_BYTES: [u8; crate::CONTRACT_VERSION.len()] =
    *crate::CONTRACT_VERSION.as_bytes().first_chunk().unwrap();

/// A crate's policy and the storage of its instance; implemented by [`crate::export_policy!`].
pub trait Exported {
    /// The policy.
    type Policy: Policy;
    /// Version of the exporting crate.
    const VERSION: &'static str;
    /// Calls `call` with the instance, which is created at the first call.
    fn with<R>(call: impl FnOnce(&mut Self::Policy) -> R) -> R;
}

/// Sends the message of a panic to the host before the trap that follows. Otherwise the host sees
/// only `unreachable`.
pub fn forward_panics() {
    panic::set_hook(Box::new(|info| {
        let message = info.payload_as_str().unwrap_or("no message");
        let text = match info.location() {
            Some(at) => format!("panicked at {}:{}: {message}", at.file(), at.line()),
            None => format!("panicked: {message}"),
        };
        log_import::emit(log_import::Level::Error, &text);
    }));
}

fn host_log() -> Log {
    Log::new(Arc::new(HostLog))
}

impl<T: Exported> lifecycle::Guest for T {
    fn describe() -> lifecycle::Info {
        lifecycle::Info {
            name: T::Policy::NAME.to_owned(),
            version: T::VERSION.to_owned(),
            description: T::Policy::DESCRIPTION.to_owned(),
        }
    }

    fn settings() -> Vec<lifecycle::Setting> {
        let setting = |setting: &crate::Setting| lifecycle::Setting {
            key: setting.key.to_owned(),
            kind: setting.kind.to_owned(),
            default: setting.default.to_owned(),
            description: setting.description.to_owned(),
        };
        T::Policy::SETTINGS.iter().map(setting).collect()
    }

    fn configure(entries: Vec<types::Property>) -> Result<(), lifecycle::ConfigError> {
        let entries = entries
            .into_iter()
            .map(|entry| (entry.key, entry.value))
            .collect();
        Config::new(T::Policy::SETTINGS, entries, host_log())
            .and_then(|config| T::with(|policy| policy.configure(&config)))
            .map_err(|error| match error {
                ConfigError::UnknownKey(key) => lifecycle::ConfigError::UnknownKey(key),
                ConfigError::BadValue { key, value } => {
                    lifecycle::ConfigError::BadValue(types::Property { key, value })
                }
                ConfigError::Other(text) => lifecycle::ConfigError::Other(text),
            })
    }
}

impl<T: Exported> whole_graph::Guest for T {
    fn place(
        graph: &graphs::Graph,
        devices: &devices::DeviceSet,
        plan: &planning::Plan,
        seed: u64,
    ) -> Result<(), whole_graph::PlaceError> {
        let log = host_log();
        let (graph, devices, plan) = (
            Graph::new(graph, &log),
            DeviceSet::new(devices, &log),
            Plan::new(plan, &log),
        );
        T::with(|policy| policy.place(&graph, &devices, &plan, seed)).map_err(|error| match error {
            PlaceError::Declined(reason) => whole_graph::PlaceError::Declined(reason),
            PlaceError::Failed(reason) => whole_graph::PlaceError::Failed(reason),
        })
    }
}

impl<T: Exported> online::Guest for T
where
    T::Policy: OnlinePolicy,
{
    fn begin(
        run: u32,
        graph: &graphs::Graph,
        devices: &devices::DeviceSet,
        seed: u64,
    ) -> Result<(), online::BeginError> {
        let log = host_log();
        let (graph, devices) = (Graph::new(graph, &log), DeviceSet::new(devices, &log));
        T::with(|policy| policy.begin(run, &graph, &devices, seed)).map_err(|error| match error {
            PlaceError::Declined(reason) => online::BeginError::Declined(reason),
            PlaceError::Failed(reason) => online::BeginError::Failed(reason),
        })
    }

    fn pick(task: online::ReadyTask) -> u32 {
        T::with(|policy| policy.pick(&ready_task(&task))).unwrap_or(crate::NONE)
    }

    fn pick_batch(tasks: Vec<online::ReadyTask>) -> Vec<u32> {
        let tasks: Vec<ReadyTask> = tasks.iter().map(ready_task).collect();
        let mut devices = Vec::with_capacity(tasks.len());
        T::with(|policy| policy.pick_batch(&tasks, &mut devices));
        devices
    }

    fn observe(done: Vec<online::Completion>, changes: Vec<online::DeviceChange>) {
        let done: Vec<Completion> = done
            .iter()
            .map(|done| Completion {
                run: done.run,
                node: done.node,
                device: done.device,
                started_ns: done.started,
                finished_ns: done.finished,
            })
            .collect();
        let changes: Vec<DeviceChange> = changes
            .iter()
            .map(|change| DeviceChange {
                device: change.device,
                is_up: change.up,
                memory_free_bytes: change.memory_free,
                load: change.load,
            })
            .collect();
        T::with(|policy| policy.observe(&done, &changes));
    }

    fn end(run: u32) {
        T::with(|policy| policy.end(run));
    }
}

#[inline]
fn ready_task(task: &online::ReadyTask) -> ReadyTask {
    ReadyTask {
        run: task.run,
        node: task.node,
        cost_row: task.cost_row,
        candidate_set: task.candidate_set,
        input_bytes: task.input_bytes,
        home: task.home,
        now_ns: task.now,
    }
}
