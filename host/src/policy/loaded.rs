//! A loaded policy: its instance, its configuration, calls, and how to interpret their ends.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::{debug_span, field};
use wasmtime::{Store, Trap, WasmBacktrace};

use serde::Serialize;

use super::engine::{CallKind, Compiled, PolicyEngine};
use super::error::{PolicyError, PolicyErrorKind};
use super::limiter::LimitHit;
use super::limits::PolicyLimits;
use super::messages::{MessageBook, Messages, truncate};
use super::plan::PolicyPlan;
use super::telemetry;
use super::v0_1::{ConfigRefused, Exports, PolicyInfo, PolicySetting, State};
use super::view::View;
use crate::candidates::{Candidates, Proposal};
use crate::placement::Digest;
use crate::serialize::{as_ns, as_optional_string};
use crate::trace::targets;

/// Bytes kept of the name of a guest's function. The longest names of Rust are shorter.
const FUNCTION_NAME_BYTES_MAX: usize = 1024;

/// Options of a request for a placement.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct PlaceOptions {
    /// The source of all randomness of the policy: the same seed gives the same plan.
    pub seed: u64,
    /// Whether explanations are read; otherwise policies build none.
    pub explain_wanted: bool,
}

impl PlaceOptions {
    /// Sets [`Self::seed`].
    #[must_use]
    pub fn with_seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Sets [`Self::explain_wanted`].
    #[must_use]
    pub fn with_explain_wanted(mut self, explain_wanted: bool) -> Self {
        self.explain_wanted = explain_wanted;
        self
    }
}

/// What ended a call that had offered a plan before. A trap is not among them: a bug must be
/// reported, and an offer before it is unreliable.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum CutOff {
    /// The deadline.
    Deadline,
    /// The fuel.
    Fuel,
    /// The memory limit.
    Memory,
    /// The limit of table elements.
    Table,
    /// The stack limit.
    Stack,
    /// The limit of bytes passed at once.
    Transfer,
    /// The limit of handles.
    Handles,
    /// The policy, which returned an error with this reason.
    Failed(String),
}

impl CutOff {
    /// Returns the cut-off if an earlier offer remains the answer after this error.
    pub(super) fn of(kind: &PolicyErrorKind) -> Option<Self> {
        Some(match kind {
            PolicyErrorKind::Deadline { .. } => Self::Deadline,
            PolicyErrorKind::OutOfFuel { .. } => Self::Fuel,
            PolicyErrorKind::MemoryLimit { .. } => Self::Memory,
            PolicyErrorKind::TableLimit { .. } => Self::Table,
            PolicyErrorKind::StackOverflow { .. } => Self::Stack,
            PolicyErrorKind::TransferLimit { .. } => Self::Transfer,
            PolicyErrorKind::HandleLimit { .. } => Self::Handles,
            PolicyErrorKind::Failed(reason) => Self::Failed(reason.clone()),
            _ => return None,
        })
    }
}

impl std::fmt::Display for CutOff {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Deadline => "stopped at the deadline",
            Self::Fuel => "stopped when its fuel was used up",
            Self::Memory => "stopped at its memory limit",
            Self::Table => "stopped at its limit of table elements",
            Self::Stack => "stopped at its stack limit",
            Self::Transfer => "stopped at its limit of bytes passed at once",
            Self::Handles => "stopped at its limit of handles",
            Self::Failed(reason) => return write!(f, "it returned an error: {reason}"),
        })
    }
}

