//! Sparse tensors that are joined, cut, added and reduced.

use smallvec::SmallVec;

use crate::backend::cpu::kernels::def;
use crate::backend::cpu::kernels::raw::MOVED;
use crate::backend::cpu::kernels::sparse::sparse_input;
use crate::backend::cpu::kernels::string_pieces::set_indices;
use crate::backend::host_kernels::Made;
use crate::backend::host_kernels::kernel;
use crate::backend::plan::attr::bool_attr;
use crate::backend::plan::attr::int_attr;
use crate::backend::plan::attr::type_attr;
use crate::backend::plan::value::indices;
use crate::backend::types::ARITHMETIC;
use crate::backend::types::NUMBERS;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelError;
use crate::device::KernelRegistry;
use crate::kernels::Arithmetic;
use crate::kernels::Number;
use crate::kernels::binary;
use crate::kernels::complex::Complex;
use crate::kernels::scratch;
use crate::kernels::slice::axis_index;
use crate::tensor::DType;
use crate::tensor::Shape;
use crate::tensor::Tensor;
use crate::tensor::TensorError;

/// Types that TensorFlow registers for `SparseAdd`.
const ADDED: [DType; 8] = [
    DType::F32,
    DType::F64,
    DType::I8,
    DType::I16,
    DType::I32,
    DType::I64,
    DType::Complex64,
    DType::Complex128,
];

pub(super) fn register(registry: &mut KernelRegistry) {
    registry.register(
        def("SparseConcat")
            .with_types("T", &MOVED)
            .with_factory(concat),
    );
    registry.register(
        def("SparseSlice")
            .with_types("T", &MOVED)
            .with_factory(|_| kernel(slice)),
    );
    registry.register(def("SparseAdd").with_types("T", &ADDED).with_factory(add));
    for op in ["SparseReduceSum", "SparseReduceSumSparse"] {
        registry.register(def(op).with_types("T", &ARITHMETIC).with_factory(
            |node| dispatch_arithmetic!(type_attr(node, "T")?, T => reduce::<T>(node, T::plus)),
        ));
    }
    for op in ["SparseReduceMax", "SparseReduceMaxSparse"] {
        registry.register(def(op).with_types("T", &NUMBERS).with_factory(
            |node| dispatch_number!(type_attr(node, "T")?, T => reduce::<T>(node, binary::maximum)),
        ));
    }
}

/// Sets an output to a vector of elements: tensors of one type, and positions in them.
pub(super) fn set_elements(
    context: &KernelContext<'_>,
    index: usize,
    dtype: DType,
    elements: &[(&Tensor, usize)],
) -> Result<(), KernelError> {
    let shape = Shape::new(&[elements.len()]);
    let Some(size) = dtype.size_bytes() else {
        let mut strings = scratch::list(elements.len())?;
        for &(tensor, at) in elements {
            strings.push(tensor.as_strings()?[at].clone());
        }
        return context.set_output(index, Tensor::from_strings(shape, strings)?);
    };
    context.fill_output_bytes(index, dtype, &shape, |bytes| {
        for (slot, &(tensor, at)) in bytes.chunks_exact_mut(size).zip(elements) {
            slot.copy_from_slice(&tensor.as_bytes()?[at * size..][..size]);
        }
        Ok(())
    })
}

/// Sets an output to sizes of dimensions.
pub(super) fn set_dims(
    context: &KernelContext<'_>,
    index: usize,
    dims: &[usize],
) -> Result<(), KernelError> {
    let sizes = dims
        .iter()
        .map(|&dim| i64::try_from(dim).unwrap_or(i64::MAX));
    let sizes: SmallVec<[i64; 6]> = sizes.collect();
    set_indices(context, index, &Shape::new(&[sizes.len()]), &sizes, true)
}

