//! Fuzzes cluster files: a file is refused with an error, or its devices can be placed on, and the
//! file that is written of them describes the same.

#![no_main]

mod simulated;

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use placewright::cluster::ClusterSpec;
use placewright::dag::TaskGraph;

static TASKS: LazyLock<TaskGraph> = LazyLock::new(|| {
    let text = r#"{ "tasks": [
        { "name": "a", "work": { "flops": "1 GFLOP" }, "writes": [{ "name": "x", "bytes": "1 MB" }] },
        { "name": "b", "work": { "bytes": "2 MB" }, "reads": ["x"] },
        { "name": "c", "work": { "flops": 1 }, "reads": ["x"], "after": ["b"] }
    ] }"#;
    TaskGraph::parse(text).expect("the task graph is valid")
});

fuzz_target!(|text: &str| {
    let cluster = match ClusterSpec::parse(text) {
        Ok(cluster) => cluster,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    let names = |cluster: &ClusterSpec| {
        let devices = cluster.devices().iter();
        devices
            .map(|(_, device)| device.attributes().name.to_string())
            .collect::<Vec<_>>()
    };
    let again = ClusterSpec::parse(&cluster.to_toml()).expect("what is written can be read");
    assert_eq!(names(&cluster), names(&again));
    assert!(!names(&cluster).is_empty());
    match TASKS.candidates(cluster.devices()) {
        Ok(candidates) => simulated::check(&candidates),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
