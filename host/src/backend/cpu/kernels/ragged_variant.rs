//! Ragged tensors as elements of tensors, which loops over ragged rows use
//! (`ragged_tensor_to_variant_op.cc`, `ragged_tensor_from_variant_op.cc`).

use crate::backend::cpu::kernels::def;
use crate::backend::cpu::kernels::elements::checked_len;
use crate::backend::cpu::kernels::elements::joined;
use crate::backend::cpu::kernels::elements::kept_input;
use crate::backend::cpu::kernels::elements::of_rows;
use crate::backend::cpu::kernels::elements::part;
use crate::backend::cpu::kernels::elements::rows;
use crate::backend::cpu::kernels::elements::zeros;
use crate::backend::cpu::kernels::raw::MOVED;
use crate::backend::cpu::kernels::string_pieces::set_indices;
use crate::backend::host_kernels::Made;
use crate::backend::host_kernels::kernel;
use crate::backend::plan::attr::bool_attr;
use crate::backend::plan::attr::int_attr;
use crate::backend::plan::attr::type_attr;
use crate::backend::plan::value::indices;
use crate::backend::types::INDICES;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelError;
use crate::device::KernelRegistry;
use crate::kernels::Number;
use crate::kernels::scratch;
use crate::tensor::DType;
use crate::tensor::RaggedTensor;
use crate::tensor::Shape;
use crate::tensor::Tensor;
use crate::tensor::TensorError;
use crate::tensor::Variant;

