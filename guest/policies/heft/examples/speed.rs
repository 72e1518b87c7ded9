//! How long heft takes, natively: `cargo run --release -p policy-heft --example speed`.
//!
//! Layered random graphs of about 2.5 edges a node, every device linked to every other at a cost of its own. The figures of
//! the sandboxed policy are `placewright bench placement`.

#![expect(clippy::print_stdout, reason = "a program")]

use std::time::Instant;

use placewright_guest::Config;
use placewright_guest::DeviceSet;
use placewright_guest::Graph;
use placewright_guest::PlaceError;
use placewright_guest::Plan;
use placewright_guest::Policy;
use placewright_guest::log::Log;
use placewright_guest::source::PlanSink;
use placewright_guest::source::Violation;
use placewright_guest::testing::GraphBuilder;
use placewright_guest::testing::TestDevices;
use placewright_guest::testing::TestGraph;
use placewright_guest::testing::cluster;
use policy_heft::Heft;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("| nodes x devices | insertion | ms | us/node | inserted |");
    println!("|---|---|---|---|---|");
    for (n_nodes, cluster_text) in [
        (100_000, "4xCPU,4xGPU"),
        (1_000_000, "4xCPU,4xGPU"),
        (100_000, "128xCPU,128xGPU"),
    ] {
        let devices = linked(cluster(cluster_text));
        let graph = layered(n_nodes, &devices);
        for insertion in ["true", "false"] {
            let mut best_ms = f64::INFINITY;
            let mut sink = Accept::default();
            for _ in 0..5 {
                sink = Accept::default();
                let begun = Instant::now();
                place(insertion, &graph, &devices, &sink)?;
                best_ms = best_ms.min(begun.elapsed().as_secs_f64() * 1e3);
            }
            let us_per_node = best_ms * 1e3 / f64::from(n_nodes);
            let inserted = sink.inserted.get();
            let n_devices = devices.cost_classes.len();
            println!(
                "| {n_nodes} x {n_devices} | {insertion} | {best_ms:.1} | {us_per_node:.3} | {inserted} |"
            );
        }
    }
    Ok(())
}

fn place(
    insertion: &str,
    graph: &TestGraph,
    devices: &TestDevices,
    sink: &Accept,
) -> Result<(), PlaceError> {
    let log = Log::silent();
    let entries = vec![("insertion".to_owned(), insertion.to_owned())];
    let mut policy = Heft::default();
    Config::new(Heft::SETTINGS, entries, log.clone())
        .and_then(|config| policy.configure(&config))
        .map_err(|error| PlaceError::Failed(error.to_string()))?;
    policy.place(
        &Graph::new(graph, &log),
        &DeviceSet::new(devices, &log),
        &Plan::new(sink, &log),
        0,
    )
}

/// Different links for every pair of devices.
fn linked(mut devices: TestDevices) -> TestDevices {
    let n = devices.cost_classes.len();
    for (at, link) in devices.links.iter_mut().enumerate() {
        if at / n != at % n {
            let spread = f64::from(u32::try_from(at * 7_919 % 1_000).unwrap_or(0));
            link.latency_ns = 1_000.0 + spread;
            link.ns_per_byte = 0.05 + spread * 1e-4;
        }
    }
    devices
}

/// As many layers as nodes in each; two or three inputs from the layer before; costs and sizes over three orders of
/// magnitude.
fn layered(n_nodes: u32, devices: &TestDevices) -> TestGraph {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut below = |n: u32| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        u32::try_from(state % u64::from(n)).unwrap_or(0)
    };
    let layer = n_nodes.isqrt().max(1);
    let mut graph = GraphBuilder::new(devices);
    for node in 0..n_nodes {
        let cpu = 10_f64.powf(3.5 + f64::from(below(3_000)) / 1_000.0);
        let gpu = 5_000.0 + cpu / f64::from(1 + below(40));
        graph.node("", &[cpu, gpu]);
        let first_of_layer = node - node % layer;
        if first_of_layer > 0 {
            for _ in 0..2 + node % 2 {
                let from = first_of_layer - 1 - below(layer);
                let bytes = 10_f64.powf(3.0 + f64::from(below(3_000)) / 1_000.0);
                graph.edge(from, node, bytes as u64);
            }
        }
    }
    graph.build()
}

/// A plan that takes everything.
#[derive(Debug, Default)]
struct Accept {
    inserted: std::cell::Cell<f64>,
}

impl PlanSink for Accept {
    fn set_devices(&self, _: &[u32]) {}
    fn move_nodes(&self, _: &[u32], _: u32) {}
    fn makespan_ns(&self) -> f64 {
        0.0
    }
    fn violation(&self) -> Option<Violation> {
        None
    }
    fn transfer_bytes(&self) -> u64 {
        0
    }
    fn peak_bytes_per_device(&self) -> Vec<u64> {
        Vec::new()
    }
    fn set_start_order(&self, _: &[i32]) {}
    fn set_queues(&self, _: &[u32]) {}
    fn explain_wanted(&self) -> bool {
        false
    }
    fn explain(&self, _: &[u32], _: &str) {}
    fn metric(&self, name: &str, value: f64) {
        if name == "nodes_inserted" {
            self.inserted.set(value);
        }
    }
    fn offer(&self) -> Result<(), Violation> {
        Ok(())
    }
    fn budget_left(&self) -> u64 {
        u64::MAX
    }
}
