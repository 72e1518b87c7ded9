//! Functions that differ from those of the available libraries in TensorFlow.

/// Returns the inverse hyperbolic cosine. Below 1 the result is NaN; libm returns numbers for large
/// negative arguments.
pub fn acosh(x: f64) -> f64 {
    if x < 1.0 { f64::NAN } else { libm::acosh(x) }
}

/// Returns `ln(1 + e^x)` (TensorFlow `Softplus`). Far from 0, where the other term does not matter,
/// the result is `x` or `e^x`.
pub fn softplus(x: f64) -> f64 {
    let threshold = f64::EPSILON.ln() + 2.0;
    if x > -threshold {
        x
    } else if x < threshold {
        x.exp()
    } else {
        x.exp().ln_1p()
    }
}

/// [`softplus`] in single precision.
pub fn softplus_f32(x: f32) -> f32 {
    // ln(2^-23) + 2.
    let threshold = -13.942_385;
    if x > -threshold {
        x
    } else if x < threshold {
        x.exp()
    } else {
        x.exp().ln_1p()
    }
}

/// Klambauer et al. 2017, eq. 2.
const SELU_SCALE: f64 = 1.050_700_987_355_480_5;

/// [`SELU_SCALE`] times alpha.
const SELU_SCALE_ALPHA: f64 = 1.758_099_340_847_376_9;

/// Returns the scaled exponential linear unit (TensorFlow `Selu`).
pub fn selu(x: f64) -> f64 {
    if x < 0.0 {
        SELU_SCALE_ALPHA * x.exp_m1()
    } else {
        SELU_SCALE * x
    }
}

/// [`selu`] in single precision.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "constants, rounded once")]
pub fn selu_f32(x: f32) -> f32 {
    let below = SELU_SCALE_ALPHA as f32 * expm1_f32(x);
    if x < 0.0 {
        below
    } else {
        SELU_SCALE as f32 * x
    }
}

/// Returns the error function, with an absolute error of at most 5e-7 and some 8 units in the last
/// place: the rational approximation that Eigen has. Plain arithmetic, so that loops over it are
/// vectorized.
#[inline(always)]
pub fn erf_f32(x: f32) -> f32 {
    const NUMERATOR: [f32; 7] = [
        -2.726_142_3e-10,
        2.770_681_4e-8,
        -2.101_024e-6,
        -5.692_506_4e-5,
        -7.349_906_3e-4,
        -2.954_6e-3,
        -1.609_603_3e-2,
    ];
    const DENOMINATOR: [f32; 5] = [
        -1.456_607_2e-5,
        -2.133_740_6e-4,
        -1.682_827e-3,
        -7.373_329e-3,
        -1.426_473_9e-2,
    ];
    // Beyond this the result rounds to -1 or 1, and products with large numbers rely on that.
    const BOUND: f32 = 3.92;
    let square = x * x;
    let polynomial = |terms: &[f32]| {
        let rest = terms[1..].iter();
        rest.fold(terms[0], |sum, &term| sum * square + term)
    };
    let result = x * polynomial(&NUMERATOR) / polynomial(&DENOMINATOR);
    // NaN stays.
    let result = if x < -BOUND || result < -1.0 {
        -1.0
    } else {
        result
    };
    if x > BOUND || result > 1.0 {
        1.0
    } else {
        result
    }
}

/// Returns `e^x - 1` within 2 units in the last place, without the loss of digits near 0. Plain
/// arithmetic, so that loops over it are vectorized.
#[inline(always)]
pub fn expm1_f32(x: f32) -> f32 {
    // ln(2), with few digits so that multiples of it are exact, and the rest (as in `fdlibm`).
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    // In a number of this size the last bit is 1: the sum with it is rounded to a whole number.
    const ROUND: f32 = 12_582_912.0;
    const EXPONENT_BITS: u32 = f32::MANTISSA_DIGITS - 1;
    const ONE_BITS: u32 = 1.0f32.to_bits();
    // Beyond this the result is -1 or infinite. NaN stays.
    let x = if x < -104.0 { -104.0 } else { x };
    let x = if x > 89.0 { 89.0 } else { x };
    // x = n ln(2) + r, |r| <= ln(2) / 2.
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = x - n * LN_2_HIGH - n * LN_2_LOW;
    // The series of e^r - 1: the next term is 1.5e-8 of the sum.
    let series = [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5];
    let sum = series
        .into_iter()
        .fold(1.0f32 / 5040.0, |sum, term| sum * r + term);
    let reduced = sum * r * r + r;
    // 2^n as a product of two powers, because n may be 128. The low bits of `shifted` are n.
    let whole = shifted.to_bits().wrapping_sub(ROUND.to_bits());
    let half = ((whole as i32) >> 1) as u32;
    let power = |n: u32| f32::from_bits((n << EXPONENT_BITS).wrapping_add(ONE_BITS));
    let (first, second) = (power(half), power(whole.wrapping_sub(half)));
    let large = (reduced + 1.0) * first * second - 1.0;
    let small = reduced * first * second + (first * second - 1.0);
    // From 2^25 on, the 1 is beyond the last digit, and 2^n may be infinite.
    if n > 25.0 { large } else { small }
}

/// Returns the gradient of [`selu`] from that of its result, and the result.
pub fn selu_gradient(gradient: f64, result: f64) -> f64 {
    if result < 0.0 {
        gradient * (result + SELU_SCALE_ALPHA)
    } else {
        gradient * SELU_SCALE
    }
}

