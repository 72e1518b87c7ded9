//! Segments of rows that indices select: combined embeddings.

use crate::backend::cpu::kernels::def;
use crate::backend::host_kernels::Made;
use crate::backend::host_kernels::kernel;
use crate::backend::plan::attr::type_attr;
use crate::backend::plan::value::indices;
use crate::backend::plan::value::scalar;
use crate::backend::types::INDICES;
use crate::backend::types::NUMBERS;
use crate::backend::types::REALS;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelError;
use crate::device::KernelRegistry;
use crate::kernels::Arithmetic;
use crate::kernels::Real;
use crate::kernels::Threads;
use crate::tensor::DType;
use crate::tensor::Shape;

pub(super) fn register(registry: &mut KernelRegistry) {
    for (first, second, combiner) in [
        (
            "SparseSegmentSum",
            "SparseSegmentSumWithNumSegments",
            Combiner::Sum,
        ),
        (
            "SparseSegmentMean",
            "SparseSegmentMeanWithNumSegments",
            Combiner::Mean,
        ),
        (
            "SparseSegmentSqrtN",
            "SparseSegmentSqrtNWithNumSegments",
            Combiner::SqrtN,
        ),
    ] {
        let types: &[DType] = match combiner {
            Combiner::Sum => &NUMBERS,
            Combiner::Mean | Combiner::SqrtN => &REALS,
        };
        for op in [first, second] {
            registry.register(
                def(op)
                    .with_types("T", types)
                    .with_types("Tidx", &INDICES)
                    .with_types("Tsegmentids", &INDICES)
                    .with_factory(move |node| combine(node, combiner)),
            );
        }
    }
}

/// What a segment's rows become.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Combiner {
    Sum,
    /// The sum, divided by the number of rows.
    Mean,
    /// The sum, divided by the root of the number of rows.
    SqrtN,
}

/// TensorFlow `SparseSegmentSum` and its variants. As there, 16-bit floats are added as `float`.
fn combine(node: &KernelConstruction<'_>, combiner: Combiner) -> Made {
    let dtype = type_attr(node, "T")?;
    if dtype.is_integer() {
        return dispatch_integer!(dtype, T => kernel(|context| {
            combined::<T, T>(context, |x| x, |sum, _| sum)
        }));
    }
    dispatch_real!(dtype, T => kernel(move |context| {
        combined::<T, <T as Real>::Wide>(context, T::widen, |sum, n| {
            use crate::kernels::Number;
            #[expect(clippy::cast_precision_loss, reason = "a segment has fewer rows")]
            let n = n as f64;
            T::narrow(match combiner {
                Combiner::Sum => sum,
                Combiner::Mean => sum.over(Number::from_f64(n)),
                Combiner::SqrtN => sum.over(Number::from_f64(n.sqrt())),
            })
        })
    }))
}

fn combined<T: Arithmetic, W: Arithmetic>(
    context: &KernelContext<'_>,
    widen: impl Fn(T) -> W,
    finish: impl Fn(W, usize) -> T,
) -> Result<(), KernelError> {
    let (data, of_rows, ids) = (context.input(0)?, context.input(1)?, context.input(2)?);
    for (tensor, what) in [(of_rows, "indices"), (ids, "segment_ids")] {
        if tensor.shape().rank() != 1 {
            return Err(KernelError::invalid(format!("{what} should be a vector.")));
        }
    }
    if of_rows.shape() != ids.shape() {
        return Err(KernelError::invalid(
            "segment_ids and indices should have same size.",
        ));
    }
    let Some((&n_rows, row)) = data.shape().dims().split_first() else {
        return Err(KernelError::invalid("Shape must be at least rank 1"));
    };
    let (of_rows, ids) = (indices(of_rows)?, indices(ids)?);
    let after_last = ids.last().map_or(0, |&last| last.saturating_add(1));
    let n_segments = match context.n_inputs() {
        4 => {
            let n = scalar(context.input(3)?, "num_segments")?;
            if n < after_last {
                return Err(KernelError::invalid("segment ids must be < num_segments"));
            }
            n
        }
        _ => after_last,
    };
    let n_segments = usize::try_from(n_segments)
        .map_err(|_| KernelError::invalid("segment ids must be >= 0"))?;
    let shape: Shape = std::iter::once(n_segments)
        .chain(row.iter().copied())
        .collect();
    let len = Shape::new(row).n_elements();
    let data = data.as_slice::<T>()?;
    let mut sums = Threads::of(context).scratch::<W>(len)?;
    context.fill_output(0, &shape, |out: &mut [T]| {
        out.fill(T::ZERO);
        let mut start = 0;
        for segment in ids.chunk_by(|first, second| first == second) {
            let id = segment[0];
            if start > 0 && ids[start - 1] > id {
                return Err(KernelError::invalid("segment ids are not increasing"));
            }
            let place = usize::try_from(id).ok().filter(|&id| id < n_segments);
            let place = place.ok_or_else(|| {
                KernelError::invalid(format!(
                    "Segment id {id} out of range [0, {n_segments}), possibly because \
                     'segment_ids' input is not sorted."
                ))
            })?;
            sums.fill(W::ZERO);
            for (offset, &index) in of_rows[start..start + segment.len()].iter().enumerate() {
                let at = usize::try_from(index).ok().filter(|&index| index < n_rows);
                let at = at.ok_or_else(|| {
                    KernelError::invalid(format!(
                        "Bad: indices[{}] == {index} out of range [0, {n_rows})",
                        start + offset
                    ))
                })?;
                for (sum, &x) in sums.iter_mut().zip(&data[at * len..(at + 1) * len]) {
                    *sum = sum.plus(widen(x));
                }
            }
            let slots = &mut out[place * len..(place + 1) * len];
            for (slot, &sum) in slots.iter_mut().zip(sums.iter()) {
                *slot = finish(sum, segment.len());
            }
            start += segment.len();
        }
        Ok(())
    })
}
