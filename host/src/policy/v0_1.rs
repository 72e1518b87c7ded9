//! Version 0.1 of the contract: the generated bindings, the host's side of the imports, calls to
//! the exports.
//!
//! Only this module uses WIT types. Imports check and compute nothing themselves: they use the
//! [`View`] and the [`PolicyPlan`], as native policies do.

#[expect(
    unreachable_pub,
    reason = "generated code is public, and re-exports the handles"
)]
mod bindings;
mod imports;

use placewright_guest::{Completion, DeviceChange, PlaceError, ReadyTask};
use wasmtime::Store;
use wasmtime::component::{Component, InstancePre, Linker, Resource};

use serde::Serialize;

use self::bindings::DeviceSetHandle;
use self::bindings::GraphHandle;
use self::bindings::PlanHandle;
use self::bindings::exports::placewright::policy::lifecycle;
use self::bindings::exports::placewright::policy::online;
use self::bindings::exports::placewright::policy::whole_graph;
use self::bindings::placewright::policy::types::Property;
pub(super) use self::imports::State;
use super::error::PolicyErrorKind;
use super::form::{CONTRACT_VERSION, ContractVersion, incompatible};
use super::plan::PolicyPlan;
use super::view::View;

/// A policy's description of itself.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
pub struct PolicyInfo {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Its purpose.
    pub description: String,
}

/// One configuration key of a policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PolicySetting {
    /// The key.
    pub key: String,
    /// The type of its values: `bool`, `u32`, `f64`, `name`.
    pub kind: String,
    /// The value if the user sets none.
    pub default: String,
    /// A description in one sentence.
    pub description: String,
}

/// Creates a linker with everything that a policy may import, and nothing else.
///
/// # Errors
/// A name is defined twice: the contract and this module disagree.
pub(super) fn linker(engine: &wasmtime::Engine) -> wasmtime::Result<Linker<State>> {
    let mut linker = Linker::new(engine);
    imports::add_to_linker(&mut linker)?;
    Ok(linker)
}

/// A compiled policy, linked, with its exports looked up. Instances are created from it.
#[derive(Clone)]
pub(super) struct Prepared {
    pre: InstancePre<State>,
    lifecycle: lifecycle::GuestIndices,
    whole_graph: Option<whole_graph::GuestIndices>,
    online: Option<online::GuestIndices>,
}

impl Prepared {
    /// Links a component. Its exports decide what it can do. `version` is the version of the
    /// contract that it names, for errors.
    ///
    /// # Errors
    /// [`PolicyErrorKind::Incompatible`] if types or functions do not match,
    /// [`PolicyErrorKind::MissingExport`].
    pub(super) fn new(
        linker: &Linker<State>,
        component: &Component,
        version: ContractVersion,
    ) -> Result<Self, PolicyErrorKind> {
        let does_not_fit = |error: wasmtime::Error| incompatible(version, format!("{error:#}"));
        let pre = linker.instantiate_pre(component).map_err(does_not_fit)?;
        let has = |name: &str| {
            let name = format!("placewright:policy/{name}@{CONTRACT_VERSION}");
            component.get_export_index(None, &name).is_some()
        };
        if !has("lifecycle") {
            return Err(PolicyErrorKind::MissingExport {
                export: "lifecycle",
            });
        }
        let whole_graph = has("whole-graph").then(|| whole_graph::GuestIndices::new(&pre));
        let online = has("online").then(|| online::GuestIndices::new(&pre));
        Ok(Self {
            lifecycle: lifecycle::GuestIndices::new(&pre).map_err(does_not_fit)?,
            whole_graph: whole_graph.transpose().map_err(does_not_fit)?,
            online: online.transpose().map_err(does_not_fit)?,
            pre,
        })
    }

    /// Returns whether it places whole graphs.
    pub(super) fn is_whole_graph(&self) -> bool {
        self.whole_graph.is_some()
    }

    /// Returns whether it places ops while they run.
    pub(super) fn is_online(&self) -> bool {
        self.online.is_some()
    }

    /// Creates an instance in a fresh store whose deadline or fuel is set already.
    ///
    /// # Errors
    /// A trap of the guest's start function, or a limit.
    pub(super) fn instantiate(&self, store: &mut Store<State>) -> wasmtime::Result<Exports> {
        let instance = self.pre.instantiate(&mut *store)?;
        Ok(Exports {
            lifecycle: self.lifecycle.load(&mut *store, &instance)?,
            whole_graph: match &self.whole_graph {
                Some(indices) => Some(indices.load(&mut *store, &instance)?),
                None => None,
            },
            online: match &self.online {
                Some(indices) => Some(indices.load(&mut *store, &instance)?),
                None => None,
            },
        })
    }
}

/// The exports of an instance, looked up once.
pub(super) struct Exports {
    lifecycle: lifecycle::Guest,
    whole_graph: Option<whole_graph::Guest>,
    online: Option<online::Guest>,
}

impl Exports {
    pub(super) fn describe(&self, store: &mut Store<State>) -> wasmtime::Result<PolicyInfo> {
        let info = self.lifecycle.call_describe(&mut *store)?;
        let cut = |text| store.data().messages.cut(text);
        Ok(PolicyInfo {
            name: cut(info.name),
            version: cut(info.version),
            description: cut(info.description),
        })
    }

    pub(super) fn settings(
        &self,
        store: &mut Store<State>,
    ) -> wasmtime::Result<Vec<PolicySetting>> {
        let settings = self.lifecycle.call_settings(&mut *store)?;
        let cut = |text| store.data().messages.cut(text);
        Ok(settings
            .into_iter()
            .map(|setting| PolicySetting {
                key: cut(setting.key),
                kind: cut(setting.kind),
                default: cut(setting.default),
                description: cut(setting.description),
            })
            .collect())
    }

