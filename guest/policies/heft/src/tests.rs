//! Tests HEFT against the paper, against a plain implementation, and in cases that the paper does
//! not cover.

use placewright_guest::algorithm::descending;
use placewright_guest::log::Log;
use placewright_guest::schedule;
use placewright_guest::schedule::{ListSchedule, TaskGraph};
use placewright_guest::source::DeviceSource;
use placewright_guest::source::GraphSource;
use placewright_guest::testing::GraphBuilder;
use placewright_guest::testing::Offer;
use placewright_guest::testing::PlaceOptions;
use placewright_guest::testing::TestDevices;
use placewright_guest::testing::TestGraph;
use placewright_guest::testing::cluster;
use placewright_guest::testing::papers;
use placewright_guest::testing::place;
use placewright_guest::testing::place_with;
use placewright_guest::{DeviceSet, Graph, PlaceError, Plan, Policy};

use crate::Heft;
use crate::problem::ranks_of;

/// Pseudo-random numbers from a seed (xorshift64).
struct Random(u64);

impl Random {
    fn below(&mut self, n: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        u32::try_from(self.0 % u64::from(n)).expect("below n")
    }
}

fn heft(insertion: bool, graph: &TestGraph, devices: &TestDevices) -> Offer {
    let options = PlaceOptions::default().with_setting("insertion", insertion.to_string());
    place_with(&mut Heft::default(), &options, graph, devices).unwrap()
}

#[test]
fn figure_2_has_the_published_ranks() {
    let (devices, graph) = papers::topcuoglu();
    let log = Log::silent();
    let (graph, devices) = (Graph::new(&graph, &log), DeviceSet::new(&devices, &log));
    let published = [
        108.0, 77.0, 80.0, 80.0, 69.0, 63.333, 42.667, 35.667, 44.333, 14.667,
    ];
    let ranks = ranks_of(&graph, &devices);
    for (rank, published) in ranks.iter().zip(published) {
        assert!((rank - published).abs() < 0.001, "{rank} {published}");
    }
}

#[test]
fn figure_2_has_the_published_makespan() {
    let (devices, graph) = papers::topcuoglu();
    for insertion in [true, false] {
        let offer = heft(insertion, &graph, &devices);
        assert_eq!(offer.metric("makespan_ns").unwrap(), 80.0);
        assert_eq!(offer.makespan_ns, 80.0, "the plan, simulated");
    }
}

/// A layered random graph, some of whose nodes may run on few devices only.
fn random_graph(random: &mut Random, devices: &TestDevices, n_nodes: u32) -> TestGraph {
    let n_classes = devices.cost_classes.iter().max().unwrap() + 1;
    let mut graph = GraphBuilder::new(devices);
    for node in 0..n_nodes {
        let costs: Vec<f64> = (0..n_classes)
            .map(|_| 100.0 + f64::from(random.below(90_000)) / 7.0)
            .collect();
        graph.node(&format!("n{node}"), &costs);
        for _ in 0..random.below(4).min(node) {
            let reach = node.min(24);
            let from = node - 1 - random.below(reach);
            graph.edge(from, node, u64::from(random.below(200_000)));
        }
        match random.below(8) {
            0 => graph.candidates(node, &[random.below(devices.count())]),
            1 => {
                let mut some: Vec<u32> = (0..devices.count())
                    .filter(|_| random.below(2) == 0)
                    .collect();
                let half = some.len() / 2;
                some.rotate_left(half);
                if !some.is_empty() {
                    graph.candidates(node, &some);
                }
            }
            _ => {}
        }
    }
    graph.build()
}

/// A schedule of [`plain_heft`].
struct Plain {
    devices: Vec<u32>,
    starts: Vec<f64>,
    makespan: f64,
}

