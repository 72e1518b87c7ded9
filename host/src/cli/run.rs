//! `placewright run`: places a graph, executes it, checks the results and prints the times.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Context;
use anyhow::Result;
use anyhow::bail;
use clap::Args;
use clap::ValueHint;
use serde::Serialize;

use super::Outcome;
use super::UsageError;
use super::allclose::Tolerance;
use super::args::PlacementArgs;
use super::args::RunArgs;
use super::cache;
use super::check::CheckReport;
use super::feeds::Feeds;
use super::feeds::default_fetches;
use super::feeds::fetch_name;
use super::feeds::needed_placeholders;
use super::feeds::no_array;
use super::feeds::random_feeds;
use super::feeds::read_expected;
use super::feeds::read_feeds;
use super::feeds::wanted_feeds;
use super::json_tensors::is_json;
use super::json_tensors::read_json_feeds;
use super::json_tensors::write_json;
use super::npz;
use super::npz::NpzReader;
use super::open::Opened;
use super::open::is_task_graph;
use super::open::open;
use super::output::Output;
use super::output_file;
use super::progress::Progress;
use super::summary::PlacementView;
use super::table::Table;
use super::timing::Timing;
use super::timing::timed;
use super::units::count;
use super::units::show_ns;
use super::values::first_values;
use crate::error::Error;
use crate::error::NameRole;
use crate::execute::ExecuteError;
use crate::execute::RunOptions;
use crate::graph::Graph;
use crate::registry::Registry;
use crate::session::StageTime;
use crate::session::find_tensor;
use crate::tensor::Tensor;
use crate::trace::Recorder;

/// Number of values that are shown of each output.
const N_VALUES_SHOWN: usize = 6;

/// Least and most runs that are measured for --learn and --save-profile.
const N_RUNS_MEASURED: u32 = 7;
const N_RUNS_MEASURED_MAX: u32 = 100;

#[derive(Debug, Args)]
pub(super) struct RunCommand {
    /// A frozen TensorFlow GraphDef (.pb), or the folder of a SavedModel.
    #[arg(value_hint = ValueHint::FilePath)]
    graph: PathBuf,
    #[command(flatten)]
    placement: PlacementArgs,
    #[command(flatten)]
    run: RunArgs,
    /// Measure some runs in addition, and print what each node took beside what it was expected to
    /// take.
    #[arg(long, help_heading = "Output")]
    nodes: bool,
}

/// Everything that `--json` prints.
#[derive(Debug, Serialize)]
struct Report<'a> {
    placement: PlacementView<'a>,
    stages: &'a [StageTime],
    /// Placeholders that got random values, as tensor names.
    random_feeds: Vec<String>,
    seed: u64,
    outputs: Vec<OutputRow>,
    timing: Timing,
    /// What the placement expected of a run of the whole graph, beside the median: 0.9 means that
    /// runs take longer than expected. `null` without timed runs.
    expected_by_median: Option<f64>,
    /// With --nodes, --learn or --save-profile.
    #[serde(skip_serializing_if = "Option::is_none")]
    profile: Option<ProfileView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    check: Option<CheckReport>,
}

/// What measured runs took.
#[derive(Debug, Serialize)]
struct ProfileView {
    n_runs: u32,
    run_ns: f64,
    /// Nodes whose times were added to the history; `null` without --learn.
    n_learned: Option<usize>,
    /// Sum of the times of kernels, beside the sum that the placement expected of the same nodes.
    kernels_ns: f64,
    expected_kernels_ns: f64,
    /// With --nodes, those of the most time first.
    #[serde(skip_serializing_if = "Option::is_none")]
    nodes: Option<Vec<NodeRow>>,
}

/// What a node took in one run.
#[derive(Debug, Serialize)]
struct NodeRow {
    name: String,
    op: String,
    device: String,
    executions: f64,
    /// Time of all executions, in ns. If one kernel computes several nodes, one has its time.
    ns: f64,
    expected_ns: f64,
    /// Where the expected time comes from.
    cost_source: String,
}

#[derive(Debug, Serialize)]
struct OutputRow {
    name: String,
    dtype: &'static str,
    shape: Vec<usize>,
    first_values: Vec<serde_json::Value>,
}

/// Feeds, fetches and expected results of the runs.
struct Work {
    feeds: Feeds,
    /// Names of the fed tensors whose values are random.
    random: Vec<String>,
    fetches: Vec<String>,
    expected: Option<Feeds>,
}

