//! `bench placement`: enumerating candidates, calling a policy in the sandbox with all limits on,
//! and checking its answer.
//!
//! The policy is loaded once and stays resident, as in a service. The native build of a shipped
//! policy runs in turn with it, so that both meet the same state of the machine. Each figure is the
//! median of the repetitions.

use std::fmt;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use anyhow::Result;
use anyhow::anyhow;
use clap::Args;
use clap::ValueHint;
use serde::Serialize;

use super::Report;
use super::evaluation;
use super::lookups;
use super::memory::PeakMemory;
use super::replacement;
use crate::candidates::Candidates;
use crate::candidates::PlacementOptions;
use crate::candidates::enumerate;
use crate::candidates::synthetic;
use crate::candidates::synthetic::SyntheticGraph;
use crate::cli::Outcome;
use crate::cli::UsageError;
use crate::cli::output::Output;
use crate::cli::progress::Progress;
use crate::cli::sandbox::SandboxArgs;
use crate::cli::table::Table;
use crate::cli::timing::median;
use crate::cli::timing::timed;
use crate::device::DeviceSet;
use crate::device::KernelRegistry;
use crate::graph::Graph;
use crate::placement::Placement;
use crate::placement::check;
use crate::policy::LoadedPolicy;
use crate::policy::PlaceOptions;
use crate::policy::PolicyLimits;
use crate::policy::PolicySource;
use crate::policy::ShippedPolicy;
use crate::policy::place_natively;

/// Nodes and groups of the graphs that are measured by default.
const DEFAULT_GRAPHS: [(u32, u32); 4] = [
    (1_000, 0),
    (100_000, 0),
    (100_000, 10_000),
    (LARGE, 100_000),
];

/// By default, graphs of so many nodes are placed by one policy only: the others take long.
const LARGE: u32 = 1_000_000;
const POLICY_FOR_LARGE: &str = "priority";

#[derive(Debug, Args)]
pub(in crate::cli) struct PlacementBench {
    /// Numbers of nodes of the layered random graphs, with about 2.5 edges per node.
    ///
    /// By default 1000 and 100000 without groups, 100000 with 10000 groups, and for `priority`
    /// 1000000 with 100000 groups.
    #[arg(long, value_name = "N,..", value_delimiter = ',')]
    nodes: Vec<u32>,
    /// Numbers of colocation groups, at most half of the nodes.
    ///
    /// Nodes name them in their attribute `_class`. Half of the groups have two nodes, the others
    /// three to eight, drawn at random.
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_values_t = [0], requires = "nodes")]
    groups: Vec<u32>,
    /// Numbers of variables among the nodes, fewer than nodes.
    ///
    /// A variable is a resource. The nodes that read it, three on average, must be on its device.
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_values_t = [0], requires = "nodes")]
    variables: Vec<u32>,
    /// Numbers of devices: one CPU, then two kinds of GPU, SYCL devices and CPUs in turn.
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_values_t = [8])]
    devices: Vec<u32>,
    /// Policies: names of shipped ones, or .wasm files.
    #[arg(long, value_name = "NAME|FILE,..", value_hint = ValueHint::FilePath, value_delimiter = ',', default_values_t = ["priority".to_owned(), "heft".to_owned()])]
    policy: Vec<String>,
    /// Measurements per row; the median counts.
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..))]
    repetitions: u32,
    /// Seed of the graphs.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Place once and print the growth of the peak of resident memory. The benchmark starts a
    /// fresh process with this flag.
    #[arg(long, hide = true)]
    measure_memory: bool,
}

