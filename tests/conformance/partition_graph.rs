//! `partition_graph.json`: graphs that TensorFlow has placed and partitioned, from file to
//! partitions: the nodes on each device, the source of each input, and the transfers.
//! `graphs/make_cases.py` documents how the expectations were made. For graphs with conditionals
//! and loops (`partition_graph_loops.json`), only the properties that do not depend on control flow
//! are checked.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use placewright::candidates::PlacementOptions;
use placewright::candidates::enumerate;
use placewright::device::DeviceSet;
use placewright::device::KernelDef;
use placewright::device::KernelRegistry;
use placewright::graph::Graph;
use placewright::graph::NodeId;
use placewright::graph::TensorId;
use placewright::import::ImportOptions;
use placewright::import::import_graph;
use placewright::names::DeviceId;
use placewright::ops::OpRegistry;
use placewright::partition::RunRequest;
use placewright::plan::ExecutionPlan;
use placewright::plan::Fetch;
use placewright::plan::Payload;
use placewright::plan::Step;
use placewright::plan::StepId;
use placewright::plan::StepKind;
use placewright::registry::Registry;
use serde_json::Value;
use serde_json::json;

use crate::chooser::Chooser;
use crate::equal;
use crate::fakes::FakeDevice;
use crate::mentions;
use crate::text;

pub(crate) fn check(case: &Value) -> Result<(), String> {
    let graph = graph(text(case, "graph")?)?;
    let n_cpus = case["n_cpus"].as_u64().ok_or("case does not say n_cpus")?;
    let expect = &case["expect"];
    let plan = match (plan(case, &graph, n_cpus), &expect["error"]) {
        (outcome, Value::Null) => outcome?,
        (outcome, error) => return mentions(outcome.map(|_| "a plan"), error),
    };
    if let Some(expected) = expect.get("back_edges") {
        return equal("back edges", &json!(back_edges(&plan, &graph)), expected);
    }
    let cut = Cut::new(&plan, &graph);
    // Compared element by element, so that a reported difference is short.
    let expected = expect["partitions"].as_object().ok_or("no partitions")?;
    let found = cut.partitions();
    let devices: BTreeSet<&String> = expected.keys().collect();
    equal("devices", &found.keys().collect(), &devices)?;
    for (device, expected) in expected {
        equal(device, &json!(found[device]), expected)?;
    }
    equal("transfers", &json!(cut.transfers()), &expect["transfers"])?;
    equal("fed", &json!(cut.fed()), &expect["fed"])?;
    equal("fetches", &json!(cut.fetches()), &expect["fetches"])
}

fn graph(file: &str) -> Result<Arc<Graph>, String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/conformance/graphs");
    let path = folder.join(file);
    let bytes = std::fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let graph = import_graph(bytes, &OpRegistry::default(), &ImportOptions::default());
    Ok(Arc::new(graph.map_err(|error| error.to_string())?))
}

/// Places the graph by `priority` on `n_cpus` CPU devices, and partitions it.
fn plan(case: &Value, graph: &Arc<Graph>, n_cpus: u64) -> Result<ExecutionPlan, String> {
    let cpu = |index| {
        let name = format!("/job:localhost/replica:0/task:0/device:CPU:{index}");
        FakeDevice::new(&name, "CPU").shared()
    };
    let devices = Arc::new(DeviceSet::new((0..n_cpus).map(cpu)));
    let kernels = match case["kernels"].as_str() {
        None => of_tensorflow(graph),
        Some("shipped") => Registry::default().kernels(),
        Some(other) => return Err(format!("no kernels are called `{other}`")),
    };
    let candidates = enumerate(graph, &devices, &kernels, &PlacementOptions::default());
    let candidates = candidates.map_err(|error| error.to_string())?;
    let placement = Chooser::priority()?.place(&candidates)?;
    let names = |key: &str| {
        let names = case[key].as_array().into_iter().flatten();
        names.filter_map(Value::as_str).collect::<Vec<_>>()
    };
    let node = |name: &str| -> Result<NodeId, String> {
        let found = graph.find_node(name);
        found.ok_or_else(|| format!("the graph has no node {name}"))
    };
    let tensor = |name: &str| -> Result<TensorId, String> {
        let (producer, slot) = name.split_once(':').ok_or("a tensor has no slot")?;
        let slot: usize = slot.parse().map_err(|_| format!("no slot: {slot}"))?;
        let found = graph.output(node(producer)?, slot);
        found.ok_or_else(|| format!("the graph has no tensor {name}"))
    };
    let request = RunRequest {
        feeds: names("feeds")
            .into_iter()
            .map(tensor)
            .collect::<Result<_, _>>()?,
        fetches: names("fetches")
            .into_iter()
            .map(tensor)
            .collect::<Result<_, _>>()?,
        targets: names("targets")
            .into_iter()
            .map(node)
            .collect::<Result<_, _>>()?,
    };
    placement
        .partition(&request)
        .map_err(|error| error.to_string())
}

/// Registers a kernel for each of these ops: TensorFlow has CPU kernels for them, whether or not
/// this build has.
fn of_tensorflow(graph: &Graph) -> KernelRegistry {
    let mut kernels = KernelRegistry::empty();
    for op in graph.op_names() {
        kernels.register(KernelDef::new(&**op, "CPU"));
    }
    kernels
}

