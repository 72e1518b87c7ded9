//! Reads the attributes of a node, checks them against the op's definition, and adds defaults.

use std::sync::Arc;

use bytes::Bytes;
use hashbrown::HashMap;
use prost::Message;

use super::ImportError;
use super::error::AttrError;
use super::proto;
use super::proto::AttrEntry;
use super::proto::Value;
use super::tensor;
use super::wire::problem;
use crate::graph::AttrSet;
use crate::graph::AttrValue;
use crate::ops::AttrFault;
use crate::ops::OpDef;
use crate::tensor::Literal;
use crate::tensor::LiteralData;
use crate::tensor::Procedural;

/// Maximum nesting of functions in attributes.
const DEPTH_MAX: usize = 32;

/// Converts attributes. One reader per import shares names and limits lists in proportion to the
/// file.
pub(super) struct AttrReader {
    names: HashMap<Box<str>, Arc<str>>,
    n_list_elements_left: usize,
    /// Values of constants that are not in the file, by node.
    values: HashMap<String, Literal>,
}

/// The node of an attribute, for errors.
#[derive(Clone, Copy)]
pub(super) struct Owner<'a> {
    pub(super) node: &'a str,
    pub(super) op: &'a str,
}

impl Owner<'_> {
    pub(super) fn error(self, attr: &str, source: AttrError) -> ImportError {
        ImportError::Attr {
            node: self.node.to_owned(),
            op: self.op.to_owned(),
            attr: attr.to_owned(),
            source: Box::new(source),
        }
    }
}

impl AttrReader {
    /// Returns a reader for a file of this size. Elements of lists, except numbers, take at least
    /// two bytes in the file and more than 64 here; a graph has no use for lists of millions of
    /// elements.
    pub(super) fn new(file_size_bytes: usize) -> Self {
        Self {
            names: HashMap::new(),
            n_list_elements_left: (1 << 20) + file_size_bytes / 16,
            values: HashMap::new(),
        }
    }

    /// Sets the values of constants that are not in the file, by node.
    pub(super) fn with_values(mut self, values: HashMap<String, Literal>) -> Self {
        self.values = values;
        self
    }

    /// Returns all attributes of a node, complete and checked against its op.
    pub(super) fn read(
        &mut self,
        owner: Owner<'_>,
        entries: &[AttrEntry],
        op: &OpDef,
    ) -> Result<AttrSet, ImportError> {
        let mut attrs = self.convert_all(owner, entries)?;
        if owner.op == "Const" {
            if let Some(value) = self.values.get(owner.node)
                && attrs.iter().all(|(name, _)| **name != *"value")
            {
                let value = AttrValue::Tensor(Arc::new(value.clone()));
                attrs.push((self.name("value"), value));
            }
            expand_procedural(&mut attrs).map_err(|error| owner.error("_proc", error))?;
        }
        attrs.retain(|(name, value)| {
            op.attr(name).is_some() || name.starts_with('_') || !is_neutral(value)
        });
        op.complete_attrs(attrs).map_err(|(name, fault)| {
            let error = match fault {
                AttrFault::Missing => {
                    AttrError::Missing(op.attr(&name).map(ToString::to_string).unwrap_or_default())
                }
                AttrFault::Unknown => AttrError::Unknown,
                AttrFault::Invalid(problem) => AttrError::Invalid(problem),
            };
            owner.error(&name, error)
        })
    }

    /// Returns all attributes, unchecked.
    pub(super) fn convert_all(
        &mut self,
        owner: Owner<'_>,
        entries: &[AttrEntry],
    ) -> Result<Vec<(Arc<str>, AttrValue)>, ImportError> {
        let mut attrs = Vec::with_capacity(entries.len());
        for entry in entries {
            let key = String::from_utf8_lossy(&entry.key);
            let value = self
                .convert(&entry.value, 0)
                .map_err(|error| owner.error(&key, error))?;
            attrs.push((self.name(&key), value));
        }
        Ok(attrs)
    }

    /// Converts one encoded value.
    pub(super) fn convert(
        &mut self,
        encoded: &Bytes,
        depth: usize,
    ) -> Result<AttrValue, AttrError> {
        let decoded = proto::AttrValue::decode(encoded.clone())
            .map_err(|error| AttrError::Malformed(problem(&error)))?;
        let Some(value) = decoded.value else {
            // The empty list, as GraphDefs of versions up to 4 write it; other attributes refuse it
            // as a list.
            return Ok(AttrValue::List([].into()));
        };
        Ok(match value {
            Value::List(list) => self.convert_list(&list, depth)?,
            Value::S(bytes) => AttrValue::Bytes((*bytes).into()),
            Value::I(value) => AttrValue::Int(value),
            Value::F(value) => AttrValue::Float(value),
            Value::B(value) => AttrValue::Bool(value),
            Value::Type(number) => type_value(number)?,
            Value::Shape(shape) => AttrValue::Shape(tensor::shape(&shape)?),
            Value::Tensor(proto) => AttrValue::Tensor(Arc::new(tensor::literal(&proto)?)),
            Value::Placeholder(name) => AttrValue::Placeholder(text(&name)?.into()),
            Value::Func(func) => self.convert_func(&func, depth)?,
        })
    }

