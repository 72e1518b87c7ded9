//! `placewright compare`: several policies on the same graphs and devices.

use std::path::Path;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use anyhow::Result;
use clap::Args;
use clap::ValueHint;
use serde::Serialize;

use super::Outcome;
use super::UsageError;
use super::args::PlacementArgs;
use super::cluster::ClusterArgs;
use super::feeds::Feeds;
use super::feeds::default_fetches;
use super::feeds::random_feeds;
use super::feeds::read_feeds;
use super::npz::NpzReader;
use super::open;
use super::output::Output;
use super::progress::Progress;
use super::refusals;
use super::table::Table;
use super::units::show_bytes;
use super::units::show_ns;
use crate::cluster::ClusterSpec;
use crate::comparison::ComparedPolicy;
use crate::comparison::Comparison;
use crate::graph::Graph;
use crate::registry::Registry;
use crate::tensor::Tensor;

#[derive(Debug, Args)]
pub(super) struct CompareCommand {
    /// Frozen TensorFlow GraphDefs (.pb) and task graphs (.json).
    #[arg(required = true, value_name = "GRAPH", value_hint = ValueHint::FilePath)]
    graphs: Vec<PathBuf>,
    #[command(flatten)]
    measure: MeasureArgs,
    #[command(flatten)]
    placement: PlacementArgs,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// Whether and how the plans are run.
#[derive(Debug, Args)]
pub(super) struct MeasureArgs {
    /// Also run the plans, in turns, on fed or random values.
    #[arg(long, conflicts_with = "cluster", help_heading = "Execution")]
    measure: bool,
    /// With --measure: time for which each plan is run in each round, in ms.
    #[arg(long, value_name = "MS", default_value_t = 100, requires = "measure", value_parser = clap::value_parser!(u64).range(1..=600_000), help_heading = "Execution")]
    turn_ms: u64,
    /// With --measure: rounds in which each plan has a turn.
    #[arg(long, value_name = "N", default_value_t = 5, requires = "measure", value_parser = clap::value_parser!(u32).range(1..=1000), help_heading = "Execution")]
    rounds: u32,
    /// With --measure: feed the arrays in/NAME; other placeholders get seeded random values.
    #[arg(long, value_name = "F.npz", requires = "measure", value_hint = ValueHint::FilePath, help_heading = "Execution")]
    feeds: Option<PathBuf>,
}

/// Everything that `--json` prints: a comparison per graph.
#[derive(Debug, Serialize)]
struct Report {
    graph: String,
    n_nodes: usize,
    /// The policy with the shortest run; `null` if none has a plan.
    best: Option<String>,
    /// Whether runs were measured; otherwise they are compared by their expected times.
    is_measured: bool,
    policies: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    policy: String,
    /// Why the policy has no plan.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(flatten)]
    plan: Option<PlanRow>,
}

#[derive(Debug, Serialize)]
struct PlanRow {
    /// Expected time of a run.
    expected_ns: f64,
    /// Median time of a run; `null` without --measure.
    measured_ns: Option<u64>,
    /// The time of a run, divided by that of the best policy.
    by_best: f64,
    /// Time of the policy's call.
    placed_in_ns: u64,
    n_transfers: u64,
    transfer_bytes: u64,
    /// Per device the most bytes at one time.
    peak_bytes: Vec<u64>,
    /// Per device the nodes that take time.
    n_executed: Vec<u64>,
}

/// Runs the command.
pub(super) fn run(
    command: &CompareCommand,
    registry: &Registry,
    output: &mut Output,
) -> Result<Outcome> {
    let cluster = command.cluster.read(&command.placement.devices.memory)?;
    let mut reports = Vec::new();
    for graph in &command.graphs {
        let compared = compared(
            graph,
            &command.placement,
            cluster.as_ref(),
            (&command.measure, false),
            registry,
            output,
        )?;
        if !reports.is_empty() {
            output.line("")?;
        }
        let report = Report::new(graph, &compared);
        report.show(output)?;
        reports.push(report);
    }
    output.json(&reports)?;
    Ok(match reports.iter().all(|report| report.best.is_some()) {
        true => Outcome::Done,
        false => Outcome::Negative,
    })
}

/// Places a graph by the policies, and runs the plans if that is asked for.
pub(super) fn compared(
    graph: &Path,
    args: &PlacementArgs,
    cluster: Option<&ClusterSpec>,
    (measure, explain_wanted): (&MeasureArgs, bool),
    registry: &Registry,
    output: &mut Output,
) -> Result<Comparison> {
    for (flag, is_set) in [
        ("--placement", args.placement.is_some()),
        ("--keep", args.keep.is_some()),
        ("--save-placement", args.save_placement.is_some()),
        ("--log-device-placement", args.log_device_placement),
    ] {
        if is_set {
            let problem = format!("{flag} is for one placement; `place` and `run` have it");
            return Err(UsageError(problem).into());
        }
    }
    if measure.measure && open::is_task_graph(graph) {
        let problem = "--measure: a task graph has no kernels to run";
        return Err(UsageError(problem.to_owned()).into());
    }
    let compared = open::compare(graph, args, cluster, explain_wanted, registry, output);
    let mut compared = refusals::or_show(compared, graph, args, cluster, registry, output)?;
    let Some((_, plan)) = compared.plans().next() else {
        return Ok(compared);
    };
    if measure.measure {
        let given = plan.session.given_graph();
        let fetches = default_fetches(&given);
        let feeds = feeds(&given, &fetches, measure.feeds.as_deref(), args.seed)?;
        let feeds: Vec<(&str, Tensor)> = feeds
            .iter()
            .map(|(name, tensor)| (name.as_str(), tensor.clone()))
            .collect();
        let fetches: Vec<&str> = fetches.iter().map(String::as_str).collect();
        let progress = Progress::spinner(format!("running {}", graph.display()));
        let time = Duration::from_millis(measure.turn_ms);
        let measured = compared.measure(&feeds, &fetches, measure.rounds, time);
        drop(progress);
        measured.with_context(|| graph.display().to_string())?;
    }
    Ok(compared)
}

fn feeds(graph: &Graph, fetches: &[String], archive: Option<&Path>, seed: u64) -> Result<Feeds> {
    let mut feeds = match archive {
        Some(path) => {
            let context = || path.display().to_string();
            let mut archive = NpzReader::open(path).with_context(context)?;
            read_feeds(&mut archive, graph).with_context(context)?
        }
        None => Feeds::new(),
    };
    let mut random = random_feeds(graph, fetches, &feeds, seed)?;
    feeds.append(&mut random.feeds);
    Ok(feeds)
}

impl Report {
    fn new(graph: &Path, compared: &Comparison) -> Self {
        let best = compared.best();
        let best_ns = best.map_or(f64::NAN, |(_, plan)| plan.run_ns());
        let file = graph.file_name();
        Self {
            graph: file.map_or_else(String::new, |name| name.to_string_lossy().into_owned()),
            n_nodes: best.map_or(0, |(_, plan)| plan.session.graph().n_nodes()),
            best: best.map(|(name, _)| name.to_owned()),
            is_measured: best.is_some_and(|(_, plan)| plan.measured.is_some()),
            policies: compared
                .policies
                .iter()
                .map(|policy| Row::new(policy, best_ns))
                .collect(),
        }
    }

