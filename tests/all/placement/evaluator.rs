//! Estimates of plans: durations, transfers, memory; and plans that are changed step by step.

use std::sync::Arc;

use placewright::builder::GraphBuilder;
use placewright::candidates::Candidates;
use placewright::candidates::CandidatesBuilder;
use placewright::candidates::PlacementOptions;
use placewright::candidates::enumerate;
use placewright::candidates::synthetic;
use placewright::device::DeviceRates;
use placewright::device::DeviceSet;
use placewright::device::HOST_PROCESSOR;
use placewright::graph::EdgeKind;
use placewright::graph::NodeId;
use placewright::graph::Work;
use placewright::names::DeviceId;
use placewright::partition::RunRequest;
use placewright::placement::Evaluator;
use placewright::placement::check;
use placewright::policy::PlaceOptions;
use placewright::policy::PolicyLimits;
use placewright::policy::ShippedPolicy;
use placewright::policy::place_natively;

use super::Builder;
use super::CPU0;
use super::CPU1;
use super::GPU0;
use super::GPU1;
use super::TASK;
use super::candidates;
use super::devices;
use super::diamond;
use super::kernels;
use super::propose;
use crate::fakes::FakeDevice;

#[test]
fn the_makespan_counts_costs_links_and_queues() {
    let found = candidates(&diamond(), &PlacementOptions::default()).unwrap();
    let mut plan = Evaluator::new(&found);
    let mut makespan = |devices: &[u32]| {
        plan.set_devices(devices);
        plan.makespan_ns()
    };
    // Two queues: b and c run concurrently, at 1 flop/ns.
    assert_eq!(makespan(&[CPU0; 4]), 100.0 + 300.0 + 100.0);
    // Between CPUs a transfer takes 5 ns.
    assert_eq!(
        makespan(&[CPU0, CPU0, CPU1, CPU0]),
        100.0 + 5.0 + 300.0 + 5.0 + 100.0
    );
    // c on a GPU: 10 ns + 100 bytes in each direction, and a tenth of the time.
    assert_eq!(
        makespan(&[CPU0, CPU0, GPU0, CPU0]),
        100.0 + (110.0 + 30.0 + 110.0) + 100.0
    );
    assert_eq!(makespan(&[CPU0]), f64::INFINITY);
    plan.set_devices(&[CPU0; 4]);
    plan.set_queues(Some(vec![0; 4]));
    assert_eq!(plan.makespan_ns(), 700.0, "one queue: one after the other");
    plan.set_queues(Some(vec![0, 0, 5, 0]));
    assert_eq!(plan.makespan_ns(), f64::INFINITY);
    assert_eq!(plan.violation().unwrap().rule(), "queue");
}

#[test]
fn constants_and_feeds_cost_nothing() {
    let mut builder = Builder::new();
    let work = || Work {
        flops: 100.0,
        traffic_bytes: 1000,
        ..Work::default()
    };
    let feed = builder.full("x", "Placeholder", &[], "", &[], work());
    let constant = builder.full("w", "Const", &[], "", &[], work());
    let runs = builder.full("sum", "Any", &[feed, constant], "", &[], work());
    let found = candidates(&builder.finish(), &PlacementOptions::default()).unwrap();
    // Policies read the same columns.
    for device in [CPU0, CPU1, GPU0, GPU1].map(DeviceId) {
        assert_eq!(found.work_ns(feed, device), 0.0);
        assert_eq!(found.work_ns(constant, device), 0.0);
        assert!(found.work_ns(runs, device) > 0.0);
    }
    let cost_ns = found.work_ns(runs, DeviceId(CPU0));
    let mut plan = Evaluator::new(&found);
    plan.set_devices(&[CPU0; 3]);
    assert_eq!(plan.makespan_ns(), cost_ns);
    plan.set_devices(&[CPU1, CPU1, CPU0]);
    assert_eq!(plan.makespan_ns(), cost_ns);
    let placement = check(&found, propose(&[CPU1, CPU1, CPU0])).unwrap();
    let work_ns: Vec<f64> = placement
        .summary()
        .devices
        .iter()
        .map(|device| device.work_ns)
        .collect();
    assert_eq!(work_ns, [cost_ns, 0.0, 0.0, 0.0]);
}

