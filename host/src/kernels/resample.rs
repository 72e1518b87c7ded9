//! Resizing of images by areas and by cubic interpolation, and resized parts of images, channels
//! last.

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "TensorFlow's arithmetic: positions are single-precision numbers inside of an image"
)]

use crate::kernels::Number;
use crate::kernels::Threads;

/// Minimum number of result elements worth handing to another thread.
const GRAIN: usize = 2 * 1024;

/// Positions per pixel for which the weights of cubic interpolation are computed.
const CUBIC_STEPS: f32 = 1024.0;

/// Where the pixels of a result are on an axis of the image.
#[derive(Debug, Clone, Copy)]
pub struct Axis {
    /// Pixels of the image.
    pub input: usize,
    /// Pixels of the result.
    pub output: usize,
    /// Pixels of the image per pixel of the result.
    pub scale: f32,
    /// Whether the position of a pixel is its centre rather than its start.
    pub is_centered: bool,
}

/// Four pixels of an axis and their weights.
type Taps = [(usize, f32); 4];

impl Axis {
    /// Returns the pixels and weights of cubic interpolation (TensorFlow `ResizeBicubic`). With
    /// centred pixels, those outside of the image have no weight.
    pub fn cubic(&self, pixel: usize) -> Taps {
        let at = match self.is_centered {
            true => (pixel as f32 + 0.5) * self.scale - 0.5,
            false => pixel as f32 * self.scale,
        };
        let first = at.floor();
        let step = ((at - first) * CUBIC_STEPS).round_ties_even() / CUBIC_STEPS;
        let a = if self.is_centered { -0.5 } else { -0.75 };
        let near = |x: f32| ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0;
        let far = |x: f32| ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a;
        let weights = [
            far(step + 1.0),
            near(step),
            near(1.0 - step),
            far(2.0 - step),
        ];
        let last = self.input as f32 - 1.0;
        let mut taps = [0usize, 1, 2, 3].map(|tap| {
            let wanted = first - 1.0 + tap as f32;
            let found = wanted.min(last).max(0.0);
            let counts = !self.is_centered || found == wanted;
            (found as usize, if counts { weights[tap] } else { 0.0 })
        });
        let sum: f32 = taps.iter().map(|(_, weight)| weight).sum();
        if self.is_centered && sum.abs() >= 1000.0 * f32::MIN_POSITIVE {
            for (_, weight) in &mut taps {
                *weight /= sum;
            }
        }
        taps
    }

    /// Calls `visit` with the pixels that a pixel of the result covers, and how much of each
    /// (TensorFlow `ResizeArea`).
    fn area(&self, pixel: usize, mut visit: impl FnMut(usize, f32)) {
        if self.scale == 0.0 {
            // Corners are aligned, and the image has one pixel.
            return visit(0, 1.0);
        }
        let (start, end) = (pixel as f32 * self.scale, (pixel + 1) as f32 * self.scale);
        let mut at = start.floor();
        while at < end.ceil() {
            let part = (at + 1.0).min(end) - at.max(start);
            visit((at as usize).min(self.input.saturating_sub(1)), part);
            at += 1.0;
        }
    }
}

fn single<T: Number>(x: T) -> f32 {
    x.to_f64() as f32
}

/// Calls `fill` for each pixel of `[batch, rows, columns, channels]`: with the image, row and
/// column of it, and its channels.
fn each_pixel(
    [rows, columns]: [&Axis; 2],
    channels: usize,
    out: &mut [f32],
    threads: Threads<'_>,
    fill: impl Fn(usize, [usize; 2], &mut [f32]) + Sync,
) {
    if out.is_empty() {
        return;
    }
    threads.fill(out, channels, GRAIN, |start, part| {
        for (index, out) in part.chunks_exact_mut(channels).enumerate() {
            let pixel = start / channels + index;
            let (line, column) = (pixel / columns.output, pixel % columns.output);
            fill(line / rows.output, [line % rows.output, column], out);
        }
    });
}