/// What a policy answered.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct PolicyAnswer {
    /// The last legal offer. It is not serialized; [`crate::placement::SavedPlacement`] is for
    /// that.
    #[serde(skip)]
    pub proposal: Proposal,
    /// The number of legal offers.
    pub n_offers: u64,
    /// What ended the call, unless the policy returned by itself.
    #[serde(serialize_with = "as_optional_string")]
    pub cut_off: Option<CutOff>,
    /// What was dropped because of limits.
    pub dropped: Dropped,
    /// The messages that the policy logged.
    pub messages: Messages,
    /// Fuel that wasm instructions used, if calls are metered by fuel.
    pub fuel_used: Option<u64>,
    /// Fuel that host calls used, if calls are metered by fuel. [`PolicyLimits::fuel`] limits each
    /// of the two.
    pub host_fuel_used: Option<u64>,
    /// Linear memory of the guest at the end, which is its peak. `None` if it ran natively.
    pub peak_memory_bytes: Option<usize>,
    /// Wall time of the call.
    #[serde(rename = "elapsed_ns", serialize_with = "as_ns")]
    pub elapsed: Duration,
}

/// The number of explanations and metrics that were dropped because of limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
pub struct Dropped {
    /// Explanations.
    pub explanations: u64,
    /// Metrics.
    pub metrics: u64,
}

/// How long loading took.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LoadReport {
    /// The digest of the policy's bytes.
    pub wasm: Digest,
    /// Whether the compiled code came from the cache folder, or the engine had compiled it before.
    pub is_cached: bool,
    /// Wrapping a core module as a component, with all checks.
    #[serde(rename = "encode_ns", serialize_with = "as_ns")]
    pub encode: Duration,
    /// Compiling, or reading from the cache.
    #[serde(rename = "compile_ns", serialize_with = "as_ns")]
    pub compile: Duration,
    /// Instance, description, configuration.
    #[serde(rename = "start_ns", serialize_with = "as_ns")]
    pub start: Duration,
    /// The reason why the compiled code could not be stored.
    pub cache_problem: Option<String>,
    /// The messages that the policy logged in `describe`, `settings` and `configure`.
    pub messages: Messages,
}

/// A configured policy in its sandbox. The instance keeps its state between calls. After a trap, a
/// fresh instance replaces it.
pub struct LoadedPolicy {
    pub(super) template: Template,
    /// Boxed, because every call moves it out and back.
    live: Option<Box<Live>>,
    info: PolicyInfo,
    settings: Vec<PolicySetting>,
    n_restarts: u32,
    report: LoadReport,
}

/// Everything that instances are created from.
pub(super) struct Template {
    pub(super) engine: PolicyEngine,
    name: String,
    compiled: Compiled,
    config: Vec<(String, String)>,
    messages: Arc<MessageBook>,
}

/// An instance and its store. A trap makes the whole store unusable.
pub(super) struct Live {
    pub(super) store: Store<State>,
    pub(super) exports: Exports,
}

impl PolicyEngine {
    /// Loads a policy from the bytes of a core module or a component, and configures it. `name` is
    /// for messages.
    ///
    /// # Errors
    /// [`PolicyError`]; [`PolicyError::fault`] says whose fault it is.
    pub fn load(
        &self,
        name: &str,
        bytes: &[u8],
        config: &[(String, String)],
    ) -> Result<LoadedPolicy, PolicyError> {
        let span = debug_span!(
            target: targets::POLICY,
            "load",
            policy = name,
            bytes = bytes.len(),
            is_cached = field::Empty,
            outcome = field::Empty,
        );
        let _entered = span.enter();
        let loaded = self.load_and_start(name, bytes, config);
        if let Ok(policy) = &loaded {
            span.record("is_cached", policy.report.is_cached);
        }
        telemetry::call_ended(&span, "load", &loaded);
        loaded
    }

