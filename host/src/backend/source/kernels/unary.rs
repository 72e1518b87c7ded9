//! Functions of one element.

use std::sync::Arc;

use crate::backend::plan::attr::float_attr;
use crate::backend::plan::attr::type_attr;
use crate::backend::source::call::Call;
use crate::backend::source::call::Made;
use crate::backend::source::call::function;
use crate::backend::source::call::index;
use crate::backend::source::call::kernel;
use crate::backend::source::call::type_name;
use crate::backend::source::kernels::NUMBERS;
use crate::backend::source::kernels::REALS;
use crate::backend::source::kernels::SIGNED;
use crate::backend::source::kernels::Table;
use crate::device::DeviceFunction;
use crate::device::KernelArg;
use crate::device::KernelConstruction;
use crate::device::KernelError;
use crate::device::ProgramSource;
use crate::tensor::DType;

/// Functions of any numbers, without macros.
const ANY: (&str, &str) = ("unary.c", include_str!("../unary.c"));

/// Functions of real numbers.
const REAL: (&str, &str) = ("unary_real.c", include_str!("../unary_real.c"));

/// Real functions by op.
const REAL_FUNCTIONS: [(&str, &str); 32] = [
    ("Floor", "floor_"),
    ("Ceil", "ceil_"),
    ("Rint", "rint_"),
    ("Exp", "exp_"),
    ("Expm1", "expm1_"),
    ("Log", "log_"),
    ("Log1p", "log1p_"),
    ("Sqrt", "sqrt_"),
    ("Rsqrt", "rsqrt_"),
    ("Reciprocal", "reciprocal"),
    ("Inv", "reciprocal"),
    ("Sigmoid", "sigmoid"),
    ("Tanh", "tanh_"),
    ("Erf", "erf_"),
    ("Erfc", "erfc_"),
    ("Sin", "sin_"),
    ("Cos", "cos_"),
    ("Tan", "tan_"),
    ("Asin", "asin_"),
    ("Acos", "acos_"),
    ("Atan", "atan_"),
    ("Sinh", "sinh_"),
    ("Cosh", "cosh_"),
    ("Asinh", "asinh_"),
    ("Acosh", "acosh_"),
    ("Atanh", "atanh_"),
    ("Softplus", "softplus"),
    ("Softsign", "softsign"),
    ("Elu", "elu"),
    ("Selu", "selu"),
    ("Abs", "abs_real"),
    ("Round", "rint_"),
];

/// Functions of any numbers by op.
const FUNCTIONS: [(&str, &str, &[DType]); 6] = [
    ("Relu", "relu", &NUMBERS),
    ("Relu6", "relu6", &NUMBERS),
    ("Neg", "neg", &SIGNED),
    ("Square", "square", &NUMBERS),
    ("Sign", "sign_of", &SIGNED),
    (
        "Abs",
        "magnitude",
        &[DType::I8, DType::I16, DType::I32, DType::I64],
    ),
];

/// Returns the function of lanes for an op in single precision (`FUSED` in `unary.c` and
/// `unary_real.c`).
pub(in crate::backend::source) fn function_of_lanes(op: &str) -> Option<&'static str> {
    let any = FUNCTIONS.into_iter();
    let any = any.filter(|(_, _, types)| types.contains(&DType::F32));
    let mut all = any.map(|(op, name, _)| (op, name)).chain(REAL_FUNCTIONS);
    all.find(|(known, _)| *known == op).map(|(_, name)| name)
}

pub(super) fn register(table: &mut Table<'_>) {
    for (op, name) in REAL_FUNCTIONS {
        let def = table.def(op).with_types("T", &REALS);
        table.add(def.with_factory(move |node| unary(node, REAL, name)));
    }
    for (op, name, types) in FUNCTIONS {
        let def = table.def(op).with_types("T", types);
        table.add(def.with_factory(move |node| unary(node, ANY, name)));
    }
    let def = table.def("Round");
    let def = def.with_types("T", &[DType::I32, DType::I64]);
    table.add(def.with_factory(|node| {
        kernel(node, |call: &Call<'_, '_>| {
            let shape = call.input(0)?.shape().clone();
            call.context.forward_input(0, 0, &shape)
        })
    }));
    table.add(table.def("LogicalNot").with_factory(|node| {
        let source = source(ANY, DType::Bool)?;
        elementwise(node, &source, "logical_not", DType::Bool)
    }));
    let def = table.def("LeakyRelu").with_types("T", &REALS);
    table.add(def.with_factory(leaky_relu));
    for (op, name) in [
        ("IsNan", "is_nan"),
        ("IsInf", "is_inf"),
        ("IsFinite", "is_finite"),
    ] {
        let def = table.def(op).with_types("T", &REALS);
        table.add(def.with_factory(move |node| {
            let source = source(REAL, type_attr(node, "T")?)?;
            elementwise(node, &source, name, DType::Bool)
        }));
    }
}

fn source(
    (name, text): (&'static str, &'static str),
    dtype: DType,
) -> Result<ProgramSource, KernelError> {
    Ok(ProgramSource::of_source(name, text).with("TYPE", type_name(dtype)?))
}

fn unary(node: &KernelConstruction<'_>, file: (&'static str, &'static str), name: &str) -> Made {
    let dtype = type_attr(node, "T")?;
    elementwise(node, &source(file, dtype)?, name, dtype)
}

/// Creates a kernel that calls a function of input, output and number of elements. The result has
/// this type.
fn elementwise(
    node: &KernelConstruction<'_>,
    source: &ProgramSource,
    name: &str,
    result: DType,
) -> Made {
    let function = function(node, source, name)?;
    let operand = node.attrs.dtype("T").unwrap_or(DType::Bool);
    kernel(node, move |call: &Call<'_, '_>| {
        call.typed(0, operand)?;
        map(call, &function, result, &[])
    })
}

/// Computes output 0 by `function(input 0, output 0, n, more..)`.
pub(super) fn map(
    call: &Call<'_, '_>,
    function: &Arc<dyn DeviceFunction>,
    result: DType,
    more: &[KernelArg<'_>],
) -> Result<(), KernelError> {
    let x = call.input(0)?;
    let out = call.output(result, x.shape())?;
    let n = x.shape().n_elements();
    let mut args = vec![
        KernelArg::Read(x),
        KernelArg::Write(&out),
        KernelArg::U32(index(n)?),
    ];
    args.extend_from_slice(more);
    call.launch_items(function, n, &args)?;
    call.set_output(0, out)
}

/// TensorFlow `LeakyRelu`: `x` if it is above 0, otherwise `alpha * x`.
fn leaky_relu(node: &KernelConstruction<'_>) -> Made {
    let alpha = float_attr(node, "alpha", 0.2)?;
    let dtype = type_attr(node, "T")?;
    let function = function(node, &source(REAL, dtype)?, "leaky_relu")?;
    kernel(node, move |call: &Call<'_, '_>| {
        map(call, &function, dtype, &[KernelArg::F32(alpha)])
    })
}
