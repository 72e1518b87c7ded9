//! Resizing of images by a sampling kernel, with a scale and a translation for each axis, channels
//! last.

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "TensorFlow's arithmetic: positions are single-precision numbers inside of an image"
)]

use std::cmp::Ordering;

use crate::device::KernelError;
use crate::kernels::Number;
use crate::kernels::Threads;
use crate::kernels::scratch;

/// Minimum number of result elements worth handing to another thread.
const GRAIN: usize = 2 * 1024;

/// The weights of the pixels around a position.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Sampler {
    /// A windowed sinc of this radius.
    Lanczos(f32),
    /// A bell of radius 1.5.
    Gaussian,
    /// The nearest pixel.
    Box,
    /// Linear interpolation.
    Triangle,
    /// Cubic interpolation by Keys.
    KeysCubic,
    /// Cubic interpolation by Mitchell and Netravali.
    MitchellCubic,
}

impl Sampler {
    /// Returns the sampler that TensorFlow calls `name`.
    pub fn of(name: &str) -> Option<Self> {
        Some(match name {
            "lanczos1" => Self::Lanczos(1.0),
            "lanczos3" => Self::Lanczos(3.0),
            "lanczos5" => Self::Lanczos(5.0),
            "gaussian" => Self::Gaussian,
            "box" => Self::Box,
            "triangle" => Self::Triangle,
            "keyscubic" => Self::KeysCubic,
            "mitchellcubic" => Self::MitchellCubic,
            _ => return None,
        })
    }

    /// Returns the distance from which on pixels have no weight.
    fn radius(self) -> f32 {
        match self {
            Self::Lanczos(radius) => radius,
            Self::Gaussian => 1.5,
            Self::Box => 0.5,
            Self::Triangle => 1.0,
            Self::KeysCubic | Self::MitchellCubic => 2.0,
        }
    }

    /// Returns the weight at a distance of `x >= 0` pixels.
    fn weight(self, x: f32) -> f32 {
        use std::f32::consts::PI;
        match self {
            Self::Lanczos(radius) if x > radius => 0.0,
            Self::Lanczos(_) if x <= 1e-3 => 1.0,
            Self::Lanczos(radius) => {
                radius * (PI * x).sin() * (PI * x / radius).sin() / (PI * PI * x * x)
            }
            Self::Gaussian if x >= 1.5 => 0.0,
            Self::Gaussian => {
                let sigma = 1.5f32 / 3.0;
                (-x * x / (2.0 * sigma * sigma)).exp()
            }
            Self::Box => match x.total_cmp(&0.5) {
                Ordering::Less => 1.0,
                Ordering::Equal => 0.5,
                Ordering::Greater => 0.0,
            },
            Self::Triangle => (1.0 - x).max(0.0),
            Self::KeysCubic | Self::MitchellCubic if x >= 2.0 => 0.0,
            Self::KeysCubic if x >= 1.0 => ((-0.5 * x + 2.5) * x - 4.0) * x + 2.0,
            Self::KeysCubic => ((1.5 * x - 2.5) * x) * x + 1.0,
            Self::MitchellCubic if x >= 1.0 => {
                (((-7.0 / 18.0) * x + 2.0) * x - 10.0 / 3.0) * x + 16.0 / 9.0
            }
            Self::MitchellCubic => (((7.0 / 6.0) * x - 2.0) * x) * x + 8.0 / 9.0,
        }
    }
}

/// How an axis of the result is mapped to an axis of the image.
#[derive(Debug, Clone, Copy)]
pub struct ScaledAxis {
    /// Pixels of the image, at least 1.
    pub input: usize,
    /// Pixels of the result.
    pub output: usize,
    /// Pixels of the result per pixel of the image.
    pub scale: f32,
    /// Position in the result of the start of the image.
    pub translation: f32,
}

/// The pixels of an axis of the image that each pixel of the result reads, and their weights.
#[derive(Debug)]
pub struct Spans {
    axis: ScaledAxis,
    /// Most pixels that a pixel reads.
    n_taps: usize,
    /// First pixel of each span.
    starts: Vec<usize>,
    /// `n_taps` weights of each span. Those after its end are 0.
    weights: Vec<f32>,
}

