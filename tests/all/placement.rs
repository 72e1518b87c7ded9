//! Placement rules: which devices may run a node, what is rejected, and the estimated cost of a
//! plan. Every rejection has a matching case that is accepted.

use std::sync::Arc;

use placewright::candidates::Candidates;
use placewright::candidates::CandidatesBuilder;
use placewright::candidates::CandidatesError;
use placewright::candidates::PlacementHint;
use placewright::candidates::PlacementOptions;
use placewright::candidates::Proposal;
use placewright::candidates::enumerate;
use placewright::device::DeviceRates;
use placewright::device::DeviceSet;
use placewright::device::HostLink;
use placewright::device::KernelDef;
use placewright::device::KernelRegistry;
use placewright::device::LinkRates;
use placewright::device::StatusCode;
use placewright::graph::AttrSet;
use placewright::graph::AttrValue;
use placewright::graph::EdgeKind;
use placewright::graph::Graph;
use placewright::graph::GraphAssembler;
use placewright::graph::Input;
use placewright::graph::NodeId;
use placewright::graph::NodeSpec;
use placewright::graph::Output;
use placewright::graph::Work;
use placewright::names::DeviceId;
use placewright::names::DeviceName;
use placewright::placement::check;
use placewright::tensor::DType;
use placewright::tensor::PartialShape;

use crate::fakes::FakeDevice;

mod allocation;
mod cache;
mod calls;
mod conflicts;
mod evaluator;
mod explain;
mod hints;
mod host_memory;
mod host_only;
mod identity;
mod keep;
mod memory_shortage;
mod random;
mod saved;
mod stated;

const TASK: &str = "/job:localhost/replica:0/task:0";
const CPU0: u32 = 0;
const CPU1: u32 = 1;
const GPU0: u32 = 2;
const GPU1: u32 = 3;

/// Two CPUs and two GPUs of 1,000 bytes each; a copy over a GPU's link costs 10 ns + 1 ns/byte,
/// between CPUs 5 ns.
fn devices() -> Arc<DeviceSet> {
    let device = |device_type: &str, index: u32, flops_per_s, link: (f64, f64)| {
        let rates = DeviceRates {
            flops_per_s,
            memory_bytes_per_s: 1e9,
            launch_ns: 0.0,
            queues: 2,
            host_link: HostLink::same(LinkRates {
                latency_ns: link.0,
                ns_per_byte: link.1,
            }),
            ..DeviceRates::default_cpu(1)
        };
        FakeDevice::new(&format!("{TASK}/device:{device_type}:{index}"), device_type)
            .with_rates(rates)
            .with_capacity_bytes(1000)
            .shared()
    };
    let set = DeviceSet::new([
        device("CPU", 0, 1e9, (5.0, 0.0)),
        device("CPU", 1, 1e9, (5.0, 0.0)),
        device("GPU", 0, 1e10, (10.0, 1.0)),
        device("GPU", 1, 1e10, (10.0, 1.0)),
    ]);
    Arc::new(set.with_type_priorities([("CPU", 60), ("GPU", 210)]))
}

/// `Any` on both types, `CpuOnly` and `GpuOnly`; `Var` produces a reference.
fn kernels() -> KernelRegistry {
    let mut kernels = KernelRegistry::empty();
    for op in [
        "Any",
        "Var",
        "Shape",
        "Identity",
        "RefIdentity",
        "Const",
        "Placeholder",
    ] {
        kernels.register(KernelDef::new(op, "CPU"));
        kernels.register(KernelDef::new(op, "GPU"));
    }
    kernels.register(KernelDef::new("CpuOnly", "CPU"));
    kernels.register(KernelDef::new("GpuOnly", "GPU"));
    kernels.register(KernelDef::new("PrefersCpu", "CPU").with_priority(2));
    kernels.register(KernelDef::new("PrefersCpu", "GPU").with_priority(1));
    kernels.register(KernelDef::new("Reshape", "CPU"));
    kernels.register(KernelDef::new("Reshape", "GPU").with_host_memory("shape"));
    kernels.register(KernelDef::new("AnyXla", "CPU"));
    kernels.register(KernelDef::new("AnyXla", "XLA_CPU"));
    kernels
}

struct Builder(GraphAssembler, Option<usize>);

