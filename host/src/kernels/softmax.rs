//! Softmax over rows.

use half::bf16;
use half::f16;
use rten_simd::SimdOp;

use crate::kernels::Real;
use crate::kernels::Threads;

/// Elements that are worth handing to another thread.
const GRAIN: usize = 16 * 1024;

/// A type that rows are normalised in.
pub trait SoftmaxRow: Real {
    /// `row[j] = e^(row[j] - max) / sum`, in place.
    fn softmax_row(row: &mut [Self]);
    /// `row[j] = row[j] - max - ln(sum)`, in place.
    fn log_softmax_row(row: &mut [Self]);
}

/// `out[i, j] = e^input[i, j] / sum over j`, `[rows, columns]` row-major (TensorFlow `Softmax`). A NaN or `inf` in a row,
/// or nothing but `-inf`, makes the row NaN.
///
/// # Panics
/// If the lengths differ, or are no multiple of `columns`.
pub fn softmax<T: SoftmaxRow>(input: &[T], columns: usize, out: &mut [T], threads: Threads<'_>) {
    rows(input, columns, out, threads, T::softmax_row);
}

/// The logarithm of [`softmax`], without its rounding (TensorFlow `LogSoftmax`).
///
/// # Panics
/// If the lengths differ, or are no multiple of `columns`.
pub fn log_softmax<T: SoftmaxRow>(
    input: &[T],
    columns: usize,
    out: &mut [T],
    threads: Threads<'_>,
) {
    rows(input, columns, out, threads, T::log_softmax_row);
}

fn rows<T: SoftmaxRow>(
    input: &[T],
    columns: usize,
    out: &mut [T],
    threads: Threads<'_>,
    each: fn(&mut [T]),
) {
    assert_eq!(input.len(), out.len(), "one result per element");
    if out.is_empty() {
        return;
    }
    assert_eq!(out.len() % columns, 0, "whole rows");
    threads.fill(out, columns, GRAIN, |start, part| {
        part.copy_from_slice(&input[start..start + part.len()]);
        for row in part.chunks_exact_mut(columns) {
            each(row);
        }
    });
}

impl SoftmaxRow for f32 {
    fn softmax_row(row: &mut [Self]) {
        rten_vecmath::Softmax::new_mut(row).dispatch();
    }

    fn log_softmax_row(row: &mut [Self]) {
        rten_vecmath::LogSoftmax::new_mut(row).dispatch();
    }
}

impl SoftmaxRow for f64 {
    fn softmax_row(row: &mut [Self]) {
        // `f64::max` passes over NaNs; they then make the sum one.
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

    fn log_softmax_row(row: &mut [Self]) {
        let max = row.iter().copied().fold(Self::NEG_INFINITY, Self::max);
        let sum: Self = row.iter().map(|x| (x - max).exp()).sum();
        let log = sum.ln();
        for x in row {
            *x = *x - max - log;
        }
    }
}

impl SoftmaxRow for f16 {
    fn softmax_row(row: &mut [Self]) {
        widened(row, f32::softmax_row);
    }

    fn log_softmax_row(row: &mut [Self]) {
        widened(row, f32::log_softmax_row);
    }
}

impl SoftmaxRow for bf16 {
    fn softmax_row(row: &mut [Self]) {
        widened(row, f32::softmax_row);
    }

    fn log_softmax_row(row: &mut [Self]) {
        widened(row, f32::log_softmax_row);
    }
}

fn widened<T: Real<Wide = f32>>(row: &mut [T], each: fn(&mut [f32])) {
    let mut wide: Vec<f32> = row.iter().map(|x| x.widen()).collect();
    each(&mut wide);
    for (x, w) in row.iter_mut().zip(wide) {
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
            softmax(values, columns, &mut single, Threads::single());
            let wide: Vec<f64> = values.iter().map(|&x| f64::from(x)).collect();
            let mut double = vec![0.0; wide.len()];
            softmax(&wide, columns, &mut double, Threads::single());
            for (s, d) in single.iter().zip(double) {
                // Results are at most 1; each is one exponential and one sum of at most 70.
                prop_assert!((f64::from(*s) - d).abs() < 1e-6, "{s} {d}");
            }
        }
    }

    #[test]
    fn what_is_not_finite_spoils_its_row_only() {
        for bad in [f32::NAN, f32::INFINITY] {
            let mut out = [0.0; 4];
            softmax(&[1.0, bad, 1.0, 1.0], 2, &mut out, Threads::single());
            assert!(out[..2].iter().all(|x| x.is_nan()), "{out:?}");
            assert_eq!(out[2..], [0.5, 0.5]);
        }
        let mut out = [0.0; 2];
        softmax(&[f32::NEG_INFINITY; 2], 2, &mut out, Threads::single());
        assert!(out.iter().all(|x| x.is_nan()), "{out:?}");
        softmax(&[f32::NEG_INFINITY, 0.0], 2, &mut out, Threads::single());
        assert_eq!(out, [0.0, 1.0]);
    }
}
