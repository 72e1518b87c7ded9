//! Families of kernels, whose times are measured together: the ops of each, and the nodes that
//! stand for it.

use std::sync::Arc;
use std::sync::OnceLock;

use rustc_hash::FxHashMap;

use super::source::NodeWork;
use crate::builder::Axes;
use crate::builder::BuildError;
use crate::builder::Conv2d;
use crate::builder::GraphBuilder;
use crate::builder::Operation;
use crate::builder::Padding;
use crate::builder::Pool2d;
use crate::builder::Scope;
use crate::builder::Value;
use crate::graph::Graph;
use crate::graph::NodeId;
use crate::tensor::DType;
use crate::tensor::Literal;
use crate::tensor::LiteralData;
use crate::tensor::Shape;

/// Rows of matrices that stand for a family.
const COLUMNS: usize = 64;

/// Rows of matrices and channels of images with which kernels do not reach their rates.
const FEW: usize = 8;

/// Positions of an output image up to which the weights of a convolution, not its arithmetic, take
/// most of the time, and up to which they take a part of it: some more than 7 x 7 and 14 x 14.
const TINY_POSITIONS_MAX: usize = 81;
const SMALL_POSITIONS_MAX: usize = 324;

/// Channels up to which the sums of a pointwise convolution are so short that kernels do not reach
/// their rates.
const SHALLOW_MAX: usize = 128;

/// Numbers in the tensors of kernels whose time depends on their bytes: 4 bytes to 4 MiB.
const LENGTHS: [usize; 5] = [1, 1 << 8, 1 << 12, 1 << 16, 1 << 20];

/// The work that the time of a family's kernels depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WorkUnit {
    /// Floating-point operations.
    Flops,
    /// Bytes read and written.
    Bytes,
}

/// A family of kernels.
#[derive(Debug)]
pub(super) struct Family {
    pub(super) name: &'static str,
    pub(super) unit: WorkUnit,
    /// Sizes of the nodes that stand for it, ascending.
    sizes: &'static [usize],
    node: fn(&Scope, usize) -> Result<Operation, BuildError>,
}

/// A node that stands for its family, alone in a graph with placeholders and constants.
#[derive(Debug)]
pub(super) struct Sample {
    pub(super) graph: Graph,
    pub(super) node: NodeId,
}

impl Family {
    /// Returns the nodes that stand for the family, the least work first.
    pub(super) fn samples(&self) -> impl Iterator<Item = Sample> {
        self.sizes.iter().map(|&size| {
            let builder = GraphBuilder::new(self.name);
            let added = (self.node)(&builder, size);
            debug_assert!(added.is_ok(), "{}: {added:?}", self.name);
            let graph = builder.finish();
            let node = graph.nodes().last().unwrap_or(NodeId(0));
            Sample { graph, node }
        })
    }

    /// Returns whether its kernels mostly read constants.
    pub(super) fn reads_weights(&self) -> bool {
        self.name.contains("convolution") && self.unit == WorkUnit::Flops
            || matches!(
                self.name,
                "matmul" | "matmul of one row" | "matmul of few rows"
            )
    }

    /// Returns the bytes that a node of so many floating-point operations reads and writes if it
    /// is like the samples: between two of them, and beyond, as a power of the operations. 0 if
    /// the family's work is bytes.
    pub(super) fn sample_bytes(&self, flops: f64) -> f64 {
        static SAMPLES: OnceLock<FxHashMap<&str, Vec<(f64, f64)>>> = OnceLock::new();
        let samples = SAMPLES.get_or_init(|| {
            let of_family = |family: &Family| {
                let works = family.samples().map(|sample| {
                    let index = sample.node.index();
                    let bytes = sample.graph.traffic_bytes()[index];
                    (sample.graph.flops()[index], bytes_to_f64(bytes))
                });
                works.collect()
            };
            let by_flops = families().iter().filter(|it| it.unit == WorkUnit::Flops);
            by_flops.map(|it| (it.name, of_family(it))).collect()
        });
        let Some(samples) = samples.get(self.name) else {
            return 0.0;
        };
        let above = samples.partition_point(|&(of_sample, _)| of_sample < flops);
        let second = above.clamp(1, samples.len() - 1);
        let ((flops_1, bytes_1), (flops_2, bytes_2)) = (samples[second - 1], samples[second]);
        let power = (bytes_2 / bytes_1).ln() / (flops_2 / flops_1).ln();
        bytes_1 * (flops / flops_1).powf(power)
    }

