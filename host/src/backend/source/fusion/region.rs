//! Chooses the nodes that are computed together.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use rustc_hash::FxHashSet;
use smallvec::SmallVec;

use super::INPUTS_MAX;
use super::OP;
use super::RANK_MAX;
use super::constant_ints;
use super::expression::Expression;
use super::expression::Function;
use super::expression::Step;
use super::kernel::TYPES;
use crate::backend::source::call::width;
use crate::device::ComputeTraits;
use crate::device::FusedNode;
use crate::device::PartitionGraph;
use crate::device::ProcessorKind;
use crate::graph::NodeId;
use crate::graph::TensorId;
use crate::tensor::DType;
use crate::tensor::PartialShape;

/// Maximum number of nodes of a region, to limit compile times.
const NODES_MAX: usize = 64;

/// Maximum number of reductions of a region. The operands of each are computed again.
const ROWS_MAX: usize = 4;

/// Maximum number of elements of a reduced row that one core, or one multiprocessor, processes.
/// Outside a region, a long row is divided among all of them.
const REDUCED_MAX_CPU: usize = 8192;
const REDUCED_MAX_GPU: usize = 4096;

/// Minimum number of elements of a row that keeps enough work items of a GPU's group busy, if rows
/// are reduced and if they are not.
const REDUCED_MIN_GPU: usize = 32;
const WIDTH_MIN_GPU: usize = 128;

/// Replaces regions of elementwise nodes, and of row reductions whose results such nodes read, by
/// one kernel each.
///
/// The results are the same as those of the separate nodes: the same functions run in the same
/// order, and on CPUs sums of up to 1,024 elements have the same order, too. Differences remain if
/// a driver's vector form of a function differs from its scalar form, and in the order of other
/// sums.
pub(super) fn fuse(graph: &mut PartitionGraph<'_>, traits: &ComputeTraits) {
    let limits = Limits::of(traits);
    let nodes: Vec<NodeId> = graph.nodes().collect();
    let order: FxHashMap<NodeId, usize> = nodes.iter().copied().zip(0..).collect();
    // Starts at the end: a region contains everything that only its root needs.
    for &root in nodes.iter().rev() {
        if let Some(fused) =
            Region::around(graph, limits, root).and_then(|region| region.fused(&order))
        {
            // Fails if a node is stateful, for example.
            let _ = graph.fuse(fused);
        }
    }
}

/// Lengths of rows that a device processes efficiently.
#[derive(Debug, Clone, Copy)]
struct Limits {
    reduced_min: usize,
    reduced_max: usize,
    width_min: usize,
}

impl Limits {
    fn of(traits: &ComputeTraits) -> Self {
        match traits.kind {
            // The remainder of a row after its last whole vector is loaded element by element.
            ProcessorKind::Cpu => Self {
                reduced_min: width(traits),
                reduced_max: REDUCED_MAX_CPU,
                width_min: width(traits),
            },
            ProcessorKind::Gpu => Self {
                reduced_min: REDUCED_MIN_GPU,
                reduced_max: REDUCED_MAX_GPU,
                width_min: WIDTH_MIN_GPU,
            },
        }
    }
}

/// The role of a node in a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Computes(Function),
    /// TensorFlow `Softmax` or `LogSoftmax`: several steps.
    Softmax {
        is_logarithm: bool,
    },
    /// The result is the operand.
    Passes,
}

impl Role {
    /// Returns `None` if the node cannot be part of a region, whatever the shapes.
    fn of(graph: &PartitionGraph<'_>, node: NodeId, dtype: DType) -> Option<Self> {
        let all = graph.graph();
        let (op, attrs) = (all.op(node), all.attrs(node));
        let role = match op {
            "Identity" | "StopGradient" | "PreventGradient" | "Snapshot" => Self::Passes,
            "Softmax" | "LogSoftmax" => Self::Softmax {
                is_logarithm: op == "LogSoftmax",
            },
            _ => Self::Computes(Function::of(op)?),
        };
        let is_as_needed = match role {
            Self::Computes(Function::Bias) => {
                matches!(attrs.text("data_format"), None | Some("NHWC"))
            }
            Self::Computes(Function::Row(_)) => {
                attrs.bool("keep_dims") == Some(true) && reduces_rows(graph, node)
            }
            _ => true,
        };
        // Not fused if an app has replaced the kernel.
        let is_ours = attrs.dtype("T") == Some(dtype) && graph.has_plain_kernel(node);
        (is_as_needed && is_ours && !graph.is_replaced(node)).then_some(role)
    }

