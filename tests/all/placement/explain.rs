//! What explanations of nodes say.

use placewright::candidates::Candidates;
use placewright::candidates::CandidatesBuilder;
use placewright::candidates::PlacementOptions;
use placewright::candidates::Proposal;
use placewright::graph::NodeId;
use placewright::names::DeviceId;
use placewright::placement::Evaluator;
use placewright::placement::Move;
use placewright::placement::MoveOutcome;
use placewright::placement::Placement;
use placewright::placement::check;

use super::CPU0;
use super::GPU0;
use super::candidates;
use super::diamond;
use crate::sample::Random;
use crate::sample::constrained;
use crate::sample::devices;
use crate::sample::layered_graph;
use crate::sample::sample;
use crate::sample::seed;

/// Returns a legal placement at random.
fn placed_at_random(candidates: &Candidates, random: &mut Random) -> Placement {
    let mut plan = Evaluator::new(candidates);
    let first = candidates.graph().nodes();
    let first: Vec<u32> = first.map(|node| candidates.of_node(node)[0]).collect();
    plan.set_devices(&first);
    plan.offer().unwrap();
    for node in candidates.graph().nodes() {
        let devices = candidates.of_node(node);
        plan.move_nodes(&[node.0], devices[random.below(devices.len())]);
        let _ = plan.offer();
    }
    check(candidates, plan.into_proposal().unwrap()).unwrap()
}

fn assert_close(a: f64, b: f64, what: &str) {
    assert!((a - b).abs() <= 1e-9 * b.abs().max(1.0), "{what}: {a}, {b}");
}

/// Checks a move against a simulation of the plan after it.
fn assert_true(placement: &Placement, moved: &Move, what: &str) {
    let after = placement.with_move(NodeId(moved.node), DeviceId(moved.to));
    match (&moved.outcome, after) {
        (MoveOutcome::Refused { violation }, Err(found)) => {
            assert_eq!(violation.to_string(), found.to_string(), "{what}");
        }
        (outcome, Ok(after)) => {
            let MoveOutcome::Legal {
                expected_ns,
                change_ns,
                transfer_bytes,
                peak_bytes,
            } = outcome
            else {
                panic!("{what}: {outcome:?}");
            };
            let simulated = after.simulate();
            assert_close(*expected_ns, simulated.expected_ns, what);
            let before_ns = placement.simulate().expected_ns;
            assert_close(before_ns + change_ns, simulated.expected_ns, what);
            let mut plan = after.evaluator();
            assert_eq!(*transfer_bytes, plan.transfer_bytes(), "{what}");
            let peaks = plan.peak_bytes_per_device();
            let peaks = [moved.from, moved.to].map(|device| peaks[device as usize]);
            assert_eq!(*peak_bytes, Some(peaks), "{what}");
        }
        (outcome, Err(violation)) => panic!("{what}: {outcome:?}, {violation}"),
    }
}

/// A large graph on many devices: a memory plan for each move would take seconds.
#[test]
fn on_many_devices_the_shortest_runs_have_memory_plans() {
    let graph = layered_graph(10_000, seed());
    let found = crate::sample::candidates(&graph, &devices(20, 20));
    let first = graph.nodes().map(|node| found.of_node(node)[0]);
    let proposal = Proposal {
        devices: first.collect(),
        ..Proposal::default()
    };
    let placement = check(&found, proposal).unwrap();
    let mut nodes = graph.nodes().skip(5_000);
    let node = nodes.find(|&node| found.of_node(node).len() == 40).unwrap();
    let explained = placement.explain(node).candidates.into_iter();
    let mut moves: Vec<Move> = explained.filter_map(|row| row.moved).collect();
    moves.sort_by(|a, b| a.change_ns().partial_cmp(&b.change_ns()).unwrap());
    let has_peaks = |moved: &Move| match &moved.outcome {
        MoveOutcome::Legal { peak_bytes, .. } => peak_bytes.is_some(),
        outcome => panic!("{outcome:?}"),
    };
    let n_with_peaks = moves.iter().filter(|moved| has_peaks(moved)).count();
    assert_eq!((moves.len(), n_with_peaks), (39, 15));
    let slowest_with = moves.iter().rfind(|moved| has_peaks(moved)).unwrap();
    let fastest_without = moves.iter().find(|moved| !has_peaks(moved)).unwrap();
    assert!(slowest_with.change_ns() <= fastest_without.change_ns());
    assert_true(&placement, slowest_with, "the slowest with peaks");
}

