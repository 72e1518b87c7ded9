//! The sandbox's engine: compiles and links a policy's bytes.
//!
//! Takes wasm bytes and limits; returns a linked, compiled policy, from the cache if possible. Does
//! not depend on graphs. This is the only module of the policy stage with unsafe code: it loads
//! machine code that was compiled earlier.

use std::any::Any;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use wasmtime::component::{Component, Linker};
use wasmtime::{Config, Engine, OptLevel, Store, UpdateDeadline};

use super::builtin;
use super::compiler::{self, Compilation, CompilerProcess};
use super::error::{PolicyError, PolicyErrorKind};
use super::form::{CONTRACT_VERSION, Facts};
use super::limits::PolicyLimits;
use super::messages::{MessageBook, Messages};
use super::stack::MainStack;
use super::structure;
use super::ticker::{CallEnd, Ticker, Ticking, ticks};
use super::v0_1::{self, Prepared, State};
use crate::placement::Digest;
use crate::store::{CacheFolder, CacheKey};

/// The pinned version of the `wasmtime` dependency. A part of every cache key besides the engine's
/// hash.
const WASMTIME_VERSION: &str = "48.0.8";

/// Compiles and runs policies under one set of limits. Cheap to clone; clones share the compiled
/// code and the clock.
///
/// The metering of calls is compiled into a policy. So an engine meters all calls by deadlines or,
/// if [`PolicyLimits::fuel`] is set, by fuel.
#[derive(Clone)]
pub struct PolicyEngine {
    shared: Arc<Shared>,
    /// `None` if this process compiles.
    compiler: Option<CompilerProcess>,
}

struct Shared {
    engine: Engine,
    linker: Linker<State>,
    limits: PolicyLimits,
    cache: Option<CacheFolder>,
    /// The shipped policies that were compiled, by the digest of their bytes. Others are not kept:
    /// an app that loads new versions of its policies would keep all of them.
    shipped: Mutex<HashMap<Digest, Compiled>>,
    /// Everything that compiled code depends on besides the wasm bytes.
    compatibility: [u8; 8],
    ticker: Ticker,
    main_stack: MainStack,
}

/// A compiled policy, and the times of its steps.
#[derive(Clone)]
pub(super) struct Compiled {
    /// The digest of the policy's bytes.
    pub(super) wasm: Digest,
    pub(super) prepared: Prepared,
    pub(super) is_cached: bool,
    pub(super) encode: Duration,
    pub(super) compile: Duration,
    pub(super) cache_problem: Option<String>,
}

/// The kind of a call, which decides its deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallKind {
    Place,
    Pick,
    Configure,
}

impl PolicyEngine {
    /// Creates an engine without a cache.
    ///
    /// # Errors
    /// [`PolicyErrorKind::Engine`] if the machine cannot run the sandbox.
    pub fn new(limits: PolicyLimits) -> Result<Self, PolicyError> {
        Self::with_cache(limits, None)
    }

    /// Creates an engine that stores compiled policies in a folder.
    ///
    /// # Errors
    /// [`PolicyErrorKind::Engine`] if the machine cannot run the sandbox.
    pub fn with_cache(
        limits: PolicyLimits,
        cache: Option<CacheFolder>,
    ) -> Result<Self, PolicyError> {
        let start = || -> wasmtime::Result<Shared> {
            let engine = Engine::new(&config(&limits))?;
            Ok(Shared {
                linker: v0_1::linker(&engine)?,
                ticker: Ticker::start(&engine)?,
                main_stack: MainStack::default(),
                compatibility: compatibility(&engine),
                engine,
                limits,
                cache,
                shipped: Mutex::default(),
            })
        };
        let shared = start().map_err(|error| {
            PolicyError::new(
                "sandbox",
                PolicyErrorKind::Engine(format!("{error:#}")),
                Messages::default(),
            )
        })?;
        Ok(Self {
            shared: Arc::new(shared),
            compiler: None,
        })
    }

