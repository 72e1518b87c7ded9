//! Concatenation and splitting of tensors along an axis.

use smallvec::SmallVec;

use crate::backend::cpu::kernels::def;
use crate::backend::cpu::kernels::raw::MOVED;
use crate::backend::cpu::kernels::raw::RawElements;
use crate::backend::host_kernels::Made;
use crate::backend::host_kernels::kernel;
use crate::backend::plan::attr::type_attr;
use crate::backend::plan::concat::ConcatPlan;
use crate::backend::plan::concat::concat_plan;
use crate::backend::plan::concat::split_plan;
use crate::backend::plan::concat::split_v_plan;
use crate::backend::plan::product;
use crate::backend::types::INDICES;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelError;
use crate::device::KernelRegistry;
use crate::kernels::Threads;
use crate::kernels::concat;
use crate::kernels::strided::StridedCopy;
use crate::tensor::DType;
use crate::tensor::Shape;

pub(super) fn register(registry: &mut KernelRegistry) {
    registry.register(
        def("Concat")
            .with_types("T", &MOVED)
            .with_host_memory("concat_dim")
            .with_factory(|node| concat(node, true)),
    );
    registry.register(
        def("ConcatV2")
            .with_types("T", &MOVED)
            .with_types("Tidx", &INDICES)
            .with_host_memory("axis")
            .with_factory(|node| concat(node, false)),
    );
    registry.register(
        def("Split")
            .with_types("T", &MOVED)
            .with_host_memory("split_dim")
            .with_factory(split),
    );
    registry.register(
        def("SplitV")
            .with_types("T", &MOVED)
            .with_types("Tlen", &[DType::I8, DType::I32, DType::I64])
            .with_host_memory("size_splits")
            .with_host_memory("split_dim")
            .with_factory(split_v),
    );
}

fn concat(node: &KernelConstruction<'_>, axis_is_first: bool) -> Made {
    dispatch_raw!(type_attr(node, "T")?, W => kernel(move |context| {
        let ConcatPlan { values, shape, axis, inner } = concat_plan(context, axis_is_first)?;
        let elements = values.iter().map(|value| W::read(value)).collect::<Result<SmallVec<[_; 8]>, _>>()?;
        let rows: SmallVec<[_; 8]> = elements
            .iter()
            .zip(&values)
            .map(|(elements, value)| (&elements[..], value.shape().dims()[axis].saturating_mul(inner)))
            .collect();
        W::write(context, 0, values[0].dtype(), shape, |out| {
            concat::concat(&rows, out, Threads::of(context));
            Ok(())
        })
    }))
}

fn split(node: &KernelConstruction<'_>) -> Made {
    dispatch_raw!(type_attr(node, "T")?, W => kernel(|context| {
        let (axis, sizes) = split_plan(context)?;
        parts::<W>(context, 1, axis, &sizes)
    }))
}

fn split_v(node: &KernelConstruction<'_>) -> Made {
    dispatch_raw!(type_attr(node, "T")?, W => kernel(|context| {
        let (axis, sizes) = split_v_plan(context)?;
        parts::<W>(context, 0, axis, &sizes)
    }))
}

/// Writes the next `sizes[i]` indices of the axis to output `i`.
fn parts<W: RawElements>(
    context: &KernelContext<'_>,
    input: usize,
    axis: usize,
    sizes: &[usize],
) -> Result<(), KernelError> {
    let value = context.input(input)?;
    if sizes.len() == 1 {
        return context.forward_input(input, 0, value.shape());
    }
    let dims = value.shape().dims();
    let inner = product(&dims[axis + 1..]);
    let outer = product(&dims[..axis]);
    let stride = isize::try_from(inner.saturating_mul(dims[axis])).unwrap_or(isize::MAX);
    let elements = W::read(value)?;
    let mut start = 0;
    for (index, &size) in sizes.iter().enumerate() {
        let mut part: SmallVec<[usize; 6]> = dims.into();
        part[axis] = size;
        let length = size.saturating_mul(inner);
        let copy = StridedCopy::new(start, [(outer, stride), (length, 1)]);
        W::write(context, index, value.dtype(), Shape::new(&part), |out| {
            copy.apply(&elements, out, Threads::of(context));
            Ok(())
        })?;
        start = start.saturating_add(length);
    }
    Ok(())
}
