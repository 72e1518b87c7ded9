//! Ops that concatenate, split, pad, fill and rearrange tensors.

use super::definition::OpDef;
use super::definition::op;
use super::fold;
use super::infer::InferenceContext;
use super::infer::ShapeError;
use super::rules::Dim;
use super::rules::Shapes;
use super::rules::add_dims;
use super::rules::axis_index;
use super::rules::broadcast;
use super::rules::merge;
use super::rules::merge_dims;
use super::rules::multiply_dims;
use super::rules::same_as_input;
use super::rules::size;
use super::rules::unknown;
use crate::tensor::DType;
use crate::tensor::PartialShape;

/// Ops of this family.
pub(super) fn ops() -> Vec<OpDef> {
    vec![
        op("Pack", "values: N * T", "output: T", "N: int >= 1; T: type; axis: int = 0")
            .with_shape(stacked)
            .with_fold(fold::pack),
        op("Unpack", "value: T", "output: num * T", "num: int >= 0; T: type; axis: int = 0")
            .with_shape(unstacked)
            .with_fold(fold::unpack),
        op("Concat", "concat_dim: int32, values: N * T", "output: T", "N: int >= 2; T: type")
            .with_shape(|context| concatenated(context, 1..context.n_inputs(), context.scalar_int(0)))
            .with_fold(|context, outputs| {
                fold::concat(context, outputs, 1..context.n_inputs(), context.scalar_int(0))
            }),
        op("ConcatV2", "values: N * T, axis: Tidx", "output: T", "N: int >= 2; T: type; Tidx: {int32, int64} = DT_INT32")
            .with_shape(|context| {
                let last = context.n_inputs() - 1;
                concatenated(context, 0..last, context.scalar_int(last))
            })
            .with_fold(|context, outputs| {
                let last = context.n_inputs() - 1;
                fold::concat(context, outputs, 0..last, context.scalar_int(last))
            }),
        op("Split", "split_dim: int32, value: T", "output: num_split * T", "num_split: int >= 1; T: type")
            .with_shape(split_evenly),
        op("SplitV", "value: T, size_splits: Tlen, split_dim: int32", "output: num_split * T", "num_split: int >= 1; T: type; Tlen: {int8, int32, int64} = DT_INT64")
            .with_shape(split_by_sizes),
        op("Tile", "input: T, multiples: Tmultiples", "output: T", "T: type; Tmultiples: {int32, int64} = DT_INT32")
            .with_shape(tiled),
        op("Pad", "input: T, paddings: Tpaddings", "output: T", "T: type; Tpaddings: {int32, int64} = DT_INT32")
            .with_shape(padded),
        op("PadV2", "input: T, paddings: Tpaddings, constant_values: T", "output: T", "T: type; Tpaddings: {int32, int64} = DT_INT32")
            .with_shape(padded),
        op("MirrorPad", "input: T, paddings: Tpaddings", "output: T", "T: type; Tpaddings: {int32, int64} = DT_INT32; mode: {'REFLECT', 'SYMMETRIC'}")
            .with_shape(padded),
        op("Fill", "dims: index_type, value: T", "output: T", "T: type; index_type: {int32, int64} = DT_INT32")
            .with_shape(|context| Ok(vec![context.shape_from_input(0)?]))
            .with_fold(fold::fill),
        op("Range", "start: Tidx, limit: Tidx, delta: Tidx", "output: Tidx", "Tidx: {bfloat16, half, float, double, int8, int16, int32, int64, uint16, uint32} = DT_INT32")
            .with_shape(ranged)
            .with_fold(fold::range),
        op("LinSpace", "start: T, stop: T, num: Tidx", "output: T", "T: {bfloat16, half, float, double}; Tidx: {int32, int64} = DT_INT32")
            .with_shape(|context| {
                let n = context.scalar_int(2).map(|n| size(n, "num")).transpose()?;
                Ok(vec![PartialShape::new(&[n])])
            }),
        op("OneHot", "indices: TI, depth: int32, on_value: T, off_value: T", "output: T", "axis: int = -1; T: type; TI: {uint8, int8, int32, int64} = DT_INT64")
            .with_shape(one_hot),
        op("BroadcastTo", "input: T, shape: Tidx", "output: T", "T: type; Tidx: {int32, int64} = DT_INT32")
            .with_shape(broadcast_to),
        op("BroadcastArgs", "s0: T, s1: T", "r0: T", "T: {int32, int64} = DT_INT32")
            .with_shape(|context| {
                let longer = context.shape(0).dim(0).zip(context.shape(1).dim(0));
                Ok(vec![PartialShape::new(&[longer.map(|(a, b)| a.max(b))])])
            }),
        op("Reverse", "tensor: T, dims: bool", "output: T", "T: type").with_shape(same_as_input),
        op("ReverseV2", "tensor: T, axis: Tidx", "output: T", "Tidx: {int32, int64} = DT_INT32; T: type")
            .with_shape(same_as_input),
        op("ReverseSequence", "input: T, seq_lengths: Tlen", "output: T", "seq_dim: int; batch_dim: int = 0; T: type; Tlen: {int32, int64} = DT_INT64")
            .with_shape(same_as_input),
        op("Roll", "input: T, shift: Tshift, axis: Taxis", "output: T", "T: type; Tshift: {int32, int64}; Taxis: {int32, int64}")
            .with_shape(same_as_input),
        op("Where", "input: T", "index: int64", "T: {numbertype, bool} = DT_BOOL")
            .with_shape(|context| Ok(vec![PartialShape::new(&[None, context.shape(0).rank()])])),
        op("Unique", "x: T", "y: T, idx: out_idx", "T: type; out_idx: {int32, int64} = DT_INT32")
            .with_shape(|context| {
                Ok(vec![PartialShape::of_rank(1), context.shape_of_rank(0, 1)?])
            }),
        op("UniqueV2", "x: T, axis: Taxis", "y: T, idx: out_idx", "T: type; Taxis: {int32, int64} = DT_INT64; out_idx: {int32, int64} = DT_INT32")
            .with_shape(unknown),
        op("UniqueWithCounts", "x: T", "y: T, idx: out_idx, count: out_idx", "T: type; out_idx: {int32, int64} = DT_INT32")
            .with_shape(|context| {
                let vector = PartialShape::of_rank(1);
                Ok(vec![vector.clone(), context.shape_of_rank(0, 1)?, vector])
            }),
        op("MatrixBandPart", "input: T, num_lower: Tindex, num_upper: Tindex", "band: T", "T: type; Tindex: {int32, int64} = DT_INT64")
            .with_shape(same_as_input),
        op("Diag", "diagonal: T", "output: T", "T: numbertype").with_shape(|context| {
            let dims = context.shape(0).dims();
            let twice = dims.map(|dims| dims.iter().chain(dims).copied().collect());
            Ok(vec![twice.unwrap_or_default()])
        }),
        op("SpaceToDepth", "input: T", "output: T", "T: type; block_size: int >= 2; data_format: {'NHWC', 'NCHW', 'NCHW_VECT_C'} = 'NHWC'")
            .with_shape(space_to_depth),
        op("DepthToSpace", "input: T", "output: T", "T: type; block_size: int >= 2; data_format: {'NHWC', 'NCHW', 'NCHW_VECT_C'} = 'NHWC'")
            .with_shape(depth_to_space),
        op("SpaceToBatchND", "input: T, block_shape: Tblock_shape, paddings: Tpaddings", "output: T", "T: type; Tblock_shape: {int32, int64} = DT_INT32; Tpaddings: {int32, int64} = DT_INT32")
            .with_shape(space_to_batch),
        op("BatchToSpaceND", "input: T, block_shape: Tblock_shape, crops: Tcrops", "output: T", "T: type; Tblock_shape: {int32, int64} = DT_INT32; Tcrops: {int32, int64} = DT_INT32")
            .with_shape(batch_to_space),
        op("SpaceToBatch", "input: T, paddings: Tpaddings", "output: T", "T: type; Tpaddings: {int32, int64} = DT_INT32; block_size: int >= 2")
            .with_shape(|context| Ok(vec![blocked(context)?])),
        op("BatchToSpace", "input: T, crops: Tidx", "output: T", "T: type; block_size: int >= 2; Tidx: {int32, int64} = DT_INT32")
            .with_shape(|context| Ok(vec![blocked(context)?])),
    ]
}