    /// Returns the engine of sessions that set none: with default limits, and without a cache
    /// folder. The process has one, so that it compiles a shipped policy once.
    ///
    /// # Errors
    /// [`PolicyErrorKind::Engine`] if the machine cannot run the sandbox.
    pub fn of_process() -> Result<Self, PolicyError> {
        static ENGINE: Mutex<Option<PolicyEngine>> = Mutex::new(None);
        let mut engine = ENGINE.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(engine) = &*engine {
            return Ok(engine.clone());
        }
        Ok(engine.insert(Self::new(PolicyLimits::default())?).clone())
    }

    /// Compiles policies in a separate process, which is ended if it exceeds
    /// [`PolicyLimits::compile_deadline`] or [`PolicyLimits::compile_memory_bytes`]. Without it,
    /// only the limits of a file's structure bound the time and memory of compiling.
    #[must_use]
    pub fn with_compiler(mut self, compiler: CompilerProcess) -> Self {
        self.compiler = Some(compiler);
        self
    }

    /// Returns the limits of all its policies.
    pub fn limits(&self) -> &PolicyLimits {
        &self.shared.limits
    }

    /// Returns the cache of compiled policies, if there is one.
    pub fn cache(&self) -> Option<&CacheFolder> {
        self.shared.cache.as_ref()
    }

    /// Compiles a policy, unless it is compiled or in the cache.
    pub(super) fn compile(&self, bytes: &[u8]) -> Result<Compiled, PolicyErrorKind> {
        let started = Instant::now();
        let wasm = Digest::of_bytes(bytes);
        if !builtin::is_shipped(bytes) {
            return self.compile_anew(bytes, wasm);
        }
        // Locked while compiling, so that two sessions that need the same policy compile it once.
        let shipped = self.shared.shipped.lock();
        let mut shipped = shipped.unwrap_or_else(PoisonError::into_inner);
        if let Some(compiled) = shipped.get(&wasm) {
            return Ok(Compiled {
                is_cached: true,
                encode: Duration::ZERO,
                compile: started.elapsed(),
                cache_problem: None,
                ..compiled.clone()
            });
        }
        let compiled = self.compile_anew(bytes, wasm)?;
        shipped.insert(wasm, compiled.clone());
        Ok(compiled)
    }

    /// Compiles a policy, or takes it from the cache folder.
    fn compile_anew(&self, bytes: &[u8], wasm: Digest) -> Result<Compiled, PolicyErrorKind> {
        let shared = &*self.shared;
        let started = Instant::now();
        // A policy that these limits refuse must not be found because others allowed it.
        let limits = shared
            .limits
            .of_files()
            .map(|limit| (limit as u64).to_le_bytes());
        let key = CacheKey::new(
            "policy",
            &[
                wasm.as_bytes(),
                &shared.compatibility,
                WASMTIME_VERSION.as_bytes(),
                CONTRACT_VERSION.to_string().as_bytes(),
                limits.as_flattened(),
            ],
        );
        if let Some(component) = self.load_cached(&key) {
            return Ok(Compiled {
                wasm,
                prepared: Prepared::new(&shared.linker, &component, CONTRACT_VERSION)?,
                is_cached: true,
                encode: Duration::ZERO,
                compile: started.elapsed(),
                cache_problem: None,
            });
        }

        let facts = Facts::read(bytes, &shared.limits)?;
        facts.check()?;
        structure::check(bytes, &shared.limits)?;
        let (compiled, Compilation { encode, compile }) = match &self.compiler {
            Some(process) => process.compile(facts.form, bytes, &shared.limits)?,
            None => compiler::compile_here(&shared.engine, facts.form, bytes)?,
        };
        let component = self.load_compiled(&compiled).map_err(|error| {
            PolicyErrorKind::Engine(format!("loading the compiled policy: {error:#}"))
        })?;
        let version = facts.contract_version().unwrap_or(CONTRACT_VERSION);
        let prepared = Prepared::new(&shared.linker, &component, version)?;
        let cache_problem = shared.cache.as_ref().and_then(|cache| {
            let written = cache.write(&key, &compiled);
            written.err().map(|error| error.to_string())
        });
        Ok(Compiled {
            wasm,
            prepared,
            is_cached: false,
            encode,
            compile,
            cache_problem,
        })
    }

