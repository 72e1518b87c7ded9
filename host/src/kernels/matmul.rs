//! Matrix multiplication.

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
pub use crate::kernels::simd::Epilogue;
use crate::kernels::simd::Prepacked;
use crate::kernels::simd::RowStarts;
use crate::kernels::simd::Rows;
use crate::kernels::simd::Segment;
use crate::tensor::Complex64;
use crate::tensor::Complex128;

/// Multiply-adds of integers after which the loop checks whether the run was interrupted: a few ms.
const ASKING_MACS: usize = 1 << 23;

/// An element type of matmuls.
pub trait MatmulElement: Accumulate {
    /// Computes `out = lhs * rhs`, `[m, k] x [k, n] -> [m, n]` (TensorFlow `MatMul`). An empty sum
    /// is 0. Sums of `f16` and `bf16` are kept in `f32` and rounded once; sums of integers wrap
    /// around.
    ///
    /// # Errors
    /// [`KernelError::Tensor`] if there is no memory for `f32` copies of `f16` and `bf16` operands.
    ///
    /// # Panics
    /// If the three shapes disagree.
    fn matmul(
        lhs: MatrixView<'_, Self>,
        rhs: MatrixView<'_, Self>,
        out: &mut MatrixMut<'_, Self>,
        threads: Threads<'_>,
    ) -> Result<(), KernelError>;
}

macro_rules! matmul {
    ($($rust:ty, $matmul:expr);* $(;)?) => {$(
        impl MatmulElement for $rust {
            fn matmul(
                lhs: MatrixView<'_, Self>,
                rhs: MatrixView<'_, Self>,
                out: &mut MatrixMut<'_, Self>,
                threads: Threads<'_>,
            ) -> Result<(), KernelError> {
                $matmul(lhs, rhs, out, threads)
            }
        }
    )*};
}