    /// Configures the policy. The inner error is the guest's.
    pub(super) fn configure(
        &self,
        store: &mut Store<State>,
        config: &[(String, String)],
    ) -> wasmtime::Result<Result<(), ConfigRefused>> {
        let config: Vec<_> = config
            .iter()
            .map(|(key, value)| Property {
                key: key.clone(),
                value: value.clone(),
            })
            .collect();
        let outcome = self.lifecycle.call_configure(&mut *store, &config)?;
        let cut = |text| store.data().messages.cut(text);
        Ok(outcome.map_err(|error| match error {
            lifecycle::ConfigError::UnknownKey(key) => ConfigRefused::UnknownKey(cut(key)),
            lifecycle::ConfigError::BadValue(property) => {
                let (key, value) = (cut(property.key), cut(property.value));
                ConfigRefused::Other(format!("`{key}`: {value}"))
            }
            lifecycle::ConfigError::Other(reason) => ConfigRefused::Other(cut(reason)),
        }))
    }

    /// Asks for a placement. The plan with its offers remains in the store's state: see
    /// [`State::end_call`].
    pub(super) fn place(
        &self,
        store: &mut Store<State>,
        view: View,
        plan: PolicyPlan,
        seed: u64,
    ) -> wasmtime::Result<Result<(), PlaceError>> {
        let Some(whole_graph) = &self.whole_graph else {
            return Ok(Err(PlaceError::Declined(
                "it places ops while they run, not whole graphs".to_owned(),
            )));
        };
        store.data_mut().begin_call(view, Some(plan));
        let outcome = whole_graph.call_place(
            &mut *store,
            Resource::<GraphHandle>::new_borrow(0),
            Resource::<DeviceSetHandle>::new_borrow(0),
            Resource::<PlanHandle>::new_borrow(0),
            seed,
        )?;
        let cut = |text| store.data().messages.cut(text);
        Ok(outcome.map_err(|error| match error {
            whole_graph::PlaceError::Declined(reason) => PlaceError::Declined(cut(reason)),
            whole_graph::PlaceError::Failed(reason) => PlaceError::Failed(cut(reason)),
        }))
    }

    pub(super) fn begin(
        &self,
        store: &mut Store<State>,
        run: u32,
        view: View,
        seed: u64,
    ) -> wasmtime::Result<Result<(), PlaceError>> {
        let Some(online) = &self.online else {
            return Ok(Err(PlaceError::Declined(
                "it places whole graphs, not ops while they run".to_owned(),
            )));
        };
        store.data_mut().begin_call(view, None);
        let outcome = online.call_begin(
            &mut *store,
            run,
            Resource::<GraphHandle>::new_borrow(0),
            Resource::<DeviceSetHandle>::new_borrow(0),
            seed,
        );
        store.data_mut().end_call();
        let cut = |text| store.data().messages.cut(text);
        Ok(outcome?.map_err(|error| match error {
            online::BeginError::Declined(reason) => PlaceError::Declined(cut(reason)),
            online::BeginError::Failed(reason) => PlaceError::Failed(cut(reason)),
        }))
    }

    pub(super) fn pick(&self, store: &mut Store<State>, task: &ReadyTask) -> wasmtime::Result<u32> {
        self.online()?.call_pick(store, ready_task(task))
    }

    /// `buffer` is scratch space that the caller keeps, so that a call does not allocate.
    pub(super) fn pick_batch(
        &self,
        store: &mut Store<State>,
        tasks: &[ReadyTask],
        buffer: &mut TaskBuffer,
    ) -> wasmtime::Result<Vec<u32>> {
        buffer.0.clear();
        buffer.0.extend(tasks.iter().map(ready_task));
        self.online()?.call_pick_batch(store, &buffer.0)
    }

    pub(super) fn observe(
        &self,
        store: &mut Store<State>,
        done: &[Completion],
        changes: &[DeviceChange],
    ) -> wasmtime::Result<()> {
        let done: Vec<_> = done
            .iter()
            .map(|done| online::Completion {
                run: done.run,
                node: done.node,
                device: done.device,
                started: done.started_ns,
                finished: done.finished_ns,
            })
            .collect();
        let changes: Vec<_> = changes
            .iter()
            .map(|change| online::DeviceChange {
                device: change.device,
                up: change.is_up,
                memory_free: change.memory_free_bytes,
                load: change.load,
            })
            .collect();
        self.online()?.call_observe(store, &done, &changes)
    }

    pub(super) fn end(&self, store: &mut Store<State>, run: u32) -> wasmtime::Result<()> {
        self.online()?.call_end(store, run)
    }

    fn online(&self) -> wasmtime::Result<&online::Guest> {
        self.online
            .as_ref()
            .ok_or_else(|| wasmtime::format_err!("the policy does not export `online`"))
    }
}

/// Scratch space of [`Exports::pick_batch`].
#[derive(Debug, Default)]
pub(super) struct TaskBuffer(Vec<online::ReadyTask>);

/// The reason why a policy refuses its configuration.
pub(super) enum ConfigRefused {
    UnknownKey(String),
    Other(String),
}

impl std::fmt::Display for ConfigRefused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::UnknownKey(key) => write!(f, "unknown key `{key}`"),
            Self::Other(reason) => f.write_str(reason),
        }
    }
}

fn ready_task(task: &ReadyTask) -> online::ReadyTask {
    online::ReadyTask {
        run: task.run,
        node: task.node,
        cost_row: task.cost_row,
        candidate_set: task.candidate_set,
        input_bytes: task.input_bytes,
        home: task.home,
        now: task.now_ns,
    }
}
