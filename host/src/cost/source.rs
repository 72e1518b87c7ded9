//! Where costs come from besides the rates of devices, and what identifies the work of a node.

use std::fmt;
use std::hash::Hash;
use std::hash::Hasher;
use std::sync::Arc;

use rustc_hash::FxHasher;

use crate::device::Device;
use crate::graph::AttrSet;
use crate::graph::AttrValue;
use crate::graph::Graph;
use crate::graph::NONE;
use crate::graph::NodeId;
use crate::graph::TensorId;
use crate::tensor::DType;
use crate::tensor::PartialShape;

/// Constants of so many bytes stay in the second-level cache of a core, 1 or 2 MiB on today's
/// servers, beside the tensors of a run.
const HOT_BYTES_MAX: u64 = 512 << 10;

/// What is known of the time of one execution.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prediction {
    /// The expected time, in ns.
    pub ns: f64,
    /// The standard deviation of single executions, in ns; 0 if unknown.
    pub spread_ns: f64,
    /// Number of measurements behind it; 0 for an estimate.
    pub samples: u32,
}

/// A source of costs that is asked before the rates of devices are used: measurements
/// ([`super::History`]), or an app's own model.
///
/// ```
/// use std::sync::Arc;
///
/// use placewright::cost::{CostSource, KernelCosts, NodeWork, Prediction};
/// use placewright::device::Device;
///
/// /// Matmuls on this accelerator take as long as its data sheet says.
/// #[derive(Debug)]
/// struct DataSheet;
///
/// impl CostSource for DataSheet {
///     fn of_device(&self, device: &dyn Device) -> Option<Arc<dyn KernelCosts>> {
///         let is_known = device.attributes().device_type == "NPU";
///         is_known.then(|| Arc::new(Self) as Arc<dyn KernelCosts>)
///     }
/// }
///
/// impl KernelCosts for DataSheet {
///     fn predict(&self, work: &NodeWork<'_>) -> Option<Prediction> {
///         let ns = 900.0 + work.flops() / 26e3;
///         (work.op() == "MatMul").then_some(Prediction { ns, spread_ns: 0.0, samples: 0 })
///     }
/// }
/// ```
pub trait CostSource: fmt::Debug + Send + Sync {
    /// Returns the name of the source, for people.
    fn name(&self) -> &str {
        "app"
    }

    /// Returns what the source knows of a device; `None` if it knows nothing of it. Called once
    /// per placement and device.
    fn of_device(&self, device: &dyn Device) -> Option<Arc<dyn KernelCosts>>;
}

/// The costs of kernels on one device.
pub trait KernelCosts: fmt::Debug + Send + Sync {
    /// Returns the time of one execution of a node; `None` if it is unknown. A time that is
    /// negative or not a number counts as unknown.
    fn predict(&self, work: &NodeWork<'_>) -> Option<Prediction>;
}

/// The work of a node: what its time on a device depends on.
#[derive(Debug, Clone, Copy)]
pub struct NodeWork<'a> {
    graph: &'a Graph,
    node: NodeId,
    key: WorkKey,
    /// Bytes of the graph's constants.
    constant_bytes: u64,
}

