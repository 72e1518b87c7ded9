//! Max and mean pooling, channels last.

use crate::device::KernelError;
use crate::kernels::Arithmetic;
use crate::kernels::Number;
use crate::kernels::Real;
use crate::kernels::Threads;
use crate::kernels::simd::vectorize;
use crate::kernels::window::WindowAxis;
use crate::tensor::Element;

/// Minimum number of result elements worth handing to another thread.
const GRAIN: usize = 8 * 1024;

/// Minimum number of output lines that are distributed whole; fewer are split.
const N_LINES_MIN: usize = 16;

/// A pooling whose shapes have been checked; windows are not dilated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pool {
    /// Number of images.
    pub batch: usize,
    /// Windows over the rows.
    pub rows: WindowAxis,
    /// Windows over the columns.
    pub columns: WindowAxis,
    /// Number of channels.
    pub channels: usize,
}

impl Pool {
    /// Computes the largest element of each window (TensorFlow `MaxPool`, `NHWC`). The result is
    /// the lowest finite number if the window contains only padding, NaN and smaller values.
    ///
    /// # Errors
    /// [`KernelError::Tensor`] if scratch memory runs out.
    ///
    /// # Panics
    /// If the length of a slice does not match its shape.
    pub fn max<T: Number>(
        &self,
        input: &[T],
        out: &mut [T],
        threads: Threads<'_>,
    ) -> Result<(), KernelError> {
        let larger = |largest: T, x: T| if x > largest { x } else { largest };
        let fold = Fold {
            start: |x| larger(T::LOWEST_FINITE, x),
            plus: larger,
            end: |largest: Option<T>, _| largest.unwrap_or(T::LOWEST_FINITE),
        };
        self.windows(input, out, threads, &fold)
    }

    /// Computes the mean of the elements of each window outside the padding (TensorFlow `AvgPool`,
    /// `NHWC`). Sums of `f16` and `bf16` are kept in `f32`.
    ///
    /// # Errors
    /// [`KernelError::Tensor`] if scratch memory runs out.
    ///
    /// # Panics
    /// If the length of a slice does not match its shape.
    pub fn mean<T: Real>(
        &self,
        input: &[T],
        out: &mut [T],
        threads: Threads<'_>,
    ) -> Result<(), KernelError> {
        let fold = Fold {
            start: T::widen,
            plus: T::Wide::plus,
            end: |sum: Option<T::Wide>, n: i64| {
                T::narrow(sum.unwrap_or(T::Wide::ZERO).over(T::Wide::from_i64(n)))
            },
        };
        self.windows(input, out, threads, &fold)
    }

    /// Folds all windows, on all threads. The input lines under a line of windows are folded first,
    /// because adjacent lines are contiguous.
    fn windows<T: Element, S: Element>(
        &self,
        input: &[T],
        out: &mut [T],
        threads: Threads<'_>,
        fold: &Fold<
            impl Fn(T) -> S + Sync,
            impl Fn(S, S) -> S + Sync,
            impl Fn(Option<S>, i64) -> T + Sync,
        >,
    ) -> Result<(), KernelError> {
        if out.is_empty() {
            return Ok(());
        }
        let lines_or_pixels = if self.batch * self.rows.output < N_LINES_MIN {
            self.channels
        } else {
            self.columns.output * self.channels
        };
        threads.try_fill(out, lines_or_pixels, GRAIN, |start, part| {
            let mut folded = threads.scratch::<S>(self.columns.input * self.channels)?;
            let mut window = threads.scratch::<S>(self.channels)?;
            let (mut pixel, mut rest) = (start / self.channels, part);
            while !rest.is_empty() {
                let (line, column) = (pixel / self.columns.output, pixel % self.columns.output);
                let n = (self.columns.output - column).min(rest.len() / self.channels);
                let (out, others) = rest.split_at_mut(n * self.channels);
                vectorize::<S, _>(|| {
                    self.line(input, line, column, out, fold, &mut folded, &mut window);
                });
                (pixel, rest) = (pixel + n, others);
            }
            Ok(())
        })
    }

