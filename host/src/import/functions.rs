//! The function library: signatures become ops that nodes may call; bodies are kept unchanged.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use hashbrown::HashMap;

use super::ImportError;
use super::attrs::AttrReader;
use super::attrs::Owner;
use super::error::AttrError;
use super::proto;
use super::tensor;
use crate::graph::AttrSet;
use crate::graph::AttrValue;
use crate::graph::Function;
use crate::graph::FunctionArg;
use crate::graph::FunctionNode;
use crate::ops::ArgDef;
use crate::ops::ArgType;
use crate::ops::AttrDef;
use crate::ops::OpDef;
use crate::ops::OpRegistry;

/// Attributes are looked up by linear search; TensorFlow's largest op has about thirty.
const SIGNATURE_ATTRS_MAX: usize = 1000;

/// Every op that a node may use: registered ones, and functions of the library.
pub(super) struct Ops<'a> {
    registry: &'a OpRegistry,
    functions: HashMap<Arc<str>, Arc<OpDef>>,
}

impl<'a> Ops<'a> {
    /// Reads the signatures.
    pub(super) fn new(
        registry: &'a OpRegistry,
        library: &[proto::FunctionDef],
        reader: &mut AttrReader,
    ) -> Result<Self, ImportError> {
        let mut functions = HashMap::with_capacity(library.len());
        for function in library {
            let signature = function.signature.clone().unwrap_or_default();
            let name: Arc<str> = signature.name.as_str().into();
            let op = read_signature(&signature, reader).map_err(|e| within(&name, e))?;
            let is_taken = registry.get(&name).is_some();
            if functions.insert(Arc::clone(&name), Arc::new(op)).is_some() || is_taken {
                return Err(ImportError::DuplicateFunction(name.to_string()));
            }
        }
        Ok(Self {
            registry,
            functions,
        })
    }

    pub(super) fn get(&self, op: &str) -> Option<&Arc<OpDef>> {
        self.registry.get(op).or_else(|| self.functions.get(op))
    }

    /// Returns the attributes of a node, checked; the functions that they name are in the library.
    pub(super) fn read_attrs(
        &self,
        owner: Owner<'_>,
        entries: &[proto::AttrEntry],
        op: &OpDef,
        reader: &mut AttrReader,
    ) -> Result<AttrSet, ImportError> {
        let attrs = reader.read(owner, entries, op)?;
        for (name, value) in attrs.iter().filter(|(name, _)| op.attr(name).is_some()) {
            let values = match value {
                AttrValue::List(values) => values,
                value => std::slice::from_ref(value),
            };
            for value in values {
                if let AttrValue::Function(function, _) = value
                    && self.get(function).is_none()
                {
                    let error = AttrError::UnknownFunction(function.to_string());
                    return Err(owner.error(name, error));
                }
            }
        }
        Ok(attrs)
    }

    /// Collects the functions of a node: its op, and those that its attributes name.
    pub(super) fn called(&self, op: &str, attrs: &AttrSet, called: &mut Vec<Arc<str>>) {
        if let Some((name, _)) = self.functions.get_key_value(op) {
            called.push(Arc::clone(name));
        }
        attrs.iter().for_each(|(_, value)| named(value, called));
    }

    /// Reads the library with its bodies. A function that is not reachable from `called` may
    /// contain unknown ops (frozen graphs still contain savers and loaders of checkpoints); it is
    /// left out.
    pub(super) fn read_functions(
        &self,
        library: &[proto::FunctionDef],
        mut called: Vec<Arc<str>>,
        reader: &mut AttrReader,
    ) -> Result<Vec<Function>, ImportError> {
        let name = |function: &proto::FunctionDef| -> Box<str> {
            let signature = function.signature.as_ref();
            signature.map_or("", |signature| &signature.name).into()
        };
        let index_of: HashMap<Box<str>, usize> = library.iter().map(name).zip(0..).collect();
        let mut read: Vec<Option<Function>> = library.iter().map(|_| None).collect();
        while let Some(name) = called.pop() {
            let Some(&index) = index_of.get(&*name) else {
                continue;
            };
            if read[index].is_none() {
                let function = self.read_function(&library[index], reader)?;
                for node in &function.nodes {
                    self.called(&node.op, &node.attrs, &mut called);
                }
                read[index] = Some(function);
            }
        }
        for (function, read) in library.iter().zip(&mut read) {
            if read.is_none() {
                *read = match self.read_function(function, reader) {
                    Err(ImportError::Function { source, .. })
                        if matches!(*source, ImportError::UnknownOp { .. }) =>
                    {
                        None
                    }
                    function => Some(function?),
                };
            }
        }
        Ok(read.into_iter().flatten().collect())
    }

