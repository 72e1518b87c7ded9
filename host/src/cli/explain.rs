//! `placewright explain`: why a node is where it is, and the moves that would help most.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use clap::ValueHint;
use serde::Serialize;

use super::Outcome;
use super::UsageError;
use super::args::PlacementArgs;
use super::cluster::ClusterArgs;
use super::open::Opened;
use super::open::open;
use super::output::Output;
use super::refusals;
use super::summary::PlacementView;
use super::table::Table;
use super::units::count;
use super::units::show_bytes;
use super::units::show_change_ns;
use super::units::show_ns;
use crate::graph::NodeId;
use crate::names::DeviceId;
use crate::placement::Move;
use crate::placement::MoveOutcome;
use crate::placement::NodeExplanation;
use crate::placement::Placement;
use crate::placement::Simulation;
use crate::registry::Registry;
use crate::session::find_device;
use crate::session::find_node;
use crate::trace::Recorder;

/// Moves that are shown for a whole plan.
const MOVES_SHOWN_MAX: usize = 10;

#[derive(Debug, Args)]
pub(super) struct ExplainCommand {
    /// A frozen TensorFlow GraphDef (.pb), the folder of a SavedModel, or a task graph (.json).
    #[arg(value_hint = ValueHint::FilePath)]
    graph: PathBuf,
    /// The node to explain; without one, the moves of single nodes that shorten a run most are
    /// listed.
    node: Option<String>,
    /// Why the node is not on this device, such as GPU:1: both runs side by side.
    #[arg(
        long,
        value_name = "DEVICE",
        requires = "node",
        help_heading = "Output"
    )]
    against: Option<String>,
    #[command(flatten)]
    placement: PlacementArgs,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// Everything that `--json` prints.
#[derive(Debug, Serialize)]
struct Report<'a> {
    placement: PlacementView<'a>,
    /// Full names of the devices, by index.
    devices: Vec<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<NodeReport<'a>>,
    /// Without a node: the moves that shorten a run most.
    #[serde(skip_serializing_if = "Option::is_none")]
    best_moves: Option<Vec<MoveRow<'a>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    against: Option<Against<'a>>,
}

#[derive(Debug, Serialize)]
struct NodeReport<'a> {
    name: &'a str,
    op: &'a str,
    /// Names of the nodes that move with it, and its own.
    group_names: Vec<&'a str>,
    #[serde(flatten)]
    explanation: NodeExplanation,
}

#[derive(Debug, Serialize)]
struct MoveRow<'a> {
    name: &'a str,
    op: &'a str,
    #[serde(flatten)]
    moved: Move,
}

/// A run as it is, and after a move.
#[derive(Debug, Serialize)]
struct Against<'a> {
    device: &'a str,
    now: Side,
    after: Side,
}

/// One of two runs.
#[derive(Debug, Serialize)]
struct Side {
    expected_ns: f64,
    /// When the node starts.
    start_ns: f64,
    /// How long it executes.
    duration_ns: f64,
    /// Transfers of what it reads and computes, their known sizes, and the sum of their times.
    n_transfers: usize,
    transfer_bytes: u64,
    transfer_ns: f64,
    /// Busy time of the two devices.
    busy_ns: [f64; 2],
    /// Most bytes on the two devices.
    peak_bytes: [u64; 2],
    is_critical: bool,
}

/// Runs the command.
pub(super) fn run(
    command: &ExplainCommand,
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
        true,
        registry,
        Recorder::off(),
        output,
    );
    let opened = refusals::or_show(opened, graph, args, cluster, registry, output)?;
    opened.save_and_log(args, output)?;
    let report = command.report(&opened, cluster.is_some())?;
    report.show(output)?;
    output.json(&report)?;
    Ok(opened.outcome())
}

