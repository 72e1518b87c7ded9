//! The graph itself.

use std::fmt;
use std::sync::Arc;

use hashbrown::HashMap;

use serde::Serialize;

use super::attr::AttrSet;
use super::function::Function;
use crate::names::NameArena;
use crate::names::Strings;
use crate::tensor::{DType, PartialShape};

/// Absent, in columns of indices.
pub const NONE: u32 = u32::MAX;

/// A node, `0..graph.n_nodes()`, in TensorFlow's import order: every edge but a loop's back edge
/// leads to a larger id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct NodeId(pub u32);

/// An output of a node, `0..graph.n_tensors()`; the outputs of one node are consecutive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TensorId(pub u32);

impl NodeId {
    /// As an index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl TensorId {
    /// As an index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Rows of different lengths: row `i` is `items[offsets[i]..offsets[i + 1]]`.
#[derive(Debug, Clone)]
pub struct Csr {
    /// Where each row starts, and the end.
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
    /// Row `index`.
    ///
    /// # Panics
    /// If there is none.
    pub fn row(&self, index: usize) -> &[u32] {
        &self.items[self.range(index)]
    }

    /// Positions of row `index` in `items`.
    ///
    /// # Panics
    /// If there is none.
    pub fn range(&self, index: usize) -> std::ops::Range<usize> {
        self.offsets[index] as usize..self.offsets[index + 1] as usize
    }

    /// The row that position `position` of `items` belongs to; binary search.
    ///
    /// # Panics
    /// If there is no such position.
    pub fn row_of(&self, position: usize) -> usize {
        assert!(position < self.items.len(), "the position is one of items");
        // Rows may be empty, so several may start at one position; the last of them has it.
        let starts = self
            .offsets
            .partition_point(|&start| start as usize <= position);
        starts - 1
    }

    /// Number of rows.
    pub fn n_rows(&self) -> usize {
        self.offsets.len() - 1
    }
}

/// What an edge is, as bits.
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
    /// Of a node that does not run ([`Graph::is_preloaded`]): no run waits for it or moves anything
    /// for it.
    pub const PRELOADED: u8 = 16;
}

/// What nodes of the same op with the same attributes share; kernels are looked up once per class.
#[derive(Debug, Clone)]
pub struct NodeClass {
    /// Index into [`Graph::op_names`].
    pub op: u32,
    /// The attributes.
    pub attrs: AttrSet,
    /// Whether the op keeps state, so that running it twice differs from running it once.
    pub stateful: bool,
}

/// A data input that closes a loop: the producer stands later than its consumer, so it is no part
/// of [`Graph::predecessors`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackEdge {
    /// The producer, in TensorFlow's loops a `NextIteration`.
    pub from: NodeId,
    /// The tensor.
    pub tensor: TensorId,
    /// The consumer, in TensorFlow's loops a `Merge`.
    pub to: NodeId,
    /// Which data input of the consumer it is, back edges counted.
    pub input: u32,
}

/// A dataflow graph, in columns. Made by [`super::GraphAssembler`], which checks it; immutable
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
    pub(super) requested_texts: Vec<Box<str>>,
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
    pub(super) is_checked: bool,
    pub(super) sinkless: Vec<NodeId>,
    pub(super) preloaded: Vec<bool>,
}

impl Graph {
    /// Nodes without successors that TensorFlow's graph does not connect to its sink: those that
    /// were added after it was read. Ascending.
    pub(crate) fn sinkless(&self) -> &[NodeId] {
        &self.sinkless
    }

    /// Whether what a node gives is there before a run begins, on every device that reads it: a
    /// placeholder, which the caller feeds, and a constant that waits for nothing else. Such a
    /// node does not run.
    ///
    /// # Panics
    /// If there is no such node.
    pub fn is_preloaded(&self, node: NodeId) -> bool {
        self.preloaded[node.index()]
    }

    /// Whether a node is a placeholder: it is never executed, but fed.
    pub(crate) fn is_placeholder(&self, node: NodeId) -> bool {
        matches!(self.op(node), "Placeholder" | "PlaceholderV2")
    }

