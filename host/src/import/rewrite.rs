//! Reads and changes nodes of a GraphDef before they are imported.

use bytes::Bytes;
use hashbrown::HashMap;
use prost::Message;

use super::proto::AttrEntry;
use super::proto::AttrValue;
use super::proto::Dim;
use super::proto::NodeDef;
use super::proto::TensorShapeProto;
use super::proto::Value;
use crate::tensor::DType;
use crate::tensor::PartialShape;

/// Returns an attribute; `None` if it is absent or malformed, which the importer reports.
pub(crate) fn attr(node: &NodeDef, key: &str) -> Option<Value> {
    let entry = node.attr.iter().find(|entry| entry.key == key.as_bytes())?;
    AttrValue::decode(entry.value.clone()).ok()?.value
}

/// Sets an attribute.
pub(crate) fn set_attr(node: &mut NodeDef, key: &'static str, value: Value) {
    remove_attr(node, key);
    let value = AttrValue { value: Some(value) };
    node.attr.push(AttrEntry {
        key: Bytes::from_static(key.as_bytes()),
        value: value.encode_to_vec().into(),
    });
}

/// Removes an attribute.
pub(crate) fn remove_attr(node: &mut NodeDef, key: &str) {
    node.attr.retain(|entry| entry.key != key.as_bytes());
}

/// Returns the text of a `string` attribute.
fn text_attr(node: &NodeDef, key: &str) -> String {
    match attr(node, key) {
        Some(Value::S(text)) => String::from_utf8_lossy(&text).into_owned(),
        _ => String::new(),
    }
}

/// Returns what identifies the variable of a node: container and shared name, or the name of the
/// node. Nodes with the same are one variable; Keras makes two for each.
pub(crate) fn variable_of(node: &NodeDef) -> (String, String) {
    let shared = text_attr(node, "shared_name");
    let shared = match shared.is_empty() {
        true => name(node).to_owned(),
        false => shared,
    };
    (text_attr(node, "container"), shared)
}

/// Returns a `type` attribute.
pub(crate) fn type_attr(node: &NodeDef, key: &str) -> Option<DType> {
    match attr(node, key)? {
        Value::Type(number) => DType::from_number(u32::try_from(number).ok()?),
        _ => None,
    }
}

/// Returns the number of an element type.
pub(crate) fn type_number(dtype: DType) -> i32 {
    i32::try_from(dtype.number()).unwrap_or_default()
}

/// Sets a `type` attribute.
pub(crate) fn set_type(node: &mut NodeDef, key: &'static str, dtype: DType) {
    set_attr(node, key, Value::Type(type_number(dtype)));
}

/// Changes one type of a `list(type)` attribute.
pub(crate) fn set_type_of(node: &mut NodeDef, key: &'static str, index: usize, dtype: DType) {
    if let Some(Value::List(mut list)) = attr(node, key)
        && let Some(entry) = list.r#type.get_mut(index)
    {
        *entry = type_number(dtype);
        set_attr(node, key, Value::List(list));
    }
}

/// Changes one shape of a `list(shape)` attribute, if the node has it.
pub(crate) fn set_shape_of(
    node: &mut NodeDef,
    key: &'static str,
    index: usize,
    shape: &TensorShapeProto,
) {
    if let Some(Value::List(mut list)) = attr(node, key)
        && let Some(entry) = list.shape.get_mut(index)
    {
        *entry = shape.clone();
        set_attr(node, key, Value::List(list));
    }
}

/// Returns the functions that a node's attributes name: attribute and function.
pub(crate) fn functions_of(node: &NodeDef) -> Vec<(String, String)> {
    let mut functions = Vec::new();
    for entry in &node.attr {
        let key = String::from_utf8_lossy(&entry.key).into_owned();
        // The tag of a function, or of a list.
        if !matches!(entry.value.first(), Some(0x52 | 0x0a)) {
            continue;
        }
        let value = AttrValue::decode(entry.value.clone());
        let mut add = |name: &Bytes| {
            let name = String::from_utf8_lossy(name).into_owned();
            functions.push((key.clone(), name));
        };
        match value.ok().and_then(|value| value.value) {
            Some(Value::Func(function)) => add(&function.name),
            Some(Value::List(list)) => list.func.iter().for_each(|function| add(&function.name)),
            _ => {}
        }
    }
    functions
}

/// Returns the op of a node.
pub(crate) fn op(node: &NodeDef) -> &str {
    std::str::from_utf8(&node.op).unwrap_or_default()
}

/// Returns the name of a node.
pub(crate) fn name(node: &NodeDef) -> &str {
    std::str::from_utf8(&node.name).unwrap_or_default()
}

/// Returns the data inputs of a node, which come before its control inputs.
pub(crate) fn data_inputs(node: &NodeDef) -> impl Iterator<Item = &str> {
    let inputs = node.input.iter();
    let inputs = inputs.map(|input| std::str::from_utf8(input).unwrap_or_default());
    inputs.take_while(|input| !input.starts_with('^'))
}

/// Splits the name of a tensor of the graph: node and output.
pub(crate) fn split(tensor: &str) -> (&str, usize) {
    match tensor.rsplit_once(':') {
        Some((node, slot)) => match slot.parse() {
            Ok(slot) => (node, slot),
            Err(_) => (tensor, 0),
        },
        None => (tensor, 0),
    }
}

/// Returns the node of an input, which may be a control input.
pub(crate) fn producer(input: &str) -> &str {
    match input.strip_prefix('^') {
        Some(node) => node,
        None => split(input).0,
    }
}

/// Returns the positions of nodes by name.
pub(crate) fn by_name(nodes: &[NodeDef]) -> HashMap<&str, usize> {
    nodes.iter().map(name).zip(0..).collect()
}

/// Makes a node without attributes.
pub(crate) fn new_node(name: String, op: &'static str, inputs: Vec<String>) -> NodeDef {
    NodeDef {
        name: name.into(),
        op: Bytes::from_static(op.as_bytes()),
        input: inputs.into_iter().map(Bytes::from).collect(),
        device: Bytes::new(),
        attr: Vec::new(),
    }
}

/// Returns the encoded form of a shape.
pub(crate) fn shape_proto(shape: &PartialShape) -> TensorShapeProto {
    let Some(dims) = shape.dims() else {
        return TensorShapeProto {
            dim: Vec::new(),
            unknown_rank: true,
        };
    };
    let size = |dim: &Option<usize>| dim.and_then(|dim| i64::try_from(dim).ok()).unwrap_or(-1);
    TensorShapeProto {
        dim: dims.iter().map(|dim| Dim { size: size(dim) }).collect(),
        unknown_rank: false,
    }
}
