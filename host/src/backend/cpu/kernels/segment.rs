//! Rows that are combined by segment.

use crate::backend::cpu::kernels::def;
use crate::backend::host_kernels::Made;
use crate::backend::host_kernels::kernel;
use crate::backend::host_kernels::output;
use crate::backend::plan::attr::type_attr;
use crate::backend::plan::value::scalar;
use crate::backend::types::ARITHMETIC;
use crate::backend::types::INDICES;
use crate::backend::types::NUMBERS;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelError;
use crate::device::KernelRegistry;
use crate::kernels::Arithmetic;
use crate::kernels::Number;
use crate::kernels::Scratch;
use crate::kernels::Threads;
use crate::kernels::binary;
use crate::kernels::gather::NOWHERE;
use crate::kernels::reducer::Accumulate;
use crate::kernels::segment;
use crate::tensor::DType;
use crate::tensor::Element;
use crate::tensor::Shape;
use crate::tensor::Tensor;

/// Types of segment ids that the unsorted ops support.
const UNSORTED_IDS: [DType; 3] = [DType::I16, DType::I32, DType::I64];

type Make = fn(&KernelConstruction<'_>) -> Made;

pub(super) fn register(registry: &mut KernelRegistry) {
    let sorted: [(&str, &[DType], Make); 5] = [
        (
            "SegmentSum",
            &ARITHMETIC,
            |node| dispatch_arithmetic!(type_attr(node, "T")?, T => sorted(T::ZERO, T::plus)),
        ),
        (
            "SegmentProd",
            &ARITHMETIC,
            |node| dispatch_arithmetic!(type_attr(node, "T")?, T => sorted(T::ONE, T::times)),
        ),
        (
            "SegmentMax",
            &NUMBERS,
            |node| dispatch_number!(type_attr(node, "T")?, T => sorted(T::ZERO, binary::maximum::<T>)),
        ),
        (
            "SegmentMin",
            &NUMBERS,
            |node| dispatch_number!(type_attr(node, "T")?, T => sorted(T::ZERO, binary::minimum::<T>)),
        ),
        (
            "SegmentMean",
            &ARITHMETIC,
            |node| dispatch_arithmetic!(type_attr(node, "T")?, T => kernel(mean::<T>)),
        ),
    ];
    for (op, types, make) in sorted {
        registry.register(
            def(op)
                .with_types("T", types)
                .with_types("Tindices", &INDICES)
                .with_factory(make),
        );
    }
    let unsorted: [(&str, &[DType], Make); 4] = [
        (
            "UnsortedSegmentSum",
            &ARITHMETIC,
            |node| dispatch_arithmetic!(type_attr(node, "T")?, T => unsorted(T::ZERO, T::plus)),
        ),
        (
            "UnsortedSegmentProd",
            &ARITHMETIC,
            |node| dispatch_arithmetic!(type_attr(node, "T")?, T => unsorted(T::ONE, T::times)),
        ),
        ("UnsortedSegmentMax", &NUMBERS, |node| {
            dispatch_number!(type_attr(node, "T")?, T => {
                unsorted(T::LOWEST_FINITE, binary::maximum::<T>)
            })
        }),
        ("UnsortedSegmentMin", &NUMBERS, |node| {
            dispatch_number!(type_attr(node, "T")?, T => {
                unsorted(segment::highest_finite(), binary::minimum::<T>)
            })
        }),
    ];
    for (op, types, make) in unsorted {
        registry.register(
            def(op)
                .with_types("T", types)
                .with_types("Tindices", &UNSORTED_IDS)
                .with_types("Tnumsegments", &INDICES)
                .with_host_memory("num_segments")
                .with_factory(make),
        );
    }
}

/// TensorFlow `UnsortedSegmentSum` and the like. Rows of negative segments are dropped.
fn unsorted<T: Element>(start: T, join: impl Fn(T, T) -> T + Copy + Send + Sync + 'static) -> Made {
    kernel(move |context| {
        let (data, ids) = (context.input(0)?, context.input(1)?);
        let n_segments = scalar(context.input(2)?, "num_segments")?;
        let n = usize::try_from(n_segments).map_err(|_| {
            KernelError::invalid(format!(
                "input num_segments == {n_segments} must not be negative"
            ))
        })?;
        let Some(row) = data.shape().dims().strip_prefix(ids.shape().dims()) else {
            return Err(KernelError::invalid(format!(
                "data.shape = {} does not start with segment_ids.shape = {}",
                data.shape(),
                ids.shape()
            )));
        };
        let shape = std::iter::once(n).chain(row.iter().copied()).collect();
        let ids = numbered(context, ids, |position, id| match usize::try_from(id) {
            Ok(id) if id < n => Ok(id),
            Err(_) => Ok(NOWHERE),
            Ok(_) => Err(KernelError::invalid(format!(
                "segment_ids at position {position} = {id} is out of range [0, {n})"
            ))),
        })?;
        let inner = Shape::new(row).n_elements();
        let data = data.as_slice::<T>()?;
        output(context, shape, |out| {
            segment::unsorted(data, &ids, inner, out, start, join);
            Ok(())
        })
    })
}

/// TensorFlow `SegmentSum` and the like.
fn sorted<T: Element>(gap: T, join: impl Fn(T, T) -> T + Copy + Send + Sync + 'static) -> Made {
    kernel(move |context| {
        let (shape, ids, inner) = sorted_plan(context)?;
        let data = context.input(0)?.as_slice::<T>()?;
        output(context, shape, |out| {
            segment::sorted(data, &ids, inner, out, gap, join);
            Ok(())
        })
    })
}

/// TensorFlow `SegmentMean`.
fn mean<T: Accumulate>(context: &KernelContext<'_>) -> Result<(), KernelError> {
    let (shape, ids, inner) = sorted_plan(context)?;
    let data = context.input(0)?.as_slice::<T>()?;
    output(context, shape, |out| {
        segment::mean(data, &ids, inner, out);
        Ok(())
    })
}

/// Returns the result's shape, the checked segments of the rows, and the elements per row.
fn sorted_plan(context: &KernelContext<'_>) -> Result<(Shape, Scratch<usize>, usize), KernelError> {
    let (data, ids) = (context.input(0)?, context.input(1)?);
    let &[n_ids] = ids.shape().dims() else {
        return Err(KernelError::invalid(format!(
            "segment_ids should be a vector, not of shape {}",
            ids.shape()
        )));
    };
    let Some((&n_rows, row)) = data.shape().dims().split_first() else {
        return Err(KernelError::invalid("shape must be at least rank 1"));
    };
    if n_rows != n_ids {
        return Err(KernelError::invalid(format!(
            "segment_ids should be the same size as dimension 0 of input: {n_ids} vs. {n_rows}"
        )));
    }
    let mut previous = 0;
    let ids = numbered(context, ids, |_, id| {
        let id = usize::try_from(id)
            .map_err(|_| KernelError::invalid(format!("segment ids must be >= 0, found {id}")))?;
        if id < previous {
            return Err(KernelError::invalid("segment ids are not increasing"));
        }
        previous = id;
        Ok(id)
    })?;
    let n_segments = ids.last().map_or(0, |&last| last.saturating_add(1));
    let shape = std::iter::once(n_segments)
        .chain(row.iter().copied())
        .collect();
    Ok((shape, ids, Shape::new(row).n_elements()))
}

/// Returns the segments of all rows, as `check` gives them for position and id.
fn numbered(
    context: &KernelContext<'_>,
    ids: &Tensor,
    mut check: impl FnMut(usize, i64) -> Result<usize, KernelError>,
) -> Result<Scratch<usize>, KernelError> {
    fn fill<I: Copy + Into<i64>>(
        ids: &[I],
        numbers: &mut [usize],
        check: &mut impl FnMut(usize, i64) -> Result<usize, KernelError>,
    ) -> Result<(), KernelError> {
        for (position, (slot, &id)) in numbers.iter_mut().zip(ids).enumerate() {
            *slot = check(position, id.into())?;
        }
        Ok(())
    }
    let mut numbers = Threads::of(context).scratch(ids.shape().n_elements())?;
    dispatch!(ids.dtype(), [I16: i16, I32: i32, I64: i64], I => {
        fill(ids.as_slice::<I>()?, &mut numbers, &mut check)
    })?;
    Ok(numbers)
}
