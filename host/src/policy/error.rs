//! The errors of policies, and whose fault each is.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

use super::messages::{Messages, truncate};
use crate::placement::Violation;
use crate::tensor::show_bytes;

/// Whose fault an error is, that is who has to change something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// The policy's author.
    Guest,
    /// Placewright, or the machine that it runs on.
    Host,
    /// The user of the policy: the name, file, configuration or task is wrong.
    User,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Guest => "policy",
            Self::Host => "host",
            Self::User => "user",
        })
    }
}

/// The reason why a policy gave no answer: what happened, in which policy, and what it logged
/// before.
#[derive(Debug, thiserror::Error)]
pub struct PolicyError {
    /// The policy, as the user named it.
    pub policy: String,
    /// What happened.
    pub kind: Box<PolicyErrorKind>,
    /// The messages that the policy logged in the call that failed.
    pub messages: Box<Messages>,
    /// Whether the call had offered a legal plan, which is lost: what a policy offered before it
    /// trapped or declined is no answer.
    pub lost_offer: bool,
}

/// What happened. Each message says how to fix it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyErrorKind {
    /// The guest trapped: it panicked, divided by zero, or accessed memory out of bounds.
    #[error("{}", TrapReport { call, trap, message: message.as_deref(), backtrace })]
    Trap {
        /// The call: `place`, `configure`.
        call: &'static str,
        /// The trap, as the sandbox reports it.
        trap: String,
        /// The last error that the guest logged in the call. The SDK logs panics this way.
        message: Option<String>,
        /// The guest's functions, innermost first.
        backtrace: Vec<String>,
    },
    /// The call took too long and had not offered a plan.
    #[error("`{call}` was stopped at its deadline of {} ms{}", deadline.as_millis(), Remedy::of_deadline(call))]
    Deadline {
        /// The call.
        call: &'static str,
        /// Its deadline.
        deadline: Duration,
    },
    /// The call used up its fuel and had not offered a plan.
    #[error(
        "`{call}` used up its fuel of {fuel} for {}; `--policy-fuel` and `PolicyLimits::fuel` raise it",
        fuel_user(*in_host_calls)
    )]
    OutOfFuel {
        /// The call.
        call: &'static str,
        /// The fuel that it had, once for wasm instructions and once for host calls.
        fuel: u64,
        /// Whether host calls used it up, rather than wasm instructions.
        in_host_calls: bool,
    },
    /// The guest tried to grow its memory beyond the limit.
    #[error(
        "it requested {} of memory, the limit is {}; `--policy-memory` and `PolicyLimits::memory_bytes` raise it",
        show_bytes(*requested_bytes as u64),
        show_bytes(*limit_bytes as u64)
    )]
    MemoryLimit {
        /// The size that all its memories would have had.
        requested_bytes: usize,
        /// The limit.
        limit_bytes: usize,
    },
    /// The guest tried to grow a table beyond the limit.
    #[error(
        "it requested a table of {requested} elements, the limit is {limit}; `PolicyLimits::table_elements` and `--policy-limit table-elements=N` raise it"
    )]
    TableLimit {
        /// The size that the table would have had.
        requested: usize,
        /// The limit.
        limit: usize,
    },
    /// The component has too many parts.
    #[error(
        "it has more than {limit} {what}; `PolicyLimits::{what}` and `--policy-limit {what}=N` raise the limit"
    )]
    InstanceLimit {
        /// `instances`, `tables` or `memories`.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
    /// The file is too large to be compiled in bounded time.
    #[error(
        "it has {found} {}, the limit is {limit}; `PolicyLimits::{what}` and `--policy-limit {}=N` raise it",
        what.replace("wasm_", ""),
        what.replace('_', "-")
    )]
    TooLarge {
        /// `wasm_bytes` or `functions`.
        what: &'static str,
        /// The number that it has.
        found: usize,
        /// The limit.
        limit: usize,
    },
    /// Compiling the file could take too long or too much memory.
    #[error(
        "compiling it could take too long, or too much memory: {}{} {found}, the limit is {limit}; `PolicyLimits::{what}` and `--policy-limit {}=N` raise it",
        Described(what), At(place.as_deref()), what.replace('_', "-")
    )]
    TooComplex {
        /// The limit: a field of [`PolicyLimits`](super::PolicyLimits), such as `nesting` or
        /// `function_effort`.
        what: &'static str,
        /// The function, and the module or component, numbered from 0 in the order of the file.
        /// `None` for the whole file.
        place: Option<String>,
        /// The amount that it has.
        found: u64,
        /// The limit.
        limit: u64,
    },
    /// Compiling took too long and was stopped.
    #[error(
        "compiling it was stopped at its deadline of {} ms; `--policy-compile-deadline-ms` and `PolicyLimits::compile_deadline` raise it",
        deadline.as_millis()
    )]
    CompileDeadline {
        /// The deadline.
        deadline: Duration,
    },
    /// Compiling took too much memory and was stopped.
    #[error(
        "compiling it took more than {limit_bytes} bytes of memory; `--policy-compile-memory` and `PolicyLimits::compile_memory_bytes` raise the limit"
    )]
    CompileMemory {
        /// The limit.
        limit_bytes: usize,
    },
    /// The compiler process ended without an answer.
    #[error(
        "the compiler process ended without an answer: {how}; {}",
        Remedy::of_compiler_end(how)
    )]
    CompilerEnded {
        /// How the process ended, and its last output.
        how: String,
    },
    /// The guest recursed too deep.
    #[error(
        "`{call}` used up its stack of {limit_bytes} bytes; if the recursion is intended, `PolicyLimits::stack_bytes` and `--policy-limit stack-bytes=N` raise it"
    )]
    StackOverflow {
        /// The call.
        call: &'static str,
        /// The limit.
        limit_bytes: usize,
    },
    /// The guest holds too many handles.
    #[error(
        "`{call}` holds more than {limit} resource handles; drop them, or raise `PolicyLimits::component_handles` with `--policy-limit component-handles=N`"
    )]
    HandleLimit {
        /// The call.
        call: &'static str,
        /// The limit.
        limit: usize,
    },
    /// The guest passed more bytes to the host than one call may.
    #[error(
        "`{call}` passed more than {limit_bytes} bytes to the host at once; `PolicyLimits::hostcall_bytes` and `--policy-limit hostcall-bytes=N` raise the limit"
    )]
    TransferLimit {
        /// The call.
        call: &'static str,
        /// The limit.
        limit_bytes: usize,
    },
    /// The policy imports something that the host does not provide.
    #[error(
        "it imports {}; the host provides only `placewright:policy`{}",
        List(names),
        Remedy::of_imports(names)
    )]
    UnknownImport {
        /// The imports, in the order of the file.
        names: Vec<String>,
    },
    /// The policy does not export a required interface.
    #[error(
        "it does not export `placewright:policy/{export}`; use `export_policy!` of the SDK (if it names a cargo feature, with that feature), or a world of wit/v0.1"
    )]
    MissingExport {
        /// The interface.
        export: &'static str,
    },
    /// The policy uses another version of the contract.
    #[error(
        "it was built for contract {policy}, this host supports {host}: {detail}; rebuild the policy with the matching SDK, or use the matching placewright"
    )]
    Incompatible {
        /// The policy's version.
        policy: String,
        /// The host's.
        host: String,
        /// What does not match.
        detail: String,
    },
    /// The bytes are not a policy.
    #[error("not a policy: {what}; {remedy}")]
    NotAPolicy {
        /// What they are.
        what: String,
        /// What to do.
        remedy: &'static str,
    },
    /// The file is not a WebAssembly binary.
    #[error("not a WebAssembly file: {what}; {remedy}")]
    NotWasm {
        /// What it is.
        what: &'static str,
        /// What to do.
        remedy: &'static str,
    },
    /// The guest offered only plans that break a rule.
    #[error("its plan breaks rule `{}`: {violation}", violation.rule())]
    InvalidProposal {
        /// The rule that the last plan broke, and at which node.
        violation: Violation,
    },
    /// The guest returned an invalid result.
    #[error("`{call}` returned {what}")]
    InvalidAnswer {
        /// The call.
        call: &'static str,
        /// What is wrong with it.
        what: String,
    },
    /// The app passed a task that does not belong to the run's graph.
    #[error(
        "`{call}` was called with {what}; tasks must belong to the candidates that were passed to `begin`"
    )]
    InvalidTask {
        /// The call.
        call: &'static str,
        /// What is wrong with it.
        what: String,
    },
    /// The guest returned without offering a plan.
    #[error("it returned without offering a plan; a policy calls `plan.offer()` before it returns")]
    NoOffer,
    /// The policy does not handle this graph or device set. Nobody's fault: another policy may.
    #[error("it declined: {0}")]
    Declined(String),
    /// The policy reported a failure.
    #[error("it failed: {0}")]
    Failed(String),
    /// There is no such setting.
    #[error("it has no setting `{key}`; {}", settings(known))]
    UnknownSetting {
        /// The key that was set.
        key: String,
        /// The keys that it has.
        known: Vec<String>,
    },
    /// The policy refuses its configuration.
    #[error("invalid configuration: {0}")]
    Config(String),
    /// There is no such policy.
    #[error(
        "there is no shipped policy and no file of this name; the shipped policies are {}",
        List(shipped)
    )]
    NotFound {
        /// The names of the shipped policies.
        shipped: Vec<String>,
    },
    /// The policy's file cannot be read.
    #[error("reading {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        r#source: std::io::Error,
    },
    /// The sandbox itself failed.
    #[error("the sandbox failed: {0}")]
    Engine(String),
}

