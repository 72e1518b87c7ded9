//! What kernels of lists and arrays share: tensors that are elements of something, made of one
//! tensor and put together to one.

use std::sync::Arc;

use crate::device::KernelContext;
use crate::device::KernelError;
use crate::kernels::scratch;
use crate::tensor::DType;
use crate::tensor::PartialShape;
use crate::tensor::Shape;
use crate::tensor::Tensor;

/// The limit of elements. Elements that are not set take memory of the host, too.
pub(super) const LEN_MAX: usize = 1 << 22;

/// Returns a number of elements.
pub(super) fn checked_len(len: i64, what: &str) -> Result<usize, KernelError> {
    match usize::try_from(len) {
        Ok(len) if len <= LEN_MAX => Ok(len),
        Ok(_) => Err(KernelError::invalid(format!(
            "{what} is {len}; at most {LEN_MAX} elements are supported"
        ))),
        Err(_) => Err(KernelError::invalid(format!(
            "{what} is {len}, which is negative"
        ))),
    }
}

/// Returns input `index` as a tensor that stays beyond the execution, in the device's memory.
pub(super) fn kept_input(context: &KernelContext<'_>, index: usize) -> Result<Tensor, KernelError> {
    let input = context.input(index)?;
    match input.buffer() {
        // A clone would be a copy that no device counts.
        Some(buffer) if buffer.is_in_arena() => {
            let mut kept = context.allocate_output(0, input.dtype(), input.shape().clone())?;
            if let Some(bytes) = kept.as_bytes_mut() {
                bytes.copy_from_slice(input.as_bytes()?);
            }
            Ok(kept)
        }
        _ => Ok(input.clone()),
    }
}

/// Returns a tensor of zeros, or of empty strings.
pub(super) fn zeros(
    context: &KernelContext<'_>,
    dtype: DType,
    shape: &Shape,
) -> Result<Tensor, KernelError> {
    if dtype != DType::String {
        return context.allocate_output(0, dtype, shape.clone());
    }
    let mut strings = scratch::list(shape.n_elements())?;
    strings.resize_with(shape.n_elements(), || Arc::from([]));
    Ok(Tensor::from_strings(shape.clone(), strings)?)
}

/// Returns the shape that a tensor holds, in the form of TensorFlow's shape tensors: a vector in
/// which -1 is an unknown size, or the scalar -1 for an unknown shape.
pub(super) fn partial_shape(tensor: &Tensor) -> Result<PartialShape, KernelError> {
    let sizes = crate::backend::plan::value::indices(tensor)?;
    if tensor.shape().rank() == 0 {
        return match sizes.as_slice() {
            [-1] => Ok(PartialShape::unknown()),
            other => Err(KernelError::invalid(format!(
                "a scalar as element shape must be -1, not {other:?}"
            ))),
        };
    }
    let sizes = sizes.into_iter().map(|size| match size {
        -1 => Ok(None),
        size => usize::try_from(size).map(Some).map_err(|_| {
            KernelError::invalid(format!("size {size} of the element shape is negative"))
        }),
    });
    sizes.collect()
}

/// Sets output `index` to tensors of one shape, stacked along a new first axis, or along the first
/// axis that they have. `shape` is that of the result.
pub(super) fn joined(
    context: &KernelContext<'_>,
    index: usize,
    dtype: DType,
    shape: &Shape,
    parts: &[Tensor],
) -> Result<(), KernelError> {
    if dtype == DType::String {
        let mut strings = scratch::list(shape.n_elements())?;
        for part in parts {
            strings.extend_from_slice(part.as_strings()?);
        }
        return context.set_output(index, Tensor::from_strings(shape.clone(), strings)?);
    }
    context.fill_output_bytes(index, dtype, shape, |bytes| {
        let mut rest = bytes;
        for part in parts {
            let part = part.as_bytes()?;
            let (here, after) = rest.split_at_mut(part.len().min(rest.len()));
            if here.len() != part.len() {
                return Err(KernelError::invalid("an element is larger than its place"));
            }
            here.copy_from_slice(part);
            rest = after;
        }
        Ok(())
    })
}

