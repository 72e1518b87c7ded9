//! Images with channels first (`data_format` `NCHW`) and last (`NHWC`).

use std::sync::Arc;

use crate::graph::AttrSet;
use crate::graph::AttrValue;
use crate::tensor::PartialShape;

/// Axes of an image with channels last, in terms of one with channels first.
pub(crate) const CHANNELS_LAST: [usize; 4] = [0, 2, 3, 1];

/// The inverse: where each axis of an image with channels first is if they are last.
pub(crate) const CHANNELS_FIRST: [usize; 4] = [0, 3, 1, 2];

/// Attributes with a number per axis.
const PER_AXIS: [&str; 3] = ["strides", "dilations", "ksize"];

/// Returns the attributes that a node with channels first has if they are last; `None` if a list
/// does not have an entry per axis.
pub(crate) fn attrs_with_channels_last(attrs: &AttrSet) -> Option<AttrSet> {
    let attrs = attrs.iter().map(|(name, value)| {
        let value = match name {
            "data_format" => Some("NHWC".into()),
            "explicit_paddings" => paddings(value),
            _ if PER_AXIS.contains(&name) => permuted(value),
            _ => Some(value.clone()),
        };
        Some((Arc::from(name), value?))
    });
    let attrs: Vec<(Arc<str>, AttrValue)> = attrs.collect::<Option<_>>()?;
    Some(AttrSet::new(attrs))
}

/// Returns the shape of an image with channels last.
pub(crate) fn shape_with_channels_last(shape: &PartialShape) -> PartialShape {
    match shape.dims() {
        Some(&[images, channels, rows, columns]) => {
            PartialShape::new(&[images, rows, columns, channels])
        }
        _ => PartialShape::unknown(),
    }
}

fn permuted(list: &AttrValue) -> Option<AttrValue> {
    let AttrValue::List(list) = list else {
        return None;
    };
    let list: &[AttrValue; 4] = list[..].try_into().ok()?;
    let list = CHANNELS_LAST.map(|axis| list[axis].clone());
    Some(AttrValue::List(list.into_iter().collect()))
}

/// The same for a list with two numbers per axis, which may be empty.
fn paddings(list: &AttrValue) -> Option<AttrValue> {
    let AttrValue::List(items) = list else {
        return None;
    };
    if items.is_empty() {
        return Some(list.clone());
    }
    let pairs: &[[AttrValue; 2]; 4] = items.as_chunks::<2>().0.try_into().ok()?;
    let pairs = CHANNELS_LAST.iter().flat_map(|&axis| pairs[axis].clone());
    Some(AttrValue::List(pairs.collect()))
}
