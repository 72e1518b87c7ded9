//! `bench gpu`: what a GPU gives through this program, against the same bytes and launches given
//! straight to its driver, copies and products at one time against one after the other, and whole
//! models against the CPU device.

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

/// Turns that say how many products take as long as a copy.
const N_TRIALS: usize = 5;

/// Products that are given beside a copy at most.
const N_BESIDE_MAX: f64 = 64.0;

#[derive(Debug, Args)]
pub(in crate::cli) struct GpuBench {
    /// The device.
    #[arg(value_name = "GPU:I", default_value = "GPU:0", value_parser = parse_device)]
    device: Device,
    /// What is measured.
    #[arg(long, value_name = "WHAT,..", value_delimiter = ',', value_enum, default_values_t = Part::ALL)]
    parts: Vec<Part>,
    /// Rounds, in which both sides have a turn.
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Rows and columns of the matrices that are multiplied; a quarter of it beside copies.
    #[arg(long, value_name = "N", default_value_t = 8192, value_parser = clap::value_parser!(u32).range(16..=32_768))]
    side: u32,
    /// Bytes of the tensors that are copied, such as 64MiB; the last of them beside products.
    #[arg(long, value_name = "BYTES,..", value_delimiter = ',', default_value = "4KiB,1MiB,64MiB", value_parser = parse_copy)]
    copies: Vec<usize>,
    /// Kernels of the chain of tiny ones.
    #[arg(long, value_name = "N", default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    chain: u32,
    /// Models that run against the CPU device, with archives beside them.
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
        .ok_or_else(|| format!("`{text}` is no GPU device; expected GPU:0 or another number"))
}

fn parse_copy(text: &str) -> Result<usize, String> {
    let bytes = parse_bytes(text).map_err(|err| err.to_string())?;
    // What is copied beside products are floats.
    let bytes = usize::try_from(bytes)
        .ok()
        .filter(|bytes| (4..=4 << 30).contains(bytes) && bytes % 4 == 0);
    bytes.ok_or_else(|| format!("`{text}`: expected 4 bytes to 4GiB, a multiple of 4"))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Products of square matrices of float and bfloat16, in GFLOP/s.
    Products,
    /// Copies to the GPU and from it, against pinned ones that the driver is given.
    Copies,
    /// A chain of tiny kernels, against launches that the driver is given.
    Launches,
    /// A copy from the host and products in one run, against one after the other.
    Overlap,
    /// Models, against CPU:0.
    Models,
}

impl Part {
    const ALL: [Self; 5] = [
        Self::Products,
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
    /// What programs are compiled for.
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
        let wrong =
            "--sync-every-op: what is measured is what a GPU does while nobody waits; leave it out";
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
            Part::Products => bench.products(&mut rows)?,
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

/// How models are opened. GPUs are asked for, so that a machine without says why it has none.
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
    fn products(&self, rows: &mut Vec<Row>) -> Result<()> {
        let side = self.args.side as usize;
        let flops = 2.0 * count(side).powi(3) * count(N_KERNELS);
        self.progress.set_message(format!("products of {side}"));
        for (name, graph) in [
            ("float", BenchGraph::products::<f32>(side, true)),
            ("bfloat16", BenchGraph::products::<half::bf16>(side, true)),
        ] {
            let run = self.devices.open_run(&graph?)?;
            rows.push(self.turns.alone(
                format!("product of {side}, {name}"),
                run.side()?,
                Unit::Flops(flops),
            )?);
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

    /// A ratio of 1 is no overlap; of 2, everything.
    fn overlap(&self, rows: &mut Vec<Row>) -> Result<()> {
        let Some(&len_bytes) = self.args.copies.last() else {
            return Ok(());
        };
        let side = (self.args.side / 4) as usize;
        let text = show_bytes(len_bytes as u64);
        self.progress
            .set_message(format!("{text} beside products of {side}"));
        let floats = vec![1f32; len_bytes / DType::F32.size_bytes().unwrap_or(4)];
        let pinned = Tensor::from_values(Shape::new(&[floats.len()]), &floats)?;
        let pinned = self.devices.pinned(&pinned)?;
        let feeds = || vec![("x", pinned.clone())];
        // As many products as take about as long as the copy.
        let n = {
            let run = self.devices.open_run(&BenchGraph::overlap(side, 1)?)?;
            let copy = median_of(run.side_to(feeds(), COPIED)?)?;
            let product = median_of(run.side()?)?;
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "between 1 and 64"
            )]
            let n = (copy / product).round().clamp(1.0, N_BESIDE_MAX) as usize;
            n
        };
        let run = self.devices.open_run(&BenchGraph::overlap(side, n)?)?;
        let (mut copy, mut products) = (run.side_to(feeds(), COPIED)?, run.side()?);
        let apart: Side<'_> = Box::new(move || Ok(copy()? + products()?));
        rows.push(self.turns.against(
            format!(
                "{text} from the host and {} of {side}, at one time",
                show_count(n, "product")
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