impl PolicyError {
    pub(super) fn new(policy: &str, kind: PolicyErrorKind, messages: Messages) -> Self {
        Self {
            policy: policy.to_owned(),
            kind: Box::new(kind),
            messages: Box::new(messages),
            lost_offer: false,
        }
    }

    /// Sets whether a legal offer is lost with the call.
    pub(super) fn with_lost_offer(mut self, lost_offer: bool) -> Self {
        self.lost_offer = lost_offer;
        self
    }

    /// Returns whose fault it is.
    pub fn fault(&self) -> Fault {
        self.kind.fault()
    }
}

/// Names what has used up the fuel of a call.
fn fuel_user(in_host_calls: bool) -> &'static str {
    match in_host_calls {
        true => "host calls",
        false => "wasm instructions",
    }
}

impl PolicyErrorKind {
    /// Returns what happened as one word for labels: the rule that a plan broke, else the kind,
    /// such as `trap` or `memory-limit`.
    pub fn reason(&self) -> &str {
        match self {
            Self::Trap { .. } => "trap",
            Self::Deadline { .. } => "deadline",
            Self::OutOfFuel { .. } => "out-of-fuel",
            Self::MemoryLimit { .. } => "memory-limit",
            Self::TableLimit { .. } => "table-limit",
            Self::InstanceLimit { .. } => "instance-limit",
            Self::TooLarge { .. } => "too-large",
            Self::TooComplex { .. } => "too-complex",
            Self::CompileDeadline { .. } => "compile-deadline",
            Self::CompileMemory { .. } => "compile-memory",
            Self::CompilerEnded { .. } => "compiler-ended",
            Self::StackOverflow { .. } => "stack-overflow",
            Self::HandleLimit { .. } => "handle-limit",
            Self::TransferLimit { .. } => "transfer-limit",
            Self::UnknownImport { .. } => "unknown-import",
            Self::MissingExport { .. } => "missing-export",
            Self::Incompatible { .. } => "incompatible",
            Self::NotAPolicy { .. } => "not-a-policy",
            Self::NotWasm { .. } => "not-wasm",
            Self::InvalidProposal { violation } => violation.rule(),
            Self::InvalidAnswer { .. } => "invalid-answer",
            Self::InvalidTask { .. } => "invalid-task",
            Self::NoOffer => "no-offer",
            Self::Declined(_) => "declined",
            Self::Failed(_) => "failed",
            Self::UnknownSetting { .. } => "unknown-setting",
            Self::Config(_) => "config",
            Self::NotFound { .. } => "not-found",
            Self::Read { .. } => "read",
            Self::Engine(_) => "engine",
        }
    }

