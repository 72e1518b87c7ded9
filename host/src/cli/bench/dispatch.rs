//! `bench dispatch`: what executing an op costs beyond its arithmetic.
//!
//! Graphs of scalar additions, each a kernel call of its own: nothing is fused, folded or left out, and the recorder counts the
//! calls of one run. And METG(50%), as Task Bench defines it: the smallest mean duration of a task at which half of the time
//! of the threads that could be busy goes into tasks.

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
use crate::candidates::Proposal;
use crate::cli::Outcome;
use crate::cli::output::Output;
use crate::cli::output::align_right;
use crate::cli::output::new_table;
use crate::cli::progress::Progress;
use crate::cli::timing::median;
use crate::cli::timing::timed;
use crate::device::Kernel;
use crate::device::KernelContext;
use crate::device::KernelDef;
use crate::device::KernelError;
use crate::execute::RunOptions;
use crate::graph::AttrSet;
use crate::graph::AttrValue;
use crate::graph::Graph;
use crate::graph::GraphAssembler;
use crate::graph::Input;
use crate::graph::NodeId;
use crate::graph::NodeSpec;
use crate::graph::Output as NodeOutput;
use crate::graph::Work;
use crate::session::Session;
use crate::tensor::DType;
use crate::tensor::PartialShape;
use crate::tensor::Shape;
use crate::tensor::Tensor;
use crate::trace::EventKind;
use crate::trace::Recorder;

/// Nodes of a layer of the layered graph.
const WIDTH: u32 = 100;

/// Nodes of the graphs that METG is measured on.
const METG_NODES: u32 = 2_000;

/// Durations of a task that METG is looked for between, in ns.
const METG_RANGE_NS: (f64, f64) = (5.0, 200_000.0);

#[derive(Debug, Args)]
pub(in crate::cli) struct DispatchBench {
    /// Nodes of the graphs.
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(2..=1_000_000))]
    nodes: u32,
    /// Threads that one run may use.
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_values_t = [1, 2])]
    threads: Vec<usize>,
    /// Runs per row, of which the median counts.
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
    /// METG(50%) of tasks with these edges; `null` where no duration reaches it.
    metg50_ns: Option<f64>,
}

/// Which nodes read which.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Case {
    /// Each the one before.
    Chain,
    /// All the fed one alone.
    Independent,
    /// Each two of the layer before.
    Layered,
}

impl Case {
    const ALL: [Self; 3] = [Self::Chain, Self::Independent, Self::Layered];

    fn name(self) -> &'static str {
        match self {
            Self::Chain => "chain",
            Self::Independent => "independent",
            Self::Layered => "layered",
        }
    }

    /// Tasks that can run at one time.
    fn width(self) -> usize {
        match self {
            Self::Chain => 1,
            Self::Independent => usize::MAX,
            Self::Layered => WIDTH as usize,
        }
    }
}

/// Runs the benchmark.
pub(super) fn run(args: &DispatchBench, output: &mut Output) -> Result<Outcome> {
    let progress = Progress::steps((Case::ALL.len() * args.threads.len()) as u64, "dispatching");
    let ns_per_iteration = calibrate();
    let mut rows = Vec::new();
    for case in Case::ALL {
        for &threads in &args.threads {
            progress.set_message(format!("{}, {threads} threads", case.name()));
            rows.push(measure(case, threads, args, ns_per_iteration)?);
            progress.advance();
        }
    }
    drop(progress);
    show(&rows, output)?;
    output.json(&Report {
        bench: "dispatch",
        rows,
    })?;
    Ok(Outcome::Done)
}

fn measure(case: Case, threads: usize, args: &DispatchBench, ns_per_iteration: f64) -> Result<Row> {
    let session = session(graph(case, args.nodes, "AddV2"), threads, &[])?;
    let last = format!("a{}", args.nodes - 1);
    let run = |x: f32, options: &RunOptions| -> Result<f32> {
        let fed = Tensor::from_values(Shape::scalar(), &[x])?;
        let fetched = session.run_with(&[("x", fed)], &[&last], &["done"], options)?;
        Ok(fetched[0].as_slice::<f32>()?[0])
    };
    let mut times = Vec::new();
    for repetition in 0..args.repetitions + 10 {
        #[expect(clippy::cast_precision_loss, reason = "small")]
        let x = (repetition % 8) as f32;
        let (sum, time) = timed(|| run(x, &RunOptions::default()));
        anyhow::ensure!(sum? == expected(case, args.nodes, x), "a wrong sum");
        // The first ones make the plan and measure it.
        if repetition >= 10 {
            times.push(time);
        }
    }
    let recorder = Recorder::on();
    run(1.0, &RunOptions::default().with_recorder(recorder.clone()))?;
    let is_addition = |node| session.graph().op(node) == "AddV2";
    let kernels = recorder
        .events()
        .into_iter()
        .filter(|event| matches!(event.kind, EventKind::Kernel { node, .. } if is_addition(node)));
    let kernels = kernels.count();
    anyhow::ensure!(
        kernels == args.nodes as usize,
        "{kernels} kernels ran, not {}",
        args.nodes
    );
    let per_node = |time: Duration| nanoseconds(time) / f64::from(args.nodes);
    Ok(Row {
        case: case.name(),
        nodes: args.nodes,
        threads,
        ns_per_node: per_node(median(&mut times)),
        best_ns_per_node: per_node(times[0]),
        kernels,
        metg50_ns: metg(case, threads, ns_per_iteration)?,
    })
}

/// What the last node must hold, exactly: sums of small integers.
fn expected(case: Case, n_nodes: u32, x: f32) -> f32 {
    match case {
        Case::Chain => (1..=n_nodes).fold(x, |sum, _| sum + x),
        Case::Independent => x + x,
        Case::Layered => (0..n_nodes.div_ceil(WIDTH)).fold(x, |sum, _| sum + sum),
    }
}

