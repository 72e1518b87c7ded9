//! Arithmetic traits of element types.

#![expect(
    trivial_numeric_casts,
    reason = "one macro writes the casts of all integers, and some are to the type itself"
)]

use half::bf16;
use half::f16;

use crate::tensor::Complex64;
use crate::tensor::Complex128;
use crate::tensor::Element;

/// An element that can be added and multiplied. Integers wrap around, as TensorFlow's do.
pub trait Arithmetic: Element {
    /// The number 0.
    const ZERO: Self;
    /// The number 1.
    const ONE: Self;

    /// Returns `self + other`.
    #[must_use]
    fn plus(self, other: Self) -> Self;
    /// Returns `self - other`.
    #[must_use]
    fn minus(self, other: Self) -> Self;
    /// Returns `self * other`.
    #[must_use]
    fn times(self, other: Self) -> Self;
    /// Returns `-self`; for unsigned integers, modulo `2^bits`.
    #[must_use]
    fn negated(self) -> Self {
        Self::ZERO.minus(self)
    }
    /// Returns the complex conjugate; other numbers are returned unchanged.
    #[must_use]
    fn conjugate(self) -> Self {
        self
    }
    /// Returns whether the value is NaN.
    fn is_not_a_number(self) -> bool {
        #[expect(clippy::eq_op, reason = "the definition of NaN, for any element type")]
        let differs = self != self;
        differs
    }
}

/// A number that can also be compared.
pub trait Number: Arithmetic + PartialOrd {
    /// The smallest value: `-inf` for floats.
    const LOWEST: Self;
    /// The largest value: `inf` for floats.
    const HIGHEST: Self;
    /// The smallest finite value.
    const LOWEST_FINITE: Self;

    /// Returns `|self|`; the smallest signed integer is returned unchanged.
    #[must_use]
    fn magnitude(self) -> Self;
    /// Returns the nearest double.
    fn to_f64(self) -> f64;
    /// Converts a double: rounded for floats; truncated and saturated for integers.
    fn from_f64(value: f64) -> Self;
    /// Truncates to 64 bits and saturates; NaN gives 0.
    fn to_i64(self) -> i64;
    /// Converts an integer: rounded for floats, modulo `2^bits` for integers.
    fn from_i64(value: i64) -> Self;
}

/// A signed or unsigned integer.
pub trait Integer: Number {
    /// Returns `self / other`, rounded towards zero; `other` must not be 0. The smallest value
    /// divided by -1 is itself.
    #[must_use]
    fn truncated_quotient(self, other: Self) -> Self;
    /// Returns the remainder with the sign of `other`, which must not be 0 (TensorFlow `FloorMod`,
    /// Python's `%`).
    #[must_use]
    fn floored_remainder(self, other: Self) -> Self;
    /// Returns `self / other`, rounded towards minus infinity; `other` must not be 0. The smallest
    /// value divided by -1 is itself.
    #[must_use]
    fn floored_quotient(self, other: Self) -> Self {
        let quotient = self.truncated_quotient(other);
        if quotient.times(other) != self && (self < Self::ZERO) != (other < Self::ZERO) {
            quotient.minus(Self::ONE)
        } else {
            quotient
        }
    }
    /// Returns the remainder with the sign of `self`; `other` must not be 0.
    #[must_use]
    fn truncated_remainder(self, other: Self) -> Self {
        self.minus(self.truncated_quotient(other).times(other))
    }
}

/// A floating-point number.
pub trait Real: Number {
    /// The type of sums: `f32` for `f16` and `bf16`.
    type Wide: Real;
    /// Converts to the wider type, exactly.
    fn widen(self) -> Self::Wide;
    /// Rounds to the nearest value.
    fn narrow(value: Self::Wide) -> Self;
    /// Returns `self / other`.
    #[must_use]
    fn over(self, other: Self) -> Self;
    /// Returns the remainder with the sign of `other` (TensorFlow `FloorMod`); NaN if `other` is 0.
    #[must_use]
    fn floored_remainder(self, other: Self) -> Self;
    /// Returns the largest whole number that is at most `self / other` (TensorFlow `FloorDiv`).
    #[must_use]
    fn floored_quotient(self, other: Self) -> Self;
    /// Returns `self / other` without its fraction (TensorFlow `TruncateDiv`).
    #[must_use]
    fn truncated_quotient(self, other: Self) -> Self;
    /// Returns the remainder with the sign of `self` (C's `fmod`); NaN if `other` is 0.
    #[must_use]
    fn truncated_remainder(self, other: Self) -> Self;
    /// Returns `self` to the power `other`.
    #[must_use]
    fn power(self, other: Self) -> Self;
    /// Returns the angle of the point `(other, self)` (TensorFlow `Atan2`).
    #[must_use]
    fn angle(self, other: Self) -> Self;
}

