//! Splits a GraphDef into its nodes and functions.
//!
//! The outermost message is read by hand, field by field, so that an error can name the node whose
//! bytes are wrong, and nothing after it is decoded.

use bytes::Buf;
use bytes::Bytes;
use prost::Message;
use prost::encoding::DecodeContext;
use prost::encoding::WireType;
use prost::encoding::decode_key;
use prost::encoding::decode_varint;
use prost::encoding::skip_field;

use super::ImportError;
use super::ImportOptions;
use super::proto::FunctionDef;
use super::proto::NodeDef;
use super::proto::VersionDef;
use crate::graph::is_node_name;

/// A GraphDef, decoded as far as its nodes.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    pub(crate) nodes: Vec<NodeDef>,
    pub(crate) functions: Vec<FunctionDef>,
    /// `versions.producer`; 0 if the file has none.
    pub(crate) producer_version: i32,
}

/// Splits `bytes`.
pub(super) fn split(bytes: &Bytes, options: &ImportOptions) -> Result<Parts, ImportError> {
    let mut parts = Parts::default();
    let mut rest = bytes.clone();
    while rest.has_remaining() {
        let offset = bytes.len() - rest.remaining();
        let place = || match parts.nodes.len() {
            0 => "this is not a GraphDef".to_owned(),
            n => format!("after node {n}"),
        };
        let (tag, wire_type) = decode_key(&mut rest).map_err(|e| malformed(place(), offset, &e))?;
        let is_message = wire_type == WireType::LengthDelimited;
        if matches!(tag, 1 | 2 | 4) && !is_message {
            return Err(ImportError::Malformed {
                place: place(),
                offset,
                problem: format!(
                    "field {tag} of a GraphDef must be a message, found {wire_type:?}"
                ),
            });
        }
        match tag {
            1 => {
                let index = parts.nodes.len();
                let message = take(&mut rest, offset, |part| node_place(index, part))?;
                let node = NodeDef::decode(message.clone())
                    .map_err(|e| malformed(node_place(index, &message), offset, &e))?;
                if index >= options.n_nodes_max {
                    return Err(ImportError::TooManyNodes {
                        node: String::from_utf8_lossy(&node.name).into_owned(),
                        limit: options.n_nodes_max,
                    });
                }
                check_name(index, &node)?;
                parts.nodes.push(node);
            }
            2 => {
                let library = take(&mut rest, offset, |_| "the function library".to_owned())?;
                split_library(library, offset, &mut parts.functions, options)?;
            }
            4 => {
                merge_version(&mut parts.producer_version, &mut rest, offset)?;
            }
            _ => skip_field(wire_type, tag, &mut rest, DecodeContext::default())
                .map_err(|e| malformed(place(), offset, &e))?,
        }
    }
    Ok(parts)
}

/// Returns `versions.producer` of a GraphDef without reading its nodes; 0 if it has none.
pub(super) fn producer_version(bytes: &Bytes) -> Result<i32, ImportError> {
    let mut version = 0;
    let mut rest = bytes.clone();
    while rest.has_remaining() {
        let offset = bytes.len() - rest.remaining();
        let error = |e: prost::DecodeError| malformed("a GraphDef".to_owned(), offset, &e);
        let (tag, wire_type) = decode_key(&mut rest).map_err(error)?;
        if tag == 4 && wire_type == WireType::LengthDelimited {
            merge_version(&mut version, &mut rest, offset)?;
        } else {
            skip_field(wire_type, tag, &mut rest, DecodeContext::default()).map_err(error)?;
        }
    }
    Ok(version)
}

/// Reads one of the `versions` messages; the last one with a producer wins, as whenever protobuf
/// merges messages.
fn merge_version(version: &mut i32, rest: &mut Bytes, offset: usize) -> Result<(), ImportError> {
    let place = || "the versions".to_owned();
    let message = take(rest, offset, |_| place())?;
    let versions = VersionDef::decode(message).map_err(|e| malformed(place(), offset, &e))?;
    if versions.producer != 0 {
        *version = versions.producer;
    }
    Ok(())
}

/// Splits a `FunctionDefLibrary`; gradients are skipped.
fn split_library(
    mut rest: Bytes,
    offset: usize,
    functions: &mut Vec<FunctionDef>,
    options: &ImportOptions,
) -> Result<(), ImportError> {
    // Functions and the nodes of their bodies take as much memory as nodes of the graph.
    let mut n_left = options.n_nodes_max;
    let place = |index: usize| format!("function {index} of the library");
    while rest.has_remaining() {
        let error = |e: prost::DecodeError, n: usize| malformed(place(n), offset, &e);
        let (tag, wire_type) = decode_key(&mut rest).map_err(|e| error(e, functions.len()))?;
        if tag == 1 && wire_type == WireType::LengthDelimited {
            let message = take(&mut rest, offset, |_| place(functions.len()))?;
            let function = FunctionDef::decode(message).map_err(|e| error(e, functions.len()))?;
            n_left = n_left
                .checked_sub(1 + function.node_def.len())
                .ok_or_else(|| ImportError::TooManyNodes {
                    node: place(functions.len()),
                    limit: options.n_nodes_max,
                })?;
            if function
                .signature
                .as_ref()
                .is_none_or(|s| s.name.is_empty())
            {
                let source = Box::new(ImportError::Signature("has no name".to_owned()));
                let function = place(functions.len());
                return Err(ImportError::Function { function, source });
            }
            functions.push(function);
        } else {
            skip_field(wire_type, tag, &mut rest, DecodeContext::default())
                .map_err(|e| error(e, functions.len()))?;
        }
    }
    Ok(())
}

/// Takes the message that starts here. `place` describes the position, from the bytes of the
/// message.
fn take(
    rest: &mut Bytes,
    offset: usize,
    place: impl Fn(&[u8]) -> String,
) -> Result<Bytes, ImportError> {
    let length = decode_varint(rest).map_err(|e| malformed(place(&[]), offset, &e))?;
    match usize::try_from(length) {
        Ok(length) if length <= rest.remaining() => Ok(rest.split_to(length)),
        _ => Err(ImportError::Malformed {
            place: place(rest),
            offset,
            problem: format!(
                "{length} bytes are expected, but the file ends after {} (is it truncated?)",
                rest.remaining()
            ),
        }),
    }
}

/// Returns, for example, `node 3 (`conv1`)`: the name is the first field of a node and often
/// readable even if the rest is not.
fn node_place(index: usize, message: &[u8]) -> String {
    let name = match message {
        [0x0a, length, rest @ ..] => rest.get(..usize::from(*length)),
        _ => None,
    };
    match name.map(std::str::from_utf8) {
        Some(Ok(name)) => format!("node {index} (`{name}`)"),
        _ => format!("node {index}"),
    }
}

fn malformed(place: String, offset: usize, error: &prost::DecodeError) -> ImportError {
    ImportError::Malformed {
        place,
        offset,
        problem: problem(error),
    }
}

/// Returns prost's message without the part that ours already contains.
pub(super) fn problem(error: &prost::DecodeError) -> String {
    let text = error.to_string();
    text.strip_prefix("failed to decode Protobuf message: ")
        .map_or(text.clone(), str::to_owned)
}

fn check_name(index: usize, node: &NodeDef) -> Result<(), ImportError> {
    if is_node_name(&node.name) {
        return Ok(());
    }
    Err(ImportError::InvalidName {
        index,
        name: String::from_utf8_lossy(&node.name).into_owned(),
    })
}
