//! Puts channels last: nodes with `data_format` `NCHW` become ones with `NHWC`, for which kernels
//! are made.
//!
//! Images are transposed where they enter such nodes and where others read them. Between them,
//! elementwise nodes, paddings, concatenations and reductions take images as they are, so most
//! networks have one transposition at the beginning and none at the end.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use rustc_hash::FxHashSet;

use super::edit::Edit;
use super::edit::New;
use super::edit::Source;
use super::fold_constants::constant;
use crate::graph::AttrSet;
use crate::graph::AttrValue;
use crate::graph::IDENTITY;
use crate::graph::NodeId;
use crate::graph::Output;
use crate::graph::TensorId;
use crate::graph::is_control_flow;
use crate::ops::CHANNELS_FIRST;
use crate::ops::CHANNELS_LAST;
use crate::ops::IntTensor;
use crate::ops::attrs_with_channels_last;
use crate::ops::shape_with_channels_last;
use crate::tensor::DType;
use crate::tensor::Literal;
use crate::tensor::LiteralData;
use crate::tensor::PartialShape;
use crate::tensor::Shape;

/// Ops whose kernels need channels last, or transpose images before and after.
const WINDOWED: [&str; 4] = ["Conv2D", "DepthwiseConv2dNative", "MaxPool", "AvgPool"];

/// Ops with a `data_format` whose kernels compute both.
const EITHER: [&str; 4] = [
    "BiasAdd",
    "FusedBatchNorm",
    "FusedBatchNormV2",
    "FusedBatchNormV3",
];

const UNARY: [&str; 17] = [
    "Abs",
    "Elu",
    "Erf",
    "Exp",
    IDENTITY,
    "LeakyRelu",
    "Log",
    "Neg",
    "Relu",
    "Relu6",
    "Rsqrt",
    "Selu",
    "Sigmoid",
    "Softplus",
    "Sqrt",
    "Square",
    "Tanh",
];

const BINARY: [&str; 8] = [
    "Add",
    "AddV2",
    "Maximum",
    "Minimum",
    "Mul",
    "RealDiv",
    "SquaredDifference",
    "Sub",
];

const REDUCTIONS: [&str; 4] = ["Max", "Mean", "Min", "Sum"];

/// Maximum number of elements of a constant that is copied.
const CONSTANT_MAX: usize = 1 << 16;

/// Converts the nodes of a graph.
pub(super) fn channels_last(edit: &mut Edit<'_>) {
    let graph = edit.graph();
    let is_first = |node: NodeId| {
        WINDOWED.contains(&graph.op(node)) && graph.attrs(node).text("data_format") == Some("NCHW")
    };
    let Some(first) = graph.nodes().find(|&node| is_first(node)) else {
        return;
    };
    let first = padding_before(edit, first).unwrap_or(first);
    // A constant of a loop or branch belongs to its frame.
    if graph.nodes().any(|node| is_control_flow(graph.op(node))) {
        return;
    }
    let mut pass = Pass {
        edit,
        first,
        images: FxHashMap::default(),
        entering: FxHashMap::default(),
        permutations: FxHashMap::default(),
        done: FxHashSet::default(),
    };
    for node in graph.nodes() {
        if node >= first && pass.edit.is_free(node) {
            pass.convert(node);
        }
    }
    pass.finish();
}

/// Returns the `Pad` whose only reader is a node.
fn padding_before(edit: &Edit<'_>, node: NodeId) -> Option<NodeId> {
    let graph = edit.graph();
    let (pad, _) = graph.producer(graph.data_inputs(node).next()?);
    let is_own = edit.is_free(pad) && edit.only_reader(pad) == Some(node);
    (graph.op(pad) == "Pad" && is_own).then_some(pad)
}

struct Pass<'e, 'g> {
    edit: &'e mut Edit<'g>,
    /// The first node that is converted.
    first: NodeId,
    /// The images of converted nodes, with channels last.
    images: FxHashMap<TensorId, Source>,
    /// Other images that converted nodes read.
    entering: FxHashMap<TensorId, Source>,
    permutations: FxHashMap<[usize; 4], Source>,
    /// Nodes that are replaced or left out, and so no longer read their images.
    done: FxHashSet<NodeId>,
}

