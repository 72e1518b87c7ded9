//! `bench dispatch`: what executing an op costs besides its arithmetic.
//!
//! The graphs are scalar additions, each a kernel call of its own: nothing is fused, folded or left
//! out, and the recorder counts the calls of one run. METG(50%) is as Task Bench defines it: the
//! smallest mean duration of a task at which half of the time of the threads that could be busy
//! goes into tasks. A last table shows the cost of listening ([`super::tracing`]).

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::time::Instant;

use anyhow::Result;
use clap::Args;
use serde::Serialize;

use super::Report;
use super::dag::Additions;
use super::dag::Case;
use super::dag::graph;
use super::dag::session;
use super::tracing;
use super::tracing::TracingRow;
use super::work::Work;
use super::work::settle;
use crate::cli::Outcome;
use crate::cli::output::Output;
use crate::cli::progress::Progress;
use crate::cli::timing::median;
use crate::cli::timing::nanoseconds_f64;
use crate::cli::timing::timed;
use crate::device::Kernel;
use crate::device::KernelContext;
use crate::device::KernelDef;
use crate::device::KernelError;
use crate::execute::N_RUNS_TO_SETTLE;
use crate::execute::RunOptions;
use crate::tensor::Shape;
use crate::tensor::Tensor;
use crate::trace::EventKind;
use crate::trace::Recorder;

/// Nodes of the graphs that METG is measured on.
const METG_NODES: u32 = 2_000;

/// Range of task durations in which METG is searched, in ns.
const METG_RANGE_NS: (f64, f64) = (5.0, 20_000.0);

#[derive(Debug, Args)]
pub(in crate::cli) struct DispatchBench {
    /// Nodes of the graphs.
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(2..=1_000_000))]
    nodes: u32,
    /// Numbers of threads that one run may use, one row each.
    #[arg(
        long,
        value_name = "N,..",
        value_delimiter = ',',
        default_values_t = [1, 2],
        value_parser = clap::value_parser!(u16).range(1..=1_024)
    )]
    threads: Vec<u16>,
    /// Runs per row; the median counts. A third of them when the cost of tracing is measured.
    #[arg(long, value_name = "N", default_value_t = 101, value_parser = clap::value_parser!(u32).range(1..))]
    repetitions: u32,
}

#[derive(Debug, Serialize)]
struct Row {
    case: &'static str,
    nodes: u32,
    threads: usize,
    ns_per_node: f64,
    /// The shortest run.
    best_ns_per_node: f64,
    /// Kernel calls of one run, as the recorder counted them.
    kernels: usize,
    /// METG(50%) of tasks with these edges; `null` if no duration reaches it.
    metg50_ns: Option<f64>,
}

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct DispatchReport {
    #[serde(flatten)]
    report: Report<Row>,
    tracing: Vec<TracingRow>,
}

/// Runs the benchmark.
pub(super) fn run(args: &DispatchBench, output: &mut Output) -> Result<Outcome> {
    let n_steps = (Case::ALL.len() + 1) * args.threads.len();
    let progress = Progress::steps(n_steps as u64, "dispatching");
    let ns_per_iteration = calibrate();
    let mut rows = Vec::new();
    show_head(output)?;
    for case in Case::ALL {
        for threads in args.threads.iter().copied().map(usize::from) {
            progress.set_message(format!("{}, {threads} threads", case.name()));
            let row = measure(case, threads, args, ns_per_iteration)?;
            progress.advance();
            progress.suspend(|| show_row(&row, output))?;
            rows.push(row);
        }
    }
    let mut tracing_rows = Vec::new();
    for threads in args.threads.iter().copied().map(usize::from) {
        progress.set_message(format!("cost of tracing, {threads} threads"));
        // A run is some hundred times as long as those above.
        let repetitions = args.repetitions.div_ceil(3);
        let open = |graph| session(graph, threads, &[]);
        tracing_rows.push(tracing::measure(args.nodes, threads, repetitions, open)?);
        progress.advance();
    }
    drop(progress);
    tracing::show(&tracing_rows, output)?;
    output.json(&DispatchReport {
        report: Report {
            bench: "dispatch",
            rows,
        },
        tracing: tracing_rows,
    })?;
    Ok(Outcome::Done)
}

