//! Sparse tensors: indices, values and the shape of the dense tensor.

use crate::backend::cpu::kernels::def;
use crate::backend::cpu::kernels::raw::MOVED;
use crate::backend::cpu::kernels::raw::RawElements;
use crate::backend::cpu::kernels::string_pieces::set_indices;
use crate::backend::host_kernels::Made;
use crate::backend::host_kernels::kernel;
use crate::backend::plan::attr::bool_attr;
use crate::backend::plan::attr::type_attr;
use crate::backend::plan::value::indices;
use crate::backend::plan::value::shape_of;
use crate::backend::types::INDICES;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelError;
use crate::device::KernelRegistry;
use crate::kernels::Arithmetic;
use crate::kernels::scratch;
use crate::kernels::sparse;
use crate::kernels::sparse::Coordinates;
use crate::tensor::Boolean;
use crate::tensor::DType;
use crate::tensor::Shape;
use crate::tensor::Tensor;

pub(super) fn register(registry: &mut KernelRegistry) {
    registry.register(
        def("SparseToDense")
            .with_types("T", &MOVED)
            .with_types("Tindices", &INDICES)
            .with_factory(to_dense),
    );
    registry.register(
        def("SparseReorder")
            .with_types("T", &MOVED)
            .with_factory(reorder),
    );
    registry.register(def("SparseReshape").with_factory(|_| kernel(reshape)));
    registry.register(
        def("SparseFillEmptyRows")
            .with_types("T", &MOVED)
            .with_factory(fill_empty_rows),
    );
    registry.register(
        def("SparseTensorDenseMatMul")
            .with_types(
                "T",
                &[
                    DType::F16,
                    DType::BF16,
                    DType::F32,
                    DType::F64,
                    DType::I32,
                    DType::Complex64,
                    DType::Complex128,
                ],
            )
            .with_types("Tindices", &INDICES)
            .with_factory(matmul),
    );
}

/// The indices of a sparse tensor.
pub(super) struct Indices {
    /// Row-major.
    values: smallvec::SmallVec<[i64; 0]>,
    rank: usize,
}

impl Indices {
    /// Reads a matrix with a row per value. A vector is the indices of a dense vector, and a scalar
    /// one of them.
    pub(super) fn of(tensor: &Tensor) -> Result<Self, KernelError> {
        let rank = match *tensor.shape().dims() {
            [] | [_] => 1,
            [_, rank] => rank,
            _ => {
                return Err(KernelError::invalid(format!(
                    "sparse_indices should be a scalar, vector, or matrix, got shape {}",
                    tensor.shape()
                )));
            }
        };
        Ok(Self {
            values: indices(tensor)?.into(),
            rank,
        })
    }

    /// Returns the coordinates of value `index`.
    pub(super) fn row(&self, index: usize) -> &[i64] {
        &self.values[index * self.rank..(index + 1) * self.rank]
    }

    /// Returns all coordinates.
    pub(super) fn coordinates(&self) -> Coordinates<'_> {
        Coordinates {
            values: &self.values,
            rank: self.rank,
        }
    }
}

/// Checks a sparse tensor, and returns its indices and shape. `inputs` are those of indices, values
/// and shape.
pub(super) fn sparse_input(
    context: &KernelContext<'_>,
    inputs: [usize; 3],
) -> Result<(Indices, Shape), KernelError> {
    let (of_values, values, shape) = (
        context.input(inputs[0])?,
        context.input(inputs[1])?,
        context.input(inputs[2])?,
    );
    for (tensor, rank, what) in [
        (of_values, 2, "indices should be a matrix"),
        (values, 1, "values should be a vector"),
        (shape, 1, "shape should be a vector"),
    ] {
        if tensor.shape().rank() != rank {
            return Err(KernelError::invalid(format!(
                "Input {what}, but received shape {}",
                tensor.shape()
            )));
        }
    }
    let shape = shape_of(shape, "the dense shape")?;
    let [n, rank] = [0, 1].map(|axis| of_values.shape().dims()[axis]);
    if n != values.shape().n_elements() || rank != shape.rank() {
        return Err(KernelError::invalid(format!(
            "indices of shape {} do not fit values of shape {} and a dense shape of rank {}",
            of_values.shape(),
            values.shape(),
            shape.rank()
        )));
    }
    Ok((Indices::of(of_values)?, shape))
}

