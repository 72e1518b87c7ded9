//! Depthwise convolution and transposed convolution.

use smallvec::SmallVec;

use crate::device::KernelError;
use crate::kernels::Arithmetic;
use crate::kernels::MatmulElement;
use crate::kernels::MatrixMut;
use crate::kernels::MatrixView;
use crate::kernels::Real;
use crate::kernels::Threads;
use crate::kernels::composite::Unit;
use crate::kernels::epilogue;
use crate::kernels::matmul;
use crate::kernels::parallel::even_part;
use crate::kernels::simd::DepthwiseLine;
use crate::kernels::simd::Epilogue;
use crate::kernels::simd::ImageLine;
use crate::kernels::simd::LINES_MAX;
use crate::kernels::simd::is_in_registers;
use crate::kernels::window::WindowAxis;

/// Minimum multiply-adds worth handing to another thread.
const GRAIN_MACS: usize = 128 * 1024;

/// The same for sums in registers.
const LINE_GRAIN_MACS: usize = 512 * 1024;

/// Elements of im2col patches per matmul.
const PATCH_ELEMENTS: usize = 64 * 1024;

/// A depthwise convolution whose shapes have been checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Depthwise {
    /// Number of images.
    pub batch: usize,
    /// Windows over the rows.
    pub rows: WindowAxis,
    /// Windows over the columns.
    pub columns: WindowAxis,
    /// Channels of the image.
    pub channels: usize,
    /// Output channels per input channel.
    pub multiplier: usize,
}

/// A convolution with one element per window, and its epilogue.
#[derive(Debug, Clone, Copy)]
pub struct Pointwise<'a> {
    /// Pixels, `[pixels, channels]`.
    pub images: &'a [f32],
    /// Channels of the images.
    pub channels: usize,
    /// The filter, `[channels, output channels]`, after
    /// [`matmul::prepack`](crate::kernels::matmul::prepack).
    pub filter: &'a [f32],
    /// What follows, without an addend.
    pub epilogue: Epilogue<'a>,
    /// What follows that.
    pub unit: Option<Unit>,
}

impl Pointwise<'_> {
    fn check(&self, n_pixels: usize, output_channels: usize) -> Result<(), KernelError> {
        let is_whole = n_pixels.checked_mul(self.channels) == Some(self.images.len())
            && self.epilogue.bias.len() == output_channels
            && self.epilogue.addend.is_none()
            && matmul::prepacked_len(self.channels, output_channels) == Some(self.filter.len());
        if is_whole {
            return Ok(());
        }
        Err(KernelError::invalid(format!(
            "a pointwise convolution of {n_pixels} pixels of {} channels to {output_channels} does \
             not match its images, filter or bias",
            self.channels
        )))
    }

    /// Computes output pixels from `first` on.
    fn pixels(
        &self,
        first: usize,
        n: usize,
        out: &mut [f32],
        threads: Threads<'_>,
    ) -> Result<(), KernelError> {
        let images = &self.images[first * self.channels..][..n * self.channels];
        let images = MatrixView::row_major(images, n, self.channels)?;
        let columns = self.epilogue.bias.len();
        let mut pixels = MatrixMut::new(out, n, columns, columns)?;
        let epilogue = Some(self.epilogue);
        matmul::matmul_prepacked(images, self.filter, epilogue, &mut pixels, threads)?;
        if let Some(unit) = self.unit {
            unit.apply(out, threads);
        }
        Ok(())
    }
}

