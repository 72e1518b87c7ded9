//! `bench serve`: several concurrent callers of one session.

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
use super::parse_seconds;
use super::work::serve;
use super::work::settle;
use crate::cli::Outcome;
use crate::cli::output::Output;
use crate::cli::progress::Progress;
use crate::cli::table::Table;
use crate::cli::units::show_ns;
use crate::registry::Registry;

#[derive(Debug, Args)]
pub(in crate::cli) struct ServeBench {
    /// A frozen GraphDef M.pb or M.skel.pb, with an archive M.npz beside it.
    ///
    /// The archive has arrays in/NAME to feed and out/FETCH to compare results with.
    #[arg(value_name = "MODEL.pb", value_hint = ValueHint::FilePath)]
    graph: PathBuf,
    /// Numbers of threads that call the session concurrently, one row each.
    #[arg(
        long,
        value_name = "N,..",
        value_delimiter = ',',
        default_values_t = [1, 2, 8],
        value_parser = clap::value_parser!(u16).range(1..=1_024)
    )]
    callers: Vec<u16>,
    /// Time for which each number of callers is measured, in seconds, after a tenth of it to warm
    /// up.
    #[arg(long, value_name = "S", default_value = "2", value_parser = parse_seconds)]
    seconds: Duration,
    /// Device of the nodes that request none.
    #[arg(long, value_name = "NAME", help_heading = "Devices")]
    device: Option<String>,
    #[command(flatten)]
    model: ModelArgs,
}

#[derive(Debug, Serialize)]
struct Row {
    model: String,
    callers: u16,
    /// Threads of the session, as requested; 0 means one per core.
    threads: u32,
    requests: usize,
    requests_per_s: f64,
    p50_ns: u64,
    p99_ns: u64,
}

/// Runs the benchmark.
pub(super) fn run(args: &ServeBench, registry: &Registry, output: &mut Output) -> Result<Outcome> {
    let archive = archive_beside(&args.graph)?;
    let threads = args.model.devices.threads;
    let setup = args.model.setup(registry, args.device.as_deref())?;
    let model = Model::open(&args.graph, &archive, setup)?;
    let progress = Progress::steps(args.callers.len() as u64, "serving");
    let mut rows = Vec::new();
    for &callers in &args.callers {
        settle(&model)?;
        serve(&model, callers.into(), args.seconds / 10)?;
        let served = serve(&model, callers.into(), args.seconds)?;
        rows.push(Row {
            model: model.name.clone(),
            callers,
            threads,
            requests: served.n_requests,
            requests_per_s: served.requests_per_s,
            p50_ns: served.p50_ns,
            p99_ns: served.p99_ns,
        });
        progress.advance();
    }
    drop(progress);
    show(&rows, output)?;
    output.json(&Report {
        bench: "serve",
        rows,
    })?;
    Ok(Outcome::Done)
}

#[expect(clippy::cast_precision_loss, reason = "for display")]
fn show(rows: &[Row], output: &mut Output) -> Result<()> {
    let mut table = Table::new(["model", "callers", "requests/s", "p50", "p99", "requests"])
        .with_numbers(&[1, 2, 3, 4, 5]);
    for row in rows {
        table.add_row([
            row.model.clone(),
            row.callers.to_string(),
            format!("{:.0}", row.requests_per_s),
            show_ns(row.p50_ns as f64),
            show_ns(row.p99_ns as f64),
            row.requests.to_string(),
        ]);
    }
    output.table(&table)?;
    output.line("each request was fed fresh copies, and its results are as expected")
}