/// The duration of a task at which half of the threads' time goes into tasks, by bisection.
fn metg(case: Case, threads: usize, ns_per_iteration: f64) -> Result<Option<f64>> {
    let n_busy = threads.min(case.width());
    let efficiency = |grain_ns: f64| -> Result<f64> {
        let iterations = Arc::new(AtomicU64::new(to_u64(grain_ns / ns_per_iteration).max(1)));
        let kernel = KernelDef::new("Spin", "CPU").with_factory(move |_| {
            let iterations = Arc::clone(&iterations);
            Ok(Box::new(Spin { iterations }))
        });
        let session = session(graph(case, METG_NODES, "Spin"), threads, &[kernel])?;
        let mut times = Vec::new();
        for repetition in 0..10 {
            let fed = Tensor::from_values(Shape::scalar(), &[1f32])?;
            let (fetched, time) =
                timed(|| session.run_with(&[("x", fed)], &[], &["done"], &RunOptions::default()));
            fetched?;
            if repetition >= 5 {
                times.push(time);
            }
        }
        let ideal = f64::from(METG_NODES) * grain_ns / to_f64(n_busy);
        Ok(ideal / nanoseconds(median(&mut times)))
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

/// A task that computes for a while.
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

/// Additions of which each waits for the one before.
#[inline(never)]
fn spin(x: f32, iterations: u64) -> f32 {
    (0..iterations).fold(x, |sum, _| black_box(sum + 1e-9))
}

/// How long one of them takes, in ns.
fn calibrate() -> f64 {
    const N: u32 = 2_000_000;
    let mut times: Vec<Duration> = (0..7)
        .map(|_| {
            let started = Instant::now();
            black_box(spin(black_box(1.0), N.into()));
            started.elapsed()
        })
        .collect();
    nanoseconds(median(&mut times)) / f64::from(N)
}

/// One CPU device, no policy to ask: all nodes are on it.
fn session(graph: Graph, threads: usize, kernels: &[KernelDef]) -> Result<Session> {
    let proposal = Proposal {
        devices: vec![0; graph.n_nodes()],
        start_order: None,
        queues: None,
        explanations: Vec::new(),
        metrics: Vec::new(),
    };
    Ok(Session::builder()
        .with_graph(graph)
        .with_kernels(kernels.iter().cloned())
        .with_proposal(proposal)
        .with_inter_op_parallelism_threads(threads)
        .build()?)
}

/// `x`, then nodes `a0`, `a1`, .. of two inputs, then `done` after all whom nobody reads.
fn graph(case: Case, n_nodes: u32, op: &str) -> Graph {
    let mut assembler = GraphAssembler::new(case.name());
    let scalar = [NodeOutput {
        dtype: DType::F32,
        is_ref: false,
        shape: PartialShape::scalar(),
    }];
    let number = AttrValue::Type {
        dtype: DType::F32,
        is_ref: false,
    };
    let attr = |name: &str| AttrSet::new([(name.into(), number.clone())]);
    let mut add = |name: &str, op: &str, inputs: &[Input], attrs, outputs: &[NodeOutput]| {
        let spec = NodeSpec {
            name,
            op,
            inputs,
            requested_device: "",
            attrs,
            outputs,
            stateful: false,
            work: Work::default(),
        };
        assembler.add_node(&spec).expect("the graph is well made")
    };
    let x = add("x", "Placeholder", &[], attr("dtype"), &scalar);
    let mut nodes: Vec<NodeId> = Vec::new();
    let mut last_layer = 0;
    for index in 0..n_nodes {
        let data = |node: NodeId| Input::Data { node, slot: 0 };
        let inputs = match case {
            Case::Chain => [data(nodes.last().copied().unwrap_or(x)), data(x)],
            Case::Independent => [data(x), data(x)],
            Case::Layered if index < WIDTH => [data(x), data(x)],
            Case::Layered => {
                let (layer, place) = (index / WIDTH - 1, index % WIDTH);
                let of_layer = |place: u32| nodes[(layer * WIDTH + place % WIDTH) as usize];
                // Neighbours that change from layer to layer.
                [data(of_layer(place)), data(of_layer(place + 1 + layer % 7))]
            }
        };
        let name = format!("a{index}");
        nodes.push(add(&name, op, &inputs, attr("T"), &scalar));
        if index % WIDTH == 0 {
            last_layer = nodes.len() - 1;
        }
    }
    let first_unread = match case {
        Case::Chain => nodes.len() - 1,
        Case::Independent => 0,
        Case::Layered => last_layer.saturating_sub(WIDTH as usize),
    };
    let controls: Vec<Input> = nodes[first_unread..]
        .iter()
        .map(|&node| Input::Control(node))
        .collect();
    add("done", "NoOp", &controls, AttrSet::default(), &[]);
    assembler.finish()
}

fn show(rows: &[Row], output: &mut Output) -> Result<()> {
    let mut table = new_table(["case", "nodes", "threads", "ns/node", "best", "METG(50%)"]);
    align_right(&mut table, &[1, 2, 3, 4, 5]);
    for row in rows {
        table.add_row([
            row.case.to_owned(),
            row.nodes.to_string(),
            row.threads.to_string(),
            format!("{:.1}", row.ns_per_node),
            format!("{:.1}", row.best_ns_per_node),
            row.metg50_ns
                .map_or_else(|| "-".to_owned(), |ns| format!("{ns:.0} ns")),
        ]);
    }
    output.table(&table)
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
fn nanoseconds(duration: Duration) -> f64 {
    duration.as_nanos() as f64
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
