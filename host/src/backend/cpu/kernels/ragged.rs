//! Ragged tensors: values, and the starts of their rows.

use crate::backend::cpu::kernels::def;
use crate::backend::cpu::kernels::raw::MOVED;
use crate::backend::cpu::kernels::raw::RawElements;
use crate::backend::cpu::kernels::string_pieces::set_indices;
use crate::backend::host_kernels::Made;
use crate::backend::host_kernels::kernel;
use crate::backend::plan::attr::bad_attr;
use crate::backend::plan::attr::int_attr;
use crate::backend::plan::attr::type_attr;
use crate::backend::plan::value::indices;
use crate::backend::types::INDICES;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelError;
use crate::device::KernelRegistry;
use crate::graph::AttrValue;
use crate::kernels::Broadcast;
use crate::kernels::Number;
use crate::kernels::Threads;
use crate::kernels::ragged;
use crate::kernels::ragged::Partition;
use crate::kernels::ragged::RangeNumber;
use crate::kernels::scratch;
use crate::tensor::DType;
use crate::tensor::Shape;

pub(super) fn register(registry: &mut KernelRegistry) {
    registry.register(
        def("RaggedTensorToTensor")
            .with_types("T", &MOVED)
            .with_types("Tindex", &INDICES)
            .with_types("Tshape", &INDICES)
            .with_factory(to_tensor),
    );
    registry.register(
        def("RaggedTensorToSparse")
            .with_types("T", &MOVED)
            .with_types("Tsplits", &INDICES)
            .with_factory(to_sparse),
    );
    registry.register(
        def("RaggedRange")
            .with_types("T", &[DType::F32, DType::F64, DType::I32, DType::I64])
            .with_types("Tsplits", &INDICES)
            .with_factory(range),
    );
    registry.register(
        def("RaggedGather")
            .with_types("Tvalues", &MOVED)
            .with_types("Tsplits", &INDICES)
            .with_types("Tindices", &INDICES)
            .with_factory(gather),
    );
}

/// TensorFlow `RaggedTensorToTensor`.
fn to_tensor(node: &KernelConstruction<'_>) -> Made {
    let types = node.attrs.list("row_partition_types");
    let types = types.ok_or_else(|| bad_attr(node, "row_partition_types", "list(string)"))?;
    let mut partitions = scratch::list::<Partition>(types.len())?;
    for name in types {
        let partition = match name {
            AttrValue::Bytes(name) => Partition::from_name(name),
            _ => None,
        };
        partitions.push(partition.ok_or_else(|| {
            KernelError::invalid(
                "Unknown row partition type; expected FIRST_DIM_SIZE, VALUE_ROWIDS or ROW_SPLITS",
            )
        })?);
    }
    dispatch_raw!(type_attr(node, "T")?, W => kernel(move |context| {
        let (sizes, values, default) = (context.input(0)?, context.input(1)?, context.input(2)?);
        let requested = match sizes.shape().rank() {
            // A scalar -1: nothing is requested.
            0 => None,
            _ => Some(indices(sizes)?),
        };
        let mut tensors = scratch::list(partitions.len())?;
        for (index, &partition) in partitions.iter().enumerate() {
            tensors.push((partition, indices(context.input(3 + index)?)?));
        }
        let plan = ragged::Dense::plan(&tensors, requested.as_deref(), values.shape())
            .map_err(KernelError::InvalidArgument)?;
        let element = plan.element();
        let broadcast = Broadcast::new(default.shape(), &element)?;
        if *broadcast.shape() != element {
            return Err(KernelError::invalid(format!(
                "default_value.shape={} and rt_input.flat_values.shape={} are incompatible: \
                 default_value cannot have more dimensions",
                default.shape(),
                values.shape()
            )));
        }
        plan.shape.size_bytes(values.dtype()).map_err(crate::tensor::TensorError::from)?;
        let len = element.n_elements();
        let mut places = Threads::of(context).scratch::<u64>(len)?;
        let of_default = default.shape().n_elements();
        let mut numbers = Threads::of(context).scratch::<u64>(of_default)?;
        numbers.iter_mut().enumerate().for_each(|(index, number)| *number = index as u64);
        let zeros = Threads::of(context).scratch::<u64>(len)?;
        broadcast.apply(&numbers, &zeros, &mut places, Threads::single(), |number, _| number);
        let dtype = values.dtype();
        let (values, default) = (W::read(values)?, W::read(default)?);
        W::write(context, 0, dtype, plan.shape.clone(), |out| {
            for row in out.chunks_exact_mut(len.max(1)) {
                for (slot, &place) in row.iter_mut().zip(places.iter()) {
                    *slot = default[usize::try_from(place).unwrap_or(0)];
                }
            }
            for (row, place) in plan.places.iter().enumerate() {
                if let (Some(place), Some(from)) = (place, values.get(row * len..(row + 1) * len)) {
                    out[place * len..(place + 1) * len].copy_from_slice(from);
                }
            }
            Ok(())
        })
    }))
}

