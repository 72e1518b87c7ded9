//! Activations, normalisation, losses and selection.

use super::array::image_axes;
use super::definition::OpDef;
use super::definition::op;
use super::infer::InferenceContext;
use super::rules::Shapes;
use super::rules::broadcast;
use super::rules::merge;
use super::rules::merge_dims;
use super::rules::same_as_input;
use super::rules::scalars;
use super::rules::size;
use super::work::TRANSCENDENTAL_FLOPS;
use super::work::per_input;
use super::work::per_output;
use super::work::with_flops;
use crate::graph::Output;
use crate::graph::Work;
use crate::tensor::PartialShape;

const FLOATS: &str = "T: {half, bfloat16, float, double}";

/// Ops of this family.
pub(super) fn ops() -> Vec<OpDef> {
    let mut ops = Vec::new();
    for (name, attrs, flops) in [
        ("Relu", "T: realnumbertype".to_owned(), 1.0),
        ("Relu6", "T: realnumbertype".to_owned(), 2.0),
        (
            "LeakyRelu",
            "alpha: float = 0.2; T: {half, bfloat16, float, double} = DT_FLOAT".to_owned(),
            2.0,
        ),
        ("Elu", FLOATS.to_owned(), TRANSCENDENTAL_FLOPS + 2.0),
        ("Selu", FLOATS.to_owned(), TRANSCENDENTAL_FLOPS + 3.0),
        ("Softplus", FLOATS.to_owned(), 2.0 * TRANSCENDENTAL_FLOPS),
        ("Softsign", FLOATS.to_owned(), 3.0),
    ] {
        ops.push(
            op(name, "features: T", "activations: T", &attrs)
                .with_shape(same_as_input)
                .with_work(per_output(flops)),
        );
    }
    for name in ["ReluGrad", "Relu6Grad", "SoftplusGrad", "SoftsignGrad"] {
        ops.push(
            op(
                name,
                "gradients: T, features: T",
                "backprops: T",
                "T: realnumbertype",
            )
            .with_shape(same_as_input)
            .with_work(per_output(2.0)),
        );
    }
    for (name, second, attrs) in [
        ("EluGrad", "outputs", FLOATS.to_owned()),
        ("SeluGrad", "outputs", FLOATS.to_owned()),
        (
            "LeakyReluGrad",
            "features",
            format!("alpha: float = 0.2; {FLOATS} = DT_FLOAT"),
        ),
    ] {
        ops.push(
            op(
                name,
                &format!("gradients: T, {second}: T"),
                "backprops: T",
                &attrs,
            )
            .with_shape(same_as_input)
            .with_work(per_output(2.0)),
        );
    }
    // Maximum, difference, exponential, sum, and quotient (for the logarithm, a second difference).
    for name in ["Softmax", "LogSoftmax"] {
        let output = if name == "Softmax" {
            "softmax: T"
        } else {
            "logsoftmax: T"
        };
        ops.push(
            op(name, "logits: T", output, FLOATS)
                .with_shape(|context| {
                    context.dims_of_rank_at_least(0, 1)?;
                    same_as_input(context)
                })
                .with_work(per_output(4.0 + TRANSCENDENTAL_FLOPS)),
        );
    }
    for (name, extra) in [
        ("FusedBatchNorm", 2),
        ("FusedBatchNormV2", 2),
        ("FusedBatchNormV3", 3),
    ] {
        ops.push(batch_norm(name, extra));
    }
    ops.extend([
        op("BiasAdd", "value: T, bias: T", "output: T", "T: numbertype; data_format: {'NHWC', 'NCHW'} = 'NHWC'")
            .with_shape(biased)
            .with_work(per_output(1.0)),
        op("BiasAddV1", "value: T, bias: T", "output: T", "T: numbertype")
            .with_shape(biased)
            .with_work(per_output(1.0)),
        op("BiasAddGrad", "out_backprop: T", "output: T", "T: numbertype; data_format: {'NHWC', 'NCHW'} = 'NHWC'")
            .with_shape(|context| {
                let Some(dims) = context.dims_of_rank_at_least(0, 2)? else {
                    return Ok(vec![PartialShape::of_rank(1)]);
                };
                Ok(vec![PartialShape::new(&[dims[channel_axis(context, dims.len())]])])
            })
            .with_work(per_input(1.0)),
        op("LRN", "input: T", "output: T", "depth_radius: int = 5; bias: float = 1.0; alpha: float = 1.0; beta: float = 0.5; T: {half, bfloat16, float} = DT_FLOAT")
            .with_shape(|context| Ok(vec![context.shape_of_rank(0, 4)?]))
            .with_work(|context, outputs| {
                // A square and a running sum, scale and bias, a power, and a multiplication.
                per_output(6.0 + TRANSCENDENTAL_FLOPS)(context, outputs)
            }),
        op("L2Loss", "t: T", "output: T", FLOATS)
            .with_shape(scalars)
            .with_work(per_input(2.0)),
        op("TopK", "input: T", "values: T, indices: int32", "k: int >= 0; sorted: bool = true; T: realnumbertype")
            .with_shape(|context| top_k(context, Some(context.int("k")?)))
            .with_work(per_input(1.0)),
        op("TopKV2", "input: T, k: Tk", "values: T, indices: index_type", "sorted: bool = true; T: realnumbertype; Tk: {int16, int32, int64} = DT_INT32; index_type: {int16, int32, int64} = DT_INT32")
            .with_shape(|context| top_k(context, context.scalar_int(1)))
            .with_work(per_input(1.0)),
        op("InTopK", "predictions: float, targets: T", "precision: bool", "k: int; T: {int32, int64} = DT_INT32")
            .with_shape(in_top_k)
            .with_work(per_input(1.0)),
        op("InTopKV2", "predictions: float, targets: T, k: T", "precision: bool", "T: {int32, int64} = DT_INT32")
            .with_shape(in_top_k)
            .with_work(per_input(1.0)),
        op("SoftmaxCrossEntropyWithLogits", "features: T, labels: T", "loss: T, backprop: T", FLOATS)
            .with_shape(|context| {
                let logits = broadcast(context.shape(0), context.shape(1))?;
                let logits = merge(&logits, &PartialShape::of_rank(2), "features and labels, and a matrix,")?;
                Ok(vec![PartialShape::new(&[logits.dim(0)]), logits])
            })
            .with_work(per_input(7.0 + TRANSCENDENTAL_FLOPS)),
        op("SparseSoftmaxCrossEntropyWithLogits", "features: T, labels: Tlabels", "loss: T, backprop: T", "T: {half, bfloat16, float, double}; Tlabels: {int32, int64} = DT_INT64")
            .with_shape(|context| {
                let logits = context.shape_of_rank(0, 2)?;
                Ok(vec![PartialShape::new(&[logits.dim(0)]), logits])
            })
            .with_work(per_input(7.0 + TRANSCENDENTAL_FLOPS)),
        op("NonMaxSuppressionV2", "boxes: T, scores: T, max_output_size: int32, iou_threshold: T_threshold", "selected_indices: int32", "T: {half, float} = DT_FLOAT; T_threshold: {half, float} = DT_FLOAT")
            .with_shape(|_| Ok(vec![PartialShape::of_rank(1)])),
        op("NonMaxSuppressionV3", "boxes: T, scores: T, max_output_size: int32, iou_threshold: T_threshold, score_threshold: T_threshold", "selected_indices: int32", "T: {half, float} = DT_FLOAT; T_threshold: {half, float} = DT_FLOAT")
            .with_shape(|_| Ok(vec![PartialShape::of_rank(1)])),
    ]);
    ops
}

