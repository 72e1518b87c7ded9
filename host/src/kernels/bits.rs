//! Bitwise functions of integers.

use crate::kernels::Integer;
use crate::kernels::Number;

/// An integer with bitwise operations.
pub trait Bits: Integer {
    /// Bitwise and.
    #[must_use]
    fn both(self, other: Self) -> Self;
    /// Bitwise or.
    #[must_use]
    fn either(self, other: Self) -> Self;
    /// Bitwise exclusive or.
    #[must_use]
    fn one_of(self, other: Self) -> Self;
    /// Bitwise complement.
    #[must_use]
    fn inverted(self) -> Self;
    /// Shifts left by `other` bits, limited to `0..=BITS - 1` (TensorFlow `LeftShift`).
    #[must_use]
    fn shifted_left(self, other: Self) -> Self;
    /// Shifts right by `other` bits, limited likewise, with sign extension (TensorFlow
    /// `RightShift`).
    #[must_use]
    fn shifted_right(self, other: Self) -> Self;
}

macro_rules! bits {
    ($($rust:ty),*) => {$(
        impl Bits for $rust {
            #[inline]
            fn both(self, other: Self) -> Self { self & other }
            #[inline]
            fn either(self, other: Self) -> Self { self | other }
            #[inline]
            fn one_of(self, other: Self) -> Self { self ^ other }
            #[inline]
            fn inverted(self) -> Self { !self }
            #[inline]
            fn shifted_left(self, other: Self) -> Self { self << amount(other.to_i64(), Self::BITS) }
            #[inline]
            fn shifted_right(self, other: Self) -> Self { self >> amount(other.to_i64(), Self::BITS) }
        }
    )*};
}

bits!(i8, i16, i32, i64, u8, u16, u32);

impl Bits for u64 {
    #[inline]
    fn both(self, other: Self) -> Self {
        self & other
    }
    #[inline]
    fn either(self, other: Self) -> Self {
        self | other
    }
    #[inline]
    fn one_of(self, other: Self) -> Self {
        self ^ other
    }
    #[inline]
    fn inverted(self) -> Self {
        !self
    }
    #[inline]
    fn shifted_left(self, other: Self) -> Self {
        self << other.min(63)
    }
    #[inline]
    fn shifted_right(self, other: Self) -> Self {
        self >> other.min(63)
    }
}

/// Returns the shift distance, limited to a type of `n_bits` bits.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "below the number of bits"
)]
#[inline]
fn amount(asked: i64, n_bits: u32) -> u32 {
    asked.clamp(0, i64::from(n_bits) - 1) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shifts_by_too_much_are_held_to_the_type() {
        assert_eq!(1i8.shifted_left(7), i8::MIN);
        assert_eq!(1i8.shifted_left(100), i8::MIN);
        assert_eq!(5i32.shifted_left(-3), 5);
        assert_eq!((-8i32).shifted_right(1), -4);
        assert_eq!((-8i32).shifted_right(99), -1);
        assert_eq!(0x80u8.shifted_right(200), 1);
        assert_eq!(1u64.shifted_left(u64::MAX), 1 << 63);
        assert_eq!(u64::MAX.shifted_right(1 << 40), 1);
    }
}
