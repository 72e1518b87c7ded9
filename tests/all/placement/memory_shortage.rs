//! Errors about memories that are too small: their contents, their text, and that each remedy
//! helps.

use std::sync::Arc;

use placewright::builder::GraphBuilder;
use placewright::candidates::Candidates;
use placewright::candidates::CandidatesBuilder;
use placewright::candidates::PlacementOptions;
use placewright::candidates::enumerate;
use placewright::device::DeviceSet;
use placewright::graph::Graph;
use placewright::graph::NodeId;
use placewright::graph::Work;
use placewright::memory::MemoryHolder;
use placewright::memory::MemoryHolderKind;
use placewright::names::DeviceId;
use placewright::placement::Evaluator;
use placewright::placement::Infeasibility;
use placewright::placement::MemoryRemedy;
use placewright::placement::MemoryShortage;
use placewright::placement::Violation;
use placewright::placement::check;
use placewright::policy::LadderError;
use placewright::policy::PlaceOptions;
use placewright::policy::PolicyEngine;
use placewright::policy::PolicyLimits;
use placewright::policy::PolicyRequest;
use placewright::policy::Rung;
use placewright::policy::ShippedPolicy;
use placewright::policy::place_natively;
use placewright::policy::place_with_ladder;

use super::Builder;
use super::CPU0;
use super::CPU1;
use super::GPU0;
use super::TASK;
use super::devices;
use super::kernels;
use super::propose;
use crate::fakes::FakeDevice;

/// CPU devices with memories of these sizes.
fn cpus(capacities: &[u64]) -> Arc<DeviceSet> {
    let devices = capacities.iter().enumerate().map(|(index, &bytes)| {
        FakeDevice::new(&format!("{TASK}/device:CPU:{index}"), "CPU")
            .with_capacity_bytes(bytes)
            .shared()
    });
    Arc::new(DeviceSet::new(devices))
}

fn candidates(graph: &Arc<Graph>, devices: &Arc<DeviceSet>, n_runs: usize) -> Candidates {
    let options = PlacementOptions::default().with_concurrent_runs(n_runs);
    enumerate(graph, devices, &kernels(), &options).unwrap()
}

fn shortage(candidates: &Candidates, devices: &[u32]) -> MemoryShortage {
    match check(candidates, propose(devices)).unwrap_err() {
        Violation::Memory { shortage, .. } => *shortage,
        other => panic!("{other}"),
    }
}

/// Three nodes with 600, 300 and 200 bytes of state, each of which produces 100 bytes.
fn three_states() -> Arc<Graph> {
    let mut builder = Builder::new();
    let a = builder.work("a", &[], 0.0, 600);
    let b = builder.work("b", &[a], 0.0, 300);
    builder.work("c", &[b], 0.0, 200);
    builder.finish()
}

#[test]
fn a_shortage_reports_memory_amount_holders_and_remedies() {
    let found = candidates(&three_states(), &devices(), 1);
    let violation = check(&found, propose(&[CPU0; 3])).unwrap_err();
    let found = shortage(&found, &[CPU0; 3]);
    assert_eq!(found.device, format!("{TASK}/device:CPU:0"));
    assert_eq!((found.needed_bytes, found.capacity_bytes), (1300, 1000));
    assert_eq!(found.lacking_bytes(), 300);
    let holders: Vec<_> = found
        .holders
        .iter()
        .map(|holder| (holder.kind, holder.name.as_str(), holder.bytes))
        .collect();
    assert_eq!(
        holders,
        [
            (MemoryHolderKind::State, "a", 600),
            (MemoryHolderKind::State, "b", 300),
            (MemoryHolderKind::State, "c", 200),
        ]
    );
    assert_eq!(
        violation.to_string(),
        "CPU:0 lacks 300 B: the plan needs 1.3 KiB (state 1.1 KiB, one run 200 B) and may use 1000 B; \
         largest: state of `a` 600 B, state of `b` 300 B and state of `c` 200 B; \
         use another policy, or place `c` or other nodes on GPU:0, GPU:1 or CPU:1 (1000 B free each), \
         or raise the capacity (`--memory CPU:0=1300`)"
    );
    assert_eq!(
        found.summary(),
        "CPU:0 lacks 300 B (the plan needs 1.3 KiB and may use 1000 B)"
    );
}

