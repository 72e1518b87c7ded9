//! Eigenvalues and singular values, by Jacobi's rotations in double precision.

use crate::device::KernelError;
use crate::kernels::Arithmetic;
use crate::kernels::Threads;
use crate::kernels::linalg::Field;
use crate::kernels::linalg::Householder;

/// Maximum number of times that all pairs of columns are rotated; some ten are needed.
const SWEEPS_MAX: usize = 60;

/// Deviation from 0, relative to the lengths of two columns, at which they count as orthogonal.
const TOLERANCE: f64 = 8.0 * f64::EPSILON;

/// A rotation of two columns that makes them orthogonal: `p = phase * cosine * p - sine * q`,
/// `q = phase * sine * p + cosine * q`.
#[derive(Debug, Clone, Copy)]
struct Rotation<F> {
    phase: F,
    cosine: f64,
    sine: f64,
}

impl<F: Field> Rotation<F> {
    /// Returns the rotation that diagonalizes `[[a, b], [conj(b), c]]`; `b` is not 0.
    fn of(a: f64, b: F, c: f64) -> Self {
        let modulus = b.modulus();
        let theta = (c - a) / (2.0 * modulus);
        let tangent = theta.signum() / (theta.abs() + theta.hypot(1.0));
        let cosine = 1.0 / tangent.hypot(1.0);
        Self {
            phase: b.over(F::of_real(modulus)),
            cosine,
            sine: tangent * cosine,
        }
    }

    fn apply(&self, p: &mut F, q: &mut F) {
        let (cosine, sine) = (F::of_real(self.cosine), F::of_real(self.sine));
        let rotated = self.phase.times(*p);
        let new_p = cosine.times(rotated).minus(sine.times(*q));
        *q = sine.times(rotated).plus(cosine.times(*q));
        *p = new_p;
    }

    /// Rotates two rows of elements.
    fn rows(&self, matrix: &mut [F], [p, q]: [usize; 2], width: usize) {
        let (before, rest) = matrix.split_at_mut(q * width);
        let first = &mut before[p * width..][..width];
        for (p, q) in first.iter_mut().zip(&mut rest[..width]) {
            self.apply(p, q);
        }
    }
}

/// Computes eigenvalues, ascending, and eigenvectors, as rows, of a Hermitian matrix, of which only
/// the lower triangle is read (TensorFlow `SelfAdjointEigV2`). The contents of `matrix` are lost.
///
/// # Errors
/// [`KernelError::Tensor`] if scratch memory runs out.
///
/// # Panics
/// If a length is not `n * n`, or `n`.
pub fn hermitian<F: Field>(
    matrix: &mut [F],
    n: usize,
    values: &mut [f64],
    vectors: &mut [F],
    threads: Threads<'_>,
) -> Result<(), KernelError> {
    for i in 0..n {
        matrix[i * n + i] = F::of_real(matrix[i * n + i].real());
        for j in 0..i {
            matrix[j * n + i] = matrix[i * n + j].conjugate();
        }
    }
    let mut unsorted = threads.scratch::<F>(n * n)?;
    for i in 0..n {
        unsorted[i * n + i] = F::ONE;
    }
    let norm = matrix.iter().map(|x| x.modulus()).fold(0.0, f64::max);
    let negligible = norm * f64::EPSILON * f64::EPSILON;
    for _ in 0..SWEEPS_MAX {
        let mut is_diagonal = true;
        for p in 0..n {
            for q in p + 1..n {
                let (a, b, c) = (matrix[p * n + p], matrix[p * n + q], matrix[q * n + q]);
                let size = (a.modulus() * c.modulus()).sqrt() * TOLERANCE;
                if b.modulus() <= size.max(negligible) || b.modulus().is_nan() {
                    continue;
                }
                is_diagonal = false;
                let rotation = Rotation::of(a.real(), b, c.real());
                rotation.rows(&mut unsorted, [p, q], n);
                for row in matrix.chunks_exact_mut(n) {
                    let (first, second) = row.split_at_mut(q);
                    rotation.apply(&mut first[p], &mut second[0]);
                }
                let conjugate = Rotation {
                    phase: rotation.phase.conjugate(),
                    ..rotation
                };
                conjugate.rows(matrix, [p, q], n);
            }
        }
        if is_diagonal || threads.is_interrupted() {
            break;
        }
    }
    let mut order = threads.scratch::<usize>(n)?;
    for (index, slot) in order.iter_mut().enumerate() {
        *slot = index;
    }
    let value = |i: usize| matrix[i * n + i].real();
    order.sort_by(|&a, &b| value(a).total_cmp(&value(b)));
    for (i, &from) in order.iter().enumerate() {
        values[i] = value(from);
        vectors[i * n..][..n].copy_from_slice(&unsorted[from * n..][..n]);
    }
    Ok(())
}

