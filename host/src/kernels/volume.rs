//! Convolution and pooling of volumes, channels last.

use crate::device::KernelError;
use crate::kernels::Arithmetic;
use crate::kernels::MatmulElement;
use crate::kernels::MatrixMut;
use crate::kernels::MatrixView;
use crate::kernels::Number;
use crate::kernels::Real;
use crate::kernels::Threads;
use crate::kernels::window::WindowAxis;

/// Elements of im2col patches per matmul.
const PATCH_ELEMENTS: usize = 64 * 1024;

/// Minimum multiply-adds worth handing to another thread.
const GRAIN_MACS: usize = 1 << 20;

/// Minimum number of result elements of a pooling worth handing to another thread.
const GRAIN_POOLED: usize = 2 * 1024;

/// Windows over volumes: planes, rows and columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VolumeWindows {
    /// Number of volumes.
    pub batch: usize,
    /// Windows over planes, rows and columns.
    pub axes: [WindowAxis; 3],
    /// Planes, rows and columns before the first window. No window reaches the end then.
    pub skipped: [usize; 3],
}

impl VolumeWindows {
    /// Returns the number of elements of a window.
    fn n_taps(&self) -> usize {
        self.axes.iter().map(|axis| axis.size).product()
    }

    /// Calls `visit` with each tap of a window in order, and its input pixel outside the padding.
    /// `pixel` is the number of the window in the batch.
    fn for_each_tap(&self, pixel: usize, mut visit: impl FnMut(usize, Option<usize>)) {
        let [planes, rows, columns] = &self.axes;
        let [first_plane, first_row, first_column] = self.skipped;
        let column = pixel % columns.output;
        let row = pixel / columns.output % rows.output;
        let plane = pixel / columns.output / rows.output % planes.output;
        let volume = pixel / columns.output / rows.output / planes.output;
        let mut tap = 0;
        for z in 0..planes.size {
            let plane = planes.input_of(plane, z);
            for y in 0..rows.size {
                let row = rows.input_of(row, y);
                for x in 0..columns.size {
                    let place = plane.zip(row).zip(columns.input_of(column, x));
                    let input = place.map(|((z, y), x)| {
                        let (z, y, x) = (z + first_plane, y + first_row, x + first_column);
                        ((volume * planes.input + z) * rows.input + y) * columns.input + x
                    });
                    visit(tap, input);
                    tap += 1;
                }
            }
        }
    }
}

/// A convolution of volumes whose shapes have been checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VolumeConvolution {
    /// Windows of the filter.
    pub windows: VolumeWindows,
    /// Channels of the volume, and of the filter.
    pub input_channels: usize,
    /// Channels of the result.
    pub output_channels: usize,
}

impl VolumeConvolution {
    /// Computes
    /// `[batch, in planes, in rows, in columns, input_channels] * [window planes, window rows,
    /// window columns, input_channels, output_channels] -> [batch, out planes, out rows, out
    /// columns, output_channels]`
    /// (TensorFlow `Conv3D`, `NDHWC`). Padding is zero.
    ///
    /// # Errors
    /// [`KernelError::Tensor`] if scratch memory runs out.
    ///
    /// # Panics
    /// If the length of a slice does not match its shape.
    pub fn apply<T: MatmulElement>(
        &self,
        input: &[T],
        filter: &[T],
        out: &mut [T],
        threads: Threads<'_>,
    ) -> Result<(), KernelError> {
        if out.is_empty() {
            return Ok(());
        }
        let (channels, n_outputs) = (self.input_channels, self.output_channels);
        let patch = self.windows.n_taps() * channels;
        let rhs = MatrixView::row_major(filter, patch, n_outputs)?;
        let block = (PATCH_ELEMENTS / patch.max(1)).clamp(1, 1024);
        let grain = (GRAIN_MACS / patch.max(1)).max(n_outputs);
        threads.try_fill(out, n_outputs, grain, |start, part| {
            let mut patches = threads.scratch::<T>(block.saturating_mul(patch))?;
            let mut first = start / n_outputs;
            for part in part.chunks_mut(block * n_outputs) {
                let n_pixels = part.len() / n_outputs;
                for index in 0..n_pixels {
                    let patch = &mut patches[index * patch..][..patch];
                    self.windows.for_each_tap(first + index, |tap, pixel| {
                        let tap = &mut patch[tap * channels..][..channels];
                        match pixel {
                            Some(pixel) => {
                                tap.copy_from_slice(&input[pixel * channels..][..channels]);
                            }
                            None => tap.fill(T::ZERO),
                        }
                    });
                }
                let lhs = MatrixView::row_major(&patches, n_pixels, patch)?;
                let mut part = MatrixMut::new(part, n_pixels, n_outputs, n_outputs)?;
                T::matmul(lhs, rhs, &mut part, threads.alone())?;
                first += n_pixels;
                if threads.is_interrupted() {
                    break;
                }
            }
            Ok(())
        })
    }

