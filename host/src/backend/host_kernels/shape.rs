//! Shapes of tensors, views with another shape, and ranges.

use crate::backend::host_kernels::Made;
use crate::backend::host_kernels::kernel;
use crate::backend::host_kernels::output;
use crate::backend::host_kernels::view;
use crate::backend::plan::attr::ints_attr;
use crate::backend::plan::attr::type_attr;
use crate::backend::plan::value::indices;
use crate::backend::plan::value::integers;
use crate::backend::plan::value::is_scalar;
use crate::backend::plan::value::shape_of;
use crate::backend::types::INTEGERS;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelError;
use crate::kernels::Arithmetic;
use crate::kernels::Number;
use crate::kernels::Real;
use crate::kernels::Threads;
use crate::kernels::reshape::resolve;
use crate::kernels::slice::axis_index;
use crate::kernels::spread::common_shape;
use crate::tensor::DType;
use crate::tensor::Shape;

/// TensorFlow `Reshape`: no copy.
pub(in crate::backend) fn reshape(_: &KernelConstruction<'_>) -> Made {
    view(|context| {
        let (tensor, sizes) = (context.input(0)?, context.input(1)?);
        if sizes.shape().rank() != 1 {
            return Err(KernelError::invalid(format!(
                "sizes input must be 1-D, not {}, for a tensor of shape {}",
                sizes.shape(),
                tensor.shape()
            )));
        }
        resolve(tensor.shape(), &indices(sizes)?)
    })
}

/// TensorFlow `ExpandDims`: no copy.
pub(in crate::backend) fn expand_dims(_: &KernelConstruction<'_>) -> Made {
    view(|context| {
        let (input, dim) = (context.input(0)?.shape(), context.input(1)?);
        let &[wanted] = &integers(dim)?[..] else {
            return Err(KernelError::invalid(format!(
                "'dim' must be a tensor with a single value, not of shape {}",
                dim.shape()
            )));
        };
        let rank = input.rank();
        let axis = axis_index(wanted, rank + 1).ok_or_else(|| {
            KernelError::invalid(format!(
                "tried to expand dim index {wanted} for tensor with {rank} dimensions: {input}"
            ))
        })?;
        let (before, after) = input.dims().split_at(axis);
        Ok(before.iter().chain(&[1]).chain(after).copied().collect())
    })
}

/// TensorFlow `Squeeze`: no copy.
pub(in crate::backend) fn squeeze(node: &KernelConstruction<'_>) -> Made {
    let axes = ints_attr(node, "squeeze_dims", &[])?;
    view(move |context| {
        let input = context.input(0)?.shape();
        if axes.is_empty() {
            let left = input.dims().iter().copied().filter(|&dim| dim != 1);
            return Ok(left.collect());
        }
        let mut dims = input.dims().to_vec();
        for &wanted in &axes {
            let axis = axis_index(wanted, input.rank()).ok_or_else(|| {
                KernelError::invalid(format!(
                    "tried to squeeze dim index {wanted} for tensor with {} dimensions: {input}",
                    input.rank()
                ))
            })?;
            if input.dims()[axis] != 1 {
                return Err(KernelError::invalid(format!(
                    "can not squeeze dim[{axis}], expected a dimension of 1, got {}: {input}",
                    input.dims()[axis]
                )));
            }
            // A dimension may be listed twice.
            dims[axis] = usize::MAX;
        }
        let left = dims.into_iter().filter(|&dim| dim != usize::MAX);
        Ok(left.collect())
    })
}

/// TensorFlow `Shape`, `ShapeN` and `Size`, for tensors of any type.
pub(in crate::backend) fn measure(node: &KernelConstruction<'_>) -> Made {
    fn made<T: Number>(of_size: bool) -> Made {
        kernel(move |context| {
            for (index, input) in context.inputs().enumerate() {
                let dims = input.shape().dims();
                if of_size {
                    let n_elements = input.shape().n_elements();
                    context.fill_output(index, &Shape::scalar(), |out: &mut [T]| {
                        measured(&[n_elements], out)
                    })?;
                } else {
                    context.fill_output(index, &[dims.len()].into(), |out: &mut [T]| {
                        measured(dims, out)
                    })?;
                }
            }
            Ok(())
        })
    }
    let of_size = node.op == "Size";
    match node.attrs.dtype("out_type").unwrap_or(DType::I32) {
        DType::I64 => made::<i64>(of_size),
        _ => made::<i32>(of_size),
    }
}

/// TensorFlow `Rank`.
pub(in crate::backend) fn rank(_: &KernelConstruction<'_>) -> Made {
    kernel(|context| {
        let rank = context.input(0)?.shape().rank();
        output(context, Shape::scalar(), |out: &mut [i32]| {
            measured(&[rank], out)
        })
    })
}

