//! Folds what scales and shifts the channels of a convolution or product into its weights: batch
//! normalization, as one node or as arithmetic, and products with and sums of constants.

use std::sync::Arc;

use super::edit::Edit;
use super::edit::New;
use super::edit::Source;
use super::fold_constants::constant;
use crate::graph::AttrSet;
use crate::graph::AttrValue;
use crate::graph::Graph;
use crate::graph::NodeId;
use crate::graph::TensorId;
use crate::tensor::DType;
use crate::tensor::HostAllocator;
use crate::tensor::Literal;
use crate::tensor::LiteralData;
use crate::tensor::Shape;
use crate::tensor::StoredBytes;
use crate::tensor::StoredBytesError;

/// Maximum number of channels: a small file may describe large constants.
const CHANNELS_MAX: usize = 1 << 16;

/// `scale * x + offset` per channel.
#[derive(Debug, Clone)]
struct Affine {
    scale: Vec<f32>,
    offset: Vec<f32>,
}

/// A convolution or product with constant weights.
struct Weighted {
    weights: Arc<Literal>,
    tensor: TensorId,
    n_channels: usize,
}

/// Replaces each convolution, depthwise convolution or product, together with the nodes that scale
/// and shift its channels, by one with other weights and a `BiasAdd`. The last node keeps its name;
/// the results differ by rounding.
pub(super) fn fold_batch_norms(edit: &mut Edit<'_>) {
    for node in edit.graph().nodes() {
        if let Some(weighted) = weighted(edit, node) {
            fold(edit, node, &weighted);
        }
    }
}

/// Returns the weights of a node that this pass may change: `f32`, constant, and channels last.
fn weighted(edit: &Edit<'_>, node: NodeId) -> Option<Weighted> {
    let graph = edit.graph();
    let attrs = graph.attrs(node);
    let is_supported = match graph.op(node) {
        "Conv2D" | "DepthwiseConv2dNative" => is_channels_last(attrs),
        "MatMul" => attrs.bool("transpose_b") != Some(true),
        _ => false,
    };
    if !is_supported || attrs.dtype("T") != Some(DType::F32) || !edit.is_free(node) {
        return None;
    }
    let tensor = graph.data_inputs(node).nth(1)?;
    let (_, weights) = edit.constant(tensor)?;
    let n_channels = match (graph.op(node), weights.shape().dims()) {
        ("DepthwiseConv2dNative", &[_, _, channels, multiplier]) => channels * multiplier,
        (_, &[.., channels]) => channels,
        _ => return None,
    };
    (weights.dtype() == DType::F32 && (1..=CHANNELS_MAX).contains(&n_channels)).then(|| Weighted {
        weights: Arc::clone(weights),
        tensor,
        n_channels,
    })
}

fn is_channels_last(attrs: &AttrSet) -> bool {
    matches!(attrs.text("data_format"), None | Some("NHWC"))
}

