//! `bench models`: how long one run of a model takes.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use clap::ValueHint;
use serde::Serialize;

use super::Report;
use super::model::Model;
use super::model::ModelArgs;
use super::model::archive_beside;
use super::model::models_in;
use super::parse_seconds;
use super::work::Work;
use super::work::repeat;
use super::work::settle;
use crate::cli::Outcome;
use crate::cli::output::Output;
use crate::cli::output::align_right;
use crate::cli::output::new_table;
use crate::cli::progress::Progress;
use crate::cli::timing::Timing;
use crate::cli::timing::nanoseconds;
use crate::cli::units::show_ns;
use crate::registry::Registry;

#[derive(Debug, Args)]
pub(in crate::cli) struct ModelsBench {
    /// Frozen GraphDefs M.pb or M.skel.pb, each with an archive M.npz beside it; by default all
    /// such in the folder --models.
    #[arg(value_name = "MODEL.pb", value_hint = ValueHint::FilePath)]
    graphs: Vec<PathBuf>,
    /// Where the models are, if none are named.
    #[arg(long, value_name = "DIR", default_value = "tests/models", value_hint = ValueHint::DirPath)]
    models: PathBuf,
    /// How long each model is run, after a tenth of it to warm up.
    #[arg(long, value_name = "S", default_value = "1", value_parser = parse_seconds)]
    seconds: Duration,
    /// The device of nodes that ask for none.
    #[arg(long, value_name = "NAME", help_heading = "Devices")]
    device: Option<String>,
    #[command(flatten)]
    model: ModelArgs,
}

#[derive(Debug, Serialize)]
struct Row {
    model: String,
    nodes: usize,
    /// As asked for; 0 = one per core.
    threads: u32,
    /// From the file to a session that can run.
    load_ns: u64,
    min_ns: u64,
    #[serde(flatten)]
    timing: Timing,
}

/// Runs the benchmark.
pub(super) fn run(args: &ModelsBench, registry: &Registry, output: &mut Output) -> Result<Outcome> {
    let graphs = if args.graphs.is_empty() {
        models_in(&args.models)?
    } else {
        args.graphs.clone()
    };
    let progress = Progress::steps(graphs.len() as u64, "running");
    let mut rows = Vec::new();
    for graph in &graphs {
        progress.set_message(graph.display().to_string());
        let archive = archive_beside(graph)?;
        let setup = args.model.setup(registry, args.device.as_deref())?;
        let model = Model::open(graph, &archive, setup)?;
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

fn measure(model: &Model, args: &ModelsBench) -> Result<Row> {
    let first = model.run(0)?;
    settle(model)?;
    repeat(model, args.seconds / 10)?;
    let times = repeat(model, args.seconds)?;
    Ok(Row {
        model: model.name.clone(),
        nodes: model.n_nodes(),
        threads: args.model.devices.threads,
        load_ns: nanoseconds(model.load),
        min_ns: times.iter().min().copied().map_or(0, nanoseconds),
        timing: Timing::new(first, times),
    })
}

#[expect(clippy::cast_precision_loss, reason = "for display")]
fn show(rows: &[Row], output: &mut Output) -> Result<()> {
    let mut table = new_table([
        "model",
        "nodes",
        "median",
        "p90",
        "min",
        "first run",
        "load",
        "runs",
    ]);
    align_right(&mut table, &[1, 2, 3, 4, 5, 6, 7]);
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
    output.line("every run fed fresh copies; the results of every run are as expected")
}
