//! Fourier transforms.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;

use num_complex::Complex;
use realfft::RealFftPlanner;
use rustfft::Fft;
use rustfft::FftDirection;
use rustfft::FftNum;
use rustfft::FftPlanner;

use crate::device::KernelError;
use crate::kernels::Number;
use crate::kernels::Threads;

/// Minimum number of elements worth handing to another thread.
const GRAIN: usize = 2 * 1024;

/// Transforms of one kernel: their plans are kept by length.
pub struct Transforms<P: FftNum> {
    complex: Mutex<FftPlanner<P>>,
    real: Mutex<RealFftPlanner<P>>,
}

impl<P: FftNum> std::fmt::Debug for Transforms<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transforms").finish_non_exhaustive()
    }
}

impl<P: FftNum> Default for Transforms<P> {
    fn default() -> Self {
        Self {
            complex: Mutex::new(FftPlanner::new()),
            real: Mutex::new(RealFftPlanner::new()),
        }
    }
}

impl<P: FftNum + Number> Transforms<P>
where
    Complex<P>: bytemuck::Pod,
{
    fn plan(&self, n: usize, direction: FftDirection) -> Arc<dyn Fft<P>> {
        let mut planner = self.complex.lock().unwrap_or_else(PoisonError::into_inner);
        planner.plan_fft(n, direction)
    }

    /// Transforms the last `lengths.len()` axes in place (TensorFlow `FFT`, `IFFT3D` and the like).
    /// Inverse transforms are divided by the number of points.
    ///
    /// # Errors
    /// [`KernelError::Tensor`] if scratch memory runs out.
    ///
    /// # Panics
    /// If the number of elements is not a multiple of the number of points.
    pub fn complex(
        &self,
        data: &mut [Complex<P>],
        lengths: &[usize],
        direction: FftDirection,
        threads: Threads<'_>,
    ) -> Result<(), KernelError> {
        self.along(data, lengths, 1, direction, threads)?;
        if direction == FftDirection::Inverse {
            scale(data, lengths, threads);
        }
        Ok(())
    }

    /// Transforms axes of these lengths, after which `inner` elements are contiguous.
    fn along(
        &self,
        data: &mut [Complex<P>],
        lengths: &[usize],
        mut inner: usize,
        direction: FftDirection,
        threads: Threads<'_>,
    ) -> Result<(), KernelError> {
        if data.is_empty() {
            return Ok(());
        }
        for &n in lengths.iter().rev() {
            let plan = self.plan(n, direction);
            let n_scratch = plan.get_inplace_scratch_len();
            threads.try_fill(data, n * inner, GRAIN, |_, part| {
                let mut scratch = threads.scratch(n_scratch)?;
                if inner == 1 {
                    plan.process_with_scratch(part, &mut scratch);
                    return Ok(());
                }
                let mut line = threads.scratch::<Complex<P>>(n)?;
                for block in part.chunks_exact_mut(n * inner) {
                    for column in 0..inner {
                        for (slot, &x) in line.iter_mut().zip(block[column..].iter().step_by(inner))
                        {
                            *slot = x;
                        }
                        plan.process_with_scratch(&mut line, &mut scratch);
                        for (slot, &x) in block[column..].iter_mut().step_by(inner).zip(line.iter())
                        {
                            *slot = x;
                        }
                    }
                }
                Ok(())
            })?;
            inner *= n;
        }
        Ok(())
    }

    /// Transforms the last axes of real numbers; `lines` yields the start of each line of the last
    /// axis in `input`, as many as `out` has lines of `n / 2 + 1` elements (TensorFlow `RFFT2D` and
    /// the like).
    ///
    /// # Errors
    /// [`KernelError::Tensor`] if scratch memory runs out.
    ///
    /// # Panics
    /// If a line ends beyond the input.
    pub fn of_real(
        &self,
        input: &[P],
        line: impl Fn(usize) -> usize + Sync,
        lengths: &[usize],
        out: &mut [Complex<P>],
        threads: Threads<'_>,
    ) -> Result<(), KernelError> {
        let Some((&n, outer)) = lengths.split_last() else {
            return Ok(());
        };
        if out.is_empty() {
            return Ok(());
        }
        let width = n / 2 + 1;
        let plan = {
            let mut planner = self.real.lock().unwrap_or_else(PoisonError::into_inner);
            planner.plan_fft_forward(n)
        };
        threads.try_fill(out, width, GRAIN, |start, part| {
            let mut scratch = threads.scratch(plan.get_scratch_len())?;
            let mut copy = threads.scratch::<P>(n)?;
            for (index, out) in part.chunks_exact_mut(width).enumerate() {
                let from = line(start / width + index);
                copy.copy_from_slice(&input[from..from + n]);
                plan.process_with_scratch(&mut copy, out, &mut scratch)
                    .map_err(|error| KernelError::invalid(error.to_string()))?;
            }
            Ok(())
        })?;
        self.along(out, outer, width, FftDirection::Forward, threads)
    }

    /// Transforms back to real numbers, divided by the number of points (TensorFlow `IRFFT2D` and
    /// the like). `data` is the half of the spectrum that is not redundant; its contents are lost.
    ///
    /// # Errors
    /// [`KernelError::Tensor`] if scratch memory runs out.
    ///
    /// # Panics
    /// If the lengths of the slices do not match.
    pub fn to_real(
        &self,
        data: &mut [Complex<P>],
        lengths: &[usize],
        out: &mut [P],
        threads: Threads<'_>,
    ) -> Result<(), KernelError> {
        let Some((&n, outer)) = lengths.split_last() else {
            return Ok(());
        };
        if out.is_empty() {
            return Ok(());
        }
        let width = n / 2 + 1;
        self.along(data, outer, width, FftDirection::Inverse, threads)?;
        scale(data, lengths, threads);
        let plan = {
            let mut planner = self.real.lock().unwrap_or_else(PoisonError::into_inner);
            planner.plan_fft_inverse(n)
        };
        let data = &*data;
        threads.try_fill(out, n, GRAIN, |start, part| {
            let mut scratch = threads.scratch(plan.get_scratch_len())?;
            let mut copy = threads.scratch::<Complex<P>>(width)?;
            for (index, out) in part.chunks_exact_mut(n).enumerate() {
                let from = (start / n + index) * width;
                copy.copy_from_slice(&data[from..from + width]);
                // The spectrum of real numbers is real there; what else is given has no effect.
                copy[0].im = P::ZERO;
                if n.is_multiple_of(2) {
                    copy[width - 1].im = P::ZERO;
                }
                plan.process_with_scratch(&mut copy, out, &mut scratch)
                    .map_err(|error| KernelError::invalid(error.to_string()))?;
            }
            Ok(())
        })
    }
}

