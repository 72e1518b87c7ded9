//! `partition.json`: the transfers between the partitions of placed graphs. Each graph is placed
//! both in the sandbox and natively.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::sync::Arc;

use placewright::candidates::CandidatesBuilder;
use placewright::device::DeviceSet;
use placewright::graph::AttrSet;
use placewright::graph::Graph;
use placewright::graph::GraphAssembler;
use placewright::graph::Input;
use placewright::graph::NodeId;
use placewright::graph::NodeSpec;
use placewright::graph::Output;
use placewright::graph::Work;
use placewright::names::DeviceId;
use placewright::names::DeviceName;
use placewright::partition::RunRequest;
use placewright::plan::ExecutionPlan;
use placewright::plan::Payload;
use placewright::tensor::DType;
use placewright::tensor::PartialShape;
use serde_json::Value;
use serde_json::json;

use crate::chooser::Chooser;
use crate::equal;
use crate::fakes::FakeDevice;
use crate::text;

pub(crate) fn check(case: &Value) -> Result<(), String> {
    let names = case["devices"].as_array().ok_or("case has no devices")?;
    let names: Vec<&str> = names.iter().filter_map(Value::as_str).collect();
    let devices = Arc::new(DeviceSet::new(
        names
            .iter()
            .map(|name| FakeDevice::new(name, "CPU").shared()),
    ));
    let (graph, wanted) = graph(case, &names)?;
    // The case states the device of each node; pins pass it to the policy.
    let mut builder = CandidatesBuilder::new(&graph, &devices);
    for (node, &device) in graph.nodes().zip(&wanted) {
        builder = builder.with_pin(node, DeviceId(device));
    }
    let candidates = builder.build().map_err(|error| error.to_string())?;
    let placement = Chooser::priority()?.place(&candidates)?;
    equal("devices", &placement.devices(), &wanted.as_slice())?;
    let request = RunRequest {
        targets: graph.nodes().collect(),
        ..RunRequest::default()
    };
    let plan = placement
        .partition(&request)
        .map_err(|error| error.to_string())?;

    let expected = case["expect"]["partitions"]
        .as_object()
        .ok_or("case expects no partitions")?;
    // In any order.
    let partitions = plan.partitions().iter();
    let found: BTreeSet<&str> = partitions
        .map(|partition| names[partition.device.index()])
        .collect();
    let listed: BTreeSet<&str> = expected.keys().map(String::as_str).collect();
    equal("partitions", &found, &listed)?;
    for (device, expected) in expected {
        equal(
            "sends",
            &transfers(&plan, &graph, &names, device, "_Send"),
            &sorted(&expected["send"]),
        )?;
        equal(
            "receives",
            &transfers(&plan, &graph, &names, device, "_Recv"),
            &sorted(&expected["recv"]),
        )?;
        // TensorFlow transfers control by an empty constant and an identity; a plan has its own
        // payload for it.
        let n_control = expected["extra_ops"].as_array().map_or(0, Vec::len);
        equal(
            "control",
            &n_control_ends(&plan, &names, device),
            &n_control,
        )?;
    }
    Ok(())
}

/// Returns the graph of a case, and the devices that its nodes request.
fn graph(case: &Value, devices: &[&str]) -> Result<(Arc<Graph>, Vec<u32>), String> {
    let nodes = case["graph"].as_array().ok_or("case has no graph")?;
    let mut n_outputs: BTreeMap<&str, usize> = BTreeMap::new();
    for input in nodes
        .iter()
        .flat_map(|node| node["inputs"].as_array())
        .flatten()
    {
        let (node, slot) = split(input.as_str().ok_or("an input is no text")?)?;
        let n = n_outputs.entry(node).or_insert(1);
        *n = (*n).max(slot.map_or(1, |slot| slot as usize + 1));
    }
    let mut assembler = GraphAssembler::new("case");
    let mut placed = Vec::new();
    for node in producers_first(nodes)? {
        let name = text(node, "name")?;
        let mut inputs = Vec::new();
        for input in node["inputs"].as_array().into_iter().flatten() {
            let (producer, slot) = split(input.as_str().ok_or("an input is no text")?)?;
            let producer: NodeId = assembler
                .find_node(producer)
                .ok_or_else(|| format!("no node {producer}"))?;
            inputs.push(slot.map_or(Input::Control(producer), |slot| Input::Data {
                node: producer,
                slot,
            }));
        }
        let output = Output {
            dtype: DType::F32,
            is_ref: false,
            shape: PartialShape::unknown(),
        };
        let spec = NodeSpec {
            name,
            op: text(node, "op")?,
            inputs: &inputs,
            requested_device: text(node, "device")?,
            attrs: AttrSet::default(),
            outputs: &vec![output; n_outputs.get(name).copied().unwrap_or(1)],
            stateful: false,
            work: Work::default(),
        };
        assembler
            .add_node(&spec)
            .map_err(|error| error.to_string())?;
        let wanted = text(node, "device")?;
        let pattern = DeviceName::parse_full(wanted).map_err(|error| error.to_string())?;
        let device = devices
            .iter()
            .position(|device| {
                DeviceName::parse_full(device).is_ok_and(|name| pattern.matches(&name))
            })
            .ok_or_else(|| format!("no device {wanted}"))?;
        placed.push(u32::try_from(device).map_err(|error| error.to_string())?);
    }
    Ok((Arc::new(assembler.finish()), placed))
}

