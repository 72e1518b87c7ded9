//! Two-dimensional convolution, channels last.

use crate::device::KernelError;
use crate::kernels::MatrixMut;
use crate::kernels::MatrixView;
use crate::kernels::Multiply;
use crate::kernels::Threads;
use crate::kernels::window::WindowAxis;

/// Elements of unrolled patches that are multiplied at a time: 64 Ki floats stay in the second-level cache.
const PATCH_ELEMENTS: usize = 64 * 1024;

/// Multiplications that are worth handing to another thread.
const GRAIN_PRODUCTS: usize = 1 << 20;

/// A convolution whose shapes have been compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Convolution {
    /// Images.
    pub batch: usize,
    /// Windows over the rows.
    pub rows: WindowAxis,
    /// Windows over the columns.
    pub columns: WindowAxis,
    /// Channels of the image: a multiple of `filter_channels`, which is the number of groups.
    pub input_channels: usize,
    /// Channels of the filter.
    pub filter_channels: usize,
    /// Channels of the result: a multiple of the number of groups.
    pub output_channels: usize,
}

impl Convolution {
    /// `[batch, in rows, in columns, input_channels] * [window rows, window columns, filter_channels, output_channels]
    /// -> [batch, out rows, out columns, output_channels]` (TensorFlow `Conv2D`, `NHWC`: a correlation, the filter is
    /// not flipped). Nothing but the padding is zero.
    ///
    /// # Errors
    /// [`KernelError::InvalidArgument`] if a slice has another length than its shape, or channels do not divide.
    pub fn apply<T: Multiply>(
        &self,
        input: &[T],
        filter: &[T],
        out: &mut [T],
        threads: Threads<'_>,
    ) -> Result<(), KernelError> {
        self.check(input.len(), filter.len(), out.len())?;
        if out.is_empty() {
            return Ok(());
        }
        let taps = self.rows.size * self.columns.size;
        let n_pixels = out.len() / self.output_channels;
        if self.is_pointwise() {
            let lhs = MatrixView::row_major(input, n_pixels, self.input_channels)?;
            let rhs = MatrixView::row_major(filter, self.input_channels, self.output_channels)?;
            let mut out =
                MatrixMut::new(out, n_pixels, self.output_channels, self.output_channels)?;
            T::multiply(lhs, rhs, &mut out, threads);
            return Ok(());
        }
        // Each block of output pixels is one product per group; blocks are shared out, the products are not.
        let patch = taps * self.filter_channels;
        let block = (PATCH_ELEMENTS / patch).clamp(1, 1024).min(n_pixels);
        let grain = (GRAIN_PRODUCTS / patch).max(self.output_channels);
        threads.fill(out, self.output_channels, grain, |start, part| {
            let mut patches = vec![T::ZERO; block * patch];
            let first = start / self.output_channels;
            for (index, part) in part.chunks_mut(block * self.output_channels).enumerate() {
                self.block(input, filter, first + index * block, &mut patches, part);
            }
        });
        Ok(())
    }

    fn check(&self, input: usize, filter: usize, out: usize) -> Result<(), KernelError> {
        let product = |factors: [usize; 4]| {
            factors
                .iter()
                .try_fold(1usize, |product, &factor| product.checked_mul(factor))
        };
        let taps = [self.rows.size, self.columns.size];
        let shapes_hold = product([
            self.batch,
            self.rows.input,
            self.columns.input,
            self.input_channels,
        ]) == Some(input)
            && product([taps[0], taps[1], self.filter_channels, self.output_channels])
                == Some(filter)
            && product([
                self.batch,
                self.rows.output,
                self.columns.output,
                self.output_channels,
            ]) == Some(out);
        let divides = self.filter_channels > 0
            && self.input_channels.is_multiple_of(self.filter_channels)
            && (self.input_channels == 0
                || self
                    .output_channels
                    .is_multiple_of(self.input_channels / self.filter_channels));
        if shapes_hold && divides {
            Ok(())
        } else {
            Err(KernelError::invalid(format!(
                "{self:?} does not fit {input} input, {filter} filter and {out} output elements"
            )))
        }
    }

    /// Whether each output pixel depends on the input pixel at the same place alone.
    fn is_pointwise(&self) -> bool {
        let alone = |axis: &WindowAxis| {
            axis.size == 1 && axis.stride == 1 && axis.pad_before == 0 && axis.input == axis.output
        };
        alone(&self.rows) && alone(&self.columns) && self.filter_channels == self.input_channels
    }

    /// Output pixels `first..` into `out`.
    fn block<T: Multiply>(
        &self,
        input: &[T],
        filter: &[T],
        first: usize,
        patches: &mut [T],
        out: &mut [T],
    ) {
        let patch = self.rows.size * self.columns.size * self.filter_channels;
        let n_pixels = out.len() / self.output_channels;
        let n_groups = self.input_channels / self.filter_channels;
        let group_outputs = self.output_channels / n_groups.max(1);
        for group in 0..n_groups {
            for (index, patch) in patches.chunks_mut(patch).take(n_pixels).enumerate() {
                self.unroll(input, first + index, group * self.filter_channels, patch);
            }
            let expect = "`check` has compared all lengths";
            let channel = group * group_outputs;
            let lhs = MatrixView::row_major(patches, n_pixels, patch).expect(expect);
            let rhs = MatrixView::strided(
                &filter[channel..],
                patch,
                group_outputs,
                self.output_channels,
                1,
            )
            .expect(expect);
            let mut out = MatrixMut::new(
                &mut out[channel..],
                n_pixels,
                group_outputs,
                self.output_channels,
            )
            .expect(expect);
            T::multiply(lhs, rhs, &mut out, Threads::single());
        }
    }