impl<'a> NodeWork<'a> {
    /// Returns the op.
    pub fn op(&self) -> &'a str {
        self.graph.op(self.node)
    }

    /// Returns the attributes.
    pub fn attrs(&self) -> &'a AttrSet {
        self.graph.attrs(self.node)
    }

    /// Returns types and known shapes of the data inputs, in slot order.
    pub fn inputs(&self) -> impl Iterator<Item = (DType, PartialShape)> + use<'a> {
        let graph = self.graph;
        graph
            .data_inputs(self.node)
            .map(move |tensor| typed(graph, tensor))
    }

    /// Returns the number of elements in the rows of the output that a kernel computes at one time:
    /// all, if the inputs have the same shape; 0 if it is unknown.
    pub(super) fn row_len(&self) -> usize {
        let Some((_, shape)) = self.outputs().next() else {
            return 0;
        };
        let Some(dims) = shape.dims() else {
            return 0;
        };
        let is_whole = self.inputs().all(|(_, input)| input == shape);
        let n_rows = if is_whole {
            0
        } else {
            dims.len().saturating_sub(1)
        };
        let mut row = dims[n_rows..].iter();
        row.try_fold(1usize, |n, dim| Some(n.saturating_mul((*dim)?)))
            .unwrap_or(0)
    }

    /// Returns types and known shapes of the outputs, in slot order.
    pub fn outputs(&self) -> impl Iterator<Item = (DType, PartialShape)> + use<'a> {
        let (graph, node) = (self.graph, self.node);
        let outputs = (0..).map_while(move |slot| graph.output(node, slot));
        outputs.map(move |tensor| typed(graph, tensor))
    }

    /// Returns the floating-point operations of one execution.
    pub fn flops(&self) -> f64 {
        self.graph.flops()[self.node.index()]
    }

    /// Returns the bytes that one execution reads and writes.
    pub fn traffic_bytes(&self) -> u64 {
        self.graph.traffic_bytes()[self.node.index()]
    }

    /// Returns whether devices compute the node at the end of the matmul or convolution before it:
    /// its bias, or the activation behind that.
    pub(super) fn is_epilogue(&self) -> bool {
        let graph = self.graph;
        let before = |node: NodeId| {
            let (before, _) = graph.producer(graph.data_inputs(node).next()?);
            (graph.successors().row(before.index()).len() == 1).then_some(before)
        };
        let is_op = |node: Option<NodeId>, ops: &[&str]| {
            node.is_some_and(|node| ops.contains(&graph.op(node)))
        };
        const PRODUCTS: [&str; 2] = ["MatMul", "Conv2D"];
        match self.op() {
            "BiasAdd" => is_op(before(self.node), &PRODUCTS),
            "Relu" | "Relu6" => {
                let bias = before(self.node);
                is_op(bias, &["BiasAdd"]) && is_op(bias.and_then(before), &PRODUCTS)
            }
            _ => false,
        }
    }

    /// Returns whether all constants of the graph stay in the cache of a core between runs.
    pub(super) fn has_hot_weights(&self) -> bool {
        self.constant_bytes <= HOT_BYTES_MAX
    }

    /// Returns the producers of the data inputs, in slot order.
    pub(super) fn producers(&self) -> impl Iterator<Item = NodeWork<'a>> + use<'a> {
        let own = *self;
        own.graph
            .data_inputs(own.node)
            .map(move |tensor| own.other(own.graph.producer(tensor).0))
    }

    /// Returns whether nodes read its outputs, and this holds for all of them.
    pub(super) fn all_readers(&self, mut holds: impl FnMut(&NodeWork<'_>) -> bool) -> bool {
        let readers = self.graph.successors().row(self.node.index());
        let mut works = readers.iter().map(|&reader| self.other(NodeId(reader)));
        !readers.is_empty() && works.all(|work| holds(&work))
    }

    /// Returns whether this holds for the producer of its input, which nothing else reads.
    pub(super) fn is_behind(&self, holds: impl FnOnce(&NodeWork<'_>) -> bool) -> bool {
        let graph = self.graph;
        let Some(tensor) = graph.data_inputs(self.node).next() else {
            return false;
        };
        let (before, _) = graph.producer(tensor);
        graph.successors().row(before.index()).len() == 1 && holds(&self.other(before))
    }

    /// The work of another node, without a key of its own.
    fn other(&self, node: NodeId) -> Self {
        Self { node, ..*self }
    }

    pub(super) fn node(&self) -> NodeId {
        self.node
    }

    /// Returns a key that no other node has, except by chance together with equal work.
    pub(crate) fn unique_key(&self) -> u64 {
        let mut hasher = FxHasher::default();
        (self.key.0, self.node.0).hash(&mut hasher);
        hasher.finish()
    }

    /// Returns what identifies the work.
    pub fn key(&self) -> WorkKey {
        self.key
    }
}

fn typed(graph: &Graph, tensor: TensorId) -> (DType, PartialShape) {
    (
        graph.tensor_dtypes()[tensor.index()],
        graph.tensor_shape(tensor),
    )
}

/// Identifies the work of a node, as a hash: its op, its attributes except those that only name
/// something, types and known shapes of its inputs, and its neighbours' ops, which decide what is
/// fused with it. Stable between processes of one build.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkKey(pub(super) u64);

impl WorkKey {
    /// Returns the hash.
    pub fn as_u64(self) -> u64 {
        self.0
    }
}

/// The keys of a graph's nodes. Hashes attributes once per class of nodes.
#[derive(Debug)]
pub struct WorkKeys<'a> {
    graph: &'a Graph,
    /// Per op its hash.
    ops: Vec<u64>,
    /// Per class the hash of op and attributes, once it is known.
    classes: Vec<Option<u64>>,
    constant_bytes: u64,
}

