//! Projective transforms of images.

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "TensorFlow's arithmetic: positions are single-precision numbers"
)]

use crate::kernels::Number;
use crate::kernels::Threads;

/// Minimum number of result elements worth handing to another thread.
const GRAIN: usize = 4 * 1024;

/// What is read outside of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outside {
    /// The fill value.
    Constant,
    /// The image, mirrored at its edges.
    Reflect,
    /// The image, repeated.
    Wrap,
    /// The nearest pixel of the image.
    Nearest,
}

impl Outside {
    /// Maps a position to one in the image, except for [`Self::Constant`].
    fn mapped(self, at: f32, len: usize) -> f32 {
        let last = len as f32 - 1.0;
        let inside = match self {
            Self::Constant => return at,
            Self::Nearest => at,
            Self::Reflect | Self::Wrap if len <= 1 && !(0.0..=last).contains(&at) => 0.0,
            Self::Reflect => {
                let (size, twice) = (len as f32, 2.0 * len as f32);
                if at < 0.0 {
                    let shifted = if at < twice {
                        twice * (-at / twice).trunc() + at
                    } else {
                        at
                    };
                    if shifted < -size {
                        shifted + twice
                    } else {
                        -shifted - 1.0
                    }
                } else if at > last {
                    let shifted = at - twice * (at / twice).trunc();
                    if shifted >= size {
                        twice - shifted - 1.0
                    } else {
                        shifted
                    }
                } else {
                    at
                }
            }
            Self::Wrap => {
                if at < 0.0 {
                    at + len as f32 * ((-at / last).trunc() + 1.0)
                } else if at > last {
                    at - len as f32 * (at / last).trunc()
                } else {
                    at
                }
            }
        };
        inside.min(last).max(0.0)
    }
}

/// A transform of images whose shapes have been checked.
#[derive(Debug, Clone, Copy)]
pub struct Projection {
    /// Rows and columns of an image.
    pub input: [usize; 2],
    /// Rows and columns of a result.
    pub output: [usize; 2],
    /// Number of channels.
    pub channels: usize,
    /// What is read outside of an image.
    pub outside: Outside,
    /// Whether a result is interpolated from four pixels; otherwise it is the nearest one.
    pub is_bilinear: bool,
}

impl Projection {
    /// Transforms `[batch, rows, columns, channels]` (TensorFlow `ImageProjectiveTransformV3`).
    /// `transforms` has eight numbers per image, or for all images.
    ///
    /// # Panics
    /// If the length of a slice does not match its shape.
    pub fn apply<T: Number>(
        &self,
        images: &[T],
        transforms: &[f32],
        fill: T,
        out: &mut [T],
        threads: Threads<'_>,
    ) {
        if out.is_empty() {
            return;
        }
        let [n_rows, n_columns] = self.output;
        threads.fill(out, self.channels, GRAIN, |start, part| {
            let first = start / self.channels;
            for (index, out) in part.chunks_exact_mut(self.channels).enumerate() {
                let pixel = first + index;
                let (x, y) = (pixel % n_columns, pixel / n_columns % n_rows);
                let image = pixel / n_columns / n_rows;
                let transform = match transforms.len() {
                    8 => transforms,
                    _ => &transforms[image * 8..][..8],
                };
                match source(transform, x as f32, y as f32) {
                    Some([x, y]) => {
                        let y = self.outside.mapped(y, self.input[0]);
                        let x = self.outside.mapped(x, self.input[1]);
                        self.pixel(images, image, [y, x], fill, out);
                    }
                    None => out.fill(fill),
                }
            }
        });
    }

    /// Computes a pixel of the result from that around a position of the image.
    fn pixel<T: Number>(&self, images: &[T], image: usize, at: [f32; 2], fill: T, out: &mut [T]) {
        let [n_rows, n_columns] = self.input;
        let place = |[y, x]: [f32; 2]| {
            let is_inside =
                (0.0..n_rows as f32).contains(&y) && (0.0..n_columns as f32).contains(&x);
            let index = |at: f32| usize::try_from(at.to_i64()).unwrap_or(0);
            is_inside.then(|| (image * n_rows + index(y)) * n_columns + index(x))
        };
        let read = |place: Option<usize>, channel: usize| {
            place.map_or(fill, |pixel| images[pixel * self.channels + channel])
        };
        let [y, x] = at;
        if !self.is_bilinear {
            let place = place([y.round(), x.round()]);
            for (channel, slot) in out.iter_mut().enumerate() {
                *slot = read(place, channel);
            }
            return;
        }
        let (top, left) = (y.floor(), x.floor());
        let (bottom, right) = (top + 1.0, left + 1.0);
        let corners = [[top, left], [top, right], [bottom, left], [bottom, right]].map(place);
        for (channel, slot) in out.iter_mut().enumerate() {
            let [a, b, c, d] = corners.map(|corner| read(corner, channel).to_f64() as f32);
            let upper = (right - x) * a + (x - left) * b;
            let lower = (right - x) * c + (x - left) * d;
            *slot = T::from_f64(((bottom - y) * upper + (y - top) * lower).into());
        }
    }
}

/// Returns the position, x and y, that an output pixel is read from; `None` if it is at infinity.
fn source(transform: &[f32], x: f32, y: f32) -> Option<[f32; 2]> {
    let scale = transform[6] * x + transform[7] * y + 1.0;
    (scale != 0.0).then(|| {
        [
            (transform[0] * x + transform[1] * y + transform[2]) / scale,
            (transform[3] * x + transform[4] * y + transform[5]) / scale,
        ]
    })
}
