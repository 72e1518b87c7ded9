//! Fourier transforms.

use num_complex::Complex;
use rustfft::FftDirection;
use rustfft::FftNum;

use crate::backend::cpu::kernels::def;
use crate::backend::host_kernels::Made;
use crate::backend::host_kernels::kernel;
use crate::backend::host_kernels::output;
use crate::backend::plan::product;
use crate::backend::plan::value::vector;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelError;
use crate::device::KernelRegistry;
use crate::kernels::Number;
use crate::kernels::Threads;
use crate::kernels::fft::Transforms;
use crate::tensor::DType;
use crate::tensor::Element;
use crate::tensor::Shape;

pub(super) fn register(registry: &mut KernelRegistry) {
    for (op, n_axes, direction) in [
        ("FFT", 1, FftDirection::Forward),
        ("FFT2D", 2, FftDirection::Forward),
        ("FFT3D", 3, FftDirection::Forward),
        ("IFFT", 1, FftDirection::Inverse),
        ("IFFT2D", 2, FftDirection::Inverse),
        ("IFFT3D", 3, FftDirection::Inverse),
    ] {
        registry.register(def(op).with_factory(move |node| complex(node, n_axes, direction)));
    }
    for (op, n_axes) in [("RFFT", 1), ("RFFT2D", 2), ("RFFT3D", 3)] {
        registry.register(
            def(op)
                .with_host_memory("fft_length")
                .with_factory(move |node| of_real(node, n_axes)),
        );
        registry.register(
            def(&format!("I{op}"))
                .with_host_memory("fft_length")
                .with_factory(move |node| to_real(node, n_axes)),
        );
    }
}

/// Returns whether numbers are double; the types of both sides must agree.
fn is_double(node: &KernelConstruction<'_>) -> Result<bool, KernelError> {
    let complex = node.attrs.dtype("Tcomplex").unwrap_or(DType::Complex64);
    let real = node.attrs.dtype("Treal");
    match (complex, real) {
        (DType::Complex64, None | Some(DType::F32)) => Ok(false),
        (DType::Complex128, None | Some(DType::F64)) => Ok(true),
        _ => Err(KernelError::invalid(format!(
            "wrong types for {}: the real type {} and the complex type {complex} must have the \
             same precision",
            node.op,
            real.unwrap_or(DType::F32)
        ))),
    }
}

/// TensorFlow `FFT`, `FFT2D`, `FFT3D` and their inverses.
fn complex(node: &KernelConstruction<'_>, n_axes: usize, direction: FftDirection) -> Made {
    fn made<P: FftNum + Number>(n_axes: usize, direction: FftDirection) -> Made
    where
        Complex<P>: Element,
    {
        let transforms = Transforms::<P>::default();
        kernel(move |context| {
            let input = context.input(0)?;
            let (_, axes) = last_axes(input.shape(), n_axes)?;
            let x = input.as_slice::<Complex<P>>()?;
            context.fill_output(0, input.shape(), |out| {
                out.copy_from_slice(x);
                transforms.complex(out, axes, direction, Threads::of(context))
            })
        })
    }
    if is_double(node)? {
        made::<f64>(n_axes, direction)
    } else {
        made::<f32>(n_axes, direction)
    }
}

/// Returns the batch dimensions and the transformed ones.
fn last_axes(shape: &Shape, n_axes: usize) -> Result<(&[usize], &[usize]), KernelError> {
    let n_batch = shape.rank().checked_sub(n_axes).ok_or_else(|| {
        KernelError::invalid(format!(
            "input must have rank of at least {n_axes} but got: {shape}"
        ))
    })?;
    Ok(shape.dims().split_at(n_batch))
}

/// Lengths of a transform of real numbers, and what it reads.
struct RealPlan {
    /// Points per axis.
    lengths: Shape,
    /// Elements per axis that are read.
    read: Shape,
    /// Elements per axis of the input.
    given: Shape,
    shape: Shape,
}