/// TensorFlow `SparseConcat`.
fn concat(node: &KernelConstruction<'_>) -> Made {
    let concat_dim = int_attr(node, "concat_dim", None)?;
    kernel(move |context| {
        let n = context.n_inputs() / 3;
        // Rows with the value that each has: input and position.
        let mut n_values = 0usize;
        for input in 0..n {
            let values = context.input(n + input)?;
            n_values = n_values.saturating_add(values.shape().n_elements());
        }
        let mut found = scratch::list::<(SmallVec<[i64; 4]>, usize, usize)>(n_values)?;
        let mut result: SmallVec<[usize; 6]> = SmallVec::new();
        let mut axis = 0;
        let mut offset = 0i64;
        for input in 0..n {
            let (of_values, shape) = sparse_input(context, [input, n + input, 2 * n + input])?;
            let dims = shape.dims();
            if input == 0 {
                result = dims.into();
                axis = axis_index(concat_dim, dims.len()).ok_or_else(|| {
                    KernelError::invalid(format!(
                        "Concat dimension must be in range [-{0}, {0}), got {concat_dim}",
                        dims.len()
                    ))
                })?;
            } else {
                join_dims(&mut result, dims, axis, input)?;
            }
            let n_values = context.input(n + input)?.shape().n_elements();
            for at in 0..n_values {
                let mut row: SmallVec<[i64; 4]> = of_values.row(at).into();
                row[axis] = row[axis].saturating_add(offset);
                found.push((row, input, at));
            }
            offset = offset.saturating_add(i64::try_from(dims[axis]).unwrap_or(i64::MAX));
        }
        found.sort_by(|(left, ..), (right, ..)| left.cmp(right));
        let mut rows = scratch::list(found.len().saturating_mul(result.len()))?;
        for (row, ..) in &found {
            rows.extend_from_slice(row);
        }
        set_indices(
            context,
            0,
            &Shape::new(&[found.len(), result.len()]),
            &rows,
            true,
        )?;
        let mut elements = scratch::list(found.len())?;
        for &(_, input, at) in &found {
            elements.push((context.input(n + input)?, at));
        }
        set_elements(context, 1, context.input(n)?.dtype(), &elements)?;
        set_dims(context, 2, &result)
    })
}

/// Adds the shape of another input to that of a concatenation.
fn join_dims(
    result: &mut [usize],
    dims: &[usize],
    axis: usize,
    input: usize,
) -> Result<(), KernelError> {
    if dims.len() != result.len() {
        return Err(KernelError::invalid(format!(
            "Ranks of all input tensors must match: expected {} but got {} at position {input}",
            result.len(),
            dims.len()
        )));
    }
    for (at, (joined, &dim)) in result.iter_mut().zip(dims).enumerate() {
        if at == axis {
            *joined = joined.saturating_add(dim);
        } else if *joined != dim {
            return Err(KernelError::invalid(format!(
                "Input shapes must match: expected {joined} for dimension {at} but got {dim} at \
                 position {input}"
            )));
        }
    }
    Ok(())
}

/// TensorFlow `SparseSlice`.
fn slice(context: &KernelContext<'_>) -> Result<(), KernelError> {
    let (of_values, shape) = sparse_input(context, [0, 1, 2])?;
    let rank = shape.rank();
    let [start, size] = [(3, "start"), (4, "size")].map(|(index, what)| {
        let tensor = context.input(index)?;
        if tensor.shape().rank() != 1 || tensor.shape().n_elements() != rank {
            return Err(KernelError::invalid(format!(
                "Expected {what} to be a vector of length {rank} but got shape {}",
                tensor.shape()
            )));
        }
        indices(tensor)
    });
    let (start, size) = (start?, size?);
    if let Some(size) = size.iter().find(|&&size| size < 0) {
        return Err(KernelError::invalid(format!(
            "Expected a non-negative size, got {size}"
        )));
    }
    let axes = start.iter().zip(&size);
    let dims = axes
        .clone()
        .zip(shape.dims())
        .map(|((&start, &size), &dim)| {
            let dim = i64::try_from(dim).unwrap_or(i64::MAX);
            usize::try_from(size.min(dim.saturating_sub(start))).unwrap_or(0)
        });
    let dims: SmallVec<[usize; 6]> = dims.collect();
    let values = context.input(1)?;
    let n = values.shape().n_elements();
    let mut rows = scratch::list(n.saturating_mul(rank))?;
    let mut elements = scratch::list(n)?;
    for at in 0..n {
        let row = of_values.row(at);
        let is_inside = |(&index, (&start, &size)): (&i64, (&i64, &i64))| {
            index >= start && index.saturating_sub(start) < size
        };
        if row.iter().zip(axes.clone()).all(is_inside) {
            rows.extend(
                row.iter()
                    .zip(&start)
                    .map(|(&index, &start)| index.saturating_sub(start)),
            );
            elements.push((values, at));
        }
    }
    set_indices(
        context,
        0,
        &Shape::new(&[elements.len(), rank]),
        &rows,
        true,
    )?;
    set_elements(context, 1, values.dtype(), &elements)?;
    set_dims(context, 2, &dims)
}

/// TensorFlow `SparseAdd`: sums below the threshold are left out. What only one tensor has stays.
fn add(node: &KernelConstruction<'_>) -> Made {
    fn real<T: Number>() -> Made {
        kernel(|context| {
            let threshold = threshold::<T>(context)?;
            added(context, |sum: T| sum.magnitude() >= threshold)
        })
    }
    match type_attr(node, "T")? {
        DType::F32 => real::<f32>(),
        DType::F64 => real::<f64>(),
        DType::I8 => real::<i8>(),
        DType::I16 => real::<i16>(),
        DType::I32 => real::<i32>(),
        DType::I64 => real::<i64>(),
        DType::Complex64 => kernel(|context| {
            let threshold = threshold::<f32>(context)?;
            added(context, |sum: crate::tensor::Complex64| {
                sum.widen().norm() >= f64::from(threshold)
            })
        }),
        _ => kernel(|context| {
            let threshold = threshold::<f64>(context)?;
            added(context, |sum: crate::tensor::Complex128| {
                sum.norm() >= threshold
            })
        }),
    }
}

