//! Normalisation over batches and over neighbouring channels.

use crate::device::KernelError;
use crate::kernels::Number;
use crate::kernels::Real;
use crate::kernels::Scratch;
use crate::kernels::Threads;
use crate::kernels::simd::vectorize;

/// Minimum number of elements worth handing to another thread.
const GRAIN: usize = 16 * 1024;

/// A `[outer, channels, inner]` layout; `inner` is 1 if channels come last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Channels {
    /// Elements before the channels.
    pub outer: usize,
    /// Number of channels.
    pub channels: usize,
    /// Elements after the channels.
    pub inner: usize,
}

impl Channels {
    /// Computes mean and (biased) variance of each channel.
    ///
    /// # Errors
    /// [`KernelError::Tensor`] if scratch memory runs out.
    ///
    /// # Panics
    /// If the length of the slice does not match its shape.
    pub fn moments<T: Number>(
        &self,
        x: &[T],
        threads: Threads<'_>,
    ) -> Result<[Scratch<f32>; 2], KernelError> {
        let Self {
            channels, inner, ..
        } = *self;
        assert_eq!(x.len(), self.outer * channels * inner, "x has its shape");
        #[expect(clippy::cast_precision_loss, reason = "a number of elements")]
        let n = (self.outer * inner) as f64;
        // In double precision: TensorFlow adds in a tree, which this approximates better than one
        // long sum in single precision.
        let sums = |term: &dyn Fn(usize, f64) -> f64| -> Result<Scratch<f64>, KernelError> {
            let mut sums = threads.scratch::<f64>(channels)?;
            if inner > 0 && channels > 0 {
                for (row, values) in x.chunks_exact(inner).enumerate() {
                    let channel = row % channels;
                    let mut sum = sums[channel];
                    for value in values {
                        sum += term(channel, value.to_f64());
                    }
                    sums[channel] = sum;
                }
            }
            for sum in sums.iter_mut() {
                *sum /= n;
            }
            Ok(sums)
        };
        let means = sums(&|_, value| value)?;
        let variances =
            sums(&|channel, value| (value - means[channel]) * (value - means[channel]))?;
        let narrow = |values: &[f64]| -> Result<Scratch<f32>, KernelError> {
            let mut narrow = threads.scratch::<f32>(channels)?;
            for (narrow, &value) in narrow.iter_mut().zip(values) {
                #[expect(clippy::cast_possible_truncation, reason = "rounded once")]
                let value = value as f32;
                *narrow = value;
            }
            Ok(narrow)
        };
        Ok([narrow(&means)?, narrow(&variances)?])
    }

    /// Computes `(x - mean) * factor + offset` per channel in single precision (TensorFlow
    /// `FusedBatchNorm`, where `factor` = `scale / sqrt(variance + epsilon)`).
    ///
    /// # Panics
    /// If the length of a slice does not match its shape.
    pub fn normalise<T: Real<Wide = f32>>(
        &self,
        x: &[T],
        [mean, factor, offset]: [&[f32]; 3],
        out: &mut [T],
        threads: Threads<'_>,
    ) {
        let Self {
            channels, inner, ..
        } = *self;
        assert_eq!(x.len(), out.len(), "one result per element");
        if out.is_empty() {
            return;
        }
        let at = |x: T, mean: f32, factor: f32, offset: f32| {
            T::narrow((x.widen() - mean) * factor + offset)
        };
        threads.fill(out, channels * inner, GRAIN, |start, part| {
            let x = &x[start..start + part.len()];
            if inner == 1 {
                for (out, x) in part
                    .chunks_exact_mut(channels)
                    .zip(x.chunks_exact(channels))
                {
                    let parameters = mean.iter().zip(factor).zip(offset);
                    for ((o, &x), ((&m, &f), &b)) in out.iter_mut().zip(x).zip(parameters) {
                        *o = at(x, m, f, b);
                    }
                }
            } else {
                let rows = part.chunks_exact_mut(inner).zip(x.chunks_exact(inner));
                for (row, (out, x)) in rows.enumerate() {
                    let channel = row % channels;
                    let (m, f, b) = (mean[channel], factor[channel], offset[channel]);
                    for (o, &x) in out.iter_mut().zip(x) {
                        *o = at(x, m, f, b);
                    }
                }
            }
        });
    }
}

/// Channels after which a long loop over their neighbours checks whether the run was interrupted.
const ASKING_CHANNELS: usize = 4096;

/// Elements that are scaled in one loop: they stay in the L1 cache.
const BLOCK: usize = 1024;

/// Elements whose sums are computed at once, in registers.
const VECTOR: usize = 16;

/// A loop over the sums of more neighbours on each side may have to be interrupted.
const FEW_NEIGHBOURS: usize = 64;

/// Parameters of local response normalisation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LocalResponse {
    /// Neighbours on each side.
    pub radius: usize,
    /// Added to the sum, so that it is not 0.
    pub bias: f32,
    /// Weight of the squares.
    pub alpha: f32,
    /// Exponent.
    pub beta: f32,
}

