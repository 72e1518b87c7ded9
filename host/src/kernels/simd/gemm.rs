//! The matrix product of crate `gemm`.

use crate::kernels::MatrixMut;
use crate::kernels::MatrixView;
use crate::kernels::Number;
use crate::kernels::Threads;

/// Below this many floating-point operations a second thread costs more than it brings (measured: 2 MFLOP).
const PARALLEL_FLOP: f64 = 2e6;

/// Element types that crate `gemm` multiplies at full speed. It picks the product by type, so no other type may
/// implement this.
pub(crate) trait GemmElement: Number {}

impl GemmElement for f32 {}

impl GemmElement for f64 {}

/// `out = lhs * rhs`, `[m, k] x [k, n] -> [m, n]`.
///
/// # Panics
/// If the three shapes disagree: callers have compared them.
pub(crate) fn gemm<T: GemmElement>(
    lhs: MatrixView<'_, T>,
    rhs: MatrixView<'_, T>,
    out: &mut MatrixMut<'_, T>,
    threads: Threads<'_>,
) {
    let (m, k, n) = (lhs.rows(), lhs.columns(), rhs.columns());
    assert_eq!(rhs.rows(), k, "inner dimensions agree");
    assert_eq!((out.rows(), out.columns()), (m, n), "result has its shape");
    if m == 0 || n == 0 {
        return;
    }
    if k == 0 {
        for i in 0..m {
            out.row_mut(i).fill(T::ZERO);
        }
        return;
    }
    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    let flop = 2.0 * m as f64 * k as f64 * n as f64;
    let pool = (flop >= PARALLEL_FLOP).then(|| threads.pool()).flatten();
    match pool {
        // Inside the pool, so that the threads are the device's and not a process-wide pool's.
        Some(pool) if pool.current_num_threads() > 1 => {
            let n_threads = pool.current_num_threads();
            pool.install(|| call(lhs, rhs, out, gemm::Parallelism::Rayon(n_threads)));
        }
        _ => call(lhs, rhs, out, gemm::Parallelism::None),
    }
}

/// No dimension is zero here, and the shapes agree.
fn call<T: GemmElement>(
    lhs: MatrixView<'_, T>,
    rhs: MatrixView<'_, T>,
    out: &mut MatrixMut<'_, T>,
    parallelism: gemm::Parallelism,
) {
    // Lengths of slices are at most `isize::MAX`, and so is every stride that leads to another element; a stride that
    // is never taken may be anything.
    let stride = |elements: usize| isize::try_from(elements).unwrap_or(0);
    let (m, k, n) = (lhs.rows(), lhs.columns(), rhs.columns());
    let out_row_stride = stride(out.row_stride());
    let target = out.data_mut().as_mut_ptr();
    // SAFETY: `MatrixView` and `MatrixMut` hold that every element that these shapes and strides reach lies in their
    // slices, and `MatrixMut` is the only reference to its own. The destination is not read (`read_dst` is false).
    // `T` is a type that the crate knows (`GemmElement`).
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            target,
            1,
            out_row_stride,
            false,
            lhs.data().as_ptr(),
            stride(lhs.column_stride()),
            stride(lhs.row_stride()),
            rhs.data().as_ptr(),
            stride(rhs.column_stride()),
            stride(rhs.row_stride()),
            T::ZERO,
            T::ONE,
            false,
            false,
            false,
            parallelism,
        );
    }
}
