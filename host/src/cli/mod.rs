//! The program: parses arguments, prints tables or JSON, returns an exit status. Everything is
//! printed through `output`. The program does nothing that the library does not offer to other
//! programs too.

mod allclose;
mod args;
mod bench;
mod cache;
mod check;
mod cluster;
mod compare;
mod compile_note;
mod completions;
mod devices;
mod explain;
mod feeds;
mod help;
mod inspect;
mod json_tensors;
mod man;
mod npz;
mod open;
mod output;
mod output_file;
mod place;
mod policy;
mod progress;
mod random;
mod refusals;
mod report;
mod run;
mod sandbox;
mod saved_model;
mod schema;
mod simulate;
mod summary;
mod table;
mod terminal;
mod timing;
mod units;
mod values;

use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::LazyLock;

use clap::ColorChoice;
use clap::CommandFactory;
use clap::FromArgMatches;
use clap::Parser;
use clap::Subcommand;

use self::output::Format;
use self::output::Output;
use crate::policy::CONTRACT_VERSION;
use crate::registry::Registry;

/// Version of the program and of the contract that its policies implement.
static VERSION: LazyLock<String> = LazyLock::new(|| {
    format!(
        "{} (contract placewright:policy@{CONTRACT_VERSION})",
        env!("CARGO_PKG_VERSION")
    )
});

/// Runs dataflow graphs on several devices; a sandboxed WebAssembly policy decides which device
/// runs each op.
#[derive(Debug, Parser)]
#[command(
    name = "placewright",
    version = VERSION.as_str(),
    after_help = help::exit_status(),
    after_long_help = help::exit_status_and_environment()
)]
struct Cli {
    /// Print one JSON document instead of tables.
    ///
    /// `placewright schema COMMAND` prints the JSON schema of a command's document. A command that
    /// fails prints a document with `error` and `exit_status`.
    #[arg(long, global = true, help_heading = "Output")]
    json: bool,
    /// When to use colour.
    ///
    /// `auto` uses colour on a terminal, and honours the environment variables NO_COLOR, CLICOLOR
    /// and CLICOLOR_FORCE.
    #[arg(
        long,
        global = true,
        value_name = "WHEN",
        value_enum,
        default_value_t = ColorChoice::Auto,
        help_heading = "Output"
    )]
    color: ColorChoice,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List the devices of this machine, and why other device types have none.
    Devices(devices::DevicesArgs),
    /// Place a graph and execute it.
    #[command(
        after_help = help::exit_status(),
        after_long_help = help::exit_status_and_environment()
    )]
    Run(run::RunCommand),
    /// Place a graph and show the device of each node, the transfers and the memory; execute
    /// nothing.
    ///
    /// The first table tells per device: `parameters`, the constants that its nodes read and their
    /// state; `expected peak`, what the plan needs at one time with all --concurrent-runs, which
    /// must fit into the memory of the device; and `work`, the time of its nodes one after the
    /// other. The table of memories tells what a session allocates: constants, prepacked weights
    /// and one run, whose tensors share arenas; `allocated` is their sum.
    #[command(
        after_help = help::exit_status(),
        after_long_help = help::exit_status_and_environment()
    )]
    Place(place::PlaceCommand),
    /// Place a graph and show what a run would look like: what happens when, the use of devices and
    /// links, memory, and the critical path; execute nothing.
    ///
    /// Times are those of the cost model. With --cluster, on a machine on paper.
    #[command(
        after_help = help::exit_status(),
        after_long_help = help::exit_status_and_environment()
    )]
    Simulate(simulate::SimulateCommand),
    /// Place a graph and explain where a node is: its candidates with their costs, and what moving
    /// it would change; or list the moves that would help most. Executes nothing.
    #[command(
        after_help = help::exit_status(),
        after_long_help = help::exit_status_and_environment()
    )]
    Explain(explain::ExplainCommand),
    /// Place graphs by several policies, and show who is how much faster; with --measure, also run
    /// them, in turns.
    #[command(
        after_help = help::exit_status(),
        after_long_help = help::exit_status_and_environment()
    )]
    Compare(compare::CompareCommand),
    /// Place a graph by several policies, and write a page that shows the plans in a browser: their
    /// timelines, the graph by device, critical paths, memory over time.
    #[command(
        after_help = help::exit_status(),
        after_long_help = help::exit_status_and_environment()
    )]
    Report(report::ReportCommand),
    /// Show what a graph or a SavedModel consists of: signatures, variables, functions, and ops,
    /// with those that have no kernel; execute nothing.
    Inspect(inspect::InspectCommand),
    /// List the shipped policies, or inspect a policy file.
    #[command(subcommand)]
    Policy(policy::PolicyCommand),
    /// Show or clear the folder of compiled policies, compiled kernels and measured rates.
    Cache(cache::CacheArgs),
    /// Measure placement, policy calls, dispatch, models and devices on this machine.
    #[command(subcommand)]
    Bench(bench::BenchCommand),
    /// Print the JSON schema of what a command prints with --json.
    Schema(schema::SchemaArgs),
    /// Print a completion script for a shell.
    #[command(after_long_help = completions::HELP)]
    Completions(completions::CompletionsArgs),
    /// Print a man page.
    #[command(after_long_help = man::HELP)]
    Man(man::ManArgs),
}

/// How a command ended that did not fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// Done.
    Done,
    /// Done, and the answer is no: results differ, a policy is not usable.
    Negative,
    /// Done, by another policy than the requested one.
    FellBack,
}

