//! Re-placement: which nodes stay when devices are lost, added or shrunk, which move, and what is
//! rejected.

use std::collections::BTreeMap;
use std::sync::Arc;

use placewright::candidates::Candidates;
use placewright::candidates::CandidatesBuilder;
use placewright::candidates::PlacementOptions;
use placewright::candidates::Proposal;
use placewright::candidates::enumerate;
use placewright::device::Device;
use placewright::device::DeviceSet;
use placewright::graph::Graph;
use placewright::graph::NodeId;
use placewright::graph::Work;
use placewright::names::DeviceId;
use placewright::placement::KeepError;
use placewright::placement::Kept;
use placewright::placement::MoveReason;
use placewright::placement::Placement;
use placewright::placement::Replacement;
use placewright::placement::SavedPlacement;
use placewright::placement::check;
use placewright::policy::PlaceOptions;
use placewright::policy::PolicyLimits;
use placewright::policy::ShippedPolicy;
use placewright::policy::place_natively;
use proptest::prelude::*;

use super::Builder;
use super::TASK;
use super::kernels;
use super::propose;
use crate::fakes::FakeDevice;
use crate::sample;

/// Devices by type, index and capacity in bytes.
fn devices(all: &[(&str, u32, u64)]) -> Arc<DeviceSet> {
    let devices = all
        .iter()
        .map(|&(device_type, index, bytes)| -> Arc<dyn Device> {
            FakeDevice::new(&format!("{TASK}/device:{device_type}:{index}"), device_type)
                .with_capacity_bytes(bytes)
                .shared()
        });
    Arc::new(DeviceSet::new(devices).with_type_priorities([("CPU", 60), ("GPU", 210)]))
}

fn candidates_on(graph: &Arc<Graph>, devices: &Arc<DeviceSet>) -> Candidates {
    enumerate(graph, devices, &kernels(), &PlacementOptions::default()).unwrap()
}

const FOUR: [(&str, u32, u64); 4] = [
    ("CPU", 0, 1000),
    ("CPU", 1, 1000),
    ("GPU", 0, 1000),
    ("GPU", 1, 1000),
];

/// Places nodes on [`FOUR`] as given.
fn placed(graph: &Arc<Graph>, on: &[u32]) -> Placement {
    check(&candidates_on(graph, &devices(&FOUR)), propose(on)).unwrap()
}

/// Returns every shipped policy's answer for the open nodes.
fn settled(kept: &Kept) -> Vec<(Placement, Replacement)> {
    let options = PlaceOptions::default();
    ShippedPolicy::all()
        .map(|policy| {
            let limits = PolicyLimits::default();
            let settings = sample::quick(policy, 5_000);
            let answer = place_natively(policy, &settings, kept.candidates(), &options, &limits);
            let placement = check(kept.candidates(), answer.unwrap().proposal).unwrap();
            kept.clone().settle(placement).unwrap()
        })
        .collect()
}

/// Returns the moved nodes, and the reasons.
fn moved(graph: &Graph, replacement: &Replacement) -> Vec<(String, MoveReason)> {
    let moved = replacement.moved.iter();
    moved
        .map(|moved| (graph.node_name(moved.node).to_owned(), moved.reason))
        .collect()
}

/// Returns `n0`, `n1` .. with these resident bytes, without edges.
fn graph_of(resident_bytes: &[u64]) -> Arc<Graph> {
    let mut builder = Builder::without_sizes();
    for (index, &bytes) in resident_bytes.iter().enumerate() {
        builder.work(&format!("n{index}"), &[], 1e3, bytes);
    }
    builder.finish()
}

