//! Sparse and ragged tensors.

use super::definition::OpDef;
use super::definition::op;
use super::infer::InferenceContext;
use super::infer::ShapeError;
use super::rules::Dim;
use super::rules::Shapes;
use super::rules::merge_dims;
use super::rules::size;
use super::work::with_flops;
use crate::tensor::PartialShape;

/// Ops of this family.
pub(super) fn ops() -> Vec<OpDef> {
    let mut ops = sparse();
    ops.extend(joined());
    ops.extend(ragged());
    ops.extend(counts());
    ops
}

/// Ops on sparse tensors.
fn sparse() -> Vec<OpDef> {
    vec![
        op(
            "SparseToDense",
            "sparse_indices: Tindices, output_shape: Tindices, sparse_values: T, default_value: T",
            "dense: T",
            "validate_indices: bool = true; T: type; Tindices: {int32, int64}",
        )
        .with_shape(|context| Ok(vec![context.shape_from_input(1)?])),
        op(
            "SparseReorder",
            "input_indices: int64, input_values: T, input_shape: int64",
            "output_indices: int64, output_values: T",
            "T: type",
        )
        .with_shape(|context| {
            let indices = context.shape_of_rank(0, 2)?;
            let values = context.shape_of_rank(1, 1)?;
            context.shape_of_rank(2, 1)?;
            Ok(vec![indices, values])
        }),
        op(
            "SparseReshape",
            "input_indices: int64, input_shape: int64, new_shape: int64",
            "output_indices: int64, output_shape: int64",
            "",
        )
        .with_shape(|context| {
            let n = context.shape_of_rank(0, 2)?.dim(0);
            context.shape_of_rank(1, 1)?;
            let rank = context.shape_of_rank(2, 1)?.dim(0);
            Ok(vec![
                PartialShape::new(&[n, rank]),
                PartialShape::new(&[rank]),
            ])
        }),
        op(
            "SparseFillEmptyRows",
            "indices: int64, values: T, dense_shape: int64, default_value: T",
            "output_indices: int64, output_values: T, empty_row_indicator: bool, \
             reverse_index_map: int64",
            "T: type",
        )
        .with_shape(|context| {
            let indices = context.shape_of_rank(0, 2)?;
            let values = context.shape_of_rank(1, 1)?;
            let n = merge_dims(
                indices.dim(0),
                values.dim(0),
                "numbers of indices and values",
            )?;
            let rank = context.shape_of_rank(2, 1)?.dim(0);
            let rank = merge_dims(indices.dim(1), rank, "ranks of indices and dense shape")?;
            context.shape_of_rank(3, 0)?;
            let sizes = context.ints(2);
            let n_rows = sizes.and_then(|sizes| sizes.values().first().copied().flatten());
            let n_rows = n_rows.map(|n| size(n, "dense_shape[0]")).transpose()?;
            Ok(vec![
                PartialShape::new(&[None, rank]),
                PartialShape::of_rank(1),
                PartialShape::new(&[n_rows]),
                PartialShape::new(&[n]),
            ])
        }),
        op(
            "SparseTensorDenseMatMul",
            "a_indices: Tindices, a_values: T, a_shape: int64, b: T",
            "product: T",
            "T: type; Tindices: {int32, int64} = DT_INT64; adjoint_a: bool = false; \
             adjoint_b: bool = false",
        )
        .with_shape(|context| {
            context.shape_of_rank(0, 2)?;
            context.shape_of_rank(1, 1)?;
            let a = context.shape_from_input(2)?;
            let b = context.shape_of_rank(3, 2)?;
            let [rows, inner] = transposed(context.bool("adjoint_a")?, a.dim(0), a.dim(1));
            let [b_inner, columns] = transposed(context.bool("adjoint_b")?, b.dim(0), b.dim(1));
            merge_dims(inner, b_inner, "inner dimensions")?;
            Ok(vec![PartialShape::new(&[rows, columns])])
        })
        .with_work(|context, outputs| {
            let columns = match context.bool("adjoint_b") {
                Ok(true) => context.shape(3).dim(0),
                _ => context.shape(3).dim(1),
            };
            #[expect(clippy::cast_precision_loss, reason = "an estimate")]
            let columns = columns.map_or(0.0, |n| n as f64);
            with_flops(context, outputs, 2.0 * columns * context.input_elements(1))
        }),
    ]
}

