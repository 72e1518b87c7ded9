//! Pools: the largest, or the mean, of each window, channels last.

use std::ops::Range;

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
        self.windows(out, threads, |lines, columns, out, _: &mut ()| {
            out.fill(T::LOWEST);
            let mut is_first = true;
            for line in lines {
                let line = &input[line..];
                for x in columns.clone() {
                    let element = &line[x * self.channels..][..out.len()];
                    for (o, &x) in out.iter_mut().zip(element) {
                        if is_first || x > *o || o.is_not_a_number() {
                            *o = x;
                        }
                    }
                    is_first = false;
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
        self.windows(
            out,
            threads,
            |lines, columns, out, sums: &mut Vec<T::Wide>| {
                sums.clear();
                sums.resize(out.len(), T::Wide::ZERO);
                let mut count = 0i64;
                for line in lines {
                    let line = &input[line..];
                    for x in columns.clone() {
                        count += 1;
                        let element = &line[x * self.channels..][..out.len()];
                        for (sum, &x) in sums.iter_mut().zip(element) {
                            *sum = sum.plus(x.widen());
                        }
                    }
                }
                let count = T::Wide::from_i64(count);
                for (o, &sum) in out.iter_mut().zip(&*sums) {
                    *o = T::narrow(sum.over(count));
                }
            },
        );
    }

    /// Calls `fill(where the lines under the window start, its columns, channels of the result, scratch)` for all windows, on all
    /// threads.
    fn windows<T: Send, S: Default>(
        &self,
        out: &mut [T],
        threads: Threads<'_>,
        fill: impl Fn(Lines, Range<usize>, &mut [T], &mut S) + Sync,
    ) {
        if out.is_empty() {
            return;
        }
        threads.fill(out, self.channels, GRAIN, |start, part| {
            let mut scratch = S::default();
            let first = start / self.channels;
            let mut column = first % self.columns.output;
            let mut row = first / self.columns.output % self.rows.output;
            let mut image = first / self.columns.output / self.rows.output;
            for channels in part.chunks_exact_mut(self.channels) {
                let lines = Lines {
                    rows: self.rows.inputs_of(row),
                    first: image * self.rows.input,
                    len: self.columns.input * self.channels,
                };
                fill(
                    lines,
                    self.columns.inputs_of(column),
                    channels,
                    &mut scratch,
                );
                column += 1;
                if column == self.columns.output {
                    (column, row) = (0, row + 1);
                }
                if row == self.rows.output {
                    (row, image) = (0, image + 1);
                }
            }
        });
    }
}

/// Where the lines under a window start in the input.
#[derive(Debug, Clone)]
struct Lines {
    rows: Range<usize>,
    first: usize,
    len: usize,
}

impl Iterator for Lines {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let row = self.rows.next()?;
        Some((self.first + row) * self.len)
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
