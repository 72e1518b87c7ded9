//! Rows that are distributed to several tensors, and brought together from several ones.

use crate::backend::cpu::kernels::def;
use crate::backend::cpu::kernels::raw::MOVED;
use crate::backend::cpu::kernels::raw::RawElements;
use crate::backend::host_kernels::Made;
use crate::backend::host_kernels::kernel;
use crate::backend::plan::attr::int_attr;
use crate::backend::plan::attr::type_attr;
use crate::backend::types::INDICES;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelError;
use crate::device::KernelRegistry;
use crate::kernels::Threads;
use crate::kernels::gather;
use crate::kernels::gather::NOWHERE;
use crate::kernels::scatter;
use crate::kernels::scratch;
use crate::tensor::Shape;

pub(super) fn register(registry: &mut KernelRegistry) {
    registry.register(
        def("DynamicPartition")
            .with_types("T", &MOVED)
            .with_factory(partition),
    );
    for op in ["DynamicStitch", "ParallelDynamicStitch"] {
        registry.register(def(op).with_types("T", &MOVED).with_factory(stitch));
    }
    registry.register(
        def("InvertPermutation")
            .with_types("T", &INDICES)
            .with_factory(
                |node| dispatch!(type_attr(node, "T")?, [I32: i32, I64: i64], T => kernel(invert::<T>)),
            ),
    );
}

/// TensorFlow `DynamicPartition`.
fn partition(node: &KernelConstruction<'_>) -> Made {
    let n = usize::try_from(int_attr(node, "num_partitions", None)?).unwrap_or(0);
    dispatch_raw!(type_attr(node, "T")?, W => kernel(move |context| distribute::<W>(context, n)))
}

fn distribute<W: RawElements>(context: &KernelContext<'_>, n: usize) -> Result<(), KernelError> {
    let (data, partitions) = (context.input(0)?, context.input(1)?);
    let Some(row) = data.shape().dims().strip_prefix(partitions.shape().dims()) else {
        return Err(KernelError::invalid(format!(
            "data.shape must start with partitions.shape, got data.shape = {}, partitions.shape = \
             {}",
            data.shape(),
            partitions.shape()
        )));
    };
    let threads = Threads::of(context);
    let given = partitions.as_slice::<i32>()?;
    let mut checked = threads.scratch(given.len())?;
    for (index, (slot, &partition)) in checked.iter_mut().zip(given).enumerate() {
        *slot = usize::try_from(partition)
            .ok()
            .filter(|&partition| partition < n)
            .ok_or_else(|| {
                KernelError::invalid(format!(
                    "partitions: element {index} = {partition} is not in [0, {n})"
                ))
            })?;
    }
    let mut ends = threads.scratch(n)?;
    let mut order = threads.scratch(given.len())?;
    scatter::partition(&checked, &mut ends, &mut order);
    let size = Shape::new(row).n_elements();
    for position in order.iter_mut() {
        *position *= size;
    }
    let elements = W::read(data)?;
    let mut start = 0;
    for (index, &end) in ends.iter().enumerate() {
        let shape = std::iter::once(end - start)
            .chain(row.iter().copied())
            .collect();
        W::write(context, index, data.dtype(), shape, |out| {
            gather::slices(&elements, &order[start..end], size, out, threads);
            Ok(())
        })?;
        start = end;
    }
    Ok(())
}

/// TensorFlow `DynamicStitch` and `ParallelDynamicStitch`. The last of several rows of an index
/// wins; rows without an index, which TensorFlow leaves undefined, are 0.
fn stitch(node: &KernelConstruction<'_>) -> Made {
    dispatch_raw!(type_attr(node, "T")?, W => kernel(merge::<W>))
}

fn merge<W: RawElements>(context: &KernelContext<'_>) -> Result<(), KernelError> {
    let n = context.n_inputs() / 2;
    let mut common: Option<(&[usize], Shape)> = None;
    let mut last = -1;
    for index in 0..n {
        let (indices, data) = (context.input(index)?, context.input(n + index)?);
        let Some(row) = data.shape().dims().strip_prefix(indices.shape().dims()) else {
            return Err(KernelError::invalid(format!(
                "data[{index}].shape = {} does not start with indices[{index}].shape = {}",
                data.shape(),
                indices.shape()
            )));
        };
        match &common {
            None => common = Some((row, data.shape().clone())),
            Some((first, shape)) if *first != row => {
                return Err(KernelError::invalid(format!(
                    "need data[0].shape[{}:] = data[{index}].shape[{}:], got data[0].shape = \
                     {shape}, data[{index}].shape = {}, indices[{index}].shape = {}",
                    shape.rank() - first.len(),
                    indices.shape().rank(),
                    data.shape(),
                    indices.shape()
                )));
            }
            Some(_) => {}
        }
        let largest = indices.as_slice::<i32>()?.iter().copied().max();
        last = last.max(largest.unwrap_or(-1));
    }
    let n_rows = usize::try_from(i64::from(last) + 1).unwrap_or(0);
    let mut sources = Threads::of(context).scratch::<[usize; 2]>(n_rows)?;
    sources.fill([NOWHERE; 2]);
    let mut parts = scratch::list(n)?;
    for input in 0..n {
        for (row, &index) in context.input(input)?.as_slice::<i32>()?.iter().enumerate() {
            let slot = usize::try_from(index)
                .ok()
                .and_then(|index| sources.get_mut(index));
            *slot.ok_or_else(|| {
                KernelError::invalid(format!(
                    "indices[{input}]: element {row} = {index} is out of range"
                ))
            })? = [input, row];
        }
        parts.push(W::read(context.input(n + input)?)?);
    }
    let (row, _) = common.ok_or_else(|| KernelError::invalid("there is nothing to stitch"))?;
    let shape = std::iter::once(n_rows).chain(row.iter().copied()).collect();
    let size = Shape::new(row).n_elements();
    W::write(context, 0, context.input(n)?.dtype(), shape, |out| {
        scatter::rows(|input| &*parts[input], &sources, size, out);
        Ok(())
    })
}

/// TensorFlow `InvertPermutation`.
fn invert<T: crate::kernels::Integer + Into<i64>>(
    context: &KernelContext<'_>,
) -> Result<(), KernelError> {
    let input = context.input(0)?;
    let &[n] = input.shape().dims() else {
        return Err(KernelError::invalid(format!(
            "invert_permutation expects a 1D vector, not {}",
            input.shape()
        )));
    };
    let x = input.as_slice::<T>()?;
    context.fill_output(0, input.shape(), |out: &mut [T]| {
        out.fill(T::from_i64(-1));
        for (position, &index) in (0..).zip(x) {
            let slot = usize::try_from(index.into())
                .ok()
                .and_then(|index| out.get_mut(index));
            let slot = slot.ok_or_else(|| {
                KernelError::invalid(format!("{index:?} is not between 0 and {n}"))
            })?;
            if *slot != T::from_i64(-1) {
                return Err(KernelError::invalid(format!(
                    "{index:?} is duplicated in the input"
                )));
            }
            *slot = T::from_i64(position);
        }
        Ok(())
    })
}