impl Depthwise {
    /// Computes
    /// `[batch, in rows, in columns, channels] * [window rows, window columns, channels,
    /// multiplier] -> [batch, out rows, out columns, channels * multiplier]`
    /// (TensorFlow `DepthwiseConv2dNative`, `NHWC`). Sums of `f16` and `bf16` are kept in `f32`.
    /// Padding is zero, also under weights that are infinite or NaN.
    ///
    /// # Errors
    /// [`KernelError::Tensor`] if scratch memory runs out.
    ///
    /// # Panics
    /// If the length of a slice does not match its shape.
    pub fn apply<T: Real>(
        &self,
        input: &[T],
        filter: &[T],
        out: &mut [T],
        threads: Threads<'_>,
    ) -> Result<(), KernelError> {
        if out.is_empty() {
            return Ok(());
        }
        let channels = self.channels * self.multiplier;
        let taps = self.rows.size * self.columns.size;
        // TensorFlow multiplies the padding, too, which matters for weights that are not finite.
        let is_finite = |weight: &T| weight.minus(*weight) == T::ZERO;
        let skips_padding = filter.iter().all(is_finite);
        threads.try_fill(out, channels, GRAIN_MACS / taps.max(1), |start, part| {
            let mut sums = threads.scratch::<T::Wide>(channels)?;
            let zeros = threads.scratch::<T>(if skips_padding { 0 } else { self.channels })?;
            let padding = (!skips_padding).then_some(&*zeros);
            for (index, pixel) in part.chunks_exact_mut(channels).enumerate() {
                sums.fill(T::Wide::ZERO);
                self.pixel(input, filter, start / channels + index, padding, &mut sums);
                for (o, &sum) in pixel.iter_mut().zip(&*sums) {
                    *o = T::narrow(sum);
                }
            }
            Ok(())
        })
    }

    /// Computes the same of `float` images, and an epilogue without an addend.
    ///
    /// # Errors
    /// [`KernelError::InvalidArgument`] if the epilogue has another number of channels or an
    /// addend; [`KernelError::Tensor`] if scratch memory runs out.
    ///
    /// # Panics
    /// If the length of a slice does not match its shape.
    pub fn apply_with(
        &self,
        input: &[f32],
        filter: &[f32],
        epilogue: Option<Epilogue<'_>>,
        out: &mut [f32],
        threads: Threads<'_>,
    ) -> Result<(), KernelError> {
        let channels = self.channels * self.multiplier;
        if epilogue.is_some_and(|it| it.bias.len() != channels || it.addend.is_some()) {
            return Err(KernelError::invalid(format!(
                "the epilogue does not match {self:?}"
            )));
        }
        if !self.is_in_registers(filter) || out.is_empty() {
            self.apply(input, filter, out, threads)?;
            if let Some(epilogue) = epilogue {
                epilogue::apply_all(out, epilogue, threads);
            }
            return Ok(());
        }
        let zeros = threads.scratch::<f32>(channels)?;
        let line_len = self.columns.output * channels;
        let grain = LINE_GRAIN_MACS / (self.rows.size * self.columns.size);
        let pixels = self.columns.input * channels;
        threads.fill(out, line_len, grain, |start, part| {
            for (index, out) in part.chunks_exact_mut(line_len).enumerate() {
                let line = start / line_len + index;
                let image_line = |y: usize| &input[y * pixels..][..pixels];
                self.line(line, image_line, filter, &zeros, epilogue, out);
            }
        });
        Ok(())
    }

