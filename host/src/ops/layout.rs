//! Ops that forward, inspect or reshape their input.

use super::definition::OpDef;
use super::definition::op;
use super::fold;
use super::infer::InferenceContext;
use super::infer::ShapeError;
use super::rules::Dim;
use super::rules::Shapes;
use super::rules::axis_index;
use super::rules::merge;
use super::rules::n_elements;
use super::rules::same_as_input;
use super::rules::scalars;
use super::rules::unknown;
use super::work::free;
use crate::tensor::PartialShape;

/// Ops of this family.
pub(super) fn ops() -> Vec<OpDef> {
    let mut ops = Vec::new();
    for (name, attrs) in [
        ("Identity", "T: type"),
        ("Snapshot", "T: type"),
        ("StopGradient", "T: type"),
        ("PreventGradient", "T: type; message: string = ''"),
    ] {
        ops.push(
            op(name, "input: T", "output: T", attrs)
                .with_shape(same_as_input)
                .with_fold(fold::identity)
                .with_work(free),
        );
    }
    ops.extend([
        op("IdentityN", "input: T", "output: T", "T: list(type) >= 1")
            .with_shape(|context| {
                Ok((0..context.n_inputs())
                    .map(|i| context.shape(i).clone())
                    .collect())
            })
            .with_fold(|context, _| {
                (0..context.n_inputs())
                    .map(|i| context.input(i).known.clone())
                    .collect()
            })
            .with_work(free),
        op(
            "CheckNumerics",
            "tensor: T",
            "output: T",
            "T: {bfloat16, half, float, double}; message: string",
        )
        .stateful()
        .with_shape(same_as_input),
        op(
            "EnsureShape",
            "input: T",
            "output: T",
            "shape: shape; T: type",
        )
        .with_shape(|context| {
            let declared = context.attrs().shape("shape").cloned().unwrap_or_default();
            Ok(vec![merge(
                context.shape(0),
                &declared,
                "input and declared shape",
            )?])
        })
        .with_fold(fold::identity)
        .with_work(free),
        op(
            "Shape",
            "input: T",
            "output: out_type",
            "T: type; out_type: {int32, int64} = DT_INT32",
        )
        .with_shape(ranks)
        .with_fold(fold::shapes)
        .with_work(free),
        op(
            "ShapeN",
            "input: N * T",
            "output: N * out_type",
            "N: int >= 1; T: type; out_type: {int32, int64} = DT_INT32",
        )
        .with_shape(ranks)
        .with_fold(fold::shapes)
        .with_work(free),
        op(
            "Size",
            "input: T",
            "output: out_type",
            "T: type; out_type: {int32, int64} = DT_INT32",
        )
        .with_shape(scalars)
        .with_fold(fold::size)
        .with_work(free),
        op("Rank", "input: T", "output: int32", "T: type")
            .with_shape(scalars)
            .with_fold(fold::rank)
            .with_work(free),
        op(
            "Reshape",
            "tensor: T, shape: Tshape",
            "output: T",
            "T: type; Tshape: {int32, int64} = DT_INT32",
        )
        .with_shape(reshaped)
        .with_fold(fold::same_elements)
        .with_work(free),
        op(
            "Squeeze",
            "input: T",
            "output: T",
            "T: type; squeeze_dims: list(int) = []",
        )
        .with_shape(squeezed)
        .with_fold(fold::same_elements)
        .with_work(free),
        op(
            "ExpandDims",
            "input: T, dim: Tdim",
            "output: T",
            "T: type; Tdim: {int32, int64} = DT_INT32",
        )
        .with_shape(expanded)
        .with_fold(fold::same_elements)
        .with_work(free),
        op(
            "Transpose",
            "x: T, perm: Tperm",
            "y: T",
            "T: type; Tperm: {int32, int64} = DT_INT32",
        )
        .with_shape(transposed),
        op(
            "ConjugateTranspose",
            "x: T, perm: Tperm",
            "y: T",
            "T: type; Tperm: {int32, int64} = DT_INT32",
        )
        .with_shape(transposed),
        op(
            "Bitcast",
            "input: T",
            "output: type",
            "T: numbertype; type: numbertype",
        )
        .with_shape(bitcast)
        .with_work(free),
        op(
            "InvertPermutation",
            "x: T",
            "y: T",
            "T: {int32, int64} = DT_INT32",
        )
        .with_shape(same_as_input),
        op(
            "BroadcastGradientArgs",
            "s0: T, s1: T",
            "r0: T, r1: T",
            "T: {int32, int64} = DT_INT32",
        )
        .with_shape(|_| Ok(vec![PartialShape::of_rank(1); 2])),
        op(
            "Unbatch",
            "batched_tensor: T, batch_index: int64, id: int64",
            "unbatched_tensor: T",
            "timeout_micros: int; container: string = ''; shared_name: string = ''; T: type",
        )
        .with_shape(unknown),
    ]);
    ops
}

