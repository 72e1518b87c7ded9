//! Shape rules shared by several op families. An unknown dimension is `None`.

use super::infer::InferenceContext;
use super::infer::ShapeError;
use crate::tensor::PartialShape;

/// A dimension, if known.
pub(super) type Dim = Option<usize>;
/// Result of shape functions.
pub(super) type Shapes = Result<Vec<PartialShape>, ShapeError>;

/// The only output has the shape of input 0.
pub(super) fn same_as_input(context: &InferenceContext<'_>) -> Shapes {
    Ok(vec![context.shape(0).clone()])
}

/// Every output is a scalar.
pub(super) fn scalars(context: &InferenceContext<'_>) -> Shapes {
    Ok(vec![PartialShape::scalar(); context.n_outputs()])
}

/// Nothing is known of the outputs.
pub(super) fn unknown(context: &InferenceContext<'_>) -> Shapes {
    Ok(vec![PartialShape::unknown(); context.n_outputs()])
}

/// The shape of the only output is that of all inputs, broadcast.
pub(super) fn broadcast_inputs(context: &InferenceContext<'_>) -> Shapes {
    let mut shape = context.shape(0).clone();
    for index in 1..context.n_inputs() {
        shape = broadcast(&shape, context.shape(index))?;
    }
    Ok(vec![shape])
}

/// Broadcasts by NumPy's rule: shapes are aligned at the last dimension, and 1 repeats.
pub(super) fn broadcast(a: &PartialShape, b: &PartialShape) -> Result<PartialShape, ShapeError> {
    let (Some(x), Some(y)) = (a.dims(), b.dims()) else {
        return Ok(PartialShape::unknown());
    };
    let rank = x.len().max(y.len());
    let dim_at = |dims: &[Dim], i: usize| {
        (i + dims.len())
            .checked_sub(rank)
            .map_or(Some(1), |index| dims[index])
    };
    (0..rank)
        .map(|i| match (dim_at(x, i), dim_at(y, i)) {
            (Some(1), other) | (other, Some(1)) => Ok(other),
            (None, known) | (known, None) => Ok(known),
            (Some(p), Some(q)) if p == q => Ok(Some(p)),
            _ => Err(ShapeError::new(format!(
                "shapes {a} and {b} cannot be broadcast to each other"
            ))),
        })
        .collect()
}

/// Merges two shapes that must agree.
pub(super) fn merge(
    a: &PartialShape,
    b: &PartialShape,
    what: &str,
) -> Result<PartialShape, ShapeError> {
    a.merge(b)
        .ok_or_else(|| ShapeError::new(format!("{what} must agree; they are {a} and {b}")))
}

/// Merges two dimensions that must agree.
pub(super) fn merge_dims(a: Dim, b: Dim, what: &str) -> Result<Dim, ShapeError> {
    match (a, b) {
        (Some(a), Some(b)) if a != b => Err(ShapeError::new(format!(
            "{what} must agree; they are {a} and {b}"
        ))),
        _ => Ok(a.or(b)),
    }
}

/// Returns `axis` counted from the start; negative ones count from the end.
pub(super) fn axis_index(axis: i64, rank: usize) -> Result<usize, ShapeError> {
    let signed_rank = i64::try_from(rank).unwrap_or(i64::MAX);
    let index = if axis < 0 {
        axis.saturating_add(signed_rank)
    } else {
        axis
    };
    usize::try_from(index)
        .ok()
        .filter(|&index| index < rank)
        .ok_or_else(|| ShapeError::new(format!("axis {axis} does not exist in rank {rank}")))
}

/// Returns the sum of two dimensions.
pub(super) fn add_dims(a: Dim, b: Dim) -> Result<Dim, ShapeError> {
    combine(a, b, usize::checked_add)
}

/// Returns the product of two dimensions; a known 0 takes precedence over an unknown one.
pub(super) fn multiply_dims(a: Dim, b: Dim) -> Result<Dim, ShapeError> {
    if a == Some(0) || b == Some(0) {
        return Ok(Some(0));
    }
    combine(a, b, usize::checked_mul)
}

fn combine(
    a: Dim,
    b: Dim,
    operation: fn(usize, usize) -> Option<usize>,
) -> Result<Dim, ShapeError> {
    let (Some(a), Some(b)) = (a, b) else {
        return Ok(None);
    };
    operation(a, b).map(Some).ok_or_else(|| {
        ShapeError::new(format!(
            "the dimension computed from {a} and {b} is too large"
        ))
    })
}

/// Returns the number of elements of a shape: `None` if unknown, an error if it overflows.
pub(super) fn n_elements(dims: &[Dim]) -> Result<Dim, ShapeError> {
    dims.iter()
        .try_fold(Some(1), |product, &dim| multiply_dims(product, dim))
}

/// Converts a size from an attribute or a constant; negative ones are refused.
pub(super) fn size(value: i64, what: &str) -> Result<usize, ShapeError> {
    usize::try_from(value)
        .map_err(|_| ShapeError::new(format!("{what} is {value}, which is not a valid size")))
}