#[test]
fn nodes_of_a_lost_device_move_with_their_groups_and_no_others() {
    let mut builder = Builder::new();
    let a = builder.with("a", "Any", &[], "", "together");
    let b = builder.node("b", "Any", &[a]);
    let c = builder.with("c", "Any", &[b], "", "together");
    builder.node("d", "Any", &[c]);
    let graph = builder.finish();
    // GPU:0 is lost, and the others have other numbers.
    let now = candidates_on(&graph, &devices(&[FOUR[3], FOUR[1], FOUR[0]]));
    let kept = Kept::of_placement(&now, &placed(&graph, &[2, 3, 2, 1])).unwrap();
    for (placement, replacement) in settled(&kept) {
        assert_eq!(placement.devices()[1], 0);
        assert_eq!(placement.devices()[3], 1);
        assert_eq!(placement.devices()[0], placement.devices()[2]);
        let expected = [
            ("a".to_owned(), MoveReason::DeviceLost),
            ("c".to_owned(), MoveReason::DeviceLost),
        ];
        assert_eq!(moved(&graph, &replacement), expected);
        assert_eq!(&*replacement.moved[0].from, format!("{TASK}/device:GPU:0"));
        assert_eq!((replacement.n_kept, replacement.n_new), (2, 0));
        assert!(Arc::ptr_eq(placement.candidates().graph(), &graph));
    }
}

#[test]
fn nothing_moves_when_a_device_is_added() {
    let graph = graph_of(&[10, 20, 30, 0]);
    let before = placed(&graph, &[0, 1, 3, 1]);
    // The new one would be preferred, and comes first.
    let more = devices(&[("GPU", 7, 1 << 30), FOUR[0], FOUR[1], FOUR[2], FOUR[3]]);
    let now = candidates_on(&graph, &more);
    let kept = Kept::of_placement(&now, &before).unwrap();
    for (placement, replacement) in settled(&kept) {
        assert_eq!(placement.devices(), [1, 2, 4, 2]);
        assert_eq!(replacement.n_kept, 4);
        assert!(replacement.moved.is_empty());
        // The next re-placement starts from all candidates, not from the remaining ones.
        assert_eq!(placement.candidates().of_node(NodeId(0)).len(), 5);
    }
}

#[test]
fn on_a_shrunk_device_the_smallest_sufficient_group_moves() {
    // All nodes are on CPU:0, which had 1000 bytes. Which ones must move, by the remaining
    // capacity.
    let sizes = [100, 300, 300, 50, 0, 200];
    let rows: [(u64, &[&str]); 6] = [
        (950, &[]),
        (949, &["n3"]),
        (890, &["n0"]),
        // The first of two equal ones.
        (700, &["n1"]),
        // No single group suffices: the largest, then the smallest that suffices.
        (600, &["n1", "n3"]),
        (0, &["n0", "n1", "n2", "n3", "n5"]),
    ];
    let graph = graph_of(&sizes);
    let before = placed(&graph, &[0; 6]);
    for (capacity, expected) in rows {
        let now = candidates_on(&graph, &devices(&[("CPU", 0, capacity), FOUR[1], FOUR[2]]));
        let kept = Kept::of_placement(&now, &before).unwrap();
        for (placement, replacement) in settled(&kept) {
            let expected: Vec<_> = expected
                .iter()
                .map(|name| ((*name).to_owned(), MoveReason::Memory))
                .collect();
            assert_eq!(moved(&graph, &replacement), expected, "{capacity} bytes");
            assert_eq!(placement.devices()[4], 0, "it needs nothing");
        }
    }
}

#[test]
fn a_group_that_fits_nowhere_else_stays_and_another_goes() {
    let mut builder = Builder::without_sizes();
    let work = |resident_bytes| Work {
        flops: 1e3,
        resident_bytes,
        ..Work::default()
    };
    // `small` would suffice, but its other device is full.
    builder.full("small", "CpuOnly", &[], "", &[], work(300));
    builder.full("large", "Any", &[], "", &[], work(400));
    builder.full("full", "CpuOnly", &[], "/device:CPU:1", &[], work(900));
    let graph = builder.finish();
    let before = placed(&graph, &[0, 0, 1]);
    let now = candidates_on(&graph, &devices(&[("CPU", 0, 500), FOUR[1], FOUR[2]]));
    for (_, replacement) in settled(&Kept::of_placement(&now, &before).unwrap()) {
        assert_eq!(
            moved(&graph, &replacement),
            [("large".to_owned(), MoveReason::Memory)]
        );
    }
    let now = candidates_on(&graph, &devices(&[("CPU", 0, 200), FOUR[1], FOUR[2]]));
    let error = Kept::of_placement(&now, &before).unwrap_err().to_string();
    assert!(
        error.contains("`small`") && error.contains("has enough free memory"),
        "{error}"
    );
}

