//! Shapes of tensors, and tensors of one value or a range.

use std::sync::Arc;

use crate::backend::cpu::kernels::ELEMENTS;
use crate::backend::cpu::kernels::INDICES;
use crate::backend::cpu::kernels::INTEGERS;
use crate::backend::cpu::kernels::Made;
use crate::backend::cpu::kernels::def;
use crate::backend::cpu::kernels::indices;
use crate::backend::cpu::kernels::kernel;
use crate::backend::cpu::kernels::output;
use crate::backend::cpu::kernels::type_attr;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelError;
use crate::device::KernelRegistry;
use crate::kernels::Arithmetic;
use crate::kernels::Number;
use crate::kernels::Real;
use crate::kernels::Threads;
use crate::kernels::cast::CastTo;
use crate::kernels::scratch;
use crate::kernels::spread::Spread;
use crate::kernels::spread::common_shape;
use crate::tensor::DType;
use crate::tensor::Element;
use crate::tensor::RANK_MAX;
use crate::tensor::Shape;
use crate::tensor::Tensor;

/// Minimum number of elements of a range per thread.
const GRAIN: usize = 32 * 1024;

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

pub(super) fn register(registry: &mut KernelRegistry) {
    for op in ["Shape", "ShapeN", "Size"] {
        registry.register(
            def(op)
                .with_types("out_type", &INDICES)
                .with_host_memory("output")
                .with_factory(measure),
        );
    }
    registry.register(def("Rank").with_host_memory("output").with_factory(rank));
    let types = [&ELEMENTS[..], &[DType::String]].concat();
    registry.register(
        def("Fill")
            .with_types("T", &types)
            .with_types("index_type", &INDICES)
            .with_host_memory("dims")
            .with_factory(fill),
    );
    registry.register(
        def("BroadcastTo")
            .with_types("T", &types)
            .with_types("Tidx", &INDICES)
            .with_host_memory("shape")
            .with_factory(broadcast_to),
    );
    registry.register(
        def("BroadcastArgs")
            .with_types("T", &INDICES)
            .with_host_memory("s0")
            .with_host_memory("s1")
            .with_host_memory("r0")
            .with_factory(broadcast_args),
    );
    registry.register(
        def("Range")
            .with_types("Tidx", &RANGES)
            .with_host_memory("start")
            .with_host_memory("limit")
            .with_host_memory("delta")
            .with_host_memory("output")
            .with_factory(range),
    );
    registry.register(
        def("ZerosLike")
            .with_types("T", &types)
            .with_factory(|node| like(node, 0)),
    );
    registry.register(
        def("OnesLike")
            .with_types("T", &ELEMENTS)
            .with_factory(|node| like(node, 1)),
    );
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
fn measured<T: Number>(sizes: &[usize], out: &mut [T]) -> Result<(), KernelError> {
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

/// Returns the shape whose dimensions are the elements of this tensor.
fn shape_of(sizes: &Tensor, what: &str) -> Result<Shape, KernelError> {
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

fn fill(node: &KernelConstruction<'_>) -> Made {
    let dtype = type_attr(node, "T")?;
    if dtype == DType::String {
        return kernel(|context| {
            let shape = filled_shape(context)?;
            let text = &context.input(1)?.as_strings()?[0];
            let strings = filled_strings(&shape, |_| text.clone())?;
            context.set_output(0, Tensor::from_strings(shape, strings)?)
        });
    }
    dispatch_element!(dtype, T => kernel(|context| {
        let shape = filled_shape(context)?;
        let value = context.input(1)?.as_slice::<T>()?[0];
        output(context, shape, |out: &mut [T]| {
            out.fill(value);
            Ok(())
        })
    }))
}

/// Returns whether this is a scalar or, as in old graphs, a vector of one element.
fn is_scalar(shape: &Shape) -> bool {
    matches!(shape.dims(), [] | [1])
}

/// Returns one string per element of the shape, which must not exceed the address space.
fn filled_strings(
    shape: &Shape,
    text: impl FnMut(usize) -> Arc<[u8]>,
) -> Result<Vec<Arc<[u8]>>, KernelError> {
    let n = shape.n_elements();
    let mut strings = scratch::list(n)?;
    strings.extend((0..n).map(text));
    Ok(strings)
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

fn broadcast_to(node: &KernelConstruction<'_>) -> Made {
    let dtype = type_attr(node, "T")?;
    if dtype == DType::String {
        return kernel(|context| {
            let (shape, spread) = broadcast_plan(context)?;
            let values = context.input(0)?.as_strings()?;
            let mut places = filled_strings(&shape, |_| Arc::default())?;
            spread.fill(&mut places, Threads::single(), |[at], [advances], part| {
                for (index, o) in part.iter_mut().enumerate() {
                    o.clone_from(&values[at + if advances { index } else { 0 }]);
                }
            });
            context.set_output(0, Tensor::from_strings(shape, places)?)
        });
    }
    dispatch_element!(dtype, T => kernel(|context| {
        let (shape, spread) = broadcast_plan(context)?;
        let input = context.input(0)?;
        if input.shape() == &shape {
            return context.forward_input(0, 0, &shape);
        }
        let values = input.as_slice::<T>()?;
        output(context, shape, |out: &mut [T]| {
            spread.repeat(values, out, Threads::of(context));
            Ok(())
        })
    }))
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

fn ranged<T: Number>(
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

/// TensorFlow `ZerosLike` and `OnesLike`.
fn like(node: &KernelConstruction<'_>, value: u8) -> Made {
    fn made<T: Element>(value: u8) -> Made
    where
        u8: CastTo<T>,
    {
        kernel(move |context| {
            output(
                context,
                context.input(0)?.shape().clone(),
                |out: &mut [T]| {
                    out.fill(value.cast());
                    Ok(())
                },
            )
        })
    }
    let dtype = type_attr(node, "T")?;
    if dtype == DType::String {
        return kernel(|context| {
            let shape = context.input(0)?.shape().clone();
            let strings = filled_strings(&shape, |_| Arc::default())?;
            context.set_output(0, Tensor::from_strings(shape, strings)?)
        });
    }
    dispatch_element!(dtype, T => made::<T>(value))
}