impl Builder {
    fn new() -> Self {
        Self(GraphAssembler::new("test"), Some(25))
    }

    /// Gives tensors an unknown size, so that they take no memory and only resident bytes count.
    fn without_sizes() -> Self {
        Self(GraphAssembler::new("test"), None)
    }

    fn node(&mut self, name: &str, op: &str, inputs: &[NodeId]) -> NodeId {
        self.full(name, op, inputs, "", &[], Work::default())
    }

    fn on(&mut self, name: &str, op: &str, inputs: &[NodeId], device: &str) -> NodeId {
        self.full(name, op, inputs, device, &[], Work::default())
    }

    fn with(
        &mut self,
        name: &str,
        op: &str,
        inputs: &[NodeId],
        device: &str,
        group: &str,
    ) -> NodeId {
        self.full(name, op, inputs, device, &[group], Work::default())
    }

    /// Adds a node that waits for others and produces the same output as any.
    fn node_after(&mut self, name: &str, op: &str, nodes: &[NodeId]) -> NodeId {
        let inputs: Vec<Input> = nodes.iter().map(|&node| Input::Control(node)).collect();
        let output = Output {
            dtype: DType::F32,
            is_ref: false,
            shape: PartialShape::new(&[Some(25)]),
        };
        let spec = NodeSpec {
            name,
            op,
            inputs: &inputs,
            requested_device: "",
            attrs: AttrSet::default(),
            outputs: &[output],
            stateful: false,
            work: Work::default(),
        };
        self.0.add_node(&spec).unwrap()
    }

    fn work(&mut self, name: &str, inputs: &[NodeId], flops: f64, resident_bytes: u64) -> NodeId {
        let work = Work {
            flops,
            resident_bytes,
            ..Work::default()
        };
        self.full(name, "Any", inputs, "", &[], work)
    }

    fn full(
        &mut self,
        name: &str,
        op: &str,
        inputs: &[NodeId],
        device: &str,
        groups: &[&str],
        work: Work,
    ) -> NodeId {
        let inputs: Vec<_> = inputs
            .iter()
            .map(|&node| Input::Data { node, slot: 0 })
            .collect();
        let classes: Vec<_> = groups
            .iter()
            .map(|group| AttrValue::Bytes(format!("loc:@{group}").into_bytes().into()))
            .collect();
        let attrs = if classes.is_empty() {
            AttrSet::default()
        } else {
            AttrSet::new([("_class".into(), AttrValue::List(classes.into()))])
        };
        let output = Output {
            dtype: if op == "Shape" {
                DType::I32
            } else {
                DType::F32
            },
            is_ref: op == "Var",
            shape: PartialShape::new(&[self.1]),
        };
        self.0
            .add_node(&NodeSpec {
                name,
                op,
                inputs: &inputs,
                requested_device: device,
                attrs,
                outputs: &[output],
                stateful: op == "Var",
                work,
            })
            .unwrap()
    }

    fn finish(self) -> Arc<Graph> {
        Arc::new(self.0.finish())
    }
}

fn candidates(
    graph: &Arc<Graph>,
    options: &PlacementOptions,
) -> Result<Candidates, CandidatesError> {
    enumerate(graph, &devices(), &kernels(), options)
}

fn soft() -> PlacementOptions {
    PlacementOptions::default().with_soft_placement(true)
}

/// Returns the candidates of the one node of op `op`, which requests `device`.
fn single(op: &str, device: &str, options: &PlacementOptions) -> Result<Vec<u32>, CandidatesError> {
    let mut builder = Builder::new();
    let node = builder.on("n", op, &[], device);
    candidates(&builder.finish(), options).map(|found| found.of_node(node).to_vec())
}

fn propose(devices: &[u32]) -> Proposal {
    Proposal {
        devices: devices.to_vec(),
        ..Proposal::default()
    }
}

/// `a` (100 flops, 100 bytes out) feeds `b` and `c`, both feed `d`.
fn diamond() -> Arc<Graph> {
    let mut builder = Builder::new();
    let a = builder.work("a", &[], 100.0, 0);
    let b = builder.work("b", &[a], 200.0, 0);
    let c = builder.work("c", &[a], 300.0, 40);
    builder.work("d", &[b, c], 100.0, 0);
    builder.finish()
}

