//! Sparse tensors that are combined with each other or with dense ones, counts, and sets.

use super::definition::OpDef;
use super::definition::op;
use super::infer::InferenceContext;
use super::infer::ShapeError;
use super::rules::Dim;
use super::rules::Shapes;
use super::rules::merge;
use super::rules::merge_dims;
use super::work::TRANSCENDENTAL_FLOPS;
use super::work::per_input;
use super::work::with_flops;
use crate::tensor::PartialShape;

/// Types of the members of sets.
const MEMBERS: &str = "T: {int8, int16, int32, int64, uint8, uint16, string}";

/// Ops of this family.
pub(super) fn ops() -> Vec<OpDef> {
    let mut ops = with_dense();
    ops.extend(with_sparse());
    ops.extend(counts());
    ops.extend(sets());
    ops
}

/// Indices, values and shape of a sparse tensor of this rank.
fn sparse(rank: Dim) -> Vec<PartialShape> {
    vec![
        PartialShape::new(&[None, rank]),
        PartialShape::of_rank(1),
        PartialShape::new(&[rank]),
    ]
}

/// The rank of the sparse tensor in these inputs.
fn rank_of(context: &InferenceContext<'_>, first: usize) -> Result<Dim, ShapeError> {
    let columns = context.shape_of_rank(first, 2)?.dim(1);
    context.shape_of_rank(first + 1, 1)?;
    let rank = context.shape_of_rank(first + 2, 1)?.dim(0);
    merge_dims(columns, rank, "ranks of indices and shape")
}

/// One value per value of the first sparse input.
fn values_of_first(context: &InferenceContext<'_>) -> Shapes {
    rank_of(context, 0)?;
    Ok(vec![context.shape_of_rank(1, 1)?])
}

fn with_dense() -> Vec<OpDef> {
    let mut ops = vec![
        op(
            "SparseSoftmax",
            "sp_indices: int64, sp_values: T, sp_shape: int64",
            "output: T",
            "T: {half, float, double}",
        )
        .with_shape(values_of_first)
        .with_work(|context, outputs| {
            let n = context.input_elements(1);
            with_flops(context, outputs, (4.0 + TRANSCENDENTAL_FLOPS) * n)
        }),
        op(
            "SparseTensorDenseAdd",
            "a_indices: Tindices, a_values: T, a_shape: Tindices, b: T",
            "output: T",
            "T: numbertype; Tindices: {int32, int64}",
        )
        .with_shape(|context| {
            rank_of(context, 0)?;
            let own = context.shape_from_input(2)?;
            Ok(vec![merge(
                &own,
                context.shape(3),
                "shapes of both inputs",
            )?])
        })
        .with_work(per_input(1.0)),
    ];
    for name in ["Add", "Mul", "Div"] {
        ops.push(
            op(
                &format!("SparseDenseCwise{name}"),
                "sp_indices: int64, sp_values: T, sp_shape: int64, dense: T",
                "output: T",
                "T: numbertype",
            )
            .with_shape(values_of_first)
            .with_work(per_input(1.0)),
        );
    }
    ops
}

fn with_sparse() -> Vec<OpDef> {
    let pair = "a_indices: int64, a_values: T, a_shape: int64, b_indices: int64, b_values: T, \
                b_shape: int64";
    let mut ops = vec![
        op(
            "SparseSplit",
            "split_dim: int64, indices: int64, values: T, shape: int64",
            "output_indices: num_split * int64, output_values: num_split * T, \
             output_shape: num_split * int64",
            "num_split: int >= 1; T: type",
        )
        .with_shape(|context| {
            context.shape_of_rank(0, 0)?;
            let rank = rank_of(context, 1)?;
            let n = context.n_outputs() / 3;
            let shapes = sparse(rank).into_iter();
            Ok(shapes
                .flat_map(|shape| std::iter::repeat_n(shape, n))
                .collect())
        })
        .with_work(per_input(1.0)),
        op(
            "EditDistance",
            "hypothesis_indices: int64, hypothesis_values: T, hypothesis_shape: int64, \
             truth_indices: int64, truth_values: T, truth_shape: int64",
            "output: float",
            "normalize: bool = true; T: type",
        )
        .with_shape(|context| {
            let rank = merge_dims(rank_of(context, 0)?, rank_of(context, 3)?, "ranks")?;
            let outer = rank.and_then(|rank| rank.checked_sub(1));
            Ok(vec![
                outer.map_or_else(PartialShape::unknown, PartialShape::of_rank),
            ])
        })
        // Sequences of some ten elements.
        .with_work(per_input(10.0)),
    ];
    for name in ["Maximum", "Minimum"] {
        ops.push(
            op(
                &format!("SparseSparse{name}"),
                pair,
                "output_indices: int64, output_values: T",
                "T: realnumbertype",
            )
            .with_shape(|context| {
                let rank = merge_dims(rank_of(context, 0)?, rank_of(context, 3)?, "ranks")?;
                Ok(sparse(rank)[..2].to_vec())
            })
            .with_work(per_input(1.0)),
        );
    }
    ops
}

