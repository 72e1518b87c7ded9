//! Functions of one number, over slices.

use half::bf16;
use half::f16;
use rten_simd::SimdUnaryOp;

use crate::kernels::Real;
use crate::kernels::Threads;
use crate::kernels::simd::vectorize;
use crate::kernels::special;
use crate::tensor::Element;

/// Minimum number of elements worth handing to another thread.
const GRAIN: usize = 16 * 1024;

/// Elements of `f16` and `bf16` that are widened at a time: a block that stays in the L1 cache.
const BLOCK: usize = 1024;

/// A function of a real number, named after TensorFlow's op.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RealFunction {
    /// The largest whole number that is not larger.
    Floor,
    /// The smallest whole number that is not smaller.
    Ceil,
    /// The nearest whole number, halves to even.
    Rint,
    /// `e^x`.
    Exp,
    /// The natural logarithm; NaN below 0, `-inf` at 0.
    Log,
    /// The square root; NaN below 0.
    Sqrt,
    /// `1 / sqrt(x)`; `inf` at 0.
    Rsqrt,
    /// `1 / x`.
    Reciprocal,
    /// `1 / (1 + e^-x)`.
    Sigmoid,
    /// The hyperbolic tangent.
    Tanh,
    /// The error function.
    Erf,
    /// `1 - erf(x)`, without the loss of digits.
    Erfc,
    /// `ln(1 + x)`, without the loss of digits near 0.
    Log1p,
    /// `e^x - 1`, without the loss of digits near 0.
    Expm1,
    /// The sine; in single precision the absolute error is at most 3e-7.
    Sin,
    /// The cosine; in single precision the absolute error is at most 4.2e-7.
    Cos,
    /// The tangent.
    Tan,
    /// The inverse sine.
    Asin,
    /// The inverse cosine.
    Acos,
    /// The inverse tangent.
    Atan,
    /// The hyperbolic sine.
    Sinh,
    /// The hyperbolic cosine.
    Cosh,
    /// The inverse hyperbolic sine.
    Asinh,
    /// The inverse hyperbolic cosine.
    Acosh,
    /// The inverse hyperbolic tangent.
    Atanh,
    /// `ln(1 + e^x)`.
    Softplus,
    /// `x / (1 + |x|)`.
    Softsign,
    /// `x`, and `e^x - 1` below 0.
    Elu,
    /// `Elu`, scaled so that layers keep mean and variance (Klambauer et al. 2017).
    Selu,
    /// -1, 0 or 1 if the number is below, at or above 0; NaN for NaN.
    Sign,
}

/// A real element type with vectorized functions.
pub trait RealSlice: Real {
    /// Computes `out[i] = function(input[i])`. The slices must have the same length.
    fn map(function: RealFunction, input: &[Self], out: &mut [Self]);
}

/// Computes `out[i] = function(input[i])`; `f16` and `bf16` are computed in `f32` and rounded once.
///
/// # Panics
/// If the lengths differ.
pub fn apply<T: RealSlice>(
    function: RealFunction,
    input: &[T],
    out: &mut [T],
    threads: Threads<'_>,
) {
    assert_eq!(input.len(), out.len(), "one result per element");
    threads.fill(out, 1, GRAIN, |start, part| {
        T::map(function, &input[start..start + part.len()], part);
    });
}

