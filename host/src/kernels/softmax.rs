//! Softmax over rows.

use half::bf16;
use half::f16;
use rten_simd::SimdOp;
use rten_simd::SimdUnaryOp;

use crate::device::KernelError;
use crate::kernels::Real;
use crate::kernels::Threads;
use crate::kernels::simd::vectorize;

/// Minimum number of elements worth handing to another thread.
const GRAIN: usize = 16 * 1024;

/// Elements that stay in the L1 cache from one step of the computation to the next.
const BLOCK: usize = 4 * 1024;

/// Accumulators of a row, for the compiler to vectorize.
const LANES: usize = 16;

/// An element type of softmax.
pub trait SoftmaxRow: Real {
    /// Whether rows are computed in [`f32`], which needs one row of scratch.
    const IS_WIDENED: bool = false;
    /// Computes `row[j] = e^(row[j] - max) / sum` in place, for each row of `columns` elements.
    fn softmax_rows(rows: &mut [Self], columns: usize, wide: &mut [f32]);
    /// Computes `row[j] = row[j] - max - ln(sum)` in place.
    fn log_softmax_row(row: &mut [Self], wide: &mut [f32]);
}

/// Computes `out[i, j] = e^input[i, j] / sum over j`, `[rows, columns]` row-major (TensorFlow
/// `Softmax`). A row that contains NaN or `inf`, or only `-inf`, becomes NaN.
///
/// # Errors
/// [`KernelError::Tensor`] if scratch memory runs out.
///
/// # Panics
/// If the lengths differ, or are not a multiple of `columns`.
pub fn softmax<T: SoftmaxRow>(
    input: &[T],
    columns: usize,
    out: &mut [T],
    threads: Threads<'_>,
) -> Result<(), KernelError> {
    rows(input, columns, out, threads, T::softmax_rows)
}

/// Computes the logarithm of [`softmax`], without its rounding (TensorFlow `LogSoftmax`).
///
/// # Errors
/// [`KernelError::Tensor`] if scratch memory runs out.
///
/// # Panics
/// If the lengths differ, or are not a multiple of `columns`.
pub fn log_softmax<T: SoftmaxRow>(
    input: &[T],
    columns: usize,
    out: &mut [T],
    threads: Threads<'_>,
) -> Result<(), KernelError> {
    rows(input, columns, out, threads, |part, columns, wide| {
        for row in part.chunks_exact_mut(columns) {
            T::log_softmax_row(row, wide);
        }
    })
}

fn rows<T: SoftmaxRow>(
    input: &[T],
    columns: usize,
    out: &mut [T],
    threads: Threads<'_>,
    each: fn(&mut [T], usize, &mut [f32]),
) -> Result<(), KernelError> {
    assert_eq!(input.len(), out.len(), "one result per element");
    if out.is_empty() {
        return Ok(());
    }
    assert_eq!(out.len() % columns, 0, "whole rows");
    threads.try_fill(out, columns, GRAIN, |start, part| {
        let mut wide = threads.scratch::<f32>(if T::IS_WIDENED { columns } else { 0 })?;
        part.copy_from_slice(&input[start..start + part.len()]);
        each(part, columns, &mut wide);
        Ok(())
    })
}

impl SoftmaxRow for f32 {
    fn softmax_rows(rows: &mut [Self], columns: usize, _: &mut [f32]) {
        // As many rows at a time as stay in the L1 cache; short rows share the calls.
        let block = (BLOCK / columns).max(1) * columns;
        for rows in rows.chunks_mut(block) {
            vectorize::<Self, _>(|| {
                for row in rows.chunks_exact_mut(columns) {
                    // NaNs are skipped here; they make the sum NaN later.
                    let max = fold_lanes(row, Self::NEG_INFINITY, |a, b| if b > a { b } else { a });
                    for x in row {
                        *x -= max;
                    }
                }
            });
            rten_vecmath::Exp::default().map_mut(rows);
            vectorize::<Self, _>(|| {
                for row in rows.chunks_exact_mut(columns) {
                    let factor = 1.0 / fold_lanes(row, 0.0, |a, b| a + b);
                    for x in row {
                        *x *= factor;
                    }
                }
            });
        }
    }

    fn log_softmax_row(row: &mut [Self], _: &mut [f32]) {
        rten_vecmath::LogSoftmax::new_mut(row).dispatch();
    }
}