    fn load_and_start(
        &self,
        name: &str,
        bytes: &[u8],
        config: &[(String, String)],
    ) -> Result<LoadedPolicy, PolicyError> {
        let compiled = self
            .compile(bytes)
            .map_err(|kind| PolicyError::new(name, kind, Messages::default()))?;
        let report = LoadReport {
            wasm: compiled.wasm,
            is_cached: compiled.is_cached,
            encode: compiled.encode,
            compile: compiled.compile,
            start: Duration::ZERO,
            cache_problem: compiled.cache_problem.clone(),
            messages: Messages::default(),
        };
        let mut policy = LoadedPolicy {
            template: Template {
                engine: self.clone(),
                name: name.to_owned(),
                compiled,
                config: config.to_vec(),
                messages: Arc::new(MessageBook::new(self.limits())),
            },
            live: None,
            info: PolicyInfo::default(),
            settings: Vec::new(),
            n_restarts: 0,
            report,
        };
        let started = Instant::now();
        policy.start()?;
        policy.report.start = started.elapsed();
        policy.report.messages = policy.take_messages();
        Ok(policy)
    }
}

impl LoadedPolicy {
    /// Returns the name it was loaded under.
    pub fn name(&self) -> &str {
        &self.template.name
    }

    /// Returns its description of itself.
    pub fn info(&self) -> &PolicyInfo {
        &self.info
    }

    /// Returns its configuration keys.
    pub fn settings(&self) -> &[PolicySetting] {
        &self.settings
    }

    /// Returns whether it places whole graphs.
    pub fn is_whole_graph(&self) -> bool {
        self.template.compiled.prepared.is_whole_graph()
    }

    /// Returns whether it places ops while they run.
    pub fn is_online(&self) -> bool {
        self.template.compiled.prepared.is_online()
    }

    /// Returns the times of loading.
    pub fn load_report(&self) -> &LoadReport {
        &self.report
    }

    /// Returns how often a fresh instance replaced one that trapped or was stopped.
    pub fn n_restarts(&self) -> u32 {
        self.n_restarts
    }

    /// Asks for a placement of a whole graph.
    ///
    /// # Errors
    /// [`PolicyError`]. A call that was stopped after an offer is not an error: see
    /// [`PolicyAnswer::cut_off`].
    pub fn place(
        &mut self,
        candidates: &Candidates,
        options: &PlaceOptions,
    ) -> Result<PolicyAnswer, PolicyError> {
        let span = debug_span!(
            target: targets::POLICY,
            "call",
            policy = self.name(),
            call = "place",
            is_native = false,
            nodes = candidates.graph().n_nodes(),
            outcome = field::Empty,
        );
        let _entered = span.enter();
        let outcome = self.call_place(candidates, options);
        telemetry::place_ended(&span, self.name(), &outcome);
        outcome
    }

    fn call_place(
        &mut self,
        candidates: &Candidates,
        options: &PlaceOptions,
    ) -> Result<PolicyAnswer, PolicyError> {
        if !self.is_whole_graph() {
            let export = "whole-graph";
            return Err(self.error(PolicyErrorKind::MissingExport { export }));
        }
        let limits = self.template.engine.limits().clone();
        let plan = PolicyPlan::new(candidates, options, &limits);
        let view = View::new(candidates.clone(), &limits);
        let started = Instant::now();
        let (outcome, plan, fuel_used, host_fuel_used, peak_memory_bytes) = {
            let mut live = self.take_live()?;
            let ticking = self.template.engine.ticking();
            let armed = self.template.engine.arm(&mut live.store, CallKind::Place);
            let outcome = armed.and_then(|()| {
                self.template.engine.on_stack(CallKind::Place, || {
                    live.exports
                        .place(&mut live.store, view, plan, options.seed)
                })?
            });
            drop(ticking);
            let plan = live.store.data_mut().end_call();
            let fuel_used = live.fuel_used(&limits);
            let host_fuel_used = live.store.data().host_fuel_used();
            let peak_memory_bytes = live.store.data().limiter.memory_bytes();
            let outcome =
                outcome.map_err(|error| self.template.classify("place", CallKind::Place, error));
            // After a trap the store and its instance are unusable.
            if outcome.is_ok() {
                self.live = Some(live);
            }
            (outcome, plan, fuel_used, host_fuel_used, peak_memory_bytes)
        };
        let elapsed = started.elapsed();
        let messages = self.template.messages.take();
        let result = plan.map(PolicyPlan::into_result).unwrap_or_default();
        let ended = match outcome {
            Ok(outcome) => outcome.map_err(|error| result.kind_of(error)),
            Err(kind) => Err(trap_with(kind, &messages)),
        };
        let cut_off = match ended {
            Ok(()) => None,
            Err(kind) => match CutOff::of(&kind) {
                Some(cut_off) if result.has_offer() => Some(cut_off),
                _ => {
                    let error = self.error_after(kind, messages);
                    return Err(error.with_lost_offer(result.has_offer()));
                }
            },
        };
        let (n_offers, dropped) = (result.n_offers, result.dropped);
        let proposal = result
            .into_proposal()
            .map_err(|kind| self.error_after(kind, messages.clone()))?;
        Ok(PolicyAnswer {
            proposal,
            n_offers,
            cut_off,
            dropped,
            messages,
            fuel_used,
            host_fuel_used,
            peak_memory_bytes: Some(peak_memory_bytes),
            elapsed,
        })
    }

