//! `bench quality`: how near to the best known schedules policies come, on published task graphs,
//! and to the best of each other, on models and clusters.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::path::PathBuf;

use anyhow::Context;
use anyhow::Result;
use clap::Args;
use clap::ValueHint;
use serde::Deserialize;
use serde::Serialize;

use super::Report;
use super::instance;
use super::instance::Instance;
use crate::cli::Outcome;
use crate::cli::UsageError;
use crate::cli::cache;
use crate::cli::output::Output;
use crate::cli::progress::Progress;
use crate::cli::table::Table;
use crate::cluster::ClusterSpec;
use crate::comparison::Comparison;
use crate::files;
use crate::policy::LadderError;
use crate::policy::PolicyEngine;
use crate::policy::PolicyLimits;
use crate::policy::PolicyRequest;
use crate::policy::PolicySource;
use crate::session::Session;

/// The makespans that others have reached, in the folder of the task graphs.
const REFERENCE: &str = "reference.json";

/// A task graph has some kilobytes.
const FILE_BYTES_MAX: u64 = 64 << 20;

#[derive(Debug, Args)]
pub(in crate::cli) struct QualityBench {
    /// Task graphs with networks in DAGBench's format, or folders of them with a reference.json
    /// [default: tests/quality]; with --cluster, GraphDefs, or folders of them [default:
    /// tests/models]
    #[arg(value_name = "FILE|DIR", value_hint = ValueHint::AnyPath)]
    paths: Vec<PathBuf>,
    /// Policies to compare: names of shipped ones, or files.
    #[arg(
        long,
        value_name = "A,B,F.wasm",
        value_delimiter = ',',
        default_value = "auto,search,heft,peft,cpop,hbmct,priority"
    )]
    policy: Vec<String>,

    /// Place models on these clusters instead
    #[arg(long, value_name = "FILE", value_delimiter = ',', value_hint = ValueHint::FilePath)]
    cluster: Vec<PathBuf>,
}

/// What is known of a task graph.
#[derive(Debug, Clone, Default, Deserialize)]
struct Known {
    best_of_19: f64,
    #[serde(default)]
    optimum: Option<f64>,
}

#[derive(Debug, Serialize)]
struct Row {
    graph: String,
    /// The cluster of a model; `null` for a task graph.
    cluster: Option<String>,
    n_tasks: usize,
    n_devices: usize,
    /// The least makespan that is possible, in the time unit of the graph; `null` if it is not
    /// proven.
    optimum: Option<f64>,
    /// The least makespan of 19 published schedulers; `null` if the graph is not in the reference.
    best_published: Option<f64>,
    policies: Vec<PolicyRow>,
}

#[derive(Debug, Serialize)]
struct PolicyRow {
    policy: String,
    /// In the time unit of the task graph, or the expected time of a run in ms; `null` if the
    /// policy has no plan for the model.
    makespan: Option<f64>,
    /// The makespan, divided by the optimum, by the best published one, and by the best of these
    /// policies.
    by_optimum: Option<f64>,
    by_best_published: Option<f64>,
    by_best: Option<f64>,
}

/// Runs the benchmark.
pub(super) fn run(args: &QualityBench, output: &mut Output) -> Result<Outcome> {
    // Without a cache, each task graph waits for the policies' compilation.
    let cache = cache::open().ok().flatten();
    let engine = PolicyEngine::with_cache(PolicyLimits::default(), cache)?;
    let mut rows = Vec::new();
    if args.cluster.is_empty() {
        let instances = instances(&args.paths)?;
        let progress = Progress::steps(instances.len() as u64, "placing");
        for (path, known) in &instances {
            progress.set_message(path.display().to_string());
            rows.push(place(path, known.as_ref(), &engine, args)?);
            progress.advance();
        }
    } else {
        let models = models(&args.paths)?;
        let n_rows = models.len() * args.cluster.len();
        let progress = Progress::steps(n_rows as u64, "placing");
        for path in &args.cluster {
            let cluster = ClusterSpec::read(path);
            let cluster = cluster.with_context(|| path.display().to_string())?;
            let name = path.file_stem().unwrap_or_default().to_string_lossy();
            for model in &models {
                progress.set_message(format!("{} on {name}", model.path.display()));
                match place_model(&model.path, &name, &cluster, &engine, args) {
                    Ok(row) => rows.push(row),
                    // Such as an op without a kernel.
                    Err(error) if !model.is_named && error.is::<crate::Error>() => {
                        output.note(format_args!("left out: {error:#}"));
                    }
                    Err(error) => return Err(error),
                }
                progress.advance();
            }
        }
    }
    show(&rows, output)?;
    output.json(&Report {
        bench: "quality",
        rows,
    })?;
    Ok(Outcome::Done)
}

/// A GraphDef.
struct Model {
    path: PathBuf,
    /// Whether the user named it, not only its folder.
    is_named: bool,
}