    /// Returns the work of a node of the family.
    pub(super) fn work(&self, flops: f64, traffic_bytes: u64) -> f64 {
        match self.unit {
            WorkUnit::Flops => flops,
            WorkUnit::Bytes => bytes_to_f64(traffic_bytes),
        }
    }
}

/// Converts a number of bytes for an estimate.
#[expect(clippy::cast_precision_loss, reason = "an estimate")]
pub(super) fn bytes_to_f64(bytes: u64) -> f64 {
    bytes as f64
}

impl Sample {
    /// Returns op and shapes of the data inputs, for people.
    pub(super) fn describe(&self) -> String {
        let shapes = self.graph.data_inputs(self.node);
        let shapes = shapes.map(|tensor| self.graph.tensor_shape(tensor).to_string());
        let shapes: Vec<String> = shapes.collect();
        format!("{} of {}", self.graph.op(self.node), shapes.join(" "))
    }
}

/// Returns the family of a node; `None` if no family has its op.
pub(super) fn family_of(node: &NodeWork<'_>) -> Option<&'static Family> {
    let name = match node.op() {
        "MatMul" => {
            let rows = if node.attrs().bool("transpose_a") == Some(true) {
                1
            } else {
                0
            };
            match dim(node, 0, rows) {
                Some(1) => "matmul of one row",
                Some(n_rows) if n_rows <= FEW => "matmul of few rows",
                _ => "matmul",
            }
        }
        "BatchMatMul" | "BatchMatMulV2" | "BatchMatMulV3" | "Einsum" => "batch matmul",
        "Conv2D" => {
            let n_positions = n_positions(node);
            match [0, 1, 2].map(|axis| dim(node, 1, axis)) {
                [.., Some(channels)] if is_grouped(node, channels) => "grouped convolution",
                [Some(1), Some(1), channels] => match n_positions {
                    Some(..=TINY_POSITIONS_MAX) => "pointwise convolution of 7 x 7",
                    Some(..=SMALL_POSITIONS_MAX) => "pointwise convolution of 14 x 14",
                    _ if channels.is_some_and(|n| n <= SHALLOW_MAX) => {
                        "shallow pointwise convolution"
                    }
                    _ => "pointwise convolution",
                },
                [.., Some(channels)] if channels <= FEW => "convolution of few channels",
                _ => match n_positions {
                    Some(..=TINY_POSITIONS_MAX) => "convolution of 7 x 7",
                    Some(..=SMALL_POSITIONS_MAX) => "convolution of 14 x 14",
                    _ => "convolution",
                },
            }
        }
        "Conv2DBackpropInput" | "Conv3D" => "convolution",
        "DepthwiseConv2dNative" => "depthwise convolution",
        "MaxPool" | "MaxPoolV2" | "AvgPool" | "MaxPool3D" | "AvgPool3D" => "pooling",
        "FusedBatchNorm" | "FusedBatchNormV2" | "FusedBatchNormV3" => "batch normalization",
        "Add" | "AddV2" | "Sub" | "Mul" | "Maximum" | "Minimum" | "Div" | "RealDiv"
        | "SquaredDifference" | "MulNoNan" | "DivNoNan" | "BiasAdd" | "FloorDiv" | "FloorMod"
        | "Less" | "LessEqual" | "Greater" | "GreaterEqual" | "Equal" | "NotEqual"
        | "LogicalAnd" | "LogicalOr" | "BitwiseAnd" | "BitwiseOr" | "BitwiseXor" => {
            let mut shapes = node.inputs().map(|(_, shape)| shape);
            match (shapes.next(), shapes.next()) {
                (Some(first), Some(second)) if first != second => "broadcast",
                _ => "elementwise",
            }
        }
        "AddN" | "Relu" | "Relu6" | "LeakyRelu" | "Neg" | "Abs" | "Sign" | "Square" | "Floor"
        | "Ceil" | "Round" | "Rint" | "Reciprocal" | "Inv" | "Sqrt" | "Rsqrt" | "Softsign"
        | "LogicalNot" | "OnesLike" | "ZerosLike" | "ClipByValue" => "elementwise",
        "Exp" | "Log" | "Sigmoid" => "exponential",
        "Elu" | "Selu" | "Softplus" | "Expm1" | "Log1p" => "linear unit with exponential",
        "Erf" | "Erfc" => "error function",
        "LRN" => "local response normalization",
        "ResizeBilinear" | "ResizeNearestNeighbor" | "ResizeBicubic" => "resizing",
        "Tanh" | "Sin" | "Cos" | "Tan" | "Sinh" | "Cosh" | "Asin" | "Acos" | "Atan" | "Asinh"
        | "Acosh" | "Atanh" => "hyperbolic tangent",
        "Pow" | "Atan2" | "Xlogy" | "Xdivy" => "power",
        "Sum" | "Mean" | "Max" | "Min" | "Prod" | "All" | "Any" | "ArgMax" | "ArgMin"
        | "EuclideanNorm" | "L2Loss" => "reduction",
        "Softmax" | "LogSoftmax" => "softmax",
        "Gather" | "GatherV2" | "GatherNd" | "ResourceGather" | "OneHot" => "gather",
        "Concat" | "ConcatV2" | "Pack" | "Stack" => "concatenation",
        "Transpose" | "ConjugateTranspose" | "Reverse" | "ReverseV2" => "transposition",
        "Pad" | "PadV2" | "MirrorPad" | "Tile" | "BroadcastTo" => "padding",
        "Slice" | "StridedSlice" | "Split" | "SplitV" | "Unpack" => "slice",
        "Select" | "SelectV2" | "Where" => "selection",
        "Cast" => "cast",
        "Fill" | "Range" | "LinSpace" => "fill",
        "Reshape" | "Squeeze" | "ExpandDims" | "Shape" | "ShapeN" | "Size" | "Rank" => "view",
        _ => return None,
    };
    families().iter().find(|family| family.name == name)
}

/// Returns the number of positions of a convolution's output, in all images, if it is known.
fn n_positions(node: &NodeWork<'_>) -> Option<usize> {
    let is_by_channel = node.attrs().text("data_format") == Some("NCHW");
    let axes = if is_by_channel { [0, 2, 3] } else { [0, 1, 2] };
    let (_, shape) = node.outputs().next()?;
    let dims = shape.dims()?;
    axes.into_iter()
        .try_fold(1usize, |n, axis| n.checked_mul((*dims.get(axis)?)?))
}

/// Whether the image has more channels than each filter reads.
fn is_grouped(node: &NodeWork<'_>, channels: usize) -> bool {
    let axis = match node.attrs().text("data_format") {
        Some("NCHW") => 1,
        _ => 3,
    };
    dim(node, 0, axis).is_some_and(|of_image| of_image > channels)
}

/// Returns a dimension of an input, if it is known.
fn dim(node: &NodeWork<'_>, input: usize, axis: usize) -> Option<usize> {
    let (_, shape) = node.inputs().nth(input)?;
    *shape.dims()?.get(axis)?
}

/// Returns all families.
pub(super) fn families() -> &'static [Family] {
    use WorkUnit::Bytes;
    use WorkUnit::Flops;
    const fn family(
        name: &'static str,
        unit: WorkUnit,
        sizes: &'static [usize],
        node: fn(&Scope, usize) -> Result<Operation, BuildError>,
    ) -> Family {
        Family {
            name,
            unit,
            sizes,
            node,
        }
    }
    const FAMILIES: &[Family] = &[
        family("view", Bytes, &[1], |b, _| {
            let x = input(b, &[4, 4])?;
            Ok(b.reshape(x, [16])?.operation())
        }),
        family("elementwise", Bytes, &LENGTHS, |b, n| {
            let (x, y) = (input(b, &[n])?, input(b, &[n])?);
            Ok(b.add(x, y)?.operation())
        }),
        family("broadcast", Bytes, &LENGTHS, |b, n| {
            let rows = n.div_ceil(COLUMNS);
            let (x, y) = (input(b, &[rows, COLUMNS])?, input(b, &[COLUMNS])?);
            Ok(b.add(x, y)?.operation())
        }),
        family("exponential", Bytes, &LENGTHS, |b, n| {
            b.op("Exp").input(input(b, &[n])?).finish()
        }),
        family("hyperbolic tangent", Bytes, &LENGTHS, |b, n| {
            Ok(b.tanh(input(b, &[n])?)?.operation())
        }),
        family("linear unit with exponential", Bytes, &LENGTHS, |b, n| {
            b.op("Elu").input(input(b, &[n])?).finish()
        }),
        family("error function", Bytes, &LENGTHS, |b, n| {
            b.op("Erf").input(input(b, &[n])?).finish()
        }),
        family(
            "local response normalization",
            Bytes,
            &[2, 4, 8, 16, 32],
            |b, side| {
                // As networks use it: a power that is no square root.
                let op = b.op("LRN").input(input(b, &[1, side, side, 16])?);
                op.attr("alpha", 1e-4f32).attr("beta", 0.75f32).finish()
            },
        ),
        family("resizing", Bytes, &[2, 8, 32, 64], |b, side| {
            let x = input(b, &[1, side, side, 16])?;
            let to = i32::try_from(2 * side).unwrap_or(2);
            let size = b.constant([2], &[to, to])?;
            b.op("ResizeBilinear").input(x).input(size).finish()
        }),
        family("power", Bytes, &LENGTHS, |b, n| {
            let (x, y) = (input(b, &[n])?, input(b, &[n])?);
            b.op("Pow").input(x).input(y).finish()
        }),
        family("reduction", Bytes, &LENGTHS, |b, n| {
            let x = input(b, &[n.div_ceil(COLUMNS), COLUMNS])?;
            Ok(b.reduce_sum(x, Axes::new([1]))?.operation())
        }),
        family("softmax", Bytes, &LENGTHS, |b, n| {
            let x = input(b, &[n.div_ceil(COLUMNS), COLUMNS])?;
            Ok(b.softmax(x)?.operation())
        }),
        family("selection", Bytes, &LENGTHS, |b, n| {
            let (x, y) = (input(b, &[n])?, input(b, &[n])?);
            let condition = b.placeholder::<bool>("condition", [Some(n)])?;
            b.op("SelectV2").input(condition).input(x).input(y).finish()
        }),
        family("cast", Bytes, &LENGTHS, |b, n| {
            Ok(b.cast::<i32>(input(b, &[n])?)?.operation())
        }),
        family("fill", Bytes, &LENGTHS, |b, n| {
            let n = i32::try_from(n).unwrap_or(i32::MAX);
            let dims = b.constant([1], &[n])?;
            let value = b.scalar(1.0f32)?;
            b.op("Fill").input(dims).input(value).finish()
        }),
        family("gather", Bytes, &[1, 16, 256, 4096], |b, n| {
            let table = input(b, &[1024, COLUMNS])?;
            let indices: Vec<i32> = (0..n).map(|index| (index * 7 % 1024) as i32).collect();
            let indices = b.constant([n], &indices)?;
            Ok(b.gather(table, indices, 0)?.operation())
        }),
        family("concatenation", Bytes, &LENGTHS, |b, n| {
            let rows = n.div_ceil(COLUMNS);
            let (x, y) = (input(b, &[rows, COLUMNS])?, input(b, &[rows, COLUMNS])?);
            Ok(b.concat([x, y], 1)?.operation())
        }),
        family("transposition", Bytes, &LENGTHS, |b, n| {
            // As between the heads of attention: the last axis stays.
            let x = input(b, &[n.div_ceil(COLUMNS), 4, COLUMNS / 4])?;
            Ok(b.transpose(x, [1, 0, 2])?.operation())
        }),
        family("padding", Bytes, &LENGTHS, |b, n| {
            let x = input(b, &[n.div_ceil(COLUMNS), COLUMNS])?;
            let paddings = b.constant([2, 2], &[1, 1, 1, 1])?;
            b.op("Pad").input(x).input(paddings).finish()
        }),
        family("slice", Bytes, &LENGTHS, |b, n| {
            let rows = n.div_ceil(COLUMNS);
            let x = input(b, &[rows, COLUMNS])?;
            let half = i32::try_from(COLUMNS / 2).unwrap_or(1);
            Ok(b.slice(x, [0, 0], [-1, half])?.operation())
        }),
        family("pooling", Flops, &[4, 8, 16, 32, 64], |b, side| {
            let x = input(b, &[1, side, side, 16])?;
            let window = Pool2d::new([2, 2], Padding::Valid).with_strides([2, 2]);
            Ok(b.max_pool(x, window)?.operation())
        }),
        family(
            "batch normalization",
            Bytes,
            &[4, 8, 16, 32, 64],
            |b, side| {
                let x = input(b, &[1, side, side, 16])?;
                let mut op = b.op("FusedBatchNormV3").input(x);
                for _ in 0..4 {
                    op = op.input(input(b, &[16])?);
                }
                op.attr("is_training", false).finish()
            },
        ),
        family(
            "matmul",
            Flops,
            &[16, 64, 128, 256, 512, 1024],
            |b, side| {
                let x = input(b, &[side, side])?;
                Ok(b.matmul(x, weights(b, &[side, side])?)?.operation())
            },
        ),
        family(
            "matmul of one row",
            Bytes,
            &[8, 32, 128, 384, 640, 1024, 2048],
            |b, side| {
                let x = input(b, &[1, side])?;
                Ok(b.matmul(x, weights(b, &[side, side])?)?.operation())
            },
        ),
        family(
            "matmul of few rows",
            Flops,
            &[8, 32, 128, 512, 1024],
            |b, side| {
                let x = input(b, &[FEW, side])?;
                Ok(b.matmul(x, weights(b, &[side, side])?)?.operation())
            },
        ),
        family(
            "convolution of few channels",
            Flops,
            &[4, 8, 16, 32, 64],
            |b, side| {
                // The first layer of networks for images.
                let x = input(b, &[1, side, side, 3])?;
                let filters = weights(b, &[3, 3, 3, 32])?;
                Ok(b.conv2d(x, filters, Conv2d::new(Padding::Same))?
                    .operation())
            },
        ),
        family("batch matmul", Flops, &[4, 16, 32, 64, 128], |b, side| {
            let (x, y) = (input(b, &[8, side, side])?, input(b, &[8, side, side])?);
            Ok(b.batch_matmul(x, y)?.operation())
        }),
        family("convolution", Flops, &[19, 32, 64, 128], |b, channels| {
            conv(b, [3, 3], image_side(channels), channels)
        }),
        family(
            "convolution of 14 x 14",
            Flops,
            &[16, 64, 128, 256],
            |b, channels| conv(b, [3, 3], 14, channels),
        ),
        family(
            "convolution of 7 x 7",
            Flops,
            &[16, 64, 128, 256, 512],
            |b, channels| conv(b, [3, 3], 7, channels),
        ),
        family(
            "pointwise convolution",
            Flops,
            &[16, 64, 256, 512],
            |b, n_filters| pointwise(b, 256, n_filters),
        ),
        family(
            "shallow pointwise convolution",
            Flops,
            &[8, 64, 256, 1024],
            |b, n_filters| pointwise(b, 64, n_filters),
        ),
        family(
            "pointwise convolution of 14 x 14",
            Flops,
            &[16, 64, 256, 512],
            |b, channels| conv(b, [1, 1], 14, channels),
        ),
        family(
            "pointwise convolution of 7 x 7",
            Flops,
            &[4, 32, 128, 512, 1024],
            |b, channels| conv(b, [1, 1], 7, channels),
        ),
        family(
            "grouped convolution",
            Flops,
            &[8, 16, 32, 64],
            |b, channels| {
                let side = image_side(channels);
                let x = input(b, &[1, side, side, channels])?;
                let filters = weights(b, &[3, 3, channels / 4, channels])?;
                let options = Conv2d::new(Padding::Same);
                Ok(b.conv2d(x, filters, options)?.operation())
            },
        ),
        family(
            "depthwise convolution",
            Flops,
            &[4, 16, 32, 64, 128],
            |b, channels| {
                let side = image_side(channels);
                let x = input(b, &[1, side, side, channels])?;
                let filters = weights(b, &[3, 3, channels, 1])?;
                b.op("DepthwiseConv2dNative")
                    .input(x)
                    .input(filters)
                    .attr("strides", vec![1i64; 4])
                    .attr("padding", "SAME")
                    .finish()
            },
        ),
    ];
    FAMILIES
}