/// Images whose sizes depend on margins; only their channels are those of the input.
fn blocked(context: &InferenceContext<'_>) -> Result<PartialShape, ShapeError> {
    let input = context.shape_of_rank(0, 4)?;
    Ok(PartialShape::new(&[None, None, None, input.dim(3)]))
}

fn stacked(context: &InferenceContext<'_>) -> Shapes {
    let mut shape = context.shape(0).clone();
    for index in 1..context.n_inputs() {
        shape = merge(&shape, context.shape(index), "shapes of stacked values")?;
    }
    let Some(dims) = shape.dims() else {
        return Ok(vec![PartialShape::unknown()]);
    };
    let axis = axis_index(context.int("axis")?, dims.len() + 1)?;
    let mut dims = dims.to_vec();
    dims.insert(axis, Some(context.n_inputs()));
    Ok(vec![PartialShape::new(&dims)])
}

fn unstacked(context: &InferenceContext<'_>) -> Shapes {
    let n_outputs = context.n_outputs();
    let Some(dims) = context.dims_of_rank_at_least(0, 1)? else {
        return Ok(vec![PartialShape::unknown(); n_outputs]);
    };
    let axis = axis_index(context.int("axis")?, dims.len())?;
    merge_dims(
        Some(n_outputs),
        dims[axis],
        "`num` and the unstacked dimension",
    )?;
    let mut dims = dims.to_vec();
    dims.remove(axis);
    Ok(vec![PartialShape::new(&dims); n_outputs])
}