/// Ops whose result is sparse, and reductions.
fn joined() -> Vec<OpDef> {
    let result = "output_indices: int64, output_values: T, output_shape: int64";
    let sparse = |rank: Dim| {
        Ok(vec![
            PartialShape::new(&[None, rank]),
            PartialShape::of_rank(1),
            PartialShape::new(&[rank]),
        ])
    };
    let mut ops = vec![
        op(
            "SparseConcat",
            "indices: N * int64, values: N * T, shapes: N * int64",
            result,
            "concat_dim: int; N: int >= 2; T: type",
        )
        .with_shape(move |context| {
            let n = context.n_inputs() / 3;
            let mut rank = None;
            for index in 0..n {
                context.shape_of_rank(n + index, 1)?;
                let found = context.shape_of_rank(2 * n + index, 1)?.dim(0);
                rank = merge_dims(rank, found, "ranks of sparse tensors")?;
                let found = context.shape_of_rank(index, 2)?.dim(1);
                rank = merge_dims(rank, found, "ranks of sparse tensors")?;
            }
            sparse(rank)
        }),
        op(
            "SparseSlice",
            "indices: int64, values: T, shape: int64, start: int64, size: int64",
            result,
            "T: type",
        )
        .with_shape(move |context| {
            let rank = context.shape_of_rank(2, 1)?.dim(0);
            let found = context.shape_of_rank(0, 2)?.dim(1);
            sparse(merge_dims(rank, found, "ranks of sparse tensors")?)
        }),
        op(
            "SparseAdd",
            "a_indices: int64, a_values: T, a_shape: int64, b_indices: int64, b_values: T, \
             b_shape: int64, thresh: Treal",
            "sum_indices: int64, sum_values: T, sum_shape: int64",
            "T: numbertype; Treal: realnumbertype",
        )
        .with_shape(move |context| sparse(context.shape_of_rank(2, 1)?.dim(0))),
    ];
    for (name, types) in [("Sum", "numbertype"), ("Max", "realnumbertype")] {
        let inputs = "input_indices: int64, input_values: T, input_shape: int64, \
                      reduction_axes: int32";
        let attrs = format!("keep_dims: bool = false; T: {types}");
        ops.push(op(
            &format!("SparseReduce{name}"),
            inputs,
            "output: T",
            &attrs,
        ));
        ops.push(
            op(&format!("SparseReduce{name}Sparse"), inputs, result, &attrs)
                .with_shape(move |_| sparse(None)),
        );
    }
    ops
}

fn transposed(is_transposed: bool, rows: Dim, columns: Dim) -> [Dim; 2] {
    if is_transposed {
        [columns, rows]
    } else {
        [rows, columns]
    }
}

/// Ops on ragged tensors.
fn ragged() -> Vec<OpDef> {
    vec![
        op(
            "RaggedTensorToTensor",
            "shape: Tshape, values: T, default_value: T, \
             row_partition_tensors: num_row_partition_tensors * Tindex",
            "result: T",
            "T: type; Tindex: {int64, int32}; Tshape: {int64, int32}; \
             num_row_partition_tensors: int >= 1; row_partition_types: list(string)",
        )
        .with_shape(to_tensor),
        op(
            "RaggedTensorToSparse",
            "rt_nested_splits: RAGGED_RANK * Tsplits, rt_dense_values: T",
            "sparse_indices: int64, sparse_values: T, sparse_dense_shape: int64",
            "RAGGED_RANK: int >= 1; T: type; Tsplits: {int32, int64} = DT_INT64",
        )
        .with_shape(|context| {
            let n_splits = context.n_inputs() - 1;
            for index in 0..n_splits {
                context.shape_of_rank(index, 1)?;
            }
            let values = context.dims_of_rank_at_least(n_splits, 1)?;
            let rank = values.map(|dims| dims.len() + n_splits);
            let n = values.map(super::rules::n_elements).transpose()?.flatten();
            Ok(vec![
                PartialShape::new(&[n, rank]),
                PartialShape::new(&[n]),
                PartialShape::new(&[rank]),
            ])
        }),
        op(
            "RaggedTensorToVariant",
            "rt_nested_splits: RAGGED_RANK * Tsplits, rt_dense_values: Tvalues",
            "encoded_ragged: variant",
            "RAGGED_RANK: int >= 0; Tvalues: type; Tsplits: {int32, int64} = DT_INT64; \
             batched_input: bool",
        )
        .with_shape(|context| {
            let last = context.n_inputs() - 1;
            for index in 0..last {
                context.shape_of_rank(index, 1)?;
            }
            if !context.bool("batched_input")? {
                return Ok(vec![PartialShape::scalar()]);
            }
            let n_rows = match last {
                0 => context
                    .dims_of_rank_at_least(0, 1)?
                    .and_then(|dims| dims[0]),
                _ => context.shape(0).dim(0).and_then(|n| n.checked_sub(1)),
            };
            Ok(vec![PartialShape::new(&[n_rows])])
        }),
        op(
            "RaggedTensorFromVariant",
            "encoded_ragged: variant",
            "output_nested_splits: output_ragged_rank * Tsplits, output_dense_values: Tvalues",
            "input_ragged_rank: int >= -1; output_ragged_rank: int >= 0; Tvalues: type; \
             Tsplits: {int32, int64} = DT_INT64",
        )
        .with_shape(|context| {
            let mut shapes = vec![PartialShape::of_rank(1); context.n_outputs()];
            if let Some(last) = shapes.last_mut() {
                *last = PartialShape::unknown();
            }
            Ok(shapes)
        }),
        op(
            "RaggedRange",
            "starts: T, limits: T, deltas: T",
            "rt_nested_splits: Tsplits, rt_dense_values: T",
            "T: {bfloat16, float, double, int32, int64} = DT_INT32; \
             Tsplits: {int32, int64} = DT_INT64",
        )
        .with_shape(|context| {
            let mut rows = Some(1);
            let mut is_vector = false;
            for index in 0..3 {
                match context.shape(index).dims() {
                    None => rows = rows.filter(|_| is_vector),
                    Some([]) => {}
                    Some(&[n]) if is_vector => {
                        rows = merge_dims(rows, n, "sizes of starts, limits and deltas")?;
                    }
                    Some(&[n]) => (rows, is_vector) = (n, true),
                    Some(_) => {
                        return Err(ShapeError::new(format!(
                            "input {index} must be a scalar or a vector; its shape is {}",
                            context.shape(index)
                        )));
                    }
                }
            }
            let n_splits = rows.and_then(|rows| rows.checked_add(1));
            Ok(vec![
                PartialShape::new(&[n_splits]),
                PartialShape::of_rank(1),
            ])
        }),
        op(
            "RaggedGather",
            "params_nested_splits: PARAMS_RAGGED_RANK * Tsplits, params_dense_values: Tvalues, \
             indices: Tindices",
            "output_nested_splits: OUTPUT_RAGGED_RANK * Tsplits, output_dense_values: Tvalues",
            "Tvalues: type; Tindices: {int32, int64}; Tsplits: {int32, int64} = DT_INT64; \
             PARAMS_RAGGED_RANK: int >= 1; OUTPUT_RAGGED_RANK: int >= 0",
        )
        .with_shape(|context| {
            let n_splits = context.n_inputs() - 2;
            for index in 0..n_splits {
                context.shape_of_rank(index, 1)?;
            }
            let values = context.dims_of_rank_at_least(n_splits, 1)?;
            let mut shapes = vec![PartialShape::of_rank(1); context.n_outputs()];
            if let Some(last) = shapes.last_mut() {
                *last = values.map_or_else(PartialShape::unknown, |dims| {
                    std::iter::once(None)
                        .chain(dims[1..].iter().copied())
                        .collect()
                });
            }
            Ok(shapes)
        }),
    ]
}

