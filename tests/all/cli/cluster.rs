//! Machines on paper: cluster files in place of devices.

use std::fs;

use serde_json::Value;

use super::args;
use super::file;
use super::folder;
use super::model;
use super::path_in;
use super::placewright;
use super::run_with_cache;
use super::schemas::check;

const CLUSTER: &str = r#"
[[host]]
job = "worker"
count = 2
network = "infiniband-ndr"
device = [{ profile = "epyc-9654" }, { profile = "h100-sxm", count = 2 }]
"#;

fn expected_ns(report: &Value) -> f64 {
    let placement = &report["placement"];
    placement["expected_ns"].as_f64().expect("a time")
}

fn placed(line: &str, paths: &[&str]) -> Value {
    let report = placewright(args(line, paths)).expect(0).json();
    check("place", &report);
    report
}

#[test]
fn a_cluster_is_listed_and_placed_on() {
    let folder = folder();
    let cluster = file(&folder, "two.toml", CLUSTER.as_bytes());
    let graph = model("bert_tiny.skel.pb");
    let report = placewright(args("devices --cluster {} --json", &[&cluster])).expect(0);
    let report = report.json();
    check("devices", &report);
    let devices = report["devices"].as_array().expect("devices");
    assert_eq!(devices.len(), 6);
    assert_eq!(
        devices[5]["name"],
        "/job:worker/replica:0/task:1/device:GPU:1"
    );
    assert!(devices[5]["rates"]["flops_per_s"].as_f64() > Some(1e13));
    let whole = placed(
        "place {} --cluster {} --policy heft --json",
        &[&graph, &cluster],
    );
    let names = whole["placement"]["devices"].as_array().expect("devices");
    assert_eq!(names.len(), 6);
    let line = "place {} --cluster {} --policy heft --slow GPU=50,CPU=50 --json";
    let slower = placed(line, &[&graph, &cluster]);
    let factor = expected_ns(&slower) / expected_ns(&whole);
    assert!((2.0..51.0).contains(&factor), "{factor}");
    let line = "place {} --cluster {} --policy priority --without GPU --json";
    let report = placed(line, &[&graph, &cluster]);
    let names = report["placement"]["devices"].as_array().expect("devices");
    assert_eq!(names.len(), 2);
    let line = "place {} --cluster {} --policy priority --memory GPU=1KiB,CPU=1KiB";
    placewright(args(line, &[&graph, &cluster]))
        .expect_error(1, &["no plan fits into memory", "constants and state"]);
}

#[test]
fn a_simulation_adds_up() {
    let folder = folder();
    let cluster = file(&folder, "two.toml", CLUSTER.as_bytes());
    let trace = path_in(&folder, "trace.json");
    for (name, policy) in [
        ("bert_tiny", "heft"),
        ("wide_branch", "round-robin"),
        ("cf_while_v1", "heft"),
    ] {
        let graph = model(&format!("{name}.skel.pb"));
        let line =
            format!("simulate {{}} --cluster {{}} --policy {policy} --trace {{}} --nodes --json");
        let report = placewright(args(&line, &[&graph, &cluster, &trace]))
            .expect(0)
            .json();
        check("simulate", &report);
        let number = |of: &Value, key: &str| of[key].as_f64().expect("a number");
        let rows = |key: &str| report[key].as_array().expect("rows").clone();
        let end_ns = number(&report, "end_ns");
        assert!(end_ns > 0.0 && number(&report, "expected_ns") >= end_ns);
        assert_eq!(number(&report, "expected_ns"), expected_ns(&report));
        let last_ns = rows("nodes")
            .iter()
            .map(|row| number(row, "end_ns"))
            .fold(0.0, f64::max);
        assert_eq!(last_ns, end_ns, "{name}");
        let mut n_executed = 0;
        for device in rows("devices").iter().chain(&rows("links")) {
            assert!(
                number(device, "busy_ns") <= end_ns * (1.0 + 1e-9),
                "{name}: {device}"
            );
            n_executed += device["n_executed"].as_u64().unwrap_or(0);
        }
        assert!(n_executed > 0);
        // Of each tensor one transfer per device, and no more than a run makes. Those of loops are
        // one for all iterations.
        let n_tensors = rows("transfers")
            .iter()
            .filter(|row| !row["tensor"].is_null())
            .count();
        let n_transfers = report["placement"]["n_transfers"]
            .as_u64()
            .expect("a number");
        let n_transfers = usize::try_from(n_transfers).expect("few");
        assert!(n_tensors > 0 && n_tensors <= n_transfers, "{name}");
        assert!(
            name.starts_with("cf_") || n_tensors == n_transfers,
            "{name}"
        );
        // The path begins at the start and ends at the end, and nothing on it overlaps.
        let path = rows("critical_path");
        assert_eq!(number(&path[path.len() - 1], "end_ns"), end_ns, "{name}");
        for pair in path.windows(2) {
            assert!(
                number(&pair[0], "end_ns") <= number(&pair[1], "start_ns") + 1e-3,
                "{name}"
            );
        }
        let events: Value = serde_json::from_slice(&fs::read(&trace).expect("read")).expect("JSON");
        let events = events["traceEvents"].as_array().expect("events");
        let n_slices = events.iter().filter(|event| event["ph"] == "X").count();
        assert!(
            n_slices >= usize::try_from(n_executed).expect("few"),
            "{name}"
        );
    }
}

