//! Stacking of tensors along a new axis, and unstacking.

use smallvec::SmallVec;

use crate::backend::cpu::kernels::ELEMENTS;
use crate::backend::cpu::kernels::Made;
use crate::backend::cpu::kernels::def;
use crate::backend::cpu::kernels::int_attr;
use crate::backend::cpu::kernels::kernel;
use crate::backend::cpu::kernels::output;
use crate::backend::cpu::kernels::type_attr;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelError;
use crate::device::KernelRegistry;
use crate::kernels::Threads;
use crate::kernels::pack;
use crate::kernels::reduce::axis_index;
use crate::kernels::scratch;
use crate::tensor::DType;
use crate::tensor::Element;
use crate::tensor::Shape;
use crate::tensor::Tensor;

pub(super) fn register(registry: &mut KernelRegistry) {
    let types = [&ELEMENTS[..], &[DType::String]].concat();
    registry.register(def("Pack").with_types("T", &types).with_factory(make_pack));
    registry.register(
        def("Unpack")
            .with_types("T", &types)
            .with_factory(make_unpack),
    );
}

/// TensorFlow `Pack`: inputs of one shape, along a new axis.
fn make_pack(node: &KernelConstruction<'_>) -> Made {
    let axis = int_attr(node, "axis", Some(0))?;
    let dtype = type_attr(node, "T")?;
    if dtype == DType::String {
        return kernel(move |context| {
            let (shape, inner) = pack_plan(context, axis)?;
            let parts = context
                .inputs()
                .map(Tensor::as_strings)
                .collect::<Result<Vec<_>, _>>()?;
            let mut strings = scratch::list(shape.n_elements())?;
            strings.extend((0..shape.n_elements()).map(|flat| {
                let (row, column) = (flat / inner, flat % inner);
                parts[row % parts.len()][row / parts.len() * inner + column].clone()
            }));
            context.set_output(0, Tensor::from_strings(shape, strings)?)
        });
    }
    dispatch_element!(dtype, T => kernel(move |context| {
        let (shape, inner) = pack_plan(context, axis)?;
        if context.n_inputs() == 1 {
            return context.forward_input(0, 0, &shape);
        }
        let parts = context
            .inputs()
            .map(Tensor::as_slice::<T>)
            .collect::<Result<SmallVec<[&[T]; 8]>, _>>()?;
        output(context, shape, |out: &mut [T]| {
            pack::pack(&parts, inner, out, Threads::of(context));
            Ok(())
        })
    }))
}

/// Returns the shape of the stacked tensor, and the number of adjacent elements of an input that
/// stay adjacent.
pub(in crate::backend) fn pack_plan(
    context: &KernelContext<'_>,
    axis: i64,
) -> Result<(Shape, usize), KernelError> {
    let first = context.input(0)?.shape();
    for (index, other) in context.inputs().enumerate() {
        if other.shape() != first {
            return Err(KernelError::invalid(format!(
                "shapes of all inputs must match: values[0].shape = {first} != values[{index}].shape = {}",
                other.shape()
            )));
        }
    }
    let rank = first.rank() + 1;
    let axis = axis_index(axis, rank).ok_or_else(|| {
        KernelError::invalid(format!(
            "axis = {axis} not in [-{rank}, {rank}), packing values of shape {first}"
        ))
    })?;
    let mut dims: SmallVec<[usize; 8]> = SmallVec::from_slice(first.dims());
    dims.insert(axis, context.n_inputs());
    let inner = product(&first.dims()[axis..]);
    Ok((Shape::new(&dims), inner))
}

fn product(dims: &[usize]) -> usize {
    dims.iter().fold(1, |n, &dim| n.saturating_mul(dim))
}

/// TensorFlow `Unpack`: one output per index of an axis.
fn make_unpack(node: &KernelConstruction<'_>) -> Made {
    let axis = int_attr(node, "axis", Some(0))?;
    let n_parts = int_attr(node, "num", None)?;
    let dtype = type_attr(node, "T")?;
    if dtype == DType::String {
        return kernel(move |context| {
            let (shape, inner, n) = unpack_plan(context, axis, n_parts)?;
            let strings = context.input(0)?.as_strings()?;
            for index in 0..n {
                let mut part = scratch::list(shape.n_elements())?;
                part.extend((0..shape.n_elements()).map(|flat| {
                    strings[(flat / inner * n + index) * inner + flat % inner].clone()
                }));
                context.set_output(index, Tensor::from_strings(shape.clone(), part)?)?;
            }
            Ok(())
        });
    }
    dispatch_element!(dtype, T => kernel(move |context| unpack::<T>(context, axis, n_parts)))
}

fn unpack<T: Element>(
    context: &KernelContext<'_>,
    axis: i64,
    n_parts: i64,
) -> Result<(), KernelError> {
    let (shape, inner, n) = unpack_plan(context, axis, n_parts)?;
    if n == 1 {
        return context.forward_input(0, 0, &shape);
    }
    let x = context.input(0)?.as_slice::<T>()?;
    for index in 0..n {
        context.fill_output(index, &shape, |out: &mut [T]| {
            pack::unpack(x, n, index, inner, out, Threads::of(context));
            Ok(())
        })?;
    }
    Ok(())
}

/// Returns the shape of each part, the number of adjacent input elements that stay adjacent, and
/// the number of parts.
pub(in crate::backend) fn unpack_plan(
    context: &KernelContext<'_>,
    axis: i64,
    n_parts: i64,
) -> Result<(Shape, usize, usize), KernelError> {
    let shape = context.input(0)?.shape();
    let rank = shape.rank();
    let axis = axis_index(axis, rank).ok_or_else(|| {
        KernelError::invalid(format!(
            "axis = {axis} not in [-{rank}, {rank}), unpacking a value of shape {shape}"
        ))
    })?;
    let n = shape.dims()[axis];
    if usize::try_from(n_parts) != Ok(n) {
        return Err(KernelError::invalid(format!(
            "input shape axis {axis} must equal {n_parts}, got shape {shape}"
        )));
    }
    let mut dims: SmallVec<[usize; 8]> = SmallVec::from_slice(shape.dims());
    dims.remove(axis);
    Ok((Shape::new(&dims), product(&shape.dims()[axis + 1..]), n))
}
