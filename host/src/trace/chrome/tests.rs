//! Tests of the Chrome trace.

use std::sync::Arc;

use super::*;
use crate::graph::{AttrSet, GraphAssembler, NodeId, NodeSpec, Output, TensorId, Work};
use crate::tensor::{DType, PartialShape};
use crate::trace::TransferWay;

fn names() -> TraceNames {
    let mut assembler = GraphAssembler::new("test");
    let node = NodeSpec {
        name: "dense \"1\"",
        op: "MatMul",
        inputs: &[],
        requested_device: "",
        attrs: AttrSet::default(),
        outputs: &[Output {
            dtype: DType::F32,
            is_ref: false,
            shape: PartialShape::scalar(),
        }],
        stateful: false,
        work: Work::default(),
    };
    assembler.add_node(&node).unwrap();
    TraceNames {
        graph: Arc::new(assembler.finish()),
        devices: ["/device:CPU:0", "/device:CPU:1"].map(String::from).into(),
    }
}

fn kernel(device: u32, start_ns: u64, duration_ns: u64) -> Event {
    Event {
        kind: EventKind::Kernel {
            run: 1,
            node: NodeId(0),
            fused: None,
            device: DeviceId(device),
            queue_wait_ns: 0,
            output_bytes: 4,
        },
        start_ns,
        duration_ns,
    }
}

/// A kernel after a wait.
fn waited(device: u32, wait_ns: u64, start_ns: u64, duration_ns: u64) -> Event {
    let mut event = kernel(device, start_ns, duration_ns);
    if let EventKind::Kernel { queue_wait_ns, .. } = &mut event.kind {
        *queue_wait_ns = wait_ns;
    }
    event
}

fn stage(name: &'static str, start_ns: u64, duration_ns: u64) -> Event {
    Event {
        kind: EventKind::Stage { name: name.into() },
        start_ns,
        duration_ns,
    }
}

fn parse(events: Vec<Event>) -> Vec<Value> {
    let trace = Trace {
        events,
        names: names(),
    };
    let mut bytes = Vec::new();
    trace.write_chrome(&mut bytes).unwrap();
    let mut json: Value = serde_json::from_slice(&bytes).unwrap();
    match json["traceEvents"].take() {
        Value::Array(events) => events,
        other => panic!("traceEvents is {other}"),
    }
}

#[test]
fn devices_have_processes_and_events_their_names_bytes_and_times() {
    let transfer = Event {
        kind: EventKind::Transfer {
            run: 1,
            payload: Payload::Tensor(TensorId(0)),
            edge: 3,
            source: DeviceId(0),
            destination: DeviceId(1),
            way: TransferWay::Direct,
            bytes: 4096,
            queue_wait_ns: 0,
            send_ns: 1_000,
            receive_wait_ns: 0,
        },
        start_ns: 2_500,
        duration_ns: 1_000,
    };
    let events = parse(vec![kernel(1, 1_500, 250), transfer]);
    let is_process = |event: &&Value| {
        event["name"] == "process_name" && event["args"]["name"] == "/device:CPU:1"
    };
    let process = &events.iter().find(is_process).unwrap()["pid"];
    let complete: Vec<&Value> = events.iter().filter(|event| event["ph"] == "X").collect();
    assert_eq!(&complete[0]["pid"], process);
    assert_eq!(complete[0]["name"], "dense \"1\"");
    assert_eq!(complete[0]["args"]["op"], "MatMul");
    assert_eq!(complete[0]["args"]["node"], "dense \"1\"");
    assert_eq!(complete[0]["args"]["queue_wait_ns"], 0);
    assert_eq!(
        (&complete[0]["ts"], &complete[0]["dur"]),
        (&json!(1.5), &json!(0.25))
    );
    assert_eq!(complete[1]["name"], "dense \"1\":0");
    assert_eq!(complete[1]["args"]["way"], "direct");
    assert_eq!(complete[1]["args"]["bytes"], 4096);
    assert_eq!(
        complete[1]["args"]["key"],
        "/device:CPU:0;0000000000000001;/device:CPU:1;edge_3_dense \"1\";0:0"
    );
}