/// Divides by the number of points.
fn scale<P: FftNum + Number>(data: &mut [Complex<P>], lengths: &[usize], threads: Threads<'_>) {
    #[expect(clippy::cast_precision_loss, reason = "a number of points")]
    let n_points: f64 = lengths.iter().map(|&n| n as f64).product();
    let factor = <P as Number>::from_f64(1.0 / n_points);
    threads.fill(data, 1, GRAIN, |_, part| {
        for x in part {
            *x = Complex {
                re: x.re * factor,
                im: x.im * factor,
            };
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_dimensions_agree_with_the_definition() {
        let (rows, columns) = (3, 4);
        let input: Vec<f64> = (0..12).map(|i| f64::from(i * i % 7)).collect();
        let mut out = vec![Complex::new(0.0, 0.0); rows * 3];
        let transforms = Transforms::default();
        transforms
            .of_real(
                &input,
                |line| line * columns,
                &[rows, columns],
                &mut out,
                Threads::single(),
            )
            .unwrap();
        for v in 0..rows {
            for u in 0..3 {
                let mut sum = Complex::new(0.0, 0.0);
                for y in 0..rows {
                    for x in 0..columns {
                        #[expect(clippy::cast_precision_loss, reason = "small numbers")]
                        let turns = (v * y) as f64 / rows as f64 + (u * x) as f64 / columns as f64;
                        sum += Complex::from_polar(
                            input[y * columns + x],
                            -std::f64::consts::TAU * turns,
                        );
                    }
                }
                assert!((out[v * 3 + u] - sum).norm() < 1e-12, "{v} {u}");
            }
        }
        let mut back = vec![0.0; 12];
        transforms
            .to_real(&mut out, &[rows, columns], &mut back, Threads::single())
            .unwrap();
        for (x, y) in input.iter().zip(&back) {
            assert!((x - y).abs() < 1e-12);
        }
    }
}