    /// Computes the transposed convolution: each element of `given`, which has the shape of a
    /// result, adds the filter to what the window covers (TensorFlow `Conv3DBackpropInputV2`).
    ///
    /// # Errors
    /// [`KernelError::Tensor`] if scratch memory runs out.
    ///
    /// # Panics
    /// If the length of a slice does not match its shape.
    pub fn transposed<T: MatmulElement>(
        &self,
        given: &[T],
        filter: &[T],
        out: &mut [T],
        threads: Threads<'_>,
    ) -> Result<(), KernelError> {
        out.fill(T::ZERO);
        if out.is_empty() || given.is_empty() {
            return Ok(());
        }
        let (channels, n_given) = (self.input_channels, self.output_channels);
        let patch = self.windows.n_taps() * channels;
        let rhs = MatrixView::row_major(filter, patch, n_given)?.transposed();
        let block = (PATCH_ELEMENTS / patch.max(1)).clamp(1, 1024);
        let mut patches = threads.scratch::<T>(block.saturating_mul(patch))?;
        let mut first = 0;
        for given in given.chunks(block * n_given) {
            let n_pixels = given.len() / n_given;
            let lhs = MatrixView::row_major(given, n_pixels, n_given)?;
            let mut spread = MatrixMut::new(&mut patches, n_pixels, patch, patch)?;
            T::matmul(lhs, rhs, &mut spread, threads)?;
            for index in 0..n_pixels {
                let patch = &patches[index * patch..][..patch];
                self.windows.for_each_tap(first + index, |tap, pixel| {
                    let Some(pixel) = pixel else { return };
                    let tap = &patch[tap * channels..][..channels];
                    for (slot, &x) in out[pixel * channels..][..channels].iter_mut().zip(tap) {
                        *slot = slot.plus(x);
                    }
                });
            }
            first += n_pixels;
            if threads.is_interrupted() {
                break;
            }
        }
        Ok(())
    }
}

/// A pooling of volumes whose shapes have been checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VolumePool {
    /// The windows.
    pub windows: VolumeWindows,
    /// Number of channels.
    pub channels: usize,
}

impl VolumePool {
    /// Computes the largest element of each window (TensorFlow `MaxPool3D`, `NDHWC`).
    ///
    /// # Panics
    /// If the length of a slice does not match its shape.
    pub fn max<T: Number>(&self, input: &[T], out: &mut [T], threads: Threads<'_>) {
        if out.is_empty() {
            return;
        }
        let channels = self.channels;
        threads.fill(out, channels, GRAIN_POOLED, |start, part| {
            for (index, out) in part.chunks_exact_mut(channels).enumerate() {
                out.fill(T::LOWEST_FINITE);
                self.windows
                    .for_each_tap(start / channels + index, |_, pixel| {
                        let Some(pixel) = pixel else { return };
                        let pixel = &input[pixel * channels..][..channels];
                        for (slot, &x) in out.iter_mut().zip(pixel) {
                            if x > *slot {
                                *slot = x;
                            }
                        }
                    });
            }
        });
    }

    /// Computes the mean of the elements of each window outside the padding (TensorFlow
    /// `AvgPool3D`, `NDHWC`). Sums of `f16` and `bf16` are kept in `f32`.
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
        if out.is_empty() {
            return Ok(());
        }
        let channels = self.channels;
        threads.try_fill(out, channels, GRAIN_POOLED, |start, part| {
            let mut sums = threads.scratch::<T::Wide>(channels)?;
            for (index, out) in part.chunks_exact_mut(channels).enumerate() {
                sums.fill(T::Wide::ZERO);
                let mut n = 0;
                self.windows
                    .for_each_tap(start / channels + index, |_, pixel| {
                        let Some(pixel) = pixel else { return };
                        n += 1;
                        let pixel = &input[pixel * channels..][..channels];
                        for (sum, &x) in sums.iter_mut().zip(pixel) {
                            *sum = sum.plus(x.widen());
                        }
                    });
                for (slot, &sum) in out.iter_mut().zip(sums.iter()) {
                    *slot = T::narrow(sum.over(T::Wide::from_i64(n)));
                }
            }
            Ok(())
        })
    }
}
