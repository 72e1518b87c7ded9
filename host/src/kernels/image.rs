//! Image resizing.

use std::ops::Range;

use crate::kernels::Number;
use crate::kernels::Threads;

/// Minimum number of elements worth handing to another thread.
const GRAIN: usize = 16 * 1024;

/// Pixels of a line whose sources are computed at a time.
const RUN: usize = 512;

/// A resized axis (TensorFlow `ImageResizerState`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resize {
    /// Size before.
    pub input: usize,
    /// Size after; not 0.
    pub output: usize,
    /// Whether the first and the last pixel keep their positions.
    pub align_corners: bool,
    /// Whether the position of a pixel is its centre rather than its start.
    pub half_pixel_centers: bool,
}

/// A position between two pixels.
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
    /// Returns the number of input pixels per output pixel.
    pub fn scale(&self) -> f32 {
        if self.align_corners && self.output > 1 {
            self.input.saturating_sub(1) as f32 / (self.output - 1) as f32
        } else {
            self.input as f32 / self.output as f32
        }
    }

    /// Returns the two source pixels that an output pixel lies between.
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

    /// Returns the nearest source pixel of an output pixel.
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

    /// Calls `body` for each run of pixels of the axis, with the result of `find` for each pixel.
    fn for_each_run<P: Copy + Default>(
        &self,
        find: impl Fn(usize) -> P,
        mut body: impl FnMut(Range<usize>, &[P]),
    ) {
        // Computed once for all lines, without a table as long as the axis.
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

/// Resizes `[batch, rows, columns, channels]` by linear interpolation, in single precision
/// (TensorFlow `ResizeBilinear`).
///
/// # Panics
/// If the length of a slice does not match its shape.
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

/// Resizes `[batch, rows, columns, channels]` by the nearest pixel (TensorFlow
/// `ResizeNearestNeighbor`).
///
/// # Panics
/// If the length of a slice does not match its shape.
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

/// Calls `visit` with row and column of each pixel on the edges of a box: two corners, as y and x
/// from 0 to 1. Edges outside of the image are left out (TensorFlow `DrawBoundingBoxes`).
pub fn frame(
    rows: usize,
    columns: usize,
    [y1, x1, y2, x2]: [f32; 4],
    mut visit: impl FnMut(usize, usize),
) {
    let signed = |size: usize| i64::try_from(size).unwrap_or(i64::MAX);
    let (height, width) = (signed(rows), signed(columns));
    #[expect(clippy::cast_precision_loss, reason = "TensorFlow's arithmetic")]
    let place = |at: f32, size: i64| (at * (size - 1) as f32).to_i64();
    let (top, bottom) = (place(y1, height), place(y2, height));
    let (left, right) = (place(x1, width), place(x2, width));
    let is_outside = top >= height || bottom < 0 || left >= width || right < 0;
    if top > bottom || left > right || is_outside {
        return;
    }
    let mut draw = |row: i64, column: i64| {
        if let (Ok(row), Ok(column)) = (usize::try_from(row), usize::try_from(column)) {
            visit(row, column);
        }
    };
    for column in left.max(0)..=right.min(width - 1) {
        for row in [top, bottom]
            .into_iter()
            .filter(|row| (0..height).contains(row))
        {
            draw(row, column);
        }
    }
    for row in top.max(0)..=bottom.min(height - 1) {
        for column in [left, right]
            .into_iter()
            .filter(|column| (0..width).contains(column))
        {
            draw(row, column);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_pixels_cover_the_axis() {
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