impl ExplainCommand {
    fn report<'a>(&self, opened: &'a Opened, is_on_paper: bool) -> Result<Report<'a>> {
        let placement = &*opened.placement;
        let graph = placement.graph();
        let ids = placement.device_set().iter();
        let mut report = Report {
            placement: opened.view().on_paper(is_on_paper),
            devices: ids.map(|(id, _)| device_name(placement, id.0)).collect(),
            node: None,
            best_moves: None,
            against: None,
        };
        let Some(name) = &self.node else {
            let moves = placement.best_moves(MOVES_SHOWN_MAX).into_iter();
            let moves = moves.map(|moved| MoveRow {
                name: graph.node_name(NodeId(moved.node)),
                op: graph.op(NodeId(moved.node)),
                moved,
            });
            report.best_moves = Some(moves.collect());
            return Ok(report);
        };
        let node = find_node(graph, name)?;
        let explanation = placement.explain(node);
        if let Some(device) = &self.against {
            let device = find_device(placement.device_set(), device)
                .map_err(|problem| UsageError(format!("--against {device}: {problem}")))?;
            report.against = Some(Against::new(placement, node, device)?);
        }
        let members = explanation.group.iter();
        report.node = Some(NodeReport {
            name: graph.node_name(node),
            op: graph.op(node),
            group_names: members
                .map(|&member| graph.node_name(NodeId(member)))
                .collect(),
            explanation,
        });
        Ok(report)
    }
}

fn device_name(placement: &Placement, device: u32) -> &str {
    placement.candidates().device_name(device)
}

impl<'a> Against<'a> {
    fn new(placement: &'a Placement, node: NodeId, device: DeviceId) -> Result<Self> {
        let own = placement.device(node);
        if own == device {
            let name = device_name(placement, device.0);
            return Err(UsageError(format!("the node is on {name}")).into());
        }
        let after = placement.with_move(node, device)?;
        let devices = [own, device];
        Ok(Self {
            device: device_name(placement, device.0),
            now: Side::new(placement, node, devices),
            after: Side::new(&after, node, devices),
        })
    }
}

impl Side {
    fn new(placement: &Placement, node: NodeId, devices: [DeviceId; 2]) -> Self {
        let simulation: Simulation = placement.simulate();
        let graph = placement.graph();
        let producers = graph.predecessors().row(node.index());
        let own = placement.device(node).0;
        let of_node = simulation.transfers.iter().filter(|transfer| {
            transfer.producer == node.0
                || (transfer.destination == own && producers.contains(&transfer.producer))
        });
        let peaks = placement.evaluator().peak_bytes_per_device();
        let (mut n_transfers, mut transfer_bytes, mut transfer_ns) = (0, 0u64, 0.0);
        for transfer in of_node {
            n_transfers += 1;
            transfer_bytes = transfer_bytes.saturating_add(transfer.bytes);
            transfer_ns += transfer.end_ns - transfer.start_ns;
        }
        let start_ns = simulation.starts_ns[node.index()];
        Self {
            expected_ns: simulation.expected_ns,
            start_ns,
            duration_ns: simulation.ends_ns[node.index()] - start_ns,
            n_transfers,
            transfer_bytes,
            transfer_ns,
            busy_ns: devices.map(|device| simulation.devices[device.index()].busy_ns),
            peak_bytes: devices.map(|device| peaks[device.index()]),
            is_critical: simulation.critical_path.contains(&node.0),
        }
    }
}

impl Report<'_> {
    fn show(&self, output: &mut Output) -> Result<()> {
        self.placement.show(output)?;
        output.line("")?;
        if let Some(node) = &self.node {
            node.show(&self.devices, output)?;
        }
        if let (Some(against), Some(node)) = (&self.against, &self.node) {
            output.line("")?;
            let own = self.devices[node.explanation.device as usize];
            against.show(own, output)?;
        }
        let Some(moves) = &self.best_moves else {
            return Ok(());
        };
        if moves.is_empty() {
            return output.line("no move of a single node makes a run faster");
        }
        output.line("moves of single nodes that shorten a run most")?;
        let head = ["node", "op", "from", "to", "run", "change", "moved bytes"];
        let mut table = Table::new(head).with_numbers(&[4, 5, 6]);
        for row in moves {
            let [run, change, bytes, _] = outcome_cells(&row.moved.outcome);
            table.add_row([
                row.name.to_owned(),
                row.op.to_owned(),
                self.devices[row.moved.from as usize].to_owned(),
                self.devices[row.moved.to as usize].to_owned(),
                run,
                change,
                bytes,
            ]);
        }
        output.table(&table)
    }
}

