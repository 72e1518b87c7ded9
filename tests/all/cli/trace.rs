//! Traces that `run --trace` writes.

use std::fs;

use serde_json::Value;

use super::args;
use super::folder;
use super::model;
use super::path_in;
use super::placewright;

/// Returns the names of a device's lanes in a trace.
fn lanes_of(events: &[Value], device: &str) -> Vec<String> {
    let is_device = |event: &&Value| {
        let name = event["args"]["name"].as_str();
        event["name"] == "process_name" && name.is_some_and(|name| name.ends_with(device))
    };
    let process = &events.iter().find(is_device).expect("the device")["pid"];
    let lanes = events.iter();
    let lanes = lanes.filter(|event| event["name"] == "thread_name" && event["pid"] == *process);
    let names = lanes.map(|lane| lane["args"]["name"].as_str().expect("a name").to_owned());
    names.collect()
}

#[test]
fn a_trace_has_a_lane_per_device_transfers_stages_and_the_policy() {
    let folder = folder();
    let trace = path_in(&folder, "trace.json");
    let line = "run {} --policy round-robin --device-count CPU=2 --threads 2 --trace {}";
    placewright(args(line, &[&model("lenet.pb"), &trace])).expect(0);
    let text = fs::read_to_string(&trace).expect("read");
    let trace: Value = serde_json::from_str(&text).expect("JSON");
    let events = trace["traceEvents"].as_array().expect("events");
    assert!(
        events
            .iter()
            .all(|event| event["ph"].is_string() && event["pid"].is_u64())
    );
    for part in ["CPU:0", "CPU:1", "round-robin", "enumerate", "Conv2D"] {
        assert!(text.contains(part), "{part} is not in the trace");
    }
    // Kernels are named by their node.
    let kernels = events.iter().filter(|event| event["cat"] == "kernel");
    let mut n_kernels = 0;
    for kernel in kernels {
        assert_eq!(kernel["name"], kernel["args"]["node"]);
        assert!(kernel["args"]["op"].is_string(), "{kernel}");
        n_kernels += 1;
    }
    assert!(n_kernels > 5);
    // Other calls of devices are present, too.
    let is_there = |call: &str| events.iter().any(|event| event["args"]["call"] == call);
    for call in ["make_tensor", "create_kernel", "fill_context_map"] {
        assert!(is_there(call), "{call} is not in the trace");
    }
    // Few lanes: at most one more for kernels per thread, and one for everything else.
    for device in ["CPU:0", "CPU:1"] {
        let lanes = lanes_of(events, device);
        let others: Vec<_> = lanes
            .iter()
            .filter(|lane| !lane.starts_with("kernels"))
            .map(String::as_str)
            .collect();
        let expected = ["device calls", "queue waits"];
        assert!(
            others.iter().all(|lane| expected.contains(lane)),
            "{lanes:?}"
        );
        assert!(others.contains(&"device calls"), "{lanes:?}");
        assert!(lanes.len() <= 2 + 2, "{lanes:?}");
    }
}

#[test]
fn a_run_that_fails_leaves_its_trace() {
    let folder = folder();
    let trace = path_in(&folder, "trace.json");
    let (graph, other) = (model("tiny_add.pb"), model("tiny_broadcast.npz"));
    let line = "run {} --feeds {} --trace {}";
    placewright(args(line, &[&graph, &other, &trace]))
        .expect_error(1, &["`in/a`", "shape [2,1,4]", "shape [3]"]);
    let trace = fs::read_to_string(&trace).expect("written");
    let trace: Value = serde_json::from_str(&trace).expect("JSON");
    assert!(!trace["traceEvents"].as_array().expect("events").is_empty());
}
