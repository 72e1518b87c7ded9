//! Partitions a placed graph: takes an `Assignment` and a [`RunRequest`], and returns an
//! [`ExecutionPlan`].
//!
//! Apps call [`crate::placement::Placement::partition`]. The check of a placement also partitions
//! what a policy proposes, because the plan determines what a run holds in each memory (see
//! [`crate::memory`]).
//!
//! The plan has only the nodes that the fetches and targets need. Every tensor is sent once to each
//! device and memory that reads it, regardless of the number of readers there, as in TensorFlow.
//! Control edges between devices are transfers too. The memory space of a tensor follows from the
//! device that its node is placed on. Partitioning calls no kernel and opens no device.

mod cluster;
mod partitioner;
mod prune;
mod rewrite;

pub(crate) use rewrite::{Fused, Rewritten, rewrite};

use crate::candidates::{Candidates, HostMemory, PlanColumns};
use crate::device::DeviceSet;
use crate::graph::{BodyId, Graph, LoopError, NodeId, TensorId};
use crate::names::DeviceId;
use crate::plan::ExecutionPlan;
use crate::tensor::{DType, PartialShape};

/// The feeds, fetches and targets of one kind of run.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct RunRequest {
    /// Tensors that the caller feeds. Any tensor may be fed: its producer runs only if something
    /// else needs it.
    pub feeds: Vec<TensorId>,
    /// Tensors that the caller fetches, in this order; a tensor may occur more than once.
    pub fetches: Vec<TensorId>,
    /// Nodes that must run although none of their outputs is fetched.
    pub targets: Vec<NodeId>,
}

impl RunRequest {
    /// Returns the request of a run of the whole graph: every placeholder is fed, every output
    /// without readers is fetched, and every node without outputs and successors is run, except for
    /// those inside of loops and of branches that may not be taken.
    pub fn whole(graph: &Graph) -> Self {
        let is_placeholder = |node: NodeId| graph.op(node).starts_with("Placeholder");
        let outputs = |node: NodeId| graph.output_range(node).map(tensor_id);
        let is_last = |node: NodeId| graph.successors().row(node.index()).is_empty();
        let is_certain = |node: NodeId| graph.has_one_value_per_run(node);
        let is_end = |node: NodeId| is_last(node) && graph.output_range(node).is_empty();
        Self {
            feeds: graph
                .nodes()
                .filter(|&node| is_placeholder(node))
                .flat_map(outputs)
                .collect(),
            fetches: graph
                .nodes()
                .filter(|&node| is_last(node) && !is_placeholder(node) && is_certain(node))
                .flat_map(outputs)
                .collect(),
            targets: graph
                .nodes()
                .filter(|&node| is_end(node) && is_certain(node))
                .collect(),
        }
    }
}

/// Returns the id of a tensor; tensor ids are 32 bits wide.
fn tensor_id(tensor: usize) -> TensorId {
    TensorId(u32::try_from(tensor).expect("tensor ids are 32 bits wide"))
}

/// Errors of planning a request. The placement cannot be the cause: it was checked when it was
/// made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PartitionError {
    /// The request has a tensor id that does not exist in the graph.
    #[error("tensor {tensor} does not exist: the graph has {n_tensors} tensors, numbered from 0")]
    NoSuchTensor {
        /// The id.
        tensor: u32,
        /// Number of tensors of the graph.
        n_tensors: usize,
    },
    /// The request has a node id that does not exist in the graph.
    #[error("node {node} does not exist: the graph has {n_nodes} nodes, numbered from 0")]
    NoSuchNode {
        /// The id.
        node: u32,
        /// Number of nodes.
        n_nodes: usize,
    },
    /// A tensor is fed twice.
    #[error("tensor `{0}` is fed twice")]
    FedTwice(String),
    /// A placeholder is needed but not fed.
    #[error("placeholder `{node}` ({dtype}, shape {shape}) is needed but not fed")]
    UnfedPlaceholder {
        /// The placeholder.
        node: String,
        /// Its dtype.
        dtype: DType,
        /// Its shape, as far as known.
        shape: PartialShape,
    },
    /// The loops of the graph cannot be executed.
    #[error(transparent)]
    Loop(#[from] LoopError),
    /// A tensor inside of a loop is fed or fetched: it has a value per iteration.
    #[error(
        "tensor `{tensor}` is inside of loop `{frame}`, where it has a value in each iteration; \
         it cannot be fed or fetched: use a result of the loop"
    )]
    InsideLoop {
        /// The tensor.
        tensor: String,
        /// The loop.
        frame: String,
    },
    /// The plan has more steps or values than 32-bit ids can number.
    #[error("the plan has more steps or values than 32-bit ids can number")]
    TooLarge,
}