    /// Computes the same, and `unit`, of images that a pointwise convolution gives. Each thread
    /// computes the lines under its windows when it needs them, so that they are read from the
    /// cache.
    ///
    /// # Errors
    /// [`KernelError::InvalidArgument`] if the lengths of the pointwise convolution's slices or the
    /// epilogue do not match; [`KernelError::Tensor`] if scratch memory runs out.
    ///
    /// # Panics
    /// If the length of another slice does not match its shape.
    pub fn apply_after(
        &self,
        images: &Pointwise<'_>,
        filter: &[f32],
        (epilogue, unit): (Epilogue<'_>, Option<Unit>),
        out: &mut [f32],
        threads: Threads<'_>,
    ) -> Result<(), KernelError> {
        let (n_lines, columns) = (self.batch * self.rows.input, self.columns.input);
        images.check(n_lines * columns, self.channels)?;
        let size = self.rows.size;
        let is_in_cache = self.is_in_registers(filter) && self.rows.dilation == 1;
        if !is_in_cache || epilogue.bias.len() != self.channels || out.is_empty() {
            let n_elements = (n_lines * columns).saturating_mul(self.channels);
            let mut between = threads.unset_scratch::<f32>(n_elements)?;
            images.pixels(0, n_lines * columns, &mut between, threads)?;
            self.apply_with(&between, filter, Some(epilogue), out, threads)?;
            if let Some(unit) = unit {
                unit.apply(out, threads);
            }
            return Ok(());
        }
        let channels = self.channels;
        let zeros = threads.scratch::<f32>(channels)?;
        let line_len = self.columns.output * channels;
        let pixels = columns * channels;
        // A pointwise convolution is some four times as fast.
        let n_inputs = images.channels * self.rows.stride * self.columns.stride;
        let grain = LINE_GRAIN_MACS / (size * self.columns.size + n_inputs / 4);
        // Neighbouring parts both compute the lines between them.
        let n_threads = threads.n_threads();
        let part_len = |_| {
            let n_lines = self.batch * self.rows.output;
            even_part(n_lines, 1, n_threads, n_threads) * line_len
        };
        let shared = threads.uninterrupted();
        shared.try_fill_in(out, grain, part_len, |start, part| {
            // Line `y` of the batch is at `y % size`.
            let mut lines = threads.unset_scratch::<f32>(size * pixels)?;
            let mut held = [usize::MAX; LINES_MAX];
            for (index, out) in part.chunks_exact_mut(line_len).enumerate() {
                if threads.is_interrupted() {
                    break;
                }
                let line = start / line_len + index;
                let (image, row) = (line / self.rows.output, line % self.rows.output);
                for y in self.rows.inputs_of(row) {
                    let y = image * self.rows.input + y;
                    if held[y % size] != y {
                        let to = &mut lines[y % size * pixels..][..pixels];
                        images.pixels(y * columns, columns, to, threads.alone())?;
                        held[y % size] = y;
                    }
                }
                let image_line = |y: usize| &lines[y % size * pixels..][..pixels];
                self.line(line, image_line, filter, &zeros, Some(epilogue), out);
                if let Some(unit) = unit {
                    unit.apply(out, threads.alone());
                }
            }
            Ok(())
        })
    }

    /// Returns whether sums are computed in registers. TensorFlow multiplies the padding, too: the
    /// result is NaN where a weight is not finite.
    fn is_in_registers(&self, filter: &[f32]) -> bool {
        self.multiplier == 1
            && is_in_registers(&self.rows, &self.columns, self.channels)
            && filter.iter().all(|weight| weight.is_finite())
    }

    /// Computes a line of the batch in registers.
    fn line<'a>(
        &self,
        line: usize,
        image_line: impl Fn(usize) -> &'a [f32],
        filter: &'a [f32],
        zeros: &[f32],
        epilogue: Option<Epilogue<'_>>,
        out: &mut [f32],
    ) {
        let (image, row) = (line / self.rows.output, line % self.rows.output);
        let weights = self.columns.size * self.channels;
        let mut lines = SmallVec::<[ImageLine<'_>; LINES_MAX]>::new();
        for tap in 0..self.rows.size {
            if let Some(y) = self.rows.input_of(row, tap) {
                lines.push(ImageLine {
                    pixels: image_line(image * self.rows.input + y),
                    weights: &filter[tap * weights..][..weights],
                });
            }
        }
        DepthwiseLine {
            columns: self.columns,
            lines: &lines,
            zeros,
            epilogue,
        }
        .apply(out);
    }

    /// Accumulates one window. `padding` is the pixel used outside the image, if it matters.
    fn pixel<T: Real>(
        &self,
        input: &[T],
        filter: &[T],
        pixel: usize,
        padding: Option<&[T]>,
        sums: &mut [T::Wide],
    ) {
        let column = pixel % self.columns.output;
        let row = pixel / self.columns.output % self.rows.output;
        let image = pixel / self.columns.output / self.rows.output;
        for y in 0..self.rows.size {
            let line = self.rows.input_of(row, y);
            if line.is_none() && padding.is_none() {
                continue;
            }
            for x in 0..self.columns.size {
                let values = match (line.zip(self.columns.input_of(column, x)), padding) {
                    (Some((line, at)), _) => {
                        let start = (image * self.rows.input + line) * self.columns.input + at;
                        &input[start * self.channels..][..self.channels]
                    }
                    (None, Some(padding)) => padding,
                    (None, None) => continue,
                };
                let tap = y * self.columns.size + x;
                let weights = &filter[tap * sums.len()..][..sums.len()];
                add_products(values, weights, self.multiplier, sums);
            }
        }
    }
}

/// Computes `sums[c, m] += values[c] * weights[c, m]`.
fn add_products<T: Real>(values: &[T], weights: &[T], multiplier: usize, sums: &mut [T::Wide]) {
    if multiplier == 1 {
        for ((sum, value), weight) in sums.iter_mut().zip(values).zip(weights) {
            *sum = sum.plus(value.widen().times(weight.widen()));
        }
    } else {
        let rows = sums
            .chunks_exact_mut(multiplier)
            .zip(weights.chunks_exact(multiplier));
        for ((sums, weights), value) in rows.zip(values) {
            for (sum, weight) in sums.iter_mut().zip(weights) {
                *sum = sum.plus(value.widen().times(weight.widen()));
            }
        }
    }
}

/// A transposed convolution whose shapes have been checked. `rows` and `columns` describe the
/// forward convolution: their inputs are the results of this one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transposed {
    /// Number of images.
    pub batch: usize,
    /// Windows over the rows of the result.
    pub rows: WindowAxis,
    /// Windows over the columns of the result.
    pub columns: WindowAxis,
    /// Channels of the result.
    pub channels: usize,
    /// Input channels.
    pub given_channels: usize,
}

