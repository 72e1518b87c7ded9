//! `bench adversary`: task graphs on which a policy does worse than others, in the manner of PISA
//! (Coleman, Krishnamachari, "PISA: An Adversarial Approach To Comparing Task Graph Scheduling
//! Algorithms"): simulated annealing changes the weights and edges of small task graphs, so that
//! the ratio of the policy's makespan to the best of the others grows.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::path::PathBuf;
use std::time::Duration;
use std::time::Instant;

use anyhow::Context;
use anyhow::Result;
use anyhow::anyhow;
use clap::Args;
use clap::ValueHint;
use placewright_guest::search::Random;
use serde::Serialize;

use super::Report;
use super::instance::Dependency;
use super::instance::Edge;
use super::instance::Instance;
use super::instance::Network;
use super::instance::Node;
use super::instance::Task;
use super::instance::Tasks;
use super::parse_seconds;
use crate::candidates::Candidates;
use crate::cli::Outcome;
use crate::cli::UsageError;
use crate::cli::cache;
use crate::cli::output::Output;
use crate::cli::progress::Progress;
use crate::cli::table::Table;
use crate::placement::check;
use crate::policy::LoadedPolicy;
use crate::policy::PlaceOptions;
use crate::policy::PolicyEngine;
use crate::policy::PolicyLimits;
use crate::policy::PolicySource;
use crate::policy::ShippedPolicy;
use crate::policy::place_natively;

/// Changes per walk, as in the paper.
const STEPS: u32 = 1_000;

/// The temperature at the start of a walk, in terms of the ratio, and its factor per step: the
/// walk ends at about a hundredth.
const TEMPERATURE: f64 = 0.2;
const COOLING: f64 = 0.995_4;

/// Bounds of costs, sizes and speeds.
const WEIGHTS: [f64; 2] = [0.05, 20.0];

#[derive(Debug, Args)]
pub(in crate::cli) struct AdversaryBench {
    /// The policy whose bad cases are sought: the name of a shipped one, or a file
    #[arg(long, value_name = "NAME|FILE", default_value = "auto", value_hint = ValueHint::FilePath)]
    policy: String,
    /// The policies that it is compared with [default: the shipped list schedulers, but for the
    /// policy itself]
    #[arg(long, value_name = "A,B,F.wasm", value_delimiter = ',')]
    against: Vec<String>,
    /// Time of the search, in seconds
    #[arg(long, value_name = "S", default_value = "30", value_parser = parse_seconds)]
    seconds: Duration,
    /// Maximum number of walks, each from a random task graph; 0 for as many as there is time for
    #[arg(long, value_name = "N", default_value_t = 0)]
    walks: u32,
    /// Maximum number of tasks of the random graphs
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = clap::value_parser!(u32).range(2..=1000))]
    tasks: u32,
    /// Seed of the search
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Folder for the worst task graph of each walk, for `bench quality`
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    save: Option<PathBuf>,
}

/// The worst task graph of a walk.
#[derive(Debug, Serialize)]
struct Row {
    graph: String,
    n_tasks: usize,
    n_devices: usize,
    /// The makespan of the policy, in the time unit of the graph.
    makespan: f64,
    /// The least makespan of the others, and whose it is.
    best_other: f64,
    best_by: String,
    /// The first by the second.
    ratio: f64,
    n_graphs_tried: u32,
    /// Where the task graph is, if it was saved.
    file: Option<PathBuf>,
}

/// The makespans of one task graph.
struct Makespans {
    own: f64,
    best_other: f64,
    best_by: String,
}

impl Makespans {
    fn ratio(&self) -> f64 {
        self.own / self.best_other
    }
}