    /// Returns whose fault it is.
    pub fn fault(&self) -> Fault {
        match self {
            Self::Engine(_) => Fault::Host,
            Self::UnknownSetting { .. }
            | Self::Config(_)
            | Self::InvalidTask { .. }
            | Self::NotFound { .. }
            | Self::Read { .. } => Fault::User,
            _ => Fault::Guest,
        }
    }
}

/// Serialized are the policy's name, whose fault the error is, and the message.
impl Serialize for PolicyError {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut error = serializer.serialize_struct("PolicyError", 3)?;
        error.serialize_field("policy", &self.policy)?;
        error.serialize_field("fault", &self.fault().to_string())?;
        error.serialize_field("message", &self.to_string())?;
        error.end()
    }
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "policy `{}`: {}", self.policy, self.kind)?;
        if self.lost_offer {
            f.write_str("; the legal plan that it had offered before is lost")?;
        }
        // The message of a trap contains the last error.
        let said = match &*self.kind {
            PolicyErrorKind::Trap { .. } => None,
            _ => self.messages.kept.last(),
        };
        if let Some(message) = said {
            write!(f, "; its last message was {message}")?;
        }
        if self.messages.dropped > 0 {
            write!(f, " ({} messages dropped)", self.messages.dropped)?;
        }
        Ok(())
    }
}

