//! `bench prediction`: how well placements predict the time of a run, and the order of plans. Runs
//! execute the whole graph, which is what is predicted.
//!
//! Each round measures a few runs, places by what they took, and then times ordinary runs: clocks
//! drift within minutes, and what is compared here is at most a second apart. What a calibration
//! expects is related to the clock rate of that second: by the time of one product then and now.

use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use clap::ValueHint;
use serde::Serialize;

use super::model::Model;
use super::model::ModelArgs;
use super::model::ModelSetup;
use super::models::models;
use super::parse_seconds;
use super::work::Work;
use super::work::repeat;
use super::work::settle;
use crate::candidates::Candidates;
use crate::candidates::Proposal;
use crate::cli::Outcome;
use crate::cli::cache;
use crate::cli::output::Output;
use crate::cli::progress::Progress;
use crate::cli::random::SplitMix;
use crate::cli::table::Table;
use crate::cli::timing::median;
use crate::cli::timing::nanoseconds;
use crate::cli::units::show_ns;
use crate::cost::Calibrations;
use crate::cost::History;
use crate::cost::reference_ns;
use crate::device::Device;
use crate::device::KernelRegistry;
use crate::graph::NodeId;
use crate::placement::Evaluator;
use crate::registry::Registry;
use crate::session::SessionBuilder;

/// Runs that are measured in each round.
const N_RUNS_MEASURED: u32 = 5;

/// Sets further options of a session.
type Complete<'a> = dyn Fn(SessionBuilder) -> SessionBuilder + 'a;

/// Opens the model of a row with such options.
type Open<'a> = dyn Fn(&Complete<'_>) -> Result<Model> + 'a;

#[derive(Debug, Args)]
pub(in crate::cli) struct PredictionBench {
    /// Models, or folders of models, as for `bench models` [default: tests/models]
    #[arg(value_name = "MODEL|DIR", value_hint = ValueHint::AnyPath)]
    paths: Vec<PathBuf>,
    /// Time for which each model is run in each round, in seconds.
    #[arg(long, value_name = "S", default_value = "0.2", value_parser = parse_seconds)]
    seconds: Duration,
    /// Rounds, of which the median counts.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Random plans per model, whose expected and measured order are compared; 0 for none. Needs
    /// several devices, such as --device-count CPU=2.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=1000))]
    plans: u32,
    /// Device of nodes that request none, such as /device:SYCL:0; nodes that cannot run there are
    /// placed elsewhere.
    #[arg(long, value_name = "DEVICE")]
    device: Option<String>,
    /// Seed of the random plans.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    #[command(flatten)]
    model: ModelArgs,
}

#[derive(Debug, Serialize)]
struct Row {
    model: String,
    nodes: usize,
    /// Median time of a run.
    measured_ns: u64,
    /// The expected time, divided by the measured one: by the rates of the devices; by these rates
    /// if trip counts of loops and taken branches are known; and after runs were measured.
    by_rates: f64,
    with_counts: f64,
    learned: f64,
    /// Of the random plans: Kendall's tau between expected and measured times, and by how much the
    /// plan that was expected to be fastest took longer than the fastest.
    #[serde(skip_serializing_if = "Option::is_none")]
    plans: Option<PlansRow>,
}

#[derive(Debug, Serialize)]
struct PlansRow {
    n: usize,
    times: Vec<PlanTimes>,
    tau: f64,
    best_expected_over_best: f64,
}

#[derive(Debug, Serialize)]
struct PlanTimes {
    expected_ns: f64,
    measured_ns: f64,
}

#[derive(Debug, Serialize)]
struct Report {
    bench: &'static str,
    rows: Vec<Row>,
    /// Errors of all models: |expected / measured - 1|.
    by_rates: Errors,
    with_counts: Errors,
    learned: Errors,
}

#[derive(Debug, Serialize)]
struct Errors {
    median: f64,
    p90: f64,
}

