//! Fuzzes task graphs, in our format and in WfFormat: a file is refused with an error in one line,
//! or its tasks can be placed and simulated.

#![no_main]

mod simulated;

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use placewright::cluster::ClusterSpec;
use placewright::dag::TaskGraph;

static CLUSTER: LazyLock<ClusterSpec> = LazyLock::new(|| {
    let text = r#"
        [[host]]
        device = [{ profile = "epyc-9654" }, { profile = "h100-sxm", count = 2 }]
    "#;
    ClusterSpec::parse(text).expect("the cluster is valid")
});

fuzz_target!(|text: &str| {
    let tasks = match TaskGraph::parse(text) {
        Ok(tasks) => tasks,
        Err(error) => {
            let message = error.to_string();
            assert!(!message.is_empty() && !message.contains('\n'), "{message}");
            return;
        }
    };
    let graph = tasks.graph();
    assert!(tasks.n_tasks() <= graph.n_nodes());
    for node in graph.nodes() {
        for &producer in graph.predecessors().row(node.index()) {
            assert!(producer < node.0, "ids are topological");
        }
    }
    match tasks.candidates(CLUSTER.devices()) {
        Ok(candidates) => simulated::check(&candidates),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