impl Spans {
    /// Computes the spans. With `antialias`, the kernel widens as the image shrinks.
    ///
    /// # Errors
    /// If there is not enough memory.
    pub fn new(sampler: Sampler, axis: ScaledAxis, antialias: bool) -> Result<Self, KernelError> {
        let inverse = 1.0 / axis.scale;
        let offset = -inverse * axis.translation;
        let widening = if antialias { inverse.max(1.0) } else { 1.0 };
        let reach = sampler.radius() * widening;
        let n_taps = (reach.ceil() as usize)
            .saturating_mul(2)
            .saturating_add(1)
            .min(axis.input);
        let mut starts = scratch::list(axis.output)?;
        let mut weights = scratch::list(axis.output.saturating_mul(n_taps))?;
        let last = axis.input - 1;
        for pixel in 0..axis.output {
            let at = (pixel as f32 + 0.5) * inverse + offset;
            let end = weights.len() + n_taps;
            if at < 0.0 || at > axis.input as f32 {
                starts.push(0);
                weights.resize(end, 0.0);
                continue;
            }
            // A conversion from a negative number gives 0.
            let start = ((at - reach - 0.5).ceil() as usize).min(last);
            let stop = ((at + reach - 0.5).floor() as usize).min(last);
            let first = weights.len();
            for source in (start..=stop).take(n_taps) {
                let distance = source as f32 + 0.5 - at;
                weights.push(sampler.weight((distance * (1.0 / widening)).abs()));
            }
            let sum: f32 = weights[first..].iter().sum();
            let factor = match sum.abs() >= 1000.0 * f32::MIN_POSITIVE {
                true => 1.0 / sum,
                false => 0.0,
            };
            weights[first..].iter_mut().for_each(|it| *it *= factor);
            weights.resize(end, 0.0);
            starts.push(start);
        }
        Ok(Self {
            axis,
            n_taps,
            starts,
            weights,
        })
    }

    /// Returns the pixels that a pixel of the result reads, with their weights.
    fn taps(&self, pixel: usize) -> impl Iterator<Item = (usize, f32)> {
        let weights = &self.weights[pixel * self.n_taps..][..self.n_taps];
        (self.starts[pixel]..self.axis.input).zip(weights.iter().copied())
    }
}

/// Resizes images `[batch, rows, columns, channels]` (TensorFlow `ScaleAndTranslate`): first the
/// rows, then the columns.
///
/// # Errors
/// If there is not enough memory for images with new rows and old columns.
///
/// # Panics
/// If the length of a slice does not match its shape.
pub fn resize_sampled<T: Number>(
    input: &[T],
    [rows, columns]: [&Spans; 2],
    channels: usize,
    out: &mut [f32],
    threads: Threads<'_>,
) -> Result<(), KernelError> {
    if out.is_empty() {
        return Ok(());
    }
    let line = columns.axis.input * channels;
    let n_lines = out.len() / (columns.axis.output * channels);
    let mut between = threads.scratch::<f32>(n_lines.saturating_mul(line))?;
    threads.fill(&mut between, line, GRAIN, |start, part| {
        for (index, out) in part.chunks_exact_mut(line).enumerate() {
            let row = start / line + index;
            let image = row / rows.axis.output * rows.axis.input;
            out.fill(0.0);
            for (source, weight) in rows.taps(row % rows.axis.output) {
                let input = &input[(image + source) * line..][..line];
                for (slot, &x) in out.iter_mut().zip(input) {
                    *slot += weight * x.to_f64() as f32;
                }
            }
        }
    });
    let between = &between[..];
    threads.fill(out, channels, GRAIN, |start, part| {
        for (index, out) in part.chunks_exact_mut(channels).enumerate() {
            let pixel = start / channels + index;
            let (row, column) = (pixel / columns.axis.output, pixel % columns.axis.output);
            out.fill(0.0);
            for (source, weight) in columns.taps(column) {
                let input = &between[row * line + source * channels..][..channels];
                for (slot, &x) in out.iter_mut().zip(input) {
                    *slot += weight * x;
                }
            }
        }
    });
    Ok(())
}
