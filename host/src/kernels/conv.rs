//! Two-dimensional convolution, channels last.

use std::ops::Range;

use crate::device::KernelError;
use crate::kernels::MatmulElement;
use crate::kernels::MatrixMut;
use crate::kernels::MatrixView;
use crate::kernels::Scratch;
use crate::kernels::Threads;
use crate::kernels::parallel::even_part;
use crate::kernels::parallel::longest_share;
use crate::kernels::simd::Epilogue;
use crate::kernels::simd::Prepacked;
use crate::kernels::simd::RowStarts;
use crate::kernels::simd::Rows;
use crate::kernels::simd::Segment;
use crate::kernels::simd::matmul_prepacked;
use crate::kernels::window::WindowAxis;

/// Elements of im2col patches per matmul: 64 Ki floats stay in the L2 cache.
const PATCH_ELEMENTS: usize = 64 * 1024;

/// Minimum multiply-adds worth handing to another thread.
const GRAIN_MACS: usize = 1 << 20;

/// Maximum multiply-adds of a band; a line of windows with more is split.
const BAND_MACS: usize = 1 << 28;

/// Parts of lines consist of this many pixels: whole tiles of 6 or 8.
const TILE_PIXELS: usize = 24;

/// A convolution whose shapes have been checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Convolution {
    /// Number of images.
    pub batch: usize,
    /// Windows over the rows.
    pub rows: WindowAxis,
    /// Windows over the columns.
    pub columns: WindowAxis,
    /// Channels of the image: a multiple of `filter_channels`. The quotient is the number of
    /// groups.
    pub input_channels: usize,
    /// Channels of the filter.
    pub filter_channels: usize,
    /// Channels of the result: a multiple of the number of groups.
    pub output_channels: usize,
}

