//! Reductions, scans and segments.

use super::definition::OpDef;
use super::definition::op;
use super::fold;
use super::infer::InferenceContext;
use super::infer::ShapeError;
use super::rules::Dim;
use super::rules::Shapes;
use super::rules::axis_index;
use super::rules::same_as_input;
use super::rules::size;
use super::work::TRANSCENDENTAL_FLOPS;
use super::work::per_input;
use crate::tensor::PartialShape;

/// Ops of this family.
pub(super) fn ops() -> Vec<OpDef> {
    let mut ops = Vec::new();
    for name in ["Sum", "Mean", "Prod", "Max", "Min", "EuclideanNorm"] {
        let definition = op(
            name,
            "input: T, reduction_indices: Tidx",
            "output: T",
            "keep_dims: bool = false; T: numbertype; Tidx: {int32, int64} = DT_INT32",
        )
        .with_shape(reduced)
        .with_work(per_input(1.0));
        ops.push(match name {
            "Sum" => definition
                .with_fold(|context, outputs| fold::reduce(context, outputs, 0, i64::checked_add)),
            "Prod" => definition
                .with_fold(|context, outputs| fold::reduce(context, outputs, 1, i64::checked_mul)),
            _ => definition,
        });
    }
    for name in ["All", "Any"] {
        ops.push(
            op(
                name,
                "input: bool, reduction_indices: Tidx",
                "output: bool",
                "keep_dims: bool = false; Tidx: {int32, int64} = DT_INT32",
            )
            .with_shape(reduced)
            .with_work(per_input(1.0)),
        );
    }
    for (name, index_types) in [
        (
            "ArgMax",
            "output_type: {int16, uint16, int32, int64} = DT_INT64",
        ),
        ("ArgMin", "output_type: {int32, int64} = DT_INT64"),
    ] {
        let attrs = format!(
            "T: {{numbertype, bool}}; Tidx: {{int16, int32, int64}} = DT_INT32; {index_types}"
        );
        ops.push(
            op(
                name,
                "input: T, dimension: Tidx",
                "output: output_type",
                &attrs,
            )
            .with_shape(without_axis)
            .with_work(per_input(1.0)),
        );
    }
    for (name, flops) in [
        ("Cumsum", 1.0),
        ("Cumprod", 1.0),
        ("CumulativeLogsumexp", TRANSCENDENTAL_FLOPS),
    ] {
        ops.push(
            op(
                name,
                "x: T, axis: Tidx",
                "out: T",
                "exclusive: bool = false; reverse: bool = false; T: numbertype; Tidx: {int32, int64} = DT_INT32",
            )
            .with_shape(same_as_input)
            .with_work(per_input(flops)),
        );
    }
    for name in [
        "SegmentSum",
        "SegmentMean",
        "SegmentMax",
        "SegmentMin",
        "SegmentProd",
    ] {
        ops.push(
            op(
                name,
                "data: T, segment_ids: Tindices",
                "output: T",
                "T: numbertype; Tindices: {int32, int64}",
            )
            .with_shape(|context| {
                let dims = context.dims_of_rank_at_least(0, 1)?;
                Ok(vec![with_rows(dims, None)])
            })
            .with_work(per_input(1.0)),
        );
    }
    for name in [
        "UnsortedSegmentSum",
        "UnsortedSegmentMax",
        "UnsortedSegmentMin",
        "UnsortedSegmentProd",
    ] {
        ops.push(
            op(
                name,
                "data: T, segment_ids: Tindices, num_segments: Tnumsegments",
                "output: T",
                "T: numbertype; Tindices: {int16, int32, int64}; Tnumsegments: {int32, int64} = DT_INT32",
            )
            .with_shape(unsorted_segments)
            .with_work(per_input(1.0)),
        );
    }
    ops
}

/// Returns the shape of input 0 without the axes in input 1, or with 1 in their place.
pub(super) fn reduced(context: &InferenceContext<'_>) -> Shapes {
    let keep = context.bool("keep_dims")?;
    let Some(dims) = context.shape(0).dims() else {
        return Ok(vec![PartialShape::unknown()]);
    };
    let Some(reduced) = reduced_axes(context, dims.len())? else {
        return Ok(vec![if keep {
            PartialShape::of_rank(dims.len())
        } else {
            PartialShape::unknown()
        }]);
    };
    let shape = dims
        .iter()
        .zip(&reduced)
        .filter_map(|(&dim, &gone)| match (gone, keep) {
            (false, _) => Some(dim),
            (true, true) => Some(Some(1)),
            (true, false) => None,
        });
    Ok(vec![shape.collect()])
}

/// Returns for each axis whether input 1 names it; `None` if that is unknown.
pub(super) fn reduced_axes(
    context: &InferenceContext<'_>,
    rank: usize,
) -> Result<Option<Vec<bool>>, ShapeError> {
    let Some(axes) = context.known_ints(1) else {
        return Ok(None);
    };
    let mut reduced = vec![false; rank];
    for axis in axes {
        reduced[axis_index(axis, rank)?] = true;
    }
    Ok(Some(reduced))
}

fn without_axis(context: &InferenceContext<'_>) -> Shapes {
    let Some(dims) = context.dims_of_rank_at_least(0, 1)? else {
        return Ok(vec![PartialShape::unknown()]);
    };
    let Some(axis) = context.scalar_int(1) else {
        return Ok(vec![PartialShape::of_rank(dims.len() - 1)]);
    };
    let axis = axis_index(axis, dims.len())?;
    let mut left = dims.to_vec();
    left.remove(axis);
    Ok(vec![PartialShape::new(&left)])
}

fn with_rows(dims: Option<&[Dim]>, rows: Dim) -> PartialShape {
    match dims {
        None | Some([]) => PartialShape::unknown(),
        Some([_, rest @ ..]) => std::iter::once(rows).chain(rest.iter().copied()).collect(),
    }
}

/// Returns `[num_segments]` and the dimensions of data that `segment_ids` does not cover.
fn unsorted_segments(context: &InferenceContext<'_>) -> Shapes {
    let (Some(data), Some(ids)) = (context.shape(0).dims(), context.shape(1).dims()) else {
        return Ok(vec![PartialShape::unknown()]);
    };
    if ids.len() > data.len() {
        return Err(ShapeError::new(format!(
            "segment_ids of shape {} cover more than data of shape {}",
            context.shape(1),
            context.shape(0)
        )));
    }
    let covered: PartialShape = data[..ids.len()].iter().copied().collect();
    super::rules::merge(
        &covered,
        context.shape(1),
        "segment_ids and the front of data",
    )?;
    let n_segments = context
        .scalar_int(2)
        .map(|n| size(n, "num_segments"))
        .transpose()?;
    let rest = data[ids.len()..].iter().copied();
    Ok(vec![std::iter::once(n_segments).chain(rest).collect()])
}
