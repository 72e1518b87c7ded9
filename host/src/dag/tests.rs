//! Task graphs: what files mean, and what is refused.

mod own;
mod property;
mod workflow;

use std::sync::Arc;

use super::*;
use crate::candidates::Candidates;
use crate::cluster::ClusterSpec;
use crate::cluster::Place;
use crate::device::Device;
use crate::device::DeviceAttributes;
use crate::device::DeviceSet;
use crate::device::LinkRates;
use crate::device::SimpleDevice;
use crate::graph::Graph;
use crate::graph::NONE;
use crate::graph::NodeId;
use crate::names::DeviceId;
use crate::names::DeviceName;
use crate::placement::Evaluator;

fn parse(text: &str) -> TaskGraph {
    TaskGraph::parse(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn error(text: &str) -> String {
    TaskGraph::parse(text).unwrap_err().to_string()
}

/// Two hosts with a CPU and two GPUs each; the second CPU has half the rates of the first.
fn devices() -> Arc<DeviceSet> {
    let text = r#"
        [[host]]
        job = "a"
        network = "lan"
        device = [{ profile = "cpu" }, { profile = "gpu", count = 2 }]

        [[host]]
        job = "b"
        network = "lan"
        device = [{ profile = "old-cpu" }, { profile = "gpu", count = 2 }]

        [link.lan]
        latency = "10 us"
        bandwidth = "10 GB/s"

        [link.bus]
        latency = "1 us"
        bandwidth = "20 GB/s"

        [profile.cpu]
        type = "CPU"
        memory = "64 GB"
        memory-bandwidth = "100 GB/s"
        f32 = "1 TFLOP/s"
        launch = "100 ns"

        [profile.old-cpu]
        type = "CPU"
        memory = "64 GB"
        memory-bandwidth = "100 GB/s"
        f32 = "500 GFLOP/s"
        launch = "100 ns"

        [profile.gpu]
        type = "GPU"
        memory = "16 GB"
        memory-bandwidth = "1 TB/s"
        f32 = "10 TFLOP/s"
        launch = "5 us"
        host-link = "bus"
    "#;
    let cluster = ClusterSpec::parse(text).unwrap();
    Arc::clone(cluster.devices())
}

const OLD_CPU: DeviceId = DeviceId(3);

/// Device ids of [`devices`]: a CPU, GPUs, a CPU, GPUs.
const CPUS: [u32; 2] = [0, 3];
const GPUS: [u32; 4] = [1, 2, 4, 5];

fn node(graph: &Graph, name: &str) -> NodeId {
    let found = graph.find_node(name);
    found.unwrap_or_else(|| panic!("no node {name}"))
}

/// Returns the legal devices of a node, in their order.
fn legal(candidates: &Candidates, name: &str) -> Vec<u32> {
    let mut found = candidates.of_node(node(candidates.graph(), name)).to_vec();
    found.sort_unstable();
    found
}

/// Returns the inputs of a node, as `PRODUCER:BYTES`, or `PRODUCER` without data.
fn inputs(graph: &Graph, name: &str) -> Vec<String> {
    let edges = graph.predecessors().range(node(graph, name).index());
    edges
        .map(|edge| {
            let producer = graph.node_name(NodeId(graph.predecessors().items[edge]));
            match graph.edge_tensors()[edge] {
                NONE => producer.to_owned(),
                tensor => format!("{producer}:{}", graph.tensor_bytes()[tensor as usize]),
            }
        })
        .collect()
}

#[test]
fn what_is_no_object_is_refused() {
    for text in ["", "  ", "[]", "\n3", "tasks"] {
        assert!(error(text).contains("is a JSON object"), "{text}");
    }
    assert_eq!(
        error("{ \"tasks\": [\n  {\"name\": \"a\" \"time\"}\n] }"),
        "line 2, `{\"name\": \"a\" \"time\"}`: expected `,` or `}`"
    );
    let nested = format!("{{\"tasks\": {}", "[".repeat(100_000));
    assert!(error(&nested).contains("line 1"), "{}", error(&nested));
    let ignored = format!("{{\"x\": {}", "[".repeat(100_000));
    assert!(error(&ignored).contains("EOF"), "{}", error(&ignored));
}

#[test]
fn files_are_read_up_to_a_size() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), r#"{"tasks": [{"name": "a", "work": {}}]}"#).unwrap();
    assert_eq!(TaskGraph::read(file.path()).unwrap().n_tasks(), 1);
    file.as_file().set_len(1 << 40).unwrap();
    let error = TaskGraph::read(file.path()).unwrap_err();
    assert!(matches!(error, TaskGraphError::Read(_)), "{error}");
    assert!(
        error.to_string().contains("divide the task graph"),
        "{error}"
    );
    let error = TaskGraph::read(std::path::Path::new("/dev/zero")).unwrap_err();
    assert!(error.to_string().contains("a device"), "{error}");
}