/// A feed crosses once to each device outside of host memory, before the kernels; what no node
/// reads is fetched after them.
#[test]
fn feeds_and_fetched_tensors_cross_to_other_memories() {
    let mut builder = Builder::new();
    let feed = builder.node("x", "Placeholder", &[]);
    for name in ["a", "b", "c"] {
        builder.work(name, &[feed], 100.0, 0);
    }
    let found = candidates(&builder.finish(), &PlacementOptions::default()).unwrap();
    let mut plan = Evaluator::new(&found);
    let mut makespan = |devices: &[u32]| {
        plan.set_devices(devices);
        plan.makespan_ns()
    };
    // Two queues.
    assert_eq!(makespan(&[CPU0; 4]), 200.0);
    let copy = 10.0 + 100.0;
    assert_eq!(makespan(&[CPU0, CPU0, CPU0, GPU0]), copy + 100.0 + copy);
    assert_eq!(
        makespan(&[CPU0, CPU0, GPU0, GPU0]),
        copy + 100.0 + 2.0 * copy
    );
    assert_eq!(makespan(&[GPU0; 4]), copy + 20.0 + 3.0 * copy);
    assert_eq!(
        makespan(&[GPU0, GPU0, GPU0, GPU1]),
        2.0 * copy + 10.0 + 3.0 * copy
    );
}

#[test]
fn the_start_order_decides_which_node_starts_first() {
    let mut builder = Builder::new();
    builder.work("short", &[], 10.0, 0);
    let long = builder.work("long", &[], 100.0, 0);
    builder.work("after", &[long], 100.0, 0);
    let found = candidates(&builder.finish(), &PlacementOptions::default()).unwrap();
    let mut plan = Evaluator::new(&found);
    plan.set_devices(&[CPU0, CPU0, CPU1]);
    plan.set_queues(Some(vec![0; 3]));
    assert_eq!(plan.makespan_ns(), 10.0 + 100.0 + 5.0 + 100.0);
    plan.set_start_order(Some(vec![0, 1, 0]));
    assert_eq!(plan.makespan_ns(), 100.0 + 5.0 + 100.0);
}

#[test]
fn a_device_does_not_wait_for_a_node_whose_inputs_are_on_their_way() {
    let mut builder = Builder::new();
    let far = builder.work("far", &[], 100.0, 0);
    builder.work("late", &[far], 10.0, 0);
    builder.work("early", &[], 50.0, 0);
    let found = candidates(&builder.finish(), &PlacementOptions::default()).unwrap();
    let mut plan = Evaluator::new(&found);
    plan.set_devices(&[CPU0, CPU1, CPU1]);
    plan.set_queues(Some(vec![0; 3]));
    assert_eq!(plan.makespan_ns(), 100.0 + 5.0 + 10.0);
    // The start order does not make it wait, either.
    plan.set_start_order(Some(vec![0, 2, 1]));
    assert_eq!(plan.makespan_ns(), 100.0 + 5.0 + 10.0);
    // Over a slower link, but from a faster device.
    plan.set_devices(&[GPU0, CPU1, CPU1]);
    assert_eq!(plan.makespan_ns(), 10.0 + 110.0 + 10.0);
    plan.set_devices(&[CPU1, CPU1, CPU1]);
    plan.set_start_order(Some(vec![2, 0, 1]));
    assert_eq!(plan.makespan_ns(), 100.0 + 50.0 + 10.0);
}

