//! Assembles a graph node by node and checks it.

use std::sync::Arc;

use hashbrown::HashMap;

use super::attr::AttrSet;
use super::columns::{BackEdge, EdgeKind, Graph, IDENTITY, NodeClass};
use super::function::Function;
use super::ids::{NONE, NodeId};
use crate::tensor::{DType, PartialShape};

/// One node to be added to a graph.
#[derive(Debug, Clone)]
pub struct NodeSpec<'a> {
    /// Unique name.
    pub name: &'a str,
    /// Op, the name of its kernels.
    pub op: &'a str,
    /// Data inputs in slot order, then control inputs.
    pub inputs: &'a [Input],
    /// Requested device, in any accepted spelling, possibly partial; empty means no request.
    pub requested_device: &'a str,
    /// Attributes.
    pub attrs: AttrSet,
    /// Outputs, in slot order.
    pub outputs: &'a [Output],
    /// Whether the op is stateful.
    pub stateful: bool,
    /// Cost of one execution.
    pub work: Work,
}

/// An input of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Input {
    /// Output `slot` of `node`.
    Data {
        /// The producer.
        node: NodeId,
        /// Index of the output.
        slot: u32,
    },
    /// The node runs after this one.
    Control(NodeId),
}

/// An output of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// Element type.
    pub dtype: DType,
    /// Whether it is a reference.
    pub is_ref: bool,
    /// What is known of its shape.
    pub shape: PartialShape,
}

/// Cost of one execution of a node, on any device.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Work {
    /// Floating-point operations.
    pub flops: f64,
    /// Bytes read and written.
    pub traffic_bytes: u64,
    /// Parameters and other state that stays on the device, in bytes.
    pub resident_bytes: u64,
    /// Scratch memory, in bytes.
    pub workspace_bytes: u64,
}

/// Why a graph cannot be assembled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GraphError {
    /// Two nodes have the same name.
    #[error("the graph has two nodes `{0}`")]
    DuplicateName(String),
    /// An input names a node that has not been added, or an output that the node does not have.
    #[error(
        "node `{node}`: input {input} is output {slot} of node {producer}, which does not exist"
    )]
    DanglingInput {
        /// The consumer.
        node: String,
        /// Index of the input.
        input: usize,
        /// Id of the producer.
        producer: u32,
        /// Index of the output.
        slot: u32,
    },
    /// A data input follows a control input.
    #[error("node `{0}`: a data input follows a control input")]
    DataAfterControl(String),
    /// The graph exceeds 32-bit ids.
    #[error(
        "node `{0}`: the graph has more nodes, edges, tensors or bytes of names than 32-bit ids allow"
    )]
    TooLarge(String),
}

/// Assembles a [`Graph`]. Nodes are added in topological order; only [`Self::add_back_edge`] and
/// [`Self::add_back_input`] close loops. The caller provides types, shapes and work;
/// [`crate::builder::GraphBuilder`] infers them for ops that have definitions.
///
/// ```
/// use placewright::graph::{AttrSet, GraphAssembler, Input, NodeSpec, Output, Work};
/// use placewright::tensor::{DType, PartialShape};
///
/// let frame = Output { dtype: DType::U8, is_ref: false, shape: PartialShape::new(&[Some(1080), Some(1920), Some(3)]) };
/// let mut assembler = GraphAssembler::new("thumbnails");
/// let node = |name, op, inputs, flops| NodeSpec {
///     name,
///     op,
///     inputs,
///     requested_device: "",
///     attrs: AttrSet::default(),
///     outputs: std::slice::from_ref(&frame),
///     stateful: false,
///     work: Work { flops, ..Work::default() },
/// };
/// let decode = assembler.add_node(&node("decode", "Decode", &[], 1e8))?;
/// assembler.add_node(&node("scale", "Scale", &[Input::Data { node: decode, slot: 0 }], 3e7))?;
/// let graph = assembler.finish();
/// assert_eq!((graph.n_nodes(), graph.n_edges()), (2, 1));
/// # Ok::<(), placewright::graph::GraphError>(())
/// ```
#[derive(Debug)]
pub struct GraphAssembler {
    graph: Graph,
    op_ids: HashMap<Box<str>, u32>,
    class_ids: HashMap<(u32, AttrSet, bool), u32>,
    requested_ids: HashMap<Box<str>, u32>,
}

impl GraphAssembler {
    /// Returns an empty graph; `name` is for reports.
    pub fn new(name: impl Into<String>) -> Self {
        let mut graph = Graph {
            name: name.into(),
            ..Graph::default()
        };
        graph.tensor_offsets.push(0);
        graph.dim_offsets.push(0);
        Self {
            graph,
            op_ids: HashMap::new(),
            class_ids: HashMap::new(),
            requested_ids: HashMap::new(),
        }
    }

