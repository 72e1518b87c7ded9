//! Flags that measure runs, and those that use measurements.

use serde_json::Value;

use super::args;
use super::file;
use super::folder;
use super::model;
use super::path_in;
use super::placewright;
use super::run_with_cache;

/// Returns the largest number of measurements behind a node's cost.
fn samples(report: &Value) -> u64 {
    let nodes = report["nodes"].as_array().expect("nodes");
    let samples = nodes.iter().map(|node| node["cost_samples"].as_u64());
    samples.map(|n| n.expect("a number")).max().expect("nodes")
}

#[test]
fn learned_times_are_costs_of_later_placements() {
    let (folder, cache) = (folder(), folder());
    let (graph, profile) = (model("lenet.pb"), path_in(&folder, "profile.json"));
    let run = |line: &str, paths: &[&str]| run_with_cache(args(line, paths), cache.path());
    let line = "run {} --threads 1 --learn --save-profile {} --repeat 3 --json";
    let report = run(line, &[&graph, &profile]).expect(0).json();
    assert!(
        report["profile"]["n_learned"].as_u64() > Some(5),
        "{report}"
    );
    assert!(
        report["expected_by_median"].as_f64() > Some(0.0),
        "{report}"
    );
    let place = |flags: &str, paths: &[&str]| {
        let line = format!("place {{}} --threads 1 --nodes --json {flags}");
        let paths = [&[graph.as_str()], paths].concat();
        samples(&run(&line, &paths).expect(0).json())
    };
    assert_eq!((place("", &[]), place("--no-calibration", &[])), (7, 0));
    // Other threads are not measured.
    assert_eq!(place("--intra-op-threads 2", &[]), 0);
    assert_eq!(place("--no-calibration --profile {}", &[&profile]), 7);
}

#[test]
fn wrong_measurements_and_hints_are_refused() {
    let folder = folder();
    let graph = model("tiny_add.pb");
    let no_profile = file(&folder, "f.json", b"{\"format\": 99}");
    let line = "place {} --profile {}";
    placewright(args(line, &[&graph, &no_profile]))
        .expect_error(1, &["--profile", "f.json", "format 99", "--save-profile"]);
    let no_json = file(&folder, "g.json", b"profile");
    placewright(args(line, &[&graph, &no_json])).expect_error(1, &["--profile", "not a profile"]);
    let line = "place {} --priority y";
    placewright(args(line, &[&graph])).expect_error(2, &["`y` is not a priority", "NODE=N"]);
    let line = "place {} --priority none-such=1";
    placewright(args(line, &[&graph])).expect_error(1, &["`none-such`"]);
    let line = "place {} --trip-count while=-1";
    placewright(args(line, &[&graph])).expect_error(2, &["not a trip count", "LOOP=N"]);
    let line = "place {} --trip-count none-such=3";
    placewright(args(line, &[&graph])).expect_error(1, &["`none-such`", "it has no loops"]);
    let looping = model("cf_while_v2.skel.pb");
    placewright(args(line, &[&looping])).expect_error(1, &["`none-such`", "its loops are `while`"]);
    let line = "run {} --learn --no-calibration";
    placewright(args(line, &[&graph])).expect_error(2, &["--learn", "--no-calibration"]);
}

#[test]
fn stated_trip_counts_are_shown() {
    let graph = model("cf_while_v2.skel.pb");
    let line = "place {} --nodes --json --trip-count while=1000";
    let report = placewright(args(line, &[&graph])).expect(0).json();
    let nodes = report["nodes"].as_array().expect("nodes");
    let runs = nodes.iter().map(|node| node["executions"].as_f64());
    let most = runs.map(|n| n.expect("a number")).fold(0.0, f64::max);
    let functions = nodes.iter().filter(|node| node["function"].is_string());
    assert!(functions.count() > 0);
    assert_eq!(most, 1001.0, "{report}");
}
