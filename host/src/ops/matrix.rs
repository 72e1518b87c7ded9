//! Matmuls.

use super::definition::OpDef;
use super::definition::op;
use super::infer::InferenceContext;
use super::infer::ShapeError;
use super::infer::elements;
use super::rules::Dim;
use super::rules::Shapes;
use super::rules::broadcast;
use super::rules::merge;
use super::rules::merge_dims;
use super::work::with_flops;
use crate::graph::Output;
use crate::graph::Work;
use crate::tensor::PartialShape;

const TYPES: &str = "{bfloat16, half, float, double, int8, uint8, int16, uint16, int32, uint32, int64, uint64, complex64, complex128}";

/// Ops of this family.
pub(super) fn ops() -> Vec<OpDef> {
    let attrs = |rest: &str| format!("T: {TYPES}; {rest}");
    vec![
        of_two_matrices(op(
            "MatMul",
            "a: T, b: T",
            "product: T",
            &attrs("transpose_a: bool = false; transpose_b: bool = false; grad_a: bool = false; grad_b: bool = false"),
        )),
        of_two_matrices(op(
            "_FusedMatMul",
            "a: T, b: T, args: num_args * T",
            "product: T",
            "T: {half, bfloat16, float, double}; transpose_a: bool = false; transpose_b: bool = false; \
             num_args: int >= 0; fused_ops: list(string) = []; epsilon: float = 0.0001; leakyrelu_alpha: float = 0.2",
        )),
        op(
            "BatchMatMul",
            "x: T, y: T",
            "output: T",
            &attrs("adj_x: bool = false; adj_y: bool = false; grad_x: bool = false; grad_y: bool = false"),
        )
        .with_shape(|context| {
            if let (Some(x), Some(y)) = (context.shape(0).dims(), context.shape(1).dims()) {
                let batch = |dims: &[Dim]| PartialShape::new(&dims[..dims.len().saturating_sub(2)]);
                merge(&batch(x), &batch(y), "batch dimensions")?;
            }
            product(context, "adj_x", "adj_y")
        })
        .with_work(|context, outputs| product_work(context, outputs, "adj_x")),
        of_batches(op(
            "BatchMatMulV2",
            "x: T, y: T",
            "output: T",
            &attrs("adj_x: bool = false; adj_y: bool = false; grad_x: bool = false; grad_y: bool = false"),
        )),
        of_batches(op(
            "BatchMatMulV3",
            "x: Ta, y: Tb",
            "output: Tout",
            &format!("Ta: {TYPES}; Tb: {TYPES}; Tout: {TYPES}; adj_x: bool = false; adj_y: bool = false; grad_x: bool = false; grad_y: bool = false"),
        )),
        op("Einsum", "inputs: N * T", "output: T", "equation: string; N: int >= 1; T: type")
            .with_shape(|context| Ok(vec![Einsum::new(context)?.output]))
            .with_work(|context, outputs| {
                let points = Einsum::new(context).map_or(0.0, |einsum| einsum.n_points);
                #[expect(clippy::cast_precision_loss, reason = "an estimate")]
                let n_factors = context.n_inputs() as f64;
                with_flops(context, outputs, n_factors * points)
            }),
    ]
}

/// Sets the rules of an op that multiplies two matrices.
fn of_two_matrices(op: OpDef) -> OpDef {
    op.with_shape(|context| {
        context.shape_of_rank(0, 2)?;
        context.shape_of_rank(1, 2)?;
        product(context, "transpose_a", "transpose_b")
    })
    .with_work(|context, outputs| product_work(context, outputs, "transpose_a"))
}

/// Sets the rules of an op that multiplies batches of matrices with broadcasting.
fn of_batches(op: OpDef) -> OpDef {
    op.with_shape(|context| product(context, "adj_x", "adj_y"))
        .with_work(|context, outputs| product_work(context, outputs, "adj_x"))
}

/// Infers `[.., m, k] x [.., k, n] -> [.., m, n]` with broadcast batch dimensions; either side may
/// be transposed.
fn product(context: &InferenceContext<'_>, transpose_a: &str, transpose_b: &str) -> Shapes {
    let a = context.dims_of_rank_at_least(0, 2)?;
    let b = context.dims_of_rank_at_least(1, 2)?;
    let (Some(a), Some(b)) = (a, b) else {
        let rank = a
            .or(b)
            .filter(|_| context.op() == "MatMul")
            .map(<[Dim]>::len);
        return Ok(vec![
            rank.map_or_else(PartialShape::unknown, PartialShape::of_rank),
        ]);
    };
    let (a_batch, [m, a_inner]) = split(a, context.bool(transpose_a)?);
    let (b_batch, [b_inner, n]) = split(b, context.bool(transpose_b)?);
    merge_dims(a_inner, b_inner, "inner dimensions").map_err(|error| {
        ShapeError::new(format!(
            "{error} (shapes {} and {})",
            context.shape(0),
            context.shape(1)
        ))
    })?;
    let batch = broadcast(&PartialShape::new(a_batch), &PartialShape::new(b_batch))?;
    let batch = batch.dims().unwrap_or_default().iter().copied();
    Ok(vec![batch.chain([m, n]).collect()])
}