    /// Returns the number of nodes so far, which is the id of the next one.
    pub fn n_nodes(&self) -> usize {
        self.graph.n_nodes()
    }

    /// Returns an output of an added node; shape inference of later nodes reads it.
    pub fn output(&self, node: NodeId, slot: usize) -> Option<Output> {
        if node.index() >= self.graph.n_nodes() {
            return None;
        }
        let tensor = self.graph.output(node, slot)?;
        Some(Output {
            dtype: self.graph.tensor_dtypes[tensor.index()],
            is_ref: self.graph.tensor_is_ref[tensor.index()],
            shape: self.graph.tensor_shape(tensor),
        })
    }

    /// Returns the node of this name, if it was added.
    pub fn find_node(&self, name: &str) -> Option<NodeId> {
        self.graph.find_node(name)
    }

    /// Returns the name of an added node.
    ///
    /// # Panics
    /// If there is no such node.
    pub fn node_name(&self, node: NodeId) -> &str {
        self.graph.node_name(node)
    }

    /// Returns the requested device of an added node; empty if there is no request.
    ///
    /// # Panics
    /// If there is no such node.
    pub fn requested(&self, node: NodeId) -> &str {
        self.graph.requested(node)
    }

    /// Returns the number of outputs of an added node.
    ///
    /// # Panics
    /// If there is no such node.
    pub fn n_outputs(&self, node: NodeId) -> usize {
        self.graph.output_range(node).len()
    }

    /// Returns the attributes of an added node.
    ///
    /// # Panics
    /// If there is no such node.
    pub fn attrs(&self, node: NodeId) -> &AttrSet {
        self.graph.attrs(node)
    }

    /// Returns the op of an added node.
    ///
    /// # Panics
    /// If there is no such node.
    pub fn op(&self, node: NodeId) -> &str {
        self.graph.op(node)
    }

    /// Appends a node whose producers have all been added.
    ///
    /// # Errors
    /// [`GraphError`], naming the node; the graph stays unchanged.
    pub fn add_node(&mut self, spec: &NodeSpec<'_>) -> Result<NodeId, GraphError> {
        let id = self.check(spec)?;
        let too_large = || GraphError::TooLarge(spec.name.to_owned());
        let graph = &mut self.graph;
        // `check` has looked it up.
        graph.node_names.push(spec.name).ok_or_else(too_large)?;
        let op = intern(&mut self.op_ids, &mut graph.op_names, spec.op);
        graph.op.push(op);
        let n_classes = graph.classes.len();
        let class = *self
            .class_ids
            .entry((op, spec.attrs.clone(), spec.stateful))
            .or_insert_with_key(|(op, attrs, stateful)| {
                graph.classes.push(NodeClass {
                    op: *op,
                    attrs: attrs.clone(),
                    stateful: *stateful,
                });
                to_u32(n_classes)
            });
        graph.class.push(class);
        graph.requested.push(intern(
            &mut self.requested_ids,
            &mut graph.requested_devices,
            spec.requested_device,
        ));
        let mut reads_only_preloaded = true;
        for input in spec.inputs {
            let (producer, tensor, mut kind) = match *input {
                Input::Control(node) => (node, NONE, EdgeKind::CONTROL),
                Input::Data { node, slot } => {
                    let tensor = to_u32(graph.output_range(node).start) + slot;
                    (node, tensor, data_kind(graph, tensor))
                }
            };
            if graph.is_preloaded(producer) {
                kind |= EdgeKind::PRELOADED;
            } else {
                reads_only_preloaded = false;
            }
            graph.predecessors.items.push(producer.0);
            graph.edge_tensors.push(tensor);
            graph.edge_kinds.push(kind);
        }
        graph
            .predecessors
            .offsets
            .push(to_u32(graph.predecessors.items.len()));
        let is_constant = match spec.op {
            "Const" => true,
            // Its only data input is before its control inputs, which are preloaded, too.
            IDENTITY => matches!(spec.inputs.first(), Some(&Input::Data { node, slot: 0 })
                if !graph.is_placeholder(node)),
            _ => false,
        };
        graph
            .preloaded
            .push(is_constant && reads_only_preloaded || graph.is_placeholder(id));
        for output in spec.outputs {
            push_tensor(graph, id, output);
        }
        graph.tensor_offsets.push(to_u32(graph.tensor_nodes.len()));
        graph.flops.push(spec.work.flops);
        graph.traffic_bytes.push(spec.work.traffic_bytes);
        graph.resident_bytes.push(spec.work.resident_bytes);
        graph.workspace_bytes.push(spec.work.workspace_bytes);
        Ok(id)
    }

