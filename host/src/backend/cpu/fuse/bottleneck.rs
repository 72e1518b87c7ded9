//! Finds pointwise convolutions whose results only a depthwise convolution reads, as in inverted
//! bottlenecks: the lines between the two then stay in the cache.

use super::expression::Edge;
use super::expression::Expressions;
use super::unit;
use crate::backend::fuse::bias_inputs;
use crate::graph::AttrValue;
use crate::graph::NodeId;
use crate::tensor::PartialShape;

/// Minimum size of what lies between the two, per image. Less stays in the cache anyway, and the
/// pointwise convolution is faster if it computes all lines at once.
const BETWEEN_BYTES: usize = 1 << 20;

/// A convolution, its bias and its activation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Layer<'g> {
    pub(super) convolution: NodeId,
    pub(super) bias: Edge,
    /// Its name in fused ops.
    pub(super) activation: Option<&'g str>,
}

/// Both convolutions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Bottleneck<'g> {
    pub(super) pointwise: Layer<'g>,
    pub(super) depthwise: Layer<'g>,
}

/// Returns the convolutions whose last node this is.
pub(super) fn find<'g>(all: Expressions<'_, 'g>, last: NodeId) -> Option<Bottleneck<'g>> {
    let depthwise = layer(all, last)?;
    if all.op(depthwise.convolution) != "DepthwiseConv2dNative" {
        return None;
    }
    let between = (depthwise.convolution, 0);
    let pointwise = layer(all, all.node(between)?)?;
    let graph = all.0.graph();
    let attrs = graph.attrs(pointwise.convolution);
    let is_unit = |name: &str| {
        let list = attrs.list(name).unwrap_or_default();
        list.iter().all(|it| matches!(it, AttrValue::Int(1)))
    };
    let filter = |layer: Layer<'_>| known(&all.shape((layer.convolution, 1)));
    let is_pointwise = all.op(pointwise.convolution) == "Conv2D"
        && is_unit("strides")
        && is_unit("dilations")
        && matches!(attrs.text("padding"), Some("SAME" | "VALID"))
        && matches!(filter(pointwise)?[..], [1, 1, _, _]);
    let is_plain = |node| matches!(graph.attrs(node).text("data_format"), None | Some("NHWC"));
    let is_small = matches!(filter(depthwise)?[..], [3 | 5, 3 | 5, _, 1]);
    // The batch may vary.
    let pixels = all.shape(between);
    let n_elements = known(&PartialShape::new(pixels.dims()?.get(1..)?))?
        .iter()
        .try_fold(1usize, |n, &dim| n.checked_mul(dim))?;
    let nodes = [pointwise.convolution, depthwise.convolution];
    (is_pointwise
        && is_small
        && nodes.into_iter().all(is_plain)
        && n_elements.saturating_mul(size_of::<f32>()) >= BETWEEN_BYTES)
        .then_some(Bottleneck {
            pointwise,
            depthwise,
        })
}

/// Returns the layer whose last node this is.
fn layer<'g>(all: Expressions<'_, 'g>, last: NodeId) -> Option<Layer<'g>> {
    let (activation, sum) = match all.op(last) {
        op @ ("Relu" | "Relu6") => (Some(op), all.node((last, 0))?),
        "Mul" | "RealDiv" => {
            let (unit, x) = unit::find(all, last)?;
            (Some(unit.name()), all.node(x)?)
        }
        _ => (None, last),
    };
    let (bias, base) = bias_inputs(all.0.graph(), sum)?;
    Some(Layer {
        convolution: all.node((sum, base))?,
        bias: (sum, bias),
        activation,
    })
}

/// Returns the dimensions if all are known.
fn known(shape: &PartialShape) -> Option<Vec<usize>> {
    shape.dims()?.iter().copied().collect()
}
