//! Tests measured rates like a user.

use std::fs;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
use std::thread;

use serde_json::Value;

use super::Ran;
use super::args;
use super::folder;
use super::model;
use super::run_with_cache;

fn devices(line: &str, cache: &Path) -> Ran {
    // Other tests compute at the same time. The figures need not be exact.
    let line = line.replace("--calibrate", "--calibrate --force --seconds 2");
    run_with_cache(args(&format!("devices --threads 1 {line}"), &[]), cache).expect(0)
}

fn rows(ran: Ran) -> Vec<Value> {
    let report = ran.json();
    report["devices"].as_array().expect("devices").clone()
}

#[test]
fn devices_are_measured_once_and_plans_use_the_rates_from_then_on() {
    let folder = folder();
    let cache = folder.path().join("cache");
    assert!(devices("", &cache).stdout.contains("defaults"));

    let measured = rows(devices("--calibrate --json", &cache));
    let figure = |row: &Value, pointer: &str| {
        let value = row.pointer(pointer).and_then(Value::as_f64);
        value.unwrap_or_else(|| panic!("{pointer} in {row}"))
    };
    let row = &measured[0];
    assert_eq!(row["rates"]["is_calibrated"], true);
    for pointer in [
        "/rates/flops_per_s",
        "/rates/memory_bytes_per_s",
        "/rates/launch_ns",
        "/rates/host_link/from_host/latency_ns",
        "/rates/host_link/to_host/latency_ns",
        "/calibration/flops_per_s",
        "/calibration/elementwise_bytes_per_s",
        "/calibration/reduction_bytes_per_s",
        "/calibration/launch_ns",
        "/calibration/links/0/rates/latency_ns",
        "/calibration/links/1/rates/latency_ns",
        "/calibration/samples/0/ns",
    ] {
        assert!(figure(row, pointer) > 0.0, "{pointer} of {row}");
    }
    assert!(figure(row, "/calibration/wait_ns") >= 0.0);
    assert_eq!(row["calibration"]["missing"], Value::Array(Vec::new()));

    // Not measured again: the same rates.
    let later = rows(devices("--json", &cache));
    assert_eq!(later[0]["rates"], row["rates"]);
    assert_eq!(later[0]["calibration"], row["calibration"]);
    let shown = devices("", &cache);
    assert!(shown.stdout.contains("measured"), "{}", shown.stdout);
    let without = rows(devices("--no-calibration --json", &cache));
    assert_eq!(without[0]["rates"]["is_calibrated"], false);
    assert_eq!(without[0]["calibration"], Value::Null);

    let graph = model("tiny_add.pb");
    let is_calibrated = |flags: &str| {
        let line = format!("place {{}} --threads 1 --json {flags}");
        let ran = run_with_cache(args(&line, &[&graph]), &cache).expect(0);
        ran.json()["placement"]["is_calibrated"].clone()
    };
    assert_eq!(is_calibrated(""), true);
    assert_eq!(is_calibrated("--no-calibration"), false);
    assert_eq!(is_calibrated("--device-count CPU=2"), false);

    for entry in fs::read_dir(&cache).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("a name").to_string_lossy();
        if name.starts_with("rates-") {
            fs::write(&path, "damaged").expect("written");
        }
    }
    for line in ["devices --threads 1", "place {} --threads 1"] {
        let ran = run_with_cache(args(line, &[&graph]), &cache);
        let ran = ran.expect(0);
        assert!(
            ran.stderr.contains("note: ") && ran.stderr.contains("devices --calibrate"),
            "{line}: {}",
            ran.stderr
        );
    }
    assert!(devices("", &cache).stdout.contains("defaults"));
}

#[test]
fn devices_that_share_threads_are_measured_once() {
    let folder = folder();
    let cache = folder.path().join("cache");
    let rows = rows(devices("--device-count CPU=2 --calibrate --json", &cache));
    assert_eq!(rows[0]["calibration"], rows[1]["calibration"]);
    assert_eq!(rows[0]["rates"], rows[1]["rates"]);
    let flops = |key: &str| rows[1][key]["flops_per_s"].as_f64().expect("a rate");
    assert_eq!(flops("rates"), flops("calibration"));
}

#[test]
fn rates_that_are_measured_on_a_busy_machine_are_not_kept() {
    let folder = folder();
    let cache = folder.path().join("cache");
    let is_done = AtomicBool::new(false);
    let line =
        "devices --threads 1 --device-count SYCL=0 --device-count GPU=0 --calibrate --seconds 2";
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while !is_done.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let ran = run_with_cache(args(line, &[]), &cache);
        // Before anything may fail, or the threads would never end.
        is_done.store(true, Ordering::Relaxed);
        let ran = ran.expect(0);
        for part in [
            "CPU:0 keeps its rates",
            "processors busy",
            "--force",
            "defaults",
        ] {
            assert!(ran.stdout.contains(part), "{part}: {}", ran.stdout);
        }
    });
    assert!(devices("", &cache).stdout.contains("defaults"));
}

#[test]
fn what_was_measured_is_shown_by_family() {
    let folder = folder();
    let cache = folder.path().join("cache");
    let shown = devices(
        "--device-count SYCL=0 --device-count GPU=0 --calibrate",
        &cache,
    )
    .stdout;
    for part in [
        "matmul of one row",
        "depthwise convolution",
        "softmax",
        "spread",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    // Placements use it, and say so.
    let graph = model("lenet.pb");
    let line = "place {} --threads 1 --device-count SYCL=0 --device-count GPU=0 --nodes --json";
    let placed = run_with_cache(args(line, &[&graph]), &cache)
        .expect(0)
        .json();
    let nodes = placed["nodes"].as_array().expect("nodes");
    let of_op = |op: &str| nodes.iter().find(|node| node["op"] == op).expect("a node");
    for op in ["Conv2D", "MatMul", "Tanh", "MaxPool", "Softmax", "Reshape"] {
        assert_eq!(of_op(op)["cost_source"], "calibration", "{op}");
        assert!(of_op(op)["cost_ns"].as_f64().expect("a cost") > 0.0, "{op}");
    }
    // Its kernel is that of the matmul before it.
    assert_eq!(of_op("BiasAdd")["cost_ns"].as_f64(), Some(0.0));
}

#[test]
fn without_a_cache_rates_are_shown_but_not_stored() {
    let ran = devices("--calibrate --memory CPU:0=1MiB", Path::new(""));
    assert!(ran.stdout.contains("measured"), "{}", ran.stdout);
    assert!(ran.stderr.contains("not kept"), "{}", ran.stderr);
    assert!(devices("", Path::new("")).stdout.contains("defaults"));
    let both = args("devices --calibrate --no-calibration", &[]);
    run_with_cache(both, Path::new("")).expect_error(2, &["--no-calibration"]);
}
