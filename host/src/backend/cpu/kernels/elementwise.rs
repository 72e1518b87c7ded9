//! Elementwise arithmetic beyond the four operations: all kinds of division, clipping, sums of many
//! tensors.

use std::cmp::Ordering;

use crate::backend::cpu::kernels::def;
use crate::backend::cpu::kernels::math;
use crate::backend::host_kernels::Made;
use crate::backend::host_kernels::kernel;
use crate::backend::host_kernels::output;
use crate::backend::host_kernels::view;
use crate::backend::plan::attr::float_attr;
use crate::backend::plan::attr::type_attr;
use crate::backend::types::ARITHMETIC;
use crate::backend::types::COMPLEX;
use crate::backend::types::INTEGERS;
use crate::backend::types::NUMBERS;
use crate::backend::types::REALS;
use crate::backend::types::with_complex;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelError;
use crate::device::KernelRegistry;
use crate::kernels::Arithmetic;
use crate::kernels::Integer;
use crate::kernels::Number;
use crate::kernels::Real;
use crate::kernels::Threads;
use crate::kernels::binary;
use crate::kernels::complex;
use crate::kernels::complex::Complex;
use crate::kernels::spread::Spread;
use crate::kernels::unary::RealFunction;
use crate::tensor::Complex128;
use crate::tensor::DType;
use crate::tensor::Element;
use crate::tensor::Shape;

/// Types that TensorFlow's `Mod` and `TruncateMod` support.
const REMAINDERS: [DType; 4] = [DType::F32, DType::F64, DType::I32, DType::I64];

/// Types that TensorFlow's `Round` supports.
const ROUNDED: [DType; 6] = [
    DType::F32,
    DType::F64,
    DType::F16,
    DType::BF16,
    DType::I32,
    DType::I64,
];

/// Types that TensorFlow's `ClipByValue` supports, except complex ones.
const CLIPPED: [DType; 10] = [
    DType::F32,
    DType::F64,
    DType::F16,
    DType::BF16,
    DType::I8,
    DType::I16,
    DType::I32,
    DType::I64,
    DType::U8,
    DType::U16,
];