fn threshold<T: Number>(context: &KernelContext<'_>) -> Result<T, KernelError> {
    let tensor = context.input(6)?;
    match (tensor.shape().rank(), tensor.as_slice::<T>()?) {
        (0, &[threshold]) => Ok(threshold),
        _ => Err(KernelError::invalid(format!(
            "The magnitude threshold must be a scalar: got shape {}",
            tensor.shape()
        ))),
    }
}

/// Where the element of one place is in each of two sparse tensors.
pub(super) type Pair = [Option<usize>; 2];

/// Pairs of positions in two sparse tensors that are in one place, in the order of the places. Both
/// must be sorted.
pub(super) fn merged(
    context: &KernelContext<'_>,
) -> Result<(Vec<i64>, Vec<Pair>, usize), KernelError> {
    let (a, a_shape) = sparse_input(context, [0, 1, 2])?;
    let (b, b_shape) = sparse_input(context, [3, 4, 5])?;
    if a_shape.rank() != b_shape.rank() {
        return Err(KernelError::invalid(format!(
            "Ranks of input tensors must match, but saw ranks: {} and {}",
            a_shape.rank(),
            b_shape.rank()
        )));
    }
    let mut dims = a_shape.dims().iter().zip(b_shape.dims()).enumerate();
    if let Some((axis, (a, b))) = dims.find(|(_, (a, b))| a != b) {
        return Err(KernelError::invalid(format!(
            "Operands' shapes do not match: got {a} and {b} for dimension {axis}"
        )));
    }
    let n_a = context.input(1)?.shape().n_elements();
    let n_b = context.input(4)?.shape().n_elements();
    let (mut at_a, mut at_b) = (0, 0);
    let n = n_a.saturating_add(n_b);
    let mut rows = scratch::list(n.saturating_mul(a_shape.rank()))?;
    let mut pairs = scratch::list(n)?;
    while at_a < n_a || at_b < n_b {
        let order = match (at_a < n_a, at_b < n_b) {
            (true, true) => a.row(at_a).cmp(b.row(at_b)),
            (true, false) => std::cmp::Ordering::Less,
            _ => std::cmp::Ordering::Greater,
        };
        let of_a = order.is_le().then_some(at_a);
        let of_b = order.is_ge().then_some(at_b);
        rows.extend_from_slice(match order.is_le() {
            true => a.row(at_a),
            false => b.row(at_b),
        });
        at_a += usize::from(order.is_le());
        at_b += usize::from(order.is_ge());
        pairs.push([of_a, of_b]);
    }
    Ok((rows, pairs, a_shape.rank()))
}

fn added<T: Arithmetic>(
    context: &KernelContext<'_>,
    keeps: impl Fn(T) -> bool,
) -> Result<(), KernelError> {
    let (mut rows, pairs, rank) = merged(context)?;
    let (a, b) = (
        context.input(1)?.as_slice::<T>()?,
        context.input(4)?.as_slice::<T>()?,
    );
    let mut sums = scratch::list::<T>(pairs.len())?;
    for (at, &[of_a, of_b]) in pairs.iter().enumerate() {
        let (sum, is_kept) = match (of_a.map(|at| a[at]), of_b.map(|at| b[at])) {
            (Some(a), Some(b)) => {
                let sum = a.plus(b);
                (sum, keeps(sum))
            }
            (a, b) => (a.or(b).unwrap_or(T::ZERO), true),
        };
        if is_kept {
            rows.copy_within(at * rank..(at + 1) * rank, sums.len() * rank);
            sums.push(sum);
        }
    }
    rows.truncate(sums.len() * rank);
    set_indices(context, 0, &Shape::new(&[sums.len(), rank]), &rows, true)?;
    context.fill_output(1, &Shape::new(&[sums.len()]), |out: &mut [T]| {
        out.copy_from_slice(&sums);
        Ok(())
    })?;
    set_indices(
        context,
        2,
        &Shape::new(&[rank]),
        &indices(context.input(2)?)?,
        true,
    )
}

/// The values of a sparse tensor that are reduced to one value each.
struct Groups {
    /// Values in the order in which they are combined.
    order: Vec<usize>,
    /// Per value in this order the place of its group in the dense result.
    places: Vec<usize>,
    /// The shape of the dense result.
    shape: Shape,
}

