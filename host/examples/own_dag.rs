//! A service places its own graph: 5,000 tasks on 16 devices of its own, with its own costs and
//! links. Nothing is executed: the service runs the tasks itself. Needs no default features.
//!
//! The steps: assemble the graph, describe the devices, state the cost of each task on each device
//! and of each link, ask `heft` in its sandbox, and read the answer.
//!
//! ```console
//! $ cargo run --release --example own_dag
//! ```

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use placewright::graph::GraphError;
use placewright::prelude::*;

/// Tasks of the graph, in layers.
const N_TASKS: u32 = 5_000;
const N_TASKS_PER_LAYER: u32 = 100;

/// Two racks of eight machines; the last two machines of each rack have an accelerator.
const N_DEVICES: u32 = 16;
const N_DEVICES_PER_RACK: u32 = 8;
const N_ACCELERATORS_PER_RACK: u32 = 2;

/// Memory of each machine, in bytes.
const MEMORY_BYTES: u64 = 64 << 30;

#[allow(dead_code, reason = "the tests include this file and call the rest")]
#[expect(clippy::print_stdout, reason = "an example shows what it does")]
fn main() -> Result<(), Box<dyn Error>> {
    let outcome = run()?;
    println!(
        "{} tasks on {} devices, placed by heft in {:.1?}",
        outcome.devices.iter().map(|row| row.n_tasks).sum::<u64>(),
        outcome.devices.len(),
        outcome.elapsed,
    );
    println!("device                                      tasks     work");
    for row in &outcome.devices {
        let work_ms = row.work_ns / 1e6;
        println!("{:<42} {:>6} {work_ms:>6.0}ms", row.name, row.n_tasks);
    }
    println!(
        "{} transfers move {} MB between machines",
        outcome.n_transfers,
        outcome.transfer_bytes / 1_000_000
    );
    println!(
        "expected time {:.0} ms; on the best single machine {:.0} ms",
        outcome.expected_ns / 1e6,
        outcome.single_device_ns / 1e6
    );
    Ok(())
}

/// The resulting placement.
pub(crate) struct Outcome {
    /// One row per device.
    pub(crate) devices: Vec<Row>,
    pub(crate) n_transfers: u64,
    pub(crate) transfer_bytes: u64,
    /// The time of one run that the cost model expects, in ns.
    pub(crate) expected_ns: f64,
    /// The same, with all tasks on the best of the accelerators.
    pub(crate) single_device_ns: f64,
    /// The time of the policy call.
    pub(crate) elapsed: Duration,
}

/// One device.
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) n_tasks: u64,
    pub(crate) work_ns: f64,
}

/// Places the graph.
pub(crate) fn run() -> Result<Outcome, Box<dyn Error>> {
    let graph = Arc::new(graph()?);
    let devices = Arc::new(devices()?);
    let candidates = candidates(&graph, &devices)?;

    let engine = PolicyEngine::new(PolicyLimits::default())?;
    let request = PolicyRequest::new(ShippedPolicy::find("heft")?).with_strict(true);
    let (placement, report) = place_with_ladder(&engine, &candidates, &request)?;

    let mut plan = Evaluator::new(&candidates);
    let mut makespan_ns = |devices: &[u32]| {
        plan.set_devices(devices);
        plan.makespan_ns()
    };
    let expected_ns = makespan_ns(placement.devices());
    let single_device_ns = (0..N_DEVICES)
        .map(|device| makespan_ns(&vec![device; graph.n_nodes()]))
        .fold(f64::INFINITY, f64::min);
    let summary = placement.summary();
    let rows = summary.devices.into_iter().map(|device| Row {
        name: device.name,
        n_tasks: device.n_nodes,
        work_ns: device.work_ns,
    });
    Ok(Outcome {
        devices: rows.collect(),
        n_transfers: summary.n_transfers,
        transfer_bytes: summary.transfer_bytes,
        expected_ns,
        single_device_ns,
        elapsed: report.answer.elapsed,
    })
}

