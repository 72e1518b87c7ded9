//! SYCL devices in the program.

use std::path::Path;
use std::process::Command;
use std::process::Output;

use serde_json::Value;

use super::args;
use super::folder;
use super::model;
use super::path_in;
use super::placewright;
use crate::sycl;

#[test]
fn without_a_driver_requesting_a_device_is_an_error_with_a_remedy() {
    let shown = placewright(["devices"]).expect(0).stdout;
    let line = shown.lines().find(|line| line.starts_with("no SYCL: "));
    let line = line.unwrap_or_else(|| panic!("no line in\n{shown}"));
    assert!(
        line.contains("install") && line.contains("pocl-opencl-icd"),
        "{line}"
    );
    let one = placewright(args("devices --device-count SYCL=1", &[]));
    one.expect_error(1, &["SYCL", "pocl-opencl-icd"]);
    placewright(args("devices --device-count SYCL=0", &[])).expect(0);
    let run = args("run {} --device-count SYCL=1", &[&model("tiny_add.pb")]);
    placewright(run).expect_error(1, &["SYCL", "pocl-opencl-icd"]);
}

/// Runs the program with this machine's OpenCL drivers.
fn run_with_opencl(line: &str, paths: &[&str]) -> Output {
    let cache = concat!(env!("CARGO_TARGET_TMPDIR"), "/cli-cache");
    run_with_opencl_and_cache(line, paths, Path::new(cache))
}

fn run_with_opencl_and_cache(line: &str, paths: &[&str], cache: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_placewright"))
        .args(args(line, paths))
        .env("PLACEWRIGHT_CACHE_DIR", cache)
        .env_remove("TF_ENABLED_DEVICE_TYPES")
        .output()
        .expect("the program starts")
}

