//! Batched matmuls: many matmuls of one size.

use smallvec::SmallVec;

use crate::device::KernelError;
use crate::kernels::MatmulElement;
use crate::kernels::MatrixMut;
use crate::kernels::MatrixView;
use crate::kernels::Threads;

/// Minimum multiply-adds worth handing to another thread: about 20 us.
const GRAIN_MACS: usize = 1 << 20;

/// Multiply-adds of one matmul above which its own parallelism pays more than one thread per
/// matmul.
const LARGE_MACS: usize = 8 * 1024 * 1024;

/// Strides of one operand, in elements. A stride of 0 repeats the operand.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Operand {
    /// From one matrix to the next, for each batch dimension.
    pub batch: SmallVec<[usize; 4]>,
    /// From one row to the next.
    pub row: usize,
    /// From one column to the next.
    pub column: usize,
}

/// A batched matmul, `[batch, m, k] x [batch, k, n] -> [batch, m, n]` (TensorFlow `BatchMatMulV2`).
/// The result is row-major; the operands have any strides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchMatmul {
    /// Batch dimensions of the result.
    pub batch: SmallVec<[usize; 4]>,
    /// `[m, k, n]`: rows, inner size, columns.
    pub size: [usize; 3],
    /// The left operand.
    pub lhs: Operand,
    /// The right operand.
    pub rhs: Operand,
}

impl BatchMatmul {
    /// # Errors
    /// [`KernelError::InvalidArgument`] if an operand is shorter than its strides reach;
    /// [`KernelError::Tensor`] if scratch memory runs out.
    ///
    /// # Panics
    /// If the length of `out` is not that of the result.
    pub fn apply<T: MatmulElement>(
        &self,
        lhs: &[T],
        rhs: &[T],
        out: &mut [T],
        threads: Threads<'_>,
    ) -> Result<(), KernelError> {
        let [m, k, n] = self.size;
        if out.is_empty() {
            return Ok(());
        }
        let n_batches: usize = self.batch.iter().product();
        assert_eq!(out.len(), n_batches * m * n, "result has its shape");
        if let Some(row) = self.rows_of_all() {
            let lhs = MatrixView::strided(lhs, n_batches * m, k, row, self.lhs.column)?;
            let rhs = MatrixView::strided(rhs, k, n, self.rhs.row, self.rhs.column)?;
            let mut out = MatrixMut::new(out, n_batches * m, n, n)?;
            return T::matmul(lhs, rhs, &mut out, threads);
        }
        let n_macs = m.saturating_mul(k).saturating_mul(n);
        if n_macs >= LARGE_MACS {
            return self.each(lhs, rhs, 0, out, threads);
        }
        let grain = (GRAIN_MACS / k.max(1)).max(1);
        threads.try_fill(out, m * n, grain, |start, part| {
            self.each(lhs, rhs, start / (m * n), part, threads.alone())
        })
    }

    /// Returns the row stride of `lhs` if all left matrices together form one matrix and the right
    /// matrix is the same for all of them.
    pub(crate) fn rows_of_all(&self) -> Option<usize> {
        let [m, ..] = self.size;
        let mut row = self.lhs.row;
        let mut span = m.checked_mul(row)?;
        let mut n_rows = m;
        let axes = self.batch.iter().zip(&self.lhs.batch).zip(&self.rhs.batch);
        for ((&size, &lhs), &rhs) in axes.rev() {
            if size == 1 {
                continue;
            }
            if n_rows == 1 {
                row = lhs;
            } else if lhs != span {
                return None;
            }
            if rhs != 0 {
                return None;
            }
            n_rows *= size;
            span = n_rows.checked_mul(row)?;
        }
        Some(row)
    }

