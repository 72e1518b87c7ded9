//! Gathers and one-hot tensors.

use smallvec::SmallVec;

use crate::backend::plan::attr::string_attr;
use crate::backend::plan::product;
use crate::backend::plan::value::scalar;
use crate::device::KernelConstruction;
use crate::device::KernelContext;
use crate::device::KernelError;
use crate::kernels::Scratch;
use crate::kernels::Threads;
use crate::kernels::gather;
use crate::kernels::gather::Gather;
use crate::kernels::slice::axis_index;
use crate::kernels::strided::row_major_strides;
use crate::tensor::DType;
use crate::tensor::Shape;
use crate::tensor::Tensor;

/// Types of indices that `GatherV2` and `GatherNd` support.
pub(in crate::backend) const GATHERED_BY: [DType; 3] = [DType::I16, DType::I32, DType::I64];

/// Types of indices that `OneHot` supports.
pub(in crate::backend) const HOT: [DType; 4] = [DType::U8, DType::I8, DType::I32, DType::I64];

/// A gather, its positions, and the shape of its result.
pub(in crate::backend) type GatherPlan = (Gather, Scratch<usize>, Shape);

/// TensorFlow `Gather` (along the first axis) and `GatherV2` (along the axis in its third input).
/// The returned positions are in range.
pub(in crate::backend) fn gather_plan(
    context: &KernelContext<'_>,
    has_axis: bool,
    batch_dims: i64,
) -> Result<GatherPlan, KernelError> {
    let axis = if has_axis {
        scalar(context.input(2)?, "axis")?
    } else {
        0
    };
    gather_plan_of(
        context,
        context.input(0)?,
        context.input(1)?,
        axis,
        batch_dims,
    )
}

/// Plans a gather from `params` along `axis`.
pub(in crate::backend) fn gather_plan_of(
    context: &KernelContext<'_>,
    params: &Tensor,
    indices: &Tensor,
    axis: i64,
    batch_dims: i64,
) -> Result<GatherPlan, KernelError> {
    let (plan, shape) = plan(params.shape(), indices.shape(), axis, batch_dims)?;
    let threads = Threads::of(context);
    let positions = if shape.n_elements() == 0 {
        threads.scratch(0)?
    } else {
        dispatch!(indices.dtype(), [I16: i16, I32: i32, I64: i64], I => {
            let positions = threads.scratch(indices.shape().n_elements())?;
            checked(indices.as_slice::<I>()?, indices.shape(), plan.length, positions)
        })?
    };
    Ok((plan, positions, shape))
}

/// Returns the shape `params[..axis] + indices[batch_dims..] + params[axis + 1..]`.
fn plan(
    params: &Shape,
    indices: &Shape,
    axis: i64,
    batch_dims: i64,
) -> Result<(Gather, Shape), KernelError> {
    let (p, i) = (params.dims(), indices.dims());
    if p.is_empty() {
        return Err(KernelError::invalid(
            "params must be at least 1 dimensional",
        ));
    }
    let at = axis_index(axis, p.len()).ok_or_else(|| {
        KernelError::invalid(format!(
            "expected axis in the range [-{}, {}), but got {axis}: params {params}",
            p.len(),
            p.len()
        ))
    })?;
    let batch = axis_index(batch_dims, i.len() + 1)
        .filter(|_| batch_dims >= 0)
        // A negative value counts from the rank of the indices.
        .or_else(|| axis_index(batch_dims, i.len()).filter(|_| batch_dims < 0))
        .ok_or_else(|| {
            KernelError::invalid(format!(
                "expected batch_dims in the range [-{}, {}], but got {batch_dims}: indices {indices}",
                i.len(),
                i.len()
            ))
        })?;
    if batch > at {
        return Err(KernelError::invalid(format!(
            "batch_dims ({batch}) must be less than or equal to axis ({at})"
        )));
    }
    if p[..batch] != i[..batch] {
        return Err(KernelError::invalid(format!(
            "the first {batch} dimensions of params {params} should be equal to those of indices {indices}"
        )));
    }
    let rest = &p[at + 1..];
    let shape: Shape = p[..at]
        .iter()
        .chain(&i[batch..])
        .chain(rest)
        .copied()
        .collect();
    let gather = Gather {
        outer: product(&p[batch..at]),
        length: p[at],
        inner: product(rest),
        n_indices: product(&i[batch..]),
    };
    Ok((gather, shape))
}

/// Returns the indices after checking that all are in `[0, length)`.
fn checked<I: Copy + Into<i64>>(
    indices: &[I],
    shape: &Shape,
    length: usize,
    mut positions: Scratch<usize>,
) -> Result<Scratch<usize>, KernelError> {
    for (flat, (&index, slot)) in indices.iter().zip(positions.iter_mut()).enumerate() {
        let index: i64 = index.into();
        *slot = usize::try_from(index)
            .ok()
            .filter(|&position| position < length)
            .ok_or_else(|| {
                KernelError::invalid(format!(
                    "indices{} = {index} is not in [0, {length})",
                    place(shape.dims(), flat)
                ))
            })?;
    }
    Ok(positions)
}

/// Formats the position of a tensor's element, such as `[1,0]`; empty for a scalar.
pub(super) fn place(dims: &[usize], mut flat: usize) -> String {
    if dims.is_empty() {
        return String::new();
    }
    let mut index: SmallVec<[usize; 8]> = dims.into();
    for (slot, &dim) in index.iter_mut().zip(dims).rev() {
        *slot = flat % dim;
        flat /= dim;
    }
    Shape::new(&index).to_string()
}

