//! Numbers from a seed: the same ones in each run of a test, on any machine.

/// Vigna's SplitMix64.
#[derive(Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns a number below `end`, which must not be 0.
    pub(super) fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^= x >> 31;
        let end = u64::try_from(end).expect("`usize` has at most 64 bits");
        usize::try_from(x % end).expect("it is below a `usize`")
    }

    /// Returns true `per_mille` times out of a thousand.
    pub(super) fn happens(&mut self, per_mille: u32) -> bool {
        self.below(1000) < per_mille as usize
    }
}