    /// Folds adjacent windows, from `column` of output line `line` on.
    #[inline(always)]
    #[expect(clippy::too_many_arguments, reason = "two of them are scratch")]
    fn line<T: Element, S: Element>(
        &self,
        input: &[T],
        line: usize,
        column: usize,
        out: &mut [T],
        fold: &Fold<impl Fn(T) -> S, impl Fn(S, S) -> S, impl Fn(Option<S>, i64) -> T>,
        folded: &mut [S],
        scratch: &mut [S],
    ) {
        let (image, row) = (line / self.rows.output, line % self.rows.output);
        let rows = self.rows.inputs_of(row);
        if rows.is_empty() {
            out.fill((fold.end)(None, 0));
            return;
        }
        let n_columns = out.len() / self.channels;
        let left = self.columns.inputs_of(column).start.min(self.columns.input);
        let right = self.columns.inputs_of(column + n_columns - 1).end.max(left);
        let len = self.columns.input * self.channels;
        let top = (image * self.rows.input + rows.start) * len;
        let lines = input[top..top + rows.len() * len].chunks_exact(len.max(1));
        fold.pixels(
            lines.map(|line| &line[left * self.channels..right * self.channels]),
            folded,
        );
        for (column, out) in (column..).zip(out.chunks_exact_mut(self.channels)) {
            let columns = self.columns.inputs_of(column);
            if columns.is_empty() {
                out.fill((fold.end)(None, 0));
                continue;
            }
            let n = i64::try_from(rows.len() * columns.len())
                .expect("windows are smaller than tensors");
            let pixels =
                (columns.start - left) * self.channels..(columns.end - left) * self.channels;
            fold.window(&folded[pixels], n, out, scratch);
        }
    }
}

/// How the elements of a window are combined: `end(plus(start(a), start(b)) .., count)`.
struct Fold<Start, Plus, End> {
    start: Start,
    plus: Plus,
    end: End,
}

