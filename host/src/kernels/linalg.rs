//! Factorizations of matrices and what follows from them. Matrices are row-major.

use crate::device::KernelError;
use crate::kernels::MatmulElement;
use crate::kernels::MatrixMut;
use crate::kernels::MatrixView;
use crate::kernels::Threads;
use crate::tensor::Complex64;
use crate::tensor::Complex128;

/// A real or complex number that can be divided.
pub trait Field: MatmulElement {
    /// The same in double precision.
    type Double: Field;
    /// Converts to double precision, exactly.
    fn double(self) -> Self::Double;
    /// Rounds to the nearest number.
    fn round(value: Self::Double) -> Self;
    /// Returns `self / other`.
    #[must_use]
    fn over(self, other: Self) -> Self;
    /// Returns `|self|`.
    fn modulus(self) -> f64;
    /// Returns the real part.
    fn real(self) -> f64;
    /// Returns the number without an imaginary part, rounded.
    fn of_real(value: f64) -> Self;
}

macro_rules! fields {
    ($($rust:ty, $double:ty, $widen:expr, $round:expr, $modulus:expr, $real:expr, $of_real:expr);* $(;)?) => {$(
        impl Field for $rust {
            type Double = $double;
            #[inline]
            fn double(self) -> $double { $widen(self) }
            #[inline]
            fn round(value: $double) -> Self { $round(value) }
            #[inline]
            fn over(self, other: Self) -> Self { self / other }
            #[inline]
            fn modulus(self) -> f64 { $modulus(self) }
            #[inline]
            fn real(self) -> f64 { $real(self) }
            #[inline]
            fn of_real(value: f64) -> Self { $of_real(value) }
        }
    )*};
}

#[expect(clippy::cast_possible_truncation, reason = "rounded once")]
mod rounded {
    use super::Complex64;
    use super::Complex128;
    use super::Field;

    fields! {
        f32, f64, f64::from, |x: f64| x as f32, |x: f32| f64::from(x.abs()), f64::from, |x: f64| x as f32;
        f64, f64, |x| x, |x| x, f64::abs, |x: f64| x, |x: f64| x;
        Complex64, Complex128, |x: Self| Complex128::new(x.re.into(), x.im.into()), |x: Complex128| Self::new(x.re as f32, x.im as f32), |x: Self| f64::from(x.norm()), |x: Self| f64::from(x.re), |x: f64| Self::new(x as f32, 0.0);
        Complex128, Complex128, |x| x, |x| x, |x: Self| x.norm(), |x: Self| x.re, |x: f64| Self::new(x, 0.0);
    }
}

/// Subtracts a multiple of one row from another.
fn subtract<F: Field>(row: &mut [F], factor: F, other: &[F]) {
    for (slot, &x) in row.iter_mut().zip(other) {
        *slot = slot.minus(factor.times(x));
    }
}

/// Returns row `i` mutably, and the rows before it.
fn split_row<F>(matrix: &mut [F], i: usize, columns: usize) -> (&mut [F], &mut [F]) {
    let (before, rest) = matrix.split_at_mut(i * columns);
    (before, &mut rest[..columns])
}

/// Conjugates and transposes a matrix of `rows` rows into `out`.
///
/// # Panics
/// If the lengths differ.
pub fn adjoint<F: Field>(matrix: &[F], rows: usize, columns: usize, out: &mut [F]) {
    for i in 0..rows {
        for j in 0..columns {
            out[j * rows + i] = matrix[i * columns + j].conjugate();
        }
    }
}

/// Replaces a positive definite matrix, of which only the lower triangle is read, by its lower
/// factor (TensorFlow `Cholesky`). Returns false if it is not positive definite.
///
/// # Panics
/// If the length is not `n * n`.
pub fn cholesky<F: Field>(matrix: &mut [F], n: usize) -> bool {
    for i in 0..n {
        let (before, row) = split_row(matrix, i, n);
        for j in 0..i {
            let other = &before[j * n..][..n];
            let pairs = row[..j].iter().zip(&other[..j]);
            let sum = pairs.fold(row[j], |sum, (&a, &b)| sum.minus(a.times(b.conjugate())));
            row[j] = sum.over(other[j]);
        }
        let squares = row[..i].iter().map(|x| x.modulus() * x.modulus());
        let pivot = squares.fold(row[i].real(), |pivot, square| pivot - square);
        if pivot <= 0.0 {
            return false;
        }
        row[i] = F::of_real(pivot.sqrt());
        row[i + 1..].fill(F::ZERO);
    }
    true
}