impl SoftmaxRow for f64 {
    fn softmax_rows(rows: &mut [Self], columns: usize, _: &mut [f32]) {
        for row in rows.chunks_exact_mut(columns) {
            // `f64::max` skips NaNs; they make the sum NaN later.
            let max = row.iter().copied().fold(Self::NEG_INFINITY, Self::max);
            let mut sum = 0.0;
            for x in row.iter_mut() {
                *x = (*x - max).exp();
                sum += *x;
            }
            for x in row {
                *x /= sum;
            }
        }
    }

    fn log_softmax_row(row: &mut [Self], _: &mut [f32]) {
        let max = row.iter().copied().fold(Self::NEG_INFINITY, Self::max);
        let sum: Self = row.iter().map(|x| (x - max).exp()).sum();
        let log = sum.ln();
        for x in row {
            *x = *x - max - log;
        }
    }
}

impl SoftmaxRow for f16 {
    const IS_WIDENED: bool = true;

    fn softmax_rows(rows: &mut [Self], columns: usize, wide: &mut [f32]) {
        for row in rows.chunks_exact_mut(columns) {
            widened(row, wide, |wide| f32::softmax_rows(wide, columns, &mut []));
        }
    }

    fn log_softmax_row(row: &mut [Self], wide: &mut [f32]) {
        widened(row, wide, |wide| f32::log_softmax_row(wide, &mut []));
    }
}

impl SoftmaxRow for bf16 {
    const IS_WIDENED: bool = true;

    fn softmax_rows(rows: &mut [Self], columns: usize, wide: &mut [f32]) {
        for row in rows.chunks_exact_mut(columns) {
            widened(row, wide, |wide| f32::softmax_rows(wide, columns, &mut []));
        }
    }

    fn log_softmax_row(row: &mut [Self], wide: &mut [f32]) {
        widened(row, wide, |wide| f32::log_softmax_row(wide, &mut []));
    }
}

/// Folds all elements with `f`, in lanes that the compiler vectorizes.
#[inline(always)]
fn fold_lanes(row: &[f32], start: f32, f: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lanes = [start; LANES];
    let (chunks, rest) = row.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, &x) in lanes.iter_mut().zip(chunk) {
            *lane = f(*lane, x);
        }
    }
    let whole = lanes.into_iter().reduce(&f).unwrap_or(start);
    rest.iter().fold(whole, |whole, &x| f(whole, x))
}

fn widened<T: Real<Wide = f32>>(row: &mut [T], wide: &mut [f32], each: impl Fn(&mut [f32])) {
    for (w, x) in wide.iter_mut().zip(&*row) {
        *w = x.widen();
    }
    each(wide);
    for (x, &w) in row.iter_mut().zip(&*wide) {
        *x = T::narrow(w);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn single_precision_agrees_with_double_precision(
            columns in 1usize..70,
            values in prop::collection::vec(-80.0f32..80.0, 0..300),
        ) {
            let values = &values[..values.len() / columns * columns];
            let mut single = vec![0.0; values.len()];
            softmax(values, columns, &mut single, Threads::single()).unwrap();
            let wide: Vec<f64> = values.iter().map(|&x| f64::from(x)).collect();
            let mut double = vec![0.0; wide.len()];
            softmax(&wide, columns, &mut double, Threads::single()).unwrap();
            for (s, d) in single.iter().zip(double) {
                // Results are at most 1; each is one exponential and one sum of at most 70.
                prop_assert!((f64::from(*s) - d).abs() < 1e-6, "{s} {d}");
            }
        }
    }

    #[test]
    fn non_finite_values_affect_only_their_row() {
        for bad in [f32::NAN, f32::INFINITY] {
            let mut out = [0.0; 4];
            softmax(&[1.0, bad, 1.0, 1.0], 2, &mut out, Threads::single()).unwrap();
            assert!(out[..2].iter().all(|x| x.is_nan()), "{out:?}");
            assert_eq!(out[2..], [0.5, 0.5]);
        }
        let mut out = [0.0; 2];
        softmax(&[f32::NEG_INFINITY; 2], 2, &mut out, Threads::single()).unwrap();
        assert!(out.iter().all(|x| x.is_nan()), "{out:?}");
        softmax(&[f32::NEG_INFINITY, 0.0], 2, &mut out, Threads::single()).unwrap();
        assert_eq!(out, [0.0, 1.0]);
    }
}