/// Computes singular values, descending, and singular vectors, as rows, of a matrix whose columns
/// are the rows of `columns`: `n` of them, of length `m`, which is not below `n` (TensorFlow
/// `Svd`). `left` gets `left.len() / m` vectors. The contents of `columns` are lost.
///
/// # Errors
/// [`KernelError::Tensor`] if scratch memory runs out.
///
/// # Panics
/// If the length of a slice does not match its shape.
pub fn singular<F: Field>(
    columns: &mut [F],
    [m, n]: [usize; 2],
    values: &mut [f64],
    left: &mut [F],
    right: &mut [F],
    threads: Threads<'_>,
) -> Result<(), KernelError> {
    let mut unsorted = threads.scratch::<F>(n * n)?;
    for i in 0..n {
        unsorted[i * n + i] = F::ONE;
    }
    let square = |row: &[F]| row.iter().map(|x| x.modulus() * x.modulus()).sum::<f64>();
    for _ in 0..SWEEPS_MAX {
        let mut are_orthogonal = true;
        for p in 0..n {
            for q in p + 1..n {
                let (first, second) = (&columns[p * m..][..m], &columns[q * m..][..m]);
                let (a, c) = (square(first), square(second));
                let products = first
                    .iter()
                    .zip(second)
                    .map(|(&x, &y)| x.conjugate().times(y));
                let b = products.fold(F::ZERO, F::plus);
                if b.modulus() <= (a * c).sqrt() * TOLERANCE || b.modulus().is_nan() {
                    continue;
                }
                are_orthogonal = false;
                let rotation = Rotation::of(a, b, c);
                rotation.rows(columns, [p, q], m);
                rotation.rows(&mut unsorted, [p, q], n);
            }
        }
        if are_orthogonal || threads.is_interrupted() {
            break;
        }
    }
    let mut lengths = threads.scratch::<f64>(n)?;
    let mut order = threads.scratch::<usize>(n)?;
    for (index, (length, slot)) in lengths.iter_mut().zip(order.iter_mut()).enumerate() {
        *length = square(&columns[index * m..][..m]).sqrt();
        *slot = index;
    }
    order.sort_by(|&a, &b| lengths[b].total_cmp(&lengths[a]));
    let largest = order.first().map_or(0.0, |&first| lengths[first]);
    let mut n_left = 0;
    for (i, &from) in order.iter().enumerate() {
        let length = lengths[from];
        values[i] = length;
        if !right.is_empty() {
            right[i * n..][..n].copy_from_slice(&unsorted[from * n..][..n]);
        }
        // The directions of columns that vanish are noise.
        #[expect(clippy::cast_precision_loss, reason = "a small number")]
        if !left.is_empty() && length > largest * f64::EPSILON * m as f64 {
            let factor = F::of_real(length);
            for (slot, &x) in left[i * m..].iter_mut().zip(&columns[from * m..][..m]) {
                *slot = x.over(factor);
            }
            n_left = i + 1;
        }
    }
    complete(left, m, n_left, threads)
}

/// Fills the rows after the first `n` orthonormal ones of length `m` with rows that are orthogonal
/// to all others.
fn complete<F: Field>(
    rows: &mut [F],
    m: usize,
    n: usize,
    threads: Threads<'_>,
) -> Result<(), KernelError> {
    if rows.len() <= n * m {
        return Ok(());
    }
    // The orthogonal factor of the given ones, as columns, has the others.
    let mut columns = threads.scratch::<F>(m * n)?;
    for i in 0..n {
        for j in 0..m {
            columns[j * n + i] = rows[i * m + j];
        }
    }
    let (mut factors, mut line) = (threads.scratch(n)?, threads.scratch(m.max(n))?);
    let factorization = Householder::new(&mut columns, m, n, &mut factors, &mut line);
    let mut all = threads.scratch::<F>(m * m)?;
    factorization.orthogonal(&mut all, m, &mut line);
    for (i, row) in rows.chunks_exact_mut(m).enumerate().skip(n) {
        for (j, slot) in row.iter_mut().enumerate() {
            *slot = all[j * m + i];
        }
    }
    Ok(())
}

/// Writes rows as columns, without conjugation, rounded from double precision.
pub fn as_columns<F: Field>(rows: &[F::Double], n: usize, length: usize, out: &mut [F]) {
    for i in 0..n {
        for j in 0..length {
            out[j * n + i] = F::round(rows[i * length + j]);
        }
    }
}

/// Writes the columns of a matrix, or of its adjoint, as rows, in double precision.
///
/// # Panics
/// If a length is not `rows * columns`.
pub fn columns_of<F: Field>(
    matrix: &[F],
    [rows, columns]: [usize; 2],
    is_adjoint: bool,
    out: &mut [F::Double],
) {
    for i in 0..rows {
        for j in 0..columns {
            let x = matrix[i * columns + j].double();
            if is_adjoint {
                out[i * columns + j] = x.conjugate();
            } else {
                out[j * rows + i] = x;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_matrix_of_rank_one_has_orthogonal_vectors() {
        let matrix = [1.0f64, 2.0, 2.0, 4.0, 3.0, 6.0];
        let mut columns = [0.0; 6];
        columns_of(&matrix, [3, 2], false, &mut columns);
        let (mut values, mut left, mut right) = ([0.0; 2], [0.0; 9], [0.0; 4]);
        singular(
            &mut columns,
            [3, 2],
            &mut values,
            &mut left,
            &mut right,
            Threads::single(),
        )
        .unwrap();
        assert!((values[0] - 70.0f64.sqrt()).abs() < 1e-12 && values[1].abs() < 1e-12);
        for i in 0..3 {
            for j in 0..3 {
                let dot: f64 = (0..3).map(|k| left[i * 3 + k] * left[j * 3 + k]).sum();
                assert!((dot - f64::from(u8::from(i == j))).abs() < 1e-12, "{i} {j}");
            }
        }
        for i in 0..3 {
            for j in 0..2 {
                let sum: f64 = (0..2)
                    .map(|k| left[k * 3 + i] * values[k] * right[k * 2 + j])
                    .sum();
                assert!((sum - matrix[i * 2 + j]).abs() < 1e-12, "{i} {j}");
            }
        }
    }
}
