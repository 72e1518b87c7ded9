//! `placewright bench gpu` and `bench worker` on emulated GPUs, and the scripts of tests/gpu as far
//! as they need no card. The program runs in a separate process, with its arguments in the
//! environment. No time is asserted.

use std::io::Write;
#[cfg(target_os = "linux")]
use std::path::Path;
#[cfg(target_os = "linux")]
use std::process::Command;
use std::process::Stdio;
use std::sync::Arc;

use placewright::backend::cuda::GpuDeviceFactory;
#[cfg(target_os = "linux")]
use placewright::device::DeviceFactory;
use placewright::registry::Registry;
use serde_json::Value;
use serde_json::json;

use crate::cli::args;
use crate::cli::model;
use crate::emulated::EmulatedConfig;
use crate::emulated::EmulatedDriver;
use crate::harness;

const ARGUMENTS: &str = "PLACEWRIGHT_TEST_GPU_ARGUMENTS";

#[helper]
fn the_program_with_emulated_gpus() {
    let arguments = std::env::var(ARGUMENTS).unwrap();
    let config = EmulatedConfig {
        // The program of the reference is compiled only here.
        compiles_for_real: true,
        ..EmulatedConfig::default()
    };
    let driver = Arc::new(EmulatedDriver::new(config).unwrap());
    let factory = GpuDeviceFactory::with_driver(Arc::clone(&driver) as _);
    let mut registry = Registry::default();
    // Replaces CUDA's factory, which has no devices.
    let factories = registry.factories_mut();
    factories.register("GPU", 211, Arc::new(factory)).unwrap();
    let arguments = ["placewright"].into_iter().chain(arguments.split('\n'));
    let status = placewright::cli::run(registry, arguments);
    // There was no violation, and everything is freed once the devices are dropped.
    assert_eq!(driver.violations(), [""; 0]);
    assert_eq!(driver.live_bytes(), 0);
    assert_eq!(driver.live_pinned_bytes(), 0);
    assert_eq!(driver.n_live_streams(), 0);
    assert_eq!(driver.n_live_events(), 0);
    std::process::exit(status.into());
}