impl Convolution {
    /// Computes
    /// `[batch, in rows, in columns, input_channels] * [window rows, window columns,
    /// filter_channels, output_channels] -> [batch, out rows, out columns, output_channels]`
    /// (TensorFlow `Conv2D`, `NHWC`: a correlation, the filter is not flipped). Padding is zero.
    ///
    /// # Errors
    /// [`KernelError::InvalidArgument`] if the length of a slice does not match its shape, or
    /// channels do not divide; [`KernelError::Tensor`] if scratch memory runs out.
    pub fn apply<T: MatmulElement>(
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
            return T::matmul(lhs, rhs, &mut out, threads);
        }
        // Each block of output pixels is one matmul per group. Threads share the blocks; a matmul
        // runs on one thread.
        let patch = taps * self.filter_channels;
        let block = (PATCH_ELEMENTS / patch).clamp(1, 1024).min(n_pixels);
        let grain = (GRAIN_MACS / patch).max(self.output_channels);
        threads.try_fill(out, self.output_channels, grain, |start, part| {
            let mut patches = threads.scratch::<T>(block * patch)?;
            let first = start / self.output_channels;
            for (index, part) in part.chunks_mut(block * self.output_channels).enumerate() {
                let first = first + index * block;
                self.block(input, filter, first, &mut patches, part, threads.alone())?;
                // A window may be as large as a tensor, and then one pixel takes longer than any
                // estimate.
                if patch >= PATCH_ELEMENTS && threads.is_interrupted() {
                    break;
                }
            }
            Ok(())
        })
    }

    /// Returns whether [`Self::apply_prepacked`] may be used: there is one group, and the windows
    /// cover little padding.
    pub fn is_dense(&self) -> bool {
        // The bound uses the undilated window: padding and dilation may be arbitrarily large, but
        // the copied area must not.
        let is_dense = |axis: &WindowAxis| {
            let most = axis.input.saturating_add(axis.size).saturating_mul(4);
            axis.span(axis.output) <= most
        };
        let area = |rows: usize, columns: usize| rows.saturating_mul(columns);
        // One line of windows may be as high as the image and as wide as the window, and then
        // larger than both.
        let line = area(self.rows.span(1), self.columns.span(self.columns.output));
        let tensors = area(self.rows.input, self.columns.input)
            .saturating_add(area(self.rows.size, self.columns.size))
            .saturating_add(area(self.rows.output, self.columns.output));
        self.filter_channels == self.input_channels
            && is_dense(&self.rows)
            && is_dense(&self.columns)
            && line <= tensors.saturating_mul(16)
    }

    /// Computes the same, and the epilogue of it, with a filter of one group that
    /// [`matmul::prepack`](crate::kernels::matmul::prepack) has prepacked, as a
    /// `[window rows * window columns * filter_channels, output_channels]` matrix.
    ///
    /// # Errors
    /// [`KernelError::InvalidArgument`] if the length of a slice does not match its shape, or the
    /// convolution is not [`Self::is_dense`]; [`KernelError::Tensor`] if scratch memory runs out.
    pub fn apply_prepacked(
        &self,
        input: &[f32],
        filter: &[f32],
        epilogue: Option<Epilogue<'_>>,
        out: &mut [f32],
        threads: Threads<'_>,
    ) -> Result<(), KernelError> {
        let patch = self.rows.size * self.columns.size * self.filter_channels;
        self.check(input.len(), patch * self.output_channels, out.len())?;
        let filter = Prepacked::new(filter, patch, self.output_channels)
            .filter(|_| self.is_dense())
            .filter(|_| {
                let n_pixels = out.len() / self.output_channels.max(1);
                epilogue.is_none_or(|it| it.fits(n_pixels, self.output_channels))
            })
            .ok_or_else(|| {
                KernelError::invalid(format!("the prepacked filter does not match {self:?}"))
            })?;
        if out.is_empty() {
            return Ok(());
        }
        // A large filter is read once for all pixels: threads share its columns.
        if patch * self.output_channels >= input.len().saturating_add(out.len()) {
            return self.pixels(input, filter, epilogue, 0, out, threads);
        }
        // Narrow filters use only a part of their vectors.
        let width = self.output_channels.next_multiple_of(8);
        let grain = GRAIN_MACS / patch.max(1) * self.output_channels / width;
        let n_threads = threads.n_threads();
        let part_len = |n_parts| self.part_pixels(n_parts, n_threads) * self.output_channels;
        let shared = threads.uninterrupted();
        shared.try_fill_in(out, grain, part_len, |start, part| {
            let first = start / self.output_channels;
            let epilogue = epilogue.map(|it| it.of_rows(start, part.len()));
            self.pixels(input, filter, epilogue, first, part, threads.alone())
        })
    }

    /// Returns the number of output pixels of each part, if some `n_parts` parts are shared by
    /// `n_threads`: whole lines, which read the padded lines under them together, unless some
    /// threads would then have more to do than others.
    fn part_pixels(&self, n_parts: usize, n_threads: usize) -> usize {
        let n_lines = self.batch * self.rows.output;
        let lines = even_part(n_lines, 1, n_parts, n_threads);
        if longest_share(n_lines, lines, n_threads) * n_threads * 16 <= n_lines * 17 {
            return lines * self.columns.output;
        }
        even_part(
            n_lines * self.columns.output,
            TILE_PIXELS,
            n_parts,
            n_threads,
        )
    }

    /// Computes output pixels, from pixel `first` of the batch on, until the run is interrupted.
    /// The epilogue is that of these pixels.
    fn pixels(
        &self,
        input: &[f32],
        filter: Prepacked<'_>,
        epilogue: Option<Epilogue<'_>>,
        first: usize,
        out: &mut [f32],
        threads: Threads<'_>,
    ) -> Result<(), KernelError> {
        let line = self.columns.output * self.output_channels;
        let patch = self.rows.size * self.columns.size * self.input_channels;
        // As many lines at a time as keep the padded input in the L2 cache. Each band reads the
        // filter: the input may take more room if that is large.
        let filter_elements = patch.saturating_mul(self.output_channels);
        let elements = filter_elements.clamp(PATCH_ELEMENTS, 4 * PATCH_ELEMENTS);
        let padded_line = self.padded_columns() * self.input_channels;
        let most = (elements / padded_line.saturating_mul(self.rows.stride).max(1)).max(1);
        // A line of windows may take minutes: each step is limited to a few ms.
        let n_columns_max = (BAND_MACS / patch.saturating_mul(self.output_channels).max(1)).max(1);
        let n_rows_max = most
            .min(self.rows.output)
            .min(out.len() / line.max(1))
            .max(1);
        let n_rows_max = n_rows_max.min((n_columns_max / self.columns.output.max(1)).max(1));
        let mut scratch = BandScratch::new(self, n_rows_max, n_columns_max, threads)?;
        let n_elements = out.len();
        let (mut pixel, mut rest) = (first, out);
        while !rest.is_empty() && !threads.is_interrupted() {
            let (line_of_batch, column) =
                (pixel / self.columns.output, pixel % self.columns.output);
            let (image, row) = (
                line_of_batch / self.rows.output,
                line_of_batch % self.rows.output,
            );
            // Whole lines, or a part of one.
            let n_left = rest.len() / self.output_channels;
            let (n_rows, n_columns) =
                if column == 0 && rest.len() >= line && n_columns_max >= self.columns.output {
                    let n_rows = (self.rows.output - row).min(rest.len() / line);
                    (n_rows.min(n_rows_max), self.columns.output)
                } else {
                    let n_columns = n_left.min(self.columns.output - column);
                    (1, n_columns.min(n_columns_max))
                };
            let start = n_elements - rest.len();
            let (band, others) = rest.split_at_mut(n_rows * n_columns * self.output_channels);
            let (rows, columns) = (row..row + n_rows, column..column + n_columns);
            self.band(
                input,
                filter,
                epilogue.map(|it| it.of_rows(start, band.len())),
                image,
                rows,
                columns,
                band,
                &mut scratch,
                threads,
            );
            (pixel, rest) = (pixel + n_rows * n_columns, others);
        }
        Ok(())
    }

    /// Computes some rows and columns of output pixels of one image: a matmul of the pixels under
    /// each window, read in place, with the filter.
    #[expect(
        clippy::too_many_arguments,
        reason = "two of them are scratch and threads"
    )]
    fn band(
        &self,
        input: &[f32],
        filter: Prepacked<'_>,
        epilogue: Option<Epilogue<'_>>,
        image: usize,
        rows: Range<usize>,
        columns: Range<usize>,
        out: &mut [f32],
        scratch: &mut BandScratch,
        threads: Threads<'_>,
    ) {
        let BandScratch {
            padded,
            padded_row,
            starts,
            segments,
        } = scratch;
        let (channels, image_index) = (self.input_channels, image);
        let image = &input[image * self.rows.input * self.columns.input * channels..]
            [..self.rows.input * self.columns.input * channels];
        let is_inside = self.rows.is_inside() && self.columns.is_inside();
        let (data, width, first_row) = if is_inside {
            (image, self.columns.input, rows.start * self.rows.stride)
        } else {
            let padded =
                &mut padded[..self.rows.span(rows.len()) * self.padded_columns() * channels];
            // Parts of one line of windows share the input lines under it.
            if *padded_row != Some((image_index, rows.clone())) {
                self.pad(image, &rows, padded);
                *padded_row = Some((image_index, rows.clone()));
            }
            (&*padded, self.padded_columns(), 0)
        };
        let n_starts = rows.len() * columns.len();
        let listed = starts[..n_starts].chunks_exact_mut(columns.len());
        for (row, starts) in listed.enumerate() {
            let line = (first_row + row * self.rows.stride) * width;
            for (start, column) in starts.iter_mut().zip(columns.clone()) {
                *start = (line + column * self.columns.stride) * channels;
            }
        }
        self.list_segments(width, segments);
        let lhs = Rows {
            data,
            starts: RowStarts::Listed(&starts[..n_starts]),
            segments,
        };
        let mut out = MatrixMut::new(out, n_starts, self.output_channels, self.output_channels)
            .expect("bands are whole lines");
        matmul_prepacked(lhs, filter, epilogue, &mut out, threads);
    }

    /// Lists the segments of the image, whose lines are `width` pixels wide, under a window.
    fn list_segments(&self, width: usize, segments: &mut [Segment]) {
        let channels = self.input_channels;
        if self.columns.dilation == 1 {
            for (y, segment) in segments.iter_mut().enumerate() {
                *segment = Segment {
                    offset: y * self.rows.dilation * width * channels,
                    len: self.columns.size * channels,
                };
            }
            return;
        }
        for (tap, segment) in segments.iter_mut().enumerate() {
            let (y, x) = (tap / self.columns.size, tap % self.columns.size);
            *segment = Segment {
                offset: (y * self.rows.dilation * width + x * self.columns.dilation) * channels,
                len: channels,
            };
        }
    }

    /// Returns the number of columns that the windows of one line cover, padding included.
    fn padded_columns(&self) -> usize {
        self.columns.span(self.columns.output)
    }

    /// Copies the pixels that the windows of these output rows cover, with zeros for the padding.
    fn pad(&self, image: &[f32], rows: &Range<usize>, padded: &mut [f32]) {
        let channels = self.input_channels;
        let (line, padded_line) = (
            self.columns.input * channels,
            self.padded_columns() * channels,
        );
        padded.fill(0.0);
        let before = self.columns.pad_before * channels;
        let n_copied = line.min(padded_line.saturating_sub(before));
        for (index, target) in padded.chunks_exact_mut(padded_line).enumerate() {
            let row = (rows.start * self.rows.stride + index).checked_sub(self.rows.pad_before);
            // No column is copied if the windows end before the image begins.
            if n_copied > 0
                && let Some(row) = row.filter(|&row| row < self.rows.input)
            {
                target[before..before + n_copied]
                    .copy_from_slice(&image[row * line..row * line + n_copied]);
            }
        }
    }

    pub(super) fn check(&self, input: usize, filter: usize, out: usize) -> Result<(), KernelError> {
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
                "{input} input, {filter} filter and {out} output elements do not match {self:?}"
            )))
        }
    }

    /// Returns whether each output pixel depends only on the input pixel at the same position.
    fn is_pointwise(&self) -> bool {
        let alone = |axis: &WindowAxis| {
            axis.size == 1 && axis.stride == 1 && axis.pad_before == 0 && axis.input == axis.output
        };
        alone(&self.rows) && alone(&self.columns) && self.filter_channels == self.input_channels
    }

    /// Computes the output pixels from `first` on into `out`.
    fn block<T: MatmulElement>(
        &self,
        input: &[T],
        filter: &[T],
        first: usize,
        patches: &mut [T],
        out: &mut [T],
        threads: Threads<'_>,
    ) -> Result<(), KernelError> {
        let patch = self.rows.size * self.columns.size * self.filter_channels;
        let n_pixels = out.len() / self.output_channels;
        let n_groups = self.input_channels / self.filter_channels;
        let group_outputs = self.output_channels / n_groups.max(1);
        for group in 0..n_groups {
            for (index, patch) in patches.chunks_mut(patch).take(n_pixels).enumerate() {
                self.unroll(input, first + index, group * self.filter_channels, patch);
            }
            let channel = group * group_outputs;
            let lhs = MatrixView::row_major(patches, n_pixels, patch)?;
            let rhs = MatrixView::strided(
                &filter[channel..],
                patch,
                group_outputs,
                self.output_channels,
                1,
            )?;
            let mut out = MatrixMut::new(
                &mut out[channel..],
                n_pixels,
                group_outputs,
                self.output_channels,
            )?;
            T::matmul(lhs, rhs, &mut out, threads)?;
        }
        Ok(())
    }

    /// Copies the elements under the window of one output pixel, in the order of the filter: row,
    /// column, channel (im2col).
    fn unroll<T: MatmulElement>(&self, input: &[T], pixel: usize, channel: usize, patch: &mut [T]) {
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

/// Scratch memory of one thread, reused from band to band.
#[derive(Debug)]
struct BandScratch {
    /// Padded piece of the image.
    padded: Scratch<f32>,
    /// Image index and window rows of that piece.
    padded_row: Option<(usize, Range<usize>)>,
    /// Start of the window of each output pixel.
    starts: Scratch<usize>,
    segments: Scratch<Segment>,
}

impl BandScratch {
    /// Allocates scratch for bands of at most this many rows and columns.
    fn new(
        convolution: &Convolution,
        n_rows: usize,
        n_columns: usize,
        threads: Threads<'_>,
    ) -> Result<Self, KernelError> {
        let Convolution { rows, columns, .. } = convolution;
        let is_inside = rows.is_inside() && columns.is_inside();
        let line = convolution.padded_columns() * convolution.input_channels;
        let n_lines = if is_inside { 0 } else { rows.span(n_rows) };
        let n_segments = match columns.dilation {
            1 => rows.size,
            _ => rows.size * columns.size,
        };
        Ok(Self {
            padded: threads.scratch(n_lines * line)?,
            padded_row: None,
            starts: threads.scratch(n_rows * n_columns.min(columns.output))?,
            segments: threads.scratch(n_segments)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::device::Activation;
    use crate::kernels::epilogue;
    use crate::kernels::matmul::prepack;
    use crate::kernels::matmul::prepacked_len;
    use crate::kernels::window::WindowSpec;
    use crate::ops::Padding;

    /// Reference implementation.
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
            // Small whole numbers are exact in any order of summation.
            let number = |i: usize| f32::from(u8::try_from(i * 7 % 5).unwrap()) - 2.0;
            let input: Vec<f32> = (0..batch * rows.input * columns.input * c.input_channels).map(number).collect();
            let filter: Vec<f32> =
                (3..3 + rows.size * columns.size * filter_channels * c.output_channels).map(number).collect();
            let mut out = vec![f32::NAN; batch * rows.output * columns.output * c.output_channels];
            c.apply(&input, &filter, &mut out, Threads::single()).unwrap();
            let expected = plain(&c, &input, &filter);
            prop_assert_eq!(&out, &expected);
            let inner = rows.size * columns.size * filter_channels;
            let mut prepacked = vec![f32::NAN; prepacked_len(inner, c.output_channels).unwrap()];
            prepack(MatrixView::row_major(&filter, inner, c.output_channels).unwrap(), &mut prepacked);
            out.fill(f32::NAN);
            let outcome = c.apply_prepacked(&input, &prepacked, None, &mut out, Threads::single());
            prop_assert_eq!(outcome.is_ok(), c.is_dense());
            if outcome.is_ok() {
                prop_assert_eq!(&out, &expected);
                let bias: Vec<f32> = (0..c.output_channels).map(|i| number(i) - 3.5).collect();
                let addend: Vec<f32> = (1..=out.len()).map(number).collect();
                let epilogue = Epilogue {
                    bias: &bias,
                    addend: Some(&addend),
                    activation: Activation::Relu,
                };
                out.fill(f32::NAN);
                c.apply_prepacked(&input, &prepacked, Some(epilogue), &mut out, Threads::single()).unwrap();
                let mut activated = expected.clone();
                epilogue::apply_all(&mut activated, epilogue, Threads::single());
                prop_assert_eq!(&out, &activated);
                // The result must be the same from any pixel on.
                let start = out.len() / c.output_channels / 2 * c.output_channels;
                let filter = Prepacked::new(&prepacked, inner, c.output_channels).unwrap();
                let part = &mut out[start..];
                part.fill(f32::NAN);
                let of_part = epilogue.of_rows(start, part.len());
                let middle = start / c.output_channels;
                c.pixels(&input, filter, Some(of_part), middle, part, Threads::single()).unwrap();
                prop_assert_eq!(out, activated);
            }
        }
    }

    fn alone(rows: WindowAxis, columns: WindowAxis) -> Convolution {
        Convolution {
            batch: 1,
            rows,
            columns,
            input_channels: 1,
            filter_channels: 1,
            output_channels: 1,
        }
    }

    #[test]
    fn paddings_much_larger_than_the_image_are_not_copied() {
        let axis = |stride, dilation, padding| {
            let spec = WindowSpec {
                size: 3,
                stride,
                dilation,
                padding: Padding::Explicit(padding, padding),
            };
            spec.over(5).unwrap()
        };
        for columns in [axis(1 << 40, 1, 1 << 41), axis(1, 1 << 40, (1 << 40) - 2)] {
            let c = alone(axis(1, 1, 0), columns);
            assert!(!c.is_dense());
            let mut out = vec![f32::NAN; c.rows.output * c.columns.output];
            c.apply(&[1.0; 25], &[1.0; 9], &mut out, Threads::single())
                .unwrap();
            assert_eq!(out, plain(&c, &[1.0; 25], &[1.0; 9]));
            let prepacked = vec![1.0; prepacked_len(9, 1).unwrap()];
            c.apply_prepacked(&[1.0; 25], &prepacked, None, &mut out, Threads::single())
                .unwrap_err();
        }
    }

    #[test]
    fn a_tall_window_and_a_wide_line_are_not_copied_together() {
        let same = |input, size| {
            let spec = WindowSpec {
                size,
                stride: 1,
                dilation: 1,
                padding: Padding::Same,
            };
            spec.over(input).unwrap()
        };
        // One line of windows reaches over 10^10 pixels, nearly all of them padding.
        assert!(!alone(same(1, 100_000), same(100_000, 1)).is_dense());
        assert!(alone(same(28, 5), same(28, 5)).is_dense());
        assert!(alone(same(1, 1), same(100_000, 5)).is_dense());
    }

    #[test]
    fn windows_may_all_lie_in_the_padding_before_the_image() {
        let spec = WindowSpec {
            size: 2,
            stride: 9,
            dilation: 1,
            padding: Padding::Explicit(4, 0),
        };
        let c = alone(spec.over(1).unwrap(), spec.over(1).unwrap());
        assert!(c.is_dense() && c.columns.span(c.columns.output) < c.columns.pad_before);
        let prepacked = vec![1.0; prepacked_len(4, 1).unwrap()];
        let mut out = [f32::NAN];
        c.apply_prepacked(&[7.0], &prepacked, None, &mut out, Threads::single())
            .unwrap();
        assert_eq!(out, [0.0]);
    }

    #[test]
    fn slices_of_a_wrong_length_are_rejected() {
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