fn conv(
    b: &Scope,
    window: [usize; 2],
    side: usize,
    channels: usize,
) -> Result<Operation, BuildError> {
    let x = input(b, &[1, side, side, channels])?;
    let filters = weights(b, &[window[0], window[1], channels, channels])?;
    let options = Conv2d::new(Padding::Same);
    Ok(b.conv2d(x, filters, options)?.operation())
}

fn pointwise(b: &Scope, n_channels: usize, n_filters: usize) -> Result<Operation, BuildError> {
    let x = input(b, &[1, 28, 28, n_channels])?;
    let filters = weights(b, &[1, 1, n_channels, n_filters])?;
    let options = Conv2d::new(Padding::Same);
    Ok(b.conv2d(x, filters, options)?.operation())
}

/// Images of few channels are small, so that short kernels are measured, too.
fn image_side(n_channels: usize) -> usize {
    n_channels.min(28)
}

/// Adds a tensor that differs in each run.
fn input(b: &Scope, dims: &[usize]) -> Result<Value<f32>, BuildError> {
    b.placeholder("input", Shape::from(dims))
}

/// Adds a constant, which kernels may prepack.
fn weights(b: &Scope, dims: &[usize]) -> Result<Value<f32>, BuildError> {
    let one: Arc<[u8]> = Arc::from(1.0f32.to_le_bytes());
    let data = LiteralData::RepeatLast(Arc::new(one));
    let literal = Literal::new(DType::F32, Shape::from(dims), data);
    b.literal(literal.expect("one element repeats"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::WorkKeys;

    #[test]
    fn samples_are_of_their_family_and_grow() {
        for family in families() {
            let mut least = -1.0;
            for sample in family.samples() {
                let work = WorkKeys::of(&sample.graph).work(sample.node);
                let found = family_of(&work).map(|family| family.name);
                assert_eq!(found, Some(family.name), "{}", sample.describe());
                let amount = family.work(work.flops(), work.traffic_bytes());
                assert!(amount > least, "{}: {amount}", sample.describe());
                least = amount;
            }
        }
    }

    #[test]
    fn samples_have_their_own_bytes_and_others_have_bytes_between_them() {
        let mut n_checked = 0;
        for family in families() {
            let mut before = (0.0, 0.0);
            for sample in family.samples() {
                let work = WorkKeys::of(&sample.graph).work(sample.node);
                let (flops, bytes) = (work.flops(), bytes_to_f64(work.traffic_bytes()));
                let of_sample = family.sample_bytes(flops);
                if family.unit == WorkUnit::Bytes {
                    assert_eq!(of_sample, 0.0);
                    continue;
                }
                let what = sample.describe();
                assert!(
                    (of_sample / bytes - 1.0).abs() < 1e-9,
                    "{what}: {of_sample}"
                );
                let between = family.sample_bytes(f64::midpoint(before.0, flops));
                assert!(before.1 < between && between < bytes, "{what}: {between}");
                before = (flops, bytes);
                n_checked += 1;
            }
        }
        assert!(n_checked > 50, "{n_checked}");
    }
}