    fn show(&self, output: &mut Output) -> Result<()> {
        output.line(format_args!("{}: {} nodes", self.graph, self.n_nodes))?;
        let mut head = vec!["policy", "run"];
        if self.is_measured {
            head.push("measured");
        }
        head.extend([
            "by best",
            "placed in",
            "transfers",
            "size",
            "peak memory",
            "nodes",
        ]);
        let numbers: Vec<usize> = (1..head.len() - 1).collect();
        let n_columns = head.len();
        let mut table = Table::new(head).with_numbers(&numbers);
        for row in &self.policies {
            let mut cells = vec![row.policy.clone()];
            if let Some(plan) = &row.plan {
                cells.push(show_ns(plan.expected_ns));
                if self.is_measured {
                    let measured = plan.measured_ns.map(to_f64);
                    cells.push(measured.map_or_else(String::new, show_ns));
                }
                let peak_bytes = plan.peak_bytes.iter().max().copied().unwrap_or(0);
                let n_executed = plan.n_executed.iter().map(u64::to_string);
                cells.extend([
                    format!("{:.2}", plan.by_best),
                    show_ns(to_f64(plan.placed_in_ns)),
                    plan.n_transfers.to_string(),
                    show_bytes(plan.transfer_bytes),
                    show_bytes(peak_bytes),
                    shortened(&n_executed.collect::<Vec<_>>()),
                ]);
            }
            cells.resize(n_columns, String::new());
            table.add_row(cells);
        }
        output.table(&table)?;
        for row in &self.policies {
            if let Some(error) = &row.error {
                output.line(format_args!("{}: {error}", row.policy))?;
            }
        }
        match &self.best {
            Some(best) => {
                let others = self.policies.iter().filter(|row| row.policy != *best);
                let plans = others.filter_map(|row| row.plan.as_ref());
                let next = plans.map(|plan| plan.by_best).fold(f64::INFINITY, f64::min);
                let by = match next.is_finite() {
                    true => format!(", {:.1} % ahead of the next", 100.0 * (next - 1.0)),
                    false => String::new(),
                };
                output.line(format_args!("{best} has the fastest plan{by}"))
            }
            None => output.line("no policy has a plan"),
        }
    }
}

/// Nodes per device; of many devices, the first.
fn shortened(cells: &[String]) -> String {
    const SHOWN_MAX: usize = 8;
    match cells.len() > SHOWN_MAX {
        true => format!("{} ..", cells[..SHOWN_MAX].join(" ")),
        false => cells.join(" "),
    }
}

impl Row {
    fn new(policy: &ComparedPolicy, best_ns: f64) -> Self {
        let (plan, error) = match &policy.outcome {
            Ok(plan) => (Some(plan), None),
            Err(error) => (None, Some(error.to_string())),
        };
        let to_ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Self {
            policy: policy.name.clone(),
            error,
            plan: plan.map(|plan| PlanRow {
                expected_ns: plan.simulation.expected_ns,
                measured_ns: plan.measured.map(to_ns),
                by_best: plan.run_ns() / best_ns,
                placed_in_ns: to_ns(plan.placed_in),
                n_transfers: plan.n_transfers,
                transfer_bytes: plan.transfer_bytes,
                peak_bytes: plan.peak_bytes.clone(),
                n_executed: plan
                    .simulation
                    .devices
                    .iter()
                    .map(|device| device.n_executed)
                    .collect(),
            }),
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "times are far below 2^53 ns")]
fn to_f64(ns: u64) -> f64 {
    ns as f64
}