impl LocalResponse {
    /// Computes `x[c] / (bias + alpha * (x[c - radius]^2 + .. + x[c + radius]^2))^beta`,
    /// `[pixels, channels]` (TensorFlow `LRN`). A sum below 0 gives NaN unless `beta` is 1.
    ///
    /// # Errors
    /// [`KernelError::Tensor`] if scratch memory runs out.
    ///
    /// # Panics
    /// If the lengths differ, or are not a multiple of `channels`.
    pub fn apply<T: Real<Wide = f32>>(
        &self,
        x: &[T],
        channels: usize,
        out: &mut [T],
        threads: Threads<'_>,
    ) -> Result<(), KernelError> {
        assert_eq!(x.len(), out.len(), "one result per element");
        if out.is_empty() {
            return Ok(());
        }
        if self.radius <= FEW_NEIGHBOURS {
            return self.apply_near(x, channels, out, threads);
        }
        threads.try_fill(out, channels, GRAIN / 4, |start, part| {
            let mut squares = threads.scratch::<f32>(channels)?;
            let rows = x[start..].chunks_exact(channels);
            for (out, x) in part.chunks_exact_mut(channels).zip(rows) {
                for (square, x) in squares.iter_mut().zip(x) {
                    *square = x.widen() * x.widen();
                }
                for (channel, (o, x)) in out.iter_mut().zip(x).enumerate() {
                    let first = channel.saturating_sub(self.radius);
                    let end = channel.saturating_add(self.radius).min(channels - 1) + 1;
                    let sum: f32 = squares[first..end].iter().sum();
                    *o = T::narrow(x.widen() * self.factor(self.bias + self.alpha * sum));
                    // All channels may be neighbours of each channel.
                    if channel % ASKING_CHANNELS == ASKING_CHANNELS - 1 && threads.is_interrupted()
                    {
                        return Ok(());
                    }
                }
            }
            Ok(())
        })
    }

    /// Computes the same where few channels are neighbours, in loops that are vectorized.
    fn apply_near<T: Real<Wide = f32>>(
        &self,
        x: &[T],
        channels: usize,
        out: &mut [T],
        threads: Threads<'_>,
    ) -> Result<(), KernelError> {
        let radius = self.radius;
        let block = (BLOCK / channels).max(1) * channels;
        threads.try_fill(out, channels, GRAIN, |start, part| {
            // With zeros beyond the channels.
            let mut squares = threads.scratch::<f32>(channels + 2 * radius)?;
            let mut sums = threads.scratch::<f32>(block.min(part.len()))?;
            let x = &x[start..start + part.len()];
            for (out, x) in part.chunks_mut(block).zip(x.chunks(block)) {
                let sums = &mut sums[..x.len()];
                vectorize::<f32, _>(|| {
                    let rows = x.chunks_exact(channels);
                    for (sums, x) in sums.chunks_exact_mut(channels).zip(rows) {
                        for (square, x) in squares[radius..].iter_mut().zip(x) {
                            *square = x.widen() * x.widen();
                        }
                        let mut vectors = sums.chunks_exact_mut(VECTOR);
                        let mut first = 0;
                        for vector in &mut vectors {
                            let mut total = [0.0; VECTOR];
                            for near in 0..=2 * radius {
                                let squares = &squares[first + near..][..VECTOR];
                                for (total, square) in total.iter_mut().zip(squares) {
                                    *total += square;
                                }
                            }
                            vector.copy_from_slice(&total);
                            first += VECTOR;
                        }
                        for (index, sum) in vectors.into_remainder().iter_mut().enumerate() {
                            *sum = squares[first + index..][..=2 * radius].iter().sum();
                        }
                    }
                    self.scale(x, sums, out);
                });
            }
            Ok(())
        })
    }

    /// Computes `x / (bias + alpha * sum)^beta`.
    #[inline(always)]
    fn scale<T: Real<Wide = f32>>(&self, x: &[T], sums: &mut [f32], out: &mut [T]) {
        for sum in sums.iter_mut() {
            *sum = self.bias + self.alpha * *sum;
        }
        // The usual exponents need no logarithm.
        if self.beta == 1.0 {
            divide(x, sums, out, |sum| sum);
        } else if self.beta == 0.5 {
            divide(x, sums, out, f32::sqrt);
        } else if self.beta == 0.75 {
            divide(x, sums, out, |sum| sum.sqrt() * sum.sqrt().sqrt());
        } else {
            for ((o, x), &sum) in out.iter_mut().zip(x).zip(&*sums) {
                *o = T::narrow(x.widen() * self.factor(sum));
            }
        }
    }

    fn factor(&self, sum: f32) -> f32 {
        if self.beta == 1.0 {
            1.0 / sum
        } else if self.beta == 0.5 {
            1.0 / sum.sqrt()
        } else {
            // Not `powf`, which accepts negative numbers if the exponent is whole.
            (-self.beta * sum.ln()).exp()
        }
    }
}

/// Computes `x / root(sum)`.
#[inline(always)]
fn divide<T: Real<Wide = f32>>(x: &[T], sums: &[f32], out: &mut [T], root: impl Fn(f32) -> f32) {
    for ((o, x), &sum) in out.iter_mut().zip(x).zip(sums) {
        *o = T::narrow(x.widen() / root(sum));
    }
}
