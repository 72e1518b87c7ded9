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
#[expect(clippy::cast_possible_truncation, reason = "constants, rounded once")]
pub fn selu_f32(x: f32) -> f32 {
    if x < 0.0 {
        SELU_SCALE_ALPHA as f32 * x.exp_m1()
    } else {
        SELU_SCALE as f32 * x
    }
}