fn channel_axis(context: &InferenceContext<'_>, rank: usize) -> usize {
    match context.attrs().text("data_format") {
        Some("NCHW") => 1.min(rank - 1),
        _ => rank - 1,
    }
}

fn biased(context: &InferenceContext<'_>) -> Shapes {
    let bias = context.shape_of_rank(1, 1)?;
    let Some(dims) = context.dims_of_rank_at_least(0, 2)? else {
        return Ok(vec![PartialShape::unknown()]);
    };
    let mut dims = dims.to_vec();
    let axis = channel_axis(context, dims.len());
    dims[axis] = merge_dims(dims[axis], bias.dim(0), "channels and bias")?;
    Ok(vec![PartialShape::new(&dims)])
}

fn batch_norm(name: &str, n_reserved: usize) -> OpDef {
    let (u, u_attr) = match name {
        "FusedBatchNorm" => ("T", ""),
        "FusedBatchNormV2" => ("U", "U: {float}; "),
        _ => ("U", "U: {bfloat16, float}; "),
    };
    let reserved: Vec<_> = (1..=n_reserved)
        .map(|i| format!("reserve_space_{i}: {u}"))
        .collect();
    let formats = if name == "FusedBatchNormV3" {
        "'NHWC', 'NCHW', 'NDHWC', 'NCDHW'"
    } else {
        "'NHWC', 'NCHW'"
    };
    op(
        name,
        &format!("x: T, scale: {u}, offset: {u}, mean: {u}, variance: {u}"),
        &format!("y: T, batch_mean: {u}, batch_variance: {u}, {}", reserved.join(", ")),
        &format!(
            "T: {{half, bfloat16, float}}; {u_attr}epsilon: float = 0.0001; exponential_avg_factor: float = 1.0; \
             data_format: {{{formats}}} = 'NHWC'; is_training: bool = true"
        ),
    )
    .with_shape(normalised)
    .with_work(batch_norm_work)
}

