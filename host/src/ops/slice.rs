//! Ops that read or replace parts of tensors: slices, gathers, scatters.

use super::definition::OpDef;
use super::definition::op;
use super::fold;
use super::infer::InferenceContext;
use super::infer::Known;
use super::infer::ShapeError;
use super::rules::Dim;
use super::rules::Shapes;
use super::rules::axis_index;
use super::rules::merge;
use super::rules::same_as_input;
use super::rules::size;
use super::work::reads_what_it_writes;
use crate::graph::Output;
use crate::tensor::PartialShape;

const MASKS: &str = "T: type; Index: {int16, int32, int64}; begin_mask: int = 0; end_mask: int = 0; ellipsis_mask: int = 0; \
                     new_axis_mask: int = 0; shrink_axis_mask: int = 0";

/// Ops of this family.
pub(super) fn ops() -> Vec<OpDef> {
    let mut ops = vec![
        op("Slice", "input: T, begin: Index, size: Index", "output: T", "T: type; Index: {int32, int64}")
            .with_shape(sliced)
            .with_fold(fold_slice)
            .with_work(reads_what_it_writes),
        op("XlaDynamicUpdateSlice", "input: T, update: T, indices: Tindices", "output: T", "T: type; Tindices: {int32, int64}")
            .with_shape(same_as_input),
        op("StridedSlice", "input: T, begin: Index, end: Index, strides: Index", "output: T", MASKS)
            .with_shape(|context| {
                let slice = StridedSlice::new(context)?;
                Ok(vec![slice.map_or_else(PartialShape::unknown, |slice| slice.shape())])
            })
            .with_fold(fold_strided_slice)
            .with_work(reads_what_it_writes),
        op("StridedSliceGrad", "shape: Index, begin: Index, end: Index, strides: Index, dy: T", "output: T", MASKS)
            .with_shape(|context| Ok(vec![context.shape_from_input(0)?])),
        op("Gather", "params: Tparams, indices: Tindices", "output: Tparams", "validate_indices: bool = true; Tparams: type; Tindices: {int32, int64}")
            .with_shape(|context| gathered(context, Some(0), 0))
            .with_fold(|context, outputs| fold::gather(context, outputs, Some(0)))
            .with_work(reads_what_it_writes),
        op("GatherV2", "params: Tparams, indices: Tindices, axis: Taxis", "output: Tparams", "batch_dims: int = 0; Tparams: type; Tindices: {int16, int32, int64}; Taxis: {int32, int64}")
            .with_shape(|context| {
                gathered(context, context.scalar_int(2), context.int("batch_dims")?)
            })
            .with_fold(|context, outputs| {
                let axis = context.scalar_int(2).filter(|_| context.attrs().int("batch_dims") == Some(0));
                fold::gather(context, outputs, axis)
            })
            .with_work(reads_what_it_writes),
        op("GatherNd", "params: Tparams, indices: Tindices", "output: Tparams", "Tparams: type; Tindices: {int16, int32, int64}; bad_indices_policy: string = ''")
            .with_shape(gathered_nd)
            .with_work(reads_what_it_writes),
        op("ResourceGather", "resource: resource, indices: Tindices", "output: dtype", "batch_dims: int = 0; validate_indices: bool = true; dtype: type; Tindices: {int32, int64}")
            .stateful()
            .with_shape(|context| {
                let Some((_, table)) = context.handle(0) else {
                    return Ok(vec![PartialShape::unknown()]);
                };
                let batch = context.int("batch_dims")?;
                Ok(vec![gathered_from(table, context.shape(1), batch, batch)?])
            })
            .with_work(reads_what_it_writes),
        op("ResourceGatherNd", "resource: resource, indices: Tindices", "output: dtype", "dtype: type; Tindices: {int32, int64}")
            .stateful()
            .with_shape(|context| match context.handle(0) {
                Some((_, params)) => gathered_nd_from(context, params),
                None => Ok(vec![PartialShape::unknown()]),
            })
            .with_work(reads_what_it_writes),
        op("StridedSliceAssign", "ref: Ref(T), begin: Index, end: Index, strides: Index, value: T", "output_ref: Ref(T)", MASKS)
            .with_shape(same_as_input),
        op("ResourceStridedSliceAssign", "ref: resource, begin: Index, end: Index, strides: Index, value: T", "", MASKS)
            .stateful(),
        op("TensorStridedSliceUpdate", "input: T, begin: Index, end: Index, strides: Index, value: T", "output: T", MASKS)
            .with_shape(same_as_input),
        op("ScatterNd", "indices: Tindices, updates: T, shape: Tindices", "output: T", "T: type; Tindices: {int16, int32, int64}; bad_indices_policy: string = ''")
            .with_shape(|context| Ok(vec![context.shape_from_input(2)?])),
    ];
    for name in ["Update", "Add", "Sub", "Max", "Min"] {
        ops.push(
            op(
                &format!("TensorScatter{name}"),
                "tensor: T, indices: Tindices, updates: T",
                "output: T",
                "T: type; Tindices: {int16, int32, int64}; bad_indices_policy: string = ''",
            )
            .with_shape(same_as_input),
        );
    }
    ops
}