fn measure(case: Case, threads: usize, args: &DispatchBench, ns_per_iteration: f64) -> Result<Row> {
    let n_nodes = args.nodes.min(case.n_nodes_max());
    let work = Additions::open(case, n_nodes, threads)?;
    settle(&work)?;
    let times: Result<Vec<_>> = (0..args.repetitions.into())
        .map(|repetition| work.run(repetition))
        .collect();
    let mut times = times?;
    let recorder = Recorder::on();
    work.run_with(1.0, &RunOptions::default().with_recorder(recorder.clone()))?;
    let is_addition = |node| work.graph().op(node) == "AddV2";
    let kernels = recorder
        .events()
        .into_iter()
        .filter(|event| matches!(event.kind, EventKind::Kernel { node, .. } if is_addition(node)));
    let kernels = kernels.count();
    anyhow::ensure!(
        kernels == n_nodes as usize,
        "{kernels} kernels ran, not {n_nodes}"
    );
    let per_node = |time: Duration| nanoseconds_f64(time) / f64::from(n_nodes);
    Ok(Row {
        case: case.name(),
        nodes: n_nodes,
        threads,
        ns_per_node: per_node(median(&mut times)),
        best_ns_per_node: per_node(times[0]),
        kernels,
        metg50_ns: metg(case, threads, ns_per_iteration)?,
    })
}

/// Searches the duration of a task at which half of the threads' time goes into tasks, by
/// bisection.
fn metg(case: Case, threads: usize, ns_per_iteration: f64) -> Result<Option<f64>> {
    let n_busy = threads.min(case.width());
    let efficiency = |grain_ns: f64| -> Result<f64> {
        let n_iterations = (grain_ns / ns_per_iteration).floor().max(1.0);
        let iterations = Arc::new(AtomicU64::new(to_u64(n_iterations)));
        let kernel = KernelDef::new("Spin", "CPU").with_factory(move |_| {
            let iterations = Arc::clone(&iterations);
            Ok(Box::new(Spin { iterations }))
        });
        let session = session(graph(case, METG_NODES, "Spin"), threads, &[kernel])?;
        let mut times = Vec::new();
        for repetition in 0..N_RUNS_TO_SETTLE + 5 {
            let fed = Tensor::from_values(Shape::scalar(), &[1f32])?;
            let (fetched, time) =
                timed(|| session.run_with(&[("x", fed)], &[], &["done"], &RunOptions::default()));
            fetched?;
            if repetition >= N_RUNS_TO_SETTLE {
                times.push(time);
            }
        }
        // Of whole iterations: short grains have few of them.
        let grain_ns = n_iterations * ns_per_iteration;
        let ideal = f64::from(METG_NODES) * grain_ns / to_f64(n_busy);
        Ok(ideal / nanoseconds_f64(median(&mut times)))
    };
    let (mut low, mut high) = METG_RANGE_NS;
    if efficiency(high)? < 0.5 {
        return Ok(None);
    }
    while high / low > 1.1 {
        let middle = (low * high).sqrt();
        if efficiency(middle)? < 0.5 {
            low = middle;
        } else {
            high = middle;
        }
    }
    Ok(Some((low * high).sqrt()))
}

/// A task of adjustable duration.
struct Spin {
    iterations: Arc<AtomicU64>,
}

impl Kernel for Spin {
    fn compute(&self, context: &mut KernelContext<'_>) -> Result<(), KernelError> {
        let x = context.input(0)?.as_slice::<f32>()?[0];
        context.fill_output(0, &Shape::scalar(), |out: &mut [f32]| {
            out[0] = spin(x, self.iterations.load(Ordering::Relaxed));
            Ok(())
        })
    }
}

/// A chain of dependent additions.
#[inline(never)]
fn spin(x: f32, iterations: u64) -> f32 {
    (0..iterations).fold(x, |sum, _| black_box(sum + 1e-9))
}

/// Returns the time of one of them, in ns.
fn calibrate() -> f64 {
    const N: u32 = 2_000_000;
    let mut times: Vec<Duration> = (0..7)
        .map(|_| {
            let started = Instant::now();
            black_box(spin(black_box(1.0), N.into()));
            started.elapsed()
        })
        .collect();
    nanoseconds_f64(median(&mut times)) / f64::from(N)
}

/// Prints the head of the table, whose rows are printed as they are measured: all of them take
/// minutes. Columns therefore have a fixed width.
fn show_head(output: &mut Output) -> Result<()> {
    output.line(format_args!(
        "{:<11}  {:>7}  {:>7}  {:>9}  {:>9}  {:>9}",
        "case", "nodes", "threads", "ns/node", "best", "METG(50%)"
    ))
}

fn show_row(row: &Row, output: &mut Output) -> Result<()> {
    let metg = row.metg50_ns;
    output.line(format_args!(
        "{:<11}  {:>7}  {:>7}  {:>9.1}  {:>9.1}  {:>9}",
        row.case,
        row.nodes,
        row.threads,
        row.ns_per_node,
        row.best_ns_per_node,
        metg.map_or_else(|| "-".to_owned(), |ns| format!("{ns:.0} ns"))
    ))
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
fn to_f64(n: usize) -> f64 {
    n as f64
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a number of iterations"
)]
fn to_u64(n: f64) -> u64 {
    n as u64
}