impl RealPlan {
    fn new(
        context: &KernelContext<'_>,
        n_axes: usize,
        is_forward: bool,
    ) -> Result<Self, KernelError> {
        let input = context.input(0)?.shape();
        let (batch, given) = last_axes(input, n_axes)?;
        let lengths = vector(context.input(1)?, "fft_length")?;
        if lengths.len() != n_axes {
            return Err(KernelError::invalid(format!(
                "fft_length must have shape [{n_axes}], not [{}]",
                lengths.len()
            )));
        }
        let lengths: Result<Shape, _> = lengths.iter().map(|&n| usize::try_from(n)).collect();
        let lengths =
            lengths.map_err(|_| KernelError::invalid("the elements of fft_length must be >= 0"))?;
        let halved = |is_halved: bool| -> Shape {
            let sizes = lengths.dims().iter().enumerate();
            let sizes = sizes.map(|(axis, &n)| match n {
                0 => 0,
                n if is_halved && axis + 1 == n_axes => n / 2 + 1,
                n => n,
            });
            sizes.collect()
        };
        let read = halved(!is_forward);
        for (axis, (&found, &needed)) in given.iter().zip(read.dims()).enumerate() {
            // Empty tensors pass.
            if found != 0 && found < needed {
                return Err(KernelError::invalid(format!(
                    "input dimension {} must have length of at least {needed} but got: {found}",
                    batch.len() + axis
                )));
            }
        }
        let transformed = halved(is_forward);
        let shape = batch.iter().chain(transformed.dims()).copied();
        Ok(Self {
            shape: shape.collect(),
            given: Shape::new(given),
            read,
            lengths,
        })
    }

    /// Returns the start of line `index` in the input; lines are counted over what is read.
    fn line(&self, mut index: usize) -> usize {
        let (given, read) = (self.given.dims(), self.read.dims());
        let last = given.len() - 1;
        let mut stride = given[last];
        let mut start = 0;
        for axis in (0..last).rev() {
            start += index % read[axis] * stride;
            index /= read[axis];
            stride *= given[axis];
        }
        start + index * stride
    }
}

/// TensorFlow `RFFT`, `RFFT2D` and `RFFT3D`: `fft_length` crops the input.
fn of_real(node: &KernelConstruction<'_>, n_axes: usize) -> Made {
    fn made<P: FftNum + Number>(n_axes: usize) -> Made
    where
        Complex<P>: Element,
    {
        let transforms = Transforms::<P>::default();
        kernel(move |context| {
            let plan = RealPlan::new(context, n_axes, true)?;
            let x = context.input(0)?.as_slice::<P>()?;
            let lengths = plan.lengths.dims();
            output(context, plan.shape.clone(), |out: &mut [Complex<P>]| {
                if x.is_empty() {
                    out.fill(Complex::new(P::ZERO, P::ZERO));
                    return Ok(());
                }
                transforms.of_real(
                    x,
                    |line| plan.line(line),
                    lengths,
                    out,
                    Threads::of(context),
                )
            })
        })
    }
    if is_double(node)? {
        made::<f64>(n_axes)
    } else {
        made::<f32>(n_axes)
    }
}

/// TensorFlow `IRFFT`, `IRFFT2D` and `IRFFT3D`: `fft_length` crops the spectrum.
fn to_real(node: &KernelConstruction<'_>, n_axes: usize) -> Made {
    fn made<P: FftNum + Number>(n_axes: usize) -> Made
    where
        Complex<P>: Element,
    {
        let transforms = Transforms::<P>::default();
        kernel(move |context| {
            let plan = RealPlan::new(context, n_axes, false)?;
            let x = context.input(0)?.as_slice::<Complex<P>>()?;
            let lengths = plan.lengths.dims();
            output(context, plan.shape.clone(), |out: &mut [P]| {
                if x.is_empty() || out.is_empty() {
                    out.fill(P::ZERO);
                    return Ok(());
                }
                let width = plan.read.dims()[n_axes - 1];
                let n_lines = out.len() / lengths[n_axes - 1];
                let threads = Threads::of(context);
                let mut spectrum = threads.scratch::<Complex<P>>(product(&[n_lines, width]))?;
                for (line, spectrum) in spectrum.chunks_exact_mut(width).enumerate() {
                    let start = plan.line(line);
                    spectrum.copy_from_slice(&x[start..start + width]);
                }
                transforms.to_real(&mut spectrum, lengths, out, threads)
            })
        })
    }
    if is_double(node)? {
        made::<f64>(n_axes)
    } else {
        made::<f32>(n_axes)
    }
}