/// An error of the command line that its parser cannot detect.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct UsageError(String);

/// Runs the program with the arguments of this process and the shipped ops and devices.
pub fn main() -> ExitCode {
    main_with(Registry::default())
}

/// Runs the program with the arguments of this process and an app's registry; see [`run`]. Policies
/// are compiled in a second process of the same program, as
/// [`CompilerProcess`](crate::policy::CompilerProcess) explains: call this function first in
/// `main`, before anything that must not happen twice.
pub fn main_with(registry: Registry) -> ExitCode {
    sandbox::compile_if_asked();
    compile_note::install();
    ExitCode::from(run(registry, std::env::args_os()))
}

/// Runs the program with an app's registry and returns the exit status. Every command uses the ops,
/// devices and kernels of the registry, except `bench placement`, `bench policy-call` and `bench
/// dispatch`, which measure this library. Device types that the environment disables are left out.
/// The first of `args` is the name of the program. Policies are compiled in this process.
///
/// ```no_run
/// use placewright::registry::Registry;
///
/// # const NPU: placewright::registry::Registrar = placewright::registry::Registrar::new("NPU", |_| Ok(()));
/// fn main() -> Result<std::process::ExitCode, placewright::registry::RegistryError> {
///     let registry = Registry::default().with(NPU)?;
///     Ok(placewright::cli::main_with(registry))
/// }
/// ```
pub fn run<S>(registry: Registry, args: impl IntoIterator<Item = S>) -> u8
where
    S: Into<OsString> + Clone,
{
    let args: Vec<OsString> = args.into_iter().map(Into::into).collect();
    let wants_json = args.iter().any(|arg| arg == "--json");
    let command = Cli::command().color(terminal::color_of_args(&args));
    let cli = command
        .try_get_matches_from(args)
        .and_then(|matches| Cli::from_arg_matches(&matches));
    let cli = match cli {
        Ok(cli) => cli,
        Err(err) => {
            // Help and version go to standard output with status 0, errors to standard error with
            // status 2. If the pipe is closed, nobody reads the message.
            let _ = err.print();
            if !err.use_stderr() {
                return 0;
            }
            if wants_json {
                let message = usage_message(&err.to_string());
                Output::new(Format::Json, ColorChoice::Never).json_error(&message, 2);
            }
            return 2;
        }
    };
    let format = if cli.json {
        Format::Json
    } else {
        Format::Human
    };
    let mut output = Output::new(format, cli.color);
    let registry = registry.with_enabled_types_from_env();
    let result = match cli.command {
        Command::Devices(args) => devices::run(&args, &registry, &mut output),
        Command::Run(command) => run::run(&command, &registry, &mut output),
        Command::Place(command) => place::run(&command, &registry, &mut output),
        Command::Simulate(command) => simulate::run(&command, &registry, &mut output),
        Command::Explain(command) => explain::run(&command, &registry, &mut output),
        Command::Compare(command) => compare::run(&command, &registry, &mut output),
        Command::Report(command) => report::run(&command, &registry, &mut output),
        Command::Inspect(command) => inspect::run(&command, &registry, &mut output),
        Command::Policy(command) => policy::run(&command, &mut output),
        Command::Cache(args) => cache::run(&args, &mut output),
        Command::Bench(command) => bench::run(&command, &registry, &mut output),
        Command::Schema(args) => schema::run(&args, &mut output),
        Command::Completions(args) => completions::run(&args, &mut output),
        Command::Man(args) => man::run(&args, &mut output),
    };
    match result {
        Ok(Outcome::Done) => 0,
        Ok(Outcome::Negative) => 1,
        Ok(Outcome::FellBack) => 3,
        Err(err) => {
            output::print_error(&err, cli.color);
            let status = if err.is::<UsageError>() { 2 } else { 1 };
            output.json_error(&output::chain(&err), status);
            status
        }
    }
}

/// The message of a parser's error in one line, without usage and hints.
fn usage_message(text: &str) -> String {
    let message = text.split("\n\n").next().unwrap_or(text);
    let message = message.strip_prefix("error: ").unwrap_or(message);
    let lines = message.lines().map(str::trim);
    lines.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_version_names_the_contract() {
        let version = Cli::command().render_version();
        assert!(version.contains("placewright:policy@0.1."), "{version}");
    }

    /// Flags and commands without a description.
    fn undocumented(command: &clap::Command, path: &str, found: &mut Vec<String>) {
        let path = format!("{path} {}", command.get_name());
        if command.get_about().is_none() {
            found.push(path.clone());
        }
        for arg in command.get_arguments() {
            let is_help = matches!(arg.get_id().as_str(), "help" | "version");
            if !is_help
                && (arg.get_help().is_none() || arg.is_positional() != arg.get_long().is_none())
            {
                found.push(format!("{path} {}", arg.get_id()));
            }
            // `run` and `place` have forty flags: each has a heading.
            let is_long = matches!(command.get_name(), "run" | "place");
            if is_long && !is_help && !arg.is_positional() && arg.get_help_heading().is_none() {
                found.push(format!("{path} {}: no heading", arg.get_id()));
            }
        }
        for command in command.get_subcommands() {
            undocumented(command, &path, found);
        }
    }

    #[test]
    fn every_flag_is_explained_under_a_heading() {
        let mut found = Vec::new();
        undocumented(&Cli::command(), "", &mut found);
        assert_eq!(found, Vec::<String>::new());
    }
}
