//! Attributes of nodes, checked as kernels need them.

use crate::device::KernelConstruction;
use crate::device::KernelError;
use crate::graph::AttrValue;
use crate::tensor::DType;

/// Returns the error for an attribute that is missing or of the wrong kind.
pub(in crate::backend) fn bad_attr(
    node: &KernelConstruction<'_>,
    name: &str,
    expected: &str,
) -> KernelError {
    let found = node.attrs.get(name).map_or("is missing", AttrValue::kind);
    KernelError::invalid(format!(
        "attribute `{name}` of {} should be a {expected}, found: {found}",
        node.op
    ))
}

/// Returns attribute `name`, a type.
pub(in crate::backend) fn type_attr(
    node: &KernelConstruction<'_>,
    name: &str,
) -> Result<DType, KernelError> {
    node.attrs
        .dtype(name)
        .ok_or_else(|| bad_attr(node, name, "type"))
}

/// Returns attribute `name`, a boolean; `default` if it is missing.
pub(in crate::backend) fn bool_attr(
    node: &KernelConstruction<'_>,
    name: &str,
    default: bool,
) -> Result<bool, KernelError> {
    match node.attrs.get(name) {
        None => Ok(default),
        Some(AttrValue::Bool(value)) => Ok(*value),
        Some(_) => Err(bad_attr(node, name, "bool")),
    }
}

/// Returns attribute `name`, a string; `default` if it is missing.
pub(in crate::backend) fn string_attr<'a>(
    node: &KernelConstruction<'a>,
    name: &str,
    default: &'a str,
) -> Result<&'a str, KernelError> {
    match node.attrs.get(name) {
        None => Ok(default),
        Some(_) => node
            .attrs
            .text(name)
            .ok_or_else(|| bad_attr(node, name, "string")),
    }
}

/// Returns attribute `name`, a list of integers; `default` if it is missing.
pub(in crate::backend) fn ints_attr(
    node: &KernelConstruction<'_>,
    name: &str,
    default: &[i64],
) -> Result<Vec<i64>, KernelError> {
    match node.attrs.get(name) {
        None => Ok(default.to_vec()),
        Some(_) => node
            .attrs
            .ints(name)
            .ok_or_else(|| bad_attr(node, name, "list(int)")),
    }
}

/// Returns attribute `name`, an integer; `default` if it is missing.
pub(in crate::backend) fn int_attr(
    node: &KernelConstruction<'_>,
    name: &str,
    default: Option<i64>,
) -> Result<i64, KernelError> {
    match (node.attrs.get(name), default) {
        (None, Some(default)) => Ok(default),
        (Some(AttrValue::Int(value)), _) => Ok(*value),
        _ => Err(bad_attr(node, name, "int")),
    }
}

/// Returns attribute `name`, a float; `default` if it is missing.
pub(in crate::backend) fn float_attr(
    node: &KernelConstruction<'_>,
    name: &str,
    default: f32,
) -> Result<f32, KernelError> {
    match node.attrs.get(name) {
        None => Ok(default),
        Some(AttrValue::Float(value)) => Ok(*value),
        Some(_) => Err(bad_attr(node, name, "float")),
    }
}
