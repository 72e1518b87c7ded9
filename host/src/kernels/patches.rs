//! Windows over images, channels last, that are copied, or combined with positions or a filter.

use crate::kernels::Number;
use crate::kernels::Real;
use crate::kernels::Threads;
use crate::kernels::window::WindowAxis;

/// Minimum number of result elements worth handing to another thread.
const GRAIN: usize = 4 * 1024;

/// Windows over images whose shapes have been checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageWindows {
    /// Number of images.
    pub batch: usize,
    /// Windows over the rows.
    pub rows: WindowAxis,
    /// Windows over the columns.
    pub columns: WindowAxis,
    /// Number of channels.
    pub channels: usize,
}

impl ImageWindows {
    /// Returns the number of windows.
    pub fn n_windows(&self) -> usize {
        self.batch * self.rows.output * self.columns.output
    }

    /// Calls `visit` with each tap of a window in order, and its input pixel outside the padding.
    fn for_each_tap(&self, window: usize, mut visit: impl FnMut(usize, Option<usize>)) {
        let column = window % self.columns.output;
        let row = window / self.columns.output % self.rows.output;
        let image = window / self.columns.output / self.rows.output;
        for y in 0..self.rows.size {
            let line = self.rows.input_of(row, y);
            for x in 0..self.columns.size {
                let place = line.zip(self.columns.input_of(column, x));
                let pixel =
                    place.map(|(y, x)| (image * self.rows.input + y) * self.columns.input + x);
                visit(y * self.columns.size + x, pixel);
            }
        }
    }

    /// Copies the elements of each window: `[batch, out rows, out columns, taps * channels]`
    /// (TensorFlow `ExtractImagePatches`). Padding is the default value.
    ///
    /// # Panics
    /// If the length of a slice does not match its shape.
    pub fn extract<T: Copy + Default + Send + Sync>(
        &self,
        input: &[T],
        out: &mut [T],
        threads: Threads<'_>,
    ) {
        if out.is_empty() {
            return;
        }
        let channels = self.channels;
        let patch = self.rows.size * self.columns.size * channels;
        threads.fill(out, patch, GRAIN, |start, part| {
            for (index, patch) in part.chunks_exact_mut(patch).enumerate() {
                self.for_each_tap(start / patch.len() + index, |tap, pixel| {
                    let tap = &mut patch[tap * channels..][..channels];
                    match pixel {
                        Some(pixel) => tap.copy_from_slice(&input[pixel * channels..][..channels]),
                        None => tap.fill(T::default()),
                    }
                });
            }
        });
    }

    /// Computes the largest sum of an element and that of the filter at the same tap (TensorFlow
    /// `Dilation2D`); `filter` is `[taps, channels]`.
    ///
    /// # Panics
    /// If the length of a slice does not match its shape.
    pub fn dilate<T: Number>(
        &self,
        input: &[T],
        filter: &[T],
        out: &mut [T],
        threads: Threads<'_>,
    ) {
        if out.is_empty() {
            return;
        }
        let channels = self.channels;
        threads.fill(out, channels, GRAIN, |start, part| {
            for (index, out) in part.chunks_exact_mut(channels).enumerate() {
                out.fill(T::LOWEST_FINITE);
                self.for_each_tap(start / channels + index, |tap, pixel| {
                    let Some(pixel) = pixel else { return };
                    let pixel = &input[pixel * channels..][..channels];
                    let tap = &filter[tap * channels..][..channels];
                    for (slot, (&x, &weight)) in out.iter_mut().zip(pixel.iter().zip(tap)) {
                        let sum = x.plus(weight);
                        if sum > *slot {
                            *slot = sum;
                        }
                    }
                });
            }
        });
    }

    /// Finds the input element that is largest in each window, the first of equal ones (TensorFlow
    /// `MaxPoolWithArgmax`). `None` if there is none outside the padding.
    ///
    /// # Panics
    /// If the length of `input` does not match its shape, or the window or channel does not exist.
    pub fn largest<T: Number>(&self, input: &[T], window: usize, channel: usize) -> Option<usize> {
        let mut largest: Option<usize> = None;
        self.for_each_tap(window, |_, pixel| {
            let Some(pixel) = pixel else { return };
            let element = pixel * self.channels + channel;
            if largest.is_none_or(|largest| input[largest] < input[element]) {
                largest = Some(element);
            }
        });
        largest
    }

    /// Adds the gradient of each window to the input elements that it averages (TensorFlow
    /// `AvgPoolGrad`). `out` has the shape of the input, and is 0 before.
    ///
    /// # Panics
    /// If the length of a slice does not match its shape.
    pub fn spread_average<T: Real>(&self, gradients: &[T], out: &mut [T]) {
        let channels = self.channels;
        for window in 0..self.n_windows() {
            let mut n_taps = 0u32;
            self.for_each_tap(window, |_, pixel| n_taps += u32::from(pixel.is_some()));
            let n_taps = T::from_f64(n_taps.into());
            let gradients = &gradients[window * channels..][..channels];
            self.for_each_tap(window, |_, pixel| {
                let Some(pixel) = pixel else { return };
                for (slot, gradient) in out[pixel * channels..].iter_mut().zip(gradients) {
                    *slot = slot.plus(gradient.over(n_taps));
                }
            });
        }
    }
}
