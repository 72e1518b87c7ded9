//! The identity of a placement: equal inputs have equal identities, wherever they come from, and
//! each input changes only its own hash.

use std::sync::Arc;

use placewright::candidates::Argument;
use placewright::candidates::Candidates;
use placewright::candidates::CandidatesBuilder;
use placewright::candidates::OpArguments;
use placewright::candidates::PlacementOptions;
use placewright::candidates::enumerate;
use placewright::cost::CostModel;
use placewright::device::Device;
use placewright::device::DeviceRates;
use placewright::device::DeviceSet;
use placewright::device::KernelDef;
use placewright::device::KernelRegistry;
use placewright::graph::AttrSet;
use placewright::graph::AttrValue;
use placewright::graph::Function;
use placewright::graph::Graph;
use placewright::graph::GraphAssembler;
use placewright::graph::Input;
use placewright::graph::NodeId;
use placewright::graph::NodeSpec;
use placewright::graph::Output;
use placewright::graph::Work;
use placewright::names::DeviceId;
use placewright::names::DeviceName;
use placewright::placement::Digest;
use placewright::placement::PlacementIdentity;
use placewright::placement::SavedPlacement;
use placewright::placement::check;
use placewright::policy::PlaceOptions;
use placewright::policy::PolicyEngine;
use placewright::policy::PolicyLimits;
use placewright::policy::PolicyRequest;
use placewright::policy::ShippedPolicy;
use placewright::policy::place_natively;
use placewright::policy::place_with_ladder;
use placewright::tensor::DType;
use placewright::tensor::Literal;
use placewright::tensor::LiteralData;
use placewright::tensor::PartialShape;
use proptest::prelude::*;

use super::TASK;
use crate::fakes::FakeDevice;
use crate::sample;

/// A node of a graph under construction.
#[derive(Debug, Clone)]
struct Node {
    name: String,
    op: &'static str,
    inputs: Vec<u32>,
    controls: Vec<u32>,
    requested: &'static str,
    attrs: Vec<(&'static str, AttrValue)>,
    dtype: DType,
    size: usize,
    stateful: bool,
    work: Work,
}

/// All inputs of candidates.
#[derive(Debug, Clone)]
struct Inputs {
    graph_name: &'static str,
    nodes: Vec<Node>,
    functions: Vec<&'static str>,
    devices: Vec<Fake>,
    priorities: Vec<(&'static str, i32)>,
    client: Option<u32>,
    kernels: Vec<KernelDef>,
    options: PlacementOptions,
}

#[derive(Debug, Clone)]
struct Fake {
    name: String,
    device_type: &'static str,
    description: &'static str,
    capacity_bytes: u64,
    rates: DeviceRates,
}

fn constant(value: u8) -> AttrValue {
    let data = LiteralData::Dense(Arc::new(vec![value; 8]));
    AttrValue::Tensor(Arc::new(
        Literal::new(DType::F32, [2].into(), data).unwrap(),
    ))
}

fn inputs() -> Inputs {
    let node = |name: &str, op, inputs: &[u32]| Node {
        name: name.to_owned(),
        op,
        inputs: inputs.to_vec(),
        controls: Vec::new(),
        requested: "",
        attrs: vec![("T", DType::F32.into()), ("size", AttrValue::Int(2))],
        dtype: DType::F32,
        size: 25,
        stateful: false,
        work: Work {
            flops: 1e3,
            ..Work::default()
        },
    };
    let mut nodes = vec![
        node("weights", "Any", &[]),
        node("x", "Any", &[]),
        node("product", "Any", &[0, 1]),
        node("cpu", "CpuOnly", &[2]),
        node("end", "Any", &[2, 3]),
    ];
    nodes[0].attrs.push(("value", constant(1)));
    nodes[1].attrs.push(("value", constant(2)));
    nodes[4].requested = "/device:CPU:*";
    nodes[4].controls = vec![0];
    let device = |device_type, index| Fake {
        name: format!("{TASK}/device:{device_type}:{index}"),
        device_type,
        description: "",
        capacity_bytes: 1 << 20,
        rates: DeviceRates::default_cpu(1),
    };
    let kernel = |op, device_type| KernelDef::new(op, device_type);
    Inputs {
        graph_name: "test",
        nodes,
        functions: vec!["f", "g"],
        devices: vec![device("CPU", 0), device("CPU", 1), device("GPU", 0)],
        priorities: vec![("CPU", 60), ("GPU", 210)],
        client: Some(0),
        kernels: vec![
            kernel("Any", "CPU").with_types("T", &[DType::F32, DType::F64]),
            kernel("Any", "GPU").with_types("T", &[DType::F32]),
            kernel("CpuOnly", "CPU"),
        ],
        options: PlacementOptions::default()
            .with_pin(NodeId(1), DeviceId(1))
            .with_pin(NodeId(0), DeviceId(2)),
    }
}

impl Inputs {
    fn graph(&self) -> Option<Arc<Graph>> {
        let mut assembler = GraphAssembler::new(self.graph_name);
        for node in &self.nodes {
            let data = node.inputs.iter().map(|&node| Input::Data {
                node: NodeId(node),
                slot: 0,
            });
            let controls = node
                .controls
                .iter()
                .map(|&node| Input::Control(NodeId(node)));
            let inputs: Vec<Input> = data.chain(controls).collect();
            let attrs = node.attrs.iter();
            let output = Output {
                dtype: node.dtype,
                is_ref: false,
                shape: PartialShape::new(&[Some(node.size)]),
            };
            let spec = NodeSpec {
                name: &node.name,
                op: node.op,
                inputs: &inputs,
                requested_device: node.requested,
                attrs: AttrSet::new(attrs.map(|(name, value)| ((*name).into(), value.clone()))),
                outputs: &[output],
                stateful: node.stateful,
                work: node.work,
            };
            assembler.add_node(&spec).ok()?;
        }
        for &name in &self.functions {
            assembler.add_function(Function {
                name: name.into(),
                args: Vec::new(),
                results: Vec::new(),
                nodes: Vec::new(),
                returns: Vec::new(),
                control_returns: Vec::new(),
                attrs: AttrSet::default(),
                stateful: false,
            });
        }
        Some(Arc::new(assembler.finish()))
    }