/// Returns the GraphDefs, sorted.
fn models(paths: &[PathBuf]) -> Result<Vec<Model>> {
    let default = [PathBuf::from("tests/models")];
    let mut found = Vec::new();
    for path in if paths.is_empty() { &default } else { paths } {
        let is_named = !path.is_dir();
        let files = match is_named {
            true => vec![path.clone()],
            false => files_of(path, "pb")?,
        };
        found.extend(files.into_iter().map(|path| Model { path, is_named }));
    }
    if found.is_empty() {
        let problem = "there is no model; give GraphDefs (*.pb), or a folder of them";
        return Err(UsageError(problem.to_owned()).into());
    }
    Ok(found)
}

/// Returns the files of a folder with this extension, sorted.
fn files_of(folder: &Path, extension: &str) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    let entries = entries.collect::<Result<Vec<_>, _>>()?;
    let mut files: Vec<PathBuf> = entries.into_iter().map(|entry| entry.path()).collect();
    files.retain(|file| file.extension().is_some_and(|it| it == extension));
    files.sort();
    Ok(files)
}

/// Returns the task graphs, sorted, with what is known of each.
fn instances(paths: &[PathBuf]) -> Result<Vec<(PathBuf, Option<Known>)>> {
    let default = [PathBuf::from("tests/quality")];
    let paths = match paths {
        [] => &default[..],
        paths => paths,
    };
    let mut found = Vec::new();
    for path in paths {
        if !path.is_dir() {
            found.push((path.clone(), None));
            continue;
        }
        let reference = path.join(REFERENCE);
        let known: BTreeMap<String, Known> = match reference.is_file() {
            true => read(&reference)?,
            false => BTreeMap::new(),
        };
        let files = files_of(path, "json")?.into_iter();
        for file in files.filter(|file| *file != reference) {
            let name = file.file_stem().map(|stem| stem.to_string_lossy());
            let known = name.and_then(|name| known.get(&name.replacen('.', "/", 1)).cloned());
            found.push((file, known));
        }
    }
    if found.is_empty() {
        let problem = "there is no task graph; give files of DAGBench, or a folder of them";
        return Err(UsageError(problem.to_owned()).into());
    }
    Ok(found)
}

fn read<T: for<'de> Deserialize<'de>>(path: &Path) -> Result<T> {
    let context = || path.display().to_string();
    let text = files::read_text(path, FILE_BYTES_MAX, "a task graph has some kilobytes");
    serde_json::from_str(&text.with_context(context)?).with_context(context)
}

fn place(
    path: &Path,
    known: Option<&Known>,
    engine: &PolicyEngine,
    args: &QualityBench,
) -> Result<Row> {
    let instance: Instance = read(path)?;
    let candidates = instance.candidates();
    let candidates = candidates.with_context(|| path.display().to_string())?;
    let (n_tasks, n_devices) = (candidates.graph().n_nodes(), candidates.n_devices());
    let builder = Session::builder()
        .with_candidates(candidates)
        .with_policy_engine(engine.clone());
    let comparison = Comparison::new(&builder, requests(args)?)?;
    let optimum = known.and_then(|known| known.optimum);
    let best_published = known.map(|known| known.best_of_19);
    let policies = comparison.policies.into_iter().map(|policy| {
        let plan = policy.outcome.map_err(|error| match error {
            LadderError::Request(err) => anyhow::Error::from(UsageError(err.to_string())),
            error => anyhow::Error::new(error).context(path.display().to_string()),
        })?;
        let makespan = plan.simulation.end_ns / instance::NS_PER_UNIT;
        Ok(PolicyRow {
            policy: policy.name,
            makespan: Some(makespan),
            by_optimum: optimum.map(|optimum| makespan / optimum),
            by_best_published: best_published.map(|best| makespan / best),
            by_best: None,
        })
    });
    Ok(Row {
        graph: instance.name,
        cluster: None,
        n_tasks,
        n_devices,
        optimum,
        best_published,
        policies: by_best(policies.collect::<Result<_>>()?),
    })
}

fn requests(args: &QualityBench) -> Result<Vec<PolicyRequest>> {
    let requests = args.policy.iter().map(|policy| {
        let source = PolicySource::parse(policy);
        let source = source.map_err(|err| UsageError(format!("--policy: {err}")))?;
        Ok(PolicyRequest::new(source))
    });
    requests.collect()
}

