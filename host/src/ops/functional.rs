//! Ops that call functions of the library.

use super::definition::OpDef;
use super::definition::op;
use super::infer::InferenceContext;
use super::infer::ShapeError;
use super::rules::Shapes;
use super::rules::unknown;
use crate::graph::AttrValue;
use crate::tensor::PartialShape;

/// An op that runs functions of the library as a whole, for which TensorFlow has rules by name.
///
/// This is a list of names and not a property of [`OpDef`], because placement asks about graphs
/// without definitions too: a service that assembles its own graphs may have no op registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallOp {
    /// `PartitionedCall` or `StatefulPartitionedCall` (TensorFlow `Node::IsPartitionedCall`).
    Partitioned,
    /// `SymbolicGradient`, the gradient of a function.
    Gradient,
    /// `RemoteCall`, on a device that it names.
    Remote,
    /// `While`, a loop over two functions.
    Loop,
}

impl CallOp {
    /// Returns the kind of this op; `None` if it is not one of the list.
    pub(crate) fn of(op: &str) -> Option<Self> {
        match op {
            "PartitionedCall" | "StatefulPartitionedCall" => Some(Self::Partitioned),
            "SymbolicGradient" => Some(Self::Gradient),
            "RemoteCall" => Some(Self::Remote),
            "While" => Some(Self::Loop),
            _ => None,
        }
    }

    /// Returns whether the op calls one function, which policies are told.
    pub(crate) fn is_function_call(self) -> bool {
        self != Self::Loop
    }

    /// Returns whether the arguments depend on the function, so that kernels cannot declare which
    /// of them are in host memory and the element types decide (TensorFlow `IsFunctionCallOp` of
    /// `memory_types.cc`).
    pub(crate) fn has_arguments_of_function(self) -> bool {
        self != Self::Remote
    }
}

/// Returns whether an op decides which tensors are dead. Executing it as if all tensors were live
/// would give wrong results.
pub(crate) fn decides_dead_tensors(op: &str) -> bool {
    let op = op.strip_prefix("Ref").unwrap_or(op);
    matches!(
        op,
        "Switch" | "_SwitchN" | "Merge" | "Enter" | "Exit" | "NextIteration" | "LoopCond"
    )
}

/// Ops of this family.
pub(super) fn ops() -> Vec<OpDef> {
    let mut ops = Vec::new();
    let io = "Tin: list(type) >= 0; Tout: list(type) >= 0";
    let shapes = "output_shapes: list(shape) = []";
    for prefix in ["", "Stateless"] {
        let family = [
            op(
                &format!("{prefix}If"),
                "cond: Tcond, input: Tin",
                "output: Tout",
                &format!("Tcond: type; {io}; then_branch: func; else_branch: func; {shapes}"),
            )
            .with_shape(|context| declared_or(context, unknown)),
            op(
                &format!("{prefix}Case"),
                "branch_index: int32, input: Tin",
                "output: Tout",
                &format!("{io}; branches: list(func) >= 1; {shapes}"),
            )
            .with_shape(|context| declared_or(context, unknown)),
            op(
                &format!("{prefix}While"),
                "input: T",
                "output: T",
                &format!("T: list(type) >= 0; cond: func; body: func; {shapes}; parallel_iterations: int = 10"),
            )
            // Loop variables keep their shapes unless `output_shapes` says otherwise.
            .with_shape(|context| declared_or(context, inputs)),
        ];
        for op in family {
            ops.push(if prefix.is_empty() { op.stateful() } else { op });
        }
    }
    let call = format!(
        "{io}; f: func; config: string = ''; config_proto: string = ''; executor_type: string = ''"
    );
    ops.extend([
        op("PartitionedCall", "args: Tin", "output: Tout", &call).with_shape(unknown),
        op(
            "StatefulPartitionedCall",
            "args: Tin",
            "output: Tout",
            &call,
        )
        .stateful()
        .with_shape(unknown),
        op(
            "RemoteCall",
            "target: string, args: Tin",
            "output: Tout",
            &format!("{io}; f: func"),
        )
        .stateful()
        .with_shape(unknown),
        op(
            "SymbolicGradient",
            "input: Tin",
            "output: Tout",
            &format!("{io}; f: func"),
        )
        .with_shape(unknown),
        op(
            "For",
            "start: int32, limit: int32, delta: int32, input: T",
            "output: T",
            "T: list(type) >= 0; body: func",
        )
        .with_shape(unknown),
        op(
            "FakeParam",
            "",
            "output: dtype",
            "dtype: type; shape: shape",
        )
        .with_shape(|context| {
            Ok(vec![
                context.attrs().shape("shape").cloned().unwrap_or_default(),
            ])
        }),
    ]);
    ops
}

fn inputs(context: &InferenceContext<'_>) -> Shapes {
    Ok((0..context.n_inputs())
        .map(|i| context.shape(i).clone())
        .collect())
}

/// Returns the shapes of attribute `output_shapes`, if it has any.
fn declared_or(
    context: &InferenceContext<'_>,
    otherwise: fn(&InferenceContext<'_>) -> Shapes,
) -> Shapes {
    let declared = context.attrs().list("output_shapes").unwrap_or_default();
    if declared.is_empty() {
        return otherwise(context);
    }
    if declared.len() != context.n_outputs() {
        return Err(ShapeError::new(format!(
            "`output_shapes` lists {} shapes for {} outputs",
            declared.len(),
            context.n_outputs()
        )));
    }
    let shape = |value: &AttrValue| match value {
        AttrValue::Shape(shape) => shape.clone(),
        _ => PartialShape::unknown(),
    };
    Ok(declared.iter().map(shape).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_ops_are_defined_with_a_function() {
        let ops = ops();
        let is_call = |op: &&OpDef| CallOp::of(op.name()).is_some();
        let calls: Vec<&OpDef> = ops.iter().filter(is_call).collect();
        assert_eq!(calls.len(), 5);
        for op in calls {
            assert!(op.attr("f").or(op.attr("body")).is_some(), "{}", op.name());
        }
    }
}