    /// Closes a loop: adds an edge from `from` to `to`, which was added earlier.
    ///
    /// # Panics
    /// If one of the nodes does not exist.
    pub fn add_back_edge(&mut self, from: NodeId, to: NodeId) {
        assert!(
            from.index() < self.n_nodes() && to.index() < self.n_nodes(),
            "both ends of a back edge have been added"
        );
        self.graph.back_edges.extend([from.0, to.0]);
    }

    /// Closes a loop with a tensor: output `slot` of `from` becomes data input `input` of `to`,
    /// which was added earlier. `input` counts all data inputs of `to`, those from
    /// [`Self::add_node`] and those from back edges.
    ///
    /// # Errors
    /// [`GraphError::DanglingInput`] if `from` has no such output, or one of the nodes does not
    /// exist.
    pub fn add_back_input(
        &mut self,
        from: NodeId,
        slot: u32,
        to: NodeId,
        input: u32,
    ) -> Result<(), GraphError> {
        let n_nodes = self.n_nodes();
        let exists = from.index() < n_nodes && to.index() < n_nodes;
        let tensor = exists
            .then(|| self.graph.output(from, slot as usize))
            .flatten();
        let Some(tensor) = tensor else {
            let node = (to.index() < n_nodes).then(|| self.graph.node_name(to).to_owned());
            return Err(GraphError::DanglingInput {
                node: node.unwrap_or_else(|| format!("number {to}")),
                input: input as usize,
                producer: from.0,
                slot,
            });
        };
        self.add_back_edge(from, to);
        self.graph.back_inputs.push(BackEdge {
            from,
            tensor,
            to,
            input,
        });
        Ok(())
    }

    /// Records that the nodes from this number on come from a function, except those that come
    /// from a function that it calls.
    pub(crate) fn set_function(&mut self, first_node: usize, name: &Arc<str>) {
        let graph = &mut self.graph;
        let origin = to_u32(graph.inlined.len());
        graph.inlined.push(Arc::clone(name));
        graph.origins.resize(graph.op.len(), NONE);
        for of_node in &mut graph.origins[first_node..] {
            if *of_node == NONE {
                *of_node = origin;
            }
        }
    }

    /// Adds a function to the library. Of two functions of one name, lookup finds the first.
    pub fn add_function(&mut self, function: Function) {
        let index = to_u32(self.graph.functions.len());
        self.graph
            .function_ids
            .entry(function.name.clone())
            .or_insert(index);
        self.graph.functions.push(function);
    }

    /// Records that a node without successors has no edge to the sink either, see
    /// [`Graph::sinkless`]. Nodes are recorded in their order.
    pub(crate) fn mark_sinkless(&mut self, node: NodeId) {
        self.graph.sinkless.push(node);
    }

    /// Returns the finished graph.
    pub fn finish(self) -> Graph {
        self.finish_as(false)
    }

    /// Returns the finished graph of a caller that has checked every node against the definition of
    /// its op.
    pub(crate) fn finish_checked(self) -> Graph {
        self.finish_as(true)
    }

    fn finish_as(self, is_checked: bool) -> Graph {
        let mut graph = self.graph;
        graph.is_checked = is_checked;
        graph.back_inputs.sort_by_key(|edge| (edge.to, edge.input));
        let n_nodes = graph.n_nodes();
        let mut offsets = vec![0u32; n_nodes + 1];
        for &producer in &graph.predecessors.items {
            offsets[producer as usize + 1] += 1;
        }
        for node in 0..n_nodes {
            offsets[node + 1] += offsets[node];
        }
        let mut next = offsets.clone();
        let mut items = vec![0u32; graph.predecessors.items.len()];
        let mut edges = items.clone();
        for consumer in 0..n_nodes {
            for edge in graph.predecessors.range(consumer) {
                let slot = &mut next[graph.predecessors.items[edge] as usize];
                items[*slot as usize] = to_u32(consumer);
                edges[*slot as usize] = to_u32(edge);
                *slot += 1;
            }
        }
        graph.successors.offsets = offsets;
        graph.successors.items = items;
        graph.successor_edges = edges;
        graph
    }

