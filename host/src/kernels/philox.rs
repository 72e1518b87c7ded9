//! Random numbers with TensorFlow's bits: the generator Philox 4x32-10 and the distributions of
//! `random_distributions.h`.
//!
//! A distribution makes a group of elements of each block of 128 random bits, or of a reserved
//! range of blocks. Elements therefore depend on their position and not on the number of threads.

use std::f64::consts::PI;

use half::bf16;
use half::f16;

use crate::kernels::Threads;

/// Number of blocks that are reserved for each element of an op. Distributions that reject samples
/// use a variable number of them.
pub const BLOCKS_PER_ELEMENT: u64 = 256;

/// Elements that take about 20 us.
const GRAIN: usize = 4096;

/// The generator Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3"): a
/// function of a key and of a counter of 128 bits, which counts blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Philox {
    /// The counter, least significant part first.
    pub counter: [u32; 4],
    /// The key.
    pub key: [u32; 2],
}

impl Philox {
    /// Returns the generator of an op with attributes `seed` and `seed2`.
    pub fn from_seeds(seed: u64, seed2: u64) -> Self {
        Self {
            counter: [0, 0, low(seed2), high(seed2)],
            key: [low(seed), high(seed)],
        }
    }

    /// Returns the generator of a stateless op with this input `seed`. The seeds are mixed, so that
    /// similar ones give unrelated numbers.
    pub fn from_stateless_seeds(seeds: [u64; 2]) -> Self {
        let mut mixer = Self {
            counter: [low(seeds[0]), high(seeds[0]), low(seeds[1]), high(seeds[1])],
            key: [0x3ec8_f720, 0x0246_1e29],
        };
        let mixed = mixer.block();
        Self {
            counter: [0, 0, mixed[2], mixed[3]],
            key: [mixed[0], mixed[1]],
        }
    }

    /// Returns the generator with a key and a counter as ops pass them.
    pub fn from_state(key: u64, counter: [u64; 2]) -> Self {
        Self {
            counter: [
                low(counter[0]),
                high(counter[0]),
                low(counter[1]),
                high(counter[1]),
            ],
            key: [low(key), high(key)],
        }
    }

    /// Returns the key and the counter as ops pass them.
    pub fn state(&self) -> (u64, [u64; 2]) {
        let [a, b, c, d] = self.counter;
        let [e, f] = self.key;
        (joined(e, f), [joined(a, b), joined(c, d)])
    }

    /// Skips this many blocks.
    pub fn skip(&mut self, n_blocks: u64) {
        let mut carried = high(n_blocks);
        let (sum, overflows) = self.counter[0].overflowing_add(low(n_blocks));
        self.counter[0] = sum;
        // TensorFlow's carry wraps, too.
        carried = carried.wrapping_add(u32::from(overflows));
        let (sum, overflows) = self.counter[1].overflowing_add(carried);
        self.counter[1] = sum;
        if overflows {
            self.carry(2);
        }
    }

    /// Adds 1 to the counter from this part on.
    fn carry(&mut self, first: usize) {
        for part in &mut self.counter[first..] {
            *part = part.wrapping_add(1);
            if *part != 0 {
                break;
            }
        }
    }

