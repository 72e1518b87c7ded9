//! Matrix products.

use half::bf16;
use half::f16;

use crate::kernels::MatrixMut;
use crate::kernels::MatrixView;
use crate::kernels::Number;
use crate::kernels::Real;
use crate::kernels::Threads;
use crate::kernels::simd;

/// An element type that matrices are multiplied in.
pub trait Multiply: Number {
    /// `out = lhs * rhs`, `[m, k] x [k, n] -> [m, n]` (TensorFlow `MatMul`). An empty sum is 0. Sums of short floats are
    /// kept in `f32` and rounded once; sums of integers wrap around.
    ///
    /// # Panics
    /// If the three shapes disagree.
    fn multiply(
        lhs: MatrixView<'_, Self>,
        rhs: MatrixView<'_, Self>,
        out: &mut MatrixMut<'_, Self>,
        threads: Threads<'_>,
    );
}

impl Multiply for f32 {
    fn multiply(
        lhs: MatrixView<'_, Self>,
        rhs: MatrixView<'_, Self>,
        out: &mut MatrixMut<'_, Self>,
        threads: Threads<'_>,
    ) {
        simd::gemm(lhs, rhs, out, threads);
    }
}

impl Multiply for f64 {
    fn multiply(
        lhs: MatrixView<'_, Self>,
        rhs: MatrixView<'_, Self>,
        out: &mut MatrixMut<'_, Self>,
        threads: Threads<'_>,
    ) {
        simd::gemm(lhs, rhs, out, threads);
    }
}

impl Multiply for f16 {
    fn multiply(
        lhs: MatrixView<'_, Self>,
        rhs: MatrixView<'_, Self>,
        out: &mut MatrixMut<'_, Self>,
        threads: Threads<'_>,
    ) {
        widened(lhs, rhs, out, threads);
    }
}

impl Multiply for bf16 {
    fn multiply(
        lhs: MatrixView<'_, Self>,
        rhs: MatrixView<'_, Self>,
        out: &mut MatrixMut<'_, Self>,
        threads: Threads<'_>,
    ) {
        widened(lhs, rhs, out, threads);
    }
}

impl Multiply for i16 {
    fn multiply(
        lhs: MatrixView<'_, Self>,
        rhs: MatrixView<'_, Self>,
        out: &mut MatrixMut<'_, Self>,
        _: Threads<'_>,
    ) {
        row_by_row(lhs, rhs, out);
    }
}

impl Multiply for i32 {
    fn multiply(
        lhs: MatrixView<'_, Self>,
        rhs: MatrixView<'_, Self>,
        out: &mut MatrixMut<'_, Self>,
        _: Threads<'_>,
    ) {
        row_by_row(lhs, rhs, out);
    }
}

impl Multiply for i64 {
    fn multiply(
        lhs: MatrixView<'_, Self>,
        rhs: MatrixView<'_, Self>,
        out: &mut MatrixMut<'_, Self>,
        _: Threads<'_>,
    ) {
        row_by_row(lhs, rhs, out);
    }
}

/// Short floats: the product in `f32`, rounded once.
fn widened<T: Real<Wide = f32>>(
    lhs: MatrixView<'_, T>,
    rhs: MatrixView<'_, T>,
    out: &mut MatrixMut<'_, T>,
    threads: Threads<'_>,
) {
    let wide = |view: &MatrixView<'_, T>| -> Vec<f32> {
        (0..view.rows())
            .flat_map(|i| (0..view.columns()).map(move |j| (i, j)))
            .map(|(i, j)| view.at(i, j).widen())
            .collect()
    };
    let (rows, columns) = (out.rows(), out.columns());
    let (l, r) = (wide(&lhs), wide(&rhs));
    let mut sums = vec![0.0f32; rows * columns];
    {
        let expect = "the copy has as many elements as the view";
        let l = MatrixView::row_major(&l, lhs.rows(), lhs.columns()).expect(expect);
        let r = MatrixView::row_major(&r, rhs.rows(), rhs.columns()).expect(expect);
        let mut sums = MatrixMut::new(&mut sums, rows, columns, columns).expect(expect);
        simd::gemm(l, r, &mut sums, threads);
    }
    if columns == 0 {
        return;
    }
    for (i, row) in sums.chunks_exact(columns).enumerate() {
        for (o, &sum) in out.row_mut(i).iter_mut().zip(row) {
            *o = T::narrow(sum);
        }
    }
}

/// Integers: adds multiples of the right matrix's rows, so that the inner loop runs over contiguous elements where the
/// right matrix has them.
fn row_by_row<T: Number>(
    lhs: MatrixView<'_, T>,
    rhs: MatrixView<'_, T>,
    out: &mut MatrixMut<'_, T>,
) {
    assert_eq!(lhs.columns(), rhs.rows(), "inner dimensions agree");
    assert_eq!((out.rows(), out.columns()), (lhs.rows(), rhs.columns()));
    if rhs.columns() == 0 {
        return;
    }
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
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The plain twin.
    fn plain<T: Number>(lhs: MatrixView<'_, T>, rhs: MatrixView<'_, T>) -> Vec<T> {
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
    fn numbers<T: Number>(n: usize, seed: i64) -> Vec<T> {
        (0..n)
            .map(|i| T::from_i64((i64::try_from(i).unwrap() * 7 + seed) % 5))
            .collect()
    }

    fn check<T: Multiply>(m: usize, k: usize, n: usize, transposed: (bool, bool)) {
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
        let mut out = vec![T::from_i64(77); m * (n + 2)];
        let mut target = MatrixMut::new(&mut out, m, n, n + 2).unwrap();
        T::multiply(lhs, rhs, &mut target, Threads::single());
        let expected = plain(lhs, rhs);
        for (i, row) in out.chunks_exact(n + 2).enumerate() {
            assert_eq!(row[..n], expected[i * n..(i + 1) * n], "{m} {k} {n}");
            assert_eq!(row[n..], [T::from_i64(77); 2]);
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
        }
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
