//! The program: arguments in, tables or JSON out, an exit status. Prints through `output` alone;
//! decides nothing that the library does not offer to other programs too.

mod args;
mod bench;
mod cache;
mod check;
mod compare;
mod devices;
mod feeds;
mod npz;
mod open;
mod output;
mod output_file;
mod place;
mod policy;
mod progress;
mod random;
mod refusals;
mod run;
mod sandbox;
mod summary;
mod timing;
mod units;
mod values;

use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::LazyLock;

use clap::Parser;
use clap::Subcommand;

use self::output::Format;
use self::output::Output;
use crate::policy::CONTRACT_VERSION;
use crate::registry::Registry;

/// Version of the program and of the contract that its policies speak.
static VERSION: LazyLock<String> = LazyLock::new(|| {
    format!(
        "{} (contract placewright:policy@{CONTRACT_VERSION})",
        env!("CARGO_PKG_VERSION")
    )
});

const EXIT_STATUS: &str = "\
Exit status:
  0  done
  1  failed, or the results do not match the expected ones
  2  the command line is wrong
  3  done, but the policy asked for gave no placement and another one of the ladder placed the graph";

/// Runs dataflow graphs on several devices; a sandboxed WebAssembly policy decides which device
/// runs each op.
#[derive(Debug, Parser)]
#[command(name = "placewright", version = VERSION.as_str(), after_help = EXIT_STATUS)]
struct Cli {
    /// Print one JSON document instead of tables.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List the devices of this machine, and what the others lack.
    Devices(devices::DevicesArgs),
    /// Place a graph and execute it.
    #[command(after_help = EXIT_STATUS)]
    Run(run::RunCommand),
    /// Place a graph and show where everything is; execute nothing.
    #[command(after_help = EXIT_STATUS)]
    Place(place::PlaceCommand),
    /// List the shipped policies, or look into one.
    #[command(subcommand)]
    Policy(policy::PolicyCommand),
    /// The folder of compiled policies and measured rates.
    Cache(cache::CacheArgs),
    /// Measure placing and the calls of policies on this machine.
    #[command(subcommand)]
    Bench(bench::BenchCommand),
}

/// How a command ended, where it ended well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// Done.
    Done,
    /// Done, and the answer is no: results differ, a policy is not usable.
    Negative,
    /// Done, by another policy than the one asked for.
    FellBack,
}

/// The command line is wrong in a way that its parser cannot see.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct UsageError(String);

/// Runs the program with the arguments of this process, on what ships.
pub fn main() -> ExitCode {
    main_with(Registry::default())
}

/// Runs the program with the arguments of this process, on what an app knows; see [`run`]. Policies
/// are compiled by the same program, started again, as
/// [`CompilerProcess`](crate::policy::CompilerProcess) says, so call it from `main`, before
/// anything that should not happen a second time.
pub fn main_with(registry: Registry) -> ExitCode {
    sandbox::compile_if_asked();
    ExitCode::from(run(registry, std::env::args_os()))
}

/// Runs the program on what an app knows: its ops, devices and kernels are there in every command
/// as what ships is (but in `bench placement`, `policy-call` and `dispatch`, whose figures are
/// those of this library), less the device types that the environment switches off. The first of
/// `args` is the name of the program; returned is the exit status. Policies are compiled in this
/// process.
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
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(err) => {
            // Help and version go to standard output with status 0, errors to standard error with
            // status 2. A closed pipe leaves nobody to tell.
            let _ = err.print();
            return if err.use_stderr() { 2 } else { 0 };
        }
    };
    let format = if cli.json {
        Format::Json
    } else {
        Format::Human
    };
    let mut output = Output::new(format);
    let registry = registry.with_enabled_types_from_env();
    let result = match cli.command {
        Command::Devices(args) => devices::run(&args, &registry, &mut output),
        Command::Run(command) => run::run(&command, &registry, &mut output),
        Command::Place(command) => place::run(&command, &registry, &mut output),
        Command::Policy(command) => policy::run(&command, &mut output),
        Command::Cache(args) => cache::run(&args, &mut output),
        Command::Bench(command) => bench::run(&command, &registry, &mut output),
    };
    match result {
        Ok(Outcome::Done) => 0,
        Ok(Outcome::Negative) => 1,
        Ok(Outcome::FellBack) => 3,
        Err(err) => {
            output::print_error(&err);
            if err.is::<UsageError>() { 2 } else { 1 }
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

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
}