fn concatenated(
    context: &InferenceContext<'_>,
    values: std::ops::Range<usize>,
    axis: Option<i64>,
) -> Shapes {
    let rank = values.clone().find_map(|i| context.shape(i).rank());
    let Some(rank) = rank else {
        return Ok(vec![PartialShape::unknown()]);
    };
    for index in values.clone() {
        context.shape_of_rank(index, rank)?;
    }
    let Some(axis) = axis else {
        return Ok(vec![PartialShape::of_rank(rank)]);
    };
    let axis = axis_index(axis, rank)?;
    let mut dims = vec![None; rank];
    let mut total = Some(0);
    for index in values {
        let shape = context.shape_of_rank(index, rank)?;
        for (other, dim) in dims.iter_mut().enumerate() {
            if other != axis {
                *dim = merge_dims(*dim, shape.dim(other), &format!("sizes of axis {other}"))?;
            }
        }
        total = add_dims(total, shape.dim(axis))?;
    }
    dims[axis] = total;
    Ok(vec![PartialShape::new(&dims)])
}

fn split_evenly(context: &InferenceContext<'_>) -> Shapes {
    let n_outputs = context.n_outputs();
    let Some(dims) = context.shape(1).dims() else {
        return Ok(vec![PartialShape::unknown(); n_outputs]);
    };
    let Some(axis) = context.scalar_int(0) else {
        return Ok(vec![PartialShape::of_rank(dims.len()); n_outputs]);
    };
    let axis = axis_index(axis, dims.len())?;
    let mut dims = dims.to_vec();
    if let Some(whole) = dims[axis] {
        if whole % n_outputs != 0 {
            return Err(ShapeError::new(format!(
                "axis {axis} of shape {} cannot be split into {n_outputs} equal parts",
                context.shape(1)
            )));
        }
        dims[axis] = Some(whole / n_outputs);
    }
    Ok(vec![PartialShape::new(&dims); n_outputs])
}

