//! Inserts an `Identity` on each input and output of a call that placement inspects (TensorFlow
//! `IsolatePlacerInspectionRequiredOpsPass`). Each neighbour of a call is then a separate node,
//! which can be colocated through the function without the call's other neighbours.

use hashbrown::HashMap;
use hashbrown::HashSet;

use crate::candidates::calls::calls_to_inspect;
use crate::candidates::error::CandidatesError;
use crate::candidates::options::OpArguments;
use crate::graph::AttrSet;
use crate::graph::AttrValue;
use crate::graph::Graph;
use crate::graph::GraphAssembler;
use crate::graph::GraphError;
use crate::graph::Input;
use crate::graph::NONE;
use crate::graph::NodeId;
use crate::graph::NodeSpec;
use crate::graph::Output;
use crate::graph::TensorId;
use crate::graph::Work;

/// Inserts an `Identity` before each input and after each use of an output of every
/// `PartitionedCall` and `StatefulPartitionedCall` whose function returns a resource; `None` if
/// there is no such call. Nodes keep their names and order, but not their ids. Required before
/// [`enumerate`](super::enumerate) if such calls feed each other. Inputs that close loops remain
/// unchanged.
///
/// # Errors
/// [`CandidatesError::CalledFunction`] for a call of a function that the graph does not have, or
/// that does not fit the call; [`CandidatesError::Graph`] if the graph would get too large.
pub fn isolate_function_calls(
    graph: &Graph,
    ops: &dyn OpArguments,
) -> Result<Option<Graph>, CandidatesError> {
    let calls = calls_to_inspect(graph, graph, Some(ops))?;
    isolated(graph, &calls)
}

/// Isolates known calls.
pub(super) fn isolated(graph: &Graph, calls: &[NodeId]) -> Result<Option<Graph>, CandidatesError> {
    if calls.is_empty() {
        return Ok(None);
    }
    let isolator = Isolator {
        graph,
        calls: calls.iter().copied().collect(),
        assembler: GraphAssembler::new(graph.name()),
        ids: Vec::with_capacity(graph.n_nodes()),
        n_of_name: HashMap::new(),
    };
    Ok(Some(isolator.run().map_err(CandidatesError::Graph)?))
}

struct Isolator<'a> {
    graph: &'a Graph,
    calls: HashSet<NodeId>,
    assembler: GraphAssembler,
    /// Ids in the new graph, by node of the old one.
    ids: Vec<NodeId>,
    /// Per used name the last number that was tried.
    n_of_name: HashMap<String, u32>,
}