    /// Name for reports: the file's, or what the app said.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether every node was held to the definition of its op when it was added: graphs of the
    /// graph builder and the importer. What a [`super::GraphAssembler`] puts together may
    /// contain anything.
    pub fn is_checked(&self) -> bool {
        self.is_checked
    }

    /// Number of nodes.
    pub fn n_nodes(&self) -> usize {
        self.op.len()
    }

    /// Number of edges, back edges not counted.
    pub fn n_edges(&self) -> usize {
        self.predecessors.items.len()
    }

    /// Number of tensors.
    pub fn n_tensors(&self) -> usize {
        self.tensor_nodes.len()
    }

    /// All nodes, in order.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the assembler refuses more than u32::MAX - 1 nodes"
    )]
    pub fn nodes(&self) -> impl ExactSizeIterator<Item = NodeId> + DoubleEndedIterator + use<> {
        (0..self.n_nodes() as u32).map(NodeId)
    }

    /// Name of a node.
    pub fn node_name(&self, node: NodeId) -> &str {
        self.node_names.names().get(node.index())
    }

    /// Names of all nodes.
    pub fn node_names(&self) -> &Strings {
        self.node_names.names()
    }

    /// The node of this name.
    pub fn find_node(&self, name: &str) -> Option<NodeId> {
        self.node_names.find(name).map(NodeId)
    }

    /// Op of a node.
    pub fn op(&self, node: NodeId) -> &str {
        &self.op_names[self.op[node.index()] as usize]
    }

    /// Op of every node, as an index into [`Self::op_names`].
    pub fn op_types(&self) -> &[u32] {
        &self.op
    }

    /// The distinct ops.
    pub fn op_names(&self) -> &[Box<str>] {
        &self.op_names
    }

    /// Class of every node, as an index into [`Self::classes`].
    pub fn class_ids(&self) -> &[u32] {
        &self.class
    }

    /// The distinct (op, attributes) pairs.
    pub fn classes(&self) -> &[NodeClass] {
        &self.classes
    }

    /// Class of a node.
    pub fn class(&self, node: NodeId) -> &NodeClass {
        &self.classes[self.class[node.index()] as usize]
    }

    /// Attributes of a node.
    pub fn attrs(&self, node: NodeId) -> &AttrSet {
        &self.class(node).attrs
    }

    /// Requested device of a node, as the graph wrote it; empty where none.
    pub fn requested(&self, node: NodeId) -> &str {
        &self.requested_texts[self.requested[node.index()] as usize]
    }

    /// Requested device of every node, as an index into [`Self::requested_texts`].
    pub fn requested_ids(&self) -> &[u32] {
        &self.requested
    }

    /// The distinct requested devices; the empty text is one.
    pub fn requested_texts(&self) -> &[Box<str>] {
        &self.requested_texts
    }

    /// Producers of every node: data inputs in slot order, then control inputs.
    pub fn predecessors(&self) -> &Csr {
        &self.predecessors
    }

    /// Consumers of every node, in node order; one entry per edge.
    pub fn successors(&self) -> &Csr {
        &self.successors
    }

    /// For each position in `successors().items` its edge: the position in `predecessors().items`.
    pub fn successor_edges(&self) -> &[u32] {
        &self.successor_edges
    }

    /// Tensor that each edge carries, [`NONE`] for control; indexed as `predecessors().items`.
    pub fn edge_tensors(&self) -> &[u32] {
        &self.edge_tensors
    }

    /// [`EdgeKind`] bits of each edge.
    pub fn edge_kinds(&self) -> &[u8] {
        &self.edge_kinds
    }

    /// (from, to) pairs of loop back edges, flattened; not part of [`Self::predecessors`].
    pub fn back_edges(&self) -> &[u32] {
        &self.back_edges
    }

    /// Back edges that carry a tensor, by consumer and input.
    pub fn back_inputs(&self) -> &[BackEdge] {
        &self.back_inputs
    }

    /// The back edges into a node, by input.
    pub fn back_inputs_of(&self, node: NodeId) -> &[BackEdge] {
        let start = self.back_inputs.partition_point(|edge| edge.to < node);
        let rest = &self.back_inputs[start..];
        &rest[..rest.partition_point(|edge| edge.to == node)]
    }

    /// The data inputs of a node in slot order, back edges included: what an executor wires.
    pub fn all_data_inputs(&self, node: NodeId) -> Vec<TensorId> {
        let mut inputs: Vec<_> = self.data_inputs(node).collect();
        for edge in self.back_inputs_of(node) {
            inputs.insert((edge.input as usize).min(inputs.len()), edge.tensor);
        }
        inputs
    }

    /// The data inputs of a node, in slot order; back edges, which only loops have, are left out.
    pub fn data_inputs(&self, node: NodeId) -> impl Iterator<Item = TensorId> + '_ {
        self.predecessors
            .range(node.index())
            .map(|edge| self.edge_tensors[edge])
            .take_while(|&tensor| tensor != NONE)
            .map(TensorId)
    }

    /// Output `slot` of a node.
    pub fn output(&self, node: NodeId, slot: usize) -> Option<TensorId> {
        let range = self.output_range(node);
        let id = range.start + slot;
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the assembler refuses more than u32::MAX - 1 tensors"
        )]
        (id < range.end).then_some(TensorId(id as u32))
    }

    /// The outputs of a node, as positions in the tensor columns.
    pub fn output_range(&self, node: NodeId) -> std::ops::Range<usize> {
        self.tensor_offsets[node.index()] as usize..self.tensor_offsets[node.index() + 1] as usize
    }

    /// Producing node of each tensor.
    pub fn tensor_nodes(&self) -> &[u32] {
        &self.tensor_nodes
    }

    /// The node that makes a tensor, and which of its outputs it is.
    pub fn producer(&self, tensor: TensorId) -> (NodeId, usize) {
        let node = NodeId(self.tensor_nodes[tensor.index()]);
        (
            node,
            tensor.index() - self.tensor_offsets[node.index()] as usize,
        )
    }

    /// `node:slot`.
    pub fn tensor_name(&self, tensor: TensorId) -> String {
        let (node, slot) = self.producer(tensor);
        format!("{}:{slot}", self.node_name(node))
    }

    /// Element type of each tensor.
    pub fn tensor_dtypes(&self) -> &[DType] {
        &self.tensor_dtypes
    }

    /// Whether a tensor is a reference (TensorFlow 1 variables).
    pub fn tensor_is_ref(&self, tensor: TensorId) -> bool {
        self.tensor_is_ref[tensor.index()]
    }

    /// Bytes of each tensor; 0 where unknown (its edges have [`EdgeKind::SIZE_UNKNOWN`]).
    pub fn tensor_bytes(&self) -> &[u64] {
        &self.tensor_bytes
    }

    /// What is known of the shape of a tensor.
    pub fn tensor_shape(&self, tensor: TensorId) -> PartialShape {
        let range = self.dim_offsets[tensor.index()] as usize
            ..self.dim_offsets[tensor.index() + 1] as usize;
        match &self.dim_sizes[range] {
            [-2] => PartialShape::unknown(),
            dims => dims.iter().map(|&dim| usize::try_from(dim).ok()).collect(),
        }
    }

    /// Dimensions of tensor `i` are `sizes[offsets[i]..offsets[i + 1]]`: (offsets, sizes). -1 =
    /// unknown dimension; a single -2 = unknown rank.
    pub fn tensor_dims(&self) -> (&[u32], &[i64]) {
        (&self.dim_offsets, &self.dim_sizes)
    }

    /// Floating-point operations of one execution of each node.
    pub fn flops(&self) -> &[f64] {
        &self.flops
    }

    /// Bytes that one execution of each node reads and writes.
    pub fn traffic_bytes(&self) -> &[u64] {
        &self.traffic_bytes
    }

    /// Parameters and other state of each node that stays on its device, in bytes.
    pub fn resident_bytes(&self) -> &[u64] {
        &self.resident_bytes
    }

    /// Scratch memory of one execution of each node, in bytes.
    pub fn workspace_bytes(&self) -> &[u64] {
        &self.workspace_bytes
    }

    /// The function library, in file order.
    pub fn functions(&self) -> &[Function] {
        &self.functions
    }

    /// The function of this name.
    pub fn find_function(&self, name: &str) -> Option<&Function> {
        let &index = self.function_ids.get(name)?;
        self.functions.get(index as usize)
    }
}
