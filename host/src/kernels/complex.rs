//! Functions of complex numbers, by the formulas of W. Kahan, "Branch cuts for complex elementary
//! functions" (1987).
//!
//! Both complex types are computed in double precision and rounded once, so `complex64` avoids
//! intermediate overflow. For infinite or NaN parts, results follow C99 as far as the formulas give
//! them; TensorFlow's results for them depend on the processor's vector instructions.

use crate::kernels::Arithmetic;
use crate::kernels::unary::RealFunction;
use crate::tensor::Complex64;
use crate::tensor::Complex128;

/// A complex number of either size.
pub trait Complex: Arithmetic {
    /// Type of the parts.
    type Part: Arithmetic;
    /// Converts to double precision, exactly.
    fn widen(self) -> Complex128;
    /// Rounds to the nearest number.
    fn narrow(value: Complex128) -> Self;
    /// Builds a number from its real and imaginary part.
    fn of_parts(parts: [Self::Part; 2]) -> Self;
    /// Returns the real and the imaginary part.
    fn parts(self) -> [Self::Part; 2];
    /// Rounds a real number to the type of the parts.
    fn part(value: f64) -> Self::Part;
    /// Clips each part to the same part of the two bounds.
    #[must_use]
    fn clipped(self, low: Self, high: Self) -> Self;
}

macro_rules! complex {
    ($($rust:ty, $part:ty);*) => {$(
        impl Complex for $rust {
            type Part = $part;
            #[inline]
            fn widen(self) -> Complex128 {
                Complex128::new(self.re.into(), self.im.into())
            }
            #[inline]
            #[allow(clippy::cast_possible_truncation, trivial_numeric_casts, reason = "of one of two types")]
            fn narrow(value: Complex128) -> Self {
                Self::new(value.re as $part, value.im as $part)
            }
            #[inline]
            fn of_parts([re, im]: [$part; 2]) -> Self {
                Self { re, im }
            }
            #[inline]
            fn parts(self) -> [$part; 2] {
                [self.re, self.im]
            }
            #[inline]
            #[allow(clippy::cast_possible_truncation, trivial_numeric_casts, reason = "of one of two types")]
            fn part(value: f64) -> $part {
                value as $part
            }
            #[inline]
            fn clipped(self, low: Self, high: Self) -> Self {
                let clip = |x: $part, low: $part, high: $part| {
                    let below = if high < x { high } else { x };
                    if below < low { low } else { below }
                };
                Self::new(clip(self.re, low.re, high.re), clip(self.im, low.im, high.im))
            }
        }
    )*};
}

complex!(Complex64, f32; Complex128, f64);

/// A function of complex numbers.
pub type ComplexFunction = fn(Complex128) -> Complex128;

/// Returns the complex version of a real function; `None` if TensorFlow has none.
pub fn function(function: RealFunction) -> Option<ComplexFunction> {
    Some(match function {
        RealFunction::Exp => exp,
        RealFunction::Expm1 => exp_m1,
        RealFunction::Log => ln,
        RealFunction::Log1p => ln_1p,
        RealFunction::Sqrt => sqrt,
        RealFunction::Rsqrt => |z| reciprocal(sqrt(z)),
        RealFunction::Reciprocal => reciprocal,
        RealFunction::Sigmoid => |z| reciprocal(exp(-z) + 1.0),
        RealFunction::Sinh => sinh,
        RealFunction::Cosh => cosh,
        RealFunction::Tanh => tanh,
        // sin z = -i sinh iz, and so on.
        RealFunction::Sin => |z| over_i(sinh(times_i(z))),
        RealFunction::Cos => |z| cosh(times_i(z)),
        RealFunction::Tan => |z| over_i(tanh(times_i(z))),
        RealFunction::Asin => asin,
        RealFunction::Acos => acos,
        RealFunction::Atan => |z| over_i(atanh(times_i(z))),
        RealFunction::Asinh => |z| over_i(asin(times_i(z))),
        RealFunction::Acosh => acosh,
        RealFunction::Atanh => atanh,
        RealFunction::Sign => sign,
        RealFunction::Floor
        | RealFunction::Ceil
        | RealFunction::Rint
        | RealFunction::Erf
        | RealFunction::Erfc
        | RealFunction::Softplus
        | RealFunction::Softsign
        | RealFunction::Elu
        | RealFunction::Selu => return None,
    })
}

/// Magnitude above which squares lose digits or overflow.
const LARGE: f64 = 1e150;

fn times_i(z: Complex128) -> Complex128 {
    Complex128::new(-z.im, z.re)
}