    fn load_cached(&self, key: &CacheKey) -> Option<Component> {
        let bytes = self.shared.cache.as_ref()?.read(key)?;
        // Wasmtime checks version and configuration again. If it refuses them, the policy is
        // compiled again.
        self.load_compiled(&bytes).ok()
    }

    fn load_compiled(&self, compiled: &[u8]) -> wasmtime::Result<Component> {
        // SAFETY: the bytes come from a trusted compiler. This process compiled them, or a program
        // that the app named as one that it would link, or they come from the cache. Its folder and
        // entry belong to this user, only this user may write to them, and neither is a symbolic
        // link (`CacheFolder::open` and `read` check all of it). Processes of this user are trusted
        // to store only the output of our compiler under this key, which names wasm bytes, wasmtime
        // and configuration. The entry's digest, which has no secret, shows that it is complete.
        unsafe { Component::deserialize(&self.shared.engine, compiled) }
    }

    /// Creates an empty store that has no time to run yet.
    pub(super) fn store(&self, messages: Arc<MessageBook>) -> Store<State> {
        let limits = &self.shared.limits;
        let mut store = Store::new(&self.shared.engine, State::new(limits, messages));
        store.limiter(|state| &mut state.limiter);
        store.set_hostcall_fuel(limits.hostcall_bytes);
        store.set_max_component_handles(limits.component_handles);
        if limits.fuel.is_none() {
            store.epoch_deadline_callback(|mut store| {
                Ok(match store.data_mut().call_end.left(Instant::now()) {
                    Some(left) => UpdateDeadline::Continue(ticks(left)),
                    None => UpdateDeadline::Interrupt,
                })
            });
        }
        store
    }

    /// Sets the deadline or fuel of a store for one call.
    ///
    /// # Errors
    /// Never, as long as the store belongs to this engine.
    pub(super) fn arm(&self, store: &mut Store<State>, call: CallKind) -> wasmtime::Result<()> {
        match self.shared.limits.fuel {
            Some(fuel) => {
                store.data_mut().set_host_fuel(Some(fuel));
                store.set_fuel(fuel)
            }
            None => {
                let deadline = self.deadline(call);
                store.data_mut().call_end = match call {
                    CallKind::Place | CallKind::Configure => CallEnd::in_time(deadline),
                    // Reading the clock would cost an eighth of a `pick`.
                    CallKind::Pick => CallEnd::Unmeasured(deadline),
                };
                store.set_epoch_deadline(ticks(deadline));
                Ok(())
            }
        }
    }

    /// Returns the deadline of a call.
    pub(super) fn deadline(&self, call: CallKind) -> Duration {
        let limits = &self.shared.limits;
        match call {
            CallKind::Place => limits.place_deadline,
            CallKind::Pick => limits.pick_deadline,
            CallKind::Configure => limits.configure_deadline,
        }
    }

    /// Runs a call on a stack that is large enough for the guest's frames: on the main thread if
    /// its stack has enough left, else on a new thread. A new thread takes some 50 us, so the
    /// short calls run on the caller's thread if the limit is one that threads commonly have.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub(super) fn on_stack<T: Send>(
        &self,
        kind: CallKind,
        call: impl FnOnce() -> T + Send,
    ) -> io::Result<T> {
        let stack_bytes = self.shared.limits.stack_bytes;
        // Imports run on it too. This is four times what they need.
        let needed_bytes = stack_bytes.saturating_add(4 * PolicyLimits::STACK_BYTES_HOST);
        let is_short = kind == CallKind::Pick && stack_bytes <= PolicyLimits::STACK_BYTES_INLINE;
        if is_short || self.shared.main_stack.has_left(needed_bytes) {
            return Ok(call());
        }
        thread::scope(|scope| {
            let thread = thread::Builder::new()
                .name("placewright-policy".to_owned())
                .stack_size(needed_bytes)
                .spawn_scoped(scope, call)
                .map_err(|error| {
                    let remedy =
                        "lower it with `PolicyLimits::stack_bytes` or `--policy-limit stack-bytes=N`";
                    let text =
                        format!("starting a thread with a stack of {needed_bytes} bytes: {error}; {remedy}");
                    io::Error::new(error.kind(), text)
                })?;
            Ok(thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        })
    }

    /// Keeps the clock for deadlines running while calls are made.
    pub(super) fn ticking(&self) -> Option<Ticking> {
        let is_by_deadline = self.shared.limits.fuel.is_none();
        is_by_deadline.then(|| self.shared.ticker.ticking())
    }
}

