//! Factorizations of matrices, and what follows from them.

use half::f16;

use crate::backend::cpu::kernels::def;
use crate::backend::host_kernels::Made;
use crate::backend::host_kernels::kernel;
use crate::backend::host_kernels::output;
use crate::backend::plan::attr::bool_attr;
use crate::backend::plan::attr::type_attr;
use crate::backend::plan::product;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelError;
use crate::device::KernelRegistry;
use crate::kernels::Arithmetic;
use crate::kernels::Broadcast;
use crate::kernels::Scratch;
use crate::kernels::Threads;
use crate::kernels::linalg;
use crate::kernels::linalg::Field;
use crate::kernels::linalg::Householder;
use crate::kernels::spectral;
use crate::tensor::Complex64;
use crate::tensor::Complex128;
use crate::tensor::DType;
use crate::tensor::Element;
use crate::tensor::Shape;

/// Types that TensorFlow's CPU kernels factorize.
const FIELDS: [DType; 4] = [DType::F32, DType::F64, DType::Complex64, DType::Complex128];

/// The same with `half`, which some of them support.
const WITH_HALF: [DType; 5] = [
    DType::F16,
    DType::F32,
    DType::F64,
    DType::Complex64,
    DType::Complex128,
];

/// Multiply-adds worth handing to another thread.
const GRAIN_MACS: usize = 64 * 1024;

macro_rules! dispatch_field {
    ($dtype:expr, $T:ident => $body:expr) => {
        dispatch!($dtype, [
            F32: f32, F64: f64, Complex64: Complex64, Complex128: Complex128,
        ], $T => $body)
    };
}

macro_rules! dispatch_linear {
    ($dtype:expr, $T:ident => $body:expr) => {
        dispatch!($dtype, [
            F16: f16, F32: f32, F64: f64, Complex64: Complex64, Complex128: Complex128,
        ], $T => $body)
    };
}

/// An element that is computed with in another type: `f32` for `f16`.
trait Linear: Element {
    type Field: Field;
    fn widen(self) -> Self::Field;
    fn narrow(value: Self::Field) -> Self;
}

macro_rules! linear {
    ($($rust:ty),*) => {$(
        impl Linear for $rust {
            type Field = Self;
            fn widen(self) -> Self { self }
            fn narrow(value: Self) -> Self { value }
        }
    )*};
}

linear!(f32, f64, Complex64, Complex128);

impl Linear for f16 {
    type Field = f32;
    fn widen(self) -> f32 {
        self.to_f32()
    }
    fn narrow(value: f32) -> Self {
        Self::from_f32(value)
    }
}

