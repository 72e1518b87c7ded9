//! `bench device`: what a device gives through this program, against the same work given straight to its driver, and whole models
//! against the CPU device.
//!
//! The two sides take turns, and change who begins; a row's ratio is the median of what each round gave.

mod graphs;
mod sides;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use clap::ValueEnum;
use clap::ValueHint;
use serde::Serialize;

use self::graphs::BenchGraph;
use self::graphs::Elementwise;
use self::graphs::ROW;
use self::sides::Devices;
use super::Report;
use super::model::Model;
use super::model::ModelArgs;
use super::model::archive_beside;
use super::work::Work;
use super::work::settle;
use crate::backend::opencl::Rounds;
use crate::backend::opencl::Yardstick;
use crate::cli::Outcome;
use crate::cli::UsageError;
use crate::cli::output::Output;
use crate::cli::output::align_right;
use crate::cli::output::new_table;
use crate::cli::progress::Progress;
use crate::cli::timing::median;
use crate::cli::timing::nanoseconds_f64;
use crate::cli::units::show_ns;

/// Products or elementwise kernels in one run, so that what a run costs once does not count.
const N_KERNELS: usize = 8;

/// Bytes of the tensors that are transferred: some that are copied everywhere, and some that devices in the host's memory share.
const TRANSFERS_BYTES: [usize; 3] = [4 << 10, 1 << 20, 16 << 20];

#[derive(Debug, Args)]
pub(in crate::cli) struct DeviceBench {
    /// The device.
    #[arg(value_name = "SYCL:I", default_value = "SYCL:0")]
    device: String,
    /// What is measured.
    #[arg(long, value_name = "WHAT,..", value_delimiter = ',', value_enum, default_values_t = Part::ALL)]
    parts: Vec<Part>,
    /// Rounds, in which both sides have a turn.
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Rows and columns of the matrices that are multiplied, in units of 16.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1024))]
    tiles: u32,
    /// Elements of the tensors of elementwise kernels, in units of 1,024.
    #[arg(long, value_name = "N", default_value_t = 16 << 10, value_parser = clap::value_parser!(u32).range(1..=(1 << 20)))]
    kibi_elements: u32,
    /// Kernels of the chain of tiny ones.
    #[arg(long, value_name = "N", default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    chain: u32,
    /// Models that run against the CPU device, with archives beside them.
    #[arg(long, value_name = "MODEL.pb", value_hint = ValueHint::FilePath, default_value = "tests/models/bert_tiny.skel.pb")]
    model: Vec<PathBuf>,
    #[command(flatten)]
    options: ModelArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Products of square matrices, against a kernel with tiles of 8 x 16 in registers.
    Products,
    /// Additions, multiplications and activations in bytes per second, against a kernel that copies.
    Elementwise,
    /// A chain of tiny kernels, against the same enqueued one after the other.
    Launches,
    /// Copies to the device and from it, against the same enqueued and waited for.
    Transfers,
    /// A network of convolutions and models, against CPU:0.
    Models,
}

impl Part {
    const ALL: [Self; 5] = [
        Self::Products,
        Self::Elementwise,
        Self::Launches,
        Self::Transfers,
        Self::Models,
    ];
}

#[derive(Debug, Serialize)]
struct Row {
    case: String,
    /// What the device is held against.
    against: &'static str,
    /// Median times of a turn.
    ns: f64,
    against_ns: f64,
    unit: Unit,
    /// How many times as fast as the other: above 1 is faster. The median of the rounds'.
    speed_ratio: f64,
}

/// What a turn's time means.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
enum Unit {
    /// Floating-point operations of a turn.
    Flops(f64),
    /// Bytes that a turn moves, ours and the other's: speeds are compared, not times.
    Bytes(f64, f64),
    /// Kernels of a turn.
    Kernels(f64),
    /// The turn is the unit.
    Turns,
}

impl Unit {
    /// What the times of one round say: our speed by the other's.
    fn speed_ratio(self, ours: f64, other: f64) -> f64 {
        match self {
            Self::Bytes(own_bytes, other_bytes) => (own_bytes / ours) / (other_bytes / other),
            _ => other / ours,
        }
    }

    fn show(self, ns: f64, is_own: bool) -> String {
        match self {
            Self::Flops(flops) => format!("{:.1} GFLOP/s", flops / ns),
            Self::Bytes(own, other) => {
                format!("{:.1} GB/s", if is_own { own } else { other } / ns)
            }
            Self::Kernels(n) => format!("{} each", show_ns(ns / n)),
            Self::Turns => show_ns(ns),
        }
    }
}

/// One side: works once and gives the time.
type Side<'a> = Box<dyn FnMut() -> Result<Duration> + 'a>;

/// Runs the command.
pub(super) fn run(args: &DeviceBench, output: &mut Output) -> Result<Outcome> {
    let index = index(&args.device)?;
    let bench = Bench {
        args,
        devices: Devices::open(&args.options, &args.device)?,
        yardstick: Yardstick::open(index)?,
        progress: Progress::steps(args.parts.len() as u64, "measuring"),
    };
    let mut rows = Vec::new();
    for part in &args.parts {
        match part {
            Part::Products => bench.products(&mut rows)?,
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
            "`{device}`: devices of type SYCL have a driver to be held against; expected SYCL:0 or another index"
        ))
        .into()
    })
}