    fn devices(&self) -> Arc<DeviceSet> {
        let devices = self.devices.iter().map(|fake| -> Arc<dyn Device> {
            FakeDevice::new(&fake.name, fake.device_type)
                .with_description(fake.description)
                .with_capacity_bytes(fake.capacity_bytes)
                .with_rates(fake.rates)
                .shared()
        });
        let mut set = DeviceSet::new(devices).with_type_priorities(self.priorities.clone());
        if let Some(client) = self.client {
            set = set.with_client_device(DeviceId(client));
        }
        Arc::new(set)
    }

    fn try_candidates(&self) -> Option<Candidates> {
        let mut kernels = KernelRegistry::empty();
        for kernel in &self.kernels {
            kernels.register(kernel.clone());
        }
        enumerate(&self.graph()?, &self.devices(), &kernels, &self.options).ok()
    }

    fn candidates(&self) -> Candidates {
        self.try_candidates().expect("it is placeable")
    }

    fn identity(&self) -> PlacementIdentity {
        PlacementIdentity::of(&self.candidates())
    }
}

#[test]
fn equal_inputs_have_one_identity_whatever_their_order() {
    let expected = inputs().identity();
    // New devices have new incarnations, and new constants have other addresses.
    assert_eq!(inputs().identity(), expected);
    let mut other = inputs();
    for node in &mut other.nodes {
        node.attrs.reverse();
    }
    other.functions.reverse();
    other.kernels.reverse();
    other.priorities.reverse();
    other.options.pins.reverse();
    assert_eq!(other.identity(), expected);
    let by_name = |node: u32, device: usize| (NodeId(node), inputs().devices[device].name.clone());
    other.options.pins = vec![(NodeId(1), DeviceId(1)), (NodeId(1), DeviceId(1))];
    other.options.assigned_devices = vec![by_name(0, 2)];
    assert_eq!(
        other.identity(),
        expected,
        "the same pins, spelled differently"
    );
    other.options.pins.clear();
    other.options.assigned_devices = vec![by_name(0, 2), by_name(1, 1)];
    assert_eq!(other.identity(), expected);
}

#[test]
fn constants_count_by_type_and_shape_whether_shared_or_not() {
    let expected = inputs().identity();
    let mut other = inputs();
    other.nodes[0].attrs[2].1 = constant(9);
    assert_eq!(other.identity(), expected, "other weights are placed alike");
    let shared = constant(3);
    other.nodes[0].attrs[2].1 = shared.clone();
    other.nodes[1].attrs[2].1 = shared;
    assert_eq!(other.identity(), expected, "one constant or two equal ones");
    let data = LiteralData::Dense(Arc::new(vec![0u8; 12]));
    let larger = Literal::new(DType::F32, [3].into(), data).unwrap();
    other.nodes[0].attrs[2].1 = AttrValue::Tensor(Arc::new(larger));
    assert_ne!(other.identity().graph, expected.graph);
}

/// The host-memory arguments of `Any` besides its kernels.
#[derive(Debug)]
struct Arguments(&'static str);

impl OpArguments for Arguments {
    fn is_known(&self, op: &str) -> bool {
        op == "Any"
    }

    fn input(&self, op: &str, _: &AttrSet, _: usize) -> Option<Argument<'_>> {
        let argument = Argument {
            name: self.0,
            is_ref: false,
        };
        (op == "Any").then_some(argument)
    }

    fn output(&self, _: &str, _: &AttrSet, _: usize) -> Option<Argument<'_>> {
        None
    }
}

/// A change of one input, and the hash that it must change.
type Change = (&'static str, &'static str, fn(&mut Inputs));

const CHANGES: &[Change] = &[
    ("graph", "name of a node", |i| i.nodes[4].name.push('2')),
    ("graph", "op", |i| i.nodes[4].op = "CpuOnly"),
    ("graph", "value of an attribute", |i| {
        i.nodes[2].attrs[1].1 = AttrValue::Int(3)
    }),
    ("graph", "name of an attribute", |i| {
        i.nodes[2].attrs[1].0 = "sizes"
    }),
    ("graph", "kind of an attribute", |i| {
        i.nodes[2].attrs[1].1 = AttrValue::Bool(true)
    }),
    ("graph", "one attribute more", |i| {
        i.nodes[2].attrs.push(("more", AttrValue::Float(0.5)));
    }),
    ("graph", "order of inputs", |i| i.nodes[2].inputs.reverse()),
    ("graph", "another input", |i| i.nodes[4].inputs[1] = 1),
    ("graph", "a control input less", |i| {
        i.nodes[4].controls.clear()
    }),
    ("graph", "request", |i| {
        i.nodes[4].requested = "/device:CPU:0"
    }),
    ("graph", "request of another node", |i| {
        i.nodes[3].requested = "/device:CPU:*"
    }),
    ("graph", "element type", |i| i.nodes[4].dtype = DType::F64),
    ("graph", "shape", |i| i.nodes[4].size = 26),
    ("graph", "statefulness", |i| i.nodes[4].stateful = true),
    ("graph", "flops", |i| i.nodes[4].work.flops = 1e4),
    ("graph", "traffic", |i| i.nodes[4].work.traffic_bytes = 1),
    ("graph", "resident bytes", |i| {
        i.nodes[4].work.resident_bytes = 1
    }),
    ("graph", "workspace", |i| {
        i.nodes[4].work.workspace_bytes = 1
    }),
    ("graph", "order of nodes", |i| {
        let name = std::mem::replace(&mut i.nodes[3].name, "end".to_owned());
        i.nodes[4].name = name;
    }),
    ("graph", "a function less", |i| {
        i.functions.pop();
    }),
    ("graph", "a kernel's types", |i| {
        i.kernels[0] = KernelDef::new("Any", "CPU").with_types("T", &[DType::F32]);
    }),
    ("graph", "a kernel's priority", |i| {
        i.kernels[0].priority = 1
    }),
    ("graph", "a kernel's label", |i| {
        let label = KernelDef::new("Any", "CPU").with_label("special");
        i.kernels.push(label);
    }),
    ("graph", "a kernel's host memory", |i| {
        i.kernels[1].host_memory_args.push("value".to_owned());
    }),
    ("graph", "what is known of arguments", |i| {
        i.options.op_arguments = Some(Arc::new(Arguments("value")));
    }),
    ("devices", "one device more", |i| {
        let mut more = i.devices[2].clone();
        more.name = format!("{TASK}/device:GPU:1");
        i.devices.push(more);
    }),
    ("devices", "name", |i| {
        i.devices[0].name = format!("{TASK}/device:CPU:7")
    }),
    ("devices", "description", |i| {
        i.devices[2].description = "name: T4"
    }),
    ("devices", "capacity", |i| i.devices[0].capacity_bytes += 1),
    ("devices", "rate", |i| i.devices[2].rates.flops_per_s *= 2.0),
    ("devices", "bandwidth", |i| {
        i.devices[2].rates.memory_bytes_per_s *= 2.0
    }),
    ("devices", "launch", |i| i.devices[2].rates.launch_ns += 1.0),
    ("devices", "queues", |i| i.devices[2].rates.queues = 3),
    ("devices", "link", |i| {
        i.devices[2].rates.host_link.to_host.latency_ns += 1.0
    }),
    ("devices", "calibration", |i| {
        i.devices[2].rates.is_calibrated = true
    }),
    ("devices", "priority of a type", |i| i.priorities[1].1 = 61),
    ("devices", "client", |i| i.client = Some(1)),
    ("options", "soft placement", |i| {
        i.options.allow_soft_placement = true
    }),
    ("options", "scope", |i| {
        i.options.device_scope = DeviceName::parse_full("/job:localhost").unwrap();
    }),
    ("options", "a pin less", |i| {
        i.options.pins.pop();
    }),
    ("options", "another pin", |i| {
        i.options.pins[0].1 = DeviceId(2)
    }),
    ("options", "an assigned device", |i| {
        let name = i.devices[1].name.clone();
        i.options.assigned_devices.push((NodeId(2), name));
    }),
    ("options", "default device", |i| {
        i.options.default_local_device = Some(DeviceId(1));
    }),
    ("options", "compute efficiency", |i| {
        i.options.cost_model = CostModel::default().with_compute_efficiency(0.5);
    }),
    ("options", "memory efficiency", |i| {
        i.options.cost_model = CostModel::default().with_memory_efficiency(0.5);
    }),
];

/// Returns the hashes that differ.
fn differing(a: &PlacementIdentity, b: &PlacementIdentity) -> Vec<&'static str> {
    let all = [
        ("graph", a.graph != b.graph),
        ("devices", a.devices != b.devices),
        ("options", a.options != b.options),
    ];
    all.iter()
        .filter(|(_, differs)| *differs)
        .map(|(name, _)| *name)
        .collect()
}

