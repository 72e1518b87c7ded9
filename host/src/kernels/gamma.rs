//! Gamma, beta and zeta functions, after Moshier's Cephes library, which TensorFlow uses, too.

use std::f64::consts::PI;

/// Relative size of a term that no longer changes a sum.
const NEGLIGIBLE: f64 = f64::EPSILON;

/// Maximum number of terms of a series or continued fraction.
const TERMS_MAX: usize = 2000;

/// Returns the logarithm of the absolute value of the gamma function (TensorFlow `Lgamma`).
pub fn log_gamma(x: f64) -> f64 {
    libm::lgamma(x)
}

/// Coefficients of the asymptotic expansion of the digamma function in `1 / x^2`, the highest power
/// first.
const DIGAMMA: [f64; 7] = [
    8.333_333_333_333_333e-2,
    -2.109_279_609_279_609_3e-2,
    7.575_757_575_757_576e-3,
    -4.166_666_666_666_667e-3,
    3.968_253_968_253_968e-3,
    -8.333_333_333_333_333e-3,
    8.333_333_333_333_333e-2,
];

/// Returns the derivative of [`log_gamma`] (TensorFlow `Digamma`); NaN at 0 and negative integers.
pub fn digamma(x: f64) -> f64 {
    if x <= 0.0 {
        let below = x.floor();
        if below == x {
            return f64::NAN;
        }
        // Reflection; the tangent is exact for a fraction of up to one half.
        let fraction = x - below;
        let fraction = if fraction > 0.5 {
            fraction - 1.0
        } else {
            fraction
        };
        let reflected = if fraction.abs() == 0.5 {
            0.0
        } else {
            PI / (PI * fraction).tan()
        };
        return digamma(1.0 - x) - reflected;
    }
    if x == f64::INFINITY {
        return x;
    }
    let (mut large, mut shift) = (x, 0.0);
    while large < 10.0 {
        shift += 1.0 / large;
        large += 1.0;
    }
    let z = 1.0 / (large * large);
    let expansion = DIGAMMA
        .iter()
        .fold(0.0, |sum, coefficient| sum * z + coefficient)
        * z;
    large.ln() - 0.5 / large - expansion - shift
}

/// Factors of the Euler-Maclaurin expansion of the zeta function.
const ZETA: [f64; 12] = [
    12.0,
    -720.0,
    30_240.0,
    -1_209_600.0,
    47_900_160.0,
    -1_892_437_580.318_379_2,
    74_724_249_600.0,
    -2_950_130_727_918.164,
    116_467_828_143_500.67,
    -4_597_978_722_407_472.0,
    1.815_210_540_194_354_7e17,
    -7.166_165_256_175_667e18,
];

/// Returns the sum of `1 / (k + q)^x` over all `k >= 0` (TensorFlow `Zeta`).
pub fn zeta(x: f64, q: f64) -> f64 {
    if x == 1.0 {
        return f64::INFINITY;
    }
    if x < 1.0 || x.is_nan() || q.is_nan() {
        return f64::NAN;
    }
    if q <= 0.0 {
        if q == q.floor() {
            return if x % 2.0 == 0.0 {
                f64::INFINITY
            } else {
                f64::NAN
            };
        }
        if x != x.floor() {
            return f64::NAN;
        }
    }
    let mut sum = q.powf(-x);
    let (mut a, mut term) = (q, 0.0);
    let mut n = 0;
    while n < 9 || a <= 9.0 {
        n += 1;
        a += 1.0;
        term = a.powf(-x);
        sum += term;
        if (term / sum).abs() < NEGLIGIBLE {
            return sum;
        }
    }
    sum += term * a / (x - 1.0) - 0.5 * term;
    let (mut factor, mut k) = (1.0, 0.0);
    for divisor in ZETA {
        factor *= x + k;
        term /= a;
        let next = factor * term / divisor;
        sum += next;
        if (next / sum).abs() < NEGLIGIBLE {
            break;
        }
        k += 1.0;
        factor *= x + k;
        term /= a;
        k += 1.0;
    }
    sum
}

/// Returns derivative `n` of [`digamma`] (TensorFlow `Polygamma`); NaN if `n` is no natural number.
pub fn polygamma(n: f64, x: f64) -> f64 {
    if n < 0.0 || n != n.floor() {
        return f64::NAN;
    }
    if n == 0.0 {
        return digamma(x);
    }
    let sign = if n % 2.0 == 0.0 { -1.0 } else { 1.0 };
    sign * log_gamma(n + 1.0).exp() * zeta(n + 1.0, x)
}

/// Returns `x^a e^-x / gamma(a)`.
fn density(a: f64, x: f64) -> f64 {
    (a * x.ln() - x - log_gamma(a)).exp()
}