macro_rules! integers {
    ($($rust:ty, $magnitude:expr, $remainder:expr);* $(;)?) => {$(
        impl Arithmetic for $rust {
            const ZERO: Self = 0;
            const ONE: Self = 1;
            #[inline]
            fn plus(self, other: Self) -> Self { self.wrapping_add(other) }
            #[inline]
            fn minus(self, other: Self) -> Self { self.wrapping_sub(other) }
            #[inline]
            fn times(self, other: Self) -> Self { self.wrapping_mul(other) }
        }
        impl Number for $rust {
            const LOWEST: Self = Self::MIN;
            const HIGHEST: Self = Self::MAX;
            const LOWEST_FINITE: Self = Self::MIN;
            #[inline]
            fn magnitude(self) -> Self { $magnitude(self) }
            #[inline]
            fn to_f64(self) -> f64 { self as f64 }
            #[inline]
            fn from_f64(value: f64) -> Self { value as Self }
            #[inline]
            fn to_i64(self) -> i64 { self as i64 }
            #[inline]
            fn from_i64(value: i64) -> Self { value as Self }
        }
        impl Integer for $rust {
            #[inline]
            fn truncated_quotient(self, other: Self) -> Self { self.wrapping_div(other) }
            #[inline]
            fn floored_remainder(self, other: Self) -> Self { $remainder(self, other) }
        }
    )*};
}

macro_rules! signed {
    ($($rust:ty),*) => { integers! {$(
        $rust, <$rust>::wrapping_abs, |x: $rust, y: $rust| {
            let truncated = x.wrapping_rem(y);
            if truncated != 0 && (truncated < 0) != (y < 0) { truncated + y } else { truncated }
        };
    )*}};
}

macro_rules! unsigned {
    ($($rust:ty),*) => { integers! {$( $rust, |x: $rust| x, |x: $rust, y: $rust| x % y; )*}};
}

macro_rules! floats {
    ($($rust:ty, $wide:ty, $widen:expr, $narrow:expr, $zero:expr, $one:expr, $inf:expr, $neg_inf:expr);* $(;)?) => {$(
        impl Arithmetic for $rust {
            const ZERO: Self = $zero;
            const ONE: Self = $one;
            #[inline]
            fn plus(self, other: Self) -> Self { self + other }
            #[inline]
            fn minus(self, other: Self) -> Self { self - other }
            #[inline]
            fn times(self, other: Self) -> Self { self * other }
            #[inline]
            fn negated(self) -> Self { -self }
        }
        impl Number for $rust {
            const LOWEST: Self = $neg_inf;
            const HIGHEST: Self = $inf;
            const LOWEST_FINITE: Self = Self::MIN;
            #[inline]
            fn magnitude(self) -> Self { $narrow($widen(self).abs()) }
            #[inline]
            fn to_f64(self) -> f64 { f64::from(self) }
            #[inline]
            fn from_f64(value: f64) -> Self { <$rust as FromF64>::from_double(value) }
            #[inline]
            fn to_i64(self) -> i64 { f64::from(self) as i64 }
            #[inline]
            fn from_i64(value: i64) -> Self { <$rust as FromF64>::from_double(value as f64) }
        }
        impl Real for $rust {
            type Wide = $wide;
            #[inline]
            fn widen(self) -> $wide { $widen(self) }
            #[inline]
            fn narrow(value: $wide) -> Self { $narrow(value) }
            #[inline]
            fn over(self, other: Self) -> Self { self / other }
            #[inline]
            fn floored_remainder(self, other: Self) -> Self {
                let (x, y): ($wide, $wide) = ($widen(self), $widen(other));
                let truncated = x % y;
                $narrow(if truncated != 0.0 && (truncated < 0.0) != (y < 0.0) { truncated + y } else { truncated })
            }
            #[inline]
            fn floored_quotient(self, other: Self) -> Self {
                $narrow($widen(self / other).floor())
            }
            #[inline]
            fn truncated_quotient(self, other: Self) -> Self {
                $narrow($widen(self / other).trunc())
            }
            #[inline]
            fn truncated_remainder(self, other: Self) -> Self {
                $narrow($widen(self) % $widen(other))
            }
            #[inline]
            fn power(self, other: Self) -> Self {
                $narrow($widen(self).powf($widen(other)))
            }
            #[inline]
            fn angle(self, other: Self) -> Self {
                $narrow($widen(self).atan2($widen(other)))
            }
        }
    )*};
}

