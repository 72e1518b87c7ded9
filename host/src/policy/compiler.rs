//! Compiles WebAssembly to machine code: in this process, or in a separate one that can be ended.
//!
//! A compiler in the app's process can neither be interrupted nor limited in memory. If the app
//! names a compiler program ([`CompilerProcess`]), mostly the app itself, the bytes are sent to a
//! new process, which returns the compiled policy or is ended at its deadline. Does not depend on
//! caches.

use std::env;
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, Signal};
use serde::{Deserialize, Serialize};
use wasmtime::Engine;

use super::engine::{config, panic_text};
use super::error::PolicyErrorKind;
use super::form::WasmForm;
use super::limits::PolicyLimits;
use super::metadata;

/// The only argument of the compiler program.
const ARGUMENT: &str = "placewright-compile-policy";
/// Bytes kept of the process's standard error.
const SAID_BYTES_MAX: usize = 64 << 10;
/// Bytes of a header, in either direction.
const HEADER_BYTES_MAX: u64 = 64 << 10;

/// A program that compiles policies, in a new process for each. The process can be ended at a
/// deadline, and its memory is limited.
///
/// Its answer is loaded as machine code, so only name a program that you would also link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompilerProcess {
    program: PathBuf,
    arguments: Vec<OsString>,
}

/// The order to the process: a header line before the bytes of the policy.
#[derive(Debug, Serialize, Deserialize)]
struct Order {
    is_module: bool,
    wasm_bytes: usize,
    /// The compatibility of the engine that will load the result.
    is_by_fuel: bool,
    stack_bytes: usize,
    memory_bytes: usize,
    deadline_s: u64,
}

/// The answer of the process: a header line before the bytes of the compiled policy.
#[derive(Debug, Serialize, Deserialize)]
struct Answer {
    outcome: Result<Compilation, Refusal>,
    n_bytes: usize,
}

/// The times of the steps.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Compilation {
    pub(super) encode: Duration,
    pub(super) compile: Duration,
}

/// The reason why compiling failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Refusal {
    /// The core module cannot be wrapped as a component.
    Encode(String),
    /// The compiler refuses it.
    Compile(String),
    /// One of the two panicked.
    Panic(String),
}

impl From<Refusal> for PolicyErrorKind {
    fn from(refusal: Refusal) -> Self {
        let (what, remedy) = match refusal {
            Refusal::Encode(why) => (
                format!("a core module that cannot become a component: {why}"),
                "build it with the SDK or another bindings generator, and do not strip its custom sections",
            ),
            Refusal::Compile(why) => (
                format!("WebAssembly that this host does not support: {why}"),
                "build it without threads, relaxed SIMD, garbage collection and other proposals beyond Wasm 2.0",
            ),
            Refusal::Panic(why) => (
                format!("WebAssembly that the host cannot parse: {why}"),
                "build it with the SDK or another bindings generator",
            ),
        };
        Self::NotAPolicy { what, remedy }
    }
}

/// Compiles in this thread. Returns the input of [`wasmtime::component::Component::deserialize`].
pub(super) fn compile_here(
    engine: &Engine,
    form: WasmForm,
    bytes: &[u8],
) -> Result<(Vec<u8>, Compilation), Refusal> {
    let started = Instant::now();
    let encoded = match form {
        WasmForm::Module => Some(encode(bytes)?),
        WasmForm::Component => None,
    };
    let encode = started.elapsed();
    let binary = encoded.as_deref().unwrap_or(bytes);
    let compiled = reading_policy(|| engine.precompile_component(binary))?
        .map_err(|error| Refusal::Compile(format!("{error:#}")))?;
    let compile = started.elapsed() - encode;
    Ok((compiled, Compilation { encode, compile }))
}

/// Wraps a core module as a component, by the contract that its bindings embedded in it.
fn encode(module: &[u8]) -> Result<Vec<u8>, Refusal> {
    reading_policy(|| metadata::check(module))?.map_err(Refusal::Encode)?;
    let encode = || {
        wit_component::ComponentEncoder::default()
            .validate(true)
            .module(module)?
            .encode()
    };
    reading_policy(encode)?.map_err(|error| Refusal::Encode(format!("{error:#}")))
}

/// Runs a parser of the policy's bytes. Encoder and compiler assert properties of well-formed
/// metadata, so a file can make them panic. That must not end the host.
fn reading_policy<T>(read: impl FnOnce() -> T) -> Result<T, Refusal> {
    // The parser's state is dropped with it, so nobody sees it half built.
    catch_unwind(AssertUnwindSafe(read))
        .map_err(|panic| Refusal::Panic(panic_text(&*panic).unwrap_or("no message").to_owned()))
}

