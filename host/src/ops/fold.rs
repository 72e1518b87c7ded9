//! Integer arithmetic on sizes before a run, as in TensorFlow's shape refiner (`Shape`, `Pack`,
//! `StridedSlice` and similar ops).
//!
//! Each function returns one entry per output, from the known inputs and the inferred output
//! shapes; unknown elements stay unknown. Tensors of more than 1024 elements are skipped.

use std::sync::Arc;

use super::infer::InferenceContext;
use super::infer::IntTensor;
use super::infer::Known;
use crate::graph::Output;
use crate::tensor::DType;
use crate::tensor::Shape;

/// An operation on two integers; `None` where it is undefined or overflows.
pub(super) type Operation = fn(i64, i64) -> Option<i64>;

/// Output 0 is input 0, a handle or a value.
pub(super) fn identity(context: &InferenceContext<'_>, _: &[Output]) -> Vec<Known> {
    vec![context.input(0).known.clone()]
}

/// Output 0 has the elements of input 0 in another shape.
pub(super) fn same_elements(context: &InferenceContext<'_>, outputs: &[Output]) -> Vec<Known> {
    let value = context.ints(0).and_then(|value| {
        let shape = outputs.first()?.shape.to_shape()?;
        IntTensor::new(shape, value.values().to_vec())
    });
    vec![value.into()]
}

/// Output `i` is the shape of input `i`.
pub(super) fn shapes(context: &InferenceContext<'_>, outputs: &[Output]) -> Vec<Known> {
    let shape_of = |index: usize| {
        let dims = context.shape(index).dims()?;
        let dtype = outputs[index].dtype;
        let size = |dim: &Option<usize>| to_i64((*dim)?).filter(|&size| holds(dtype, size));
        IntTensor::vector(dims.iter().map(size).collect())
    };
    (0..outputs.len())
        .map(|index| shape_of(index).into())
        .collect()
}

/// Output 0 is the number of elements of input 0.
pub(super) fn size(context: &InferenceContext<'_>, outputs: &[Output]) -> Vec<Known> {
    let n_elements = context.shape(0).to_shape().map(|shape| shape.n_elements());
    vec![build(outputs, 0, |_| to_i64(n_elements?))]
}

/// Output 0 is the rank of input 0.
pub(super) fn rank(context: &InferenceContext<'_>, _: &[Output]) -> Vec<Known> {
    vec![Some(IntTensor::scalar(context.shape(0).rank().and_then(to_i64))).into()]
}

/// Converts integers to integers; other conversions are skipped.
pub(super) fn cast(context: &InferenceContext<'_>, outputs: &[Output]) -> Vec<Known> {
    let is_integer = |dtype: DType| dtype == DType::I32 || dtype == DType::I64;
    let converts = is_integer(context.dtype(0))
        && outputs
            .first()
            .is_some_and(|output| is_integer(output.dtype));
    match context.ints(0).filter(|_| converts) {
        Some(value) => vec![held(&value, outputs, Some)],
        None => Vec::new(),
    }
}

/// `-x`.
pub(super) fn negate(context: &InferenceContext<'_>, outputs: &[Output]) -> Vec<Known> {
    match context.ints(0) {
        Some(value) => vec![held(&value, outputs, i64::checked_neg)],
        None => Vec::new(),
    }
}

/// Returns the integer operation of a binary op.
pub(super) fn integer_operation(op: &str) -> Option<Operation> {
    Some(match op {
        "Add" | "AddV2" => i64::checked_add,
        "Sub" => i64::checked_sub,
        "Mul" => i64::checked_mul,
        "Maximum" => |a, b| Some(a.max(b)),
        "Minimum" => |a, b| Some(a.min(b)),
        "FloorDiv" => floor_div,
        "FloorMod" => |a, b| a.checked_sub(floor_div(a, b)?.checked_mul(b)?),
        "Div" | "TruncateDiv" => i64::checked_div,
        _ => return None,
    })
}

fn floor_div(a: i64, b: i64) -> Option<i64> {
    let quotient = a.checked_div(b)?;
    let exact = quotient.checked_mul(b)? == a;
    if !exact && (a < 0) != (b < 0) {
        quotient.checked_sub(1)
    } else {
        Some(quotient)
    }
}

/// Applies `operation` to both inputs, broadcast.
pub(super) fn elementwise(
    context: &InferenceContext<'_>,
    outputs: &[Output],
    operation: Operation,
) -> Vec<Known> {
    let (Some(a), Some(b)) = (context.ints(0), context.ints(1)) else {
        return Vec::new();
    };
    let wide = matches!(context.dtype(0), DType::I32 | DType::I64);
    if !wide {
        return Vec::new();
    }
    vec![build(outputs, 0, |index| {
        let (a, b) = (stretched(&a, index)?, stretched(&b, index)?);
        operation(a, b)
    })]
}

