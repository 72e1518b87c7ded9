//! Computes with four times at once.
//!
//! In the sandbox, a test for NaN follows every addition and multiplication, so that results are
//! the same on every machine. On vectors the tests cost half as much, and compilers do not
//! vectorize these loops by themselves.

#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
use std::arch::wasm32 as simd;

/// Times per vector. Rows over devices are padded to a multiple of this number, so that loops have
/// no remainder.
pub const LANES: usize = 4;

/// Four times in ns, never NaN.
#[derive(Debug, Clone, Copy)]
#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
pub struct Lanes(simd::v128, simd::v128);

#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
impl Lanes {
    /// Returns a value four times.
    #[inline]
    pub fn splat(value: f64) -> Self {
        Self(simd::f64x2_splat(value), simd::f64x2_splat(value))
    }

    /// Reads four values.
    #[inline]
    pub fn load(from: &[f64; LANES]) -> Self {
        let &[a, b, c, d] = from;
        Self(simd::f64x2(a, b), simd::f64x2(c, d))
    }

    /// Returns the four values.
    #[inline]
    pub fn values(self) -> [f64; LANES] {
        [
            simd::f64x2_extract_lane::<0>(self.0),
            simd::f64x2_extract_lane::<1>(self.0),
            simd::f64x2_extract_lane::<0>(self.1),
            simd::f64x2_extract_lane::<1>(self.1),
        ]
    }

    /// Adds each pair.
    #[inline]
    pub fn plus(self, other: Self) -> Self {
        Self(
            simd::f64x2_add(self.0, other.0),
            simd::f64x2_add(self.1, other.1),
        )
    }

    /// Multiplies each pair.
    #[inline]
    pub fn times(self, other: Self) -> Self {
        Self(
            simd::f64x2_mul(self.0, other.0),
            simd::f64x2_mul(self.1, other.1),
        )
    }

    /// The maximum of each pair.
    #[inline]
    pub fn later(self, other: Self) -> Self {
        Self(
            simd::f64x2_pmax(self.0, other.0),
            simd::f64x2_pmax(self.1, other.1),
        )
    }

    /// The minimum of each pair.
    #[inline]
    pub fn sooner(self, other: Self) -> Self {
        Self(
            simd::f64x2_pmin(self.0, other.0),
            simd::f64x2_pmin(self.1, other.1),
        )
    }

    /// Sets bit `i` if value `i` is at most the other's.
    #[inline]
    pub fn at_most(self, other: Self) -> u32 {
        let low = simd::i64x2_bitmask(simd::f64x2_le(self.0, other.0));
        let high = simd::i64x2_bitmask(simd::f64x2_le(self.1, other.1));
        u32::from(low | high << 2)
    }
}

/// Four times in ns, never NaN.
#[derive(Debug, Clone, Copy)]
#[cfg(not(all(target_arch = "wasm32", target_feature = "simd128")))]
pub struct Lanes([f64; LANES]);

#[cfg(not(all(target_arch = "wasm32", target_feature = "simd128")))]
impl Lanes {
    /// Returns a value four times.
    #[inline]
    pub fn splat(value: f64) -> Self {
        Self([value; LANES])
    }

    /// Reads four values.
    #[inline]
    pub fn load(from: &[f64; LANES]) -> Self {
        Self(*from)
    }

    /// Returns the four values.
    #[inline]
    pub fn values(self) -> [f64; LANES] {
        self.0
    }

    /// Adds each pair.
    #[inline]
    pub fn plus(self, other: Self) -> Self {
        self.zip(other, |a, b| a + b)
    }

    /// Multiplies each pair.
    #[inline]
    pub fn times(self, other: Self) -> Self {
        self.zip(other, |a, b| a * b)
    }

    /// The maximum of each pair.
    #[inline]
    pub fn later(self, other: Self) -> Self {
        self.zip(other, later)
    }

    /// The minimum of each pair.
    #[inline]
    pub fn sooner(self, other: Self) -> Self {
        self.zip(other, sooner)
    }

    /// Sets bit `i` if value `i` is at most the other's.
    #[inline]
    pub fn at_most(self, other: Self) -> u32 {
        (0..LANES).fold(0, |bits, lane| {
            bits | u32::from(self.0[lane] <= other.0[lane]) << lane
        })
    }

    #[inline]
    fn zip(self, other: Self, op: impl Fn(f64, f64) -> f64) -> Self {
        Self(std::array::from_fn(|lane| op(self.0[lane], other.0[lane])))
    }
}

impl Lanes {
    /// Returns the smallest of the four.
    #[inline]
    pub fn least(self) -> f64 {
        let [a, b, c, d] = self.values();
        sooner(sooner(a, b), sooner(c, d))
    }
}

/// Returns the later of two times. `f64::max` also handles NaN, which never occurs here, and is
/// slow in wasm for that reason.
#[inline]
pub fn later(a: f64, b: f64) -> f64 {
    if a > b { a } else { b }
}

/// Returns the earlier of two times.
#[inline]
pub fn sooner(a: f64, b: f64) -> f64 {
    if a < b { a } else { b }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_agree_with_single_values() {
        let (a, b) = ([1.5, -2.0, 1e300, 0.1], [0.3, 7.0, f64::INFINITY, 0.1]);
        let (x, y) = (Lanes::load(&a), Lanes::load(&b));
        let each = |op: fn(f64, f64) -> f64| [0, 1, 2, 3].map(|lane| op(a[lane], b[lane]));
        assert_eq!(x.plus(y).values(), each(|a, b| a + b));
        assert_eq!(x.times(y).values(), each(|a, b| a * b));
        assert_eq!(x.later(y).values(), each(later));
        assert_eq!(x.sooner(y).values(), each(sooner));
        assert_eq!(x.at_most(y), 0b1110);
        assert_eq!(x.least(), -2.0);
        assert_eq!(Lanes::splat(3.0).values(), [3.0; LANES]);
    }
}
