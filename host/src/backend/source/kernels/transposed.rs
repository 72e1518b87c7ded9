//! Batched matmuls fused with transpositions of their operands or result: strides replace copies.

use crate::backend::plan::attr::bad_attr;
use crate::backend::plan::attr::bool_attr;
use crate::backend::plan::matmul;
use crate::device::KernelConstruction;
use crate::device::KernelError;
use crate::graph::AttrValue;
use crate::kernels::batch::BatchMatmul;
use crate::kernels::batch::Operand;
use crate::tensor::Shape;

/// The op of such a node. It is not a TensorFlow op and never occurs in a graph.
pub(in crate::backend::source) const OP: &str = "_FusedTransposeBatchMatMul";

/// Whether batch dimensions broadcast, as in `BatchMatMulV2`.
pub(in crate::backend::source) const BROADCASTS: &str = "broadcasts";

/// Permutations of the left side, the right side and the result; empty if nothing is transposed.
pub(in crate::backend::source) const PERMUTATIONS: [&str; 3] = ["perm_x", "perm_y", "perm_output"];

/// A permutation of the dimensions of a tensor.
pub(super) type Permutation = Vec<usize>;

/// A batched matmul, the result's shape, and the result's strides if its matrices are not
/// contiguous.
pub(super) struct Planned {
    pub(super) matmul: BatchMatmul,
    pub(super) shape: Shape,
    pub(super) out: Option<Operand>,
}

impl Planned {
    /// A result with contiguous matrices.
    pub(super) fn in_order(matmul: BatchMatmul, shape: Shape) -> Self {
        Self {
            matmul,
            shape,
            out: None,
        }
    }
}

/// The transpositions in a node's attributes.
pub(super) struct Transposes {
    is_transposed: [bool; 2],
    broadcasts: bool,
    permutations: [Permutation; 3],
}

impl Transposes {
    pub(super) fn new(node: &KernelConstruction<'_>) -> Result<Self, KernelError> {
        let permutation = |attr: &str| {
            let axes = node.attrs.list(attr).unwrap_or(&[]).iter();
            let axes = axes.map(|axis| match axis {
                AttrValue::Int(axis) => usize::try_from(*axis).ok(),
                _ => None,
            });
            let axes: Option<Permutation> = axes.collect();
            axes.filter(|axes| is_permutation(axes))
                .ok_or_else(|| bad_attr(node, attr, "permutation of the dimensions"))
        };
        let [x, y, output] = PERMUTATIONS;
        let output_permutation = permutation(output)?;
        let last = output_permutation.len().checked_sub(1);
        if output_permutation.last().copied() != last {
            return Err(bad_attr(node, output, "permutation that keeps rows"));
        }
        Ok(Self {
            is_transposed: matmul::batch_attrs(node)?.0,
            broadcasts: bool_attr(node, BROADCASTS, true)?,
            permutations: [permutation(x)?, permutation(y)?, output_permutation],
        })
    }

    /// Returns whether the right side is not permuted.
    pub(super) fn keeps_right(&self) -> bool {
        self.permutations[1].is_empty()
    }

    pub(super) fn is_right_transposed(&self) -> bool {
        self.is_transposed[1]
    }

    /// Plans the matmuls of operands of these shapes.
    pub(super) fn plan(&self, lhs: &Shape, rhs: &Shape) -> Result<Planned, KernelError> {
        let [x, y, output] = &self.permutations;
        let (transposed_lhs, transposed_rhs) = (permuted(lhs, x)?, permuted(rhs, y)?);
        let (mut matmul, shape) = matmul::batch_plan(
            &transposed_lhs,
            &transposed_rhs,
            self.is_transposed,
            self.broadcasts,
        )?;
        transpose_operand(
            &mut matmul.lhs,
            lhs,
            &transposed_lhs,
            x,
            self.is_transposed[0],
        );
        transpose_operand(
            &mut matmul.rhs,
            rhs,
            &transposed_rhs,
            y,
            self.is_transposed[1],
        );
        if output.is_empty() {
            return Ok(Planned::in_order(matmul, shape));
        }
        let transposed = permuted(&shape, output)?;
        let strides = contiguous(&transposed);
        let mut own = vec![0; strides.len()];
        for (&axis, &stride) in output.iter().zip(&strides) {
            own[axis] = stride;
        }
        let [batch @ .., row, column] = &*own else {
            return Err(KernelError::invalid("a matmul has two dimensions"));
        };
        let out = Operand {
            batch: batch.into(),
            row: *row,
            column: *column,
        };
        Ok(Planned {
            matmul,
            shape: transposed,
            out: Some(out),
        })
    }
}

/// Returns whether each axis occurs once.
pub(in crate::backend::source) fn is_permutation(axes: &[usize]) -> bool {
    (0..axes.len()).all(|axis| axes.contains(&axis))
}

/// Returns the transposed shape.
fn permuted(shape: &Shape, permutation: &[usize]) -> Result<Shape, KernelError> {
    if permutation.is_empty() {
        return Ok(shape.clone());
    }
    if permutation.len() != shape.rank() {
        return Err(KernelError::invalid(format!(
            "transpose expects a vector of size {}. But input(1) is a vector of size {}",
            shape.rank(),
            permutation.len()
        )));
    }
    Ok(permutation.iter().map(|&axis| shape.dims()[axis]).collect())
}

/// Returns row-major strides, in elements.
fn contiguous(shape: &Shape) -> Vec<usize> {
    let mut strides = vec![1usize; shape.rank()];
    for axis in (1..shape.rank()).rev() {
        strides[axis - 1] = strides[axis].saturating_mul(shape.dims()[axis]);
    }
    strides
}

/// Sets the strides of an operand to those of the tensor before its transposition.
fn transpose_operand(
    operand: &mut Operand,
    shape: &Shape,
    transposed: &Shape,
    permutation: &[usize],
    is_transposed: bool,
) {
    if permutation.is_empty() {
        return;
    }
    let own = contiguous(shape);
    let strides: Vec<usize> = permutation.iter().map(|&axis| own[axis]).collect();
    let ([batch @ .., row, column], [sizes @ .., _, _]) = (&*strides, transposed.dims()) else {
        return;
    };
    let n_missing = operand.batch.len() - batch.len();
    let axes = operand.batch[n_missing..].iter_mut();
    for (stride, (&own, &size)) in axes.zip(batch.iter().zip(sizes)) {
        *stride = if size == 1 { 0 } else { own };
    }
    (operand.row, operand.column) = if is_transposed {
        (*column, *row)
    } else {
        (*row, *column)
    };
}
