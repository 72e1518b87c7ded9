//! The examples of services that execute elsewhere: one graph placed as a whole, and one placed
//! task by task. Compiles and passes without default features.

#[path = "../../host/examples/own_dag.rs"]
mod example;
#[path = "../../host/examples/online.rs"]
mod online;

use std::sync::Arc;

use placewright::candidates::Candidates;
use placewright::candidates::CandidatesBuilder;
use placewright::candidates::CandidatesError;
use placewright::candidates::synthetic;
use placewright::cost::CostClasses;
use placewright::graph::NodeId;
use placewright::names::DeviceId;

const CPU: DeviceId = DeviceId(0);
const GPU_0: DeviceId = DeviceId(1);
const GPU_1: DeviceId = DeviceId(2);

/// Four nodes; on a CPU and two GPUs with different rates.
fn builder() -> CandidatesBuilder {
    let devices = Arc::new(synthetic::devices(3));
    CandidatesBuilder::new(&synthetic::graph(4, 1), &devices)
}

fn of_node(candidates: &Candidates, node: NodeId) -> Vec<DeviceId> {
    let devices = candidates.of_node(node).iter();
    devices.map(|&device| DeviceId(device)).collect()
}

#[test]
fn nodes_may_be_restricted_to_devices() {
    let [first, second, third, last] = [0, 1, 2, 3].map(NodeId);
    let candidates = builder()
        .with_allowed_devices(&[first, second], &[CPU])
        .with_allowed_devices(&[second, third], &[GPU_1, CPU])
        .build()
        .unwrap();
    assert_eq!(of_node(&candidates, first), [CPU]);
    // The later restriction replaces the earlier one; preference is that of the device types.
    assert_eq!(of_node(&candidates, second), [GPU_1, CPU]);
    assert_eq!(of_node(&candidates, third), [GPU_1, CPU]);
    assert_eq!(of_node(&candidates, last), [GPU_0, GPU_1, CPU]);

    let group = builder()
        .with_allowed_devices(&[first], &[CPU, GPU_0])
        .with_allowed_devices(&[second], &[GPU_0, GPU_1])
        .with_colocation(first, second);
    let candidates = group.build().unwrap();
    assert_eq!(of_node(&candidates, first), [GPU_0]);
    assert_eq!(of_node(&candidates, second), [GPU_0]);
}

#[test]
fn restrictions_that_leave_no_device_are_errors() {
    let [first, second] = [0, 1].map(NodeId);
    let apart = builder()
        .with_allowed_devices(&[first], &[CPU])
        .with_allowed_devices(&[second], &[GPU_0])
        .with_colocation(first, second);
    let cannot_run = builder()
        .with_allowed_devices(&[first], &[CPU])
        .with_cost_ns(first, CPU, f64::INFINITY);
    let none = builder().with_allowed_devices(&[first], &[]);
    for restricted in [apart, cannot_run, none] {
        let error = restricted.build().unwrap_err();
        let is_expected = matches!(error, CandidatesError::NoAllowedDevice { .. });
        assert!(is_expected, "{error}");
    }
    let pinned = builder()
        .with_allowed_devices(&[first], &[CPU])
        .with_pin(first, GPU_0);
    let error = pinned.build().unwrap_err();
    let is_expected = matches!(error, CandidatesError::PinNotLegal { .. });
    assert!(is_expected, "{error}");
}

#[test]
fn devices_of_one_class_cost_the_same() {
    let devices = Arc::new(synthetic::devices(6));
    let graph = synthetic::graph(4, 1);
    let classes = CostClasses::of(&devices);
    let node = NodeId(2);
    // Device 5 has the rates of the first GPU, but another link.
    let same = DeviceId(5);
    let candidates = CandidatesBuilder::by_class(&graph, &devices, classes)
        .with_cost_ns(node, same, 123.0)
        .with_priority(node, -4)
        .build()
        .unwrap();
    assert_eq!(candidates.devices().n_cost_classes, 4);
    assert_eq!(candidates.cost_ns(node, GPU_0), 123.0);
    assert_eq!(candidates.cost_ns(node, same), 123.0);
    assert_ne!(candidates.cost_ns(node, GPU_1), 123.0);
    assert_eq!(candidates.nodes().user_priority, [0, 0, -4, 0]);
}

#[test]
fn a_service_places_its_own_graph_on_its_own_devices() {
    let outcome = example::run().unwrap();
    assert_eq!(outcome.devices.len(), 16);
    let n_tasks: u64 = outcome.devices.iter().map(|row| row.n_tasks).sum();
    assert_eq!(n_tasks, 5_000);
    // Training needs an accelerator, and there are more transforms than accelerators alone can do.
    let n_used = outcome.devices.iter().filter(|row| row.n_tasks > 0).count();
    assert!(n_used > 4, "{n_used} devices have tasks");
    for row in &outcome.devices {
        assert!(row.work_ns.is_finite(), "{} runs what it cannot", row.name);
        assert!(row.work_ns <= outcome.expected_ns, "{}", row.name);
    }
    assert!(outcome.n_transfers > 0 && outcome.transfer_bytes > 0);
    let (expected_ns, single_ns) = (outcome.expected_ns, outcome.single_device_ns);
    assert!(
        single_ns.is_finite() && expected_ns < single_ns / 4.0,
        "{expected_ns} against {single_ns}"
    );
    assert!(!outcome.elapsed.is_zero());
}

#[test]
fn an_event_loop_places_tasks_as_they_become_ready_and_survives_a_lost_device() {
    let outcome = online::run().unwrap();
    assert_eq!(outcome.n_tasks.iter().sum::<usize>(), 200);
    assert!(outcome.n_tasks.iter().all(|&n_tasks| n_tasks > 0));
    // It was lost during its work, and received none afterwards.
    assert!(outcome.n_restarted > 0);
    assert!(outcome.n_overruled > 0);
    assert_eq!(outcome.n_started_on_lost, 0);
    let others = [0, 1, 3].map(|worker| outcome.n_tasks[worker]);
    assert!(others.iter().all(|&n_tasks| n_tasks > outcome.n_tasks[2]));
    assert!(outcome.finished_ns > 60_000_000);
}