/// Resizes by cubic interpolation (TensorFlow `ResizeBicubic`).
///
/// # Panics
/// If the length of a slice does not match its shape.
pub fn resize_cubic<T: Number>(
    input: &[T],
    [rows, columns]: [&Axis; 2],
    channels: usize,
    out: &mut [f32],
    threads: Threads<'_>,
) {
    each_pixel(
        [rows, columns],
        channels,
        out,
        threads,
        |image, [y, x], out| {
            let (ys, xs) = (rows.cubic(y), columns.cubic(x));
            out.fill(0.0);
            for (x, of_x) in xs {
                for (channel, slot) in out.iter_mut().enumerate() {
                    let along = ys.map(|(y, weight)| {
                        let pixel = (image * rows.input + y) * columns.input + x;
                        weight * single(input[pixel * channels + channel])
                    });
                    *slot += of_x * along.iter().sum::<f32>();
                }
            }
        },
    );
}

/// Resizes by the mean of the area under each pixel (TensorFlow `ResizeArea`).
///
/// # Panics
/// If the length of a slice does not match its shape.
pub fn resize_area<T: Number>(
    input: &[T],
    [rows, columns]: [&Axis; 2],
    channels: usize,
    out: &mut [f32],
    threads: Threads<'_>,
) {
    let length = |axis: &Axis| if axis.scale == 0.0 { 1.0 } else { axis.scale };
    let whole = 1.0 / (length(rows) * length(columns));
    each_pixel(
        [rows, columns],
        channels,
        out,
        threads,
        |image, [y, x], out| {
            out.fill(0.0);
            rows.area(y, |y, of_y| {
                columns.area(x, |x, of_x| {
                    let pixel = (image * rows.input + y) * columns.input + x;
                    let pixel = &input[pixel * channels..][..channels];
                    for (slot, &x) in out.iter_mut().zip(pixel) {
                        *slot += single(x) * of_y * of_x * whole;
                    }
                });
            });
        },
    );
}

/// Resized parts of images (TensorFlow `CropAndResize`).
#[derive(Debug, Clone, Copy)]
pub struct Crops {
    /// Rows and columns of an image.
    pub input: [usize; 2],
    /// Rows and columns of a part.
    pub output: [usize; 2],
    /// Number of channels.
    pub channels: usize,
    /// Whether results are interpolated from four pixels; otherwise they are the nearest one.
    pub is_bilinear: bool,
    /// Value outside of an image.
    pub outside: f32,
}

impl Crops {
    /// Returns the position on an axis that pixel `pixel` of a part from `start` to `end` is read
    /// from; `None` outside of the image.
    fn position(&self, axis: usize, pixel: usize, [start, end]: [f32; 2]) -> Option<f32> {
        let last = self.input[axis] as f32 - 1.0;
        let n = self.output[axis];
        let at = if n > 1 {
            start * last + pixel as f32 * ((end - start) * last / (n - 1) as f32)
        } else {
            0.5 * (start + end) * last
        };
        (0.0..=last).contains(&at).then_some(at)
    }

    /// Cuts out the parts; `boxes` has two corners, as y and x from 0 to 1, for each of `images`.
    ///
    /// # Panics
    /// If the length of a slice does not match its shape, or an image does not exist.
    pub fn apply<T: Number>(
        &self,
        input: &[T],
        boxes: &[f32],
        images: &[usize],
        out: &mut [f32],
        threads: Threads<'_>,
    ) {
        if out.is_empty() {
            return;
        }
        let ([n_rows, n_columns], channels) = (self.input, self.channels);
        threads.fill(out, channels, GRAIN, |start, part| {
            for (index, out) in part.chunks_exact_mut(channels).enumerate() {
                let pixel = start / channels + index;
                let (line, x) = (pixel / self.output[1], pixel % self.output[1]);
                let (part, y) = (line / self.output[0], line % self.output[0]);
                let corners = &boxes[part * 4..][..4];
                let place = self
                    .position(0, y, [corners[0], corners[2]])
                    .zip(self.position(1, x, [corners[1], corners[3]]));
                let Some((y, x)) = place else {
                    out.fill(self.outside);
                    continue;
                };
                let read = |y: f32, x: f32, channel: usize| {
                    let pixel = (images[part] * n_rows + y as usize) * n_columns + x as usize;
                    single(input[pixel * channels + channel])
                };
                for (channel, slot) in out.iter_mut().enumerate() {
                    *slot = if self.is_bilinear {
                        let along = |y: f32| {
                            let from = read(y, x.floor(), channel);
                            from + (read(y, x.ceil(), channel) - from) * (x - x.floor())
                        };
                        let from = along(y.floor());
                        from + (along(y.ceil()) - from) * (y - y.floor())
                    } else {
                        read(y.round(), x.round(), channel)
                    };
                }
            }
        });
    }
}
