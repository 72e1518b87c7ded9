//! `placer.json`: the devices on which TensorFlow's placer puts nodes. The host lists legal
//! candidates, the policy `priority` chooses, and its plan is checked. The sandboxed policy and its
//! native build must agree.

mod graph_def;

use std::collections::BTreeMap;
use std::sync::Arc;

use placewright::candidates::Candidates;
use placewright::candidates::CandidatesError;
use placewright::candidates::PlacementOptions;
use placewright::candidates::enumerate;
use placewright::candidates::isolate_function_calls;
use placewright::device::DeviceSet;
use placewright::device::KernelDef;
use placewright::device::KernelRegistry;
use placewright::graph::Graph;
use placewright::import::ImportOptions;
use placewright::import::import_graph;
use placewright::names::DeviceId;
use placewright::ops::OpDef;
use placewright::ops::OpRegistry;
use placewright::placement::Placement;
use placewright::tensor::DType;
use serde_json::Value;

use crate::category;
use crate::chooser::Chooser;
use crate::equal;
use crate::fakes::FakeDevice;
use crate::mentions;
use crate::text;

pub(crate) fn check(case: &Value) -> Result<(), String> {
    check_chosen(case, Chooser::priority()?)
}

/// Runs [`check`] with any chooser.
pub(crate) fn check_chosen(case: &Value, chooser: &Chooser) -> Result<(), String> {
    let expect = &case["expect"];
    let candidates = match (candidates(case)?, &expect["error"]) {
        (Ok(candidates), Value::Null) => candidates,
        (Err(error), Value::Null) => return Err(error.to_string()),
        (Ok(candidates), error) => {
            let assignment = assignment(&chooser.place(&candidates)?);
            return Err(format!("expected {error}, found {assignment:?}"));
        }
        (Err(found), error) => {
            category(error, found.code().name())?;
            return mentions::<(), _>(Err(found), error);
        }
    };
    let assignment = assignment(&chooser.place(&candidates)?);
    let device = |node: &Value| {
        let name = node.as_str().ok_or("an expected node has no name")?;
        let device = assignment.get(name);
        device.ok_or_else(|| format!("the graph has no node {name}"))
    };
    let devices = candidates.device_set();
    let relations = [
        "device",
        "reference_assignment",
        "device_type",
        "device_contains",
        "same_device",
        "different_device",
    ];
    if relations.iter().all(|key| expect[key].is_null()) {
        return Err(format!("nothing of {expect} can be checked"));
    }
    let per_node = |key: &str| expect[key].as_object().into_iter().flatten();
    for key in ["device", "reference_assignment"] {
        for (node, expected) in per_node(key) {
            let found = device(&node.as_str().into())?;
            equal(node, found, &expected.as_str().unwrap_or_default().into())?;
        }
    }
    for (node, expected) in per_node("device_type") {
        let name = device(&node.as_str().into())?;
        let found = devices
            .find_by_name(name)
            .and_then(|device| devices.get(device));
        let found = found.map(|device| device.attributes().device_type.as_str());
        equal(node, &found, &expected.as_str())?;
    }
    for (node, fragment) in per_node("device_contains") {
        let found = device(&node.as_str().into())?;
        let fragment = fragment.as_str().unwrap_or_default();
        if !found.contains(fragment) {
            return Err(format!("{node} is on {found}, not on {fragment}"));
        }
    }
    for (key, is_same) in [("same_device", true), ("different_device", false)] {
        for pair in expect[key].as_array().into_iter().flatten() {
            let (first, second) = (device(&pair[0])?, device(&pair[1])?);
            if (first == second) != is_same {
                return Err(format!("{key} {pair}: found {first} and {second}"));
            }
        }
    }
    Ok(())
}

/// Returns the candidates that the host lists for the policy, or its error.
pub(crate) fn candidates(case: &Value) -> Result<Result<Candidates, CandidatesError>, String> {
    let devices = devices(case)?;
    let (ops, kernels) = (Arc::new(ops(case)?), kernels(case)?);
    let bytes = graph_def::graph_def(case)?;
    let graph = import_graph(bytes, &ops, &ImportOptions::default());
    let mut graph = Arc::new(graph.map_err(|error| error.to_string())?);
    if case["options"]["isolate_function_calls_first"] == Value::Bool(true) {
        match isolate_function_calls(&graph, &*ops) {
            Ok(isolated) => graph = isolated.map_or(graph, Arc::new),
            Err(error) => return Ok(Err(error)),
        }
    }
    let options = options(case, &graph, &devices)?.with_op_arguments(ops);
    Ok(enumerate(&graph, &devices, &kernels, &options))
}