/// TensorFlow `SparseToDense`.
fn to_dense(node: &KernelConstruction<'_>) -> Made {
    let validates = bool_attr(node, "validate_indices", true)?;
    dispatch_raw!(type_attr(node, "T")?, W => kernel(move |context| {
        let of_values = Indices::of(context.input(0)?)?;
        let sizes = context.input(1)?;
        if sizes.shape().rank() != 1 {
            return Err(KernelError::invalid(format!(
                "output_shape must be rank 1, got shape {}",
                sizes.shape()
            )));
        }
        let shape = shape_of(sizes, "output_shape")?;
        let (values, default) = (context.input(2)?, context.input(3)?);
        let n = match *context.input(0)?.shape().dims() {
            [] => 1,
            [n, ..] => n,
        };
        if of_values.rank != shape.rank() {
            return Err(KernelError::invalid(format!(
                "output_shape has incorrect number of elements: {} should be: {}",
                shape.rank(),
                of_values.rank
            )));
        }
        if !matches!(*values.shape().dims(), [] | [_])
            || values.shape().rank() == 1 && values.shape().n_elements() != n
        {
            return Err(KernelError::invalid(format!(
                "sparse_values has incorrect shape {}, should be [] or [{n}]",
                values.shape()
            )));
        }
        if default.shape().rank() != 0 {
            return Err(KernelError::invalid(format!(
                "default_value should be a scalar, got shape {}",
                default.shape()
            )));
        }
        let coordinates = of_values.coordinates();
        if validates {
            coordinates.check_order(shape.dims()).map_err(KernelError::InvalidArgument)?;
        }
        let is_one = values.shape().rank() == 0;
        let dtype = values.dtype();
        let (values, default) = (W::read(values)?, W::read(default)?);
        W::write(context, 0, dtype, shape.clone(), |out| {
            out.fill(default[0]);
            for row in 0..n {
                let place = coordinates.place(row, shape.dims()).map_err(KernelError::InvalidArgument)?;
                out[place] = values[if is_one { 0 } else { row }];
            }
            Ok(())
        })
    }))
}

/// TensorFlow `SparseReorder`.
fn reorder(node: &KernelConstruction<'_>) -> Made {
    dispatch_raw!(type_attr(node, "T")?, W => kernel(|context| {
        let (of_values, _) = sparse_input(context, [0, 1, 2])?;
        let input = context.input(1)?;
        let n = input.shape().n_elements();
        let mut order = scratch::list::<usize>(n)?;
        order.extend(0..n);
        let coordinates = of_values.coordinates();
        order.sort_by(|&a, &b| coordinates.row(a).cmp(coordinates.row(b)));
        context.fill_output(0, context.input(0)?.shape(), |out: &mut [i64]| {
            for (slot, &row) in out.chunks_exact_mut(of_values.rank.max(1)).zip(&order) {
                slot.copy_from_slice(coordinates.row(row));
            }
            Ok(())
        })?;
        let values = W::read(input)?;
        W::write(context, 1, input.dtype(), input.shape().clone(), |out| {
            for (slot, &row) in out.iter_mut().zip(&order) {
                *slot = values[row];
            }
            Ok(())
        })
    }))
}