#[test]
fn kernels_and_requests_decide_a_nodes_candidates() {
    let hard = PlacementOptions::default();
    let rows: [(&str, &str, &[u32]); 8] = [
        ("Any", "", &[GPU0, GPU1, CPU0, CPU1]),
        ("CpuOnly", "", &[CPU0, CPU1]),
        ("PrefersCpu", "", &[CPU0, CPU1, GPU0, GPU1]),
        ("Any", "/device:CPU:*", &[CPU0, CPU1]),
        ("Any", "/cpu:1", &[CPU1]),
        ("Any", "/device:*:1", &[GPU1, CPU1]),
        ("Any", "/job:localhost/task:0/gpu:0", &[GPU0]),
        ("Any", "/", &[GPU0, GPU1, CPU0, CPU1]),
    ];
    for (op, device, expected) in rows {
        assert_eq!(
            single(op, device, &hard).unwrap(),
            expected,
            "{op} on {device:?}"
        );
    }
}

#[test]
fn impossible_requests_name_node_and_remedy() {
    let rows: [(&str, &str, &[&str]); 5] = [
        ("Any", "/foo:bar", &["`n`", "/foo:bar"]),
        (
            "Any",
            "/device:GPU:7",
            &["n", "/device:GPU:7", "available devices", "GPU:0"],
        ),
        (
            "CpuOnly",
            "/gpu:0",
            &["n", "CpuOnly", "/device:GPU:0", "device='CPU'", "soft"],
        ),
        (
            "Nothing",
            "",
            &["`n`", "Nothing", "<no registered kernels>"],
        ),
        ("Any", "/job:other", &["/job:other", "available devices"]),
    ];
    for (op, device, fragments) in rows {
        let error = single(op, device, &PlacementOptions::default())
            .unwrap_err()
            .to_string();
        for fragment in fragments {
            assert!(error.contains(fragment), "{fragment} in {error}");
        }
    }
}

#[test]
fn soft_placement_gives_up_type_and_index_but_never_the_task() {
    assert_eq!(single("CpuOnly", "/gpu:0", &soft()).unwrap(), [CPU0, CPU1]);
    assert_eq!(
        single("Any", "/device:GPU:7", &soft()).unwrap(),
        [GPU0, GPU1, CPU0, CPU1]
    );
    assert!(single("Any", "/job:other/gpu:0", &soft()).is_err());
    let mut builder = Builder::new();
    builder.on("softened", "CpuOnly", &[], "/gpu:0");
    builder.on("met", "CpuOnly", &[], "/cpu:0");
    let found = candidates(&builder.finish(), &soft()).unwrap();
    let softened = |node: usize| found.nodes().placement_hints[node] & PlacementHint::SOFTENED != 0;
    assert!(softened(0) && !softened(1));
}

#[test]
fn the_device_scope_fills_unset_parts_of_requests() {
    let scope = DeviceName::parse_full("/device:CPU:1").unwrap();
    let options = PlacementOptions::default().with_device_scope(scope);
    assert_eq!(single("Any", "", &options).unwrap(), [CPU1]);
    assert_eq!(single("Any", "/gpu:0", &options).unwrap(), [GPU0]);
    assert!(single("GpuOnly", "", &options).is_err());
}

#[test]
fn the_default_device_precedes_all_priorities_if_legal() {
    let options = PlacementOptions::default().with_default_local_device(DeviceId(CPU1));
    assert_eq!(
        single("Any", "", &options).unwrap(),
        [CPU1, GPU0, GPU1, CPU0]
    );
    assert_eq!(single("GpuOnly", "", &options).unwrap(), [GPU0, GPU1]);
    let missing = PlacementOptions::default().with_default_local_device(DeviceId(9));
    assert_eq!(
        single("Any", "", &missing).unwrap_err(),
        CandidatesError::NoSuchDefaultDevice(9)
    );
}