/// Runs the command.
pub(super) fn run(
    command: &RunCommand,
    registry: &Registry,
    output: &mut Output,
) -> Result<Outcome> {
    let args = &command.run;
    if is_task_graph(&command.graph) {
        let problem = "a task graph has no kernels to run; `simulate` shows what a run would take";
        return Err(UsageError(problem.to_owned()).into());
    }
    check_pool(args, &command.placement)?;
    output_file::check(&command.graph, None, &command.placement, args)?;
    let recorder = if args.trace.is_some() {
        Recorder::on()
    } else {
        Recorder::off()
    };
    let opened = open(
        &command.graph,
        &command.placement,
        None,
        false,
        registry,
        recorder,
        output,
    )?;
    opened.save_and_log(&command.placement, output)?;
    let graph = &opened.session.given_graph();
    let work = Work::new(graph, args, command.placement.seed, output);
    let executed = work.as_ref().map(|work| execute(&opened, work, args));
    let executed = executed.ok().transpose();
    let traced = match &args.trace {
        Some(path) => opened.write_trace(path),
        None => Ok(()),
    };
    // The trace is written even if the run failed: that is when it is read. The error of the run
    // is reported before one of the trace, as it says more.
    let executed = executed?;
    let work = work?;
    let profile = profile(&opened, &work, command)?;
    let (tensors, timing) = executed.context("nothing was executed")?;
    traced?;
    let fetched: Vec<(String, Tensor)> = work.fetches.iter().cloned().zip(tensors).collect();
    if let Some(path) = args.output.as_ref().filter(|path| is_json(path)) {
        write_json(path, &fetched)?;
    } else if let Some(path) = &args.output {
        let names: Vec<String> = fetched
            .iter()
            .map(|(name, _)| format!("out/{name}"))
            .collect();
        let tensors = fetched.iter().map(|(_, tensor)| tensor);
        npz::write(path, names.iter().map(String::as_str).zip(tensors))?;
    }
    let check = match &work.expected {
        Some(expected) => {
            let tolerance = Tolerance {
                atol: args.atol,
                rtol: args.rtol,
            };
            Some(CheckReport::new(&fetched, expected, tolerance)?)
        }
        None => None,
    };
    let is_negative = check.as_ref().is_some_and(|check| !check.matches);
    let report = Report {
        placement: opened.view(),
        stages: &opened.report.stages,
        random_feeds: work.random,
        seed: command.placement.seed,
        outputs: fetched
            .iter()
            .map(|(name, tensor)| OutputRow {
                name: name.clone(),
                dtype: tensor.dtype().name(),
                shape: tensor.shape().dims().to_vec(),
                first_values: first_values(tensor, N_VALUES_SHOWN),
            })
            .collect(),
        expected_by_median: (timing.n_runs > 0).then(|| expected_by(&opened, timing.median_ns)),
        timing,
        profile,
        check,
    };
    report.show(output)?;
    output.json(&report)?;
    Ok(match is_negative {
        true => Outcome::Negative,
        false => opened.outcome(),
    })
}

/// Returns how much of the time of a run the placement expected.
#[expect(clippy::cast_precision_loss, reason = "a ratio for display")]
fn expected_by(opened: &Opened, median_ns: u64) -> f64 {
    opened.view().expected_ns() / (median_ns as f64).max(1.0)
}

/// Measures runs, if flags ask for it, and keeps what they took.
fn profile(opened: &Opened, work: &Work, command: &RunCommand) -> Result<Option<ProfileView>> {
    let args = &command.run;
    if !command.nodes && !args.learn && args.save_profile.is_none() {
        return Ok(None);
    }
    let n_runs = args.repeat.clamp(N_RUNS_MEASURED, N_RUNS_MEASURED_MAX);
    let (feeds, fetches) = work.names();
    let progress = Progress::spinner("measuring");
    let session = &opened.session;
    let profile = session.measure(&feeds, &fetches, &[], n_runs)?;
    drop(progress);
    if let Some(path) = &args.save_profile {
        output_file::write(path, |file| Ok(file.write_all(&profile.to_json())?))?;
    }
    let learn = || -> Result<usize> {
        let history = cache::history(&command.placement.devices)?;
        let history = history.context("--learn: there is no cache folder to keep times in")?;
        Ok(history.learn(&profile, &session.graph(), &session.devices())?)
    };
    let placement = &opened.placement;
    let (mut kernels_ns, mut expected_kernels_ns) = (0.0, 0.0);
    let mut nodes = Vec::new();
    for times in &profile.nodes {
        let node = placement.graph().find_node(&times.node);
        let device = placement.device_set().find_by_name(&times.device);
        if let (Some(node), Some(device)) = (node, device) {
            kernels_ns += times.executions * times.ns;
            let candidates = placement.candidates();
            expected_kernels_ns += candidates.work_ns(node, device);
            if times.executions > 0.0 {
                nodes.push(NodeRow {
                    name: times.node.clone(),
                    op: placement.graph().op(node).to_owned(),
                    device: times.device.clone(),
                    executions: times.executions,
                    ns: times.executions * times.ns,
                    expected_ns: candidates.work_ns(node, device),
                    cost_source: candidates.cost_source(node, device).to_owned(),
                });
            }
        }
    }
    nodes.sort_by(|a, b| b.ns.total_cmp(&a.ns).then_with(|| a.name.cmp(&b.name)));
    Ok(Some(ProfileView {
        n_runs: profile.n_runs,
        run_ns: profile.run_ns,
        n_learned: args.learn.then(learn).transpose()?,
        kernels_ns,
        expected_kernels_ns,
        nodes: command.nodes.then_some(nodes),
    }))
}