impl Isolator<'_> {
    fn run(mut self) -> Result<Graph, GraphError> {
        let graph = self.graph;
        for node in graph.nodes() {
            let is_call = self.calls.contains(&node);
            let mut inputs = Vec::new();
            for edge in graph.predecessors().range(node.index()) {
                let producer = NodeId(graph.predecessors().items[edge]);
                let tensor = graph.edge_tensors()[edge];
                if tensor == NONE {
                    inputs.push(Input::Control(self.ids[producer.index()]));
                    continue;
                }
                let (name, own) = (graph.node_name(producer), graph.node_name(node));
                let mut source = self.input(TensorId(tensor));
                let mut source_name = name.to_owned();
                if self.calls.contains(&producer) {
                    source_name = format!("{source_name}_{own}");
                    source = self.identity(&mut source_name, source, tensor)?;
                }
                if is_call {
                    source_name = format!("{source_name}_{own}");
                    source = self.identity(&mut source_name, source, tensor)?;
                }
                inputs.push(source);
            }
            self.copy(node, &inputs)?;
            if is_call {
                self.isolate_unused(node)?;
            }
        }
        for edge in graph.back_inputs() {
            let (_, slot) = graph.producer(edge.tensor);
            #[expect(clippy::cast_possible_truncation, reason = "the graph has 32-bit ids")]
            self.assembler.add_back_input(
                self.ids[edge.from.index()],
                slot as u32,
                self.ids[edge.to.index()],
                edge.input,
            )?;
        }
        for function in graph.functions() {
            self.assembler.add_function(function.clone());
        }
        Ok(if graph.is_checked() {
            self.assembler.finish_checked()
        } else {
            self.assembler.finish()
        })
    }

    fn copy(&mut self, node: NodeId, inputs: &[Input]) -> Result<(), GraphError> {
        let graph = self.graph;
        let outputs: Vec<Output> = graph.output_range(node).map(|t| output(graph, t)).collect();
        let index = node.index();
        let id = self.assembler.add_node(&NodeSpec {
            name: graph.node_name(node),
            op: graph.op(node),
            inputs,
            requested_device: graph.requested(node),
            attrs: graph.attrs(node).clone(),
            outputs: &outputs,
            stateful: graph.class(node).stateful,
            work: Work {
                flops: graph.flops()[index],
                traffic_bytes: graph.traffic_bytes()[index],
                resident_bytes: graph.resident_bytes()[index],
                workspace_bytes: graph.workspace_bytes()[index],
            },
        })?;
        self.ids.push(id);
        Ok(())
    }

    /// Isolates outputs without readers.
    fn isolate_unused(&mut self, call: NodeId) -> Result<(), GraphError> {
        let graph = self.graph;
        let edges = graph.successors().range(call.index());
        let used: HashSet<u32> = edges
            .map(|position| graph.edge_tensors()[graph.successor_edges()[position] as usize])
            .chain(graph.back_inputs().iter().map(|edge| edge.tensor.0))
            .collect();
        for slot in 0..graph.output_range(call).len() {
            let Some(tensor) = graph.output(call, slot) else {
                continue;
            };
            if !used.contains(&tensor.0) {
                let mut name = graph.node_name(call).to_owned();
                let source = self.input(tensor);
                if let Input::Data { node, .. } = self.identity(&mut name, source, tensor.0)? {
                    // TensorFlow's pass does not connect the inserted nodes to the sink.
                    self.assembler.mark_sinkless(node);
                }
            }
        }
        Ok(())
    }

    /// Returns a tensor of the old graph as an input in the new one.
    fn input(&self, tensor: TensorId) -> Input {
        let (node, slot) = self.graph.producer(tensor);
        #[expect(clippy::cast_possible_truncation, reason = "the graph has 32-bit ids")]
        Input::Data {
            node: self.ids[node.index()],
            slot: slot as u32,
        }
    }

    /// Adds an `Identity` and makes its name unique.
    fn identity(
        &mut self,
        name: &mut String,
        source: Input,
        tensor: u32,
    ) -> Result<Input, GraphError> {
        let stem = name.clone();
        let n = self.n_of_name.entry(stem.clone()).or_default();
        while self.graph.find_node(name).is_some() || self.assembler.find_node(name).is_some() {
            *name = format!("{stem}_{n}");
            *n += 1;
        }
        let output = output(self.graph, tensor as usize);
        let dtype = AttrValue::Type {
            dtype: output.dtype,
            // An identity reads references as values.
            is_ref: false,
        };
        let node = self.assembler.add_node(&NodeSpec {
            name,
            op: "Identity",
            inputs: &[source],
            requested_device: "",
            attrs: AttrSet::new([("T".into(), dtype)]),
            outputs: &[Output {
                is_ref: false,
                ..output
            }],
            stateful: false,
            work: Work::default(),
        })?;
        Ok(Input::Data { node, slot: 0 })
    }
}

fn output(graph: &Graph, tensor: usize) -> Output {
    #[expect(clippy::cast_possible_truncation, reason = "the graph has 32-bit ids")]
    let id = TensorId(tensor as u32);
    Output {
        dtype: graph.tensor_dtypes()[tensor],
        is_ref: graph.tensor_is_ref(id),
        shape: graph.tensor_shape(id),
    }
}
