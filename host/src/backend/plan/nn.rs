//! Biases and softmax.

use smallvec::SmallVec;

use crate::backend::plan::attr::string_attr;
use crate::device::KernelConstruction;
use crate::device::KernelError;
use crate::kernels::Broadcast;
use crate::tensor::Shape;

/// Returns whether attribute `data_format` puts the channels before rows and columns.
pub(in crate::backend) fn channels_first(
    node: &KernelConstruction<'_>,
) -> Result<bool, KernelError> {
    match string_attr(node, "data_format", "NHWC")? {
        "NHWC" => Ok(false),
        "NCHW" => Ok(true),
        other => Err(KernelError::invalid(format!(
            "attribute `data_format` is `{other}`; expected `NHWC` or `NCHW`"
        ))),
    }
}

/// Plans how a bias is broadcast to a value; the result has the value's shape.
pub(in crate::backend) fn bias_plan(
    value: &Shape,
    bias: &Shape,
    channels_first: bool,
) -> Result<Broadcast, KernelError> {
    let axis = bias_axis(value, bias, channels_first)?;
    let mut aligned: SmallVec<[usize; 4]> = SmallVec::from_elem(1, value.rank() - axis);
    aligned[0] = value.dims()[axis];
    Broadcast::new(value, &Shape::new(&aligned))
}

/// Returns the axis of the value to which the bias applies; the bias has one element per index.
pub(in crate::backend) fn bias_axis(
    value: &Shape,
    bias: &Shape,
    channels_first: bool,
) -> Result<usize, KernelError> {
    if value.rank() < 2 {
        return Err(KernelError::invalid(format!(
            "input tensor must be at least 2D: {value}, with biases {bias}"
        )));
    }
    let &[n_biases] = bias.dims() else {
        return Err(KernelError::invalid(format!(
            "biases must be 1D: {bias}, for an input of shape {value}"
        )));
    };
    let axis = if channels_first { 1 } else { value.rank() - 1 };
    if value.dims()[axis] != n_biases {
        return Err(KernelError::invalid(format!(
            "must provide as many biases as dimension {axis} of the input tensor: {bias} vs. {value}"
        )));
    }
    Ok(axis)
}

/// Returns the number of elements in a row of logits.
pub(in crate::backend) fn softmax_columns(logits: &Shape) -> Result<usize, KernelError> {
    logits.dims().last().copied().ok_or_else(|| {
        KernelError::invalid("logits must have at least one dimension, found a scalar")
    })
}