/// Computes `out[i] = f(input[i])` for any function.
///
/// # Panics
/// If the lengths differ.
pub fn map<T, O, F>(input: &[T], out: &mut [O], threads: Threads<'_>, f: F)
where
    T: Element,
    O: Send,
    F: Fn(T) -> O + Sync,
{
    assert_eq!(input.len(), out.len(), "one result per element");
    threads.fill(out, 1, GRAIN, |start, part| {
        let input = &input[start..];
        vectorize::<T, _>(|| {
            for (o, &x) in part.iter_mut().zip(input) {
                *o = f(x);
            }
        });
    });
}

impl RealSlice for f32 {
    fn map(function: RealFunction, input: &[Self], out: &mut [Self]) {
        match function {
            RealFunction::Floor => each(input, out, Self::floor),
            RealFunction::Ceil => each(input, out, Self::ceil),
            RealFunction::Rint => each(input, out, Self::round_ties_even),
            RealFunction::Log => each(input, out, Self::ln),
            RealFunction::Sqrt => each(input, out, Self::sqrt),
            RealFunction::Rsqrt => each(input, out, |x| 1.0 / x.sqrt()),
            RealFunction::Reciprocal => each(input, out, |x| 1.0 / x),
            RealFunction::Exp => vector(&rten_vecmath::Exp {}, input, out),
            RealFunction::Sigmoid => vector(&rten_vecmath::Sigmoid {}, input, out),
            RealFunction::Tanh => vector(&rten_vecmath::Tanh {}, input, out),
            RealFunction::Erf => vectorized(input, out, special::erf_f32),
            // The absolute error of the vectorized functions is up to 4e-7, which leaves no digits
            // near multiples of pi.
            RealFunction::Sin => each(input, out, Self::sin),
            RealFunction::Cos => each(input, out, Self::cos),
            RealFunction::Erfc => by_double(input, out, libm::erfc),
            RealFunction::Log1p => each(input, out, Self::ln_1p),
            RealFunction::Expm1 => vectorized(input, out, special::expm1_f32),
            RealFunction::Tan => each(input, out, Self::tan),
            RealFunction::Asin => each(input, out, Self::asin),
            RealFunction::Acos => each(input, out, Self::acos),
            RealFunction::Atan => each(input, out, Self::atan),
            RealFunction::Sinh => each(input, out, Self::sinh),
            RealFunction::Cosh => each(input, out, Self::cosh),
            RealFunction::Asinh => by_double(input, out, libm::asinh),
            RealFunction::Acosh => by_double(input, out, special::acosh),
            RealFunction::Atanh => by_double(input, out, libm::atanh),
            RealFunction::Softplus => each(input, out, special::softplus_f32),
            RealFunction::Softsign => each(input, out, |x| x / (1.0 + x.abs())),
            RealFunction::Elu => vectorized(input, out, |x| {
                let below = special::expm1_f32(x);
                if x < 0.0 { below } else { x }
            }),
            RealFunction::Selu => vectorized(input, out, special::selu_f32),
            RealFunction::Sign => each(input, out, |x| {
                if x > 0.0 {
                    1.0
                } else if x < 0.0 {
                    -1.0
                } else if x.is_nan() {
                    x
                } else {
                    0.0
                }
            }),
        }
    }
}

impl RealSlice for f64 {
    fn map(function: RealFunction, input: &[Self], out: &mut [Self]) {
        match function {
            RealFunction::Floor => each(input, out, Self::floor),
            RealFunction::Ceil => each(input, out, Self::ceil),
            RealFunction::Rint => each(input, out, Self::round_ties_even),
            RealFunction::Log => each(input, out, Self::ln),
            RealFunction::Sqrt => each(input, out, Self::sqrt),
            RealFunction::Rsqrt => each(input, out, |x| 1.0 / x.sqrt()),
            RealFunction::Reciprocal => each(input, out, |x| 1.0 / x),
            RealFunction::Exp => each(input, out, Self::exp),
            RealFunction::Sigmoid => each(input, out, |x| 1.0 / (1.0 + (-x).exp())),
            RealFunction::Tanh => each(input, out, Self::tanh),
            RealFunction::Erf => each(input, out, libm::erf),
            RealFunction::Sin => each(input, out, Self::sin),
            RealFunction::Cos => each(input, out, Self::cos),
            RealFunction::Erfc => each(input, out, libm::erfc),
            RealFunction::Log1p => each(input, out, Self::ln_1p),
            RealFunction::Expm1 => each(input, out, Self::exp_m1),
            RealFunction::Tan => each(input, out, Self::tan),
            RealFunction::Asin => each(input, out, Self::asin),
            RealFunction::Acos => each(input, out, Self::acos),
            RealFunction::Atan => each(input, out, Self::atan),
            RealFunction::Sinh => each(input, out, Self::sinh),
            RealFunction::Cosh => each(input, out, Self::cosh),
            RealFunction::Asinh => each(input, out, libm::asinh),
            RealFunction::Acosh => each(input, out, special::acosh),
            RealFunction::Atanh => each(input, out, libm::atanh),
            RealFunction::Softplus => each(input, out, special::softplus),
            RealFunction::Softsign => each(input, out, |x| x / (1.0 + x.abs())),
            RealFunction::Elu => each(input, out, |x| if x < 0.0 { x.exp_m1() } else { x }),
            RealFunction::Selu => each(input, out, special::selu),
            RealFunction::Sign => each(input, out, |x| {
                if x > 0.0 {
                    1.0
                } else if x < 0.0 {
                    -1.0
                } else if x.is_nan() {
                    x
                } else {
                    0.0
                }
            }),
        }
    }
}

impl RealSlice for f16 {
    fn map(function: RealFunction, input: &[Self], out: &mut [Self]) {
        widened(function, input, out);
    }
}

impl RealSlice for bf16 {
    fn map(function: RealFunction, input: &[Self], out: &mut [Self]) {
        widened(function, input, out);
    }
}

fn each<T: Copy>(input: &[T], out: &mut [T], f: impl Fn(T) -> T) {
    for (o, &x) in out.iter_mut().zip(input) {
        *o = f(x);
    }
}

/// The same for an inlined function of plain arithmetic, without calls and early exits.
fn vectorized(input: &[f32], out: &mut [f32], f: impl Fn(f32) -> f32) {
    vectorize::<f32, _>(|| each(input, out, f));
}

fn vector(function: &impl SimdUnaryOp<f32>, input: &[f32], out: &mut [f32]) {
    out.copy_from_slice(input);
    function.map_mut(out);
}

/// Applies functions that would lose digits in single precision.
#[expect(clippy::cast_possible_truncation, reason = "rounded once")]
fn by_double(input: &[f32], out: &mut [f32], f: impl Fn(f64) -> f64) {
    each(input, out, |x| f(f64::from(x)) as f32);
}

fn widened<T: Real<Wide = f32>>(function: RealFunction, input: &[T], out: &mut [T]) {
    let (mut wide, mut results) = ([0.0f32; BLOCK], [0.0f32; BLOCK]);
    for (input, out) in input.chunks(BLOCK).zip(out.chunks_mut(BLOCK)) {
        let n = input.len();
        for (w, &x) in wide.iter_mut().zip(input) {
            *w = x.widen();
        }
        f32::map(function, &wide[..n], &mut results[..n]);
        for (o, &r) in out.iter_mut().zip(&results) {
            *o = T::narrow(r);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [RealFunction; 30] = [
        RealFunction::Floor,
        RealFunction::Ceil,
        RealFunction::Rint,
        RealFunction::Exp,
        RealFunction::Log,
        RealFunction::Sqrt,
        RealFunction::Rsqrt,
        RealFunction::Reciprocal,
        RealFunction::Sigmoid,
        RealFunction::Tanh,
        RealFunction::Erf,
        RealFunction::Erfc,
        RealFunction::Log1p,
        RealFunction::Expm1,
        RealFunction::Asin,
        RealFunction::Acos,
        RealFunction::Atan,
        RealFunction::Sinh,
        RealFunction::Cosh,
        RealFunction::Asinh,
        RealFunction::Acosh,
        RealFunction::Atanh,
        RealFunction::Softplus,
        RealFunction::Softsign,
        RealFunction::Elu,
        RealFunction::Selu,
        RealFunction::Sign,
        RealFunction::Tan,
        RealFunction::Sin,
        RealFunction::Cos,
    ];

    /// Compares the vectorized functions with the double-precision ones, over every exponent and
    /// both signs.
    #[test]
    fn single_precision_agrees_with_double_precision() {
        let input: Vec<f32> = (0..u32::MAX)
            .step_by(65_521)
            .map(f32::from_bits)
            .chain([
                0.0,
                -0.0,
                1.0,
                -1.0,
                f32::INFINITY,
                f32::NEG_INFINITY,
                f32::NAN,
            ])
            .collect();
        let wide: Vec<f64> = input.iter().map(|&x| f64::from(x)).collect();
        for function in ALL {
            let mut single = vec![0.0f32; input.len()];
            apply(function, &input, &mut single, Threads::single());
            let mut double = vec![0.0f64; wide.len()];
            apply(function, &wide, &mut double, Threads::single());
            for ((x, s), d) in input.iter().zip(single).zip(double) {
                #[expect(clippy::cast_possible_truncation, reason = "to be compared")]
                let expected = d as f32;
                // 4 units in the last place: what the library states for its worst function. Its
                // error function, used from 1/2 on, is Abramowitz and Stegun's
                // 7.1.26, good to 5e-7. Results below the smallest normal number may be 0.
                let least = match function {
                    RealFunction::Erf if x.abs() >= 0.5 => 7e-7,
                    _ => f32::MIN_POSITIVE,
                };
                let close = (s - expected).abs() <= 4.0 * f32::EPSILON * expected.abs() + least;
                assert!(
                    close || s == expected || (s.is_nan() && expected.is_nan()),
                    "{function:?}({x:e}) = {s:e}, expected {expected:e}"
                );
            }
        }
    }

    /// Values from mpmath, to two units in the last place.
    #[test]
    fn results_keep_their_digits() {
        use RealFunction::{Acosh, Asinh, Atanh, Cos, Erf, Erfc, Sin};
        for (function, x, expected) in [
            (Erfc, 3.0, 2.209_049_699_858_544e-5),
            (Erfc, 5.0, 1.537_459_794_428_035e-12),
            (Erfc, 10.0, 2.088_487_583_762_545e-45),
            (Erfc, f64::NEG_INFINITY, 2.0),
            (Erf, 0.5, 0.520_499_877_813_046_5),
            (Erf, f64::MAX, 1.0),
            (Atanh, -0.986_502_34, -2.495_807_208_059_020_3),
            (Acosh, 1e155, 357.593_836_594_637),
            (Acosh, f64::MAX, 710.475_860_073_944),
            (Asinh, -1e155, -357.593_836_594_637),
            (Asinh, f64::MAX, 710.475_860_073_944),
            (Sin, 3.13, 1.159_239_393_615_827_6e-2),
            (Cos, 1.57, 7.963_267_107_332_633e-4),
        ] {
            let mut found = [0.0];
            apply(function, &[x], &mut found, Threads::single());
            let apart = (found[0] / expected - 1.0).abs();
            assert!(
                apart <= 2.0 * f64::EPSILON,
                "{function:?}({x}) = {}",
                found[0]
            );
        }
        for x in [
            0.5,
            -0.5,
            -1.0,
            -8.56,
            -300.0,
            -65504.0,
            -1e8,
            -1e300,
            f64::NEG_INFINITY,
            f64::NAN,
        ] {
            let mut found = [0.0];
            apply(Acosh, &[x], &mut found, Threads::single());
            assert!(found[0].is_nan(), "{x}");
        }
        // A sine near a multiple of pi, in single precision.
        let mut found = [0f32];
        apply(Sin, &[-3.132_243_9f32], &mut found, Threads::single());
        assert!(
            (f64::from(found[0]) / -0.009_348_645_7 - 1.0).abs() < 1e-6,
            "{}",
            found[0]
        );
    }

    #[test]
    fn half_precision_is_rounded_once() {
        let input = [0.5, -1.5, f32::INFINITY, f32::NEG_INFINITY];
        for function in [RealFunction::Exp, RealFunction::Tanh, RealFunction::Floor] {
            let mut expected = [0.0; 4];
            apply(function, &input, &mut expected, Threads::single());
            let mut out = [f16::ZERO; 4];
            apply(
                function,
                &input.map(f16::from_f32),
                &mut out,
                Threads::single(),
            );
            assert_eq!(out, expected.map(f16::from_f32));
        }
    }
}