/// Returns the standard output of the program with this machine's OpenCL drivers.
fn with_opencl(line: &str, paths: &[&str]) -> String {
    let output = run_with_opencl(line, paths);
    assert_eq!(output.status.code(), Some(0), "{line}: {output:?}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

#[test]
#[needs(Sycl)]
fn devices_show_their_drivers_description_and_chip() {
    let n = sycl::n_devices();
    let devices: Value = serde_json::from_str(&with_opencl("devices --json", &[])).unwrap();
    let rows = devices["devices"].as_array().unwrap();
    let rows: Vec<_> = rows
        .iter()
        .filter(|row| row["device_type"] == "SYCL")
        .collect();
    assert_eq!(rows.len(), n);
    for (index, row) in rows.iter().enumerate() {
        let description = row["physical_description"].as_str().unwrap();
        let start = format!("device: {index}, name SYCL, ");
        assert!(description.starts_with(&start), "{description}");
        assert!(row["memory_capacity_bytes"].as_u64().unwrap() > 0);
    }
    super::schemas::check("devices", &devices);
    // Devices that compute on the host's processor share it.
    let physical = devices["physical_devices"].as_array().unwrap();
    let classes = physical
        .iter()
        .filter(|row| row["name"].as_str().unwrap().contains(":SYCL:"))
        .map(|row| row["details"]["device_class"] == "CPU");
    let cpu = devices["devices"][0]["chip"].clone();
    for (row, is_cpu) in rows.iter().zip(classes) {
        assert_eq!(row["chip"] == cpu, is_cpu, "{row}");
    }
    let memory = with_opencl("devices --memory SYCL:0=64MiB --json", &[]);
    let memory: Value = serde_json::from_str(&memory).unwrap();
    let row = memory["devices"].as_array().unwrap().iter();
    let row = row
        .clone()
        .find(|row| row["device_type"] == "SYCL")
        .unwrap();
    assert_eq!(row["memory_capacity_bytes"], 64 << 20);
}

#[test]
#[needs(Sycl)]
fn a_model_runs_on_a_sycl_device_and_gives_tensorflows_numbers() {
    let paths = [&*model("lenet.pb"), &*model("lenet.npz")];
    let ran = with_opencl(
        "run {} --check {} --device-count SYCL=1 --soft-placement --device /device:SYCL:0",
        &paths,
    );
    assert!(ran.contains("all fetches match"), "{ran}");
    assert!(ran.contains("/device:SYCL:0"), "{ran}");
}

#[test]
#[needs(Sycl)]
fn a_machine_with_a_sycl_device_on_paper_predicts_what_the_machine_predicts() {
    let (folder, cache) = (folder(), folder());
    let cluster = path_in(&folder, "here.toml");
    let run = |line: &str, paths: &[&str]| {
        let output = run_with_opencl_and_cache(line, paths, cache.path());
        assert_eq!(output.status.code(), Some(0), "{line}: {output:?}");
        output.stdout
    };
    let devices = "--device-count SYCL=1 --device-count GPU=0 --threads 1";
    let export = format!("devices {devices} --calibrate --force --seconds 2 --export-cluster {{}}");
    run(&export, &[&cluster]);
    for name in ["wide_branch.skel.pb", "small_cnn_fbn.skel.pb"] {
        for policy in ["priority", "heft"] {
            let expected = |flags: &str, paths: &[&str]| {
                let line = format!("simulate {{}} --policy {policy} --json {flags}");
                let report: Value = serde_json::from_slice(&run(&line, paths)).unwrap();
                let bytes = report["placement"]["transfer_bytes"].clone();
                (report["expected_ns"].as_f64().expect("a time"), bytes)
            };
            let graph = model(name);
            let here = expected(devices, &[&graph]);
            let paper = "--cluster {} --inter-op-threads 1";
            let paper = expected(paper, &[&graph, &cluster]);
            let factor = paper.0 / here.0;
            assert!((factor - 1.0).abs() < 1e-6, "{name}, {policy}: {factor}");
            assert_eq!(paper.1, here.1, "{name}, {policy}");
        }
    }
}

#[test]
#[needs(Sycl)]
fn a_device_is_compared_with_its_driver_and_with_the_cpu_device() {
    placewright(args("bench device CPU:0", &[])).expect_error(2, &["CPU:0", "expected SYCL:0"]);
    placewright(args("bench device SYCL:9", &[])).expect_error(1, &["SYCL:9"]);
    let line =
        "bench device SYCL:0 --rounds 2 --tiles 4 --kibi-elements 8 --chain 100 --json --model {}";
    let report = with_opencl(line, &[&model("mlp.skel.pb")]);
    let report: Value = serde_json::from_str(&report).unwrap();
    super::schemas::check("bench device", &report);
    assert_eq!(report["bench"], "device");
    let rows = report["rows"].as_array().unwrap();
    let against = |other: &str| rows.iter().filter(|row| row["against"] == other).count();
    assert_eq!(against("tiles in registers"), 2);
    assert_eq!(against("copy kernel"), 4);
    assert_eq!(against("enqueued one by one"), 1);
    assert_eq!(against("enqueue and wait"), 6);
    assert_eq!(against("CPU:0"), 2);
    for row in rows {
        for key in ["ns", "against_ns", "speed_ratio"] {
            assert!(row[key].as_f64() > Some(0.0), "{key}: {row}");
        }
    }
}

/// Placements that `place` accepts run, even if the work of the other device continues after its
/// kernels have returned.
#[test]
#[needs(Sycl)]
fn accepted_placements_with_a_sycl_device_run() {
    let bytes = (96..=288).step_by(16).chain([159, 191]);
    accepted_placements_run("tiny_dtypes.skel.pb", "--policy priority", bytes);
}

/// Steps of the CPU must not overtake those of the SYCL device, which end later.
#[test]
#[needs(Sycl)]
fn placements_that_alternate_with_a_sycl_device_run() {
    let flags = "--policy round-robin --memory SYCL:0=2525";
    accepted_placements_run("tiny_slices.skel.pb", flags, (1_829..=4_229).step_by(200));
}

/// Runs every graph that `place` accepts with this many bytes on the CPU. Some must be accepted,
/// and some must not.
fn accepted_placements_run(graph: &str, flags: &str, cpu_bytes: impl IntoIterator<Item = usize>) {
    let graph = model(graph);
    let (mut n_placed, mut n_refused) = (0, 0);
    for bytes in cpu_bytes {
        let flags = format!(
            "--device-count CPU=1 --device-count SYCL=1 {flags} --strict-policy \
             --memory CPU:0={bytes}"
        );
        let ended = |command: &str| run_with_opencl(&format!("{command} {{}} {flags}"), &[&graph]);
        if ended("place").status.success() {
            let output = ended("run");
            assert!(output.status.success(), "{bytes}: {output:?}");
            n_placed += 1;
        } else {
            n_refused += 1;
        }
    }
    assert!(n_placed > 0 && n_refused > 0, "{n_placed}, {n_refused}");
}
