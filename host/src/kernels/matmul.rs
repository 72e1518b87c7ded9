//! Matrix products.

use half::bf16;
use half::f16;

use crate::device::KernelError;
use crate::kernels::Arithmetic;
use crate::kernels::MatrixMut;
use crate::kernels::MatrixView;
use crate::kernels::Real;
use crate::kernels::Scratch;
use crate::kernels::Threads;
use crate::kernels::reducer::Accumulate;
use crate::kernels::simd;
use crate::kernels::simd::Packed;
use crate::kernels::simd::RowStarts;
use crate::kernels::simd::Rows;
use crate::kernels::simd::Segment;
use crate::tensor::Complex64;
use crate::tensor::Complex128;

/// Products of integers after which the run is asked whether it goes on: some ms.
const ASKING_PRODUCTS: usize = 1 << 23;

/// An element type that matrices are multiplied in.
pub trait Multiply: Accumulate {
    /// `out = lhs * rhs`, `[m, k] x [k, n] -> [m, n]` (TensorFlow `MatMul`). An empty sum is 0.
    /// Sums of short floats are kept in `f32` and rounded once; sums of integers wrap around.
    ///
    /// # Errors
    /// [`KernelError::Tensor`] without room for copies of short floats.
    ///
    /// # Panics
    /// If the three shapes disagree.
    fn multiply(
        lhs: MatrixView<'_, Self>,
        rhs: MatrixView<'_, Self>,
        out: &mut MatrixMut<'_, Self>,
        threads: Threads<'_>,
    ) -> Result<(), KernelError>;
}

macro_rules! multiply {
    ($($rust:ty, $product:expr);* $(;)?) => {$(
        impl Multiply for $rust {
            fn multiply(
                lhs: MatrixView<'_, Self>,
                rhs: MatrixView<'_, Self>,
                out: &mut MatrixMut<'_, Self>,
                threads: Threads<'_>,
            ) -> Result<(), KernelError> {
                $product(lhs, rhs, out, threads)
            }
        }
    )*};
}

multiply! {
    f32, by_library;
    f64, by_library;
    Complex64, by_library;
    Complex128, by_library;
    f16, widened;
    bf16, widened;
    i16, row_by_row;
    i32, row_by_row;
    i64, row_by_row;
}

fn by_library<T: simd::GemmElement>(
    lhs: MatrixView<'_, T>,
    rhs: MatrixView<'_, T>,
    out: &mut MatrixMut<'_, T>,
    threads: Threads<'_>,
) -> Result<(), KernelError> {
    simd::gemm(lhs, rhs, out, threads);
    Ok(())
}

/// Elements of a `[inner, columns]` right-hand matrix that [`pack`] has put in order; `None` beyond
/// this machine's numbers.
pub fn packed_len(inner: usize, columns: usize) -> Option<usize> {
    simd::packed_len(inner, columns)
}

/// Puts a right-hand matrix in the order in which [`multiply_packed`] reads it. The order is this
/// machine's.
///
/// # Panics
/// If `packed` has another length than [`packed_len`].
pub fn pack(rhs: MatrixView<'_, f32>, packed: &mut [f32]) {
    simd::pack(rhs, packed);
}

/// `out = lhs * rhs`, `[m, k] x [k, n] -> [m, n]`, with a right side that [`pack`] has put in
/// order: worth it for one that is used more than once.
///
/// # Errors
/// [`KernelError::InvalidArgument`] if the shapes disagree, or the elements of a row of `lhs` do
/// not stand side by side.
pub fn multiply_packed(
    lhs: MatrixView<'_, f32>,
    rhs: &[f32],
    out: &mut MatrixMut<'_, f32>,
    threads: Threads<'_>,
) -> Result<(), KernelError> {
    let (rows, inner) = (lhs.rows(), lhs.columns());
    let rhs = Packed::new(rhs, inner, out.columns())
        .filter(|_| out.rows() == rows && (lhs.column_stride() == 1 || inner < 2))
        .ok_or_else(|| {
            KernelError::invalid(format!(
                "[{rows}, {inner}] times {} packed elements is not [{}, {}]",
                rhs.len(),
                out.rows(),
                out.columns()
            ))
        })?;
    let lhs = Rows {
        data: lhs.data(),
        starts: RowStarts::Strided {
            n_rows: rows,
            stride: lhs.row_stride(),
        },
        segments: &[Segment {
            offset: 0,
            len: inner,
        }],
    };
    simd::multiply_packed(lhs, rhs, out, threads);
    Ok(())
}