    fn n_operands(self) -> usize {
        match self {
            Self::Computes(function) => function.n_operands(),
            Self::Softmax { .. } | Self::Passes => 1,
        }
    }

    /// Returns whether computing it again costs more than writing and reading its result.
    fn is_costly(self) -> bool {
        match self {
            Self::Computes(function) => function.is_costly(),
            Self::Softmax { .. } => true,
            Self::Passes => false,
        }
    }

    /// Returns the number of passes over a row before the result is known.
    fn n_rows(self) -> usize {
        match self {
            Self::Computes(Function::Row(_)) => 1,
            Self::Softmax { .. } => 2,
            Self::Computes(_) | Self::Passes => 0,
        }
    }
}

/// Returns whether a node is a reduction over the last dimension in every run.
fn reduces_rows(graph: &PartitionGraph<'_>, node: NodeId) -> bool {
    let Some(rank) = shape_of_input(graph, node, 0).and_then(|shape| shape.rank()) else {
        return false;
    };
    let axes = constant_ints(graph, node, 1);
    let Some(&[axis]) = axes.as_deref() else {
        return false;
    };
    let last = i64::try_from(rank).unwrap_or(i64::MAX) - 1;
    rank > 0 && (axis == -1 || axis == last)
}

fn input(graph: &PartitionGraph<'_>, node: NodeId, index: usize) -> Option<TensorId> {
    graph.graph().data_inputs(node).nth(index)
}

fn shape_of_input(graph: &PartitionGraph<'_>, node: NodeId, index: usize) -> Option<PartialShape> {
    input(graph, node, index).map(|tensor| graph.graph().tensor_shape(tensor))
}

/// Nodes whose results only the region reads, except the root's.
struct Region<'g, 'a> {
    graph: &'g PartitionGraph<'a>,
    root: NodeId,
    dtype: DType,
    /// The dimensions of the root, whose rank is known.
    dims: SmallVec<[Option<usize>; 4]>,
    nodes: FxHashMap<NodeId, Role>,
    n_rows: usize,
    /// Nodes that a reduction needs, which are therefore computed in several passes.
    reduced: FxHashSet<NodeId>,
    limits: Limits,
}

impl<'g, 'a> Region<'g, 'a> {
    /// Returns the largest region whose result is that of `root`, if the root computes anything.
    fn around(graph: &'g PartitionGraph<'a>, limits: Limits, root: NodeId) -> Option<Self> {
        let all = graph.graph();
        let dtype = all.attrs(root).dtype("T");
        let dtype = dtype.filter(|dtype| TYPES.contains(dtype))?;
        let role = Role::of(graph, root, dtype)?;
        if matches!(role, Role::Passes | Role::Computes(Function::Row(_))) {
            return None;
        }
        let shape = all.tensor_shape(all.output(root, 0)?);
        let dims = shape.dims().filter(|dims| dims.len() <= RANK_MAX)?;
        let mut region = Self {
            graph,
            root,
            dtype,
            dims: dims.into(),
            nodes: FxHashMap::from_iter([(root, role)]),
            n_rows: role.n_rows(),
            reduced: FxHashSet::default(),
            limits,
        };
        if region.n_rows > 0 && !region.has_its_rows(root) {
            return None;
        }
        region.grow();
        Some(region)
    }

