//! Inverse cosine transforms with libjpeg's integer arithmetic, whose results are TensorFlow's.
//!
//! A transform gets the coefficients of a block in natural order and their quantization steps, and
//! returns samples around 0. Sums wrap around, because the coefficients of a damaged file may have
//! any value.

use std::num::Wrapping;

/// The coefficients of a block, or their quantization steps, in natural order.
pub(super) type Block = [i16; 64];

/// A value of a transform.
type Value = Wrapping<i32>;

/// How blocks of 8 x 8 samples are computed (attribute `dct_method`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DctMethod {
    /// Arai, Agui and Nakajima's algorithm with 8-bit constants (`INTEGER_FAST`).
    Fast,
    /// Loeffler, Ligtenberg and Moschytz's algorithm with 13-bit constants (`INTEGER_ACCURATE`).
    Accurate,
}

/// The transform of a component.
#[derive(Debug, Clone)]
pub(super) struct Transform {
    /// Width and height of the samples of a block: 1, 2, 4 or 8.
    pub(super) size: usize,
    /// The quantization steps.
    steps: [u16; 64],
    /// The steps of the fast algorithm, if that is used.
    fast_steps: Option<[i32; 64]>,
}

impl Transform {
    pub(super) fn new(size: usize, steps: [u16; 64], method: DctMethod) -> Self {
        let is_fast = size == 8 && method == DctMethod::Fast;
        Self {
            size,
            steps,
            fast_steps: is_fast.then(|| fast_steps(&steps)),
        }
    }

    /// Writes the samples of a block into the rows of `plane`.
    pub(super) fn write(&self, block: &Block, plane: &mut [u8], stride: usize) {
        let (size, steps) = (self.size, &self.steps);
        let mut samples = [Wrapping(0); 64];
        match (size, &self.fast_steps) {
            (8, Some(steps)) => fast(block, steps, &mut samples),
            (8, None) => accurate(block, steps, &mut samples),
            (4, _) => quarter(block, steps, &mut samples),
            (2, _) => two(block, steps, &mut samples),
            _ => samples[0] = descale(dequantized(block, steps, 0), 3),
        }
        write_samples(&samples, size, plane, stride);
    }
}

fn write_samples(samples: &[Value; 64], size: usize, plane: &mut [u8], stride: usize) {
    for (row, samples) in samples.chunks_exact(8).take(size).enumerate() {
        let out = plane.get_mut(row * stride..).unwrap_or_default();
        for (slot, sample) in out.iter_mut().zip(&samples[..size]) {
            *slot = clamped(sample.0.saturating_add(128));
        }
    }
}

/// Limits a sample to a byte.
pub(super) fn clamped(value: i32) -> u8 {
    u8::try_from(value.clamp(0, 255)).unwrap_or_default()
}

fn dequantized(block: &Block, steps: &[u16; 64], at: usize) -> Value {
    Wrapping(i32::from(block[at]) * i32::from(steps[at]))
}

/// Divides by a power of two and rounds.
fn descale(value: Value, bits: usize) -> Value {
    (value + (Wrapping(1) << (bits - 1))) >> bits
}

/// Scales of the rows and columns of the fast algorithm.
const SCALES: [f64; 8] = [
    1.0,
    1.387_039_845,
    1.306_562_965,
    1.175_875_602,
    1.0,
    0.785_694_958,
    0.541_196_1,
    0.275_899_379,
];

/// Returns the quantization steps of the fast algorithm, which have two more bits.
#[expect(clippy::cast_possible_truncation, reason = "less than 2^15")]
fn fast_steps(steps: &[u16; 64]) -> [i32; 64] {
    std::array::from_fn(|at| {
        // Rounded twice, as by libjpeg.
        let scale = (SCALES[at / 8] * SCALES[at % 8] * 16384.0).round() as i64;
        let step = (i64::from(steps[at]) * scale + (1 << 11)) >> 12;
        i32::try_from(step).unwrap_or(i32::MAX)
    })
}

fn fast(block: &Block, steps: &[i32; 64], out: &mut [Value; 64]) {
    let mut columns = [Wrapping(0); 64];
    for column in 0..8 {
        let values = std::array::from_fn(|row| {
            let at = row * 8 + column;
            Wrapping(i32::from(block[at])) * Wrapping(steps[at])
        });
        for (row, value) in fast_line(values).into_iter().enumerate() {
            columns[row * 8 + column] = value;
        }
    }
    for (out, row) in out.chunks_exact_mut(8).zip(columns.chunks_exact(8)) {
        let values = fast_line(std::array::from_fn(|column| row[column]));
        for (slot, value) in out.iter_mut().zip(values) {
            *slot = value >> 5;
        }
    }
}

