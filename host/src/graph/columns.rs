//! The graph: nodes, edges and tensors in columns.

use std::sync::Arc;
use std::sync::OnceLock;

use hashbrown::HashMap;

use super::attr::AttrSet;
use super::bodies::{Bodies, LoopError};
use super::function::Function;
use super::ids::{NONE, NodeId, TensorId};
use super::signature::{Signature, Stored};
use crate::names::NameArena;
use crate::names::Strings;
use crate::tensor::{DType, PartialShape};

/// The op that outputs its input.
pub(crate) const IDENTITY: &str = "Identity";

/// Rows of different lengths: row `i` is `items[offsets[i]..offsets[i + 1]]`.
#[derive(Debug, Clone)]
pub struct Csr {
    /// Start of each row, and the end.
    pub offsets: Vec<u32>,
    /// The rows, one after the other.
    pub items: Vec<u32>,
}

impl Default for Csr {
    fn default() -> Self {
        Self {
            offsets: vec![0],
            items: Vec::new(),
        }
    }
}

impl Csr {
    /// Returns row `index`.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn row(&self, index: usize) -> &[u32] {
        &self.items[self.range(index)]
    }

    /// Returns the positions of row `index` in `items`.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn range(&self, index: usize) -> std::ops::Range<usize> {
        self.offsets[index] as usize..self.offsets[index + 1] as usize
    }

    /// Returns the row that contains position `position` of `items`, by binary search.
    ///
    /// # Panics
    /// If there is no such position.
    pub fn row_of(&self, position: usize) -> usize {
        assert!(position < self.items.len(), "the position is one of items");
        // Rows may be empty, so several may start at one position; the last of them contains it.
        let starts = self
            .offsets
            .partition_point(|&start| start as usize <= position);
        starts - 1
    }

    /// Returns the number of rows.
    pub fn n_rows(&self) -> usize {
        self.offsets.len() - 1
    }
}

/// Properties of an edge, as bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EdgeKind(pub u8);

impl EdgeKind {
    /// Order only, no tensor.
    pub const CONTROL: u8 = 1;
    /// Consumed in host memory. Depends on kernels: set in the candidates, never in the graph.
    pub const HOST_MEMORY: u8 = 2;
    /// The tensor's size is unknown before the run.
    pub const SIZE_UNKNOWN: u8 = 4;
    /// A reference or a resource.
    pub const REFERENCE: u8 = 8;
    /// The producer does not run ([`Graph::is_preloaded`]): no run waits for this edge or transfers
    /// its tensor.
    pub const PRELOADED: u8 = 16;
}

/// Common properties of nodes with the same op and attributes; kernels are looked up once per
/// class.
#[derive(Debug, Clone)]
pub struct NodeClass {
    /// Index into [`Graph::op_names`].
    pub op: u32,
    /// The attributes.
    pub attrs: AttrSet,
    /// Whether the op is stateful: running it twice differs from running it once.
    pub stateful: bool,
}

/// A data input that closes a loop: the producer comes after its consumer, so it is not part of
/// [`Graph::predecessors`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackEdge {
    /// The producer, in TensorFlow's loops a `NextIteration`.
    pub from: NodeId,
    /// The tensor.
    pub tensor: TensorId,
    /// The consumer, in TensorFlow's loops a `Merge`.
    pub to: NodeId,
    /// Index among the data inputs of the consumer, back edges included.
    pub input: u32,
}