    /// Reads a function with its body. Nodes of the body are checked as far as possible before
    /// instantiation: their ops are known, and their attributes match the ops or refer to
    /// attributes of the function.
    fn read_function(
        &self,
        function: &proto::FunctionDef,
        reader: &mut AttrReader,
    ) -> Result<Function, ImportError> {
        let signature = function.signature.clone().unwrap_or_default();
        let mut read = || {
            let nodes: Result<Vec<_>, ImportError> = function
                .node_def
                .iter()
                .map(|node| self.read_node(node, reader))
                .collect();
            let nodes =
                nodes.map_err(|error| self.with_other_unknown(error, &function.node_def))?;
            let owner = Owner {
                node: "the function itself",
                op: &signature.name,
            };
            let attrs = AttrSet::new(reader.convert_all(owner, &function.attr)?);
            let given = function.ret.iter();
            let given: HashMap<&str, &str> = given
                .map(|entry| (entry.key.as_str(), entry.value.as_str()))
                .collect();
            let returned = |result: &proto::ArgDef| {
                let name = result.name.as_str();
                given
                    .get(name)
                    .map(|&value| (name.into(), value.into()))
                    .ok_or_else(|| {
                        ImportError::Signature(format!(
                            "has result `{}`, but no node is assigned to it",
                            result.name
                        ))
                    })
            };
            let returns: Result<Vec<_>, ImportError> =
                signature.output_arg.iter().map(returned).collect();
            let control = function.control_ret.iter();
            Ok(Function {
                name: signature.name.as_str().into(),
                args: args(&signature.input_arg)?,
                results: args(&signature.output_arg)?,
                nodes,
                returns: returns?,
                control_returns: control
                    .map(|entry| (entry.key.as_str().into(), entry.value.as_str().into()))
                    .collect(),
                attrs,
                stateful: signature.is_stateful,
            })
        };
        read().map_err(|error| within(&signature.name, error))
    }

    /// Adds to the error for an unknown op the other unknown ops of these nodes.
    pub(super) fn with_other_unknown(
        &self,
        error: ImportError,
        nodes: &[proto::NodeDef],
    ) -> ImportError {
        let ImportError::UnknownOp { node, op, .. } = error else {
            return error;
        };
        let ops = nodes.iter().map(|node| String::from_utf8_lossy(&node.op));
        let unknown = ops.filter(|other| **other != *op && self.get(other).is_none());
        let unknown: BTreeSet<_> = unknown.collect();
        ImportError::UnknownOp {
            node,
            op,
            others: unknown.into_iter().map(Cow::into_owned).collect(),
        }
    }

    fn read_node(
        &self,
        node: &proto::NodeDef,
        reader: &mut AttrReader,
    ) -> Result<FunctionNode, ImportError> {
        let text = |bytes: &[u8]| -> Arc<str> { String::from_utf8_lossy(bytes).into() };
        let (name, op_name) = (text(&node.name), text(&node.op));
        let op = self.get(&op_name).ok_or_else(|| ImportError::UnknownOp {
            node: name.to_string(),
            op: op_name.to_string(),
            others: Vec::new(),
        })?;
        let owner = Owner {
            node: &name,
            op: &op_name,
        };
        let attrs = self.read_attrs(owner, &node.attr, op, reader)?;
        Ok(FunctionNode {
            inputs: node.input.iter().map(|input| text(input)).collect(),
            device: text(&node.device),
            attrs,
            name,
            op: op_name,
        })
    }
}

/// Drops functions that repeat an earlier one, equal in everything that is read: GraphDefs that are
/// merged often contain the same functions.
pub(super) fn drop_repeated(library: &mut Vec<proto::FunctionDef>) -> Result<(), ImportError> {
    let mut first: HashMap<String, usize> = HashMap::with_capacity(library.len());
    let mut is_kept = Vec::with_capacity(library.len());
    for (index, function) in library.iter().enumerate() {
        let name = function.signature.as_ref().map_or("", |s| &s.name);
        let first = *first.entry_ref(name).or_insert(index);
        if first != index && !is_same(&library[first], function) {
            return Err(ImportError::DuplicateFunction(name.to_owned()));
        }
        is_kept.push(first == index);
    }
    let mut is_kept = is_kept.into_iter();
    library.retain(|_| is_kept.next().unwrap_or(true));
    Ok(())
}