fn settings(known: &[String]) -> String {
    match known.is_empty() {
        true => "it has no settings".to_owned(),
        false => format!("its settings are {}", List(known)),
    }
}

/// `a`, `b` and `c`; of many names the first ones. A guest may have a million, of any length.
struct List<'a>(&'a [String]);

const NAMES_LISTED_MAX: usize = 20;
const NAME_BYTES_MAX: usize = 200;

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((last, rest)) = self.0.split_last() else {
            return f.write_str("none");
        };
        if self.0.len() > NAMES_LISTED_MAX {
            for name in &self.0[..NAMES_LISTED_MAX] {
                write!(f, "`{}`, ", truncate(name, NAME_BYTES_MAX))?;
            }
            return write!(f, "and {} more", self.0.len() - NAMES_LISTED_MAX);
        }
        for (index, name) in rest.iter().enumerate() {
            let name = truncate(name, NAME_BYTES_MAX);
            let separator = if index + 1 == rest.len() {
                " and "
            } else {
                ", "
            };
            write!(f, "`{name}`{separator}")?;
        }
        write!(f, "`{}`", truncate(last, NAME_BYTES_MAX))
    }
}

/// Frames of one function in a backtrace that make deep recursion likely.
const N_FRAMES_OF_RECURSION: usize = 4;

/// A trap, and the error that the guest logged before it.
struct TrapReport<'a> {
    call: &'a str,
    trap: &'a str,
    message: Option<&'a str>,
    backtrace: &'a [String],
}

impl fmt::Display for TrapReport<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { call, trap, .. } = self;
        match self.message {
            // The trap of a panic says nothing more.
            Some(panic) if panic.starts_with("panicked at") => write!(f, "`{call}` {panic}")?,
            Some(message) => write!(f, "`{call}` trapped: {trap}; its last error was: {message}")?,
            None => write!(f, "`{call}` trapped: {trap}")?,
        }
        Backtrace(self.backtrace).fmt(f)?;
        let innermost = self.backtrace.first();
        let is_repeated = |&name: &&String| {
            let same = self.backtrace.iter().filter(|&other| other == name);
            same.count() >= N_FRAMES_OF_RECURSION
        };
        if trap.contains("out of bounds memory access") && innermost.filter(is_repeated).is_some() {
            f.write_str(
                "; probably deep recursion: link the policy with `-C link-arg=-zstack-size=N`",
            )?;
        }
        Ok(())
    }
}