/// HEFT as the paper describes it: a list of tasks per processor, and every gap is checked.
fn plain_heft(graph: &TestGraph, devices: &TestDevices, with_insertion: bool) -> Plain {
    let log = Log::silent();
    let (view, device_view) = (Graph::new(graph, &log), DeviceSet::new(devices, &log));
    let ranks = ranks_of(&view, &device_view);
    let mut order: Vec<u32> = view.nodes().collect();
    order.sort_by(|&a, &b| ranks[b as usize].total_cmp(&ranks[a as usize]));
    let mut tasks: Vec<Vec<(f64, f64)>> = vec![Vec::new(); devices.cost_classes.len()];
    let mut placed = vec![0; view.len()];
    let mut starts = vec![0.0; view.len()];
    let mut finish = vec![0.0; view.len()];
    for node in order {
        let mut best: Option<(f64, f64, u32)> = None;
        for &device in view.candidates_of(node) {
            let mut ready = 0.0_f64;
            for edge in view.edges_into(node) {
                let from = edge.from as usize;
                let link = devices.link(placed[from], device);
                let bytes = u32::try_from(edge.bytes).unwrap();
                let transfer = link.latency_ns + f64::from(bytes) * link.ns_per_byte;
                ready = ready.max(finish[from] + transfer);
            }
            let work = graph.cost(node, device);
            let busy = &tasks[device as usize];
            let mut start = ready.max(busy.last().map_or(0.0, |&(_, end)| end));
            if with_insertion {
                let mut free_from = 0.0_f64;
                for &(begin, end) in busy {
                    if free_from.max(ready) + work <= begin {
                        start = free_from.max(ready);
                        break;
                    }
                    free_from = end;
                }
            }
            if best.is_none_or(|(least, _, _)| start + work < least) {
                best = Some((start + work, start, device));
            }
        }
        let (end, start, device) = best.unwrap();
        let busy = &mut tasks[device as usize];
        let at = busy.partition_point(|&(begin, _)| begin < start);
        busy.insert(at, (start, end));
        placed[node as usize] = device;
        starts[node as usize] = start;
        finish[node as usize] = end;
    }
    Plain {
        devices: placed,
        starts,
        makespan: finish.iter().copied().fold(0.0, f64::max),
    }
}

#[test]
fn agrees_with_a_plain_implementation() {
    let mut random = Random(0x5eed_0001);
    let mut n_inserted = 0.0;
    for text in ["1xCPU", "2xCPU,3xGPU", "3xCPU,6xGPU", "20xCPU,80xGPU"] {
        let devices = cluster(text).with_links(700.0, 0.3);
        for _ in 0..4 {
            let graph = random_graph(&mut random, &devices, 600);
            for insertion in [true, false] {
                let offer = heft(insertion, &graph, &devices);
                let plain = plain_heft(&graph, &devices, insertion);
                assert_eq!(
                    offer.devices, plain.devices,
                    "{text}, insertion {insertion}"
                );
                assert_eq!(offer.metric("makespan_ns").unwrap(), plain.makespan);
                n_inserted += offer.metric("nodes_inserted").unwrap();
            }
        }
    }
    assert!(n_inserted > 100.0, "gaps were filled: {n_inserted}");
}

/// HEFT, written with the list schedule of the SDK.
#[derive(Default)]
struct ListHeft;

impl Policy for ListHeft {
    const NAME: &'static str = "list-heft";

    fn place(
        &mut self,
        graph: &Graph<'_>,
        devices: &DeviceSet<'_>,
        plan: &Plan<'_>,
        _seed: u64,
    ) -> Result<(), PlaceError> {
        let tasks = TaskGraph::new(graph, devices);
        let order = descending(&tasks.upward_ranks());
        schedule::offer(graph, devices, plan, |memory| {
            let mut schedule = ListSchedule::new(&tasks, memory);
            for &node in order.iter().filter(|&&node| tasks.is_task(node)) {
                let choice = schedule.best(node, |choice| choice.finish_ns);
                schedule.place(node, &choice);
            }
            schedule.finish()
        })?;
        Ok(())
    }
}

#[test]
fn the_list_schedule_of_the_sdk_makes_the_same_decisions() {
    let mut random = Random(0x5eed_0004);
    let (mut n_tight, mut n_refused) = (0, 0);
    for round in 0..60 {
        let mut devices = cluster("2xCPU,4xGPU").with_links(300.0, 0.2);
        devices.chips[5] = devices.chips[4];
        if round % 2 == 0 {
            for device in 0..5 {
                devices = devices.with_memory(device, 700 + u64::from(random.below(300)));
            }
        }
        let mut graph = random_graph(&mut random, &devices, 80);
        for node in (0..80).step_by(7) {
            graph.resident_bytes[node] = u64::from(random.below(500));
            graph.executions[node] = f64::from(random.below(3));
        }
        let of_policy = place(&mut Heft::default(), &graph, &devices);
        let of_list = place(&mut ListHeft, &graph, &devices);
        let (of_policy, of_list) = match (of_policy, of_list) {
            (Ok(of_policy), Ok(of_list)) => (of_policy, of_list),
            (of_policy, of_list) => {
                assert_eq!(of_policy.unwrap_err(), of_list.unwrap_err());
                n_refused += 1;
                continue;
            }
        };
        assert_eq!(of_policy.devices, of_list.devices, "round {round}");
        assert_eq!(of_policy.start_order, of_list.start_order, "round {round}");
        assert_eq!(of_policy.metrics, of_list.metrics, "round {round}");
        n_tight += i32::from(round % 2 == 0);
    }
    assert!(n_tight > 10 && n_refused < 30, "{n_tight} {n_refused}");
}