pub(super) fn register(registry: &mut KernelRegistry) {
    for (op, function) in [
        ("Inv", RealFunction::Reciprocal),
        ("Erfc", RealFunction::Erfc),
        ("Log1p", RealFunction::Log1p),
        ("Expm1", RealFunction::Expm1),
        ("Sin", RealFunction::Sin),
        ("Cos", RealFunction::Cos),
        ("Tan", RealFunction::Tan),
        ("Asin", RealFunction::Asin),
        ("Acos", RealFunction::Acos),
        ("Atan", RealFunction::Atan),
        ("Sinh", RealFunction::Sinh),
        ("Cosh", RealFunction::Cosh),
        ("Asinh", RealFunction::Asinh),
        ("Acosh", RealFunction::Acosh),
        ("Atanh", RealFunction::Atanh),
        ("Softplus", RealFunction::Softplus),
        ("Softsign", RealFunction::Softsign),
        ("Elu", RealFunction::Elu),
        ("Selu", RealFunction::Selu),
    ] {
        math::register_function(registry, op, function);
    }
    let mut add = |op: &str, types: &[DType], make: fn(&KernelConstruction<'_>) -> Made| {
        registry.register(def(op).with_types("T", types).with_factory(make));
    };
    add("LeakyRelu", &REALS, leaky_relu);
    add("Sign", &with_complex(&math::SIGNED), sign);
    add("Round", &ROUNDED, round);
    add(
        "Atan2",
        &REALS,
        |node| dispatch_real!(type_attr(node, "T")?, T => math::binary_op(<T as Real>::angle)),
    );
    add("FloorDiv", &NUMBERS, floor_div);
    add("Div", &ARITHMETIC, |node| {
        if INTEGERS.contains(&type_attr(node, "T")?) {
            truncate_div(node)
        } else {
            math::real_div(node)
        }
    });
    add("TruncateDiv", &NUMBERS, truncate_div);
    add("Mod", &REMAINDERS, truncate_mod);
    add("TruncateMod", &REMAINDERS, truncate_mod);
    add("DivNoNan", &with_complex(&REALS), math::div_no_nan);
    add("MulNoNan", &with_complex(&REALS), |node| {
        dispatch_arithmetic!(type_attr(node, "T")?, T => math::binary_op(|x: T, y: T| {
            if y == T::ZERO { T::ZERO } else { x.times(y) }
        }))
    });
    add("Xlog1py", &with_complex(&REALS), x_log1p_y);
    add(
        "NextAfter",
        &[DType::F32, DType::F64],
        |node| match type_attr(node, "T")? {
            DType::F64 => math::binary_op(|x: f64, y: f64| match x.partial_cmp(&y) {
                Some(Ordering::Less) => x.next_up(),
                Some(Ordering::Equal) => y,
                Some(Ordering::Greater) => x.next_down(),
                None => f64::NAN,
            }),
            _ => math::binary_op(|x: f32, y: f32| match x.partial_cmp(&y) {
                Some(Ordering::Less) => x.next_up(),
                Some(Ordering::Equal) => y,
                Some(Ordering::Greater) => x.next_down(),
                None => f32::NAN,
            }),
        },
    );
    add("PopulationCount", &INTEGERS, |node| {
        let size = type_attr(node, "T")?.size_bytes().unwrap_or(1);
        kernel(move |context| {
            let input = context.input(0)?;
            let elements = input.as_bytes()?.chunks_exact(size);
            context.fill_output(0, input.shape(), |out: &mut [u8]| {
                for (slot, element) in out.iter_mut().zip(elements) {
                    let n_ones: u32 = element.iter().map(|byte| byte.count_ones()).sum();
                    *slot = u8::try_from(n_ones).unwrap_or(u8::MAX);
                }
                Ok(())
            })
        })
    });
    add("L2Loss", &REALS, |node| {
        dispatch_real!(type_attr(node, "T")?, T => kernel(|context| {
            let x = context.input(0)?.as_slice::<T>()?;
            let sum: f64 = x.iter().map(|x| x.to_f64() * x.to_f64()).sum();
            output(context, Shape::scalar(), |out: &mut [T]| {
                out.fill(T::from_f64(sum / 2.0));
                Ok(())
            })
        }))
    });
    for op in ["AddN", "AccumulateNV2"] {
        add(
            op,
            &ARITHMETIC,
            |node| dispatch_arithmetic!(type_attr(node, "T")?, T => kernel(add_n::<T>)),
        );
    }
    add("ClipByValue", &with_complex(&CLIPPED), |node| {
        let dtype = type_attr(node, "T")?;
        if COMPLEX.contains(&dtype) {
            return dispatch_complex!(dtype, T => {
                kernel(|context| clip_by_value::<T>(context, T::clipped))
            });
        }
        dispatch_number!(dtype, T => {
            kernel(|context| clip_by_value::<T>(context, binary::clipped))
        })
    });
}

/// TensorFlow `LeakyRelu`: `x` if it is above 0, otherwise `alpha * x`.
fn leaky_relu(node: &KernelConstruction<'_>) -> Made {
    let alpha = float_attr(node, "alpha", 0.2)?;
    dispatch_real!(type_attr(node, "T")?, T => {
        let alpha = T::from_f64(alpha.into());
        math::unary_op(move |x: T| if x > T::ZERO { x } else { x.times(alpha) })
    })
}

/// TensorFlow `Xlog1py`: `x * log(1 + y)`, and 0 if `x` is 0.
fn x_log1p_y(node: &KernelConstruction<'_>) -> Made {
    let dtype = type_attr(node, "T")?;
    if COMPLEX.contains(&dtype) {
        dispatch_complex!(dtype, T => math::complex_op::<T>(|x, y| match x == Complex128::ZERO {
            true => Complex128::ZERO,
            false => x * complex::ln(y + Complex128::new(1.0, 0.0)),
        }))
    } else {
        dispatch_real!(dtype, T => math::binary_op(|x: T, y: T| match x == T::ZERO {
            true => T::ZERO,
            false => x.times(T::from_f64(y.to_f64().ln_1p())),
        }))
    }
}

/// TensorFlow `Sign`.
fn sign(node: &KernelConstruction<'_>) -> Made {
    let dtype = type_attr(node, "T")?;
    if REALS.contains(&dtype) || COMPLEX.contains(&dtype) {
        return math::real_function(node, RealFunction::Sign);
    }
    dispatch!(dtype, [I8: i8, I16: i16, I32: i32, I64: i64], T => math::unary_op(|x: T| {
        if x > T::ZERO {
            T::ONE
        } else if x < T::ZERO {
            T::ZERO.minus(T::ONE)
        } else {
            T::ZERO
        }
    }))
}

