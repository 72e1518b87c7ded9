//! Elementwise arithmetic, comparisons and conversions.

use super::definition::OpDef;
use super::definition::op;
use super::fold;
use super::infer::InferenceContext;
use super::rules::Shapes;
use super::rules::broadcast;
use super::rules::broadcast_inputs;
use super::rules::merge;
use super::rules::same_as_input;
use super::work::TRANSCENDENTAL_FLOPS;
use super::work::per_output;

/// Ops of this family.
pub(super) fn ops() -> Vec<OpDef> {
    let mut ops = Vec::new();
    let cheap = "Abs Neg Sign Square Floor Ceil Round Rint Reciprocal Inv Conj OnesLike ZerosLike";
    let costly = "Sqrt Rsqrt Exp Expm1 Log Log1p Sin Cos Tan Asin Acos Atan Sinh Cosh Asinh Acosh Atanh Tanh Sigmoid Erf Erfc \
                  Lgamma Digamma Erfinv Ndtri Dawsn Expint FresnelCos FresnelSin Spence \
                  BesselI0 BesselI0e BesselI1 BesselI1e BesselJ0 BesselJ1 BesselK0 BesselK0e BesselK1 BesselK1e BesselY0 BesselY1";
    for (names, flops) in [(cheap, 1.0), (costly, TRANSCENDENTAL_FLOPS)] {
        ops.extend(names.split_whitespace().map(|name| unary(name, flops)));
    }
    let cheap = "Add AddV2 Sub Mul Div RealDiv TruncateDiv FloorDiv Mod FloorMod TruncateMod Maximum Minimum SquaredDifference \
                 MulNoNan DivNoNan BitwiseAnd BitwiseOr BitwiseXor LeftShift RightShift";
    let costly = "Pow Atan2 Xdivy Xlogy Xlog1py Igamma Igammac Zeta";
    for (names, flops) in [(cheap, 1.0), (costly, TRANSCENDENTAL_FLOPS)] {
        ops.extend(names.split_whitespace().map(|name| binary(name, flops)));
    }
    for name in ["Less", "LessEqual", "Greater", "GreaterEqual"] {
        ops.push(compare(name, "T: realnumbertype"));
    }
    for name in ["Equal", "NotEqual"] {
        ops.push(compare(
            name,
            "T: type; incompatible_shape_error: bool = true",
        ));
    }
    for name in ["LogicalAnd", "LogicalOr"] {
        ops.push(
            op(name, "x: bool, y: bool", "z: bool", "")
                .with_shape(broadcast_inputs)
                .with_work(per_output(1.0)),
        );
    }
    for name in ["IsFinite", "IsInf", "IsNan"] {
        ops.push(
            op(
                name,
                "x: T",
                "y: bool",
                "T: {bfloat16, half, float, double}",
            )
            .with_shape(same_as_input)
            .with_work(per_output(1.0)),
        );
    }
    for name in [
        "TanhGrad",
        "SigmoidGrad",
        "SqrtGrad",
        "RsqrtGrad",
        "ReciprocalGrad",
        "InvGrad",
    ] {
        ops.push(
            op(name, "y: T, dy: T", "z: T", "T: numbertype")
                .with_shape(same_as_input)
                .with_work(per_output(3.0)),
        );
    }
    ops.extend([
        op(
            "NextAfter",
            "x1: T, x2: T",
            "output: T",
            "T: {double, float} = DT_FLOAT",
        )
        .with_shape(broadcast_inputs)
        .with_work(per_output(2.0)),
        op(
            "PopulationCount",
            "x: T",
            "y: uint8",
            "T: {int8, int16, int32, int64, uint8, uint16, uint32, uint64}",
        )
        .with_shape(same_as_input)
        .with_work(per_output(1.0)),
        op("LogicalNot", "x: bool", "y: bool", "")
            .with_shape(same_as_input)
            .with_work(per_output(1.0)),
        op("Invert", "x: T", "y: T", "T: realnumbertype")
            .with_shape(same_as_input)
            .with_work(per_output(1.0)),
        op(
            "Cast",
            "x: SrcT",
            "y: DstT",
            "SrcT: type; DstT: type; Truncate: bool = false",
        )
        .with_shape(same_as_input)
        .with_fold(fold::cast)
        .with_work(per_output(1.0)),
        op(
            "AddN",
            "inputs: N * T",
            "sum: T",
            "N: int >= 1; T: {numbertype, variant}",
        )
        .with_shape(all_equal)
        .with_work(|context, outputs| {
            #[expect(clippy::cast_precision_loss, reason = "an estimate")]
            let n_additions = context.n_inputs() as f64 - 1.0;
            per_output(n_additions)(context, outputs)
        }),
        op(
            "AccumulateNV2",
            "inputs: N * T",
            "sum: T",
            "N: int >= 1; T: numbertype; shape: shape",
        )
        .with_shape(all_equal)
        .with_work(per_output(1.0)),
        op(
            "ClipByValue",
            "t: T, clip_value_min: T, clip_value_max: T",
            "output: T",
            "T: numbertype",
        )
        .with_shape(same_as_input)
        .with_work(per_output(2.0)),
        op(
            "Select",
            "condition: bool, t: T, e: T",
            "output: T",
            "T: type",
        )
        .with_shape(|context| {
            let shape = merge(
                context.shape(1),
                context.shape(2),
                "shapes of both branches",
            )?;
            Ok(vec![shape])
        })
        .with_work(per_output(1.0)),
        op(
            "SelectV2",
            "condition: bool, t: T, e: T",
            "output: T",
            "T: type",
        )
        .with_shape(broadcast_inputs)
        .with_work(per_output(1.0)),
        op(
            "ApproximateEqual",
            "x: T, y: T",
            "z: bool",
            "T: numbertype; tolerance: float = 0.00001",
        )
        .with_shape(|context| {
            Ok(vec![merge(
                context.shape(0),
                context.shape(1),
                "shapes of both inputs",
            )?])
        })
        .with_work(per_output(2.0)),
        op(
            "Complex",
            "real: T, imag: T",
            "out: Tout",
            "T: {float, double} = DT_FLOAT; Tout: {complex64, complex128} = DT_COMPLEX64",
        )
        .with_shape(broadcast_inputs),
        op(
            "Real",
            "input: T",
            "output: Tout",
            "T: {complex64, complex128} = DT_COMPLEX64; Tout: {float, double} = DT_FLOAT",
        )
        .with_shape(same_as_input),
        op(
            "Imag",
            "input: T",
            "output: Tout",
            "T: {complex64, complex128} = DT_COMPLEX64; Tout: {float, double} = DT_FLOAT",
        )
        .with_shape(same_as_input),
        op(
            "Angle",
            "input: T",
            "output: Tout",
            "T: {complex64, complex128} = DT_COMPLEX64; Tout: {float, double} = DT_FLOAT",
        )
        .with_shape(same_as_input)
        .with_work(per_output(TRANSCENDENTAL_FLOPS)),
        op(
            "ComplexAbs",
            "x: T",
            "y: Tout",
            "T: {complex64, complex128} = DT_COMPLEX64; Tout: {float, double} = DT_FLOAT",
        )
        .with_shape(same_as_input)
        .with_work(per_output(TRANSCENDENTAL_FLOPS)),
    ]);
    ops
}

