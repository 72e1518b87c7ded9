//! What `placewright place` prints about a graph that cannot be placed, or cannot be executed.

use std::path::Path;

use anyhow::Result;
use serde::Serialize;

use super::Outcome;
use super::UsageError;
use super::args::PlacementArgs;
use super::open::builder;
use super::open::is_task_graph;
use super::open::with_context;
use super::output::Output;
use super::output::chain;
use super::table::Table;
use super::units::count;
use crate::candidates::Conflict;
use crate::candidates::Suggestion;
use crate::candidates::UnsupportedNode;
use crate::cluster::ClusterSpec;
use crate::error::Error;
use crate::registry::Registry;

/// More conflicts than this are counted; `--json` has all.
const MAX_SHOWN: usize = 20;

/// What `--json` prints instead of a placement.
#[derive(Debug, Serialize)]
struct ConflictReport<'a> {
    error: String,
    conflicts: &'a [Conflict],
}

/// What `--json` prints for `--check-ops`.
#[derive(Debug, Serialize)]
struct OpsReport<'a> {
    unsupported: &'a [UnsupportedNode],
}

/// Returns what was opened. Prints every conflict, if conflicts are the reason why the graph was
/// not placed.
pub(super) fn or_show<T>(
    opened: Result<T>,
    graph: &Path,
    args: &PlacementArgs,
    cluster: Option<&ClusterSpec>,
    registry: &Registry,
    output: &mut Output,
) -> Result<T> {
    if let Err(error) = &opened {
        show(error, graph, args, cluster, registry, output)?;
    }
    opened
}

fn show(
    error: &anyhow::Error,
    graph: &Path,
    args: &PlacementArgs,
    cluster: Option<&ClusterSpec>,
    registry: &Registry,
    output: &mut Output,
) -> Result<()> {
    let has_conflicts = matches!(error.downcast_ref::<Error>(), Some(Error::Candidates(_)));
    if !has_conflicts || is_task_graph(graph) {
        return Ok(());
    }
    // Of an error that is not a conflict, the message says everything.
    let conflicts = match builder(graph, args, cluster, registry)?.conflicts() {
        Ok(conflicts) if !conflicts.is_empty() => conflicts,
        _ => return Ok(()),
    };
    output.json(&ConflictReport {
        error: chain(error),
        conflicts: &conflicts,
    })?;
    output.line(format_args!(
        "the graph cannot be placed: {}",
        count(conflicts.len(), "conflict")
    ))?;
    for conflict in conflicts.iter().take(MAX_SHOWN) {
        output.line("")?;
        for constraint in &conflict.constraints {
            output.line(format_args!("  {constraint}"))?;
        }
        for (index, suggestion) in conflict.suggestions.iter().enumerate() {
            let before = if index == 0 { "=> " } else { "or " };
            let flag = match suggestion {
                Suggestion::SoftPlacement => " (--soft-placement)",
                _ => "",
            };
            output.line(format_args!("    {before}{suggestion}{flag}"))?;
        }
    }
    if conflicts.len() > MAX_SHOWN {
        output.line(format_args!("\nand {} more", conflicts.len() - MAX_SHOWN))?;
    }
    Ok(())
}

/// `--check-ops`.
pub(super) fn check_ops(
    graph: &Path,
    args: &PlacementArgs,
    cluster: Option<&ClusterSpec>,
    registry: &Registry,
    output: &mut Output,
) -> Result<Outcome> {
    if is_task_graph(graph) {
        let problem = "--check-ops is about kernels; tasks of a task graph have none";
        return Err(UsageError(problem.to_owned()).into());
    }
    let unsupported = builder(graph, args, cluster, registry)?
        .unsupported_nodes()
        .map_err(|err| with_context(err, graph, args))?;
    output.json(&OpsReport {
        unsupported: &unsupported,
    })?;
    if unsupported.is_empty() {
        output.line("every node can be executed")?;
        return Ok(Outcome::Done);
    }
    output.line(format_args!(
        "{} cannot be executed here",
        count(unsupported.len(), "node")
    ))?;
    let mut table = Table::new(["node", "op", "in function", "why"]);
    for node in &unsupported {
        table.add_row([
            node.node.as_str(),
            node.op.as_str(),
            node.function.as_deref().unwrap_or("-"),
            node.reason.as_str(),
        ]);
    }
    output.table(&table)?;
    Ok(Outcome::Negative)
}
