//! The functions of reductions: sum, product, mean, extremes, all and any.

use half::bf16;
use half::f16;

use crate::kernels::Arithmetic;
use crate::kernels::Number;
use crate::kernels::binary;
use crate::tensor::Boolean;
use crate::tensor::Complex64;
use crate::tensor::Complex128;

/// A function that reduces many elements to one.
pub trait Reducer<T>: Copy + Send + Sync {
    /// Type of partial results.
    type Partial: Copy + Send + Sync;
    /// Result for no elements.
    const START: Self::Partial;
    /// Converts one element to a partial result.
    fn take(x: T) -> Self::Partial;
    /// Combines two partial results.
    fn join(lhs: Self::Partial, rhs: Self::Partial) -> Self::Partial;
    /// Finishes the result of `n` elements.
    fn end(partial: Self::Partial, n: usize) -> T;
}

/// A number whose sums are kept in another type.
pub trait Accumulate: Arithmetic {
    /// Type of sums and products: `f32` for `f16` and `bf16`, which are rounded once.
    type Total: Arithmetic;
    /// Type of sums for means: 64 bits for integers.
    type Sum: Arithmetic;
    /// Converts to the type of sums, exactly.
    fn to_total(self) -> Self::Total;
    /// Rounds a sum to this type.
    fn of_total(total: Self::Total) -> Self;
    /// Converts to the type of sums for means, exactly.
    fn to_sum(self) -> Self::Sum;
    /// Returns `sum / n`, rounded towards 0 for integers. The mean of nothing is NaN for floats,
    /// and 0 for integers and complex numbers.
    fn mean(sum: Self::Sum, n: usize) -> Self;
}

/// TensorFlow `Sum`.
#[derive(Debug, Clone, Copy)]
pub struct Sum;

/// TensorFlow `Prod`.
#[derive(Debug, Clone, Copy)]
pub struct Product;

/// TensorFlow `Mean`.
#[derive(Debug, Clone, Copy)]
pub struct Mean;

/// TensorFlow `Max`: NaN if any element is NaN; the lowest value if there are no elements.
#[derive(Debug, Clone, Copy)]
pub struct Max;

/// TensorFlow `Min`: NaN if any element is NaN; the highest value if there are no elements.
#[derive(Debug, Clone, Copy)]
pub struct Min;

/// TensorFlow `EuclideanNorm`: the root of the sum of squares.
#[derive(Debug, Clone, Copy)]
pub struct Norm;

/// A number with a square of its absolute value.
pub trait Normed: Copy {
    /// Returns the square, in double precision.
    fn square(self) -> f64;
    /// Converts a norm to this type, as [`Number::from_f64`] does.
    fn of_norm(norm: f64) -> Self;
}

impl<T: Number> Normed for T {
    #[inline]
    fn square(self) -> f64 {
        self.to_f64() * self.to_f64()
    }
    #[inline]
    fn of_norm(norm: f64) -> Self {
        T::from_f64(norm)
    }
}

impl Normed for Complex64 {
    #[inline]
    fn square(self) -> f64 {
        f64::from(self.re) * f64::from(self.re) + f64::from(self.im) * f64::from(self.im)
    }
    #[inline]
    fn of_norm(norm: f64) -> Self {
        Self::new(f32::from_f64(norm), 0.0)
    }
}

impl Normed for Complex128 {
    #[inline]
    fn square(self) -> f64 {
        self.norm_sqr()
    }
    #[inline]
    fn of_norm(norm: f64) -> Self {
        Self::new(norm, 0.0)
    }
}

/// TensorFlow `All`.
#[derive(Debug, Clone, Copy)]
pub struct All;

/// TensorFlow `Any`.
#[derive(Debug, Clone, Copy)]
pub struct Any;

impl<T: Accumulate> Reducer<T> for Sum {
    type Partial = T::Total;
    const START: T::Total = T::Total::ZERO;
    #[inline]
    fn take(x: T) -> T::Total {
        x.to_total()
    }
    #[inline]
    fn join(lhs: T::Total, rhs: T::Total) -> T::Total {
        lhs.plus(rhs)
    }
    #[inline]
    fn end(partial: T::Total, _: usize) -> T {
        T::of_total(partial)
    }
}

impl<T: Accumulate> Reducer<T> for Product {
    type Partial = T::Total;
    const START: T::Total = T::Total::ONE;
    #[inline]
    fn take(x: T) -> T::Total {
        x.to_total()
    }
    #[inline]
    fn join(lhs: T::Total, rhs: T::Total) -> T::Total {
        lhs.times(rhs)
    }
    #[inline]
    fn end(partial: T::Total, _: usize) -> T {
        T::of_total(partial)
    }
}

