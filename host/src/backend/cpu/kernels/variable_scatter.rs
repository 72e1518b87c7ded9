//! Variables of which a part is read or changed.

use smallvec::SmallVec;

use crate::backend::cpu::kernels::def;
use crate::backend::cpu::kernels::raw::MOVED;
use crate::backend::cpu::kernels::raw::RawElements;
use crate::backend::cpu::kernels::variable;
use crate::backend::host_kernels::Made;
use crate::backend::host_kernels::kernel;
use crate::backend::host_kernels::variable::read_as;
use crate::backend::plan::attr::int_attr;
use crate::backend::plan::attr::type_attr;
use crate::backend::plan::gather::GatherNdPlan;
use crate::backend::plan::gather::gather_nd_plan_of;
use crate::backend::plan::gather::gather_plan_of;
use crate::backend::plan::gather::ignores_bad_indices_attr;
use crate::backend::plan::scatter::rows_plan;
use crate::backend::plan::scatter::scatter_plan;
use crate::backend::plan::slice::SliceOf;
use crate::backend::plan::slice::strided_slice;
use crate::backend::types::ARITHMETIC;
use crate::backend::types::COMPLEX;
use crate::backend::types::INDICES;
use crate::backend::types::INTEGERS;
use crate::backend::types::NUMBERS;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelError;
use crate::device::KernelRegistry;
use crate::kernels::Arithmetic;
use crate::kernels::Integer;
use crate::kernels::Number;
use crate::kernels::Real;
use crate::kernels::Threads;
use crate::kernels::binary;
use crate::kernels::complex;
use crate::kernels::complex::Complex;
use crate::kernels::gather;
use crate::kernels::gather::NOWHERE;
use crate::kernels::scatter;
use crate::kernels::scratch;
use crate::kernels::strided::StridedCopy;
use crate::kernels::strided::row_major_strides;
use crate::tensor::DType;
use crate::tensor::Element;
use crate::tensor::Shape;
use crate::tensor::Tensor;
use crate::tensor::TensorError;