    /// Returns the next block.
    #[inline]
    pub fn block(&mut self) -> [u32; 4] {
        let mut counter = self.counter;
        let mut key = self.key;
        for round in 0..10 {
            if round > 0 {
                key[0] = key[0].wrapping_add(0x9e37_79b9);
                key[1] = key[1].wrapping_add(0xbb67_ae85);
            }
            let first = u64::from(counter[0]) * 0xd251_1f53;
            let second = u64::from(counter[2]) * 0xcd9e_8d57;
            counter = [
                high(second) ^ counter[1] ^ key[0],
                low(second),
                high(first) ^ counter[3] ^ key[1],
                low(first),
            ];
        }
        self.carry(0);
        counter
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the lower half")]
fn low(x: u64) -> u32 {
    x as u32
}

fn high(x: u64) -> u32 {
    low(x >> 32)
}

fn joined(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

/// The numbers of a generator one by one (TensorFlow `SingleSampleAdapter`).
#[derive(Debug)]
pub struct Singles {
    generator: Philox,
    block: [u32; 4],
    n_used: usize,
}

impl Singles {
    /// Returns the numbers of a generator from its next block on.
    pub fn new(generator: Philox) -> Self {
        Self {
            generator,
            block: [0; 4],
            n_used: 4,
        }
    }

    /// Returns the next number.
    #[inline]
    pub fn number(&mut self) -> u32 {
        if self.n_used == 4 {
            self.block = self.generator.block();
            self.n_used = 0;
        }
        self.n_used += 1;
        self.block[self.n_used - 1]
    }

    /// Returns the next number of `[0, 1)`.
    pub fn unit_f64(&mut self) -> f64 {
        let first = self.number();
        unit_f64(first, self.number())
    }
}

/// How elements are made of random bits.
pub trait Distribution: Sync {
    /// An element.
    type Element: Copy + Default + Send;
    /// Number of elements that are made together.
    const GROUP: usize;
    /// Number of blocks from the start of a group to the next one.
    const BLOCKS: u64;

    /// Writes a group, which is shorter at the end of a tensor.
    fn group(&self, generator: &mut Philox, out: &mut [Self::Element]);
}

/// Fills `out` with elements of a distribution.
pub fn fill<D: Distribution>(
    distribution: &D,
    generator: Philox,
    out: &mut [D::Element],
    threads: Threads<'_>,
) {
    threads.fill(out, D::GROUP, GRAIN, |start, part| {
        let first = (start / D::GROUP) as u64;
        for (index, group) in (first..).zip(part.chunks_mut(D::GROUP)) {
            let mut generator = generator;
            generator.skip(index.wrapping_mul(D::BLOCKS));
            distribution.group(&mut generator, group);
        }
    });
}

/// The uniform distribution of `[0, 1)`.
#[derive(Debug, Clone, Copy, Default)]
pub struct Uniform<T>(std::marker::PhantomData<T>);

/// The normal distribution of mean 0 and deviation 1.
#[derive(Debug, Clone, Copy, Default)]
pub struct Normal<T>(std::marker::PhantomData<T>);

/// The same without the values that are 2 or more from the mean.
#[derive(Debug, Clone, Copy, Default)]
pub struct TruncatedNormal<T>(std::marker::PhantomData<T>);

/// Integers of the type's whole range.
#[derive(Debug, Clone, Copy, Default)]
pub struct FullInt<T>(std::marker::PhantomData<T>);

/// Integers from a lower bound up to, and without, an upper one.
#[derive(Debug, Clone, Copy)]
pub struct UniformInt<T> {
    lower: T,
    upper: T,
}

impl<T: PartialOrd + std::fmt::Display> UniformInt<T> {
    /// Returns the distribution of `lower..upper`; the error for an empty range.
    ///
    /// # Errors
    /// TensorFlow's message, if there is no such integer.
    pub fn new(lower: T, upper: T) -> Result<Self, String> {
        if lower < upper {
            return Ok(Self { lower, upper });
        }
        Err(format!("Need minval < maxval, got {lower} >= {upper}"))
    }
}

macro_rules! fixed {
    ($name:ident, $rust:ty, $group:literal, |$this:ident, $block:ident| $elements:expr) => {
        impl Distribution for $name<$rust> {
            type Element = $rust;
            const GROUP: usize = $group;
            const BLOCKS: u64 = 1;

            #[inline]
            fn group(&self, generator: &mut Philox, out: &mut [$rust]) {
                let $this = self;
                let $block = generator.block();
                let elements: [$rust; $group] = $elements;
                out.copy_from_slice(&elements[..out.len()]);
            }
        }
    };
}

fixed!(Uniform, f32, 4, |_this, block| block.map(unit_f32));
fixed!(Uniform, f16, 4, |_this, block| block.map(unit_f16));
fixed!(Uniform, bf16, 4, |_this, block| block.map(unit_bf16));
fixed!(Uniform, f64, 2, |_this, block| unit_f64s(block));
fixed!(Normal, f32, 4, |_this, block| normals_f32(block));
fixed!(Normal, f16, 4, |_this, block| normals_f32(block)
    .map(f16::from_f32));
fixed!(Normal, bf16, 4, |_this, block| normals_f32(block)
    .map(bf16::from_f32));
fixed!(Normal, f64, 2, |_this, block| normals_f64(block));
fixed!(FullInt, u32, 4, |_this, block| block);
fixed!(FullInt, i32, 4, |_this, block| block.map(u32::cast_signed));
fixed!(FullInt, u64, 2, |_this, block| pairs(block));
fixed!(FullInt, i64, 2, |_this, block| pairs(block)
    .map(u64::cast_signed));
fixed!(UniformInt, i32, 4, |this, block| {
    let range = this.upper.wrapping_sub(this.lower).cast_unsigned();
    block.map(|bits| this.lower.wrapping_add_unsigned(bits % range))
});
fixed!(UniformInt, i64, 2, |this, block| {
    let range = this.upper.wrapping_sub(this.lower).cast_unsigned();
    pairs(block).map(|bits| this.lower.wrapping_add_unsigned(bits % range))
});

/// Truncated normal numbers: pairs of normal ones, until enough of them are near the mean.
macro_rules! truncated {
    ($rust:ty, $group:literal, |$singles:ident| $pair:expr, $narrow:expr) => {
        impl Distribution for TruncatedNormal<$rust> {
            type Element = $rust;
            const GROUP: usize = $group;
            const BLOCKS: u64 = $group * BLOCKS_PER_ELEMENT / 4;

            fn group(&self, generator: &mut Philox, out: &mut [$rust]) {
                let mut singles = Singles::new(*generator);
                let mut slots = out.iter_mut();
                loop {
                    let $singles = &mut singles;
                    for value in $pair {
                        if value.abs() < 2.0 {
                            match slots.next() {
                                Some(slot) => *slot = $narrow(value),
                                None => return,
                            }
                        }
                    }
                    if slots.len() == 0 {
                        return;
                    }
                }
            }
        }
    };
}

truncated!(
    f32,
    4,
    |singles| box_muller_f32(singles.number(), singles.number()),
    |x| x
);
truncated!(
    f16,
    4,
    |singles| box_muller_f32(singles.number(), singles.number()),
    f16::from_f32
);
truncated!(
    bf16,
    4,
    |singles| box_muller_f32(singles.number(), singles.number()),
    bf16::from_f32
);
truncated!(
    f64,
    2,
    |singles| normals_f64([
        singles.number(),
        singles.number(),
        singles.number(),
        singles.number()
    ]),
    |x| x
);

/// Returns a number of `[0, 1)` of 23 random bits.
#[inline]
pub fn unit_f32(bits: u32) -> f32 {
    f32::from_bits(127 << 23 | (bits & 0x007f_ffff)) - 1.0
}

/// Returns a number of `[0, 1)` of 10 random bits.
#[expect(clippy::cast_possible_truncation, reason = "the lower bits")]
fn unit_f16(bits: u32) -> f16 {
    f16::from_bits(15 << 10 | (bits as u16 & 0x3ff)) - f16::ONE
}

/// Returns a number of `[0, 1)` of 7 random bits.
#[expect(clippy::cast_possible_truncation, reason = "the lower bits")]
fn unit_bf16(bits: u32) -> bf16 {
    bf16::from_bits(127 << 7 | (bits as u16 & 0x7f)) - bf16::ONE
}

/// Returns a number of `[0, 1)` of 52 random bits.
#[inline]
pub fn unit_f64(high: u32, low: u32) -> f64 {
    let mantissa = u64::from(high & 0x000f_ffff) << 32 | u64::from(low);
    f64::from_bits(1023 << 52 | mantissa) - 1.0
}

/// Returns the two numbers of `[0, 1)` of a block.
pub fn unit_f64s([a, b, c, d]: [u32; 4]) -> [f64; 2] {
    [unit_f64(a, b), unit_f64(c, d)]
}

fn pairs([a, b, c, d]: [u32; 4]) -> [u64; 2] {
    [joined(a, b), joined(c, d)]
}

/// Returns the smallest number that is passed to the logarithm.
const EPSILON: f64 = 1e-7;

/// Returns two normal numbers of two uniform ones.
#[expect(clippy::cast_possible_truncation, reason = "as TensorFlow rounds")]
fn box_muller_f32(x: u32, y: u32) -> [f32; 2] {
    let first = unit_f32(x).max(EPSILON as f32);
    let angle = (2.0 * PI * f64::from(unit_f32(y))) as f32;
    let radius = (-2.0 * first.ln()).sqrt();
    [angle.sin() * radius, angle.cos() * radius]
}

fn normals_f32([a, b, c, d]: [u32; 4]) -> [f32; 4] {
    let [first, second] = box_muller_f32(a, b);
    let [third, fourth] = box_muller_f32(c, d);
    [first, second, third, fourth]
}

/// Returns the two normal numbers of a block.
pub fn normals_f64([a, b, c, d]: [u32; 4]) -> [f64; 2] {
    let first = unit_f64(a, b).max(EPSILON);
    let angle = 2.0 * PI * unit_f64(c, d);
    let radius = (-2.0 * first.ln()).sqrt();
    [angle.sin() * radius, angle.cos() * radius]
}

/// Calls `swap(i, j)` with the swaps of a random permutation of `n` elements, as TensorFlow's
/// `RandomShuffle` makes them; `number` returns random numbers.
pub fn shuffle(n: usize, mut number: impl FnMut() -> u32, mut swap: impl FnMut(usize, usize)) {
    for first in 0..n.saturating_sub(1) {
        // TensorFlow's remainder is one of 32 bits.
        let n_left = low((n - first) as u64).max(1);
        swap(first, first + (number() % n_left) as usize);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The known answers of the authors' implementation (Random123, `kat_vectors`).
    #[test]
    fn blocks_are_those_of_the_reference_implementation() {
        let block = |counter, key| Philox { counter, key }.block();
        assert_eq!(
            block([0; 4], [0; 2]),
            [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]
        );
        assert_eq!(
            block([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            block(
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0]
            ),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    proptest! {
        #[test]
        fn skipping_is_drawing_blocks(start in any::<[u32; 4]>(), n in 0u64..20) {
            let mut drawn = Philox { counter: start, key: [1, 2] };
            let mut skipped = drawn;
            for _ in 0..n {
                drawn.block();
            }
            skipped.skip(n);
            prop_assert_eq!(drawn, skipped);
        }

        #[test]
        fn elements_depend_on_their_position_alone(n in 0usize..40, cut in 0usize..40) {
            fn all<D: Distribution<Element: PartialEq + std::fmt::Debug>>(d: &D, n: usize, cut: usize) {
                let generator = Philox::from_seeds(3, 4);
                let mut whole = vec![D::Element::default(); n];
                fill(d, generator, &mut whole, Threads::single());
                let mut part = vec![D::Element::default(); cut.min(n)];
                fill(d, generator, &mut part, Threads::single());
                assert_eq!(&whole[..part.len()], &part[..]);
            }
            all(&Uniform::<f32>::default(), n, cut);
            all(&Normal::<f64>::default(), n, cut);
            all(&TruncatedNormal::<half::f16>::default(), n, cut);
            all(&UniformInt::new(-3i64, 5).unwrap(), n, cut);
        }

        #[test]
        fn a_shuffle_is_a_permutation(n in 0usize..50, seed in any::<u64>()) {
            let mut singles = Singles::new(Philox::from_seeds(seed, 1));
            let mut rows: Vec<usize> = (0..n).collect();
            shuffle(n, || singles.number(), |a, b| rows.swap(a, b));
            rows.sort_unstable();
            prop_assert_eq!(rows, (0..n).collect::<Vec<_>>());
        }
    }

    #[test]
    fn moments_are_those_of_the_distributions() {
        let n = 100_000u32;
        let mut values = vec![0.0f64; n as usize];
        let mut moments = |fill: &mut dyn FnMut(&mut [f64])| {
            fill(&mut values);
            let mean = values.iter().sum::<f64>() / f64::from(n);
            let square = values.iter().map(|x| x * x).sum::<f64>() / f64::from(n);
            (mean, square - mean * mean)
        };
        let generator = Philox::from_stateless_seeds([1, 2]);
        let (mean, variance) = moments(&mut |out| {
            fill(
                &Uniform::<f64>::default(),
                generator,
                out,
                Threads::single(),
            );
        });
        assert!((mean - 0.5).abs() < 0.01 && (variance - 1.0 / 12.0).abs() < 0.01);
        let (mean, variance) = moments(&mut |out| {
            fill(&Normal::<f64>::default(), generator, out, Threads::single());
        });
        assert!(mean.abs() < 0.02 && (variance - 1.0).abs() < 0.02);
        let (mean, variance) = moments(&mut |out| {
            fill(
                &TruncatedNormal::<f64>::default(),
                generator,
                out,
                Threads::single(),
            );
        });
        assert!(mean.abs() < 0.02 && (variance - 0.774).abs() < 0.02);
    }
}