/// What the partitioner reads of a placement.
pub(crate) struct Assignment<'a> {
    /// The graph.
    pub(crate) graph: &'a Graph,
    /// Devices and start order of its nodes, and what is streamed.
    pub(crate) columns: PlanColumns<'a>,
    /// Per device whether it has one memory space.
    pub(crate) has_one_memory: &'a [bool],
    /// Host-memory arguments of the kernels.
    pub(crate) host_memory: &'a HostMemory,
}

impl<'a> Assignment<'a> {
    /// Assigns these devices to the nodes of the candidates' graph. The assignment may violate any
    /// rule, except that every device must exist.
    pub(crate) fn new(
        candidates: &'a Candidates,
        has_one_memory: &'a [bool],
        columns: PlanColumns<'a>,
    ) -> Self {
        Self {
            graph: candidates.graph(),
            columns,
            has_one_memory,
            host_memory: candidates.host_memory(),
        }
    }

    fn device(&self, node: NodeId) -> DeviceId {
        DeviceId(self.columns.devices[node.index()])
    }
}

/// Per device whether it has one memory space ([`DeviceAttributes::has_one_memory`]).
///
/// [`DeviceAttributes::has_one_memory`]: crate::device::DeviceAttributes::has_one_memory
pub(crate) fn has_one_memory(devices: &DeviceSet) -> Vec<bool> {
    devices
        .iter()
        .map(|(_, device)| device.attributes().has_one_memory())
        .collect()
}

