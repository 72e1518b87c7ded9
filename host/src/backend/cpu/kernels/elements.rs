//! What kernels of lists and arrays share: tensors that are elements of something, made of one
//! tensor and put together to one.

use crate::backend::plan::value::indices;
use crate::backend::types::ELEMENTS;
use crate::device::KernelContext;
use crate::device::KernelError;
use crate::kernels::scratch;
use crate::tensor::ByteString;
use crate::tensor::DType;
use crate::tensor::PartialShape;
use crate::tensor::RANK_MAX;
use crate::tensor::Shape;
use crate::tensor::Tensor;
use crate::tensor::TensorError;
use crate::tensor::Variant;

/// Returns the types of elements, of which variants are lists.
pub(super) fn element_types() -> Vec<DType> {
    [&ELEMENTS[..], &[DType::String, DType::Variant]].concat()
}

/// The limit of elements. Elements that are not set take memory of the host, too.
pub(super) const LEN_MAX: usize = 1 << 22;

/// The limit of lists in lists. Dropping a list drops the lists in it, on the same call stack.
const DEPTH_MAX: usize = 64;

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

/// Returns the error for a tensor of the wrong rank.
fn wrong_rank(what: &str, expected: &str, shape: &Shape) -> KernelError {
    KernelError::invalid(format!(
        "{what} must be {expected}, but its shape is {shape}"
    ))
}

/// Returns the elements of a vector of indices or lengths.
pub(super) fn vector(tensor: &Tensor, what: &str) -> Result<Vec<i64>, KernelError> {
    if tensor.shape().rank() != 1 {
        return Err(wrong_rank(what, "a vector", tensor.shape()));
    }
    indices(tensor)
}

/// Returns input `index` as a tensor that stays beyond the execution, in the device's memory.
pub(super) fn kept_input(context: &KernelContext<'_>, index: usize) -> Result<Tensor, KernelError> {
    let input = context.input(index)?;
    check_depth(input.as_variants().unwrap_or_default())?;
    match input.buffer() {
        // A clone would be a copy that no device counts.
        Some(buffer) if buffer.is_in_arena() => {
            Ok(context.device_context().copy_on_device(input)?)
        }
        _ => Ok(input.clone()),
    }
}

/// Checks that these lists may be elements of a list.
fn check_depth(variants: &[Variant]) -> Result<(), KernelError> {
    if variants.iter().all(|variant| variant.depth() < DEPTH_MAX) {
        return Ok(());
    }
    Err(KernelError::invalid(format!(
        "lists cannot be nested more than {DEPTH_MAX} deep"
    )))
}

/// Returns a tensor of zeros, or of empty strings.
pub(super) fn zeros(
    context: &KernelContext<'_>,
    dtype: DType,
    shape: &Shape,
) -> Result<Tensor, KernelError> {
    // Also of types without a size: the number of elements may exceed the address space.
    shape.size_bytes(dtype).map_err(TensorError::from)?;
    match dtype {
        DType::String => {
            let n = shape.n_elements();
            let mut strings = scratch::list(n)?;
            let empty = ByteString::default();
            strings.extend(std::iter::repeat_n(empty, n));
            Ok(Tensor::from_strings(shape.clone(), strings)?)
        }
        DType::Variant => Err(KernelError::invalid(
            "an element that was not set has no value: it would be a list",
        )),
        _ => context.allocate_output(0, dtype, shape.clone()),
    }
}

