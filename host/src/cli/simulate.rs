//! `placewright simulate`: places a graph and shows what a run of it would look like.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use clap::ValueHint;
use serde::Serialize;

use super::Outcome;
use super::args::PlacementArgs;
use super::cluster::ClusterArgs;
use super::open::open;
use super::output::Output;
use super::output_file;
use super::refusals;
use super::summary::PlacementView;
use super::table::Table;
use super::units::count;
use super::units::show_bytes;
use super::units::show_ns;
use crate::graph::NodeId;
use crate::placement::Placement;
use crate::placement::SimulatedDevice;
use crate::placement::SimulatedLink;
use crate::placement::SimulatedTransfer;
use crate::placement::Simulation;
use crate::registry::Registry;
use crate::trace::Recorder;

/// More nodes of the critical path are counted; `--json` has all.
const PATH_SHOWN_MAX: usize = 20;

#[derive(Debug, Args)]
pub(super) struct SimulateCommand {
    /// A frozen TensorFlow GraphDef (.pb), the folder of a SavedModel, or a task graph (.json).
    #[arg(value_hint = ValueHint::FilePath)]
    graph: PathBuf,
    #[command(flatten)]
    placement: PlacementArgs,
    #[command(flatten)]
    cluster: ClusterArgs,
    /// List when each node executes.
    #[arg(long, help_heading = "Output")]
    nodes: bool,
    /// Write the schedule as a trace to this file, for chrome://tracing and Perfetto.
    #[arg(long, value_name = "F.json", value_hint = ValueHint::FilePath, help_heading = "Output")]
    trace: Option<PathBuf>,
}

/// Everything that `--json` prints.
#[derive(Debug, Serialize)]
struct Report<'a> {
    placement: PlacementView<'a>,
    #[serde(skip)]
    simulation: &'a Simulation,
    /// Expected time of a run, with feeds, fetches and its start.
    expected_ns: f64,
    /// When the last node ends.
    end_ns: f64,
    devices: &'a [SimulatedDevice],
    links: &'a [SimulatedLink],
    transfers: &'a [SimulatedTransfer],
    critical_path: Vec<NodeRow<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    nodes: Option<Vec<NodeRow<'a>>>,
}

#[derive(Debug, Serialize)]
struct NodeRow<'a> {
    name: &'a str,
    op: &'a str,
    device: &'a str,
    start_ns: f64,
    end_ns: f64,
}

/// Runs the command.
pub(super) fn run(
    command: &SimulateCommand,
    registry: &Registry,
    output: &mut Output,
) -> Result<Outcome> {
    let args = &command.placement;
    let cluster = command.cluster.read(&args.devices.memory)?;
    let (graph, cluster) = (&command.graph, cluster.as_ref());
    let opened = open(
        graph,
        args,
        cluster,
        false,
        registry,
        Recorder::off(),
        output,
    );
    let opened = refusals::or_show(opened, graph, args, cluster, registry, output)?;
    opened.save_and_log(args, output)?;
    let placement = &*opened.placement;
    let simulation = placement.simulate();
    if let Some(path) = &command.trace {
        output_file::write(path, |file| Ok(simulation.write_chrome(placement, file)?))?;
    }
    let row = |node| node_row(placement, &simulation, node);
    let report = Report {
        placement: opened.view().on_paper(cluster.is_some()),
        simulation: &simulation,
        expected_ns: simulation.expected_ns,
        end_ns: simulation.end_ns,
        devices: &simulation.devices,
        links: &simulation.links,
        transfers: &simulation.transfers,
        critical_path: simulation
            .critical_path
            .iter()
            .map(|&node| row(NodeId(node)))
            .collect(),
        nodes: command.nodes.then(|| {
            let mut nodes: Vec<NodeRow<'_>> = placement.graph().nodes().map(row).collect();
            nodes.sort_by(|a, b| a.start_ns.total_cmp(&b.start_ns));
            nodes
        }),
    };
    report.show(output)?;
    output.json(&report)?;
    Ok(opened.outcome())
}

fn node_row<'a>(placement: &'a Placement, simulation: &Simulation, node: NodeId) -> NodeRow<'a> {
    NodeRow {
        name: placement.graph().node_name(node),
        op: placement.graph().op(node),
        device: placement.candidates().device_name(placement.device(node).0),
        start_ns: simulation.starts_ns[node.index()],
        end_ns: simulation.ends_ns[node.index()],
    }
}

impl Report<'_> {
    fn show(&self, output: &mut Output) -> Result<()> {
        self.placement.show(output)?;
        output.line("")?;
        let percent =
            |busy_ns: f64| format!("{:.1} %", 100.0 * self.simulation.utilization(busy_ns));
        let mut table = Table::new(["device", "executed", "busy", "of the time", "peak memory"])
            .with_numbers(&[1, 2, 3, 4]);
        for device in self.devices {
            table.add_row([
                device.name.clone(),
                device.n_executed.to_string(),
                show_ns(device.busy_ns),
                percent(device.busy_ns),
                show_bytes(device.peak_bytes),
            ]);
        }
        output.table(&table)?;
        let used: Vec<_> = self
            .links
            .iter()
            .filter(|link| link.n_transfers > 0)
            .collect();
        if !used.is_empty() {
            output.line("")?;
            let mut table = Table::new(["link", "transfers", "size", "busy", "of the time"])
                .with_numbers(&[1, 2, 3, 4]);
            for link in used {
                table.add_row([
                    link.name.clone(),
                    link.n_transfers.to_string(),
                    show_bytes(link.bytes),
                    show_ns(link.busy_ns),
                    percent(link.busy_ns),
                ]);
            }
            output.table(&table)?;
        }
        output.line("")?;
        let n_more = self.critical_path.len().saturating_sub(PATH_SHOWN_MAX);
        output.line(format_args!(
            "critical path: {}{}",
            count(self.critical_path.len(), "node"),
            match n_more {
                0 => String::new(),
                _ => format!(", of which these {PATH_SHOWN_MAX} take longest"),
            }
        ))?;
        let mut path: Vec<&NodeRow<'_>> = self.critical_path.iter().collect();
        if n_more > 0 {
            let length = |row: &NodeRow<'_>| row.end_ns - row.start_ns;
            path.sort_by(|a, b| length(b).total_cmp(&length(a)));
            path.truncate(PATH_SHOWN_MAX);
            path.sort_by(|a, b| a.start_ns.total_cmp(&b.start_ns));
        }
        output.table(&node_table(path))?;
        if let Some(nodes) = &self.nodes {
            output.line("")?;
            output.table(&node_table(nodes))?;
        }
        Ok(())
    }
}

fn node_table<'a>(rows: impl IntoIterator<Item = &'a NodeRow<'a>>) -> Table {
    let mut table = Table::new(["node", "op", "device", "start", "takes"]).with_numbers(&[3, 4]);
    for row in rows {
        table.add_row([
            row.name.to_owned(),
            row.op.to_owned(),
            row.device.to_owned(),
            show_ns(row.start_ns),
            show_ns(row.end_ns - row.start_ns),
        ]);
    }
    table
}