/// Writes sizes as elements of a tensor.
pub(in crate::backend) fn measured<T: Number>(
    sizes: &[usize],
    out: &mut [T],
) -> Result<(), KernelError> {
    for (axis, (&size, o)) in sizes.iter().zip(out).enumerate() {
        let found = i64::try_from(size)
            .ok()
            .map(|size| (size, T::from_i64(size)));
        match found {
            Some((size, value)) if value.to_i64() == size => *o = value,
            _ => {
                return Err(KernelError::invalid(format!(
                    "output type is {}, but size {axis} of {sizes:?} is {size}",
                    T::DTYPE
                )));
            }
        }
    }
    Ok(())
}

/// TensorFlow `BroadcastArgs`: the shape to which two shapes broadcast.
pub(in crate::backend) fn broadcast_args(node: &KernelConstruction<'_>) -> Made {
    dispatch!(type_attr(node, "T")?, [I32: i32, I64: i64], T => kernel(|context| {
        let (lhs, rhs) = (context.input(0)?, context.input(1)?);
        for (index, input) in [lhs, rhs].into_iter().enumerate() {
            if input.shape().rank() != 1 {
                return Err(KernelError::invalid(format!(
                    "In[{index}] must be a vector, got shape {}",
                    input.shape()
                )));
            }
        }
        let shape = common_shape(&[&shape_of(lhs, "s0")?, &shape_of(rhs, "s1")?])?;
        output(context, [shape.rank()].into(), |out: &mut [T]| measured(shape.dims(), out))
    }))
}

/// Minimum number of elements of a range per thread.
pub(in crate::backend) const GRAIN: usize = 32 * 1024;

/// Types that TensorFlow's `Range` supports.
pub(in crate::backend) const RANGES: [DType; 10] = [
    DType::F32,
    DType::F64,
    DType::F16,
    DType::BF16,
    DType::I8,
    DType::I16,
    DType::I32,
    DType::I64,
    DType::U16,
    DType::U32,
];

/// TensorFlow `Range`: `start + i * delta`, each operation rounded to the type.
pub(in crate::backend) fn range(node: &KernelConstruction<'_>) -> Made {
    let dtype = type_attr(node, "Tidx")?;
    if INTEGERS.contains(&dtype) {
        dispatch_integer!(dtype, T => kernel(|context| {
            ranged(context, |start: T, limit, delta| {
                let (start, limit, delta) = (start.to_i64(), limit.to_i64(), delta.to_i64());
                let distance = (i128::from(limit) - i128::from(start)).unsigned_abs();
                usize::try_from(distance.div_ceil(i128::from(delta).unsigned_abs())).ok()
            })
        }))
    } else {
        dispatch_real!(dtype, T => kernel(|context| {
            ranged(context, |start: T, limit, delta| {
                let n = limit.minus(start).over(delta).to_f64().abs().ceil();
                #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked")]
                let n = (n < 9_223_372_036_854_775_808.0).then_some(n as usize);
                n
            })
        }))
    }
}

pub(in crate::backend) fn ranged<T: Number>(
    context: &KernelContext<'_>,
    length: impl FnOnce(T, T, T) -> Option<usize>,
) -> Result<(), KernelError> {
    let mut values = [T::ZERO; 3];
    for (index, (value, name)) in values
        .iter_mut()
        .zip(["start", "limit", "delta"])
        .enumerate()
    {
        let input = context.input(index)?;
        if !is_scalar(input.shape()) {
            return Err(KernelError::invalid(format!(
                "{name} must be a scalar, not shape {}",
                input.shape()
            )));
        }
        *value = input.as_slice::<T>()?[0];
    }
    let [start, limit, delta] = values;
    if delta == T::ZERO {
        return Err(KernelError::invalid(format!(
            "requires delta != 0: {start:?}, {limit:?}, {delta:?}"
        )));
    }
    let (fits, condition) = if delta > T::ZERO {
        (start <= limit, "start <= limit when delta > 0")
    } else {
        (start >= limit, "start >= limit when delta < 0")
    };
    if !fits {
        return Err(KernelError::invalid(format!(
            "requires {condition}: {start:?}/{limit:?}"
        )));
    }
    let Some(n) = length(start, limit, delta) else {
        return Err(KernelError::invalid(format!(
            "requires ((limit - start) / delta) <= {}: {start:?}, {limit:?}, {delta:?}",
            i64::MAX
        )));
    };
    output(context, [n].into(), |out: &mut [T]| {
        Threads::of(context).fill(out, 1, GRAIN, |first, part| {
            for (index, o) in (first..).zip(part) {
                #[expect(clippy::cast_possible_wrap, reason = "an index of memory")]
                let index = T::from_i64(index as i64);
                *o = start.plus(index.times(delta));
            }
        });
        Ok(())
    })
}