impl Transposed {
    /// Computes
    /// `[batch, window rows, window columns, given_channels] * [size, size, channels,
    /// given_channels] -> [batch, rows, columns, channels]`
    /// (TensorFlow `Conv2DBackpropInput`, `NHWC`): each input pixel adds its window to the result.
    ///
    /// # Errors
    /// [`KernelError::InvalidArgument`] if a slice is shorter than its shape;
    /// [`KernelError::Tensor`] if scratch memory runs out.
    pub fn apply<T: MatmulElement>(
        &self,
        given: &[T],
        filter: &[T],
        out: &mut [T],
        threads: Threads<'_>,
    ) -> Result<(), KernelError> {
        out.fill(T::ZERO);
        let n_places = self.rows.output * self.columns.output;
        let taps = self.rows.size * self.columns.size;
        let patch = taps * self.channels;
        if out.is_empty() || n_places == 0 || patch == 0 || self.given_channels == 0 {
            return Ok(());
        }
        let filter = MatrixView::row_major(filter, patch, self.given_channels)?.transposed();
        let given = MatrixView::row_major(given, self.batch * n_places, self.given_channels)?;
        let block = (PATCH_ELEMENTS / patch).clamp(1, n_places);
        let image = self.rows.input * self.columns.input * self.channels;
        let each = |first: usize, out: &mut [T], threads: Threads<'_>| -> Result<(), KernelError> {
            let mut patches = threads.scratch::<T>(block * patch)?;
            for (index, out) in out.chunks_exact_mut(image).enumerate() {
                let start = (first + index) * n_places;
                for place in (0..n_places).step_by(block) {
                    let n = block.min(n_places - place);
                    if threads.is_interrupted() {
                        return Ok(());
                    }
                    let rows = &given.data()[(start + place) * self.given_channels..];
                    let lhs = MatrixView::row_major(rows, n, self.given_channels)?;
                    let mut windows = MatrixMut::new(&mut patches, n, patch, patch)?;
                    T::matmul(lhs, filter, &mut windows, threads)?;
                    for (offset, patch) in patches.chunks_exact(patch).take(n).enumerate() {
                        self.add(patch, place + offset, out);
                    }
                }
            }
            Ok(())
        };
        if self.batch == 1 {
            return each(0, out, threads);
        }
        threads.try_fill(out, image, image, |start, part| {
            each(start / image, part, threads.alone())
        })
    }

    /// Adds the window at one position to an image.
    fn add<T: MatmulElement>(&self, patch: &[T], place: usize, out: &mut [T]) {
        let (row, column) = (place / self.columns.output, place % self.columns.output);
        let mut taps = patch.chunks_exact(self.channels);
        for y in 0..self.rows.size {
            let line = self.rows.input_of(row, y);
            for x in 0..self.columns.size {
                let Some(tap) = taps.next() else { return };
                if let Some((line, at)) = line.zip(self.columns.input_of(column, x)) {
                    let start = (line * self.columns.input + at) * self.channels;
                    for (o, &value) in out[start..].iter_mut().zip(tap) {
                        *o = o.plus(value);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Activation;
    use crate::kernels::window::WindowSpec;
    use crate::ops::Padding;

    fn number(i: usize) -> f32 {
        ((i * 37 + 11) % 29) as f32 - 14.0
    }

    fn axis(input: usize, size: usize, stride: usize, padding: Padding) -> Option<WindowAxis> {
        let spec = WindowSpec {
            size,
            stride,
            dilation: 1,
            padding,
        };
        spec.over(input).ok()
    }

    #[test]
    fn sums_in_registers_agree_with_sums_in_memory() {
        let mut n_fast = 0;
        for n_columns in 1..21 {
            for (size, stride) in [(3, 1), (3, 2), (5, 1), (5, 2), (2, 1), (3, 3)] {
                for padding in [Padding::Same, Padding::Valid, Padding::Explicit(4, 2)] {
                    let rows = axis(4 + n_columns % 3, size, stride, padding);
                    let columns = axis(n_columns, size, stride, padding);
                    let (Some(rows), Some(columns)) = (rows, columns) else {
                        continue;
                    };
                    // Less than a vector, a part of one after some, and none.
                    for channels in [3, 16, 37, 48] {
                        let depthwise = Depthwise {
                            batch: 2,
                            rows,
                            columns,
                            channels,
                            multiplier: 1,
                        };
                        n_fast += usize::from(is_in_registers(&rows, &columns, channels));
                        let input: Vec<f32> = (0..2 * rows.input * columns.input * channels)
                            .map(number)
                            .collect();
                        let filter: Vec<f32> =
                            (7..7 + size * size * channels).map(number).collect();
                        let bias: Vec<f32> = (3..3 + channels).map(number).collect();
                        let mut expected =
                            vec![f32::NAN; 2 * rows.output * columns.output * channels];
                        let mut found = expected.clone();
                        let alone = Threads::single();
                        depthwise
                            .apply(&input, &filter, &mut expected, alone)
                            .unwrap();
                        depthwise
                            .apply_with(&input, &filter, None, &mut found, alone)
                            .unwrap();
                        assert_eq!(found, expected, "{depthwise:?}");
                        let epilogue = Epilogue {
                            bias: &bias,
                            addend: None,
                            activation: Activation::Relu6,
                        };
                        depthwise
                            .apply_with(&input, &filter, Some(epilogue), &mut found, alone)
                            .unwrap();
                        epilogue::apply_all(&mut expected, epilogue, alone);
                        assert_eq!(found, expected, "{depthwise:?}");
                    }
                }
            }
        }
        assert!(n_fast > 500, "{n_fast}");
    }

    #[test]
    fn lines_of_a_pointwise_convolution_agree_with_whole_images() {
        let (inputs, batch) = (3, 2);
        for (size, stride) in [(3, 1), (3, 2), (5, 1), (5, 2), (2, 1)] {
            for padding in [Padding::Same, Padding::Valid, Padding::Explicit(4, 2)] {
                for channels in [5, 16, 37] {
                    let (Some(rows), Some(columns)) = (
                        axis(11, size, stride, padding),
                        axis(6, size, stride, padding),
                    ) else {
                        continue;
                    };
                    let depthwise = Depthwise {
                        batch,
                        rows,
                        columns,
                        channels,
                        multiplier: 1,
                    };
                    // Small whole numbers are exact in any order of summation.
                    let small = |n: usize| -> Vec<f32> {
                        (0..n).map(|i| number(i) / 7.0).map(f32::round).collect()
                    };
                    let images = small(batch * 11 * 6 * inputs);
                    let matrix = small(inputs * channels);
                    let filter = small(size * size * channels);
                    let bias = small(channels);
                    let len = matmul::prepacked_len(inputs, channels).unwrap();
                    let mut panels = vec![f32::NAN; len];
                    let view = MatrixView::row_major(&matrix, inputs, channels).unwrap();
                    matmul::prepack(view, &mut panels);
                    let epilogue = |activation| Epilogue {
                        bias: &bias,
                        addend: None,
                        activation,
                    };
                    let pointwise = Pointwise {
                        images: &images,
                        channels: inputs,
                        filter: &panels,
                        epilogue: epilogue(Activation::Relu6),
                        unit: None,
                    };
                    let between: Vec<f32> = (0..batch * 11 * 6 * channels)
                        .map(|index| {
                            let (pixel, channel) = (index / channels, index % channels);
                            let products = (0..inputs).map(|i| {
                                images[pixel * inputs + i] * matrix[i * channels + channel]
                            });
                            (products.sum::<f32>() + bias[channel]).clamp(0.0, 6.0)
                        })
                        .collect();
                    let n = batch * rows.output * columns.output * channels;
                    let (mut expected, mut found) = (vec![0.0; n], vec![f32::NAN; n]);
                    let (last, alone) = (epilogue(Activation::Relu), Threads::single());
                    depthwise
                        .apply_with(&between, &filter, Some(last), &mut expected, alone)
                        .unwrap();
                    Unit::HardSwish.apply(&mut expected, alone);
                    let last = (last, Some(Unit::HardSwish));
                    depthwise
                        .apply_after(&pointwise, &filter, last, &mut found, alone)
                        .unwrap();
                    assert_eq!(found, expected, "{depthwise:?}");
                    let short = Pointwise {
                        images: &images[1..],
                        ..pointwise
                    };
                    depthwise
                        .apply_after(&short, &filter, last, &mut found, alone)
                        .unwrap_err();
                }
            }
        }
    }

    /// Windows of 3 x 3 over a padded image of 4 x 4.
    fn of_16_channels() -> Depthwise {
        let axis = axis(4, 3, 1, Padding::Same).unwrap();
        Depthwise {
            batch: 1,
            rows: axis,
            columns: axis,
            channels: 16,
            multiplier: 1,
        }
    }

    #[test]
    fn padding_under_a_weight_that_is_not_finite_is_nan() {
        let depthwise = of_16_channels();
        let mut filter = vec![1.0; 9 * 16];
        filter[5] = f32::INFINITY;
        let mut out = vec![0.0; 16 * 16];
        depthwise
            .apply_with(&[1.0; 16 * 16], &filter, None, &mut out, Threads::single())
            .unwrap();
        assert!(out[5].is_nan() && out[4] == 4.0);
    }

    #[test]
    fn epilogues_of_other_channels_are_refused() {
        let depthwise = of_16_channels();
        let (input, filter) = ([1.0; 256], [1.0; 144]);
        for (bias, addend) in [(&[0.0; 16][..9], None), (&[0.0; 16], Some(&input[..]))] {
            let epilogue = Epilogue {
                bias,
                addend,
                activation: Activation::None,
            };
            let mut out = vec![0.0; 256];
            depthwise
                .apply_with(&input, &filter, Some(epilogue), &mut out, Threads::single())
                .unwrap_err();
        }
    }
}
