//! Conversions between element types (TensorFlow `Cast`).
//!
//! Conversions that C++ leaves undefined follow its compilers on x86-64, where TensorFlow's results
//! come from. A float out of range of `int32` (or of a shorter integer, which is converted through
//! `int32`) gives `0x8000_0000`. A float out of range of `int64` (or `uint32`) gives
//! `0x8000_0000_0000_0000`, of which shorter integers keep the low bits. NaN is out of every range.

#![expect(
    trivial_numeric_casts,
    clippy::cast_lossless,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "this file converts every type to every type"
)]

use half::bf16;
use half::f16;

use crate::kernels::Threads;
use crate::kernels::unary;
use crate::tensor::Boolean;
use crate::tensor::Complex64;
use crate::tensor::Complex128;
use crate::tensor::Element;

/// An element type that converts to `Target`.
pub trait CastTo<Target>: Element {
    /// Converts the value. Floats get the nearest value; integers get the low bits, and floats are
    /// truncated first; booleans are true if the value is not 0; a complex number loses its
    /// imaginary part.
    fn cast(self) -> Target;
}

/// A floating-point type with more bits than `Target`, which can be truncated to it.
pub trait Truncate<Target>: Element {
    /// Clears the low bits of the mantissa that `Target` lacks; NaN stays as it is.
    #[must_use]
    fn truncated(self) -> Self;
}

/// Computes `out[i] = input[i]`, converted.
///
/// # Panics
/// If the lengths differ.
pub fn cast<S: CastTo<D>, D: Element>(input: &[S], out: &mut [D], threads: Threads<'_>) {
    unary::map(input, out, threads, S::cast);
}