#[test]
fn devices_of_one_chip_share_its_queues() {
    let mut builder = Builder::new();
    for name in ["a", "b", "c", "d"] {
        builder.work(name, &[], 100.0, 0);
    }
    let graph = builder.finish();
    let apart = CandidatesBuilder::new(&graph, &devices());
    let shared = apart
        .clone()
        .with_shared_chip(&[DeviceId(CPU0), DeviceId(CPU1)]);
    let makespan = |builder: CandidatesBuilder, queues: Option<Vec<u32>>| {
        let found = builder.build().unwrap();
        let mut plan = Evaluator::new(&found);
        plan.set_devices(&[CPU0, CPU0, CPU1, CPU1]);
        plan.set_queues(queues);
        plan.makespan_ns()
    };
    assert_eq!(makespan(apart.clone(), None), 100.0);
    assert_eq!(makespan(shared.clone(), None), 200.0);
    let queues = Some(vec![0, 1, 0, 1]);
    assert_eq!(makespan(apart, queues.clone()), 100.0);
    assert_eq!(makespan(shared.clone(), queues), 200.0);
    assert_eq!(makespan(shared, Some(vec![0; 4])), 400.0);
}

#[test]
fn devices_that_name_one_chip_share_its_time_in_estimates_and_plans() {
    let mut builder = Builder::new();
    for name in ["a", "b"] {
        builder.work(name, &[], 1e5, 0);
    }
    let graph = builder.finish();
    let device = |device_type: &str, index: u32, chip: Option<&'static str>| {
        let name = format!("{TASK}/device:{device_type}:{index}");
        let fake = FakeDevice::new(&name, device_type);
        match chip {
            Some(chip) => fake.with_chip(chip).shared(),
            None => fake.shared(),
        }
    };
    let found = |chips: [Option<&'static str>; 4]| {
        let [a, b, c, d] = chips;
        let set = DeviceSet::new([
            device("CPU", 0, a),
            device("GPU", 0, b),
            device("GPU", 1, c),
            device("CPU", 1, d),
        ]);
        enumerate(
            &graph,
            &Arc::new(set),
            &kernels(),
            &PlacementOptions::default(),
        )
        .unwrap()
    };
    let apart = found([None; 4]);
    assert_eq!(apart.devices().chips, [0, 1, 2, 3]);
    let host = Some(HOST_PROCESSOR);
    let shared = found([host, None, host, Some("card")]);
    assert_eq!(shared.devices().chips, [0, 1, 0, 3]);
    let makespan_ns = |found: &Candidates| {
        let mut plan = Evaluator::new(found);
        plan.set_devices(&[0, 2]);
        // Without the copy of what is fetched from the second device.
        plan.makespan_ns() - 1_010.0
    };
    assert_eq!(makespan_ns(&shared), 2.0 * makespan_ns(&apart));
    // With all four on one chip, heft expects no gain from spreading; otherwise spreading halves
    // the time.
    let heft_ns = |found: &Candidates| {
        let heft = ShippedPolicy::find("heft").unwrap();
        let limits = PolicyLimits::default();
        let answer = place_natively(heft, &[], found, &PlaceOptions::default(), &limits).unwrap();
        let metrics = answer.proposal.metrics;
        metrics
            .iter()
            .find(|(name, _)| name == "makespan_ns")
            .unwrap()
            .1
    };
    assert_eq!(heft_ns(&found([host; 4])), 2.0 * heft_ns(&apart));
}

#[test]
fn heft_and_the_evaluator_agree_on_a_shared_chip() {
    let graph = synthetic::graph(60, 5);
    let one_queue = |device_type: &str, index: u32| {
        let name = format!("{TASK}/device:{device_type}:{index}");
        FakeDevice::new(&name, device_type).shared()
    };
    let set = DeviceSet::new([one_queue("CPU", 0), one_queue("CPU", 1)]);
    let found = CandidatesBuilder::new(&graph, &Arc::new(set))
        .with_shared_chip(&[DeviceId(0), DeviceId(1)])
        .build()
        .unwrap();
    let heft = ShippedPolicy::find("heft").unwrap();
    let limits = PolicyLimits::default();
    let answer = place_natively(heft, &[], &found, &PlaceOptions::default(), &limits).unwrap();
    let metrics = &answer.proposal.metrics;
    let expected = metrics.iter().find(|(name, _)| name == "makespan_ns");
    let mut plan = Evaluator::new(&found);
    plan.set_devices(&answer.proposal.devices);
    plan.set_start_order(answer.proposal.start_order.clone());
    let (found_ns, expected_ns) = (plan.makespan_ns(), expected.unwrap().1);
    // The same durations, added in another order.
    assert!(
        (found_ns - expected_ns).abs() <= expected_ns * 1e-9,
        "{found_ns} {expected_ns}"
    );
    let all_ns: f64 = graph
        .nodes()
        .map(|node| found.work_ns(node, DeviceId(0)))
        .sum();
    assert!(found_ns >= all_ns * (1.0 - 1e-9), "{found_ns} {all_ns}");
}

