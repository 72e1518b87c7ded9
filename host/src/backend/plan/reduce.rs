//! Reductions, positions of extremes, and scans.

use crate::backend::plan::attr::bool_attr;
use crate::backend::plan::value::indices;
use crate::backend::plan::value::scalar_index;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelError;
use crate::kernels::reduce;
use crate::kernels::reduce::Reduction;
use crate::kernels::scan::AxisView;
use crate::kernels::scan::ScanOptions;
use crate::kernels::slice::axis_index;
use crate::tensor::Shape;

/// Plans the reduction of input 0 over the axes in input 1, and returns whether the result is the
/// input with another shape.
pub(in crate::backend) fn reduction_plan(
    context: &KernelContext<'_>,
    keep_dims: bool,
) -> Result<(Reduction, bool), KernelError> {
    let (input, axes) = (context.input(0)?, context.input(1)?);
    let reduced = reduce::reduced_axes(input.shape(), &indices(axes)?)?;
    let plan = Reduction::new(input.shape(), &reduced, keep_dims);
    let mut gone = input.shape().dims().iter().zip(&reduced);
    let is_view = gone.all(|(&dim, &gone)| dim == 1 || !gone);
    Ok((plan, is_view))
}

/// Returns the axis in input 1, and the shape without it.
pub(in crate::backend) fn extreme_plan(
    context: &KernelContext<'_>,
) -> Result<(AxisView, Shape), KernelError> {
    let (input, dimension) = (context.input(0)?, context.input(1)?);
    let shape = input.shape();
    let dim = scalar_index(dimension, || {
        format!(
            "dim must be a scalar, but received tensor of shape: {}",
            dimension.shape()
        )
    })?;
    let rank = shape.rank();
    let axis = axis_index(dim, rank).ok_or_else(|| {
        KernelError::invalid(format!(
            "expected dimension in the range [-{rank}, {rank}), but got {dim} for shape {shape}"
        ))
    })?;
    if shape.dims()[axis] == 0 {
        return Err(KernelError::invalid(format!(
            "reduction axis {dim} is empty in shape {shape}"
        )));
    }
    let left = (0..rank)
        .filter(|&other| other != axis)
        .map(|other| shape.dims()[other])
        .collect();
    Ok((AxisView::new(shape, axis), left))
}

/// Returns the options of TensorFlow `Cumsum` and `Cumprod`.
pub(in crate::backend) fn scan_options(
    node: &KernelConstruction<'_>,
) -> Result<ScanOptions, KernelError> {
    Ok(ScanOptions {
        exclusive: bool_attr(node, "exclusive", false)?,
        reverse: bool_attr(node, "reverse", false)?,
    })
}

/// Returns the axis of the scan, input 1.
pub(in crate::backend) fn scan_view(context: &KernelContext<'_>) -> Result<AxisView, KernelError> {
    let (input, axis) = (context.input(0)?, context.input(1)?);
    let shape = input.shape();
    let asked = scalar_index(axis, || {
        format!("ScanOp: axis must be a scalar, not {}", axis.shape())
    })?;
    let rank = shape.rank();
    let axis = axis_index(asked, rank).ok_or_else(|| {
        KernelError::invalid(format!(
            "ScanOp: expected scan axis in the range [-{rank}, {rank}), but got {asked} for shape {shape}"
        ))
    })?;
    Ok(AxisView::new(shape, axis))
}
