//! Encodes the graph of a case as the bytes of a `GraphDef`, so that it is imported like every
//! graph.

use placewright::tensor::DType;
use serde_json::Value;

use crate::text;

/// A protobuf message under construction.
#[derive(Debug, Default, Clone)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push((value & 0x7f) as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn number(mut self, field: u64, value: u64) -> Self {
        self.varint(field << 3);
        self.varint(value);
        self
    }

    fn bytes(mut self, field: u64, bytes: &[u8]) -> Self {
        self.varint(field << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend(bytes);
        self
    }

    fn text(self, field: u64, text: &str) -> Self {
        self.bytes(field, text.as_bytes())
    }

    fn message(self, field: u64, message: &Self) -> Self {
        self.bytes(field, &message.0)
    }
}

/// Returns the `GraphDef` of a case: its nodes, and its functions as the library.
pub(super) fn graph_def(case: &Value) -> Result<Vec<u8>, String> {
    let mut graph = Message::default();
    for node in case["nodes"].as_array().ok_or("case has no nodes")? {
        graph = graph.message(1, &node_def(case, node)?);
    }
    let mut library = Message::default();
    for function in case["functions"].as_array().into_iter().flatten() {
        library = library.message(1, &function_def(case, function)?);
    }
    Ok(graph.message(2, &library).0)
}

fn node_def(case: &Value, node: &Value) -> Result<Message, String> {
    let op = text(node, "op")?;
    let mut message = Message::default().text(1, text(node, "name")?).text(2, op);
    for input in node["inputs"].as_array().into_iter().flatten() {
        message = message.text(3, input.as_str().ok_or("an input is no text")?);
    }
    if let Some(device) = node["device"].as_str() {
        message = message.text(4, device);
    }
    for (name, value) in node["attrs"].as_object().into_iter().flatten() {
        let kind = attr_kind(&case["ops"][op], name);
        let value = attr_value(kind, value, &node["attrs"])
            .map_err(|problem| format!("attribute {name} of {node}: {problem}"))?;
        let entry = Message::default().text(1, name).message(2, &value);
        message = message.message(5, &entry);
    }
    Ok(message)
}

/// Returns the kind of an attribute as the op declares it; empty if it does not.
fn attr_kind<'a>(op: &'a Value, name: &str) -> &'a str {
    let mut attrs = op["attrs"].as_array().into_iter().flatten();
    attrs
        .find_map(|attr| {
            let (known, kind) = attr.as_str()?.split_once(':')?;
            (known == name).then_some(kind)
        })
        .unwrap_or_default()
}

/// Encodes an `AttrValue`.
fn attr_value(kind: &str, value: &Value, attrs: &Value) -> Result<Message, String> {
    let message = Message::default();
    match (kind, value) {
        ("type", Value::String(name)) => match name.strip_prefix('$') {
            Some(placeholder) => Ok(message.text(9, placeholder)),
            None => Ok(message.number(6, number(name)?)),
        },
        ("list(type)", Value::Array(names)) => {
            let mut list = Message::default();
            for name in names {
                list = list.number(6, number(name.as_str().ok_or("no type")?)?);
            }
            Ok(message.message(1, &list))
        }
        ("int", Value::Number(value)) => Ok(message.number(3, value.as_u64().ok_or("no count")?)),
        ("func", Value::String(name)) => Ok(message.message(10, &function(name)?)),
        ("tensor", value) => Ok(message.message(8, &scalar(value, text(attrs, "dtype")?)?)),
        ("", Value::String(text)) => Ok(message.text(2, text)),
        ("", Value::Array(strings)) => {
            let mut list = Message::default();
            for text in strings {
                list = list.text(2, text.as_str().ok_or("no text")?);
            }
            Ok(message.message(1, &list))
        }
        _ => Err(format!("of kind `{kind}` it cannot be {value}")),
    }
}

/// Encodes `@F` or `@F<T=resource>` as a `NameAttrList`.
fn function(reference: &str) -> Result<Message, String> {
    let reference = reference
        .strip_prefix('@')
        .ok_or("a function starts with `@`")?;
    let Some((name, attrs)) = reference.split_once('<') else {
        return Ok(Message::default().text(1, reference));
    };
    let (attr, dtype) = attrs
        .strip_suffix('>')
        .and_then(|attrs| attrs.split_once('='))
        .ok_or("expected `@F<T=type>`")?;
    let value = Message::default().number(6, number(dtype)?);
    let entry = Message::default().text(1, attr).message(2, &value);
    Ok(Message::default().text(1, name).message(2, &entry))
}

/// Encodes a `TensorProto` of rank 0.
fn scalar(value: &Value, dtype: &str) -> Result<Message, String> {
    let message = Message::default().number(1, number(dtype)?).bytes(2, &[]);
    match (dtype, value) {
        ("float", Value::Number(value)) => {
            let value = value.as_f64().ok_or("no number")? as f32;
            Ok(message.bytes(5, &value.to_le_bytes()))
        }
        ("int32", Value::Number(value)) => Ok(message.number(7, value.as_u64().ok_or("no count")?)),
        ("string", Value::String(value)) => Ok(message.text(8, value)),
        _ => Err(format!("{value} is no {dtype}")),
    }
}

/// Encodes a `FunctionDef`.
fn function_def(case: &Value, function: &Value) -> Result<Message, String> {
    let type_attr = function["type_attr"].as_str();
    let mut signature = Message::default().text(1, text(function, "name")?);
    for (field, key) in [(2, "args"), (3, "rets")] {
        for argument in function[key].as_array().into_iter().flatten() {
            let name = argument[0].as_str().ok_or("an argument has no name")?;
            let dtype = argument[1].as_str().ok_or("an argument has no type")?;
            let definition = Message::default().text(1, name);
            let definition = if type_attr == Some(dtype) {
                definition.text(4, dtype)
            } else {
                definition.number(3, number(dtype)?)
            };
            signature = signature.message(field, &definition);
        }
    }
    if let Some(attr) = type_attr {
        signature = signature.message(4, &Message::default().text(1, attr).text(2, "type"));
    }
    let mut message = Message::default().message(1, &signature);
    for node in function["nodes"].as_array().into_iter().flatten() {
        message = message.message(3, &node_def(case, node)?);
    }
    for result in function["rets"].as_array().into_iter().flatten() {
        let name = result[0].as_str().ok_or("a result has no name")?;
        let source = result[2].as_str().ok_or("a result has no source")?;
        message = message.message(4, &Message::default().text(1, name).text(2, source));
    }
    Ok(message)
}

fn number(dtype: &str) -> Result<u64, String> {
    let dtype = DType::from_name(dtype).ok_or_else(|| format!("no type `{dtype}`"))?;
    Ok(u64::from(dtype.number()))
}