/// A constant that waits for a node runs; control is transferred, without bytes.
#[test]
fn preloaded_tensors_are_not_transferred() {
    let mut builder = Builder::new();
    let fed = builder.node("fed", "Placeholder", &[]);
    let constant = builder.node("constant", "Const", &[]);
    let first = builder.node("first", "Any", &[fed, constant]);
    let late = builder.node_after("late", "Const", &[first]);
    builder.node("last", "Any", &[constant, late]);
    let graph = builder.finish();
    let found = candidates(&graph, &PlacementOptions::default()).unwrap();
    let is_preloaded = |kind: &u8| kind & EdgeKind::PRELOADED != 0;
    let given: Vec<bool> = found.nodes().edge_kinds.iter().map(is_preloaded).collect();
    assert_eq!(given, [true, true, false, true, false]);

    let devices = [CPU0, CPU0, CPU1, CPU0, CPU1];
    let placement = check(&found, propose(&devices)).unwrap();
    let summary = placement.summary();
    assert_eq!((summary.n_transfers, summary.transfer_bytes), (1, 100));
    assert_eq!(summary.n_signals, 1);
    let mut plan = Evaluator::new(&found);
    plan.set_devices(&devices);
    assert_eq!(plan.transfer_bytes(), 100);
    // There and back, 5 ns each; nothing waits for preloaded tensors.
    assert_eq!(plan.makespan_ns(), 10.0);

    let output = |name: &str| graph.output(graph.find_node(name).unwrap(), 0).unwrap();
    let request = RunRequest {
        feeds: vec![output("fed")],
        fetches: vec![output("last")],
        targets: Vec::new(),
    };
    let cut = placement.partition(&request).unwrap();
    let carried = |is_once: bool| -> Vec<String> {
        let transfers = cut.transfers().iter();
        let transfers = transfers.filter(|transfer| transfer.is_once == is_once);
        transfers
            .map(|transfer| transfer.payload.name(&graph))
            .collect()
    };
    assert_eq!(carried(true), ["constant:0"]);
    assert_eq!(carried(false), ["^first", "late:0"]);
    assert_eq!(late.0, 3);
}

/// A constant takes memory where it is read, and is reported there.
#[test]
fn constants_are_held_by_the_devices_that_read_them() {
    let b = GraphBuilder::new("constants");
    let [shared, _unread] = [30, 20].map(|n| b.constant([n], &vec![1f32; n]).unwrap());
    for _ in 0..3 {
        b.relu(shared).unwrap();
    }
    let graph = Arc::new(b.finish());
    assert!(
        graph.successors().row(1).is_empty(),
        "nothing reads the second constant"
    );
    let found = CandidatesBuilder::new(&graph, &devices()).build().unwrap();
    // The nodes are: both constants, and the three readers.
    let placed = [CPU0, CPU1, GPU0, GPU0, GPU1];
    let placement = check(&found, propose(&placed)).unwrap();
    let summary = placement.summary();
    let held: Vec<u64> = summary.devices.iter().map(|it| it.resident_bytes).collect();
    assert_eq!(held, [0, 80, 120, 120]);
    // The peaks add the outputs of the readers.
    let mut plan = Evaluator::new(&found);
    plan.set_devices(&placed);
    assert_eq!(plan.peak_bytes_per_device(), [0, 80, 360, 240]);
}