/// Reduces a vector to a scalar.
pub(super) fn reduce(
    context: &InferenceContext<'_>,
    outputs: &[Output],
    initial: i64,
    operation: Operation,
) -> Vec<Known> {
    let is_total = outputs
        .first()
        .and_then(|output| output.shape.to_shape())
        .is_some_and(|shape| shape.n_elements() == 1);
    let Some(value) = context.ints(0).filter(|_| is_total) else {
        return Vec::new();
    };
    let total = value
        .values()
        .iter()
        .try_fold(initial, |total, value| operation(total, (*value)?));
    vec![build(outputs, 0, |_| total)]
}

/// Stacks inputs along a new axis.
pub(super) fn pack(context: &InferenceContext<'_>, outputs: &[Output]) -> Vec<Known> {
    let values: Vec<_> = (0..context.n_inputs()).map(|i| context.ints(i)).collect();
    if values.iter().all(Option::is_none) {
        return Vec::new();
    }
    let Some(axis) = new_axis(context, outputs) else {
        return Vec::new();
    };
    vec![build(outputs, 0, |index| {
        let value = values[index[axis]].as_ref()?;
        let mut inner = index.to_vec();
        inner.remove(axis);
        at(value, &inner)
    })]
}

fn new_axis(context: &InferenceContext<'_>, outputs: &[Output]) -> Option<usize> {
    let rank = outputs.first()?.shape.rank()?;
    super::rules::axis_index(context.attrs().int("axis")?, rank).ok()
}

/// Returns one output per element along an axis.
pub(super) fn unpack(context: &InferenceContext<'_>, outputs: &[Output]) -> Vec<Known> {
    let Some(value) = context.ints(0) else {
        return Vec::new();
    };
    let axis = context.attrs().int("axis").unwrap_or(0);
    let Ok(axis) = super::rules::axis_index(axis, value.shape().rank()) else {
        return Vec::new();
    };
    (0..outputs.len())
        .map(|k| {
            build(outputs, k, |index| {
                let mut whole = index.to_vec();
                whole.insert(axis, k);
                at(&value, &whole)
            })
        })
        .collect()
}

/// Concatenates inputs `first..first + n` along an axis.
pub(super) fn concat(
    context: &InferenceContext<'_>,
    outputs: &[Output],
    values: std::ops::Range<usize>,
    axis: Option<i64>,
) -> Vec<Known> {
    let rank = outputs.first().and_then(|output| output.shape.rank());
    let axis = axis
        .zip(rank)
        .and_then(|(axis, rank)| super::rules::axis_index(axis, rank).ok());
    let Some(axis) = axis else {
        return Vec::new();
    };
    let parts: Vec<_> = values
        .map(|i| (context.shape(i).dim(axis), context.ints(i)))
        .collect();
    if parts.iter().all(|(_, value)| value.is_none()) {
        return Vec::new();
    }
    vec![build(outputs, 0, |index| {
        let mut inner = index.to_vec();
        for (length, value) in &parts {
            let length = (*length)?;
            if inner[axis] < length {
                return at(value.as_ref()?, &inner);
            }
            inner[axis] -= length;
        }
        None
    })]
}

/// Selects the rows of input 0 that input 1 names (along `axis`).
pub(super) fn gather(
    context: &InferenceContext<'_>,
    outputs: &[Output],
    axis: Option<i64>,
) -> Vec<Known> {
    let (Some(params), Some(indices), Some(0)) = (context.ints(0), context.ints(1), axis) else {
        return Vec::new();
    };
    let rank = indices.shape().rank();
    vec![build(outputs, 0, |index| {
        let (row, rest) = index.split_at(rank);
        let row = usize::try_from(at(&indices, row)?).ok()?;
        let whole: Vec<_> = std::iter::once(row).chain(rest.iter().copied()).collect();
        at(&params, &whole)
    })]
}

/// `start, start + delta, ..`.
pub(super) fn range(context: &InferenceContext<'_>, outputs: &[Output]) -> Vec<Known> {
    let (Some(start), Some(delta)) = (context.scalar_int(0), context.scalar_int(2)) else {
        return Vec::new();
    };
    vec![build(outputs, 0, |index| {
        start.checked_add(delta.checked_mul(to_i64(index[0])?)?)
    })]
}

/// Fills the output with input 1.
pub(super) fn fill(context: &InferenceContext<'_>, outputs: &[Output]) -> Vec<Known> {
    let Some(value) = context.scalar_int(1) else {
        return Vec::new();
    };
    vec![build(outputs, 0, |_| Some(value))]
}

