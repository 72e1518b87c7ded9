//! Simulated quantization.

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
