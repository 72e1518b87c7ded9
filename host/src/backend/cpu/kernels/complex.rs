//! Complex numbers and their parts.

use crate::backend::cpu::kernels::def;
use crate::backend::cpu::kernels::math;
use crate::backend::host_kernels::Made;
use crate::backend::host_kernels::kernel;
use crate::backend::host_kernels::output;
use crate::backend::plan::attr::type_attr;
use crate::backend::types::COMPLEX;
use crate::device::KernelConstruction;
use crate::device::KernelRegistry;
use crate::kernels::Arithmetic;
use crate::kernels::Broadcast;
use crate::kernels::Threads;
use crate::kernels::complex;
use crate::kernels::complex::Complex;
use crate::kernels::unary;
use crate::tensor::DType;
use crate::tensor::Element;

pub(super) fn register(registry: &mut KernelRegistry) {
    for (whole, part) in [
        (DType::Complex64, DType::F32),
        (DType::Complex128, DType::F64),
    ] {
        for op in ["Real", "Imag", "Angle", "ComplexAbs"] {
            registry.register(
                def(op)
                    .with_types("T", &[whole])
                    .with_types("Tout", &[part])
                    .with_factory(part_of),
            );
        }
        registry.register(
            def("Complex")
                .with_types("T", &[part])
                .with_types("Tout", &[whole])
                .with_factory(joined),
        );
    }
    registry.register(def("Conj").with_types("T", &COMPLEX).with_factory(
        |node| dispatch_complex!(type_attr(node, "T")?, T => math::unary_op(T::conjugate)),
    ));
}

/// TensorFlow `Real`, `Imag`, `Angle` and `ComplexAbs`: one real number per complex number.
fn part_of(node: &KernelConstruction<'_>) -> Made {
    fn made<T: Complex, P: Element>(f: impl Fn(T) -> P + Copy + Send + Sync + 'static) -> Made {
        kernel(move |context| {
            let input = context.input(0)?;
            let x = input.as_slice::<T>()?;
            output(context, input.shape().clone(), |out: &mut [P]| {
                unary::map(x, out, Threads::of(context), f);
                Ok(())
            })
        })
    }
    dispatch_complex!(type_attr(node, "T")?, T => match node.op {
        "Real" => made(|x: T| x.parts()[0]),
        "Imag" => made(|x: T| x.parts()[1]),
        "Angle" => made(|x: T| T::part(complex::angle(x.widen()))),
        _ => made(|x: T| T::part(complex::magnitude(x.widen()))),
    })
}

/// TensorFlow `Complex`: one complex number from two real ones.
fn joined(node: &KernelConstruction<'_>) -> Made {
    dispatch_complex!(type_attr(node, "Tout")?, T => kernel(|context| {
        let (re, im) = (context.input(0)?, context.input(1)?);
        let plan = Broadcast::new(re.shape(), im.shape())?;
        let (re, im) = (re.as_slice()?, im.as_slice()?);
        output(context, plan.shape().clone(), |out: &mut [T]| {
            plan.apply(re, im, out, Threads::of(context), |re, im| T::of_parts([re, im]));
            Ok(())
        })
    }))
}
