//! The fourth table of `bench placement`: enumerating candidates with a history of all their
//! kernels, compared with the rates of devices alone, in turns.

use std::sync::Arc;

use anyhow::Result;
use serde::Serialize;

use crate::candidates::PlacementOptions;
use crate::candidates::enumerate;
use crate::candidates::synthetic;
use crate::candidates::synthetic::SyntheticGraph;
use crate::cli::output::Output;
use crate::cli::table::Table;
use crate::cli::timing::median;
use crate::cli::timing::timed;
use crate::cost::History;
use crate::device::DeviceSet;
use crate::graph::Graph;
use crate::trace::NodeTimes;
use crate::trace::RunProfile;

/// Nodes of the graph, and devices. Each kind of device has a history of its own.
const N_NODES: u32 = 100_000;
const N_DEVICES: u32 = 8;

#[derive(Debug, Serialize)]
pub(super) struct Row {
    nodes: usize,
    devices: u32,
    /// Costs that came from the history, of nodes and classes of devices.
    looked_up: usize,
    us_per_node: f64,
    with_history_us_per_node: f64,
    /// Per node and kind of device.
    ns_per_look_up: f64,
}

/// Measures `repetitions` times.
pub(super) fn measure(repetitions: u32, seed: u64) -> Result<Row> {
    let graph = Arc::new(SyntheticGraph::new(N_NODES, seed).build());
    let devices = Arc::new(synthetic::devices(N_DEVICES));
    let kernels = synthetic::kernels();
    let history = History::new();
    let profile = all_nodes(&graph, &devices);
    history.learn(&profile, &graph, &devices)?;
    let plain = PlacementOptions::default();
    let learned = PlacementOptions::default().with_cost_source(Arc::new(history));
    let mut times = [Vec::new(), Vec::new()];
    let mut n_looked_up = 0;
    for _ in 0..=repetitions {
        for (options, times) in [&plain, &learned].into_iter().zip(&mut times) {
            let (found, time) = timed(|| enumerate(&graph, &devices, &kernels, options));
            let found = found?;
            let sources = found.nodes().cost_sources.iter();
            n_looked_up = sources.filter(|&&source| source != 0).count();
            times.push(time);
        }
    }
    // The first of each warms up.
    let [plain_us, learned_us] = times.map(|mut times| {
        let n_nodes = f64::from(N_NODES);
        median(&mut times[1..]).as_secs_f64() * 1e6 / n_nodes
    });
    #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
    let look_ups_per_node = n_looked_up as f64 / f64::from(N_NODES);
    Ok(Row {
        nodes: graph.n_nodes(),
        devices: N_DEVICES,
        looked_up: n_looked_up,
        us_per_node: plain_us,
        with_history_us_per_node: learned_us,
        ns_per_look_up: 1e3 * (learned_us - plain_us) / look_ups_per_node,
    })
}

/// A profile in which each node was executed on each device.
fn all_nodes(graph: &Graph, devices: &DeviceSet) -> RunProfile {
    let mut profile = RunProfile {
        format: 0,
        graph: graph.name().to_owned(),
        n_runs: 5,
        run_ns: 0.0,
        overhead_ns: 0.0,
        nodes: Vec::new(),
        transfers: Vec::new(),
    };
    for (_, device) in devices.iter() {
        let name = &device.attributes().name;
        let times = graph.nodes().map(|node| NodeTimes {
            node: graph.node_name(node).to_owned(),
            device: name.clone(),
            executions: 1.0,
            ns: 1_000.0,
            spread_ns: 10.0,
            samples: 5,
            start_ns: 0.0,
        });
        profile.nodes.extend(times);
    }
    profile
}

pub(super) fn show(row: &Row, output: &mut Output) -> Result<()> {
    output.line("")?;
    let head = [
        "nodes",
        "devices",
        "costs from history",
        "us/node without",
        "with it",
        "ns/look-up",
    ];
    let mut table = Table::new(head).with_numbers(&[0, 1, 2, 3, 4, 5]);
    table.add_row([
        row.nodes.to_string(),
        row.devices.to_string(),
        row.looked_up.to_string(),
        format!("{:.3}", row.us_per_node),
        format!("{:.3}", row.with_history_us_per_node),
        format!("{:.1}", row.ns_per_look_up),
    ]);
    output.table(&table)
}