fn over_i(z: Complex128) -> Complex128 {
    Complex128::new(z.im, -z.re)
}

/// Returns `|z|`.
pub fn magnitude(z: Complex128) -> f64 {
    z.re.hypot(z.im)
}

/// Returns the angle of `z`, in `[-pi, pi]`.
pub fn angle(z: Complex128) -> f64 {
    z.im.atan2(z.re)
}

/// Returns `a / b`, scaled so that no intermediate result overflows; infinities as in C99's annex G
/// (TensorFlow `RealDiv`).
pub fn quotient(a: Complex128, b: Complex128) -> Complex128 {
    let ((a, exponent_a), (b, exponent_b)) = (scaled(a), scaled(b));
    let unit = a * b.conj() / b.norm_sqr();
    if unit.re.is_nan() && unit.im.is_nan() {
        return quotient_at_the_edge(a, b);
    }
    // Scaled in two steps: the difference of two exponents may be twice what one number holds.
    let exponent = exponent_a - exponent_b;
    let half = exponent / 2;
    unit * f64::powi(2.0, half) * f64::powi(2.0, exponent - half)
}

/// Scales `z` so that its larger part is in [1, 2), and returns the exponent of 2 that was divided
/// out. A number that cannot be scaled is returned as it is.
fn scaled(z: Complex128) -> (Complex128, i32) {
    let size = z.re.abs().max(z.im.abs());
    if size == 0.0 || !size.is_finite() || z.is_nan() {
        return (z, 0);
    }
    #[expect(clippy::cast_possible_truncation, reason = "of some hundreds")]
    let exponent = size.log2().floor() as i32;
    // Denormal numbers stay smaller: the factor that would bring them to 1 is not a double.
    let exponent = exponent.clamp(-1022, 1022);
    (z * f64::powi(2.0, -exponent), exponent)
}

/// Computes a quotient that the formula does not give: an operand is infinite, zero or NaN.
fn quotient_at_the_edge(a: Complex128, b: Complex128) -> Complex128 {
    let of_infinity = |x: f64| if x.is_infinite() { 1f64 } else { 0.0 }.copysign(x);
    let boxed = |z: Complex128| Complex128::new(of_infinity(z.re), of_infinity(z.im));
    let is_infinite = |z: Complex128| z.re.is_infinite() || z.im.is_infinite();
    let (factor, a, b) = if b == Complex128::ZERO && !(a.re.is_nan() && a.im.is_nan()) {
        let infinity = f64::INFINITY.copysign(b.re);
        return Complex128::new(infinity * a.re, infinity * a.im);
    } else if is_infinite(a) && b.is_finite() {
        (f64::INFINITY, boxed(a), b)
    } else if is_infinite(b) && a.is_finite() {
        (0.0, a, boxed(b))
    } else {
        return Complex128::new(f64::NAN, f64::NAN);
    };
    let product = a * b.conj();
    Complex128::new(factor * product.re, factor * product.im)
}

/// Returns `base^exponent` (TensorFlow `Pow`).
pub fn power(base: Complex128, exponent: Complex128) -> Complex128 {
    exp(exponent * ln(base))
}

fn reciprocal(z: Complex128) -> Complex128 {
    quotient(Complex128::ONE, z)
}

fn sign(z: Complex128) -> Complex128 {
    if z == Complex128::ZERO {
        return z;
    }
    // The squares of the parts may overflow.
    let scaled = z / z.re.abs().max(z.im.abs());
    scaled / magnitude(scaled)
}

fn exp(z: Complex128) -> Complex128 {
    let factor = z.re.exp();
    if z.im == 0.0 {
        return Complex128::new(factor, z.im);
    }
    if !z.im.is_finite() && z.re.is_infinite() {
        // For 0 the direction does not matter; otherwise it is unknown.
        return match z.re > 0.0 {
            true => Complex128::new(f64::INFINITY, f64::NAN),
            false => Complex128::ZERO,
        };
    }
    let (sin, cos) = z.im.sin_cos();
    if factor.is_infinite() && z.re.is_finite() {
        // Multiplies by the root twice: the other factor may bring the result back into range.
        let half = (z.re / 2.0).exp();
        return Complex128::new(half * cos * half, half * sin * half);
    }
    Complex128::new(factor * cos, factor * sin)
}

/// Returns `e^z - 1` without loss of digits near 0.
fn exp_m1(z: Complex128) -> Complex128 {
    let less = z.re.exp_m1();
    let half = (z.im * 0.5).sin();
    Complex128::new(
        less - 2.0 * half * half * (less + 1.0),
        z.im.sin() * (less + 1.0),
    )
}