fn fold(edit: &mut Edit<'_>, base: NodeId, weighted: &Weighted) {
    let graph = edit.graph();
    let n = weighted.n_channels;
    let mut total = Affine {
        scale: vec![1.0; n],
        offset: vec![0.0; n],
    };
    // The nodes after `base`, and the constants that they read.
    let (mut chain, mut constants) = (Vec::new(), vec![weighted.tensor]);
    let (mut last, mut has_scale) = (base, false);
    while let Some(reader) = edit.only_reader(last) {
        let has_same_request = graph.requested(reader) == graph.requested(base);
        let is_free = edit.is_free(reader) && has_same_request;
        let Some((step, read)) = is_free
            .then(|| affine(edit, last, reader, n))
            .flatten()
            .filter(|_| has_rank_of(graph, reader, base) && reads_of_first(graph, reader))
        else {
            break;
        };
        has_scale |= step
            .scale
            .iter()
            .any(|&scale| scale.to_bits() != 1f32.to_bits());
        for channel in 0..n {
            total.scale[channel] *= step.scale[channel];
            total.offset[channel] =
                total.offset[channel] * step.scale[channel] + step.offset[channel];
        }
        constants.extend(read);
        chain.push(reader);
        last = reader;
    }
    let is_bias_already = chain.len() == 1 && graph.op(last) == "BiasAdd";
    if chain.is_empty() || is_bias_already {
        return;
    }
    let Some((weights, offset)) = (has_scale.then(|| scaled(weighted, total.scale)))
        .map_or(Some(None), |scaled| scaled.map(Some))
        .zip(dense(&total.offset))
    else {
        return;
    };
    for tensor in constants {
        edit.absorb(tensor);
    }
    let weights = match weights {
        Some(weights) => edit.insert(last, "folded_weights", constant(weights)),
        None => Source::Tensor(weighted.tensor),
    };
    let mut inputs: Vec<Source> = graph.data_inputs(base).map(Source::Tensor).collect();
    inputs[1] = weights;
    let folded = New {
        op: match graph.op(base) {
            "Conv2D" => "Conv2D",
            "DepthwiseConv2dNative" => "DepthwiseConv2dNative",
            _ => "MatMul",
        },
        attrs: graph.attrs(base).clone(),
        inputs,
        outputs: edit.outputs(base),
    };
    let folded = edit.insert(last, "folded", folded);
    let offset = edit.insert(last, "folded_bias", constant(offset));
    let type_attr = AttrValue::Type {
        dtype: DType::F32,
        is_ref: false,
    };
    let mut outputs = edit.outputs(last);
    outputs.truncate(1);
    edit.replace(
        last,
        New {
            op: "BiasAdd",
            attrs: AttrSet::new([
                ("T".into(), type_attr),
                ("data_format".into(), AttrValue::from("NHWC")),
            ]),
            inputs: vec![folded, offset],
            outputs,
        },
    );
    edit.remove(base);
    for &node in &chain[..chain.len() - 1] {
        edit.remove(node);
    }
}

/// Returns whether the first outputs of two nodes have the same known rank.
fn has_rank_of(graph: &Graph, node: NodeId, base: NodeId) -> bool {
    let rank = |node| graph.tensor_shape(graph.output(node, 0)?).rank();
    rank(node).is_some() && rank(node) == rank(base)
}

/// Returns whether nothing reads an output of a node after the first.
fn reads_of_first(graph: &Graph, node: NodeId) -> bool {
    let first = graph.output(node, 0).map(|it| it.0);
    let mut edges = graph.successors().range(node.index());
    edges.all(|place| {
        let edge = graph.successor_edges()[place] as usize;
        Some(graph.edge_tensors()[edge]) == first
    })
}