matmul! {
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

/// Returns the number of elements of a `[inner, columns]` right-hand matrix after [`prepack`];
/// `None` if it exceeds the address space.
pub fn prepacked_len(inner: usize, columns: usize) -> Option<usize> {
    simd::prepacked_len(inner, columns)
}

/// Prepacks a right-hand matrix for [`matmul_prepacked`]. The layout depends on the vector width of
/// this machine.
///
/// # Panics
/// If the length of `prepacked` is not [`prepacked_len`].
pub fn prepack(rhs: MatrixView<'_, f32>, prepacked: &mut [f32]) {
    simd::prepack(rhs, prepacked);
}

/// Writes the matrix that [`prepack`] has prepacked, `[rows, columns]`, to `matrix`, row-major.
///
/// # Errors
/// [`KernelError::InvalidArgument`] if the shapes disagree.
pub fn unpack(
    prepacked: &[f32],
    rows: usize,
    columns: usize,
    matrix: &mut [f32],
) -> Result<(), KernelError> {
    let found = prepacked.len();
    let prepacked = Prepacked::new(prepacked, rows, columns)
        .filter(|_| rows.checked_mul(columns) == Some(matrix.len()))
        .ok_or_else(|| {
            KernelError::invalid(format!(
                "{found} prepacked elements are not a [{rows}, {columns}] matrix"
            ))
        })?;
    prepacked.unpack(matrix);
    Ok(())
}

/// Computes `out = lhs * rhs`, `[m, k] x [k, n] -> [m, n]`, with a right side from [`prepack`], and
/// then the epilogue. Prepacking pays if the right side is used more than once.
///
/// # Errors
/// [`KernelError::InvalidArgument`] if the shapes disagree, or the rows of `lhs` are not
/// contiguous.
pub fn matmul_prepacked(
    lhs: MatrixView<'_, f32>,
    rhs: &[f32],
    epilogue: Option<Epilogue<'_>>,
    out: &mut MatrixMut<'_, f32>,
    threads: Threads<'_>,
) -> Result<(), KernelError> {
    let (rows, inner) = (lhs.rows(), lhs.columns());
    let rhs = Prepacked::new(rhs, inner, out.columns())
        .filter(|_| out.rows() == rows && (lhs.column_stride() == 1 || inner < 2))
        .filter(|_| epilogue.is_none_or(|it| it.fits(rows, out.columns())))
        .ok_or_else(|| {
            KernelError::invalid(format!(
                "[{rows}, {inner}] times {} prepacked elements is not [{}, {}]",
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
    simd::matmul_prepacked(lhs, rhs, epilogue, out, threads);
    Ok(())
}

/// Multiplies `f16` and `bf16` matrices in `f32` and rounds once.
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

/// Multiplies integer matrices by adding multiples of the right matrix's rows, so the inner loop
/// runs over contiguous elements if the right matrix is row-major.
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
    let mut n_macs = 0;
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
            n_macs += rhs.columns();
            if n_macs >= ASKING_MACS {
                n_macs = 0;
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
    use crate::device::Activation;
    use crate::kernels::cast::CastTo;
    use crate::kernels::epilogue;

    /// Reference implementation.
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

    /// Returns small whole numbers: every sum is exact in every type, so results must be equal.
    fn numbers<T: Arithmetic>(n: usize, seed: i64) -> Vec<T>
    where
        i64: CastTo<T>,
    {
        (0..n)
            .map(|i| ((i64::try_from(i).unwrap() * 7 + seed) % 5).cast())
            .collect()
    }

    fn check<T: MatmulElement>(m: usize, k: usize, n: usize, transposed: (bool, bool))
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
        // Each row of the result is followed by two more elements, which must not change.
        let untouched: T = 77i64.cast();
        let mut out = vec![untouched; m * (n + 2)];
        let mut target = MatrixMut::new(&mut out, m, n, n + 2).unwrap();
        T::matmul(lhs, rhs, &mut target, Threads::single()).unwrap();
        let expected = plain(lhs, rhs);
        for (i, row) in out.chunks_exact(n + 2).enumerate() {
            assert_eq!(row[..n], expected[i * n..(i + 1) * n], "{m} {k} {n}");
            assert_eq!(row[n..], [untouched; 2]);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn all_matmuls_agree_with_the_plain_loop(
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
        fn prepacked_matmuls_agree_with_the_plain_loop(
            m in 0usize..40, k in 0usize..40, n in 0usize..200, transposed in any::<bool>(),
        ) {
            let (a, b) = (numbers::<f32>(m * k, 3), numbers::<f32>(k * n, 1));
            let lhs = MatrixView::row_major(&a, m, k).unwrap();
            let rhs = if transposed {
                MatrixView::row_major(&b, n, k).unwrap().transposed()
            } else {
                MatrixView::row_major(&b, k, n).unwrap()
            };
            let mut prepacked = vec![f32::NAN; prepacked_len(k, n).unwrap()];
            prepack(rhs, &mut prepacked);
            let mut unpacked = vec![f32::NAN; k * n];
            unpack(&prepacked, k, n, &mut unpacked).unwrap();
            for (index, &element) in unpacked.iter().enumerate() {
                prop_assert_eq!(element, rhs.at(index / n, index % n));
            }
            let mut out = vec![77.0; m * (n + 2)];
            let mut target = MatrixMut::new(&mut out, m, n, n + 2).unwrap();
            matmul_prepacked(lhs, &prepacked, None, &mut target, Threads::single()).unwrap();
            let expected = plain(lhs, rhs);
            for (i, row) in out.chunks_exact(n + 2).enumerate() {
                prop_assert_eq!(&row[..n], &expected[i * n..(i + 1) * n]);
                prop_assert_eq!(&row[n..], [77.0; 2]);
            }
            let mut bias = numbers::<f32>(n, 2);
            bias.iter_mut().for_each(|element| *element -= 20.5);
            let addend = numbers::<f32>(m * n, 4);
            for activation in [Activation::None, Activation::Relu, Activation::Relu6] {
                let mut found = vec![f32::NAN; m * n];
                for addend in [None, Some(&addend[..])] {
                    let fused = Epilogue { bias: &bias, addend, activation };
                    let mut target = MatrixMut::new(&mut found, m, n, n).unwrap();
                    matmul_prepacked(lhs, &prepacked, Some(fused), &mut target, Threads::single()).unwrap();
                    let mut expected = expected.clone();
                    epilogue::apply_all(&mut expected, fused, Threads::single());
                    prop_assert_eq!(&found, &expected);
                }
            }
        }
    }

    #[test]
    fn an_epilogue_keeps_nan_and_has_a_bias_per_column() {
        for n in [1, 8, 9, 70] {
            let (a, b) = (vec![f32::NAN; 7], vec![1.0; n]);
            let lhs = MatrixView::row_major(&a, 7, 1).unwrap();
            let mut prepacked = vec![0.0; prepacked_len(1, n).unwrap()];
            prepack(MatrixView::row_major(&b, 1, n).unwrap(), &mut prepacked);
            let mut found = vec![0.0; 7 * n];
            let bias = vec![1.0; n];
            let mut multiply = |bias: &[f32]| {
                let mut out = MatrixMut::new(&mut found, 7, n, n).unwrap();
                let activation = Activation::Relu6;
                let fused = Some(Epilogue {
                    bias,
                    addend: None,
                    activation,
                });
                matmul_prepacked(lhs, &prepacked, fused, &mut out, Threads::single())
            };
            multiply(&bias[1..]).unwrap_err();
            multiply(&bias).unwrap();
            assert!(found.iter().all(|element| element.is_nan()));
        }
    }

    #[test]
    fn prepacked_matrices_of_another_shape_are_refused() {
        let lhs = MatrixView::row_major(&[1.0; 6], 2, 3).unwrap();
        let prepacked = vec![0.0; prepacked_len(3, 5).unwrap()];
        let matmul = |lhs, rows, columns| {
            let mut out = vec![0.0; rows * columns];
            let mut out = MatrixMut::new(&mut out, rows, columns, columns).unwrap();
            matmul_prepacked(lhs, &prepacked, None, &mut out, Threads::single())
        };
        matmul(lhs, 2, 5).unwrap();
        matmul(lhs, 3, 5).unwrap_err();
        matmul(lhs, 2, 500).unwrap_err();
        matmul(lhs.transposed(), 3, 5).unwrap_err();
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