/// Returns the inverse of the normal distribution's cumulative function (TensorFlow `Ndtri`).
pub fn normal_quantile(p: f64) -> f64 {
    spec_math::cephes64::ndtri(p)
}

/// Returns the inverse of the error function (TensorFlow `Erfinv`).
pub fn inverse_erf(x: f64) -> f64 {
    normal_quantile(0.5 * (x + 1.0)) * std::f64::consts::FRAC_1_SQRT_2
}

/// Returns the exponential integral `Ei(x)` (TensorFlow `Expint`): NaN below 0, `-inf` at 0.
pub fn exponential_integral(x: f64) -> f64 {
    const EULER: f64 = 0.577_215_664_901_532_9;
    if x.is_nan() || x < 0.0 {
        return f64::NAN;
    }
    if x == 0.0 {
        return f64::NEG_INFINITY;
    }
    if x > 50.0 {
        // The asymptotic series, up to its least term.
        let (mut sum, mut term) = (1.0, 1.0);
        for k in 1..50 {
            term *= f64::from(k) / x;
            sum += term;
        }
        return x.exp() / x * sum;
    }
    let (mut sum, mut power) = (0.0, 1.0);
    for k in 1..200 {
        let k = f64::from(k);
        power *= x / k;
        sum += power / k;
        if power / k < sum * 1e-17 {
            break;
        }
    }
    EULER + x.ln() + sum
}

/// Returns a function that is defined above 0, and has this value below.
fn above_zero(x: f64, otherwise: f64, function: impl Fn(f64) -> f64) -> f64 {
    if x < 0.0 { otherwise } else { function(x) }
}

/// A function that exists in double precision only.
pub type Special = fn(f64) -> f64;

/// Functions with TensorFlow's names, computed as in Cephes.
pub const SPECIAL: [(&str, Special); 19] = [
    ("Erfinv", inverse_erf),
    ("Ndtri", normal_quantile),
    ("Dawsn", spec_math::cephes64::dawsn),
    ("Expint", exponential_integral),
    ("FresnelCos", |x| {
        spec_math::cephes64::fresnl(x.abs()).1.copysign(x)
    }),
    ("FresnelSin", |x| {
        spec_math::cephes64::fresnl(x.abs()).0.copysign(x)
    }),
    ("Spence", spec_math::cephes64::spence),
    ("BesselI0", spec_math::cephes64::i0),
    ("BesselI0e", spec_math::cephes64::i0e),
    ("BesselI1", spec_math::cephes64::i1),
    ("BesselI1e", spec_math::cephes64::i1e),
    ("BesselJ0", spec_math::cephes64::j0),
    ("BesselJ1", spec_math::cephes64::j1),
    ("BesselK0", |x| {
        above_zero(x, f64::INFINITY, spec_math::cephes64::k0)
    }),
    ("BesselK0e", |x| {
        above_zero(x, f64::INFINITY, spec_math::cephes64::k0e)
    }),
    ("BesselK1", |x| {
        above_zero(x, f64::INFINITY, spec_math::cephes64::k1)
    }),
    ("BesselK1e", |x| {
        above_zero(x, f64::INFINITY, spec_math::cephes64::k1e)
    }),
    ("BesselY0", |x| {
        above_zero(x, f64::NEG_INFINITY, spec_math::cephes64::y0)
    }),
    ("BesselY1", |x| {
        above_zero(x, f64::NEG_INFINITY, spec_math::cephes64::y1)
    }),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn erf_is_within_eight_units_in_the_last_place() {
        for bits in (0..u32::MAX).step_by(99_991) {
            let x = f32::from_bits(bits);
            let (found, exact) = (f64::from(erf_f32(x)), libm::erf(f64::from(x)));
            // Products in the approximation lose digits of the smallest numbers.
            let unit = exact.abs().max(1e-36) * f64::from(f32::EPSILON);
            let is_close =
                (found - exact).abs() <= 8.0 * unit || (found.is_nan() && exact.is_nan());
            assert!(is_close, "{x}: {found} is not {exact}");
            assert!(found.is_nan() || found.abs() <= 1.0, "{x}: {found}");
        }
    }

    #[test]
    fn expm1_is_within_two_units_in_the_last_place() {
        for bits in (0..u32::MAX).step_by(99_991) {
            let x = f32::from_bits(bits);
            let (found, exact) = (expm1_f32(x), f64::from(x).exp_m1());
            let expected = exact as f32;
            if expected.is_finite() && expected.abs() >= f32::MIN_POSITIVE {
                let unit = f64::from(f32::from_bits(expected.abs().to_bits() + 1) - expected.abs());
                assert!(
                    (f64::from(found) - exact).abs() <= 2.0 * unit,
                    "{x}: {found}"
                );
            } else {
                assert!(
                    found == expected || found.is_nan() && x.is_nan() || expected.abs() < 1e-37
                );
            }
        }
        for (x, expected) in [(f32::INFINITY, f32::INFINITY), (f32::NEG_INFINITY, -1.0)] {
            assert_eq!(expm1_f32(x), expected);
        }
        assert!(expm1_f32(f32::NAN).is_nan());
        assert!(expm1_f32(88.7).is_finite() && expm1_f32(88.8).is_infinite());
    }
}