#[test]
fn every_single_change_changes_only_its_hash() {
    let before = inputs().identity();
    for (hash, what, change) in CHANGES {
        let mut changed = inputs();
        change(&mut changed);
        assert_eq!(differing(&before, &changed.identity()), [*hash], "{what}");
    }
}

#[test]
fn the_name_of_a_graph_belongs_to_the_policys_inputs() {
    let (mut a, mut b) = (inputs(), inputs());
    (a.graph_name, b.graph_name) = ("a", "b");
    assert_eq!(a.identity(), b.identity());
    assert_ne!(
        asked(&a, &request(), &limits()),
        asked(&b, &request(), &limits())
    );
}

fn limits() -> PolicyLimits {
    PolicyLimits::default().with_fuel(Some(1_000_000_000))
}

fn request() -> PolicyRequest {
    PolicyRequest::new(ShippedPolicy::find("heft").unwrap()).with_strict(true)
}

/// Returns the policy's part of the identity.
fn asked(inputs: &Inputs, request: &PolicyRequest, limits: &PolicyLimits) -> Digest {
    let engine = PolicyEngine::new(limits.clone()).unwrap();
    let (_, report) = place_with_ladder(&engine, &inputs.candidates(), request).unwrap();
    report.identity.expect("no fallback")
}

