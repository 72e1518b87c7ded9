//! A policy that is ready to be asked: instance, configuration, calls, and what to make of their
//! ends.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::{debug_span, field};
use wasmtime::{Store, Trap, WasmBacktrace};

use super::engine::{CallKind, Compiled, PolicyEngine};
use super::error::{PolicyError, PolicyErrorKind};
use super::limiter::LimitHit;
use super::limits::PolicyLimits;
use super::messages::{MessageBook, Messages, truncate};
use super::plan::PlanBook;
use super::tell;
use super::v0_1::{ConfigRefused, Exports, PolicyInfo, PolicySetting, State};
use super::view::View;
use crate::candidates::{Candidates, Proposal};
use crate::placement::Digest;
use crate::trace::targets;

/// Bytes kept of the name of a guest's function; the longest of Rust are shorter.
const FUNCTION_NAME_BYTES_MAX: usize = 1024;

/// How a policy is asked for a placement.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PlaceOptions {
    /// The source of all randomness of the policy: the same seed, the same plan.
    pub seed: u64,
    /// Whether somebody will read explanations; policies build none otherwise.
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

/// What ended a call that had offered a plan before. Not a trap: a bug must be seen, and what a
/// policy offered before it broke its own rules is hardly what it meant.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum CutOff {
    /// Its deadline.
    Deadline,
    /// The end of its fuel.
    Fuel,
    /// Its limit of memory.
    Memory,
    /// Its limit of table elements.
    Table,
    /// Its limit of stack.
    Stack,
    /// Its limit of bytes handed over at once.
    Transfer,
    /// Its limit of handles.
    Handles,
    /// The policy itself: it returned an error, with this reason.
    Failed(String),
}

impl CutOff {
    /// The end of a call that leaves its offer in force; `None` = nothing does.
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
            Self::Deadline => "cut off at the deadline",
            Self::Fuel => "cut off when its fuel was used up",
            Self::Memory => "cut off at its limit of memory",
            Self::Table => "cut off at its limit of table elements",
            Self::Stack => "cut off at its limit of stack",
            Self::Transfer => "cut off at its limit of bytes handed over",
            Self::Handles => "cut off at its limit of handles",
            Self::Failed(reason) => return write!(f, "it returned an error: {reason}"),
        })
    }
}

/// What a policy answered.
#[derive(Debug, Clone, PartialEq)]
pub struct PolicyAnswer {
    /// The last legal offer.
    pub proposal: Proposal,
    /// How many legal offers there were.
    pub n_offers: u64,
    /// What ended the call, unless the policy returned by itself.
    pub cut_off: Option<CutOff>,
    /// What it said beyond the bounds.
    pub dropped: Dropped,
    /// What the policy printed.
    pub messages: Messages,
    /// Fuel that wasm instructions used, if calls are metered by fuel.
    pub fuel_used: Option<u64>,
    /// Fuel that host calls used, if calls are metered by fuel. [`PolicyLimits::fuel`] limits each
    /// of the two.
    pub host_fuel_used: Option<u64>,
    /// Linear memory of the guest at the end, which is its peak; `None` = it ran natively.
    pub peak_memory_bytes: Option<usize>,
    /// Wall time of the call.
    pub elapsed: Duration,
}

/// How much of what a policy said about its plan was beyond the bounds, and is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Dropped {
    /// Explanations.
    pub explanations: u64,
    /// Metrics.
    pub metrics: u64,
}

/// How long loading took.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadReport {
    /// Of the policy's bytes.
    pub wasm: Digest,
    /// Whether the compiled code came from the cache.
    pub is_cached: bool,
    /// Wrapping a core module as a component, with all checks.
    pub encode: Duration,
    /// Compiling, or reading from the cache.
    pub compile: Duration,
    /// Instance, description, configuration.
    pub start: Duration,
    /// Why the compiled code could not be kept.
    pub cache_problem: Option<String>,
    /// What the policy printed in `describe`, `settings` and `configure`.
    pub messages: Messages,
}

/// A policy in its sandbox, configured. It stays resident: what it keeps between calls is its own
/// business, until a trap, after which it starts anew.
pub struct LoadedPolicy {
    pub(super) template: Template,
    /// Boxed, because every call takes it out and puts it back.
    live: Option<Box<Live>>,
    info: PolicyInfo,
    settings: Vec<PolicySetting>,
    n_restarts: u32,
    report: LoadReport,
}

/// What instances are made of.
pub(super) struct Template {
    pub(super) engine: PolicyEngine,
    name: String,
    compiled: Compiled,
    config: Vec<(String, String)>,
    messages: Arc<MessageBook>,
}

/// An instance and its store. A trap makes all of the store unusable.
pub(super) struct Live {
    pub(super) store: Store<State>,
    pub(super) exports: Exports,
}