#[test]
fn groups_move_as_a_whole_and_workspaces_count() {
    let mut builder = Builder::without_sizes();
    let work = |resident_bytes, workspace_bytes| Work {
        flops: 1e3,
        resident_bytes,
        workspace_bytes,
        ..Work::default()
    };
    builder.full("a", "Any", &[], "", &["g"], work(100, 0));
    builder.full("b", "Any", &[], "", &[], work(150, 0));
    builder.full("c", "Any", &[], "", &["g"], work(100, 0));
    builder.full("d", "Any", &[], "", &[], work(10, 500));
    let graph = builder.finish();
    let before = placed(&graph, &[0; 4]);
    let rows: [(u64, &[&str]); 4] = [
        (860, &[]),
        // One byte too many, of 860: the workspace of `d` moves before anything large.
        (859, &["d"]),
        (350, &["d"]),
        (349, &["b", "d"]),
    ];
    for (capacity, expected) in rows {
        let now = candidates_on(&graph, &devices(&[("CPU", 0, capacity), FOUR[1], FOUR[2]]));
        let kept = Kept::of_placement(&now, &before).unwrap();
        for (_, replacement) in settled(&kept) {
            let moved = moved(&graph, &replacement);
            let names: Vec<&str> = moved.iter().map(|(name, _)| name.as_str()).collect();
            assert_eq!(names, expected, "{capacity} bytes");
        }
    }
}

#[test]
fn state_and_pins_stay_and_are_reported_if_they_do_not_fit() {
    let mut builder = Builder::without_sizes();
    let work = |resident_bytes| Work {
        flops: 1e3,
        resident_bytes,
        ..Work::default()
    };
    // `Var` has state, and its reader shares its device.
    let v = builder.full("v", "Var", &[], "", &[], work(300));
    builder.full("reader", "Any", &[v], "", &[], work(0));
    builder.full("large", "Any", &[], "", &[], work(400));
    builder.full("pinned", "Any", &[], "", &[], work(200));
    let graph = builder.finish();
    let options = PlacementOptions::default().with_pin(NodeId(3), DeviceId(0));
    let on = |capacity| {
        let devices = devices(&[("CPU", 0, capacity), FOUR[1], FOUR[2]]);
        enumerate(&graph, &devices, &kernels(), &options).unwrap()
    };
    let before = placed(&graph, &[0; 4]);
    let kept = Kept::of_placement(&on(899), &before).unwrap();
    for (placement, replacement) in settled(&kept) {
        assert_eq!(
            [
                placement.devices()[0],
                placement.devices()[1],
                placement.devices()[3]
            ],
            [0; 3]
        );
        assert_eq!(
            moved(&graph, &replacement),
            [("large".to_owned(), MoveReason::Memory)]
        );
    }
    let error = Kept::of_placement(&on(499), &before).unwrap_err();
    assert_eq!(
        error,
        KeepError::CannotMove {
            node: "v".to_owned(),
            device: format!("{TASK}/device:CPU:0"),
            why: "it keeps state there",
            needed_bytes: 500,
            capacity_bytes: 499,
        }
    );
    // On a lost device, state is lost, and reported as lost.
    let options = PlacementOptions::default();
    let others = enumerate(&graph, &devices(&FOUR[1..]), &kernels(), &options).unwrap();
    for (_, replacement) in settled(&Kept::of_placement(&others, &before).unwrap()) {
        let lost: Vec<bool> = replacement
            .moved
            .iter()
            .map(|moved| moved.is_stateful)
            .collect();
        assert_eq!(lost, [true, false, false, false]);
    }
}