/// Returns the starts of rows in an input, which must start with 0 and not decrease.
fn splits(
    context: &KernelContext<'_>,
    index: usize,
) -> Result<smallvec::SmallVec<[i64; 8]>, KernelError> {
    let input = context.input(index)?;
    let splits = indices(input)?;
    if input.shape().rank() != 1 || splits.first() != Some(&0) {
        return Err(KernelError::invalid(format!(
            "First value of ragged splits must be 0, in a vector; found {splits:?}"
        )));
    }
    if splits.windows(2).any(|pair| pair[1] < pair[0]) {
        return Err(KernelError::invalid(
            "Ragged splits should be non decreasing",
        ));
    }
    Ok(splits.into())
}

/// TensorFlow `RaggedTensorToSparse`.
fn to_sparse(node: &KernelConstruction<'_>) -> Made {
    let n_splits = int_attr(node, "RAGGED_RANK", None)?;
    let n_splits = usize::try_from(n_splits).unwrap_or(0).max(1);
    kernel(move |context| {
        let mut all = scratch::list(n_splits)?;
        for index in 0..n_splits {
            all.push(splits(context, index)?);
        }
        let values = context.input(n_splits)?;
        let dims = values.shape().dims();
        let Some(&n_rows) = dims.first() else {
            return Err(KernelError::invalid("values must be at least a vector"));
        };
        for (index, splits) in all.iter().enumerate() {
            let expected = all.get(index + 1).map_or(n_rows, |next| next.len() - 1);
            if splits.last().copied() != i64::try_from(expected).ok() {
                return Err(KernelError::invalid(format!(
                    "Final value of ragged splits must match the length the corresponding ragged \
                     array, {expected}; found {:?}",
                    splits.last()
                )));
            }
        }
        let element = Shape::new(&dims[1..]);
        let (len, rank) = (element.n_elements(), n_splits + dims.len());
        let n = values.shape().n_elements();
        context.fill_output(0, &Shape::new(&[n, rank]), |out: &mut [i64]| {
            for (index, slot) in out.chunks_exact_mut(rank).enumerate() {
                let mut inner = index % len;
                for (slot, &size) in slot[n_splits + 1..].iter_mut().zip(&dims[1..]).rev() {
                    *slot = i64::try_from(inner % size).unwrap_or(i64::MAX);
                    inner /= size;
                }
                let mut row = i64::try_from(index / len).unwrap_or(i64::MAX);
                for (level, splits) in all.iter().enumerate().rev() {
                    let parent = splits.partition_point(|&start| start <= row) - 1;
                    slot[level + 1] = row - splits[parent];
                    row = i64::try_from(parent).unwrap_or(i64::MAX);
                }
                slot[0] = row;
            }
            Ok(())
        })?;
        context.forward_input(n_splits, 1, &Shape::new(&[n]))?;
        context.fill_output(2, &Shape::new(&[rank]), |out: &mut [i64]| {
            out[0] = i64::try_from(all[0].len() - 1).unwrap_or(i64::MAX);
            for (slot, splits) in out[1..].iter_mut().zip(&all) {
                *slot = splits
                    .windows(2)
                    .map(|pair| pair[1] - pair[0])
                    .max()
                    .unwrap_or(0);
            }
            for (slot, &size) in out[n_splits + 1..].iter_mut().zip(&dims[1..]) {
                *slot = i64::try_from(size).unwrap_or(i64::MAX);
            }
            Ok(())
        })
    })
}

/// TensorFlow `RaggedRange`.
fn range(node: &KernelConstruction<'_>) -> Made {
    fn ranges<T: Number + RangeNumber>(
        context: &KernelContext<'_>,
        is_wide: bool,
    ) -> Result<(), KernelError> {
        let mut n_rows = None;
        for (index, what) in ["starts", "limits", "deltas"].into_iter().enumerate() {
            match (context.input(index)?.shape().dims(), n_rows) {
                ([], _) => {}
                (&[n], None) => n_rows = Some(n),
                (&[n], Some(known)) if n == known => {}
                (&[_], _) => {
                    return Err(KernelError::invalid(
                        "starts, limits, and deltas must have the same shape",
                    ));
                }
                _ => {
                    return Err(KernelError::invalid(format!(
                        "{what} must be a scalar or vector"
                    )));
                }
            }
        }
        let n_rows = n_rows.unwrap_or(1);
        let of_row = |index: usize, row: usize| -> Result<T, KernelError> {
            let values = context.input(index)?.as_slice::<T>()?;
            let value = if values.len() == 1 {
                values.first()
            } else {
                values.get(row)
            };
            value
                .copied()
                .ok_or_else(|| KernelError::invalid("a row has no range"))
        };
        let mut splits = scratch::list::<i64>(n_rows + 1)?;
        splits.push(0);
        let mut end = 0i64;
        for row in 0..n_rows {
            let (start, limit, delta) = (of_row(0, row)?, of_row(1, row)?, of_row(2, row)?);
            if delta == T::ZERO {
                return Err(KernelError::invalid("Requires delta != 0"));
            }
            let n = T::range_len(start, limit, delta);
            let n = n.filter(|&n| n <= i64::MAX - end).ok_or_else(|| {
                KernelError::invalid("Requires ((limit - start) / delta) <= 9223372036854775807")
            })?;
            end += n;
            splits.push(end);
        }
        set_indices(context, 0, &Shape::new(&[n_rows + 1]), &splits, is_wide)?;
        let n = usize::try_from(end).unwrap_or(usize::MAX);
        context.fill_output(1, &Shape::new(&[n]), |out: &mut [T]| {
            let mut slots = out.iter_mut();
            for row in 0..n_rows {
                let (mut value, delta) = (of_row(0, row)?, of_row(2, row)?);
                let n = usize::try_from(splits[row + 1] - splits[row]).unwrap_or(0);
                for slot in slots.by_ref().take(n) {
                    *slot = value;
                    value = value.plus(delta);
                }
            }
            Ok(())
        })
    }
    let is_wide = type_attr(node, "Tsplits")? == DType::I64;
    dispatch!(type_attr(node, "T")?, [F32: f32, F64: f64, I32: i32, I64: i64], T => {
        kernel(move |context| ranges::<T>(context, is_wide))
    })
}