/// Returns the expected time, its change, the bytes moved between devices, and the peak on the
/// device that the node moves to; `?` if it was not computed.
fn outcome_cells(outcome: &MoveOutcome) -> [String; 4] {
    match outcome {
        MoveOutcome::Legal {
            expected_ns,
            change_ns,
            transfer_bytes,
            peak_bytes,
        } => [
            show_ns(*expected_ns),
            show_change_ns(*change_ns),
            show_bytes(*transfer_bytes),
            peak_bytes.map_or_else(|| "?".to_owned(), |[_, bytes]| show_bytes(bytes)),
        ],
        MoveOutcome::Refused { .. } => ["-", "refused", "-", "-"].map(str::to_owned),
    }
}

impl NodeReport<'_> {
    fn show(&self, devices: &[&str], output: &mut Output) -> Result<()> {
        let explanation = &self.explanation;
        output.line(format_args!(
            "{} ({}) is on {}",
            self.name, self.op, devices[explanation.device as usize]
        ))?;
        let critical = match explanation.is_critical {
            true => "it is on the critical path",
            false => "it is not on the critical path",
        };
        let times = match explanation.executions == 1.0 {
            true => "once".to_owned(),
            false => format!("{} times", explanation.executions),
        };
        output.line(format_args!(
            "executed {times} a run, from {} to {}; {critical}, and may take {} longer",
            show_ns(explanation.start_ns),
            show_ns(explanation.end_ns),
            show_ns(explanation.slack_ns),
        ))?;
        if self.group_names.len() > 1 {
            output.line(format_args!(
                "{} must be on one device: {}",
                count(self.group_names.len(), "node"),
                self.group_names.join(", ")
            ))?;
        }
        for reason in &explanation.reasons {
            output.line(format_args!("the policy: {reason}"))?;
        }
        output.line("")?;
        let head = [
            "candidate",
            "cost",
            "source",
            "samples",
            "run",
            "change",
            "moved bytes",
            "peak there",
        ];
        let mut table = Table::new(head).with_numbers(&[1, 3, 4, 5, 6, 7]);
        let mut refused = Vec::new();
        for candidate in &explanation.candidates {
            let name = devices[candidate.device as usize];
            let [run, change, bytes, peak] = match &candidate.moved {
                None => ["", "is here", "", ""].map(str::to_owned),
                Some(moved) => outcome_cells(&moved.outcome),
            };
            if let Some(Move {
                outcome: MoveOutcome::Refused { violation },
                ..
            }) = &candidate.moved
            {
                refused.push(format!("{name}: {violation}"));
            }
            table.add_row([
                name.to_owned(),
                show_ns(candidate.cost_ns),
                candidate.cost_source.clone(),
                candidate.cost_samples.to_string(),
                run,
                change,
                bytes,
                peak,
            ]);
        }
        output.table(&table)?;
        for problem in refused {
            output.line(format_args!("refused: {problem}"))?;
        }
        Ok(())
    }
}

impl Against<'_> {
    fn show(&self, own: &str, output: &mut Output) -> Result<()> {
        let mut table = Table::new(["", own, self.device]).with_numbers(&[1, 2]);
        let (now, after) = (&self.now, &self.after);
        let mut add = |what: String, of: &dyn Fn(&Side) -> String| {
            table.add_row([what, of(now), of(after)]);
        };
        let critical = |side: &Side| if side.is_critical { "yes" } else { "no" }.to_owned();
        add("run".to_owned(), &|side| show_ns(side.expected_ns));
        add("node takes".to_owned(), &|side| show_ns(side.duration_ns));
        add("node starts".to_owned(), &|side| show_ns(side.start_ns));
        add("on the critical path".to_owned(), &critical);
        add("its transfers".to_owned(), &|side| {
            side.n_transfers.to_string()
        });
        add("their size".to_owned(), &|side| {
            show_bytes(side.transfer_bytes)
        });
        add("their time".to_owned(), &|side| show_ns(side.transfer_ns));
        for (index, device) in [own, self.device].into_iter().enumerate() {
            add(format!("{device} is busy"), &|side| {
                show_ns(side.busy_ns[index])
            });
            add(format!("{device} peak memory"), &|side| {
                show_bytes(side.peak_bytes[index])
            });
        }
        output.table(&table)
    }
}
