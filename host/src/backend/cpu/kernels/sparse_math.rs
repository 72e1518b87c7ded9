//! Arithmetic of sparse tensors, their parts, counts, and distances of sequences.

use std::collections::BTreeMap;

use smallvec::SmallVec;

use crate::backend::cpu::kernels::def;
use crate::backend::cpu::kernels::raw::MOVED;
use crate::backend::cpu::kernels::sparse::Indices;
use crate::backend::cpu::kernels::sparse::sparse_input;
use crate::backend::cpu::kernels::sparse_join::merged;
use crate::backend::cpu::kernels::sparse_join::set_dims;
use crate::backend::cpu::kernels::sparse_join::set_elements;
use crate::backend::cpu::kernels::string_pieces::set_indices;
use crate::backend::host_kernels::Made;
use crate::backend::host_kernels::kernel;
use crate::backend::host_kernels::output;
use crate::backend::plan::attr::bool_attr;
use crate::backend::plan::attr::int_attr;
use crate::backend::plan::attr::type_attr;
use crate::backend::plan::value::indices;
use crate::backend::plan::value::scalar;
use crate::backend::types::ARITHMETIC;
use crate::backend::types::INDICES;
use crate::backend::types::INTEGERS;
use crate::backend::types::NUMBERS;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelError;
use crate::device::KernelRegistry;
use crate::kernels::Arithmetic;
use crate::kernels::Integer;
use crate::kernels::Number;
use crate::kernels::Real;
use crate::kernels::binary;
use crate::kernels::scratch;
use crate::kernels::slice::axis_index;
use crate::tensor::DType;
use crate::tensor::Shape;
use crate::tensor::Tensor;

pub(super) fn register(registry: &mut KernelRegistry) {
    registry.register(
        def("SparseSoftmax")
            .with_types("T", &[DType::F16, DType::F32, DType::F64])
            .with_factory(|node| {
                dispatch!(
                    type_attr(node, "T")?,
                    [F16: half::f16, F32: f32, F64: f64],
                    T => kernel(softmax::<T>)
                )
            }),
    );
    for op in ["Add", "Mul", "Div"] {
        registry.register(
            def(&format!("SparseDenseCwise{op}"))
                .with_types("T", &NUMBERS)
                .with_factory(move |node| with_dense(node, op)),
        );
    }
    registry.register(
        def("SparseTensorDenseAdd")
            .with_types("T", &ARITHMETIC)
            .with_types("Tindices", &INDICES)
            .with_factory(
                |node| dispatch_arithmetic!(type_attr(node, "T")?, T => kernel(dense_sum::<T>)),
            ),
    );
    for op in ["SparseSparseMaximum", "SparseSparseMinimum"] {
        registry.register(def(op).with_types("T", &NUMBERS).with_factory(extreme));
    }
    registry.register(
        def("SparseSplit")
            .with_types("T", &MOVED)
            .with_factory(split),
    );
    for op in [
        "DenseCountSparseOutput",
        "SparseCountSparseOutput",
        "RaggedCountSparseOutput",
    ] {
        registry.register(
            def(op)
                .with_types("T", &INDICES)
                .with_types(
                    "output_type",
                    &[DType::I32, DType::I64, DType::F32, DType::F64],
                )
                .with_factory(count),
        );
    }
    registry.register(
        def("EditDistance")
            .with_types("T", &MOVED)
            .with_factory(edit_distance),
    );
}