/// The lower incomplete gamma function by its power series; for small `x`.
fn lower_series(a: f64, x: f64) -> f64 {
    if x == 0.0 {
        return 0.0;
    }
    let (mut sum, mut term, mut r) = (1.0, 1.0, a);
    for _ in 0..TERMS_MAX {
        r += 1.0;
        term *= x / r;
        sum += term;
        if term <= NEGLIGIBLE * sum {
            break;
        }
    }
    sum * density(a, x) / a
}

/// The upper incomplete gamma function by its continued fraction; for large `x`.
fn upper_fraction(a: f64, x: f64) -> f64 {
    if x == f64::INFINITY {
        return 0.0;
    }
    let (mut y, mut z, mut c) = (1.0 - a, x + 2.0 - a, 0.0);
    let (mut before_p, mut before_q) = (1.0, x);
    let (mut p, mut q) = (x + 1.0, z * x);
    let mut fraction = p / q;
    for _ in 0..TERMS_MAX {
        c += 1.0;
        y += 1.0;
        z += 2.0;
        let next_p = p * z - before_p * y * c;
        let next_q = q * z - before_q * y * c;
        (before_p, before_q, p, q) = (p, q, next_p, next_q);
        if q != 0.0 {
            let next = p / q;
            let change = ((fraction - next) / next).abs();
            fraction = next;
            if change <= NEGLIGIBLE {
                break;
            }
        }
        if p.abs() > 1.0 / NEGLIGIBLE {
            [before_p, before_q, p, q] = [before_p, before_q, p, q].map(|x| x * NEGLIGIBLE);
        }
    }
    fraction * density(a, x)
}

fn is_outside(a: f64, x: f64) -> bool {
    a.is_nan() || x.is_nan() || a <= 0.0 || x < 0.0
}

/// Returns the regularized lower incomplete gamma function (TensorFlow `Igamma`).
pub fn lower_gamma(a: f64, x: f64) -> f64 {
    if is_outside(a, x) {
        f64::NAN
    } else if x > 1.0 && x > a {
        1.0 - upper_fraction(a, x)
    } else {
        lower_series(a, x)
    }
}

/// Returns the regularized upper incomplete gamma function (TensorFlow `Igammac`).
pub fn upper_gamma(a: f64, x: f64) -> f64 {
    if is_outside(a, x) {
        f64::NAN
    } else if x < 1.0 || x < a {
        1.0 - lower_series(a, x)
    } else {
        upper_fraction(a, x)
    }
}

/// The continued fraction of the incomplete beta function, by Lentz's method.
fn beta_fraction(a: f64, b: f64, x: f64) -> f64 {
    let tiny = f64::MIN_POSITIVE / NEGLIGIBLE;
    let at_least = |x: f64| if x.abs() < tiny { tiny } else { x };
    let mut d = 1.0 / at_least(1.0 - (a + b) * x / (a + 1.0));
    let (mut c, mut fraction) = (1.0, d);
    let mut m = 0.0;
    for _ in 0..TERMS_MAX {
        m += 1.0;
        let even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m));
        let odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0));
        let mut change = 1.0;
        for coefficient in [even, odd] {
            d = 1.0 / at_least(1.0 + coefficient * d);
            c = at_least(1.0 + coefficient / c);
            change = c * d;
            fraction *= change;
        }
        if (change - 1.0).abs() <= NEGLIGIBLE {
            break;
        }
    }
    fraction
}

/// Returns the regularized incomplete beta function (TensorFlow `Betainc`).
pub fn incomplete_beta(a: f64, b: f64, x: f64) -> f64 {
    if !(a > 0.0 && b > 0.0 && (0.0..=1.0).contains(&x)) {
        return f64::NAN;
    }
    if x == 0.0 || x == 1.0 {
        return x;
    }
    let logarithm = log_gamma(a + b) - log_gamma(a) - log_gamma(b);
    let factor = (logarithm + a * x.ln() + b * (-x).ln_1p()).exp();
    if x < (a + 1.0) / (a + b + 2.0) {
        factor * beta_fraction(a, b, x) / a
    } else {
        1.0 - factor * beta_fraction(b, a, 1.0 - x) / b
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(found: f64, expected: f64) {
        assert!(
            (found - expected).abs() <= 1e-13 * expected.abs().max(1.0),
            "{found} is not {expected}"
        );
    }

    #[test]
    fn known_values() {
        let euler = 0.577_215_664_901_532_9;
        close(digamma(1.0), -euler);
        close(digamma(0.5), -euler - 2.0 * std::f64::consts::LN_2);
        close(digamma(-0.5), digamma(1.5));
        assert!(digamma(-2.0).is_nan());
        close(zeta(2.0, 1.0), PI * PI / 6.0);
        close(polygamma(1.0, 1.0), PI * PI / 6.0);
        close(lower_gamma(1.0, 2.0), 1.0 - (-2.0f64).exp());
        close(upper_gamma(1.0, 0.5), (-0.5f64).exp());
        close(incomplete_beta(2.0, 3.0, 0.25), 0.261_718_75);
        close(incomplete_beta(2.0, 3.0, 0.75), 0.949_218_75);
    }
}
