//! Sample graphs and devices for the tests of policies.

use std::sync::Arc;

use placewright::candidates::{Candidates, PlacementOptions, enumerate};
use placewright::device::{
    DeviceOptions, DeviceRates, DeviceSet, HostLink, KernelDef, KernelRegistry, LinkRates,
};
use placewright::graph::{
    AttrSet, AttrValue, Graph, GraphAssembler, Input, NodeId, NodeSpec, Output, Work,
};
use placewright::names::DeviceId;
use placewright::policy::ShippedPolicy;
use placewright::tensor::{DType, PartialShape};
#[cfg(any(feature = "cli", all(feature = "cuda", feature = "opencl")))]
use placewright::trace::{EventKind, Recorder};
use placewright_guest::ReadyTask;

use crate::fakes::FakeDevice;

/// Returns policies whose plans differ: TensorFlow's, two by costs, and one that crosses devices
/// wherever it can. For tests that run each plan many times; all are checked in others.
#[cfg(feature = "cli")]
pub(crate) fn varied_policies() -> [ShippedPolicy; 4] {
    let find = |name| ShippedPolicy::find(name).expect("shipped");
    ["priority", "heft", "hbmct", "round-robin"].map(find)
}

/// Returns settings with which policies that search evaluate about `effort` nodes. For tests to
/// which it does not matter how good a plan is.
pub(crate) fn quick(policy: ShippedPolicy, effort: u32) -> Vec<(String, String)> {
    match policy.name() {
        "auto" | "search" => vec![("effort".to_owned(), effort.to_string())],
        _ => Vec::new(),
    }
}

/// Requests `n` CPU devices and no other, whatever the machine has.
pub(crate) fn cpus(n: u32) -> DeviceOptions {
    let mut options = DeviceOptions::default();
    options.device_count.insert("CPU".to_owned(), n);
    options.device_count.insert("SYCL".to_owned(), 0);
    options
}

/// Returns the devices that have joined for a session, in order of names.
#[cfg(any(feature = "cli", all(feature = "cuda", feature = "opencl")))]
pub(crate) fn joined(recorder: &Recorder) -> Vec<String> {
    let events = recorder.events().into_iter();
    let mut joined: Vec<String> = events
        .filter_map(|event| match event.kind {
            EventKind::Device {
                call: "maybe_rewrite_graph",
                detail,
                ..
            } => Some(detail.into_string()),
            _ => None,
        })
        .collect();
    joined.sort_unstable();
    joined
}

/// A sequence of numbers that is the same everywhere (SplitMix64).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns a number below `bound`.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        (mixed % bound as u64) as usize
    }
}

/// Returns the seed of a random test; `PLACEWRIGHT_SEED` sets another one.
pub(crate) fn seed() -> u64 {
    let seed = std::env::var("PLACEWRIGHT_SEED");
    seed.map_or(20_261_122, |seed| seed.parse().unwrap())
}

/// A layered random graph of about 2.5 edges per node; some nodes request a device, some are
/// colocated.
pub(crate) fn layered_graph(n_nodes: usize, seed: u64) -> Arc<Graph> {
    let mut random = Random::new(seed);
    let mut assembler = GraphAssembler::new(format!("layered-{n_nodes}-{seed}"));
    let width = (n_nodes / 8).clamp(1, 64);
    for index in 0..n_nodes {
        let layer_start = index / width * width;
        let n_inputs = if layer_start == 0 { 0 } else { random.below(5) };
        let mut inputs: Vec<_> = (0..n_inputs)
            .map(|_| {
                let back = 1 + random.below(width.min(layer_start));
                let node = NodeId(u32::try_from(layer_start - back).unwrap());
                Input::Data { node, slot: 0 }
            })
            .collect();
        if layer_start > 0 && random.below(16) == 0 {
            inputs.push(Input::Control(NodeId(0)));
        }
        let output = Output {
            dtype: DType::F32,
            is_ref: false,
            shape: PartialShape::new(&[Some(1 + random.below(4096))]),
        };
        let requested_device = match random.below(20) {
            0 => "/device:GPU:0",
            1 => "/device:CPU:*",
            _ => "",
        };
        assembler
            .add_node(&NodeSpec {
                name: &format!("node{index}"),
                op: ["Small", "Large", "CpuOnly"][random.below(10).saturating_sub(7)],
                inputs: &inputs,
                requested_device,
                attrs: AttrSet::default(),
                outputs: &[output],
                stateful: false,
                work: Work {
                    flops: random.below(1_000_000) as f64,
                    traffic_bytes: random.below(100_000) as u64,
                    resident_bytes: random.below(1000) as u64,
                    workspace_bytes: 0,
                },
            })
            .unwrap();
    }
    Arc::new(assembler.finish())
}