/// The shape that is asked for; what it leaves open is known only for the inner axes.
fn to_tensor(context: &InferenceContext<'_>) -> Shapes {
    let requested = context.shape_from_input(0)?;
    let types = context
        .attrs()
        .list("row_partition_types")
        .unwrap_or_default();
    let has_size = matches!(types.first(), Some(crate::graph::AttrValue::Bytes(name)) if **name == *b"FIRST_DIM_SIZE");
    let n_ragged = types.len().saturating_sub(usize::from(has_size));
    let Some(values) = context.shape(1).dims() else {
        return Ok(vec![requested]);
    };
    let inner = values.get(1..).unwrap_or_default();
    let outer = std::iter::repeat_n(None, n_ragged + 1);
    let natural: PartialShape = outer.chain(inner.iter().copied()).collect();
    let shape = requested.merge(&natural).ok_or_else(|| {
        ShapeError::new(format!(
            "the requested shape {requested} does not fit values of shape {} in {n_ragged} ragged \
             axes",
            context.shape(1)
        ))
    })?;
    Ok(vec![shape])
}

/// Ops that count numbers.
fn counts() -> Vec<OpDef> {
    let attrs = "Tidx: {int32, int64}; T: {int32, int64, float, double}; \
                 binary_output: bool = false";
    vec![
        op(
            "SparseBincount",
            "indices: int64, values: Tidx, dense_shape: int64, size: Tidx, weights: T",
            "output: T",
            attrs,
        )
        .with_shape(|context| {
            let n_bins = bins(context, 3)?;
            let dense = context.shape_from_input(2)?;
            Ok(vec![match dense.rank() {
                None => PartialShape::unknown(),
                Some(1) => PartialShape::new(&[n_bins]),
                Some(_) => PartialShape::new(&[dense.dim(0), n_bins]),
            }])
        }),
        op(
            "RaggedBincount",
            "splits: int64, values: Tidx, size: Tidx, weights: T",
            "output: T",
            attrs,
        )
        .with_shape(|context| {
            let n_bins = bins(context, 2)?;
            let n_splits = context.shape_of_rank(0, 1)?.dim(0);
            let n_rows = n_splits.and_then(|n| n.checked_sub(1));
            Ok(vec![PartialShape::new(&[n_rows, n_bins])])
        }),
    ]
}

fn bins(context: &InferenceContext<'_>, index: usize) -> Result<Dim, ShapeError> {
    context.shape_of_rank(index, 0)?;
    let n_bins = context.scalar_int(index);
    n_bins.map(|n| size(n, "size")).transpose()
}