/// TensorFlow `SparseSoftmax`: over the values of each row of the last axis.
fn softmax<T: Number>(context: &KernelContext<'_>) -> Result<(), KernelError> {
    let (of_values, shape) = sparse_input(context, [0, 1, 2])?;
    if shape.rank() < 2 {
        return Err(KernelError::invalid(format!(
            "Input should have rank >= 2, but got: {}",
            shape.rank()
        )));
    }
    let all = of_values.coordinates();
    all.check_order(shape.dims())
        .map_err(KernelError::InvalidArgument)?;
    let x = context.input(1)?.as_slice::<T>()?;
    let outer = |at: usize| &of_values.row(at)[..shape.rank() - 1];
    output(context, Shape::new(&[x.len()]), |out: &mut [T]| {
        let mut start = 0;
        while start < x.len() {
            let same = (start..x.len()).take_while(|&at| outer(at) == outer(start));
            let row = start..start + same.count();
            let numbers = || row.clone().map(|at| x[at].to_f64());
            let largest = numbers().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = numbers().map(|x| (x - largest).exp()).sum();
            for (slot, x) in out[row.clone()].iter_mut().zip(numbers()) {
                *slot = T::from_f64((x - largest).exp() / sum);
            }
            start = row.end;
        }
        Ok(())
    })
}

/// TensorFlow `SparseDenseCwiseAdd`, `Mul` and `Div`: the values, each with the element of a dense
/// tensor in its place. The dense tensor is broadcast.
fn with_dense(node: &KernelConstruction<'_>, op: &str) -> Made {
    fn made<T: Number>(
        join: impl Fn(T, T) -> Result<T, KernelError> + Send + Sync + 'static,
    ) -> Made {
        kernel(move |context| {
            let (of_values, shape) = sparse_input(context, [0, 1, 2])?;
            let dense = context.input(3)?;
            let dims = dense.shape().dims();
            let skipped = shape.rank().checked_sub(dims.len());
            let fits = skipped.is_some_and(|skipped| {
                let pairs = dims.iter().zip(&shape.dims()[skipped..]);
                pairs
                    .into_iter()
                    .all(|(&dim, &of_sparse)| dim == 1 || dim == of_sparse)
            });
            let (Some(skipped), true) = (skipped, fits) else {
                return Err(KernelError::invalid(format!(
                    "SparseDenseBinaryOpShared broadcasts dense to sparse only; got incompatible \
                     shapes: [{shape}] vs. [{}]",
                    dense.shape()
                )));
            };
            let all = of_values.coordinates();
            let (values, dense) = (context.input(1)?.as_slice::<T>()?, dense.as_slice::<T>()?);
            output(context, Shape::new(&[values.len()]), |out: &mut [T]| {
                for (at, (slot, &value)) in out.iter_mut().zip(values).enumerate() {
                    all.place(at, shape.dims())
                        .map_err(KernelError::InvalidArgument)?;
                    let of_axes = of_values.row(at)[skipped..].iter().zip(dims);
                    let place = of_axes.fold(0, |place, (&index, &dim)| {
                        let index = if dim == 1 { 0 } else { index };
                        place * dim + usize::try_from(index).unwrap_or(0)
                    });
                    *slot = join(value, dense[place])?;
                }
                Ok(())
            })
        })
    }
    let dtype = type_attr(node, "T")?;
    match op {
        "Add" => dispatch_number!(dtype, T => made::<T>(|a, b| Ok(a.plus(b)))),
        "Mul" => dispatch_number!(dtype, T => made::<T>(|a, b| Ok(a.times(b)))),
        _ if INTEGERS.contains(&dtype) => dispatch_integer!(dtype, T => made::<T>(|a, b| {
            if b == T::ZERO {
                return Err(KernelError::invalid("SparseDenseCwiseDiv cannot divide by zero"));
            }
            Ok(a.truncated_quotient(b))
        })),
        _ => dispatch_real!(dtype, T => made::<T>(|a, b| Ok(a.over(b)))),
    }
}