    /// Computes the matmuls from `first` on, one after the other.
    fn each<T: MatmulElement>(
        &self,
        lhs: &[T],
        rhs: &[T],
        first: usize,
        out: &mut [T],
        threads: Threads<'_>,
    ) -> Result<(), KernelError> {
        let [m, _, n] = self.size;
        for (index, out) in out.chunks_exact_mut(m * n).enumerate() {
            let (lhs, rhs) = self.operands(lhs, rhs, first + index)?;
            T::matmul(lhs, rhs, &mut MatrixMut::new(out, m, n, n)?, threads)?;
        }
        Ok(())
    }

    fn operands<'a, T>(
        &self,
        lhs: &'a [T],
        rhs: &'a [T],
        mut index: usize,
    ) -> Result<(MatrixView<'a, T>, MatrixView<'a, T>), KernelError> {
        let [m, k, n] = self.size;
        let (mut l, mut r) = (0usize, 0usize);
        let axes = self.batch.iter().zip(&self.lhs.batch).zip(&self.rhs.batch);
        for ((&size, &lhs), &rhs) in axes.rev() {
            l = l.saturating_add((index % size).saturating_mul(lhs));
            r = r.saturating_add((index % size).saturating_mul(rhs));
            index /= size;
        }
        // An operand without elements ends before the start of any of its matrices.
        let lhs = lhs.get(l..).unwrap_or_default();
        let rhs = rhs.get(r..).unwrap_or_default();
        Ok((
            MatrixView::strided(lhs, m, k, self.lhs.row, self.lhs.column)?,
            MatrixView::strided(rhs, k, n, self.rhs.row, self.rhs.column)?,
        ))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Reference implementation.
    fn plain(p: &BatchMatmul, lhs: &[i64], rhs: &[i64]) -> Vec<i64> {
        let [m, k, n] = p.size;
        let n_batches: usize = p.batch.iter().product();
        let mut out = Vec::new();
        for batch in 0..n_batches {
            let (mut rest, mut l, mut r) = (batch, 0, 0);
            for axis in (0..p.batch.len()).rev() {
                let i = rest % p.batch[axis];
                rest /= p.batch[axis];
                l += i * p.lhs.batch[axis];
                r += i * p.rhs.batch[axis];
            }
            for i in 0..m {
                for j in 0..n {
                    let term = |q: usize| {
                        lhs[l + i * p.lhs.row + q * p.lhs.column]
                            * rhs[r + q * p.rhs.row + j * p.rhs.column]
                    };
                    out.push((0..k).map(term).sum());
                }
            }
        }
        out
    }

    proptest! {
        #[test]
        fn matmuls_agree_with_the_plain_loop(
            batch in prop::collection::vec((1usize..4, any::<(bool, bool)>()), 0..3),
            m in 1usize..5, k in 0usize..5, n in 1usize..5, transposed in any::<(bool, bool)>(),
        ) {
            let operand = |rows: usize, columns: usize, transposed: bool, repeats: fn((bool, bool)) -> bool| {
                let mut span = rows * columns;
                let mut strides: SmallVec<[usize; 4]> = SmallVec::new();
                for &(size, kinds) in batch.iter().rev() {
                    strides.push(if repeats(kinds) { 0 } else { span });
                    if !repeats(kinds) {
                        span *= size;
                    }
                }
                strides.reverse();
                let (row, column) = if transposed { (1, rows) } else { (columns, 1) };
                (Operand { batch: strides, row, column }, span)
            };
            let (lhs, l) = operand(m, k, transposed.0, |kinds| kinds.0);
            let (rhs, r) = operand(k, n, transposed.1, |kinds| kinds.1);
            let matmul = BatchMatmul {
                batch: batch.iter().map(|&(size, _)| size).collect(),
                size: [m, k, n],
                lhs,
                rhs,
            };
            let numbers = |n: usize, seed: i64| -> Vec<i64> { (seed..).map(|i| i * 7 % 11 - 5).take(n).collect() };
            let (a, b) = (numbers(l, 1), numbers(r, 4));
            let expected = plain(&matmul, &a, &b);
            let mut out = vec![i64::MAX; expected.len()];
            matmul.apply(&a, &b, &mut out, Threads::single()).unwrap();
            prop_assert_eq!(out, expected);
        }
    }
}
