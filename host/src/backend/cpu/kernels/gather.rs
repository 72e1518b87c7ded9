//! Gathers: elements selected by their indices.

use crate::backend::cpu::kernels::def;
use crate::backend::cpu::kernels::raw::MOVED;
use crate::backend::cpu::kernels::raw::RawElements;
use crate::backend::host_kernels::Made;
use crate::backend::host_kernels::kernel;
use crate::backend::plan::attr::int_attr;
use crate::backend::plan::attr::type_attr;
use crate::backend::plan::gather::GATHERED_BY;
use crate::backend::plan::gather::GatherNdPlan;
use crate::backend::plan::gather::HOT;
use crate::backend::plan::gather::OneHotPlan;
use crate::backend::plan::gather::gather_nd_plan;
use crate::backend::plan::gather::gather_plan;
use crate::backend::plan::gather::ignores_bad_indices_attr;
use crate::backend::plan::gather::one_hot_plan;
use crate::backend::types::INDICES;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelError;
use crate::device::KernelRegistry;
use crate::kernels::Threads;
use crate::kernels::gather;

pub(super) fn register(registry: &mut KernelRegistry) {
    registry.register(
        def("Gather")
            .with_types("Tparams", &MOVED)
            .with_types("Tindices", &INDICES)
            .with_factory(gather),
    );
    registry.register(
        def("GatherV2")
            .with_types("Tparams", &MOVED)
            .with_types("Tindices", &GATHERED_BY)
            .with_types("Taxis", &INDICES)
            .with_host_memory("axis")
            .with_factory(gather),
    );
    registry.register(
        def("GatherNd")
            .with_types("Tparams", &MOVED)
            .with_types("Tindices", &GATHERED_BY)
            .with_factory(gather_nd),
    );
    registry.register(
        def("OneHot")
            .with_types("T", &MOVED)
            .with_types("TI", &HOT)
            .with_host_memory("depth")
            .with_factory(one_hot),
    );
}

fn gather(node: &KernelConstruction<'_>) -> Made {
    let batch_dims = int_attr(node, "batch_dims", Some(0))?;
    let has_axis = node.op == "GatherV2";
    dispatch_raw!(type_attr(node, "Tparams")?, W => kernel(move |context| {
        let (plan, positions, shape) = gather_plan(context, has_axis, batch_dims)?;
        let params = context.input(0)?;
        let elements = W::read(params)?;
        W::write(context, 0, params.dtype(), shape, |out| {
            plan.apply(&elements, &positions, out, Threads::of(context));
            Ok(())
        })
    }))
}

fn gather_nd(node: &KernelConstruction<'_>) -> Made {
    let ignores_bad = ignores_bad_indices_attr(node)?;
    dispatch_raw!(type_attr(node, "Tparams")?, W => kernel(move |context| {
        gather_slices::<W>(context, ignores_bad)
    }))
}

fn gather_slices<W: RawElements>(
    context: &KernelContext<'_>,
    ignores_bad: bool,
) -> Result<(), KernelError> {
    let GatherNdPlan {
        shape,
        starts,
        size,
    } = gather_nd_plan(context, ignores_bad)?;
    let params = context.input(0)?;
    let elements = W::read(params)?;
    W::write(context, 0, params.dtype(), shape, |out| {
        gather::slices(&elements, &starts, size, out, Threads::of(context));
        Ok(())
    })
}

fn one_hot(node: &KernelConstruction<'_>) -> Made {
    let axis = int_attr(node, "axis", Some(-1))?;
    dispatch_raw!(type_attr(node, "T")?, W => kernel(move |context| {
        let OneHotPlan { shape, depth, suffix } = one_hot_plan(context, axis)?;
        let (on, off) = (context.input(2)?, context.input(3)?);
        let (on_word, off_word) = (W::read(on)?[0], W::read(off)?[0]);
        let indices = context.input(0)?;
        W::write(context, 0, on.dtype(), shape, |out| {
            dispatch!(indices.dtype(), [U8: u8, I8: i8, I32: i32, I64: i64], I => {
                let hot = indices.as_slice::<I>()?;
                gather::one_hot(hot, depth, suffix, on_word, off_word, out);
                Ok(())
            })
        })
    }))
}