#[test]
fn xla_devices_are_used_only_on_request_or_alone() {
    let device = |name: &str, device_type: &str| {
        FakeDevice::new(&format!("{TASK}/device:{name}:0"), device_type).shared()
    };
    let set = DeviceSet::new([device("CPU", "CPU"), device("XLA_CPU", "XLA_CPU")]);
    let set = Arc::new(set.with_type_priorities([("CPU", 60), ("XLA_CPU", 70)]));
    let mut builder = Builder::new();
    let plain = builder.node("plain", "AnyXla", &[]);
    let asked = builder.on("asked", "AnyXla", &[], "/device:XLA_CPU:0");
    let options = PlacementOptions::default();
    let found = enumerate(&builder.finish(), &set, &kernels(), &options).unwrap();
    assert_eq!(
        (found.of_node(plain), found.of_node(asked)),
        (&[0][..], &[1][..])
    );
}

#[test]
fn an_empty_device_set_is_refused() {
    let graph = Builder::new().finish();
    let options = PlacementOptions::default();
    let empty = enumerate(&graph, &Arc::default(), &kernels(), &options);
    assert_eq!(empty.unwrap_err(), CandidatesError::NoDevices);
    assert!(candidates(&graph, &options).is_ok());
}

#[test]
fn class_groups_share_the_candidates_of_all_members() {
    let mut builder = Builder::new();
    let a = builder.node("a", "Any", &[]);
    let b = builder.with("b", "CpuOnly", &[], "", "a");
    let c = builder.with("c", "Any", &[], "/cpu:1", "a");
    let alone = builder.node("alone", "Any", &[]);
    let found = candidates(&builder.finish(), &PlacementOptions::default()).unwrap();
    let group = &found.nodes().group;
    assert_eq!(group[a.index()], group[b.index()]);
    assert_eq!(group[a.index()], group[c.index()]);
    assert_ne!(group[a.index()], group[alone.index()]);
    assert_eq!(found.nodes().n_groups, 2);
    for member in [a, b, c] {
        assert_eq!(found.of_node(member), [CPU1]);
    }
    assert_eq!(found.of_node(alone).len(), 4);
}

#[test]
fn a_class_group_without_a_common_device_is_rejected_unless_soft() {
    let graph = || {
        let mut builder = Builder::new();
        builder.node("a", "GpuOnly", &[]);
        builder.with("b", "CpuOnly", &[], "", "a");
        builder.finish()
    };
    let error = candidates(&graph(), &PlacementOptions::default())
        .unwrap_err()
        .to_string();
    for fragment in ["`a`", "`b`", "GPU", "CPU", "no device type supports both"] {
        assert!(error.contains(fragment), "{fragment} in {error}");
    }
    let found = candidates(&graph(), &soft()).unwrap();
    assert_eq!(
        found.nodes().n_groups,
        2,
        "soft placement drops the colocation request"
    );

    let mut builder = Builder::new();
    builder.on("a", "Any", &[], "/gpu:0");
    builder.with("b", "Any", &[], "/gpu:1", "a");
    let error = candidates(&builder.finish(), &PlacementOptions::default()).unwrap_err();
    let error = error.to_string();
    assert!(
        error.contains("/device:GPU:0") && error.contains("/device:GPU:1"),
        "{error}"
    );
}

#[test]
fn kernel_labels_are_distinguished() {
    let mut kernels = KernelRegistry::empty();
    kernels.register(KernelDef::new("Any", "CPU"));
    kernels.register(KernelDef::new("Any", "GPU").with_label("fast"));
    let mut assembler = GraphAssembler::new("labels");
    let mut add = |name: &str, label: Option<&str>| {
        let label = label.map(|label| {
            let value = AttrValue::Bytes(label.as_bytes().into());
            ("_kernel".into(), value)
        });
        let spec = NodeSpec {
            name,
            op: "Any",
            inputs: &[],
            requested_device: "",
            attrs: AttrSet::new(
                label
                    .into_iter()
                    .chain([("n".into(), AttrValue::Bytes(name.as_bytes().into()))]),
            ),
            outputs: &[],
            stateful: false,
            work: Work::default(),
        };
        assembler.add_node(&spec).unwrap()
    };
    let fast = add("fast", Some("fast"));
    let plain = add("plain", None);
    let fast_too = add("fast too", Some("fast"));
    let graph = Arc::new(assembler.finish());
    let options = PlacementOptions::default();
    let found = enumerate(&graph, &devices(), &kernels, &options).unwrap();
    assert_eq!(found.of_node(fast), [GPU0, GPU1]);
    assert_eq!(found.of_node(plain), [CPU0, CPU1]);
    assert_eq!(found.of_node(fast_too), [GPU0, GPU1]);
}