/// Returns the nodes sorted so that each comes after those that it reads; otherwise in the given
/// order.
fn producers_first(nodes: &[Value]) -> Result<Vec<&Value>, String> {
    let mut waiting: Vec<&Value> = nodes.iter().collect();
    let (mut ordered, mut names) = (Vec::new(), BTreeSet::new());
    while !waiting.is_empty() {
        let next = waiting.iter().position(|node| {
            let inputs = node["inputs"].as_array().into_iter().flatten();
            let mut producers = inputs.filter_map(Value::as_str).filter_map(|input| {
                let (producer, _) = split(input).ok()?;
                Some(producer)
            });
            producers.all(|producer| names.contains(producer))
        });
        let node = waiting.remove(next.ok_or("nodes read each other, or what is not there")?);
        names.insert(text(node, "name")?);
        ordered.push(node);
    }
    Ok(ordered)
}

/// Splits `node`, `node:slot` or `^node`; without a slot it is a control input.
fn split(input: &str) -> Result<(&str, Option<u32>), String> {
    if let Some(node) = input.strip_prefix('^') {
        return Ok((node, None));
    }
    match input.split_once(':') {
        None => Ok((input, Some(0))),
        Some((node, slot)) => Ok((node, Some(slot.parse().map_err(|_| input.to_owned())?))),
    }
}

/// Returns one side of the transfers that a device sends or receives, in the form of TensorFlow's
/// nodes.
fn transfers(
    plan: &ExecutionPlan,
    graph: &Graph,
    names: &[&str],
    device: &str,
    op: &str,
) -> Vec<String> {
    let name = |id: DeviceId| names[id.index()];
    let ends = plan.transfers().iter().filter(|transfer| {
        let end = if op == "_Send" {
            transfer.source
        } else {
            transfer.destination
        };
        name(end) == device
    });
    let listed = ends.map(|transfer| {
        let source = graph.node_name(transfer.payload.producer(graph));
        let (from, to) = (name(transfer.source), name(transfer.destination));
        let key = transfer.payload.key(graph, transfer.edge, from, to);
        let key = key.expect("nodes of cases have plain names");
        let edge = transfer.edge.to_string();
        json!({
            "op": op,
            "inputs": usize::from(op == "_Send"),
            "src": source,
            "dst": graph.node_name(transfer.first_consumer(graph)),
            "send_device": key.source(),
            "recv_device": key.destination(),
            "client_terminated": false,
            "tensor_name": key.edge_name().replacen(&edge, "<edge id>", 1),
        })
    });
    sorted(&listed.collect())
}

fn n_control_ends(plan: &ExecutionPlan, names: &[&str], device: &str) -> usize {
    plan.transfers()
        .iter()
        .filter(|transfer| matches!(transfer.payload, Payload::Control(_)))
        .flat_map(|transfer| [transfer.source, transfer.destination])
        .filter(|end| names[end.index()] == device)
        .count()
}

/// Sorts a list: the order of transfers is unspecified.
fn sorted(list: &Value) -> Vec<String> {
    let mut strings: Vec<String> = list
        .as_array()
        .into_iter()
        .flatten()
        .map(ToString::to_string)
        .collect();
    strings.sort();
    strings
}