impl Pass<'_, '_> {
    fn convert(&mut self, node: NodeId) -> Option<()> {
        let graph = self.edit.graph();
        let op = graph.op(node);
        let known = |ops: &[&'static str]| ops.iter().copied().find(|&it| it == op);
        let has_format = graph.attrs(node).text("data_format") == Some("NCHW");
        if let Some(op) = known(&WINDOWED) {
            return has_format.then(|| self.windowed(node, op)).flatten();
        }
        let image = graph.data_inputs(node).next()?;
        if op != "ConcatV2" && !BINARY.contains(&op) && !self.images.contains_key(&image) {
            return None;
        }
        if let Some(op) = known(&EITHER) {
            return has_format.then(|| self.windowed(node, op)).flatten();
        }
        if let Some(op) = known(&UNARY) {
            let inputs = vec![self.images[&image]];
            return self.image(node, op, graph.attrs(node).clone(), inputs);
        }
        if let Some(op) = known(&BINARY) {
            return self.binary(node, op);
        }
        if let Some(op) = known(&REDUCTIONS) {
            return self.reduction(node, op);
        }
        match op {
            "ConcatV2" => self.concat(node),
            "Pad" => self.pad(node, self.images[&image]),
            "Transpose" => self.transposition(node),
            _ => None,
        }
    }

    /// Converts a node with a `data_format`, whose first input is the image.
    fn windowed(&mut self, node: NodeId, op: &'static str) -> Option<()> {
        let graph = self.edit.graph();
        let mut inputs: Vec<Source> = graph.data_inputs(node).map(Source::Tensor).collect();
        let attrs = attrs_with_channels_last(graph.attrs(node))?;
        // Only the image of a batch normalization is read, unless it is trained.
        let range = graph.output_range(node);
        let is_read = |tensor: TensorId| {
            let mut readers = graph.successors().row(node.index()).iter();
            readers.any(|&reader| graph.data_inputs(NodeId(reader)).any(|it| it == tensor))
        };
        let others = (1..range.len()).filter_map(|slot| graph.output(node, slot));
        if graph.tensor_shape(graph.output(node, 0)?).rank() != Some(4)
            || others.into_iter().any(is_read)
        {
            return None;
        }
        let image = graph.data_inputs(node).next()?;
        if let Some(pad) = padding_before(self.edit, node).filter(|&pad| pad >= self.first)
            && !self.images.contains_key(&image)
        {
            let padded = self.entering(graph.data_inputs(pad).next()?)?;
            self.pad(pad, padded);
        }
        inputs[0] = self.entering(image)?;
        self.image(node, op, attrs, inputs)
    }

    /// Inserts the node that computes the image of `node` with channels last.
    fn image(
        &mut self,
        node: NodeId,
        op: &'static str,
        attrs: AttrSet,
        inputs: Vec<Source>,
    ) -> Option<()> {
        let tensor = self.edit.graph().output(node, 0)?;
        let mut outputs = self.edit.outputs(node);
        outputs[0].shape = shape_with_channels_last(&outputs[0].shape);
        let new = New {
            op,
            attrs,
            inputs,
            outputs,
        };
        let image = self.edit.insert(node, "channels_last", new);
        self.images.insert(tensor, image);
        self.done.insert(node);
        Some(())
    }

    /// Returns a tensor with channels last, transposed if need be.
    fn entering(&mut self, tensor: TensorId) -> Option<Source> {
        let known = self
            .images
            .get(&tensor)
            .or_else(|| self.entering.get(&tensor));
        if let Some(&source) = known {
            return Some(source);
        }
        let graph = self.edit.graph();
        let (producer, _) = graph.producer(tensor);
        let source = if graph.op(producer) == "Transpose"
            && self.permutation(producer) == Some(CHANNELS_FIRST)
        {
            Source::Tensor(graph.data_inputs(producer).next()?)
        } else {
            let dtype = graph.tensor_dtypes()[tensor.index()];
            let shape = shape_with_channels_last(&graph.tensor_shape(tensor));
            let new = self.transpose(Source::Tensor(tensor), CHANNELS_LAST, dtype, shape);
            // The first reader: nodes are converted in order.
            let readers = graph.successors().row(producer.index()).iter();
            let before = *readers.filter(|&&it| NodeId(it) >= self.first).min()?;
            // Several images may enter at one node.
            let name = format!("image_{}", self.entering.len());
            self.edit.insert(NodeId(before), &name, new)
        };
        self.entering.insert(tensor, source);
        Some(source)
    }

    fn transpose(
        &mut self,
        image: Source,
        axes: [usize; 4],
        dtype: DType,
        shape: PartialShape,
    ) -> New {
        let permutation = match self.permutations.get(&axes) {
            Some(&permutation) => permutation,
            None => {
                let values = axes.map(|axis| axis as i32);
                let new = constant(integers(&values, &[4]));
                let name = match axes {
                    CHANNELS_LAST => "to_channels_last",
                    CHANNELS_FIRST => "to_channels_first",
                    _ => "axes",
                };
                let permutation = self.edit.insert(self.first, name, new);
                self.permutations.insert(axes, permutation);
                permutation
            }
        };
        New {
            op: "Transpose",
            attrs: AttrSet::new([
                ("T".into(), type_attr(dtype)),
                ("Tperm".into(), type_attr(DType::I32)),
            ]),
            inputs: vec![image, permutation],
            outputs: vec![Output {
                dtype,
                is_ref: false,
                shape,
            }],
        }
    }

    /// Returns the permutation of a `Transpose` of an image, if it is constant.
    fn permutation(&self, node: NodeId) -> Option<[usize; 4]> {
        let axes = self.ints(self.edit.graph().data_inputs(node).nth(1)?)?;
        let axes: Vec<usize> = axes
            .into_iter()
            .map(|axis| usize::try_from(if axis < 0 { axis + 4 } else { axis }).ok())
            .collect::<Option<_>>()?;
        let axes: [usize; 4] = axes.try_into().ok()?;
        axes.iter().all(|&axis| axis < 4).then_some(axes)
    }

    /// Returns the integers of a constant.
    fn ints(&self, tensor: TensorId) -> Option<Vec<i64>> {
        let (_, literal) = self.edit.constant(tensor)?;
        IntTensor::from_literal(literal)?.to_ints()
    }

    fn binary(&mut self, node: NodeId, op: &'static str) -> Option<()> {
        let graph = self.edit.graph();
        let operands: Vec<TensorId> = graph.data_inputs(node).collect();
        if !operands.iter().any(|it| self.images.contains_key(it)) {
            return None;
        }
        let mut inputs = Vec::new();
        for &operand in &operands {
            let shape = graph.tensor_shape(operand);
            let input = match (self.images.get(&operand), shape.rank()) {
                (Some(&image), _) => image,
                (None, Some(0)) => Source::Tensor(operand),
                _ => {
                    let literal = self.per_channel(operand)?;
                    self.edit.absorb(operand);
                    self.edit.insert(node, "per_channel", constant(literal))
                }
            };
            inputs.push(input);
        }
        self.image(node, op, graph.attrs(node).clone(), inputs)
    }

    /// Returns a constant of one element per channel, or of one element, for images with channels
    /// last.
    fn per_channel(&self, tensor: TensorId) -> Option<Literal> {
        let (_, literal) = self.edit.constant(tensor)?;
        let n = literal.shape().n_elements();
        let is_per_channel = match *literal.shape().dims() {
            [1, _, 1, 1] | [_, 1, 1] => true,
            // One of more dimensions than an image would give the result more, too.
            _ => n == 1 && literal.shape().rank() <= 4,
        };
        if !is_per_channel || n > CONSTANT_MAX {
            return None;
        }
        let size = usize::try_from(literal.size_bytes()).ok()?;
        let mut bytes = vec![0; size];
        literal.write_to(&mut bytes).ok()?;
        let data = LiteralData::Dense(Arc::new(bytes));
        Literal::new(literal.dtype(), Shape::from([n]), data).ok()
    }

    fn concat(&mut self, node: NodeId) -> Option<()> {
        let graph = self.edit.graph();
        let inputs: Vec<TensorId> = graph.data_inputs(node).collect();
        let (&axis, images) = inputs.split_last()?;
        let images = images.iter().map(|it| self.images.get(it).copied());
        let mut inputs: Vec<Source> = images.collect::<Option<_>>()?;
        let &[axis] = &self.axes(axis)?[..] else {
            return None;
        };
        self.edit.absorb(graph.data_inputs(node).last()?);
        let attrs = with_int32(graph.attrs(node), "Tidx");
        let axis = constant(integers(&[axis], &[]));
        inputs.push(self.edit.insert(node, "axis", axis));
        self.image(node, "ConcatV2", attrs, inputs)
    }

    fn pad(&mut self, node: NodeId, image: Source) -> Option<()> {
        let graph = self.edit.graph();
        let paddings = graph.data_inputs(node).nth(1)?;
        let sizes = self.ints(paddings)?;
        let sizes: [[i64; 2]; 4] = sizes.as_chunks::<2>().0.to_vec().try_into().ok()?;
        let sizes = CHANNELS_LAST.map(|axis| sizes[axis]).concat();
        let sizes = sizes.into_iter().map(|size| i32::try_from(size).ok());
        let sizes: Vec<i32> = sizes.collect::<Option<_>>()?;
        self.edit.absorb(paddings);
        let attrs = with_int32(graph.attrs(node), "Tpaddings");
        let paddings = constant(integers(&sizes, &[4, 2]));
        let paddings = self.edit.insert(node, "paddings", paddings);
        self.image(node, "Pad", attrs, vec![image, paddings])
    }

    fn reduction(&mut self, node: NodeId, op: &'static str) -> Option<()> {
        let graph = self.edit.graph();
        let mut inputs = graph.data_inputs(node);
        let (image, reduced) = (self.images[&inputs.next()?], inputs.next()?);
        let axes = self.axes(reduced)?;
        let keeps = graph.attrs(node).bool("keep_dims") == Some(true);
        // What is left of rows and columns would be in another order.
        let is_in_order = axes.contains(&1) && axes.contains(&2);
        if !keeps && !is_in_order {
            return None;
        }
        self.edit.absorb(reduced);
        let attrs = with_int32(graph.attrs(node), "Tidx");
        let axes = constant(integers(&axes, &[axes.len()]));
        let inputs = vec![image, self.edit.insert(node, "axes", axes)];
        if keeps {
            return self.image(node, op, attrs, inputs);
        }
        let outputs = self.edit.outputs(node);
        self.replace(node, op, attrs, inputs, outputs)
    }

    /// Replaces a node whose result is not an image.
    fn replace(
        &mut self,
        node: NodeId,
        op: &'static str,
        attrs: AttrSet,
        inputs: Vec<Source>,
        outputs: Vec<Output>,
    ) -> Option<()> {
        let new = New {
            op,
            attrs,
            inputs,
            outputs,
        };
        self.edit.replace(node, new);
        self.done.insert(node);
        Some(())
    }

    /// Returns axes of images in terms of those with channels last.
    fn axes(&self, tensor: TensorId) -> Option<Vec<i32>> {
        let axes = self.ints(tensor)?;
        let axes = axes.into_iter().map(|axis| {
            let axis = usize::try_from(if axis < 0 { axis + 4 } else { axis }).ok()?;
            i32::try_from(*CHANNELS_FIRST.get(axis)?).ok()
        });
        axes.collect()
    }

    /// A transposition of an image, for example to channels last.
    fn transposition(&mut self, node: NodeId) -> Option<()> {
        let graph = self.edit.graph();
        let image = self.images[&graph.data_inputs(node).next()?];
        let axes = self.permutation(node)?.map(|axis| CHANNELS_FIRST[axis]);
        let outputs = self.edit.outputs(node);
        let dtype = outputs[0].dtype;
        if axes == [0, 1, 2, 3] {
            let attrs = AttrSet::new([("T".into(), type_attr(dtype))]);
            return self.replace(node, IDENTITY, attrs, vec![image], outputs);
        }
        let new = self.transpose(image, axes, dtype, outputs[0].shape.clone());
        self.replace(node, new.op, new.attrs, new.inputs, outputs)
    }

    /// Removes nodes whose readers all take the image with channels last, and transposes the images
    /// of others.
    fn finish(mut self) {
        let graph = self.edit.graph();
        let mut images: Vec<(TensorId, Source)> = self.images.drain().collect();
        images.sort_by_key(|&(tensor, _)| tensor.0);
        for (tensor, image) in images {
            let (node, _) = graph.producer(tensor);
            let readers = graph.successors().row(node.index());
            if !readers.is_empty() && readers.iter().all(|&it| self.done.contains(&NodeId(it))) {
                self.edit.remove(node);
                continue;
            }
            let output = self.edit.outputs(node).swap_remove(0);
            let new = self.transpose(image, CHANNELS_FIRST, output.dtype, output.shape);
            self.edit.replace(node, new);
        }
    }
}

/// Returns attributes with an index type of 32 bits.
fn with_int32(attrs: &AttrSet, index: &str) -> AttrSet {
    let others = attrs.iter().filter(|&(name, _)| name != index);
    let others = others.map(|(name, value)| (Arc::from(name), value.clone()));
    AttrSet::new(others.chain([(Arc::from(index), type_attr(DType::I32))]))
}

fn type_attr(dtype: DType) -> AttrValue {
    AttrValue::Type {
        dtype,
        is_ref: false,
    }
}

fn integers(values: &[i32], shape: &[usize]) -> Literal {
    let bytes: Vec<u8> = values.iter().flat_map(|it| it.to_le_bytes()).collect();
    let data = LiteralData::Dense(Arc::new(bytes));
    Literal::new(DType::I32, Shape::from(shape), data).expect("as many elements as the shape has")
}