/// Returns lane, category, start and duration of what is drawn, by start.
fn drawn(events: &[Value]) -> Vec<(String, String, f64, f64)> {
    let lane_of = |event: &Value| {
        let names = |other: &&Value| other["name"] == "thread_name" && other["tid"] == event["tid"];
        let lane = events.iter().find(names).unwrap();
        assert_eq!(lane["pid"], event["pid"]);
        lane["args"]["name"].as_str().unwrap().to_owned()
    };
    let complete = events.iter().filter(|event| event["ph"] == "X");
    complete
        .map(|event| {
            let category = event["cat"].as_str().unwrap().to_owned();
            let number = |key: &str| event[key].as_f64().unwrap();
            (lane_of(event), category, number("ts"), number("dur"))
        })
        .collect()
}

#[test]
fn waits_are_before_kernels_on_a_lane_of_their_own() {
    let events = parse(vec![waited(1, 1_000, 1_500, 250)]);
    let row = |lane: &str, category: &str, start, duration| {
        (lane.to_owned(), category.to_owned(), start, duration)
    };
    assert_eq!(
        drawn(&events),
        [
            row("queue waits", "queue-wait", 0.5, 1.0),
            row("kernels", "kernel", 1.5, 0.25)
        ]
    );
    let pids: Vec<&Value> = events
        .iter()
        .filter(|event| event["ph"] == "X")
        .map(|event| &event["pid"])
        .collect();
    assert_eq!(pids[0], pids[1], "both belong to the device");
}

#[test]
fn a_transfer_waits_before_its_send_and_before_its_receive() {
    let kind = EventKind::Transfer {
        run: 1,
        payload: Payload::Tensor(TensorId(0)),
        edge: 0,
        source: DeviceId(0),
        destination: DeviceId(1),
        way: TransferWay::Staged,
        bytes: 4,
        queue_wait_ns: 2_000,
        send_ns: 1_000,
        receive_wait_ns: 4_000,
    };
    let events = parse(vec![Event {
        kind,
        start_ns: 3_000,
        duration_ns: 6_000,
    }]);
    let times: Vec<(String, f64, f64)> = drawn(&events)
        .into_iter()
        .map(|(_, category, start, duration)| (category, start, duration))
        .collect();
    assert_eq!(
        times,
        [
            ("queue-wait".to_owned(), 1.0, 2.0),
            ("transfer".to_owned(), 3.0, 6.0),
            ("queue-wait".to_owned(), 4.0, 4.0)
        ]
    );
    let threads: Vec<&Value> = events
        .iter()
        .filter(|event| event["ph"] == "X")
        .map(|event| &event["tid"])
        .collect();
    assert_ne!(threads[0], threads[1]);
    assert_eq!(
        threads[1], threads[2],
        "the second wait is part of the transfer"
    );
}

#[test]
fn waits_that_do_not_nest_are_counted() {
    // All ready at 0; each starts when the one before has ended.
    let n_kernels = WAIT_DEPTH_MAX as u64 + 3;
    let mut kernels = vec![kernel(0, 0, 10)];
    kernels.extend((1..=n_kernels).map(|index| waited(0, index * 10, index * 10, 10)));
    let trace = Trace {
        events: kernels,
        names: names(),
    };
    let mut bytes = Vec::new();
    trace.write_chrome(&mut bytes).unwrap();
    let json: Value = serde_json::from_slice(&bytes).unwrap();
    assert_eq!(json["otherData"]["waits_not_shown"], 3);
    let events = json["traceEvents"].as_array().unwrap();
    let n_waits = drawn(events)
        .iter()
        .filter(|(_, category, ..)| category == "queue-wait")
        .count();
    assert_eq!(n_waits, WAIT_DEPTH_MAX);
    let lanes = lanes(events, "/device:CPU:0");
    assert_eq!(lanes, ["kernels", "queue waits"]);
    let counts: Vec<i64> = events
        .iter()
        .filter(|event| event["ph"] == "C")
        .map(|event| event["args"]["operations"].as_i64().unwrap())
        .collect();
    let expected: Vec<i64> = (0..=i64::try_from(n_kernels).unwrap()).rev().collect();
    assert_eq!(counts, expected, "one less whenever one starts");
}

