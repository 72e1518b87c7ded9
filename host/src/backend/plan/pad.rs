//! Padding of tensors.

use crate::backend::plan::attr::string_attr;
use crate::backend::plan::value::integers;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelError;
use crate::kernels::pad::Mirror;
use crate::kernels::pad::Pad;
use crate::tensor::Tensor;

/// Returns the margins of input 0, which are input 1.
pub(in crate::backend) fn pad_plan(context: &KernelContext<'_>) -> Result<Pad, KernelError> {
    let (input, paddings) = (context.input(0)?, context.input(1)?);
    if !matches!(paddings.shape().dims(), [_, 2]) {
        return Err(KernelError::invalid(format!(
            "paddings must be a matrix with 2 columns: {}",
            paddings.shape()
        )));
    }
    Pad::new(input.shape(), &integers(paddings)?)
}

/// Returns the scalar with which TensorFlow `PadV2` pads its input 0.
pub(in crate::backend) fn pad_value<'a>(
    context: &'a KernelContext<'_>,
) -> Result<&'a Tensor, KernelError> {
    let value = context.input(2)?;
    if value.shape().rank() != 0 {
        return Err(KernelError::invalid(format!(
            "constant_values must be a scalar. Found: {}",
            value.shape()
        )));
    }
    Ok(value)
}

/// Returns which elements TensorFlow `MirrorPad` repeats in the margins.
pub(in crate::backend) fn mirror_attr(
    node: &KernelConstruction<'_>,
) -> Result<Mirror, KernelError> {
    match string_attr(node, "mode", "")? {
        "REFLECT" => Ok(Mirror::Reflect),
        "SYMMETRIC" => Ok(Mirror::Symmetric),
        other => Err(KernelError::invalid(format!(
            "attribute `mode` is `{other}`; expected `REFLECT` or `SYMMETRIC`"
        ))),
    }
}