#[test]
fn a_long_line_is_shown_where_the_error_is() {
    let tasks: Vec<String> = (0..50)
        .map(|index| format!("{{\"name\": \"task{index}\", \"work\": {{}}}}"))
        .collect();
    let text = format!(
        "{{\"tasks\": [{}, {{\"name\": \"task7\", \"work\": {{}}}}]}}",
        tasks.join(",")
    );
    assert_eq!(
        error(&text),
        "line 1, `task7\", \"work\": {}}]}`: there are two of task `task7`"
    );
    let text = format!("{{\"tasks\": [{}, {{\"x\": 3}}]}}", tasks.join(","));
    let shown = error(&text);
    assert!(
        shown.contains("{\"x\": 3}]}`: unknown field `x`"),
        "{shown}"
    );
}

#[test]
fn candidates_have_the_links_of_the_devices() {
    let devices = devices();
    let tasks = parse(r#"{"tasks": [{"name": "a", "time": {"CPU": 1}}]}"#);
    let candidates = tasks.candidates(&devices).unwrap();
    let topology = devices.topology().expect("there are two hosts");
    assert_eq!(candidates.devices().topology.as_ref(), Some(topology));
    let ids = || (0..6).map(DeviceId);
    for (from, to) in ids().flat_map(|from| ids().map(move |to| (from, to))) {
        if from != to {
            assert_eq!(candidates.link(from, to), topology.link(from, to));
        }
    }
}

#[test]
fn an_empty_device_set_is_refused() {
    let tasks = parse(r#"{"tasks": [{"name": "a", "time": {"CPU": 1}, "device": "/job:a"}]}"#);
    let error = tasks.candidates(&Arc::new(DeviceSet::default()));
    assert!(
        matches!(error, Err(TaskGraphError::Candidates(_))),
        "{error:?}"
    );
    assert!(matches!(
        TaskGraph::parse("{"),
        Err(TaskGraphError::Invalid {
            place: Place { line: 1, .. },
            ..
        })
    ));
}

#[test]
fn transfers_share_a_link_unless_the_devices_are_without_contention() {
    let tasks = parse(
        r#"{ "tasks": [
            { "name": "a", "time": { "X": 1 },
              "writes": [{ "name": "x", "bytes": 1000000 }, { "name": "y", "bytes": 1000000 }] },
            { "name": "b", "time": { "Y": 1 }, "reads": ["x"] },
            { "name": "c", "time": { "Y": 1 }, "reads": ["y"] }
        ] }"#,
    );
    let set = || {
        let devices = ["X", "Y"].map(|device_type| {
            let name = DeviceName::full("localhost", 0, 0, device_type, 0);
            let attributes = DeviceAttributes::new(&name, device_type, 1 << 30);
            Arc::new(SimpleDevice::new(attributes).unwrap()) as Arc<dyn Device>
        });
        let link = LinkRates {
            latency_ns: 0.0,
            ns_per_byte: 1.0,
        };
        DeviceSet::new(devices).with_link(DeviceId(0), DeviceId(1), link)
    };
    let makespan_ns = |devices: DeviceSet| {
        let candidates = tasks.candidates(&Arc::new(devices)).unwrap();
        let mut plan = Evaluator::new(&candidates);
        plan.set_devices(&[0, 1, 1]);
        plan.makespan_ns()
    };
    assert_eq!(makespan_ns(set()), 2_000_002.0);
    assert_eq!(makespan_ns(set().without_contention()), 1_000_003.0);
}

#[test]
fn errors_have_one_line_without_control_characters() {
    let key = error("{ \"tasks\": [], \"a\\u001b[2J\\nb\": 1 }");
    assert!(key.contains("unknown field `a\\u{1b}[2J\\nb`"), "{key}");
    let version = error("{ \"schemaVersion\": \"1\\n2\" }");
    assert!(
        version.contains("WfFormat `1\\n2` is not supported"),
        "{version}"
    );
}
