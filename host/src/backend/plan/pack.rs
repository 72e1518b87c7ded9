//! Stacking along a new axis, and unstacking.

use smallvec::SmallVec;

use crate::backend::plan::product;
use crate::device::KernelContext;
use crate::device::KernelError;
use crate::kernels::slice::axis_index;
use crate::tensor::Shape;

/// Returns the shape of the stacked tensor, and the number of adjacent elements of an input that
/// stay adjacent.
pub(in crate::backend) fn pack_plan(
    context: &KernelContext<'_>,
    axis: i64,
) -> Result<(Shape, usize), KernelError> {
    let first = context.input(0)?.shape();
    for (index, other) in context.inputs().enumerate() {
        if other.shape() != first {
            return Err(KernelError::invalid(format!(
                "shapes of all inputs must match: values[0].shape = {first} != values[{index}].shape = {}",
                other.shape()
            )));
        }
    }
    let rank = first.rank() + 1;
    let axis = axis_index(axis, rank).ok_or_else(|| {
        KernelError::invalid(format!(
            "axis = {axis} not in [-{rank}, {rank}), packing values of shape {first}"
        ))
    })?;
    let mut dims: SmallVec<[usize; 8]> = SmallVec::from_slice(first.dims());
    dims.insert(axis, context.n_inputs());
    let inner = product(&first.dims()[axis..]);
    Ok((Shape::new(&dims), inner))
}

/// Returns the shape of each part, the number of adjacent input elements that stay adjacent, and
/// the number of parts.
pub(in crate::backend) fn unpack_plan(
    context: &KernelContext<'_>,
    axis: i64,
    n_parts: i64,
) -> Result<(Shape, usize, usize), KernelError> {
    let shape = context.input(0)?.shape();
    let rank = shape.rank();
    let axis = axis_index(axis, rank).ok_or_else(|| {
        KernelError::invalid(format!(
            "axis = {axis} not in [-{rank}, {rank}), unpacking a value of shape {shape}"
        ))
    })?;
    let n = shape.dims()[axis];
    if usize::try_from(n_parts) != Ok(n) {
        return Err(KernelError::invalid(format!(
            "input shape axis {axis} must equal {n_parts}, got shape {shape}"
        )));
    }
    let mut dims: SmallVec<[usize; 8]> = SmallVec::from_slice(shape.dims());
    dims.remove(axis);
    Ok((Shape::new(&dims), product(&shape.dims()[axis + 1..]), n))
}