    fn grow(&mut self) {
        let mut refused = FxHashSet::default();
        // A node may join once all of its readers have joined.
        let mut waiting = vec![self.root];
        while let Some(reader) = waiting.pop() {
            for index in 0..self.nodes[&reader].n_operands() {
                let Some((node, _)) = self.graph.input_node(reader, index) else {
                    continue;
                };
                if self.nodes.contains_key(&node) || refused.contains(&node) {
                    continue;
                }
                let needed_inside = self
                    .graph
                    .is_needed_only_by(node, |other| self.nodes.contains_key(&other));
                if !needed_inside || self.nodes.len() == NODES_MAX {
                    // Its other readers may still join, and will then reach it.
                    continue;
                }
                if self.take(node) {
                    waiting.push(node);
                } else {
                    refused.insert(node);
                }
            }
        }
    }

    /// Adds a node, unless it does not belong to the region.
    fn take(&mut self, node: NodeId) -> bool {
        let Some(role) = Role::of(self.graph, node, self.dtype) else {
            return false;
        };
        let n_rows = role.n_rows();
        let is_too_much = self.n_rows + n_rows > ROWS_MAX || !self.has_its_rows(node);
        if !self.fits(node) || n_rows > 0 && is_too_much {
            return false;
        }
        let is_reduced = self.is_reduced(node);
        if is_reduced && role.is_costly() && !self.is_one_per_row(node) {
            return false;
        }
        self.nodes.insert(node, role);
        if self.inputs().len() > INPUTS_MAX {
            self.nodes.remove(&node);
            return false;
        }
        if is_reduced {
            self.reduced.insert(node);
        }
        self.n_rows += n_rows;
        true
    }

    /// Returns whether a reduction needs a node's result, directly or indirectly.
    fn is_reduced(&self, node: NodeId) -> bool {
        let mut readers = self.nodes.iter().filter(|(reader, role)| {
            let mut operands = 0..role.n_operands();
            operands.any(|index| {
                let maker = self.graph.input_node(**reader, index);
                maker.is_some_and(|(maker, _)| maker == node)
            })
        });
        readers.any(|(reader, role)| role.n_rows() > 0 || self.reduced.contains(reader))
    }

    fn is_one_per_row(&self, node: NodeId) -> bool {
        let all = self.graph.graph();
        let shape = all.output(node, 0).map(|output| all.tensor_shape(output));
        shape.is_some_and(|shape| shape.dims().and_then(<[_]>::last) == Some(&Some(1)))
    }

    /// Returns whether a node has as many elements as the root, or one per row, as far as that is
    /// known. Values with fewer elements should not be computed repeatedly.
    fn fits(&self, node: NodeId) -> bool {
        let all = self.graph.graph();
        let Some(output) = all.output(node, 0) else {
            return false;
        };
        let shape = all.tensor_shape(output);
        let Some(dims) = shape.dims().filter(|dims| dims.len() <= self.dims.len()) else {
            return false;
        };
        let n_missing = self.dims.len() - dims.len();
        let own = std::iter::repeat_n(&Some(1), n_missing).chain(dims);
        let last = self.dims.len().saturating_sub(1);
        let mut pairs = own.zip(&self.dims).enumerate();
        pairs.all(|(axis, (own, dim))| own == dim || axis == last && *own == Some(1))
    }

    /// Returns whether the rows that a node reduces are as long as the root's.
    fn has_its_rows(&self, node: NodeId) -> bool {
        let shape = shape_of_input(self.graph, node, 0);
        let width = shape.and_then(|shape| shape.dims()?.last().copied().flatten());
        let own = self.dims.last().copied().flatten();
        let lengths = self.limits.reduced_min..=self.limits.reduced_max;
        width.is_some_and(|width| lengths.contains(&width)) && width == own
    }

    /// Returns the tensors from outside the region, with their readers.
    fn inputs(&self) -> FxHashMap<TensorId, (NodeId, usize)> {
        let mut inputs = FxHashMap::default();
        for (&node, role) in &self.nodes {
            for index in 0..role.n_operands() {
                if let Some(tensor) = self.outside(node, index) {
                    inputs.insert(tensor, (node, index));
                }
            }
        }
        inputs
    }

    /// Returns the tensor of an operand if it comes from outside.
    fn outside(&self, node: NodeId, index: usize) -> Option<TensorId> {
        let maker = self.graph.input_node(node, index);
        let is_inside = maker.is_some_and(|(maker, _)| self.nodes.contains_key(&maker));
        input(self.graph, node, index).filter(|_| !is_inside)
    }

