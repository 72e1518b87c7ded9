//! `bench gpu`: the speed of a GPU through this program, compared with the same copies and launches
//! submitted directly to its driver; copies that overlap with matmuls, compared with one after the
//! other; and whole models, compared with the CPU device.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use clap::ValueEnum;
use clap::ValueHint;
use serde::Serialize;

use super::graphs::BOTH;
use super::graphs::BenchGraph;
use super::graphs::COPIED;
use super::graphs::N_KERNELS;
use super::model::ModelArgs;
use super::model::ModelSetup;
use super::one_device::Devices;
use super::one_device::against_cpu;
use super::turns::Other;
use super::turns::Row;
use super::turns::Side;
use super::turns::Turns;
use super::turns::Unit;
use super::turns::count;
use super::turns::raw;
use super::turns::show;
use crate::backend::cuda::DEVICE_TYPE;
use crate::backend::cuda::Reference;
use crate::backend::cuda::driver::GpuFacts;
use crate::cli::Outcome;
use crate::cli::UsageError;
use crate::cli::output::Output;
use crate::cli::progress::Progress;
use crate::cli::timing::median;
use crate::cli::timing::nanoseconds_f64;
use crate::cli::units::count as show_count;
use crate::cli::units::parse_bytes;
use crate::cli::units::show_bytes;
use crate::registry::Registry;
use crate::tensor::DType;
use crate::tensor::Shape;
use crate::tensor::Tensor;

/// Turns that determine how many matmuls take as long as a copy.
const N_TRIALS: usize = 5;

/// Most matmuls that overlap with a copy.
const N_BESIDE_MAX: f64 = 64.0;

#[derive(Debug, Args)]
pub(in crate::cli) struct GpuBench {
    /// The device.
    #[arg(value_name = "GPU:I", default_value = "GPU:0", value_parser = parse_device)]
    device: Device,
    /// Parts to measure.
    #[arg(long, value_name = "WHAT,..", value_delimiter = ',', value_enum, default_values_t = Part::ALL)]
    parts: Vec<Part>,
    /// Rounds; each side has a turn in each.
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Rows and columns of the matrices of matmuls; a quarter of it in part `overlap`.
    #[arg(long, value_name = "N", default_value_t = 8192, value_parser = clap::value_parser!(u32).range(16..=32_768))]
    side: u32,
    /// Channels of the images of convolutions; four times as many of the smaller images.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1024))]
    channels: u32,
    /// Sizes of the copied tensors, such as 64MiB; part `overlap` takes the last.
    #[arg(long, value_name = "BYTES,..", value_delimiter = ',', default_value = "4KiB,1MiB,64MiB", value_parser = parse_copy)]
    copies: Vec<usize>,
    /// Kernels in the chain of tiny kernels.
    #[arg(long, value_name = "N", default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    chain: u32,
    /// Models that are compared with the CPU device, with archives beside them. Repeatable.
    #[arg(long, value_name = "MODEL.pb", value_hint = ValueHint::FilePath, default_values = [
        "tests/models/mlp_b64.skel.pb",
        "tests/models/bert_tiny.skel.pb",
        "tests/models/lenet.pb",
        "tests/models/wide_branch.skel.pb",
    ])]
    model: Vec<PathBuf>,
    #[command(flatten)]
    options: ModelArgs,
}

/// A GPU device by its number.
#[derive(Debug, Clone, Copy)]
struct Device(u32);

impl Device {
    fn name(self) -> String {
        format!("{DEVICE_TYPE}:{}", self.0)
    }
}

fn parse_device(text: &str) -> Result<Device, String> {
    let number = text.strip_prefix("GPU:");
    let number = number.and_then(|number| number.parse().ok());
    number
        .filter(|&number| number < u32::MAX)
        .map(Device)
        .ok_or_else(|| format!("`{text}` is not a GPU device; expected GPU:0 or another number"))
}

fn parse_copy(text: &str) -> Result<usize, String> {
    let bytes = parse_bytes(text).map_err(|err| err.to_string())?;
    // Part `overlap` copies f32 values.
    let bytes = usize::try_from(bytes)
        .ok()
        .filter(|bytes| (4..=4 << 30).contains(bytes) && bytes % 4 == 0);
    bytes.ok_or_else(|| format!("`{text}`: expected 4 bytes to 4GiB, a multiple of 4"))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Matmuls of square matrices of f32 and bf16, in GFLOP/s.
    Matmuls,
    /// Convolutions of single images of f32 and bf16, in GFLOP/s.
    Convolutions,
    /// Copies to the GPU and from it, compared with pinned copies by the driver.
    Copies,
    /// A chain of tiny kernels, compared with launches by the driver.
    Launches,
    /// A copy from the host that overlaps with matmuls in one run, compared with one after the
    /// other.
    Overlap,
    /// Models, compared with CPU:0.
    Models,
}

