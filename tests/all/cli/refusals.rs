//! What users see if a graph cannot be placed or executed.

use serde_json::Value;

use super::args;
use super::model;
use super::placewright;

#[test]
fn every_conflict_is_shown_with_what_resolves_it() {
    let graph = model("tiny_add.pb");
    let ran = placewright(args("place {} --device /device:CPU:7", &[&graph]));
    let shown = ran.stdout.clone();
    ran.expect_error(1, &["/device:CPU:7", "available devices"]);
    assert!(
        shown.starts_with("the graph cannot be placed: 1 conflict\n"),
        "{shown}"
    );
    for line in [
        "  `/device:CPU:7` requested by 3 nodes (`a`, `b` and `y`): no such device; available devices: CPU:0",
        "    => request `/device:CPU:0` for 3 nodes (`a`, `b` and `y`)",
        "    or allow soft placement (--soft-placement)",
    ] {
        assert!(
            shown.lines().any(|shown| shown == line),
            "{line} in {shown}"
        );
    }
    // With the suggested request, it is placed.
    placewright(args("place {} --device /device:CPU:0", &[&graph])).expect(0);
    placewright(args(
        "place {} --device /device:CPU:7 --soft-placement",
        &[&graph],
    ))
    .expect(0);
}

#[test]
fn conflicts_are_listed_in_json_with_all_their_constraints() {
    let graph = model("tiny_add.pb");
    let ran = placewright(args("place {} --device /device:CPU:7 --json", &[&graph])).expect(1);
    assert!(ran.stderr.starts_with("error: "), "{}", ran.stderr);
    let report = ran.json();
    assert!(
        report["error"]
            .as_str()
            .is_some_and(|error| error.contains("CPU:7"))
    );
    let conflicts = report["conflicts"].as_array().unwrap();
    assert_eq!(conflicts.len(), 1);
    let constraint = &conflicts[0]["constraints"][0];
    assert_eq!(constraint["kind"], "request");
    assert_eq!(constraint["request"], "/device:CPU:7");
    assert_eq!(constraint["devices"], Value::Array(Vec::new()));
    assert_eq!(constraint["nodes"].as_array().map(Vec::len), Some(3));
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
    let graph = model("cf_nested_v2.skel.pb");
    let report = placewright(args("place {} --check-ops --json", &[&graph]))
        .expect(1)
        .json();
    let rows = report["unsupported"].as_array().unwrap();
    assert!(rows.len() > 1, "{report}");
    let is_in_function = |row: &Value| row["function"].is_string();
    assert!(rows.iter().any(is_in_function), "{report}");
    assert!(!rows.iter().all(is_in_function), "{report}");
    assert!(
        rows.iter().all(|row| row["reason"] == "no kernel on [CPU]"),
        "{report}"
    );
}

/// Each policy of the ladder plans with the same memory, and fails in the same way.
#[test]
fn too_little_memory_is_reported_once_for_all_policies() {
    let graph = model("lenet.pb");
    let error = |flags: &str| {
        let line = format!("place {{}} --memory CPU:0=100KiB {flags}");
        placewright(args(&line, &[&graph])).expect(1).stderr
    };
    let (one, all) = (error("--strict-policy"), error(""));
    for policy in ["priority", "priority (native)", "heft (native)"] {
        assert!(all.contains(policy), "{policy} is not in {all}");
    }
    // Sizes are human-readable, and are printed as often as for a single policy.
    let n_sizes = |error: &str| error.matches("100.0 KiB").count();
    assert!(n_sizes(&one) > 0, "{one}");
    assert_eq!(n_sizes(&one), n_sizes(&all), "{all}");
    assert!(!all.contains("102400"), "{all}");
}
