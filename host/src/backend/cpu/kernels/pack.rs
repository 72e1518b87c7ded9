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
