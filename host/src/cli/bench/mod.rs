//! `placewright bench`: the figures that a user may want to repeat, on graphs and devices made for it.

mod dispatch;
mod memory;
mod placement;
mod policy_call;

use anyhow::Result;
use clap::Subcommand;
use serde::Serialize;

use super::Outcome;
use super::output::Output;

#[derive(Debug, Subcommand)]
pub(super) enum BenchCommand {
    /// The whole placement stage: candidates, policy in the sandbox, check.
    Placement(placement::PlacementBench),
    /// Calls of an online policy, and loading one.
    PolicyCall(policy_call::PolicyCallBench),
    /// What executing an op costs beyond its arithmetic.
    Dispatch(dispatch::DispatchBench),
}

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Report<R> {
    bench: &'static str,
    rows: Vec<R>,
}

/// Runs the command.
pub(super) fn run(command: &BenchCommand, output: &mut Output) -> Result<Outcome> {
    match command {
        BenchCommand::Placement(args) => placement::run(args, output),
        BenchCommand::PolicyCall(args) => policy_call::run(args, output),
        BenchCommand::Dispatch(args) => dispatch::run(args, output),
    }
}
