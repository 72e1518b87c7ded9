//! An app's own device type is treated like a built-in one: by placement, policies, transfers and
//! the program.

use placewright::backend::default_factories;
use placewright::device::DeviceOptions;
use placewright::registry::Registry;
use serde_json::Value;

use crate::cli::args;
use crate::cli::model;
use crate::harness;

#[path = "../../host/examples/own_device.rs"]
mod example;

/// Runs the example's program with these arguments and returns exit status, standard output and
/// standard error. It runs in a separate process, with the arguments in the environment.
fn program(line: &str, paths: &[&str]) -> (Option<i32>, String, String) {
    let output = harness::helper("own_device::the_app")
        .env(ARGUMENTS, args(line, paths).join("\n"))
        .env("PLACEWRIGHT_CACHE_DIR", "")
        .env("OCL_ICD_VENDORS", crate::cli::NO_OPENCL)
        .env_remove("TF_ENABLED_DEVICE_TYPES")
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (
        output.status.code(),
        text(output.stdout),
        text(output.stderr),
    )
}

const ARGUMENTS: &str = "PLACEWRIGHT_TEST_ARGUMENTS";

#[helper]
fn the_app() {
    let arguments = std::env::var(ARGUMENTS).unwrap();
    let registry = Registry::default().with(example::NPU).unwrap();
    let args = ["app"].into_iter().chain(arguments.split('\n'));
    std::process::exit(placewright::cli::run(registry, args).into());
}

#[test]
fn the_program_of_an_app() {
    let json = |(status, stdout, stderr): (Option<i32>, String, String)| -> Value {
        assert_eq!(status, Some(0), "{stderr}");
        let start = stdout.find('{').expect("a document");
        serde_json::from_str(&stdout[start..]).unwrap()
    };
    let devices = json(program("devices --json", &[]));
    let rows = devices["devices"].as_array().unwrap().iter();
    let types: Vec<_> = rows.map(|device| &device["device_type"]).collect();
    assert_eq!(types, ["CPU", "NPU", "NPU"]);
    let described = &devices["devices"][2]["physical_description"];
    assert_eq!(described, "device: 1, name: Simulated NPU");

    // Its rates are measured as far as it has kernels; the host's processor has them all. Other
    // tests compute at the same time.
    let measured = json(program(
        "devices --calibrate --force --seconds 2 --json",
        &[],
    ));
    let calibration = &measured["devices"][1]["calibration"];
    for figure in ["launch_ns", "wait_ns", "elementwise_bytes_per_s"] {
        assert!(calibration[figure].is_f64(), "{figure}: {calibration}");
    }
    let missing = calibration["missing"].as_array().unwrap();
    assert_eq!(missing.len(), 2, "products and sums: {missing:?}");
    for (index, is_calibrated) in [(0, true), (1, false), (2, false)] {
        let rates = &measured["devices"][index]["rates"];
        assert_eq!(rates["is_calibrated"], is_calibrated);
    }

    // The sum runs on the NPU, and ops without a kernel there run on the CPU. Results are
    // TensorFlow's.
    let (graph, expected) = (model("tiny_add.pb"), model("tiny_add.npz"));
    let line = "run {} --check {} --device /device:NPU:1 --soft-placement --json";
    let ran = json(program(line, &[&graph, &expected]));
    let n_nodes = |index: usize| ran["placement"]["devices"][index]["n_nodes"].as_u64();
    assert!(n_nodes(2).unwrap() > 0, "{ran:#}");
    assert!(n_nodes(0).unwrap() > 0, "{ran:#}");

    // Options and errors are those of any device.
    let (status, _, stderr) = program("devices --device-count NPU=x", &[]);
    assert!(status == Some(2) && stderr.contains("TYPE=N"), "{stderr}");
    let (status, _, stderr) = program("place {} --memory NPU:7=1KiB", &[&graph]);
    assert!(status == Some(2) && stderr.contains("NPU:1"), "{stderr}");
    let one = json(program("devices --device-count NPU=1 --json", &[]));
    assert_eq!(one["devices"].as_array().unwrap().len(), 2);
}

#[test]
fn the_example_computes_on_its_devices_under_each_policy() {
    let outcomes = example::run().unwrap();
    assert_eq!(outcomes.len(), 3);
    for outcome in outcomes {
        let policy = outcome.policy;
        let device = |node: &str| {
            let mut placed = outcome.placed.iter();
            placed.find(|(name, _)| name == node).unwrap().1.clone()
        };
        assert!(device("positive").ends_with("/device:NPU:1"), "{policy}");
        assert!(device("y").ends_with("/device:CPU:0"), "{policy}");
        if policy == "priority" {
            // By type priority, 230 before the CPU's 60, and the first by name.
            assert!(device("twice").ends_with("/device:NPU:0"), "{policy}");
        }
        assert!(outcome.n_transfers >= 1, "{policy}");
        let expected = [0.0, 4.0f32.tanh(), 6.0f32.tanh()];
        for (found, expected) in outcome.y.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-6, "{policy}: {found}");
        }
    }
}

#[test]
fn without_the_registrar_there_is_no_such_device() {
    let mut options = DeviceOptions::default();
    options.device_count.insert("NPU".to_owned(), 2);
    let prefix = "/job:localhost/replica:0/task:0";
    let n_npus = |factories: &placewright::device::FactoryRegistry| {
        let set = factories.create_devices(&options, prefix).unwrap();
        set.of_type("NPU").len()
    };
    assert_eq!(n_npus(&default_factories()), 0);
    let registry = Registry::default().with(example::NPU).unwrap();
    assert_eq!(n_npus(registry.factories()), 2);
    let switched_off = registry.factories().clone().with_enabled_types("CPU");
    assert_eq!(n_npus(&switched_off), 0);
    assert!(
        switched_off
            .kernels()
            .of_op("Relu")
            .iter()
            .all(|def| def.device_type != "NPU")
    );
}