/// CPUs and GPUs of one task, with different rates.
pub(crate) fn devices(n_cpus: u32, n_gpus: u32) -> Arc<DeviceSet> {
    let device = |device_type: &str, index| {
        FakeDevice::new(
            &format!("/job:localhost/replica:0/task:0/device:{device_type}:{index}"),
            device_type,
        )
    };
    let gpu_profile = DeviceRates {
        flops_per_s: 5e12,
        memory_bytes_per_s: 5e11,
        launch_ns: 5_000.0,
        is_calibrated: false,
        queues: 2,
        host_link: HostLink::same(LinkRates {
            latency_ns: 8_000.0,
            ns_per_byte: 0.1,
        }),
    };
    let cpus = (0..n_cpus).map(|index| device("CPU", index).shared());
    let gpus = (0..n_gpus).map(|index| device("GPU", index).with_rates(gpu_profile).shared());
    Arc::new(DeviceSet::new(cpus.chain(gpus)).with_type_priorities([("CPU", 60), ("GPU", 210)]))
}

/// Returns the candidates of a graph on devices.
pub(crate) fn candidates(graph: &Arc<Graph>, devices: &Arc<DeviceSet>) -> Candidates {
    let options = PlacementOptions::default().with_soft_placement(true);
    enumerate(graph, devices, &kernels(), &options).unwrap()
}

fn kernels() -> KernelRegistry {
    let mut kernels = KernelRegistry::empty();
    for (op, device_types) in [
        ("Small", &["CPU", "GPU"][..]),
        ("Large", &["CPU", "GPU"]),
        ("CpuOnly", &["CPU"]),
    ] {
        for device_type in device_types {
            kernels.register(KernelDef::new(op, *device_type));
        }
    }
    kernels
}

/// Returns the task of a node whose inputs are ready.
pub(crate) fn ready_task(candidates: &Candidates, node: u32) -> ReadyTask {
    ReadyTask {
        run: 5,
        node,
        cost_row: candidates.nodes().cost_row[node as usize],
        candidate_set: candidates.nodes().candidate_set[node as usize],
        input_bytes: 64,
        home: placewright_guest::NONE,
        now_ns: 0.0,
    }
}

/// A layered graph on two CPUs and two GPUs.
pub(crate) fn sample(n_nodes: usize, seed: u64) -> Candidates {
    candidates(&layered_graph(n_nodes, seed), &devices(2, 2))
}

/// A graph with a pin, colocation groups, ops that run on CPUs only, and a device with very little
/// memory.
pub(crate) fn constrained() -> Candidates {
    let mut assembler = GraphAssembler::new("constrained");
    let output = Output {
        dtype: DType::F32,
        is_ref: false,
        shape: PartialShape::new(&[Some(16)]),
    };
    for index in 0..24_u32 {
        let inputs = index.checked_sub(1).map(|before| Input::Data {
            node: NodeId(before),
            slot: 0,
        });
        let class: Arc<[AttrValue]> = [AttrValue::Bytes(b"loc:@node0"[..].into())].into();
        let attrs = match index {
            6 | 9 => AttrSet::new([("_class".into(), AttrValue::List(class))]),
            _ => AttrSet::default(),
        };
        assembler
            .add_node(&NodeSpec {
                name: &format!("node{index}"),
                op: if index % 8 == 7 { "CpuOnly" } else { "Small" },
                inputs: inputs.as_slice(),
                requested_device: "",
                attrs,
                outputs: std::slice::from_ref(&output),
                stateful: false,
                work: Work {
                    flops: 1000.0,
                    traffic_bytes: 128,
                    resident_bytes: 100,
                    workspace_bytes: 0,
                },
            })
            .unwrap();
    }
    let device = |name: &str, device_type| {
        let name = format!("/job:localhost/replica:0/task:0/device:{name}");
        FakeDevice::new(&name, device_type)
    };
    let devices = DeviceSet::new([
        device("CPU:0", "CPU").shared(),
        device("CPU:1", "CPU").with_capacity_bytes(16).shared(),
        device("GPU:0", "GPU").shared(),
    ])
    .with_type_priorities([("CPU", 60), ("GPU", 210)]);
    let options = PlacementOptions::default().with_pin(NodeId(3), DeviceId(0));
    let graph = Arc::new(assembler.finish());
    enumerate(&graph, &Arc::new(devices), &kernels(), &options).unwrap()
}
