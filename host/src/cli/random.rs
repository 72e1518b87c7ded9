//! Seeded random numbers, the same on every machine, for random feeds.

/// The generator of Steele, Lea and Flood 2014: small, and the same on every machine.
#[derive(Debug)]
pub(super) struct SplitMix(u64);

impl SplitMix {
    /// Starts a sequence of its own for each seed and name (FNV-1a of the name).
    pub(super) fn new(seed: u64, name: &str) -> Self {
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        Self(seed ^ hash)
    }

    /// Returns 64 random bits.
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a value uniform in [-1, 1), a multiple of 2^-23.
    #[expect(clippy::cast_precision_loss, reason = "24 bits fit an f32 exactly")]
    pub(super) fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 * (-23f32).exp2() - 1.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_is_the_published_one() {
        // First outputs for seed 0 of the reference implementation (Vigna's splitmix64.c).
        let mut random = SplitMix(0);
        assert_eq!(
            [random.next(), random.next()],
            [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4]
        );
    }

    #[test]
    fn numbers_are_within_their_bounds() {
        let mut random = SplitMix::new(7, "bounds");
        for _ in 0..10_000 {
            assert!((-1.0..1.0).contains(&random.unit()));
        }
    }
}