impl CompilerProcess {
    /// Uses this program as the compiler. Call it first in the app's `main`: if the program was
    /// started to compile, the call compiles and ends the process; otherwise it returns at once.
    ///
    /// In a test, this program is the test harness, whose `main` does not make the call, so every
    /// policy fails with [`PolicyErrorKind::CompilerEnded`]. Tests of an app use
    /// [`Self::new`] with the app's program (`env!("CARGO_BIN_EXE_my_app")` in integration tests),
    /// or no compiler process.
    ///
    /// ```no_run
    /// use placewright::policy::{CompilerProcess, PolicyEngine, PolicyLimits};
    ///
    /// fn main() -> Result<(), Box<dyn std::error::Error>> {
    ///     let compiler = CompilerProcess::of_this_program();
    ///     let engine = PolicyEngine::new(PolicyLimits::default())?.with_compiler(compiler);
    ///     Ok(())
    /// }
    /// ```
    pub fn of_this_program() -> Self {
        if env::args_os().skip(1).eq([ARGUMENT]) {
            std::process::exit(match serve() {
                Ok(()) => 0,
                Err(error) => {
                    // The parent process reads the message. Without memory for it, there is none.
                    let _ = writeln!(io::stderr(), "{error}");
                    1
                }
            });
        }
        // The file may be replaced while the program runs. On Linux this name refers to the running
        // one.
        let running = Path::new("/proc/self/exe");
        let program = match env::current_exe() {
            _ if running.exists() => running.to_owned(),
            Ok(path) => path,
            // Starting it then fails with a message that contains this.
            Err(_) => PathBuf::from("the running program"),
        };
        Self::new(program)
    }

    /// Uses another program whose `main` calls [`Self::of_this_program`] first, such as
    /// `placewright`. It must be built with the same version of this library; the output of another
    /// version is not loaded.
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self {
            program: program.into(),
            arguments: vec![ARGUMENT.into()],
        }
    }

    /// Compiles in a separate process, within the limits' time and memory.
    pub(super) fn compile(
        &self,
        form: WasmForm,
        bytes: &[u8],
        limits: &PolicyLimits,
    ) -> Result<(Vec<u8>, Compilation), PolicyErrorKind> {
        let order = Order {
            is_module: form == WasmForm::Module,
            wasm_bytes: bytes.len(),
            is_by_fuel: limits.fuel.is_some(),
            stack_bytes: limits.stack_bytes,
            memory_bytes: limits.compile_memory_bytes,
            deadline_s: limits.compile_deadline.as_secs().saturating_add(1),
        };
        let ended = self.ask(&order, bytes, limits).map_err(|error| {
            PolicyErrorKind::Engine(format!(
                "starting {} to compile policies: {error}; `--policy-compile-in-process` compiles without limits of time and memory",
                self.program.display()
            ))
        })?;
        let Some(ended) = ended else {
            return Err(PolicyErrorKind::CompileDeadline {
                deadline: limits.compile_deadline,
            });
        };
        match ended.answer() {
            Some((Ok(compilation), compiled)) => Ok((compiled, compilation)),
            Some((Err(refusal), _)) => Err(refusal.into()),
            None if ended.is_out_of_memory() => Err(PolicyErrorKind::CompileMemory {
                limit_bytes: limits.compile_memory_bytes,
            }),
            None => Err(PolicyErrorKind::CompilerEnded { how: ended.how() }),
        }
    }

    /// Returns `None` if it was ended at its deadline.
    fn ask(&self, order: &Order, bytes: &[u8], limits: &PolicyLimits) -> io::Result<Option<Ended>> {
        let header = serde_json::to_string(order)? + "\n";
        let mut child = Command::new(&self.program)
            .args(&self.arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(mut stdin), Some(stdout), Some(stderr)) = pipes else {
            end(&mut child)?;
            return Err(io::Error::other("the process has no pipes"));
        };
        thread::scope(|scope| {
            let said = scope.spawn(move || last_of(stderr));
            scope.spawn(move || {
                // A process that ends early does not read to the end.
                let _ = stdin
                    .write_all(header.as_bytes())
                    .and_then(|()| stdin.write_all(bytes));
            });
            let (send, answered) = mpsc::channel();
            scope.spawn(move || {
                let mut answer = Vec::new();
                // It cannot have more than it may allocate.
                let most = limits.compile_memory_bytes as u64;
                let read = stdout.take(most).read_to_end(&mut answer);
                // Nobody receives it after the deadline.
                let _ = send.send(read.map(|_| answer));
            });
            // `None` is beyond the range of the clock.
            let deadline = Instant::now().checked_add(limits.compile_deadline);
            let answer = answered.recv_timeout(limits.compile_deadline);
            // A process that has closed its output is about to end, with a status of its own. The
            // threads end with the pipes.
            if answer.is_ok() {
                wait_until(&mut child, deadline)?;
            }
            let status = end(&mut child)?;
            let said = said.join().unwrap_or_default();
            match answer {
                Ok(answer) => Ok(Some(Ended {
                    answer: answer?,
                    status,
                    said,
                })),
                Err(_) => Ok(None),
            }
        })
    }
}