/// Returns what a node does to each of `n` channels of the first output of `input`, and the
/// constants that it reads.
fn affine(
    edit: &Edit<'_>,
    input: NodeId,
    node: NodeId,
    n: usize,
) -> Option<(Affine, Vec<TensorId>)> {
    let graph = edit.graph();
    let x = graph.output(input, 0)?;
    let inputs: Vec<TensorId> = graph.data_inputs(node).collect();
    let attrs = graph.attrs(node);
    let rank = graph.tensor_shape(x).rank()?;
    let per_channel = |tensor: TensorId| channels(edit, tensor, rank, n);
    let ones = || vec![1.0; n];
    match (graph.op(node), &*inputs) {
        ("BiasAdd", &[of, bias]) if of == x && is_channels_last(attrs) => {
            let offset = per_channel(bias)?;
            Some((
                Affine {
                    scale: ones(),
                    offset,
                },
                vec![bias],
            ))
        }
        ("AddV2" | "Add", &[a, b]) if (a == x) != (b == x) => {
            let other = if a == x { b } else { a };
            let offset = per_channel(other)?;
            Some((
                Affine {
                    scale: ones(),
                    offset,
                },
                vec![other],
            ))
        }
        ("Sub", &[a, b]) if a == x && b != x => {
            let offset = per_channel(b)?.into_iter().map(|value| -value);
            let offset = offset.collect();
            Some((
                Affine {
                    scale: ones(),
                    offset,
                },
                vec![b],
            ))
        }
        ("Mul", &[a, b]) if (a == x) != (b == x) => {
            let other = if a == x { b } else { a };
            let scale = per_channel(other)?;
            let offset = vec![0.0; n];
            Some((Affine { scale, offset }, vec![other]))
        }
        (
            "FusedBatchNorm" | "FusedBatchNormV2" | "FusedBatchNormV3",
            &[of, gamma, beta, mean, variance],
        ) if of == x && is_channels_last(attrs) && attrs.bool("is_training") == Some(false) => {
            let epsilon = attrs.float("epsilon")?;
            let (gamma, beta) = (per_channel(gamma)?, per_channel(beta)?);
            let (mean_of, variance_of) = (per_channel(mean)?, per_channel(variance)?);
            let scale = gamma.iter().zip(&variance_of);
            let scale: Vec<f32> = scale
                .map(|(gamma, variance)| gamma / (variance + epsilon).sqrt())
                .collect();
            let offset = (0..n).map(|channel| beta[channel] - mean_of[channel] * scale[channel]);
            let offset = offset.collect();
            Some((Affine { scale, offset }, inputs[1..].to_vec()))
        }
        _ => None,
    }
}

/// Returns the values of a constant that has one per channel, or one for all of them.
fn channels(edit: &Edit<'_>, tensor: TensorId, rank: usize, n: usize) -> Option<Vec<f32>> {
    let (_, literal) = edit.constant(tensor)?;
    let dims = literal.shape().dims();
    let leading = dims.split_last().map_or(&[][..], |(_, leading)| leading);
    let is_per_channel = dims.len() <= rank && leading.iter().all(|&dim| dim == 1);
    let n_values = literal.shape().n_elements();
    if literal.dtype() != DType::F32 || !is_per_channel || (n_values != n && n_values != 1) {
        return None;
    }
    let allocator = HostAllocator::new("batch normalization", 4 * CHANNELS_MAX as u64);
    let values = literal.to_tensor(&allocator).ok()?;
    let values = values.as_slice::<f32>().ok()?;
    Some(match values {
        [value] => vec![*value; n],
        _ => values.to_vec(),
    })
}

/// Weights whose channels are scaled when a device reads them, so that they are in memory once.
#[derive(Debug)]
struct ScaledWeights {
    weights: Arc<Literal>,
    scale: Vec<f32>,
}

impl StoredBytes for ScaledWeights {
    fn len_bytes(&self) -> usize {
        usize::try_from(self.weights.size_bytes()).unwrap_or(usize::MAX)
    }

    fn read(&self, target: &mut [u8]) -> Result<(), StoredBytesError> {
        self.weights
            .write_to(target)
            .map_err(StoredBytesError::new)?;
        for row in bytemuck::cast_slice_mut::<u8, f32>(target).chunks_exact_mut(self.scale.len()) {
            for (weight, scale) in row.iter_mut().zip(&self.scale) {
                *weight *= scale;
            }
        }
        Ok(())
    }
}

fn scaled(weighted: &Weighted, scale: Vec<f32>) -> Option<Literal> {
    let weights = Arc::clone(&weighted.weights);
    let shape = weights.shape().clone();
    let data = LiteralData::Stored(Arc::new(ScaledWeights { weights, scale }));
    Literal::new(DType::F32, shape, data).ok()
}

fn dense(values: &[f32]) -> Option<Literal> {
    let shape = Shape::new(&[values.len()]);
    let bytes: Vec<u8> = values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect();
    Literal::new(DType::F32, shape, LiteralData::Dense(Arc::new(bytes))).ok()
}
