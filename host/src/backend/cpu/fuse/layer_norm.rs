//! Finds layer normalization, which TensorFlow's graphs contain as some ten nodes.
//!
//! `(x - mean) / sqrt(variance + epsilon) * scale + offset` over the last axis, in the forms of
//! `tf.nn.batch_normalization`, Keras and ONNX; with or without a scale, and without a mean (root
//! mean square normalization).

use super::expression::Edge;
use super::expression::Expressions;
use super::expression::Factor;
use super::expression::Product;
use crate::graph::NodeId;

/// A layer normalization.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct LayerNorm {
    pub(super) x: Edge,
    pub(super) scale: Option<Edge>,
    pub(super) offset: Option<Edge>,
    pub(super) epsilon: f32,
    pub(super) is_centered: bool,
}

/// The moments of a row.
#[derive(Debug, Clone, Copy)]
struct Moments {
    x: Edge,
    /// That of the difference from the mean, if there is one.
    is_centered: bool,
    epsilon: f32,
}

/// Returns the normalization whose last node this is.
pub(super) fn find(all: Expressions<'_, '_>, last: NodeId) -> Option<LayerNorm> {
    if all.op(last) != "AddV2" {
        return None;
    }
    let found = with_offset(all, last)?;
    let columns = *all.result(last).dims()?.last()?;
    let is_row = |edge: &Edge| {
        let shape = all.shape(*edge);
        let Some([outer @ .., last]) = shape.dims() else {
            return false;
        };
        *last == columns && columns.is_some() && outer.iter().all(|&dim| dim == Some(1))
    };
    let rows = [found.scale, found.offset];
    let is_same_shape = all.shape(found.x) == all.result(last);
    (is_same_shape && rows.iter().flatten().all(is_row)).then_some(found)
}

fn with_offset(all: Expressions<'_, '_>, last: NodeId) -> Option<LayerNorm> {
    let [a, b] = [(last, 0), (last, 1)];
    [[a, b], [b, a]].into_iter().find_map(|[scaled, rest]| {
        let in_order = || {
            let found = scaled_difference(all, &all.product(scaled))?;
            Some(LayerNorm {
                offset: Some(rest),
                ..found
            })
        };
        in_order().or_else(|| expanded(all, scaled, rest))
    })
}

/// Returns `(x - mean) * inverse deviation * scale`.
fn scaled_difference(all: Expressions<'_, '_>, product: &Product) -> Option<LayerNorm> {
    if product.constant != 1.0 {
        return None;
    }
    let mut factors = product.factors.clone();
    let root = factors
        .iter()
        .position(|it| matches!(it, Factor::InverseRoot(_)))?;
    let Factor::InverseRoot(root) = factors.remove(root) else {
        return None;
    };
    let moments = moments(all, root)?;
    let is_difference = |factor: &Factor| {
        let Factor::Value(edge) = *factor else {
            return false;
        };
        if !moments.is_centered {
            return all.is_same(edge, moments.x);
        }
        all.binary(edge, "Sub")
            .is_some_and(|[x, mean]| all.is_same(x, moments.x) && is_mean_of(all, mean, moments.x))
    };
    let difference = factors.iter().position(is_difference)?;
    factors.remove(difference);
    let scale = match factors[..] {
        [] => None,
        [Factor::Value(scale)] => Some(scale),
        _ => return None,
    };
    Some(LayerNorm {
        x: moments.x,
        scale,
        offset: None,
        epsilon: moments.epsilon,
        is_centered: moments.is_centered,
    })
}

/// Returns `x * s + (offset - mean * s)`, where `s` is the inverse deviation, times a scale.
fn expanded(all: Expressions<'_, '_>, scaled: Edge, rest: Edge) -> Option<LayerNorm> {
    all.commuted(scaled, "Mul")?.into_iter().find_map(|[x, s]| {
        let product = all.product(s);
        let (root, scale) = match product.factors[..] {
            [Factor::InverseRoot(root)] => (root, None),
            [Factor::InverseRoot(root), Factor::Value(scale)]
            | [Factor::Value(scale), Factor::InverseRoot(root)] => (root, Some(scale)),
            _ => return None,
        };
        let moments = moments(all, root)?;
        if product.constant != 1.0 || !moments.is_centered || !all.is_same(x, moments.x) {
            return None;
        }
        let is_mean = |edge: Edge| is_mean_of(all, edge, moments.x);
        // The mean times `s`, or its negative.
        let is_shift = |edge: Edge, is_negative: bool| {
            let factors = all.commuted(edge, "Mul").into_iter().flatten();
            factors.into_iter().any(|[mean, other]| {
                all.is_same(other, s)
                    && match is_negative {
                        false => is_mean(mean),
                        true => all.unary(mean, "Neg").is_some_and(is_mean),
                    }
            })
        };
        let offset = match all.binary(rest, "Sub") {
            Some([offset, shift]) => is_shift(shift, false).then_some(offset),
            None => all
                .commuted(rest, "AddV2")?
                .into_iter()
                .find_map(|[shift, offset]| is_shift(shift, true).then_some(offset)),
        }?;
        Some(LayerNorm {
            x,
            scale,
            offset: Some(offset),
            epsilon: moments.epsilon,
            is_centered: true,
        })
    })
}

/// Returns the moments of `variance + epsilon`.
fn moments(all: Expressions<'_, '_>, edge: Edge) -> Option<Moments> {
    let (variance, epsilon) = all
        .commuted(edge, "AddV2")?
        .into_iter()
        .find_map(|[variance, epsilon]| Some((variance, all.constant(epsilon)?)))?;
    let squares = row_mean(all, variance)?;
    let of = |x: Edge, is_centered: bool| Moments {
        x,
        is_centered,
        epsilon,
    };
    if let Some(orders) = all.commuted(squares, "SquaredDifference") {
        let mut orders = orders.into_iter();
        return orders.find_map(|[x, mean]| is_mean_of(all, mean, x).then(|| of(x, true)));
    }
    let base = match all.unary(squares, "Square") {
        Some(base) => base,
        None => match (all.binary(squares, "Mul"), all.binary(squares, "Pow")) {
            (Some([a, b]), _) if all.is_same(a, b) => a,
            (_, Some([base, exponent])) if all.is_constant(exponent, 2.0) => base,
            _ => return None,
        },
    };
    match all.binary(base, "Sub") {
        Some([x, mean]) if is_mean_of(all, mean, x) => Some(of(x, true)),
        _ => Some(of(base, false)),
    }
}

/// Returns what an input reads the mean of, over the last axis.
fn row_mean(all: Expressions<'_, '_>, edge: Edge) -> Option<Edge> {
    let [x, _] = all.binary(edge, "Mean")?;
    all.reduces_last(x.0).then_some(x)
}

fn is_mean_of(all: Expressions<'_, '_>, mean: Edge, x: Edge) -> bool {
    row_mean(all, mean).is_some_and(|of| all.is_same(of, x))
}