/// TensorFlow `SparseTensorDenseAdd`.
fn dense_sum<T: Arithmetic>(context: &KernelContext<'_>) -> Result<(), KernelError> {
    let (of_values, shape) = sparse_input(context, [0, 1, 2])?;
    let dense = context.input(3)?;
    if shape != *dense.shape() {
        return Err(KernelError::invalid(format!(
            "the sparse tensor has shape {shape} and the dense one {}; they must be equal",
            dense.shape()
        )));
    }
    let all = of_values.coordinates();
    let (values, dense) = (context.input(1)?.as_slice::<T>()?, dense.as_slice::<T>()?);
    output(context, shape.clone(), |out: &mut [T]| {
        out.copy_from_slice(dense);
        for (at, &value) in values.iter().enumerate() {
            let place = all.place(at, shape.dims());
            let slot = &mut out[place.map_err(KernelError::InvalidArgument)?];
            *slot = slot.plus(value);
        }
        Ok(())
    })
}

/// TensorFlow `SparseSparseMaximum` and `SparseSparseMinimum`. What one of them lacks is 0.
fn extreme(node: &KernelConstruction<'_>) -> Made {
    fn made<T: Number>(join: fn(T, T) -> T) -> Made {
        kernel(move |context| {
            let (rows, pairs, rank) = merged(context)?;
            let (a, b) = (
                context.input(1)?.as_slice::<T>()?,
                context.input(4)?.as_slice::<T>()?,
            );
            set_indices(context, 0, &Shape::new(&[pairs.len(), rank]), &rows, true)?;
            context.fill_output(1, &Shape::new(&[pairs.len()]), |out: &mut [T]| {
                for (slot, &[of_a, of_b]) in out.iter_mut().zip(&pairs) {
                    let value =
                        |values: &[T], at: Option<usize>| at.map_or(T::ZERO, |at| values[at]);
                    *slot = join(value(a, of_a), value(b, of_b));
                }
                Ok(())
            })
        })
    }
    let is_largest = node.op == "SparseSparseMaximum";
    dispatch_number!(type_attr(node, "T")?, T => made::<T>(match is_largest {
        true => binary::maximum,
        false => binary::minimum,
    }))
}

/// TensorFlow `SparseSplit`: parts along an axis; the first ones are larger by 1 if the axis cannot
/// be divided.
fn split(node: &KernelConstruction<'_>) -> Made {
    let n_parts = int_attr(node, "num_split", None)?;
    let n_parts = usize::try_from(n_parts).unwrap_or(0);
    kernel(move |context| {
        let axis = scalar(context.input(0)?, "split_dim")?;
        let (of_values, shape) = sparse_input(context, [1, 2, 3])?;
        let values = context.input(2)?;
        let found = axis_index(axis, shape.rank()).ok_or_else(|| {
            KernelError::invalid(format!(
                "Input split_dim should be between [-{0}, {0}), got {axis}",
                shape.rank()
            ))
        })?;
        let size = shape.dims()[found];
        if !(1..=size).contains(&n_parts) {
            return Err(KernelError::invalid(format!(
                "Input num_split should be between 1 and the splitting dimension size ({size}), \
                 got {n_parts}"
            )));
        }
        let all = of_values.coordinates();
        let (small, n_large) = (size / n_parts, size % n_parts);
        let start = |part: usize| part * small + part.min(n_large);
        for part in 0..n_parts {
            let range = start(part)..start(part + 1);
            let mut rows = scratch::list(values.shape().n_elements().saturating_mul(shape.rank()))?;
            let mut elements = scratch::list(values.shape().n_elements())?;
            for at in 0..values.shape().n_elements() {
                all.place(at, shape.dims())
                    .map_err(KernelError::InvalidArgument)?;
                let row = of_values.row(at);
                let index = usize::try_from(row[found]).unwrap_or(0);
                if range.contains(&index) {
                    rows.extend_from_slice(row);
                    let last = rows.len() - shape.rank() + found;
                    rows[last] -= i64::try_from(range.start).unwrap_or(0);
                    elements.push((values, at));
                }
            }
            let of_rows = Shape::new(&[elements.len(), shape.rank()]);
            set_indices(context, part, &of_rows, &rows, true)?;
            set_elements(context, n_parts + part, values.dtype(), &elements)?;
            let mut dims: SmallVec<[usize; 6]> = shape.dims().into();
            dims[found] = range.len();
            set_dims(context, 2 * n_parts + part, &dims)?;
        }
        Ok(())
    })
}