/// Builds output `slot`, each element from its index. Nothing is known if its shape is unknown or
/// large, or if no element is known.
pub(super) fn build(
    outputs: &[Output],
    slot: usize,
    element: impl Fn(&[usize]) -> Option<i64>,
) -> Known {
    let Some(output) = outputs.get(slot) else {
        return Known::Nothing;
    };
    let (Some(shape), dtype) = (output.shape.to_shape(), output.dtype) else {
        return Known::Nothing;
    };
    if shape.n_elements() > 1024 {
        return Known::Nothing;
    }
    let mut index = vec![0; shape.rank()];
    let values: Vec<_> = (0..shape.n_elements())
        .map(|flat| {
            unravel(flat, &shape, &mut index);
            element(&index).filter(|&value| holds(dtype, value))
        })
        .collect();
    if !values.is_empty() && values.iter().all(Option::is_none) {
        return Known::Nothing;
    }
    match IntTensor::new(shape, values) {
        Some(value) => Known::Ints(Arc::new(value)),
        None => Known::Nothing,
    }
}

/// Returns whether a type can hold a value. Kernels wrap larger values around; folding leaves those
/// to them.
fn holds(dtype: DType, value: i64) -> bool {
    match dtype {
        DType::I8 => i8::try_from(value).is_ok(),
        DType::U8 => u8::try_from(value).is_ok(),
        DType::I16 => i16::try_from(value).is_ok(),
        DType::U16 => u16::try_from(value).is_ok(),
        DType::I32 => i32::try_from(value).is_ok(),
        DType::U32 => u32::try_from(value).is_ok(),
        DType::U64 => value >= 0,
        _ => true,
    }
}

/// Applies `of` to all elements of output 0; a result that the type cannot hold is unknown.
fn held(value: &IntTensor, outputs: &[Output], of: impl Fn(i64) -> Option<i64>) -> Known {
    let Some(output) = outputs.first() else {
        return Known::Nothing;
    };
    let values = value.values().iter();
    let values = values.map(|value| of((*value)?).filter(|&value| holds(output.dtype, value)));
    let values: Vec<_> = values.collect();
    if !values.is_empty() && values.iter().all(Option::is_none) {
        return Known::Nothing;
    }
    IntTensor::new(value.shape().clone(), values).into()
}

fn unravel(mut flat: usize, shape: &Shape, index: &mut [usize]) {
    for (axis, &dim) in shape.dims().iter().enumerate().rev() {
        index[axis] = flat % dim;
        flat /= dim;
    }
}

/// Returns the element at an index; `None` if it is unknown or does not exist.
pub(super) fn at(value: &IntTensor, index: &[usize]) -> Option<i64> {
    let dims = value.shape().dims();
    if dims.len() != index.len() {
        return None;
    }
    let mut flat = 0;
    for (&dim, &position) in dims.iter().zip(index) {
        if position >= dim {
            return None;
        }
        flat = flat * dim + position;
    }
    value.values().get(flat).copied().flatten()
}

/// Returns the element at an index of a shape that `value` is broadcast to.
fn stretched(value: &IntTensor, index: &[usize]) -> Option<i64> {
    let dims = value.shape().dims();
    let skipped = index.len().checked_sub(dims.len())?;
    let own = dims.iter().zip(&index[skipped..]);
    let own: Vec<_> = own.map(|(&dim, &i)| if dim == 1 { 0 } else { i }).collect();
    at(value, &own)
}

fn to_i64(value: usize) -> Option<i64> {
    i64::try_from(value).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integer_division_rounds_as_tensorflow_does() {
        let floor = integer_operation("FloorDiv").unwrap();
        let modulo = integer_operation("FloorMod").unwrap();
        let truncate = integer_operation("TruncateDiv").unwrap();
        assert_eq!(
            (floor(-7, 2), modulo(-7, 2), truncate(-7, 2)),
            (Some(-4), Some(1), Some(-3))
        );
        assert_eq!((floor(7, -2), modulo(7, -2)), (Some(-4), Some(-1)));
        assert_eq!(
            (floor(-8, 2), floor(1, 0), modulo(1, 0)),
            (Some(-4), None, None)
        );
        assert_eq!(floor(i64::MIN, -1), None);
    }

    #[test]
    fn elements_outside_a_tensor_are_unknown() {
        let value = IntTensor::vector(vec![Some(3), None]).unwrap();
        assert_eq!(at(&value, &[0]), Some(3));
        assert_eq!(
            (at(&value, &[1]), at(&value, &[2]), at(&value, &[])),
            (None, None, None)
        );
    }
}