fn ranks(context: &InferenceContext<'_>) -> Shapes {
    let rank_of = |i: usize| PartialShape::new(&[context.shape(i).rank()]);
    Ok((0..context.n_inputs()).map(rank_of).collect())
}

/// Reshapes input 0 to the sizes in input 1; one size may be -1 and takes the remaining elements.
fn reshaped(context: &InferenceContext<'_>) -> Shapes {
    let wanted = context.shape_from_input(1)?;
    let Some(dims) = wanted.dims() else {
        return Ok(vec![wanted]);
    };
    let from = context.shape(0);
    let total = from.dims().map_or(Ok(None), n_elements)?;
    let known: Vec<Dim> = dims.iter().copied().filter(Option::is_some).collect();
    let product = n_elements(&known)?.unwrap_or(1);
    let mismatch = || {
        ShapeError::new(format!(
            "a tensor of shape {from} cannot be reshaped to {wanted}"
        ))
    };
    // One unknown size follows from the number of elements, whether it is -1 or just not known.
    match (total, dims.len() - known.len()) {
        (Some(total), 0) if total != product => Err(mismatch()),
        (Some(total), 1) if product > 0 => {
            if total % product != 0 {
                return Err(mismatch());
            }
            let fill = |dim: &Dim| dim.or(Some(total / product));
            Ok(vec![dims.iter().map(fill).collect()])
        }
        _ => Ok(vec![wanted.clone()]),
    }
}

fn squeezed(context: &InferenceContext<'_>) -> Shapes {
    let axes = context.int_list("squeeze_dims")?;
    let Some(dims) = context.shape(0).dims() else {
        return Ok(vec![PartialShape::unknown()]);
    };
    if axes.is_empty() {
        if dims.contains(&None) {
            return Ok(vec![PartialShape::unknown()]);
        }
        return Ok(vec![
            dims.iter().copied().filter(|&dim| dim != Some(1)).collect(),
        ]);
    }
    let mut gone = vec![false; dims.len()];
    for axis in axes {
        let axis = axis_index(axis, dims.len())?;
        if dims[axis].is_some_and(|dim| dim != 1) {
            return Err(ShapeError::new(format!(
                "axis {axis} of shape {} is not 1 and cannot be squeezed",
                context.shape(0)
            )));
        }
        gone[axis] = true;
    }
    let left = dims.iter().zip(&gone).filter(|&(_, &gone)| !gone);
    Ok(vec![left.map(|(&dim, _)| dim).collect()])
}

fn expanded(context: &InferenceContext<'_>) -> Shapes {
    let Some(dims) = context.shape(0).dims() else {
        return Ok(vec![PartialShape::unknown()]);
    };
    let Some(axis) = context.scalar_int(1) else {
        return Ok(vec![PartialShape::of_rank(dims.len() + 1)]);
    };
    let axis = axis_index(axis, dims.len() + 1)?;
    let mut wider = dims.to_vec();
    wider.insert(axis, Some(1));
    Ok(vec![PartialShape::new(&wider)])
}

fn transposed(context: &InferenceContext<'_>) -> Shapes {
    let shape = context.shape(0);
    let Some(permutation) = context.known_ints(1) else {
        let rank = shape
            .rank()
            .or(context.shape(1).dim(0).filter(|&n| n <= 254));
        return Ok(vec![
            rank.map_or_else(PartialShape::unknown, PartialShape::of_rank),
        ]);
    };
    let rank = permutation.len();
    let bad = || {
        ShapeError::new(format!(
            "{permutation:?} is not a permutation of the axes of shape {shape}"
        ))
    };
    if shape.rank().is_some_and(|found| found != rank) {
        return Err(bad());
    }
    let mut seen = vec![false; rank];
    let mut dims = Vec::with_capacity(rank);
    for &axis in &permutation {
        let axis = axis_index(axis, rank).map_err(|_| bad())?;
        if std::mem::replace(&mut seen[axis], true) {
            return Err(bad());
        }
        dims.push(shape.dim(axis));
    }
    Ok(vec![PartialShape::new(&dims)])
}

/// A narrower type adds a last dimension; a wider one removes it.
fn bitcast(context: &InferenceContext<'_>) -> Shapes {
    let shape = context.shape(0);
    let sizes = context.dtype(0).size_bytes().zip(
        context
            .attrs()
            .dtype("type")
            .and_then(crate::tensor::DType::size_bytes),
    );
    let (Some(dims), Some((from, to))) = (shape.dims(), sizes) else {
        return Ok(vec![PartialShape::unknown()]);
    };
    if from == to {
        return Ok(vec![shape.clone()]);
    }
    if from > to {
        return Ok(vec![
            dims.iter().copied().chain([Some(from / to)]).collect(),
        ]);
    }
    match dims.split_last() {
        Some((last, rest)) if last.is_none_or(|last| last == to / from) => {
            Ok(vec![PartialShape::new(rest)])
        }
        _ => Err(ShapeError::new(format!(
            "the last dimension of shape {shape} must be {}",
            to / from
        ))),
    }
}