/// Options of ops that count values and return the counts that are not 0.
#[derive(Debug, Clone, Copy)]
struct Counting {
    n_min: i64,
    n_max: i64,
    is_binary: bool,
}

/// TensorFlow `DenseCountSparseOutput`, `SparseCountSparseOutput` and `RaggedCountSparseOutput`.
fn count(node: &KernelConstruction<'_>) -> Made {
    let counting = Counting {
        n_min: int_attr(node, "minlength", Some(-1))?,
        n_max: int_attr(node, "maxlength", Some(-1))?,
        is_binary: bool_attr(node, "binary_output", false)?,
    };
    let rows: fn(&KernelContext<'_>) -> Result<CountedRows, KernelError> = match node.op {
        "DenseCountSparseOutput" => dense_rows,
        "SparseCountSparseOutput" => sparse_rows,
        _ => ragged_rows,
    };
    dispatch!(
        type_attr(node, "output_type")?,
        [I32: i32, I64: i64, F32: f32, F64: f64],
        T => kernel(move |context| counted::<T>(context, counting, &rows(context)?))
    )
}

/// The rows of the values that are counted.
struct CountedRows {
    /// The number of rows; `None` if the result is a vector.
    n: Option<usize>,
    /// The row of each value.
    rows: Vec<usize>,
    /// The input with the values.
    values: usize,
}

fn dense_rows(context: &KernelContext<'_>) -> Result<CountedRows, KernelError> {
    let shape = context.input(0)?.shape();
    let (n, size) = match *shape.dims() {
        [size] => (None, size),
        [n, size] => (Some(n), size),
        _ => {
            return Err(KernelError::invalid(format!(
                "Input must be a 1 or 2-dimensional tensor. Got: {shape}"
            )));
        }
    };
    let rows = (0..shape.n_elements()).map(|at| at / size);
    Ok(CountedRows {
        n,
        rows: scratch::collected(rows)?,
        values: 0,
    })
}

fn sparse_rows(context: &KernelContext<'_>) -> Result<CountedRows, KernelError> {
    let (of_values, shape) = sparse_input(context, [0, 1, 2])?;
    let n_values = context.input(1)?.shape().n_elements();
    let n = match *shape.dims() {
        [_] => None,
        [n, _] => Some(n),
        _ => {
            return Err(KernelError::invalid(format!(
                "Input must be a 1 or 2-dimensional tensor. Got: {shape}"
            )));
        }
    };
    let mut rows = scratch::list(n_values)?;
    let all = of_values.coordinates();
    for at in 0..n_values {
        let row = match n {
            None => 0,
            Some(n) => all.place(at, &[n]).map_err(KernelError::InvalidArgument)?,
        };
        rows.push(row);
    }
    Ok(CountedRows { n, rows, values: 1 })
}

fn ragged_rows(context: &KernelContext<'_>) -> Result<CountedRows, KernelError> {
    let ends = indices(context.input(0)?)?;
    let n_values = context.input(1)?.shape().n_elements();
    let is_valid = ends.is_sorted()
        && ends.first() == Some(&0)
        && ends
            .last()
            .is_some_and(|&last| usize::try_from(last) == Ok(n_values));
    if !is_valid {
        return Err(KernelError::invalid(format!(
            "Splits must start with 0 and must end with the number of values, got {n_values} \
             values and splits {ends:?}"
        )));
    }
    let mut rows = scratch::list(n_values)?;
    for (row, pair) in ends.windows(2).enumerate() {
        let n = usize::try_from(pair[1] - pair[0]).unwrap_or(0);
        rows.extend(std::iter::repeat_n(row, n));
    }
    Ok(CountedRows {
        n: Some(ends.len() - 1),
        rows,
        values: 1,
    })
}