#[test]
fn references_bind_their_consumers_to_the_producer() {
    let mut builder = Builder::new();
    let variable = builder.on("variable", "Var", &[], "/cpu:1");
    let assign = builder.on("assign", "Any", &[variable], "/gpu:0");
    let found = candidates(&builder.finish(), &PlacementOptions::default()).unwrap();
    assert_eq!(found.of_node(assign), [CPU1], "the producer's request wins");
    assert_eq!(found.nodes().n_groups, 1);

    let graph = || {
        let mut builder = Builder::new();
        let variable = builder.on("variable", "Var", &[], "/cpu:1");
        builder.node("assign", "GpuOnly", &[variable]);
        builder.finish()
    };
    let error = candidates(&graph(), &PlacementOptions::default())
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("variable") && error.contains("/device:CPU:1"),
        "{error}"
    );
    let moved = candidates(&graph(), &soft()).unwrap();
    assert_eq!(
        moved.of_node(NodeId(0)),
        [GPU0, GPU1],
        "soft placement moves the variable"
    );
}

/// Only another device than the assigned one meets the request; soft placement keeps both requests.
#[test]
fn an_assigned_device_overrules_a_resources_request_if_placed_first() {
    let mut builder = Builder::new();
    let variable = builder.on("variable", "Var", &[], "/cpu:1");
    let assign = builder.node("assign", "Any", &[variable]);
    let options = soft().with_pin(assign, DeviceId(CPU0));
    let error = candidates(&builder.finish(), &options).unwrap_err();
    assert_eq!(error.code(), StatusCode::Internal);
    let error = error.to_string();
    for fragment in ["`variable`", "/device:CPU:1", "/device:CPU:0", "assigned"] {
        assert!(error.contains(fragment), "{fragment} in {error}");
    }

    let mut builder = Builder::new();
    let assigned = builder.node("assigned", "Var", &[]);
    let variable = builder.on("variable", "Var", &[], "/cpu:1");
    builder.node("assign", "Any", &[assigned, variable]);
    let options = soft().with_pin(assigned, DeviceId(CPU0));
    let found = candidates(&builder.finish(), &options).unwrap();
    for node in found.graph().nodes() {
        assert_eq!(found.of_node(node), [CPU0]);
    }
    let softened = found.nodes().placement_hints[variable.index()] & PlacementHint::SOFTENED;
    assert_ne!(softened, 0);
}

#[test]
fn host_memory_arguments_mark_their_edges() {
    let mut builder = Builder::new();
    let value = builder.node("value", "Any", &[]);
    let shape = builder.node("shape", "Shape", &[value]);
    builder.node("reshape", "Reshape", &[value, shape]);
    builder.on("on_cpu", "Reshape", &[value, shape], "/cpu:0");
    let found = candidates(&builder.finish(), &PlacementOptions::default()).unwrap();
    let on_host: Vec<bool> = found
        .nodes()
        .edge_kinds
        .iter()
        .map(|kind| kind & EdgeKind::HOST_MEMORY != 0)
        .collect();
    assert_eq!(on_host, [false, false, true, false, false]);
}