/// Checks that the pool that --inter-op-pool selects exists.
fn check_pool(args: &RunArgs, placement: &PlacementArgs) -> Result<()> {
    let n_pools = placement.session_inter_op_pool.len().max(1);
    let is_one = usize::try_from(args.inter_op_pool).is_ok_and(|pool| pool < n_pools);
    if is_one || args.inter_op_pool == -1 {
        return Ok(());
    }
    let error = ExecuteError::NoSuchPool {
        pool: args.inter_op_pool,
        n_pools,
    };
    Err(UsageError(format!("--inter-op-pool: {error}")).into())
}

impl Work {
    fn new(graph: &Graph, args: &RunArgs, seed: u64, output: &Output) -> Result<Self> {
        let mut feeds = Feeds::new();
        let mut expected = None;
        if let Some(path) = &args.check {
            let mut archive = NpzReader::open(path)?;
            let context = || format!("--check {}", path.display());
            feeds = read_feeds(&mut archive, graph).with_context(context)?;
            expected = Some(read_expected(&mut archive, graph).with_context(context)?);
        }
        if let Some(path) = args.feeds.as_ref().filter(|path| is_json(path)) {
            let context = || format!("--feeds {}", path.display());
            feeds.extend(read_json_feeds(path, graph).with_context(context)?);
        } else if let Some(path) = &args.feeds {
            let mut archive = NpzReader::open(path)?;
            let context = || format!("--feeds {}", path.display());
            let found = read_feeds(&mut archive, graph).with_context(context)?;
            if found.is_empty() {
                return Err(no_array("in/NAME", &archive, &wanted_feeds(graph)))
                    .with_context(context);
            }
            feeds.extend(found);
        }
        let mut fetches: Vec<String> = Vec::new();
        let checked = expected
            .iter()
            .flat_map(|expected| expected.keys().cloned());
        for name in checked.chain(args.fetch.iter().cloned()) {
            let tensor = find_tensor(graph, NameRole::Fetch, &name);
            let tensor = tensor.map_err(|err| {
                let more = match &err {
                    Error::UnknownNode {
                        suggestion: None, ..
                    } => "; `placewright place --nodes` lists the nodes",
                    _ => "",
                };
                UsageError(format!("--fetch: {err}{more}"))
            })?;
            let name = fetch_name(graph, tensor);
            if !fetches.contains(&name) {
                fetches.push(name);
            }
        }
        if fetches.is_empty() {
            fetches = default_fetches(graph);
        }
        if fetches.is_empty() {
            bail!("every output of the graph is read by a node; name what to compute with --fetch");
        }
        // Random values would only make the check fail; the run reports what is not fed.
        let mut random = Vec::new();
        if let Some(path) = args.check.as_deref() {
            let unfed = needed_placeholders(graph, &fetches, &feeds)?;
            if let Some(&node) = unfed.first() {
                let archive = NpzReader::open(path)?;
                let context = format!(
                    "placeholder `{}` is needed but not fed",
                    graph.node_name(node)
                );
                let wanted = unfed.iter();
                let wanted = wanted.map(|&node| format!("in/{}", graph.node_name(node)));
                return Err(no_array("in/NAME", &archive, &wanted.collect::<Vec<_>>()))
                    .context(context)
                    .with_context(|| format!("--check {}", path.display()));
            }
        } else {
            let made = random_feeds(graph, &fetches, &feeds, seed)?;
            random.extend(made.feeds.keys().cloned());
            for (name, shape) in &made.assumed {
                output.note(format_args!(
                    "placeholder `{name}` has unknown dimensions, taken as 1: {shape}"
                ));
            }
            feeds.extend(made.feeds);
        }
        if !random.is_empty() {
            output.note(format_args!(
                "random values (seed {seed}) for {}: {}; --feeds F.npz gives others",
                count(random.len(), "placeholder"),
                random.join(", ")
            ));
        }
        Ok(Self {
            feeds,
            random,
            fetches,
            expected,
        })
    }
}

