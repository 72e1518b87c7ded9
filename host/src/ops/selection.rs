//! Ops that distribute rows, count, search sorted values, and select boxes.

use super::definition::OpDef;
use super::definition::op;
use super::infer::InferenceContext;
use super::infer::ShapeError;
use super::rules::Dim;
use super::rules::Shapes;
use super::rules::merge;
use super::rules::merge_dims;
use super::rules::same_as_input;
use super::rules::size;
use super::work::per_input;
use super::work::per_output;
use super::work::with_flops;
use crate::graph::Output;
use crate::graph::Work;
use crate::tensor::PartialShape;

/// Comparisons per value of a search in sorted values or a sort: about the logarithm of their
/// number.
const SEARCH_FLOPS: f64 = 16.0;

/// Floating-point operations of comparing two boxes.
const OVERLAP_FLOPS: f64 = 20.0;

const BOXES: &str = "T: {half, float} = DT_FLOAT; T_threshold: {half, float} = DT_FLOAT";

/// Ops of this family.
pub(super) fn ops() -> Vec<OpDef> {
    let mut ops = vec![
        op("DynamicPartition", "data: T, partitions: int32", "outputs: num_partitions * T", "num_partitions: int >= 1; T: type")
            .with_shape(partitioned),
        op("Bincount", "arr: int32, size: int32, weights: T", "bins: T", "T: {int32, int64, float, double}")
            .with_shape(|context| Ok(vec![PartialShape::new(&[n_bins(context)?])]))
            .with_work(per_input(1.0)),
        op("DenseBincount", "input: Tidx, size: Tidx, weights: T", "output: T", "Tidx: {int32, int64}; T: {int32, int64, float, double}; binary_output: bool = false")
            .with_shape(dense_bins)
            .with_work(per_input(1.0)),
        op("HistogramFixedWidth", "values: T, value_range: T, nbins: int32", "out: dtype", "T: {int32, int64, float, double}; dtype: {int32, int64} = DT_INT32")
            .with_shape(|context| {
                context.shape_of_rank(1, 1)?;
                let n = context.scalar_int(2).map(|n| size(n, "nbins")).transpose()?;
                Ok(vec![PartialShape::new(&[n])])
            })
            .with_work(per_input(4.0)),
        op("Bucketize", "input: T", "output: int32", "T: {int32, int64, float, double}; boundaries: list(float)")
            .with_shape(same_as_input)
            .with_work(per_output(SEARCH_FLOPS)),
        op("ListDiff", "x: T, y: T", "out: T, idx: out_idx", "T: type; out_idx: {int32, int64} = DT_INT32")
            .with_shape(|context| {
                context.shape_of_rank(0, 1)?;
                context.shape_of_rank(1, 1)?;
                Ok(vec![PartialShape::of_rank(1); 2])
            })
            .with_work(per_input(SEARCH_FLOPS)),
        op("UniqueWithCountsV2", "x: T, axis: Taxis", "y: T, idx: out_idx, count: out_idx", "T: type; Taxis: {int32, int64} = DT_INT64; out_idx: {int32, int64} = DT_INT32")
            .with_shape(|context| {
                let y = match context.shape(0).rank() {
                    Some(rank) => PartialShape::of_rank(rank),
                    None => PartialShape::unknown(),
                };
                Ok(vec![y, PartialShape::of_rank(1), PartialShape::of_rank(1)])
            })
            .with_work(per_input(SEARCH_FLOPS)),
        op("NonMaxSuppression", "boxes: float, scores: float, max_output_size: int32", "selected_indices: int32", "iou_threshold: float = 0.5")
            .with_shape(|context| Ok(vec![selected_boxes(context, false)?]))
            .with_work(suppression_work),
        op("NonMaxSuppressionV4", "boxes: T, scores: T, max_output_size: int32, iou_threshold: T_threshold, score_threshold: T_threshold", "selected_indices: int32, valid_outputs: int32", &format!("{BOXES}; pad_to_max_output_size: bool = false"))
            .with_shape(|context| {
                let pads = context.bool("pad_to_max_output_size")?;
                Ok(vec![selected_boxes(context, pads)?, PartialShape::scalar()])
            })
            .with_work(suppression_work),
        op("NonMaxSuppressionV5", "boxes: T, scores: T, max_output_size: int32, iou_threshold: T, score_threshold: T, soft_nms_sigma: T", "selected_indices: int32, selected_scores: T, valid_outputs: int32", "T: {half, float} = DT_FLOAT; pad_to_max_output_size: bool = false")
            .with_shape(|context| {
                let pads = context.bool("pad_to_max_output_size")?;
                let selected = selected_boxes(context, pads)?;
                Ok(vec![selected.clone(), selected, PartialShape::scalar()])
            })
            .with_work(suppression_work),
        op("CombinedNonMaxSuppression", "boxes: float, scores: float, max_output_size_per_class: int32, max_total_size: int32, iou_threshold: float, score_threshold: float", "nmsed_boxes: float, nmsed_scores: float, nmsed_classes: float, valid_detections: int32", "pad_per_class: bool = false; clip_boxes: bool = true")
            .with_shape(combined_boxes)
            .with_work(|context, outputs| {
                let n_scores = context.input_elements(1);
                with_flops(context, outputs, OVERLAP_FLOPS * n_scores * SEARCH_FLOPS)
            }),
    ];
    for name in ["DynamicStitch", "ParallelDynamicStitch"] {
        ops.push(
            op(
                name,
                "indices: N * int32, data: N * T",
                "merged: T",
                "N: int >= 1; T: type",
            )
            .with_shape(stitched),
        );
    }
    for name in ["LowerBound", "UpperBound"] {
        ops.push(
            op(
                name,
                "sorted_inputs: T, values: T",
                "output: out_type",
                "T: type; out_type: {int32, int64} = DT_INT32",
            )
            .with_shape(|context| {
                let sorted = context.shape_of_rank(0, 2)?;
                let values = context.shape_of_rank(1, 2)?;
                let rows = merge_dims(sorted.dim(0), values.dim(0), "rows of both inputs")?;
                Ok(vec![PartialShape::new(&[rows, values.dim(1)])])
            })
            .with_work(per_output(SEARCH_FLOPS)),
        );
    }
    ops
}

