//! Samples of components at the size of the image, and their colours, as libjpeg computes them.

use super::idct::clamped;

/// The samples of a component.
#[derive(Debug)]
pub(super) struct Plane {
    pub(super) samples: Vec<u8>,
    /// Samples of a row, with those that fill the last blocks.
    pub(super) stride: usize,
    /// Width and height without them.
    pub(super) size: [usize; 2],
    /// How often a sample is repeated in a row and in a column.
    pub(super) repeats: [usize; 2],
}

impl Plane {
    fn row(&self, row: usize) -> &[u8] {
        let start = row.min(self.size[1].saturating_sub(1)) * self.stride;
        &self.samples[start..start + self.size[0]]
    }

    /// Writes row `y` of the image. `is_smooth`: samples between two are weighted sums of them,
    /// and not repeated.
    pub(super) fn write_row(&self, y: usize, is_smooth: bool, out: &mut [u8]) {
        let [across, down] = self.repeats;
        let row = self.row(y / down);
        // The nearest row on the other side.
        let other = || match y % 2 {
            0 => self.row((y / 2).saturating_sub(1)),
            _ => self.row(y / 2 + 1),
        };
        match (self.repeats, is_smooth) {
            ([1, 1], _) => copy(row.iter().copied(), out),
            ([2, 1], true) if row.len() > 2 => {
                let sums = |index: usize| u32::from(row[index]);
                widened(row.len(), sums, [1, 2], 2, out);
            }
            ([2, 2], true) if row.len() > 2 => {
                let other = other();
                let sums = |index: usize| u32::from(row[index]) * 3 + u32::from(other[index]);
                widened(row.len(), sums, [8, 7], 4, out);
            }
            ([1, 2], true) => {
                let bias = 1 + u32::from(y % 2 == 1);
                let pairs = row.iter().zip(other());
                let sums = pairs.map(|(&near, &far)| u32::from(near) * 3 + u32::from(far) + bias);
                copy(sums.map(|sum| low_byte(sum >> 2)), out);
            }
            _ => {
                let repeated = row
                    .iter()
                    .flat_map(|&sample| std::iter::repeat_n(sample, across));
                copy(repeated, out);
            }
        }
    }
}

fn copy(samples: impl Iterator<Item = u8>, out: &mut [u8]) {
    for (slot, sample) in out.iter_mut().zip(samples) {
        *slot = sample;
    }
}

fn low_byte(value: u32) -> u8 {
    u8::try_from(value & 255).unwrap_or_default()
}

/// Doubles a row: each sample weighs three times as much as its neighbour. `biases` are added
/// before sums at even and odd places are shifted by `bits`.
fn widened(n: usize, sum: impl Fn(usize) -> u32, biases: [u32; 2], bits: u32, out: &mut [u8]) {
    for index in 0..n {
        let this = sum(index);
        // At the edges a sample is its own neighbour.
        let left = if index == 0 { this } else { sum(index - 1) };
        let right = if index + 1 == n { this } else { sum(index + 1) };
        let pair = [
            (this * 3 + left + biases[0]) >> bits,
            (this * 3 + right + biases[1]) >> bits,
        ];
        for (slot, value) in out.iter_mut().skip(2 * index).zip(pair) {
            *slot = low_byte(value);
        }
    }
}

/// What the samples of a file mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Space {
    Grey,
    Rgb,
    /// Luminance and two differences.
    Ycc,
    /// Four inks; inverted if the flag is set.
    Cmyk(bool),
    /// The same, as luminance, two differences and black.
    Ycck(bool),
}

/// Returns the colour of a pixel in luminance and differences.
fn colour(y: u8, blue: u8, red: u8) -> [i32; 3] {
    const HALF: i32 = 1 << 15;
    let (y, blue, red) = (i32::from(y), i32::from(blue) - 128, i32::from(red) - 128);
    [
        y + ((91_881 * red + HALF) >> 16),
        y + ((-22_554 * blue - 46_802 * red + HALF) >> 16),
        y + ((116_130 * blue + HALF) >> 16),
    ]
}

/// Converts a row of samples to pixels of `n_channels` channels.
pub(super) fn write_pixels(space: Space, rows: [&[u8]; 4], n_channels: usize, out: &mut [u8]) {
    let [a, b, c, d] = rows;
    let pixels = out.chunks_exact_mut(n_channels.max(1)).enumerate();
    for (x, pixel) in pixels {
        let rgb = match (space, n_channels) {
            (Space::Grey, _) | (Space::Ycc, 1) => [a[x]; 3],
            (Space::Rgb, 1) => {
                let sum = 19_595 * u32::from(a[x])
                    + 38_470 * u32::from(b[x])
                    + 7_471 * u32::from(c[x])
                    + (1 << 15);
                [low_byte(sum >> 16); 3]
            }
            (Space::Rgb, _) => [a[x], b[x], c[x]],
            (Space::Ycc, _) => colour(a[x], b[x], c[x]).map(clamped),
            (Space::Cmyk(is_inverted), _) => inks([a[x], b[x], c[x]], d[x], is_inverted),
            (Space::Ycck(is_inverted), _) => {
                let inks_of = colour(a[x], b[x], c[x]).map(|value| clamped(255 - value));
                inks(inks_of, d[x], is_inverted)
            }
        };
        pixel.copy_from_slice(&rgb[..pixel.len()]);
    }
}

/// Mixes inks.
fn inks(inks: [u8; 3], black: u8, is_inverted: bool) -> [u8; 3] {
    let light = |ink: u8| if is_inverted { ink } else { 255 - ink };
    inks.map(|ink| low_byte(u32::from(light(black)) * u32::from(light(ink)) / 255))
}
