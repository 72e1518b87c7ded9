//! Simulated quantization.

use crate::kernels::Number;

/// A range of numbers that whole numbers from `lowest` to `highest` stand for, moved so that 0 is
/// one of them (TensorFlow `FakeQuantWithMinMaxArgs` and the like).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FakeQuantization {
    min: f32,
    max: f32,
    scale: f32,
    zero: f32,
}

impl FakeQuantization {
    /// Returns the range for `n_bits` bits, or one whole number fewer if it is narrow; `None` if it
    /// is only 0.
    pub fn new(min: f32, max: f32, n_bits: u32, is_narrow: bool) -> Option<Self> {
        if min == 0.0 && max == 0.0 {
            return None;
        }
        let lowest = if is_narrow { 1.0 } else { 0.0 };
        #[expect(clippy::cast_precision_loss, reason = "at most 16 bits")]
        let highest = ((1u32 << n_bits) - 1) as f32;
        let scale = (max - min) / (highest - lowest);
        let zero = lowest - min / scale;
        let zero = if zero < lowest {
            lowest
        } else if zero > highest {
            highest
        } else {
            zero.round()
        };
        let moved = (lowest - zero) * scale;
        Some(Self {
            min: moved,
            max: (highest - zero) * scale,
            scale,
            zero: (-moved * (1.0 / scale) + 0.5).floor(),
        })
    }

    /// Returns the nearest number that a whole number stands for.
    pub fn apply(&self, x: f32) -> f32 {
        let shifted = x.min(self.max).max(self.min) - self.min;
        (shifted * (1.0 / self.scale) - self.zero + 0.5).floor() * self.scale
    }
}

/// Numbers in steps of one size, from the lowest to the highest, with 0 among them (TensorFlow
/// `QuantizeAndDequantizeV4` and the like).
#[derive(Debug, Clone, Copy)]
pub struct Steps<T> {
    min: T,
    max: T,
    scale: T,
    step: T,
}

impl<T: Number> Steps<T> {
    /// Returns the steps that the whole numbers from `lowest <= 0` to `highest` stand for, so that
    /// all numbers from `min` to `max` are among them or between two of them.
    pub fn new([min, max]: [T; 2], [lowest, highest]: [i64; 2]) -> Self {
        let [lowest, highest] = [lowest, highest].map(T::from_i64);
        let quotient = |a: T, b: T| T::from_f64(a.to_f64() / b.to_f64());
        let scale = |quantized: T, end: T| match quantized.times(end) > T::ZERO {
            true => quotient(quantized, end),
            false => T::LOWEST_FINITE.negated(),
        };
        let (from_min, from_max) = (scale(lowest, min), scale(highest, max));
        if from_min < from_max {
            let step = quotient(min, lowest);
            let (scale, max) = (from_min, highest.times(step));
            return Self {
                min,
                max,
                scale,
                step,
            };
        }
        let step = quotient(max, highest);
        let (scale, min) = (from_max, lowest.times(step));
        Self {
            min,
            max,
            scale,
            step,
        }
    }

    /// Returns a number as it is, or the nearest end of the range.
    #[must_use]
    pub fn clamped(&self, x: T) -> T {
        let x = if self.max < x { self.max } else { x };
        if x < self.min { self.min } else { x }
    }

    /// Returns the nearest step; of two, the even or the upper one.
    #[must_use]
    pub fn rounded(&self, x: T, rounds_up: bool) -> T {
        let scaled = x.times(self.scale);
        let whole = match rounds_up {
            true => T::from_f64(scaled.to_f64() + 0.5).to_f64().floor(),
            false => scaled.to_f64().round_ties_even(),
        };
        T::from_f64(whole).times(self.step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_rounded_within_the_range() {
        let range = FakeQuantization::new(-1.0, 1.0, 2, true).unwrap();
        assert_eq!(
            [-9.0, -0.6, -0.4, 0.0, 0.6, 9.0].map(|x| range.apply(x)),
            [-1.0, -1.0, 0.0, 0.0, 1.0, 1.0]
        );
        assert_eq!(FakeQuantization::new(0.0, 0.0, 8, false), None);
    }
}