#[test]
fn policy_configuration_seed_and_limits_are_the_policys_part() {
    let digest = |request: &PolicyRequest, limits: &PolicyLimits| asked(&inputs(), request, limits);
    let expected = digest(&request(), &limits());
    let options = PlaceOptions::default;
    let requests = [
        PolicyRequest::new(ShippedPolicy::find("priority").unwrap()),
        request().with_setting("insertion", "false"),
        request().with_options(options().with_seed(1)),
        request().with_options(options().with_explain_wanted(true)),
    ];
    let mut seen = vec![expected];
    seen.extend(requests.iter().map(|request| digest(request, &limits())));
    let others = [
        limits().with_fuel(Some(999_999_999)),
        limits().with_memory_bytes(1 << 28),
        limits().with_explanation_bytes(1 << 10),
        PolicyLimits::default(),
    ];
    seen.extend(others.iter().map(|limits| digest(&request(), limits)));
    let n_seen = seen.len();
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), n_seen, "all are different");
    // With fuel, deadlines are disabled.
    let later = limits().with_place_deadline(std::time::Duration::from_secs(1));
    assert_eq!(digest(&request(), &later), expected);
    assert_eq!(digest(&request().with_strict(false), &limits()), expected);
}

#[test]
fn one_identity_gives_the_same_bytes_in_every_engine_and_natively() {
    for shipped in ShippedPolicy::all() {
        let settings = sample::quick(shipped, 5_000);
        let saved = |inputs: &Inputs| {
            let engine = PolicyEngine::new(limits()).unwrap();
            let request = PolicyRequest::new(shipped).with_strict(true);
            let request = settings.iter().fold(request, |request, (key, value)| {
                request.with_setting(key, value)
            });
            let candidates = inputs.candidates();
            let (placement, report) = place_with_ladder(&engine, &candidates, &request).unwrap();
            let native =
                place_natively(shipped, &settings, &candidates, &request.options, &limits())
                    .unwrap();
            let native = check(&candidates, native.proposal).unwrap();
            let json = |placement| {
                SavedPlacement::new(placement, shipped.name(), 0, [])
                    .with_policy_digest(report.identity)
                    .to_json()
            };
            assert_eq!(json(&placement), json(&native), "{}", shipped.name());
            json(&placement)
        };
        let mut other = inputs();
        for node in &mut other.nodes {
            node.attrs.reverse();
        }
        other.kernels.reverse();
        assert_eq!(saved(&inputs()), saved(&other), "{}", shipped.name());
    }
}