/// Splits a placed graph into one partition per device.
///
/// Called once per kind of run (feeds, fetches, targets). Takes time linear in the part of the
/// graph that runs.
///
/// # Errors
/// [`PartitionError`] if the request does not fit the graph. Every assignment fits.
pub(crate) fn partition(
    assignment: &Assignment<'_>,
    request: &RunRequest,
) -> Result<ExecutionPlan, PartitionError> {
    let graph = assignment.graph;
    let pruned = prune::prune(graph, request)?;
    let bodies = graph.bodies()?;
    for &tensor in request.feeds.iter().chain(&request.fetches) {
        let body = bodies.of_outputs(graph, graph.producer(tensor).0);
        if body != BodyId::OUTERMOST {
            return Err(PartitionError::InsideLoop {
                tensor: graph.tensor_name(tensor),
                frame: bodies.body(body).name.to_string(),
            });
        }
    }
    partitioner::Partitioner::new(assignment, &pruned, bodies, request).partition(request)
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;
    use crate::execute::fake::Sketch;
    use crate::graph::NONE;
    use crate::plan::{Fetch, Payload, StepId, StepKind};

    /// `CPU`s have one memory space, the device of index 3 has two.
    const ONE_MEMORY: [bool; 4] = [true, true, true, false];

    fn partition_for(
        sketch: &Sketch,
        feeds: &[&str],
        fetches: &[&str],
        targets: &[&str],
    ) -> Result<ExecutionPlan, PartitionError> {
        sketch.partition(&ONE_MEMORY, &sketch.request(feeds, fetches, targets))
    }

    fn transfers(plan: &ExecutionPlan, sketch: &Sketch) -> Vec<String> {
        plan.transfers()
            .iter()
            .map(|transfer| {
                let what = transfer.payload.name(&sketch.graph);
                let consumer = sketch
                    .graph
                    .node_name(transfer.first_consumer(&sketch.graph));
                let (source, destination) = (transfer.source, transfer.destination);
                let bytes = transfer
                    .bytes
                    .map_or(-1, |bytes| i64::try_from(bytes).unwrap());
                format!("{what} {source}->{destination} {bytes} for {consumer}")
            })
            .collect()
    }

    fn nodes<'a>(plan: &ExecutionPlan, sketch: &'a Sketch) -> Vec<&'a str> {
        plan.nodes()
            .map(|(node, _)| sketch.graph.node_name(node))
            .collect()
    }

    #[test]
    fn readers_on_one_device_share_a_transfer_and_control_has_its_own() {
        let sketch = Sketch::parse(
            "
            a = Const() @ 0
            b = Neg(a) @ 1
            c = Sum(a, a, ^a) @ 1
            d = Neg(a, ^b) @ 2
        ",
        );
        let plan = partition_for(&sketch, &[], &["b", "c", "d"], &[]).unwrap();
        let expected = [
            "a:0 0->1 16 for b",
            "^a 0->1 0 for c",
            "a:0 0->2 16 for d",
            "^b 1->2 0 for d",
        ];
        assert_eq!(transfers(&plan, &sketch), expected);
        // A constant is created on the device that reads it, before any run.
        assert_eq!(plan.transfer_bytes(), (0, 0));
    }

    #[test]
    fn each_reader_of_a_streamed_constant_has_a_transfer_that_waits_for_its_other_inputs() {
        let mut sketch = Sketch::parse(
            "
            x = Placeholder() @ 1
            a = Const() @ 0
            b = Const() @ 0
            i = Identity(b) @ 1
            first = Sum(x, a) @ 1
            second = Sum(first, i) @ 1
            third = Sum(second, a) @ 1
            here = Neg(a) @ 0
        ",
        );
        let id = |sketch: &Sketch, name: &str| sketch.graph.find_node(name).unwrap();
        sketch.streamed = ["a", "b"].map(|name| id(&sketch, name).0).to_vec();
        let plan = partition_for(&sketch, &["x"], &["third", "here"], &[]).unwrap();
        let expected = [
            "a:0 0->1 16 for first",
            "b:0 0->1 16 for i",
            "a:0 0->1 16 for third",
        ];
        assert_eq!(transfers(&plan, &sketch), expected);
        assert_eq!(plan.transfer_bytes(), (48, 0));
        assert!(plan.transfers().iter().all(|transfer| !transfer.is_once));
        // What each send waits for, besides the constant.
        let writes = |step: u32| match plan.steps()[step as usize].kind {
            StepKind::Execute(node) => sketch.graph.node_name(node),
            StepKind::Feed(_) => "feed",
            _ => "transfer",
        };
        let after = |index: usize| -> Vec<&str> {
            let send = plan.steps().iter().position(|step| match step.kind {
                StepKind::Send(id) => id.index() == index,
                _ => false,
            });
            let send = u32::try_from(send.unwrap()).unwrap();
            let before = plan
                .step_ids()
                .filter(|&step| plan.successors().row(step as usize).contains(&send));
            before.map(writes).collect()
        };
        assert_eq!(after(0), ["a", "feed"]);
        assert_eq!(after(1), ["b", "first"]);
        assert_eq!(after(2), ["a", "second"]);
    }

    #[test]
    fn keys_name_both_devices_and_the_edge_that_a_transfer_was_made_for() {
        let sketch = Sketch::parse(
            "
            a = Const() @ 0
            b = Neg(a) @ 0
            c = Sum(a, b, ^a) @ 1
            d = Sum(b, b) @ 1
        ",
        );
        let plan = partition_for(&sketch, &[], &["c", "d"], &[]).unwrap();
        let names = ["/job:a/task:0/cpu:0", "/device:CPU:1"];
        let keys: Vec<String> = plan
            .transfers()
            .iter()
            .map(|transfer| {
                let (from, to) = (transfer.source, transfer.destination);
                let key = transfer.payload.key(
                    &sketch.graph,
                    transfer.edge,
                    names[from.index()],
                    names[to.index()],
                );
                key.unwrap().to_string()
            })
            .collect();
        // Edge 0 is within device 0; `d` shares what `c` had sent for.
        assert_eq!(
            keys,
            [
                "/job:a/task:0/cpu:0;0000000000000001;/device:CPU:1;edge_1_a;0:0",
                "/job:a/task:0/cpu:0;0000000000000001;/device:CPU:1;edge_2_b;0:0",
                "/job:a/task:0/cpu:0;0000000000000001;/device:CPU:1;edge_3_a;0:0",
            ]
        );
    }

    #[test]
    fn only_what_is_asked_for_runs() {
        let sketch = Sketch::parse(
            "
            x = Placeholder() @ 0
            w = Const() @ 0
            h = TwoHeads(x, w) @ 0
            y = Neg(h:1) @ 0
            z = Sum(y, h) @ 0
            side = Neg(w, ^y) @ 0
        ",
        );
        let run = |feeds: &[&str], fetches: &[&str], targets: &[&str]| {
            let plan = partition_for(&sketch, feeds, fetches, targets).unwrap();
            nodes(&plan, &sketch).join(" ")
        };
        assert_eq!(run(&["x"], &["y"], &[]), "w h y");
        assert_eq!(run(&["x"], &["w"], &["side"]), "w h y side");
        assert_eq!(run(&["h:1"], &["y"], &[]), "y");
        // Output 0 of `h` is still needed.
        assert_eq!(run(&["h:1", "x"], &["z"], &[]), "w h y z");
        assert_eq!(run(&["y"], &["y"], &[]), "");
        // A fed inner node still runs where a control edge asks for it.
        assert_eq!(run(&["x", "y"], &["y"], &["side"]), "w h y side");
        assert_eq!(run(&[], &[], &[]), "");
    }

    #[test]
    fn an_unfed_placeholder_is_named() {
        let sketch = Sketch::parse("x = Placeholder() @ 0\ny = Neg(x) @ 0");
        let error = partition_for(&sketch, &[], &["y"], &[]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "placeholder `x` (float, shape [4]) is needed but not fed"
        );
        let error = partition_for(&sketch, &["x", "x"], &["y"], &[]).unwrap_err();
        assert_eq!(error, PartitionError::FedTwice("x:0".to_owned()));
        let request = RunRequest {
            fetches: vec![TensorId(7)],
            ..RunRequest::default()
        };
        let error = sketch.partition(&ONE_MEMORY, &request).unwrap_err();
        assert_eq!(
            error.to_string(),
            "tensor 7 does not exist: the graph has 2 tensors, numbered from 0"
        );
    }

    #[test]
    fn waiting_for_a_fed_placeholder_is_waiting_for_nothing() {
        let sketch = Sketch::parse(
            "
            x = Placeholder() @ 0
            y = Neg(x, ^x) @ 1
            z = Const(^x) @ 1
        ",
        );
        let plan = partition_for(&sketch, &["x"], &["y", "z"], &["x"]).unwrap();
        assert_eq!(nodes(&plan, &sketch), ["y", "z"]);
        assert!(plan.transfers().is_empty());
        assert_eq!(plan.feeds()[0].steps.len(), 1);
    }

    /// Nodes with up to four data inputs and two control inputs each, on random devices, and what
    /// is asked for.
    fn arbitrary_case() -> impl Strategy<Value = (String, Vec<usize>, Vec<usize>, Vec<usize>)> {
        let inputs = prop::collection::vec((any::<prop::sample::Index>(), 0..2u32), 0..4);
        let controls = prop::collection::vec(any::<prop::sample::Index>(), 0..2);
        let node = (inputs, controls, 0..4u32);
        prop::collection::vec(node, 1..40)
            .prop_map(|nodes| {
                let mut text = String::new();
                for (id, (inputs, controls, device)) in nodes.iter().enumerate() {
                    let mut written: Vec<String> = Vec::new();
                    if id > 0 {
                        let data = inputs.iter();
                        written.extend(data.map(|(at, slot)| format!("n{}:{slot}", at.index(id))));
                        let control = controls.iter();
                        written.extend(control.map(|at| format!("^n{}", at.index(id))));
                    }
                    text += &format!("n{id} = TwoOutputs({}) @ {device}\n", written.join(", "));
                }
                (text, nodes.len())
            })
            .prop_flat_map(|(text, n_nodes)| {
                let some = move |most| prop::collection::vec(0..n_nodes, 0..most);
                (Just(text), some(3), some(5), some(3))
            })
    }

    proptest! {
        #[test]
        fn every_plan_keeps_its_promises((text, feeds, fetches, targets) in arbitrary_case()) {
            let sketch = Sketch::parse(&text);
            let feeds: BTreeSet<usize> = feeds.into_iter().collect();
            let names = |ids: &mut dyn Iterator<Item = usize>| ids.map(|id| format!("n{id}")).collect::<Vec<_>>();
            let feeds = names(&mut feeds.into_iter());
            let fetches = names(&mut fetches.into_iter());
            let targets = names(&mut targets.into_iter());
            let request = sketch.request(
                &feeds.iter().map(String::as_str).collect::<Vec<_>>(),
                &fetches.iter().map(String::as_str).collect::<Vec<_>>(),
                &targets.iter().map(String::as_str).collect::<Vec<_>>(),
            );
            let plan = sketch.partition(&ONE_MEMORY, &request).unwrap();
            check_plan(&sketch, &request, &plan);
        }
    }

    fn check_plan(sketch: &Sketch, request: &RunRequest, plan: &ExecutionPlan) {
        let graph = &sketch.graph;

        // Step ids are topological, and waits are what leads here: hence there is no cycle.
        let mut n_waits = vec![0; plan.steps().len()];
        for from in 0..plan.steps().len() {
            for &to in plan.successors().row(from) {
                assert!((from as u32) < to);
                n_waits[to as usize] += 1;
                let kinds = (&plan.steps()[from], plan.step(StepId(to)));
                if kinds.0.device != kinds.1.device {
                    let (StepKind::Send(sent), StepKind::Receive(received)) =
                        (kinds.0.kind, kinds.1.kind)
                    else {
                        panic!("devices meet outside a transfer: {kinds:?}");
                    };
                    assert_eq!(sent, received);
                }
            }
        }
        let counted: Vec<u32> = plan.steps().iter().map(|step| step.n_waits).collect();
        assert_eq!(counted, n_waits);

        // Each partition has the steps of its device, in order, and all together have each step
        // once.
        let mut seen = BTreeSet::new();
        for partition in plan.partitions() {
            assert!(partition.steps.is_sorted() && !partition.steps.is_empty());
            for &id in &partition.steps {
                assert_eq!(plan.step(id).device, partition.device);
                assert!(seen.insert(id));
            }
        }
        assert_eq!(seen.len(), plan.steps().len());

        // Each node once, where it was placed.
        let mut placed = BTreeMap::new();
        for (node, device) in plan.nodes() {
            assert_eq!(device.0, sketch.devices[node.index()]);
            assert!(placed.insert(node, device).is_none());
        }

        // What is needed runs, and nothing else does: the definition, computed backwards over the
        // ids.
        let fed: BTreeSet<TensorId> = request.feeds.iter().copied().collect();
        let mut needed: BTreeSet<NodeId> = request.targets.iter().copied().collect();
        let unfed = request
            .fetches
            .iter()
            .filter(|tensor| !fed.contains(tensor));
        needed.extend(unfed.map(|&tensor| graph.producer(tensor).0));
        for node in graph.nodes().rev() {
            if !needed.contains(&node) {
                continue;
            }
            for edge in graph.predecessors().range(node.index()) {
                let tensor = graph.edge_tensors()[edge];
                if tensor == NONE || !fed.contains(&TensorId(tensor)) {
                    needed.insert(NodeId(graph.predecessors().items[edge]));
                }
            }
        }
        assert_eq!(placed.keys().copied().collect::<BTreeSet<_>>(), needed);

        // One pair per tensor, destination and memory, each with a reader.
        let mut pairs = BTreeSet::new();
        let mut edges = BTreeSet::new();
        for transfer in plan.transfers() {
            assert!(edges.insert(transfer.edge), "two transfers have one key");
            let edge = transfer.edge as usize;
            let tensor = match transfer.payload {
                Payload::Tensor(tensor) => tensor.0,
                Payload::Control(_) => NONE,
            };
            assert_eq!(graph.edge_tensors()[edge], tensor);
            assert_eq!(
                graph.predecessors().items[edge],
                transfer.payload.producer(graph).0
            );
            let consumer = transfer.first_consumer(graph);
            assert!(graph.predecessors().range(consumer.index()).contains(&edge));
            assert_eq!(placed[&consumer], transfer.destination);
            let same_place = (transfer.source, transfer.source_space)
                == (transfer.destination, transfer.destination_space);
            assert!(!same_place);
            let destination = (transfer.destination, transfer.destination_space);
            assert!(pairs.insert((transfer.payload, destination)));
            if let Some(received) = transfer.received {
                assert!(plan.values()[received.index()].n_readers > 0);
            }
        }

        // Every edge is served: each input is the right tensor on the node's device, each control
        // edge is waited for.
        let mut n_reads = vec![0; plan.values().len()];
        for step in plan.steps() {
            for &value in &step.inputs {
                n_reads[value.index()] += 1;
                assert_eq!(plan.values()[value.index()].device, step.device);
            }
            if let StepKind::Execute(node) = step.kind {
                let read: Vec<TensorId> = step
                    .inputs
                    .iter()
                    .map(|value| plan.values()[value.index()].tensor)
                    .collect();
                assert_eq!(read, graph.data_inputs(node).collect::<Vec<_>>());
            }
        }
        let counted: Vec<u32> = plan.values().iter().map(|value| value.n_readers).collect();
        assert_eq!(counted, n_reads);
        check_control_edges(sketch, plan);

        // Each fetch is what was asked for.
        let fetched: Vec<TensorId> = plan.fetches().iter().map(Fetch::tensor).collect();
        assert_eq!(fetched, request.fetches);
    }

    fn check_control_edges(sketch: &Sketch, plan: &ExecutionPlan) {
        let graph = &sketch.graph;
        let mut executes = BTreeMap::new();
        for (id, step) in plan.steps().iter().enumerate() {
            if let StepKind::Execute(node) = step.kind {
                executes.insert(node, id);
            }
        }
        let leads = |from: usize, to: usize| plan.successors().row(from).contains(&(to as u32));
        for (&node, &step) in &executes {
            for edge in graph.predecessors().range(node.index()) {
                if graph.edge_tensors()[edge] != NONE {
                    continue;
                }
                let producer = NodeId(graph.predecessors().items[edge]);
                let from = executes[&producer];
                let is_served = leads(from, step)
                    || plan.steps().iter().enumerate().any(|(send, at)| {
                        let StepKind::Send(transfer) = at.kind else {
                            return false;
                        };
                        plan.transfers()[transfer.index()].payload == Payload::Control(producer)
                            && leads(from, send)
                            && plan
                                .successors()
                                .row(send)
                                .iter()
                                .any(|&receive| leads(receive as usize, step))
                    });
                assert!(is_served, "{producer} -> {node}");
            }
        }
    }
}
