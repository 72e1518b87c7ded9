//! `placewright place`: places a graph and shows the placement, without a run.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::Context;
use anyhow::Result;
use clap::Args;
use clap::ValueHint;
use serde::Serialize;

use super::Outcome;
use super::args::PlacementArgs;
use super::args::RunArgs;
use super::cluster::ClusterArgs;
use super::feeds::default_fetches;
use super::open::is_task_graph;
use super::open::open;
use super::open::read_saved;
use super::output::Output;
use super::output::chain;
use super::output_file;
use super::refusals;
use super::summary::PlacementView;
use super::table::Table;
use super::units::count;
use super::units::show_bytes;
use super::units::show_ns;
use crate::graph::BodyId;
use crate::graph::Graph;
use crate::graph::NodeId;
use crate::names::DeviceId;
use crate::placement::Placement;
use crate::placement::PlacementDiff;
use crate::registry::Registry;
use crate::session::Session;
use crate::trace::Recorder;

#[derive(Debug, Args)]
pub(super) struct PlaceCommand {
    /// A frozen TensorFlow GraphDef (.pb), the folder of a SavedModel, or a task graph (.json).
    #[arg(value_hint = ValueHint::FilePath)]
    graph: PathBuf,
    #[command(flatten)]
    placement: PlacementArgs,
    #[command(flatten)]
    cluster: ClusterArgs,
    /// List every node with its device, the requested device, and the policy's reason.
    #[arg(long, help_heading = "Output")]
    nodes: bool,
    /// List every transfer of a run of the whole graph with its rendezvous key.
    ///
    /// Traces and errors use the same keys. Constants and feeds are not transfers: they are on
    /// every device that reads them before the run. A control signal carries ^NODE and no bytes.
    /// --fetch has no effect on the list.
    #[arg(long, help_heading = "Output")]
    transfers: bool,
    /// Place nothing; list every node that no device of this machine can execute, and why.
    ///
    /// The exit status is 1 if there are any.
    #[arg(long, help_heading = "Output", conflicts_with_all = ["nodes", "transfers", "diff", "placement", "save_placement"])]
    check_ops: bool,
    /// List the nodes that this saved placement has on another device.
    #[arg(long, value_name = "F.json", value_hint = ValueHint::FilePath, help_heading = "Output")]
    diff: Option<PathBuf>,
    /// The flags of `run`, so that one command line serves both.
    #[command(flatten)]
    run: RunArgs,
}

/// Everything that `--json` prints.
#[derive(Debug, Serialize)]
struct Report<'a> {
    placement: PlacementView<'a>,
    links: Vec<LinkRow>,
    /// Memory that runs hold; `null` on devices of a cluster file, and if a run of the whole graph
    /// fails, for the reason in `no_memory_plan`.
    memory: Option<MemoryView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    no_memory_plan: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    nodes: Option<Vec<NodeRow>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    transfers: Option<Vec<TransferRow>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    diff: Option<PlacementDiff>,
}

/// Transfers of a run of the whole graph between two devices, or two memories of one device.
#[derive(Debug, Serialize)]
struct LinkRow {
    source: String,
    destination: String,
    /// Transfers of tensors.
    n_transfers: usize,
    /// Control signals, which carry no bytes.
    n_signals: usize,
    /// Sum of the known sizes.
    transfer_bytes: u64,
}

/// Memory that runs of the whole graph hold.
#[derive(Debug, Serialize)]
struct MemoryView {
    memories: Vec<MemoryRow>,
    /// Tensors whose shape is unknown before they are computed; they need memory in addition.
    n_unplanned: usize,
}

#[derive(Debug, Serialize)]
struct MemoryRow {
    device: String,
    /// Whether it is the host memory of the device's host-memory arguments.
    on_host: bool,
    constant_bytes: u64,
    prepacked_bytes: u64,
    run_bytes: u64,
    fetched_bytes: u64,
    peak_bytes: u64,
    /// Memory that placements may use on the device; `null` for host memory.
    capacity_bytes: Option<u64>,
}

#[derive(Debug, Serialize)]
struct NodeRow {
    name: String,
    op: String,
    device: String,
    /// The device that the graph requests for it.
    requested: String,
    /// The function that the node comes from; `null` for a node of the graph itself.
    function: Option<String>,
    /// The frame of the innermost loop that the node is in; `null` outside of loops.
    r#loop: Option<String>,
    /// Expected executions in one run.
    executions: f64,
    /// Expected time of one execution on its device, in ns.
    cost_ns: f64,
    /// Where the cost comes from: `history`, `profile`, `calibration`, or `rates`.
    cost_source: String,
    /// Number of measurements behind the cost; 0 if it is computed.
    cost_samples: u32,
    /// The policy's reasons, if it gave any.
    reasons: Vec<String>,
}

