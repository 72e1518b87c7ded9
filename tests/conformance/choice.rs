//! Checks that the host makes no placement choices of its own: runs the cases of area `placer` with
//! policies that choose differently than TensorFlow.

use std::collections::BTreeSet;
use std::path::Path;

use libtest_mimic::Failed;
use libtest_mimic::Trial;
use placewright::candidates::Candidates;
use placewright::candidates::PlacementHint;
use placewright::graph::NodeId;
use placewright::placement::Placement;
use serde_json::Value;

use crate::chooser::Chooser;
use crate::equal;
use crate::files;
use crate::id;
use crate::placer;
use crate::read;

/// Cases in which a generator follows its consumers, or a metadata op or an identity its input, to
/// a device that is not item 0.
const HINT_CASES: [&str; 19] = [
    "placer/generator_follows_all_consumers",
    "placer/hint_generator_before_generator",
    "placer/hint_generator_beside_generator",
    "placer/hint_generator_follows_control_consumers",
    "placer/hint_generator_follows_metadata",
    "placer/hint_generator_with_control_input",
    "placer/hint_generators_of_a_group",
    "placer/hint_identity_at_the_end",
    "placer/hint_identity_between_equal_requests",
    "placer/hint_metadata_decides_for_its_group",
    "placer/hint_metadata_follows_an_assigned_input",
    "placer/hint_metadata_follows_input",
    "placer/hint_metadata_follows_metadata",
    "placer/hint_metadata_of_input_ahead",
    "placer/ref_more_specific_destination_wins",
    "placer/session_follow_consumer_generator",
    "placer/session_gpu_soft",
    "placer/session_resource_colocation",
    "placer/x_type_constraint_cpu_only",
];

/// Case, node, and the last legal device of the node.
const LAST: [(&str, &str, &str); 9] = [
    (
        "no_constraints",
        "in",
        "/job:a/replica:0/task:0/device:FakeCPU:9",
    ),
    (
        "no_constraints",
        "n1",
        "/job:a/replica:0/task:0/device:FakeCPU:9",
    ),
    (
        "prioritized_kernels",
        "n1",
        "/job:a/replica:0/task:0/device:FakeGPU:9",
    ),
    (
        "session_unconstrained",
        "c",
        "/job:localhost/replica:0/task:0/device:CPU:3",
    ),
    (
        "session_generator_two_consumers",
        "a",
        "/job:localhost/replica:0/task:0/device:CPU:3",
    ),
    (
        "session_follow_consumer_generator",
        "a",
        "/job:localhost/replica:0/task:0/device:CPU:3",
    ),
    // Each of these nodes has one legal device.
    (
        "session_follow_consumer_generator",
        "n",
        "/job:localhost/replica:0/task:0/device:CPU:2",
    ),
    (
        "session_explicit",
        "c",
        "/job:localhost/replica:0/task:0/device:CPU:3",
    ),
    (
        "session_colocated_one_pinned",
        "b",
        "/job:localhost/replica:0/task:0/device:CPU:2",
    ),
];

pub(crate) fn trials(folder: &Path) -> Vec<Trial> {
    let cases = cases(folder);
    let trial = |name: &str, check: fn(&[Value]) -> Result<(), String>| {
        let cases = cases.clone();
        Trial::test(format!("choice/{name}"), move || {
            let cases = cases.map_err(Failed::from)?;
            check(&cases).map_err(Failed::from)
        })
    };
    vec![
        trial("ignoring_hints_fails_the_cases_of_hints", ignoring_hints),
        trial("taking_the_last_changes_what_can_change", taking_the_last),
    ]
}

/// Returns all cases of the area, from any file.
fn cases(folder: &Path) -> Result<Vec<Value>, String> {
    let mut cases = Vec::new();
    for path in files(folder)? {
        let of_file = read(&path)?.into_iter();
        cases.extend(of_file.filter(|case| case["area"] == "placer"));
    }
    Ok(cases)
}

/// If the host followed hints, these cases would pass; if it changed candidate sets because of
/// hints, others would fail.
fn ignoring_hints(cases: &[Value]) -> Result<(), String> {
    let chooser = Chooser::fixture("ignores-hints")?;
    let mut failing = BTreeSet::new();
    for case in cases {
        if placer::check_chosen(case, &chooser).is_err() {
            failing.insert(id(case));
        }
        if let Ok(candidates) = placer::candidates(case)? {
            differs_by_hints(&candidates, &chooser)
                .map_err(|what| format!("{}: {what}", id(case)))?;
        }
    }
    let expected = HINT_CASES.map(str::to_owned).into_iter().collect();
    equal("cases that fail", &failing, &expected)
}

/// Checks that each group that TensorFlow places elsewhere has a member with a hint.
fn differs_by_hints(candidates: &Candidates, chooser: &Chooser) -> Result<(), String> {
    let (with, without) = (
        Chooser::priority()?.place(candidates)?,
        chooser.place(candidates)?,
    );
    let nodes = candidates.nodes();
    let deviating =
        PlacementHint::GENERATOR | PlacementHint::METADATA | PlacementHint::MATCHING_IDENTITY;
    let has_hint = |&hints: &u8| hints & deviating != 0;
    let hinted = nodes.placement_hints.iter().zip(&nodes.group);
    let hinted: BTreeSet<u32> = hinted
        .filter(|(hints, _)| has_hint(hints))
        .map(|(_, &group)| group)
        .collect();
    let graph = candidates.graph();
    for node in graph.nodes() {
        let is_same = with.device(node) == without.device(node);
        if !is_same && !hinted.contains(&nodes.group[node.index()]) {
            return Err(format!("{} differs without a hint", graph.node_name(node)));
        }
    }
    Ok(())
}

fn taking_the_last(cases: &[Value]) -> Result<(), String> {
    let chooser = Chooser::fixture("takes-last")?;
    let mut n_changed = 0;
    let mut named: BTreeSet<(&str, &str)> = LAST.map(|(case, node, _)| (case, node)).into();
    for case in cases {
        let id = id(case);
        let Ok(candidates) = placer::candidates(case)? else {
            continue;
        };
        let graph = candidates.graph();
        let (first, last) = (
            Chooser::priority()?.place(&candidates)?,
            chooser.place(&candidates)?,
        );
        for node in graph.nodes() {
            let legal = candidates.of_node(node);
            let what = format!("{id}: {}", graph.node_name(node));
            equal(&what, &Some(&last.device(node).0), &legal.last())?;
            if legal.len() == 1 {
                equal(&what, &last.device(node), &first.device(node))?;
            }
        }
        let is_changed = last.devices() != first.devices();
        let is_noticed = placer::check_chosen(case, &chooser).is_err();
        equal(&format!("{id} fails"), &is_noticed, &is_changed)?;
        n_changed += usize::from(is_changed);
        for (name, node, device) in LAST {
            if id == format!("placer/{name}") {
                let found = graph.find_node(node).ok_or_else(|| format!("no {node}"))?;
                equal(&id, &device_name(&last, found).as_str(), &device)?;
                named.remove(&(name, node));
            }
        }
    }
    equal("nodes that no case has", &named, &BTreeSet::new())?;
    if n_changed < cases.len() / 2 {
        return Err(format!("{n_changed} of {} cases change", cases.len()));
    }
    Ok(())
}

fn device_name(placement: &Placement, node: NodeId) -> String {
    let device = placement.device_set().get(placement.device(node));
    device.map_or_else(String::new, |device| device.attributes().name.clone())
}