fn unary(name: &str, flops: f64) -> OpDef {
    let types = match name {
        "OnesLike" | "ZerosLike" => "T: type",
        "Conj" => "T: {complex64, complex128, variant} = DT_COMPLEX64",
        _ => "T: numbertype",
    };
    let op = op(name, "x: T", "y: T", types)
        .with_shape(same_as_input)
        .with_work(per_output(flops));
    if name == "Neg" {
        op.with_fold(fold::negate)
    } else {
        op
    }
}

fn binary(name: &str, flops: f64) -> OpDef {
    let types = match name {
        "Add" => "T: {numbertype, string}",
        _ => "T: numbertype",
    };
    let op = op(name, "x: T, y: T", "z: T", types)
        .with_shape(broadcast_inputs)
        .with_work(per_output(flops));
    match fold::integer_operation(name) {
        Some(operation) => {
            op.with_fold(move |context, outputs| fold::elementwise(context, outputs, operation))
        }
        None => op,
    }
}

fn compare(name: &str, attrs: &str) -> OpDef {
    op(name, "x: T, y: T", "z: bool", attrs)
        .with_shape(compared)
        .with_work(per_output(1.0))
}

fn compared(context: &InferenceContext<'_>) -> Shapes {
    let shape = broadcast(context.shape(0), context.shape(1));
    match shape {
        // If asked not to fail, comparing shapes that cannot be broadcast gives the scalar `false`.
        Err(_) if context.attrs().bool("incompatible_shape_error") == Some(false) => {
            Ok(vec![crate::tensor::PartialShape::scalar()])
        }
        shape => Ok(vec![shape?]),
    }
}

fn all_equal(context: &InferenceContext<'_>) -> Shapes {
    let mut shape = context.shape(0).clone();
    for index in 1..context.n_inputs() {
        shape = merge(&shape, context.shape(index), "shapes of all inputs")?;
    }
    Ok(vec![shape])
}