/// Layers of tasks. Each task reads from up to three tasks of the previous layer, and one task in
/// five trains a model, which needs an accelerator.
fn graph() -> Result<Graph, GraphError> {
    let mut random = Random(1);
    let mut assembler = GraphAssembler::new("fleet");
    for task in 0..N_TASKS {
        let first_of_layer = task - task % N_TASKS_PER_LAYER;
        let mut producers: Vec<u32> = (0..3)
            .filter(|_| first_of_layer > 0)
            .map(|_| first_of_layer - 1 - random.below(N_TASKS_PER_LAYER))
            .collect();
        producers.sort_unstable();
        producers.dedup();
        let inputs: Vec<Input> = producers
            .into_iter()
            .map(|producer| Input::Data {
                node: NodeId(producer),
                slot: 0,
            })
            .collect();
        let n_values = 1 + random.below(1 << 18) as usize;
        let output = Output {
            dtype: DType::F32,
            is_ref: false,
            shape: PartialShape::new(&[Some(n_values)]),
        };
        assembler.add_node(&NodeSpec {
            name: &format!("task{task}"),
            op: if random.below(5) == 0 {
                "Train"
            } else {
                "Transform"
            },
            inputs: &inputs,
            requested_device: "",
            attrs: AttrSet::default(),
            outputs: &[output],
            stateful: false,
            work: Work::default(),
        })?;
    }
    Ok(assembler.finish())
}

/// The machines, as `/job:fleet/replica:RACK/task:MACHINE/device:CPU:0`, or `NPU` for one with an
/// accelerator. Any names and types work.
fn devices() -> Result<DeviceSet, Box<dyn Error>> {
    let mut set = DeviceSet::default();
    for device in 0..N_DEVICES {
        let (rack, machine) = (device / N_DEVICES_PER_RACK, device % N_DEVICES_PER_RACK);
        let device_type = if has_accelerator(device) {
            "NPU"
        } else {
            "CPU"
        };
        let name = DeviceName::full("fleet", rack, machine, device_type, 0);
        let attributes = DeviceAttributes::new(&name, device_type, MEMORY_BYTES);
        set.add(Arc::new(SimpleDevice::new(attributes)?));
    }
    Ok(set)
}

fn has_accelerator(device: u32) -> bool {
    device % N_DEVICES_PER_RACK >= N_DEVICES_PER_RACK - N_ACCELERATORS_PER_RACK
}

/// States the costs of tasks and links. Infinity means that a device cannot run a task.
fn candidates(graph: &Arc<Graph>, devices: &Arc<DeviceSet>) -> Result<Candidates, Box<dyn Error>> {
    let mut random = Random(2);
    let mut builder = CandidatesBuilder::new(graph, devices);
    for node in graph.nodes() {
        let transform_ns = f64::from(1_000_000 + random.below(4_000_000));
        let costs_ns: Vec<f64> = (0..N_DEVICES)
            .map(|device| match (graph.op(node), has_accelerator(device)) {
                ("Train", false) => f64::INFINITY,
                ("Train", true) => transform_ns,
                // Machines with an accelerator have slower processors.
                (_, true) => 2.0 * transform_ns,
                (_, false) => transform_ns,
            })
            .collect();
        builder = builder.with_costs_ns(node, &costs_ns);
    }
    for (from, to) in (0..N_DEVICES).flat_map(|from| (0..N_DEVICES).map(move |to| (from, to))) {
        if from == to {
            continue;
        }
        // 25 Gbit/s within a rack, 10 between the racks.
        let is_same_rack = from / N_DEVICES_PER_RACK == to / N_DEVICES_PER_RACK;
        let link = if is_same_rack {
            LinkRates {
                latency_ns: 10_000.0,
                ns_per_byte: 0.32,
            }
        } else {
            LinkRates {
                latency_ns: 50_000.0,
                ns_per_byte: 0.8,
            }
        };
        builder = builder.with_link(DeviceId(from), DeviceId(to), link);
    }
    Ok(builder.build()?)
}

/// Numbers that are the same on every machine (a linear congruential generator).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u32) -> u32 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        u32::try_from((self.0 >> 33) % u64::from(limit)).unwrap_or(0)
    }
}