#[derive(Debug, Serialize)]
struct Row {
    policy: String,
    nodes: usize,
    edges: usize,
    devices: usize,
    /// All groups, those of a single node included.
    groups: u32,
    /// Groups of several nodes.
    shared_groups: usize,
    whole_ms: f64,
    /// Time of the whole stage: the three parts below.
    us_per_node: f64,
    enumerate_us_per_node: f64,
    policy_us_per_node: f64,
    check_us_per_node: f64,
    /// Time of the native build; `null` if the policy is a file.
    native_us_per_node: Option<f64>,
    wasm_over_native: Option<f64>,
    /// Growth of the peak of resident memory over the stage, the policy's own memory included;
    /// `null` if the system does not report it.
    bytes_per_node: Option<f64>,
}

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Reports {
    #[serde(flatten)]
    of_graphs: Report<Row>,
    replacement: Vec<replacement::Row>,
    evaluation: Vec<evaluation::Row>,
    lookups: lookups::Row,
}

/// What one row is measured on.
#[derive(Debug, Clone, Copy)]
struct Case<'a> {
    graph: SyntheticGraph,
    n_devices: u32,
    policy: &'a str,
}

/// A case, made ready.
struct Subject {
    graph: Arc<Graph>,
    devices: Arc<DeviceSet>,
    kernels: KernelRegistry,
    policy: LoadedPolicy,
    /// `None` if the policy is a file.
    native: Option<ShippedPolicy>,
}

/// Runs the benchmark.
pub(super) fn run(args: &PlacementBench, output: &mut Output) -> Result<Outcome> {
    if args.measure_memory {
        return measure_memory(args, output);
    }
    let cases = cases(args)?;
    let progress = Progress::steps(cases.len() as u64 * u64::from(args.repetitions), "placing");
    let mut rows = Vec::new();
    for case in &cases {
        progress.set_message(case.to_string());
        rows.push(measure(case, args.repetitions, &progress)?);
    }
    drop(progress);
    show(&rows, output)?;
    let replacement = replacement::measure(args.repetitions, args.seed)?;
    replacement::show(&replacement, output)?;
    let evaluation = evaluation::measure(args.repetitions)?;
    evaluation::show(&evaluation, output)?;
    let lookups = lookups::measure(args.repetitions, args.seed)?;
    lookups::show(&lookups, output)?;
    output.json(&Reports {
        of_graphs: Report {
            bench: "placement",
            rows,
        },
        replacement,
        evaluation,
        lookups,
    })?;
    Ok(Outcome::Done)
}

/// One case per graph, number of devices and policy.
fn cases(args: &PlacementBench) -> Result<Vec<Case<'_>>> {
    let mut graphs = Vec::new();
    for &n_nodes in &args.nodes {
        for &n_groups in &args.groups {
            for &n_variables in &args.variables {
                graphs.push(
                    SyntheticGraph::new(n_nodes, args.seed)
                        .with_groups(n_groups)
                        .with_variables(n_variables),
                );
            }
        }
    }
    if args.nodes.is_empty() {
        let default = DEFAULT_GRAPHS.iter();
        graphs.extend(default.map(|&(n_nodes, n_groups)| {
            SyntheticGraph::new(n_nodes, args.seed).with_groups(n_groups)
        }));
    }
    let mut cases = Vec::new();
    for graph in graphs {
        for &n_devices in &args.devices {
            for policy in &args.policy {
                let case = Case {
                    graph,
                    n_devices,
                    policy,
                };
                case.check()?;
                let is_asked_for = !args.nodes.is_empty();
                if is_asked_for || graph.n_nodes < LARGE || policy == POLICY_FOR_LARGE {
                    cases.push(case);
                }
            }
        }
    }
    Ok(cases)
}

impl Case<'_> {
    fn check(&self) -> Result<()> {
        let graph = &self.graph;
        let (n_nodes, n_groups, n_variables) = (graph.n_nodes, graph.n_groups, graph.n_variables);
        anyhow::ensure!(
            n_nodes > 0 && self.n_devices > 0,
            "there is nothing to place; --nodes and --devices must be at least 1"
        );
        anyhow::ensure!(
            n_groups <= n_nodes / 2,
            "{n_nodes} nodes are too few for {n_groups} groups of two; --groups must be at most {}",
            n_nodes / 2
        );
        anyhow::ensure!(
            n_variables < n_nodes,
            "of {n_nodes} nodes {n_variables} cannot be variables, as others must read them; --variables must be at most {}",
            n_nodes - 1
        );
        Ok(())
    }
}