impl Work {
    /// Returns feeds and fetches as sessions take them.
    fn names(&self) -> (Vec<(&str, Tensor)>, Vec<&str>) {
        let feeds = self.feeds.iter();
        let feeds = feeds.map(|(name, tensor)| (name.as_str(), tensor.clone()));
        let fetches = self.fetches.iter().map(String::as_str);
        (feeds.collect(), fetches.collect())
    }
}

/// Returns the fetches of the last run, and the times.
fn execute(opened: &Opened, work: &Work, args: &RunArgs) -> Result<(Vec<Tensor>, Timing)> {
    let (feeds, fetches) = work.names();
    let options = RunOptions::default().with_inter_op_thread_pool(args.inter_op_pool);
    let run =
        || -> Result<Vec<Tensor>> { Ok(opened.session.run_with(&feeds, &fetches, &[], &options)?) };
    let n_runs = 1 + u64::from(args.warmup) + u64::from(args.repeat);
    let progress = if n_runs > 1 {
        Progress::steps(n_runs, "running")
    } else {
        Progress::spinner("running")
    };
    let (outputs, first) = timed(run);
    let mut outputs = outputs?;
    progress.advance();
    for _ in 0..args.warmup {
        // The memory plan counts the outputs of one run, so those of the last run go first.
        drop(outputs);
        outputs = run()?;
        progress.advance();
    }
    let mut times = Vec::new();
    for _ in 0..args.repeat {
        drop(outputs);
        let (result, time) = timed(run);
        outputs = result?;
        times.push(time);
        progress.advance();
    }
    drop(progress);
    Ok((outputs, Timing::new(first, times)))
}

/// A value as a table shows it: on one line.
fn cell(value: &serde_json::Value) -> String {
    match value {
        serde_json::Value::String(text) => text.replace('\n', "\\n"),
        other => other.to_string(),
    }
}

impl Report<'_> {
    fn show(&self, output: &mut Output) -> Result<()> {
        self.placement.show(output)?;
        output.line("")?;
        let mut table = Table::new(["output", "type", "shape", "first values"]);
        for row in &self.outputs {
            let mut values: Vec<String> = row.first_values.iter().map(cell).collect();
            if row.shape.iter().product::<usize>() > N_VALUES_SHOWN {
                values.push("..".to_owned());
            }
            table.add_row([
                row.name.clone(),
                row.dtype.to_owned(),
                format!("{:?}", row.shape),
                values.join(" "),
            ]);
        }
        output.table(&table)?;
        output.line("")?;
        match self.expected_by_median {
            Some(ratio) => output.line(format_args!(
                "{}; expected {:.0} % of the median",
                self.timing,
                100.0 * ratio
            ))?,
            None => output.line(&self.timing)?,
        }
        if let Some(profile) = &self.profile {
            output.line(format_args!(
                "measured {}: median {}, kernels {} (expected {})",
                count(profile.n_runs as usize, "run"),
                show_ns(profile.run_ns),
                show_ns(profile.kernels_ns),
                show_ns(profile.expected_kernels_ns)
            ))?;
            if let Some(nodes) = &profile.nodes {
                output.table(&node_table(nodes))?;
            }
            if let Some(n_learned) = profile.n_learned {
                let learned = count(n_learned, "node");
                output.line(format_args!(
                    "the times of {learned} are kept for later placements"
                ))?;
            }
        }
        if let Some(check) = &self.check {
            output.line("")?;
            check.show(output)?;
        }
        Ok(())
    }
}

/// Returns a table with a row per node that was executed.
fn node_table(nodes: &[NodeRow]) -> Table {
    let head = [
        "node", "op", "device", "runs", "took", "expected", "ratio", "source",
    ];
    let mut table = Table::new(head).with_numbers(&[3, 4, 5, 6]);
    for node in nodes {
        let ratio = match node.ns > 0.0 {
            true => format!("{:.2}", node.expected_ns / node.ns),
            false => String::new(),
        };
        table.add_row([
            node.name.clone(),
            node.op.clone(),
            node.device.clone(),
            format!("{}", node.executions),
            show_ns(node.ns),
            show_ns(node.expected_ns),
            ratio,
            node.cost_source.clone(),
        ]);
    }
    table
}

impl std::fmt::Display for Timing {
    #[expect(clippy::cast_precision_loss, reason = "for display")]
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "first run {}", show_ns(self.first_ns as f64))?;
        if self.n_runs > 0 {
            write!(
                f,
                "; then {}: median {}, 90th percentile {}",
                count(self.n_runs, "run"),
                show_ns(self.median_ns as f64),
                show_ns(self.p90_ns as f64)
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_value_is_on_one_line() {
        assert_eq!(cell(&json!("a\nb\n")), r"a\nb\n");
        assert_eq!(cell(&json!(1.5)), "1.5");
    }
}
