//! `bench worker`: executes commands, so that a driver can keep one process per framework and run
//! them in turns.
//!
//! One JSON object per line on standard input, one per line on standard output: the protocol of
//! [tests/peers](../../../../tests/peers/README.md), whose other sides are written in Python, Rust
//! and C. An error is an answer; the end of the input ends the worker.

use std::io;
use std::io::BufRead;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use anyhow::Result;
use anyhow::bail;
use serde::Deserialize;
use serde_json::Value;
use serde_json::json;

use super::dag::Additions;
use super::dag::Case;
use super::dag::only_cpu;
#[cfg(any(feature = "cuda", feature = "opencl"))]
use super::graphs::BenchGraph;
use super::model::Model;
use super::model::ModelSetup;
#[cfg(any(feature = "cuda", feature = "opencl"))]
use super::one_device::Copies;
#[cfg(any(feature = "cuda", feature = "opencl"))]
use super::one_device::Devices;
#[cfg(any(feature = "cuda", feature = "opencl"))]
use super::one_device::Way;
use super::work::Work;
use super::work::repeat;
use super::work::serve;
use crate::cli::Outcome;
use crate::cli::allclose::Tolerance;
use crate::cli::output::Output;
use crate::cli::output::chain;
use crate::cli::timing::Timing;
use crate::cli::timing::nanoseconds;
use crate::cli::timing::timed;
use crate::device::DeviceOptions;
use crate::names::DeviceName;
use crate::registry::Registry;

/// Of all results, on all sides.
fn tolerance() -> f64 {
    1e-5
}

/// Longest turn of a command.
const TURN_MS_MAX: u64 = 600_000;

#[derive(Debug, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case")]
enum Command {
    /// Report name and version.
    Hello,
    /// Close what is open, open a model, and run it once.
    OpenModel {
        graph: PathBuf,
        arrays: PathBuf,
        threads: u32,
        /// Device of nodes that request none, such as `GPU:0`; by default one CPU device is the
        /// only device.
        device: Option<String>,
        /// Absolute and relative, of all results.
        #[serde(default = "tolerance")]
        tolerance: f64,
    },
    /// Close what is open, open a graph of additions, and run it once.
    OpenDag {
        case: Case,
        nodes: u32,
        threads: u32,
    },
    /// Close what is open, prepare a chain of matmuls of square matrices on a device, and run it
    /// once.
    #[cfg(any(feature = "cuda", feature = "opencl"))]
    OpenMatmuls {
        side: usize,
        dtype: MatmulType,
        threads: u32,
        device: String,
    },
    /// Close what is open, prepare copies between pinned memory of the host and a device, and copy
    /// once.
    #[cfg(any(feature = "cuda", feature = "opencl"))]
    OpenCopies {
        bytes: usize,
        way: Way,
        threads: u32,
        device: String,
    },
    /// Repeat the open work for some time.
    Turn { ms: u64 },
    /// Repeat the open work for some time in several threads.
    Serve { ms: u64, callers: u16 },
    /// Close what is open.
    Close,
}

/// Element types of matmuls, as NumPy and PyTorch spell them.
#[cfg(any(feature = "cuda", feature = "opencl"))]
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum MatmulType {
    Float32,
    Bfloat16,
}

/// Answers commands until the input ends.
pub(super) fn run(registry: &Registry, output: &mut Output) -> Result<Outcome> {
    let mut open: Option<Box<dyn Work>> = None;
    for line in io::stdin().lock().lines() {
        let line = line.context("reading standard input")?;
        if line.trim().is_empty() {
            continue;
        }
        let answer = answer(&line, registry, &mut open)
            .unwrap_or_else(|err| json!({ "error": chain(&err) }));
        output.json_line(&answer)?;
    }
    Ok(Outcome::Done)
}