impl<T: Accumulate> Reducer<T> for Mean {
    type Partial = T::Sum;
    const START: T::Sum = T::Sum::ZERO;
    #[inline]
    fn take(x: T) -> T::Sum {
        x.to_sum()
    }
    #[inline]
    fn join(lhs: T::Sum, rhs: T::Sum) -> T::Sum {
        lhs.plus(rhs)
    }
    #[inline]
    fn end(partial: T::Sum, n: usize) -> T {
        T::mean(partial, n)
    }
}

impl<T: Normed> Reducer<T> for Norm {
    type Partial = f64;
    const START: f64 = 0.0;
    #[inline]
    fn take(x: T) -> f64 {
        x.square()
    }
    #[inline]
    fn join(lhs: f64, rhs: f64) -> f64 {
        lhs + rhs
    }
    #[inline]
    fn end(partial: f64, _: usize) -> T {
        T::of_norm(partial.sqrt())
    }
}

impl<T: Number> Reducer<T> for Max {
    type Partial = T;
    const START: T = T::LOWEST;
    #[inline]
    fn take(x: T) -> T {
        x
    }
    #[inline]
    fn join(lhs: T, rhs: T) -> T {
        binary::maximum(lhs, rhs)
    }
    #[inline]
    fn end(partial: T, _: usize) -> T {
        partial
    }
}

impl<T: Number> Reducer<T> for Min {
    type Partial = T;
    const START: T = T::HIGHEST;
    #[inline]
    fn take(x: T) -> T {
        x
    }
    #[inline]
    fn join(lhs: T, rhs: T) -> T {
        binary::minimum(lhs, rhs)
    }
    #[inline]
    fn end(partial: T, _: usize) -> T {
        partial
    }
}

impl Reducer<Boolean> for All {
    type Partial = bool;
    const START: bool = true;
    #[inline]
    fn take(x: Boolean) -> bool {
        x.is_true()
    }
    #[inline]
    fn join(lhs: bool, rhs: bool) -> bool {
        lhs & rhs
    }
    #[inline]
    fn end(partial: bool, _: usize) -> Boolean {
        partial.into()
    }
}

impl Reducer<Boolean> for Any {
    type Partial = bool;
    const START: bool = false;
    #[inline]
    fn take(x: Boolean) -> bool {
        x.is_true()
    }
    #[inline]
    fn join(lhs: bool, rhs: bool) -> bool {
        lhs | rhs
    }
    #[inline]
    fn end(partial: bool, _: usize) -> Boolean {
        partial.into()
    }
}

macro_rules! accumulate {
    ($($rust:ty, $total:ty, $to:expr, $of:expr, $sum:ty, $to_sum:expr, $mean:expr);* $(;)?) => {$(
        impl Accumulate for $rust {
            type Total = $total;
            type Sum = $sum;
            #[inline]
            fn to_total(self) -> $total { $to(self) }
            #[inline]
            fn of_total(total: $total) -> Self { $of(total) }
            #[inline]
            fn to_sum(self) -> $sum { $to_sum(self) }
            #[inline]
            fn mean(sum: $sum, n: usize) -> Self { $mean(sum, n) }
        }
    )*};
}

macro_rules! accumulate_integers {
    ($($rust:ty, $wide:ty);*) => { accumulate! {$(
        $rust, $rust, |x| x, |x| x, $wide, <$wide>::from, |sum: $wide, n: usize| {
            // The wide type can hold the number of elements, and a mean is within the range of its
            // terms, or the sum wrapped around.
            #[expect(clippy::cast_possible_wrap, reason = "as above")]
            let n = <$wide>::from_i64(n as i64);
            if n == 0 { 0 } else { Self::from_i64(sum.wrapping_div(n).to_i64()) }
        };
    )*}};
}

accumulate_integers!(i8, i64; i16, i64; i32, i64; i64, i64; u8, u64; u16, u64; u32, u64; u64, u64);

#[expect(
    clippy::cast_precision_loss,
    reason = "a number of elements, rounded as TensorFlow's"
)]
mod floats {
    use super::Accumulate;
    use super::Complex64;
    use super::Complex128;
    use super::bf16;
    use super::f16;

    accumulate! {
        f32, f32, |x| x, |x| x, f32, |x| x, |sum: f32, n: usize| sum / n as f32;
        f64, f64, |x| x, |x| x, f64, |x| x, |sum: f64, n: usize| sum / n as f64;
        f16, f32, Self::to_f32, Self::from_f32, f32, Self::to_f32, |sum: f32, n: usize| Self::from_f32(sum / n as f32);
        bf16, f32, Self::to_f32, Self::from_f32, f32, Self::to_f32, |sum: f32, n: usize| Self::from_f32(sum / n as f32);
        Complex64, Self, |x| x, |x| x, Self, |x| x, |sum: Self, n: usize| if n == 0 { sum } else { sum / n as f32 };
        Complex128, Self, |x| x, |x| x, Self, |x| x, |sum: Self, n: usize| if n == 0 { sum } else { sum / n as f64 };
    }
}
