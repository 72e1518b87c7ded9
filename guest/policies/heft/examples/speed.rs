//! Measures how long heft takes, natively: `cargo run --release -p policy-heft --example speed`.
//!
//! The graphs are layered and random, with about 2.5 edges per node, drawn like those of
//! `placewright bench placement`, which measures the sandboxed policy. The arguments `NODES
//! DEVICES_OF_EACH_CLASS REPETITIONS` measure one case only.

#![expect(clippy::print_stdout, reason = "a program")]

use std::time::Instant;

use placewright_guest::Config;
use placewright_guest::DeviceSet;
use placewright_guest::Graph;
use placewright_guest::PlaceError;
use placewright_guest::Plan;
use placewright_guest::Policy;
use placewright_guest::log::Log;
use placewright_guest::source::BudgetUnit;
use placewright_guest::source::DeviceSource as _;
use placewright_guest::source::PlanSink;
use placewright_guest::source::Violation;
use placewright_guest::testing::GraphBuilder;
use placewright_guest::testing::TestDevices;
use placewright_guest::testing::TestGraph;
use placewright_guest::testing::cluster;
use policy_heft::Heft;

/// Flops per second, bytes per second and ns per launch of each device type, as in the host's
/// synthetic devices.
const CLASSES: [(&str, f64, f64, f64); 4] = [
    ("CPU", 4e11, 5e10, 500.0),
    ("GPU", 2e13, 9e11, 5_000.0),
    ("GPU", 6e12, 3e11, 6_000.0),
    ("SYCL", 3e12, 2e11, 10_000.0),
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("| nodes x devices | insertion | ms | us/node | inserted |");
    println!("|---|---|---|---|---|");
    let args: Vec<u32> = std::env::args()
        .skip(1)
        .map(|arg| arg.parse())
        .collect::<Result<_, _>>()?;
    let (cases, repetitions) = match args[..] {
        [n_nodes, of_each, repetitions] => (vec![(n_nodes, of_each as usize)], repetitions),
        _ => (vec![(100_000, 2), (1_000_000, 2), (100_000, 64)], 5),
    };
    for (n_nodes, of_each) in cases {
        let devices = linked(of_each);
        let graph = layered(n_nodes, &devices);
        for insertion in ["true", "false"] {
            let mut best_ms = f64::INFINITY;
            let mut sink = Accept::default();
            for _ in 0..repetitions {
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

/// A cluster with `of_each` devices of each class. Tensors between accelerators are staged in host
/// memory and pay for two links.
fn linked(of_each: usize) -> TestDevices {
    let parts = CLASSES.map(|(device_type, ..)| format!("{of_each}x{device_type}"));
    let mut devices = cluster(&parts.join(","));
    let n = devices.cost_classes.len();
    let is_host = |device: usize| CLASSES[devices.cost_classes[device] as usize].0 == "CPU";
    let rate = |device: usize| 0.08 + 0.001 * f64::from(u32::try_from(device).unwrap_or(0));
    for (at, link) in devices.links.iter_mut().enumerate() {
        let (from, to) = (at / n, at % n);
        if from != to {
            let (hops, ns_per_byte) = match (is_host(from), is_host(to)) {
                (_, true) => (1.0, rate(from)),
                (true, false) => (1.0, rate(to)),
                (false, false) => (2.0, rate(from) + rate(to)),
            };
            link.latency_ns = hops * 10_000.0;
            link.ns_per_byte = ns_per_byte;
        }
    }
    devices
}

/// A graph of about sqrt(`n_nodes`) layers. A node has two or three inputs: nine in ten from the
/// previous layer, the others from the three layers before that. Work and tensor sizes are
/// log-uniform over three orders of magnitude. One node in five, and another one in twenty, can run
/// on some of the devices only.
fn layered(n_nodes: u32, devices: &TestDevices) -> TestGraph {
    let mut random = SplitMix(0);
    let all: Vec<u32> = (0..devices.count()).collect();
    let of_types = |types: &[&str]| -> Vec<u32> {
        let has_type = |&&device: &&u32| {
            let class = devices.cost_classes[device as usize] as usize;
            types.contains(&CLASSES[class].0)
        };
        all.iter().filter(has_type).copied().collect()
    };
    let (cpu_only, no_sycl) = (of_types(&["CPU"]), of_types(&["GPU", "CPU"]));
    let layer = n_nodes.isqrt().max(1);
    let mut graph = GraphBuilder::new(devices);
    let mut tensor_bytes = Vec::new();
    for node in 0..n_nodes {
        let n_elements = random.log_uniform(1e3, 1e6);
        let flops = random.log_uniform(1e6, 1e9);
        let cost = |(_, flops_per_s, bytes_per_s, launch_ns): (_, f64, f64, f64)| {
            launch_ns + f64::max(flops / flops_per_s, n_elements * 12.0 / bytes_per_s) * 1e9
        };
        graph.node("", &CLASSES.map(cost));
        tensor_bytes.push(n_elements as u64 * 4);
        let first_of_layer = node - node % layer;
        if first_of_layer == 0 {
            continue;
        }
        match random.below(20) {
            0 => graph.candidates(node, &cpu_only),
            2 | 6 | 10 | 14 | 18 => graph.candidates(node, &no_sycl),
            _ => {}
        }
        for _ in 0..2 + random.below(2) {
            let back = if random.below(10) == 0 {
                2 + random.below(3)
            } else {
                1
            };
            let from = first_of_layer.saturating_sub(back * layer) + random.below(layer);
            graph.edge(from, node, tensor_bytes[from as usize]);
        }
    }
    graph.build()
}

/// The generator `SplitMix64` (Steele et al. 2014).
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u32) -> u32 {
        u32::try_from(((self.next() >> 32) * u64::from(n)) >> 32).unwrap_or(0)
    }

    fn log_uniform(&mut self, low: f64, high: f64) -> f64 {
        let unit = (self.next() >> 11) as f64 / (1_u64 << 53) as f64;
        low * (high / low).powf(unit)
    }
}

/// A plan that accepts everything.
#[derive(Debug, Default)]
struct Accept {
    inserted: std::cell::Cell<f64>,
}

impl PlanSink for Accept {
    fn set_devices(&self, _: &[u32]) {}
    fn devices(&self) -> Vec<u32> {
        Vec::new()
    }
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
    fn set_streamed(&self, _: &[u32]) {}
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
    fn budget_unit(&self) -> BudgetUnit {
        BudgetUnit::Unlimited
    }
}