fn sliced(context: &InferenceContext<'_>) -> Shapes {
    let input = context.shape(0);
    let n_axes = |i: usize| context.shape(i).dim(0).filter(|&n| n <= 254);
    let rank = input.rank().or(n_axes(1)).or(n_axes(2));
    let Some(rank) = rank else {
        return Ok(vec![PartialShape::unknown()]);
    };
    let input = context.shape_of_rank(0, rank)?;
    let (begin, sizes) = (context.ints(1), context.ints(2));
    for value in begin.iter().chain(&sizes) {
        if value.values().len() != rank {
            return Err(ShapeError::new(format!(
                "begin and size must have {rank} elements for shape {input}"
            )));
        }
    }
    let dims: Result<PartialShape, ShapeError> = (0..rank)
        .map(|axis| {
            let begin = begin.as_ref().and_then(|value| value.values()[axis]);
            let wanted = sizes.as_ref().and_then(|value| value.values()[axis]);
            let begin = begin.map(|begin| size(begin, "begin")).transpose()?;
            slice_size(input.dim(axis), begin, wanted, axis)
        })
        .collect();
    Ok(vec![dims?])
}

/// Resolves a slice size; -1 extends to the end.
fn slice_size(whole: Dim, begin: Dim, wanted: Option<i64>, axis: usize) -> Result<Dim, ShapeError> {
    let outside = |whole: usize, begin: usize| {
        ShapeError::new(format!(
            "axis {axis} of size {whole} has no slice of size {} from {begin}",
            wanted.unwrap_or(-1)
        ))
    };
    match (wanted, whole, begin) {
        (None, ..) | (Some(-1), None, _) | (Some(-1), _, None) => Ok(None),
        (Some(-1), Some(whole), Some(begin)) => whole
            .checked_sub(begin)
            .map(Some)
            .ok_or_else(|| outside(whole, begin)),
        (Some(wanted), whole, begin) => {
            let wanted = size(wanted, "size")?;
            match (whole, begin) {
                (Some(whole), Some(begin)) if begin.saturating_add(wanted) > whole => {
                    Err(outside(whole, begin))
                }
                _ => Ok(Some(wanted)),
            }
        }
    }
}

fn fold_slice(context: &InferenceContext<'_>, outputs: &[Output]) -> Vec<Known> {
    let (Some(value), Some(begin)) = (context.ints(0), context.known_ints(1)) else {
        return Vec::new();
    };
    vec![fold::build(outputs, 0, |index| {
        let moved = index.iter().zip(&begin).map(|(&i, &begin)| {
            usize::try_from(begin)
                .ok()
                .and_then(|begin| i.checked_add(begin))
        });
        fold::at(&value, &moved.collect::<Option<Vec<_>>>()?)
    })]
}

/// A strided slice, resolved against its input's rank.
struct StridedSlice {
    outputs: Vec<OutputAxis>,
    /// (axis of the input, index) of removed axes; the index is `None` if it is not known.
    fixed: Vec<(usize, Option<usize>)>,
    rank: usize,
}

struct OutputAxis {
    dim: Dim,
    source: Source,
}

enum Source {
    /// A new axis of size 1.
    New,
    /// An axis of the input: first index and step, if known.
    Axis(usize, Option<(i64, i64)>),
}