    /// Returns the region as one node, if fusing it pays off.
    fn fused(&self, order: &FxHashMap<NodeId, usize>) -> Option<FusedNode> {
        let mut nodes: Vec<NodeId> = self.nodes.keys().copied().collect();
        nodes.sort_by_key(|node| order.get(node));
        // Inputs in the order in which they are read, so that equal regions have equal programs.
        let mut inputs: Vec<(TensorId, (NodeId, usize))> = Vec::new();
        for &node in &nodes {
            for index in 0..self.nodes[&node].n_operands() {
                if let Some(tensor) = self.outside(node, index)
                    && !inputs.iter().any(|(known, _)| *known == tensor)
                {
                    inputs.push((tensor, (node, index)));
                }
            }
        }
        let mut values: FxHashMap<NodeId, usize> = FxHashMap::default();
        let mut steps = Steps {
            n_inputs: inputs.len(),
            steps: Vec::new(),
        };
        for &node in &nodes {
            let role = self.nodes[&node];
            let operands = (0..role.n_operands()).map(|index| match self.outside(node, index) {
                Some(tensor) => inputs.iter().position(|(known, _)| *known == tensor),
                None => {
                    let (maker, _) = self.graph.input_node(node, index)?;
                    values.get(&maker).copied()
                }
            });
            let operands: SmallVec<[usize; 2]> = operands.collect::<Option<_>>()?;
            let value = match role {
                Role::Passes => operands[0],
                Role::Softmax { is_logarithm } => steps.softmax(operands[0], is_logarithm)?,
                Role::Computes(_) => steps.push(self.graph.graph().op(node), &operands)?,
            };
            values.insert(node, value);
        }
        let n_computing = self.nodes.values().filter(|role| **role != Role::Passes);
        if n_computing.count() < 2 || !self.is_worth_rows(&inputs) {
            return None;
        }
        let Steps { n_inputs, steps } = steps;
        let expression = Expression { n_inputs, steps };
        Some(FusedNode {
            op: OP.to_owned(),
            attrs: expression.attrs(self.dtype),
            inputs: inputs.into_iter().map(|(_, input)| input).collect(),
            nodes,
        })
    }

    /// Returns whether rows are long enough. There is a single row if all inputs have one shape or
    /// are scalars. Rows that are reduced must be long.
    fn is_worth_rows(&self, inputs: &[(TensorId, (NodeId, usize))]) -> bool {
        let all = self.graph.graph();
        let width = self.dims.last();
        let is_long = width.is_some_and(|width| width.is_none_or(|n| n >= self.limits.width_min));
        is_long
            || self.n_rows > 0
            || inputs.iter().all(|&(tensor, _)| {
                let shape = all.tensor_shape(tensor);
                let dims = shape.dims();
                dims.is_some_and(|dims| {
                    *dims == *self.dims || dims.iter().all(|dim| *dim == Some(1))
                })
            })
    }
}

/// The steps of an expression, in the order of discovery.
struct Steps {
    n_inputs: usize,
    steps: Vec<Step>,
}

impl Steps {
    /// Adds the computation of an op, and returns the number of its value.
    fn push(&mut self, op: &str, operands: &[usize]) -> Option<usize> {
        self.steps.push(Step {
            op: Arc::from(op),
            function: Function::of(op)?,
            operands: operands.into(),
        });
        Some(self.n_inputs + self.steps.len() - 1)
    }

    /// Adds `e^(x - max) / sum`, or its logarithm.
    fn softmax(&mut self, x: usize, is_logarithm: bool) -> Option<usize> {
        let largest = self.push("Max", &[x])?;
        let below = self.push("Sub", &[x, largest])?;
        let power = self.push("Exp", &[below])?;
        let sum = self.push("Sum", &[power])?;
        if is_logarithm {
            let logarithm = self.push("Log", &[sum])?;
            return self.push("Sub", &[below, logarithm]);
        }
        let factor = self.push("Reciprocal", &[sum])?;
        self.push("Mul", &[power, factor])
    }
}