/// Returns the shape that a tensor holds, in the form of TensorFlow's shape tensors: a vector in
/// which -1 is an unknown size, or the scalar -1 for an unknown shape.
pub(super) fn partial_shape(tensor: &Tensor) -> Result<PartialShape, KernelError> {
    let rank = tensor.shape().rank();
    if rank > 1 {
        return Err(wrong_rank("an element shape", "a vector", tensor.shape()));
    }
    let sizes = indices(tensor)?;
    if sizes.len() > RANK_MAX {
        return Err(KernelError::invalid(format!(
            "an element shape has {} dimensions, more than {RANK_MAX}",
            sizes.len()
        )));
    }
    if rank == 0 {
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
            KernelError::invalid(format!(
                "dimension {size} of an element shape must be at least -1"
            ))
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
    if dtype == DType::Variant {
        let mut variants = scratch::list(shape.n_elements())?;
        for part in parts {
            variants.extend_from_slice(part.as_variants()?);
        }
        return context.set_output(index, Tensor::from_variants(shape.clone(), variants)?);
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
    let n = shape.n_elements();
    let range = start..start + n;
    match tensor.dtype() {
        DType::String => {
            let mut strings = scratch::list(n)?;
            strings.extend_from_slice(&tensor.as_strings()?[range]);
            Ok(Tensor::from_strings(shape.clone(), strings)?)
        }
        DType::Variant => {
            let part = &tensor.as_variants()?[range];
            check_depth(part)?;
            let mut variants = scratch::list(n)?;
            variants.extend_from_slice(part);
            Ok(Tensor::from_variants(shape.clone(), variants)?)
        }
        dtype => {
            let mut part = context.allocate_output(0, dtype, shape.clone())?;
            let size = dtype.size_bytes().ok_or(TensorError::NoFixedSize(dtype))?;
            let bytes = part.as_bytes_mut().ok_or(TensorError::NotOnHost)?;
            bytes.copy_from_slice(&tensor.as_bytes()?[range.start * size..range.end * size]);
            Ok(part)
        }
    }
}

/// Returns the number of rows of a tensor, and their shape.
pub(super) fn rows(tensor: &Tensor, what: &str) -> Result<(usize, Shape), KernelError> {
    match tensor.shape().dims() {
        [n, rest @ ..] => Ok((*n, Shape::new(rest))),
        [] => Err(wrong_rank(what, "at least a vector", tensor.shape())),
    }
}

/// Returns the shape of this many rows.
pub(super) fn of_rows(n: usize, row: &Shape) -> Shape {
    std::iter::once(n)
        .chain(row.dims().iter().copied())
        .collect()
}

/// Returns the pieces of a tensor that have these numbers of rows.
pub(super) fn pieces(
    context: &KernelContext<'_>,
    tensor: &Tensor,
    lengths: &[i64],
) -> Result<Vec<Tensor>, KernelError> {
    let (n_rows, row) = rows(tensor, "the tensor to split")?;
    let mut ends = scratch::list(lengths.len())?;
    let mut end = 0usize;
    for &length in lengths {
        let length = usize::try_from(length)
            .map_err(|_| KernelError::invalid(format!("length {length} of a piece is negative")))?;
        end = end.saturating_add(length);
        ends.push(end);
    }
    if end != n_rows {
        return Err(KernelError::invalid(format!(
            "the lengths of the pieces add up to {end}, but the tensor of shape {} has {n_rows} \
             rows",
            tensor.shape()
        )));
    }
    let mut pieces = scratch::list(lengths.len())?;
    let mut start = 0;
    for end in ends {
        let shape = of_rows(end - start, &row);
        pieces.push(part(context, tensor, start * row.n_elements(), &shape)?);
        start = end;
    }
    Ok(pieces)
}

/// Sets outputs 0 and 1 to tensors that are joined along their first axis, and to their lengths.
/// `row` is what is known of the shape of their rows.
pub(super) fn concatenated(
    context: &KernelContext<'_>,
    dtype: DType,
    parts: &[Tensor],
    row: &PartialShape,
) -> Result<(), KernelError> {
    let mut n_rows = 0usize;
    let mut common = row.clone();
    let mut lengths = scratch::list(parts.len())?;
    for (index, part) in parts.iter().enumerate() {
        let (n, row) = rows(part, "an element to concatenate")?;
        common = common.merge(&PartialShape::from(&row)).ok_or_else(|| {
            KernelError::invalid(format!(
                "element {index} has rows of shape {row}, but {common} is expected"
            ))
        })?;
        n_rows = n_rows.saturating_add(n);
        lengths.push(i64::try_from(n).unwrap_or(i64::MAX));
    }
    let row = common.to_shape().ok_or_else(|| {
        KernelError::invalid(format!(
            "there are no elements to concatenate, and the shape of their rows is only known as \
             {common}"
        ))
    })?;
    joined(context, 0, dtype, &of_rows(n_rows, &row), parts)?;
    let n_parts = Shape::new(&[parts.len()]);
    context.fill_output(1, &n_parts, |out: &mut [i64]| {
        out.copy_from_slice(&lengths);
        Ok(())
    })
}