/// Returns whether two definitions are equal. Entries of maps have no order.
fn is_same(left: &proto::FunctionDef, right: &proto::FunctionDef) -> bool {
    let ordered = |function: &proto::FunctionDef| {
        let mut function = function.clone();
        let attrs = function.node_def.iter_mut().map(|node| &mut node.attr);
        for attrs in attrs.chain([&mut function.attr]) {
            attrs.sort_by(|left, right| left.key.cmp(&right.key));
        }
        for entries in [&mut function.ret, &mut function.control_ret] {
            entries.sort_by(|left, right| left.key.cmp(&right.key));
        }
        function
    };
    left == right || ordered(left) == ordered(right)
}

/// Collects the functions that an attribute names, and those that their attributes name.
fn named(value: &AttrValue, names: &mut Vec<Arc<str>>) {
    match value {
        AttrValue::Function(name, attrs) => {
            names.push(Arc::clone(name));
            attrs.iter().for_each(|(_, value)| named(value, names));
        }
        AttrValue::List(values) => values.iter().for_each(|value| named(value, names)),
        _ => {}
    }
}

fn within(function: &str, error: ImportError) -> ImportError {
    ImportError::Function {
        function: function.to_owned(),
        source: Box::new(error),
    }
}

/// Converts the signature to an op that nodes may call by the function's name.
fn read_signature(signature: &proto::OpDef, reader: &mut AttrReader) -> Result<OpDef, ImportError> {
    if signature.name.is_empty() {
        return Err(ImportError::Signature("has no name".to_owned()));
    }
    if signature.attr.len() > SIGNATURE_ATTRS_MAX {
        return Err(ImportError::Signature(format!(
            "has {} attributes; at most {SIGNATURE_ATTRS_MAX} are allowed",
            signature.attr.len()
        )));
    }
    let attrs: Result<Vec<_>, ImportError> = signature
        .attr
        .iter()
        .map(|attr| read_attr_def(attr, signature, reader))
        .collect();
    let arg_defs = |args: &[proto::ArgDef]| -> Result<Vec<ArgDef>, ImportError> {
        args.iter().map(read_arg).collect()
    };
    let op = OpDef::from_parts(
        signature.name.as_str().into(),
        arg_defs(&signature.input_arg)?,
        arg_defs(&signature.output_arg)?,
        attrs?,
    );
    Ok(if signature.is_stateful {
        op.stateful()
    } else {
        op
    })
}

fn read_attr_def(
    attr: &proto::AttrDef,
    signature: &proto::OpDef,
    reader: &mut AttrReader,
) -> Result<AttrDef, ImportError> {
    let owner = Owner {
        node: "the signature",
        op: &signature.name,
    };
    let mut definition = AttrDef::parse(&format!("{}: {}", attr.name, attr.r#type))
        .map_err(|problem| owner.error(&attr.name, AttrError::Malformed(problem)))?;
    definition.minimum = attr.has_minimum.then_some(attr.minimum);
    let default = attr.default_value.as_ref();
    definition.default = default
        .map(|value| reader.convert(value, 0))
        .transpose()
        .map_err(|error| owner.error(&attr.name, error))?;
    Ok(definition)
}

fn read_arg(arg: &proto::ArgDef) -> Result<ArgDef, ImportError> {
    let optional = |text: &str| (!text.is_empty()).then(|| Arc::<str>::from(text));
    if !arg.type_list_attr.is_empty() && !arg.number_attr.is_empty() {
        return Err(ImportError::Signature(format!(
            "has argument `{}` that is both a list of types and a number of one type",
            arg.name
        )));
    }
    let dtype = match (optional(&arg.type_list_attr), optional(&arg.type_attr)) {
        (Some(attr), _) => ArgType::ListAttr(attr),
        (None, Some(attr)) => ArgType::Attr(attr),
        (None, None) => {
            let (dtype, _) = tensor::dtype(arg.r#type).map_err(|error| {
                ImportError::Signature(format!("has argument `{}` that {error}", arg.name))
            })?;
            ArgType::Fixed(dtype)
        }
    };
    Ok(ArgDef {
        name: arg.name.as_str().into(),
        dtype,
        number_attr: optional(&arg.number_attr),
        is_ref: arg.is_ref || arg.r#type > 100,
    })
}

fn args(args: &[proto::ArgDef]) -> Result<Vec<FunctionArg>, ImportError> {
    args.iter()
        .map(|proto| {
            let arg = read_arg(proto)?;
            let dtype = match &arg.dtype {
                ArgType::Fixed(dtype) => dtype.name(),
                ArgType::Attr(attr) | ArgType::ListAttr(attr) => attr,
            };
            let spec = match &arg.number_attr {
                Some(number) => format!("{number} * {dtype}").into(),
                None => dtype.into(),
            };
            Ok(FunctionArg {
                name: arg.name,
                spec,
                is_ref: arg.is_ref,
            })
        })
        .collect()
}
