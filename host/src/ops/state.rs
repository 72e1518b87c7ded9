//! Constants, placeholders, variables, and the ops at the ends of functions and partitions.

use super::definition::OpDef;
use super::definition::op;
use super::infer::InferenceContext;
use super::infer::Known;
use super::infer::ShapeError;
use super::rules::Shapes;
use super::rules::merge;
use super::rules::same_as_input;
use super::rules::scalars;
use super::rules::unknown;
use super::work::free;
use super::work::per_input;
use crate::graph::Output;
use crate::graph::Work;
use crate::tensor::DType;
use crate::tensor::PartialShape;

/// First producer version whose GraphDefs write the shape of a placeholder as it is. Earlier ones
/// write `shape {}` for any shape.
pub(crate) const PLACEHOLDER_SHAPES_MEAN_WHAT_THEY_SAY: i32 = 24;

/// Returns whether `shape {}` of a placeholder means any shape rather than a scalar in a GraphDef
/// of this producer version (0 means unknown).
pub(crate) fn has_legacy_placeholders(producer_version: i32) -> bool {
    producer_version < PLACEHOLDER_SHAPES_MEAN_WHAT_THEY_SAY
}

/// Ops of this family.
pub(super) fn ops() -> Vec<OpDef> {
    let mut ops = constants();
    ops.extend(variables());
    ops.extend(ends());
    ops
}

fn constants() -> Vec<OpDef> {
    vec![
        op("Const", "", "output: dtype", "value: tensor; dtype: type")
            .with_shape(|context| {
                let value = context.attrs().tensor("value");
                let dtype = context.attrs().dtype("dtype");
                if let (Some(value), Some(dtype)) = (value, dtype)
                    && value.dtype() != dtype
                {
                    return Err(ShapeError::new(format!(
                        "`dtype` is {dtype}, but the value is of type {}",
                        value.dtype()
                    )));
                }
                Ok(vec![value.map_or_else(PartialShape::unknown, |v| {
                    PartialShape::from(v.shape())
                })])
            })
            .with_fold(|context, _| {
                vec![
                    context
                        .attrs()
                        .tensor("value")
                        .cloned()
                        .map_or(Known::Nothing, Known::Literal),
                ]
            })
            .with_work(|context, _| Work {
                resident_bytes: context
                    .attrs()
                    .tensor("value")
                    .map_or(0, |v| v.size_bytes()),
                ..Work::default()
            }),
        op(
            "Placeholder",
            "",
            "output: dtype",
            "dtype: type; shape: shape = { unknown_rank: true }",
        )
        .with_shape(|context| {
            let shape = context.attrs().shape("shape").cloned().unwrap_or_default();
            let is_legacy = has_legacy_placeholders(context.producer_version());
            if is_legacy && shape.rank() == Some(0) {
                return Ok(vec![PartialShape::unknown()]);
            }
            Ok(vec![shape])
        })
        .with_work(free),
        op(
            "PlaceholderV2",
            "",
            "output: dtype",
            "dtype: type; shape: shape",
        )
        .with_shape(declared)
        .with_work(free),
        op(
            "PlaceholderWithDefault",
            "input: dtype",
            "output: dtype",
            "dtype: type; shape: shape",
        )
        .with_shape(|context| {
            // A feed may differ from the default wherever the declared shape is unknown.
            let declared = context.attrs().shape("shape").cloned().unwrap_or_default();
            merge(context.shape(0), &declared, "default and declared shape")?;
            Ok(vec![declared])
        })
        .with_work(free),
        op(
            "ImmutableConst",
            "",
            "tensor: dtype",
            "dtype: type; shape: shape; memory_region_name: string",
        )
        .with_shape(declared)
        .with_work(free),
    ]
}