fn normalised(context: &InferenceContext<'_>) -> Shapes {
    let format = context.text("data_format")?;
    let rank = format.len();
    let x = context.shape_of_rank(0, rank)?;
    let channel_axis = if rank == 4 {
        image_axes(format)[2]
    } else if format == "NCDHW" {
        1
    } else {
        4
    };
    let mut channels = x.dim(channel_axis);
    // Mean and variance may be empty in training, when they are computed.
    let n_given = if context.bool("is_training")? { 3 } else { 5 };
    for index in 1..n_given {
        let given = context.shape_of_rank(index, 1)?;
        channels = merge_dims(channels, given.dim(0), "channels and per-channel inputs")?;
    }
    let mut dims = x.dims().unwrap_or_default().to_vec();
    dims[channel_axis] = channels;
    let per_channel = PartialShape::new(&[channels]);
    let mut shapes = vec![PartialShape::new(&dims)];
    shapes.resize(context.n_outputs().min(5), per_channel);
    // TensorFlow leaves the shape of the third reserved space unknown, because cuDNN chooses it.
    // All kernels here write a scalar, which memory plans then count.
    shapes.resize(context.n_outputs(), PartialShape::scalar());
    Ok(shapes)
}

/// Work of inference: scale and shift. Training adds sums for mean and variance and the difference
/// from the mean.
fn batch_norm_work(context: &InferenceContext<'_>, outputs: &[Output]) -> Work {
    let per_element = if context.attrs().bool("is_training") == Some(true) {
        6.0
    } else {
        2.0
    };
    with_flops(context, outputs, per_element * context.input_elements(0))
}

fn top_k(context: &InferenceContext<'_>, k: Option<i64>) -> Shapes {
    let Some(dims) = context.dims_of_rank_at_least(0, 1)? else {
        return Ok(vec![PartialShape::unknown(); 2]);
    };
    let k = k.map(|k| size(k, "k")).transpose()?;
    let (last, rest) = dims.split_last().expect("rank is at least 1");
    if let (Some(k), Some(last)) = (k, *last)
        && k > last
    {
        return Err(super::infer::ShapeError::new(format!(
            "the last dimension of shape {} has fewer than {k} elements",
            context.shape(0)
        )));
    }
    let shape: PartialShape = rest.iter().copied().chain([k]).collect();
    Ok(vec![shape; 2])
}

fn in_top_k(context: &InferenceContext<'_>) -> Shapes {
    let (predictions, targets) = (context.shape_of_rank(0, 2)?, context.shape_of_rank(1, 1)?);
    let batch = merge_dims(
        predictions.dim(0),
        targets.dim(0),
        "batches of predictions and targets",
    )?;
    Ok(vec![PartialShape::new(&[batch])])
}