    fn convert_list(
        &mut self,
        list: &proto::ListValue,
        depth: usize,
    ) -> Result<AttrValue, AttrError> {
        let lengths = [
            list.s.len(),
            list.i.len(),
            list.f.len(),
            list.b.len(),
            list.r#type.len(),
            list.shape.len(),
            list.tensor.len(),
            list.func.len(),
        ];
        if lengths.iter().filter(|&&length| length > 0).count() > 1 {
            return Err(AttrError::Malformed("a list of mixed kinds".to_owned()));
        }
        let n_elements: usize = lengths.iter().sum();
        self.n_list_elements_left = self
            .n_list_elements_left
            .checked_sub(n_elements)
            .ok_or_else(|| {
                AttrError::Invalid(
                    "lists more elements than a file of this size can need".to_owned(),
                )
            })?;
        let mut values = Vec::with_capacity(n_elements);
        values.extend(
            list.s
                .iter()
                .map(|bytes| AttrValue::Bytes((**bytes).into())),
        );
        values.extend(list.i.iter().map(|&value| AttrValue::Int(value)));
        values.extend(list.f.iter().map(|&value| AttrValue::Float(value)));
        values.extend(list.b.iter().map(|&value| AttrValue::Bool(value)));
        for &number in &list.r#type {
            values.push(type_value(number)?);
        }
        for shape in &list.shape {
            values.push(AttrValue::Shape(tensor::shape(shape)?));
        }
        for encoded in &list.tensor {
            let decoded = proto::TensorProto::decode(encoded.clone())
                .map_err(|error| AttrError::Malformed(problem(&error)))?;
            values.push(AttrValue::Tensor(Arc::new(tensor::literal(&decoded)?)));
        }
        for func in &list.func {
            values.push(self.convert_func(func, depth)?);
        }
        Ok(AttrValue::List(values.into()))
    }

    fn convert_func(
        &mut self,
        func: &proto::NameAttrList,
        depth: usize,
    ) -> Result<AttrValue, AttrError> {
        if depth >= DEPTH_MAX {
            return Err(AttrError::TooDeep(DEPTH_MAX));
        }
        let mut attrs = Vec::with_capacity(func.attr.len());
        for entry in &func.attr {
            let value = self.convert(&entry.value, depth + 1)?;
            attrs.push((self.name(text(&entry.key)?), value));
        }
        Ok(AttrValue::Function(
            text(&func.name)?.into(),
            AttrSet::new(attrs),
        ))
    }

    fn name(&mut self, name: &str) -> Arc<str> {
        if let Some(known) = self.names.get(name) {
            return Arc::clone(known);
        }
        let shared: Arc<str> = name.into();
        self.names.insert(name.into(), Arc::clone(&shared));
        shared
    }
}

/// Replaces the empty value of a procedural constant by its formula.
fn expand_procedural(attrs: &mut Vec<(Arc<str>, AttrValue)>) -> Result<(), AttrError> {
    let position = |wanted: &str| attrs.iter().position(|(name, _)| **name == *wanted);
    let Some(formula) = position("_proc") else {
        return Ok(());
    };
    let AttrValue::Bytes(formula) = &attrs[formula].1 else {
        return Err(AttrError::Invalid(format!(
            "must be of kind string, found {}",
            attrs[formula].1.kind()
        )));
    };
    let formula = Procedural::parse(&String::from_utf8_lossy(formula))?;
    let Some((_, AttrValue::Tensor(value))) = position("value").map(|i| &attrs[i]) else {
        return Err(AttrError::Invalid("has no value beside it".to_owned()));
    };
    let is_empty = match value.data() {
        LiteralData::RepeatLast(bytes) => (**bytes).as_ref().is_empty(),
        _ => false,
    };
    if !is_empty {
        return Err(AttrError::Invalid(
            "stands beside a value that has elements of its own".to_owned(),
        ));
    }
    let literal = Literal::new(
        value.dtype(),
        value.shape().clone(),
        LiteralData::Procedural(formula),
    )?;
    attrs.retain(|(name, _)| !matches!(&**name, "_proc" | "value"));
    attrs.push(("value".into(), AttrValue::Tensor(Arc::new(literal))));
    Ok(())
}

/// Returns whether an attribute that the op does not have may be dropped: newer producers write new
/// attributes with values that mean the same as their absence.
fn is_neutral(value: &AttrValue) -> bool {
    match value {
        AttrValue::Bool(value) => !value,
        AttrValue::Int(value) => *value == 0,
        AttrValue::Float(value) => *value == 0.0,
        AttrValue::Bytes(value) => value.is_empty(),
        AttrValue::List(values) => values.is_empty(),
        AttrValue::Function(name, _) => name.is_empty(),
        _ => false,
    }
}

fn type_value(number: i32) -> Result<AttrValue, AttrError> {
    let (dtype, is_ref) = tensor::dtype(number)?;
    Ok(AttrValue::Type { dtype, is_ref })
}

pub(super) fn text(bytes: &[u8]) -> Result<&str, AttrError> {
    std::str::from_utf8(bytes).map_err(|_| {
        AttrError::Malformed(format!("`{}` is not UTF-8", String::from_utf8_lossy(bytes)))
    })
}
