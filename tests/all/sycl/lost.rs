//! A device that is lost while it works. A layer between the OpenCL loader and the driver simulates
//! the loss, in a separate process that loads the layer.

use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;

use placewright::builder::GraphBuilder;
use placewright::device::StatusCode;
use placewright::session::Session;
use tempfile::TempDir;

use super::open;
use super::options;
use super::session;
use crate::harness;

/// Names the file whose existence means the loss.
const FILE: &str = "LOSSY_LAYER_FILE";

const INSIDE: &str = "sycl::lost::inside_the_process_with_the_layer";

#[test]
#[needs(Sycl)]
fn a_lost_device_ends_the_run_with_node_op_and_device_and_new_sessions_run() {
    run_with_layer(INSIDE, FILE);
}

/// Runs one of these helpers in a process that loads the layer. `variable` names a file that does
/// not exist yet.
pub(super) fn run_with_layer(helper: &str, variable: &str) {
    let folder = TempDir::new().unwrap();
    let layer = folder.path().join("lossy.so");
    let source = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../tests/fixtures/opencl/lossy_layer.c"
    );
    let compiler = env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let compiled = Command::new(&compiler)
        .args(["-shared", "-fPIC", "-pthread", "-o"])
        .arg(&layer)
        .arg(source)
        .status()
        .expect("Rust links with a C compiler, so there is one");
    assert!(compiled.success());
    let inside = harness::helper(helper)
        .env("OPENCL_LAYERS", &layer)
        .env(variable, folder.path().join("switch"))
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&inside.stderr);
    assert!(inside.status.success(), "{stderr}");
}

/// Runs on device SYCL:0 until it is lost, and then again.
#[helper]
fn inside_the_process_with_the_layer() {
    let file = env::var(FILE).expect("the test above sets it");
    let file = Path::new(&file);
    let graph = || {
        let b = GraphBuilder::new("graph");
        let x = b.constant([4], &[-1f32, 0.0, 1.0, 2.0]).unwrap();
        let sycl = b.device("/device:SYCL:0").unwrap();
        sycl.named("y").relu(x).unwrap();
        b
    };
    let run = |session: &Session| session.run(&[], &["y"]).map_err(Box::new);
    let is_right = |session: &Session| {
        run(session).unwrap()[0].as_slice::<f32>().unwrap() == [0.0, 0.0, 1.0, 2.0]
    };
    let devices = open(&options(1));
    let old = session(graph(), &devices).build().unwrap();
    assert!(is_right(&old));

    fs::write(file, "").unwrap();
    for _ in 0..3 {
        let error = run(&old).unwrap_err();
        assert_eq!(error.code(), StatusCode::Unavailable, "{error:?}");
        let text = error.to_string();
        for part in [
            "/device:SYCL:0: the device is lost: node `y` (op Relu): launching `relu",
            "CL_DEVICE_NOT_AVAILABLE",
            "build a new session",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    // The system has brought the device back: the old device object has lost its memory, and
    // reports it.
    fs::remove_file(file).unwrap();
    let error = run(&old).unwrap_err();
    assert_eq!(error.code(), StatusCode::Unavailable, "{error:?}");
    drop(old);
    let devices = open(&options(1));
    let new = session(graph(), &devices).build().unwrap();
    assert!(is_right(&new));
}