pub(super) fn register(registry: &mut KernelRegistry) {
    let mut add = |op: &str, types: &[DType], make: fn(&KernelConstruction<'_>) -> Made| {
        registry.register(def(op).with_types("T", types).with_factory(make));
    };
    add(
        "Cholesky",
        &FIELDS,
        |node| dispatch_field!(type_attr(node, "T")?, T => kernel(cholesky::<T>)),
    );
    add(
        "MatrixExponential",
        &FIELDS,
        |node| dispatch_field!(type_attr(node, "T")?, T => kernel(exponential::<T>)),
    );
    add("MatrixInverse", &WITH_HALF, |node| {
        let is_adjoint = bool_attr(node, "adjoint", false)?;
        dispatch_linear!(type_attr(node, "T")?, T => kernel(move |context| {
            inverse::<T>(context, is_adjoint)
        }))
    });
    add("Qr", &WITH_HALF, |node| {
        let is_full = bool_attr(node, "full_matrices", false)?;
        dispatch_linear!(type_attr(node, "T")?, T => kernel(move |context| {
            qr::<T>(context, is_full)
        }))
    });
    add("Svd", &FIELDS, |node| {
        let has_vectors = bool_attr(node, "compute_uv", true)?;
        let is_full = bool_attr(node, "full_matrices", false)?;
        dispatch_field!(type_attr(node, "T")?, T => kernel(move |context| {
            svd::<T>(context, has_vectors, is_full)
        }))
    });
    add("SelfAdjointEigV2", &FIELDS, |node| {
        let has_vectors = bool_attr(node, "compute_v", true)?;
        dispatch_field!(type_attr(node, "T")?, T => kernel(move |context| {
            eigen::<T>(context, has_vectors)
        }))
    });
    add(
        "MatrixDeterminant",
        &FIELDS,
        |node| dispatch_field!(type_attr(node, "T")?, T => kernel(determinant::<T>)),
    );
    add(
        "LogMatrixDeterminant",
        &FIELDS,
        |node| dispatch_field!(type_attr(node, "T")?, T => kernel(log_determinant::<T>)),
    );
    add("Lu", &FIELDS, |node| {
        let order = node.attrs.dtype("output_idx_type").unwrap_or(DType::I32);
        dispatch_field!(type_attr(node, "T")?, T => kernel(move |context| {
            lu::<T>(context, order)
        }))
    });
    add("MatrixSolve", &FIELDS, |node| {
        let is_adjoint = bool_attr(node, "adjoint", false)?;
        dispatch_field!(type_attr(node, "T")?, T => kernel(move |context| {
            solve::<T>(context, is_adjoint)
        }))
    });
    add("MatrixTriangularSolve", &FIELDS, |node| {
        let is_lower = bool_attr(node, "lower", true)?;
        let is_adjoint = bool_attr(node, "adjoint", false)?;
        dispatch_field!(type_attr(node, "T")?, T => kernel(move |context| {
            solve_triangular::<T>(context, is_lower, is_adjoint)
        }))
    });
}

/// Returns batch dimensions, rows and columns of matrices.
fn matrices(shape: &Shape) -> Result<(&[usize], [usize; 2]), KernelError> {
    match shape.dims() {
        [batch @ .., rows, columns] => Ok((batch, [*rows, *columns])),
        _ => Err(KernelError::invalid(format!(
            "input tensor must have rank >= 2, got shape {shape}"
        ))),
    }
}

/// Returns batch dimensions and size of square matrices.
fn squares(shape: &Shape) -> Result<(&[usize], usize), KernelError> {
    match matrices(shape)? {
        (batch, [rows, columns]) if rows == columns => Ok((batch, rows)),
        _ => Err(KernelError::invalid(format!(
            "input matrices must be square, got shape {shape}"
        ))),
    }
}

fn joined(batch: &[usize], last: &[usize]) -> Shape {
    batch.iter().chain(last).copied().collect()
}

/// Returns the number of output elements whose cubic work is worth handing to another thread.
fn grain(n: usize) -> usize {
    (GRAIN_MACS / n.max(1)).max(1)
}

