//! Reads the nodes of a partition as expressions.

use smallvec::SmallVec;

use crate::device::PartitionGraph;
use crate::graph::IDENTITY;
use crate::graph::NodeId;
use crate::graph::TensorId;
use crate::ops::IntTensor;
use crate::tensor::HostAllocator;
use crate::tensor::PartialShape;

/// Bytes for a constant of few elements.
const CONSTANT_BYTES: u64 = 4096;

/// Data input `.1` of node `.0`.
pub(super) type Edge = (NodeId, usize);

/// A factor of a product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Factor {
    /// What an input reads.
    Value(Edge),
    /// One by the square root of what an input reads.
    InverseRoot(Edge),
}

/// A product of constants and other factors.
#[derive(Debug, Clone)]
pub(super) struct Product {
    pub(super) constant: f64,
    pub(super) factors: SmallVec<[Factor; 4]>,
}

impl Product {
    /// No factors.
    fn one() -> Self {
        Self {
            constant: 1.0,
            factors: SmallVec::new(),
        }
    }
}

/// The nodes of a partition as expressions. Nodes that pass on their input are skipped.
#[derive(Debug, Clone, Copy)]
pub(super) struct Expressions<'e, 'g>(pub(super) &'e PartitionGraph<'g>);

impl<'g> Expressions<'_, 'g> {
    /// Returns the op of a node; sums have one name.
    pub(super) fn op(self, node: NodeId) -> &'g str {
        match self.0.graph().op(node) {
            "Add" => "AddV2",
            op => op,
        }
    }

    /// Returns the input behind nodes that pass it on.
    fn behind(self, edge: Edge) -> Edge {
        let mut edge = edge;
        while let Some((node, 0)) = self.0.input_node(edge.0, edge.1)
            && matches!(self.0.graph().op(node), IDENTITY | "StopGradient")
        {
            edge = (node, 0);
        }
        edge
    }

    /// Returns the node of the partition whose first output an input reads.
    pub(super) fn node(self, edge: Edge) -> Option<NodeId> {
        let edge = self.behind(edge);
        match self.0.input_node(edge.0, edge.1)? {
            (node, 0) => Some(node),
            _ => None,
        }
    }

    /// Returns that node, if it has this op, with its inputs.
    pub(super) fn unary(self, edge: Edge, op: &str) -> Option<Edge> {
        let node = self.node(edge)?;
        (self.op(node) == op).then_some((node, 0))
    }

    /// Returns both inputs of that node, if it has this op.
    pub(super) fn binary(self, edge: Edge, op: &str) -> Option<[Edge; 2]> {
        let node = self.node(edge)?;
        (self.op(node) == op).then_some([(node, 0), (node, 1)])
    }

    /// Returns the same in both orders.
    pub(super) fn commuted(self, edge: Edge, op: &str) -> Option<[[Edge; 2]; 2]> {
        let [a, b] = self.binary(edge, op)?;
        Some([[a, b], [b, a]])
    }

    /// Returns the tensor that an input reads.
    pub(super) fn tensor(self, edge: Edge) -> Option<TensorId> {
        let (node, index) = self.behind(edge);
        self.0.graph().data_inputs(node).nth(index)
    }

    pub(super) fn is_same(self, a: Edge, b: Edge) -> bool {
        self.tensor(a).is_some() && self.tensor(a) == self.tensor(b)
    }

    /// Returns the shape of what an input reads, as far as it is known.
    pub(super) fn shape(self, edge: Edge) -> PartialShape {
        let tensor = self.tensor(edge);
        tensor.map_or_else(PartialShape::unknown, |it| self.0.graph().tensor_shape(it))
    }

    /// Returns the shape of a node's first output.
    pub(super) fn result(self, node: NodeId) -> PartialShape {
        let tensor = self.0.graph().output(node, 0);
        tensor.map_or_else(PartialShape::unknown, |it| self.0.graph().tensor_shape(it))
    }

    /// Returns the only element of a `float` constant.
    pub(super) fn constant(self, edge: Edge) -> Option<f32> {
        let literal = self.0.constant_input(edge.0, edge.1)?;
        if literal.shape().n_elements() != 1 {
            return None;
        }
        let tensor = literal
            .to_tensor(&HostAllocator::new("a constant", CONSTANT_BYTES))
            .ok()?;
        tensor.as_slice::<f32>().ok()?.first().copied()
    }

    /// Returns whether a constant is about this number: graphs have numbers of several digits.
    pub(super) fn is_constant(self, edge: Edge, number: f64) -> bool {
        self.constant(edge)
            .is_some_and(|it| (f64::from(it) - number).abs() <= number.abs() * 1e-6)
    }

    /// Returns whether a reduction keeps all dimensions and reduces the last one, which an input
    /// reads.
    pub(super) fn reduces_last(self, node: NodeId) -> bool {
        let rank = self.shape((node, 0)).rank();
        let axes = self.0.constant_input(node, 1);
        let axes = axes.and_then(|it| IntTensor::from_literal(it)?.to_ints());
        let last = rank
            .and_then(|rank| i64::try_from(rank).ok())
            .map(|it| it - 1);
        let is_last = |axis: i64| Some(axis) == last || (axis == -1 && last.is_some());
        self.0.graph().attrs(node).bool("keep_dims") == Some(true)
            && matches!(axes.as_deref(), Some(&[axis]) if is_last(axis))
    }

    /// Returns what an input reads as a product. Other products that it contains are factors if
    /// several nodes read them.
    pub(super) fn product(self, edge: Edge) -> Product {
        let mut product = Product::one();
        self.multiply(&mut product, edge, true);
        product
    }

    /// Returns the result of a `Mul` or `RealDiv` as a product.
    pub(super) fn product_of(self, node: NodeId) -> Product {
        let mut product = Product::one();
        match (self.op(node), self.constant((node, 1))) {
            ("RealDiv", Some(divisor)) => product.constant /= f64::from(divisor),
            ("RealDiv", None) => return product,
            _ => self.multiply(&mut product, (node, 1), false),
        }
        self.multiply(&mut product, (node, 0), false);
        product
    }

    /// Multiplies a product by what an input reads.
    fn multiply(self, product: &mut Product, edge: Edge, is_first: bool) {
        let mut left: SmallVec<[(Edge, bool); 4]> = SmallVec::from_slice(&[(edge, is_first)]);
        while let Some((edge, is_first)) = left.pop() {
            if let Some(constant) = self.constant(edge) {
                product.constant *= f64::from(constant);
                continue;
            }
            let reader = self.behind(edge).0;
            let node = self
                .node(edge)
                .filter(|&node| is_first || self.0.is_read_only_by(node, reader));
            let Some(node) = node else {
                product.factors.push(self.factor(edge));
                continue;
            };
            match self.op(node) {
                "Mul" => left.extend([((node, 1), false), ((node, 0), false)]),
                "RealDiv" if self.constant((node, 1)).is_some() => {
                    product.constant /= f64::from(self.constant((node, 1)).unwrap_or(1.0));
                    left.push(((node, 0), false));
                }
                "RealDiv" if self.unary((node, 1), "Sqrt").is_some() => {
                    let root = self.unary((node, 1), "Sqrt");
                    product.factors.extend(root.map(Factor::InverseRoot));
                    left.push(((node, 0), false));
                }
                _ => product.factors.push(self.factor(edge)),
            }
        }
    }

    fn factor(self, edge: Edge) -> Factor {
        match self.unary(edge, "Rsqrt") {
            Some(root) => Factor::InverseRoot(root),
            None => Factor::Value(edge),
        }
    }

    /// Returns the nodes that compute `last` from these inputs and constants, in topological order.
    pub(super) fn nodes_between(self, inputs: &[Edge], last: NodeId) -> Vec<NodeId> {
        let inputs: SmallVec<[Option<TensorId>; 4]> =
            inputs.iter().map(|&edge| self.tensor(edge)).collect();
        let mut nodes = vec![last];
        let mut next = 0;
        while let Some(&node) = nodes.get(next) {
            next += 1;
            for (index, tensor) in self.0.graph().data_inputs(node).enumerate() {
                if let Some((from, _)) = self.0.input_node(node, index)
                    && !inputs.contains(&Some(tensor))
                    && self.0.graph().op(from) != "Const"
                    && !nodes.contains(&from)
                {
                    nodes.push(from);
                }
            }
        }
        nodes.sort_unstable();
        nodes
    }
}