fn variables() -> Vec<OpDef> {
    let mut ops = scatters();
    ops.extend([
        op("Variable", "", "ref: Ref(dtype)", "shape: shape; dtype: type; container: string = ''; shared_name: string = ''")
            .stateful()
            .with_shape(|context| {
                // The first version of the op writes `[]` for an unknown shape.
                let shape = context.attrs().shape("shape").cloned().unwrap_or_default();
                Ok(vec![if shape.rank() == Some(0) { PartialShape::unknown() } else { shape }])
            })
            .with_work(resident),
        op("VariableV2", "", "ref: Ref(dtype)", "shape: shape; dtype: type; container: string = ''; shared_name: string = ''")
            .stateful()
            .with_shape(declared)
            .with_work(resident),
        op("VarHandleOp", "", "resource: resource", "container: string = ''; shared_name: string = ''; debug_name: string = ''; dtype: type; shape: shape; allowed_devices: list(string) = []")
            .stateful()
            .with_shape(scalars)
            .with_fold(|context, _| vec![declared_handle(context)])
            .with_work(resident),
        op("ReadVariableOp", "resource: resource", "value: dtype", "dtype: type")
            .stateful()
            .with_shape(|context| {
                let shape = context.handle(0).map(|(_, shape)| shape.clone());
                Ok(vec![shape.unwrap_or_default()])
            })
            .with_work(free),
        op("VariableShape", "input: resource", "output: out_type", "out_type: {int32, int64} = DT_INT32")
            .stateful()
            .with_shape(|context| {
                let rank = context.handle(0).and_then(|(_, shape)| shape.rank());
                Ok(vec![PartialShape::new(&[rank])])
            }),
        op("VarIsInitializedOp", "resource: resource", "is_initialized: bool", "")
            .stateful()
            .with_shape(scalars),
        op("DestroyResourceOp", "resource: resource", "", "ignore_lookup_error: bool = true").stateful(),
        op("IsVariableInitialized", "ref: Ref(dtype)", "is_initialized: bool", "dtype: type")
            .with_shape(scalars),
        op("Assign", "ref: Ref(T), value: T", "output_ref: Ref(T)", "T: type; validate_shape: bool = true; use_locking: bool = true")
            .with_shape(|context| {
                if context.bool("validate_shape")? {
                    let both = merge(context.shape(0), context.shape(1), "shapes of variable and value")?;
                    return Ok(vec![both]);
                }
                Ok(vec![context.shape(1).clone()])
            }),
        op("AssignVariableOp", "resource: resource, value: dtype", "", "dtype: type; validate_shape: bool = false")
            .stateful()
            .with_shape(assigned),
        op("ApplyGradientDescent", "var: Ref(T), alpha: T, delta: T", "out: Ref(T)", "T: numbertype; use_locking: bool = false")
            .with_shape(same_as_input)
            .with_work(per_input(2.0)),
        op("ResourceApplyGradientDescent", "var: resource, alpha: T, delta: T", "", "T: numbertype; use_locking: bool = false")
            .stateful(),
        op("SaveV2", "prefix: string, tensor_names: string, shape_and_slices: string, tensors: dtypes", "", "dtypes: list(type) >= 1")
            .stateful(),
        op("ShardedFilename", "basename: string, shard: int32, num_shards: int32", "filename: string", "")
            .with_shape(scalars),
        op("ShardedFilespec", "basename: string, num_shards: int32", "filename: string", "")
            .with_shape(scalars),
        op("MergeV2Checkpoints", "checkpoint_prefixes: string, destination_prefix: string", "", "delete_old_dirs: bool = true; allow_missing_files: bool = false")
            .stateful(),
        op("RestoreV2", "prefix: string, tensor_names: string, shape_and_slices: string", "tensors: dtypes", "dtypes: list(type) >= 1")
            .stateful()
            .with_shape(unknown),
        op("CountUpTo", "ref: Ref(T)", "output: T", "limit: int; T: {int32, int64}")
            .with_shape(scalars),
        op("ResourceCountUpTo", "resource: resource", "output: T", "limit: int; T: {int32, int64}")
            .stateful()
            .with_shape(scalars),
    ]);
    for name in ["AssignAdd", "AssignSub"] {
        ops.push(
            op(
                name,
                "ref: Ref(T), value: T",
                "output_ref: Ref(T)",
                "T: numbertype; use_locking: bool = false",
            )
            .with_shape(|context| {
                let both = merge(
                    context.shape(0),
                    context.shape(1),
                    "shapes of variable and value",
                )?;
                Ok(vec![both])
            })
            .with_work(per_input(1.0)),
        );
    }
    for name in ["AssignAddVariableOp", "AssignSubVariableOp"] {
        ops.push(
            op(name, "resource: resource, value: dtype", "", "dtype: type")
                .stateful()
                .with_shape(assigned)
                .with_work(per_input(1.0)),
        );
    }
    ops
}