/// Replaces a square matrix by its factors: the unit lower one below the diagonal, the upper one on
/// and above it, with rows exchanged (TensorFlow `Lu`). `order[i]` becomes the row of the matrix
/// that row `i` of the factors comes from. Returns whether the number of exchanges is odd.
///
/// # Panics
/// If the length is not `n * n`, or `order` has not `n` elements.
pub fn lu<F: Field>(matrix: &mut [F], n: usize, order: &mut [usize]) -> bool {
    for (index, slot) in order.iter_mut().enumerate() {
        *slot = index;
    }
    let mut is_odd = false;
    for k in 0..n {
        let mut pivot = k;
        for i in k + 1..n {
            if matrix[i * n + k].modulus() > matrix[pivot * n + k].modulus() {
                pivot = i;
            }
        }
        if pivot != k {
            order.swap(k, pivot);
            is_odd = !is_odd;
            for j in 0..n {
                matrix.swap(k * n + j, pivot * n + j);
            }
        }
        if matrix[k * n + k] == F::ZERO {
            continue;
        }
        let (before, rest) = matrix.split_at_mut((k + 1) * n);
        let top = &before[k * n..];
        for row in rest.chunks_exact_mut(n) {
            row[k] = row[k].over(top[k]);
            let factor = row[k];
            subtract(&mut row[k + 1..], factor, &top[k + 1..]);
        }
    }
    is_odd
}

/// Returns whether an upper factor has a 0 on its diagonal.
pub fn is_singular<F: Field>(factors: &[F], n: usize) -> bool {
    (0..n).any(|i| factors[i * n + i] == F::ZERO)
}

/// Solves for right sides of `columns` columns with a triangular matrix, in place (TensorFlow
/// `MatrixTriangularSolve`). Only the triangle is read.
///
/// # Panics
/// If a length is wrong.
pub fn solve_triangular<F: Field>(
    matrix: &[F],
    n: usize,
    is_lower: bool,
    has_unit_diagonal: bool,
    right: &mut [F],
    columns: usize,
) {
    for step in 0..n {
        let i = if is_lower { step } else { n - 1 - step };
        let coefficients = &matrix[i * n..][..n];
        let (before, rest) = right.split_at_mut(i * columns);
        let (row, after) = rest.split_at_mut(columns);
        let (known, first) = if is_lower {
            (&*before, 0)
        } else {
            (&*after, i + 1)
        };
        for (j, other) in known.chunks_exact(columns.max(1)).enumerate() {
            subtract(row, coefficients[first + j], other);
        }
        if !has_unit_diagonal {
            for x in row {
                *x = x.over(coefficients[i]);
            }
        }
    }
}

/// Solves for right sides of `columns` columns with the factors and the order of [`lu`].
///
/// # Panics
/// If a length is wrong.
pub fn solve_lu<F: Field>(
    factors: &[F],
    order: &[usize],
    right: &[F],
    columns: usize,
    out: &mut [F],
) {
    let n = order.len();
    for (i, &row) in order.iter().enumerate() {
        out[i * columns..][..columns].copy_from_slice(&right[row * columns..][..columns]);
    }
    solve_triangular(factors, n, true, true, out, columns);
    solve_triangular(factors, n, false, false, out, columns);
}

/// Returns the sign, of modulus 1, and the logarithm of the modulus of the determinant (TensorFlow
/// `LogMatrixDeterminant`); the sign of 0 is 0.
pub fn log_determinant<F: Field>(factors: &[F], n: usize, is_odd: bool) -> (F, f64) {
    let mut sign = if is_odd {
        F::ZERO.minus(F::ONE)
    } else {
        F::ONE
    };
    let mut logarithm = 0.0;
    for i in 0..n {
        let x = factors[i * n + i];
        let modulus = x.modulus();
        sign = if modulus > 0.0 {
            sign.times(x.over(F::of_real(modulus)))
        } else {
            F::ZERO
        };
        logarithm += modulus.ln();
    }
    (sign, logarithm)
}