#[test]
fn a_move_does_what_a_simulation_after_it_shows() {
    let seed = seed();
    let mut random = Random::new(seed);
    let (mut n_moves, mut n_refused) = (0, 0);
    for round in 0..8 {
        let found = match round % 2 {
            0 => sample(40, seed + round),
            _ => constrained(),
        };
        let placement = placed_at_random(&found, &mut random);
        for node in found.graph().nodes() {
            let explained = placement.explain(node);
            assert_eq!(explained.device, placement.device(node).0);
            assert!(explained.group.contains(&node.0));
            let devices = explained.candidates.iter();
            let devices: Vec<u32> = devices.map(|candidate| candidate.device).collect();
            assert_eq!(devices, found.of_node(node));
            for candidate in &explained.candidates {
                let what = format!("round {round} of seed {seed}, {node:?} to {candidate:?}");
                let cost_ns = found.cost_ns(node, DeviceId(candidate.device));
                assert_close(candidate.cost_ns, cost_ns, &what);
                match &candidate.moved {
                    None => assert_eq!(candidate.device, explained.device, "{what}"),
                    Some(moved) => {
                        assert_eq!(moved.to, candidate.device, "{what}");
                        assert_true(&placement, moved, &what);
                        n_moves += 1;
                        n_refused += usize::from(moved.change_ns().is_none());
                    }
                }
            }
        }
        let best = placement.best_moves(5);
        for pair in best.windows(2) {
            assert!(pair[0].change_ns() <= pair[1].change_ns());
        }
        let mut nodes: Vec<u32> = best.iter().map(|moved| moved.node).collect();
        nodes.dedup();
        assert_eq!(nodes.len(), best.len(), "{best:?}");
        for moved in &best {
            assert!(moved.change_ns().is_some_and(|change_ns| change_ns < 0.0));
            assert_true(&placement, moved, &format!("{moved:?}"));
        }
    }
    assert!(n_moves > 300 && n_refused > 0, "{n_moves}, {n_refused}");
}

#[test]
fn slack_and_the_best_move_of_a_diamond() {
    let found = candidates(&diamond(), &PlacementOptions::default()).unwrap();
    let place = |devices: [u32; 4]| {
        let devices = devices.to_vec();
        let proposal = Proposal {
            devices,
            ..Proposal::default()
        };
        check(&found, proposal).unwrap()
    };
    // a, then b (200 ns) beside c on another device, then d: c takes 110 ns to get there, 30 ns to
    // execute and 110 ns back.
    let placement = place([CPU0, CPU0, GPU0, CPU0]);
    let simulation = placement.simulate();
    assert_eq!(simulation.critical_path, [0, 2, 3]);
    assert_eq!(simulation.slack_ns(&placement), [0.0, 50.0, 0.0, 0.0]);
    let b = placement.explain(NodeId(1));
    assert_eq!((b.slack_ns, b.is_critical), (50.0, false));
    assert!(placement.explain(NodeId(2)).is_critical);
    let best = placement.best_moves(10);
    assert!(best.iter().all(|moved| moved.node != 1), "{best:?}");
    let on_gpu = place([GPU0; 4]);
    assert_eq!(on_gpu.best_moves(10), []);
}

/// A chain of two tasks on devices that are far apart.
#[test]
fn a_chain_moves_as_its_costs_say() {
    let found = candidates(&diamond(), &PlacementOptions::default()).unwrap();
    let builder = CandidatesBuilder::new(found.graph(), found.device_set());
    // The second half of the nodes is ten times as fast on the GPUs.
    let builder = found.graph().nodes().fold(builder, |builder, node| {
        let on_gpu_ns = if node.0 < 2 { 1e6 } else { 1e5 };
        builder.with_costs_ns(node, &[1e6, 1e6, on_gpu_ns, on_gpu_ns])
    });
    let found = builder.build().unwrap();
    let proposal = Proposal {
        devices: vec![CPU0; 4],
        ..Proposal::default()
    };
    let placement = check(&found, proposal).unwrap();
    let best = placement.best_moves(1);
    assert_eq!((best[0].node, best[0].to), (3, GPU0), "{best:?}");
    let saved_ns = -best[0].change_ns().unwrap();
    assert!((8e5..9e5).contains(&saved_ns), "{saved_ns}");
}