pub(super) fn register(registry: &mut KernelRegistry) {
    for (op, types) in [
        ("ResourceScatterUpdate", &MOVED[..]),
        ("ResourceScatterAdd", &ARITHMETIC),
        ("ResourceScatterSub", &ARITHMETIC),
        ("ResourceScatterMul", &ARITHMETIC),
        ("ResourceScatterDiv", &ARITHMETIC),
        ("ResourceScatterMin", &NUMBERS),
        ("ResourceScatterMax", &NUMBERS),
    ] {
        registry.register(
            def(op)
                .with_types("dtype", types)
                .with_types("Tindices", &INDICES)
                .with_factory(scatter_rows),
        );
    }
    for (op, types) in [
        ("ResourceScatterNdUpdate", &MOVED[..]),
        ("ResourceScatterNdAdd", &ARITHMETIC),
        ("ResourceScatterNdSub", &ARITHMETIC),
        ("ResourceScatterNdMin", &NUMBERS),
        ("ResourceScatterNdMax", &NUMBERS),
    ] {
        registry.register(
            def(op)
                .with_types("T", types)
                .with_types("Tindices", &INDICES)
                .with_factory(scatter_nd),
        );
    }
    for (op, factory) in [
        (
            "ResourceGather",
            gather_rows as fn(&KernelConstruction<'_>) -> Made,
        ),
        ("ResourceGatherNd", gather_nd),
    ] {
        registry.register(
            def(op)
                .with_types("dtype", &MOVED)
                .with_types("Tindices", &INDICES)
                .with_factory(factory),
        );
    }
    for (op, factory) in [
        (
            "ResourceStridedSliceAssign",
            assign_slice as fn(&KernelConstruction<'_>) -> Made,
        ),
        ("TensorStridedSliceUpdate", update_slice),
    ] {
        registry.register(
            def(op)
                .with_types("T", &MOVED)
                .with_types("Index", &INDICES)
                .with_host_memory("begin")
                .with_host_memory("end")
                .with_host_memory("strides")
                .with_factory(factory),
        );
    }
    registry.register(
        def("ResourceCountUpTo")
            .with_types("T", &INDICES)
            .with_factory(count_up_to),
    );
}

/// Slices of a variable, and the updates of each.
struct Slices<'a> {
    /// Start of each slice, in elements; [`NOWHERE`] for an ignored bad index.
    starts: &'a [usize],
    /// Elements per slice.
    size: usize,
    /// Whether one element is the update of all.
    is_scalar: bool,
}

/// Changes slices of a tensor that nothing else reads.
type Joiner =
    Box<dyn Fn(&mut Tensor, &Slices<'_>, &Tensor) -> Result<(), KernelError> + Send + Sync>;

/// Returns what an op does with the elements of a variable.
fn joiner(node: &KernelConstruction<'_>, dtype: DType) -> Result<Joiner, KernelError> {
    fn number<T: Number>(join: fn(T, T) -> T) -> Result<Joiner, KernelError> {
        made(join, false)
    }
    let op = node.op;
    match op {
        _ if op.ends_with("Update") => Ok(Box::new(replace)),
        _ if op.ends_with("Add") => {
            dispatch_arithmetic!(dtype, T => made::<T>(T::plus, false))
        }
        _ if op.ends_with("Sub") => {
            dispatch_arithmetic!(dtype, T => made::<T>(T::minus, false))
        }
        _ if op.ends_with("Mul") => {
            dispatch_arithmetic!(dtype, T => made::<T>(T::times, false))
        }
        _ if op.ends_with("Max") => {
            dispatch_number!(dtype, T => number::<T>(binary::maximum))
        }
        _ if op.ends_with("Min") => {
            dispatch_number!(dtype, T => number::<T>(binary::minimum))
        }
        _ if INTEGERS.contains(&dtype) => {
            dispatch_integer!(dtype, T => made::<T>(T::truncated_quotient, true))
        }
        _ if COMPLEX.contains(&dtype) => dispatch_complex!(dtype, T => {
            made::<T>(|x, y| T::narrow(complex::quotient(x.widen(), y.widen())), false)
        }),
        _ => dispatch_real!(dtype, T => made::<T>(T::over, false)),
    }
}

/// `join` is a pointer, so that there is one loop per type and not one per op.
fn made<T: Arithmetic>(join: fn(T, T) -> T, refuses_zero: bool) -> Result<Joiner, KernelError> {
    Ok(Box::new(move |held, slices, updates| {
        let updates = updates.as_slice::<T>()?;
        if refuses_zero && updates.contains(&T::ZERO) {
            return Err(KernelError::invalid("updates must not contain 0"));
        }
        let out = held.as_slice_mut::<T>().ok_or(TensorError::NotOnHost)?;
        if !slices.is_scalar {
            scatter::slices(updates, slices.starts, slices.size, out, join);
            return Ok(());
        }
        for &start in slices.starts.iter().filter(|&&start| start != NOWHERE) {
            for element in &mut out[start..start + slices.size] {
                *element = join(*element, updates[0]);
            }
        }
        Ok(())
    }))
}

/// The last of several updates of an element wins.
fn replace(held: &mut Tensor, slices: &Slices<'_>, updates: &Tensor) -> Result<(), KernelError> {
    let size = slices.size;
    let elements = slices.starts.iter().enumerate().flat_map(|(row, &start)| {
        let n_taken = if start == NOWHERE { 0 } else { size };
        (0..n_taken).map(move |at| (start + at, row * size + at))
    });
    let elements = elements.map(|(to, from)| match slices.is_scalar {
        true => (to, 0),
        false => (to, from),
    });
    copy_elements(held, updates, elements)
}

/// Copies elements: positions in `held` and in `from`.
fn copy_elements(
    held: &mut Tensor,
    from: &Tensor,
    elements: impl Iterator<Item = (usize, usize)>,
) -> Result<(), KernelError> {
    let Some(size) = held.dtype().size_bytes() else {
        let from = from.as_strings()?;
        let mut strings = scratch::collected(held.as_strings()?.iter().cloned())?;
        for (to, at) in elements {
            strings[to] = from[at].clone();
        }
        *held = Tensor::from_strings(held.shape().clone(), strings)?;
        return Ok(());
    };
    let from = from.as_bytes()?;
    let bytes = held.as_bytes_mut().ok_or(TensorError::NotOnHost)?;
    for (to, at) in elements {
        bytes[to * size..][..size].copy_from_slice(&from[at * size..][..size]);
    }
    Ok(())
}

/// TensorFlow `ResourceScatterUpdate`, `ResourceScatterAdd` and so on: indices are rows.
fn scatter_rows(node: &KernelConstruction<'_>) -> Made {
    let dtype = type_attr(node, "dtype")?;
    let join = joiner(node, dtype)?;
    kernel(move |context| {
        variable::change(context, dtype, &mut |held| {
            let (indices, updates) = (context.input(1)?, context.input(2)?);
            let plan = rows_plan(context, indices, updates.shape(), held.shape())?;
            let slices = Slices {
                starts: &plan.starts,
                size: plan.size,
                is_scalar: updates.shape().rank() == 0,
            };
            join(held, &slices, updates)
        })
    })
}

/// TensorFlow `ResourceScatterNdUpdate`, `ResourceScatterNdAdd` and so on.
fn scatter_nd(node: &KernelConstruction<'_>) -> Made {
    let dtype = type_attr(node, "T")?;
    let ignores_bad = ignores_bad_indices_attr(node)?;
    let join = joiner(node, dtype)?;
    kernel(move |context| {
        variable::change(context, dtype, &mut |held| {
            let (indices, updates) = (context.input(1)?, context.input(2)?);
            let (updated, shape) = (updates.shape(), held.shape());
            let plan = scatter_plan(context, indices, updated, shape, ignores_bad)?;
            let slices = Slices {
                starts: &plan.starts,
                size: plan.size,
                is_scalar: false,
            };
            join(held, &slices, updates)
        })
    })
}

/// TensorFlow `ResourceGather`.
fn gather_rows(node: &KernelConstruction<'_>) -> Made {
    let batch_dims = int_attr(node, "batch_dims", Some(0))?;
    let dtype = type_attr(node, "dtype")?;
    dispatch_raw!(dtype, W => kernel(move |context| {
        let params = read_as(context, dtype)?;
        let indices = context.input(1)?;
        let (plan, positions, shape) =
            gather_plan_of(context, &params, indices, batch_dims, batch_dims)?;
        let elements = W::read(&params)?;
        W::write(context, 0, dtype, shape, |out| {
            plan.apply(&elements, &positions, out, Threads::of(context));
            Ok(())
        })
    }))
}

/// TensorFlow `ResourceGatherNd`.
fn gather_nd(node: &KernelConstruction<'_>) -> Made {
    let dtype = type_attr(node, "dtype")?;
    dispatch_raw!(dtype, W => kernel(move |context| {
        let params = read_as(context, dtype)?;
        let GatherNdPlan { shape, starts, size } =
            gather_nd_plan_of(context, &params, context.input(1)?, false)?;
        let elements = W::read(&params)?;
        W::write(context, 0, dtype, shape, |out| {
            gather::slices(&elements, &starts, size, out, Threads::of(context));
            Ok(())
        })
    }))
}

/// TensorFlow `ResourceStridedSliceAssign`.
fn assign_slice(node: &KernelConstruction<'_>) -> Made {
    let dtype = type_attr(node, "T")?;
    let slice_of = strided_slice(node)?;
    kernel(move |context| {
        variable::change(context, dtype, &mut |held| {
            copy_into_slice(context, &slice_of, held, context.input(4)?)
        })
    })
}

/// TensorFlow `TensorStridedSliceUpdate`.
fn update_slice(node: &KernelConstruction<'_>) -> Made {
    let slice_of = strided_slice(node)?;
    kernel(move |context| {
        let mut result = context.device_context().copy_on_device(context.input(0)?)?;
        copy_into_slice(context, &slice_of, &mut result, context.input(4)?)?;
        context.set_output(0, result)
    })
}

/// Copies a value into the slice that inputs 1 to 3 select, broadcast to the shape of the slice.
fn copy_into_slice(
    context: &KernelContext<'_>,
    slice_of: &SliceOf,
    held: &mut Tensor,
    value: &Tensor,
) -> Result<(), KernelError> {
    let (shape, slice) = slice_of(context, held.shape())?;
    // TensorFlow does not look at the value of an empty slice.
    if shape.n_elements() == 0 {
        return Ok(());
    }
    let spread = broadcast(value.shape(), &shape).ok_or_else(|| {
        KernelError::invalid(format!(
            "a value of shape {} cannot be broadcast to the slice, which has shape {shape}",
            value.shape()
        ))
    })?;
    copy_elements(held, value, slice.positions().zip(spread.positions()))
}

/// Returns where the elements of a value are that is broadcast; dimensions of 1 before those of the
/// result are dropped.
fn broadcast(value: &Shape, to: &Shape) -> Option<StridedCopy> {
    let n_more = value.rank().saturating_sub(to.rank());
    let (dropped, dims) = value.dims().split_at(n_more);
    if dropped.iter().any(|&dim| dim != 1) {
        return None;
    }
    let n_before = to.rank() - dims.len();
    let strides = row_major_strides(dims);
    let mut axes: SmallVec<[(usize, isize); 6]> =
        to.dims()[..n_before].iter().map(|&n| (n, 0)).collect();
    for ((&dim, &stride), &n) in dims.iter().zip(&strides).zip(&to.dims()[n_before..]) {
        match dim {
            _ if dim == n => axes.push((n, stride)),
            1 => axes.push((n, 0)),
            _ => return None,
        }
    }
    Some(StridedCopy::new(0, axes))
}

/// TensorFlow `ResourceCountUpTo`: adds 1 to a scalar, and returns its value before.
#[expect(
    clippy::useless_conversion,
    reason = "it is one for i64 alone, one of the types of the macro"
)]
fn count_up_to(node: &KernelConstruction<'_>) -> Made {
    let limit = int_attr(node, "limit", None)?;
    dispatch!(type_attr(node, "T")?, [I32: i32, I64: i64], T => kernel(move |context| {
        let mut before = None;
        variable::change(context, T::DTYPE, &mut |held| {
            let shape = held.shape().clone();
            let elements = held.as_slice_mut::<T>().ok_or(TensorError::NotOnHost)?;
            let [count] = elements else {
                return Err(KernelError::invalid(format!(
                    "the variable must be a scalar to be counted; it has shape {shape}"
                )));
            };
            if i64::from(*count) >= limit {
                return Err(KernelError::OutOfRange(format!("reached limit of {limit}")));
            }
            before = Some(*count);
            *count = count.wrapping_add(1);
            Ok(())
        })?;
        context.fill_output(0, &Shape::scalar(), |out: &mut [T]| {
            out.fill(before.unwrap_or_default());
            Ok(())
        })
    }))
}
