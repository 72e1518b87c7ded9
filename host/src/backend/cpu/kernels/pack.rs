//! Stacking of tensors along a new axis, and unstacking.

use smallvec::SmallVec;

use crate::backend::cpu::kernels::def;
use crate::backend::host_kernels::Made;
use crate::backend::host_kernels::kernel;
use crate::backend::host_kernels::output;
use crate::backend::plan::attr::int_attr;
use crate::backend::plan::attr::type_attr;
use crate::backend::plan::pack::pack_plan;
use crate::backend::plan::pack::unpack_plan;
use crate::backend::types::ELEMENTS;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelError;
use crate::device::KernelRegistry;
use crate::kernels::Threads;
use crate::kernels::pack;
use crate::kernels::scratch;
use crate::tensor::DType;
use crate::tensor::Element;
use crate::tensor::Shape;
use crate::tensor::Tensor;
use crate::tensor::TensorError;

pub(super) fn register(registry: &mut KernelRegistry) {
    let types = [&ELEMENTS[..], &[DType::String, DType::Variant]].concat();
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
    match dtype {
        DType::String => {
            return kernel(move |context| {
                let (shape, strings) = elements_of_stack(context, axis, Tensor::as_strings)?;
                context.set_output(0, Tensor::from_strings(shape, strings)?)
            });
        }
        DType::Variant => {
            return kernel(move |context| {
                let (shape, variants) = elements_of_stack(context, axis, Tensor::as_variants)?;
                context.set_output(0, Tensor::from_variants(shape, variants)?)
            });
        }
        _ => {}
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

/// TensorFlow `Unpack`: one output per index of an axis.
fn make_unpack(node: &KernelConstruction<'_>) -> Made {
    let axis = int_attr(node, "axis", Some(0))?;
    let n_parts = int_attr(node, "num", None)?;
    let dtype = type_attr(node, "T")?;
    match dtype {
        DType::String => kernel(move |context| {
            unpack_with(
                context,
                (axis, n_parts),
                Tensor::as_strings,
                Tensor::from_strings,
            )
        }),
        DType::Variant => kernel(move |context| {
            unpack_with(
                context,
                (axis, n_parts),
                Tensor::as_variants,
                Tensor::from_variants,
            )
        }),
        _ => {
            dispatch_element!(dtype, T => kernel(move |context| unpack::<T>(context, axis, n_parts)))
        }
    }
}

/// Returns the shape and the elements of a stack of tensors whose elements have no fixed size.
fn elements_of_stack<T: Clone>(
    context: &KernelContext<'_>,
    axis: i64,
    elements: impl Fn(&Tensor) -> Result<&[T], TensorError>,
) -> Result<(Shape, Vec<T>), KernelError> {
    let (shape, inner) = pack_plan(context, axis)?;
    let parts = context
        .inputs()
        .map(elements)
        .collect::<Result<SmallVec<[&[T]; 8]>, _>>()?;
    let mut stack = scratch::list(shape.n_elements())?;
    stack.extend((0..shape.n_elements()).map(|flat| {
        let (row, column) = (flat / inner, flat % inner);
        parts[row % parts.len()][row / parts.len() * inner + column].clone()
    }));
    Ok((shape, stack))
}

/// Unstacks a tensor whose elements have no fixed size.
fn unpack_with<T: Clone>(
    context: &KernelContext<'_>,
    (axis, n_parts): (i64, i64),
    elements: impl Fn(&Tensor) -> Result<&[T], TensorError>,
    tensor: impl Fn(Shape, Vec<T>) -> Result<Tensor, TensorError>,
) -> Result<(), KernelError> {
    let (shape, inner, n) = unpack_plan(context, axis, n_parts)?;
    let elements = elements(context.input(0)?)?;
    for index in 0..n {
        let mut part = scratch::list(shape.n_elements())?;
        part.extend(
            (0..shape.n_elements())
                .map(|flat| elements[(flat / inner * n + index) * inner + flat % inner].clone()),
        );
        context.set_output(index, tensor(shape.clone(), part)?)?;
    }
    Ok(())
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
