//! The computation of a fused function.

use std::sync::Arc;

use smallvec::SmallVec;

use super::INPUTS_MAX;
use crate::backend::plan::nn;
use crate::backend::source::kernels::binary;
use crate::backend::source::kernels::unary;
use crate::device::KernelConstruction;
use crate::device::KernelError;
use crate::graph::AttrSet;
use crate::graph::AttrValue;
use crate::kernels::spread::common_shape;
use crate::tensor::DType;
use crate::tensor::Shape;

/// Names of the steps' ops, as in TensorFlow's fused ops.
const FUSED_OPS: &str = "fused_ops";

/// Operands of all steps, concatenated. Inputs are numbered from 0; results follow.
const OPERANDS: &str = "operands";

/// Number of inputs.
const NUM_ARGS: &str = "num_args";

/// The operation of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Function {
    /// A function of unary.c or unary_real.c, applied to each element.
    Unary(&'static str),
    /// A function of binary.c, of operands that are broadcast to one shape.
    Binary(&'static str),
    /// Adds a number per column.
    Bias,
    /// One number per row, whose dimension is kept with size 1: a reducer of reducers.h.
    Row(&'static str),
}

impl Function {
    /// Returns what nodes of an op compute in single precision, if that can be a part of a fused
    /// function. The node's attributes decide the rest.
    pub(super) fn of(op: &str) -> Option<Self> {
        Some(match op {
            "BiasAdd" => Self::Bias,
            "Sum" => Self::Row("sum"),
            "Mean" => Self::Row("mean"),
            "Max" => Self::Row("maximum"),
            "Min" => Self::Row("minimum"),
            _ => match (unary::function_of_lanes(op), binary::function_of_lanes(op)) {
                (Some(name), _) => Self::Unary(name),
                (None, Some(name)) => Self::Binary(name),
                (None, None) => return None,
            },
        })
    }

    /// Returns whether computing it again costs more than writing and reading its result.
    pub(super) fn is_costly(self) -> bool {
        let cheap = [
            "relu",
            "relu6",
            "neg",
            "square",
            "sign_of",
            "abs_real",
            "floor_",
            "ceil_",
            "rint_",
            "sqrt_",
            "rsqrt_",
            "reciprocal",
        ];
        match self {
            Self::Unary(name) => !cheap.contains(&name),
            Self::Binary(name) => matches!(name, "power" | "angle" | "truncate_mod"),
            Self::Bias | Self::Row(_) => false,
        }
    }

    pub(super) fn n_operands(self) -> usize {
        match self {
            Self::Unary(_) | Self::Row(_) => 1,
            Self::Binary(_) | Self::Bias => 2,
        }
    }
}

/// A step; its result is that of one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) op: Arc<str>,
    pub(super) function: Function,
    /// Inputs, or results of earlier steps, which are numbered after the inputs.
    pub(super) operands: SmallVec<[usize; 2]>,
}

/// Steps in order; the last one's result is that of the function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Expression {
    pub(super) n_inputs: usize,
    pub(super) steps: Vec<Step>,
}

impl Expression {
    /// Returns the node attributes that encode it.
    pub(super) fn attrs(&self, dtype: DType) -> AttrSet {
        let int = |n: usize| AttrValue::Int(i64::try_from(n).unwrap_or(i64::MAX));
        let ops = self.steps.iter().map(|step| AttrValue::from(&*step.op));
        let operands = self.steps.iter().flat_map(|step| &step.operands);
        AttrSet::new([
            (
                "T".into(),
                AttrValue::Type {
                    dtype,
                    is_ref: false,
                },
            ),
            (NUM_ARGS.into(), int(self.n_inputs)),
            (FUSED_OPS.into(), AttrValue::List(ops.collect())),
            (
                OPERANDS.into(),
                AttrValue::List(operands.map(|&n| int(n)).collect()),
            ),
        ])
    }

    /// Decodes the attributes of a node.
    pub(super) fn of(node: &KernelConstruction<'_>) -> Result<Self, KernelError> {
        Self::from_attrs(node.attrs).ok_or_else(|| {
            KernelError::invalid(format!(
                "attributes {NUM_ARGS}, {FUSED_OPS} and {OPERANDS} of {} are not a valid expression: {:?}",
                node.op, node.attrs
            ))
        })
    }

    fn from_attrs(attrs: &AttrSet) -> Option<Self> {
        let n_inputs = usize::try_from(attrs.int(NUM_ARGS)?).ok()?;
        let mut operands = attrs.list(OPERANDS)?.iter().map(|operand| match operand {
            AttrValue::Int(n) => usize::try_from(*n).ok(),
            _ => None,
        });
        let mut steps: Vec<Step> = Vec::new();
        for op in attrs.list(FUSED_OPS)? {
            let AttrValue::Bytes(op) = op else {
                return None;
            };
            let op = std::str::from_utf8(op).ok()?;
            let function = Function::of(op)?;
            let n_values = n_inputs + steps.len();
            let own = operands.by_ref().take(function.n_operands());
            let own: SmallVec<[usize; 2]> = own.collect::<Option<_>>()?;
            if own.len() != function.n_operands() || own.iter().any(|&value| value >= n_values) {
                return None;
            }
            steps.push(Step {
                op: op.into(),
                function,
                operands: own,
            });
        }
        let is_whole = operands.next().is_none() && !steps.is_empty() && n_inputs <= INPUTS_MAX;
        is_whole.then_some(Self { n_inputs, steps })
    }

    pub(super) fn has_rows(&self) -> bool {
        let mut steps = self.steps.iter();
        steps.any(|step| matches!(step.function, Function::Row(_)))
    }

    /// Returns the shape of the result for inputs of these shapes.
    ///
    /// # Errors
    /// [`KernelError::InvalidArgument`] if shapes do not match, or if a reduced value has rows of
    /// another length than the result.
    pub(super) fn shape(&self, inputs: &[&Shape]) -> Result<Shape, KernelError> {
        let mut shapes: Vec<Shape> = inputs.iter().map(|&shape| shape.clone()).collect();
        let mut reduced = Vec::new();
        for step in &self.steps {
            let operand = |index: usize| &shapes[step.operands[index]];
            let shape = match step.function {
                Function::Unary(_) => operand(0).clone(),
                Function::Binary(_) => common_shape(&[operand(0), operand(1)])
                    .map_err(|error| KernelError::invalid(format!("{}: {error}", step.op)))?,
                Function::Bias => {
                    let x = operand(0);
                    nn::bias_axis(x, operand(1), false)?;
                    x.clone()
                }
                Function::Row(_) => {
                    let mut dims = operand(0).dims().to_vec();
                    let Some(last) = dims.last_mut() else {
                        return Err(KernelError::invalid(
                            "a tensor without dimensions has no rows to reduce",
                        ));
                    };
                    reduced.push(*last);
                    *last = 1;
                    Shape::new(&dims)
                }
            };
            shapes.push(shape);
        }
        let shape = shapes.pop().unwrap_or_else(Shape::scalar);
        let width = shape.dims().last().copied();
        if let Some(other) = reduced.into_iter().find(|&other| Some(other) != width) {
            return Err(KernelError::invalid(format!(
                "rows of {other} elements are reduced within a result of shape {shape}, which the graph's shapes exclude"
            )));
        }
        Ok(shape)
    }
}