/// TensorFlow `SparseReshape`.
fn reshape(context: &KernelContext<'_>) -> Result<(), KernelError> {
    let (input, sizes) = (context.input(0)?, context.input(1)?);
    if input.shape().rank() != 2 {
        return Err(KernelError::invalid(format!(
            "Input indices should be a matrix but received shape {}",
            input.shape()
        )));
    }
    let shape = shape_of(sizes, "the input shape")?;
    if input.shape().dims()[1] != shape.rank() {
        return Err(KernelError::invalid(format!(
            "Input tensor rank must match input shape length: {} vs. {}",
            input.shape().dims()[1],
            shape.rank()
        )));
    }
    let requested = indices(context.input(2)?)?;
    let result = sparse::reshaped(&shape, &requested).map_err(KernelError::InvalidArgument)?;
    let of_values = Indices::of(input)?;
    let coordinates = of_values.coordinates();
    let n = input.shape().dims()[0];
    let sizes = result
        .dims()
        .iter()
        .map(|&size| i64::try_from(size).unwrap_or(i64::MAX));
    context.fill_output(1, &Shape::new(&[result.rank()]), |out: &mut [i64]| {
        out.iter_mut()
            .zip(sizes)
            .for_each(|(slot, size)| *slot = size);
        Ok(())
    })?;
    context.fill_output(0, &Shape::new(&[n, result.rank()]), |out: &mut [i64]| {
        for (row, slot) in out.chunks_exact_mut(result.rank().max(1)).enumerate() {
            let mut place = coordinates
                .place(row, shape.dims())
                .map_err(KernelError::InvalidArgument)?;
            for (slot, &size) in slot.iter_mut().zip(result.dims()).rev() {
                *slot = i64::try_from(place % size).unwrap_or(i64::MAX);
                place /= size;
            }
        }
        Ok(())
    })
}

/// TensorFlow `SparseFillEmptyRows`.
fn fill_empty_rows(node: &KernelConstruction<'_>) -> Made {
    dispatch_raw!(type_attr(node, "T")?, W => kernel(|context| {
        let (of_values, shape) = sparse_input(context, [0, 1, 2])?;
        let (values, default) = (context.input(1)?, context.input(3)?);
        if default.shape().rank() != 0 {
            return Err(KernelError::invalid(format!(
                "default_value must be a scalar, saw: {}",
                default.shape()
            )));
        }
        let Some(&n_rows) = shape.dims().first() else {
            return Err(KernelError::invalid("Dense shape cannot be empty."));
        };
        let n = values.shape().n_elements();
        if n_rows == 0 && n != 0 {
            return Err(KernelError::invalid(format!(
                "Received SparseTensor with dense_shape[0] = 0 but indices.shape[0] = {n}"
            )));
        }
        let coordinates = of_values.coordinates();
        let mut counts = scratch::list::<usize>(n_rows)?;
        counts.extend(std::iter::repeat_n(0, n_rows));
        for row in 0..n {
            let index = coordinates.row(row)[0];
            let place = usize::try_from(index).ok().and_then(|index| counts.get_mut(index));
            let place = place.ok_or_else(|| KernelError::invalid(format!(
                "indices({row}, 0) is invalid: {index} >= {n_rows}"
            )))?;
            *place += 1;
        }
        context.fill_output(2, &Shape::new(&[n_rows]), |out: &mut [Boolean]| {
            out.iter_mut().zip(&counts).for_each(|(slot, &count)| *slot = (count == 0).into());
            Ok(())
        })?;
        // From here on the place of the next value of each row.
        let mut at = 0;
        for count in &mut counts {
            let taken = (*count).max(1);
            *count = at;
            at += taken;
        }
        let n_filled = at;
        let mut places = scratch::list::<i64>(n)?;
        // Per place the value that it holds, or `n` for the default.
        let mut sources = scratch::list::<usize>(n_filled)?;
        sources.extend(std::iter::repeat_n(n, n_filled));
        let starts = counts.clone();
        for row in 0..n {
            let index = usize::try_from(coordinates.row(row)[0]).unwrap_or(0);
            places.push(i64::try_from(counts[index]).unwrap_or(i64::MAX));
            sources[counts[index]] = row;
            counts[index] += 1;
        }
        set_indices(context, 3, &Shape::new(&[n]), &places, true)?;
        context.fill_output(0, &Shape::new(&[n_filled, shape.rank()]), |out: &mut [i64]| {
            let slots = out.chunks_exact_mut(shape.rank());
            for (place, (slot, &source)) in slots.zip(&sources).enumerate() {
                if source < n {
                    slot.copy_from_slice(coordinates.row(source));
                } else {
                    let row = starts.partition_point(|&start| start <= place) - 1;
                    slot.fill(0);
                    slot[0] = i64::try_from(row).unwrap_or(i64::MAX);
                }
            }
            Ok(())
        })?;
        let dtype = values.dtype();
        let (values, default) = (W::read(values)?, W::read(default)?);
        W::write(context, 1, dtype, Shape::new(&[n_filled]), |out| {
            for (slot, &source) in out.iter_mut().zip(&sources) {
                *slot = values.get(source).copied().unwrap_or(default[0]);
            }
            Ok(())
        })
    }))
}

