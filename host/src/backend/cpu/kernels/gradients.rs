//! Gradients of functions of one number.
//!
//! Networks that explain themselves (saliency maps, integrated gradients) have them in inference.

use crate::backend::cpu::kernels::def;
use crate::backend::host_kernels::Made;
use crate::backend::host_kernels::kernel;
use crate::backend::plan::attr::float_attr;
use crate::backend::plan::attr::type_attr;
use crate::backend::types::COMPLEX;
use crate::backend::types::NUMBERS;
use crate::backend::types::REALS;
use crate::backend::types::with_complex;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelError;
use crate::device::KernelRegistry;
use crate::kernels::Arithmetic;
use crate::kernels::Number;
use crate::kernels::Threads;
use crate::kernels::binary;
use crate::kernels::complex::Complex;
use crate::kernels::special;
use crate::tensor::Complex128;
use crate::tensor::DType;
use crate::tensor::Element;

/// A gradient: of `y` (or of `x`, as the op has it) and the gradient of what follows.
type Gradient = fn(f64, f64) -> f64;

/// The same for complex numbers.
type ComplexGradient = fn(Complex128, Complex128) -> Complex128;

pub(super) fn register(registry: &mut KernelRegistry) {
    let of_results: [(&str, Gradient, ComplexGradient); 6] = [
        (
            "TanhGrad",
            |y, dy| dy * (1.0 - y * y),
            |y, dy| dy * (Complex128::new(1.0, 0.0) - y * y),
        ),
        (
            "SigmoidGrad",
            |y, dy| dy * y * (1.0 - y),
            |y, dy| dy * y * (Complex128::new(1.0, 0.0) - y),
        ),
        (
            "SqrtGrad",
            |y, dy| dy * 0.5 / y,
            |y, dy| dy * Complex128::new(0.5, 0.0) / y.conj(),
        ),
        (
            "RsqrtGrad",
            |y, dy| dy * -0.5 * y * y * y,
            |y, dy| {
                let y = y.conj();
                dy * Complex128::new(-0.5, 0.0) * y * y * y
            },
        ),
        (
            "ReciprocalGrad",
            |y, dy| -dy * y * y,
            |y, dy| -dy * y.conj() * y.conj(),
        ),
        (
            "InvGrad",
            |y, dy| -dy * y * y,
            |y, dy| -dy * y.conj() * y.conj(),
        ),
    ];
    for (op, real, complex) in of_results {
        let types = with_complex(&REALS);
        registry.register(def(op).with_types("T", &types).with_factory(move |node| {
            let dtype = type_attr(node, "T")?;
            if COMPLEX.contains(&dtype) {
                return dispatch_complex!(dtype, T => pairwise(move |y: T, dy: T| {
                    T::narrow(complex(y.widen(), dy.widen()))
                }));
            }
            of_real(dtype, real)
        }));
    }
    // These have the gradient first.
    let of_activations: [(&str, Gradient); 4] = [
        ("EluGrad", |dy, y| if y < 0.0 { dy * (y + 1.0) } else { dy }),
        ("SeluGrad", special::selu_gradient),
        ("SoftplusGrad", |dy, x| dy / ((-x).exp() + 1.0)),
        ("SoftsignGrad", |dy, x| {
            dy / ((1.0 + x.abs()) * (1.0 + x.abs()))
        }),
    ];
    for (op, gradient) in of_activations {
        registry.register(
            def(op)
                .with_types("T", &REALS)
                .with_factory(move |node| of_real(type_attr(node, "T")?, gradient)),
        );
    }
    for op in ["ReluGrad", "Relu6Grad", "LeakyReluGrad"] {
        registry.register(def(op).with_types("T", &NUMBERS).with_factory(of_relu));
    }
}

fn of_real(dtype: DType, gradient: Gradient) -> Made {
    dispatch_real!(dtype, T => pairwise(move |x: T, y: T| {
        <T as Number>::from_f64(gradient(x.to_f64(), y.to_f64()))
    }))
}

/// TensorFlow `ReluGrad`, `Relu6Grad` and `LeakyReluGrad`.
fn of_relu(node: &KernelConstruction<'_>) -> Made {
    let dtype = type_attr(node, "T")?;
    match node.op {
        "LeakyReluGrad" => {
            let alpha = float_attr(node, "alpha", 0.2)?;
            dispatch_real!(dtype, T => {
                let alpha = T::from_f64(alpha.into());
                pairwise(move |dy: T, x: T| if x > T::ZERO { dy } else { dy.times(alpha) })
            })
        }
        "Relu6Grad" => dispatch_number!(dtype, T => pairwise(|dy: T, x: T| {
            let is_between = x > T::ZERO && x < T::from_f64(6.0);
            if is_between { dy } else { T::ZERO }
        })),
        _ => dispatch_number!(dtype, T => pairwise(|dy: T, x: T| {
            if x > T::ZERO { dy } else { T::ZERO }
        })),
    }
}

/// A function of two tensors of one shape.
fn pairwise<T, F>(f: F) -> Made
where
    T: Element,
    F: Fn(T, T) -> T + Copy + Send + Sync + 'static,
{
    kernel(move |context: &KernelContext<'_>| {
        let (x, y) = (context.input(0)?, context.input(1)?);
        if x.shape() != y.shape() {
            return Err(KernelError::invalid(format!(
                "Inputs must have the same shape: {} vs. {}",
                x.shape(),
                y.shape()
            )));
        }
        let (x, y) = (x.as_slice::<T>()?, y.as_slice::<T>()?);
        context.fill_output(0, context.input(0)?.shape(), |out| {
            binary::zip(x, y, out, Threads::of(context), f);
            Ok(())
        })
    })
}