impl fmt::Display for Case<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SyntheticGraph {
            n_nodes, n_groups, ..
        } = self.graph;
        let (policy, n_devices) = (self.policy, self.n_devices);
        write!(
            f,
            "{policy}, {n_nodes} nodes, {n_groups} groups, {n_devices} devices"
        )
    }
}

impl Subject {
    fn new(case: &Case<'_>) -> Result<Self> {
        let source = PolicySource::parse(case.policy)
            .map_err(|err| UsageError(format!("--policy: {err}")))?;
        let engine = SandboxArgs::default().engine(PolicyLimits::default(), None)?;
        let bytes = source.read(engine.limits())?;
        Ok(Self {
            graph: Arc::new(case.graph.build()),
            devices: Arc::new(synthetic::devices(case.n_devices)),
            kernels: synthetic::kernels(),
            policy: engine.load(&source.to_string(), &bytes, &[])?,
            native: match source {
                PolicySource::Shipped(policy) => Some(policy),
                _ => None,
            },
        })
    }

    fn candidates(&self) -> Result<Candidates> {
        let options = PlacementOptions::default();
        Ok(enumerate(
            &self.graph,
            &self.devices,
            &self.kernels,
            &options,
        )?)
    }

    /// Runs the whole stage, and returns the time of each part.
    fn place(&mut self) -> Result<(Placement, [Duration; 3])> {
        let (candidates, enumerated) = timed(|| self.candidates());
        let candidates = candidates?;
        let (answer, asked) = timed(|| self.policy.place(&candidates, &PlaceOptions::default()));
        let proposal = answer?.proposal;
        let (placement, checked) = timed(|| check(&candidates, proposal));
        let placement = placement.map_err(|violation| anyhow!("{violation}"))?;
        Ok((placement, [enumerated, asked, checked]))
    }
}

fn measure(case: &Case<'_>, repetitions: u32, progress: &Progress) -> Result<Row> {
    let mut subject = Subject::new(case)?;
    let n_nodes = subject.graph.n_nodes();
    let candidates = subject.candidates()?;
    let name = subject.policy.name().to_owned();
    let mut stages: [Vec<Duration>; 3] = Default::default();
    let mut whole = Vec::new();
    let mut native_times = Vec::new();
    for repetition in 0..=repetitions {
        let (placement, times) = subject.place()?;
        let native_time = match subject.native {
            Some(policy) => {
                let limits = PolicyLimits::default();
                let options = PlaceOptions::default();
                let (native, time) =
                    timed(|| place_natively(policy, &[], &candidates, &options, &limits));
                anyhow::ensure!(
                    native?.proposal.devices == placement.devices(),
                    "policy `{name}` and its native build disagree"
                );
                Some(time)
            }
            None => None,
        };
        // The first repetition grows the policy's memory and warms the caches.
        if repetition > 0 {
            for (stage, time) in stages.iter_mut().zip(times) {
                stage.push(time);
            }
            whole.push(times.iter().sum());
            native_times.extend(native_time);
            progress.advance();
        }
    }
    let us_per_node = |times: &mut [Duration]| microseconds(median(times)) / to_f64(n_nodes);
    let whole_us = microseconds(median(&mut whole));
    let [enumerated, asked, checked] = &mut stages;
    let policy_us_per_node = us_per_node(asked);
    let native_us_per_node = (!native_times.is_empty()).then(|| us_per_node(&mut native_times));
    Ok(Row {
        policy: name.clone(),
        nodes: n_nodes,
        edges: subject.graph.n_edges(),
        devices: subject.devices.len(),
        groups: candidates.nodes().n_groups,
        shared_groups: shared_groups(&candidates),
        whole_ms: whole_us / 1e3,
        us_per_node: whole_us / to_f64(n_nodes),
        enumerate_us_per_node: us_per_node(enumerated),
        policy_us_per_node,
        check_us_per_node: us_per_node(checked),
        native_us_per_node,
        wasm_over_native: native_us_per_node.map(|native| policy_us_per_node / native),
        bytes_per_node: ask_memory(case)?,
    })
}