/// Ops that change a part of a variable.
fn scatters() -> Vec<OpDef> {
    let locking = "Tindices: {int32, int64}; use_locking: bool = true";
    let mut ops = Vec::new();
    for name in ["Update", "Add", "Sub", "Mul", "Div", "Min", "Max"] {
        let dtype = match name {
            "Update" => "type",
            _ => "numbertype",
        };
        ops.push(
            op(
                &format!("Scatter{name}"),
                "ref: Ref(T), indices: Tindices, updates: T",
                "output_ref: Ref(T)",
                &format!("T: {dtype}; {locking}"),
            )
            .with_shape(same_as_input)
            .with_work(of_updates),
        );
        ops.push(
            op(
                &format!("ResourceScatter{name}"),
                "resource: resource, indices: Tindices, updates: dtype",
                "",
                &format!("dtype: {dtype}; Tindices: {{int32, int64}}"),
            )
            .stateful()
            .with_work(of_updates),
        );
    }
    for name in ["Update", "Add", "Sub", "Min", "Max"] {
        let attrs = format!("T: type; {locking}; bad_indices_policy: string = ''");
        ops.push(
            op(
                &format!("ScatterNd{name}"),
                "ref: Ref(T), indices: Tindices, updates: T",
                "output_ref: Ref(T)",
                &attrs,
            )
            .with_shape(same_as_input)
            .with_work(of_updates),
        );
        ops.push(
            op(
                &format!("ResourceScatterNd{name}"),
                "ref: resource, indices: Tindices, updates: T",
                "",
                &attrs,
            )
            .stateful()
            .with_work(of_updates),
        );
    }
    ops
}

/// The updates are read, and as many elements of the variable are read and written.
fn of_updates(context: &InferenceContext<'_>, _: &[Output]) -> Work {
    let traffic = context.traffic_only(&[]);
    let updated = context.shape(2).size_bytes(context.dtype(2)).unwrap_or(0);
    Work {
        flops: context.input_elements(2),
        traffic_bytes: traffic
            .traffic_bytes
            .saturating_add(updated.saturating_mul(2)),
        ..traffic
    }
}

/// Arguments and results of functions, and the two ends of a transfer.
fn ends() -> Vec<OpDef> {
    let mut ops = vec![
        op("_Arg", "", "output: T", "T: type; index: int >= 0")
            .stateful()
            .with_shape(unknown)
            .with_work(free),
        op("_DeviceArg", "", "output: T", "T: type; index: int >= 0")
            .stateful()
            .with_shape(unknown)
            .with_work(free),
        op("_Retval", "input: T", "", "T: type; index: int >= 0")
            .stateful()
            .with_work(free),
        op("_DeviceRetval", "input: T", "", "T: type; index: int >= 0")
            .stateful()
            .with_work(free),
    ];
    let address = "tensor_name: string; send_device: string; send_device_incarnation: int; recv_device: string; \
                   client_terminated: bool = false";
    for name in ["_Send", "_HostSend", "Send"] {
        ops.push(op(name, "tensor: T", "", &format!("T: type; {address}")).stateful());
    }
    for name in ["_Recv", "_HostRecv", "Recv"] {
        ops.push(
            op(
                name,
                "",
                "tensor: tensor_type",
                &format!("tensor_type: type; {address}"),
            )
            .stateful()
            .with_shape(unknown),
        );
    }
    ops
}

fn declared(context: &InferenceContext<'_>) -> Shapes {
    Ok(vec![
        context.attrs().shape("shape").cloned().unwrap_or_default(),
    ])
}

fn declared_handle(context: &InferenceContext<'_>) -> Known {
    let shape = context.attrs().shape("shape").cloned().unwrap_or_default();
    context
        .attrs()
        .dtype("dtype")
        .map_or(Known::Nothing, |dtype| Known::Handle(dtype, shape))
}

fn resident(context: &InferenceContext<'_>, _: &[Output]) -> Work {
    let dtype = context.attrs().dtype("dtype").unwrap_or(DType::F32);
    let bytes = context
        .attrs()
        .shape("shape")
        .and_then(|shape| shape.size_bytes(dtype));
    Work {
        resident_bytes: bytes.unwrap_or(0),
        ..Work::default()
    }
}

fn assigned(context: &InferenceContext<'_>) -> Shapes {
    if let Some((_, shape)) = context.handle(0) {
        merge(shape, context.shape(1), "shapes of variable and value")?;
    }
    Ok(Vec::new())
}
