//! Tests of what a fleet expects of devices, and of the rules that its answers keep.

use super::*;
use crate::log::Log;
use crate::testing::GraphBuilder;
use crate::testing::TestDevices;
use crate::testing::cluster;

/// A fleet with two runs of a graph.
fn begun(graph: GraphBuilder, devices: &TestDevices) -> Fleet {
    let graph = graph.build();
    let log = Log::silent();
    let (graph, devices) = (Graph::new(&graph, &log), DeviceSet::new(devices, &log));
    let mut fleet = Fleet::default();
    for run in [1, 2] {
        fleet.begin(run, &graph, &devices);
    }
    fleet
}

/// A graph of nodes that take 100 ns.
fn nodes(n: u32, devices: &TestDevices) -> GraphBuilder {
    let mut graph = GraphBuilder::new(devices);
    for _ in 0..n {
        graph.node("", &[100.0]);
    }
    graph
}

fn task(node: u32, now_ns: f64) -> ReadyTask {
    ReadyTask {
        run: 1,
        node,
        cost_row: node,
        candidate_set: 0,
        input_bytes: 0,
        home: NONE,
        now_ns,
    }
}

fn completion(node: u32, device: u32, finished_ns: f64) -> Completion {
    Completion {
        run: 1,
        node,
        device,
        started_ns: 0.0,
        finished_ns,
    }
}

fn change(device: u32, is_up: bool) -> DeviceChange {
    DeviceChange {
        device,
        is_up,
        memory_free_bytes: 0,
        load: 0.0,
    }
}

/// The answer of a rule that takes the first of the devices that are expected to be free first.
fn pick(fleet: &mut Fleet, task: &ReadyTask) -> Option<u32> {
    fleet.pick(task, |bid| bid.wait_ns)
}

/// Queues a task on a device.
fn queue(fleet: &mut Fleet, task: &ReadyTask, device: u32) {
    let picked = fleet.pick(task, |bid| bid.device != device);
    assert_eq!(picked, Some(device));
}

/// What a task finds, by device. It is queued on the last one.
fn waits(fleet: &mut Fleet, task: &ReadyTask) -> Vec<f64> {
    let mut waits = Vec::new();
    fleet.pick(task, |bid| {
        waits.push(bid.wait_ns);
        -f64::from(bid.device)
    });
    waits
}

#[test]
fn members_of_a_group_follow_the_first_and_do_not_leave_a_device_that_is_down() {
    let devices = cluster("2xA");
    let mut graph = nodes(4, &devices);
    graph.group(&[0, 2, 3]);
    let mut fleet = begun(graph, &devices);
    queue(&mut fleet, &task(0, 0.0), 1);
    queue(&mut fleet, &task(1, 0.0), 1);
    assert_eq!(pick(&mut fleet, &task(2, 0.0)), Some(1));
    fleet.observe(&[], &[change(1, false)]);
    assert_eq!(pick(&mut fleet, &task(3, 0.0)), None);
    assert_eq!(pick(&mut fleet, &task(1, 0.0)), Some(0), "it is alone");
}

#[test]
fn pins_decide_for_their_group() {
    let devices = cluster("3xA");
    let mut graph = nodes(2, &devices);
    graph.group(&[0, 1]);
    graph.pin(1, 2);
    let mut fleet = begun(graph, &devices);
    assert_eq!(pick(&mut fleet, &task(0, 0.0)), Some(2));
}

#[test]
fn full_memories_are_passed_over_unless_all_are_full() {
    let devices = cluster("2xA").with_memory(0, 100).with_memory(1, 200);
    let mut graph = nodes(4, &devices);
    for node in 0..4 {
        let weights = graph.constant("", 60);
        let reader = graph.node("", &[1.0]);
        graph.edge(weights, reader, 60);
        graph.resident_bytes(node, 20);
    }
    let readers = [5, 7, 9, 11];
    let mut fleet = begun(graph, &devices);
    let of_reader = |(at, &node): (u32, &u32)| pick(&mut fleet, &task(node, 1e3 * f64::from(at)));
    let answers: Vec<_> = (0..).zip(&readers).map(of_reader).collect();
    // One fits on the first device, three on the second.
    assert_eq!(answers, [Some(0), Some(1), Some(1), Some(1)]);
    assert_eq!(pick(&mut fleet, &task(0, 1e4)), Some(0), "20 bytes fit");
    assert_eq!(pick(&mut fleet, &task(1, 2e4)), Some(0), "and 20 more");
    assert_eq!(pick(&mut fleet, &task(2, 3e4)), Some(1));
    assert_eq!(pick(&mut fleet, &task(3, 4e4)), Some(0), "all are full");
}

#[test]
fn devices_of_one_chip_are_one_worker() {
    let mut devices = cluster("3xA");
    devices.chips = vec![7, 7, 9];
    let mut fleet = begun(nodes(2, &devices), &devices);
    queue(&mut fleet, &task(0, 0.0), 1);
    assert_eq!(waits(&mut fleet, &task(1, 30.0)), [70.0, 70.0, 0.0]);
}

