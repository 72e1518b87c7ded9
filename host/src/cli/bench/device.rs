//! `bench device`: the speed of a device through this program, compared with the same work
//! submitted directly to its driver, and whole models compared with the CPU device.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use clap::ValueEnum;
use clap::ValueHint;

use super::Report;
use super::graphs::BenchGraph;
use super::graphs::Elementwise;
use super::graphs::N_KERNELS;
use super::graphs::ROW;
use super::model::ModelArgs;
use super::one_device::Devices;
use super::one_device::against_cpu;
use super::turns::Other;
use super::turns::Row;
use super::turns::Turns;
use super::turns::Unit;
use super::turns::count;
use super::turns::raw;
use super::turns::show;
use crate::backend::opencl::Reference;
use crate::cli::Outcome;
use crate::cli::UsageError;
use crate::cli::output::Output;
use crate::cli::progress::Progress;
use crate::registry::Registry;

/// Bytes of the transferred tensors: small ones are copied on every device; large ones are shared
/// by devices that use the host's memory.
const TRANSFERS_BYTES: [usize; 3] = [4 << 10, 1 << 20, 16 << 20];

#[derive(Debug, Args)]
pub(in crate::cli) struct DeviceBench {
    /// The device.
    #[arg(value_name = "SYCL:I", default_value = "SYCL:0")]
    device: String,
    /// Parts to measure.
    #[arg(long, value_name = "WHAT,..", value_delimiter = ',', value_enum, default_values_t = Part::ALL)]
    parts: Vec<Part>,
    /// Rounds; each side has a turn in each.
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Rows and columns of the matrices of matmuls, in units of 16.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1024))]
    tiles: u32,
    /// Elements of the tensors of elementwise kernels, in units of 1,024.
    #[arg(long, value_name = "N", default_value_t = 16 << 10, value_parser = clap::value_parser!(u32).range(1..=(1 << 20)))]
    kibi_elements: u32,
    /// Kernels in the chain of tiny kernels.
    #[arg(long, value_name = "N", default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    chain: u32,
    /// Models that are compared with the CPU device, with archives beside them. Repeatable.
    #[arg(long, value_name = "MODEL.pb", value_hint = ValueHint::FilePath, default_value = "tests/models/bert_tiny.skel.pb")]
    model: Vec<PathBuf>,
    #[command(flatten)]
    options: ModelArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Matmuls of square matrices, compared with a kernel with tiles of 8 x 16 in registers.
    Matmuls,
    /// Additions, multiplications and activations in bytes per second, compared with a kernel that
    /// copies.
    Elementwise,
    /// A chain of tiny kernels, compared with enqueuing the same kernels one by one.
    Launches,
    /// Copies to the device and from it, compared with enqueuing the same copies and waiting.
    Transfers,
    /// A network of convolutions and models, compared with CPU:0.
    Models,
}

impl Part {
    const ALL: [Self; 5] = [
        Self::Matmuls,
        Self::Elementwise,
        Self::Launches,
        Self::Transfers,
        Self::Models,
    ];
}

/// Runs the command.
pub(super) fn run(args: &DeviceBench, registry: &Registry, output: &mut Output) -> Result<Outcome> {
    let index = index(&args.device)?;
    let setup = args.options.setup(registry, None)?;
    let bench = Bench {
        args,
        registry,
        devices: Devices::open(&setup, &args.device)?,
        reference: Reference::open(index)?,
        turns: Turns {
            n_rounds: args.rounds,
        },
        progress: Progress::steps(args.parts.len() as u64, "measuring"),
    };
    let mut rows = Vec::new();
    for part in &args.parts {
        match part {
            Part::Matmuls => bench.matmuls(&mut rows)?,
            Part::Elementwise => bench.elementwise(&mut rows)?,
            Part::Launches => bench.launches(&mut rows)?,
            Part::Transfers => bench.transfers(&mut rows)?,
            Part::Models => bench.models(&mut rows)?,
        }
        bench.progress.advance();
    }
    drop(bench);
    show(&rows, output)?;
    output.json(&Report {
        bench: "device",
        rows,
    })?;
    Ok(Outcome::Done)
}

