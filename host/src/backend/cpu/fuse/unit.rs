//! Finds activations that TensorFlow's graphs contain as several nodes: linear units that a
//! function of the same number scales.

use std::f64::consts::FRAC_1_SQRT_2;
use std::f64::consts::FRAC_2_SQRT_PI;

use super::expression::Edge;
use super::expression::Expressions;
use super::expression::Factor;
use crate::graph::NodeId;
use crate::kernels::composite::Unit;

/// The coefficient of `x^3` in the approximation of the Gaussian error linear unit.
const CUBIC: f64 = 0.044_715;

/// Returns the unit whose last node this is, and its input: a product of `x` and a function of it,
/// with factors in any order.
pub(super) fn find(all: Expressions<'_, '_>, last: NodeId) -> Option<(Unit, Edge)> {
    if !matches!(all.op(last), "Mul" | "RealDiv") {
        return None;
    }
    let product = all.product_of(last);
    let &[Factor::Value(a), Factor::Value(b)] = &product.factors[..] else {
        return None;
    };
    let is_constant = |number: f64| (product.constant - number).abs() <= number * 1e-6;
    [[a, b], [b, a]].into_iter().find_map(|[x, function]| {
        let unit = if is_constant(0.5) {
            gelu(all, function, x)
        } else if is_constant(1.0) {
            let argument = all.unary(function, "Sigmoid")?;
            all.is_same(argument, x).then_some(Unit::Silu)
        } else if is_constant(1.0 / 6.0) {
            let mut orders = all
                .commuted(all.unary(function, "Relu6")?, "AddV2")?
                .into_iter();
            let is_shifted = orders.any(|[a, b]| all.is_same(a, x) && all.is_constant(b, 3.0));
            is_shifted.then_some(Unit::HardSwish)
        } else {
            None
        }?;
        (all.shape(x) == all.result(last)).then_some((unit, x))
    })
}

/// Returns the unit of `1 + erf(x / sqrt(2))`, or of `1 + tanh(sqrt(2 / pi) * (x + 0.044715 *
/// x^3))`.
fn gelu(all: Expressions<'_, '_>, sum: Edge, x: Edge) -> Option<Unit> {
    let terms = all.commuted(sum, "AddV2")?.into_iter();
    let [_, function] = terms
        .into_iter()
        .find(|[one, _]| all.is_constant(*one, 1.0))?;
    match all.unary(function, "Erf") {
        Some(argument) => {
            let product = all.product(argument);
            let is_scaled = (product.constant - FRAC_1_SQRT_2).abs() < 1e-6;
            (is_scaled && is_only(all, &product.factors, x)).then_some(Unit::GeluExact)
        }
        None => is_cubic(all, all.unary(function, "Tanh")?, x).then_some(Unit::GeluApproximate),
    }
}

fn is_only(all: Expressions<'_, '_>, factors: &[Factor], x: Edge) -> bool {
    matches!(*factors, [Factor::Value(factor)] if all.is_same(factor, x))
}

/// Returns whether an input reads `sqrt(2 / pi) * (x + 0.044715 * x^3)`, or the same as a product
/// of `x`.
fn is_cubic(all: Expressions<'_, '_>, argument: Edge, x: Edge) -> bool {
    let product = all.product(argument);
    if (product.constant - FRAC_2_SQRT_PI * FRAC_1_SQRT_2).abs() > 1e-6 {
        return false;
    }
    let is_x = |edge: Edge| all.is_same(edge, x);
    let is_sum = |edge: Edge, is_first: &dyn Fn(Edge) -> bool, power: u32| {
        let orders = all.commuted(edge, "AddV2").into_iter().flatten();
        orders
            .into_iter()
            .any(|[first, rest]| is_first(first) && is_power(all, rest, x, power))
    };
    match product.factors[..] {
        [Factor::Value(sum)] => is_sum(sum, &is_x, 3),
        [Factor::Value(a), Factor::Value(b)] => [[a, b], [b, a]]
            .into_iter()
            .any(|[x, sum]| is_x(x) && is_sum(sum, &|edge| all.is_constant(edge, 1.0), 2)),
        _ => false,
    }
}

/// Returns whether an input reads `0.044715 * x^power`.
fn is_power(all: Expressions<'_, '_>, edge: Edge, x: Edge, power: u32) -> bool {
    let product = all.product(edge);
    let exponent = |factor: &Factor| {
        let Factor::Value(edge) = *factor else {
            return None;
        };
        if all.is_same(edge, x) {
            return Some(1.0);
        }
        if let Some([base, exponent]) = all.binary(edge, "Pow") {
            let exponent = all.constant(exponent).map(f64::from);
            return exponent.filter(|_| all.is_same(base, x));
        }
        let base = all.unary(edge, "Square")?;
        all.is_same(base, x).then_some(2.0)
    };
    let exponents: Option<f64> = product.factors.iter().map(exponent).sum();
    (product.constant - CUBIC).abs() < 1e-7 && exponents == Some(f64::from(power))
}
