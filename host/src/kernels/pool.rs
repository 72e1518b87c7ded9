//! Pools: the largest, or the mean, of each window, channels last.

use crate::kernels::Number;
use crate::kernels::Real;
use crate::kernels::Threads;
use crate::kernels::window::WindowAxis;

/// Elements of a result that are worth handing to another thread.
const GRAIN: usize = 8 * 1024;

/// A pool whose shapes have been compared; windows are not dilated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pool {
    /// Images.
    pub batch: usize,
    /// Windows over the rows.
    pub rows: WindowAxis,
    /// Windows over the columns.
    pub columns: WindowAxis,
    /// Channels.
    pub channels: usize,
}

impl Pool {
    /// The largest element of each window (TensorFlow `MaxPool`, `NHWC`). The padding never wins; neither does a NaN,
    /// unless it stands alone.
    ///
    /// # Panics
    /// If a slice has another length than its shape.
    pub fn max<T: Number>(&self, input: &[T], out: &mut [T], threads: Threads<'_>) {
        self.windows(out, threads, |window, out| {
            out.fill(T::LOWEST);
            for (n, element) in self.elements(window).enumerate() {
                for (o, &x) in out.iter_mut().zip(&input[element..]) {
                    if n == 0 || x > *o || o.is_not_a_number() {
                        *o = x;
                    }
                }
            }
        });
    }

    /// The mean of the elements of each window that are not in the padding (TensorFlow `AvgPool`, `NHWC`); sums of short
    /// floats are kept in `f32`.
    ///
    /// # Panics
    /// If a slice has another length than its shape.
    pub fn mean<T: Real>(&self, input: &[T], out: &mut [T], threads: Threads<'_>) {
        self.windows(out, threads, |window, out| {
            let mut sums = vec![T::Wide::ZERO; out.len()];
            let mut count = 0i64;
            for element in self.elements(window) {
                count += 1;
                for (sum, &x) in sums.iter_mut().zip(&input[element..]) {
                    *sum = sum.plus(x.widen());
                }
            }
            let count = T::Wide::from_i64(count);
            for (o, sum) in out.iter_mut().zip(sums) {
                *o = T::narrow(sum.over(count));
            }
        });
    }

    /// Calls `fill(window, channels of the result)` for all windows, on all threads.
    fn windows<T: Send>(
        &self,
        out: &mut [T],
        threads: Threads<'_>,
        fill: impl Fn(usize, &mut [T]) + Sync,
    ) {
        if out.is_empty() {
            return;
        }
        threads.fill(out, self.channels, GRAIN, |start, part| {
            let first = start / self.channels;
            for (index, channels) in part.chunks_exact_mut(self.channels).enumerate() {
                fill(first + index, channels);
            }
        });
    }

    /// Where, in the input, the channels of each pixel under a window start.
    fn elements(&self, window: usize) -> impl Iterator<Item = usize> {
        let Self {
            rows,
            columns,
            channels,
            ..
        } = *self;
        let column = window % columns.output;
        let row = window / columns.output % rows.output;
        let image = window / columns.output / rows.output;
        rows.inputs_of(row).flat_map(move |y| {
            let line = (image * rows.input + y) * columns.input;
            columns
                .inputs_of(column)
                .map(move |x| (line + x) * channels)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::window::Padding;
    use crate::kernels::window::WindowSpec;

    fn pool(padding: Padding) -> Pool {
        let axis = WindowSpec {
            size: 2,
            stride: 2,
            dilation: 1,
            padding,
        }
        .over(3)
        .unwrap();
        Pool {
            batch: 1,
            rows: axis,
            columns: axis,
            channels: 1,
        }
    }

    #[test]
    fn means_leave_the_padding_out() {
        let input = [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0];
        let mut out = [0.0; 4];
        pool(Padding::Same).mean(&input, &mut out, Threads::single());
        assert_eq!(out, [3.0, 4.5, 7.5, 9.0]);
        let mut out = [0.0; 1];
        pool(Padding::Valid).mean(&input, &mut out, Threads::single());
        assert_eq!(out, [3.0]);
    }

    #[test]
    fn the_padding_is_never_the_largest() {
        let mut out = [0; 4];
        pool(Padding::Same).max(
            &[-9i32, -8, -7, -6, -5, -4, -3, -2, -1],
            &mut out,
            Threads::single(),
        );
        assert_eq!(out, [-5, -4, -2, -1]);
    }
}