/// Computes `out[i] = input[i]`, converted with rounding towards zero (attribute `Truncate`).
///
/// # Panics
/// If the lengths differ.
pub fn truncate<S, D>(input: &[S], out: &mut [D], threads: Threads<'_>)
where
    S: CastTo<D> + Truncate<D>,
    D: Element,
{
    unary::map(input, out, threads, |x| x.truncated().cast());
}

/// Converts as `cvttss2si` does to 32 bits.
#[inline]
fn f32_to_i32(x: f32) -> i32 {
    // Rust's own conversion saturates, and returns 0 for NaN.
    if x < 2_147_483_648.0 {
        x as i32
    } else {
        i32::MIN
    }
}

/// Converts as `cvttsd2si` does to 32 bits.
#[inline]
fn f64_to_i32(x: f64) -> i32 {
    if x > -2_147_483_649.0 && x < 2_147_483_648.0 {
        x as i32
    } else {
        i32::MIN
    }
}

/// Converts as `cvttss2si` does to 64 bits.
#[inline]
fn f32_to_i64(x: f32) -> i64 {
    if x < 9_223_372_036_854_775_808.0 {
        x as i64
    } else {
        i64::MIN
    }
}

/// Converts as `cvttsd2si` does to 64 bits.
#[inline]
fn f64_to_i64(x: f64) -> i64 {
    if x < 9_223_372_036_854_775_808.0 {
        x as i64
    } else {
        i64::MIN
    }
}

/// Converts to `u64`. x86-64 has no such instruction; this is what clang generates from two signed
/// conversions.
#[inline]
fn f64_to_u64(x: f64) -> u64 {
    let low = f64_to_i64(x);
    let high = f64_to_i64(x - 9_223_372_036_854_775_808.0);
    (low | (high & (low >> 63))) as u64
}

macro_rules! cast {
    ($source:ty => $($target:ty, $f:expr);* $(;)?) => {$(
        impl CastTo<$target> for $source {
            #[inline]
            fn cast(self) -> $target { $f(self) }
        }
    )*};
}

/// Conversions of integers. `f16` and `bf16` go through `f32`, as in Eigen.
macro_rules! from_integers {
    ($($source:ty),*) => {$(
        cast! { $source =>
            i8, |x: $source| x as i8; i16, |x: $source| x as i16; i32, |x: $source| x as i32; i64, |x: $source| x as i64;
            u8, |x: $source| x as u8; u16, |x: $source| x as u16; u32, |x: $source| x as u32; u64, |x: $source| x as u64;
            f32, |x: $source| x as f32; f64, |x: $source| x as f64;
            f16, |x: $source| f16::from_f32(x as f32); bf16, |x: $source| bf16::from_f32(x as f32);
            Boolean, |x: $source| (x != 0).into();
            Complex64, |x: $source| Complex64 { re: x as f32, im: 0.0 };
            Complex128, |x: $source| Complex128 { re: x as f64, im: 0.0 };
        }
    )*};
}

/// Conversions of floats. `$single` and `$double` return the number as `f32` and `f64`, `$i32` and
/// `$i64` as integers.
macro_rules! from_reals {
    ($($source:ty, $single:expr, $double:expr, $i32:expr, $i64:expr);* $(;)?) => {$(
        cast! { $source =>
            i8, |x: $source| $i32(x) as i8; i16, |x: $source| $i32(x) as i16; i32, |x: $source| $i32(x);
            i64, |x: $source| $i64(x);
            u8, |x: $source| $i32(x) as u8; u16, |x: $source| $i32(x) as u16; u32, |x: $source| $i64(x) as u32;
            u64, |x: $source| f64_to_u64($double(x));
            f32, |x: $source| $single(x); f64, |x: $source| $double(x);
            f16, |x: $source| f16::from_f32($single(x)); bf16, |x: $source| bf16::from_f32($single(x));
            Boolean, |x: $source| ($double(x) != 0.0).into();
            Complex64, |x: $source| Complex64 { re: $single(x), im: 0.0 };
            Complex128, |x: $source| Complex128 { re: $double(x), im: 0.0 };
        }
    )*};
}

macro_rules! from_complex {
    ($($source:ty, $part:ty);*) => {$(
        cast! { $source =>
            i8, |x: $source| x.re.cast(); i16, |x: $source| x.re.cast(); i32, |x: $source| x.re.cast();
            i64, |x: $source| x.re.cast();
            u8, |x: $source| x.re.cast(); u16, |x: $source| x.re.cast(); u32, |x: $source| x.re.cast();
            u64, |x: $source| x.re.cast();
            f32, |x: $source| x.re.cast(); f64, |x: $source| x.re.cast();
            f16, |x: $source| x.re.cast(); bf16, |x: $source| x.re.cast();
            Boolean, |x: $source| x.re.cast();
            Complex64, |x: $source| Complex64 { re: x.re.cast(), im: x.im.cast() };
            Complex128, |x: $source| Complex128 { re: x.re.cast(), im: x.im.cast() };
        }
    )*};
}

macro_rules! from_booleans {
    ($($target:ty),*) => { cast! { Boolean => $($target, |x: Boolean| u8::from(x.is_true()).cast();)* } };
}

from_integers!(i8, i16, i32, i64, u8, u16, u32, u64);
from_reals! {
    f32, |x| x, f64::from, f32_to_i32, f32_to_i64;
    f64, |x| x as f32, |x| x, f64_to_i32, f64_to_i64;
    f16, f16::to_f32, f16::to_f64, |x: f16| f32_to_i32(x.to_f32()), |x: f16| f32_to_i64(x.to_f32());
    bf16, bf16::to_f32, bf16::to_f64, |x: bf16| f32_to_i32(x.to_f32()), |x: bf16| f32_to_i64(x.to_f32());
}
from_complex!(Complex64, f32; Complex128, f64);
from_booleans!(
    i8, i16, i32, i64, u8, u16, u32, u64, f32, f64, f16, bf16, Boolean, Complex64, Complex128
);

/// Returns `x` with its `n` low bits cleared.
#[inline]
fn without_low_bits_f32(x: f32, n: u32) -> f32 {
    if x.is_nan() {
        x
    } else {
        f32::from_bits(x.to_bits() & (u32::MAX << n))
    }
}

/// Returns `x` with its `n` low bits cleared.
#[inline]
fn without_low_bits_f64(x: f64, n: u32) -> f64 {
    if x.is_nan() {
        x
    } else {
        f64::from_bits(x.to_bits() & (u64::MAX << n))
    }
}

/// The pairs of types that TensorFlow truncates, and how many bits the mantissa loses.
macro_rules! truncate {
    ($($source:ty => $target:ty, $f:expr);* $(;)?) => {$(
        impl Truncate<$target> for $source {
            #[inline]
            fn truncated(self) -> Self { $f(self) }
        }
    )*};
}

truncate! {
    f64 => f32, |x| without_low_bits_f64(x, 29);
    f64 => f16, |x| without_low_bits_f64(x, 42);
    f32 => f16, |x| without_low_bits_f32(x, 13);
    f32 => bf16, |x| without_low_bits_f32(x, 16);
    f64 => Complex64, |x| without_low_bits_f64(x, 29);
    Complex64 => f16, |x: Self| Self { re: without_low_bits_f32(x.re, 13), im: x.im };
    Complex128 => f16, |x: Self| Self { re: without_low_bits_f64(x.re, 42), im: x.im };
    Complex128 => f32, |x: Self| Self { re: without_low_bits_f64(x.re, 29), im: x.im };
    Complex128 => Complex64, |x: Self| Self {
        re: without_low_bits_f64(x.re, 29),
        im: without_low_bits_f64(x.im, 29),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_out_of_range_convert_as_on_x86() {
        for (x, i32, i64) in [
            (1.9, 1, 1),
            (-1.9, -1, -1),
            (3e9, i32::MIN, 3_000_000_000),
            (-3e9, i32::MIN, -3_000_000_000),
            (1e19, i32::MIN, i64::MIN),
            (f64::NAN, i32::MIN, i64::MIN),
            (f64::NEG_INFINITY, i32::MIN, i64::MIN),
            (2_147_483_647.5, i32::MAX, 2_147_483_647),
            (-2_147_483_648.5, i32::MIN, -2_147_483_648),
        ] {
            assert_eq!(CastTo::<i32>::cast(x), i32, "{x}");
            assert_eq!(CastTo::<i64>::cast(x), i64, "{x}");
        }
        assert_eq!(CastTo::<i8>::cast(300.7f32), 44);
        assert_eq!(CastTo::<u8>::cast(-1.5f32), 255);
        assert_eq!(CastTo::<u8>::cast(f32::INFINITY), 0);
        assert_eq!(CastTo::<u32>::cast(-1.0f32), u32::MAX);
        assert_eq!(CastTo::<u64>::cast(1e19f64), 10_000_000_000_000_000_000);
        assert_eq!(CastTo::<u64>::cast(-1.0f64), u64::MAX);
        assert_eq!(CastTo::<u64>::cast(f64::NAN), 1 << 63);
    }

    #[test]
    fn truncation_is_towards_zero() {
        let x = 1.0f32 + 0.75 / 128.0;
        assert_eq!(CastTo::<bf16>::cast(x).to_f32(), 1.0 + 1.0 / 128.0);
        let short: bf16 = Truncate::<bf16>::truncated(x).cast();
        assert_eq!(short.to_f32(), 1.0);
        assert!(Truncate::<f16>::truncated(f32::NAN).is_nan());
    }
}
