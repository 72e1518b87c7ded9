//! Limits of the sandbox and of compiling, as flags.

use std::sync::OnceLock;
use std::time::Duration;

use clap::Args;

use super::units::parse_bytes;
use crate::policy::CompilerProcess;
use crate::policy::PolicyEngine;
use crate::policy::PolicyError;
use crate::policy::PolicyLimits;
use crate::store::CacheFolder;

/// Set by the `main` of a program that compiles policies in a second process of itself. A property
/// of the process, like its arguments.
static COMPILER: OnceLock<CompilerProcess> = OnceLock::new();

/// The first call of such a `main`.
pub(super) fn compile_if_asked() {
    // A second call finds the same program.
    let _ = COMPILER.set(CompilerProcess::of_this_program());
}

/// Limits of a policy, and of compiling it.
#[derive(Debug, Clone, Default, Args)]
pub(super) struct SandboxArgs {
    /// A limit of the sandbox that has no flag of its own, such as stack-bytes=1MiB. Repeatable.
    ///
    /// Errors name the limit that was reached. Limits: component-handles, effort,
    /// explanation-bytes, function-effort, functions, hostcall-bytes, instances, items,
    /// log-message-bytes, log-messages, lowered-functions, memories, memory-bytes, metrics,
    /// nested-types, nesting, parts, settings, stack-bytes, table-elements, tables, wasm-bytes.
    #[arg(long, value_name = "LIMIT=N", value_parser = parse_limit, help_heading = "Policy")]
    pub(super) policy_limit: Vec<(&'static str, usize)>,
    /// Longest time of compiling the policy, in ms of wall-clock time [default: 60000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), help_heading = "Policy")]
    pub(super) policy_compile_deadline_ms: Option<u64>,
    /// Longest time of each call before placement, in ms of wall-clock time [default: 1000]
    ///
    /// These calls are `describe`, `settings` and `configure`.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), help_heading = "Policy")]
    pub(super) policy_configure_deadline_ms: Option<u64>,
    /// Memory of the process that compiles the policy, such as 4GiB [default: 2GiB]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, help_heading = "Policy")]
    pub(super) policy_compile_memory: Option<u64>,
    /// Compile the policy in this process, without a deadline and without a memory limit.
    #[arg(
        long,
        help_heading = "Policy",
        conflicts_with_all = ["policy_compile_deadline_ms", "policy_compile_memory"]
    )]
    pub(super) policy_compile_in_process: bool,
}

impl SandboxArgs {
    /// Makes an engine with these limits, and `limits` for the rest.
    pub(super) fn engine(
        &self,
        mut limits: PolicyLimits,
        cache: Option<CacheFolder>,
    ) -> Result<PolicyEngine, PolicyError> {
        for &(name, value) in &self.policy_limit {
            if let Some(limit) = limit_mut(&mut limits, name) {
                *limit = value;
            }
        }
        if let Some(deadline_ms) = self.policy_compile_deadline_ms {
            limits.compile_deadline = Duration::from_millis(deadline_ms);
        }
        if let Some(deadline_ms) = self.policy_configure_deadline_ms {
            limits.configure_deadline = Duration::from_millis(deadline_ms);
        }
        if let Some(bytes) = self.policy_compile_memory {
            limits.compile_memory_bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        }
        let engine = PolicyEngine::with_cache(limits, cache)?;
        Ok(match COMPILER.get() {
            Some(compiler) if !self.policy_compile_in_process => {
                engine.with_compiler(compiler.clone())
            }
            _ => engine,
        })
    }
}

/// Names of limits on the command line. Time, fuel and memory have flags of their own.
const LIMITS: [&str; 22] = [
    "component-handles",
    "effort",
    "explanation-bytes",
    "function-effort",
    "functions",
    "hostcall-bytes",
    "instances",
    "items",
    "log-message-bytes",
    "log-messages",
    "lowered-functions",
    "memories",
    "memory-bytes",
    "metrics",
    "nested-types",
    "nesting",
    "parts",
    "settings",
    "stack-bytes",
    "table-elements",
    "tables",
    "wasm-bytes",
];

fn limit_mut<'a>(limits: &'a mut PolicyLimits, name: &str) -> Option<&'a mut usize> {
    Some(match name {
        "component-handles" => &mut limits.component_handles,
        "effort" => &mut limits.effort,
        "explanation-bytes" => &mut limits.explanation_bytes,
        "function-effort" => &mut limits.function_effort,
        "functions" => &mut limits.functions,
        "hostcall-bytes" => &mut limits.hostcall_bytes,
        "instances" => &mut limits.instances,
        "items" => &mut limits.items,
        "log-message-bytes" => &mut limits.log_message_bytes,
        "log-messages" => &mut limits.log_messages,
        "lowered-functions" => &mut limits.lowered_functions,
        "memories" => &mut limits.memories,
        "memory-bytes" => &mut limits.memory_bytes,
        "metrics" => &mut limits.metrics,
        "nested-types" => &mut limits.nested_types,
        "nesting" => &mut limits.nesting,
        "parts" => &mut limits.parts,
        "settings" => &mut limits.settings,
        "stack-bytes" => &mut limits.stack_bytes,
        "table-elements" => &mut limits.table_elements,
        "tables" => &mut limits.tables,
        "wasm-bytes" => &mut limits.wasm_bytes,
        _ => return None,
    })
}

fn parse_limit(text: &str) -> Result<(&'static str, usize), String> {
    let expected =
        || format!("`{text}` does not set a limit; expected LIMIT=N such as effort=200000000");
    let (name, value) = text.split_once('=').ok_or_else(expected)?;
    let mut limits = LIMITS.iter();
    let known = limits.find(|limit| **limit == name.replace('_', "-"));
    let Some(name) = known else {
        return Err(format!(
            "there is no limit `{name}`; limits are {}",
            LIMITS.join(", ")
        ));
    };
    let value = value.replace('_', "");
    let value = match name.ends_with("bytes") {
        true => parse_bytes(&value).ok().and_then(|n| n.try_into().ok()),
        false => value.parse().ok(),
    };
    Ok((name, value.ok_or_else(expected)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_a_limit_and_is_set() {
        let default = PolicyLimits::default();
        for name in LIMITS {
            let args = SandboxArgs {
                policy_limit: vec![parse_limit(&format!("{name}=12_345")).unwrap()],
                ..SandboxArgs::default()
            };
            let mut limits = default.clone();
            *limit_mut(&mut limits, name).unwrap() = 12_345;
            assert_ne!(limits, default, "{name}");
            // Stacks that small are the engine's to refuse.
            if name != "stack-bytes" {
                assert_eq!(
                    args.engine(default.clone(), None).unwrap().limits(),
                    &limits
                );
            }
        }
    }

    #[test]
    fn the_help_names_every_limit() {
        let command = clap::Command::new("placewright").term_width(0);
        let mut command = SandboxArgs::augment_args(command);
        let help = command.render_long_help().to_string();
        let (_, limits) = help.split_once(" Limits: ").expect("the list");
        let (limits, _) = limits.split_once('.').expect("its end");
        let named: Vec<&str> = limits.split(',').map(str::trim).collect();
        assert_eq!(named, LIMITS);
    }

    #[test]
    fn unknown_and_malformed_limits_are_refused() {
        assert!(parse_limit("speed=3").is_err_and(|error| error.contains("function-effort")));
        for text in ["effort", "effort=", "effort=-1", "effort=nan"] {
            assert!(
                parse_limit(text).is_err_and(|error| error.contains("LIMIT=N")),
                "{text}"
            );
        }
    }
}