/// A transfer that happens once in a run.
#[derive(Debug, Serialize)]
struct TransferRow {
    /// `SOURCE;INCARNATION;DESTINATION;EDGE;FRAME:ITERATION`.
    key: String,
    source: String,
    destination: String,
    /// `NODE:SLOT`, or `^NODE` for a control dependency.
    carries: String,
    /// The first of the nodes that read it.
    first_consumer: String,
    /// `null` if the shape is unknown before the run.
    bytes: Option<u64>,
}

/// Runs the command.
pub(super) fn run(
    command: &PlaceCommand,
    registry: &Registry,
    output: &mut Output,
) -> Result<Outcome> {
    let diff = command.diff.as_deref();
    output_file::check(&command.graph, diff, &command.placement, &command.run)?;
    if command.run.only_matters_when_running() {
        output.note("`place` executes nothing: flags for feeds, fetches, checks and repetitions have no effect");
    }
    let recorder = if command.run.trace.is_some() {
        Recorder::on()
    } else {
        Recorder::off()
    };
    let args = &command.placement;
    let cluster = command.cluster.read(&args.devices.memory)?;
    let cluster = cluster.as_ref();
    if command.check_ops {
        return refusals::check_ops(&command.graph, args, cluster, registry, output);
    }
    let opened = open(
        &command.graph,
        args,
        cluster,
        command.nodes,
        registry,
        recorder,
        output,
    );
    let opened = refusals::or_show(opened, &command.graph, args, cluster, registry, output)?;
    opened.save_and_log(args, output)?;
    if let Some(path) = &command.run.trace {
        opened.write_trace(path)?;
    }
    let placement = &*opened.placement;
    let diff = match &command.diff {
        Some(path) => Some(read_saved(path)?.diff(&opened.to_saved(args))),
        None => None,
    };
    let transfers = command
        .transfers
        .then(|| transfers(&opened.session))
        .transpose()?;
    let (memory, failure) = match memory(&opened.session) {
        // Devices on paper have no allocators whose memory could be planned, and tasks no kernels.
        _ if cluster.is_some() || is_task_graph(&command.graph) => (None, None),
        Ok(memory) => (Some(memory), None),
        Err(error) => (None, Some(error)),
    };
    let report = Report {
        placement: opened.view().on_paper(cluster.is_some()),
        links: links(placement),
        memory,
        no_memory_plan: failure.as_ref().map(chain),
        nodes: command.nodes.then(|| nodes(placement)),
        transfers,
        diff,
    };
    report.show(output)?;
    output.json(&report)?;
    if let Some(failure) = failure {
        return Err(failure.context("a run of the whole graph fails with this placement"));
    }
    Ok(opened.outcome())
}

/// Returns the transfers of a run of the whole graph, summed by pair of devices.
fn links(placement: &Placement) -> Vec<LinkRow> {
    let name = |device: DeviceId| placement.candidates().device_name(device.0).to_owned();
    let mut rows: BTreeMap<(u32, u32), LinkRow> = BTreeMap::new();
    for transfer in placement.run_transfers() {
        let ends = (transfer.source.0, transfer.destination.0);
        let row = rows.entry(ends).or_insert_with(|| LinkRow {
            source: name(transfer.source),
            destination: name(transfer.destination),
            n_transfers: 0,
            n_signals: 0,
            transfer_bytes: 0,
        });
        match transfer.tensor {
            Some(_) => row.n_transfers += 1,
            None => row.n_signals += 1,
        }
        let bytes = transfer.bytes(placement.graph()).unwrap_or(0);
        row.transfer_bytes = row.transfer_bytes.saturating_add(bytes);
    }
    rows.into_values().collect()
}

/// A run of the whole graph: it feeds all placeholders, fetches all outputs that no node reads, and
/// runs the nodes without outputs.
#[derive(Debug)]
struct WholeRun<'a> {
    feeds: Vec<&'a str>,
    fetches: Vec<String>,
    targets: Vec<&'a str>,
}

impl<'a> WholeRun<'a> {
    fn new(graph: &'a Graph) -> Self {
        let names = |is_meant: &dyn Fn(NodeId) -> bool| -> Vec<&'a str> {
            let nodes = graph.nodes().filter(|&node| is_meant(node));
            nodes.map(|node| graph.node_name(node)).collect()
        };
        let has_no_output = |node: NodeId| {
            graph.successors().row(node.index()).is_empty() && graph.output_range(node).is_empty()
        };
        Self {
            feeds: names(&|node| graph.is_placeholder(node)),
            fetches: default_fetches(graph),
            targets: names(&has_no_output),
        }
    }

    fn fetches(&self) -> Vec<&str> {
        self.fetches.iter().map(String::as_str).collect()
    }
}

