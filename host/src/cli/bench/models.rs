//! `bench models`: how long one run of a model takes.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use clap::ValueHint;
use serde::Serialize;

use super::Report;
use super::model::MODELS_WANTED;
use super::model::Model;
use super::model::ModelArgs;
use super::model::archive_beside;
use super::model::models_in;
use super::parse_seconds;
use super::work::Work;
use super::work::repeat;
use super::work::settle;
use crate::cli::Outcome;
use crate::cli::UsageError;
use crate::cli::output::Output;
use crate::cli::progress::Progress;
use crate::cli::saved_model::GraphPath;
use crate::cli::saved_model::is_saved_model;
use crate::cli::table::Table;
use crate::cli::timing::Timing;
use crate::cli::timing::nanoseconds;
use crate::cli::units::show_ns;
use crate::policy::PolicySource;
use crate::registry::Registry;

/// The models of this repository, which are measured if no paths are given.
const REPOSITORY_MODELS: &str = "tests/models";

#[derive(Debug, Args)]
pub(in crate::cli) struct ModelsBench {
    /// Models, or folders of models [default: tests/models]
    ///
    /// A model is a frozen GraphDef M.pb or M.skel.pb, or the folder M of a SavedModel, with an
    /// archive M.npz beside it: arrays in/NAME to feed and out/FETCH to compare results with.
    #[arg(value_name = "MODEL|DIR", value_hint = ValueHint::AnyPath)]
    paths: Vec<PathBuf>,
    /// Time for which each model is run, in seconds, after a tenth of it to warm up.
    #[arg(long, value_name = "S", default_value = "1", value_parser = parse_seconds)]
    seconds: Duration,
    /// The policy that places the models: the name of a shipped one, or a .wasm file.
    #[arg(long, value_name = "NAME|FILE", default_value = "priority", value_hint = ValueHint::FilePath)]
    policy: String,
    /// Device of the nodes that request none.
    #[arg(long, value_name = "NAME", help_heading = "Devices")]
    device: Option<String>,
    #[command(flatten)]
    model: ModelArgs,
}

#[derive(Debug, Serialize)]
struct Row {
    model: String,
    policy: String,
    nodes: usize,
    /// As requested; 0 means one per core.
    threads: u32,
    /// Time from the file to a session that can run.
    load_ns: u64,
    min_ns: u64,
    #[serde(flatten)]
    timing: Timing,
}

/// Runs the benchmark.
pub(super) fn run(args: &ModelsBench, registry: &Registry, output: &mut Output) -> Result<Outcome> {
    let policy =
        PolicySource::parse(&args.policy).map_err(|err| UsageError(format!("--policy: {err}")))?;
    let models = models(&args.paths)?;
    let progress = Progress::steps(models.len() as u64, "running");
    let mut rows = Vec::new();
    for (graph, archive) in &models {
        progress.set_message(graph.display().to_string());
        let mut setup = args.model.setup(registry, args.device.as_deref())?;
        setup.policy = Some(policy.clone());
        let model = Model::open(graph, archive, setup)?;
        rows.push(measure(&model, args)?);
        progress.advance();
    }
    drop(progress);
    show(&rows, output)?;
    output.json(&Report {
        bench: "models",
        rows,
    })?;
    Ok(Outcome::Done)
}

/// The models that these paths name, each with its archive. What is missing is reported before
/// anything is measured.
pub(super) fn models(paths: &[PathBuf]) -> Result<Vec<(PathBuf, PathBuf)>> {
    let repository = [PathBuf::from(REPOSITORY_MODELS)];
    let paths = if paths.is_empty() && repository[0].is_dir() {
        &repository[..]
    } else {
        paths
    };
    if paths.is_empty() {
        return Err(UsageError(format!(
            "there is no folder {REPOSITORY_MODELS} here; {MODELS_WANTED}"
        ))
        .into());
    }
    let mut graphs = Vec::new();
    for path in paths {
        // A SavedModel is a folder too.
        match path.is_dir() && !is_saved_model(path) {
            true => graphs.extend(models_in(path)?),
            false => graphs.push(path.clone()),
        }
    }
    let with_archive = |graph: PathBuf| {
        let graph = match GraphPath::of(&graph)? {
            GraphPath::GraphDef => graph,
            GraphPath::SavedModel(folder) => folder,
        };
        let archive = archive_beside(&graph)?;
        Ok((graph, archive))
    };
    graphs.into_iter().map(with_archive).collect()
}

fn measure(model: &Model, args: &ModelsBench) -> Result<Row> {
    let first = model.run(0)?;
    settle(model)?;
    repeat(model, args.seconds / 10)?;
    let times = repeat(model, args.seconds)?;
    Ok(Row {
        model: model.name.clone(),
        policy: args.policy.clone(),
        nodes: model.n_nodes(),
        threads: args.model.devices.threads,
        load_ns: nanoseconds(model.load),
        min_ns: times.iter().min().copied().map_or(0, nanoseconds),
        timing: Timing::new(first, times),
    })
}

#[expect(clippy::cast_precision_loss, reason = "for display")]
fn show(rows: &[Row], output: &mut Output) -> Result<()> {
    let mut table = Table::new([
        "model",
        "nodes",
        "median",
        "p90",
        "min",
        "first run",
        "load",
        "runs",
    ])
    .with_numbers(&[1, 2, 3, 4, 5, 6, 7]);
    for row in rows {
        table.add_row([
            row.model.clone(),
            row.nodes.to_string(),
            show_ns(row.timing.median_ns as f64),
            show_ns(row.timing.p90_ns as f64),
            show_ns(row.min_ns as f64),
            show_ns(row.timing.first_ns as f64),
            show_ns(row.load_ns as f64),
            row.timing.n_runs.to_string(),
        ]);
    }
    output.table(&table)?;
    output.line("each run was fed fresh copies, and its results are as expected")
}