impl<Start, Plus, End> Fold<Start, Plus, End> {
    /// Folds lines of equal length into one.
    #[inline(always)]
    fn pixels<'a, T: Element, S: Element>(
        &self,
        mut lines: impl Iterator<Item = &'a [T]>,
        folded: &mut [S],
    ) where
        Start: Fn(T) -> S,
        Plus: Fn(S, S) -> S,
    {
        let first = lines.next().unwrap_or_default();
        for (folded, &x) in folded.iter_mut().zip(first) {
            *folded = (self.start)(x);
        }
        for line in lines {
            for (folded, &x) in folded.iter_mut().zip(line) {
                *folded = (self.plus)(*folded, (self.start)(x));
            }
        }
    }

    /// Folds pixels, which have `n` elements per channel, into one. `scratch` has as many elements;
    /// its contents do not matter.
    #[inline(always)]
    fn window<T: Element, S: Element>(&self, pixels: &[S], n: i64, out: &mut [T], scratch: &mut [S])
    where
        Plus: Fn(S, S) -> S,
        End: Fn(Option<S>, i64) -> T,
    {
        let (first, others) = pixels.split_at(out.len());
        // Most windows are two columns wide.
        if others.len() == out.len() {
            for ((out, &a), &b) in out.iter_mut().zip(first).zip(others) {
                *out = (self.end)(Some((self.plus)(a, b)), n);
            }
            return;
        }
        scratch.copy_from_slice(first);
        for pixel in others.chunks_exact(out.len()) {
            for (folded, &x) in scratch.iter_mut().zip(pixel) {
                *folded = (self.plus)(*folded, x);
            }
        }
        for (out, &folded) in out.iter_mut().zip(&*scratch) {
            *out = (self.end)(Some(folded), n);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::kernels::window::WindowSpec;
    use crate::ops::Padding;

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
    fn means_exclude_the_padding() {
        let input = [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0];
        let mut out = [0.0; 4];
        pool(Padding::Same)
            .mean(&input, &mut out, Threads::single())
            .unwrap();
        assert_eq!(out, [3.0, 4.5, 7.5, 9.0]);
        let mut out = [0.0; 1];
        pool(Padding::Valid)
            .mean(&input, &mut out, Threads::single())
            .unwrap();
        assert_eq!(out, [3.0]);
    }

    #[test]
    fn the_padding_is_never_the_maximum() {
        let mut out = [0; 4];
        pool(Padding::Same)
            .max(
                &[-9i32, -8, -7, -6, -5, -4, -3, -2, -1],
                &mut out,
                Threads::single(),
            )
            .unwrap();
        assert_eq!(out, [-5, -4, -2, -1]);
    }

    fn axis() -> impl Strategy<Value = WindowAxis> {
        let padding = prop_oneof![
            Just(Padding::Same),
            Just(Padding::Valid),
            (0usize..5, 0usize..5).prop_map(|(before, after)| Padding::Explicit(before, after)),
        ];
        (0usize..8, 1usize..5, 1usize..4, padding).prop_filter_map(
            "a window that fits",
            |(input, size, stride, padding)| {
                WindowSpec {
                    size,
                    stride,
                    dilation: 1,
                    padding,
                }
                .over(input)
                .ok()
            },
        )
    }

    /// Returns the elements of each window outside the padding, window by window.
    fn plain(pool: &Pool, input: &[f32]) -> Vec<Vec<f32>> {
        let mut windows = Vec::new();
        for image in 0..pool.batch {
            for row in 0..pool.rows.output {
                for column in 0..pool.columns.output {
                    for channel in 0..pool.channels {
                        let mut window = Vec::new();
                        for y in 0..pool.rows.size {
                            for x in 0..pool.columns.size {
                                let y = pool.rows.input_of(row, y);
                                let Some((y, x)) = y.zip(pool.columns.input_of(column, x)) else {
                                    continue;
                                };
                                let pixel = (image * pool.rows.input + y) * pool.columns.input + x;
                                window.push(input[pixel * pool.channels + channel]);
                            }
                        }
                        windows.push(window);
                    }
                }
            }
        }
        windows
    }

    proptest! {
        #[test]
        fn lines_first_agrees_with_window_by_window(
            batch in 0usize..3, rows in axis(), columns in axis(), channels in 1usize..20, seed in 0u8..7,
        ) {
            let pool = Pool { batch, rows, columns, channels };
            // Small whole numbers are exact in any order of summation; some elements are NaN.
            let input: Vec<f32> = (0..batch * rows.input * columns.input * channels)
                .map(|i| f32::from(u8::try_from((i * 7 + usize::from(seed)) % 11).unwrap()) - 5.0)
                .collect();
            let with_nan: Vec<f32> =
                input.iter().map(|&x| if x > 1.0 { f32::NAN } else { x }).collect();
            let mut out = vec![7.0; batch * rows.output * columns.output * channels];
            let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            // 0 / 0 has a different sign than the constant.
            let canonical = |x: f32| if x.is_nan() { f32::NAN } else { x };

            pool.mean(&input, &mut out, Threads::single()).unwrap();
            let expected = plain(&pool, &input).into_iter().map(|window| {
                let n = f32::from(u8::try_from(window.len()).unwrap());
                canonical(window.iter().sum::<f32>() / n)
            });
            let found: Vec<f32> = out.iter().copied().map(canonical).collect();
            // Adding 0 gives both zeros one sign.
            let expected: Vec<f32> = expected.map(|x| x + 0.0).collect();
            let found: Vec<f32> = found.into_iter().map(|x| x + 0.0).collect();
            prop_assert_eq!(bits(&found), bits(&expected));

            // The result must be the same from any window on.
            let middle = out.len() / channels / 2;
            if middle > 0 {
                let (line, column) = (middle / columns.output, middle % columns.output);
                let mut part = vec![f32::NAN; (columns.output - column) * channels];
                let fold = Fold { start: |x: f32| x, plus: |a, b| a + b, end: |sum: Option<f32>, _| sum.unwrap_or(0.0) };
                pool.line(&input, line, column, &mut part, &fold, &mut vec![0.0; columns.input * channels], &mut vec![0.0; channels]);
                let sums: Vec<f32> = plain(&pool, &input)
                    .iter()
                    .skip(middle * channels)
                    .take(part.len())
                    .map(|window| window.iter().sum::<f32>())
                    .collect();
                prop_assert_eq!(part, sums);
            }

            pool.max(&with_nan, &mut out, Threads::single()).unwrap();
            let expected: Vec<f32> = plain(&pool, &with_nan)
                .into_iter()
                .map(|window| window.into_iter().fold(f32::MIN, f32::max))
                .collect();
            prop_assert_eq!(bits(&out), bits(&expected));
        }
    }
}