fn counted<T: Arithmetic>(
    context: &KernelContext<'_>,
    counting: Counting,
    rows: &CountedRows,
) -> Result<(), KernelError> {
    let tensor = context.input(rows.values)?;
    let values = indices(tensor)?;
    let weights = context.input(context.n_inputs() - 1)?;
    if weights.shape().n_elements() > 0 && weights.shape() != tensor.shape() {
        return Err(KernelError::invalid(format!(
            "Weights and values must have the same shape. Weight shape: {}; values shape: {}",
            weights.shape(),
            tensor.shape()
        )));
    }
    let weights = weights.as_slice::<T>()?;
    let mut counts = BTreeMap::new();
    let mut largest = 0;
    for (at, (&value, &row)) in values.iter().zip(&rows.rows).enumerate() {
        if value < 0 {
            return Err(KernelError::invalid(format!(
                "Input values must all be non-negative; value {at} is {value}"
            )));
        }
        if counting.n_max > 0 && value >= counting.n_max {
            continue;
        }
        largest = largest.max(value);
        let count: &mut T = counts.entry((row, value)).or_insert(T::ZERO);
        *count = match (counting.is_binary, weights.get(at)) {
            (true, _) => T::ONE,
            (false, Some(&weight)) => count.plus(weight),
            (false, None) => count.plus(T::ONE),
        };
    }
    let size = match counting.n_max {
        n_max @ 1.. => n_max,
        _ => largest.saturating_add(1).max(counting.n_min),
    };
    let rank = if rows.n.is_some() { 2 } else { 1 };
    let mut places = scratch::list(counts.len().saturating_mul(rank))?;
    for &(row, value) in counts.keys() {
        if rank == 2 {
            places.push(i64::try_from(row).unwrap_or(i64::MAX));
        }
        places.push(value);
    }
    set_indices(
        context,
        0,
        &Shape::new(&[counts.len(), rank]),
        &places,
        true,
    )?;
    context.fill_output(1, &Shape::new(&[counts.len()]), |out: &mut [T]| {
        for (slot, &count) in out.iter_mut().zip(counts.values()) {
            *slot = count;
        }
        Ok(())
    })?;
    let n_rows = rows.n.map(|n| i64::try_from(n).unwrap_or(i64::MAX));
    let dims: SmallVec<[i64; 2]> = n_rows.into_iter().chain([size]).collect();
    set_indices(context, 2, &Shape::new(&[rank]), &dims, true)
}

/// The sequences of a sparse tensor: the values whose indices differ only in the last one.
struct Sequences<'a> {
    of_values: Indices,
    shape: Shape,
    values: &'a Tensor,
}

impl<'a> Sequences<'a> {
    fn of(context: &'a KernelContext<'_>, first: usize) -> Result<Self, KernelError> {
        let (of_values, shape) = sparse_input(context, [first, first + 1, first + 2])?;
        let all = of_values.coordinates();
        all.check_order(shape.dims())
            .map_err(KernelError::InvalidArgument)?;
        Ok(Self {
            of_values,
            shape,
            values: context.input(first + 1)?,
        })
    }

    /// The first sequence from value `start` on: its place in a tensor of this shape, and its end.
    fn next(&self, start: usize, dims: &[usize]) -> Option<(usize, usize)> {
        let n = self.values.shape().n_elements();
        if start == n {
            return None;
        }
        let outer = |at: usize| &self.of_values.row(at)[..dims.len()];
        let same = (start..n).take_while(|&at| outer(at) == outer(start));
        let pairs = outer(start).iter().zip(dims);
        let place = pairs.fold(0, |place, (&index, &dim)| {
            place * dim + usize::try_from(index).unwrap_or(0)
        });
        Some((place, start + same.count()))
    }
}

/// Compares the elements at two positions of two tensors of one type.
type AreEqual = fn(&Tensor, usize, &Tensor, usize) -> bool;