impl<'a> WorkKeys<'a> {
    /// Prepares the keys of a graph.
    pub fn of(graph: &'a Graph) -> Self {
        let hash_of = |op: &str| {
            let mut hasher = FxHasher::default();
            op.hash(&mut hasher);
            hasher.finish()
        };
        let constants = graph.nodes().filter(|&node| graph.op(node) == "Const");
        let bytes = constants.map(|node| graph.resident_bytes()[node.index()]);
        Self {
            graph,
            constant_bytes: bytes.fold(0, u64::saturating_add),
            ops: graph.op_names().iter().map(|op| hash_of(op)).collect(),
            classes: vec![None; graph.classes().len()],
        }
    }

    /// Returns the work of a node.
    ///
    /// # Panics
    /// If there is no such node.
    pub fn work(&mut self, node: NodeId) -> NodeWork<'a> {
        let graph = self.graph;
        let mut hasher = FxHasher::default();
        self.class_hash(node).hash(&mut hasher);
        let (offsets, sizes) = graph.tensor_dims();
        for tensor in graph.data_inputs(node) {
            let index = tensor.index();
            graph.tensor_dtypes()[index].hash(&mut hasher);
            sizes[offsets[index] as usize..offsets[index + 1] as usize].hash(&mut hasher);
        }
        let [before, after] = self.neighbours(node);
        (before, after).hash(&mut hasher);
        NodeWork {
            graph,
            node,
            key: WorkKey(hasher.finish()),
            constant_bytes: self.constant_bytes,
        }
    }

    fn class_hash(&mut self, node: NodeId) -> u64 {
        let id = self.graph.class_ids()[node.index()] as usize;
        if let Some(known) = self.classes[id] {
            return known;
        }
        let class = &self.graph.classes()[id];
        let mut hasher = FxHasher::default();
        self.ops[class.op as usize].hash(&mut hasher);
        for (name, value) in class.attrs.iter() {
            let only_names = name.starts_with('_') || matches!(name, "shared_name" | "container");
            // Constants are hashed by their address, which differs in each process.
            if !only_names && !matches!(value, AttrValue::Tensor(_)) {
                (name, value).hash(&mut hasher);
            }
        }
        let hash = hasher.finish();
        self.classes[id] = Some(hash);
        hash
    }

    /// Returns the hash of the op before the node, if the node is the only reader of its first
    /// input, and of the op after it, if that is the only reader of the node; 0 for others.
    /// Devices fuse nodes along such edges.
    fn neighbours(&self, node: NodeId) -> [u64; 2] {
        let graph = self.graph;
        let op_of = |node: u32| self.ops[graph.op_types()[node as usize] as usize];
        let is_read_once = |node: u32| graph.successors().row(node as usize).len() == 1;
        let first = graph.predecessors().range(node.index()).next();
        let first = first.filter(|&edge| graph.edge_tensors()[edge] != NONE);
        let before = first.map(|edge| graph.predecessors().items[edge]);
        let before = before
            .filter(|&before| is_read_once(before))
            .map_or(0, op_of);
        let after = match graph.successors().row(node.index()) {
            &[after] => op_of(after),
            _ => 0,
        };
        [before, after]
    }
}
