//! Candidates that an app states: costs, links, executions and memories.

use std::panic;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use placewright::candidates::CandidatesBuilder;
use placewright::candidates::CandidatesError;
use placewright::candidates::PlacementOptions;
use placewright::candidates::enumerate;
use placewright::device::DeviceRates;
use placewright::device::DeviceSet;
use placewright::device::HostLink;
use placewright::device::LinkRates;
use placewright::graph::AttrSet;
use placewright::graph::GraphAssembler;
use placewright::graph::Input;
use placewright::graph::NodeId;
use placewright::graph::NodeSpec;
use placewright::graph::Output;
use placewright::graph::Work;
use placewright::names::DeviceId;
use placewright::placement::Evaluator;
use placewright::placement::check;
use placewright::tensor::DType;
use placewright::tensor::PartialShape;

use crate::fakes::FakeDevice;

use super::Builder;
use super::CPU0;
use super::CPU1;
use super::GPU0;
use super::TASK;
use super::devices;
use super::kernels;
use super::propose;

#[test]
fn shared_memory_is_one_capacity() {
    let mut builder = Builder::new();
    builder.work("a", &[], 0.0, 600);
    builder.work("b", &[], 0.0, 600);
    let graph = builder.finish();
    let apart = CandidatesBuilder::new(&graph, &devices());
    let shared = apart
        .clone()
        .with_shared_memory(&[DeviceId(CPU0), DeviceId(CPU1)]);
    assert!(check(&apart.build().unwrap(), propose(&[CPU0, CPU1])).is_ok());
    let shared = shared.build().unwrap();
    let violation = check(&shared, propose(&[CPU0, CPU1])).unwrap_err();
    assert_eq!(violation.rule(), "memory");
    assert!(check(&shared, propose(&[CPU0, GPU0])).is_ok());
}

#[test]
fn stated_costs_must_be_durations() {
    let mut builder = Builder::new();
    let node = builder.node("n", "Any", &[]);
    let graph = builder.finish();
    let with = |costs: [f64; 4]| {
        let builder = CandidatesBuilder::new(&graph, &devices());
        builder.with_costs_ns(node, &costs).build()
    };
    let inf = f64::INFINITY;
    let found = with([1.0, inf, 2.0, inf]).unwrap();
    assert_eq!(found.of_node(node), [GPU0, CPU0]);
    assert_eq!(found.cost_ns(node, DeviceId(CPU1)), inf);
    assert!(matches!(
        with([1.0, -1.0, 1.0, 1.0]),
        Err(CandidatesError::BadCost { .. })
    ));
    assert!(matches!(
        with([1.0, f64::NAN, 1.0, 1.0]),
        Err(CandidatesError::BadCost { .. })
    ));
    assert!(matches!(
        with([inf; 4]),
        Err(CandidatesError::NoDeviceAtAnyCost { .. })
    ));
}

#[test]
fn stated_executions_multiply_costs_and_must_be_numbers() {
    let mut builder = Builder::new();
    let node = builder.work("n", &[], 100.0, 0);
    let graph = builder.finish();
    let with = |executions: f64| {
        let builder = CandidatesBuilder::new(&graph, &devices());
        builder.with_executions(node, executions).build()
    };
    let makespan_ns = |executions: f64| {
        let found = with(executions).unwrap();
        let mut plan = Evaluator::new(&found);
        plan.set_devices(&[CPU0]);
        plan.makespan_ns()
    };
    assert_eq!([2.5, 0.0].map(makespan_ns), [250.0, 0.0]);
    for executions in [-1.0, f64::NAN, f64::INFINITY] {
        let error = with(executions).unwrap_err();
        assert!(matches!(error, CandidatesError::BadExecutions { .. }));
        assert!(error.to_string().contains("`n`"), "{error}");
    }
}