/// Returns the names of a process's lanes, in their order.
fn lanes(events: &[Value], process: &str) -> Vec<String> {
    let is_process =
        |event: &&Value| event["name"] == "process_name" && event["args"]["name"] == process;
    let process = &events.iter().find(is_process).unwrap()["pid"];
    let of_process = |name: &str| {
        let events = events.iter();
        let found = events.filter(move |event| event["name"] == name && event["pid"] == *process);
        found.collect::<Vec<_>>()
    };
    let orders = of_process("thread_sort_index");
    let mut lanes: Vec<(u64, String)> = of_process("thread_name")
        .iter()
        .map(|lane| {
            let order = orders.iter().find(|order| order["tid"] == lane["tid"]);
            let order = order.unwrap()["args"]["sort_index"].as_u64().unwrap();
            (order, lane["args"]["name"].as_str().unwrap().to_owned())
        })
        .collect();
    lanes.sort();
    lanes.into_iter().map(|(_, name)| name).collect()
}

#[test]
fn a_device_has_three_lanes_and_a_call_that_fuses_nodes_is_one_slice() {
    let call = |call, start_ns, duration_ns, detail: &str| Event {
        kind: EventKind::Device {
            device: DeviceId(0),
            call,
            node: Some(NodeId(0)),
            detail: detail.into(),
        },
        start_ns,
        duration_ns,
    };
    let events = parse(vec![
        call("maybe_rewrite_graph", 0, 10, "first"),
        call("maybe_rewrite_graph", 0, 11, "second"),
        call("maybe_rewrite_graph", 0, 12, "third"),
        call("make_tensor", 20, 5, "constant"),
        waited(0, 2, 40, 5),
        // At the same time as the kernel.
        call("create_kernel", 41, 2, "MatMul"),
        call("run_allocator", 50, 1, "memory"),
        call("resource_manager.cleanup", 50, 2, "container"),
    ]);
    let expected = ["kernels", "queue waits", "device calls"];
    assert_eq!(lanes(&events, "/device:CPU:0"), expected);
    let named = |name: &str| {
        let slices = events.iter().filter(|event| event["ph"] == "X");
        slices
            .filter(|event| event["name"] == name)
            .collect::<Vec<_>>()
    };
    let fused = named("maybe_rewrite_graph: 3 nodes");
    assert_eq!(fused.len(), 1);
    let fused = fused[0];
    assert_eq!(fused["args"]["detail"], json!(["first", "second", "third"]));
    assert_eq!(fused["dur"], json!(0.012));
    let created = named("create_kernel: dense \"1\"");
    assert_eq!(created[0]["args"]["op"], "MatMul");
    assert_eq!(created[0]["args"]["detail"], "MatMul");
    // A kernel and its wait.
    assert_eq!(named("dense \"1\"").len(), 2);
}

#[test]
fn kernels_that_overlap_are_on_numbered_lanes() {
    let kernels = vec![kernel(0, 0, 10), kernel(0, 5, 10), kernel(0, 8, 10)];
    let events = parse(kernels);
    let expected = ["kernels", "kernels 2", "kernels 3"];
    assert_eq!(lanes(&events, "/device:CPU:0"), expected);
}

#[test]
fn kernels_that_overlap_go_to_different_threads_and_stages_nest_in_one() {
    let events = parse(vec![
        stage("place", 0, 100),
        stage("enumerate", 10, 20),
        kernel(0, 0, 10),
        kernel(0, 5, 3),
        kernel(0, 10, 10),
    ]);
    let threads: Vec<u64> = events
        .iter()
        .filter(|event| event["ph"] == "X")
        .map(|event| event["tid"].as_u64().unwrap())
        .collect();
    // Ordered by start: `place`, two kernels, `enumerate`, a kernel.
    assert_eq!(threads[0], threads[3]);
    assert_ne!(threads[1], threads[2]);
    assert_eq!(threads[1], threads[4]);
}