/// The logarithm whose imaginary part is in `[-pi, pi]` (TensorFlow `Log`).
pub fn ln(z: Complex128) -> Complex128 {
    let (large, small) = (z.re.abs().max(z.im.abs()), z.re.abs().min(z.im.abs()));
    let size = if (0.5..2.0).contains(&large) && small < 2.0 {
        // Near 1 the logarithm has digits that `|z|` has lost.
        0.5 * ((large - 1.0) * (large + 1.0) + small * small).ln_1p()
    } else if large > LARGE {
        (large * 0.25).hypot(small * 0.25).ln() + 4f64.ln()
    } else {
        large.hypot(small).ln()
    };
    Complex128::new(size, angle(z))
}

/// Returns `ln(1 + z)` without loss of digits near 0.
fn ln_1p(z: Complex128) -> Complex128 {
    let one_more = Complex128::new(z.re + 1.0, z.im);
    if z.re.abs() < 0.5 && z.im.abs() < 0.5 {
        let size = 0.5 * (z.re * (2.0 + z.re) + z.im * z.im).ln_1p();
        return Complex128::new(size, angle(one_more));
    }
    ln(one_more)
}

fn sqrt(z: Complex128) -> Complex128 {
    let Complex128 { re, im } = z;
    if im.is_infinite() {
        return Complex128::new(f64::INFINITY, im);
    }
    if re == f64::NEG_INFINITY {
        return Complex128::new(if im.is_nan() { im } else { 0.0 }, re.abs().copysign(im));
    }
    if re == f64::INFINITY {
        return Complex128::new(re, if im.is_nan() { im } else { 0f64.copysign(im) });
    }
    if z == Complex128::ZERO {
        return Complex128::new(0.0, im);
    }
    // `|z| + |re|` must not overflow, and halves of small numbers must not be rounded.
    let (scale, back) = if re.abs().max(im.abs()) > LARGE {
        (0.0625, 4.0)
    } else if re.abs().max(im.abs()) < 1e-290 {
        (2f64.powi(108), 2f64.powi(-54))
    } else {
        (1.0, 1.0)
    };
    let (re, im) = (re * scale, im * scale);
    let long = ((re.abs() + re.hypot(im)) * 0.5).sqrt();
    let short = im.abs() / (2.0 * long);
    if re >= 0.0 {
        Complex128::new(long * back, short.copysign(im) * back)
    } else {
        Complex128::new(short * back, long.copysign(im) * back)
    }
}

fn sinh(z: Complex128) -> Complex128 {
    if z.im == 0.0 {
        return Complex128::new(z.re.sinh(), z.im);
    }
    if z.re == 0.0 {
        return Complex128::new(z.re, z.im.sin());
    }
    Complex128::new(z.re.sinh() * z.im.cos(), z.re.cosh() * z.im.sin())
}

fn cosh(z: Complex128) -> Complex128 {
    if z.im == 0.0 {
        return Complex128::new(z.re.cosh(), z.im.copysign(z.re * z.im));
    }
    if z.re == 0.0 {
        return Complex128::new(z.im.cos(), z.re * z.im.sin());
    }
    Complex128::new(z.re.cosh() * z.im.cos(), z.re.sinh() * z.im.sin())
}

fn tanh(z: Complex128) -> Complex128 {
    // Beyond this, e^-2x is negligible.
    if z.re.abs() > 22.0 {
        let im = if z.im.is_finite() {
            4.0 * z.im.sin() * z.im.cos() * (-2.0 * z.re.abs()).exp()
        } else {
            0.0
        };
        return Complex128::new(1f64.copysign(z.re), im);
    }
    if z.im == 0.0 {
        return Complex128::new(z.re.tanh(), z.im);
    }
    let tan = z.im.tan();
    let beta = 1.0 + tan * tan;
    let sinh = z.re.sinh();
    let cosh = (1.0 + sinh * sinh).sqrt();
    if tan.is_infinite() {
        return Complex128::new(cosh / sinh, 1.0 / tan);
    }
    let below = 1.0 + beta * sinh * sinh;
    Complex128::new(beta * cosh * sinh / below, tan / below)
}

/// Returns `1 - z`. On a branch cut the sign of the zero selects the side.
fn one_less(z: Complex128) -> Complex128 {
    Complex128::new(1.0 - z.re, -z.im)
}

fn asin(z: Complex128) -> Complex128 {
    let (less, more) = (sqrt(one_less(z)), sqrt(z + 1.0));
    let product = less.re * more.re - less.im * more.im;
    let re = z.re.atan2(product);
    Complex128::new(re, libm::asinh(less.re * more.im - less.im * more.re))
}

