//! Functions that no library at hand has.

/// The error function, to some 1e-15: `2/sqrt(pi) e^(-x^2) sum 2^n x^(2n+1) / (2n+1)!!`, whose terms all have one sign.
pub fn erf(x: f64) -> f64 {
    if x.is_nan() {
        return x;
    }
    // 1 - erf(6) is below 2^-54.
    if x.abs() > 6.0 {
        return 1f64.copysign(x);
    }
    let (mut term, mut sum, mut n) = (x, x, 1.0);
    while term.abs() > sum.abs() * 1e-18 {
        term *= 2.0 * x * x / (2.0 * n + 1.0);
        sum += term;
        n += 1.0;
    }
    std::f64::consts::FRAC_2_SQRT_PI * (-x * x).exp() * sum
}

/// `1 - erf(x)`, to some 1e-13 of itself: from 2 on, the continued fraction of Abramowitz and Stegun 7.1.14,
/// `e^(-x^2) / sqrt(pi) / (x + 1/2 / (x + 1 / (x + 3/2 / (x + ..))))`.
pub fn erfc(x: f64) -> f64 {
    // Below 2, nothing of the difference is lost that matters; beyond 27.3 the result is below the smallest double.
    if x < 2.0 || x.is_nan() {
        return 1.0 - erf(x);
    }
    if x > 27.3 {
        return 0.0;
    }
    // 120 levels are more than enough at 2, where the fraction converges slowest.
    let fraction = (1..=120u8)
        .rev()
        .fold(x, |rest, level| x + f64::from(level) / 2.0 / rest);
    (-x * x).exp() * std::f64::consts::FRAC_2_SQRT_PI / 2.0 / fraction
}

/// The inverse of the hyperbolic cosine, without the loss of digits near 1; NaN below.
pub fn acosh(x: f64) -> f64 {
    let above = x - 1.0;
    if above > 1e8 {
        // `sqrt(x^2 - 1)` is `x` to the last digit, and `x^2` may be beyond all numbers.
        return x.ln() + std::f64::consts::LN_2;
    }
    if above < 0.0 {
        return f64::NAN;
    }
    (above + (above * (above + 2.0)).sqrt()).ln_1p()
}

/// The inverse of the hyperbolic sine, also of numbers whose square is beyond all numbers.
pub fn asinh(x: f64) -> f64 {
    if x.abs() > 1e8 {
        return (x.abs().ln() + std::f64::consts::LN_2).copysign(x);
    }
    x.asinh()
}

/// `ln(1 + e^x)` (TensorFlow `Softplus`): far from 0, where the other term does not matter, `x` and `e^x`.
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

/// The same in single precision.
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

/// The same times alpha.
const SELU_SCALE_ALPHA: f64 = 1.758_099_340_847_376_9;

/// The scaled exponential linear unit (TensorFlow `Selu`).
pub fn selu(x: f64) -> f64 {
    if x < 0.0 {
        SELU_SCALE_ALPHA * x.exp_m1()
    } else {
        SELU_SCALE * x
    }
}

/// The same in single precision.
#[expect(clippy::cast_possible_truncation, reason = "constants, rounded once")]
pub fn selu_f32(x: f32) -> f32 {
    if x < 0.0 {
        SELU_SCALE_ALPHA as f32 * x.exp_m1()
    } else {
        SELU_SCALE as f32 * x
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_functions_have_their_known_values() {
        // Abramowitz and Stegun, table 7.1; the last ones by mpmath.
        for (x, expected) in [
            (0.5, 0.520_499_877_8),
            (1.0, 0.842_700_792_9),
            (2.0, 0.995_322_265_0),
        ] {
            assert!((erf(x) - expected).abs() < 1e-10);
            assert!((erf(-x) + expected).abs() < 1e-10);
            assert!((erfc(x) - (1.0 - expected)).abs() < 1e-10);
            assert!((erfc(-x) - (1.0 + expected)).abs() < 1e-10);
        }
        assert_eq!(erf(f64::INFINITY), 1.0);
        assert_eq!(erfc(f64::NEG_INFINITY), 2.0);
        assert_eq!(erfc(f64::INFINITY), 0.0);
        assert!(erfc(f64::NAN).is_nan());
        for (x, expected) in [
            (3.0, 2.209_049_699_858_544e-5),
            (5.0, 1.537_459_794_428_035e-12),
            (10.0, 2.088_487_583_762_545e-45),
        ] {
            assert!((erfc(x) / expected - 1.0).abs() < 1e-13, "{x}: {}", erfc(x));
        }
        // Where one formula gives way to the other.
        assert!((erfc(2.0) / erfc(1.999_999_999_999_999) - 1.0).abs() < 1e-11);
    }

    #[test]
    fn the_inverse_of_the_hyperbolic_cosine_keeps_its_digits() {
        for x in [1e-6, 1e-3, 0.5, 3.0, 20.0, 300.0] {
            let angle: f64 = acosh(f64::cosh(x));
            // cosh(1e-6) itself is rounded to 1e-16 of 5e-13.
            assert!((angle / x - 1.0).abs() < 3e-4, "{x}: {angle}");
        }
        assert!((acosh(1.0 + 1e-10) / 1.414_213_562_361_310_4e-5 - 1.0).abs() < 1e-7);
        for x in [
            0.5,
            -0.5,
            -1.0,
            -1e8,
            -1e9,
            -1e300,
            f64::NEG_INFINITY,
            f64::NAN,
        ] {
            assert!(acosh(x).is_nan(), "{x}");
        }
        // By mpmath, beyond where squares overflow.
        for (x, expected) in [
            (1e155, 357.593_836_594_637),
            (f64::MAX, 710.475_860_073_944),
        ] {
            assert!(
                (acosh(x) / expected - 1.0).abs() < 1e-15,
                "{x}: {}",
                acosh(x)
            );
            assert!(
                (asinh(x) / expected - 1.0).abs() < 1e-15,
                "{x}: {}",
                asinh(x)
            );
            assert_eq!(asinh(-x), -asinh(x));
        }
        assert_eq!(asinh(f64::NEG_INFINITY), f64::NEG_INFINITY);
        assert!((asinh(1e8) / asinh(1e8 * (1.0 + 1e-15)) - 1.0).abs() < 1e-15);
        assert_eq!(acosh(1.0), 0.0);
        assert_eq!(acosh(f64::INFINITY), f64::INFINITY);
    }
}