#[test]
fn stated_candidates_count_as_options() {
    let (graph, devices) = (inputs().graph().unwrap(), inputs().devices());
    let stated = |change: &dyn Fn(CandidatesBuilder) -> CandidatesBuilder| {
        let builder = CandidatesBuilder::new(&graph, &devices);
        PlacementIdentity::of(&change(builder).build().unwrap())
    };
    let before = stated(&|builder| builder);
    assert_eq!(stated(&|builder| builder), before);
    let changes: [(&str, &dyn Fn(CandidatesBuilder) -> CandidatesBuilder); 7] = [
        ("options", &|builder| {
            builder.with_cost_ns(NodeId(0), DeviceId(0), 7.0)
        }),
        ("options", &|builder| {
            builder.with_colocation(NodeId(0), NodeId(1))
        }),
        ("options", &|builder| {
            builder.with_pin(NodeId(0), DeviceId(1))
        }),
        ("options", &|builder| {
            builder.with_executions(NodeId(0), 2.0)
        }),
        ("devices", &|builder| {
            builder.with_memory_capacity_bytes(DeviceId(0), 5)
        }),
        ("devices", &|builder| {
            builder.with_shared_chip(&[DeviceId(0), DeviceId(1)])
        }),
        ("devices", &|builder| {
            builder.with_shared_memory(&[DeviceId(0), DeviceId(1)])
        }),
    ];
    for (hash, change) in changes {
        assert_eq!(differing(&before, &stated(change)), [hash]);
    }
    assert_ne!(before.options, inputs().identity().options);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// After any earlier change, one more change changes only its hash.
    #[test]
    fn changes_do_not_hide_each_other(first in 0..CHANGES.len(), second in 0..CHANGES.len()) {
        let change = |which: &[usize]| {
            let mut changed = inputs();
            for &index in which {
                (CHANGES[index].2)(&mut changed);
            }
            changed
        };
        // Some pairs are not a valid graph, or cannot be placed.
        let both = change(&[first, second]).try_candidates();
        prop_assume!(first != second && both.is_some());
        let one = change(&[first]).identity();
        let both = PlacementIdentity::of(&both.unwrap());
        let differing = differing(&one, &both);
        prop_assert!(
            differing == [CHANGES[second].0] || differing.is_empty(),
            "{} after {}: {differing:?}", CHANGES[second].1, CHANGES[first].1
        );
    }
}