#[test]
fn stated_links_replace_those_of_the_devices_and_must_be_durations() {
    let mut builder = Builder::new();
    let a = builder.work("a", &[], 100.0, 0);
    builder.full("b", "Any", &[a], "", &[], Work::default());
    let graph = builder.finish();
    let with = |latency_ns: f64, ns_per_byte: f64| {
        let link = LinkRates {
            latency_ns,
            ns_per_byte,
        };
        let builder = CandidatesBuilder::new(&graph, &devices());
        builder
            .with_link(DeviceId(CPU0), DeviceId(CPU1), link)
            .build()
    };
    let makespan_ns = |latency_ns: f64, ns_per_byte: f64, devices: [u32; 2]| {
        let found = with(latency_ns, ns_per_byte).unwrap();
        let mut plan = Evaluator::new(&found);
        plan.set_devices(&devices);
        plan.makespan_ns()
    };
    assert_eq!(makespan_ns(7.0, 2.0, [CPU0, CPU1]), 100.0 + 7.0 + 200.0);
    assert_eq!(makespan_ns(7.0, 2.0, [CPU1, CPU0]), 100.0 + 5.0);
    let inf = f64::INFINITY;
    assert_eq!(makespan_ns(7.0, inf, [CPU0, CPU1]), inf);
    for (latency_ns, ns_per_byte) in [(-1.0, 0.0), (0.0, -1.0), (f64::NAN, 0.0), (0.0, f64::NAN)] {
        let error = with(latency_ns, ns_per_byte).unwrap_err();
        assert!(matches!(error, CandidatesError::BadLink { .. }), "{error}");
    }
}

#[test]
fn zero_bytes_over_a_link_without_rate_are_free() {
    let mut assembler = GraphAssembler::new("empty tensor");
    let output = Output {
        dtype: DType::F32,
        is_ref: false,
        shape: PartialShape::new(&[Some(0)]),
    };
    let mut add = |name, inputs: &[Input]| {
        let spec = NodeSpec {
            name,
            op: "Any",
            inputs,
            requested_device: "",
            attrs: AttrSet::default(),
            outputs: std::slice::from_ref(&output),
            stateful: false,
            work: Work::default(),
        };
        assembler.add_node(&spec).unwrap()
    };
    let a = add("a", &[]);
    add("b", &[Input::Data { node: a, slot: 0 }]);
    let link = LinkRates {
        latency_ns: 3.0,
        ns_per_byte: f64::INFINITY,
    };
    let found = CandidatesBuilder::new(&Arc::new(assembler.finish()), &devices())
        .with_link(DeviceId(CPU0), DeviceId(CPU1), link)
        .build()
        .unwrap();
    let mut plan = Evaluator::new(&found);
    plan.set_devices(&[CPU0, CPU1]);
    assert_eq!(plan.makespan_ns(), 3.0);
}

#[test]
fn a_colocation_with_an_unknown_node_panics() {
    let graph = Builder::new().finish();
    let state = || {
        let _ = CandidatesBuilder::new(&graph, &devices()).with_colocation(NodeId(0), NodeId(0));
    };
    let payload = panic::catch_unwind(AssertUnwindSafe(state)).unwrap_err();
    let said = payload.downcast_ref::<String>().unwrap();
    assert!(said.contains("both nodes are in the graph"), "{said}");
}

#[test]
fn devices_with_invalid_links_are_rejected() {
    let device = |index: u32, latency_ns: f64| {
        let rates = DeviceRates {
            host_link: HostLink::same(LinkRates {
                latency_ns,
                ns_per_byte: 0.1,
            }),
            ..DeviceRates::default_cpu(1)
        };
        let name = format!("{TASK}/device:CPU:{index}");
        FakeDevice::new(&name, "CPU").with_rates(rates).shared()
    };
    let mut builder = Builder::new();
    builder.node("n", "Any", &[]);
    let graph = builder.finish();
    for (latency_ns, is_duration) in [(7.0, true), (f64::NAN, false), (-1.0, false)] {
        let set = Arc::new(DeviceSet::new([device(0, 1.0), device(1, latency_ns)]));
        let stated = CandidatesBuilder::new(&graph, &set).build();
        let listed = enumerate(&graph, &set, &kernels(), &PlacementOptions::default());
        for found in [stated, listed] {
            match found {
                Ok(_) => assert!(is_duration),
                Err(error) => {
                    let text = error.to_string();
                    let is_link = matches!(error, CandidatesError::BadLink { .. });
                    assert!(!is_duration && is_link && text.contains("CPU:1"), "{text}");
                }
            }
        }
    }
}