struct Bench<'a> {
    args: &'a DeviceBench,
    devices: Devices,
    yardstick: Yardstick,
    progress: Progress,
}

impl Bench<'_> {
    fn products(&self, rows: &mut Vec<Row>) -> Result<()> {
        let side = 16 * self.args.tiles as usize;
        self.progress.set_message(format!("products of {side}"));
        let kinds = [
            ("weights", BenchGraph::products(side, true)),
            ("computed factors", BenchGraph::products(side, false)),
        ];
        for (kind, graph) in kinds {
            let run = self.devices.open_run(&graph?)?;
            rows.push(self.against(
                format!("product of {side}, {kind}"),
                "tiles in registers",
                run.side(),
                raw(self.yardstick.products(side, N_KERNELS)?),
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
            rows.push(self.against(
                format!("{} of {n_rows} x {ROW} floats", case.name()),
                "copy kernel",
                run.side(),
                raw(self.yardstick.copies(n_rows * ROW, N_KERNELS)?),
                Unit::Bytes(case.n_streams() * bytes, 2.0 * bytes),
            )?);
        }
        Ok(())
    }

    fn launches(&self, rows: &mut Vec<Row>) -> Result<()> {
        let n = self.args.chain as usize;
        self.progress.set_message(format!("chain of {n}"));
        let run = self.devices.open_run(&BenchGraph::chain(n)?)?;
        rows.push(self.against(
            format!("chain of {n} additions"),
            "enqueued one by one",
            run.side(),
            raw(self.yardstick.launches(n)?),
            Unit::Kernels(count(n)),
        )?);
        Ok(())
    }

    fn transfers(&self, rows: &mut Vec<Row>) -> Result<()> {
        for len_bytes in TRANSFERS_BYTES {
            let kib = len_bytes >> 10;
            self.progress.set_message(format!("copies of {kib} KiB"));
            rows.push(self.against(
                format!("{kib} KiB to the device"),
                "enqueue and wait",
                self.devices.copy_there(len_bytes)?,
                raw(self.yardstick.write(len_bytes)?),
                Unit::Turns,
            )?);
            rows.push(self.against(
                format!("{kib} KiB from the device"),
                "enqueue and wait",
                self.devices.copy_back(len_bytes)?,
                raw(self.yardstick.read(len_bytes)?),
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
        rows.push(self.against(
            "4 convolutions 3x3 of 56x56x64".to_owned(),
            "CPU:0",
            own.side(),
            other.side(),
            Unit::Turns,
        )?);
        for graph in &self.args.model {
            self.progress.set_message(graph.display().to_string());
            let archive = archive_beside(graph)?;
            let open = |device: &str| {
                let setup = self.args.options.setup(Some(device))?;
                let model = Model::open(graph, &archive, setup)?;
                settle(&model)?;
                anyhow::Ok(model)
            };
            let own = open(&format!("/device:{}", self.args.device))?;
            let other = open("/device:CPU:0")?;
            rows.push(self.against(
                own.name.clone(),
                "CPU:0",
                Box::new(|| own.run(0)),
                Box::new(|| other.run(0)),
                Unit::Turns,
            )?);
        }
        Ok(())
    }

    /// Lets both have their turns, who begins changing from round to round. The first rounds do not count: kernels are compiled
    /// then, and memory is made.
    fn against(
        &self,
        case: String,
        against: &'static str,
        mut own: Side<'_>,
        mut other: Side<'_>,
        unit: Unit,
    ) -> Result<Row> {
        const N_WARMUP: u32 = 2;
        let (mut owns, mut others, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..N_WARMUP + self.args.rounds {
            let (own, other) = if round % 2 == 0 {
                let own = own()?;
                (own, other()?)
            } else {
                let other = other()?;
                (own()?, other)
            };
            if round >= N_WARMUP {
                owns.push(own);
                others.push(other);
                ratios.push(unit.speed_ratio(nanoseconds_f64(own), nanoseconds_f64(other)));
            }
        }
        ratios.sort_unstable_by(f64::total_cmp);
        Ok(Row {
            case,
            against,
            ns: nanoseconds_f64(median(&mut owns)),
            against_ns: nanoseconds_f64(median(&mut others)),
            unit,
            speed_ratio: ratios[ratios.len() / 2],
        })
    }
}

fn raw(mut rounds: Rounds<'_>) -> Side<'_> {
    Box::new(move || Ok(rounds()?))
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
fn count(n: usize) -> f64 {
    n as f64
}

fn show(rows: &[Row], output: &mut Output) -> Result<()> {
    let mut table = new_table([
        "case",
        "time",
        "speed",
        "against",
        "its time",
        "its speed",
        "ratio",
    ]);
    align_right(&mut table, &[1, 2, 4, 5, 6]);
    for row in rows {
        table.add_row([
            row.case.clone(),
            show_ns(row.ns),
            row.unit.show(row.ns, true),
            row.against.to_owned(),
            show_ns(row.against_ns),
            row.unit.show(row.against_ns, false),
            format!("{:.2}", row.speed_ratio),
        ]);
    }
    output.table(&table)?;
    output.line("ratio: our speed by the other's, the median of rounds in which both had a turn")
}