/// Returns whether TensorFlow `GatherNd` writes 0 for indices that are out of range.
pub(in crate::backend) fn ignores_bad_indices_attr(
    node: &KernelConstruction<'_>,
) -> Result<bool, KernelError> {
    match string_attr(node, "bad_indices_policy", "")? {
        "" | "DEFAULT" | "ERROR" => Ok(false),
        "IGNORE" => Ok(true),
        other => Err(KernelError::invalid(format!(
            "attribute `bad_indices_policy` is `{other}`; expected nothing, `DEFAULT`, `ERROR` or `IGNORE`"
        ))),
    }
}

/// The slices of input 0 that TensorFlow `GatherNd` copies.
pub(in crate::backend) struct GatherNdPlan {
    pub(in crate::backend) shape: Shape,
    /// Start of each slice; [`gather::NOWHERE`] for an ignored bad index.
    pub(in crate::backend) starts: Scratch<usize>,
    /// Elements per slice.
    pub(in crate::backend) size: usize,
}

/// TensorFlow `GatherNd`.
pub(in crate::backend) fn gather_nd_plan(
    context: &KernelContext<'_>,
    ignores_bad: bool,
) -> Result<GatherNdPlan, KernelError> {
    gather_nd_plan_of(context, context.input(0)?, context.input(1)?, ignores_bad)
}

/// Plans a TensorFlow `GatherNd` from `params`.
pub(in crate::backend) fn gather_nd_plan_of(
    context: &KernelContext<'_>,
    params: &Tensor,
    indices: &Tensor,
    ignores_bad: bool,
) -> Result<GatherNdPlan, KernelError> {
    let dims = params.shape().dims();
    if dims.is_empty() {
        return Err(KernelError::invalid("params must be at least a vector"));
    }
    let Some((&depth, rows)) = indices.shape().dims().split_last() else {
        return Err(KernelError::invalid("indices must be at least a vector"));
    };
    let Some(rest) = dims.get(depth..) else {
        return Err(KernelError::invalid(format!(
            "index innermost dimension length must be <= params rank; saw: {depth} vs. {}",
            dims.len()
        )));
    };
    let n_rows = Shape::new(rows).n_elements();
    if n_rows > 0 && params.shape().n_elements() == 0 {
        return Err(KernelError::invalid(format!(
            "requested more than 0 entries, but params is empty. Params shape: {}",
            params.shape()
        )));
    }
    let shape: Shape = rows.iter().chain(rest).copied().collect();
    let n_looked_up = if shape.n_elements() == 0 { 0 } else { n_rows };
    let starts = Threads::of(context).scratch(n_looked_up)?;
    let found = dispatch!(indices.dtype(), [I16: i16, I32: i32, I64: i64], I => {
        Ok(starts_of(indices.as_slice::<I>()?, depth, dims, ignores_bad, starts))
    })?;
    let starts = found.map_err(|(row, index)| {
        KernelError::invalid(format!(
            "indices{} = {index} does not index into param shape {}, node name: {}",
            place(rows, row),
            params.shape(),
            context.node()
        ))
    })?;
    let size = Shape::new(rest).n_elements();
    Ok(GatherNdPlan {
        shape,
        starts,
        size,
    })
}

/// Returns the start of the slice that each row of `depth` indices selects, or the first row that
/// is out of range.
pub(super) fn starts_of<I: Copy + Into<i64> + std::fmt::Debug>(
    indices: &[I],
    depth: usize,
    dims: &[usize],
    ignores_bad: bool,
    mut starts: Scratch<usize>,
) -> Result<Scratch<usize>, (usize, String)> {
    let strides = row_major_strides(dims);
    for (row, slot) in starts.iter_mut().enumerate() {
        let index = &indices[row * depth..][..depth];
        let mut axes = index.iter().zip(dims.iter().zip(&strides));
        let start = axes.try_fold(0, |start, (&index, (&dim, &stride))| {
            let position = usize::try_from(index.into()).ok().filter(|&i| i < dim)?;
            Some(start + position * stride.unsigned_abs())
        });
        *slot = match start {
            Some(start) => start,
            None if ignores_bad => gather::NOWHERE,
            None => return Err((row, format!("{index:?}"))),
        };
    }
    Ok(starts)
}

/// The plan of a TensorFlow `OneHot`.
pub(in crate::backend) struct OneHotPlan {
    pub(in crate::backend) shape: Shape,
    pub(in crate::backend) depth: usize,
    /// Number of elements after the new axis.
    pub(in crate::backend) suffix: usize,
}

/// TensorFlow `OneHot` along an axis; -1 is the last one.
pub(in crate::backend) fn one_hot_plan(
    context: &KernelContext<'_>,
    axis: i64,
) -> Result<OneHotPlan, KernelError> {
    let dims = context.input(0)?.shape().dims();
    let at = match axis {
        -1 => dims.len(),
        axis => usize::try_from(axis)
            .ok()
            .filter(|&axis| axis <= dims.len())
            .ok_or_else(|| {
                KernelError::invalid(format!(
                    "expected axis to be -1 or between [0, {}), but received: {axis}",
                    dims.len() + 1
                ))
            })?,
    };
    let depth = scalar(context.input(1)?, "depth")?;
    let depth = usize::try_from(depth)
        .map_err(|_| KernelError::invalid(format!("depth must be non-negative, got: {depth}")))?;
    for (index, what) in [(2, "on_value"), (3, "off_value")] {
        let tensor = context.input(index)?;
        if tensor.shape().rank() != 0 {
            return Err(KernelError::invalid(format!(
                "{what} must be a scalar, but got: {}",
                tensor.shape()
            )));
        }
    }
    let (before, after) = dims.split_at(at);
    let shape = before
        .iter()
        .chain(&[depth])
        .chain(after)
        .copied()
        .collect();
    Ok(OneHotPlan {
        shape,
        depth,
        suffix: product(after),
    })
}