/// TensorFlow `SparseTensorDenseMatMul`. As there, sums of 16-bit floats are `float`.
fn matmul(node: &KernelConstruction<'_>) -> Made {
    let adjoints = (
        bool_attr(node, "adjoint_a", false)?,
        bool_attr(node, "adjoint_b", false)?,
    );
    macro_rules! made {
        ($rust:ty) => {
            kernel(move |context| multiplied::<$rust, $rust>(context, adjoints, |x| x, |x| x))
        };
    }
    match type_attr(node, "T")? {
        DType::F16 => kernel(move |context| {
            multiplied::<half::f16, f32>(context, adjoints, f32::from, half::f16::from_f32)
        }),
        DType::BF16 => kernel(move |context| {
            multiplied::<half::bf16, f32>(context, adjoints, f32::from, half::bf16::from_f32)
        }),
        DType::F32 => made!(f32),
        DType::F64 => made!(f64),
        DType::I32 => made!(i32),
        DType::Complex64 => made!(crate::tensor::Complex64),
        DType::Complex128 => made!(crate::tensor::Complex128),
        other => Err(crate::backend::types::unsupported(other)),
    }
}

fn multiplied<T: Arithmetic, W: Arithmetic>(
    context: &KernelContext<'_>,
    (adjoint_a, adjoint_b): (bool, bool),
    widen: impl Fn(T) -> W,
    narrow: impl Fn(W) -> T,
) -> Result<(), KernelError> {
    let (of_values, shape) = sparse_input(context, [0, 1, 2])?;
    let b = context.input(3)?;
    let (&[n_rows, n_columns], &[b_rows, b_columns]) = (shape.dims(), b.shape().dims()) else {
        return Err(KernelError::invalid(format!(
            "Tensors 'a_shape' and 'b' must be matrices, got shapes {shape} and {}",
            b.shape()
        )));
    };
    let (outer, inner) = if adjoint_a {
        (n_columns, n_rows)
    } else {
        (n_rows, n_columns)
    };
    let (b_inner, b_outer) = if adjoint_b {
        (b_columns, b_rows)
    } else {
        (b_rows, b_columns)
    };
    if inner != b_inner {
        return Err(KernelError::invalid(format!(
            "Cannot multiply A and B because inner dimension does not match: {inner} vs. {b_inner}.  \
             Did you forget a transpose?  Dimensions of A: [{n_rows}, {n_columns}).  Dimensions of \
             B: {}",
            b.shape()
        )));
    }
    let (values, b) = (context.input(1)?.as_slice::<T>()?, b.as_slice::<T>()?);
    let coordinates = of_values.coordinates();
    let result = Shape::new(&[outer, b_outer]);
    result
        .size_bytes(W::DTYPE)
        .map_err(crate::tensor::TensorError::from)?;
    let mut sums = crate::kernels::Threads::of(context).scratch::<W>(result.n_elements())?;
    for (index, &value) in values.iter().enumerate() {
        let place = coordinates
            .place(index, shape.dims())
            .map_err(KernelError::InvalidArgument)?;
        let (row, column) = (place / n_columns, place % n_columns);
        let (m, k) = if adjoint_a {
            (column, row)
        } else {
            (row, column)
        };
        let value = widen(value);
        let value = if adjoint_a { value.conjugate() } else { value };
        for (n, sum) in sums[m * b_outer..(m + 1) * b_outer].iter_mut().enumerate() {
            let other = if adjoint_b {
                widen(b[n * b_columns + k]).conjugate()
            } else {
                widen(b[k * b_columns + n])
            };
            *sum = sum.plus(value.times(other));
        }
    }
    context.fill_output(0, &result, |out: &mut [T]| {
        out.iter_mut()
            .zip(sums.iter())
            .for_each(|(slot, &sum)| *slot = narrow(sum));
        Ok(())
    })
}
