//! What users see if a graph cannot be placed or executed.

use serde_json::Value;

use super::args;
use super::file;
use super::folder;
use super::model;
use super::placewright;
use crate::hard_requests::push_field;

/// A graph in which two nodes request the devices CPU:1 and CPU:2.
const REQUESTS: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../tests/conformance/graphs/cond_v1.graph.pb"
);

#[test]
fn every_conflict_is_shown_with_what_resolves_it() {
    let ran = placewright(args("place {} --device-count CPU=1", &[REQUESTS]));
    let shown = ran.stdout.clone();
    ran.expect_error(1, &["/device:CPU:1", "available devices"]);
    assert!(
        shown.starts_with("the graph cannot be placed: 2 conflicts\n"),
        "{shown}"
    );
    for line in [
        "  `/device:CPU:1` requested by `cond/texp`: no such device; available devices: CPU:0",
        "    => request `/device:CPU:0` for `cond/texp`",
        "  `/device:CPU:2` requested by `cond/fneg`: no such device; available devices: CPU:0",
        "    or allow soft placement (--soft-placement)",
    ] {
        assert!(
            shown.lines().any(|shown| shown == line),
            "{line} in {shown}"
        );
    }
    placewright(args("place {} --device-count CPU=3", &[REQUESTS])).expect(0);
    placewright(args(
        "place {} --device-count CPU=1 --soft-placement",
        &[REQUESTS],
    ))
    .expect(0);
}

#[test]
fn conflicts_are_listed_in_json_with_all_their_constraints() {
    let line = "place {} --device-count CPU=1 --json";
    let ran = placewright(args(line, &[REQUESTS])).expect(1);
    assert!(ran.stderr.starts_with("error: "), "{}", ran.stderr);
    let report = ran.json();
    assert!(
        report["error"]
            .as_str()
            .is_some_and(|error| error.contains("CPU:1"))
    );
    let conflicts = report["conflicts"].as_array().unwrap();
    assert_eq!(conflicts.len(), 2);
    let constraint = &conflicts[0]["constraints"][0];
    assert_eq!(constraint["kind"], "request");
    assert_eq!(constraint["request"], "/device:CPU:1");
    assert_eq!(constraint["devices"], Value::Array(Vec::new()));
    assert_eq!(constraint["nodes"].as_array().map(Vec::len), Some(1));
    assert_eq!(
        constraint["available"][0],
        "/job:localhost/replica:0/task:0/device:CPU:0"
    );
    assert_eq!(conflicts[0]["suggestions"][1]["kind"], "soft-placement");
}

#[test]
fn an_error_without_conflicts_prints_no_list() {
    let ran = placewright(args(
        "place {} --policy none-such",
        &[&model("tiny_add.pb")],
    ));
    assert_eq!(ran.stdout, "");
    ran.expect_error(2, &["none-such"]);
}

#[test]
fn ops_that_nothing_executes_are_listed_at_once() {
    let fine = placewright(args("place {} --check-ops", &[&model("lenet.pb")])).expect(0);
    assert_eq!(fine.stdout, "every node can be executed\n");
    // Branches and loops are the executor's.
    let flow = placewright(args(
        "place {} --check-ops",
        &[&model("cf_nested_v2.skel.pb")],
    ));
    assert_eq!(flow.expect(0).stdout, "every node can be executed\n");
    let folder = folder();
    let graph = file(&folder, "gradients.pb", &gradients(["first", "second"]));
    let report = placewright(args("place {} --check-ops --json", &[&graph]))
        .expect(1)
        .json();
    let rows = report["unsupported"].as_array().unwrap();
    assert_eq!(rows.len(), 2, "{report}");
    for (row, name) in rows.iter().zip(["first", "second"]) {
        assert_eq!(row["node"], name, "{report}");
        assert_eq!(row["reason"], "no kernel on [CPU]", "{report}");
    }
}

/// Returns a GraphDef of gradients of a function, which no device executes.
pub(super) fn gradients(names: [&str; 2]) -> Vec<u8> {
    let attr = |name: &str, value: &[u8]| {
        let mut entry = Vec::new();
        push_field(&mut entry, 0x0a, name.as_bytes());
        push_field(&mut entry, 0x12, value);
        entry
    };
    let empty_list = [0x0a, 0];
    let name_of_function = b"\x0a\x01f";
    let mut function = Vec::new();
    push_field(&mut function, 0x52, name_of_function);
    let mut signature = Vec::new();
    push_field(&mut signature, 0x0a, name_of_function);
    let mut library = Vec::new();
    push_field(&mut library, 0x0a, &signature);
    let mut graph = Vec::new();
    push_field(&mut graph, 0x12, &library);
    for name in names {
        let mut node = Vec::new();
        push_field(&mut node, 0x0a, name.as_bytes());
        push_field(&mut node, 0x12, b"SymbolicGradient");
        push_field(&mut node, 0x2a, &attr("Tin", &empty_list));
        push_field(&mut node, 0x2a, &attr("Tout", &empty_list));
        push_field(&mut node, 0x2a, &attr("f", &function));
        push_field(&mut graph, 0x0a, &node);
    }
    graph
}

/// Each policy of the ladder plans with the same memory, and fails in the same way.
#[test]
fn too_little_memory_is_reported_once_for_all_policies() {
    let graph = model("lenet.pb");
    let error = |flags: &str| {
        let line = format!("place {{}} --policy priority --memory CPU:0=242KiB {flags}");
        placewright(args(&line, &[&graph])).expect(1).stderr
    };
    let (one, all) = (error("--strict-policy"), error(""));
    for policy in ["priority", "priority (native)", "heft (native)"] {
        assert!(all.contains(policy), "{policy} is not in {all}");
    }
    // Sizes are human-readable, and are printed as often as for a single policy.
    let n_sizes = |error: &str| error.matches("242.0 KiB").count();
    assert!(n_sizes(&one) > 0, "{one}");
    assert_eq!(n_sizes(&one), n_sizes(&all), "{all}");
    assert!(!all.contains("247808"), "{all}");
}