/// Returns the values that a loop passes to its next iteration, which the order of the plan does
/// not show.
fn back_edges(plan: &ExecutionPlan, graph: &Graph) -> Vec<String> {
    let inputs = plan.back_inputs().iter();
    let mut spelled: Vec<String> = inputs
        .map(|input| {
            let StepKind::Execute(to) = plan.step(input.step).kind else {
                panic!("only nodes have back inputs");
            };
            let (from, _) = graph.producer(plan.values()[input.value.index()].tensor);
            format!("{} -> {}", graph.node_name(from), graph.node_name(to))
        })
        .collect();
    spelled.sort();
    spelled
}

/// A plan in the form of TensorFlow's partition graphs.
struct Cut<'a> {
    plan: &'a ExecutionPlan,
    graph: &'a Graph,
    /// The step that writes each value.
    writers: Vec<StepId>,
    /// The steps that each step waits for: one per value read, and one per control edge.
    waits: Vec<Vec<StepId>>,
}

impl<'a> Cut<'a> {
    fn new(plan: &'a ExecutionPlan, graph: &'a Graph) -> Self {
        let mut writers = vec![StepId(0); plan.values().len()];
        let mut waits = vec![Vec::new(); plan.steps().len()];
        for id in plan.step_ids().map(StepId) {
            writers[plan.step(id).output_range()].fill(id);
            for &next in plan.successors().row(id.index()) {
                waits[next as usize].push(id);
            }
        }
        Self {
            plan,
            graph,
            writers,
            waits,
        }
    }

    /// Returns the nodes on each device, each with its inputs, data before control.
    fn partitions(&self) -> BTreeMap<String, BTreeMap<&'a str, Vec<String>>> {
        let mut found: BTreeMap<String, BTreeMap<&str, Vec<String>>> = BTreeMap::new();
        for id in self.plan.step_ids().map(StepId) {
            let step = self.plan.step(id);
            let StepKind::Execute(node) = step.kind else {
                continue;
            };
            let nodes = found.entry(device(step.device)).or_default();
            nodes.insert(self.graph.node_name(node), self.reads(id, step));
        }
        found
    }

    fn reads(&self, id: StepId, step: &Step) -> Vec<String> {
        let mut control = self.waits[id.index()].clone();
        let mut reads = Vec::new();
        for &value in &step.inputs {
            let writer = self.writers[value.index()];
            let position = control.iter().position(|&wait| wait == writer);
            control.swap_remove(position.expect("a step waits for what it reads"));
            let tensor = self.plan.values()[value.index()].tensor;
            reads.push(self.spelled(&self.graph.tensor_name(tensor), writer));
        }
        let mut waits: Vec<String> = control
            .into_iter()
            .map(|wait| match self.plan.step(wait).kind {
                StepKind::Execute(node) => format!("^{}", self.graph.node_name(node)),
                StepKind::Receive(transfer) => {
                    let payload = self.plan.transfers()[transfer.index()].payload;
                    self.spelled(&payload.name(self.graph), wait)
                }
                other => format!("control from {other:?}"),
            })
            .collect();
        waits.sort();
        reads.extend(waits);
        reads
    }

    /// Returns an input, and its source if that is on another device.
    fn spelled(&self, what: &str, writer: StepId) -> String {
        match self.plan.step(writer).kind {
            StepKind::Receive(transfer) => {
                let source = self.plan.transfers()[transfer.index()].source;
                format!("{what} from {}", device(source))
            }
            StepKind::Feed(_) => format!("{what} fed"),
            _ => what.to_owned(),
        }
    }

    fn transfers(&self) -> Vec<String> {
        let transfers = self.plan.transfers().iter();
        let mut spelled: Vec<String> = transfers
            .map(|transfer| {
                let dtype = match transfer.payload {
                    Payload::Control(_) => String::new(),
                    Payload::Tensor(tensor) => {
                        format!(" {}", self.graph.tensor_dtypes()[tensor.index()])
                    }
                };
                let name = transfer.payload.name(self.graph);
                let (from, to) = (device(transfer.source), device(transfer.destination));
                format!("{name}{dtype} {from} -> {to}")
            })
            .collect();
        spelled.sort();
        spelled
    }

    /// Returns the devices that read each feed.
    fn fed(&self) -> BTreeMap<String, BTreeSet<String>> {
        let feeds = self.plan.feeds().iter();
        feeds
            .map(|feed| {
                let steps = feed.steps.iter();
                let devices = steps.map(|&step| device(self.plan.step(step).device));
                (self.graph.tensor_name(feed.tensor), devices.collect())
            })
            .collect()
    }

    /// Returns the device of each fetch.
    fn fetches(&self) -> BTreeMap<String, String> {
        let fetches = self.plan.fetches().iter();
        fetches
            .map(|fetch| {
                let place = match *fetch {
                    Fetch::Step(_, step) => device(self.plan.step(step).device),
                    Fetch::Fed(..) => "the caller".to_owned(),
                };
                (self.graph.tensor_name(fetch.tensor()), place)
            })
            .collect()
    }
}

/// Devices are CPUs, numbered as in their set.
fn device(id: DeviceId) -> String {
    format!("CPU:{}", id.0)
}
