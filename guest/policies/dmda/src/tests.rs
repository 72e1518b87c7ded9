//! Tests of the cost model, of plans, and of runs online.

use placewright_guest::NONE;
use placewright_guest::log::Log;
use placewright_guest::search::Random;
use placewright_guest::testing::GraphBuilder;
use placewright_guest::testing::Offer;
use placewright_guest::testing::PlaceOptions;
use placewright_guest::testing::TestDevices;
use placewright_guest::testing::TestGraph;
use placewright_guest::testing::cluster;
use placewright_guest::testing::papers;
use placewright_guest::testing::place;
use placewright_guest::testing::place_with;

use super::*;

fn with(settings: &[(&str, &str)], graph: &TestGraph, devices: &TestDevices) -> Offer {
    let options = settings.iter().fold(PlaceOptions::default(), |all, set| {
        all.with_setting(set.0, set.1)
    });
    place_with(&mut Dmda::default(), &options, graph, devices).unwrap()
}

#[test]
fn each_task_goes_where_it_is_expected_to_complete_first() {
    let devices = cluster("1xA,1xB").with_links(0.0, 1.0);
    let mut graph = GraphBuilder::new(&devices);
    let a = graph.node("a", &[10.0, 30.0]);
    graph.node("b", &[10.0, 15.0]);
    let c = graph.node("c", &[10.0, 4.0]);
    graph.edge(a, c, 8);
    let graph = graph.build();
    // `a`: 10 or 30. `b`: 10 + 10, or 15. At 10, `c`: 10, or 5 + 4 + 8.
    let offer = with(&[], &graph, &devices);
    assert_eq!(offer.devices, [0, 1, 0]);
    assert_eq!(offer.metric("makespan_ns"), Some(20.0));
    let reason = offer.reason_of(c);
    assert_eq!(reason, Some("expected to complete first there"));
    // Without the transfer, `c` is 9 on the second device. It arrives at 18.
    let offer = with(&[("beta", "0")], &graph, &devices);
    assert_eq!(offer.devices, [0, 1, 1]);
    assert_eq!(offer.metric("makespan_ns"), Some(22.0));
}

#[test]
fn alpha_weighs_the_execution() {
    let devices = cluster("1xA,1xB");
    let mut graph = GraphBuilder::new(&devices);
    graph.node("a", &[10.0, 100.0]);
    graph.node("b", &[1.0, 100.0]);
    let graph = graph.build();
    assert_eq!(with(&[], &graph, &devices).devices, [0, 0]);
    let offer = with(&[("alpha", "0")], &graph, &devices);
    assert_eq!(offer.devices, [0, 1]);
}

#[test]
fn weights_are_numbers_from_zero() {
    let devices = cluster("1xA");
    let graph = GraphBuilder::new(&devices).build();
    for value in ["-1", "inf", "NaN", "much"] {
        let options = PlaceOptions::default().with_setting("beta", value);
        let error = place_with(&mut Dmda::default(), &options, &graph, &devices).unwrap_err();
        assert!(error.to_string().contains("`beta`"), "{error}");
    }
}

#[test]
fn topcuoglus_example_is_scheduled_legally_and_repeatably() {
    let (devices, graph) = papers::topcuoglu();
    let offer = place(&mut Dmda::default(), &graph, &devices).unwrap();
    let makespan_ns = offer.metric("makespan_ns").unwrap();
    // Devices are picked as in a run, the plan's transfers start when producers end: not later.
    assert!(offer.makespan_ns <= makespan_ns);
    // The optimum, and all on the fastest processor.
    assert!((73.0..=127.0).contains(&makespan_ns), "{makespan_ns}");
    assert_eq!(
        place(&mut Dmda::default(), &graph, &devices).unwrap(),
        offer
    );
}

#[test]
fn groups_pins_and_memory_are_respected() {
    let devices = cluster("3xA").with_memory(0, 100).with_links(0.0, 1.0);
    let mut graph = GraphBuilder::new(&devices);
    let nodes: Vec<u32> = (0..6).map(|_| graph.node("", &[10.0])).collect();
    graph.group(&[nodes[1], nodes[4]]);
    graph.pin(nodes[2], 1);
    for &node in &nodes[..2] {
        graph.resident_bytes(node, 80);
    }
    graph.resident_bytes(nodes[5], 80);
    let offer = place(&mut Dmda::default(), &graph.build(), &devices).unwrap();
    assert_eq!(offer.devices[1], offer.devices[4]);
    assert_eq!(offer.devices[2], 1);
    let full = [0, 1, 5].map(|node| offer.devices[node]);
    assert_eq!(full.iter().filter(|&&device| device == 0).count(), 1);
}

