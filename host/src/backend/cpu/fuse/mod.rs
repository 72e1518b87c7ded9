//! Fuses nodes of a CPU device: what one of its kernels computes at once.
//!
//! Patterns are found from their last node back (`expression`). Each becomes one kernel of
//! `kernels/composite.rs` or `kernels/bottleneck.rs`. Matmuls and convolutions with what follows
//! them come last (`backend/fuse.rs`), since an activation may be a pattern.

mod bottleneck;
mod expression;
mod layer_norm;
mod recurrent;
mod unit;

use std::sync::Arc;

use self::expression::Edge;
use self::expression::Expressions;
use crate::backend::cpu::kernels;
use crate::backend::cpu::kernels::composite::GATED_SUM;
use crate::backend::cpu::kernels::composite::GATED_TANH;
use crate::backend::cpu::kernels::composite::LAYER_NORM;
use crate::backend::cpu::kernels::composite::UNIT;
use crate::backend::fuse::Activation;
use crate::backend::fuse::fuse_bias;
use crate::backend::fuse::fuse_epilogues;
use crate::device::FusedNode;
use crate::device::PartitionGraph;
use crate::graph::AttrSet;
use crate::graph::AttrValue;
use crate::graph::NodeId;
use crate::kernels::composite::Unit;
use crate::tensor::DType;

/// A fused node without the nodes that it replaces.
struct Fused {
    op: &'static str,
    attrs: Vec<(Arc<str>, AttrValue)>,
    inputs: Vec<Edge>,
    /// The linear unit, if it is one.
    unit: Option<Unit>,
}

/// Fuses the nodes of a CPU device.
pub(in crate::backend::cpu) fn fuse(graph: &mut PartitionGraph<'_>) {
    let nodes: Vec<NodeId> = graph.nodes().collect();
    for &node in nodes.iter().rev() {
        // Larger patterns end later.
        if !graph.is_replaced(node) {
            fuse_pattern(graph, node);
        }
    }
    fuse_epilogues(graph, kernels::fused::EPILOGUES);
}

fn fuse_pattern(graph: &mut PartitionGraph<'_>, last: NodeId) {
    let all = Expressions(graph);
    if graph.graph().attrs(last).dtype("T") != Some(DType::F32) {
        return;
    }
    let Some(fused) = pattern(all, last) else {
        return;
    };
    let nodes = all.nodes_between(&fused.inputs, last);
    // Not fused if an app has registered a kernel in place of the default one.
    if nodes.iter().any(|&node| !graph.has_plain_kernel(node)) {
        return;
    }
    if let Some(unit) = fused.unit
        && fuse_unit(graph, unit, &fused.inputs, &nodes)
    {
        return;
    }
    let type_attr = AttrValue::Type {
        dtype: DType::F32,
        is_ref: false,
    };
    let attrs = fused.attrs.into_iter().chain([("T".into(), type_attr)]);
    let fused = FusedNode {
        op: fused.op.to_owned(),
        attrs: AttrSet::new(attrs),
        inputs: fused.inputs,
        nodes,
    };
    // Fails if other nodes, or the caller, need one of the nodes before the last.
    let _ = graph.fuse(fused);
}

/// Fuses a linear unit with the matmul or convolution and the bias before it, if there are such.
fn fuse_unit(
    graph: &mut PartitionGraph<'_>,
    unit: Unit,
    inputs: &[Edge],
    nodes: &[NodeId],
) -> bool {
    let all = Expressions(graph);
    let Some(bias) = inputs.first().and_then(|&edge| all.node(edge)) else {
        return false;
    };
    if !graph.is_needed_only_by(bias, |reader| nodes.contains(&reader)) {
        return false;
    }
    let activation = Some(Activation {
        op: unit.name(),
        nodes,
    });
    fuse_bias(graph, kernels::fused::EPILOGUES, bias, None, activation)
}

/// Returns the fused node of two convolutions: it has the attributes of the second one.
fn bottleneck(all: Expressions<'_, '_>, last: NodeId) -> Option<Fused> {
    let bottleneck::Bottleneck {
        pointwise,
        depthwise,
    } = bottleneck::find(all, last)?;
    let own = all.0.graph().attrs(depthwise.convolution).iter();
    let own = own.map(|(name, value)| (Arc::from(name), value.clone()));
    let mut attrs: Vec<(Arc<str>, AttrValue)> = own.filter(|(name, _)| &**name != "T").collect();
    for (name, layer) in [
        (kernels::bottleneck::POINTWISE_ACTIVATION, pointwise),
        (kernels::bottleneck::DEPTHWISE_ACTIVATION, depthwise),
    ] {
        attrs.push((name.into(), layer.activation.unwrap_or_default().into()));
    }
    Some(Fused {
        op: kernels::bottleneck::POINTWISE_DEPTHWISE,
        attrs,
        inputs: vec![
            (pointwise.convolution, 0),
            (pointwise.convolution, 1),
            pointwise.bias,
            (depthwise.convolution, 1),
            depthwise.bias,
        ],
        unit: None,
    })
}

fn pattern(all: Expressions<'_, '_>, last: NodeId) -> Option<Fused> {
    let of = |op: &'static str, inputs: &[Edge]| Fused {
        op,
        attrs: Vec::new(),
        inputs: inputs.to_vec(),
        unit: None,
    };
    let gated_sum = || Some(of(GATED_SUM, &recurrent::gated_sum(all, last)?));
    let gated_tanh = || Some(of(GATED_TANH, &recurrent::gated_tanh(all, last)?));
    match all.op(last) {
        "AddV2" => layer_norm(all, last)
            .or_else(gated_sum)
            .or_else(|| bottleneck(all, last)),
        "BiasAdd" | "Relu" | "Relu6" => bottleneck(all, last),
        "Mul" => bottleneck(all, last)
            .or_else(|| unit(all, last))
            .or_else(gated_tanh),
        "RealDiv" => match recurrent::softmax(all, last) {
            Some(x) => Some(of("Softmax", &[x])),
            None => bottleneck(all, last).or_else(|| unit(all, last)),
        },
        _ => None,
    }
}

fn layer_norm(all: Expressions<'_, '_>, last: NodeId) -> Option<Fused> {
    let found = layer_norm::find(all, last)?;
    let inputs = [Some(found.x), found.scale, found.offset];
    let attrs = [
        ("epsilon", AttrValue::Float(found.epsilon)),
        ("is_centered", AttrValue::Bool(found.is_centered)),
        ("has_scale", AttrValue::Bool(found.scale.is_some())),
        ("has_offset", AttrValue::Bool(found.offset.is_some())),
    ];
    Some(Fused {
        op: LAYER_NORM,
        attrs: attrs.map(|(name, value)| (name.into(), value)).into(),
        inputs: inputs.into_iter().flatten().collect(),
        unit: None,
    })
}

fn unit(all: Expressions<'_, '_>, last: NodeId) -> Option<Fused> {
    let (unit, x) = unit::find(all, last)?;
    Some(Fused {
        op: UNIT,
        attrs: vec![("unit".into(), unit.name().into())],
        inputs: vec![x],
        unit: Some(unit),
    })
}