fn split_by_sizes(context: &InferenceContext<'_>) -> Shapes {
    let n_outputs = context.n_outputs();
    let Some(dims) = context.shape(0).dims() else {
        return Ok(vec![PartialShape::unknown(); n_outputs]);
    };
    let Some(axis) = context.scalar_int(2) else {
        return Ok(vec![PartialShape::of_rank(dims.len()); n_outputs]);
    };
    let axis = axis_index(axis, dims.len())?;
    let sizes = context.known_ints(1).unwrap_or_else(|| vec![-1; n_outputs]);
    if sizes.len() != n_outputs {
        return Err(ShapeError::new(format!(
            "{} sizes for {n_outputs} outputs",
            sizes.len()
        )));
    }
    let mut known = 0usize;
    for &part in sizes.iter().filter(|&&part| part != -1) {
        known = known.saturating_add(size(part, "an element of size_splits")?);
    }
    let n_unknown = sizes.iter().filter(|&&part| part == -1).count();
    let rest = match dims[axis] {
        Some(whole) if known > whole || (n_unknown == 0 && known != whole) => {
            return Err(ShapeError::new(format!(
                "sizes {sizes:?} do not add up to axis {axis} of shape {}",
                context.shape(0)
            )));
        }
        Some(whole) if n_unknown == 1 => Some(whole - known),
        _ => None,
    };
    let mut part_dims = dims.to_vec();
    let shapes = sizes.iter().map(|&part| {
        part_dims[axis] = usize::try_from(part).ok().or(rest);
        PartialShape::new(&part_dims)
    });
    Ok(shapes.collect())
}

fn tiled(context: &InferenceContext<'_>) -> Shapes {
    let multiples = context.shape_from_input(1)?;
    let rank = context.shape(0).rank().or(multiples.rank());
    let Some(rank) = rank else {
        return Ok(vec![PartialShape::unknown()]);
    };
    let shape = context.shape_of_rank(0, rank)?;
    if multiples.rank().is_some_and(|found| found != rank) {
        return Err(ShapeError::new(format!(
            "multiples {multiples} do not match shape {shape}"
        )));
    }
    let dims: Result<PartialShape, ShapeError> = (0..rank)
        .map(|axis| multiply_dims(shape.dim(axis), multiples.dim(axis)))
        .collect();
    Ok(vec![dims?])
}

fn padded(context: &InferenceContext<'_>) -> Shapes {
    let paddings = context.shape_of_rank(1, 2)?;
    merge_dims(paddings.dim(1), Some(2), "columns of paddings")?;
    let Some(rank) = context
        .shape(0)
        .rank()
        .or(paddings.dim(0).filter(|&n| n <= 254))
    else {
        return Ok(vec![PartialShape::unknown()]);
    };
    merge_dims(paddings.dim(0), Some(rank), "rows of paddings and rank")?;
    let shape = context.shape_of_rank(0, rank)?;
    let Some(amounts) = context.ints(1).filter(|a| a.values().len() == 2 * rank) else {
        return Ok(vec![PartialShape::of_rank(rank)]);
    };
    let dims: Result<PartialShape, ShapeError> = amounts
        .values()
        .chunks_exact(2)
        .enumerate()
        .map(|(axis, pair)| {
            let amount = |value: Option<i64>| -> Result<Dim, ShapeError> {
                value.map(|value| size(value, "a padding")).transpose()
            };
            let both = add_dims(amount(pair[0])?, amount(pair[1])?)?;
            add_dims(shape.dim(axis), both)
        })
        .collect();
    Ok(vec![dims?])
}

fn ranged(context: &InferenceContext<'_>) -> Shapes {
    for index in 0..3 {
        context.shape_of_rank(index, 0)?;
    }
    let values = (
        context.scalar_int(0),
        context.scalar_int(1),
        context.scalar_int(2),
    );
    let (Some(start), Some(limit), Some(delta)) = values else {
        return ranged_floats(context);
    };
    if delta == 0 {
        return Err(ShapeError::new("delta is 0"));
    }
    let distance = i128::from(limit) - i128::from(start);
    let delta = i128::from(delta);
    if distance.signum() == -delta.signum() {
        return Err(ShapeError::new(format!(
            "delta {delta} does not lead from {start} to {limit}"
        )));
    }
    // Rounded up: the limit itself is not part of the range.
    let n = (distance + delta - delta.signum()) / delta;
    Ok(vec![PartialShape::new(&[usize::try_from(n).ok()])])
}