/// A limit of a file's structure, as text before a number.
struct Described<'a>(&'a str);

impl fmt::Display for Described<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            "parts" => "modules and components",
            "nesting" => "components within components",
            "nested_types" => "types within types",
            "items" => "definitions (those of a component as often as it is instantiated)",
            "lowered_functions" => {
                "lowered functions (as often as their component is instantiated)"
            }
            "function_effort" => "the estimated effort of one function",
            "effort" => "the estimated effort of all functions and adapters",
            other => other,
        })
    }
}

/// A place in the file.
struct At<'a>(Option<&'a str>);

impl fmt::Display for At<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => f.write_str(":"),
            Some(place) => write!(f, " ({place}):"),
        }
    }
}

/// The innermost functions, on one line.
struct Backtrace<'a>(&'a [String]);

impl fmt::Display for Backtrace<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.split_first() {
            None => Ok(()),
            Some((innermost, outer)) => {
                write!(f, " (in {innermost}")?;
                for function in outer.iter().take(7) {
                    write!(f, " < {function}")?;
                }
                f.write_str(")")
            }
        }
    }
}

/// Remedies that depend on the case.
struct Remedy;

impl Remedy {
    fn of_deadline(call: &str) -> &'static str {
        match call {
            "place" | "begin" => {
                ", before it offered a plan; `--policy-deadline-ms` and `PolicyLimits::place_deadline` raise it, and plans that are offered early count"
            }
            "pick" | "pick-batch" | "observe" | "end" => {
                "; `PolicyLimits::pick_deadline` raises it"
            }
            _ => {
                "; `--policy-configure-deadline-ms` and `PolicyLimits::configure_deadline` raise it"
            }
        }
    }

    fn of_compiler_end(how: &str) -> &'static str {
        // A compiler program that succeeds has answered.
        if how.starts_with("status 0") {
            "its `main` must call `CompilerProcess::of_this_program` first; the main function of a test harness does not"
        } else {
            "build the policy with the SDK or another compiler"
        }
    }

    fn of_imports(names: &[String]) -> &'static str {
        if names.iter().any(|name| name.starts_with("wasi")) {
            "; policies have no clock, files or randomness: build for wasm32-unknown-unknown, or stub WASI with the guest's tools"
        } else {
            ""
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_read_like_sentences() {
        let text = |names: &[&str]| {
            let names: Vec<_> = names.iter().map(ToString::to_string).collect();
            List(&names).to_string()
        };
        assert_eq!(text(&[]), "none");
        assert_eq!(text(&["a"]), "`a`");
        assert_eq!(text(&["a", "b", "c"]), "`a`, `b` and `c`");
        let many = text(&["a"; 1000]);
        assert!(many.ends_with("`a`, and 980 more"), "{many}");
        assert!(text(&[&"x".repeat(1 << 20)]).len() < 300);
    }

    #[test]
    fn a_trap_contains_the_last_error_of_the_guest() {
        let error = PolicyError::new(
            "mine",
            PolicyErrorKind::Trap {
                call: "place",
                trap: "wasm `unreachable` instruction executed".to_owned(),
                message: Some("panicked at src/lib.rs:3:5: no devices".to_owned()),
                backtrace: vec!["inner".to_owned(), "outer".to_owned()],
            },
            Messages::default(),
        );
        assert_eq!(
            error.to_string(),
            "policy `mine`: `place` panicked at src/lib.rs:3:5: no devices (in inner < outer)"
        );
        assert_eq!(error.fault(), Fault::Guest);
    }
}