#[test]
fn start_order_is_the_schedule() {
    let mut random = Random(0x5eed_0002);
    let devices = cluster("2xCPU,4xGPU").with_links(300.0, 0.2);
    let graph = random_graph(&mut random, &devices, 400);
    let offer = place(&mut Heft::default(), &graph, &devices).unwrap();
    let plain = plain_heft(&graph, &devices, true);
    let order = offer.start_order.unwrap();
    let mut n_compared = 0;
    for before in 0..order.len() {
        for after in 0..order.len() {
            let apart = plain.starts[after] - plain.starts[before];
            // The start order has 32 bits for the whole schedule.
            if plain.devices[before] == plain.devices[after] && apart > plain.makespan * 1e-9 {
                assert!(
                    order[before] > order[after],
                    "{before} starts before {after}"
                );
                n_compared += 1;
            }
        }
    }
    assert!(n_compared > 10_000, "{n_compared}");
}

#[test]
fn insertion_uses_a_gap_that_appending_cannot() {
    let devices = cluster("1xCPU,1xGPU").with_links(1_000.0, 0.0);
    let mut graph = GraphBuilder::new(&devices);
    let far = graph.node("far", &[4_000.0, 100_000.0]);
    let join = graph.node("join", &[100_000.0, 4_000.0]);
    graph.edge(far, join, 0);
    graph.node("small", &[100_000.0, 3_000.0]);
    let graph = graph.build();
    let with = heft(true, &graph, &devices);
    let without = heft(false, &graph, &devices);
    assert_eq!(
        (
            with.metric("makespan_ns").unwrap(),
            with.metric("nodes_inserted").unwrap()
        ),
        (9_000.0, 1.0)
    );
    assert_eq!(without.metric("makespan_ns").unwrap(), 12_000.0);
}

#[test]
fn a_group_goes_where_its_total_cost_is_smallest() {
    let devices = cluster("1xCPU,1xGPU").with_links(0.0, 0.0);
    let mut graph = GraphBuilder::new(&devices);
    let first = graph.node("first", &[10.0, 20.0]);
    let second = graph.node("second", &[500.0, 20.0]);
    graph.edge(first, second, 8);
    graph.group(&[first, second]);
    let offer = place(&mut Heft::default(), &graph.build(), &devices).unwrap();
    assert_eq!(offer.devices, [1, 1]);
}

#[test]
fn pins_decide_for_their_groups() {
    let devices = cluster("1xCPU,1xGPU");
    let mut graph = GraphBuilder::new(&devices);
    let first = graph.node("first", &[1_000.0, 10.0]);
    let second = graph.node("second", &[1_000.0, 10.0]);
    graph.group(&[first, second]);
    graph.pin(second, 0);
    let offer = place(&mut Heft::default(), &graph.build(), &devices).unwrap();
    assert_eq!(offer.devices, [0, 0]);
}

#[test]
fn full_memories_are_skipped() {
    let devices = cluster("1xCPU,2xGPU")
        .with_memory(1, 250)
        .with_memory(2, 250);
    let mut graph = GraphBuilder::new(&devices);
    for i in 0..6 {
        let node = graph.node(&format!("n{i}"), &[1_000.0, 10.0]);
        graph.resident_bytes(node, 100);
    }
    let offer = place(&mut Heft::default(), &graph.build(), &devices).unwrap();
    let on = |device| {
        offer
            .devices
            .iter()
            .filter(|&&other| other == device)
            .count()
    };
    assert_eq!((on(0), on(1), on(2)), (2, 2, 2));
}

#[test]
fn a_node_too_large_for_every_memory_is_an_error() {
    let devices = cluster("2xCPU").with_memory(0, 50).with_memory(1, 60);
    let mut graph = GraphBuilder::new(&devices);
    let node = graph.node("big", &[10.0]);
    graph.resident_bytes(node, 100);
    let error = place(&mut Heft::default(), &graph.build(), &devices).unwrap_err();
    assert!(error.to_string().contains("memory"), "{error}");
}

