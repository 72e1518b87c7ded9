//! The function library, unchanged until calls are placed and executed.

use std::sync::Arc;

use super::AttrSet;

/// A function (TensorFlow `FunctionDef`).
#[derive(Debug, Clone)]
pub struct Function {
    /// Name, unique in the library.
    pub name: Arc<str>,
    /// Arguments, in order.
    pub args: Vec<FunctionArg>,
    /// Results, in order.
    pub results: Vec<FunctionArg>,
    /// Body, in file order.
    pub nodes: Vec<FunctionNode>,
    /// (result, `node:output:index`) pairs, in the order of `results`.
    pub returns: Vec<(Arc<str>, Arc<str>)>,
    /// Nodes that must run although no result depends on them: (name of the control output, node).
    pub control_returns: Vec<(Arc<str>, Arc<str>)>,
    /// Attributes of the function itself.
    pub attrs: AttrSet,
    /// Whether running it twice differs from running it once.
    pub stateful: bool,
}

/// An argument or result of a function (TensorFlow `OpDef.ArgDef`).
#[derive(Debug, Clone)]
pub struct FunctionArg {
    /// Name, unique among the arguments, or results.
    pub name: Arc<str>,
    /// `float`, the name of an attribute, or `T * N`, as in an op definition.
    pub spec: Arc<str>,
    /// Whether it is a reference.
    pub is_ref: bool,
}

/// A node of a function body; inputs are `arg`, `node:output:index` or `^node`.
#[derive(Debug, Clone)]
pub struct FunctionNode {
    /// Name, unique in the body.
    pub name: Arc<str>,
    /// Op, or function.
    pub op: Arc<str>,
    /// Inputs, control inputs last.
    pub inputs: Vec<Arc<str>>,
    /// Requested device; empty means no request.
    pub device: Arc<str>,
    /// Attributes.
    pub attrs: AttrSet,
}