/// Short floats: the product in `f32`, rounded once.
fn widened<T: Real<Wide = f32>>(
    lhs: MatrixView<'_, T>,
    rhs: MatrixView<'_, T>,
    out: &mut MatrixMut<'_, T>,
    threads: Threads<'_>,
) -> Result<(), KernelError> {
    let wide = |view: &MatrixView<'_, T>| -> Result<Scratch<f32>, KernelError> {
        let (rows, columns) = (view.rows(), view.columns());
        let mut wide = threads.scratch::<f32>(rows.saturating_mul(columns))?;
        for (i, row) in wide.chunks_exact_mut(columns.max(1)).enumerate() {
            for (j, w) in row.iter_mut().enumerate() {
                *w = view.at(i, j).widen();
            }
        }
        Ok(wide)
    };
    let (rows, columns) = (out.rows(), out.columns());
    let (l, r) = (wide(&lhs)?, wide(&rhs)?);
    let mut sums = threads.scratch::<f32>(rows * columns)?;
    {
        let l = MatrixView::row_major(&l, lhs.rows(), lhs.columns())?;
        let r = MatrixView::row_major(&r, rhs.rows(), rhs.columns())?;
        let mut sums = MatrixMut::new(&mut sums, rows, columns, columns)?;
        simd::gemm(l, r, &mut sums, threads);
    }
    if columns == 0 {
        return Ok(());
    }
    for (i, row) in sums.chunks_exact(columns).enumerate() {
        for (o, &sum) in out.row_mut(i).iter_mut().zip(row) {
            *o = T::narrow(sum);
        }
    }
    Ok(())
}

