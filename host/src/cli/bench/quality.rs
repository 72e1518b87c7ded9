//! `bench quality`: how near to the best known schedules policies come, on published task graphs.

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
    /// [default: tests/quality]
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
    makespan: f64,
    /// The makespan, divided by the optimum and by the best published one.
    by_optimum: Option<f64>,
    by_best_published: Option<f64>,
}

/// Runs the benchmark.
pub(super) fn run(args: &QualityBench, output: &mut Output) -> Result<Outcome> {
    let instances = instances(&args.paths)?;
    // Without a cache, each task graph waits for the policies' compilation.
    let cache = cache::open().ok().flatten();
    let engine = PolicyEngine::with_cache(PolicyLimits::default(), cache)?;
    let progress = Progress::steps(instances.len() as u64, "placing");
    let mut rows = Vec::new();
    for (path, known) in &instances {
        progress.set_message(path.display().to_string());
        rows.push(place(path, known.as_ref(), &engine, args)?);
        progress.advance();
    }
    drop(progress);
    show(&rows, output)?;
    output.json(&Report {
        bench: "quality",
        rows,
    })?;
    Ok(Outcome::Done)
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
        let entries = fs::read_dir(path).with_context(|| path.display().to_string())?;
        let entries = entries.collect::<Result<Vec<_>, _>>()?;
        let mut files: Vec<PathBuf> = entries.into_iter().map(|entry| entry.path()).collect();
        files.retain(|file| file.extension().is_some_and(|it| it == "json") && *file != reference);
        files.sort();
        for file in files {
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
    let requests = args.policy.iter().map(|policy| {
        let source = PolicySource::parse(policy);
        let source = source.map_err(|err| UsageError(format!("--policy: {err}")))?;
        Ok(PolicyRequest::new(source))
    });
    let requests: Vec<PolicyRequest> = requests.collect::<Result<_>>()?;
    let comparison = Comparison::new(&builder, requests)?;
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
            makespan,
            by_optimum: optimum.map(|optimum| makespan / optimum),
            by_best_published: best_published.map(|best| makespan / best),
        })
    });
    Ok(Row {
        graph: instance.name,
        n_tasks,
        n_devices,
        optimum,
        best_published,
        policies: policies.collect::<Result<_>>()?,
    })
}

fn show(rows: &[Row], output: &mut Output) -> Result<()> {
    let Some(first) = rows.first() else {
        return Ok(());
    };
    let mut head = vec!["task graph", "tasks", "devices", "optimum", "best of 19"];
    head.extend(first.policies.iter().map(|policy| &*policy.policy));
    let numbers: Vec<usize> = (1..head.len()).collect();
    let mut table = Table::new(head).with_numbers(&numbers);
    let number = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.4}"));
    for row in rows {
        let mut cells = vec![
            row.graph.clone(),
            row.n_tasks.to_string(),
            row.n_devices.to_string(),
            number(row.optimum),
            number(row.best_published),
        ];
        cells.extend(row.policies.iter().map(|policy| {
            let ratio = policy.by_optimum.or(policy.by_best_published);
            ratio.map_or(number(Some(policy.makespan)), |it| format!("{it:.3}"))
        }));
        table.add_row(cells);
    }
    output.table(&table)?;
    output.line("makespans; those of policies by the optimum, else by the best of 19")?;
    output.line("")?;
    let head = ["policy", "by optimum", "worst", "by best of 19", "worst"];
    let mut table = Table::new(head).with_numbers(&[1, 2, 3, 4]);
    for (index, policy) in first.policies.iter().enumerate() {
        let of = |ratio: fn(&PolicyRow) -> Option<f64>| {
            let ratios = rows.iter().filter_map(|row| ratio(&row.policies[index]));
            mean_and_worst(&ratios.collect::<Vec<_>>())
        };
        let [mean, worst] = of(|policy| policy.by_optimum);
        let [mean_published, worst_published] = of(|policy| policy.by_best_published);
        table.add_row([
            policy.policy.clone(),
            mean,
            worst,
            mean_published,
            worst_published,
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
