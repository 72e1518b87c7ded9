//! Matmuls, batched matmuls and einsum.

use smallvec::SmallVec;

use crate::backend::plan::attr::bad_attr;
use crate::backend::plan::attr::bool_attr;
use crate::backend::plan::product;
use crate::device::KernelConstruction;
use crate::device::KernelError;
use crate::kernels::batch::BatchMatmul;
use crate::kernels::batch::Operand;
use crate::kernels::einsum::Equation;
use crate::tensor::Shape;

/// Returns which operands `MatMul` transposes.
pub(in crate::backend) fn matmul_attrs(
    node: &KernelConstruction<'_>,
) -> Result<(bool, bool), KernelError> {
    Ok((
        bool_attr(node, "transpose_a", false)?,
        bool_attr(node, "transpose_b", false)?,
    ))
}

/// Returns `[m, k, n]` of a `MatMul` of operands of these shapes.
pub(in crate::backend) fn matmul_size(
    a: &Shape,
    b: &Shape,
    transpose: (bool, bool),
) -> Result<[usize; 3], KernelError> {
    let (&[a_rows, a_columns], &[b_rows, b_columns]) = (a.dims(), b.dims()) else {
        return Err(KernelError::invalid(format!(
            "both inputs must be matrices: In[0]: {a}, In[1]: {b}"
        )));
    };
    let view_of = |rows, columns, is_transposed| {
        if is_transposed {
            (columns, rows)
        } else {
            (rows, columns)
        }
    };
    let (m, k) = view_of(a_rows, a_columns, transpose.0);
    let (inner, n) = view_of(b_rows, b_columns, transpose.1);
    if k != inner {
        return Err(KernelError::invalid(format!(
            "matrix size-incompatible: In[0]: {a}, In[1]: {b}, transpose_a: {}, transpose_b: {}",
            transpose.0, transpose.1
        )));
    }
    Ok([m, k, n])
}

/// Returns which operands are transposed, and whether batches broadcast.
pub(in crate::backend) fn batch_attrs(
    node: &KernelConstruction<'_>,
) -> Result<([bool; 2], bool), KernelError> {
    let transposed = [
        bool_attr(node, "adj_x", false)?,
        bool_attr(node, "adj_y", false)?,
    ];
    Ok((transposed, node.op != "BatchMatMul"))
}

/// Plans the matmuls of operands of these shapes, and returns the result's shape.
pub(in crate::backend) fn batch_plan(
    lhs: &Shape,
    rhs: &Shape,
    transposed: [bool; 2],
    broadcasts: bool,
) -> Result<(BatchMatmul, Shape), KernelError> {
    let ([l_batch @ .., l_rows, l_columns], [r_batch @ .., r_rows, r_columns]) =
        (lhs.dims(), rhs.dims())
    else {
        return Err(KernelError::invalid(format!(
            "In[0] and In[1] ndims must be >= 2: {lhs}, {rhs}"
        )));
    };
    if !broadcasts && l_batch != r_batch {
        return Err(KernelError::invalid(format!(
            "In[0] and In[1] must have the same batch dimensions: {lhs} vs. {rhs}"
        )));
    }
    let side = |rows: usize, columns: usize, transposed: bool| {
        if transposed {
            ([columns, rows], [1, columns])
        } else {
            ([rows, columns], [columns, 1])
        }
    };
    let ([m, k], l_strides) = side(*l_rows, *l_columns, transposed[0]);
    let ([r_inner, n], r_strides) = side(*r_rows, *r_columns, transposed[1]);
    if k != r_inner {
        return Err(KernelError::invalid(format!(
            "matrix size-incompatible: In[0]: {lhs}, In[1]: {rhs}, adj_x: {}, adj_y: {}",
            transposed[0], transposed[1]
        )));
    }
    let rank = l_batch.len().max(r_batch.len());
    let mut plan = BatchMatmul {
        batch: SmallVec::from_elem(1, rank),
        size: [m, k, n],
        lhs: Operand {
            batch: SmallVec::from_elem(0, rank),
            row: l_strides[0],
            column: l_strides[1],
        },
        rhs: Operand {
            batch: SmallVec::from_elem(0, rank),
            row: r_strides[0],
            column: r_strides[1],
        },
    };
    let dim = |dims: &[usize], axis: usize| {
        (axis + dims.len())
            .checked_sub(rank)
            .map_or(1, |own| dims[own])
    };
    let (mut l_span, mut r_span) = (product(&[m, k]), product(&[k, n]));
    for axis in (0..rank).rev() {
        let (l, r) = (dim(l_batch, axis), dim(r_batch, axis));
        plan.batch[axis] = match (l, r) {
            _ if l == r => l,
            (1, _) => r,
            (_, 1) => l,
            _ => {
                return Err(KernelError::invalid(format!(
                    "In[0] and In[1] must have compatible batch dimensions: {lhs} vs. {rhs}"
                )));
            }
        };
        if l != 1 {
            plan.lhs.batch[axis] = l_span;
        }
        if r != 1 {
            plan.rhs.batch[axis] = r_span;
        }
        l_span = l_span.saturating_mul(l);
        r_span = r_span.saturating_mul(r);
    }
    let shape = plan.batch.iter().copied().chain([m, n]).collect();
    Ok((plan, shape))
}

/// Returns the equation of an `Einsum`.
pub(in crate::backend) fn equation(node: &KernelConstruction<'_>) -> Result<Equation, KernelError> {
    let text = node
        .attrs
        .text("equation")
        .ok_or_else(|| bad_attr(node, "equation", "string"))?;
    Equation::parse(text)
}