    /// Makes a call on the live instance. Creates one if there is none. A trap ends the instance.
    pub(super) fn call<T: Send>(
        &mut self,
        name: &'static str,
        kind: CallKind,
        call: impl FnOnce(&mut Live) -> wasmtime::Result<T> + Send,
    ) -> Result<T, PolicyError> {
        let mut live = self.take_live()?;
        let outcome = self
            .template
            .engine
            .arm(&mut live.store, kind)
            .and_then(|()| self.template.engine.on_stack(kind, || call(&mut live))?);
        match outcome {
            Ok(value) => {
                self.live = Some(live);
                Ok(value)
            }
            Err(error) => {
                let kind = self.template.classify(name, kind, error);
                let messages = self.template.messages.take();
                Err(self.error_after(trap_with(kind, &messages), messages))
            }
        }
    }

    /// Returns the messages since the last call that returned them.
    pub(super) fn take_messages(&self) -> Messages {
        self.template.messages.take()
    }

    pub(super) fn error(&self, kind: PolicyErrorKind) -> PolicyError {
        self.error_after(kind, self.template.messages.take())
    }

    fn error_after(&self, kind: PolicyErrorKind, messages: Messages) -> PolicyError {
        PolicyError::new(&self.template.name, kind, messages)
    }

    fn take_live(&mut self) -> Result<Box<Live>, PolicyError> {
        if self.live.is_none() {
            self.n_restarts += 1;
            self.start()?;
            // It logged the same when it was loaded. The next messages belong to the coming call.
            self.template.messages.take();
        }
        self.live
            .take()
            .ok_or_else(|| self.error(PolicyErrorKind::Engine("no instance".to_owned())))
    }

    /// Creates an instance, asks it for its description, and configures it.
    fn start(&mut self) -> Result<(), PolicyError> {
        let template = &self.template;
        let ticking = template.engine.ticking();
        let started = template
            .engine
            .on_stack(CallKind::Configure, || template.start())
            .unwrap_or_else(|error| Err(PolicyErrorKind::Engine(error.to_string())));
        drop(ticking);
        let (live, info, settings) = started.map_err(|kind| {
            let messages = self.template.messages.take();
            self.error_after(trap_with(kind, &messages), messages)
        })?;
        self.live = Some(Box::new(live));
        self.info = info;
        self.settings = settings;
        Ok(())
    }
}