fn split(dims: &[Dim], transposed: bool) -> (&[Dim], [Dim; 2]) {
    let (batch, matrix) = dims.split_at(dims.len() - 2);
    if transposed {
        (batch, [matrix[1], matrix[0]])
    } else {
        (batch, [matrix[0], matrix[1]])
    }
}

/// Returns `2 m n k` per matrix: one multiplication and one addition per point.
fn product_work(context: &InferenceContext<'_>, outputs: &[Output], transpose_a: &str) -> Work {
    let inner = context.shape(0).dims().and_then(|dims| {
        let transposed = context.attrs().bool(transpose_a)?;
        (dims.len() >= 2)
            .then(|| split(dims, transposed).1[1])
            .flatten()
    });
    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    let inner = inner.unwrap_or(0) as f64;
    let n_elements = outputs
        .first()
        .map_or(0.0, |output| elements(&output.shape));
    with_flops(context, outputs, 2.0 * n_elements * inner)
}

/// An equation such as `bhqd,hdk->bqk`; `...` stands for dimensions that are broadcast.
struct Einsum {
    output: PartialShape,
    /// Product of the sizes of all labels; 0 if one is unknown.
    n_points: f64,
}

impl Einsum {
    fn new(context: &InferenceContext<'_>) -> Result<Self, ShapeError> {
        let equation = context.text("equation")?.replace(' ', "");
        let malformed = || ShapeError::new(format!("equation `{equation}` is malformed"));
        let (left, right) = equation.split_once("->").ok_or_else(malformed)?;
        let terms: Vec<&str> = left.split(',').collect();
        if terms.len() != context.n_inputs() {
            return Err(ShapeError::new(format!(
                "equation `{equation}` has {} inputs, the node has {}",
                terms.len(),
                context.n_inputs()
            )));
        }
        let mut sizes: Vec<(char, Dim)> = Vec::new();
        let mut ellipsis = PartialShape::scalar();
        for (index, term) in terms.iter().enumerate() {
            let (before, after) = term.split_once("...").unwrap_or((term, ""));
            if !before
                .chars()
                .chain(after.chars())
                .all(|c| c.is_ascii_alphabetic())
            {
                return Err(malformed());
            }
            let n_labels = before.len() + after.len();
            let Some(dims) = context.dims_of_rank_at_least(index, n_labels)? else {
                if term.contains("...") {
                    ellipsis = PartialShape::unknown();
                }
                for label in before.chars().chain(after.chars()) {
                    note(&mut sizes, label, None)?;
                }
                continue;
            };
            if !term.contains("...") && dims.len() != n_labels {
                return Err(ShapeError::new(format!(
                    "`{term}` of equation `{equation}` does not match input {index} of shape {}",
                    context.shape(index)
                )));
            }
            let (front, rest) = dims.split_at(before.len());
            let (middle, back) = rest.split_at(rest.len() - after.len());
            let labels = before.chars().chain(after.chars());
            for (label, &dim) in labels.zip(front.iter().chain(back)) {
                note(&mut sizes, label, dim)?;
            }
            if term.contains("...") {
                ellipsis = broadcast(&ellipsis, &PartialShape::new(middle))?;
            }
        }
        let label_size = |label: char| -> Result<Dim, ShapeError> {
            let found = sizes.iter().find(|(known, _)| *known == label);
            found.map(|&(_, dim)| dim).ok_or_else(malformed)
        };
        let (before, after) = right.split_once("...").unwrap_or((right, ""));
        let before: Vec<Dim> = before.chars().map(label_size).collect::<Result<_, _>>()?;
        let after: Vec<Dim> = after.chars().map(label_size).collect::<Result<_, _>>()?;
        let middle = right.contains("...").then_some(&ellipsis);
        let output = match middle.map(PartialShape::dims) {
            Some(None) => PartialShape::unknown(),
            middle => {
                let middle = middle.flatten().unwrap_or_default();
                before.iter().chain(middle).chain(&after).copied().collect()
            }
        };
        let labels: PartialShape = sizes.iter().map(|&(_, dim)| dim).collect();
        let n_points = elements(&labels) * elements(&ellipsis);
        Ok(Self { output, n_points })
    }
}

/// Merges a label's size with what is known; a size of 1 repeats.
fn note(sizes: &mut Vec<(char, Dim)>, label: char, dim: Dim) -> Result<(), ShapeError> {
    let Some((_, known)) = sizes.iter_mut().find(|(known, _)| *known == label) else {
        sizes.push((label, dim));
        return Ok(());
    };
    *known = match (*known, dim) {
        (Some(1), other) | (other, Some(1)) => other,
        (a, b) => merge_dims(a, b, &format!("sizes of label `{label}`"))?,
    };
    Ok(())
}
