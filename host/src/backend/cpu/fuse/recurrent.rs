//! Finds the arithmetic of recurrent cells, and softmax.

use super::expression::Edge;
use super::expression::Expressions;
use crate::graph::NodeId;

/// Returns the inputs `[a, b, c, d]` of the node `a * sigmoid(b) + sigmoid(c) * tanh(d)`: the state
/// of an LSTM cell, from the state before, the forget gate, the input gate and the candidate.
pub(super) fn gated_sum(all: Expressions<'_, '_>, last: NodeId) -> Option<[Edge; 4]> {
    if all.op(last) != "AddV2" {
        return None;
    }
    let [a, b] = [(last, 0), (last, 1)];
    let found = [[a, b], [b, a]].into_iter().find_map(|[kept, added]| {
        let kept = all.commuted(kept, "Mul")?.into_iter();
        let [state, forget] = kept
            .into_iter()
            .find_map(|[state, gate]| Some([state, all.unary(gate, "Sigmoid")?]))?;
        let added = all.commuted(added, "Mul")?.into_iter();
        let [input, candidate] = added.into_iter().find_map(|[gate, value]| {
            Some([all.unary(gate, "Sigmoid")?, all.unary(value, "Tanh")?])
        })?;
        Some([state, forget, input, candidate])
    })?;
    have_shape_of(all, &found, last).then_some(found)
}

/// Returns the inputs `[a, b]` of the node `tanh(a) * sigmoid(b)`: the output of an LSTM cell, from
/// its state and the output gate.
pub(super) fn gated_tanh(all: Expressions<'_, '_>, last: NodeId) -> Option<[Edge; 2]> {
    if all.op(last) != "Mul" {
        return None;
    }
    let [a, b] = [(last, 0), (last, 1)];
    let found = [[a, b], [b, a]]
        .into_iter()
        .find_map(|[value, gate]| Some([all.unary(value, "Tanh")?, all.unary(gate, "Sigmoid")?]))?;
    have_shape_of(all, &found, last).then_some(found)
}

/// Returns the input `x` of the node `exp(x - max) / sum`. The maximum is that of the last axis,
/// and so is the sum of the exponentials.
pub(super) fn softmax(all: Expressions<'_, '_>, last: NodeId) -> Option<Edge> {
    if all.op(last) != "RealDiv" {
        return None;
    }
    let exponential = all.unary((last, 0), "Exp")?;
    let [summed, _] = all.binary((last, 1), "Sum")?;
    let [x, greatest] = all.binary(exponential, "Sub")?;
    let [compared, _] = all.binary(greatest, "Max")?;
    let is_softmax = all.is_same(summed, (last, 0))
        && all.is_same(compared, x)
        && all.reduces_last(summed.0)
        && all.reduces_last(compared.0);
    (is_softmax && have_shape_of(all, &[x], last)).then_some(x)
}

/// Returns whether nothing is broadcast.
fn have_shape_of(all: Expressions<'_, '_>, inputs: &[Edge], last: NodeId) -> bool {
    let shape = all.result(last);
    shape.rank().is_some() && inputs.iter().all(|&edge| all.shape(edge) == shape)
}