/// Integers: adds multiples of the right matrix's rows, so that the inner loop runs over contiguous
/// elements where the right matrix has them.
fn row_by_row<T: Arithmetic>(
    lhs: MatrixView<'_, T>,
    rhs: MatrixView<'_, T>,
    out: &mut MatrixMut<'_, T>,
    threads: Threads<'_>,
) -> Result<(), KernelError> {
    assert_eq!(lhs.columns(), rhs.rows(), "inner dimensions agree");
    assert_eq!((out.rows(), out.columns()), (lhs.rows(), rhs.columns()));
    if rhs.columns() == 0 {
        return Ok(());
    }
    let mut n_products = 0;
    for i in 0..lhs.rows() {
        let row = out.row_mut(i);
        row.fill(T::ZERO);
        for p in 0..rhs.rows() {
            let factor = lhs.at(i, p);
            let start = p * rhs.row_stride();
            let elements = rhs.data()[start..]
                .iter()
                .step_by(rhs.column_stride().max(1));
            for (o, &r) in row.iter_mut().zip(elements) {
                *o = o.plus(factor.times(r));
            }
            n_products += rhs.columns();
            if n_products >= ASKING_PRODUCTS {
                n_products = 0;
                if threads.is_interrupted() {
                    return Ok(());
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::kernels::cast::CastTo;

    /// The plain twin.
    fn plain<T: Arithmetic>(lhs: MatrixView<'_, T>, rhs: MatrixView<'_, T>) -> Vec<T> {
        let mut out = Vec::new();
        for i in 0..lhs.rows() {
            for j in 0..rhs.columns() {
                let sum = (0..lhs.columns())
                    .fold(T::ZERO, |sum, p| sum.plus(lhs.at(i, p).times(rhs.at(p, j))));
                out.push(sum);
            }
        }
        out
    }

    /// Small whole numbers: every product and sum is exact in every type, so results must be equal.
    fn numbers<T: Arithmetic>(n: usize, seed: i64) -> Vec<T>
    where
        i64: CastTo<T>,
    {
        (0..n)
            .map(|i| ((i64::try_from(i).unwrap() * 7 + seed) % 5).cast())
            .collect()
    }

    fn check<T: Multiply>(m: usize, k: usize, n: usize, transposed: (bool, bool))
    where
        i64: CastTo<T>,
    {
        let (a, b) = (numbers::<T>(m * k, 3), numbers::<T>(k * n, 1));
        let lhs = if transposed.0 {
            MatrixView::row_major(&a, k, m).unwrap().transposed()
        } else {
            MatrixView::row_major(&a, m, k).unwrap()
        };
        let rhs = if transposed.1 {
            MatrixView::row_major(&b, n, k).unwrap().transposed()
        } else {
            MatrixView::row_major(&b, k, n).unwrap()
        };
        // Two elements more in each row of the result: what stands between the rows must stay.
        let untouched: T = 77i64.cast();
        let mut out = vec![untouched; m * (n + 2)];
        let mut target = MatrixMut::new(&mut out, m, n, n + 2).unwrap();
        T::multiply(lhs, rhs, &mut target, Threads::single()).unwrap();
        let expected = plain(lhs, rhs);
        for (i, row) in out.chunks_exact(n + 2).enumerate() {
            assert_eq!(row[..n], expected[i * n..(i + 1) * n], "{m} {k} {n}");
            assert_eq!(row[n..], [untouched; 2]);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn all_products_agree_with_the_plain_loop(
            m in 0usize..40, k in 0usize..40, n in 0usize..40,
            transposed in (any::<bool>(), any::<bool>()),
        ) {
            check::<f32>(m, k, n, transposed);
            check::<f64>(m, k, n, transposed);
            check::<f16>(m, k, n, transposed);
            check::<bf16>(m, k.min(20), n, transposed);
            check::<i32>(m, k, n, transposed);
            check::<i64>(m, k, n, transposed);
            check::<Complex64>(m, k, n, transposed);
            check::<Complex128>(m, k, n, transposed);
        }
    }

    proptest! {
        #[test]
        fn packed_products_agree_with_the_plain_loop(
            m in 0usize..40, k in 0usize..40, n in 0usize..200, transposed in any::<bool>(),
        ) {
            let (a, b) = (numbers::<f32>(m * k, 3), numbers::<f32>(k * n, 1));
            let lhs = MatrixView::row_major(&a, m, k).unwrap();
            let rhs = if transposed {
                MatrixView::row_major(&b, n, k).unwrap().transposed()
            } else {
                MatrixView::row_major(&b, k, n).unwrap()
            };
            let mut packed = vec![f32::NAN; packed_len(k, n).unwrap()];
            pack(rhs, &mut packed);
            let mut out = vec![77.0; m * (n + 2)];
            let mut target = MatrixMut::new(&mut out, m, n, n + 2).unwrap();
            multiply_packed(lhs, &packed, &mut target, Threads::single()).unwrap();
            let expected = plain(lhs, rhs);
            for (i, row) in out.chunks_exact(n + 2).enumerate() {
                prop_assert_eq!(&row[..n], &expected[i * n..(i + 1) * n]);
                prop_assert_eq!(&row[n..], [77.0; 2]);
            }
        }
    }

    #[test]
    fn packed_matrices_of_another_shape_are_refused() {
        let lhs = MatrixView::row_major(&[1.0; 6], 2, 3).unwrap();
        let packed = vec![0.0; packed_len(3, 5).unwrap()];
        let multiply = |lhs, rows, columns| {
            let mut out = vec![0.0; rows * columns];
            let mut out = MatrixMut::new(&mut out, rows, columns, columns).unwrap();
            multiply_packed(lhs, &packed, &mut out, Threads::single())
        };
        multiply(lhs, 2, 5).unwrap();
        multiply(lhs, 3, 5).unwrap_err();
        multiply(lhs, 2, 500).unwrap_err();
        multiply(lhs.transposed(), 3, 5).unwrap_err();
    }

    #[test]
    fn one_row_is_multiplied_right_at_any_width() {
        for n in [1, 2, 15, 16, 17, 63, 64, 65, 300] {
            check::<f32>(1, 129, n, (false, false));
            check::<f32>(1, 129, n, (false, true));
            check::<f32>(n, 129, 1, (false, false));
        }
    }
}