/// TensorFlow `EditDistance` (Levenshtein): insertions, deletions and substitutions that turn a
/// hypothesis into the truth; by default, divided by the length of the truth.
fn edit_distance(node: &KernelConstruction<'_>) -> Made {
    let is_normalized = bool_attr(node, "normalize", true)?;
    let are_equal: AreEqual = match type_attr(node, "T")? {
        DType::String => |a, i, b, j| match (a.as_strings(), b.as_strings()) {
            (Ok(a), Ok(b)) => a[i] == b[j],
            _ => false,
        },
        DType::F32 => equal::<f32>,
        DType::F64 => equal::<f64>,
        DType::F16 => equal::<half::f16>,
        DType::BF16 => equal::<half::bf16>,
        _ => |a, i, b, j| match (a.as_bytes(), b.as_bytes(), a.dtype().size_bytes()) {
            (Ok(a), Ok(b), Some(size)) => a[i * size..][..size] == b[j * size..][..size],
            _ => false,
        },
    };
    kernel(move |context| {
        let (hypothesis, truth) = (Sequences::of(context, 0)?, Sequences::of(context, 3)?);
        if hypothesis.shape.rank() != truth.shape.rank() {
            return Err(KernelError::invalid(format!(
                "Expected hypothesis_shape and truth_shape to have matching ranks, but got {} and {}",
                hypothesis.shape.rank(),
                truth.shape.rank()
            )));
        }
        let rank = truth.shape.rank().saturating_sub(1);
        let dims: SmallVec<[usize; 6]> = hypothesis.shape.dims()[..rank]
            .iter()
            .zip(truth.shape.dims())
            .map(|(&a, &b)| a.max(b))
            .collect();
        let shape = Shape::new(&dims);
        shape
            .size_bytes(DType::F32)
            .map_err(crate::tensor::TensorError::from)?;
        output(context, shape, |out: &mut [f32]| {
            // Both are empty where nothing else is found.
            out.fill(0.0);
            let (mut a, mut b) = (0, 0);
            loop {
                let (of_a, of_b) = (hypothesis.next(a, &dims), truth.next(b, &dims));
                let place = match (of_a, of_b) {
                    (Some((place, _)), Some((other, _))) => place.min(other),
                    (Some((place, _)), None) | (None, Some((place, _))) => place,
                    (None, None) => return Ok(()),
                };
                let end = |found: Option<(usize, usize)>, start| match found {
                    Some((at, end)) if at == place => end,
                    _ => start,
                };
                let (a_end, b_end) = (end(of_a, a), end(of_b, b));
                let distance = levenshtein(a_end - a, b_end - b, |i, j| {
                    are_equal(hypothesis.values, a + i, truth.values, b + j)
                })?;
                out[place] = match (is_normalized, b_end - b) {
                    (false, _) => distance,
                    (true, 0) => f32::INFINITY,
                    #[expect(clippy::cast_precision_loss, reason = "as TensorFlow")]
                    (true, n) => distance / n as f32,
                };
                (a, b) = (a_end, b_end);
            }
        })
    })
}

fn equal<T: crate::tensor::Element + PartialEq>(
    a: &Tensor,
    i: usize,
    b: &Tensor,
    j: usize,
) -> bool {
    matches!((a.as_slice::<T>(), b.as_slice::<T>()), (Ok(a), Ok(b)) if a[i] == b[j])
}

/// Returns the distance of two sequences of these lengths.
#[expect(clippy::cast_precision_loss, reason = "sequences are short")]
fn levenshtein(
    n_a: usize,
    n_b: usize,
    are_equal: impl Fn(usize, usize) -> bool,
) -> Result<f32, KernelError> {
    // The distances of the first elements of `a` to all beginnings of `b`.
    let mut row = scratch::collected(0..n_b + 1)?;
    for i in 0..n_a {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for j in 0..n_b {
            let substituted = diagonal + usize::from(!are_equal(i, j));
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(diagonal + 1).min(row[j] + 1);
        }
    }
    Ok(row[n_b] as f32)
}
