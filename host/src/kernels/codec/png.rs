//! PNG files, by crate `png`, with the conversions that TensorFlow asks libpng for.

use std::fmt;
use std::io::Cursor;

use png::BitDepth;
use png::ColorType;
use png::Decoder;
use png::Limits;
use png::Reader;
use png::Transformations;

use crate::kernels::scratch;

/// Zlib's data is at most 1032 times as long as its file.
const RATIO_MAX: usize = 1032;

/// The header of a file.
pub struct Png<'a> {
    reader: Reader<Cursor<&'a [u8]>>,
    n_bytes: usize,
    width: usize,
    height: usize,
    n_channels: usize,
    /// Opacity of pixels without one.
    opacity: u16,
}

impl fmt::Debug for Png<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Png")
            .field("width", &self.width)
            .field("height", &self.height)
            .field("n_channels", &self.n_channels)
            .finish_non_exhaustive()
    }
}

impl<'a> Png<'a> {
    /// Reads the header of a file; `n_channels` is 1 to 4, or 0 for those of the file.
    ///
    /// # Errors
    /// What is wrong with the file.
    pub fn open(bytes: &'a [u8], n_channels: usize) -> Result<Self, String> {
        // What is decoded row by row, and chunks besides the image: never more than the file.
        let limits = Limits {
            bytes: bytes
                .len()
                .saturating_mul(RATIO_MAX)
                .saturating_add(1 << 20),
        };
        let mut decoder = Decoder::new_with_limits(Cursor::new(bytes), limits);
        decoder.set_transformations(Transformations::EXPAND);
        decoder.set_ignore_text_chunk(true);
        decoder.set_ignore_iccp_chunk(true);
        let reader = decoder.read_info().map_err(|error| error.to_string())?;
        let info = reader.info();
        let own_channels = match info.color_type {
            ColorType::Indexed if info.trns.is_some() => 4,
            ColorType::Indexed => 3,
            other => other.samples(),
        };
        let sizes = [info.width, info.height].map(usize::try_from);
        let [Ok(width), Ok(height)] = sizes else {
            return Err("PNG size too large for int".to_owned());
        };
        let n_bytes = reader.output_buffer_size().unwrap_or(usize::MAX);
        if width.saturating_mul(height) >= 1 << 29 {
            return Err(format!("PNG size too large for int: {width} by {height}"));
        }
        // Expanded, a pixel of one bit may have four bytes.
        if n_bytes / (32 * RATIO_MAX) > bytes.len() {
            return Err(format!(
                "it states {width} x {height} pixels, which is too large for a file of {} bytes",
                bytes.len()
            ));
        }
        let opacity = (1u32 << u32::from(info.bit_depth as u8)) - 1;
        Ok(Self {
            n_bytes,
            width,
            height,
            n_channels: if n_channels == 0 {
                own_channels
            } else {
                n_channels
            },
            opacity: u16::try_from(opacity).unwrap_or(u16::MAX),
            reader,
        })
    }

    /// Returns height, width and number of channels of the result.
    pub fn dims(&self) -> [usize; 3] {
        [self.height, self.width, self.n_channels]
    }

    /// Decodes the image; calls `write` with each sample of 16 bits, and whether the file has that
    /// many; otherwise the sample has 8.
    ///
    /// # Errors
    /// What is wrong with the file.
    pub fn read(mut self, mut write: impl FnMut(u16, bool)) -> Result<(), String> {
        let text = |error: png::DecodingError| error.to_string();
        let mut bytes = scratch::list(self.n_bytes).map_err(|error| error.to_string())?;
        bytes.extend(std::iter::repeat_n(0u8, self.n_bytes));
        let frame = self.reader.next_frame(&mut bytes).map_err(text)?;
        self.reader.finish().map_err(text)?;
        let is_wide = frame.bit_depth == BitDepth::Sixteen;
        let size = if is_wide { 2 } else { 1 };
        let n = frame.color_type.samples();
        let has_colour = n >= 3;
        for pixel in bytes[..frame.buffer_size()].chunks_exact(n * size) {
            let sample = |index: usize| {
                let bytes = &pixel[index * size..][..size];
                bytes
                    .iter()
                    .fold(0, |sum, &byte| sum << 8 | u16::from(byte))
            };
            let opacity = if n.is_multiple_of(2) {
                sample(n - 1)
            } else {
                self.opacity
            };
            let colour = match has_colour {
                true => [sample(0), sample(1), sample(2)],
                false => [sample(0); 3],
            };
            match self.n_channels {
                1 | 2 => write(grey(colour, is_wide), is_wide),
                _ => colour
                    .map(|sample| write(sample, is_wide))
                    .into_iter()
                    .collect(),
            }
            if self.n_channels.is_multiple_of(2) {
                write(opacity, is_wide);
            }
        }
        Ok(())
    }
}

/// Returns the luminance of a colour, as libpng computes it.
fn grey([red, green, blue]: [u16; 3], is_wide: bool) -> u16 {
    if red == green && green == blue {
        return red;
    }
    let sum = 9797 * u32::from(red) + 19_234 * u32::from(green) + 3737 * u32::from(blue);
    let rounding = if is_wide { 1 << 14 } else { 0 };
    u16::try_from((sum + rounding) >> 15).unwrap_or(u16::MAX)
}

/// Encodes an image of 1 to 4 channels, whose samples of 16 bits are big-endian. `level` is the
/// effort, 0 to 9, or -1 for the usual one.
///
/// # Errors
/// What cannot be encoded.
pub fn encode(
    [height, width, n_channels]: [usize; 3],
    samples: &[u8],
    is_wide: bool,
    level: i64,
) -> Result<Vec<u8>, String> {
    let text = |error: png::EncodingError| error.to_string();
    let sizes = [width, height].map(u32::try_from);
    let [Ok(width), Ok(height)] = sizes else {
        return Err(format!(
            "an image of {width} x {height} pixels is too large"
        ));
    };
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, width, height);
    encoder.set_color(match n_channels {
        1 => ColorType::Grayscale,
        2 => ColorType::GrayscaleAlpha,
        3 => ColorType::Rgb,
        _ => ColorType::Rgba,
    });
    encoder.set_depth(if is_wide {
        BitDepth::Sixteen
    } else {
        BitDepth::Eight
    });
    let level = u8::try_from(level).unwrap_or(6);
    encoder.set_deflate_compression(match level {
        0 => png::DeflateCompression::NoCompression,
        level => png::DeflateCompression::Level(level),
    });
    let mut writer = encoder.write_header().map_err(text)?;
    writer.write_image_data(samples).map_err(text)?;
    writer.finish().map_err(text)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoded_images_have_the_same_samples() {
        for n_channels in 1..=4 {
            for is_wide in [false, true] {
                for level in [-1, 0, 1, 9] {
                    let dims = [5, 7, n_channels];
                    let n_bytes = 35 * n_channels * if is_wide { 2 } else { 1 };
                    let samples: Vec<u8> = (0..n_bytes)
                        .map(|index| u8::try_from(index * 37 % 251).unwrap())
                        .collect();
                    let file = encode(dims, &samples, is_wide, level).unwrap();
                    let decoded = Png::open(&file, 0).unwrap();
                    assert_eq!(decoded.dims(), dims);
                    let mut found = Vec::new();
                    let write = |sample: u16, is_wide_too: bool| {
                        assert_eq!(is_wide_too, is_wide);
                        let bytes = sample.to_be_bytes();
                        found.extend_from_slice(&bytes[if is_wide { 0 } else { 1 }..]);
                    };
                    decoded.read(write).unwrap();
                    assert_eq!(found, samples);
                }
            }
        }
    }
}