/// Calls `compute` for each square matrix of input 0 and its place in output 0, on all threads.
fn each_square<T: Element>(
    context: &KernelContext<'_>,
    compute: impl Fn(&[T], usize, &mut [T], Threads<'_>) -> Result<(), KernelError> + Sync,
) -> Result<(), KernelError> {
    let input = context.input(0)?;
    let (_, n) = squares(input.shape())?;
    let x = input.as_slice::<T>()?;
    let whole = product(&[n, n]);
    context.fill_output(0, input.shape(), |out| {
        if out.is_empty() {
            return Ok(());
        }
        let threads = Threads::of(context);
        threads.try_fill(out, whole, grain(n), |start, part| {
            for (index, out) in part.chunks_exact_mut(whole).enumerate() {
                let x = &x[start + index * whole..][..whole];
                compute(x, n, out, threads.alone())?;
            }
            Ok(())
        })
    })
}

/// TensorFlow `Cholesky`. A matrix that is not positive definite gives NaN.
fn cholesky<F: Field>(context: &KernelContext<'_>) -> Result<(), KernelError> {
    each_square::<F>(context, |x, n, out, _| {
        out.copy_from_slice(x);
        if !linalg::cholesky(out, n) {
            for (i, row) in out.chunks_exact_mut(n).enumerate() {
                row[..=i].fill(F::of_real(f64::NAN));
                row[i + 1..].fill(F::ZERO);
            }
        }
        Ok(())
    })
}

/// TensorFlow `MatrixExponential`.
fn exponential<F: Field>(context: &KernelContext<'_>) -> Result<(), KernelError> {
    each_square::<F>(context, linalg::exponential)
}

/// Factors of a square matrix, or of its adjoint.
struct Lu<F> {
    factors: Scratch<F>,
    order: Scratch<usize>,
    is_odd: bool,
}

impl<F: Field> Lu<F> {
    fn new<T: Linear<Field = F>>(
        matrix: &[T],
        n: usize,
        is_adjoint: bool,
        threads: Threads<'_>,
    ) -> Result<Self, KernelError> {
        let mut factors = threads.scratch::<F>(matrix.len())?;
        for (slot, &x) in factors.iter_mut().zip(matrix) {
            *slot = x.widen();
        }
        if is_adjoint {
            let mut transposed = threads.scratch::<F>(matrix.len())?;
            linalg::adjoint(&factors, n, n, &mut transposed);
            factors = transposed;
        }
        let mut order = threads.scratch(n)?;
        let is_odd = linalg::lu(&mut factors, n, &mut order);
        Ok(Self {
            factors,
            order,
            is_odd,
        })
    }

    fn check(&self, message: &str) -> Result<(), KernelError> {
        match linalg::is_singular(&self.factors, self.order.len()) {
            true => Err(KernelError::invalid(message)),
            false => Ok(()),
        }
    }
}

/// TensorFlow `MatrixInverse`.
fn inverse<T: Linear>(context: &KernelContext<'_>, is_adjoint: bool) -> Result<(), KernelError> {
    each_square::<T>(context, |x, n, out, threads| {
        let lu = Lu::new(x, n, is_adjoint, threads)?;
        lu.check("Input is not invertible.")?;
        let mut identity = threads.scratch::<T::Field>(x.len())?;
        for i in 0..n {
            identity[i * n + i] = T::Field::ONE;
        }
        let mut inverse = threads.scratch::<T::Field>(x.len())?;
        linalg::solve_lu(&lu.factors, &lu.order, &identity, n, &mut inverse);
        for (slot, &x) in out.iter_mut().zip(inverse.iter()) {
            *slot = T::narrow(x);
        }
        Ok(())
    })
}

/// Returns matrix `index` of a batch of square ones.
fn nth<T>(x: &[T], index: usize, n: usize) -> &[T] {
    &x[index * n * n..][..n * n]
}

/// TensorFlow `MatrixDeterminant`.
fn determinant<F: Field + Linear<Field = F>>(
    context: &KernelContext<'_>,
) -> Result<(), KernelError> {
    let input = context.input(0)?;
    let (batch, n) = squares(input.shape())?;
    let x = input.as_slice::<F>()?;
    output(context, Shape::new(batch), |out: &mut [F]| {
        for (index, slot) in out.iter_mut().enumerate() {
            let lu = Lu::new(nth(x, index, n), n, false, Threads::of(context))?;
            let (sign, logarithm) = linalg::log_determinant(&lu.factors, n, lu.is_odd);
            *slot = sign.times(F::of_real(logarithm.exp()));
        }
        Ok(())
    })
}

/// TensorFlow `LogMatrixDeterminant`.
fn log_determinant<F: Field + Linear<Field = F>>(
    context: &KernelContext<'_>,
) -> Result<(), KernelError> {
    let input = context.input(0)?;
    let (batch, n) = squares(input.shape())?;
    let x = input.as_slice::<F>()?;
    let shape = Shape::new(batch);
    let threads = Threads::of(context);
    let mut found = threads.scratch::<F>(product(&[shape.n_elements(), 2]))?;
    for (index, pair) in found.chunks_exact_mut(2).enumerate() {
        let lu = Lu::new(nth(x, index, n), n, false, threads)?;
        let (sign, logarithm) = linalg::log_determinant(&lu.factors, n, lu.is_odd);
        pair.copy_from_slice(&[sign, F::of_real(logarithm)]);
    }
    for which in [0, 1] {
        context.fill_output(which, &shape, |out: &mut [F]| {
            for (slot, pair) in out.iter_mut().zip(found.chunks_exact(2)) {
                *slot = pair[which];
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// TensorFlow `Lu`.
fn lu<F: Field + Linear<Field = F>>(
    context: &KernelContext<'_>,
    order: DType,
) -> Result<(), KernelError> {
    let input = context.input(0)?;
    let (batch, n) = squares(input.shape())?;
    let x = input.as_slice::<F>()?;
    let shape = joined(batch, &[n]);
    let threads = Threads::of(context);
    let mut orders = threads.scratch::<usize>(shape.n_elements())?;
    context.fill_output(0, input.shape(), |out: &mut [F]| {
        if out.is_empty() {
            return Ok(());
        }
        for (index, out) in out.chunks_exact_mut(n * n).enumerate() {
            let lu = Lu::new(nth(x, index, n), n, false, threads)?;
            lu.check("Input is not invertible.")?;
            out.copy_from_slice(&lu.factors);
            orders[index * n..][..n].copy_from_slice(&lu.order);
        }
        Ok(())
    })?;
    dispatch!(order, [I32: i32, I64: i64], I => {
        context.fill_output(1, &shape, |out: &mut [I]| {
            for (slot, &row) in out.iter_mut().zip(orders.iter()) {
                *slot = I::try_from(row).unwrap_or(I::MAX);
            }
            Ok(())
        })
    })
}

/// TensorFlow `MatrixSolve`.
fn solve<F: Field + Linear<Field = F>>(
    context: &KernelContext<'_>,
    is_adjoint: bool,
) -> Result<(), KernelError> {
    let (matrix, right) = (context.input(0)?, context.input(1)?);
    let (batch, n) = squares(matrix.shape())?;
    let (other, [rows, columns]) = matrices(right.shape())?;
    if rows != n || batch != other {
        return Err(KernelError::invalid(format!(
            "input matrix and rhs are incompatible: {} and {}",
            matrix.shape(),
            right.shape()
        )));
    }
    let (a, b) = (matrix.as_slice::<F>()?, right.as_slice::<F>()?);
    let whole = product(&[n, columns]);
    context.fill_output(0, right.shape(), |out| {
        if out.is_empty() {
            return Ok(());
        }
        let threads = Threads::of(context);
        threads.try_fill(out, whole, grain(n), |start, part| {
            for (index, out) in part.chunks_exact_mut(whole).enumerate() {
                let index = start / whole + index;
                let lu = Lu::new(nth(a, index, n), n, is_adjoint, threads.alone())?;
                lu.check("Input matrix is not invertible.")?;
                let b = &b[index * whole..][..whole];
                linalg::solve_lu(&lu.factors, &lu.order, b, columns, out);
            }
            Ok(())
        })
    })
}

/// TensorFlow `MatrixTriangularSolve`. Batch dimensions are broadcast. A matrix with a 0 on its
/// diagonal gives infinities, as in TensorFlow.
fn solve_triangular<F: Field>(
    context: &KernelContext<'_>,
    is_lower: bool,
    is_adjoint: bool,
) -> Result<(), KernelError> {
    let (matrix, right) = (context.input(0)?, context.input(1)?);
    let (batch, n) = squares(matrix.shape())?;
    let (other, [rows, columns]) = matrices(right.shape())?;
    if rows != n {
        return Err(KernelError::invalid(format!(
            "in[0] mismatch In[1] shape: {n} vs. {rows}: {} {}",
            matrix.shape(),
            right.shape()
        )));
    }
    let plan = Broadcast::new(&Shape::new(batch), &Shape::new(other))?;
    let threads = Threads::of(context);
    // A matrix and a right side as one number.
    let n_right = product(other) as u64;
    let [lefts, rights] = [numbers(batch, threads)?, numbers(other, threads)?];
    let mut pairs = threads.scratch::<u64>(plan.shape().n_elements())?;
    plan.apply(&lefts, &rights, &mut pairs, threads, |l: u64, r: u64| {
        l * n_right + r
    });
    let (a, b) = (matrix.as_slice::<F>()?, right.as_slice::<F>()?);
    let whole = product(&[n, columns]);
    let shape = joined(plan.shape().dims(), &[n, columns]);
    output(context, shape, |out: &mut [F]| {
        if out.is_empty() {
            return Ok(());
        }
        let mut adjoint = threads.scratch::<F>(if is_adjoint { n * n } else { 0 })?;
        for (out, &pair) in out.chunks_exact_mut(whole).zip(pairs.iter()) {
            let place = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
            let (left, right) = (place(pair / n_right), place(pair % n_right));
            out.copy_from_slice(&b[right * whole..][..whole]);
            let mut a = nth(a, left, n);
            if is_adjoint {
                linalg::adjoint(a, n, n, &mut adjoint);
                a = &adjoint;
            }
            linalg::solve_triangular(a, n, is_lower != is_adjoint, false, out, columns);
        }
        Ok(())
    })
}

/// Returns the numbers of the matrices of a batch.
fn numbers(batch: &[usize], threads: Threads<'_>) -> Result<Scratch<u64>, KernelError> {
    let mut numbers = threads.scratch(product(batch))?;
    for (number, slot) in (0..).zip(numbers.iter_mut()) {
        *slot = number;
    }
    Ok(numbers)
}

/// TensorFlow `Qr`.
fn qr<T: Linear>(context: &KernelContext<'_>, is_full: bool) -> Result<(), KernelError> {
    let input = context.input(0)?;
    let (batch, [rows, columns]) = matrices(input.shape())?;
    let x = input.as_slice::<T>()?;
    let least = rows.min(columns);
    let inner = if is_full { rows } else { least };
    let threads = Threads::of(context);
    let mut matrix = threads.scratch::<T::Field>(product(&[rows, columns]))?;
    let mut factors = threads.scratch::<T::Field>(least)?;
    let mut line = threads.scratch::<T::Field>(columns.max(inner))?;
    let (q, r) = (product(&[rows, inner]), product(&[inner, columns]));
    let n = product(batch);
    let mut found = threads.scratch::<T::Field>(product(&[n, q.saturating_add(r)]))?;
    for index in 0..n {
        let x = &x[index * matrix.len()..][..matrix.len()];
        for (slot, &x) in matrix.iter_mut().zip(x) {
            *slot = x.widen();
        }
        let (q, r) = found[index * (q + r)..][..q + r].split_at_mut(q);
        let factorization = Householder::new(&mut matrix, rows, columns, &mut factors, &mut line);
        factorization.upper(r);
        factorization.orthogonal(q, inner, &mut line);
    }
    for (which, dims, part) in [(0, [rows, inner], 0..q), (1, [inner, columns], q..q + r)] {
        context.fill_output(which, &joined(batch, &dims), |out: &mut [T]| {
            if out.is_empty() {
                return Ok(());
            }
            for (index, out) in out.chunks_exact_mut(part.len()).enumerate() {
                let from = &found[index * (q + r)..][part.clone()];
                for (slot, &x) in out.iter_mut().zip(from) {
                    *slot = T::narrow(x);
                }
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// Sets an output of vectors that are not wanted to a scalar, as TensorFlow's kernels do.
fn no_vectors<F: Field>(context: &KernelContext<'_>, index: usize) -> Result<(), KernelError> {
    context.fill_output(index, &Shape::scalar(), |out: &mut [F]| {
        out.fill(F::ZERO);
        Ok(())
    })
}

/// TensorFlow `Svd`.
fn svd<F: Field>(
    context: &KernelContext<'_>,
    has_vectors: bool,
    is_full: bool,
) -> Result<(), KernelError> {
    let input = context.input(0)?;
    let (batch, [rows, columns]) = matrices(input.shape())?;
    let x = input.as_slice::<F>()?;
    // A wide matrix is decomposed as its adjoint.
    let is_wide = columns > rows;
    let (m, n) = (rows.max(columns), rows.min(columns));
    let n_long = if is_full { m } else { n };
    let threads = Threads::of(context);
    let n_matrices = product(batch);
    let (long, short) = match has_vectors {
        true => (product(&[n_long, m]), product(&[n, n])),
        false => (0, 0),
    };
    let mut matrix = threads.scratch::<F::Double>(product(&[m, n]))?;
    let mut values = threads.scratch::<f64>(product(&[n_matrices, n]))?;
    let mut left = threads.scratch::<F::Double>(product(&[n_matrices, long]))?;
    let mut right = threads.scratch::<F::Double>(product(&[n_matrices, short]))?;
    for index in 0..n_matrices {
        let x = &x[index * rows * columns..][..rows * columns];
        spectral::columns_of(x, [rows, columns], is_wide, &mut matrix);
        spectral::singular(
            &mut matrix,
            [m, n],
            &mut values[index * n..][..n],
            &mut left[index * long..][..long],
            &mut right[index * short..][..short],
            threads,
        )?;
    }
    context.fill_output(0, &joined(batch, &[n]), |out: &mut [F]| {
        for (slot, &value) in out.iter_mut().zip(values.iter()) {
            *slot = F::of_real(value);
        }
        Ok(())
    })?;
    for (which, is_long) in [(1, !is_wide), (2, is_wide)] {
        let (vectors, n_vectors, length) = match is_long {
            true => (&left, n_long, m),
            false => (&right, n, n),
        };
        if !has_vectors {
            no_vectors::<F>(context, which)?;
            continue;
        }
        let shape = joined(batch, &[length, n_vectors]);
        context.fill_output(which, &shape, |out: &mut [F]| {
            if out.is_empty() {
                return Ok(());
            }
            let whole = n_vectors * length;
            for (index, out) in out.chunks_exact_mut(whole).enumerate() {
                spectral::as_columns(&vectors[index * whole..][..whole], n_vectors, length, out);
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// TensorFlow `SelfAdjointEigV2`.
fn eigen<F: Field>(context: &KernelContext<'_>, has_vectors: bool) -> Result<(), KernelError> {
    let input = context.input(0)?;
    let (batch, n) = squares(input.shape())?;
    let x = input.as_slice::<F>()?;
    let threads = Threads::of(context);
    let n_matrices = product(batch);
    let whole = product(&[n, n]);
    let mut matrix = threads.scratch::<F::Double>(whole)?;
    let mut values = threads.scratch::<f64>(product(&[n_matrices, n]))?;
    let mut vectors = threads.scratch::<F::Double>(product(&[n_matrices, whole]))?;
    for index in 0..n_matrices {
        for (slot, &x) in matrix.iter_mut().zip(&x[index * whole..][..whole]) {
            *slot = x.double();
        }
        let values = &mut values[index * n..][..n];
        let vectors = &mut vectors[index * whole..][..whole];
        spectral::hermitian(&mut matrix, n, values, vectors, threads)?;
    }
    context.fill_output(0, &joined(batch, &[n]), |out: &mut [F]| {
        for (slot, &value) in out.iter_mut().zip(values.iter()) {
            *slot = F::of_real(value);
        }
        Ok(())
    })?;
    if !has_vectors {
        return no_vectors::<F>(context, 1);
    }
    context.fill_output(1, input.shape(), |out: &mut [F]| {
        if out.is_empty() {
            return Ok(());
        }
        for (index, out) in out.chunks_exact_mut(whole).enumerate() {
            spectral::as_columns(&vectors[index * whole..][..whole], n, n, out);
        }
        Ok(())
    })
}