    /// The elements under the window of one output pixel, in the order of the filter: row, column, channel.
    fn unroll<T: Multiply>(&self, input: &[T], pixel: usize, channel: usize, patch: &mut [T]) {
        let column = pixel % self.columns.output;
        let row = pixel / self.columns.output % self.rows.output;
        let image = pixel / self.columns.output / self.rows.output;
        let mut taps = patch.chunks_exact_mut(self.filter_channels);
        for y in 0..self.rows.size {
            let line = self
                .rows
                .input_of(row, y)
                .map(|y| (image * self.rows.input + y) * self.columns.input);
            for x in 0..self.columns.size {
                let Some(tap) = taps.next() else { return };
                match line.zip(self.columns.input_of(column, x)) {
                    Some((line, x)) => {
                        let start = (line + x) * self.input_channels + channel;
                        tap.copy_from_slice(&input[start..start + self.filter_channels]);
                    }
                    None => tap.fill(T::ZERO),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::kernels::window::Padding;
    use crate::kernels::window::WindowSpec;

    /// The plain twin.
    fn plain(c: &Convolution, input: &[f32], filter: &[f32]) -> Vec<f32> {
        let mut out = Vec::new();
        let n_groups = c.input_channels / c.filter_channels;
        for image in 0..c.batch {
            for row in 0..c.rows.output {
                for column in 0..c.columns.output {
                    for channel in 0..c.output_channels {
                        let group = channel / (c.output_channels / n_groups);
                        let mut sum = 0.0;
                        for y in 0..c.rows.size {
                            for x in 0..c.columns.size {
                                for z in 0..c.filter_channels {
                                    let at = |axis: &WindowAxis, output: usize, tap: usize| {
                                        isize::try_from(output * axis.stride + tap * axis.dilation)
                                            .unwrap()
                                            - isize::try_from(axis.pad_before).unwrap()
                                    };
                                    let (i, j) = (at(&c.rows, row, y), at(&c.columns, column, x));
                                    let (Ok(i), Ok(j)) = (usize::try_from(i), usize::try_from(j))
                                    else {
                                        continue;
                                    };
                                    if i >= c.rows.input || j >= c.columns.input {
                                        continue;
                                    }
                                    let pixel = (image * c.rows.input + i) * c.columns.input + j;
                                    let tap = (y * c.columns.size + x) * c.filter_channels + z;
                                    sum += input
                                        [pixel * c.input_channels + group * c.filter_channels + z]
                                        * filter[tap * c.output_channels + channel];
                                }
                            }
                        }
                        out.push(sum);
                    }
                }
            }
        }
        out
    }

    fn padding() -> impl Strategy<Value = Padding> {
        prop_oneof![
            Just(Padding::Same),
            Just(Padding::Valid),
            (0usize..3, 0usize..3).prop_map(|(a, b)| Padding::Explicit(a, b)),
        ]
    }

    fn axis() -> impl Strategy<Value = WindowAxis> {
        (0usize..9, 1usize..4, 1usize..4, 1usize..3, padding()).prop_filter_map(
            "a window that fits",
            |(input, size, stride, dilation, padding)| {
                WindowSpec {
                    size,
                    stride,
                    dilation,
                    padding,
                }
                .over(input)
                .ok()
            },
        )
    }

    proptest! {
        #[test]
        fn blocks_of_patches_agree_with_the_plain_loop(
            batch in 0usize..3, rows in axis(), columns in axis(),
            filter_channels in 1usize..4, n_groups in 1usize..3, group_outputs in 1usize..4,
        ) {
            let c = Convolution {
                batch, rows, columns,
                input_channels: filter_channels * n_groups,
                filter_channels,
                output_channels: group_outputs * n_groups,
            };
            // Small whole numbers: exact in any order of summation.
            let number = |i: usize| f32::from(u8::try_from(i * 7 % 5).unwrap()) - 2.0;
            let input: Vec<f32> = (0..batch * rows.input * columns.input * c.input_channels).map(number).collect();
            let filter: Vec<f32> =
                (3..3 + rows.size * columns.size * filter_channels * c.output_channels).map(number).collect();
            let mut out = vec![f32::NAN; batch * rows.output * columns.output * c.output_channels];
            c.apply(&input, &filter, &mut out, Threads::single()).unwrap();
            prop_assert_eq!(out, plain(&c, &input, &filter));
        }
    }

    #[test]
    fn slices_of_another_length_are_refused() {
        let axis = WindowSpec {
            size: 1,
            stride: 1,
            dilation: 1,
            padding: Padding::Valid,
        }
        .over(2)
        .unwrap();
        let c = Convolution {
            batch: 1,
            rows: axis,
            columns: axis,
            input_channels: 1,
            filter_channels: 1,
            output_channels: 1,
        };
        assert!(
            c.apply(&[1.0; 4], &[1.0], &mut [0.0; 4], Threads::single())
                .is_ok()
        );
        assert!(
            c.apply(&[1.0; 3], &[1.0], &mut [0.0; 4], Threads::single())
                .is_err()
        );
        assert!(
            c.apply(&[1.0; 4], &[1.0; 2], &mut [0.0; 4], Threads::single())
                .is_err()
        );
    }
}