/// A dataflow graph, in columns. [`super::GraphAssembler`] builds and checks it; it is immutable
/// afterwards.
#[derive(Debug, Clone, Default)]
pub struct Graph {
    pub(super) name: String,
    pub(super) node_names: NameArena,
    pub(super) op: Vec<u32>,
    pub(super) op_names: Vec<Box<str>>,
    pub(super) class: Vec<u32>,
    pub(super) classes: Vec<NodeClass>,
    pub(super) requested: Vec<u32>,
    pub(super) requested_devices: Vec<Box<str>>,
    pub(super) predecessors: Csr,
    pub(super) successors: Csr,
    pub(super) successor_edges: Vec<u32>,
    pub(super) edge_tensors: Vec<u32>,
    pub(super) edge_kinds: Vec<u8>,
    pub(super) back_edges: Vec<u32>,
    pub(super) back_inputs: Vec<BackEdge>,
    pub(super) tensor_offsets: Vec<u32>,
    pub(super) tensor_nodes: Vec<u32>,
    pub(super) tensor_dtypes: Vec<DType>,
    pub(super) tensor_is_ref: Vec<bool>,
    pub(super) tensor_bytes: Vec<u64>,
    pub(super) dim_offsets: Vec<u32>,
    pub(super) dim_sizes: Vec<i64>,
    pub(super) flops: Vec<f64>,
    pub(super) traffic_bytes: Vec<u64>,
    pub(super) resident_bytes: Vec<u64>,
    pub(super) workspace_bytes: Vec<u64>,
    pub(super) functions: Vec<Function>,
    pub(super) function_ids: HashMap<Arc<str>, u32>,
    /// Per node the function that it comes from, as an index into `inlined`, or [`NONE`]. Nodes
    /// after the last one from a function may be left out.
    pub(super) origins: Vec<u32>,
    pub(super) inlined: Vec<Arc<str>>,
    pub(super) is_checked: bool,
    pub(super) signature: Option<Arc<Signature>>,
    pub(super) init: Arc<[Vec<String>]>,
    pub(super) stored: Option<Arc<Stored>>,
    pub(super) sinkless: Vec<NodeId>,
    pub(super) preloaded: Vec<bool>,
    /// Found when it is first asked for: a graph that is only placed may have any loops.
    pub(super) bodies: OnceLock<Result<Bodies, LoopError>>,
}

impl Graph {
    /// Returns the nodes without successors that TensorFlow's graph does not connect to its sink:
    /// nodes that were added after it was read. Ascending.
    pub(crate) fn sinkless(&self) -> &[NodeId] {
        &self.sinkless
    }

    /// Returns whether the outputs of a node are available on every device that reads them before a
    /// run begins: those of a placeholder, which the caller feeds, of a constant without inputs,
    /// and of an `Identity` of such a constant. Such a node does not run.
    ///
    /// # Panics
    /// If there is no such node.
    pub fn is_preloaded(&self, node: NodeId) -> bool {
        self.preloaded[node.index()]
    }

    /// Returns the constant that a tensor is before a run begins, unless it is fed: the producer,
    /// or the one that the producer, an `Identity`, passes on.
    pub(crate) fn constant_of(&self, tensor: TensorId) -> Option<NodeId> {
        let mut node = self.producer(tensor).0;
        while self.op(node) == IDENTITY && self.is_preloaded(node) {
            node = self.producer(self.data_inputs(node).next()?).0;
        }
        (self.op(node) == "Const").then_some(node)
    }

    /// Returns whether a node is a placeholder: it is fed, never executed.
    pub(crate) fn is_placeholder(&self, node: NodeId) -> bool {
        matches!(self.op(node), "Placeholder" | "PlaceholderV2")
    }

    /// Returns the name for reports: that of the file, or the one that the app chose.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns whether every node was checked against the definition of its op when it was added,
    /// as the graph builder and the importer do. A [`super::GraphAssembler`] accepts any op.
    pub fn is_checked(&self) -> bool {
        self.is_checked
    }

    /// Returns the names that callers use for inputs and outputs, if the graph has such names.
    pub fn signature(&self) -> Option<&Arc<Signature>> {
        self.signature.as_ref()
    }

    /// Returns the nodes that a session runs once before anything else, by name: one run per list.
    /// They initialise variables and tables.
    pub fn init(&self) -> &Arc<[Vec<String>]> {
        &self.init
    }

    /// Returns the variables that have come from a checkpoint, if there are any.
    pub fn stored(&self) -> Option<&Arc<Stored>> {
        self.stored.as_ref()
    }

    /// Sets the names of inputs and outputs, the nodes that a session runs first, and the variables
    /// of a checkpoint.
    #[cfg(feature = "graphdef")]
    pub(crate) fn set_interface(
        &mut self,
        signature: Signature,
        init: Vec<Vec<String>>,
        stored: Option<Stored>,
    ) {
        self.signature = Some(Arc::new(signature));
        self.init = init.into();
        self.stored = stored.map(Arc::new);
    }

    /// Copies what [`Self::set_interface`] sets, of a graph that has the same nodes.
    pub(crate) fn copy_interface(&mut self, other: &Self) {
        self.signature.clone_from(&other.signature);
        self.init = Arc::clone(&other.init);
        self.stored.clone_from(&other.stored);
    }

    /// Returns the number of nodes.
    pub fn n_nodes(&self) -> usize {
        self.op.len()
    }