fn devices(case: &Value) -> Result<Arc<DeviceSet>, String> {
    let mut devices = Vec::new();
    for device in case["devices"].as_array().ok_or("case has no devices")? {
        devices.push(FakeDevice::new(text(device, "name")?, text(device, "type")?).shared());
    }
    let priorities = case["device_type_priority"].as_object();
    let priorities = priorities.ok_or("case has no device_type_priority")?;
    let set = DeviceSet::new(devices).with_type_priorities(
        priorities
            .iter()
            .map(|(device_type, priority)| Ok((device_type.clone(), int(priority)?)))
            .collect::<Result<Vec<_>, String>>()?,
    );
    let client = device_option(case, "client_device", &set)?;
    Ok(Arc::new(match client {
        Some(device) => set.with_client_device(device),
        None => set,
    }))
}

fn device_option(case: &Value, key: &str, devices: &DeviceSet) -> Result<Option<DeviceId>, String> {
    let name = case["options"][key].as_str();
    name.map(|name| {
        let found = devices.find_by_name(name);
        found.ok_or_else(|| format!("{key}: no device {name}"))
    })
    .transpose()
}

fn options(case: &Value, graph: &Graph, devices: &DeviceSet) -> Result<PlacementOptions, String> {
    let soft = case["options"]["allow_soft_placement"].as_bool();
    let soft = soft.ok_or("case does not say allow_soft_placement")?;
    let mut options = PlacementOptions::default().with_soft_placement(soft);
    if let Some(device) = device_option(case, "default_local_device", devices)? {
        options = options.with_default_local_device(device);
    }
    for (node, device) in case["assigned"].as_object().into_iter().flatten() {
        let id = graph.find_node(node).ok_or_else(|| format!("no {node}"))?;
        options = options.with_assigned_device(id, device.as_str().ok_or("no device")?);
    }
    Ok(options)
}

fn ops(case: &Value) -> Result<OpRegistry, String> {
    let mut ops = OpRegistry::empty();
    for (name, op) in case["ops"].as_object().ok_or("case has no ops")? {
        let attrs = op["attrs"].as_array().into_iter().flatten();
        let attrs: Vec<String> = attrs.filter_map(Value::as_str).map(attribute).collect();
        let (inputs, outputs) = (arguments(&op["inputs"])?, arguments(&op["outputs"])?);
        let op = OpDef::new(
            name,
            &strings(&inputs),
            &strings(&outputs),
            &strings(&attrs),
        );
        ops.register(op.map_err(|error| error.to_string())?)
            .map_err(|error| error.to_string())?;
    }
    Ok(ops)
}

/// Converts `name:kind=default` to the form of ops: there, a default type is a constant.
fn attribute(listed: &str) -> String {
    match listed.split_once('=') {
        Some((attr, dtype)) if DType::from_name(dtype).is_some() => {
            format!("{attr} = DT_{}", dtype.to_uppercase())
        }
        _ => listed.to_owned(),
    }
}

fn strings(strings: &[String]) -> Vec<&str> {
    strings.iter().map(String::as_str).collect()
}

/// Converts `(name, type)` pairs to the form of ops.
fn arguments(listed: &Value) -> Result<Vec<String>, String> {
    let listed = listed.as_array().ok_or("an op has no list of arguments")?;
    let spelled = listed.iter().map(|argument| {
        let (name, dtype) = (argument[0].as_str()?, argument[1].as_str()?);
        let is_ref = dtype.strip_prefix("ref(");
        let dtype = match is_ref.and_then(|dtype| dtype.strip_suffix(')')) {
            Some(dtype) => format!("Ref({dtype})"),
            None => dtype.trim_end_matches("...").to_owned(),
        };
        Some(format!("{name}: {dtype}"))
    });
    let spelled: Option<Vec<String>> = spelled.collect();
    spelled.ok_or_else(|| "an argument is not a pair of strings".to_owned())
}

fn kernels(case: &Value) -> Result<KernelRegistry, String> {
    let mut kernels = KernelRegistry::empty();
    for (op, definition) in case["ops"].as_object().into_iter().flatten() {
        for kernel in definition["kernels"].as_array().into_iter().flatten() {
            let mut def = KernelDef::new(op, text(kernel, "device_type")?)
                .with_priority(int(&kernel["priority"])?)
                .with_label(kernel["label"].as_str().unwrap_or_default());
            for (attr, allowed) in kernel["constraints"].as_object().into_iter().flatten() {
                let names = allowed.as_array().into_iter().flatten();
                let dtypes = names.map(|name| name.as_str().and_then(DType::from_name));
                let dtypes: Option<Vec<DType>> = dtypes.collect();
                def = def.with_types(attr, &dtypes.ok_or("a constraint names no type")?);
            }
            kernels.register(def);
        }
    }
    Ok(kernels)
}

fn int(value: &Value) -> Result<i32, String> {
    let int = value.as_i64().and_then(|int| i32::try_from(int).ok());
    int.ok_or_else(|| format!("no number: {value}"))
}

/// Returns the device of each node.
fn assignment(placement: &Placement) -> BTreeMap<String, String> {
    let (graph, devices) = (placement.graph(), placement.device_set());
    let name = |node| {
        let device = devices.get(placement.device(node));
        device.map_or_else(String::new, |device| device.attributes().name.clone())
    };
    graph
        .nodes()
        .map(|node| (graph.node_name(node).to_owned(), name(node)))
        .collect()
}