fn counts() -> Vec<OpDef> {
    let result = "output_indices: int64, output_values: output_type, output_dense_shape: int64";
    let attrs = "T: {int32, int64}; minlength: int >= -1 = -1; maxlength: int >= -1 = -1; \
                 binary_output: bool; output_type: {int32, int64, float, double}";
    vec![
        op(
            "DenseCountSparseOutput",
            "values: T, weights: output_type",
            result,
            attrs,
        )
        .with_shape(|context| Ok(sparse(context.shape(0).rank())))
        .with_work(per_input(1.0)),
        op(
            "SparseCountSparseOutput",
            "indices: int64, values: T, dense_shape: int64, weights: output_type",
            result,
            attrs,
        )
        .with_shape(|context| Ok(sparse(rank_of(context, 0)?)))
        .with_work(per_input(1.0)),
        op(
            "RaggedCountSparseOutput",
            "splits: int64, values: T, weights: output_type",
            result,
            attrs,
        )
        .with_shape(|context| {
            context.shape_of_rank(0, 1)?;
            Ok(sparse(Some(2)))
        })
        .with_work(per_input(1.0)),
    ]
}

fn sets() -> Vec<OpDef> {
    let result = "result_indices: int64, result_values: T, result_shape: int64";
    let attrs = format!("set_operation: string; validate_indices: bool = true; {MEMBERS}");
    let second = "set2_indices: int64, set2_values: T, set2_shape: int64";
    vec![
        op(
            "SetSize",
            "set_indices: int64, set_values: T, set_shape: int64",
            "size: int32",
            &format!("validate_indices: bool = true; {MEMBERS}"),
        )
        .with_shape(|context| {
            let outer = rank_of(context, 0)?.and_then(|rank| rank.checked_sub(1));
            Ok(vec![
                outer.map_or_else(PartialShape::unknown, PartialShape::of_rank),
            ])
        })
        .with_work(per_input(1.0)),
        op(
            "DenseToDenseSetOperation",
            "set1: T, set2: T",
            result,
            &attrs,
        )
        .with_shape(|context| {
            context.dims_of_rank_at_least(0, 2)?;
            context.dims_of_rank_at_least(1, 2)?;
            Ok(sparse(context.shape(0).rank().or(context.shape(1).rank())))
        })
        .with_work(per_input(1.0)),
        op(
            "DenseToSparseSetOperation",
            &format!("set1: T, {second}"),
            result,
            &attrs,
        )
        .with_shape(|context| {
            context.dims_of_rank_at_least(0, 2)?;
            let rank = rank_of(context, 1)?;
            Ok(sparse(context.shape(0).rank().or(rank)))
        })
        .with_work(per_input(1.0)),
        op(
            "SparseToSparseSetOperation",
            &format!("set1_indices: int64, set1_values: T, set1_shape: int64, {second}"),
            result,
            &attrs,
        )
        .with_shape(|context| {
            let ranks = (rank_of(context, 0)?, rank_of(context, 3)?);
            Ok(sparse(merge_dims(ranks.0, ranks.1, "ranks of both sets")?))
        })
        .with_work(per_input(1.0)),
    ]
}
