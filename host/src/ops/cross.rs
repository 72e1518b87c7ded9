//! Crosses of features.

use super::definition::OpDef;
use super::definition::op;
use super::work::free;
use crate::tensor::PartialShape;

/// Ops of this family.
pub(super) fn ops() -> Vec<OpDef> {
    vec![
        op(
            "SparseCross",
            "indices: N * int64, values: sparse_types, shapes: N * int64, dense_inputs: dense_types",
            "output_indices: int64, output_values: out_type, output_shape: int64",
            "N: int >= 0; hashed_output: bool; num_buckets: int >= 0; hash_key: int; \
             sparse_types: list({int64, string}) >= 0; dense_types: list({int64, string}) >= 0; \
             out_type: {int64, string}; internal_type: {int64, string}",
        )
        .with_shape(|_| {
            Ok(vec![
                PartialShape::new(&[None, Some(2)]),
                PartialShape::of_rank(1),
                [2].into(),
            ])
        })
        .with_work(free),
    ]
}