#[test]
fn pins_fix_their_whole_group() {
    let mut builder = Builder::new();
    let a = builder.on("a", "Any", &[], "/gpu:0");
    let b = builder.with("b", "Any", &[], "", "a");
    let c = builder.node("c", "CpuOnly", &[]);
    let graph = builder.finish();
    let pinned = PlacementOptions::default().with_pin(b, DeviceId(CPU1));
    let error = candidates(&graph, &pinned).unwrap_err().to_string();
    assert!(
        error.contains("CPU:1") && error.contains("GPU:0"),
        "{error}"
    );
    let pinned = PlacementOptions::default().with_pin(a, DeviceId(GPU1));
    let found = candidates(&graph, &pinned).unwrap();
    assert_eq!(
        found.of_node(b),
        [GPU1],
        "a pin takes precedence over the request"
    );
    // The placer decides pinned nodes in their turn, and generators of their groups after all other
    // nodes.
    assert_eq!(found.nodes().pinned, [GPU1, u32::MAX, u32::MAX]);

    for (node, device, reason) in [
        (c, GPU0, "no kernel there"),
        (c, 17, "no device of this id"),
        (NodeId(99), CPU0, "no node of this id"),
    ] {
        let options = PlacementOptions::default().with_pin(node, DeviceId(device));
        let error = candidates(&graph, &options).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn every_rule_of_the_check_rejects_and_accepts() {
    let mut builder = Builder::new();
    builder.node("cpu", "CpuOnly", &[]);
    let a = builder.node("a", "Any", &[]);
    builder.with("b", "Any", &[], "", "a");
    let pinned = builder.node("pinned", "Any", &[a]);
    builder.work("heavy", &[], 0.0, 600);
    builder.work("heavy too", &[], 0.0, 600);
    let graph = builder.finish();
    let legal = CandidatesBuilder::new(&graph, &devices())
        .with_cost_ns(NodeId(0), DeviceId(GPU0), f64::INFINITY)
        .with_cost_ns(NodeId(0), DeviceId(GPU1), f64::INFINITY)
        .with_colocation(NodeId(1), NodeId(2))
        .with_pin(pinned, DeviceId(GPU1))
        .build()
        .unwrap();
    let good = [CPU0, GPU0, GPU0, GPU1, CPU0, CPU1];
    assert_eq!(check(&legal, propose(&good)).unwrap().devices(), good);
    let rows: [(&[u32], &str, u32, &str); 6] = [
        (&[CPU0; 3], "length", 0, "3 entries"),
        (&[CPU0, GPU0, 99, GPU1, CPU0, CPU1], "device", 2, "`b`"),
        (
            &[GPU0, GPU0, GPU0, GPU1, CPU0, CPU1],
            "candidate",
            0,
            "candidates are",
        ),
        (&[CPU0, GPU0, GPU0, GPU0, CPU0, CPU1], "pinned", 3, "GPU:1"),
        (&[CPU0, GPU0, CPU0, GPU1, CPU0, CPU1], "group", 2, "`a`"),
        (
            &[CPU0, GPU0, GPU0, GPU1, CPU0, CPU0],
            "memory",
            5,
            "state 1.2 KiB, one run 300 B",
        ),
    ];
    for (devices, rule, node, fragment) in rows {
        let violation = check(&legal, propose(devices)).unwrap_err();
        assert_eq!(
            (violation.rule(), violation.node().0),
            (rule, node),
            "{violation}"
        );
        assert!(violation.to_string().contains(fragment), "{violation}");
    }
    let with_queue = |queue: u32| Proposal {
        queues: Some(vec![0, 0, 0, 0, queue, 0]),
        ..propose(&good)
    };
    assert!(check(&legal, with_queue(1)).is_ok());
    let violation = check(&legal, with_queue(2)).unwrap_err();
    assert_eq!((violation.rule(), violation.node().0), ("queue", 4));
}

#[test]
fn rules_are_tried_in_their_order_not_in_node_order() {
    let mut builder = Builder::new();
    builder.node("first", "CpuOnly", &[]);
    builder.node("second", "Any", &[]);
    let found = candidates(&builder.finish(), &PlacementOptions::default()).unwrap();
    let violation = check(&found, propose(&[GPU0, 99])).unwrap_err();
    assert_eq!((violation.rule(), violation.node()), ("device", NodeId(1)));
}

#[test]
fn columns_beside_the_devices_are_checked_too() {
    let mut builder = Builder::new();
    builder.node("n", "Any", &[]);
    let found = candidates(&builder.finish(), &PlacementOptions::default()).unwrap();
    let with = |start_order: Option<Vec<i32>>, queues: Option<Vec<u32>>| {
        let proposal = Proposal {
            start_order,
            queues,
            ..propose(&[GPU0])
        };
        check(&found, proposal).map(|placement| placement.queues().map(<[u32]>::to_vec))
    };
    assert_eq!(with(Some(vec![7]), Some(vec![1])), Ok(Some(vec![1])));
    assert_eq!(with(Some(vec![]), None).unwrap_err().rule(), "length");
    assert_eq!(with(None, Some(vec![0, 0])).unwrap_err().rule(), "length");
    assert_eq!(with(None, Some(vec![2])).unwrap_err().rule(), "queue");
}