impl Template {
    fn start(&self) -> Result<(Live, PolicyInfo, Vec<PolicySetting>), PolicyErrorKind> {
        let mut store = self.engine.store(Arc::clone(&self.messages));
        let kind = CallKind::Configure;
        let arm = |store: &mut Store<State>| {
            let armed = self.engine.arm(store, kind);
            armed.map_err(|error| PolicyErrorKind::Engine(format!("{error:#}")))
        };
        arm(&mut store)?;
        let exports = self
            .compiled
            .prepared
            .instantiate(&mut store)
            .map_err(|error| self.classify_start(error))?;
        arm(&mut store)?;
        let info = exports
            .describe(&mut store)
            .map_err(|error| self.classify("describe", kind, error))?;
        arm(&mut store)?;
        let settings = exports
            .settings(&mut store)
            .map_err(|error| self.classify("settings", kind, error))?;
        let limit = self.engine.limits().settings;
        if settings.len() > limit {
            return Err(PolicyErrorKind::InvalidAnswer {
                call: "settings",
                what: format!(
                    "{} settings, but the limit is {limit}; `PolicyLimits::settings` and `--policy-limit settings=N` raise it",
                    settings.len()
                ),
            });
        }
        let unknown_setting = |key: &str| PolicyErrorKind::UnknownSetting {
            key: key.to_owned(),
            known: settings.iter().map(|setting| setting.key.clone()).collect(),
        };
        let is_known = |key: &str| settings.iter().any(|setting| setting.key == key);
        if let Some((key, _)) = self.config.iter().find(|(key, _)| !is_known(key)) {
            return Err(unknown_setting(key));
        }
        arm(&mut store)?;
        exports
            .configure(&mut store, &self.config)
            .map_err(|error| self.classify("configure", kind, error))?
            .map_err(|refused| match refused {
                // The user set nothing, so only the policy can be wrong.
                refused if self.config.is_empty() => PolicyErrorKind::Failed(format!(
                    "`configure` refuses the policy's defaults: {refused}"
                )),
                ConfigRefused::UnknownKey(key) => unknown_setting(&key),
                ConfigRefused::Other(reason) => PolicyErrorKind::Config(reason),
            })?;
        Ok((Live { store, exports }, info, settings))
    }

    /// Classifies a failure to create an instance: it reached a limit, its start function trapped,
    /// or the machine lacks resources. Types and imports were checked when the component was
    /// linked.
    fn classify_start(&self, error: wasmtime::Error) -> PolicyErrorKind {
        // A host function that the start function calls may refuse its arguments: then the error
        // contains a backtrace.
        let is_of_host = error.downcast_ref::<Trap>().is_none()
            && error.downcast_ref::<WasmBacktrace>().is_none()
            && error.downcast_ref::<LimitHit>().is_none()
            && limit_in_message(&error, "instantiate", self.engine.limits()).is_none();
        if is_of_host {
            return PolicyErrorKind::Engine(format!("creating an instance: {error:#}"));
        }
        self.classify("instantiate", CallKind::Configure, error)
    }

    /// Classifies the error of a call.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "the error ends here; so `map_err` reads well"
    )]
    fn classify(
        &self,
        call: &'static str,
        kind: CallKind,
        error: wasmtime::Error,
    ) -> PolicyErrorKind {
        let limits = self.engine.limits();
        let out_of_fuel = |in_host_calls| PolicyErrorKind::OutOfFuel {
            call,
            fuel: limits.fuel.unwrap_or(0),
            in_host_calls,
        };
        if let Some(hit) = error.downcast_ref::<LimitHit>() {
            return match *hit {
                LimitHit::Memory { requested_bytes } => PolicyErrorKind::MemoryLimit {
                    requested_bytes,
                    limit_bytes: limits.memory_bytes,
                },
                LimitHit::Table { requested } => PolicyErrorKind::TableLimit {
                    requested,
                    limit: limits.table_elements,
                },
                LimitHit::HostFuel => out_of_fuel(true),
            };
        }
        if let Some(limit) = limit_in_message(&error, call, limits) {
            return limit;
        }
        let trap = error.downcast_ref::<Trap>();
        match trap {
            Some(Trap::Interrupt) => PolicyErrorKind::Deadline {
                call,
                deadline: self.engine.deadline(kind),
            },
            Some(Trap::OutOfFuel) => out_of_fuel(false),
            Some(Trap::StackOverflow) => PolicyErrorKind::StackOverflow {
                call,
                limit_bytes: limits.stack_bytes,
            },
            _ => PolicyErrorKind::Trap {
                call,
                trap: trap.map_or_else(|| error.root_cause().to_string(), ToString::to_string),
                message: None,
                backtrace: backtrace(&error),
            },
        }
    }
}

