//! Segments of rows that indices select: combined embeddings.

use super::definition::OpDef;
use super::definition::op;
use super::infer::InferenceContext;
use super::rules::Shapes;
use super::rules::merge;
use super::rules::size;
use super::work::with_flops;
use crate::tensor::PartialShape;

/// Ops of this family.
pub(super) fn ops() -> Vec<OpDef> {
    let index = "{int32, int64} = DT_INT32";
    let mut ops = Vec::new();
    for (name, types) in [
        ("SparseSegmentSum", "realnumbertype"),
        ("SparseSegmentMean", "{bfloat16, half, float, double}"),
        ("SparseSegmentSqrtN", "{bfloat16, half, float, double}"),
    ] {
        for is_counted in [false, true] {
            let (suffix, input, attr) = match is_counted {
                false => ("", "", String::new()),
                true => (
                    "WithNumSegments",
                    ", num_segments: Tnumsegments",
                    format!("Tnumsegments: {index}; "),
                ),
            };
            ops.push(
                op(
                    &format!("{name}{suffix}"),
                    &format!("data: T, indices: Tidx, segment_ids: Tsegmentids{input}"),
                    "output: T",
                    &format!(
                        "T: {types}; Tidx: {index}; {attr}Tsegmentids: {index}; \
                         sparse_gradient: bool = false"
                    ),
                )
                .with_shape(combined)
                .with_work(|context, outputs| {
                    let row = context.input_elements(0);
                    let n_rows = context.shape(0).dim(0).unwrap_or(0).max(1);
                    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
                    let row = row / n_rows as f64;
                    with_flops(context, outputs, row * context.input_elements(1))
                }),
            );
        }
    }
    ops
}

/// One row per segment, as long as those of the data.
fn combined(context: &InferenceContext<'_>) -> Shapes {
    let indices = context.shape_of_rank(1, 1)?;
    merge(
        &indices,
        context.shape(2),
        "shapes of indices and segment_ids",
    )?;
    let n_segments = match context.n_inputs() {
        4 => {
            context.shape_of_rank(3, 0)?;
            let n = context.scalar_int(3);
            n.map(|n| size(n, "num_segments")).transpose()?
        }
        _ => None,
    };
    let dims = context.dims_of_rank_at_least(0, 1)?;
    Ok(vec![dims.map_or_else(PartialShape::unknown, |dims| {
        let rest = dims[1..].iter().copied();
        std::iter::once(n_segments).chain(rest).collect()
    })])
}
