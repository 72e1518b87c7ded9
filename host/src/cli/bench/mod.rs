//! `placewright bench`: measurements that a user may want to repeat, on synthetic graphs and
//! devices, and on models.

mod adversary;
mod dag;
#[cfg(feature = "opencl")]
mod device;
mod dispatch;
mod evaluation;
#[cfg(feature = "cuda")]
mod gpu;
#[cfg(any(feature = "cuda", feature = "opencl"))]
mod graphs;
mod instance;
mod lookups;
mod memory;
mod model;
mod models;
#[cfg(any(feature = "cuda", feature = "opencl"))]
mod one_device;
mod placement;
mod policy_call;
mod prediction;
mod quality;
mod replacement;
mod serve;
mod tracing;
#[cfg(any(feature = "cuda", feature = "opencl"))]
mod turns;
mod work;
mod worker;

use anyhow::Result;
use clap::Subcommand;
use serde::Serialize;

use super::Outcome;
use super::output::Output;
use super::timing::parse_seconds;
use crate::registry::Registry;

#[derive(Debug, Subcommand)]
pub(super) enum BenchCommand {
    /// Measure the whole placement stage: candidates, policy in the sandbox, check.
    Placement(placement::PlacementBench),
    /// Measure calls of an online policy, and loading a policy.
    PolicyCall(policy_call::PolicyCallBench),
    /// Measure what executing an op costs besides its arithmetic.
    Dispatch(dispatch::DispatchBench),
    /// Measure one run of a model, and check its results.
    Models(models::ModelsBench),
    /// Compare the expected time of a run with its time, before and after runs were measured.
    Prediction(prediction::PredictionBench),
    /// Compare the schedules of policies with the best ones known, on published task graphs.
    Quality(quality::QualityBench),
    /// Search for task graphs on which a policy does worse than others.
    Adversary(adversary::AdversaryBench),
    /// Compare a SYCL device with its driver, and models on it with the CPU device.
    #[cfg(feature = "opencl")]
    Device(device::DeviceBench),
    /// Compare a GPU with CUDA's driver, and models on it with the CPU device.
    #[cfg(feature = "cuda")]
    Gpu(gpu::GpuBench),
    /// Measure requests per second of a session that several threads call, and check the results.
    Serve(serve::ServeBench),
    /// Execute commands from standard input, for a driver that runs several frameworks in turns;
    /// see tests/peers.
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
        BenchCommand::Prediction(args) => prediction::run(args, registry, output),
        BenchCommand::Quality(args) => quality::run(args, output),
        BenchCommand::Adversary(args) => adversary::run(args, output),
        #[cfg(feature = "opencl")]
        BenchCommand::Device(args) => device::run(args, registry, output),
        #[cfg(feature = "cuda")]
        BenchCommand::Gpu(args) => gpu::run(args, registry, output),
        BenchCommand::Serve(args) => serve::run(args, registry, output),
        BenchCommand::Worker => worker::run(registry, output),
    }
}
