//! Values of arguments in host memory: shapes, axes, indices.

use smallvec::SmallVec;

use crate::backend::types::unsupported;
use crate::device::KernelError;
use crate::kernels::scratch;
use crate::tensor::DType;
use crate::tensor::RANK_MAX;
use crate::tensor::Shape;
use crate::tensor::Tensor;

/// Returns the elements of a tensor of shapes or indices (`int32` or `int64`).
pub(in crate::backend) fn indices(tensor: &Tensor) -> Result<Vec<i64>, KernelError> {
    let mut indices = scratch::list(tensor.shape().n_elements())?;
    match tensor.dtype() {
        DType::I32 => indices.extend(tensor.as_slice::<i32>()?.iter().map(|&x| i64::from(x))),
        DType::I64 => indices.extend_from_slice(tensor.as_slice::<i64>()?),
        other => return Err(unsupported(other)),
    }
    Ok(indices)
}

/// Returns the elements of a tensor of integers of any size.
pub(in crate::backend) fn integers(tensor: &Tensor) -> Result<SmallVec<[i64; 8]>, KernelError> {
    fn widened<T: crate::tensor::Element + Into<i64>>(
        tensor: &Tensor,
    ) -> Result<SmallVec<[i64; 8]>, KernelError> {
        let elements = tensor.as_slice::<T>()?;
        let mut integers: SmallVec<[i64; 8]> = SmallVec::new();
        // A sensible graph has few, but a fed tensor of any size is read before it is checked.
        if integers.try_reserve_exact(elements.len()).is_err() {
            return Err(scratch::out_of_memory(elements.len().saturating_mul(8)));
        }
        integers.extend(elements.iter().map(|&x| x.into()));
        Ok(integers)
    }
    match tensor.dtype() {
        DType::I8 => widened::<i8>(tensor),
        DType::U8 => widened::<u8>(tensor),
        DType::I16 => widened::<i16>(tensor),
        DType::I32 => widened::<i32>(tensor),
        DType::I64 => widened::<i64>(tensor),
        other => Err(unsupported(other)),
    }
}

/// Returns the elements of a vector of integers. `what` names it in errors.
pub(in crate::backend) fn vector(
    tensor: &Tensor,
    what: &str,
) -> Result<SmallVec<[i64; 8]>, KernelError> {
    if tensor.shape().rank() != 1 {
        return Err(KernelError::invalid(format!(
            "{what} must be 1-D, not {}",
            tensor.shape()
        )));
    }
    integers(tensor)
}

/// Returns a single integer. `what` names it in errors.
pub(in crate::backend) fn scalar(tensor: &Tensor, what: &str) -> Result<i64, KernelError> {
    match (tensor.shape().rank(), &integers(tensor)?[..]) {
        (0, &[value]) => Ok(value),
        _ => Err(KernelError::invalid(format!(
            "{what} must be a scalar, not of shape {}",
            tensor.shape()
        ))),
    }
}

/// Returns the only element of a scalar; `message` describes the error for any other shape.
pub(in crate::backend) fn scalar_index(
    tensor: &Tensor,
    message: impl FnOnce() -> String,
) -> Result<i64, KernelError> {
    if tensor.shape().rank() != 0 {
        return Err(KernelError::invalid(message()));
    }
    let [index] = indices(tensor)?[..] else {
        unreachable!("a scalar has one element");
    };
    Ok(index)
}

/// Returns the shape whose dimensions are the elements of this tensor.
pub(in crate::backend) fn shape_of(sizes: &Tensor, what: &str) -> Result<Shape, KernelError> {
    let sizes = indices(sizes)?;
    if sizes.len() > RANK_MAX {
        return Err(KernelError::invalid(format!(
            "{what} has {} dimensions, more than {RANK_MAX}",
            sizes.len()
        )));
    }
    sizes
        .iter()
        .map(|&size| {
            usize::try_from(size).map_err(|_| {
                KernelError::invalid(format!(
                    "dimension {size} must be >= 0, in {what} {sizes:?}"
                ))
            })
        })
        .collect()
}

/// Returns whether this is a scalar or, as in old graphs, a vector of one element.
pub(in crate::backend) fn is_scalar(shape: &Shape) -> bool {
    matches!(shape.dims(), [] | [1])
}
