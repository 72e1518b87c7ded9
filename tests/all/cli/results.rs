//! What `run` is fed, what it computes, and what `--check` reports.

use super::args;
use super::file;
use super::folder;
use super::model;
use super::path_in;
use super::placewright;

#[test]
fn differing_results_end_with_status_1_and_are_located() {
    let folder = folder();
    let other = path_in(&folder, "other.npz");
    let (graph, feeds) = (model("lenet.pb"), model("lenet.npz"));
    placewright(args("run {} --seed 1 --output {}", &[&graph, &other])).expect(0);
    let line = "run {} --feeds {} --check {} --atol 1e-4";
    let ran = placewright(args(line, &[&graph, &feeds, &other])).expect(1);
    assert!(ran.stdout.contains("MISMATCH"), "{}", ran.stdout);
    assert!(ran.stdout.contains("differs in"), "{}", ran.stdout);
    let json = placewright(args(&format!("{line} --json"), &[&graph, &feeds, &other]));
    let fetch = json.expect(1).json()["check"]["fetches"][0].clone();
    assert_eq!(fetch["matches"], false);
    assert!(fetch["max_abs_error"].as_f64() > Some(1e-4));
    assert_eq!(fetch["worst"]["index"].as_array().map(Vec::len), Some(2));
}

#[test]
fn written_outputs_pass_a_check() {
    let folder = folder();
    let output = path_in(&folder, "output.npz");
    let (graph, feeds) = (model("tiny_broadcast.pb"), model("tiny_broadcast.npz"));
    placewright(args(
        "run {} --feeds {} --output {}",
        &[&graph, &feeds, &output],
    ))
    .expect(0);
    let line =
        "run {} --feeds {} --check {} --atol 0 --rtol 0 --device-count CPU=3 --policy round-robin";
    placewright(args(line, &[&graph, &feeds, &output])).expect(0);
}

#[test]
fn random_feeds_depend_only_on_the_seed_and_are_announced() {
    let outputs = |seed: u64, policy: &str| {
        let line = format!("run {{}} --seed {seed} --policy {policy} --device-count CPU=2 --json");
        let ran = placewright(args(&line, &[&model("lenet.pb")])).expect(0);
        assert!(
            ran.stderr.contains(&format!("random values (seed {seed})")),
            "{}",
            ran.stderr
        );
        let report = ran.json();
        assert_eq!(report["random_feeds"][0], "x:0");
        report["outputs"].to_string()
    };
    let first = outputs(7, "priority");
    assert_eq!(first, outputs(7, "priority"));
    assert_eq!(first, outputs(7, "round-robin"));
    assert_ne!(first, outputs(8, "priority"));
}

#[test]
fn inner_tensors_can_be_fetched_and_runs_are_timed() {
    let line = "run {} --fetch Conv2D --fetch Conv2D:0 --fetch probs --repeat 3 --warmup 1 --json";
    let report = placewright(args(line, &[&model("lenet.pb")]))
        .expect(0)
        .json();
    let names: Vec<_> = report["outputs"]
        .as_array()
        .expect("outputs")
        .iter()
        .map(|output| output["name"].as_str().expect("a name").to_owned())
        .collect();
    assert_eq!(names, ["Conv2D:0", "probs:0"]);
    assert_eq!(report["timing"]["n_runs"], 3);
    assert!(report["timing"]["median_ns"].as_u64() <= report["timing"]["p90_ns"].as_u64());
}

#[test]
fn a_mismatch_takes_precedence_over_a_fallback() {
    let folder = folder();
    let traps = file(&folder, "traps.wasm", placewright_fixtures::wasm("traps"));
    let other = path_in(&folder, "other.npz");
    let (graph, feeds) = (model("tiny_add.pb"), model("tiny_add.npz"));
    placewright(args("run {} --seed 3 --output {}", &[&graph, &other])).expect(0);
    let line = "run {} --feeds {} --check {} --policy {}";
    placewright(args(line, &[&graph, &feeds, &other, &traps])).expect(1);
}