/// TensorFlow `RaggedGather`.
fn gather(node: &KernelConstruction<'_>) -> Made {
    let n_splits = usize::try_from(int_attr(node, "PARAMS_RAGGED_RANK", None)?)
        .unwrap_or(0)
        .max(1);
    let n_outputs = usize::try_from(int_attr(node, "OUTPUT_RAGGED_RANK", None)?).unwrap_or(0);
    let is_wide = type_attr(node, "Tsplits")? == DType::I64;
    dispatch_raw!(type_attr(node, "Tvalues")?, W => kernel(move |context| {
        let mut all = scratch::list(n_splits)?;
        for index in 0..n_splits {
            all.push(splits(context, index)?);
        }
        let (values, of_rows) = (context.input(n_splits)?, context.input(n_splits + 1)?);
        let (Some(&n_values), rank) = (values.shape().dims().first(), of_rows.shape().rank()) else {
            return Err(KernelError::invalid("params.rank must be nonzero"));
        };
        if (n_splits + rank).checked_sub(1) != Some(n_outputs) {
            return Err(KernelError::invalid(format!(
                "OUTPUT_RAGGED_RANK is {n_outputs}, but indices have rank {rank} and params \
                 {n_splits} levels of rows"
            )));
        }
        for (level, splits) in all.iter().enumerate() {
            let next = all.get(level + 1).map_or(n_values, |next| next.len() - 1);
            if splits.last().is_none_or(|&last| usize::try_from(last).map_or(true, |last| last > next)) {
                return Err(KernelError::invalid(
                    "Ragged splits must not point past values",
                ));
            }
        }
        // The rows of the indices' inner axes are all of one length.
        let dims = of_rows.shape().dims();
        let mut outer = 1usize;
        for (axis, pair) in dims.windows(2).enumerate() {
            outer = outer.saturating_mul(pair[0]);
            let mut regular = scratch::list::<i64>(outer + 1)?;
            regular.extend((0..=outer).map(|row| i64::try_from(row * pair[1]).unwrap_or(i64::MAX)));
            set_indices(context, axis, &Shape::new(&[outer + 1]), &regular, is_wide)?;
        }
        let of_rows = indices(of_rows)?;
        let n_rows = all[0].len() - 1;
        let mut pieces = scratch::list::<(usize, usize)>(of_rows.len())?;
        for (index, &row) in of_rows.iter().enumerate() {
            let row_index = usize::try_from(row).ok().filter(|&row| row < n_rows);
            let row = row_index.ok_or_else(|| KernelError::invalid(format!(
                "indices[{index}] = {row} is not in [0, {n_rows})"
            )))?;
            pieces.push((row, row + 1));
        }
        for (level, splits) in all.iter().enumerate() {
            let n = pieces.iter().fold(1usize, |n, (start, end)| n.saturating_add(end - start));
            let mut gathered = scratch::list::<i64>(n)?;
            gathered.push(0);
            let mut end = 0;
            for (first, last) in &mut pieces {
                for row in *first..*last {
                    end += splits[row + 1] - splits[row];
                    gathered.push(end);
                }
                let range = [splits[*first], splits[*last]];
                [*first, *last] = range.map(|at| usize::try_from(at).unwrap_or(0));
            }
            let output = dims.len().saturating_sub(1) + level;
            if rank == 0 && level == 0 {
                continue;
            }
            let output = if rank == 0 { level - 1 } else { output };
            set_indices(context, output, &Shape::new(&[gathered.len()]), &gathered, is_wide)?;
        }
        let element = Shape::new(&values.shape().dims()[1..]);
        let len = element.n_elements();
        let n = pieces.iter().fold(0usize, |n, (start, end)| n.saturating_add(end - start));
        let shape: Shape = std::iter::once(n).chain(element.dims().iter().copied()).collect();
        let dtype = values.dtype();
        let values = W::read(values)?;
        W::write(context, n_outputs, dtype, shape, |out| {
            let mut at = 0;
            for &(start, end) in &pieces {
                let from = &values[start * len..end * len];
                out[at..at + from.len()].copy_from_slice(from);
                at += from.len();
            }
            Ok(())
        })
    }))
}
