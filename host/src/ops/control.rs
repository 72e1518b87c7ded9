//! Control flow of TensorFlow 1: switches, merges and loop frames.

use super::definition::OpDef;
use super::definition::op;
use super::fold;
use super::infer::InferenceContext;
use super::rules::Dim;
use super::rules::Shapes;
use super::rules::same_as_input;
use super::work::free;
use crate::tensor::PartialShape;

/// Ops of this family.
pub(super) fn ops() -> Vec<OpDef> {
    let frame =
        "T: type; frame_name: string; is_constant: bool = false; parallel_iterations: int = 10";
    let mut ops = Vec::new();
    for (prefix, t) in [("", "T"), ("Ref", "Ref(T)")] {
        let name = |name: &str| format!("{prefix}{name}");
        ops.extend([
            op(
                &name("Switch"),
                &format!("data: {t}, pred: bool"),
                &format!("output_false: {t}, output_true: {t}"),
                "T: type",
            )
            .with_shape(|context| {
                context.shape_of_rank(1, 0)?;
                Ok(vec![context.shape(0).clone(); 2])
            })
            .with_fold(|context, _| vec![handle(context); 2]),
            op(
                &name("Merge"),
                &format!("inputs: N * {t}").replace("N * Ref(T)", "Ref(N * T)"),
                &format!("output: {t}, value_index: int32"),
                "T: type; N: int >= 1",
            )
            .with_shape(merged),
            op(
                &name("Enter"),
                &format!("data: {t}"),
                &format!("output: {t}"),
                frame,
            )
            .with_shape(same_as_input)
            .with_fold(|context, outputs| {
                // A loop variable may change its shape; a loop constant keeps the shape from
                // outside.
                if context.attrs().bool("is_constant") == Some(true) {
                    fold::identity(context, outputs)
                } else {
                    vec![handle(context)]
                }
            }),
        ]);
        for op_name in ["Exit", "NextIteration"] {
            ops.push(
                op(
                    &name(op_name),
                    &format!("data: {t}"),
                    &format!("output: {t}"),
                    "T: type",
                )
                .with_shape(same_as_input)
                .with_fold(|context, _| vec![handle(context)]),
            );
        }
    }
    ops.extend([
        op("RefIdentity", "input: Ref(T)", "output: Ref(T)", "T: type").with_shape(same_as_input),
        op(
            "RefSelect",
            "index: int32, inputs: Ref(N * T)",
            "output: Ref(T)",
            "T: type; N: int >= 1",
        ),
        op(
            "_SwitchN",
            "data: T, output_index: int32",
            "outputs: num_outs * T",
            "num_outs: int >= 1; T: type",
        )
        .with_shape(|context| Ok(vec![context.shape(0).clone(); context.n_outputs()])),
        op("LoopCond", "input: bool", "output: bool", "")
            .with_shape(|context| Ok(vec![context.shape_of_rank(0, 0)?])),
        op("NoOp", "", "", ""),
        op("ControlTrigger", "", "", ""),
        op(
            "Abort",
            "",
            "",
            "error_msg: string = ''; exit_without_error: bool = false",
        ),
    ]);
    // These ops forward memory and compute nothing.
    ops.into_iter().map(|op| op.with_work(free)).collect()
}

/// Passes a handle through control flow. Numbers may differ from iteration to iteration, so they
/// are not passed.
fn handle(context: &InferenceContext<'_>) -> super::infer::Known {
    match &context.input(0).known {
        known @ super::infer::Known::Handle(..) => known.clone(),
        _ => super::infer::Known::Nothing,
    }
}

/// Returns what the shapes of all inputs have in common. The shape of a back edge is not known yet.
fn merged(context: &InferenceContext<'_>) -> Shapes {
    let mut common = context.shape(0).clone();
    for index in 1..context.n_inputs() {
        common = match (common.dims(), context.shape(index).dims()) {
            (Some(a), Some(b)) if a.len() == b.len() => a
                .iter()
                .zip(b)
                .map(|(&a, &b): (&Dim, &Dim)| a.filter(|_| a == b))
                .collect(),
            _ => PartialShape::unknown(),
        };
    }
    Ok(vec![common, PartialShape::scalar()])
}