impl PolicyEngine {
    /// Loads a policy from the bytes of a core module or a component, and configures it. `name` is
    /// for messages.
    ///
    /// # Errors
    /// [`PolicyError`]; its [`PolicyError::fault`] says whose.
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
        tell::call_ended(&span, "load", &loaded);
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
    /// The name it was loaded under.
    pub fn name(&self) -> &str {
        &self.template.name
    }

    /// What it says about itself.
    pub fn info(&self) -> &PolicyInfo {
        &self.info
    }

    /// The configuration keys that it understands.
    pub fn settings(&self) -> &[PolicySetting] {
        &self.settings
    }

    /// Whether it places whole graphs.
    pub fn is_whole_graph(&self) -> bool {
        self.template.compiled.prepared.is_whole_graph()
    }

    /// Whether it places ops while they run.
    pub fn is_online(&self) -> bool {
        self.template.compiled.prepared.is_online()
    }

    /// How long loading took.
    pub fn load_report(&self) -> &LoadReport {
        &self.report
    }

    /// How often it had to start anew after a trap or an ended call.
    pub fn n_restarts(&self) -> u32 {
        self.n_restarts
    }

    /// Asks for a placement of a whole graph.
    ///
    /// # Errors
    /// [`PolicyError`]. A call that was cut off after an offer is no error: see
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
        tell::place_ended(&span, self.name(), &outcome);
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
        let plan = PlanBook::new(candidates, options, &limits);
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
            // After a trap the store is dead, and with it the instance.
            if outcome.is_ok() {
                self.live = Some(live);
            }
            (outcome, plan, fuel_used, host_fuel_used, peak_memory_bytes)
        };
        let elapsed = started.elapsed();
        let messages = self.template.messages.take();
        let result = plan.map(PlanBook::into_result).unwrap_or_default();
        let ended = match outcome {
            Ok(outcome) => outcome.map_err(|error| result.kind_of(error)),
            Err(kind) => Err(trap_with(kind, &messages)),
        };
        let cut_off = match ended {
            Ok(()) => None,
            Err(kind) => match CutOff::of(&kind) {
                Some(cut_off) if result.has_offer() => Some(cut_off),
                _ => return Err(self.error_after(kind, messages)),
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

    /// Makes a call on the live instance, starting one where there is none. A trap ends the
    /// instance.
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

    /// What the policy printed since the last call that reported it.
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
            // It said the same when it was loaded; what stands in the book belongs to the call that
            // comes.
            self.template.messages.take();
        }
        self.live
            .take()
            .ok_or_else(|| self.error(PolicyErrorKind::Engine("no instance".to_owned())))
    }

    /// Makes an instance, lets it describe itself, and configures it.
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
                    "{} settings, the limit is {limit}; `PolicyLimits::settings` and `--policy-limit settings=N` raise it",
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
                // Nobody set anything, so nobody but the policy can be wrong.
                refused if self.config.is_empty() => PolicyErrorKind::Failed(format!(
                    "`configure` refuses the policy's own defaults: {refused}"
                )),
                ConfigRefused::UnknownKey(key) => unknown_setting(&key),
                ConfigRefused::Other(reason) => PolicyErrorKind::Config(reason),
            })?;
        Ok((Live { store, exports }, info, settings))
    }

    /// An instance could not be made: it ran into a limit, its start function trapped, or the
    /// machine has not what it takes. Types and imports were checked when the component was
    /// linked.
    fn classify_start(&self, error: wasmtime::Error) -> PolicyErrorKind {
        // A host's function that the start function calls may refuse what it is given: then the
        // code that called is named.
        let is_of_host = error.downcast_ref::<Trap>().is_none()
            && error.downcast_ref::<WasmBacktrace>().is_none()
            && error.downcast_ref::<LimitHit>().is_none()
            && limit_in_words(&error, "instantiate", self.engine.limits()).is_none();
        if is_of_host {
            return PolicyErrorKind::Engine(format!("making an instance: {error:#}"));
        }
        self.classify("instantiate", CallKind::Configure, error)
    }

    /// What the error of a call means.
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
        let out_of_fuel = || PolicyErrorKind::OutOfFuel {
            call,
            fuel: limits.fuel.unwrap_or(0),
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
                LimitHit::HostFuel => out_of_fuel(),
            };
        }
        if let Some(limit) = limit_in_words(&error, call, limits) {
            return limit;
        }
        let trap = error.downcast_ref::<Trap>();
        match trap {
            Some(Trap::Interrupt) => PolicyErrorKind::Deadline {
                call,
                deadline: self.engine.deadline(kind),
            },
            Some(Trap::OutOfFuel) => out_of_fuel(),
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

/// Limits that wasmtime enforces itself and reports in words only; the pinned version, and a test
/// for each, keep the words true.
fn limit_in_words(
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

/// The guest's functions, innermost first, without the machinery that turns a panic into a trap.
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

/// Adds to a trap what the guest said last.
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

    /// Such as a system that gives no address space.
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