impl Part {
    const ALL: [Self; 6] = [
        Self::Matmuls,
        Self::Convolutions,
        Self::Copies,
        Self::Launches,
        Self::Overlap,
        Self::Models,
    ];
}

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Report {
    bench: &'static str,
    /// Version of this program.
    version: &'static str,
    device: String,
    gpu: GpuRow,
    rows: Vec<Row>,
}

/// The GPU that was measured.
#[derive(Debug, Serialize)]
struct GpuRow {
    name: String,
    pci_bus_id: String,
    memory_bytes: u64,
    n_multiprocessors: u32,
    /// The architecture that kernels are compiled for.
    architecture: String,
    /// The driver and its version, and that of the compiler.
    driver: String,
}

impl GpuRow {
    fn new(facts: &GpuFacts) -> Self {
        let physical = &facts.physical;
        Self {
            name: physical.name.clone(),
            pci_bus_id: physical.pci_bus_id.clone(),
            memory_bytes: physical.total_bytes,
            n_multiprocessors: physical.n_multiprocessors,
            architecture: facts.architecture.clone(),
            driver: facts.driver.clone(),
        }
    }
}

/// Runs the command.
pub(super) fn run(args: &GpuBench, registry: &Registry, output: &mut Output) -> Result<Outcome> {
    if args.options.devices.sync_every_op {
        let wrong = "--sync-every-op: the benchmark measures a GPU while nobody waits for its kernels; leave the flag out";
        return Err(UsageError(wrong.to_owned()).into());
    }
    let devices = Devices::open(&setup(args, registry, None)?, &args.device.name())?;
    let reference = Reference::of(devices.device()?)?;
    let gpu = GpuRow::new(reference.facts());
    let bench = Bench {
        args,
        registry,
        devices,
        reference,
        turns: Turns {
            n_rounds: args.rounds,
        },
        progress: Progress::steps(args.parts.len() as u64, "measuring"),
    };
    let mut rows = Vec::new();
    for part in &args.parts {
        match part {
            Part::Matmuls => bench.matmuls(&mut rows)?,
            Part::Convolutions => bench.convolutions(&mut rows)?,
            Part::Copies => bench.copies(&mut rows)?,
            Part::Launches => bench.launches(&mut rows)?,
            Part::Overlap => bench.overlap(&mut rows)?,
            Part::Models => bench.models(&mut rows)?,
        }
        bench.progress.advance();
    }
    drop(bench);
    output.line(format_args!(
        "{}: {}, {}, {}",
        args.device.name(),
        gpu.name,
        gpu.architecture,
        gpu.driver
    ))?;
    show(&rows, output)?;
    output.json(&Report {
        bench: "gpu",
        version: env!("CARGO_PKG_VERSION"),
        device: args.device.name(),
        gpu,
        rows,
    })?;
    Ok(Outcome::Done)
}

/// The setup of models. GPUs are requested explicitly, so that a machine without one reports why.
fn setup(args: &GpuBench, registry: &Registry, scope: Option<&str>) -> Result<ModelSetup> {
    let mut setup = args.options.setup(registry, scope)?;
    let count = setup.devices.device_count.entry(DEVICE_TYPE.to_owned());
    count.or_insert(args.device.0 + 1);
    Ok(setup)
}

struct Bench<'a> {
    args: &'a GpuBench,
    registry: &'a Registry,
    devices: Devices,
    reference: Reference,
    turns: Turns,
    progress: Progress,
}

