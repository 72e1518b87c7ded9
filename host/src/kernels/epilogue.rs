//! Epilogue of a matmul: a bias per column, then an activation.

use super::Number;
use super::Threads;
use super::binary;
use super::simd::Epilogue;
use crate::device::Activation;

/// Minimum number of elements per thread.
const GRAIN: usize = 40_000;

/// A bias shorter than this is repeated, so that the loop over it can be vectorized.
const NARROW: usize = 64;

/// Computes `out[r, c] = activation(out[r, c] + bias[c])`, row-major with rows of `bias.len()`
/// elements. The operations and their order are those of separate bias and activation ops.
pub fn apply<T: Number>(out: &mut [T], bias: &[T], activation: Activation, threads: Threads<'_>) {
    // Three loops, each of which can be vectorized.
    match activation {
        Activation::None => apply_with(out, bias, threads, |x| x),
        Activation::Relu => apply_with(out, bias, threads, |x| activate(x, Activation::Relu)),
        Activation::Relu6 => apply_with(out, bias, threads, |x| activate(x, Activation::Relu6)),
    }
}

/// Computes the epilogue of sums that have been stored.
///
/// # Panics
/// If the addend has fewer elements than `out`.
pub fn apply_all(out: &mut [f32], epilogue: Epilogue<'_>, threads: Threads<'_>) {
    let Epilogue {
        bias,
        addend,
        activation,
    } = epilogue;
    let Some(addend) = addend else {
        return apply(out, bias, activation, threads);
    };
    apply(out, bias, Activation::None, threads);
    threads.fill(out, 1, GRAIN, |start, part| {
        let addend = &addend[start..start + part.len()];
        for (element, &value) in part.iter_mut().zip(addend) {
            *element = activate(*element + value, activation);
        }
    });
}

/// Computes an activation.
#[inline]
pub fn activate<T: Number>(x: T, activation: Activation) -> T {
    match activation {
        Activation::None => x,
        Activation::Relu => binary::maximum(x, T::ZERO),
        Activation::Relu6 => binary::minimum(binary::maximum(x, T::ZERO), T::from_i64(6)),
    }
}

fn apply_with<T: Number>(
    out: &mut [T],
    bias: &[T],
    threads: Threads<'_>,
    activate: impl Fn(T) -> T + Sync,
) {
    if bias.is_empty() {
        return;
    }
    let repeated: Vec<T>;
    let pattern = if bias.len() < NARROW && out.len() > NARROW {
        repeated = bias.repeat(2 * NARROW / bias.len());
        &repeated
    } else {
        bias
    };
    threads.fill(out, bias.len(), GRAIN, |_, part| {
        for elements in part.chunks_mut(pattern.len()) {
            for (element, &bias) in elements.iter_mut().zip(pattern) {
                *element = activate(element.plus(bias));
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(out: &[f32], bias: &[f32], activation: Activation) -> Vec<f32> {
        let columns = bias.len();
        let sums = out.iter().enumerate().map(|(i, x)| x + bias[i % columns]);
        sums.map(|x| match activation {
            Activation::None => x,
            Activation::Relu => x.max(0.0),
            Activation::Relu6 => x.clamp(0.0, 6.0),
        })
        .collect()
    }

    #[test]
    fn narrow_and_wide_rows_agree_with_a_plain_loop() {
        for (rows, columns) in [
            (1, 1),
            (7, 3),
            (784, 6),
            (50, 63),
            (50, 64),
            (3, 1000),
            (0, 5),
        ] {
            let values = (0..rows * columns).map(|i| ((i * 37 % 101) as f32 - 50.0) / 7.0);
            let values: Vec<f32> = values.collect();
            let bias: Vec<f32> = (0..columns).map(|i| (i % 5) as f32 - 2.0).collect();
            for activation in [Activation::None, Activation::Relu, Activation::Relu6] {
                let mut out = values.clone();
                apply(&mut out, &bias, activation, Threads::single());
                let expected = plain(&values, &bias, activation);
                assert_eq!(out, expected, "{rows} x {columns} {activation:?}");
            }
        }
    }

    #[test]
    fn nan_stays_nan() {
        let mut out = [f32::NAN, 1.0];
        apply(&mut out, &[0.0, 0.0], Activation::Relu, Threads::single());
        assert!(out[0].is_nan());
        assert_eq!(out[1], 1.0);
    }

    #[test]
    fn no_columns_means_no_elements() {
        apply::<f32>(&mut [], &[], Activation::Relu, Threads::single());
    }
}