    fn check(&self, spec: &NodeSpec<'_>) -> Result<NodeId, GraphError> {
        let graph = &self.graph;
        let too_large = || GraphError::TooLarge(spec.name.to_owned());
        let below_limit = |n: usize| {
            u32::try_from(n)
                .ok()
                .filter(|&n| n < NONE)
                .ok_or_else(too_large)
        };
        let id = NodeId(below_limit(graph.n_nodes())?);
        below_limit(graph.n_edges() + spec.inputs.len())?;
        below_limit(graph.n_tensors() + spec.outputs.len())?;
        let n_dims: usize = spec
            .outputs
            .iter()
            .map(|output| output.shape.rank().unwrap_or(1))
            .sum();
        below_limit(graph.dim_sizes.len() + n_dims)?;
        below_limit(graph.node_names().text().len() + spec.name.len())?;
        if graph.find_node(spec.name).is_some() {
            return Err(GraphError::DuplicateName(spec.name.to_owned()));
        }
        let mut after_control = false;
        for (index, input) in spec.inputs.iter().enumerate() {
            let (producer, slot) = match *input {
                Input::Control(node) => (node, None),
                Input::Data { node, slot } => (node, Some(slot)),
            };
            let exists = producer.index() < graph.n_nodes()
                && slot.is_none_or(|slot| (slot as usize) < graph.output_range(producer).len());
            if !exists {
                return Err(GraphError::DanglingInput {
                    node: spec.name.to_owned(),
                    input: index,
                    producer: producer.0,
                    slot: slot.unwrap_or(0),
                });
            }
            if slot.is_some() && after_control {
                return Err(GraphError::DataAfterControl(spec.name.to_owned()));
            }
            after_control |= slot.is_none();
        }
        Ok(id)
    }
}

fn intern(ids: &mut HashMap<Box<str>, u32>, strings: &mut Vec<Box<str>>, text: &str) -> u32 {
    if let Some(&id) = ids.get(text) {
        return id;
    }
    let id = to_u32(strings.len());
    strings.push(text.into());
    ids.insert(text.into(), id);
    id
}

fn data_kind(graph: &Graph, tensor: u32) -> u8 {
    let index = tensor as usize;
    let dtype = graph.tensor_dtypes[index];
    let unknown = graph
        .tensor_shape(super::TensorId(tensor))
        .size_bytes(dtype)
        .is_none();
    let reference = graph.tensor_is_ref[index] || dtype == DType::Resource;
    (if unknown { EdgeKind::SIZE_UNKNOWN } else { 0 })
        | (if reference { EdgeKind::REFERENCE } else { 0 })
}

fn push_tensor(graph: &mut Graph, node: NodeId, output: &Output) {
    graph.tensor_nodes.push(node.0);
    graph.tensor_dtypes.push(output.dtype);
    graph.tensor_is_ref.push(output.is_ref);
    graph
        .tensor_bytes
        .push(output.shape.size_bytes(output.dtype).unwrap_or(0));
    match output.shape.dims() {
        None => graph.dim_sizes.push(-2),
        Some(dims) => {
            let size =
                |dim: &Option<usize>| dim.and_then(|dim| i64::try_from(dim).ok()).unwrap_or(-1);
            graph.dim_sizes.extend(dims.iter().map(size));
        }
    }
    graph.dim_offsets.push(to_u32(graph.dim_sizes.len()));
}

/// Converts the length of a column; [`GraphAssembler::check`] has refused longer ones.
fn to_u32(n: usize) -> u32 {
    u32::try_from(n).expect("columns are shorter than 2^32")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(assembler: &mut GraphAssembler, name: &str, inputs: &[Input]) -> NodeId {
        let output = Output {
            dtype: DType::F32,
            is_ref: false,
            shape: PartialShape::scalar(),
        };
        let spec = NodeSpec {
            name,
            op: "Op",
            inputs,
            requested_device: "",
            attrs: AttrSet::default(),
            outputs: &[output],
            stateful: false,
            work: Work::default(),
        };
        assembler.add_node(&spec).unwrap()
    }

    #[test]
    fn a_back_edge_takes_its_place_among_the_data_inputs() {
        let mut assembler = GraphAssembler::new("loop");
        let enter = add(&mut assembler, "enter", &[]);
        let first = Input::Data {
            node: enter,
            slot: 0,
        };
        let merge = add(&mut assembler, "merge", &[first]);
        let again = Input::Data {
            node: merge,
            slot: 0,
        };
        let next = add(&mut assembler, "next", &[again]);
        assembler.add_back_input(next, 0, merge, 0).unwrap();
        assert!(assembler.add_back_input(next, 1, merge, 1).is_err());
        assert!(assembler.add_back_input(NodeId(9), 0, merge, 1).is_err());
        let graph = assembler.finish();
        let names: Vec<_> = graph
            .all_data_inputs(merge)
            .iter()
            .map(|&tensor| graph.tensor_name(tensor))
            .collect();
        assert_eq!(names, ["next:0", "enter:0"]);
        assert_eq!(graph.data_inputs(merge).count(), 1);
        assert_eq!(graph.back_edges(), [next.0, merge.0]);
        assert!(graph.back_inputs_of(next).is_empty());
    }
}
