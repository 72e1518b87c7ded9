//! Lookup tables.

use super::definition::OpDef;
use super::definition::op;
use super::infer::InferenceContext;
use super::infer::Known;
use super::rules::Shapes;
use super::rules::merge;
use super::rules::scalars;
use crate::graph::Output;
use crate::tensor::PartialShape;

const SHARING: &str =
    "container: string = ''; shared_name: string = ''; use_node_name_sharing: bool = false";
const TYPES: &str = "key_dtype: type; value_dtype: type";
const DENSE: &str = "value_shape: shape = {}; initial_num_buckets: int = 131072; \
                     max_load_factor: float = 0.8";
const FILE: &str = "key_index: int >= -2; value_index: int >= -2; vocab_size: int >= -1 = -1; \
                    delimiter: string = '\t'; offset: int = 0";

/// Ops of this family.
pub(super) fn ops() -> Vec<OpDef> {
    let mut ops = handles();
    ops.extend(uses());
    ops
}

/// Ops that make tables.
fn handles() -> Vec<OpDef> {
    let handle = "table_handle: resource";
    let mut ops: Vec<OpDef> = [
        ("HashTableV2", "", format!("{SHARING}; {TYPES}")),
        ("MutableHashTableV2", "", format!("{SHARING}; {TYPES}")),
        (
            "MutableHashTableOfTensorsV2",
            "",
            format!("{SHARING}; {TYPES}; value_shape: shape = {{}}"),
        ),
        (
            "MutableDenseHashTableV2",
            "empty_key: key_dtype, deleted_key: key_dtype",
            format!("{SHARING}; {TYPES}; {DENSE}"),
        ),
        ("AnonymousHashTable", "", TYPES.to_owned()),
        ("AnonymousMutableHashTable", "", TYPES.to_owned()),
        (
            "AnonymousMutableDenseHashTable",
            "empty_key: key_dtype, deleted_key: key_dtype",
            format!("{TYPES}; {DENSE}"),
        ),
    ]
    .into_iter()
    .map(|(name, inputs, attrs)| {
        op(name, inputs, handle, &attrs)
            .stateful()
            .with_shape(scalars)
            .with_fold(values)
    })
    .collect();
    ops.push(
        op(
            "HashTable",
            "",
            "table_handle: Ref(string)",
            &format!("{SHARING}; {TYPES}"),
        )
        .stateful()
        .with_shape(|_| Ok(vec![[2].into()])),
    );
    ops
}

/// Ops on tables. Those of TensorFlow 1 have a reference to two strings as handle.
fn uses() -> Vec<OpDef> {
    let mut ops = Vec::new();
    for (suffix, handle) in [
        ("", "table_handle: Ref(string)"),
        ("V2", "table_handle: resource"),
    ] {
        let mut of_version = vec![
            op(
                &format!("InitializeTable{suffix}"),
                &format!("{handle}, keys: Tkey, values: Tval"),
                "",
                "Tkey: type; Tval: type",
            )
            .with_shape(|context| {
                let keys = context.shape_of_rank(1, 1)?;
                merge(&keys, context.shape(2), "shapes of keys and values")?;
                Ok(Vec::new())
            }),
            op(
                &format!("InitializeTableFromTextFile{suffix}"),
                &format!("{handle}, filename: string"),
                "",
                FILE,
            )
            .with_shape(|context| {
                context.shape_of_rank(1, 0)?;
                Ok(Vec::new())
            }),
            op(
                &format!("LookupTableFind{suffix}"),
                &format!("{handle}, keys: Tin, default_value: Tout"),
                "values: Tout",
                "Tin: type; Tout: type",
            )
            .with_shape(found),
            op(
                &format!("LookupTableSize{suffix}"),
                handle,
                "size: int64",
                "",
            )
            .with_shape(scalars),
        ];
        if suffix == "V2" {
            of_version = of_version.into_iter().map(OpDef::stateful).collect();
        }
        ops.extend(of_version);
    }
    let handle = "table_handle: resource";
    for name in ["LookupTableInsertV2", "LookupTableImportV2"] {
        ops.push(
            op(
                name,
                &format!("{handle}, keys: Tin, values: Tout"),
                "",
                "Tin: type; Tout: type",
            )
            .stateful(),
        );
    }
    ops.extend([
        op(
            "LookupTableRemoveV2",
            &format!("{handle}, keys: Tin"),
            "",
            "Tin: type",
        )
        .stateful(),
        op(
            "LookupTableExportV2",
            handle,
            "keys: Tkeys, values: Tvalues",
            "Tkeys: type; Tvalues: type",
        )
        .stateful()
        .with_shape(|context| {
            let value = context.handle(0).map(|(_, shape)| shape.clone());
            let Some(dims) = value.as_ref().and_then(PartialShape::dims) else {
                return Ok(vec![PartialShape::unknown(); 2]);
            };
            let values = std::iter::once(None).chain(dims.iter().copied()).collect();
            Ok(vec![PartialShape::unknown(), values])
        }),
    ]);
    ops
}

/// What a handle is known to hold: values of this type and shape. Keys of dense tables may have
/// axes of their own, so nothing is said of them.
fn values(context: &InferenceContext<'_>, _: &[Output]) -> Vec<Known> {
    let attrs = context.attrs();
    let has_scalar_keys = context.n_inputs() == 0 || context.shape(0).rank() == Some(0);
    let shape = attrs.shape("value_shape").cloned();
    let shape = shape.unwrap_or_else(PartialShape::scalar);
    vec![match attrs.dtype("value_dtype") {
        Some(dtype) if has_scalar_keys => Known::Handle(dtype, shape),
        _ => Known::Nothing,
    }]
}

/// The values of the keys: their shape, and that of one value.
fn found(context: &InferenceContext<'_>) -> Shapes {
    let value = context.handle(0).map(|(_, shape)| shape);
    let dims = value.and_then(PartialShape::dims);
    let (Some(value), Some(keys)) = (dims, context.shape(1).dims()) else {
        return Ok(vec![PartialShape::unknown()]);
    };
    Ok(vec![keys.iter().chain(value).copied().collect()])
}