macro_rules! complex {
    ($($rust:ty),*) => {$(
        impl Arithmetic for $rust {
            const ZERO: Self = Self { re: 0.0, im: 0.0 };
            const ONE: Self = Self { re: 1.0, im: 0.0 };
            #[inline]
            fn plus(self, other: Self) -> Self { self + other }
            #[inline]
            fn minus(self, other: Self) -> Self { self - other }
            #[inline]
            fn times(self, other: Self) -> Self { self * other }
            #[inline]
            fn negated(self) -> Self { -self }
            #[inline]
            fn conjugate(self) -> Self { self.conj() }
        }
    )*};
}

/// Rounding from a double, once.
trait FromF64 {
    fn from_double(value: f64) -> Self;
}

impl FromF64 for f32 {
    fn from_double(value: f64) -> Self {
        value as Self
    }
}

impl FromF64 for f64 {
    fn from_double(value: f64) -> Self {
        value
    }
}

impl FromF64 for f16 {
    fn from_double(value: f64) -> Self {
        Self::from_f64(value)
    }
}

impl FromF64 for bf16 {
    fn from_double(value: f64) -> Self {
        Self::from_f64(value)
    }
}

signed!(i8, i16, i32, i64);
unsigned!(u8, u16, u32, u64);
floats! {
    f32, f32, |x: f32| x, |x: f32| x, 0.0, 1.0, f32::INFINITY, f32::NEG_INFINITY;
    f64, f64, |x: f64| x, |x: f64| x, 0.0, 1.0, f64::INFINITY, f64::NEG_INFINITY;
    f16, f32, f16::to_f32, f16::from_f32, f16::ZERO, f16::ONE, f16::INFINITY, f16::NEG_INFINITY;
    bf16, f32, bf16::to_f32, bf16::from_f32, bf16::ZERO, bf16::ONE, bf16::INFINITY, bf16::NEG_INFINITY;
}

complex!(Complex64, Complex128);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remainders_have_the_sign_of_the_divisor() {
        for (x, y, expected) in [
            (7, 3, 1),
            (-7, 3, 2),
            (7, -3, -2),
            (-7, -3, -1),
            (6, -3, 0),
            (i32::MIN, -1, 0),
        ] {
            assert_eq!(Integer::floored_remainder(x, y), expected, "{x} mod {y}");
        }
        assert_eq!(Real::floored_remainder(-7.5f32, 2.0), 0.5);
        assert_eq!(Real::floored_remainder(7.5f64, -2.0), -0.5);
        assert!(Real::floored_remainder(1.0f32, 0.0).is_nan());
    }

    #[test]
    fn quotients_and_remainders_match() {
        for (x, y, floored, truncated) in [
            (7i8, 3i8, 2, 2),
            (-7, 3, -3, -2),
            (7, -3, -3, -2),
            (-7, -3, 2, 2),
            (i8::MIN, -1, i8::MIN, i8::MIN),
            (i8::MIN, 127, -2, -1),
            (127, i8::MIN, -1, 0),
            (i8::MIN, 1, i8::MIN, i8::MIN),
        ] {
            assert_eq!(Integer::floored_quotient(x, y), floored, "{x} / {y}");
            assert_eq!(x.truncated_quotient(y), truncated, "{x} / {y}");
            let remainder = Integer::truncated_remainder(x, y);
            assert_eq!(truncated.times(y).plus(remainder), x, "{x} / {y}");
        }
        assert_eq!(Real::floored_quotient(-7.0f32, 2.0), -4.0);
        assert_eq!(Real::truncated_remainder(-7.0f64, 2.0), -1.0);
    }

    #[test]
    fn integers_wrap_around() {
        assert_eq!(i8::MAX.plus(1), i8::MIN);
        assert_eq!(0u8.minus(1), 255);
        assert_eq!(i32::MIN.magnitude(), i32::MIN);
        assert_eq!(i64::MIN.truncated_quotient(-1), i64::MIN);
    }
}