fn transfers(session: &Session) -> Result<Vec<TransferRow>> {
    let placement = session.placement();
    let graph = placement.graph();
    let run = WholeRun::new(graph);
    let plan = session.plan(&run.feeds, &run.fetches(), &run.targets)?;
    let name = |device: DeviceId| placement.candidates().device_name(device.0);
    let rows = plan.run_transfers().map(|transfer| {
        let (source, destination) = (name(transfer.source), name(transfer.destination));
        let payload = transfer.payload;
        Ok(TransferRow {
            key: payload
                .key(graph, transfer.edge, source, destination)?
                .to_string(),
            source: source.to_owned(),
            destination: destination.to_owned(),
            carries: payload.name(graph),
            first_consumer: graph.node_name(transfer.first_consumer(graph)).to_owned(),
            bytes: transfer.bytes,
        })
    });
    rows.collect()
}

/// Returns the memory that runs of the whole graph hold.
fn memory(session: &Session) -> Result<MemoryView> {
    let graph = session.graph();
    let run = WholeRun::new(&graph);
    let plan = session.memory_plan(&run.feeds, &run.fetches(), &run.targets)?;
    let devices = session.devices();
    let rows = plan.memories.iter().map(|memory| {
        let device = devices.get(memory.device);
        let device = device.context("the memory plan names a device that does not exist")?;
        Ok(MemoryRow {
            device: device.attributes().name.clone(),
            on_host: memory.on_host,
            constant_bytes: memory.constant_bytes,
            prepacked_bytes: memory.prepacked_bytes,
            run_bytes: memory.run_bytes,
            fetched_bytes: memory.fetched_bytes,
            peak_bytes: memory.peak_bytes(),
            capacity_bytes: (!memory.on_host).then(|| device.memory_capacity_bytes()),
        })
    });
    Ok(MemoryView {
        memories: rows.collect::<Result<_>>()?,
        n_unplanned: plan.n_unplanned,
    })
}

fn nodes(placement: &Placement) -> Vec<NodeRow> {
    let graph = placement.graph();
    let bodies = graph.bodies().ok();
    let loop_of = |node| {
        let bodies = bodies.filter(|bodies| bodies.has_loops())?;
        let body = bodies.of_node(node);
        (body != BodyId::OUTERMOST).then(|| bodies.body(body).name.to_string())
    };
    let executions = &placement.candidates().nodes().executions;
    let mut rows: Vec<NodeRow> = graph
        .nodes()
        .map(|node| NodeRow {
            name: graph.node_name(node).to_owned(),
            op: graph.op(node).to_owned(),
            device: placement
                .candidates()
                .device_name(placement.device(node).0)
                .to_owned(),
            requested: graph.requested(node).to_owned(),
            function: graph.function_of(node).map(str::to_owned),
            r#loop: loop_of(node),
            executions: executions.get(node.index()).copied().unwrap_or(1.0),
            cost_ns: placement.candidates().cost_ns(node, placement.device(node)),
            cost_source: placement
                .candidates()
                .cost_source(node, placement.device(node))
                .to_owned(),
            cost_samples: placement
                .candidates()
                .cost_samples(node, placement.device(node)),
            reasons: Vec::new(),
        })
        .collect();
    for explanation in placement.explanations() {
        for &node in &explanation.nodes {
            if let Some(row) = rows.get_mut(node as usize) {
                row.reasons.push(explanation.reason.clone());
            }
        }
    }
    rows
}

impl Report<'_> {
    fn show(&self, output: &mut Output) -> Result<()> {
        self.placement.show(output)?;
        if !self.links.is_empty() {
            output.line("")?;
            output.table(&link_table(&self.links))?;
        }
        if let Some(memory) = &self.memory {
            output.line("")?;
            memory.show(output)?;
        }
        if let Some(nodes) = &self.nodes {
            output.line("")?;
            output.table(&node_table(nodes))?;
        }
        if let Some(transfers) = &self.transfers {
            output.line("")?;
            let mut table = Table::new(["transfer", "carries", "for", "size"]).with_numbers(&[3]);
            for transfer in transfers {
                table.add_row([
                    transfer.key.clone(),
                    transfer.carries.clone(),
                    transfer.first_consumer.clone(),
                    transfer.bytes.map_or("unknown".to_owned(), show_bytes),
                ]);
            }
            output.table(&table)?;
        }
        if let Some(diff) = &self.diff {
            output.line("")?;
            show_diff(diff, output)?;
        }
        Ok(())
    }
}