#[test]
fn a_node_that_fits_nowhere_is_named_with_the_free_memory() {
    let graph = graph_of(&[600, 700, 700]);
    let before = placed(&graph, &[0, 1, 2]);
    let now = candidates_on(&graph, &devices(&[FOUR[1], FOUR[2]]));
    let error = Kept::of_placement(&now, &before).unwrap_err();
    let KeepError::NoSpace { node, reason, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!((node.as_str(), *reason), ("n0", MoveReason::DeviceLost));
    assert!(error.to_string().contains("CPU:1 (300 B free)"), "{error}");
    // A group that needs more than its memory, and may not run elsewhere.
    let mut builder = Builder::new();
    builder.full(
        "only",
        "CpuOnly",
        &[],
        "/device:CPU:0",
        &[],
        Work {
            resident_bytes: 500,
            ..Work::default()
        },
    );
    let graph = builder.finish();
    let before = placed(&graph, &[0]);
    let now = candidates_on(&graph, &devices(&[("CPU", 0, 400), FOUR[1]]));
    let error = Kept::of_placement(&now, &before).unwrap_err().to_string();
    assert!(
        error.contains("`only`") && error.contains("no other device"),
        "{error}"
    );
}

#[test]
fn nodes_that_may_not_stay_move_with_a_reason() {
    let node = |op, device| {
        let mut builder = Builder::new();
        builder.on("n", op, &[], device);
        builder.finish()
    };
    let graph = node("Any", "");
    let before = placed(&graph, &[2]);
    for changed in [node("CpuOnly", ""), node("Any", "/device:CPU:*")] {
        let now = candidates_on(&changed, &devices(&FOUR));
        for (_, replacement) in settled(&Kept::of_placement(&now, &before).unwrap()) {
            assert_eq!(
                moved(&changed, &replacement),
                [("n".to_owned(), MoveReason::NotLegal)]
            );
        }
    }
    let options = PlacementOptions::default().with_pin(NodeId(0), DeviceId(1));
    let now = enumerate(&graph, &devices(&FOUR), &kernels(), &options).unwrap();
    for (_, replacement) in settled(&Kept::of_placement(&now, &before).unwrap()) {
        assert_eq!(
            moved(&graph, &replacement),
            [("n".to_owned(), MoveReason::Pinned)]
        );
    }
}

#[test]
fn a_saved_placement_of_a_smaller_graph_is_kept_and_new_nodes_are_counted() {
    let graph = graph_of(&[10, 10]);
    let saved = SavedPlacement::new(&placed(&graph, &[3, 1]), "mine", 0, []);
    let larger = graph_of(&[10, 10, 10]);
    let now = candidates_on(&larger, &devices(&FOUR));
    for (placement, replacement) in settled(&Kept::of_saved(&now, &saved).unwrap()) {
        assert_eq!(placement.devices()[..2], [3, 1]);
        assert_eq!((replacement.n_kept, replacement.n_new), (2, 1));
    }
}

#[test]
fn placements_of_stated_candidates_are_kept_likewise() {
    let graph = graph_of(&[10, 10, 10]);
    let before = placed(&graph, &[0, 3, 3]);
    let builder = CandidatesBuilder::new(&graph, &devices(&FOUR[..3])).with_cost_ns(
        NodeId(2),
        DeviceId(2),
        f64::INFINITY,
    );
    let kept = Kept::of_placement(&builder.build().unwrap(), &before).unwrap();
    for (placement, replacement) in settled(&kept) {
        assert_eq!(placement.devices()[0], 0);
        assert_ne!(placement.devices()[2], 2);
        assert_eq!(replacement.moved.len(), 2);
    }
}

/// A node of a random graph: op, request, group, resident bytes, producer.
type Draw = (usize, usize, usize, u64, usize);

/// Nodes some of which request devices that stay, share groups of one kind of request, and need
/// memory.
fn random_graph(draws: &[Draw]) -> Arc<Graph> {
    let mut builder = Builder::new();
    let mut nodes: Vec<NodeId> = Vec::new();
    for (index, &(op, request, group, resident_bytes, producer)) in draws.iter().enumerate() {
        let op = ["Any", "Any", "CpuOnly", "Var"][op];
        let inputs: Vec<NodeId> = nodes.get(producer).copied().into_iter().collect();
        // Groups of nodes without requests cannot conflict.
        let group = ["", "g", "h"][group];
        let groups: &[&str] = if group.is_empty() || request > 0 {
            &[]
        } else {
            &[group]
        };
        let device = ["", "/device:CPU:*", "/device:CPU:0"][request];
        let work = Work {
            flops: 1e3,
            resident_bytes,
            workspace_bytes: resident_bytes / 7,
            ..Work::default()
        };
        nodes.push(builder.full(&format!("n{index}"), op, &inputs, device, groups, work));
    }
    builder.finish()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Whatever happens to the devices, the result is legal, nothing moves without a reason, and
    /// the reasons are true.
    #[test]
    fn nodes_move_only_for_a_reason(
        draws in prop::collection::vec((0..4usize, 0..3usize, 0..3usize, 0..200u64, 0..12usize), 1..14),
        policy in 0..17usize,
        capacities in prop::collection::vec(0..1200u64, 3),
        n_lost in 0..3usize,
        is_shrunk in any::<bool>(),
    ) {
        let graph = random_graph(&draws);
        let all = [("CPU", 0, 4000), ("GPU", 0, 4000), ("CPU", 1, 4000), ("GPU", 1, 4000)];
        let policies: Vec<ShippedPolicy> = ShippedPolicy::all().collect();
        let ask = |candidates: &Candidates| {
            let limits = PolicyLimits::default();
            let options = PlaceOptions::default();
            let settings = sample::quick(policies[policy], 5_000);
            let answer = place_natively(policies[policy], &settings, candidates, &options, &limits);
            let answer = answer.ok()?;
            check(candidates, answer.proposal).ok()
        };
        let Ok(first) = enumerate(&graph, &devices(&all), &kernels(), &PlacementOptions::default()) else {
            return Ok(());
        };
        let before = ask(&first).expect("every device has memory for all nodes");
        // CPU:0, which some nodes request, stays; the others follow in another order.
        let mut now: Vec<(&str, u32, u64)> = all[..4 - n_lost].to_vec();
        if is_shrunk {
            for (device, &bytes) in now.iter_mut().skip(1).zip(&capacities) {
                device.2 = bytes;
            }
        }
        now.reverse();
        now.push(("GPU", 9, 4000));
        let candidates = candidates_on(&graph, &devices(&now));
        let kept = match Kept::of_placement(&candidates, &before) {
            Ok(kept) => kept,
            Err(KeepError::CannotMove { .. } | KeepError::NoSpace { .. }) => {
                prop_assert!(is_shrunk, "there is memory for all nodes");
                return Ok(());
            }
            Err(error) => return Err(TestCaseError::fail(error.to_string())),
        };
        // `priority` ignores memory: the ladder handles its illegal plans.
        let Some(placement) = ask(kept.candidates()) else {
            prop_assert!(is_shrunk);
            return Ok(());
        };
        let (placement, replacement) = kept.settle(placement).unwrap();
        // An assignment alone may need more memory: the order is part of the plan.
        let whole = Proposal {
            start_order: placement.start_order().map(<[i32]>::to_vec),
            queues: placement.queues().map(<[u32]>::to_vec),
            ..propose(placement.devices())
        };
        prop_assert!(check(&candidates, whole).is_ok());
        let reasons: BTreeMap<NodeId, MoveReason> =
            replacement.moved.iter().map(|moved| (moved.node, moved.reason)).collect();
        prop_assert_eq!(replacement.n_kept + reasons.len(), graph.n_nodes());
        let name = |placement: &Placement, node| {
            placement.candidates().device_name(placement.device(node).0).to_owned()
        };
        let is_there = |name: &str| candidates.device_set().find_by_name(name).is_some();
        for node in graph.nodes() {
            let (old, new) = (name(&before, node), name(&placement, node));
            match reasons.get(&node) {
                None => prop_assert_eq!(old, new),
                Some(MoveReason::DeviceLost) => prop_assert!(!is_there(&old)),
                Some(MoveReason::Memory) => {
                    prop_assert!(is_shrunk && is_there(&old) && old != new);
                    let group = candidates.nodes().group[node.index()];
                    let is_stateful = |other: &NodeId| graph.class(*other).stateful;
                    let is_member = |other: &NodeId| candidates.nodes().group[other.index()] == group;
                    let members: Vec<NodeId> = graph.nodes().filter(is_member).collect();
                    prop_assert!(!members.iter().any(is_stateful));
                    // The whole group moved, and no member could have stayed without a reason to
                    // move.
                    for other in members {
                        prop_assert_eq!(reasons.get(&other), Some(&MoveReason::Memory));
                    }
                }
                Some(other) => return Err(TestCaseError::fail(other.to_string())),
            }
        }
    }
}