/// Factors of a QR decomposition, before they are written out.
#[derive(Debug)]
pub struct Householder<'a, F> {
    /// The upper factor, with the vectors of the reflections below its diagonal: `[rows, columns]`.
    matrix: &'a mut [F],
    /// The factor of each reflection.
    factors: &'a mut [F],
    rows: usize,
    columns: usize,
}

impl<'a, F: Field> Householder<'a, F> {
    /// Decomposes a matrix in place by reflections (TensorFlow `Qr`). `factors` and `line` have
    /// `min(rows, columns)` and `columns` elements.
    ///
    /// # Panics
    /// If a length is wrong.
    pub fn new(
        matrix: &'a mut [F],
        rows: usize,
        columns: usize,
        factors: &'a mut [F],
        line: &mut [F],
    ) -> Self {
        for (k, slot) in factors.iter_mut().enumerate() {
            let first = matrix[k * columns + k];
            let below = (k + 1..rows).map(|i| matrix[i * columns + k].modulus());
            let tail: f64 = below.map(|x| x * x).sum();
            let modulus = first.modulus();
            let imaginary = modulus * modulus - first.real() * first.real();
            if tail <= f64::MIN_POSITIVE && imaginary <= f64::MIN_POSITIVE {
                *slot = F::ZERO;
                matrix[k * columns + k] = F::of_real(first.real());
                for i in k + 1..rows {
                    matrix[i * columns + k] = F::ZERO;
                }
                continue;
            }
            let norm = (modulus * modulus + tail).sqrt();
            let norm = F::of_real(if first.real() >= 0.0 { -norm } else { norm });
            let factor = norm.minus(first).over(norm).conjugate();
            for i in k + 1..rows {
                let x = &mut matrix[i * columns + k];
                *x = x.over(first.minus(norm));
            }
            matrix[k * columns + k] = norm;
            *slot = factor;
            // The columns after this one are reflected.
            let line = &mut line[k + 1..columns];
            let start = k * columns + k + 1;
            line.copy_from_slice(&matrix[start..start + line.len()]);
            for i in k + 1..rows {
                let row = &matrix[i * columns..][..columns];
                let v = row[k].conjugate();
                for (sum, &x) in line.iter_mut().zip(&row[k + 1..]) {
                    *sum = sum.plus(v.times(x));
                }
            }
            for i in k..rows {
                let row = &mut matrix[i * columns..][..columns];
                let v = if i == k { F::ONE } else { row[k] };
                subtract(&mut row[k + 1..], factor.times(v), line);
            }
        }
        Self {
            matrix,
            factors,
            rows,
            columns,
        }
    }

    /// Writes the upper factor, of `out.len() / columns` rows.
    ///
    /// # Panics
    /// If a length is wrong.
    pub fn upper(&self, out: &mut [F]) {
        if self.columns == 0 {
            return;
        }
        for (i, row) in out.chunks_exact_mut(self.columns).enumerate() {
            let start = i.min(self.columns);
            row[..start].fill(F::ZERO);
            let from = &self.matrix[i * self.columns..][..self.columns];
            row[start..].copy_from_slice(&from[start..]);
        }
    }

    /// Writes the first `n` columns of the orthogonal factor. `line` has `n` elements.
    ///
    /// # Panics
    /// If a length is wrong.
    pub fn orthogonal(&self, out: &mut [F], n: usize, line: &mut [F]) {
        out.fill(F::ZERO);
        for i in 0..self.rows.min(n) {
            out[i * n + i] = F::ONE;
        }
        for k in (0..self.rows.min(self.columns)).rev() {
            let factor = self.factors[k].conjugate();
            line[..n].fill(F::ZERO);
            for i in k..self.rows {
                let v = self.entry(i, k).conjugate();
                for (sum, &x) in line.iter_mut().zip(&out[i * n..][..n]) {
                    *sum = sum.plus(v.times(x));
                }
            }
            for i in k..self.rows {
                let v = factor.times(self.entry(i, k));
                subtract(&mut out[i * n..][..n], v, line);
            }
        }
    }

    /// Returns element `i` of the vector of reflection `k`.
    fn entry(&self, i: usize, k: usize) -> F {
        if i == k {
            F::ONE
        } else {
            self.matrix[i * self.columns + k]
        }
    }
}

