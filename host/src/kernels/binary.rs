//! Functions of two numbers for [`crate::kernels::Broadcast::apply`], checks of their operands, and
//! functions of three or more numbers.

use crate::device::KernelError;
use crate::kernels::Arithmetic;
use crate::kernels::Integer;
use crate::kernels::Number;
use crate::kernels::Threads;
use crate::kernels::simd::vectorize;
use crate::kernels::spread::Spread;
use crate::tensor::Element;

/// Minimum number of elements worth handing to another thread.
const GRAIN: usize = 64 * 1024;

/// Elements that stay in the L1 cache while all operands are added.
const BLOCK: usize = 2048;

/// Computes `out[i] = f(lhs[i], rhs[i])`.
///
/// # Panics
/// If the lengths differ.
pub fn zip<L, R, O, F>(lhs: &[L], rhs: &[R], out: &mut [O], threads: Threads<'_>, f: F)
where
    L: Element,
    R: Copy + Sync,
    O: Send,
    F: Fn(L, R) -> O + Sync,
{
    assert!(
        lhs.len() == out.len() && rhs.len() == out.len(),
        "one result per pair"
    );
    threads.fill(out, 1, GRAIN, |start, part| {
        let pairs = lhs[start..].iter().zip(&rhs[start..]);
        vectorize::<L, _>(|| {
            for (o, (&l, &r)) in part.iter_mut().zip(pairs) {
                *o = f(l, r);
            }
        });
    });
}

/// Returns the larger number (TensorFlow `Maximum`): NaN if either is NaN, `rhs` if both are equal
/// (`-0 = 0`).
#[inline]
pub fn maximum<T: Number>(lhs: T, rhs: T) -> T {
    if lhs > rhs || lhs.is_not_a_number() {
        lhs
    } else {
        rhs
    }
}

/// Returns the smaller number (TensorFlow `Minimum`): NaN if either is NaN, `rhs` if both are equal
/// (`-0 = 0`).
#[inline]
pub fn minimum<T: Number>(lhs: T, rhs: T) -> T {
    if lhs < rhs || lhs.is_not_a_number() {
        lhs
    } else {
        rhs
    }
}

/// Returns `(lhs - rhs)^2` (TensorFlow `SquaredDifference`), and `|lhs - rhs|^2` for complex
/// numbers.
#[inline]
pub fn squared_difference<T: Arithmetic>(lhs: T, rhs: T) -> T {
    let difference = lhs.minus(rhs);
    difference.times(difference.conjugate())
}

/// Returns `base^exponent` by squaring; integers wrap around (TensorFlow `Pow`). `exponent` must
/// not be negative: see [`check_exponents`].
#[inline]
pub fn integer_power<T: Integer>(mut base: T, exponent: T) -> T {
    let mut left = exponent.to_i64();
    let mut power = T::ONE;
    while left > 0 {
        if left & 1 == 1 {
            power = power.times(base);
        }
        base = base.times(base);
        left >>= 1;
    }
    power
}

/// Error message for a divisor of 0.
pub const DIVISION_BY_ZERO: &str = "integer division by zero: the second operand has an element 0";

/// Checks that no divisor is 0. Without results nothing is divided, and the check passes.
///
/// # Errors
/// [`KernelError::InvalidArgument`] if a divisor is 0.
pub fn check_divisors<T: Integer>(divisors: &[T], n_results: usize) -> Result<(), KernelError> {
    if n_results > 0 && divisors.contains(&T::ZERO) {
        return Err(KernelError::invalid(DIVISION_BY_ZERO));
    }
    Ok(())
}

/// Checks that no exponent is negative. Without results no power is computed, and the check passes.
///
/// # Errors
/// [`KernelError::InvalidArgument`] if an exponent is negative.
pub fn check_exponents<T: Integer>(exponents: &[T], n_results: usize) -> Result<(), KernelError> {
    if n_results > 0 && exponents.iter().any(|&exponent| exponent < T::ZERO) {
        return Err(KernelError::invalid(
            "integers to negative integer powers are not allowed: the second operand has a negative element",
        ));
    }
    Ok(())
}

/// Computes `out[i] = first[i] + others[0][i] + ..` (TensorFlow `AddN`).
///
/// # Panics
/// If the lengths differ.
pub fn sum_all<T: Arithmetic>(first: &[T], others: &[&[T]], out: &mut [T], threads: Threads<'_>) {
    assert_eq!(first.len(), out.len(), "one result per element");
    threads.fill(out, 1, GRAIN, |start, part| {
        for (index, block) in part.chunks_mut(BLOCK).enumerate() {
            let from = start + index * BLOCK;
            let n = block.len();
            block.copy_from_slice(&first[from..from + n]);
            for other in others {
                for (o, &x) in block.iter_mut().zip(&other[from..from + n]) {
                    *o = o.plus(x);
                }
            }
        }
    });
}

/// Returns `max(min(x, high), low)` (TensorFlow `ClipByValue`). A NaN bound is ignored; a NaN `x`
/// stays NaN.
#[inline]
pub fn clipped<T: Number>(x: T, low: T, high: T) -> T {
    let below = if high < x { high } else { x };
    if below < low { low } else { below }
}

/// Computes `out[i] = clipped(x[i], low[i], high[i])`; a bound may be a scalar.
///
/// # Panics
/// If the length of a slice does not match its shape.
pub fn clip<T: Element>(
    plan: &Spread<3>,
    [x, low, high]: [&[T]; 3],
    out: &mut [T],
    threads: Threads<'_>,
    clipped: impl Fn(T, T, T) -> T + Sync,
) {
    plan.fill(out, threads, |offsets, advances, part| {
        let (x, low, high) = (&x[offsets[0]..], &low[offsets[1]..], &high[offsets[2]..]);
        match advances {
            [true, false, false] => {
                let (low, high) = (low[0], high[0]);
                for (o, &x) in part.iter_mut().zip(x) {
                    *o = clipped(x, low, high);
                }
            }
            [x_advances, low_advances, high_advances] => {
                let at = |index: usize, advances: bool| if advances { index } else { 0 };
                for (index, o) in part.iter_mut().enumerate() {
                    *o = clipped(
                        x[at(index, x_advances)],
                        low[at(index, low_advances)],
                        high[at(index, high_advances)],
                    );
                }
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn not_a_number_wins_on_either_side() {
        for f in [maximum::<f32>, minimum::<f32>] {
            assert!(f(f32::NAN, 1.0).is_nan());
            assert!(f(1.0, f32::NAN).is_nan());
        }
        assert_eq!(maximum(1, 2), 2);
        assert_eq!(minimum(1, 2), 1);
    }

    #[test]
    fn powers_wrap_around_and_refuse_negative_exponents() {
        assert_eq!(integer_power(3i32, 4), 81);
        assert_eq!(integer_power(2i8, 7), i8::MIN);
        assert_eq!(integer_power(0i32, 0), 1);
        assert!(check_exponents(&[1, -1], 2).is_err());
        assert!(check_exponents(&[1, -1], 0).is_ok());
        assert!(check_divisors(&[1, 0], 2).is_err());
        assert!(check_divisors(&[1, 0], 0).is_ok());
    }
}