#[test]
fn late_and_early_completions_move_the_expected_end() {
    let devices = cluster("2xA");
    for (finished_ns, expected) in [(60.0, 80.0), (100.0, 120.0), (300.0, 320.0)] {
        let mut fleet = begun(nodes(3, &devices), &devices);
        queue(&mut fleet, &task(0, 0.0), 0);
        queue(&mut fleet, &task(1, 0.0), 0);
        fleet.observe(&[completion(0, 0, finished_ns)], &[]);
        let now_ns = finished_ns - 20.0; // a report may be ahead of the next question
        let found = waits(&mut fleet, &task(2, now_ns));
        assert_eq!(found, [expected - finished_ns + 100.0, 0.0]);
    }
}

#[test]
fn a_completion_elsewhere_frees_the_device_that_was_picked() {
    let devices = cluster("2xA");
    let mut fleet = begun(nodes(2, &devices), &devices);
    queue(&mut fleet, &task(0, 0.0), 0);
    // The host moved it. The first device has nothing to do, but nothing has ended there either.
    fleet.observe(&[completion(0, 1, 90.0)], &[]);
    let mut lengths = Vec::new();
    fleet.pick(&task(1, 90.0), |bid| {
        lengths.push(bid.n_queued);
        bid.wait_ns
    });
    assert_eq!(lengths, [0, 0]);
}

#[test]
fn inputs_on_their_way_keep_a_device_busy() {
    let devices = cluster("2xA").with_links(0.0, 1.0);
    let mut fleet = begun(nodes(3, &devices), &devices);
    queue(&mut fleet, &task(0, 0.0), 1);
    let far = ReadyTask {
        input_bytes: 500,
        home: 0,
        ..task(1, 0.0)
    };
    // Its input arrives at 500: the device ends at 600, also when the first task has ended.
    queue(&mut fleet, &far, 1);
    fleet.observe(&[completion(0, 1, 100.0)], &[]);
    assert_eq!(waits(&mut fleet, &task(2, 100.0)), [0.0, 500.0]);
}

#[test]
fn a_run_starts_when_the_others_are_as_far_as_is_known() {
    let devices = cluster("1xA");
    let graph = nodes(3, &devices).build();
    let log = Log::silent();
    let (graph, devices) = (Graph::new(&graph, &log), DeviceSet::new(&devices, &log));
    let mut fleet = Fleet::default();
    fleet.begin(1, &graph, &devices);
    queue(&mut fleet, &task(0, 1_000.0), 0);
    fleet.begin(2, &graph, &devices);
    let other = |node, now_ns| ReadyTask {
        run: 2,
        ..task(node, now_ns)
    };
    assert_eq!(waits(&mut fleet, &other(0, 0.0)), [100.0]);
    assert_eq!(waits(&mut fleet, &other(1, 50.0)), [150.0]);
    // Begun again, a run is new. At 1050, at most the whole task of the first run is left. Without
    // runs, all is new.
    fleet.begin(2, &graph, &devices);
    assert_eq!(waits(&mut fleet, &other(0, 0.0)), [100.0]);
    fleet.end(1);
    fleet.end(2);
    fleet.begin(2, &graph, &devices);
    assert_eq!(waits(&mut fleet, &other(0, 0.0)), [0.0]);
}

#[test]
fn odd_tasks_are_answered_or_refused() {
    let devices = cluster("2xA").with_links(1.0, 1.0);
    let mut fleet = begun(nodes(2, &devices), &devices);
    for now_ns in [f64::NAN, -5.0, f64::NEG_INFINITY] {
        let odd = ReadyTask {
            candidate_set: 99,
            cost_row: 99,
            home: 99,
            input_bytes: u64::MAX,
            ..task(0, now_ns)
        };
        assert_eq!(pick(&mut fleet, &odd), Some(0));
    }
    assert_eq!(pick(&mut fleet, &task(2, 0.0)), None, "no such node");
    let unknown = ReadyTask {
        run: 3,
        ..task(0, 0.0)
    };
    assert_eq!(pick(&mut fleet, &unknown), None, "no such run");
    fleet.observe(&[completion(0, 0, f64::NAN)], &[]);
    assert_eq!(waits(&mut fleet, &task(1, 0.0)), [100.0, 0.0]);
}

#[test]
fn without_reports_what_is_expected_to_have_ended_is_forgotten() {
    let devices = cluster("2xA");
    let mut fleet = begun(nodes(4, &devices), &devices);
    queue(&mut fleet, &task(0, 0.0), 0);
    queue(&mut fleet, &task(1, 0.0), 0);
    queue(&mut fleet, &task(2, 500.0), 0);
    let mut lengths = Vec::new();
    fleet.pick(&task(3, 500.0), |bid| {
        lengths.push(bid.n_queued);
        bid.wait_ns
    });
    assert_eq!(lengths, [1, 0]);
}