/// Runs the benchmark.
pub(super) fn run(
    args: &PredictionBench,
    registry: &Registry,
    output: &mut Output,
) -> Result<Outcome> {
    let models = models(&args.paths)?;
    let progress = Progress::steps(models.len() as u64, "running");
    let mut rows = Vec::new();
    for (graph, archive) in &models {
        progress.set_message(graph.display().to_string());
        let mut setup = args.model.setup(registry, args.device.as_deref())?;
        setup.allow_soft_placement = args.device.is_some();
        rows.push(measure(graph, archive, &setup, args, &registry.kernels())?);
        progress.advance();
    }
    drop(progress);
    let report = Report {
        bench: "prediction",
        by_rates: Errors::of(rows.iter().map(|row| row.by_rates)),
        with_counts: Errors::of(rows.iter().map(|row| row.with_counts)),
        learned: Errors::of(rows.iter().map(|row| row.learned)),
        rows,
    };
    report.show(output)?;
    output.json(&report)?;
    Ok(Outcome::Done)
}

/// Runs of the session alone, without the copies of feeds that `bench models` counts.
struct Runs<'a>(&'a Model);

impl Work for Runs<'_> {
    fn run(&self, _: u64) -> Result<Duration> {
        self.0.run_session()
    }
}

fn measure(
    graph: &Path,
    archive: &Path,
    setup: &ModelSetup,
    args: &PredictionBench,
    kernels: &KernelRegistry,
) -> Result<Row> {
    let calibrations = cache::calibrations(&args.model.devices)?;
    let calibrated = |builder: SessionBuilder| match &calibrations {
        Some(calibrations) => builder.with_calibrations(calibrations.clone()),
        None => builder,
    };
    let open = |complete: &Complete<'_>| {
        let model = Model::open_with(graph, archive, setup.clone(), |builder| {
            complete(calibrated(builder))
        });
        model.map(Model::whole)
    };
    let model = open(&|builder| builder)?;
    settle(&model)?;
    let by_rates_ns = expected_ns(&model);
    let clock = Clock::of(&model, kernels, calibrations.as_ref());
    let counts = model.measure(N_RUNS_MEASURED)?.without_times();
    let counted = open(&|builder| builder.with_profile(counts.clone()))?;
    let counted_ns = expected_ns(&counted);
    drop(counted);
    let (mut times, mut ratios) = (Vec::new(), Vec::new());
    let (mut of_rates, mut of_counts) = (Vec::new(), Vec::new());
    for _ in 0..args.rounds {
        let profile = model.measure(N_RUNS_MEASURED)?;
        let learned = open(&|builder| builder.with_profile(profile.clone()))?;
        let before_runs = clock.reference_ns();
        let mut of_round = repeat(&Runs(&model), args.seconds)?;
        let after_runs = clock.reference_ns();
        let measured = median(&mut of_round);
        let measured_ns = to_f64(nanoseconds(measured));
        let slower = clock.slower(before_runs, after_runs);
        ratios.push(expected_ns(&learned) / measured_ns);
        of_rates.push(by_rates_ns * slower / measured_ns);
        of_counts.push(counted_ns * slower / measured_ns);
        times.push(measured);
    }
    let plans = match args.plans > 1 {
        true => Some(plans(&model, &open, args)?),
        false => None,
    };
    Ok(Row {
        model: model.name.clone(),
        nodes: model.n_nodes(),
        measured_ns: nanoseconds(median(&mut times)),
        by_rates: middle(&mut of_rates),
        with_counts: middle(&mut of_counts),
        learned: middle(&mut ratios),
        plans,
    })
}

/// How fast the device that executes most nodes is at present.
struct Clock<'a> {
    device: Option<Arc<dyn Device>>,
    kernels: &'a KernelRegistry,
    /// The time of the reference when the device was calibrated.
    calibrated_ns: Option<f64>,
}

impl<'a> Clock<'a> {
    fn of(model: &Model, kernels: &'a KernelRegistry, calibrations: Option<&Calibrations>) -> Self {
        let placement = model.session().placement();
        let devices = model.session().devices();
        let mut n_nodes = vec![0usize; devices.len()];
        for node in placement.graph().nodes() {
            n_nodes[placement.device(node).index()] += 1;
        }
        let most = devices.iter().max_by_key(|(id, _)| n_nodes[id.index()]);
        let device = most.map(|(_, device)| Arc::clone(device));
        let found = device.as_ref().zip(calibrations);
        let found = found.and_then(|(device, all)| all.find(&**device).ok().flatten());
        Self {
            device,
            kernels,
            calibrated_ns: found.and_then(|found| found.reference_ns),
        }
    }

    fn reference_ns(&self) -> Option<f64> {
        reference_ns(&**self.device.as_ref()?, self.kernels)
    }