#[test]
fn a_policys_offer_returns_the_same_message() {
    let found = candidates(&three_states(), &devices(), 1);
    let checked = check(&found, propose(&[CPU0; 3])).unwrap_err();
    let mut plan = Evaluator::new(&found);
    plan.set_devices(&[CPU0; 3]);
    assert_eq!(plan.offer().unwrap_err(), checked);
}

#[test]
fn workspaces_and_tensors_of_all_runs_are_listed() {
    let mut builder = Builder::new();
    let first = builder.node("first", "Any", &[]);
    let work = Work {
        workspace_bytes: 700,
        ..Work::default()
    };
    builder.full("heavy", "Any", &[first], "", &[], work);
    let found = candidates(&builder.finish(), &cpus(&[1000]), 2);
    let found = shortage(&found, &[0; 2]);
    assert_eq!((found.run_bytes, found.n_runs), (900, 2));
    let strings: Vec<String> = found.holders.iter().map(ToString::to_string).collect();
    assert_eq!(
        strings,
        [
            "workspace of `heavy` 1.4 KiB",
            "tensor `first:0` 200 B",
            "tensor `heavy:0` 200 B",
        ]
    );
}

#[test]
fn every_remedy_helps() {
    let graph = three_states();
    // One run needs 1,300 bytes, and each further one 200. `c` with its inputs and outputs fits
    // into the other memory; `a` and `b` do not.
    let found = candidates(&graph, &cpus(&[1600, 850]), 3);
    let found = shortage(&found, &[0; 3]);
    assert_eq!(
        found.remedies,
        [
            MemoryRemedy::Move {
                node: "c".to_owned(),
                devices: vec![(format!("{TASK}/device:CPU:1"), 850)],
            },
            MemoryRemedy::FewerRuns { n_runs: 2 },
            MemoryRemedy::RaiseCapacity {
                devices: vec![format!("{TASK}/device:CPU:0")],
                bytes: 1700,
            },
        ]
    );
    let fits = |capacities: &[u64], n_runs: usize, devices: [u32; 3]| {
        let found = candidates(&graph, &cpus(capacities), n_runs);
        check(&found, propose(&devices)).is_ok()
    };
    assert!(fits(&[1600, 850], 3, [0, 0, 1]));
    assert!(fits(&[1600, 850], 2, [0; 3]) && !fits(&[1600, 850], 3, [0; 3]));
    assert!(fits(&[1700, 850], 3, [0; 3]) && !fits(&[1699, 850], 3, [0; 3]));

    // The other memory has no space for any node.
    let found = candidates(&graph, &cpus(&[1600, 200]), 3);
    let found = shortage(&found, &[0; 3]);
    let has_move = |remedy: &MemoryRemedy| matches!(remedy, MemoryRemedy::Move { .. });
    assert!(!found.remedies.iter().any(has_move), "{found}");

    // There is no other memory: a further device would have space.
    let found = candidates(&graph, &cpus(&[800]), 1);
    let found = shortage(&found, &[0; 3]);
    let more = MemoryRemedy::MoreDevices {
        device_type: "CPU".to_owned(),
        n_devices: 2,
        capacity_bytes: 800,
    };
    assert_eq!(found.remedies.last(), Some(&more), "{found}");
    assert!(
        found
            .to_string()
            .ends_with("`--device-count CPU=2 --memory CPU=800`)"),
        "{found}"
    );
    let limits = PolicyLimits::default();
    let heft = ShippedPolicy::find("heft").unwrap();
    let place = |capacities: &[u64]| {
        let found = candidates(&graph, &cpus(capacities), 1);
        place_natively(heft, &[], &found, &PlaceOptions::default(), &limits)
    };
    assert!(place(&[800]).is_err());
    place(&[800; 2]).unwrap();
}

