//! Matmuls of crate `gemm`.

use std::ops::Range;

use crate::kernels::Arithmetic;
use crate::kernels::MatrixMut;
use crate::kernels::MatrixView;
use crate::kernels::Threads;
use crate::tensor::Complex64;
use crate::tensor::Complex128;

/// Element types for which crate `gemm` is optimised. It selects its code by type, so no other type
/// may implement this.
pub(crate) trait GemmElement: Arithmetic {}

impl GemmElement for f32 {}

impl GemmElement for f64 {}

impl GemmElement for Complex64 {}

impl GemmElement for Complex128 {}

/// Computes `out = lhs * rhs`, `[m, k] x [k, n] -> [m, n]`.
///
/// # Panics
/// If the three shapes disagree; callers have compared them.
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
    let row_stride = out.row_stride();
    let work_ns = estimate_ns(m, k, n);
    let n_parts = threads.pieces_for(work_ns);
    if n_parts < 2 {
        // SAFETY: the shapes agree and no dimension is zero; the views guarantee their bounds.
        unsafe {
            matmul_block(
                lhs,
                rhs,
                out.data_mut().as_mut_ptr(),
                row_stride,
                [0..m, 0..n],
            )
        };
        return;
    }
    let target = Target(out.data_mut().as_mut_ptr());
    threads.for_each(work_ns, n_parts, |part| {
        // Blocks consist of whole tiles of the crate's kernels.
        let block = if n >= m {
            [0..m, share(n, part, n_parts, 16)]
        } else {
            [share(m, part, n_parts, 16), 0..n]
        };
        if block.iter().all(|range| !range.is_empty()) {
            // SAFETY: as above; the blocks of two parts do not overlap.
            unsafe { matmul_block(lhs, rhs, target.start(), row_stride, block) };
        }
    });
}

/// Estimates the time of a matmul on one thread, from the rates of a core of 2023: 100 Gflop/s, and
/// 60 GB/s for the right side.
pub(super) fn estimate_ns(rows: usize, inner: usize, columns: usize) -> u64 {
    let elements = inner.saturating_mul(columns);
    let arithmetic = elements.saturating_mul(rows) / 50;
    u64::try_from(arithmetic.max(elements / 15)).unwrap_or(u64::MAX)
}

/// Returns part `part` of `n_parts` of `0..n`; it begins at a multiple of `unit`.
pub(super) fn share(n: usize, part: usize, n_parts: usize, unit: usize) -> Range<usize> {
    let bound = |part: usize| (n.div_ceil(unit) * part / n_parts * unit).min(n);
    bound(part)..bound(part + 1)
}

/// The first element of a result that several threads write to.
#[derive(Debug)]
pub(super) struct Target<T>(pub(super) *mut T);

impl<T> Target<T> {
    /// Returns the pointer. A method rather than the field: a closure would capture the field
    /// alone, a raw pointer, which is not `Send`.
    pub(super) fn start(self) -> *mut T {
        self.0
    }
}

impl<T> Clone for Target<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Target<T> {}

// SAFETY: it is a mutable borrow of the elements, divided among threads that write different ones.
unsafe impl<T: Send> Send for Target<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Target<T> {}

/// Computes the rows and columns `block` of a matmul.
///
/// # Safety
/// The shapes of `lhs` and `rhs` agree, no dimension is zero, the block is inside the result, which
/// starts at `out`, and no other thread uses these elements.
unsafe fn matmul_block<T: GemmElement>(
    lhs: MatrixView<'_, T>,
    rhs: MatrixView<'_, T>,
    out: *mut T,
    row_stride: usize,
    block: [Range<usize>; 2],
) {
    // Lengths of slices are at most `isize::MAX`, and so is every stride that leads to another
    // element; the value of an unused stride does not matter.
    let stride = |elements: usize| isize::try_from(elements).unwrap_or(0);
    let [rows, columns] = block;
    // SAFETY: the block's first element.
    let out = unsafe { out.add(rows.start * row_stride + columns.start) };
    let lhs_data = lhs.data()[rows.start * lhs.row_stride()..].as_ptr();
    let rhs_data = rhs.data()[columns.start * rhs.column_stride()..].as_ptr();
    // SAFETY: `MatrixView` guarantees that every element that these shapes and strides reach is in
    // its slice; the caller guarantees it for the result. The destination is not read (`read_dst`
    // is false). The crate supports `T` (`GemmElement`).
    unsafe {
        gemm::gemm(
            rows.len(),
            columns.len(),
            lhs.columns(),
            out,
            1,
            stride(row_stride),
            false,
            lhs_data,
            stride(lhs.column_stride()),
            stride(lhs.row_stride()),
            rhs_data,
            stride(rhs.column_stride()),
            stride(rhs.row_stride()),
            T::ZERO,
            T::ONE,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}