    /// Returns by how much longer everything took between two times of the reference than when the
    /// device was calibrated; 1 if one of the times is unknown.
    fn slower(&self, first_ns: Option<f64>, last_ns: Option<f64>) -> f64 {
        match (self.calibrated_ns, first_ns, last_ns) {
            (Some(then_ns), Some(first_ns), Some(last_ns)) if then_ns > 0.0 => {
                f64::midpoint(first_ns, last_ns) / then_ns
            }
            _ => 1.0,
        }
    }
}

/// Measures the kernels of all kinds of devices, times random plans, and compares their order with
/// the expected one.
fn plans(model: &Model, open: &Open<'_>, args: &PredictionBench) -> Result<PlansRow> {
    let placement = model.session().placement();
    let history = History::new();
    let mut kinds: Vec<String> = Vec::new();
    for (id, device) in model.session().devices().iter() {
        if kinds.contains(&device.attributes().device_type) {
            continue;
        }
        kinds.push(device.attributes().device_type.clone());
        let Some(proposal) = all_on(placement.candidates(), id.0) else {
            continue;
        };
        let on_one = open(&|builder| builder.with_proposal(proposal.clone()))?;
        settle(&on_one)?;
        let profile = on_one.measure(N_RUNS_MEASURED)?;
        let session = on_one.session();
        history.learn(&profile, &session.graph(), &session.devices())?;
    }
    let learned = open(&|builder| builder.with_history(history.clone()))?;
    let placement = learned.session().placement();
    let mut random = SplitMix::new(args.seed, "plans");
    let mut found: Vec<(f64, Model, Vec<Duration>)> = Vec::new();
    for _ in 0..args.plans {
        let Some((proposal, expected_ns)) = random_plan(placement.candidates(), &mut random) else {
            continue;
        };
        let model = open(&|builder| builder.with_proposal(proposal.clone()))?;
        settle(&model)?;
        found.push((expected_ns, model, Vec::new()));
    }
    // In turns, since clocks drift.
    for _ in 0..args.rounds {
        for (_, model, times) in &mut found {
            times.extend(repeat(&Runs(model), args.seconds / args.rounds)?);
        }
    }
    let found: Vec<(f64, f64)> = found
        .iter_mut()
        .map(|(expected_ns, _, times)| (*expected_ns, to_f64(nanoseconds(median(times)))))
        .collect();
    let fastest = |key: fn(&(f64, f64)) -> f64| {
        let by_key = |a: &&(f64, f64), b: &&(f64, f64)| key(a).total_cmp(&key(b));
        found
            .iter()
            .min_by(by_key)
            .map_or(f64::NAN, |&(_, measured)| measured)
    };
    Ok(PlansRow {
        n: found.len(),
        tau: kendall_tau(&found),
        best_expected_over_best: fastest(|plan| plan.0) / fastest(|plan| plan.1),
        times: found
            .iter()
            .map(|&(expected_ns, measured_ns)| PlanTimes {
                expected_ns,
                measured_ns,
            })
            .collect(),
    })
}

/// Returns the plan with every node on a device that may run there; `None` if it is not legal.
fn all_on(candidates: &Candidates, device: u32) -> Option<Proposal> {
    let nodes = candidates.graph().nodes();
    let preferred = nodes.map(|node| {
        let of_node = candidates.of_node(node);
        let is_possible = of_node.contains(&device);
        if is_possible { device } else { of_node[0] }
    });
    let preferred: Vec<u32> = preferred.collect();
    let mut plan = Evaluator::new(candidates);
    plan.set_devices(&preferred);
    plan.offer().ok()?;
    plan.into_proposal()
}

/// Returns a legal plan with some of the nodes, in the order of the graph, on each device.
fn random_plan(candidates: &Candidates, random: &mut SplitMix) -> Option<(Proposal, f64)> {
    let n_nodes = candidates.graph().n_nodes();
    let first: Vec<u32> = candidates
        .graph()
        .nodes()
        .map(|node| candidates.of_node(node)[0])
        .collect();
    let mut plan = Evaluator::new(candidates);
    plan.set_devices(&first);
    let n_pieces = below(random, 8) + 1;
    let mut starts: Vec<usize> = (0..n_pieces).map(|_| below(random, n_nodes)).collect();
    starts.sort_unstable();
    for (index, &start) in starts.iter().enumerate() {
        let end = starts.get(index + 1).copied().unwrap_or(n_nodes);
        let nodes = to_u32(start)..to_u32(end);
        let device = to_u32(below(random, candidates.n_devices()));
        let may_run = |&node: &u32| {
            let node = NodeId(node);
            candidates.of_node(node).contains(&device)
        };
        let nodes: Vec<u32> = nodes.filter(may_run).collect();
        plan.move_nodes(&nodes, device);
    }
    let expected_ns = plan.makespan_ns();
    plan.offer().ok()?;
    Some((plan.into_proposal()?, expected_ns))
}

