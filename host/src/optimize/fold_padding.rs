//! Folds zeros around images into the convolution or pooling that reads them.

use std::sync::Arc;

use super::edit::Edit;
use super::edit::New;
use super::edit::Source;
use crate::graph::AttrSet;
use crate::graph::AttrValue;
use crate::graph::Graph;
use crate::graph::NodeId;
use crate::graph::TensorId;
use crate::tensor::DType;
use crate::tensor::HostAllocator;

/// The ops whose windows may have explicit padding.
const WINDOWED: [&str; 3] = ["Conv2D", "DepthwiseConv2dNative", "MaxPool"];

/// Bytes of a constant of paddings.
const PADDINGS_BYTES: u64 = 64;

/// Rows before, rows after, columns before, columns after.
type Paddings = [i64; 4];

/// Gives each node with windows, whose image only a `Pad` has padded, explicit padding. The result
/// is the same: both pad with zeros. `MaxPool` ignores its own padding, which makes no difference
/// after an activation that is never negative.
pub(super) fn fold_padding(edit: &mut Edit<'_>) {
    for node in edit.graph().nodes() {
        if edit.graph().op(node) == "Pad"
            && edit.is_free(node)
            && let Some(reader) = edit.only_reader(node)
        {
            fold(edit, node, reader);
        }
    }
}

fn fold(edit: &mut Edit<'_>, pad: NodeId, reader: NodeId) -> Option<()> {
    let graph = edit.graph();
    let op = WINDOWED.into_iter().find(|&op| op == graph.op(reader))?;
    let padded = graph.output(pad, 0)?;
    let mut inputs: Vec<_> = graph.data_inputs(reader).collect();
    let reads_image_once = inputs.iter().filter(|&&input| input == padded).count() == 1;
    let is_movable = edit.is_free(reader) && graph.requested(pad) == graph.requested(reader);
    if inputs.first() != Some(&padded) || !reads_image_once || !is_movable {
        return None;
    }
    let image = graph.data_inputs(pad).next()?;
    let attrs = graph.attrs(reader);
    let paddings = total_paddings(attrs, paddings(edit, pad)?)?;
    if op == "MaxPool" && !is_inside(attrs, paddings, graph, image) {
        return None;
    }
    let attrs = with_paddings(attrs, paddings);
    inputs[0] = image;
    let new = New {
        op,
        attrs,
        inputs: inputs.into_iter().map(Source::Tensor).collect(),
        outputs: edit.outputs(reader),
    };
    edit.replace(reader, new);
    edit.remove(pad);
    Some(())
}

/// Returns what a `Pad` of an image adds, if it is constant, and nothing to batch and channels.
fn paddings(edit: &Edit<'_>, pad: NodeId) -> Option<Paddings> {
    let tensor = edit.graph().data_inputs(pad).nth(1)?;
    let (_, literal) = edit.constant(tensor)?;
    if literal.size_bytes() > PADDINGS_BYTES {
        return None;
    }
    let allocator = HostAllocator::new("paddings", PADDINGS_BYTES);
    let values = literal.to_tensor(&allocator).ok()?;
    let values: Vec<i64> = match literal.dtype() {
        DType::I32 => {
            let values = values.as_slice::<i32>().ok()?;
            values.iter().map(|&value| value.into()).collect()
        }
        _ => values.as_slice::<i64>().ok()?.to_vec(),
    };
    match values[..] {
        [0, 0, top, bottom, left, right, 0, 0] => {
            let paddings = [top, bottom, left, right];
            let is_valid = |size: &i64| (0..=i64::from(i32::MAX)).contains(size);
            paddings.iter().all(is_valid).then_some(paddings)
        }
        _ => None,
    }
}

/// Returns what a `Pad` adds, together with the node's own padding; `None` if that depends on the
/// size of the image.
fn total_paddings(attrs: &AttrSet, added: Paddings) -> Option<Paddings> {
    if !matches!(attrs.text("data_format"), None | Some("NHWC")) {
        return None;
    }
    let own = match attrs.text("padding")? {
        "VALID" => vec![0; 8],
        "EXPLICIT" => attrs.ints("explicit_paddings")?,
        _ => return None,
    };
    let &[0, 0, top, bottom, left, right, 0, 0] = &own[..] else {
        return None;
    };
    let mut sums = [top, bottom, left, right];
    for (sum, added) in sums.iter_mut().zip(added) {
        *sum = sum.checked_add(added)?;
    }
    let is_valid = |sum: &i64| (0..=i64::from(i32::MAX)).contains(sum);
    sums.iter().all(is_valid).then_some(sums)
}

/// Returns whether each window of a `MaxPool` reaches into the image, which has pixels and no
/// negative numbers. NaN is larger than the padding either way.
fn is_inside(attrs: &AttrSet, paddings: Paddings, graph: &Graph, image: TensorId) -> bool {
    let [top, bottom, left, right] = paddings;
    let sizes = attrs.ints("ksize").unwrap_or_default();
    let shape = graph.tensor_shape(image);
    let (&[_, rows, columns, _], Some(&[_, Some(1..), Some(1..), _])) = (&sizes[..], shape.dims())
    else {
        return false;
    };
    let (producer, _) = graph.producer(image);
    matches!(graph.op(producer), "Relu" | "Relu6")
        && top.max(bottom) < rows
        && left.max(right) < columns
}

/// Returns the attributes with explicit padding.
fn with_paddings(attrs: &AttrSet, [top, bottom, left, right]: Paddings) -> AttrSet {
    let list = [0, 0, top, bottom, left, right, 0, 0];
    let list = AttrValue::List(list.into_iter().map(AttrValue::Int).collect());
    let others = attrs
        .iter()
        .filter(|(name, _)| !matches!(*name, "padding" | "explicit_paddings"));
    let others = others.map(|(name, value)| (Arc::from(name), value.clone()));
    let padding = ("padding".into(), AttrValue::from("EXPLICIT"));
    AttrSet::new(others.chain([padding, ("explicit_paddings".into(), list)]))
}
