//! `placewright bench`: the figures that a user may want to repeat, on graphs and devices made for
//! it, and on models.

mod dag;
#[cfg(feature = "opencl")]
mod device;
mod dispatch;
#[cfg(feature = "cuda")]
mod gpu;
#[cfg(any(feature = "cuda", feature = "opencl"))]
mod graphs;
mod memory;
mod model;
mod models;
#[cfg(any(feature = "cuda", feature = "opencl"))]
mod one_device;
mod placement;
mod policy_call;
mod replacement;
mod serve;
mod tracing;
#[cfg(any(feature = "cuda", feature = "opencl"))]
mod turns;
mod work;
mod worker;

use std::time::Duration;

use anyhow::Result;
use clap::Subcommand;
use serde::Serialize;

use super::Outcome;
use super::output::Output;
use crate::registry::Registry;

#[derive(Debug, Subcommand)]
pub(super) enum BenchCommand {
    /// The whole placement stage: candidates, policy in the sandbox, check.
    Placement(placement::PlacementBench),
    /// Calls of an online policy, and loading one.
    PolicyCall(policy_call::PolicyCallBench),
    /// What executing an op costs beyond its arithmetic.
    Dispatch(dispatch::DispatchBench),
    /// How long one run of a model takes, its results checked.
    Models(models::ModelsBench),
    /// What a device gives, against the same work given straight to its driver, and models against
    /// the CPU device.
    #[cfg(feature = "opencl")]
    Device(device::DeviceBench),
    /// What a GPU gives, against the same work given straight to CUDA's driver, and models against
    /// the CPU device.
    #[cfg(feature = "cuda")]
    Gpu(gpu::GpuBench),
    /// Requests per second of a session that several threads call at one time, the results checked.
    Serve(serve::ServeBench),
    /// Works on commands from standard input, for a driver that gives several frameworks turns; see
    /// tests/peers.
    #[command(hide = true)]
    Worker,
}

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Report<R> {
    bench: &'static str,
    rows: Vec<R>,
}

/// Runs the command.
pub(super) fn run(
    command: &BenchCommand,
    registry: &Registry,
    output: &mut Output,
) -> Result<Outcome> {
    match command {
        BenchCommand::Placement(args) => placement::run(args, output),
        BenchCommand::PolicyCall(args) => policy_call::run(args, output),
        BenchCommand::Dispatch(args) => dispatch::run(args, output),
        BenchCommand::Models(args) => models::run(args, registry, output),
        #[cfg(feature = "opencl")]
        BenchCommand::Device(args) => device::run(args, registry, output),
        #[cfg(feature = "cuda")]
        BenchCommand::Gpu(args) => gpu::run(args, registry, output),
        BenchCommand::Serve(args) => serve::run(args, registry, output),
        BenchCommand::Worker => worker::run(registry, output),
    }
}

/// A time such as `2` or `0.5`, in seconds.
fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds = text
        .parse()
        .ok()
        .filter(|seconds| (0.0..=3600.0).contains(seconds));
    seconds
        .map(Duration::from_secs_f64)
        .ok_or_else(|| format!("`{text}` is no time; expected seconds such as 0.5, at most 3600"))
}