impl Live {
    fn fuel_used(&self, limits: &PolicyLimits) -> Option<u64> {
        let fuel = limits.fuel?;
        // An error means that this store is not metered by fuel.
        Some(fuel.saturating_sub(self.store.get_fuel().ok()?))
    }
}

impl std::fmt::Debug for LoadedPolicy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LoadedPolicy")
            .field("name", &self.template.name)
            .field("info", &self.info)
            .field("config", &self.template.config)
            .field("n_restarts", &self.n_restarts)
            .field("report", &self.report)
            .finish_non_exhaustive()
    }
}

/// Recognises limits that wasmtime enforces and reports only as a message. The pinned version, and
/// a test for each, keep the messages equal.
fn limit_in_message(
    error: &wasmtime::Error,
    call: &'static str,
    limits: &PolicyLimits,
) -> Option<PolicyErrorKind> {
    let cause = error.root_cause().to_string();
    if cause.starts_with("too much data is being copied between the host and the guest") {
        return Some(PolicyErrorKind::TransferLimit {
            call,
            limit_bytes: limits.hostcall_bytes,
        });
    }
    if cause.ends_with("store handle limit exceeded") {
        return Some(PolicyErrorKind::HandleLimit {
            call,
            limit: limits.component_handles,
        });
    }
    let counted = cause.strip_prefix("resource limit exceeded: ")?;
    let (what, limit) = match counted.split(' ').next()? {
        "instance" => ("instances", limits.instances),
        "memory" => ("memories", limits.memories),
        "table" => ("tables", limits.tables),
        _ => return None,
    };
    Some(PolicyErrorKind::InstanceLimit { what, limit })
}

/// Returns the guest's functions, innermost first, without the frames that make a panic a trap.
fn backtrace(error: &wasmtime::Error) -> Vec<String> {
    let Some(backtrace) = error.downcast_ref::<WasmBacktrace>() else {
        return Vec::new();
    };
    let functions = backtrace.frames().iter().map(|frame| {
        let unnamed = || format!("function {}", frame.func_index());
        // Without the hash at the end.
        let demangle = |name| {
            let name = truncate(name, FUNCTION_NAME_BYTES_MAX);
            format!("{:#}", rustc_demangle::demangle(name))
        };
        frame.func_name().map_or_else(unnamed, demangle)
    });
    functions
        .skip_while(|name| {
            ["panic", "abort", "begin_unwind"]
                .iter()
                .any(|part| name.contains(part))
        })
        .collect()
}

/// Adds the guest's last error to a trap.
fn trap_with(mut kind: PolicyErrorKind, messages: &Messages) -> PolicyErrorKind {
    if let PolicyErrorKind::Trap { message, .. } = &mut kind {
        message.clone_from(&messages.last_error);
    }
    kind
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::error::Fault;

    /// Such as a system without free address space.
    #[test]
    fn an_instance_that_the_machine_refuses_is_the_hosts_fault() {
        let engine = PolicyEngine::new(PolicyLimits::default()).unwrap();
        let shipped = crate::policy::ShippedPolicy::find("priority").unwrap();
        let policy = engine.load("priority", shipped.wasm(), &[]).unwrap();
        let classify = |error| policy.template.classify_start(error);
        let refused = classify(wasmtime::format_err!("mmap failed"));
        assert_eq!(refused.fault(), Fault::Host, "{refused}");
        assert!(refused.to_string().contains("mmap failed"), "{refused}");
        let trapped = classify(Trap::UnreachableCodeReached.into());
        assert_eq!(trapped.fault(), Fault::Guest, "{trapped}");
    }
}
