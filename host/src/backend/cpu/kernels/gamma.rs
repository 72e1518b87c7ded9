//! Gamma, beta, zeta, Bessel and other special functions, computed in double precision.

use crate::backend::cpu::kernels::def;
use crate::backend::cpu::kernels::math;
use crate::backend::host_kernels::Made;
use crate::backend::host_kernels::kernel;
use crate::backend::plan::attr::type_attr;
use crate::device::KernelContext;
use crate::device::KernelError;
use crate::device::KernelRegistry;
use crate::kernels::Number;
use crate::kernels::gamma;
use crate::kernels::special;
use crate::tensor::DType;
use crate::tensor::Shape;

/// Types that TensorFlow's CPU kernels of two arguments support.
const PAIRS: [DType; 2] = [DType::F32, DType::F64];

/// Types that those of one argument support.
const SINGLES: [DType; 3] = [DType::F16, DType::F32, DType::F64];

/// An op and its function of one argument.
type Single = (&'static str, fn(f64) -> f64);

/// An op and its function of two arguments.
type Pair = (&'static str, fn(f64, f64) -> f64);

pub(super) fn register(registry: &mut KernelRegistry) {
    let singles: [Single; 2] = [("Lgamma", gamma::log_gamma), ("Digamma", gamma::digamma)];
    for (op, function) in singles.into_iter().chain(special::SPECIAL) {
        registry.register(
            def(op)
                .with_types("T", &SINGLES)
                .with_factory(move |node| -> Made {
                    dispatch_real!(type_attr(node, "T")?, T => {
                        math::unary_op(move |x: T| <T as Number>::from_f64(function(x.to_f64())))
                    })
                }),
        );
    }
    let pairs: [Pair; 4] = [
        ("Igamma", gamma::lower_gamma),
        ("Igammac", gamma::upper_gamma),
        ("Zeta", gamma::zeta),
        ("Polygamma", gamma::polygamma),
    ];
    for (op, function) in pairs {
        registry.register(
            def(op)
                .with_types("T", &PAIRS)
                .with_factory(move |node| -> Made {
                    dispatch!(type_attr(node, "T")?, [F32: f32, F64: f64], T => {
                        math::binary_op(move |x: T, y: T| {
                            <T as Number>::from_f64(function(x.to_f64(), y.to_f64()))
                        })
                    })
                }),
        );
    }
    registry.register(def("Betainc").with_types("T", &PAIRS).with_factory(|node| {
        dispatch!(type_attr(node, "T")?, [F32: f32, F64: f64], T => kernel(incomplete_beta::<T>))
    }));
}

/// TensorFlow `Betainc`: tensors of one shape; scalars are repeated.
fn incomplete_beta<T: Number>(context: &KernelContext<'_>) -> Result<(), KernelError> {
    let mut shape = Shape::scalar();
    for input in context.inputs().filter(|input| input.shape().rank() > 0) {
        if shape.rank() > 0 && shape != *input.shape() {
            return Err(KernelError::invalid(format!(
                "shapes of a, b and x are inconsistent: {shape} and {}",
                input.shape()
            )));
        }
        shape = input.shape().clone();
    }
    let values = |index: usize| {
        context
            .input(index)?
            .as_slice::<T>()
            .map_err(KernelError::from)
    };
    let (a, b, x) = (values(0)?, values(1)?, values(2)?);
    let at = |values: &[T], index: usize| match values {
        [only] => only.to_f64(),
        values => values[index].to_f64(),
    };
    context.fill_output(0, &shape, |out: &mut [T]| {
        for (index, slot) in out.iter_mut().enumerate() {
            let [a, b, x] = [a, b, x].map(|values| at(values, index));
            *slot = T::from_f64(gamma::incomplete_beta(a, b, x));
        }
        Ok(())
    })
}
