//! Tests of the search: it never loses what it starts from, and finds what list schedulers miss.

use placewright_guest::source::DeviceSource;
use placewright_guest::testing::BudgetUnit;
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

fn search(effort: u64, graph: &TestGraph, devices: &TestDevices) -> Offer {
    let options = PlaceOptions::default().with_setting("effort", effort.to_string());
    place_with(&mut Search::default(), &options, graph, devices).unwrap()
}

/// A layered random graph with groups, pins and nodes that may run on few devices.
fn random_graph(random: &mut Random, devices: &TestDevices, n_nodes: u32) -> TestGraph {
    let mut below = |n: u32| u32::try_from(random.below(n as usize)).unwrap();
    let mut graph = GraphBuilder::new(devices);
    for node in 0..n_nodes {
        let costs: Vec<f64> = (0..3).map(|_| 100.0 + f64::from(below(9_000))).collect();
        graph.node(&format!("n{node}"), &costs);
        for _ in 0..below(4).min(node) {
            let from = node - 1 - below(node.min(8));
            graph.edge(from, node, u64::from(below(20_000)));
        }
        match below(8) {
            0 => graph.candidates(node, &[below(devices.count())]),
            1 => graph.candidates(node, &[1, 2]),
            2 if node > 0 => {
                let partner = below(node);
                graph.group(&[partner, node]);
            }
            3 => graph.pin(node, below(devices.count())),
            _ => {}
        }
    }
    graph.build()
}

#[test]
fn the_search_never_loses_what_it_starts_from() {
    let mut random = Random::new(7);
    let (mut n_shorter, mut n_placed) = (0, 0);
    for round in 0..60 {
        let devices = cluster("2xA,1xB,2xC").with_links(200.0, 0.1);
        let graph = random_graph(&mut random, &devices, 4 + round % 20);
        // Groups and pins may contradict each other; then nobody has a plan.
        let Ok(start) = place(&mut policy_heft::Heft::default(), &graph, &devices) else {
            continue;
        };
        n_placed += 1;
        let found = search(100_000, &graph, &devices);
        let start_ns = found.metric("start_ns").unwrap();
        assert!(start_ns <= start.makespan_ns, "{start_ns} {start:?}");
        assert!(found.makespan_ns <= start_ns, "{start_ns} {found:?}");
        assert_eq!(found.metric("makespan_ns"), Some(found.makespan_ns));
        assert!(found.metric("lower_bound_ns").unwrap() <= found.makespan_ns + 1e-6);
        n_shorter += u32::from(found.makespan_ns < 0.999 * start_ns);
        for node in 0..graph.names.len() {
            assert!(found.reason_of(u32::try_from(node).unwrap()).is_some());
        }
        assert_eq!(search(100_000, &graph, &devices), found, "the same again");
        let unchanged = search(0, &graph, &devices);
        assert_eq!(unchanged.makespan_ns, start_ns);
        assert_eq!(unchanged.metric("evaluations"), Some(0.0));
    }
    assert!(n_placed > 30, "{n_placed}");
    assert!(n_shorter > 10, "{n_shorter} of {n_placed} became shorter");
}

#[test]
fn a_known_optimum_is_found() {
    // Topcuoglu's example: `heft` takes 80, `cpop` 86. A constraint solver proves 73.
    let (devices, graph) = papers::topcuoglu();
    assert_eq!(search(2_000_000, &graph, &devices).makespan_ns, 73.0);
}

#[test]
fn a_small_budget_ends_the_search_and_keeps_a_plan() {
    let devices = cluster("2xA,1xB,2xC").with_links(200.0, 0.1);
    let graph = random_graph(&mut Random::new(3), &devices, 20);
    for budget in [1_u32, 10_000, 1_000_000] {
        let options = PlaceOptions::default()
            .with_setting("effort", "100000000")
            .with_budget(BudgetUnit::Fuel, budget.into());
        let found = place_with(&mut Search::default(), &options, &graph, &devices).unwrap();
        let evaluations = found.metric("evaluations").unwrap();
        assert!(
            evaluations * 64.0 < budget as f64 + 64.0 * 64.0,
            "{budget}: {evaluations}"
        );
    }
}