impl Bench<'_> {
    fn matmuls(&self, rows: &mut Vec<Row>) -> Result<()> {
        let side = self.args.side as usize;
        let flops = 2.0 * count(side).powi(3) * count(N_KERNELS);
        self.progress.set_message(format!("matmuls of {side}"));
        for (name, graph) in [
            ("float", BenchGraph::matmuls::<f32>(side, true)),
            ("bfloat16", BenchGraph::matmuls::<half::bf16>(side, true)),
        ] {
            let run = self.devices.open_run(&graph?)?;
            rows.push(self.turns.alone(
                format!("matmul of {side}, {name}"),
                run.side()?,
                Unit::Flops(flops),
            )?);
        }
        Ok(())
    }

    fn convolutions(&self, rows: &mut Vec<Row>) -> Result<()> {
        let channels = self.args.channels as usize;
        for sizes in [
            [56, channels, 3],
            [14, 4 * channels, 3],
            [14, 4 * channels, 1],
        ] {
            let [side, channels, taps] = sizes;
            let name = format!("convolution of {side} x {side} x {channels}, {taps} x {taps}");
            self.progress.set_message(name.clone());
            let flops = 2.0 * count(side * side * taps * taps) * count(channels).powi(2);
            for (dtype, graph) in [
                ("float", BenchGraph::convolved::<f32>(sizes)),
                ("bfloat16", BenchGraph::convolved::<half::bf16>(sizes)),
            ] {
                let run = self.devices.open_run(&graph?)?;
                rows.push(self.turns.alone(
                    format!("{name}, {dtype}"),
                    run.side()?,
                    Unit::Flops(flops * count(N_KERNELS)),
                )?);
            }
        }
        Ok(())
    }

    fn copies(&self, rows: &mut Vec<Row>) -> Result<()> {
        const PINNED: &str = "pinned, by the driver";
        for &len_bytes in &self.args.copies {
            let text = show_bytes(len_bytes as u64);
            self.progress.set_message(format!("copies of {text}"));
            let unit = Unit::Bytes(count(len_bytes), count(len_bytes));
            let to = || -> Result<Other<'_>> {
                Ok(Other::new(PINNED, raw(self.reference.write(len_bytes)?)))
            };
            rows.push(self.turns.against(
                format!("{text} to the device, pinned"),
                self.devices.copy_pinned_there(len_bytes)?,
                to()?,
                unit,
            )?);
            rows.push(self.turns.against(
                format!("{text} to the device, pageable"),
                self.devices.copy_there(len_bytes)?,
                to()?,
                unit,
            )?);
            rows.push(self.turns.against(
                format!("{text} from the device"),
                self.devices.copy_back(len_bytes)?,
                Other::new(PINNED, raw(self.reference.read(len_bytes)?)),
                unit,
            )?);
        }
        Ok(())
    }

    fn launches(&self, rows: &mut Vec<Row>) -> Result<()> {
        let n = self.args.chain as usize;
        self.progress.set_message(format!("chain of {n}"));
        let run = self.devices.open_run(&BenchGraph::chain(n)?)?;
        rows.push(self.turns.against(
            format!("chain of {n} additions"),
            run.side()?,
            Other::new("launched one by one", raw(self.reference.launches(n)?)),
            Unit::Kernels(count(n)),
        )?);
        Ok(())
    }

    /// A ratio of 1 means no overlap, 2 means full overlap.
    fn overlap(&self, rows: &mut Vec<Row>) -> Result<()> {
        let Some(&len_bytes) = self.args.copies.last() else {
            return Ok(());
        };
        let side = (self.args.side / 4) as usize;
        let text = show_bytes(len_bytes as u64);
        self.progress
            .set_message(format!("{text} beside matmuls of {side}"));
        let floats = vec![1f32; len_bytes / DType::F32.size_bytes().unwrap_or(4)];
        let pinned = Tensor::from_values(Shape::new(&[floats.len()]), &floats)?;
        let pinned = self.devices.pinned(&pinned)?;
        let feeds = || vec![("x", pinned.clone())];
        // As many matmuls as take about as long as the copy.
        let n = {
            let run = self.devices.open_run(&BenchGraph::overlap(side, 1)?)?;
            let copy = median_of(run.side_to(feeds(), COPIED)?)?;
            let matmul = median_of(run.side()?)?;
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "between 1 and 64"
            )]
            let n = (copy / matmul).round().clamp(1.0, N_BESIDE_MAX) as usize;
            n
        };
        let run = self.devices.open_run(&BenchGraph::overlap(side, n)?)?;
        let (mut copy, mut matmuls) = (run.side_to(feeds(), COPIED)?, run.side()?);
        let apart: Side<'_> = Box::new(move || Ok(copy()? + matmuls()?));
        rows.push(self.turns.against(
            format!(
                "{text} from the host and {} of {side}, overlapping",
                show_count(n, "matmul")
            ),
            run.side_to(feeds(), BOTH)?,
            Other::new("one after the other", apart),
            Unit::Turns,
        )?);
        Ok(())
    }

    fn models(&self, rows: &mut Vec<Row>) -> Result<()> {
        for graph in &self.args.model {
            self.progress.set_message(graph.display().to_string());
            let setup = |device: &str| setup(self.args, self.registry, Some(device));
            rows.push(against_cpu(
                self.turns,
                graph,
                &self.args.device.name(),
                setup,
            )?);
        }
        Ok(())
    }
}

fn median_of(mut side: Side<'_>) -> Result<f64> {
    let times: Result<Vec<Duration>> = (0..N_TRIALS).map(|_| side()).collect();
    Ok(nanoseconds_f64(median(&mut times?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_and_copies_are_checked_before_anything_is_opened() {
        assert_eq!(
            parse_device("GPU:3").map(Device::name),
            Ok("GPU:3".to_owned())
        );
        for text in ["CPU:0", "GPU", "GPU:", "GPU:x", "GPU:4294967295"] {
            assert!(
                parse_device(text).is_err_and(|err| err.contains("expected GPU:0")),
                "{text}"
            );
        }
        assert_eq!(parse_copy("64KiB"), Ok(64 << 10));
        for text in ["0", "3", "6", "5GiB", "much"] {
            assert!(parse_copy(text).is_err(), "{text}");
        }
    }
}
