//! `placewright report`: the plans of several policies as a page for a browser.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use clap::ValueHint;
use serde::Serialize;

use super::Outcome;
use super::args::PlacementArgs;
use super::cluster::ClusterArgs;
use super::compare::MeasureArgs;
use super::compare::compared;
use super::output::Output;
use super::output_file;
use super::units::count;
use super::units::show_bytes;
use crate::registry::Registry;

#[derive(Debug, Args)]
pub(super) struct ReportCommand {
    /// A frozen TensorFlow GraphDef (.pb), the folder of a SavedModel, or a task graph (.json).
    #[arg(value_hint = ValueHint::FilePath)]
    graph: PathBuf,
    /// The page: one file, which needs no network.
    #[arg(long, value_name = "F.html", value_hint = ValueHint::FilePath, help_heading = "Output")]
    html: PathBuf,
    #[command(flatten)]
    measure: MeasureArgs,
    #[command(flatten)]
    placement: PlacementArgs,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// Everything that `--json` prints.
#[derive(Debug, Serialize)]
struct Report {
    html: PathBuf,
    bytes: u64,
    n_nodes: usize,
    /// Policies with a plan.
    policies: Vec<String>,
    /// The policy with the shortest run; `null` if none has a plan.
    best: Option<String>,
}

/// Runs the command.
pub(super) fn run(
    command: &ReportCommand,
    registry: &Registry,
    output: &mut Output,
) -> Result<Outcome> {
    let cluster = command.cluster.read(&command.placement.devices.memory)?;
    let compared = compared(
        &command.graph,
        &command.placement,
        cluster.as_ref(),
        (&command.measure, true),
        registry,
        output,
    )?;
    let mut page = Vec::new();
    compared.write_html(&mut page)?;
    output_file::write(&command.html, |file| {
        Ok(std::io::Write::write_all(file, &page)?)
    })?;
    let graph = compared
        .plans()
        .next()
        .map(|(_, plan)| plan.session.graph());
    let report = Report {
        html: command.html.clone(),
        bytes: page.len() as u64,
        n_nodes: graph.map_or(0, |graph| graph.n_nodes()),
        policies: compared.plans().map(|(name, _)| name.to_owned()).collect(),
        best: compared.best().map(|(name, _)| name.to_owned()),
    };
    for policy in &compared.policies {
        if let Err(error) = &policy.outcome {
            output.line(format_args!("{}: {error}", policy.name))?;
        }
    }
    output.line(format_args!(
        "{}: {} of {}, {}",
        command.html.display(),
        count(report.policies.len(), "plan"),
        count(report.n_nodes, "node"),
        show_bytes(report.bytes)
    ))?;
    output.json(&report)?;
    Ok(match report.best {
        Some(_) => Outcome::Done,
        None => Outcome::Negative,
    })
}