#[test]
fn as_many_devices_are_suggested_as_the_plan_needs() {
    let mut builder = Builder::without_sizes();
    for name in ["a", "b", "c", "d"] {
        builder.work(name, &[], 0.0, 500);
    }
    let graph = builder.finish();
    let limits = PolicyLimits::default();
    let heft = ShippedPolicy::find("heft").unwrap();
    let places = |n_devices: usize| {
        let found = candidates(&graph, &cpus(&vec![600; n_devices]), 1);
        place_natively(heft, &[], &found, &PlaceOptions::default(), &limits).is_ok()
    };
    // 2,000 bytes need four memories of 600 bytes.
    let found = candidates(&graph, &cpus(&[600]), 1);
    let text = shortage(&found, &[0; 4]).to_string();
    let remedy =
        "use at least 4 devices of this capacity (`--device-count CPU=4 --memory CPU=600`)";
    assert!(text.contains(remedy), "{text}");
    assert!(!places(3));
    assert!(places(4));
}

#[test]
fn remedies_that_cannot_help_are_not_given() {
    let graph = three_states();
    // `a` alone is too large for any such device, and one run needs more than the memory.
    let found = candidates(&graph, &cpus(&[500]), 2);
    let kinds = |found: &MemoryShortage| -> Vec<&str> {
        let kinds = found.remedies.iter().map(|remedy| match remedy {
            MemoryRemedy::Move { .. } => "move",
            MemoryRemedy::FewerRuns { .. } => "fewer runs",
            MemoryRemedy::RaiseCapacity { .. } => "raise",
            MemoryRemedy::MoreDevices { .. } => "more devices",
            _ => "other",
        });
        kinds.collect()
    };
    assert_eq!(kinds(&shortage(&found, &[0; 3])), ["raise"]);
    // Pinned nodes do not move.
    let pinned = graph.nodes().fold(
        CandidatesBuilder::new(&graph, &devices()),
        |builder, node| builder.with_pin(node, DeviceId(GPU0)),
    );
    let found = shortage(&pinned.build().unwrap(), &[GPU0; 3]);
    assert_eq!(kinds(&found), ["raise"]);
    // Constants are stored where they are read, so moving them frees nothing.
    let b = GraphBuilder::new("constant");
    let constant = b.constant([300], &[1f32; 300]).unwrap();
    b.relu(constant).unwrap();
    let constants = Arc::new(b.finish());
    let reader = constants.find_node("Relu").unwrap();
    let found = CandidatesBuilder::new(&constants, &devices())
        .with_pin(reader, DeviceId(CPU0))
        .build()
        .unwrap();
    assert_eq!(kinds(&shortage(&found, &[CPU0; 2])), ["raise"]);
    // If two devices share a memory, both capacities count.
    let shared = CandidatesBuilder::new(&graph, &devices())
        .with_shared_memory(&[DeviceId(CPU0), DeviceId(CPU1)]);
    let found = shortage(&shared.build().unwrap(), &[CPU0, CPU1, CPU0]);
    let text = found.to_string();
    assert!(text.contains("`--memory CPU:0="), "{text}");
    assert!(text.contains(" --memory CPU:1="), "{text}");
}

#[test]
fn a_node_that_can_move_is_named_if_the_last_one_cannot() {
    let mut builder = Builder::new();
    builder.work("a", &[], 0.0, 600);
    builder.work("b", &[], 0.0, 600);
    let graph = builder.finish();
    let found = CandidatesBuilder::new(&graph, &devices())
        .with_pin(NodeId(1), DeviceId(CPU0))
        .build()
        .unwrap();
    let found = shortage(&found, &[CPU0; 2]);
    let Some(MemoryRemedy::Move { node, devices }) = found.remedies.first() else {
        panic!("{found}");
    };
    assert_eq!((node.as_str(), devices.len()), ("a", 3), "{found}");
}

