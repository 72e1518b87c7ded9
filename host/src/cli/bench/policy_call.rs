//! `bench policy-call`: the cost of one call of an online policy, and of loading a policy.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use anyhow::Result;
use clap::Args;
use placewright_guest::ReadyTask;
use serde::Serialize;

use super::Report;
use crate::candidates::Candidates;
use crate::candidates::PlacementOptions;
use crate::candidates::enumerate;
use crate::candidates::synthetic;
use crate::cli::Outcome;
use crate::cli::output::Output;
use crate::cli::progress::Progress;
use crate::cli::table::Table;
use crate::cli::timing::median;
use crate::cli::timing::nanoseconds_f64;
use crate::cli::timing::timed;
use crate::graph::NONE;
use crate::policy::LoadedPolicy;
use crate::policy::PolicyEngine;
use crate::policy::PolicyLimits;
use crate::policy::ShippedPolicy;
use crate::store::CacheFolder;

/// The shipped policy that places online.
const ONLINE_POLICY: &str = "round-robin";
const N_NODES: u32 = 10_000;
const N_DEVICES: u32 = 8;
const BATCHES: [usize; 2] = [8, 64];

#[derive(Debug, Args)]
pub(in crate::cli) struct PolicyCallBench {
    /// Measurements per row; the median counts.
    #[arg(long, value_name = "N", default_value_t = 11, value_parser = clap::value_parser!(u32).range(1..))]
    repetitions: u32,
    /// Tasks that are placed in one measurement.
    #[arg(long, value_name = "N", default_value_t = 200_000, value_parser = clap::value_parser!(u32).range(64..))]
    tasks: u32,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Row {
    Call { call: String, ns_per_task: f64 },
    Load { call: String, ms: f64 },
}

/// Runs the benchmark.
pub(super) fn run(args: &PolicyCallBench, output: &mut Output) -> Result<Outcome> {
    let n_steps = u64::from(args.repetitions) * (BATCHES.len() as u64 + 2);
    let progress = Progress::steps(n_steps, "asking the policy");
    let mut rows = calls(args, &progress)?;
    rows.extend(loads(args.repetitions, &progress)?);
    drop(progress);

    let mut table = Table::new(["call", "time"]).with_numbers(&[1]);
    for row in &rows {
        table.add_row(match row {
            Row::Call { call, ns_per_task } => [call.clone(), format!("{ns_per_task:.1} ns/task")],
            Row::Load { call, ms } => [call.clone(), format!("{ms:.2} ms")],
        });
    }
    output.table(&table)?;
    output.json(&Report {
        bench: "policy-call",
        rows,
    })?;
    Ok(Outcome::Done)
}

fn calls(args: &PolicyCallBench, progress: &Progress) -> Result<Vec<Row>> {
    let candidates = Arc::new(candidates()?);
    let tasks = tasks(&candidates);
    // On a busy machine this thread may be preempted for longer than the usual 10 ms. The metering
    // is the same.
    let limits = PolicyLimits::default().with_pick_deadline(Duration::from_secs(10));
    let mut policy = load(&PolicyEngine::new(limits)?)?;
    let mut session = policy.begin(0, &candidates, 0)?;
    let n_tasks = args.tasks as usize;
    let mut rows = Vec::new();
    for batch in std::iter::once(1).chain(BATCHES) {
        let mut times = Vec::new();
        let mut answers = Vec::with_capacity(batch);
        for _ in 0..args.repetitions {
            let mut asked = tasks.iter().cycle();
            let (result, time) = timed(|| -> Result<()> {
                if batch == 1 {
                    for task in asked.by_ref().take(n_tasks) {
                        std::hint::black_box(session.pick(task)?);
                    }
                } else {
                    for chunk in tasks.chunks_exact(batch).cycle().take(n_tasks / batch) {
                        answers.clear();
                        session.pick_batch(chunk, &mut answers)?;
                        std::hint::black_box(&answers);
                    }
                }
                Ok(())
            });
            result?;
            times.push(time);
            progress.advance();
        }
        let n_asked = n_tasks / batch * batch;
        rows.push(Row::Call {
            call: if batch == 1 {
                "pick".to_owned()
            } else {
                format!("pick-batch({batch})")
            },
            ns_per_task: nanoseconds_f64(median(&mut times)) / to_f64(n_asked),
        });
    }
    Ok(rows)
}

/// Cold: encoded, compiled, instantiated and configured. Cached: the compiled code is read from the
/// cache folder.
fn loads(repetitions: u32, progress: &Progress) -> Result<Vec<Row>> {
    let engine = PolicyEngine::new(PolicyLimits::default())?;
    let path = std::env::temp_dir().join(format!("placewright-bench-{}", std::process::id()));
    let folder = TemporaryCache::new(&path)?;
    let cached = PolicyEngine::with_cache(PolicyLimits::default(), Some(folder.open()?))?;
    load(&cached)?;
    let (mut cold_times, mut cached_times) = (Vec::new(), Vec::new());
    for _ in 0..repetitions {
        let (policy, time) = timed(|| load(&engine));
        policy?;
        cold_times.push(time);
        let (policy, time) = timed(|| load(&cached));
        anyhow::ensure!(
            policy?.load_report().is_cached,
            "the compiled policy was not found in {}",
            path.display()
        );
        cached_times.push(time);
        progress.advance();
    }
    Ok(vec![
        Row::Load {
            call: "load, cold".to_owned(),
            ms: nanoseconds_f64(median(&mut cold_times)) / 1e6,
        },
        Row::Load {
            call: "load, cached".to_owned(),
            ms: nanoseconds_f64(median(&mut cached_times)) / 1e6,
        },
    ])
}

fn load(engine: &PolicyEngine) -> Result<LoadedPolicy> {
    let policy = ShippedPolicy::find(ONLINE_POLICY)?;
    Ok(engine.load(policy.name(), policy.wasm(), &[])?)
}

fn candidates() -> Result<Candidates> {
    let graph = synthetic::graph(N_NODES, 0);
    let devices = Arc::new(synthetic::devices(N_DEVICES));
    let kernels = synthetic::kernels();
    Ok(enumerate(
        &graph,
        &devices,
        &kernels,
        &PlacementOptions::default(),
    )?)
}

/// Returns one task per node, as an executor would ask.
fn tasks(candidates: &Candidates) -> Vec<ReadyTask> {
    let graph = candidates.graph();
    graph
        .nodes()
        .map(|node| ReadyTask {
            run: 0,
            node: node.0,
            cost_row: candidates.nodes().cost_row[node.index()],
            candidate_set: candidates.nodes().candidate_set[node.index()],
            input_bytes: graph
                .data_inputs(node)
                .map(|tensor| graph.tensor_bytes()[tensor.index()])
                .sum(),
            home: if graph.predecessors().row(node.index()).is_empty() {
                NONE
            } else {
                node.0 % N_DEVICES
            },
            now_ns: f64::from(node.0),
        })
        .collect()
}

/// A cache folder of this benchmark alone, removed at the end.
struct TemporaryCache<'a>(&'a std::path::Path);

impl<'a> TemporaryCache<'a> {
    fn new(path: &'a std::path::Path) -> Result<Self> {
        anyhow::ensure!(
            !path.exists(),
            "{} exists already; remove it",
            path.display()
        );
        Ok(Self(path))
    }

    fn open(&self) -> Result<CacheFolder> {
        CacheFolder::open(self.0).with_context(|| format!("opening {}", self.0.display()))
    }
}

impl Drop for TemporaryCache<'_> {
    fn drop(&mut self) {
        // It is in the system's folder for temporary files, so leftovers are removed eventually.
        let _ = std::fs::remove_dir_all(self.0);
    }
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
fn to_f64(n: usize) -> f64 {
    n as f64
}
