//! Slices, permutations and repetitions of tensors.

use crate::backend::cpu::kernels::def;
use crate::backend::cpu::kernels::raw::MOVED;
use crate::backend::cpu::kernels::raw::RawElements;
use crate::backend::host_kernels::Made;
use crate::backend::host_kernels::kernel;
use crate::backend::plan::attr::type_attr;
use crate::backend::plan::slice::rearrangement;
use crate::backend::types::COMPLEX;
use crate::backend::types::INDICES;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelError;
use crate::device::KernelRegistry;
use crate::kernels::Threads;
use crate::kernels::strided::StridedCopy;
use crate::tensor::Shape;

pub(super) fn register(registry: &mut KernelRegistry) {
    registry.register(
        def("Slice")
            .with_types("T", &MOVED)
            .with_types("Index", &INDICES)
            .with_host_memory("begin")
            .with_host_memory("size")
            .with_factory(rearrange),
    );
    registry.register(
        def("StridedSlice")
            .with_types("T", &MOVED)
            .with_host_memory("begin")
            .with_host_memory("end")
            .with_host_memory("strides")
            .with_factory(rearrange),
    );
    registry.register(
        def("ReverseV2")
            .with_types("T", &MOVED)
            .with_types("Tidx", &INDICES)
            .with_host_memory("axis")
            .with_factory(rearrange),
    );
    registry.register(
        def("Transpose")
            .with_types("T", &MOVED)
            .with_types("Tperm", &INDICES)
            .with_host_memory("perm")
            .with_factory(rearrange),
    );
    registry.register(
        def("ConjugateTranspose")
            .with_types("T", &MOVED)
            .with_types("Tperm", &INDICES)
            .with_host_memory("perm")
            .with_factory(conjugated),
    );
    registry.register(
        def("Tile")
            .with_types("Tmultiples", &INDICES)
            .with_host_memory("multiples")
            .with_factory(rearrange),
    );
}

/// Writes the elements of input 0 to output 0 in another order, or forwards input 0 if the order is
/// unchanged.
pub(super) fn rearranged<W: RawElements>(
    context: &KernelContext<'_>,
    shape: Shape,
    copy: &StridedCopy,
) -> Result<(), KernelError> {
    let input = context.input(0)?;
    if copy.is_identity(input.shape().n_elements()) {
        return context.forward_input(0, 0, &shape);
    }
    let elements = W::read(input)?;
    W::write(context, 0, input.dtype(), shape, |out| {
        copy.apply(&elements, out, Threads::of(context));
        Ok(())
    })
}

/// TensorFlow `ConjugateTranspose`: a transpose for numbers that are not complex.
fn conjugated(node: &KernelConstruction<'_>) -> Made {
    let dtype = type_attr(node, "T")?;
    if !COMPLEX.contains(&dtype) {
        return rearrange(node);
    }
    let plan = rearrangement(node)?;
    dispatch_complex!(dtype, T => kernel(move |context| {
        let (shape, copy) = plan(context)?;
        let elements = context.input(0)?.as_slice::<T>()?;
        context.fill_output(0, &shape, |out: &mut [T]| {
            copy.apply(elements, out, Threads::of(context));
            out.iter_mut().for_each(|slot| *slot = slot.conj());
            Ok(())
        })
    }))
}

fn rearrange(node: &KernelConstruction<'_>) -> Made {
    let plan = rearrangement(node)?;
    dispatch_raw!(type_attr(node, "T")?, W => kernel(move |context| {
        let (shape, copy) = plan(context)?;
        rearranged::<W>(context, shape, &copy)
    }))
}