/// TensorFlow `Round`: halves are rounded to even. Integers are unchanged, as TensorFlow documents
/// it; the kernel of TensorFlow 2.21 makes them all 0.
fn round(node: &KernelConstruction<'_>) -> Made {
    if INTEGERS.contains(&type_attr(node, "T")?) {
        return view(|context| Ok(context.input(0)?.shape().clone()));
    }
    math::real_function(node, RealFunction::Rint)
}

/// TensorFlow `FloorDiv`, Python's `//`.
fn floor_div(node: &KernelConstruction<'_>) -> Made {
    let dtype = type_attr(node, "T")?;
    if INTEGERS.contains(&dtype) {
        dispatch_integer!(dtype, T => kernel(|context| {
            math::broadcast(context, binary::check_divisors::<T>, <T as Integer>::floored_quotient)
        }))
    } else {
        dispatch_real!(dtype, T => math::binary_op(<T as Real>::floored_quotient))
    }
}

/// TensorFlow `TruncateDiv`, towards 0.
fn truncate_div(node: &KernelConstruction<'_>) -> Made {
    let dtype = type_attr(node, "T")?;
    if INTEGERS.contains(&dtype) {
        dispatch_integer!(dtype, T => kernel(|context| {
            math::broadcast(context, binary::check_divisors::<T>, <T as Integer>::truncated_quotient)
        }))
    } else {
        dispatch_real!(dtype, T => math::binary_op(<T as Real>::truncated_quotient))
    }
}

/// TensorFlow `TruncateMod` and `Mod`, C's `%` and `fmod`.
fn truncate_mod(node: &KernelConstruction<'_>) -> Made {
    let dtype = type_attr(node, "T")?;
    if INTEGERS.contains(&dtype) {
        dispatch_integer!(dtype, T => kernel(|context| {
            math::broadcast(context, binary::check_divisors::<T>, <T as Integer>::truncated_remainder)
        }))
    } else {
        dispatch_real!(dtype, T => math::binary_op(<T as Real>::truncated_remainder))
    }
}

/// TensorFlow `AddN` and `AccumulateNV2`: adds the inputs in order, without broadcasting.
fn add_n<T: Arithmetic>(context: &KernelContext<'_>) -> Result<(), KernelError> {
    let first = context.input(0)?;
    for (index, other) in context.inputs().enumerate().skip(1) {
        if other.shape() != first.shape() {
            return Err(KernelError::invalid(format!(
                "inputs to operation {} of type AddN must have the same size and shape. Input 0: {} != input {index}: {}",
                context.node(),
                first.shape(),
                other.shape()
            )));
        }
        // Checks that the type is T before anything is written.
        other.as_slice::<T>()?;
    }
    let x = first.as_slice::<T>()?;
    if context.n_inputs() == 1 {
        return context.forward_input(0, 0, first.shape());
    }
    let others = context
        .inputs()
        .skip(1)
        .map(|other| other.as_slice::<T>())
        .collect::<Result<smallvec::SmallVec<[&[T]; 8]>, _>>()?;
    context.fill_output(0, first.shape(), |out| {
        binary::sum_all(x, &others, out, Threads::of(context));
        Ok(())
    })
}

/// TensorFlow `ClipByValue`: bounds are scalars or have the input's shape. A bound that is NaN is
/// ignored.
fn clip_by_value<T: Element>(
    context: &KernelContext<'_>,
    clipped: impl Fn(T, T, T) -> T + Sync,
) -> Result<(), KernelError> {
    let (value, low, high) = (context.input(0)?, context.input(1)?, context.input(2)?);
    let fits =
        |bound: &crate::tensor::Tensor| bound.shape().rank() == 0 || bound.shape() == value.shape();
    if !fits(low) || !fits(high) {
        return Err(KernelError::invalid(format!(
            "clip_value_min and clip_value_max must be either of the same shape as input, or a scalar. input shape: {}, \
             clip_value_min shape: {}, clip_value_max shape: {}",
            value.shape(),
            low.shape(),
            high.shape()
        )));
    }
    let plan = Spread::new(value.shape(), [value.shape(), low.shape(), high.shape()])?;
    let (x, l, h) = (
        value.as_slice::<T>()?,
        low.as_slice::<T>()?,
        high.as_slice::<T>()?,
    );
    context.fill_output(0, value.shape(), |out| {
        binary::clip(&plan, [x, l, h], out, Threads::of(context), clipped);
        Ok(())
    })
}