/// Returns a random number below `n`, which is small.
fn below(random: &mut SplitMix, n: usize) -> usize {
    let bits = usize::try_from(random.next() >> 33).unwrap_or(0);
    bits % n.max(1)
}

/// Graphs have fewer than 2^32 nodes and devices.
fn to_u32(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

/// Returns Kendall's tau of pairs: 1 if both orders agree, -1 if they are opposite.
fn kendall_tau(pairs: &[(f64, f64)]) -> f64 {
    let mut sum = 0.0;
    let mut n = 0.0;
    for (index, first) in pairs.iter().enumerate() {
        for second in &pairs[index + 1..] {
            let (a, b) = (first.0 - second.0, first.1 - second.1);
            if a != 0.0 && b != 0.0 {
                sum += (a * b).signum();
                n += 1.0;
            }
        }
    }
    if n == 0.0 { f64::NAN } else { sum / n }
}

fn expected_ns(model: &Model) -> f64 {
    model.session().placement().expected_ns()
}

impl Errors {
    fn of(ratios: impl Iterator<Item = f64>) -> Self {
        let mut errors: Vec<f64> = ratios.map(|ratio| (ratio - 1.0).abs()).collect();
        errors.sort_by(f64::total_cmp);
        let at = |numerator: usize| {
            let index = (errors.len() * numerator).div_ceil(10).saturating_sub(1);
            errors.get(index).copied().unwrap_or(f64::NAN)
        };
        Self {
            median: at(5),
            p90: at(9),
        }
    }
}

fn middle(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

#[expect(clippy::cast_precision_loss, reason = "times are far below 2^53 ns")]
fn to_f64(ns: u64) -> f64 {
    ns.max(1) as f64
}

impl Report {
    fn show(&self, output: &mut Output) -> Result<()> {
        let has_plans = self.rows.iter().any(|row| row.plans.is_some());
        let mut head = vec![
            "model",
            "nodes",
            "median",
            "by rates",
            "with counts",
            "learned",
        ];
        if has_plans {
            head.extend(["plans", "tau", "chosen by best"]);
        }
        let numbers: Vec<usize> = (1..head.len()).collect();
        let mut table = Table::new(head).with_numbers(&numbers);
        for row in &self.rows {
            let mut cells = vec![
                row.model.clone(),
                row.nodes.to_string(),
                show_ns(to_f64(row.measured_ns)),
                format!("{:.2}", row.by_rates),
                format!("{:.2}", row.with_counts),
                format!("{:.3}", row.learned),
            ];
            if let Some(plans) = &row.plans {
                cells.extend([
                    plans.n.to_string(),
                    format!("{:.2}", plans.tau),
                    format!("{:.3}", plans.best_expected_over_best),
                ]);
            }
            table.add_row(cells);
        }
        output.table(&table)?;
        let errors = |errors: &Errors| {
            format!(
                "median {:.0} %, 90th percentile {:.0} %",
                100.0 * errors.median,
                100.0 * errors.p90
            )
        };
        output.line(format_args!(
            "expected time by measured time; errors by rates: {}; with measured trip counts: {}; \
             after measured runs: {}",
            errors(&self.by_rates),
            errors(&self.with_counts),
            errors(&self.learned)
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tau_counts_pairs_in_the_same_order() {
        assert_eq!(kendall_tau(&[(1.0, 10.0), (2.0, 20.0), (3.0, 30.0)]), 1.0);
        assert_eq!(kendall_tau(&[(1.0, 3.0), (2.0, 2.0), (3.0, 1.0)]), -1.0);
        assert!(kendall_tau(&[(1.0, 1.0)]).is_nan());
    }

    #[test]
    fn errors_are_quantiles() {
        let errors = Errors::of([1.0, 1.1, 0.8, 1.5].into_iter());
        assert!((errors.median - 0.1).abs() < 1e-12 && (errors.p90 - 0.5).abs() < 1e-12);
    }
}