/// Writes a multiple of the identity.
fn identity<F: Field>(out: &mut [F], n: usize, factor: f64) {
    out.fill(F::ZERO);
    for i in 0..n {
        out[i * n + i] = F::of_real(factor);
    }
}

/// Adds a multiple of a matrix to another one.
fn add<F: Field>(out: &mut [F], factor: f64, matrix: &[F]) {
    let factor = F::of_real(factor);
    for (slot, &x) in out.iter_mut().zip(matrix) {
        *slot = slot.plus(factor.times(x));
    }
}

/// Coefficients of the Pade approximation of the exponential function of degree 13.
const PADE: [f64; 14] = [
    64_764_752_532_480_000.0,
    32_382_376_266_240_000.0,
    7_771_770_303_897_600.0,
    1_187_353_796_428_800.0,
    129_060_195_264_000.0,
    10_559_470_521_600.0,
    670_442_572_800.0,
    33_522_128_640.0,
    1_323_241_920.0,
    40_840_800.0,
    960_960.0,
    16_380.0,
    182.0,
    1.0,
];

/// Norm up to which the approximation is exact to double precision (Higham 2005).
const PADE_NORM: f64 = 5.371_920_351_148_152;

/// Computes the exponential function of a square matrix: a Pade approximation of a part of it,
/// squared as often as needed (TensorFlow `MatrixExponential`).
///
/// # Errors
/// [`KernelError::Tensor`] if scratch memory runs out.
///
/// # Panics
/// If a length is not `n * n`.
pub fn exponential<F: Field>(
    matrix: &[F],
    n: usize,
    out: &mut [F],
    threads: Threads<'_>,
) -> Result<(), KernelError> {
    let multiply = |a: &[F], b: &[F], out: &mut [F]| {
        let (a, b) = (
            MatrixView::row_major(a, n, n)?,
            MatrixView::row_major(b, n, n)?,
        );
        F::matmul(a, b, &mut MatrixMut::new(out, n, n, n)?, threads)
    };
    let column = |j: usize| (0..n).map(|i| matrix[i * n + j].modulus()).sum::<f64>();
    let norm = (0..n).map(column).fold(0.0, f64::max);
    let mut n_squarings = 0;
    let mut factor = 1.0;
    while norm * factor > PADE_NORM && n_squarings < 1100 {
        factor *= 0.5;
        n_squarings += 1;
    }
    let mut scratch = threads.scratch::<F>((n * n).saturating_mul(6))?;
    let mut parts = scratch.chunks_exact_mut((n * n).max(1));
    let mut next = || parts.next().unwrap_or_default();
    let [scaled, square, fourth, sixth] = [next(), next(), next(), next()];
    let (odd, even) = (next(), next());
    add(scaled, factor, matrix);
    multiply(scaled, scaled, square)?;
    multiply(square, square, fourth)?;
    multiply(fourth, square, sixth)?;
    // The odd part, and then the even one.
    let sum = |slot: &mut [F], [a, b, c, d]: [f64; 4]| {
        identity(slot, n, d);
        add(slot, a, sixth);
        add(slot, b, fourth);
        add(slot, c, square);
    };
    sum(out, [PADE[13], PADE[11], PADE[9], 0.0]);
    multiply(sixth, out, even)?;
    sum(out, [PADE[7], PADE[5], PADE[3], PADE[1]]);
    add(out, 1.0, even);
    multiply(scaled, out, odd)?;
    sum(out, [PADE[12], PADE[10], PADE[8], 0.0]);
    multiply(sixth, out, even)?;
    sum(out, [PADE[6], PADE[4], PADE[2], PADE[0]]);
    add(even, 1.0, out);
    // (even - odd) x = even + odd
    let (left, right) = (square, fourth);
    left.copy_from_slice(even);
    add(left, -1.0, odd);
    right.copy_from_slice(even);
    add(right, 1.0, odd);
    let mut order = threads.scratch(n)?;
    lu(left, n, &mut order);
    solve_lu(left, &order, right, n, out);
    for _ in 0..n_squarings {
        even.copy_from_slice(out);
        multiply(even, even, out)?;
    }
    Ok(())
}