/// Returns a table with a row per node. Graphs with functions, branches or loops have more columns.
fn node_table(nodes: &[NodeRow]) -> Table {
    let has_functions = nodes.iter().any(|node| node.function.is_some());
    let is_repeated = nodes.iter().any(|node| node.executions != 1.0);
    let mut head = vec!["node", "op", "device"];
    if has_functions {
        head.push("function");
    }
    if is_repeated {
        head.extend(["loop", "runs"]);
    }
    let runs_column = head.len() - 1;
    head.extend(["cost", "source", "samples", "requested", "why"]);
    let mut numbers = vec![runs_column + 1, runs_column + 3];
    if is_repeated {
        numbers.push(runs_column);
    }
    let mut table = Table::new(head).with_numbers(&numbers);
    for node in nodes {
        let mut cells = vec![node.name.clone(), node.op.clone(), node.device.clone()];
        if has_functions {
            cells.push(node.function.clone().unwrap_or_default());
        }
        if is_repeated {
            let runs = format!("{:.4}", node.executions);
            let runs = runs.trim_end_matches('0').trim_end_matches('.');
            cells.extend([node.r#loop.clone().unwrap_or_default(), runs.to_owned()]);
        }
        cells.extend([
            show_ns(node.cost_ns),
            node.cost_source.clone(),
            node.cost_samples.to_string(),
        ]);
        cells.extend([node.requested.clone(), node.reasons.join("; ")]);
        table.add_row(cells);
    }
    table
}

fn link_table(links: &[LinkRow]) -> Table {
    let cells = |link: &LinkRow| {
        [
            link.source.clone(),
            link.destination.clone(),
            link.n_transfers.to_string(),
            show_bytes(link.transfer_bytes),
        ]
    };
    // Few graphs have control edges between devices: names of devices get the space.
    if links.iter().all(|link| link.n_signals == 0) {
        let mut table = Table::new(["from", "to", "transfers", "size"]).with_numbers(&[2, 3]);
        links.iter().for_each(|link| table.add_row(cells(link)));
        return table;
    }
    let mut table =
        Table::new(["from", "to", "transfers", "size", "control signals"]).with_numbers(&[2, 3, 4]);
    for link in links {
        let [source, destination, n_transfers, size] = cells(link);
        table.add_row([
            source,
            destination,
            n_transfers,
            size,
            link.n_signals.to_string(),
        ]);
    }
    table
}

impl MemoryView {
    fn show(&self, output: &mut Output) -> Result<()> {
        let mut table = Table::new([
            "memory",
            "constants",
            "prepacked",
            "one run",
            "allocated",
            "capacity",
        ])
        .with_numbers(&[1, 2, 3, 4, 5]);
        for row in &self.memories {
            let of_host = if row.on_host { " (host)" } else { "" };
            table.add_row([
                format!("{}{of_host}", row.device),
                show_bytes(row.constant_bytes),
                show_bytes(row.prepacked_bytes),
                show_bytes(row.run_bytes.saturating_add(row.fetched_bytes)),
                show_bytes(row.peak_bytes),
                row.capacity_bytes.map_or("-".to_owned(), show_bytes),
            ]);
        }
        output.table(&table)?;
        if self.n_unplanned > 0 {
            output.line(format_args!(
                "not counted: {} whose shape is not known before the run",
                count(self.n_unplanned, "tensor")
            ))?;
        }
        Ok(())
    }
}

fn show_diff(diff: &PlacementDiff, output: &mut Output) -> Result<()> {
    output.line(format_args!(
        "{} on another device, {} gone, {} new",
        count(diff.moved.len(), "node"),
        diff.only_before.len(),
        diff.only_after.len()
    ))?;
    if diff.moved.is_empty() && diff.only_before.is_empty() && diff.only_after.is_empty() {
        return Ok(());
    }
    let mut table = Table::new(["node", "before", "now"]);
    let absent = || "-".to_owned();
    for (node, before, now) in &diff.moved {
        table.add_row([node.clone(), before.clone(), now.clone()]);
    }
    for node in &diff.only_before {
        table.add_row([node.clone(), "present".to_owned(), absent()]);
    }
    for node in &diff.only_after {
        table.add_row([node.clone(), absent(), "present".to_owned()]);
    }
    output.table(&table)
}