#[test]
fn devices_of_one_chip_share_its_time() {
    let mut devices = cluster("2xCPU").with_links(0.0, 0.0);
    devices.chips = vec![7, 7];
    let mut graph = GraphBuilder::new(&devices);
    graph.node("a", &[10.0]);
    graph.node("b", &[10.0]);
    let offer = place(&mut Heft::default(), &graph.build(), &devices).unwrap();
    assert_eq!(offer.metric("makespan_ns").unwrap(), 20.0);
}

#[test]
fn control_edges_cross_unconnected_devices() {
    let devices = cluster("1xCPU,1xGPU").with_links(0.0, f64::INFINITY);
    let mut graph = GraphBuilder::new(&devices);
    graph.node("a", &[5.0, f64::INFINITY]);
    graph.node("b", &[10.0, 1.0]);
    graph.control_edge(0, 1);
    let offer = place(&mut Heft::default(), &graph.build(), &devices).unwrap();
    assert_eq!(offer.metric("makespan_ns").unwrap(), 6.0);
    assert_eq!(offer.devices, [0, 1]);
}

#[test]
fn executions_multiply_costs() {
    let devices = cluster("1xCPU");
    let mut graph = GraphBuilder::new(&devices);
    let node = graph.node("body", &[10.0]);
    graph.executions(node, 25.0);
    let offer = place(&mut Heft::default(), &graph.build(), &devices).unwrap();
    assert_eq!(offer.metric("makespan_ns").unwrap(), 250.0);
}

#[test]
fn a_node_without_a_finite_cost_takes_its_preferred_device() {
    let devices = cluster("1xCPU,1xGPU");
    let mut graph = GraphBuilder::new(&devices);
    let node = graph.node("odd", &[f64::INFINITY, f64::INFINITY]);
    graph.candidates(node, &[0, 1]);
    let after = graph.node("after", &[10.0, 10.0]);
    graph.edge(node, after, 4);
    let offer = place(&mut Heft::default(), &graph.build(), &devices).unwrap();
    assert_eq!(offer.devices[0], 0);
}

#[test]
fn reasons_name_the_finish_and_the_second_best() {
    let devices = cluster("1xCPU,1xGPU");
    let mut graph = GraphBuilder::new(&devices);
    let free = graph.node("free", &[9_000.0, 5_000.0]);
    let only = graph.node("only", &[10.0, 10.0]);
    let pinned = graph.node("pinned", &[10.0, 10.0]);
    let first = graph.node("first", &[10.0, 5_000.0]);
    let second = graph.node("second", &[10.0, 5_000.0]);
    graph.candidates(only, &[0]);
    graph.pin(pinned, 1);
    graph.group(&[first, second]);
    let offer = place(&mut Heft::default(), &graph.build(), &devices).unwrap();
    let reason_of = |node: u32| offer.reason_of(node).expect("every node has a reason");
    assert_eq!(
        reason_of(free),
        "earliest finish 5.00 us; second best CPU:0 9.00 us"
    );
    assert_eq!(reason_of(only), "only candidate");
    assert_eq!(reason_of(pinned), "pinned");
    let [first, second] = [first, second].map(reason_of);
    assert!(
        first.starts_with("earliest finish of its group "),
        "{first}"
    );
    assert_eq!(second, "follows its colocation group");
}

#[test]
fn reasons_name_devices_without_memory() {
    let devices = cluster("1xCPU,1xGPU").with_memory(1, 100);
    let mut graph = GraphBuilder::new(&devices);
    for name in ["a", "b"] {
        let node = graph.node(name, &[90_000.0, 5_000.0]);
        graph.resident_bytes(node, 80);
    }
    let offer = place(&mut Heft::default(), &graph.build(), &devices).unwrap();
    assert_eq!(offer.devices, [1, 0]);
    let reasons: Vec<&str> = offer.reasons.iter().map(|(_, why)| &why[..]).collect();
    assert_eq!(
        reasons,
        [
            "earliest finish 5.00 us; second best CPU:0 90.00 us",
            "earliest finish 90.00 us; no memory on GPU:0"
        ]
    );
}

#[test]
fn reasons_of_large_graphs_are_shared() {
    let devices = cluster("1xCPU,1xGPU");
    let mut graph = GraphBuilder::new(&devices);
    for _ in 0..=crate::reasons::NODES_WITH_TIMES {
        graph.node("", &[90.0, 50.0]);
    }
    let offer = place(&mut Heft::default(), &graph.build(), &devices).unwrap();
    assert!(offer.reasons.len() < 10, "{}", offer.reasons.len());
    let n_nodes: usize = offer.reasons.iter().map(|(nodes, _)| nodes.len()).sum();
    assert_eq!(n_nodes, offer.devices.len());
}