#[test]
fn a_graph_without_a_choice_is_answered_at_once() {
    let devices = cluster("1xA");
    let mut graph = GraphBuilder::new(&devices);
    let (a, b) = (graph.node("a", &[5.0]), graph.node("b", &[5.0]));
    graph.edge(a, b, 8);
    let found = search(1_000_000, &graph.build(), &devices);
    assert_eq!(found.devices, [0, 0]);
    assert_eq!(found.metric("evaluations"), Some(0.0));
}

#[test]
fn where_no_plan_fits_the_policy_fails() {
    let devices = cluster("2xA").with_memory(0, 10).with_memory(1, 10);
    let mut graph = GraphBuilder::new(&devices);
    let state = graph.node("state", &[5.0]);
    graph.resident_bytes(state, 100);
    let error = place(&mut Search::default(), &graph.build(), &devices).unwrap_err();
    assert!(error.to_string().contains("memory"), "{error}");
}

#[test]
fn where_memory_is_short_plans_for_memory_count() {
    let devices = cluster("4xA").with_links(0.0, 1.0);
    let devices = (0..4).fold(devices, |devices, device| devices.with_memory(device, 230));
    // A chain of layers whose parameters need three devices and a bit of the fourth.
    let mut graph = GraphBuilder::new(&devices);
    for layer in 0..7 {
        let node = graph.node(&format!("layer{layer}"), &[10.0]);
        graph.resident_bytes(node, 100);
        if layer > 0 {
            graph.edge(node - 1, node, 50);
        }
    }
    let found = search(100_000, &graph.build(), &devices);
    // Three crossings of 50 are the fewest.
    assert_eq!(found.makespan_ns, 70.0 + 150.0);
}

/// Most draws change nothing here: the search must not take that for its end.
#[test]
fn a_search_with_few_possible_steps_uses_its_effort() {
    let devices = cluster("1xA,1xB").with_links(100.0, 1.0);
    let mut graph = GraphBuilder::new(&devices);
    let (fixed, free) = (
        graph.node("fixed", &[10.0, 10.0]),
        graph.node("free", &[30.0, 10.0]),
    );
    graph.edge(fixed, free, 100);
    graph.pin(fixed, 0);
    // 50 of effort are worth one evaluation of a small graph.
    let found = search(50_000, &graph.build(), &devices);
    assert_eq!(found.makespan_ns, 40.0);
    let evaluations = found.metric("evaluations").unwrap();
    assert!((900.0..=1_000.0).contains(&evaluations), "{evaluations}");
}

#[test]
fn the_objective_decides_which_plan_is_better() {
    // Two equal devices and a slow link: one run is shortest on one device, many are on two.
    let devices = cluster("2xA").with_links(10.0, 0.1);
    let mut graph = GraphBuilder::new(&devices);
    for index in 0..10 {
        let node = graph.node(&format!("n{index}"), &[1_000.0]);
        graph.resident_bytes(node, 1_000);
        if index > 0 {
            graph.edge(node - 1, node, 100);
        }
    }
    let graph = graph.build();
    let placed = |objective: &str| {
        let options = PlaceOptions::default().with_setting("objective", objective);
        place_with(&mut Search::default(), &options, &graph, &devices).unwrap()
    };
    let on_second = |offer: &Offer| offer.devices.iter().filter(|&&device| device == 1).count();
    let latency = placed("latency");
    assert!(matches!(on_second(&latency), 0 | 10), "{latency:?}");
    let throughput = placed("throughput");
    assert_eq!(on_second(&throughput), 5, "{throughput:?}");
    assert_eq!(throughput.metric("bottleneck_ns"), Some(5_000.0));
    let memory = placed("memory");
    assert_eq!(on_second(&memory), 5, "{memory:?}");
    let latency_peak = placed("latency=1,memory=0.0001")
        .metric("peak_bytes")
        .unwrap();
    assert!(memory.metric("peak_bytes").unwrap() < 0.6 * latency_peak);
    let bytes = placed("bytes");
    assert_eq!(bytes.metric("transfer_bytes"), Some(0.0));
    assert_eq!(bytes.metric("score"), Some(0.0));
    let options = PlaceOptions::default().with_setting("objective", "speed");
    let refused = place_with(&mut Search::default(), &options, &graph, &devices);
    let refused = refused.unwrap_err().to_string();
    assert!(
        refused.contains("speed") && refused.contains("latency"),
        "{refused}"
    );
}