/// The index of a device of type SYCL.
fn index(device: &str) -> Result<usize> {
    let index = device
        .strip_prefix("SYCL:")
        .and_then(|index| index.parse().ok());
    index.ok_or_else(|| {
        UsageError(format!(
            "`{device}` is not a SYCL device; expected SYCL:0 or another index"
        ))
        .into()
    })
}

struct Bench<'a> {
    args: &'a DeviceBench,
    registry: &'a Registry,
    devices: Devices,
    reference: Reference,
    turns: Turns,
    progress: Progress,
}

impl Bench<'_> {
    fn matmuls(&self, rows: &mut Vec<Row>) -> Result<()> {
        let side = 16 * self.args.tiles as usize;
        self.progress.set_message(format!("matmuls of {side}"));
        let kinds = [
            ("weights", BenchGraph::matmuls::<f32>(side, true)),
            ("computed operands", BenchGraph::matmuls::<f32>(side, false)),
        ];
        for (kind, graph) in kinds {
            let run = self.devices.open_run(&graph?)?;
            rows.push(self.turns.against(
                format!("matmul of {side}, {kind}"),
                run.side()?,
                Other::new(
                    "tiles in registers",
                    raw(self.reference.matmuls(side, N_KERNELS)?),
                ),
                Unit::Flops(2.0 * count(side).powi(3) * count(N_KERNELS)),
            )?);
        }
        Ok(())
    }

    fn elementwise(&self, rows: &mut Vec<Row>) -> Result<()> {
        let n_rows = self.args.kibi_elements as usize;
        let bytes = 4.0 * count(n_rows * ROW) * count(N_KERNELS);
        for case in Elementwise::ALL {
            self.progress.set_message(case.name());
            let run = self
                .devices
                .open_run(&BenchGraph::elementwise(case, n_rows)?)?;
            rows.push(self.turns.against(
                format!("{} of {n_rows} x {ROW} floats", case.name()),
                run.side()?,
                Other::new(
                    "copy kernel",
                    raw(self.reference.copies(n_rows * ROW, N_KERNELS)?),
                ),
                Unit::Bytes(case.n_streams() * bytes, 2.0 * bytes),
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
            Other::new("enqueued one by one", raw(self.reference.launches(n)?)),
            Unit::Kernels(count(n)),
        )?);
        Ok(())
    }

    fn transfers(&self, rows: &mut Vec<Row>) -> Result<()> {
        for len_bytes in TRANSFERS_BYTES {
            let kib = len_bytes >> 10;
            self.progress.set_message(format!("copies of {kib} KiB"));
            rows.push(self.turns.against(
                format!("{kib} KiB to the device"),
                self.devices.copy_there(len_bytes)?,
                Other::new("enqueue and wait", raw(self.reference.write(len_bytes)?)),
                Unit::Turns,
            )?);
            rows.push(self.turns.against(
                format!("{kib} KiB from the device"),
                self.devices.copy_back(len_bytes)?,
                Other::new("enqueue and wait", raw(self.reference.read(len_bytes)?)),
                Unit::Turns,
            )?);
        }
        Ok(())
    }

    fn models(&self, rows: &mut Vec<Row>) -> Result<()> {
        self.progress.set_message("convolutions");
        let graph = BenchGraph::convolutions()?;
        let [own, other] = [
            self.devices.open_run(&graph)?,
            self.devices.open_cpu(&graph)?,
        ];
        rows.push(self.turns.against(
            "4 convolutions 3x3 of 56x56x64".to_owned(),
            own.side()?,
            Other::new("CPU:0", other.side()?),
            Unit::Turns,
        )?);
        for graph in &self.args.model {
            self.progress.set_message(graph.display().to_string());
            let setup = |device: &str| self.args.options.setup(self.registry, Some(device));
            rows.push(against_cpu(self.turns, graph, &self.args.device, setup)?);
        }
        Ok(())
    }
}