fn groups(context: &KernelContext<'_>, keeps_dims: bool) -> Result<Groups, KernelError> {
    let (of_values, shape) = sparse_input(context, [0, 1, 2])?;
    let mut is_reduced: SmallVec<[bool; 8]> = SmallVec::from_elem(false, shape.rank());
    for axis in indices(context.input(3)?)? {
        let axis = axis_index(axis, shape.rank()).ok_or_else(|| {
            KernelError::invalid(format!(
                "Invalid reduction dimension {axis}, for input with {} dimensions.",
                shape.rank()
            ))
        })?;
        is_reduced[axis] = true;
    }
    let axes = || is_reduced.iter().enumerate();
    let kept_axes: SmallVec<[usize; 8]> = axes()
        .filter(|(_, is)| !**is)
        .map(|(axis, _)| axis)
        .collect();
    let reduced_axes: SmallVec<[usize; 8]> = axes()
        .filter(|(_, is)| **is)
        .map(|(axis, _)| axis)
        .collect();
    let kept: Shape = kept_axes.iter().map(|&axis| shape.dims()[axis]).collect();
    let n = context.input(1)?.shape().n_elements();
    let mut keyed = scratch::list(n)?;
    for at in 0..n {
        let row = of_values.row(at);
        let mut place = 0;
        for (&axis, &dim) in kept_axes.iter().zip(kept.dims()) {
            let index = usize::try_from(row[axis]).ok().filter(|&index| index < dim);
            let index = index.ok_or_else(|| {
                KernelError::invalid(format!(
                    "indices[{at}] = {row:?} is out of bounds of the shape {shape}"
                ))
            })?;
            place = place * dim + index;
        }
        let rest: SmallVec<[i64; 4]> = reduced_axes.iter().map(|&axis| row[axis]).collect();
        keyed.push((place, rest, at));
    }
    keyed.sort();
    let with_ones = axes().map(|(axis, &is)| if is { 1 } else { shape.dims()[axis] });
    Ok(Groups {
        order: scratch::collected(keyed.iter().map(|&(.., at)| at))?,
        places: scratch::collected(keyed.iter().map(|&(place, ..)| place))?,
        shape: match keeps_dims {
            true => with_ones.collect(),
            false => kept,
        },
    })
}

/// TensorFlow `SparseReduceSum`, `SparseReduceMax`, and those with a sparse result.
fn reduce<T: Arithmetic>(node: &KernelConstruction<'_>, join: fn(T, T) -> T) -> Made {
    let keeps_dims = bool_attr(node, "keep_dims", false)?;
    let is_sparse = node.op.ends_with("Sparse");
    kernel(move |context| {
        let groups = groups(context, keeps_dims)?;
        let values = context.input(1)?.as_slice::<T>()?;
        let mut joined = scratch::list::<(usize, T)>(values.len())?;
        for (&at, &place) in groups.order.iter().zip(&groups.places) {
            match joined.last_mut() {
                Some((last, value)) if *last == place => *value = join(*value, values[at]),
                _ => joined.push((place, values[at])),
            }
        }
        if !is_sparse {
            groups
                .shape
                .size_bytes(T::DTYPE)
                .map_err(TensorError::from)?;
            return context.fill_output(0, &groups.shape, |out: &mut [T]| {
                out.fill(T::ZERO);
                for &(place, value) in &joined {
                    out[place] = value;
                }
                Ok(())
            });
        }
        let dims = groups.shape.dims();
        let places = joined.iter().map(|&(place, _)| place);
        set_indices(
            context,
            0,
            &Shape::new(&[joined.len(), dims.len()]),
            &coordinates(places, dims)?,
            true,
        )?;
        context.fill_output(1, &Shape::new(&[joined.len()]), |out: &mut [T]| {
            out.iter_mut()
                .zip(&joined)
                .for_each(|(slot, &(_, value))| *slot = value);
            Ok(())
        })?;
        set_dims(context, 2, dims)
    })
}

/// Returns the coordinates of places in a dense tensor.
pub(super) fn coordinates(
    places: impl ExactSizeIterator<Item = usize>,
    dims: &[usize],
) -> Result<Vec<i64>, KernelError> {
    let mut rows = scratch::list(places.len().saturating_mul(dims.len()))?;
    for mut place in places {
        let mut row: SmallVec<[i64; 6]> = SmallVec::from_elem(0, dims.len());
        for (slot, &dim) in row.iter_mut().zip(dims).rev() {
            *slot = i64::try_from(place % dim).unwrap_or(i64::MAX);
            place /= dim;
        }
        rows.extend_from_slice(&row);
    }
    Ok(rows)
}
