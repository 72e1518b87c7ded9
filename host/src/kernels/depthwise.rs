//! Depthwise convolution and transposed convolution.

use smallvec::SmallVec;

use crate::device::KernelError;
use crate::kernels::Arithmetic;
use crate::kernels::MatmulElement;
use crate::kernels::MatrixMut;
use crate::kernels::MatrixView;
use crate::kernels::Real;
use crate::kernels::Threads;
use crate::kernels::epilogue;
use crate::kernels::simd::DepthwiseLine;
use crate::kernels::simd::Epilogue;
use crate::kernels::simd::ImageLine;
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
        // TensorFlow multiplies the padding, too: the result is NaN where a weight is not finite.
        let is_fast = self.multiplier == 1
            && is_in_registers(&self.rows, &self.columns, channels)
            && !out.is_empty()
            && filter.iter().all(|weight| weight.is_finite());
        if !is_fast {
            self.apply(input, filter, out, threads)?;
            if let Some(epilogue) = epilogue {
                epilogue::apply_all(out, epilogue, threads);
            }
            return Ok(());
        }
        let zeros = threads.scratch::<f32>(channels)?;
        let line_len = self.columns.output * channels;
        let grain = LINE_GRAIN_MACS / (self.rows.size * self.columns.size);
        threads.fill(out, line_len, grain, |start, part| {
            for (index, out) in part.chunks_exact_mut(line_len).enumerate() {
                let line = start / line_len + index;
                let (image, row) = (line / self.rows.output, line % self.rows.output);
                let mut lines = SmallVec::<[ImageLine<'_>; 5]>::new();
                for tap in 0..self.rows.size {
                    if let Some(y) = self.rows.input_of(row, tap) {
                        let pixels = self.columns.input * channels;
                        let weights = self.columns.size * channels;
                        lines.push(ImageLine {
                            pixels: &input[(image * self.rows.input + y) * pixels..][..pixels],
                            weights: &filter[tap * weights..][..weights],
                        });
                    }
                }
                DepthwiseLine {
                    columns: self.columns,
                    lines: &lines,
                    zeros: &zeros,
                    epilogue,
                }
                .apply(out);
            }
        });
        Ok(())
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
