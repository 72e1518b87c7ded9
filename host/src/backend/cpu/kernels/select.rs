//! Choice between two tensors, element by element.

use crate::backend::cpu::kernels::def;
use crate::backend::host_kernels::Made;
use crate::backend::host_kernels::kernel;
use crate::backend::host_kernels::output;
use crate::backend::plan::attr::type_attr;
use crate::backend::plan::select;
use crate::backend::plan::select::SelectPlan;
use crate::backend::types::ELEMENTS;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelError;
use crate::device::KernelRegistry;
use crate::kernels::Scratch;
use crate::kernels::Threads;
use crate::kernels::scratch;
use crate::tensor::Boolean;
use crate::tensor::DType;
use crate::tensor::Tensor;

pub(super) fn register(registry: &mut KernelRegistry) {
    let types = [&ELEMENTS[..], &[DType::String]].concat();
    registry.register(
        def("Select")
            .with_types("T", &types)
            .with_factory(|node| make(node, select::by_rows)),
    );
    registry.register(
        def("SelectV2")
            .with_types("T", &types)
            .with_factory(|node| make(node, select::broadcast)),
    );
}

fn make(node: &KernelConstruction<'_>, plan: SelectPlan) -> Made {
    let dtype = type_attr(node, "T")?;
    if dtype == DType::String {
        return kernel(move |context| strings(context, plan));
    }
    dispatch_element!(dtype, T => kernel(move |context| {
        let (condition, t, e) = (context.input(0)?, context.input(1)?, context.input(2)?);
        let (shape, spread) = plan(condition.shape(), t.shape(), e.shape())?;
        let condition = condition.as_slice::<Boolean>()?;
        let (t, e) = (t.as_slice::<T>()?, e.as_slice::<T>()?);
        output(context, shape, |out: &mut [T]| {
            let threads = Threads::of(context);
            spread.select(condition, t, e, out, threads, Boolean::is_true);
            Ok(())
        })
    }))
}

/// The same for strings: selects positions, then copies their strings.
fn strings(context: &KernelContext<'_>, plan: SelectPlan) -> Result<(), KernelError> {
    let (condition, t, e) = (context.input(0)?, context.input(1)?, context.input(2)?);
    let (shape, spread) = plan(condition.shape(), t.shape(), e.shape())?;
    let condition = condition.as_slice::<Boolean>()?;
    let (t, e) = (t.as_strings()?, e.as_strings()?);
    let threads = Threads::of(context);
    // The positions of the second operand follow those of the first.
    let places = |first: usize, n: usize| -> Result<Scratch<usize>, KernelError> {
        let mut places = threads.scratch::<usize>(n)?;
        (first..)
            .zip(places.iter_mut())
            .for_each(|(place, slot)| *slot = place);
        Ok(places)
    };
    let mut chosen = threads.scratch::<usize>(shape.n_elements())?;
    spread.select(
        condition,
        &places(0, t.len())?,
        &places(t.len(), e.len())?,
        &mut chosen,
        threads.alone(),
        Boolean::is_true,
    );
    let mut strings = scratch::list(chosen.len())?;
    strings.extend(chosen.iter().map(|&place| match t.get(place) {
        Some(text) => text.clone(),
        None => e[place - t.len()].clone(),
    }));
    context.set_output(0, Tensor::from_strings(shape, strings)?)
}