fn place_model(
    path: &Path,
    cluster_name: &str,
    cluster: &ClusterSpec,
    engine: &PolicyEngine,
    args: &QualityBench,
) -> Result<Row> {
    let builder = Session::builder()
        .with_graph_def_file(path)
        .with_cluster(cluster)
        .with_policy_engine(engine.clone());
    let context = || format!("{} on {cluster_name}", path.display());
    let comparison = Comparison::new(&builder, requests(args)?).with_context(context)?;
    let mut n_tasks = 0;
    let mut policies = Vec::new();
    for policy in comparison.policies {
        let expected_ns = match &policy.outcome {
            Ok(plan) => {
                n_tasks = plan.session.graph().n_nodes();
                Some(plan.simulation.expected_ns)
            }
            Err(LadderError::Request(err)) => return Err(UsageError(err.to_string()).into()),
            Err(_) => None,
        };
        policies.push(PolicyRow {
            policy: policy.name,
            makespan: expected_ns.map(|ns| ns / 1e6),
            by_optimum: None,
            by_best_published: None,
            by_best: None,
        });
    }
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    Ok(Row {
        graph: stem.trim_end_matches(".skel").to_owned(),
        cluster: Some(cluster_name.to_owned()),
        n_tasks,
        n_devices: cluster.devices().len(),
        optimum: None,
        best_published: None,
        policies: by_best(policies),
    })
}

/// Relates the policies of a row to the best of them.
fn by_best(mut policies: Vec<PolicyRow>) -> Vec<PolicyRow> {
    let makespans = policies.iter().filter_map(|policy| policy.makespan);
    let best = makespans.fold(f64::INFINITY, f64::min);
    for policy in &mut policies {
        policy.by_best = policy.makespan.map(|makespan| makespan / best);
    }
    policies
}

fn show(rows: &[Row], output: &mut Output) -> Result<()> {
    let Some(first) = rows.first() else {
        return Ok(());
    };
    let of_models = first.cluster.is_some();
    let mut head = match of_models {
        true => vec!["model", "nodes", "cluster", "devices", "best"],
        false => vec!["task graph", "tasks", "devices", "optimum", "best of 19"],
    };
    head.extend(first.policies.iter().map(|policy| &*policy.policy));
    let is_number = |column: &usize| !of_models || *column != 2;
    let numbers: Vec<usize> = (1..head.len()).filter(is_number).collect();
    let mut table = Table::new(head).with_numbers(&numbers);
    let number = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.4}"));
    for row in rows {
        let mut cells = vec![row.graph.clone(), row.n_tasks.to_string()];
        if let Some(cluster) = &row.cluster {
            let makespans = row.policies.iter().filter_map(|policy| policy.makespan);
            let best = makespans.reduce(f64::min);
            cells.extend([cluster.clone(), row.n_devices.to_string(), number(best)]);
        } else {
            let known = [number(row.optimum), number(row.best_published)];
            cells.push(row.n_devices.to_string());
            cells.extend(known);
        }
        cells.extend(row.policies.iter().map(|policy| {
            let known = policy.by_optimum.or(policy.by_best_published);
            let ratio = if of_models { policy.by_best } else { known };
            ratio.map_or(number(policy.makespan), |it| format!("{it:.3}"))
        }));
        table.add_row(cells);
    }
    output.table(&table)?;
    output.line(match of_models {
        true => "expected times of a run in ms; those of policies by the best of them",
        false => "makespans; those of policies by the optimum, else by the best of 19",
    })?;
    output.line("")?;
    let head = [
        "policy",
        "by optimum",
        "worst",
        "by best of 19",
        "worst",
        "by best",
        "worst",
    ];
    let mut table = Table::new(head).with_numbers(&[1, 2, 3, 4, 5, 6]);
    for (index, policy) in first.policies.iter().enumerate() {
        let of = |ratio: fn(&PolicyRow) -> Option<f64>| {
            let ratios = rows.iter().filter_map(|row| ratio(&row.policies[index]));
            mean_and_worst(&ratios.collect::<Vec<_>>())
        };
        let [mean, worst] = of(|policy| policy.by_optimum);
        let [mean_published, worst_published] = of(|policy| policy.by_best_published);
        let [mean_best, worst_best] = of(|policy| policy.by_best);
        table.add_row([
            policy.policy.clone(),
            mean,
            worst,
            mean_published,
            worst_published,
            mean_best,
            worst_best,
        ]);
    }
    output.table(&table)
}

/// Returns the geometric mean and the maximum of ratios.
fn mean_and_worst(ratios: &[f64]) -> [String; 2] {
    if ratios.is_empty() {
        return ["-", "-"].map(str::to_owned);
    }
    #[expect(clippy::cast_precision_loss, reason = "few")]
    let n = ratios.len() as f64;
    let mean = (ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / n).exp();
    let worst = ratios.iter().copied().fold(0.0, f64::max);
    [mean, worst].map(|ratio| format!("{ratio:.4}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_have_a_geometric_mean() {
        assert_eq!(mean_and_worst(&[2.0, 0.5, 1.0]), ["1.0000", "2.0000"]);
        assert_eq!(mean_and_worst(&[]), ["-", "-"]);
    }
}