impl StridedSlice {
    /// Returns `None` if the input's rank or the number of entries is unknown.
    fn new(context: &InferenceContext<'_>) -> Result<Option<Self>, ShapeError> {
        let input = context.shape(0);
        let n_spoken = (1..4).find_map(|i| context.shape(i).dim(0));
        let (Some(dims), Some(n_spoken)) = (input.dims(), n_spoken) else {
            return Ok(None);
        };
        let mask = |name: &str| context.int(name);
        let (ellipsis, new_axis) = (mask("ellipsis_mask")?, mask("new_axis_mask")?);
        let shrink = mask("shrink_axis_mask")?;
        let (begin_mask, end_mask) = (mask("begin_mask")?, mask("end_mask")?);
        if n_spoken > 32 || ellipsis.count_ones() > 1 {
            return Err(ShapeError::new(
                "a strided slice has at most 32 entries and at most one ellipsis",
            ));
        }
        let has = |mask: i64, i: usize| mask >> i & 1 == 1;
        let n_taken = (0..n_spoken)
            .filter(|&i| !has(ellipsis, i) && !has(new_axis, i))
            .count();
        let Some(n_skipped) = dims.len().checked_sub(n_taken) else {
            return Err(ShapeError::new(format!(
                "a slice of {n_taken} axes does not match shape {input}"
            )));
        };
        let values = [1, 2, 3].map(|i| context.ints(i));
        for value in values.iter().flatten() {
            if value.values().len() != n_spoken {
                return Err(ShapeError::new("begin, end and strides differ in length"));
            }
        }
        let value_at = |which: usize, i: usize| values[which].as_ref().and_then(|v| v.values()[i]);
        let mut slice = Self {
            outputs: Vec::new(),
            fixed: Vec::new(),
            rank: dims.len(),
        };
        let mut axis = 0;
        let skip = |slice: &mut Self, axis: &mut usize| {
            for _ in 0..n_skipped {
                slice.outputs.push(OutputAxis {
                    dim: dims[*axis],
                    source: Source::Axis(*axis, Some((0, 1))),
                });
                *axis += 1;
            }
        };
        let mut skipped = false;
        for i in 0..n_spoken {
            if has(ellipsis, i) {
                skip(&mut slice, &mut axis);
                skipped = true;
            } else if has(new_axis, i) {
                slice.outputs.push(OutputAxis {
                    dim: Some(1),
                    source: Source::New,
                });
            } else {
                let begin = value_at(0, i);
                if has(shrink, i) {
                    let index = begin.map(|b| shrunk(b, dims[axis], axis)).transpose()?;
                    slice.fixed.push((axis, index.flatten()));
                } else {
                    let stride = value_at(2, i);
                    if stride == Some(0) {
                        return Err(ShapeError::new(format!("stride {i} is 0")));
                    }
                    let bounds = Bounds {
                        begin,
                        begin_masked: has(begin_mask, i),
                        end: value_at(1, i),
                        end_masked: has(end_mask, i),
                    };
                    slice.outputs.push(bounds.resolve(axis, dims[axis], stride));
                }
                axis += 1;
            }
        }
        if !skipped {
            skip(&mut slice, &mut axis);
        }
        Ok(Some(slice))
    }

    fn shape(&self) -> PartialShape {
        self.outputs.iter().map(|axis| axis.dim).collect()
    }
}

/// Returns the index that a shrunk axis keeps; negative ones count from the end.
fn shrunk(begin: i64, dim: Dim, axis: usize) -> Result<Dim, ShapeError> {
    let Some(dim) = dim else {
        return Ok(usize::try_from(begin).ok());
    };
    let index = if begin < 0 {
        begin.saturating_add(i64::try_from(dim).unwrap_or(i64::MAX))
    } else {
        begin
    };
    usize::try_from(index)
        .ok()
        .filter(|&index| index < dim)
        .map(Some)
        .ok_or_else(|| {
            ShapeError::new(format!(
                "index {begin} is outside axis {axis} of size {dim}"
            ))
        })
}

struct Bounds {
    begin: Option<i64>,
    begin_masked: bool,
    end: Option<i64>,
    end_masked: bool,
}

