//! Tensors of one value, and broadcasting to a given shape.

use crate::backend::plan::value::is_scalar;
use crate::backend::plan::value::shape_of;
use crate::device::KernelContext;
use crate::device::KernelError;
use crate::kernels::spread::Spread;
use crate::tensor::Shape;

/// Returns the shape that TensorFlow `Fill` gives its value.
pub(in crate::backend) fn filled_shape(context: &KernelContext<'_>) -> Result<Shape, KernelError> {
    let (dims, value) = (context.input(0)?, context.input(1)?);
    // Like TensorFlow, accepts the forms of old graphs.
    if dims.shape().rank() > 1 {
        return Err(KernelError::invalid(format!(
            "dims must represent a vector, got shape {}",
            dims.shape()
        )));
    }
    if !is_scalar(value.shape()) {
        return Err(KernelError::invalid(format!(
            "value must represent a scalar, got shape {}",
            value.shape()
        )));
    }
    shape_of(dims, "dims")
}

/// TensorFlow `BroadcastTo`: NumPy broadcasting to a given shape.
pub(in crate::backend) fn broadcast_plan(
    context: &KernelContext<'_>,
) -> Result<(Shape, Spread<1>), KernelError> {
    let (input, sizes) = (context.input(0)?, context.input(1)?);
    if sizes.shape().rank() != 1 {
        return Err(KernelError::invalid(format!(
            "shape must be a vector, got shape {}",
            sizes.shape()
        )));
    }
    let shape = shape_of(sizes, "shape")?;
    if input.shape().rank() > shape.rank() {
        return Err(KernelError::invalid(format!(
            "rank of input ({}) must be no greater than rank of output shape ({}): {} and {shape}",
            input.shape().rank(),
            shape.rank(),
            input.shape()
        )));
    }
    let spread = Spread::new(&shape, [input.shape()])?;
    Ok((shape, spread))
}
