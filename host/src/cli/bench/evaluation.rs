//! The third table of `bench placement`: evaluating a plan after each move, as a policy does that
//! searches. Once with memory that suffices for every plan, and once with so little that the host
//! has to compute what each plan holds.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use serde::Serialize;

use crate::builder::GraphBuilder;
use crate::candidates::Candidates;
use crate::candidates::PlacementOptions;
use crate::candidates::enumerate;
use crate::candidates::synthetic;
use crate::candidates::synthetic::SyntheticGraph;
use crate::cli::output::Output;
use crate::cli::table::Table;
use crate::cli::timing::median;
use crate::cli::timing::timed;
use crate::device::DeviceOptions;
use crate::graph::Graph;
use crate::graph::NodeId;
use crate::placement::Evaluator;
use crate::session::Session;

/// Branches of the graph, and layers of a branch.
const SHAPE: (usize, usize) = (20, 20);

/// Rows and columns of the matrices.
const SIDE: usize = 16;

/// Moves of one measurement: many of a small graph, so that the first schedule is a small part.
const N_MOVES: usize = 200;
const N_MOVES_SMALL: usize = 20_000;
const SMALL_NODES: usize = 1000;

#[derive(Debug, Serialize)]
pub(super) struct Row {
    memory: &'static str,
    nodes: usize,
    moves: usize,
    /// Moves after which the plan was legal.
    legal: usize,
    us_per_move: f64,
    /// Time of an evaluation after which nothing is known of the plan before.
    us_per_plan: f64,
}

/// Measures each row `repetitions` times.
pub(super) fn measure(repetitions: u32) -> Result<Vec<Row>> {
    let ample = candidates(None)?;
    let peaks = |candidates: &Candidates| {
        let mut plan = Evaluator::new(candidates);
        plan.set_devices(&start(candidates));
        plan.peak_bytes_per_device()
    };
    let most = peaks(&ample).into_iter().max().unwrap_or(0);
    // The start fits, and little more.
    let short = candidates(Some(most))?;
    let mut all = vec![("ample", ample), ("short", short)];
    for n_nodes in [100, 100_000] {
        all.push(("ample", synthetic_candidates(n_nodes)?));
    }
    all.into_iter()
        .map(|(memory, candidates)| {
            let mut times = Vec::new();
            let mut n_legal = 0;
            for _ in 0..repetitions {
                let (legal, time) = timed(|| search(&candidates));
                n_legal = legal;
                times.push(time);
            }
            let n_moves = n_moves(&candidates);
            let (mut plan, start) = (Evaluator::new(&candidates), start(&candidates));
            let n_plans = n_moves / 10;
            let ((), of_plans) = timed(|| {
                for _ in 0..n_plans {
                    plan.set_devices(&start);
                    black_box(plan.makespan_ns());
                }
            });
            Ok(Row {
                memory,
                nodes: candidates.graph().n_nodes(),
                moves: n_moves,
                legal: n_legal,
                us_per_move: microseconds(median(&mut times)) / to_f64(n_moves),
                us_per_plan: microseconds(of_plans) / to_f64(n_plans),
            })
        })
        .collect()
}

fn n_moves(candidates: &Candidates) -> usize {
    match candidates.graph().n_nodes() < SMALL_NODES {
        true => N_MOVES_SMALL,
        false => N_MOVES,
    }
}

/// Moves one node after the other to the other device, and back if that takes longer. Returns the
/// number of legal plans.
fn search(candidates: &Candidates) -> usize {
    let graph = candidates.graph();
    let mut plan = Evaluator::new(candidates);
    plan.set_devices(&start(candidates));
    let mut best_ns = plan.makespan_ns();
    let movable: Vec<NodeId> = graph
        .nodes()
        .filter(|&node| !graph.is_preloaded(node))
        .collect();
    let mut n_legal = 0;
    // A stride that is prime to the number of nodes visits all of the graph.
    for step in 0..n_moves(candidates) {
        let node = movable[step * 101 % movable.len()];
        let device = plan.devices()[node.index()];
        let others = candidates.of_node(node).iter();
        let mut others = others.filter(|&&other| other != device);
        let Some(&other) = others.next() else {
            continue;
        };
        plan.move_nodes(&[node.0], other);
        let makespan_ns = plan.makespan_ns();
        n_legal += usize::from(makespan_ns.is_finite());
        if makespan_ns < best_ns {
            best_ns = makespan_ns;
        } else {
            plan.move_nodes(&[node.0], device);
        }
    }
    n_legal
}

/// The first half of the nodes on one device, the other half on another, as far as they may.
fn start(candidates: &Candidates) -> Vec<u32> {
    let nodes = candidates.graph().nodes();
    let n_nodes = candidates.graph().n_nodes();
    nodes
        .map(|node| {
            let wanted = u32::from(node.index() >= n_nodes / 2);
            let of_node = candidates.of_node(node);
            let is_possible = of_node.contains(&wanted);
            if is_possible { wanted } else { of_node[0] }
        })
        .collect()
}

/// A synthetic graph on four devices.
fn synthetic_candidates(n_nodes: u32) -> Result<Candidates> {
    let graph = Arc::new(SyntheticGraph::new(n_nodes, 0).build());
    let devices = Arc::new(synthetic::devices(4));
    let options = PlacementOptions::default();
    Ok(enumerate(
        &graph,
        &devices,
        &synthetic::kernels(),
        &options,
    )?)
}

fn candidates(memory_bytes: Option<u64>) -> Result<Candidates> {
    let mut options = DeviceOptions::default()
        .with_device_count("CPU", 2)
        .with_device_count("SYCL", 0)
        .with_device_count("GPU", 0)
        .with_intra_op_parallelism_threads(1);
    if let Some(bytes) = memory_bytes {
        options = options.with_memory_bytes("CPU", bytes);
    }
    let session = Session::builder()
        .with_graph(branches()?)
        .with_device_options(options)
        .build()?;
    Ok(session.placement().candidates().clone())
}

/// Branches of dense layers, which devices fuse.
fn branches() -> Result<Graph> {
    let (n_branches, n_layers) = SHAPE;
    let b = GraphBuilder::new("branches");
    let x = b.placeholder::<f32>("x", [Some(SIDE), Some(SIDE)])?;
    let mut ends = Vec::new();
    for _ in 0..n_branches {
        let mut y = x;
        for _ in 0..n_layers {
            let weights = b.constant([SIDE, SIDE], &[0.01_f32; SIDE * SIDE])?;
            let bias = b.constant([SIDE], &[0.01_f32; SIDE])?;
            y = b.relu(b.bias_add(b.matmul(y, weights)?, bias)?)?;
        }
        ends.push(y);
    }
    b.add_n(ends)?;
    Ok(b.finish())
}

pub(super) fn show(rows: &[Row], output: &mut Output) -> Result<()> {
    output.line("")?;
    let mut table = Table::new(["memory", "nodes", "moves", "legal", "us/move", "us/plan"])
        .with_numbers(&[1, 2, 3, 4, 5]);
    for row in rows {
        table.add_row([
            row.memory.to_owned(),
            row.nodes.to_string(),
            row.moves.to_string(),
            row.legal.to_string(),
            format!("{:.1}", row.us_per_move),
            format!("{:.1}", row.us_per_plan),
        ]);
    }
    output.table(&table)
}

fn microseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
fn to_f64(n: usize) -> f64 {
    n as f64
}
