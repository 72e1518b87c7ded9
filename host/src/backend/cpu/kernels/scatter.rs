//! Scatters: slices written to positions that indices give.

use crate::backend::cpu::kernels::def;
use crate::backend::cpu::kernels::raw::MOVED;
use crate::backend::cpu::kernels::raw::RawElements;
use crate::backend::host_kernels::Made;
use crate::backend::host_kernels::kernel;
use crate::backend::host_kernels::output;
use crate::backend::plan::attr::type_attr;
use crate::backend::plan::gather::ignores_bad_indices_attr;
use crate::backend::plan::scatter::scatter_plan;
use crate::backend::plan::value::shape_of;
use crate::backend::types::ARITHMETIC;
use crate::backend::types::ELEMENTS;
use crate::backend::types::INDICES;
use crate::backend::types::NUMBERS;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelError;
use crate::device::KernelRegistry;
use crate::kernels::Arithmetic;
use crate::kernels::binary;
use crate::kernels::scatter;
use crate::tensor::Boolean;
use crate::tensor::DType;
use crate::tensor::Element;

pub(super) fn register(registry: &mut KernelRegistry) {
    let mut add = |op: &str, types: &[DType], make: fn(&KernelConstruction<'_>) -> Made| {
        registry.register(
            def(op)
                .with_types("T", types)
                .with_types("Tindices", &INDICES)
                .with_factory(make),
        );
    };
    add("TensorScatterUpdate", &MOVED, update);
    add(
        "TensorScatterAdd",
        &ARITHMETIC,
        |node| dispatch_arithmetic!(type_attr(node, "T")?, T => joined(node, T::plus)),
    );
    add(
        "TensorScatterSub",
        &ARITHMETIC,
        |node| dispatch_arithmetic!(type_attr(node, "T")?, T => joined(node, T::minus)),
    );
    add(
        "TensorScatterMax",
        &NUMBERS,
        |node| dispatch_number!(type_attr(node, "T")?, T => joined(node, binary::maximum::<T>)),
    );
    add(
        "TensorScatterMin",
        &NUMBERS,
        |node| dispatch_number!(type_attr(node, "T")?, T => joined(node, binary::minimum::<T>)),
    );
    registry.register(
        def("ScatterNd")
            .with_types("T", &ELEMENTS)
            .with_types("Tindices", &INDICES)
            .with_host_memory("shape")
            .with_factory(scatter_nd),
    );
}

/// TensorFlow `TensorScatterUpdate`: the last of several updates of an element wins.
fn update(node: &KernelConstruction<'_>) -> Made {
    let ignores_bad = ignores_bad_indices_attr(node)?;
    dispatch_raw!(type_attr(node, "T")?, W => kernel(move |context| {
        replace::<W>(context, ignores_bad)
    }))
}

fn replace<W: RawElements>(
    context: &KernelContext<'_>,
    ignores_bad: bool,
) -> Result<(), KernelError> {
    let (tensor, indices, updates) = (context.input(0)?, context.input(1)?, context.input(2)?);
    let shape = tensor.shape();
    let plan = scatter_plan(context, indices, updates.shape(), shape, ignores_bad)?;
    let (old, new) = (W::read(tensor)?, W::read(updates)?);
    W::write(context, 0, tensor.dtype(), shape.clone(), |out| {
        out.copy_from_slice(&old);
        scatter::slices(&new, &plan.starts, plan.size, out, |_, new| new);
        Ok(())
    })
}

/// TensorFlow `TensorScatterAdd`, `TensorScatterSub`, `TensorScatterMax` and `TensorScatterMin`.
fn joined<T: Element>(
    node: &KernelConstruction<'_>,
    join: impl Fn(T, T) -> T + Copy + Send + Sync + 'static,
) -> Made {
    let ignores_bad = ignores_bad_indices_attr(node)?;
    kernel(move |context| {
        let (tensor, indices, updates) = (context.input(0)?, context.input(1)?, context.input(2)?);
        let shape = tensor.shape();
        let plan = scatter_plan(context, indices, updates.shape(), shape, ignores_bad)?;
        let (old, new) = (tensor.as_slice::<T>()?, updates.as_slice::<T>()?);
        context.fill_output(0, shape, |out| {
            out.copy_from_slice(old);
            scatter::slices(new, &plan.starts, plan.size, out, join);
            Ok(())
        })
    })
}

/// TensorFlow `ScatterNd`: updates of an element are added; of booleans, any.
fn scatter_nd(node: &KernelConstruction<'_>) -> Made {
    fn made<T: Element>(
        node: &KernelConstruction<'_>,
        join: impl Fn(T, T) -> T + Copy + Send + Sync + 'static,
    ) -> Made {
        let ignores_bad = ignores_bad_indices_attr(node)?;
        kernel(move |context| {
            let (indices, updates) = (context.input(0)?, context.input(1)?);
            let shape = shape_of(context.input(2)?, "shape")?;
            let plan = scatter_plan(context, indices, updates.shape(), &shape, ignores_bad)?;
            let new = updates.as_slice::<T>()?;
            output(context, shape, |out| {
                out.fill(T::zeroed());
                scatter::slices(new, &plan.starts, plan.size, out, join);
                Ok(())
            })
        })
    }
    match type_attr(node, "T")? {
        DType::Bool => made(node, |a: Boolean, b: Boolean| {
            (a.is_true() || b.is_true()).into()
        }),
        dtype => dispatch_arithmetic!(dtype, T => made(node, T::plus)),
    }
}