/// Runs the search.
pub(super) fn run(args: &AdversaryBench, output: &mut Output) -> Result<Outcome> {
    let mut contest = Contest::new(args)?;
    if let Some(folder) = &args.save {
        fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    let progress = Progress::spinner("searching");
    let started = Instant::now();
    let mut rows = Vec::new();
    for walk in 0.. {
        let has_time = started.elapsed() < args.seconds;
        if walk > 0 && (!has_time || walk == args.walks) {
            break;
        }
        let seed = args.seed.wrapping_mul(1 << 20).wrapping_add(walk.into());
        let mut random = Random::new(seed);
        // Of a policy that is a file, without its folder.
        let policy = Path::new(contest.policy.name()).file_stem();
        let policy = policy.unwrap_or_default().to_string_lossy();
        let name = format!("adversary.{policy}_{seed}");
        let start = random_instance(name, args.tasks as usize, &mut random);
        let deadline = started + args.seconds;
        let (instance, makespans, n_graphs_tried) = contest.walk(start, deadline, &mut random)?;
        let file = match &args.save {
            Some(folder) => Some(save(
                folder.join(format!("{}.json", instance.name)),
                &instance,
            )?),
            None => None,
        };
        progress.set_message(format!("walk {walk}: {:.3}", makespans.ratio()));
        rows.push(Row {
            n_tasks: instance.task_graph.tasks.len(),
            n_devices: instance.network.nodes.len(),
            graph: instance.name,
            makespan: makespans.own,
            best_other: makespans.best_other,
            ratio: makespans.ratio(),
            best_by: makespans.best_by,
            n_graphs_tried,
            file,
        });
    }
    drop(progress);
    rows.sort_by(|a, b| b.ratio.total_cmp(&a.ratio));
    show(&rows, output)?;
    output.json(&Report {
        bench: "adversary",
        rows,
    })?;
    Ok(Outcome::Done)
}

fn show(rows: &[Row], output: &mut Output) -> Result<()> {
    let head = [
        "task graph",
        "tasks",
        "devices",
        "makespan",
        "best other",
        "by",
        "ratio",
        "tried",
    ];
    let mut table = Table::new(head).with_numbers(&[1, 2, 3, 4, 6, 7]);
    for row in rows.iter().take(10) {
        table.add_row([
            row.graph.clone(),
            row.n_tasks.to_string(),
            row.n_devices.to_string(),
            format!("{:.4}", row.makespan),
            format!("{:.4}", row.best_other),
            row.best_by.clone(),
            format!("{:.4}", row.ratio),
            row.n_graphs_tried.to_string(),
        ]);
    }
    output.table(&table)?;
    let n_tried: u32 = rows.iter().map(|row| row.n_graphs_tried).sum();
    output.line(format!("{} walks, {n_tried} task graphs", rows.len()))
}

fn save(file: PathBuf, instance: &Instance) -> Result<PathBuf> {
    let mut text = serde_json::to_string_pretty(instance)?;
    text.push('\n');
    fs::write(&file, text).with_context(|| file.display().to_string())?;
    Ok(file)
}

/// A policy, ready to be asked.
enum Asked {
    /// Without a sandbox, for speed.
    Shipped(ShippedPolicy),
    Loaded(Box<LoadedPolicy>),
}

impl Asked {
    fn new(text: &str, engine: &PolicyEngine) -> Result<Self> {
        let source = PolicySource::parse(text).map_err(|err| UsageError(err.to_string()))?;
        match source {
            PolicySource::Shipped(shipped) => Ok(Self::Shipped(shipped)),
            source => {
                let bytes = source.read(engine.limits())?;
                let loaded = engine.load(text, &bytes, &[])?;
                Ok(Self::Loaded(Box::new(loaded)))
            }
        }
    }

    fn name(&self) -> &str {
        match self {
            Self::Shipped(shipped) => shipped.name(),
            Self::Loaded(loaded) => loaded.name(),
        }
    }

    /// Returns the makespan of the policy's plan, in ns.
    fn makespan_ns(&mut self, candidates: &Candidates) -> Result<f64> {
        let options = PlaceOptions::default();
        let answer = match self {
            Self::Shipped(shipped) => {
                let limits = PolicyLimits::default();
                place_natively(*shipped, &[], candidates, &options, &limits)
            }
            Self::Loaded(loaded) => loaded.place(candidates, &options),
        };
        let placement = check(candidates, answer?.proposal);
        let placement = placement.map_err(|violation| anyhow!("{}: {violation}", self.name()))?;
        Ok(placement.expected_ns())
    }
}

/// The policy, and those that it is compared with.
struct Contest {
    policy: Asked,
    others: Vec<Asked>,
}

impl Contest {
    fn new(args: &AdversaryBench) -> Result<Self> {
        let cache = cache::open().ok().flatten();
        let engine = PolicyEngine::with_cache(PolicyLimits::default(), cache)?;
        let policy = Asked::new(&args.policy, &engine)?;
        let schedulers = ["heft", "peft", "cpop", "hbmct"].map(str::to_owned);
        let is_other = |name: &String| *name != args.policy;
        let others: Vec<String> = match &args.against[..] {
            [] => schedulers.into_iter().filter(is_other).collect(),
            given => given.to_vec(),
        };
        let others = others.iter().map(|name| Asked::new(name, &engine));
        Ok(Self {
            policy,
            others: others.collect::<Result<_>>()?,
        })
    }

    fn makespans(&mut self, instance: &Instance) -> Result<Makespans> {
        let candidates = instance.candidates()?;
        let mut best: Option<(f64, &str)> = None;
        for other in &mut self.others {
            let ns = other.makespan_ns(&candidates)?;
            if best.is_none_or(|(least, _)| ns < least) {
                best = Some((ns, other.name()));
            }
        }
        let (best_ns, best_by) = best.context("there is no policy to compare with")?;
        Ok(Makespans {
            own: self.policy.makespan_ns(&candidates)? / super::instance::NS_PER_UNIT,
            best_other: best_ns / super::instance::NS_PER_UNIT,
            best_by: best_by.to_owned(),
        })
    }

    /// Changes a task graph step by step. Returns the worst one, its makespans, and the number of
    /// graphs that were tried.
    fn walk(
        &mut self,
        start: Instance,
        deadline: Instant,
        random: &mut Random,
    ) -> Result<(Instance, Makespans, u32)> {
        let mut worst = (start.clone(), self.makespans(&start)?);
        let (mut current, mut ratio) = (start, worst.1.ratio());
        let mut temperature = TEMPERATURE;
        let mut n_tried = 1;
        for _ in 0..STEPS {
            if Instant::now() >= deadline {
                break;
            }
            let mut changed = current.clone();
            change(&mut changed, random);
            let found = self.makespans(&changed)?;
            n_tried += 1;
            let gain = found.ratio() - ratio;
            if gain >= 0.0 || random.unit() < (gain / temperature).exp() {
                ratio = found.ratio();
                current = changed;
                if ratio > worst.1.ratio() {
                    worst = (current.clone(), found);
                }
            }
            temperature *= COOLING;
        }
        Ok((worst.0, worst.1, n_tried))
    }
}

/// Returns a weight between the bounds, evenly distributed by its logarithm.
fn weight(random: &mut Random) -> f64 {
    let [least, most] = WEIGHTS;
    least * (most / least).powf(random.unit())
}

fn random_instance(name: String, n_tasks_max: usize, random: &mut Random) -> Instance {
    let n_tasks = 2 + random.below(n_tasks_max - 1);
    let n_nodes = 2 + random.below(3);
    let tasks = (0..n_tasks).map(|index| Task {
        name: format!("t{index}"),
        cost: weight(random),
    });
    let tasks: Vec<Task> = tasks.collect();
    let mut dependencies = Vec::new();
    for target in 1..n_tasks {
        let sources: BTreeSet<usize> = (0..1 + random.below(2))
            .map(|_| random.below(target))
            .collect();
        for source in sources {
            dependencies.push(dependency(source, target, random));
        }
    }
    let nodes = (0..n_nodes).map(|index| Node {
        name: format!("n{index}"),
        speed: weight(random),
    });
    let nodes: Vec<Node> = nodes.collect();
    let mut edges = Vec::new();
    for source in 0..n_nodes {
        for target in source + 1..n_nodes {
            edges.push(Edge {
                source: format!("n{source}"),
                target: format!("n{target}"),
                speed: weight(random),
            });
        }
    }
    Instance {
        name,
        task_graph: Tasks {
            tasks,
            dependencies,
        },
        network: Network { nodes, edges },
    }
}

fn dependency(source: usize, target: usize, random: &mut Random) -> Dependency {
    Dependency {
        source: format!("t{source}"),
        target: format!("t{target}"),
        size: weight(random),
    }
}

/// Changes one weight, or adds or removes a dependency.
fn change(instance: &mut Instance, random: &mut Random) {
    let Instance {
        task_graph,
        network,
        ..
    } = instance;
    let n_tasks = task_graph.tasks.len();
    let dependencies = &mut task_graph.dependencies;
    match random.below(6) {
        0 => {
            let at = random.below(n_tasks);
            task_graph.tasks[at].cost = near(task_graph.tasks[at].cost, random);
        }
        1 if !dependencies.is_empty() => {
            let at = random.below(dependencies.len());
            dependencies[at].size = near(dependencies[at].size, random);
        }
        2 => {
            let at = random.below(network.nodes.len());
            network.nodes[at].speed = near(network.nodes[at].speed, random);
        }
        3 if !network.edges.is_empty() => {
            let at = random.below(network.edges.len());
            network.edges[at].speed = near(network.edges[at].speed, random);
        }
        4 if !dependencies.is_empty() => {
            dependencies.swap_remove(random.below(dependencies.len()));
        }
        _ => {
            // Tasks with smaller numbers come first, so there is no cycle.
            let target = 1 + random.below(n_tasks - 1);
            let added = dependency(random.below(target), target, random);
            let is_same = |it: &Dependency| it.source == added.source && it.target == added.target;
            if !dependencies.iter().any(is_same) {
                dependencies.push(added);
            }
        }
    }
}

/// Returns a weight up to twice or down to half of another one.
fn near(weight: f64, random: &mut Random) -> f64 {
    let [least, most] = WEIGHTS;
    (weight * 2.0_f64.powf(2.0 * random.unit() - 1.0)).clamp(least, most)
}
