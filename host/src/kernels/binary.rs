//! Functions of two numbers, for [`crate::kernels::Broadcast::apply`], and the checks that some of them need.

use crate::device::KernelError;
use crate::kernels::Integer;
use crate::kernels::Number;
use crate::kernels::Threads;

/// Elements that are worth handing to another thread.
const GRAIN: usize = 32 * 1024;

/// `out[i] = f(lhs[i], rhs[i])`.
///
/// # Panics
/// If the lengths differ.
pub fn zip<L, R, O, F>(lhs: &[L], rhs: &[R], out: &mut [O], threads: Threads<'_>, f: F)
where
    L: Copy + Sync,
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
        for (o, (&l, &r)) in part.iter_mut().zip(pairs) {
            *o = f(l, r);
        }
    });
}

/// The larger one (TensorFlow `Maximum`): NaN if either is, the second of two equal ones (`-0 = 0`).
#[inline]
pub fn maximum<T: Number>(lhs: T, rhs: T) -> T {
    if lhs > rhs || lhs.is_not_a_number() {
        lhs
    } else {
        rhs
    }
}

/// The smaller one (TensorFlow `Minimum`): NaN if either is, the second of two equal ones (`-0 = 0`).
#[inline]
pub fn minimum<T: Number>(lhs: T, rhs: T) -> T {
    if lhs < rhs || lhs.is_not_a_number() {
        lhs
    } else {
        rhs
    }
}

/// `(lhs - rhs)^2` (TensorFlow `SquaredDifference`).
#[inline]
pub fn squared_difference<T: Number>(lhs: T, rhs: T) -> T {
    let difference = lhs.minus(rhs);
    difference.times(difference)
}

/// `base^exponent` by squaring, wrapping around (TensorFlow `Pow` of integers). `exponent` is not negative: see
/// [`check_exponents`].
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

/// Holds that no divisor is 0, where anything is divided at all.
///
/// # Errors
/// [`KernelError::InvalidArgument`].
pub fn check_divisors<T: Integer>(divisors: &[T], n_results: usize) -> Result<(), KernelError> {
    if n_results > 0 && divisors.contains(&T::ZERO) {
        return Err(KernelError::invalid(
            "integer division by zero: the second operand has an element 0",
        ));
    }
    Ok(())
}

/// Holds that no exponent is negative, where any power is taken at all.
///
/// # Errors
/// [`KernelError::InvalidArgument`].
pub fn check_exponents<T: Integer>(exponents: &[T], n_results: usize) -> Result<(), KernelError> {
    if n_results > 0 && exponents.iter().any(|&exponent| exponent < T::ZERO) {
        return Err(KernelError::invalid(
            "integers to negative integer powers are not allowed: the second operand has a negative element",
        ));
    }
    Ok(())
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