#[test]
fn a_cause_of_several_rungs_is_reported_once() {
    let engine = PolicyEngine::new(PolicyLimits::default()).unwrap();
    let graph = three_states();
    // Nothing fits: `priority` lacks memory on one device, and so do its native build and `heft`.
    let found = candidates(&graph, &cpus(&[1200]), 1);
    let request = PolicyRequest::new(ShippedPolicy::find("priority").unwrap());
    let error = place_with_ladder(&engine, &found, &request).unwrap_err();
    let text = error.to_string();
    let LadderError::Exhausted(failed) = error else {
        panic!("{text}");
    };
    assert_eq!(failed.len(), 3, "{text}");
    let first = Rung::Sandboxed("priority".to_owned());
    let causes: Vec<_> = failed.iter().map(|it| it.same_cause_as.clone()).collect();
    assert_eq!(causes, [None, Some(first.clone()), Some(first)]);
    assert!(
        text.contains(
            ": priority, priority (native) and heft (native): its plan breaks rule `memory`"
        ),
        "{text}"
    );
    assert_eq!(text.matches("lacks").count(), 1, "{text}");
    assert_eq!(text.matches("raise the capacity").count(), 1, "{text}");

    // With two devices the policies fill different ones: the second shortage is reported briefly.
    let found = candidates(&graph, &cpus(&[650; 2]), 1);
    let text = place_with_ladder(&engine, &found, &request)
        .unwrap_err()
        .to_string();
    assert_eq!(text.matches("lacks").count(), 2, "{text}");
    assert_eq!(text.matches("raise the capacity").count(), 1, "{text}");
}

#[test]
fn where_no_plan_fits_the_refusal_proves_it() {
    let engine = PolicyEngine::new(PolicyLimits::default()).unwrap();
    let graph = three_states();
    let request = PolicyRequest::new(ShippedPolicy::find("heft").unwrap());
    let refused = |capacities: &[u64]| {
        let found = candidates(&graph, &cpus(capacities), 1);
        let error = place_with_ladder(&engine, &found, &request).unwrap_err();
        let text = error.to_string();
        match error {
            LadderError::Infeasible { proof, failed } => {
                assert_eq!(failed.len(), 3, "{text}");
                assert!(
                    text.contains("no plan fits") && text.contains("--memory"),
                    "{text}"
                );
                proof
            }
            other => panic!("{other}"),
        }
    };
    // `a` keeps 600 bytes.
    assert_eq!(
        refused(&[500, 590, 400]),
        Infeasibility::Group {
            node: "a".to_owned(),
            n_nodes: 1,
            needed_bytes: 600,
            holders: vec![MemoryHolder {
                kind: MemoryHolderKind::State,
                name: "a".to_owned(),
                bytes: 600,
            }],
            largest: (format!("{TASK}/device:CPU:1"), 590),
        }
    );
    assert_eq!(
        refused(&[700, 350]),
        Infeasibility::Graph {
            needed_bytes: 1100,
            capacity_bytes: 1050,
        }
    );
}

#[test]
fn a_group_keeps_each_constant_that_it_reads_once() {
    let b = GraphBuilder::new("shared");
    let x = b.placeholder::<f32>("x", [1, 100]).unwrap();
    let weights = b
        .named("weights")
        .constant([100, 1], &[1.0f32; 100])
        .unwrap();
    let read = b.named("read").identity(weights).unwrap();
    let first = b.named("first").matmul(x, read).unwrap();
    let second = b.named("second").matmul(x, read).unwrap();
    b.named("other").matmul(x, weights).unwrap();
    b.named("sum").add(first, second).unwrap();
    let graph = Arc::new(b.finish());
    let devices = cpus(&[399, 100]);
    let node = |name| graph.find_node(name).unwrap();
    let found = CandidatesBuilder::new(&graph, &devices)
        .with_colocation(node("first"), node("second"))
        .with_colocation(node("first"), node("other"))
        .build()
        .unwrap();
    let engine = PolicyEngine::new(PolicyLimits::default()).unwrap();
    let request = PolicyRequest::new(ShippedPolicy::find("priority").unwrap());
    let error = place_with_ladder(&engine, &found, &request).unwrap_err();
    let LadderError::Infeasible { proof, .. } = error else {
        panic!("{error}");
    };
    assert_eq!(
        proof,
        Infeasibility::Group {
            node: "first".to_owned(),
            n_nodes: 3,
            needed_bytes: 400,
            holders: vec![MemoryHolder {
                kind: MemoryHolderKind::Constant,
                name: "weights".to_owned(),
                bytes: 400,
            }],
            largest: (format!("{TASK}/device:CPU:0"), 399),
        }
    );
}