/// Two devices, and three equal nodes without edges.
fn three() -> (TestDevices, TestGraph) {
    let devices = cluster("2xA").with_links(0.0, 1.0);
    let mut graph = GraphBuilder::new(&devices);
    for _ in 0..3 {
        graph.node("", &[100.0]);
    }
    (devices, graph.build())
}

fn begun(runs: &[u32], graph: &TestGraph, devices: &TestDevices) -> Dmda {
    let log = Log::silent();
    let (graph, devices) = (Graph::new(graph, &log), DeviceSet::new(devices, &log));
    let mut policy = Dmda::default();
    for &run in runs {
        policy.begin(run, &graph, &devices, 0).unwrap();
    }
    policy
}

fn task(run: u32, node: u32, now_ns: f64) -> ReadyTask {
    ReadyTask {
        run,
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

#[test]
fn runs_at_a_time_share_the_queues() {
    let (devices, graph) = three();
    let mut policy = begun(&[1, 2], &graph, &devices);
    assert_eq!(policy.pick(&task(1, 0, 0.0)), Some(0));
    // The other run sees the first device busy for 100, then both.
    assert_eq!(policy.pick(&task(2, 0, 10.0)), Some(1));
    assert_eq!(policy.pick(&task(1, 1, 20.0)), Some(0));
    policy.end(1);
    // What the first run had queued is gone: only the second device is busy.
    assert_eq!(policy.pick(&task(2, 1, 30.0)), Some(0));
    assert_eq!(policy.pick(&task(1, 2, 30.0)), None, "the run is over");
    assert_eq!(policy.pick(&task(2, 7, 30.0)), None, "no such node");
}

#[test]
fn completions_correct_the_expected_ends() {
    let (devices, graph) = three();
    let third = |done: &[Completion]| {
        let mut policy = begun(&[1], &graph, &devices);
        assert_eq!(policy.pick(&task(1, 0, 0.0)), Some(0));
        assert_eq!(policy.pick(&task(1, 1, 0.0)), Some(1));
        policy.observe(done, &[]);
        policy.pick(&task(1, 2, 50.0))
    };
    assert_eq!(third(&[]), Some(0), "both end at 100");
    assert_eq!(third(&[completion(1, 1, 40.0)]), Some(1), "it is idle");
    // A completion of an unknown run, node or device changes nothing, nor panics.
    let unknown = Completion {
        run: 9,
        ..completion(1, 1, 40.0)
    };
    let wrong = [unknown, completion(77, 1, 40.0), completion(1, 77, 40.0)];
    assert_eq!(third(&wrong), Some(0));
}

#[test]
fn without_reports_a_ready_task_proves_that_its_producers_have_ended() {
    let devices = cluster("2xA").with_links(0.0, 1.0);
    let mut graph = GraphBuilder::new(&devices);
    let [a, b, c] = ["a", "b", "c"].map(|name| graph.node(name, &[100.0]));
    graph.edge(b, c, 8);
    graph.candidates(a, &[0]);
    let graph = graph.build();
    let mut policy = begun(&[1], &graph, &devices);
    assert_eq!(policy.pick(&task(1, a, 0.0)), Some(0));
    let set = |node: u32, now_ns: f64| ReadyTask {
        candidate_set: graph.candidate_set[node as usize],
        ..task(1, node, now_ns)
    };
    assert_eq!(policy.pick(&set(b, 0.0)), Some(1));
    // `b` has ended in half of its time, so the second device is idle and the first is not.
    assert_eq!(policy.pick(&set(c, 50.0)), Some(1));
}

#[test]
fn a_device_that_is_down_gets_no_task() {
    let (devices, graph) = three();
    let mut policy = begun(&[1], &graph, &devices);
    policy.observe(&[], &[change(0, false), change(99, false)]);
    assert_eq!(policy.pick(&task(1, 0, 0.0)), Some(1));
    assert_eq!(policy.pick(&task(1, 1, 0.0)), Some(1));
    policy.observe(&[], &[change(0, true)]);
    assert_eq!(policy.pick(&task(1, 2, 0.0)), Some(0));
    policy.observe(&[], &[change(0, false), change(1, false)]);
    assert_eq!(policy.pick(&task(1, 0, 0.0)), None);
}

#[test]
fn a_task_that_is_asked_about_again_is_queued_once() {
    let (devices, graph) = three();
    let mut policy = begun(&[1], &graph, &devices);
    assert_eq!(policy.pick(&task(1, 0, 0.0)), Some(0));
    assert_eq!(policy.pick(&task(1, 1, 0.0)), Some(1));
    policy.observe(&[], &[change(1, false)]);
    assert_eq!(policy.pick(&task(1, 1, 10.0)), Some(0), "it moves");
    policy.observe(&[], &[change(1, true)]);
    assert_eq!(policy.pick(&task(1, 2, 10.0)), Some(1), "it is idle again");
}

/// A random graph with groups, pins, constants, short memory, and costs of infinity.
fn random_graph(random: &mut Random, devices: &TestDevices, n_nodes: u32) -> TestGraph {
    let mut below = |n: u32| u32::try_from(random.below(n as usize)).unwrap();
    let mut graph = GraphBuilder::new(devices);
    for node in 0..n_nodes {
        if below(10) == 0 {
            graph.constant("", 50);
            continue;
        }
        let cost = |n: u32| if n == 0 { f64::INFINITY } else { f64::from(n) };
        let costs = [f64::from(below(9)), cost(below(9)), cost(below(9))];
        graph.node("", &costs);
        graph.resident_bytes(node, below(100).into());
        for _ in 0..below(4).min(node) {
            let from = node - 1 - below(node.min(8));
            match below(4) {
                0 => graph.control_edge(from, node),
                _ => graph.edge(from, node, below(20).into()),
            }
        }
        match below(8) {
            0 => graph.candidates(node, &[below(5)]),
            1 if node > 0 => graph.executions(node, f64::from(below(3))),
            2 => graph.candidates(node, &[4, 1, 0]),
            3 if below(3) == 0 => graph.pin(node, below(5)),
            _ => {}
        }
        if node > 3 && below(8) == 0 && graph.clone().build().pinned[node as usize] == NONE {
            graph.group(&[node - 1, node]);
        }
    }
    graph.build()
}

#[test]
fn runs_online_of_random_graphs_keep_the_rules() {
    let mut random = Random::new(11);
    let log = Log::silent();
    let (mut n_answers, mut n_plans) = (0, 0);
    for round in 0..60 {
        let devices = cluster("2xA,1xB,2xC").with_links(2.0, 0.5);
        let devices = (0..5).fold(devices, |devices, device| {
            devices.with_memory(device, if round % 2 == 0 { 900 } else { u64::MAX })
        });
        let graph = random_graph(&mut random, &devices, 4 + round % 30);
        if let Ok(offer) = place(&mut Dmda::default(), &graph, &devices) {
            n_plans += 1;
            let again = place(&mut Dmda::default(), &graph, &devices).unwrap();
            assert_eq!(offer, again);
        }
        let mut policy = begun(&[1, 2], &graph, &devices);
        let view = Graph::new(&graph, &log);
        let mut is_up = [true; 5];
        let mut now_ns = 0.0;
        for node in view.nodes() {
            let run = 1 + u32::try_from(random.below(2)).unwrap();
            let device = u32::try_from(random.below(5)).unwrap();
            now_ns += f64::from(device);
            let asked = ReadyTask {
                candidate_set: view.candidate_set()[node as usize],
                home: device,
                input_bytes: 10,
                ..task(run, node, now_ns)
            };
            if let Some(picked) = policy.pick(&asked) {
                assert!(view.candidates_of(node).contains(&picked));
                assert!(is_up[picked as usize]);
                n_answers += 1;
            }
            if random.below(4) == 0 {
                is_up[device as usize] = !is_up[device as usize];
                let changes = [change(device, is_up[device as usize])];
                policy.observe(&[completion(node, device, now_ns)], &changes);
            }
        }
        policy.end(1);
        policy.end(2);
    }
    assert!(n_answers > 300, "{n_answers}");
    assert!(n_plans > 20, "{n_plans}");
}