/// Returns the dimensions of a tensor after those of its indices, which it starts with; `None` if
/// a rank is unknown.
fn rest<'a>(
    data: &'a PartialShape,
    indices: &PartialShape,
    what: &str,
) -> Result<Option<&'a [Dim]>, ShapeError> {
    let (Some(dims), Some(front)) = (data.dims(), indices.dims()) else {
        return Ok(None);
    };
    let Some((start, rest)) = dims.split_at_checked(front.len()) else {
        return Err(ShapeError::new(format!(
            "{what} of shape {indices} cover more than data of shape {data}"
        )));
    };
    merge(&PartialShape::new(start), indices, what)?;
    Ok(Some(rest))
}

fn partitioned(context: &InferenceContext<'_>) -> Shapes {
    let rest = rest(context.shape(0), context.shape(1), "partitions")?;
    let shape = rest.map_or_else(PartialShape::unknown, |rest| {
        std::iter::once(None).chain(rest.iter().copied()).collect()
    });
    Ok(vec![shape; context.n_outputs()])
}

fn stitched(context: &InferenceContext<'_>) -> Shapes {
    let n = context.n_inputs() / 2;
    let mut row = PartialShape::unknown();
    let mut n_rows = Some(0);
    for index in 0..n {
        let rest = rest(context.shape(n + index), context.shape(index), "indices")?;
        if let Some(rest) = rest {
            row = merge(&row, &PartialShape::new(rest), "shapes of rows")?;
        }
        let known = context.known_ints(index);
        let last = known.map(|known| known.into_iter().max().unwrap_or(-1));
        n_rows = match (n_rows, last) {
            (Some(n_rows), Some(last)) => {
                Some(size(last.saturating_add(1), "the number of rows")?.max(n_rows))
            }
            _ => None,
        };
    }
    let shape = row.dims().map_or_else(PartialShape::unknown, |row| {
        std::iter::once(n_rows).chain(row.iter().copied()).collect()
    });
    Ok(vec![shape])
}

/// Returns the number of bins, a scalar in input 1.
fn n_bins(context: &InferenceContext<'_>) -> Result<Dim, ShapeError> {
    context.scalar_int(1).map(|n| size(n, "size")).transpose()
}

fn dense_bins(context: &InferenceContext<'_>) -> Shapes {
    let n = n_bins(context)?;
    match context.shape(0).dims() {
        None => Ok(vec![PartialShape::unknown()]),
        Some([_]) => Ok(vec![PartialShape::new(&[n])]),
        Some(&[rows, _]) => Ok(vec![PartialShape::new(&[rows, n])]),
        Some(_) => Err(ShapeError::new(format!(
            "the input must be a vector or a matrix; its shape is {}",
            context.shape(0)
        ))),
    }
}

/// Checks boxes and scores, and returns the shape of the numbers of selected boxes.
fn selected_boxes(context: &InferenceContext<'_>, pads: bool) -> Result<PartialShape, ShapeError> {
    let (boxes, scores) = (context.shape_of_rank(0, 2)?, context.shape_of_rank(1, 1)?);
    merge_dims(boxes.dim(0), scores.dim(0), "boxes and scores")?;
    merge_dims(boxes.dim(1), Some(4), "columns of boxes")?;
    for index in 2..context.n_inputs() {
        context.shape_of_rank(index, 0)?;
    }
    let n_max = context.scalar_int(2).filter(|_| pads);
    let n = n_max.map(|n| size(n, "max_output_size")).transpose()?;
    Ok(PartialShape::new(&[n]))
}

/// Each box is compared with some of the selected ones.
fn suppression_work(context: &InferenceContext<'_>, outputs: &[Output]) -> Work {
    let n_boxes = context.input_elements(1);
    with_flops(context, outputs, OVERLAP_FLOPS * SEARCH_FLOPS * n_boxes)
}

fn combined_boxes(context: &InferenceContext<'_>) -> Shapes {
    let (boxes, scores) = (context.shape_of_rank(0, 4)?, context.shape_of_rank(1, 3)?);
    let images = merge_dims(boxes.dim(0), scores.dim(0), "images of boxes and scores")?;
    merge_dims(boxes.dim(1), scores.dim(1), "boxes and scores")?;
    merge_dims(boxes.dim(3), Some(4), "columns of boxes")?;
    if boxes.dim(2) != Some(1) {
        merge_dims(boxes.dim(2), scores.dim(2), "classes of boxes and scores")?;
    }
    let known = |index: usize, what: &str| {
        let value = context.scalar_int(index);
        value.map(|value| size(value, what)).transpose()
    };
    let per_class = known(2, "max_output_size_per_class")?;
    let total = known(3, "max_total_size")?;
    let n = if context.bool("pad_per_class")? {
        let all = per_class
            .zip(scores.dim(2))
            .map(|(n, m)| n.saturating_mul(m));
        all.zip(total).map(|(all, total)| all.min(total))
    } else {
        total
    };
    let of_each = PartialShape::new(&[images, n]);
    Ok(vec![
        PartialShape::new(&[images, n, Some(4)]),
        of_each.clone(),
        of_each,
        PartialShape::new(&[images]),
    ])
}