/// Infers the shape of a range of floats, if its inputs are constants. As in the kernels, the
/// number of elements is computed in the type of the range.
fn ranged_floats(context: &InferenceContext<'_>) -> Shapes {
    let values = (
        context.scalar_float(0),
        context.scalar_float(1),
        context.scalar_float(2),
    );
    let (Some(start), Some(limit), Some(delta)) = values else {
        return Ok(vec![PartialShape::of_rank(1)]);
    };
    if delta == 0.0 {
        return Err(ShapeError::new("delta is 0"));
    }
    let is_ordered = match delta > 0.0 {
        true => start <= limit,
        false => start >= limit,
    };
    if !is_ordered {
        return Err(ShapeError::new(format!(
            "delta {delta} does not lead from {start} to {limit}"
        )));
    }
    #[expect(
        clippy::cast_possible_truncation,
        reason = "these values were widened from this type"
    )]
    let quotient = match context.dtype(0) {
        DType::F32 => f64::from((limit as f32 - start as f32) / delta as f32),
        DType::F16 => {
            let [start, limit, delta] = [start, limit, delta].map(half::f16::from_f64);
            f64::from((limit - start) / delta)
        }
        DType::BF16 => {
            let [start, limit, delta] = [start, limit, delta].map(half::bf16::from_f64);
            f64::from((limit - start) / delta)
        }
        _ => (limit - start) / delta,
    };
    let n = quotient.abs().ceil();
    if n.is_nan() || n >= 9_223_372_036_854_775_808.0 {
        return Err(ShapeError::new(format!(
            "a range from {start} to {limit} by {delta} has too many elements"
        )));
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "compared with the bound before, and not negative"
    )]
    let n = n as usize;
    Ok(vec![PartialShape::new(&[Some(n)])])
}

fn one_hot(context: &InferenceContext<'_>) -> Shapes {
    let Some(dims) = context.shape(0).dims() else {
        return Ok(vec![PartialShape::unknown()]);
    };
    let axis = axis_index(context.int("axis")?, dims.len() + 1)?;
    let depth = context
        .scalar_int(1)
        .map(|d| size(d, "depth"))
        .transpose()?;
    let mut dims = dims.to_vec();
    dims.insert(axis, depth);
    Ok(vec![PartialShape::new(&dims)])
}

fn broadcast_to(context: &InferenceContext<'_>) -> Shapes {
    let target = context.shape_from_input(1)?;
    let both = broadcast(context.shape(0), &target)?;
    if target.rank().is_some() && both.merge(&target).is_none() {
        return Err(ShapeError::new(format!(
            "shape {} cannot be broadcast to {target}",
            context.shape(0)
        )));
    }
    Ok(vec![target])
}

/// Returns the axes of (height, width, channels) for a data format.
pub(super) fn image_axes(data_format: &str) -> [usize; 3] {
    if data_format.starts_with("NC") {
        [2, 3, 1]
    } else {
        [1, 2, 3]
    }
}

fn block(context: &InferenceContext<'_>) -> Result<(PartialShape, [usize; 3], usize), ShapeError> {
    let format = context.text("data_format")?;
    if format == "NCHW_VECT_C" || context.dtype(0) == DType::Variant {
        return Err(ShapeError::new(format!(
            "data format {format} is not supported"
        )));
    }
    let shape = context.shape_of_rank(0, 4)?;
    Ok((
        shape,
        image_axes(format),
        size(context.int("block_size")?, "block_size")?,
    ))
}