pub(super) fn register(registry: &mut KernelRegistry) {
    for (op, factory) in [
        (
            "RaggedTensorToVariant",
            to_variant as fn(&KernelConstruction<'_>) -> Made,
        ),
        ("RaggedTensorFromVariant", from_variant),
    ] {
        registry.register(
            def(op)
                .with_types("Tvalues", &MOVED)
                .with_types("Tsplits", &INDICES)
                .with_factory(factory),
        );
    }
}

/// TensorFlow `RaggedTensorToVariant`.
fn to_variant(node: &KernelConstruction<'_>) -> Made {
    let is_batch = bool_attr(node, "batched_input", false)?;
    kernel(move |context| {
        let rank = context.n_inputs().saturating_sub(1);
        let mut tensors = scratch::list(rank + 1)?;
        for index in 0..=rank {
            tensors.push(kept_input(context, index)?);
        }
        let values = tensors
            .pop()
            .ok_or_else(|| KernelError::invalid("there are no values"))?;
        let ragged = RaggedTensor {
            splits: tensors,
            values,
        };
        if !is_batch {
            let one = vec![Variant::Ragged(ragged)];
            return context.set_output(0, Tensor::from_variants(Shape::scalar(), one)?);
        }
        let parts = components(context, &ragged)?;
        let shape = Shape::new(&[parts.len()]);
        context.set_output(0, Tensor::from_variants(shape, parts)?)
    })
}

/// Returns the rows of the outermost axis, which are ragged tensors of one axis less.
fn components(
    context: &KernelContext<'_>,
    ragged: &RaggedTensor,
) -> Result<Vec<Variant>, KernelError> {
    let (n_values, row) = rows(&ragged.values, "rt_dense_values")?;
    let mut splits = scratch::list(ragged.splits.len())?;
    for tensor in &ragged.splits {
        splits.push(checked_splits(tensor)?);
    }
    // Rows of each axis must exist in the next one.
    for (index, axis) in splits.iter().enumerate() {
        let n_next = splits
            .get(index + 1)
            .map_or(n_values, |next| next.len() - 1);
        if axis.last().is_some_and(|&end| end > n_next) {
            return Err(KernelError::invalid(format!(
                "the splits of axis {index} end beyond the {n_next} rows of the next axis"
            )));
        }
    }
    let n = splits.first().map_or(n_values, |first| first.len() - 1);
    let mut parts = scratch::list(n)?;
    for at in 0..n {
        let mut range = match splits.first() {
            Some(first) => first[at]..first[at + 1],
            None => at..at + 1,
        };
        let mut inner = Vec::new();
        for (axis, tensor) in splits.iter().zip(&ragged.splits).skip(1) {
            let of_row = &axis[range.start..=range.end];
            inner.push(moved_splits(context, tensor.dtype(), of_row)?);
            range = of_row[0]..of_row[of_row.len() - 1];
        }
        let shape = match splits.is_empty() {
            // Rows of a tensor without ragged axes lose their first one.
            true => row.clone(),
            false => of_rows(range.len(), &row),
        };
        let values = part(
            context,
            &ragged.values,
            range.start * row.n_elements(),
            &shape,
        )?;
        parts.push(Variant::Ragged(RaggedTensor {
            splits: inner,
            values,
        }));
    }
    Ok(parts)
}

/// Returns splits, which start at 0 and ascend.
fn checked_splits(tensor: &Tensor) -> Result<Vec<usize>, KernelError> {
    let values = indices(tensor)?;
    let mut splits = scratch::list(values.len())?;
    splits.extend(values.iter().filter_map(|&at| usize::try_from(at).ok()));
    let ascend = splits.first() == Some(&0) && splits.is_sorted();
    if !ascend || splits.len() != values.len() {
        return Err(KernelError::invalid(format!(
            "splits must start at 0 and ascend, but those of shape {} do not",
            tensor.shape()
        )));
    }
    Ok(splits)
}

/// Returns splits as a tensor of the device, relative to the first one.
fn moved_splits(
    context: &KernelContext<'_>,
    dtype: DType,
    splits: &[usize],
) -> Result<Tensor, KernelError> {
    fn write<T: Number>(tensor: &mut Tensor, splits: &[usize]) -> Result<(), KernelError> {
        let start = splits.first().copied().unwrap_or(0);
        let out = tensor.as_slice_mut::<T>().ok_or(TensorError::NotOnHost)?;
        for (slot, &split) in out.iter_mut().zip(splits) {
            // A difference of numbers of this type.
            *slot = T::from_i64(i64::try_from(split - start).unwrap_or(i64::MAX));
        }
        Ok(())
    }
    let mut tensor = zeros(context, dtype, &Shape::new(&[splits.len()]))?;
    match dtype {
        DType::I64 => write::<i64>(&mut tensor, splits)?,
        _ => write::<i32>(&mut tensor, splits)?,
    }
    Ok(tensor)
}

/// TensorFlow `RaggedTensorFromVariant`: the axes of the input become axes of the result.
fn from_variant(node: &KernelConstruction<'_>) -> Made {
    let input_rank = int_attr(node, "input_ragged_rank", None)?;
    let output_rank = checked_len(
        int_attr(node, "output_ragged_rank", None)?,
        "output_ragged_rank",
    )?;
    let (values_dtype, splits_dtype) = (type_attr(node, "Tvalues")?, type_attr(node, "Tsplits")?);
    kernel(move |context| {
        let encoded = context.input(0)?;
        let dims = encoded.shape().dims();
        let inferred = output_rank.checked_sub(dims.len());
        let rank = match usize::try_from(input_rank) {
            Ok(rank) if Some(rank) == inferred => rank,
            Err(_) if inferred.is_some() => inferred.unwrap_or(0),
            _ => {
                return Err(KernelError::invalid(format!(
                    "output_ragged_rank must be equal to input_ragged_rank + \
                     encoded_ragged.dims(): output_ragged_rank: {output_rank}, \
                     input_ragged_rank: {input_rank}, encoded_ragged.dims(): {}",
                    dims.len()
                )));
            }
        };
        let variants = encoded.as_variants()?;
        let mut ragged = scratch::list(variants.len())?;
        for variant in variants {
            let Variant::Ragged(element) = variant else {
                return Err(KernelError::invalid(
                    "an element of the input must be a ragged tensor, but it is a list",
                ));
            };
            checked(element, rank, values_dtype, splits_dtype)?;
            ragged.push(element);
        }
        if let (true, &[only]) = (dims.is_empty(), &ragged[..]) {
            for (index, tensor) in only.tensors().enumerate() {
                context.set_output(index, tensor.clone())?;
            }
            return Ok(());
        }
        let is_wide = splits_dtype == DType::I64;
        set_stacked(context, dims, &ragged, rank, is_wide)?;
        set_values(context, output_rank, &ragged, rank, values_dtype)
    })
}

/// Checks that an element has this many ragged axes, and these types.
fn checked(
    ragged: &RaggedTensor,
    rank: usize,
    values: DType,
    splits: DType,
) -> Result<(), KernelError> {
    if ragged.splits.len() != rank {
        return Err(KernelError::invalid(format!(
            "encoded input RaggedTensorVariant has ragged_rank={}. Expected ragged_rank={rank}.",
            ragged.splits.len()
        )));
    }
    let found = ragged.splits.iter().map(Tensor::dtype);
    let found = found.chain([ragged.values.dtype()]);
    let expected = std::iter::repeat_n(splits, rank).chain([values]);
    for (found, expected) in found.zip(expected) {
        if found != expected {
            return Err(KernelError::invalid(format!(
                "expected values or splits of type {expected}, got {found}"
            )));
        }
    }
    Ok(())
}

/// Returns the number of rows of the outermost axis.
fn n_rows(ragged: &RaggedTensor) -> Result<usize, KernelError> {
    match ragged.splits.first() {
        Some(splits) => Ok(splits.shape().n_elements().saturating_sub(1)),
        None => Ok(rows(&ragged.values, "values of a ragged tensor")?.0),
    }
}

/// Sets the outputs with splits.
fn set_stacked(
    context: &KernelContext<'_>,
    dims: &[usize],
    ragged: &[&RaggedTensor],
    rank: usize,
    is_wide: bool,
) -> Result<(), KernelError> {
    let mut outer = 1usize;
    for (index, pair) in dims.windows(2).enumerate() {
        outer = outer.saturating_mul(pair[0]);
        let splits = (0..outer.saturating_add(1)).map(|row| row.saturating_mul(pair[1]));
        set_splits(context, index, splits, is_wide)?;
    }
    let mut ends = scratch::list(ragged.len() + 1)?;
    let mut end = 0usize;
    ends.push(end);
    for ragged in ragged {
        end = end.saturating_add(n_rows(ragged)?);
        ends.push(end);
    }
    set_splits(context, dims.len() - 1, ends.into_iter(), is_wide)?;
    for axis in 0..rank {
        let lengths = ragged
            .iter()
            .map(|ragged| ragged.splits[axis].shape().n_elements());
        let n = lengths.fold(1, |sum: usize, n| sum.saturating_add(n));
        let mut splits = scratch::list(n)?;
        let mut start = 0usize;
        splits.push(start);
        for ragged in ragged {
            let inner = checked_splits(&ragged.splits[axis])?;
            let moved = inner
                .iter()
                .skip(1)
                .map(|&split| split.saturating_add(start));
            splits.extend(moved);
            start = splits.last().copied().unwrap_or(0);
        }
        set_splits(context, dims.len() + axis, splits.into_iter(), is_wide)?;
    }
    Ok(())
}

fn set_splits(
    context: &KernelContext<'_>,
    index: usize,
    splits: impl ExactSizeIterator<Item = usize>,
    is_wide: bool,
) -> Result<(), KernelError> {
    let splits = splits.map(|split| i64::try_from(split).unwrap_or(i64::MAX));
    let splits = scratch::collected(splits)?;
    set_indices(
        context,
        index,
        &Shape::new(&[splits.len()]),
        &splits,
        is_wide,
    )
}

/// Sets the output with values: those of all elements, one behind the other.
fn set_values(
    context: &KernelContext<'_>,
    index: usize,
    ragged: &[&RaggedTensor],
    rank: usize,
    dtype: DType,
) -> Result<(), KernelError> {
    let Some(first) = ragged.first() else {
        return joined(context, index, dtype, &Shape::new(&[0]), &[]);
    };
    let (_, row) = rows(&first.values, "values of a ragged tensor")?;
    let mut n = 0usize;
    for ragged in ragged {
        let (n_more, other) = rows(&ragged.values, "values of a ragged tensor")?;
        if other != row {
            return Err(KernelError::invalid(format!(
                "values of elements with {rank} ragged axes have rows of shapes {row} and {other}"
            )));
        }
        n = n.saturating_add(n_more);
    }
    let parts = scratch::collected(ragged.iter().map(|ragged| ragged.values.clone()))?;
    joined(context, index, dtype, &of_rows(n, &row), &parts)
}