/// Waits until a process has ended, at the latest until `deadline`.
fn wait_until(child: &mut Child, deadline: Option<Instant>) -> io::Result<()> {
    let mut pause = Duration::from_micros(50);
    let is_time_left = || deadline.is_none_or(|deadline| Instant::now() < deadline);
    while child.try_wait()?.is_none() && is_time_left() {
        thread::sleep(pause);
        pause = (2 * pause).min(Duration::from_millis(10));
    }
    Ok(())
}

/// Ends a process and waits for it. A process that has ended before keeps its status.
fn end(child: &mut Child) -> io::Result<ExitStatus> {
    if child.try_wait()?.is_none() {
        // It may end by itself at this moment.
        let _ = child.kill();
    }
    child.wait()
}

/// Reads the last bytes of a process's output.
fn last_of(mut stderr: impl Read) -> String {
    let mut said = Vec::new();
    let mut block = [0; 4096];
    while let Ok(n) = stderr.read(&mut block) {
        if n == 0 {
            break;
        }
        said.extend_from_slice(&block[..n]);
        if said.len() > 2 * SAID_BYTES_MAX {
            said.drain(..said.len() - SAID_BYTES_MAX);
        }
    }
    String::from_utf8_lossy(&said).into_owned()
}

/// A process that has ended by itself.
#[derive(Debug)]
struct Ended {
    answer: Vec<u8>,
    status: ExitStatus,
    said: String,
}

impl Ended {
    /// Returns `None` if the answer is incomplete.
    fn answer(&self) -> Option<(Result<Compilation, Refusal>, Vec<u8>)> {
        let end = self.answer.iter().position(|&byte| byte == b'\n')?;
        let (header, rest) = self.answer.split_at(end + 1);
        let Answer { outcome, n_bytes } = serde_json::from_slice(header).ok()?;
        (rest.len() == n_bytes).then(|| (outcome, rest.to_vec()))
    }

    /// Recognises the messages of Rust's allocator before it aborts, of the system when it refuses
    /// a thread or mapping, and of parsers whose buffer cannot grow.
    fn is_out_of_memory(&self) -> bool {
        let out_of_memory = io::ErrorKind::OutOfMemory.to_string();
        [
            "memory allocation of",
            "Cannot allocate memory",
            &out_of_memory,
        ]
        .iter()
        .any(|words| self.said.contains(words))
    }

    fn how(&self) -> String {
        let how = match self.status.signal() {
            Some(signal) => format!("signal {signal}"),
            None => format!("status {}", self.status.code().unwrap_or(-1)),
        };
        let said = self.said.trim().lines().next_back();
        said.map_or(how.clone(), |said| format!("{how}: {said}"))
    }
}

/// The compiler process: reads one order from standard input and writes its answer to standard
/// output.
fn serve() -> io::Result<()> {
    let mut input = BufReader::new(io::stdin().lock());
    let mut header = String::new();
    input
        .by_ref()
        .take(HEADER_BYTES_MAX)
        .read_line(&mut header)?;
    let order: Order = serde_json::from_str(&header)?;
    limit_this_process(&order);
    let mut bytes = Vec::new();
    input
        .take(order.wasm_bytes as u64)
        .read_to_end(&mut bytes)?;
    let limits = PolicyLimits::default()
        .with_fuel(order.is_by_fuel.then_some(0))
        .with_stack_bytes(order.stack_bytes);
    let engine =
        Engine::new(&config(&limits)).map_err(|error| io::Error::other(format!("{error:#}")))?;
    let form = match order.is_module {
        true => WasmForm::Module,
        false => WasmForm::Component,
    };
    let (outcome, compiled) = match compile_here(&engine, form, &bytes) {
        Ok((compiled, compilation)) => (Ok(compilation), compiled),
        Err(refusal) => (Err(refusal), Vec::new()),
    };
    let answer = Answer {
        outcome,
        n_bytes: compiled.len(),
    };
    let mut output = io::stdout().lock();
    output.write_all((serde_json::to_string(&answer)? + "\n").as_bytes())?;
    output.write_all(&compiled)?;
    output.flush()
}

/// Limits this process as its order says. Limits that the system does not support are skipped; the
/// deadline applies everywhere.
fn limit_this_process(order: &Order) {
    // It must not outlive its parent.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    let n_threads = thread::available_parallelism().map_or(1, usize::from) as u64;
    let limits = [
        // The writable memory that is private to the process: heaps and stacks.
        (Resource::Data, order.memory_bytes as u64),
        // Aborting is a valid answer here: no core dump.
        (Resource::Core, 0),
        (Resource::Cpu, order.deadline_s.saturating_mul(n_threads)),
    ];
    for (resource, wanted) in limits {
        let before = rustix::process::getrlimit(resource);
        let most = before.maximum.map_or(wanted, |maximum| maximum.min(wanted));
        let limit = Rlimit {
            current: Some(most),
            maximum: Some(most),
        };
        let _ = rustix::process::setrlimit(resource, limit);
    }
}
