//! Images of another size, and blocks of pixels as channels or batches.

use crate::kernels::Number;
use crate::kernels::Threads;

/// Elements that are worth handing to another thread.
const GRAIN: usize = 16 * 1024;

/// Where the pixels of a resized axis come from (TensorFlow `ImageResizerState`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resize {
    /// Pixels before.
    pub input: usize,
    /// Pixels after; not 0.
    pub output: usize,
    /// Whether the first and the last pixel stay where they are.
    pub align_corners: bool,
    /// Whether a pixel stands for its middle rather than for its start.
    pub half_pixel_centers: bool,
}

/// A pixel between two others.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Between {
    lower: usize,
    upper: usize,
    weight: f32,
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "TensorFlow's arithmetic: positions are single-precision numbers, and negative ones become 0"
)]
impl Resize {
    fn scale(&self) -> f32 {
        if self.align_corners && self.output > 1 {
            self.input.saturating_sub(1) as f32 / (self.output - 1) as f32
        } else {
            self.input as f32 / self.output as f32
        }
    }

    /// Per pixel the two that it lies between.
    pub fn between(&self) -> Vec<Between> {
        let scale = self.scale();
        let last = self.input.saturating_sub(1);
        (0..self.output)
            .map(|pixel| {
                let at = if self.half_pixel_centers {
                    (pixel as f32 + 0.5) * scale - 0.5
                } else {
                    pixel as f32 * scale
                };
                Between {
                    lower: (at.floor() as usize).min(last),
                    upper: (at.ceil() as usize).min(last),
                    weight: at - at.floor(),
                }
            })
            .collect()
    }

    /// Per pixel the nearest one.
    pub fn nearest(&self) -> Vec<usize> {
        let scale = self.scale();
        let last = self.input.saturating_sub(1);
        (0..self.output)
            .map(|pixel| {
                let at = if self.half_pixel_centers {
                    (pixel as f32 + 0.5) * scale
                } else {
                    pixel as f32 * scale
                };
                let at = if self.align_corners {
                    at.round()
                } else {
                    at.floor()
                };
                (at as usize).min(last)
            })
            .collect()
    }
}

/// `[batch, rows, columns, channels]`, in single precision, between pixels linearly (TensorFlow `ResizeBilinear`).
///
/// # Panics
/// If a slice has another length than its shape.
pub fn resize_bilinear<T: Number>(
    input: &[T],
    [rows, columns]: [&Resize; 2],
    channels: usize,
    out: &mut [f32],
    threads: Threads<'_>,
) {
    if out.is_empty() {
        return;
    }
    #[expect(clippy::cast_possible_truncation, reason = "rounded once")]
    let single = |value: T| value.to_f64() as f32;
    let (ys, xs) = (rows.between(), columns.between());
    let (line, in_line) = (columns.output * channels, columns.input * channels);
    threads.fill(out, line, GRAIN, |start, part| {
        for (index, out) in part.chunks_exact_mut(line).enumerate() {
            let row = start / line + index;
            let (image, y) = (row / rows.output, ys[row % rows.output]);
            let at = |row: usize| &input[(image * rows.input + row) * in_line..][..in_line];
            let (top, bottom) = (at(y.lower), at(y.upper));
            for (out, x) in out.chunks_exact_mut(channels).zip(&xs) {
                let (left, right) = (x.lower * channels, x.upper * channels);
                for (channel, o) in out.iter_mut().enumerate() {
                    let along = |line: &[T]| {
                        let (from, to) =
                            (single(line[left + channel]), single(line[right + channel]));
                        from + (to - from) * x.weight
                    };
                    let (top, bottom) = (along(top), along(bottom));
                    *o = top + (bottom - top) * y.weight;
                }
            }
        }
    });
}

/// `[batch, rows, columns, channels]`: the nearest pixel (TensorFlow `ResizeNearestNeighbor`).
///
/// # Panics
/// If a slice has another length than its shape.
pub fn resize_nearest<T: Copy + Send + Sync>(
    input: &[T],
    [rows, columns]: [&Resize; 2],
    channels: usize,
    out: &mut [T],
    threads: Threads<'_>,
) {
    if out.is_empty() {
        return;
    }
    let (ys, xs) = (rows.nearest(), columns.nearest());
    let (line, in_line) = (columns.output * channels, columns.input * channels);
    threads.fill(out, line, GRAIN, |start, part| {
        for (index, out) in part.chunks_exact_mut(line).enumerate() {
            let row = start / line + index;
            let source = row / rows.output * rows.input + ys[row % rows.output];
            let source = &input[source * in_line..][..in_line];
            for (out, &x) in out.chunks_exact_mut(channels).zip(&xs) {
                out.copy_from_slice(&source[x * channels..][..channels]);
            }
        }
    });
}