/// Returns the part `start..start + shape.n_elements()` of a tensor's elements.
pub(super) fn part(
    context: &KernelContext<'_>,
    tensor: &Tensor,
    start: usize,
    shape: &Shape,
) -> Result<Tensor, KernelError> {
    let end = start + shape.n_elements();
    if tensor.dtype() == DType::String {
        let strings = tensor.as_strings()?[start..end].to_vec();
        return Ok(Tensor::from_strings(shape.clone(), strings)?);
    }
    let mut part = context.allocate_output(0, tensor.dtype(), shape.clone())?;
    let size = tensor.dtype().size_bytes().unwrap_or(0);
    if let Some(bytes) = part.as_bytes_mut() {
        bytes.copy_from_slice(&tensor.as_bytes()?[start * size..end * size]);
    }
    Ok(part)
}

/// Returns the number of rows of a tensor, and their shape.
pub(super) fn rows(tensor: &Tensor, what: &str) -> Result<(usize, Shape), KernelError> {
    match tensor.shape().dims() {
        [n, rest @ ..] => Ok((*n, Shape::new(rest))),
        [] => Err(KernelError::invalid(format!(
            "{what} must be at least a vector, but it is a scalar"
        ))),
    }
}

/// Returns the pieces of a tensor that have these numbers of rows.
pub(super) fn pieces(
    context: &KernelContext<'_>,
    tensor: &Tensor,
    lengths: &[i64],
) -> Result<Vec<Tensor>, KernelError> {
    let (n_rows, row) = rows(tensor, "the tensor to split")?;
    let mut pieces = scratch::list(lengths.len())?;
    let mut start = 0usize;
    for &length in lengths {
        let length = checked_len(length, "a length")?;
        let end = start.saturating_add(length);
        if end > n_rows {
            return Err(KernelError::invalid(format!(
                "the lengths {lengths:?} add up to more than the {n_rows} rows of the tensor"
            )));
        }
        let dims: Vec<usize> = std::iter::once(length)
            .chain(row.dims().iter().copied())
            .collect();
        let at = start * row.n_elements();
        pieces.push(part(context, tensor, at, &Shape::new(&dims))?);
        start = end;
    }
    if start != n_rows {
        return Err(KernelError::invalid(format!(
            "the lengths {lengths:?} add up to {start}, but the tensor has {n_rows} rows"
        )));
    }
    Ok(pieces)
}

/// Sets outputs 0 and 1 to tensors that are joined along their first axis, and to their lengths.
pub(super) fn concatenated(
    context: &KernelContext<'_>,
    dtype: DType,
    parts: &[Tensor],
    row: Option<Shape>,
) -> Result<(), KernelError> {
    let mut n_rows = 0usize;
    let mut common = row;
    let mut lengths = scratch::list(parts.len())?;
    for (index, part) in parts.iter().enumerate() {
        let (n, row) = rows(part, "an element to concatenate")?;
        let first = common.get_or_insert_with(|| row.clone());
        if *first != row {
            return Err(KernelError::invalid(format!(
                "element {index} has rows of shape {row}, the elements before it {first}"
            )));
        }
        n_rows = n_rows.saturating_add(n);
        lengths.push(i64::try_from(n).unwrap_or(i64::MAX));
    }
    let Some(row) = common else {
        return Err(KernelError::invalid(
            "there are no elements, and the shape of their rows is not known",
        ));
    };
    let dims: Vec<usize> = std::iter::once(n_rows)
        .chain(row.dims().iter().copied())
        .collect();
    joined(context, 0, dtype, &Shape::new(&dims), parts)?;
    let n_parts = Shape::new(&[parts.len()]);
    context.fill_output(1, &n_parts, |out: &mut [i64]| {
        out.copy_from_slice(&lengths);
        Ok(())
    })
}