/// Groups of several nodes.
fn shared_groups(candidates: &Candidates) -> usize {
    let columns = candidates.nodes();
    let mut n_members = vec![0u32; columns.n_groups as usize];
    for &group in &columns.group {
        n_members[group as usize] += 1;
    }
    n_members.iter().filter(|&&n| n > 1).count()
}

/// Measures memory in a fresh process, which has used none before.
fn ask_memory(case: &Case<'_>) -> Result<Option<f64>> {
    let program = std::env::current_exe().context("finding this program")?;
    let graph = &case.graph;
    let answer = Command::new(program)
        .args(["bench", "placement", "--measure-memory", "--json"])
        .args(["--nodes", &graph.n_nodes.to_string()])
        .args(["--groups", &graph.n_groups.to_string()])
        .args(["--variables", &graph.n_variables.to_string()])
        .args(["--devices", &case.n_devices.to_string()])
        .args(["--policy", case.policy])
        .args(["--seed", &graph.seed.to_string()])
        // Memory that building the graph has freed goes back to the system at once: if placement
        // reused it, it would seem to need less than it does. (`mallopt(3)`; without glibc this
        // does nothing.)
        .envs([
            ("MALLOC_TRIM_THRESHOLD_", "0"),
            ("MALLOC_MMAP_THRESHOLD_", "131072"),
        ])
        .output()
        .context("starting this program again")?;
    anyhow::ensure!(
        answer.status.success(),
        "measuring memory: {}",
        String::from_utf8_lossy(&answer.stderr).trim()
    );
    let growth: Option<u64> = serde_json::from_slice(&answer.stdout)?;
    #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
    Ok(growth.map(|bytes| bytes as f64 / f64::from(graph.n_nodes)))
}

fn measure_memory(args: &PlacementBench, output: &mut Output) -> Result<Outcome> {
    let cases = cases(args)?;
    let case = cases.first().context("there is nothing to place")?;
    let mut subject = Subject::new(case)?;
    let peak = PeakMemory::start();
    let placement = subject.place()?;
    let growth = peak.and_then(|peak| peak.growth_bytes());
    drop(placement);
    output.json(&growth)?;
    Ok(Outcome::Done)
}

fn show(rows: &[Row], output: &mut Output) -> Result<()> {
    let mut table = Table::new([
        "policy",
        "nodes",
        "groups",
        "devices",
        "ms",
        "us/node",
        "candidates",
        "policy",
        "check",
        "native",
        "wasm/native",
        "bytes/node",
    ])
    .with_numbers(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]);
    for row in rows {
        table.add_row([
            row.policy.clone(),
            row.nodes.to_string(),
            row.shared_groups.to_string(),
            row.devices.to_string(),
            format!("{:.1}", row.whole_ms),
            format!("{:.3}", row.us_per_node),
            format!("{:.3}", row.enumerate_us_per_node),
            format!("{:.3}", row.policy_us_per_node),
            format!("{:.3}", row.check_us_per_node),
            or_dash(row.native_us_per_node, 3),
            or_dash(row.wasm_over_native, 2),
            or_dash(row.bytes_per_node, 0),
        ]);
    }
    output.table(&table)
}

fn or_dash(value: Option<f64>, n_digits: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.n_digits$}"))
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
fn microseconds(duration: Duration) -> f64 {
    duration.as_nanos() as f64 / 1e3
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
fn to_f64(n: usize) -> f64 {
    n as f64
}
