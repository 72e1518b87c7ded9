//! Concatenation and splitting along an axis.

use smallvec::SmallVec;

use crate::backend::plan::product;
use crate::backend::plan::value::integers;
use crate::backend::plan::value::scalar;
use crate::device::KernelContext;
use crate::device::KernelError;
use crate::kernels::slice::axis_index;
use crate::tensor::Shape;
use crate::tensor::Tensor;

/// The values to concatenate.
pub(in crate::backend) struct ConcatPlan<'a> {
    pub(in crate::backend) values: SmallVec<[&'a Tensor; 8]>,
    pub(in crate::backend) shape: Shape,
    pub(in crate::backend) axis: usize,
    /// Number of elements per index of the axis: the product of the dimensions after it.
    pub(in crate::backend) inner: usize,
}

/// Returns the inputs to concatenate. TensorFlow `Concat` takes the axis as the first input,
/// `ConcatV2` as the last one.
pub(in crate::backend) fn concat_plan<'a>(
    context: &'a KernelContext<'_>,
    axis_is_first: bool,
) -> Result<ConcatPlan<'a>, KernelError> {
    let n_values = context.n_inputs().saturating_sub(1);
    let axis = context.input(if axis_is_first { 0 } else { n_values })?;
    let values = context
        .inputs()
        .skip(usize::from(axis_is_first))
        .take(n_values)
        .collect::<SmallVec<[&Tensor; 8]>>();
    let Some(first) = values.first() else {
        return Err(KernelError::invalid("nothing to concatenate"));
    };
    let (axis, shape) = concat_shape(&values, scalar(axis, "concat dim tensor")?)?;
    let inner = product(&first.shape().dims()[axis + 1..]);
    Ok(ConcatPlan {
        values,
        shape,
        axis,
        inner,
    })
}

/// Returns the axis and the shape of the concatenated values.
fn concat_shape(values: &[&Tensor], axis: i64) -> Result<(usize, Shape), KernelError> {
    let first = values[0].shape();
    let rank = first.rank();
    let at = axis_index(axis, rank).ok_or_else(|| {
        KernelError::invalid(format!(
            "ConcatOp : expected concatenating dimensions in the range [-{rank}, {rank}), but got {axis}"
        ))
    })?;
    let mut dims: SmallVec<[usize; 6]> = first.dims().into();
    dims[at] = 0;
    for (index, value) in values.iter().enumerate() {
        let shape = value.shape();
        if shape.rank() != rank {
            return Err(KernelError::invalid(format!(
                "ConcatOp : ranks of all input tensors should match: shape[0] = {first} vs. shape[{index}] = {shape}"
            )));
        }
        for (other, &dim) in shape.dims().iter().enumerate() {
            if other != at && dim != first.dims()[other] {
                return Err(KernelError::invalid(format!(
                    "ConcatOp : dimension {other} in both shapes must be equal: shape[0] = {first} vs. shape[{index}] = {shape}"
                )));
            }
        }
        dims[at] = dims[at].saturating_add(shape.dims()[at]);
    }
    Ok((at, Shape::new(&dims)))
}

/// The axis along which a value is split, and the sizes of its parts.
pub(in crate::backend) type SplitPlan = (usize, SmallVec<[usize; 8]>);

/// TensorFlow `Split`: splits input 1 into equal parts.
pub(in crate::backend) fn split_plan(
    context: &KernelContext<'_>,
) -> Result<SplitPlan, KernelError> {
    let value = context.input(1)?;
    let axis = split_axis(scalar(context.input(0)?, "split_dim")?, value.shape())?;
    let (whole, n) = (value.shape().dims()[axis], context.n_outputs());
    if n == 0 || !whole.is_multiple_of(n) {
        return Err(KernelError::invalid(format!(
            "number of ways to split should evenly divide the split dimension, but got split_dim {axis} (size = {whole}) and num_split {n}"
        )));
    }
    Ok((axis, SmallVec::from_elem(whole / n, n)))
}

/// TensorFlow `SplitV`: splits input 0 into parts of given sizes, one of which may be -1.
pub(in crate::backend) fn split_v_plan(
    context: &KernelContext<'_>,
) -> Result<SplitPlan, KernelError> {
    let (value, lengths) = (context.input(0)?, context.input(1)?);
    let axis = match integers(context.input(2)?)?[..] {
        [axis] => split_axis(axis, value.shape())?,
        _ => {
            return Err(KernelError::invalid(
                "split_dim_tensor must have exactly one element",
            ));
        }
    };
    if lengths.shape().dims() != [context.n_outputs()] {
        return Err(KernelError::invalid(format!(
            "size of the split_tensor must be 1-D and have the same elements as outputs: {} for {} outputs",
            lengths.shape(),
            context.n_outputs()
        )));
    }
    let sizes = sizes(&integers(lengths)?, value.shape().dims()[axis])?;
    Ok((axis, sizes))
}

fn split_axis(axis: i64, shape: &Shape) -> Result<usize, KernelError> {
    axis_index(axis, shape.rank()).ok_or_else(|| {
        KernelError::invalid(format!(
            "-input rank(-{}) <= split_dim < input rank ({}), but got {axis}",
            shape.rank(),
            shape.rank()
        ))
    })
}

/// Returns the sizes of the parts; their sum is `whole`.
fn sizes(wanted: &[i64], whole: usize) -> Result<SmallVec<[usize; 8]>, KernelError> {
    if wanted.iter().filter(|&&size| size == -1).count() > 1 {
        return Err(KernelError::invalid(
            "there can only be one -1 in the input",
        ));
    }
    let mut known = 0usize;
    for (index, &size) in wanted.iter().enumerate().filter(|&(_, &size)| size != -1) {
        let size = usize::try_from(size).map_err(|_| {
            KernelError::invalid(format!(
                "split size at index {index} must be >= 0. Got: {size}"
            ))
        })?;
        known = known.saturating_add(size);
    }
    let rest = whole.checked_sub(known);
    match rest {
        Some(rest) if rest == 0 || wanted.contains(&-1) => Ok(wanted
            .iter()
            .map(|&size| usize::try_from(size).unwrap_or(rest))
            .collect()),
        _ => Err(KernelError::invalid(format!(
            "determined shape must either match input shape along split_dim exactly if fully specified, or be less than the size of the input along split_dim if not fully specified. Got: {known} of {whole}"
        ))),
    }
}