fn answer(line: &str, registry: &Registry, open: &mut Option<Box<dyn Work>>) -> Result<Value> {
    let command: Command =
        serde_json::from_str(line).with_context(|| format!("`{line}` is not a command"))?;
    match command {
        Command::Hello => Ok(json!({
            "framework": "Placewright",
            "version": env!("CARGO_PKG_VERSION"),
        })),
        Command::OpenModel {
            graph,
            arrays,
            threads,
            device,
            tolerance,
        } => {
            *open = None;
            if !(0.0..=1.0).contains(&tolerance) {
                bail!("a tolerance of {tolerance}; expected 0 to 1");
            }
            let mut devices = only_cpu(threads as usize);
            let scope = device.map(|device| with_device(&mut devices, &device));
            let setup = ModelSetup {
                registry: registry.clone(),
                policy: None,
                devices,
                inter_op_threads: threads as usize,
                scope: scope.transpose()?,
                allow_soft_placement: false,
                tolerance: Tolerance {
                    atol: tolerance,
                    rtol: tolerance,
                },
            };
            let model = Model::open(&graph, &arrays, setup)?;
            let load_ns = nanoseconds(model.load);
            start(open, Box::new(model), load_ns)
        }
        Command::OpenDag {
            case,
            nodes,
            threads,
        } => {
            *open = None;
            if !(2..=1_000_000).contains(&nodes) {
                bail!("{nodes} nodes; expected 2 to 1000000");
            }
            let (work, load) = timed(|| Additions::open(case, nodes, threads as usize));
            start(open, Box::new(work?), nanoseconds(load))
        }
        #[cfg(any(feature = "cuda", feature = "opencl"))]
        Command::OpenMatmuls {
            side,
            dtype,
            threads,
            device,
        } => {
            *open = None;
            if !(1..=32_768).contains(&side) {
                bail!("matmuls of {side}; expected 1 to 32768");
            }
            let (matmuls, load) = timed(|| {
                let graph = match dtype {
                    MatmulType::Float32 => BenchGraph::matmuls::<f32>(side, true),
                    MatmulType::Bfloat16 => BenchGraph::matmuls::<half::bf16>(side, true),
                };
                one_device(registry, threads, &device)?.open_run(&graph?)
            });
            start(open, Box::new(matmuls?), nanoseconds(load))
        }
        #[cfg(any(feature = "cuda", feature = "opencl"))]
        Command::OpenCopies {
            bytes,
            way,
            threads,
            device,
        } => {
            *open = None;
            if !(1..=4 << 30).contains(&bytes) {
                bail!("copies of {bytes} bytes; expected 1 to 2^32");
            }
            let (copies, load) =
                timed(|| Copies::open(one_device(registry, threads, &device)?, bytes, way));
            start(open, Box::new(copies?), nanoseconds(load))
        }
        Command::Turn { ms } => {
            let times = repeat(opened(open)?, duration(ms)?)?;
            let min_ns = times.iter().min().copied().map_or(0, nanoseconds);
            let timing = Timing::new(times[0], times);
            Ok(json!({
                "runs": timing.n_runs,
                "median_ns": timing.median_ns,
                "p90_ns": timing.p90_ns,
                "min_ns": min_ns,
            }))
        }
        Command::Serve { ms, callers } => {
            if callers == 0 {
                bail!("0 callers; expected 1 at least");
            }
            let served = serve(opened(open)?, callers.into(), duration(ms)?)?;
            Ok(json!({
                "runs": served.n_requests,
                "requests_per_s": served.requests_per_s,
                "p50_ns": served.p50_ns,
                "p99_ns": served.p99_ns,
            }))
        }
        Command::Close => {
            *open = None;
            Ok(json!({}))
        }
    }
}

/// Adds a device besides CPUs, and returns its name.
fn with_device(devices: &mut DeviceOptions, device: &str) -> Result<DeviceName> {
    let name = DeviceName::parse_full_or_local(device);
    let name = name.with_context(|| "`device`")?;
    let (Some(device_type), Some(index)) = (&name.device_type, name.index) else {
        bail!("`device`: `{device}` has no type and number; expected a name such as GPU:0");
    };
    let count = devices.device_count.entry(device_type.to_string());
    let count = count.or_default();
    *count = index.saturating_add(1).max(*count);
    // Other frameworks use the card as well.
    devices.gpu.allow_growth = true;
    Ok(name)
}

/// Opens the devices, one of which does the work.
#[cfg(any(feature = "cuda", feature = "opencl"))]
fn one_device(registry: &Registry, threads: u32, device: &str) -> Result<Devices> {
    let mut devices = only_cpu(threads as usize);
    with_device(&mut devices, device)?;
    let setup = ModelSetup {
        registry: registry.clone(),
        policy: None,
        devices,
        inter_op_threads: threads as usize,
        scope: None,
        allow_soft_placement: false,
        tolerance: Tolerance {
            atol: tolerance(),
            rtol: tolerance(),
        },
    };
    Devices::open(&setup, device)
}

fn start(open: &mut Option<Box<dyn Work>>, work: Box<dyn Work>, load_ns: u64) -> Result<Value> {
    let first = work.run(0)?;
    *open = Some(work);
    Ok(json!({ "load_ns": load_ns, "first_ns": nanoseconds(first) }))
}

fn opened(open: &Option<Box<dyn Work>>) -> Result<&dyn Work> {
    open.as_deref()
        .context("nothing is open; send `open-model` or `open-dag` first")
}

fn duration(ms: u64) -> Result<Duration> {
    if ms > TURN_MS_MAX {
        bail!("{ms} ms; expected {TURN_MS_MAX} at most");
    }
    Ok(Duration::from_millis(ms))
}