/// Returns exit status, standard output and standard error.
fn program(line: &str, paths: &[&str], input: &str) -> (Option<i32>, String, String) {
    let mut child = harness::helper("gpu::bench::the_program_with_emulated_gpus")
        .env(ARGUMENTS, args(line, paths).join("\n"))
        .env("PLACEWRIGHT_CACHE_DIR", "")
        .env_remove("TF_ENABLED_DEVICE_TYPES")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(input.as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let status = output.status.code();
    (status, text(output.stdout), text(output.stderr))
}

#[test]
#[needs(Sycl)]
fn a_gpu_is_compared_with_its_driver_and_the_cpu_device() {
    let line = "bench gpu --rounds 2 --side 32 --channels 4 --copies 4KiB,8KiB --chain 20 --model {} --gpu-allow-growth --device-count SYCL=0 --json";
    let (status, printed, stderr) = program(line, &[&model("mlp.skel.pb")], "");
    assert_eq!(status, Some(0), "{stderr}");
    let report: Value = serde_json::from_str(&printed).unwrap();
    crate::cli::schemas::check("bench gpu", &report);
    assert_eq!(
        (&report["bench"], &report["device"], &report["gpu"]["name"]),
        (&json!("gpu"), &json!("GPU:0"), &json!("emulated"))
    );
    let driver = report["gpu"]["driver"].as_str().unwrap();
    assert!(driver.starts_with("emulated"), "{driver}");
    assert_eq!(report["version"], env!("CARGO_PKG_VERSION"));
    let rows = report["rows"].as_array().unwrap();
    let expected = [
        ("matmul of 32, float", Value::Null, "GFLOP/s"),
        ("matmul of 32, bfloat16", Value::Null, "GFLOP/s"),
        (
            "convolution of 56 x 56 x 4, 3 x 3, float",
            Value::Null,
            "GFLOP/s",
        ),
        (
            "convolution of 56 x 56 x 4, 3 x 3, bfloat16",
            Value::Null,
            "GFLOP/s",
        ),
        (
            "convolution of 14 x 14 x 16, 3 x 3, float",
            Value::Null,
            "GFLOP/s",
        ),
        (
            "convolution of 14 x 14 x 16, 3 x 3, bfloat16",
            Value::Null,
            "GFLOP/s",
        ),
        (
            "convolution of 14 x 14 x 16, 1 x 1, float",
            Value::Null,
            "GFLOP/s",
        ),
        (
            "convolution of 14 x 14 x 16, 1 x 1, bfloat16",
            Value::Null,
            "GFLOP/s",
        ),
        (
            "4.0 KiB to the device, pinned",
            json!("pinned, by the driver"),
            "GB/s",
        ),
        (
            "4.0 KiB to the device, pageable",
            json!("pinned, by the driver"),
            "GB/s",
        ),
        (
            "4.0 KiB from the device",
            json!("pinned, by the driver"),
            "GB/s",
        ),
        (
            "8.0 KiB to the device, pinned",
            json!("pinned, by the driver"),
            "GB/s",
        ),
        (
            "8.0 KiB to the device, pageable",
            json!("pinned, by the driver"),
            "GB/s",
        ),
        (
            "8.0 KiB from the device",
            json!("pinned, by the driver"),
            "GB/s",
        ),
        (
            "chain of 20 additions",
            json!("launched one by one"),
            "ns each",
        ),
        (
            "8.0 KiB from the host and",
            json!("one after the other"),
            "ns",
        ),
        ("mlp", json!("CPU:0"), "ns"),
    ];
    assert_eq!(rows.len(), expected.len(), "{report:#}");
    for (row, (case, against, unit)) in rows.iter().zip(expected) {
        assert!(row["case"].as_str().unwrap().starts_with(case), "{row}");
        assert_eq!(
            (&row["against"], &row["speed_unit"]),
            (&against, &json!(unit))
        );
        for key in ["ns", "speed"] {
            assert!(row[key].as_f64() > Some(0.0), "{key}: {row}");
        }
        for key in ["against_ns", "against_speed", "speed_ratio"] {
            let is_positive = row[key].as_f64() > Some(0.0);
            assert_eq!(is_positive, !against.is_null(), "{key}: {row}");
        }
    }
}

#[test]
#[needs(Sycl)]
fn a_worker_opens_models_on_a_gpu() {
    let open = |device: &str, tolerance: f64| {
        json!({
            "do": "open-model", "graph": model("mlp.skel.pb"), "arrays": model("mlp.npz"), "threads": 1, "device": device,
            "tolerance": tolerance
        })
    };
    let input = [
        open("GPU:0", 1e-4),
        json!({"do": "turn", "ms": 0}),
        open("GPU:1", 1e-4),
        open("/device:GPU", 1e-4),
        open("not a device", 1e-4),
        open("GPU:0", 2.0),
        json!({"do": "open-matmuls", "side": 20, "dtype": "bfloat16", "threads": 1, "device": "GPU:0"}),
        json!({"do": "turn", "ms": 0}),
        json!({"do": "open-copies", "bytes": 5000, "way": "to-device", "threads": 1, "device": "GPU:0"}),
        json!({"do": "turn", "ms": 0}),
        json!({"do": "open-copies", "bytes": 5000, "way": "from-device", "threads": 1, "device": "GPU:0"}),
        json!({"do": "turn", "ms": 0}),
        json!({"do": "open-matmuls", "side": 0, "dtype": "float32", "threads": 1, "device": "GPU:0"}),
    ];
    let input = input.map(|line| line.to_string()).join("\n");
    let (status, printed, stderr) = program("bench worker", &[], &input);
    assert_eq!(status, Some(0), "{stderr}");
    let answers: Vec<Value> = printed
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(answers.len(), 13, "{printed}");
    for index in [0, 6, 8, 10] {
        assert!(answers[index]["first_ns"].as_u64() > Some(0), "{printed}");
    }
    for index in [1, 7, 9, 11] {
        assert_eq!(answers[index]["runs"], 3, "{printed}");
    }
    for (index, part) in [
        (2, "GPU:1"),
        (3, "GPU:0"),
        (4, "not a device"),
        (5, "0 to 1"),
        (12, "matmuls of 0"),
    ] {
        let error = answers[index]["error"].as_str().unwrap_or_default();
        assert!(error.contains(part), "{index}: {printed}");
    }
}

#[test]
#[needs(Sycl)]
fn invalid_options_of_bench_gpu_are_reported() {
    for (line, expected, part) in [
        ("bench gpu CPU:0", 2, "expected GPU:0"),
        ("bench gpu GPU:7 --device-count SYCL=0", 1, "GPU:7"),
        ("bench gpu --copies 3", 2, "multiple of 4"),
        ("bench gpu --sync-every-op", 2, "nobody waits"),
    ] {
        let (status, printed, stderr) = program(line, &[], "");
        assert_eq!(
            (status, &*printed),
            (Some(expected), ""),
            "{line}: {stderr}"
        );
        assert!(stderr.contains(part), "{line}: {stderr}");
    }
}

/// Runs `tests/gpu/run`, or one of its parts, with the program of this build. Returns exit status,
/// standard output and standard error.
#[cfg(target_os = "linux")]
fn script(name: &str, folder: &Path, line: &str) -> (Option<i32>, String, String) {
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/gpu");
    let output = Command::new("python3")
        .arg("-B")
        .arg(scripts.join(name))
        .args(args(line, &[]))
        .args(["--python", "/absent/python"])
        .current_dir(folder)
        .env("OCL_ICD_VENDORS", crate::cli::NO_OPENCL)
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (
        output.status.code(),
        text(output.stdout),
        text(output.stderr),
    )
}

/// A rehearsal shows that the rows work. Missing tools are reported, and the other rows run.
#[cfg(target_os = "linux")]
#[test]
#[needs(Python)]
fn the_rows_of_a_machine_with_a_card_can_be_rehearsed_without_one() {
    let folder = crate::cli::folder();
    let program = folder.path().join("placewright");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_placewright"), &program).unwrap();
    let only = "card,devices,whole_tiny_add,split_tiny_add,split_sycl,memcheck,bench_gpu,pytorch";
    let line = format!("out --rehearse --programs . --only {only}");
    let (status, printed, stderr) = script("rows.py", folder.path(), &line);
    assert_eq!(status, Some(0), "{printed}\n{stderr}");
    assert!(printed.starts_with("# REHEARSAL on CPU:0"), "{printed}");
    let results = std::fs::read(folder.path().join("out/results.json")).unwrap();
    let results: Value = serde_json::from_slice(&results).unwrap();
    assert_eq!(results["is_rehearsal"], true);
    let rows = results["rows"].as_array().unwrap();
    let found: Vec<_> = rows
        .iter()
        .map(|row| (&row["row"], &row["status"]))
        .collect();
    let expected = [
        ("card", "absent"),
        ("devices", "ok"),
        ("whole_tiny_add", "ok"),
        ("split_tiny_add", "ok"),
        ("split_sycl", "absent"),
        ("memcheck", "absent"),
        ("bench_gpu", "absent"),
        ("pytorch", "absent"),
    ]
    .map(|(row, status)| (json!(row), json!(status)));
    assert_eq!(
        found,
        expected
            .iter()
            .map(|(row, status)| (row, status))
            .collect::<Vec<_>>()
    );
    for row in rows {
        let line = format!(
            "| {} | {} |",
            row["row"].as_str().unwrap(),
            row["status"].as_str().unwrap()
        );
        assert!(printed.contains(&line), "no `{line}` in\n{printed}");
    }

    // With a card, these rows are those of that machine.
    if GpuDeviceFactory::default().list_physical().is_err() {
        let line = "out --programs . --only devices,whole_tiny_add";
        let (status, printed, _) = script("rows.py", folder.path(), line);
        assert_eq!(status, Some(1), "{printed}");
        assert!(printed.contains("| devices | failed |"), "{printed}");
        assert!(printed.contains("no GPU device: "), "{printed}");
        assert!(printed.contains("| whole_tiny_add | failed |"), "{printed}");
    }
}

/// Our side is measured, and what the other lacks is reported.
#[cfg(target_os = "linux")]
#[test]
#[needs(Python)]
fn a_comparison_without_its_peer_has_our_rows_and_fails() {
    let folder = crate::cli::folder();
    let line = format!(
        "--placewright {} --device CPU:0 --folder out --rounds 1 --turn-ms 1 --threads 1 --models lenet --side 16 --copies 4096",
        env!("CARGO_BIN_EXE_placewright")
    );
    let (status, printed, stderr) = script("compare.py", folder.path(), &line);
    assert_eq!(status, Some(1), "{printed}\n{stderr}");
    assert!(stderr.contains("PyTorch has failed"), "{stderr}");
    let results = std::fs::read(folder.path().join("out/compare.json")).unwrap();
    let results: Value = serde_json::from_slice(&results).unwrap();
    let rows = results["rows"].as_array().unwrap();
    let cases: Vec<_> = rows
        .iter()
        .map(|row| row["case"].as_str().unwrap())
        .collect();
    let expected = [
        "model lenet",
        "matmul of 16, float32",
        "matmul of 16, bfloat16",
        "copy of 4 KiB to the device, pinned",
        "copy of 4 KiB from the device, pinned",
    ];
    assert_eq!(cases, expected);
    for row in rows {
        assert!(row["ours"]["ns"].as_f64() > Some(0.0), "{row}");
        let error = row["errors"]["eager"].as_str().unwrap();
        assert!(error.contains("/absent/python"), "{error}");
        assert!(
            printed.contains(&format!("| {} |", row["case"].as_str().unwrap())),
            "{printed}"
        );
    }
}