#[test]
fn problems_of_cluster_files_name_file_line_and_remedy() {
    let folder = folder();
    let cluster = file(&folder, "two.toml", CLUSTER.as_bytes());
    let wrong = file(
        &folder,
        "wrong.toml",
        b"[[host]]\ndevice = [{ profil = \"t4\" }]\n",
    );
    let graph = model("tiny_add.pb");
    let place = |line: &str, paths: &[&str]| placewright(args(line, paths));
    let parts = [
        "wrong.toml",
        "line 2, `device = [{ profil = \"t4\" }]`",
        "unknown field `profil`",
    ];
    place("place {} --cluster {}", &[&graph, &wrong]).expect_error(1, &parts);
    place("place {} --cluster absent.toml", &[&graph]).expect_error(1, &["absent.toml"]);
    let line = "place {} --cluster {} --without GPU:7";
    let parts = [
        "no device is named GPU:7",
        "/job:worker/replica:0/task:0/device:GPU:0",
    ];
    place(line, &[&graph, &cluster]).expect_error(2, &parts);
    let line = "place {} --cluster {} --slow GPU:0";
    place(line, &[&graph, &cluster]).expect(2);
    place("place {} --without GPU:7", &[&graph]).expect(2);
    let line = "place {} --cluster {} --device-count CPU=2";
    place(line, &[&graph, &cluster]).expect(2);
}

#[test]
fn this_machine_on_paper_predicts_what_the_machine_predicts() {
    let (folder, cache) = (folder(), folder());
    let cluster = path_in(&folder, "here.toml");
    let run = |line: &str, paths: &[&str]| run_with_cache(args(line, paths), cache.path());
    let line = "devices --device-count CPU=2 --threads 2 --calibrate --force --seconds 2 --export-cluster {}";
    run(line, &[&cluster]).expect(0);
    for name in [
        "bert_tiny.skel.pb",
        "wide_branch.skel.pb",
        "cf_while_v1.skel.pb",
        "small_cnn_fbn.skel.pb",
    ] {
        for policy in ["priority", "heft", "round-robin"] {
            let graph = model(name);
            let line = format!("place {{}} --policy {policy} --json");
            let here = format!("{line} --device-count CPU=2 --threads 2");
            let here = run(&here, &[&graph]).expect(0).json();
            let paper = format!("{line} --cluster {{}} --inter-op-threads 2");
            let paper = run(&paper, &[&graph, &cluster]).expect(0).json();
            let factor = expected_ns(&paper) / expected_ns(&here);
            assert!((factor - 1.0).abs() < 1e-6, "{name}, {policy}: {factor}");
            let n_nodes = |report: &Value| {
                let devices = report["placement"]["devices"].as_array().expect("devices");
                let of_device = devices.iter().map(|device| device["n_nodes"].clone());
                of_device.collect::<Vec<_>>()
            };
            assert_eq!(n_nodes(&paper), n_nodes(&here), "{name}, {policy}");
        }
    }
}