    /// Returns the number of edges, without back edges.
    pub fn n_edges(&self) -> usize {
        self.predecessors.items.len()
    }

    /// Returns the number of tensors.
    pub fn n_tensors(&self) -> usize {
        self.tensor_nodes.len()
    }

    /// Returns all nodes, in order.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the assembler refuses more than u32::MAX - 1 nodes"
    )]
    pub fn nodes(&self) -> impl ExactSizeIterator<Item = NodeId> + DoubleEndedIterator + use<> {
        (0..self.n_nodes() as u32).map(NodeId)
    }

    /// Returns the name of a node.
    pub fn node_name(&self, node: NodeId) -> &str {
        self.node_names.names().get(node.index())
    }

    /// Returns the names of all nodes.
    pub fn node_names(&self) -> &Strings {
        self.node_names.names()
    }

    /// Returns the node of this name.
    pub fn find_node(&self, name: &str) -> Option<NodeId> {
        self.node_names.find(name).map(NodeId)
    }

    /// Returns the op of a node.
    pub fn op(&self, node: NodeId) -> &str {
        &self.op_names[self.op[node.index()] as usize]
    }

    /// Returns the op of every node, as an index into [`Self::op_names`].
    pub fn op_types(&self) -> &[u32] {
        &self.op
    }

    /// Returns the distinct ops.
    pub fn op_names(&self) -> &[Box<str>] {
        &self.op_names
    }

    /// Returns the class of every node, as an index into [`Self::classes`].
    pub fn class_ids(&self) -> &[u32] {
        &self.class
    }

    /// Returns the distinct (op, attributes) pairs.
    pub fn classes(&self) -> &[NodeClass] {
        &self.classes
    }

    /// Returns the class of a node.
    pub fn class(&self, node: NodeId) -> &NodeClass {
        &self.classes[self.class[node.index()] as usize]
    }

    /// Returns the attributes of a node.
    pub fn attrs(&self, node: NodeId) -> &AttrSet {
        &self.class(node).attrs
    }

    /// Returns the requested device of a node, as written in the graph; empty if there is no
    /// request.
    pub fn requested(&self, node: NodeId) -> &str {
        &self.requested_devices[self.requested[node.index()] as usize]
    }

    /// Returns the requested device of every node, as an index into [`Self::requested_devices`].
    pub fn requested_ids(&self) -> &[u32] {
        &self.requested
    }

    /// Returns the distinct requested devices; the empty string is one of them.
    pub fn requested_devices(&self) -> &[Box<str>] {
        &self.requested_devices
    }

    /// Returns the producers of every node: data inputs in slot order, then control inputs.
    pub fn predecessors(&self) -> &Csr {
        &self.predecessors
    }

    /// Returns the consumers of every node, in node order; one entry per edge.
    pub fn successors(&self) -> &Csr {
        &self.successors
    }

    /// Returns the edge of each position in `successors().items`: the position in
    /// `predecessors().items`.
    pub fn successor_edges(&self) -> &[u32] {
        &self.successor_edges
    }

    /// Returns the tensor of each edge, [`NONE`] for control edges; indexed as
    /// `predecessors().items`.
    pub fn edge_tensors(&self) -> &[u32] {
        &self.edge_tensors
    }

    /// Returns the [`EdgeKind`] bits of each edge.
    pub fn edge_kinds(&self) -> &[u8] {
        &self.edge_kinds
    }

    /// Returns the (from, to) pairs of back edges, flattened; not part of [`Self::predecessors`].
    pub fn back_edges(&self) -> &[u32] {
        &self.back_edges
    }

    /// Returns the back edges that carry a tensor, by consumer and input.
    pub fn back_inputs(&self) -> &[BackEdge] {
        &self.back_inputs
    }

    /// Returns the back edges into a node, by input.
    pub fn back_inputs_of(&self, node: NodeId) -> &[BackEdge] {
        let start = self.back_inputs.partition_point(|edge| edge.to < node);
        let rest = &self.back_inputs[start..];
        &rest[..rest.partition_point(|edge| edge.to == node)]
    }

    /// Returns the data inputs of a node in slot order, back edges included, as an executor
    /// connects them.
    pub fn all_data_inputs(&self, node: NodeId) -> Vec<TensorId> {
        let mut inputs: Vec<_> = self.data_inputs(node).collect();
        for edge in self.back_inputs_of(node) {
            inputs.insert((edge.input as usize).min(inputs.len()), edge.tensor);
        }
        inputs
    }

    /// Returns the data inputs of a node, in slot order, without back edges, which only loops have.
    pub fn data_inputs(&self, node: NodeId) -> impl Iterator<Item = TensorId> + '_ {
        self.predecessors
            .range(node.index())
            .map(|edge| self.edge_tensors[edge])
            .take_while(|&tensor| tensor != NONE)
            .map(TensorId)
    }

    /// Returns output `slot` of a node.
    pub fn output(&self, node: NodeId, slot: usize) -> Option<TensorId> {
        let range = self.output_range(node);
        let id = range.start + slot;
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the assembler refuses more than u32::MAX - 1 tensors"
        )]
        (id < range.end).then_some(TensorId(id as u32))
    }

    /// Returns the outputs of a node, as positions in the tensor columns.
    pub fn output_range(&self, node: NodeId) -> std::ops::Range<usize> {
        self.tensor_offsets[node.index()] as usize..self.tensor_offsets[node.index() + 1] as usize
    }

    /// Returns the producing node of each tensor.
    pub fn tensor_nodes(&self) -> &[u32] {
        &self.tensor_nodes
    }

    /// Returns the node that produces a tensor, and the index of the output.
    pub fn producer(&self, tensor: TensorId) -> (NodeId, usize) {
        let node = NodeId(self.tensor_nodes[tensor.index()]);
        (
            node,
            tensor.index() - self.tensor_offsets[node.index()] as usize,
        )
    }

    /// Returns `node:slot`.
    pub fn tensor_name(&self, tensor: TensorId) -> String {
        let (node, slot) = self.producer(tensor);
        format!("{}:{slot}", self.node_name(node))
    }

    /// Returns the element type of each tensor.
    pub fn tensor_dtypes(&self) -> &[DType] {
        &self.tensor_dtypes
    }

    /// Returns whether a tensor is a reference (TensorFlow 1 variables).
    pub fn tensor_is_ref(&self, tensor: TensorId) -> bool {
        self.tensor_is_ref[tensor.index()]
    }

    /// Returns the bytes of each tensor; 0 if unknown (its edges have [`EdgeKind::SIZE_UNKNOWN`]).
    pub fn tensor_bytes(&self) -> &[u64] {
        &self.tensor_bytes
    }

    /// Returns what is known of the shape of a tensor.
    pub fn tensor_shape(&self, tensor: TensorId) -> PartialShape {
        let range = self.dim_offsets[tensor.index()] as usize
            ..self.dim_offsets[tensor.index() + 1] as usize;
        match &self.dim_sizes[range] {
            [-2] => PartialShape::unknown(),
            dims => dims.iter().map(|&dim| usize::try_from(dim).ok()).collect(),
        }
    }

    /// Returns the dimensions of all tensors as (offsets, sizes): those of tensor `i` are
    /// `sizes[offsets[i]..offsets[i + 1]]`. -1 is an unknown dimension; a single -2 is an unknown
    /// rank.
    pub fn tensor_dims(&self) -> (&[u32], &[i64]) {
        (&self.dim_offsets, &self.dim_sizes)
    }

    /// Returns the floating-point operations of one execution of each node.
    pub fn flops(&self) -> &[f64] {
        &self.flops
    }

    /// Returns the bytes that one execution of each node reads and writes.
    pub fn traffic_bytes(&self) -> &[u64] {
        &self.traffic_bytes
    }

    /// Returns the bytes of parameters and other state of each node that stay on its device.
    pub fn resident_bytes(&self) -> &[u64] {
        &self.resident_bytes
    }

    /// Returns the scratch memory of one execution of each node, in bytes.
    pub fn workspace_bytes(&self) -> &[u64] {
        &self.workspace_bytes
    }

    /// Returns the function library, in file order.
    pub fn functions(&self) -> &[Function] {
        &self.functions
    }

    /// Returns the name of the function that a node comes from: the innermost one, if the node took
    /// the place of a call ([`crate::functions::lower`]).
    pub fn function_of(&self, node: NodeId) -> Option<&str> {
        let &origin = self.origins.get(node.index())?;
        let name = self.inlined.get(origin as usize)?;
        Some(name)
    }

    /// Returns the function of this name.
    pub fn find_function(&self, name: &str) -> Option<&Function> {
        let &index = self.function_ids.get(name)?;
        self.functions.get(index as usize)
    }
}
