//! Images of another size, and blocks of pixels as channels or batches.

use std::ops::Range;

use crate::kernels::Number;
use crate::kernels::Threads;

/// Elements that are worth handing to another thread.
const GRAIN: usize = 16 * 1024;

/// Pixels of a line whose sources are found at a time.
const RUN: usize = 512;

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
#[derive(Debug, Clone, Copy, Default, PartialEq)]
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

    /// The two pixels that a pixel lies between.
    pub fn between(&self, pixel: usize) -> Between {
        let scale = self.scale();
        let last = self.input.saturating_sub(1);
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
    }

    /// The nearest pixel of a pixel.
    pub fn nearest(&self, pixel: usize) -> usize {
        let scale = self.scale();
        let last = self.input.saturating_sub(1);
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
    }

    /// Calls `body` with each run of pixels of the axis, and what `find` says of each.
    fn for_each_run<P: Copy + Default>(
        &self,
        find: impl Fn(usize) -> P,
        mut body: impl FnMut(Range<usize>, &[P]),
    ) {
        // Found once for all lines, without a table as long as the axis.
        let mut found = [P::default(); RUN];
        for start in (0..self.output).step_by(RUN) {
            let pixels = start..(start + RUN).min(self.output);
            let found = &mut found[..pixels.len()];
            for (slot, pixel) in found.iter_mut().zip(pixels.clone()) {
                *slot = find(pixel);
            }
            body(pixels, found);
        }
    }
}

/// `[batch, rows, columns, channels]`, in single precision, between pixels linearly (TensorFlow
/// `ResizeBilinear`).
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
    let (line, in_line) = (columns.output * channels, columns.input * channels);
    let between = |pixel: usize| columns.between(pixel);
    threads.fill(out, line, GRAIN, |start, part| {
        columns.for_each_run(between, |pixels, xs| {
            let run = pixels.start * channels..pixels.end * channels;
            for (index, out) in part.chunks_exact_mut(line).enumerate() {
                let row = start / line + index;
                let (image, y) = (row / rows.output, rows.between(row % rows.output));
                let at = |row: usize| &input[(image * rows.input + row) * in_line..][..in_line];
                let (top, bottom) = (at(y.lower), at(y.upper));
                for (out, x) in out[run.clone()].chunks_exact_mut(channels).zip(xs) {
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
    let (line, in_line) = (columns.output * channels, columns.input * channels);
    let nearest = |pixel: usize| columns.nearest(pixel);
    threads.fill(out, line, GRAIN, |start, part| {
        columns.for_each_run(nearest, |pixels, xs| {
            let run = pixels.start * channels..pixels.end * channels;
            for (index, out) in part.chunks_exact_mut(line).enumerate() {
                let row = start / line + index;
                let source = row / rows.output * rows.input + rows.nearest(row % rows.output);
                let source = &input[source * in_line..][..in_line];
                for (out, &x) in out[run.clone()].chunks_exact_mut(channels).zip(xs) {
                    out.copy_from_slice(&source[x * channels..][..channels]);
                }
            }
        });
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_pixels_are_the_axis() {
        for output in [1, 3, RUN, RUN + 1, 3 * RUN + 5] {
            let axis = Resize {
                input: 7,
                output,
                align_corners: true,
                half_pixel_centers: false,
            };
            let input: Vec<u32> = (0..7).collect();
            let one = Resize {
                input: 1,
                output: 2,
                ..axis
            };
            let mut out = vec![u32::MAX; 2 * output];
            resize_nearest(&input, [&one, &axis], 1, &mut out, Threads::single());
            for (pixel, &found) in out.iter().enumerate() {
                let expected = axis.nearest(pixel % output);
                assert_eq!(usize::try_from(found), Ok(expected), "{pixel} of {output}");
            }
            let mut between = vec![f32::NAN; 2 * output];
            resize_bilinear(&input, [&one, &axis], 1, &mut between, Threads::single());
            #[expect(clippy::cast_precision_loss, reason = "small numbers")]
            for (pixel, &found) in between.iter().enumerate() {
                let at = axis.between(pixel % output);
                assert!(
                    (found - (at.lower as f32 + at.weight)).abs() < 1e-5,
                    "{pixel} of {output}"
                );
            }
        }
    }
}
