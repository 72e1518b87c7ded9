//! Scatters: the slices that indices select for writing.

use crate::backend::plan::gather::place;
use crate::backend::plan::gather::starts_of;
use crate::device::KernelContext;
use crate::device::KernelError;
use crate::kernels::Scratch;
use crate::kernels::Threads;
use crate::tensor::Shape;
use crate::tensor::Tensor;

/// The slices of the result that updates are written to.
pub(in crate::backend) struct ScatterPlan {
    /// Start of each slice; [`crate::kernels::gather::NOWHERE`] for an ignored bad index.
    pub(in crate::backend) starts: Scratch<usize>,
    /// Elements per slice.
    pub(in crate::backend) size: usize,
}

/// Plans TensorFlow `ScatterNd` and `TensorScatterUpdate` into a result of shape `shape`. Indices
/// of rank 1 are rows of one element.
pub(in crate::backend) fn scatter_plan(
    context: &KernelContext<'_>,
    indices: &Tensor,
    updates: &Shape,
    shape: &Shape,
    ignores_bad: bool,
) -> Result<ScatterPlan, KernelError> {
    let dims = shape.dims();
    let (rows, depth) = match indices.shape().dims() {
        [] => {
            return Err(KernelError::invalid(
                "indices shape must have rank at least one, found: []",
            ));
        }
        [n] => (std::slice::from_ref(n), 1),
        [rows @ .., depth] => (rows, *depth),
    };
    if dims.is_empty() {
        return Err(KernelError::invalid(
            "output must be at least 1-D, got shape: []",
        ));
    }
    let [n_indices, n_updates] = [indices.shape().n_elements(), updates.n_elements()];
    if (n_indices > 0 || n_updates > 0) && [n_indices, n_updates, shape.n_elements()].contains(&0) {
        return Err(KernelError::invalid(format!(
            "indices and updates specified for empty output. indices shape: {}, updates shape: \
             {updates}, output shape: {shape}",
            indices.shape()
        )));
    }
    let fits = dims.get(depth..).is_some_and(|rest| {
        updates.dims().len() == rows.len() + rest.len()
            && updates.dims().starts_with(rows)
            && updates.dims().ends_with(rest)
    });
    if !fits {
        return Err(KernelError::invalid(format!(
            "updates of shape {updates} do not match indices of shape {} into shape {shape}: \
             expected the dimensions of indices without the last, and then those of the output \
             after the first {depth}",
            indices.shape()
        )));
    }
    let n_rows = if n_indices == 0 {
        0
    } else {
        Shape::new(rows).n_elements()
    };
    let starts = Threads::of(context).scratch(n_rows)?;
    let found = dispatch!(indices.dtype(), [I16: i16, U16: u16, I32: i32, I64: i64], I => {
        Ok(starts_of(indices.as_slice::<I>()?, depth, dims, ignores_bad, starts))
    })?;
    let starts = found.map_err(|(row, index)| {
        KernelError::invalid(format!(
            "indices{} = {index} does not index into shape {shape}",
            place(rows, row)
        ))
    })?;
    let size = Shape::new(&dims[depth..]).n_elements();
    Ok(ScatterPlan { starts, size })
}

/// Plans TensorFlow `ResourceScatterUpdate` and its like: each index is a row of the variable, or
/// the element of a scalar. Updates may be a scalar.
pub(in crate::backend) fn rows_plan(
    context: &KernelContext<'_>,
    indices: &Tensor,
    updates: &Shape,
    shape: &Shape,
) -> Result<ScatterPlan, KernelError> {
    let (&n_rows, row) = shape.dims().split_first().unwrap_or((&1, &[]));
    let n_indices = indices.shape().n_elements();
    let fits = updates.rank() == 0
        || n_indices == 0 && updates.n_elements() == 0
        || updates.dims().len() == indices.shape().rank() + row.len()
            && updates.dims().starts_with(indices.shape().dims())
            && updates.dims().ends_with(row);
    if !fits {
        return Err(KernelError::invalid(format!(
            "updates must have shape indices.shape + params.shape[1:] or [], got updates.shape \
             {updates}, indices.shape {}, params.shape {shape}",
            indices.shape()
        )));
    }
    let size = Shape::new(row).n_elements();
    let starts = Threads::of(context).scratch(n_indices)?;
    let found = dispatch!(indices.dtype(), [I32: i32, I64: i64], I => {
        Ok(starts_of(indices.as_slice::<I>()?, 1, &[n_rows], false, starts))
    })?;
    let mut starts = found.map_err(|(at, index)| {
        KernelError::invalid(format!(
            "indices{} = {} is not in [0, {n_rows})",
            place(indices.shape().dims(), at),
            index.trim_matches(['[', ']'])
        ))
    })?;
    starts.iter_mut().for_each(|start| *start *= size);
    Ok(ScatterPlan { starts, size })
}
