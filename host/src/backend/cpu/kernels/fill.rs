//! Tensors of one value, and broadcasting to a given shape.

use crate::backend::cpu::kernels::def;
use crate::backend::host_kernels::Made;
use crate::backend::host_kernels::kernel;
use crate::backend::host_kernels::output;
use crate::backend::plan::attr::type_attr;
use crate::backend::plan::fill::broadcast_plan;
use crate::backend::plan::fill::filled_shape;
use crate::backend::types::ELEMENTS;
use crate::backend::types::INDICES;
use crate::device::KernelConstruction;
use crate::device::KernelError;
use crate::device::KernelRegistry;
use crate::kernels::Threads;
use crate::kernels::cast::CastTo;
use crate::kernels::scratch;
use crate::tensor::ByteString;
use crate::tensor::DType;
use crate::tensor::Element;
use crate::tensor::Shape;
use crate::tensor::Tensor;

pub(super) fn register(registry: &mut KernelRegistry) {
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

/// Returns one string per element of the shape, which must not exceed the address space.
fn filled_strings(
    shape: &Shape,
    text: impl FnMut(usize) -> ByteString,
) -> Result<Vec<ByteString>, KernelError> {
    let n = shape.n_elements();
    let mut strings = scratch::list(n)?;
    strings.extend((0..n).map(text));
    Ok(strings)
}

fn broadcast_to(node: &KernelConstruction<'_>) -> Made {
    let dtype = type_attr(node, "T")?;
    if dtype == DType::String {
        return kernel(|context| {
            let (shape, spread) = broadcast_plan(context)?;
            let values = context.input(0)?.as_strings()?;
            let mut places = filled_strings(&shape, |_| ByteString::default())?;
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
            let strings = filled_strings(&shape, |_| ByteString::default())?;
            context.set_output(0, Tensor::from_strings(shape, strings)?)
        });
    }
    dispatch_element!(dtype, T => made::<T>(value))
}
