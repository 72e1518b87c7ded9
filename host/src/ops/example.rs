//! Examples: messages with named features.

use super::definition::OpDef;
use super::definition::op;
use super::infer::InferenceContext;
use super::rules::Shapes;
use super::work::per_input;
use crate::graph::AttrValue;
use crate::tensor::PartialShape;

/// Operations per example: names are looked up and numbers are unpacked.
const EXAMPLE_FLOPS: f64 = 1000.0;

/// Ops of this family.
pub(super) fn ops() -> Vec<OpDef> {
    let types = "list({float, int64, string}) >= 0";
    let results = |n: &str| {
        format!(
            "sparse_indices: {n} * int64, sparse_values: sparse_types, \
             sparse_shapes: {n} * int64, dense_values: Tdense"
        )
    };
    let attrs = format!("sparse_types: {types}; Tdense: {types}; dense_shapes: list(shape) >= 0");
    vec![
        op(
            "ParseExample",
            "serialized: string, names: string, sparse_keys: Nsparse * string, \
             dense_keys: Ndense * string, dense_defaults: Tdense",
            &results("Nsparse"),
            &format!("Nsparse: int >= 0; Ndense: int >= 0; {attrs}"),
        )
        .with_shape(parsed)
        .with_work(per_input(EXAMPLE_FLOPS)),
        op(
            "ParseExampleV2",
            "serialized: string, names: string, sparse_keys: string, dense_keys: string, \
             ragged_keys: string, dense_defaults: Tdense",
            &format!(
                "{}, ragged_values: ragged_value_types, ragged_row_splits: ragged_split_types",
                results("num_sparse")
            ),
            &format!(
                "num_sparse: int >= 0; {attrs}; ragged_value_types: {types}; \
                 ragged_split_types: list({{int32, int64}}) >= 0"
            ),
        )
        .with_shape(parsed)
        .with_work(per_input(EXAMPLE_FLOPS)),
        op(
            "ParseSingleExample",
            "serialized: string, dense_defaults: Tdense",
            &results("num_sparse"),
            &format!(
                "num_sparse: int >= 0; sparse_keys: list(string) >= 0; \
                 dense_keys: list(string) >= 0; {attrs}"
            ),
        )
        .with_shape(|context| {
            context.shape_of_rank(0, 0)?;
            parsed(context)
        })
        .with_work(per_input(EXAMPLE_FLOPS)),
    ]
}

/// Sparse results have a row per value, dense ones the shape of the batch before their own.
fn parsed(context: &InferenceContext<'_>) -> Shapes {
    let list = |name: &str| context.attrs().list(name).unwrap_or_default();
    let batch = context.shape(0).dims();
    let rank = batch.map(|batch| batch.len() + 1);
    let n_sparse = list("sparse_types").len();
    let mut shapes = vec![PartialShape::new(&[None, rank]); n_sparse];
    shapes.extend(vec![PartialShape::of_rank(1); n_sparse]);
    shapes.extend(vec![PartialShape::new(&[rank]); n_sparse]);
    for shape in list("dense_shapes") {
        let own = match shape {
            AttrValue::Shape(shape) => shape.dims(),
            _ => None,
        };
        shapes.push(match (batch, own) {
            (Some(batch), Some(own)) => batch.iter().chain(own).copied().collect(),
            _ => PartialShape::unknown(),
        });
    }
    // Values of ragged results, then the ends of their rows.
    let n_ragged = list("ragged_value_types").len();
    shapes.extend(vec![PartialShape::of_rank(1); 2 * n_ragged]);
    Ok(shapes)
}