fn divide(dim: Dim, divisor: usize, what: &str) -> Result<Dim, ShapeError> {
    match dim {
        Some(dim) if divisor == 0 || dim % divisor != 0 => Err(ShapeError::new(format!(
            "{what} {dim} is not a multiple of {divisor}"
        ))),
        dim => Ok(dim.map(|dim| dim / divisor)),
    }
}

fn space_to_depth(context: &InferenceContext<'_>) -> Shapes {
    let (shape, [h, w, c], block) = block(context)?;
    let mut dims = shape.dims().unwrap_or_default().to_vec();
    dims[h] = divide(dims[h], block, "height")?;
    dims[w] = divide(dims[w], block, "width")?;
    dims[c] = multiply_dims(dims[c], block.checked_mul(block))?;
    Ok(vec![PartialShape::new(&dims)])
}

fn depth_to_space(context: &InferenceContext<'_>) -> Shapes {
    let (shape, [h, w, c], block) = block(context)?;
    let mut dims = shape.dims().unwrap_or_default().to_vec();
    dims[h] = multiply_dims(dims[h], Some(block))?;
    dims[w] = multiply_dims(dims[w], Some(block))?;
    let square = block
        .checked_mul(block)
        .ok_or_else(|| ShapeError::new(format!("block_size {block} is too large")))?;
    dims[c] = divide(dims[c], square, "depth")?;
    Ok(vec![PartialShape::new(&dims)])
}

/// Block sizes, and the padding or cropping before and after each block dimension.
struct Blocks {
    sizes: Vec<usize>,
    margins: Vec<usize>,
}

/// Returns the blocks if the inputs are known; checks that they match each other.
fn blocks(context: &InferenceContext<'_>) -> Result<Option<Blocks>, ShapeError> {
    let (Some(blocks), Some(pairs)) = (context.known_ints(1), context.known_ints(2)) else {
        return Ok(None);
    };
    let sizes = |values: Vec<i64>, what: &str| -> Result<Vec<usize>, ShapeError> {
        values.into_iter().map(|value| size(value, what)).collect()
    };
    let (blocks, pairs) = (sizes(blocks, "a block size")?, sizes(pairs, "a padding")?);
    if pairs.len() != 2 * blocks.len() || blocks.contains(&0) {
        return Err(ShapeError::new(format!(
            "block sizes {blocks:?} must be positive, with two margins each, not {pairs:?}"
        )));
    }
    context.dims_of_rank_at_least(0, blocks.len() + 1)?;
    Ok(Some(Blocks {
        sizes: blocks,
        margins: pairs,
    }))
}

fn space_to_batch(context: &InferenceContext<'_>) -> Shapes {
    let (Some(dims), Some(blocks)) = (context.shape(0).dims(), blocks(context)?) else {
        return Ok(vec![PartialShape::unknown()]);
    };
    let mut dims = dims.to_vec();
    for (i, &block) in blocks.sizes.iter().enumerate() {
        let wide = add_dims(
            dims[i + 1],
            blocks.margins[2 * i].checked_add(blocks.margins[2 * i + 1]),
        )?;
        dims[i + 1] = divide(wide, block, "padded size")?;
        dims[0] = multiply_dims(dims[0], Some(block))?;
    }
    Ok(vec![PartialShape::new(&dims)])
}

fn batch_to_space(context: &InferenceContext<'_>) -> Shapes {
    let (Some(dims), Some(blocks)) = (context.shape(0).dims(), blocks(context)?) else {
        return Ok(vec![PartialShape::unknown()]);
    };
    let mut dims = dims.to_vec();
    for (i, &block) in blocks.sizes.iter().enumerate() {
        dims[0] = divide(dims[0], block, "batch")?;
        let wide = multiply_dims(dims[i + 1], Some(block))?;
        let cropped = wide.map(|wide| {
            let crop = blocks.margins[2 * i].saturating_add(blocks.margins[2 * i + 1]);
            wide.checked_sub(crop)
                .ok_or_else(|| ShapeError::new(format!("crops of {crop} exceed size {wide}")))
        });
        dims[i + 1] = cropped.transpose()?;
    }
    Ok(vec![PartialShape::new(&dims)])
}