#[test]
fn transfers_are_counted_once_per_tensor_and_destination() {
    let found = candidates(&diamond(), &PlacementOptions::default()).unwrap();
    let placement = check(&found, propose(&[CPU0, GPU0, GPU0, CPU1])).unwrap();
    let summary = placement.summary();
    // a to GPU0 once for two consumers; b and c to CPU1.
    assert_eq!((summary.n_transfers, summary.transfer_bytes), (3, 300));
    let counts: Vec<_> = summary
        .devices
        .iter()
        .map(|device| device.n_nodes)
        .collect();
    assert_eq!(counts, [1, 1, 2, 0]);
    assert_eq!(summary.devices[GPU0 as usize].resident_bytes, 40);
    assert_eq!(summary.devices[GPU0 as usize].work_ns, 50.0);
    let mut plan = Evaluator::new(&found);
    plan.set_devices(placement.devices());
    assert_eq!(plan.transfer_bytes(), 300);
    // The steps run one after the other. CPU0 holds a's output; GPU0 its copy and c's state, then
    // b's or c's output; CPU1 both copies and d's output.
    assert_eq!(plan.peak_bytes_per_device(), [100, 300, 240, 0]);
}

#[test]
fn peaks_are_reported_for_plans_that_lack_only_memory() {
    let mut builder = Builder::new();
    let a = builder.work("a", &[], 10.0, 600);
    let pinned = builder.work("b", &[a], 10.0, 600);
    let graph = builder.finish();
    let found = CandidatesBuilder::new(&graph, &devices())
        .with_pin(pinned, DeviceId(GPU0))
        .build()
        .unwrap();
    let mut plan = Evaluator::new(&found);
    plan.set_devices(&[GPU0; 2]);
    assert_eq!(plan.violation().unwrap().rule(), "memory");
    assert_eq!(plan.peak_bytes_per_device(), [0, 0, 1400, 0]);
    assert_eq!(plan.makespan_ns(), f64::INFINITY);
    plan.set_queues(Some(vec![0, 7]));
    assert_eq!(
        plan.peak_bytes_per_device(),
        [0; 4],
        "a queue is missing too"
    );
    plan.set_queues(None);
    plan.move_nodes(&[pinned.0], GPU1);
    assert_eq!(plan.peak_bytes_per_device(), [0; 4], "a pin is broken");
    plan.move_nodes(&[a.0, pinned.0], GPU0);
    plan.move_nodes(&[a.0], CPU0);
    assert_eq!(plan.violation(), None);
    assert_eq!(plan.peak_bytes_per_device(), [700, 0, 800, 0]);
}

#[test]
fn moves_are_estimated_like_a_new_plan() {
    let graph = synthetic::graph(1500, 3);
    let set = Arc::new(synthetic::devices(6));
    let options = PlacementOptions::default();
    let found = enumerate(&graph, &set, &synthetic::kernels(), &options).unwrap();
    let first: Vec<u32> = graph.nodes().map(|node| found.of_node(node)[0]).collect();
    let mut plan = Evaluator::new(&found);
    plan.set_devices(&first);
    plan.makespan_ns();
    for round in 0..40u32 {
        let node = NodeId((round * 379 + 11) % 1500);
        let legal = found.of_node(node);
        plan.move_nodes(&[node.0], legal[round as usize % legal.len()]);
        let incremental = plan.makespan_ns();
        let mut fresh = Evaluator::new(&found);
        fresh.set_devices(plan.devices());
        assert_eq!(incremental, fresh.makespan_ns(), "round {round}");
        assert!(incremental.is_finite());
    }
}