impl std::fmt::Debug for PolicyEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PolicyEngine")
            .field("limits", &self.shared.limits)
            .field("cache", &self.shared.cache)
            .field("compiler", &self.compiler)
            .finish_non_exhaustive()
    }
}

/// Returns the message of a panic, if it is a string.
pub(super) fn panic_text(panic: &(dyn Any + Send)) -> Option<&str> {
    panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
}

pub(super) fn config(limits: &PolicyLimits) -> Config {
    let mut config = Config::new();
    let is_by_fuel = limits.fuel.is_some();
    config
        .wasm_component_model(true)
        // Policies are synchronous. Support for others would make each call 3.5 times as long.
        .concurrency_support(false)
        .epoch_interruption(!is_by_fuel)
        .consume_fuel(is_by_fuel)
        .max_wasm_stack(limits.stack_bytes)
        // Synchronous calls do not use it, but it must not be smaller.
        .async_stack_size(limits.stack_bytes.max(2 << 20))
        // The same bits on every machine: one NaN pattern, and no instruction whose result depends
        // on the processor.
        .cranelift_nan_canonicalization(true)
        .wasm_relaxed_simd(false)
        .wasm_simd(true)
        .cranelift_opt_level(OptLevel::Speed)
        .parallel_compilation(true)
        .memory_init_cow(true)
        // No images of memories that are mostly zero: a file of a kilobyte could describe many of
        // any size.
        .memory_guaranteed_dense_image_size(1 << 20)
        .generate_address_map(true)
        .wasm_backtrace_max_frames(NonZeroUsize::new(32));
    config
}

fn compatibility(engine: &Engine) -> [u8; 8] {
    // The keys of the standard hasher are fixed for one toolchain. Another toolchain finds an empty
    // cache.
    let mut hasher = DefaultHasher::new();
    engine.precompile_compatibility_hash().hash(&mut hasher);
    hasher.finish().to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_key_names_the_wasmtime_that_is_linked() {
        let manifest = include_str!("../../Cargo.toml");
        let pinned = format!("wasmtime = {{ version = \"={WASMTIME_VERSION}\"");
        assert!(manifest.contains(&pinned));
    }

    /// Its metadata names an empty component, where wit-parser asserts one export.
    #[test]
    fn a_file_that_makes_its_reader_panic_is_not_a_policy() {
        let metadata = wat::parse_str(r#"(component (type (component)) (export "x" (type 0)))"#);
        let escaped: String = metadata
            .unwrap()
            .iter()
            .map(|byte| format!("\\{byte:02x}"))
            .collect();
        let module = format!(
            r#"(module
                (@custom "component-type" "{escaped}")
                (func $f)
                (export "placewright:policy/lifecycle@0.1.0#x" (func $f))
                (export "placewright:policy/whole-graph@0.1.0#y" (func $f)))"#
        );
        let bytes = wat::parse_str(module).unwrap();
        let engine = PolicyEngine::new(PolicyLimits::default()).unwrap();
        let error = engine.load("odd", &bytes, &[]).unwrap_err();
        assert!(
            matches!(&*error.kind, PolicyErrorKind::NotAPolicy { what, .. } if what.contains("cannot parse")),
            "{error}"
        );
    }
}