fn fast_line(x: [Value; 8]) -> [Value; 8] {
    let times = |value: Value, constant: i32| (value * Wrapping(constant)) >> 8;
    let (sum04, difference04) = (x[0] + x[4], x[0] - x[4]);
    let sum26 = x[2] + x[6];
    let difference26 = times(x[2] - x[6], 362) - sum26;
    let even = [
        sum04 + sum26,
        difference04 + difference26,
        difference04 - difference26,
        sum04 - sum26,
    ];
    let (z13, z10, z11, z12) = (x[5] + x[3], x[5] - x[3], x[1] + x[7], x[1] - x[7]);
    let z5 = times(z10 + z12, 473);
    let odd0 = z11 + z13;
    let odd1 = times(z10, -669) + z5 - odd0;
    let odd2 = times(z11 - z13, 362) - odd1;
    let odd3 = times(z12, 277) - z5 + odd2;
    [
        even[0] + odd0,
        even[1] + odd1,
        even[2] + odd2,
        even[3] - odd3,
        even[3] + odd3,
        even[2] - odd2,
        even[1] - odd1,
        even[0] - odd0,
    ]
}

fn accurate(block: &Block, steps: &[u16; 64], out: &mut [Value; 64]) {
    let mut columns = [Wrapping(0); 64];
    for column in 0..8 {
        let values = accurate_line(std::array::from_fn(|row| {
            dequantized(block, steps, row * 8 + column)
        }));
        for (row, value) in values.into_iter().enumerate() {
            columns[row * 8 + column] = descale(value, 11);
        }
    }
    for (out, row) in out.chunks_exact_mut(8).zip(columns.chunks_exact(8)) {
        let values = accurate_line(std::array::from_fn(|column| row[column]));
        for (slot, value) in out.iter_mut().zip(values) {
            *slot = descale(value, 18);
        }
    }
}

fn accurate_line(x: [Value; 8]) -> [Value; 8] {
    let times = |value: Value, constant: i32| value * Wrapping(constant);
    let z1 = times(x[2] + x[6], 4433);
    let (even2, even3) = (z1 - times(x[6], 15137), z1 + times(x[2], 6270));
    let (sum, difference) = ((x[0] + x[4]) << 13, (x[0] - x[4]) << 13);
    let even = [
        sum + even3,
        difference + even2,
        difference - even2,
        sum - even3,
    ];
    let z5 = times(x[7] + x[3] + x[5] + x[1], 9633);
    let z1 = times(x[7] + x[1], -7373);
    let z2 = times(x[5] + x[3], -20995);
    let z3 = times(x[7] + x[3], -16069) + z5;
    let z4 = times(x[5] + x[1], -3196) + z5;
    let odd = [
        times(x[1], 12299) + z1 + z4,
        times(x[3], 25172) + z2 + z3,
        times(x[5], 16819) + z2 + z4,
        times(x[7], 2446) + z1 + z3,
    ];
    std::array::from_fn(|index| match index {
        0..4 => even[index] + odd[index],
        _ => even[7 - index] - odd[7 - index],
    })
}

fn quarter(block: &Block, steps: &[u16; 64], out: &mut [Value; 64]) {
    let line = |x: [Value; 8]| {
        let times = |value: Value, constant: i32| value * Wrapping(constant);
        let first = x[0] << 14;
        let even = times(x[2], 15137) - times(x[6], 6270);
        let inner = times(x[5], 11893) + times(x[1], 8697) - times(x[7], 1730) - times(x[3], 17799);
        let outer = times(x[3], 7373) + times(x[1], 20995) - times(x[7], 4176) - times(x[5], 4926);
        [
            first + even + outer,
            first - even + inner,
            first - even - inner,
            first + even - outer,
        ]
    };
    let mut columns = [[Wrapping(0); 8]; 4];
    for column in [0, 1, 2, 3, 5, 6, 7] {
        let values = line(std::array::from_fn(|row| {
            dequantized(block, steps, row * 8 + column)
        }));
        for (row, value) in columns.iter_mut().zip(values) {
            row[column] = descale(value, 12);
        }
    }
    for (out, row) in out.chunks_exact_mut(8).zip(columns) {
        for (slot, value) in out.iter_mut().zip(line(row)) {
            *slot = descale(value, 19);
        }
    }
}

fn two(block: &Block, steps: &[u16; 64], out: &mut [Value; 64]) {
    let line = |x: [Value; 8]| {
        let times = |value: Value, constant: i32| value * Wrapping(constant);
        let first = x[0] << 15;
        let odd = times(x[5], 6967) + times(x[1], 29692) - times(x[7], 5906) - times(x[3], 10426);
        [first + odd, first - odd]
    };
    let mut columns = [[Wrapping(0); 8]; 2];
    for column in [0, 1, 3, 5, 7] {
        let values = line(std::array::from_fn(|row| {
            dequantized(block, steps, row * 8 + column)
        }));
        for (row, value) in columns.iter_mut().zip(values) {
            row[column] = descale(value, 13);
        }
    }
    for (out, row) in out.chunks_exact_mut(8).zip(columns) {
        for (slot, value) in out.iter_mut().zip(line(row)) {
            *slot = descale(value, 20);
        }
    }
}