impl Bounds {
    fn resolve(&self, axis: usize, dim: Dim, stride: Option<i64>) -> OutputAxis {
        let unknown = OutputAxis {
            dim: None,
            source: Source::Axis(axis, None),
        };
        let size = dim.and_then(|dim| i64::try_from(dim).ok());
        let (Some(size), Some(stride)) = (size, stride) else {
            return unknown;
        };
        let (lowest, highest) = if stride > 0 {
            (0, size)
        } else {
            (-1, size - 1)
        };
        let bound = |value: Option<i64>, masked: bool, default: i64| {
            if masked {
                return Some(default);
            }
            let value = value?;
            let value = if value < 0 {
                value.saturating_add(size)
            } else {
                value
            };
            Some(value.clamp(lowest, highest))
        };
        let (first, last) = if stride > 0 {
            (lowest, highest)
        } else {
            (highest, lowest)
        };
        let begin = bound(self.begin, self.begin_masked, first);
        let end = bound(self.end, self.end_masked, last);
        let (Some(begin), Some(end)) = (begin, end) else {
            return unknown;
        };
        let distance = end - begin;
        let n = if distance == 0 || (distance < 0) != (stride < 0) {
            0
        } else {
            distance / stride + i64::from(distance % stride != 0)
        };
        OutputAxis {
            dim: usize::try_from(n).ok(),
            source: Source::Axis(axis, Some((begin, stride))),
        }
    }
}

fn fold_strided_slice(context: &InferenceContext<'_>, outputs: &[Output]) -> Vec<Known> {
    let (Some(value), Ok(Some(slice))) = (context.ints(0), StridedSlice::new(context)) else {
        return Vec::new();
    };
    vec![fold::build(outputs, 0, |index| {
        let mut whole = vec![0; slice.rank];
        for &(axis, position) in &slice.fixed {
            whole[axis] = position?;
        }
        for (output, &i) in slice.outputs.iter().zip(index) {
            if let Source::Axis(axis, steps) = output.source {
                let (begin, stride) = steps?;
                let i = i64::try_from(i).ok()?;
                whole[axis] = usize::try_from(begin + i * stride).ok()?;
            }
        }
        fold::at(&value, &whole)
    })]
}

fn gathered(context: &InferenceContext<'_>, axis: Option<i64>, batch_dims: i64) -> Shapes {
    let (params, indices) = (context.shape(0), context.shape(1));
    let shape = match axis {
        Some(axis) => gathered_from(params, indices, axis, batch_dims)?,
        None => match (params.rank(), indices.rank()) {
            (Some(p), Some(i)) if batch_dims == 0 && p > 0 => PartialShape::of_rank(p - 1 + i),
            _ => PartialShape::unknown(),
        },
    };
    Ok(vec![shape])
}

/// `params[..axis] + indices[batch_dims..] + params[axis + 1..]`.
fn gathered_from(
    params: &PartialShape,
    indices: &PartialShape,
    axis: i64,
    batch_dims: i64,
) -> Result<PartialShape, ShapeError> {
    let (Some(p), Some(i)) = (params.dims(), indices.dims()) else {
        return Ok(PartialShape::unknown());
    };
    let axis = axis_index(axis, p.len())?;
    // Negative ones count from the rank of the indices, all of which may be batch dimensions.
    let batch = match usize::try_from(batch_dims) {
        Ok(batch) if batch <= i.len() => batch,
        _ => axis_index(batch_dims, i.len())?,
    };
    if batch > axis {
        return Err(ShapeError::new(format!(
            "batch_dims {batch_dims} is larger than axis {axis}"
        )));
    }
    let front = PartialShape::new(&p[..batch]);
    let front = merge(&front, &PartialShape::new(&i[..batch]), "batch dimensions")?;
    let front = front.dims().unwrap_or_default().iter();
    let rest = p[batch..axis]
        .iter()
        .chain(&i[batch..])
        .chain(&p[axis + 1..]);
    Ok(front.chain(rest).copied().collect())
}

/// `indices[..-1] + params[indices[-1]..]`.
fn gathered_nd(context: &InferenceContext<'_>) -> Shapes {
    gathered_nd_from(context, context.shape(0))
}

fn gathered_nd_from(context: &InferenceContext<'_>, from: &PartialShape) -> Shapes {
    let indices = context.dims_of_rank_at_least(1, 1)?;
    let (Some(params), Some([rows @ .., Some(depth)])) = (from.dims(), indices) else {
        return Ok(vec![PartialShape::unknown()]);
    };
    let Some(rest) = params.get(*depth..) else {
        return Err(ShapeError::new(format!(
            "indices of shape {} name {depth} axes of params of shape {}",
            context.shape(1),
            from
        )));
    };
    Ok(vec![rows.iter().chain(rest).copied().collect()])
}