#[test]
fn moving_a_node_moves_its_group_and_keeps_the_rules() {
    let mut builder = Builder::new();
    let a = builder.node("a", "Any", &[]);
    let b = builder.with("b", "Any", &[], "", "a");
    let cpu = builder.node("cpu", "CpuOnly", &[]);
    let found = candidates(&builder.finish(), &PlacementOptions::default()).unwrap();
    let mut plan = Evaluator::new(&found);
    assert_eq!(plan.violation().unwrap().rule(), "length");
    plan.set_devices(&[GPU0, GPU0, CPU0]);
    assert_eq!(plan.violation(), None);
    // Each group once, whatever the list; unknown nodes are ignored.
    assert_eq!(plan.move_nodes(&[b.0, a.0, b.0, 77], GPU1), 4 + 2);
    assert_eq!(plan.devices(), [GPU1, GPU1, CPU0]);
    assert!(plan.makespan_ns().is_finite());
    plan.move_nodes(&[cpu.0], GPU0);
    assert_eq!(plan.violation().unwrap().rule(), "candidate");
    assert_eq!(
        (plan.makespan_ns(), plan.transfer_bytes()),
        (f64::INFINITY, 0)
    );
    plan.move_nodes(&[a.0, cpu.0], CPU1);
    assert_eq!(plan.violation(), None);
    plan.move_nodes(&[a.0], 99);
    assert_eq!(plan.violation().unwrap().rule(), "device");
}

#[test]
fn a_move_that_exceeds_a_memory_is_rejected() {
    let mut builder = Builder::new();
    builder.work("a", &[], 0.0, 600);
    builder.work("b", &[], 0.0, 600);
    let found = candidates(&builder.finish(), &PlacementOptions::default()).unwrap();
    let mut plan = Evaluator::new(&found);
    plan.set_devices(&[CPU0, CPU1]);
    assert_eq!(plan.violation(), None);
    plan.move_nodes(&[1], CPU0);
    assert_eq!(plan.violation().unwrap().rule(), "memory");
    plan.move_nodes(&[0], GPU0);
    assert_eq!(plan.violation(), None);
}

#[test]
fn the_last_legal_offer_is_the_answer() {
    let found = candidates(&diamond(), &PlacementOptions::default()).unwrap();
    let mut plan = Evaluator::new(&found);
    assert!(plan.offer().is_err());
    assert!(plan.offered().is_none());
    plan.set_devices(&[CPU0; 4]);
    plan.offer().unwrap();
    plan.set_devices(&[99; 4]);
    assert_eq!(plan.offer().unwrap_err().rule(), "device");
    let answer = plan.into_proposal().unwrap();
    assert_eq!(answer.devices, [CPU0; 4]);
}

/// A chain of three nodes, the second of which needs a workspace of 2 MiB, on a CPU and a fast
/// device of 1 MiB.
fn needs_a_workspace() -> Candidates {
    let mut builder = Builder::new();
    let first = builder.work("first", &[], 1e6, 1000);
    let heavy = builder.full(
        "heavy",
        "Any",
        &[first],
        "",
        &[],
        Work {
            flops: 1e6,
            workspace_bytes: 2 << 20,
            ..Work::default()
        },
    );
    builder.work("last", &[heavy], 1e6, 1000);
    let rates = DeviceRates::default_cpu(1);
    let fast = DeviceRates {
        flops_per_s: 100.0 * rates.flops_per_s,
        ..rates
    };
    let set = DeviceSet::new([
        FakeDevice::new(&format!("{TASK}/device:CPU:0"), "CPU").shared(),
        FakeDevice::new(&format!("{TASK}/device:GPU:0"), "GPU")
            .with_rates(fast)
            .with_capacity_bytes(1 << 20)
            .shared(),
    ]);
    let set = Arc::new(set.with_type_priorities([("CPU", 60), ("GPU", 210)]));
    let builder = CandidatesBuilder::new(&builder.finish(), &set);
    builder.build().unwrap()
}

#[test]
fn every_policy_finds_memory_for_a_workspace() {
    let found = needs_a_workspace();
    let limits = PolicyLimits::default();
    for name in ["heft", "round-robin"] {
        let policy = ShippedPolicy::find(name).unwrap();
        let answer = place_natively(policy, &[], &found, &PlaceOptions::default(), &limits);
        let proposal = answer.unwrap().proposal;
        assert_eq!(proposal.devices[1], 0, "{name}");
        assert!(check(&found, proposal).is_ok());
    }
    let refused = check(&found, propose(&[0, 1, 0])).unwrap_err();
    assert_eq!(refused.rule(), "memory");
}