fn acos(z: Complex128) -> Complex128 {
    let (less, more) = (sqrt(one_less(z)), sqrt(z + 1.0));
    let re = 2.0 * less.re.atan2(more.re);
    Complex128::new(re, libm::asinh(more.re * less.im - more.im * less.re))
}

fn acosh(z: Complex128) -> Complex128 {
    let (less, more) = (sqrt(z - 1.0), sqrt(z + 1.0));
    let re = libm::asinh(less.re * more.re + less.im * more.im);
    Complex128::new(re, 2.0 * less.im.atan2(more.re))
}

fn atanh(z: Complex128) -> Complex128 {
    let Complex128 { re, im } = z;
    if re.abs() > LARGE || im.abs() > LARGE {
        let size = if re.is_infinite() || im.is_infinite() {
            0f64.copysign(re)
        } else {
            // The real part of 1 / z.
            let (x, y) = (re / LARGE, im / LARGE);
            x / (x * x + y * y) / LARGE
        };
        return Complex128::new(size, std::f64::consts::FRAC_PI_2.copysign(im));
    }
    let beside = (1.0 - re.abs()) * (1.0 - re.abs()) + im * im;
    let size = 0.25 * (4.0 * re.abs() / beside).ln_1p();
    let angle = 0.5 * (2.0 * im).atan2((1.0 - re) * (1.0 + re) - im * im);
    Complex128::new(size.copysign(re), angle)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(found: Complex128, expected: Complex128) -> bool {
        let same = |a: f64, b: f64| a == b || (a.is_nan() && b.is_nan());
        let apart = magnitude(found - expected) <= 1e-14 * magnitude(expected).max(1e-300);
        apart || (same(found.re, expected.re) && same(found.im, expected.im))
    }

    #[test]
    fn known_values() {
        // From TensorFlow 2.21 and mpmath.
        let c = Complex128::new;
        let inf = f64::INFINITY;
        for (name, z, expected) in [
            (
                RealFunction::Exp,
                c(2.0, 3.0),
                c(-7.315_110_094_901_103, 1.042_743_656_235_904_4),
            ),
            (
                RealFunction::Exp,
                c(f64::NEG_INFINITY, inf),
                Complex128::ZERO,
            ),
            (
                RealFunction::Log,
                c(-1.0, 0.0),
                c(0.0, std::f64::consts::PI),
            ),
            (RealFunction::Log, c(1.0, 1e-10), c(5e-21, 1e-10)),
            (
                RealFunction::Log,
                c(1e300, 1e300),
                c(691.122_101_488_493_7, std::f64::consts::FRAC_PI_4),
            ),
            (
                RealFunction::Log1p,
                c(1e-10, 1e-10),
                c(1e-10, 9.999_999_999e-11),
            ),
            (
                RealFunction::Expm1,
                c(1e-10, 1e-10),
                c(1e-10, 1.000_000_000_1e-10),
            ),
            (RealFunction::Sqrt, c(-4.0, 0.0), c(0.0, 2.0)),
            (RealFunction::Sqrt, c(-4.0, -0.0), c(0.0, -2.0)),
            (RealFunction::Sqrt, c(3e300, 4e300), c(2e150, 1e150)),
            (
                RealFunction::Reciprocal,
                c(1e200, 1e200),
                c(5e-201, -5e-201),
            ),
            (RealFunction::Sigmoid, c(100.0, 1.0), Complex128::ONE),
            (RealFunction::Tanh, c(710.0, 1.0), Complex128::ONE),
            (RealFunction::Tan, c(0.0, 1000.0), c(0.0, 1.0)),
            (RealFunction::Cos, c(0.0, 0.0), c(1.0, -0.0)),
            (
                RealFunction::Sin,
                c(2.0, 3.0),
                c(9.154_499_146_911_43, -4.168_906_959_966_565),
            ),
            (
                RealFunction::Asin,
                c(2.0, 3.0),
                c(0.570_652_784_321_099_4, 1.983_387_029_916_535_4),
            ),
            // On either side of the cut.
            (
                RealFunction::Asin,
                c(2.0, 0.0),
                c(std::f64::consts::FRAC_PI_2, 1.316_957_896_924_816_6),
            ),
            (
                RealFunction::Asin,
                c(2.0, -0.0),
                c(std::f64::consts::FRAC_PI_2, -1.316_957_896_924_816_6),
            ),
            (
                RealFunction::Acos,
                c(2.0, 0.0),
                c(0.0, -1.316_957_896_924_816_6),
            ),
            (
                RealFunction::Asinh,
                c(0.0, -3.0),
                c(1.762_747_174_039_086, -std::f64::consts::FRAC_PI_2),
            ),
            (RealFunction::Sigmoid, c(-1000.0, 1.0), Complex128::ZERO),
            (RealFunction::Rsqrt, c(inf, 1.0), Complex128::ZERO),
            (
                RealFunction::Acos,
                c(-2.0, -3.0),
                c(2.141_449_111_115_994, 1.983_387_029_916_535_4),
            ),
            (
                RealFunction::Acosh,
                c(-2.0, -3.0),
                c(1.983_387_029_916_535_4, -2.141_449_111_115_994),
            ),
            (
                RealFunction::Asinh,
                c(-1.0, 0.0),
                c(-0.881_373_587_019_543, 0.0),
            ),
            (
                RealFunction::Atan,
                c(2.0, 3.0),
                c(1.409_921_049_596_575_5, 0.229_072_682_968_538_8),
            ),
            (
                RealFunction::Atanh,
                c(1e160, 1e160),
                c(5e-161, std::f64::consts::FRAC_PI_2),
            ),
            (RealFunction::Sign, c(3e300, 4e300), c(0.6, 0.8)),
            (RealFunction::Sign, Complex128::ZERO, Complex128::ZERO),
        ] {
            let found = function(name).unwrap()(z);
            assert!(
                close(found, expected),
                "{name:?}({z}) = {found}, expected {expected}"
            );
        }
    }

    #[test]
    fn functions_and_their_inverses_match() {
        let values = [-2.5, -1.0, -0.3, 1e-9, 0.7, 1.0, 3.0];
        for (re, im) in values.into_iter().flat_map(|re| values.map(|im| (re, im))) {
            let z = Complex128::new(re, im);
            for (inverse, there) in [
                (RealFunction::Log, RealFunction::Exp),
                (RealFunction::Log1p, RealFunction::Expm1),
                (RealFunction::Asin, RealFunction::Sin),
                (RealFunction::Acos, RealFunction::Cos),
                (RealFunction::Atan, RealFunction::Tan),
                (RealFunction::Asinh, RealFunction::Sinh),
                (RealFunction::Acosh, RealFunction::Cosh),
                (RealFunction::Atanh, RealFunction::Tanh),
            ] {
                let [inverse, there] = [inverse, there].map(|name| function(name).unwrap());
                let back = there(inverse(z));
                assert!(
                    magnitude(back - z) < 1e-12 * magnitude(z).max(0.1),
                    "{z}: {back}"
                );
            }
            let root = sqrt(z);
            assert!(magnitude(root * root - z) < 1e-14 * magnitude(z), "{z}");
            assert!(
                magnitude(quotient(z, root) - root) < 1e-14 * magnitude(root),
                "{z}"
            );
            assert!(
                magnitude(power(z, Complex128::new(2.0, 0.0)) - z * z) < 1e-12 * magnitude(z * z)
            );
        }
    }

    #[test]
    fn quotients_have_no_intermediate_overflow() {
        let c = Complex128::new;
        assert!(close(
            quotient(c(1e300, 1e300), c(1e300, 1e300)),
            Complex128::ONE
        ));
        assert!(close(
            quotient(c(1e-300, 0.0), c(1e-300, 1e-300)),
            c(0.5, -0.5)
        ));
        // Only the numerator is near the largest number.
        assert!(close(
            quotient(c(1.5e308, 1.5e308), c(1.5, 1.5)),
            c(1e308, 0.0)
        ));
        assert!(close(
            quotient(c(1e308, 0.0), c(1e-308, 0.0)),
            c(f64::INFINITY, 0.0)
        ));
        assert!(close(
            quotient(c(3.0, 1.0), c(f64::MIN_POSITIVE, 0.0)),
            c(3.0 / f64::MIN_POSITIVE, 1.0 / f64::MIN_POSITIVE)
        ));
        // C99, annex G.5.1.
        let (inf, nan) = (f64::INFINITY, f64::NAN);
        assert_eq!(quotient(c(1.0, 2.0), c(inf, 3.0)), Complex128::ZERO);
        assert_eq!(quotient(c(1.0, 2.0), c(-inf, nan)), Complex128::ZERO);
        assert_eq!(quotient(c(inf, nan), c(1.0, 2.0)).re, inf);
        assert_eq!(quotient(Complex128::ONE, c(-0.0, 0.0)).re, -inf);
        assert!(quotient(Complex128::ZERO, Complex128::ZERO).re.is_nan());
        assert!(quotient(c(inf, 0.0), c(inf, 0.0)).re.is_nan());
    }
}
