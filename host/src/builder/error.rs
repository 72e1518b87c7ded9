//! Errors of the graph builder.

use crate::graph::GraphError;
use crate::names::NameError;
use crate::ops::ShapeError;
use crate::tensor::DType;
use crate::tensor::LiteralError;
use crate::tensor::PartialShape;
use crate::tensor::TensorError;

/// Why a node cannot be added or a handle cannot be used: where, what was expected, and what was
/// found. The graph stays unchanged.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The registry has no such op.
    #[error(
        "node `{node}`: op `{op}` is not known{}; register it in the OpRegistry if it is your own",
        suggest(.suggestion.as_deref())
    )]
    UnknownOp {
        /// The node.
        node: String,
        /// The op.
        op: String,
        /// An op whose name differs only by case.
        suggestion: Option<String>,
    },
    /// The name is not allowed for a node.
    #[error(
        "`{0}` is not a valid name of a node or scope; use letters, digits and `_ . - / >`, and do not start with `- / >`"
    )]
    InvalidName(String),
    /// The number of arguments differs from the op's.
    #[error("node `{node}` ({op}): the number of arguments is {found}, the op takes {expected}")]
    ArgumentCount {
        /// The node.
        node: String,
        /// Its op.
        op: String,
        /// What the op takes, as text.
        expected: String,
        /// Number of arguments.
        found: usize,
    },
    /// A tensor is passed where the op takes a list of tensors, or a list where it takes a tensor.
    #[error("node `{node}` ({op}): argument `{arg}` takes {expected}; pass it with `{method}`")]
    ArgumentKind {
        /// The node.
        node: String,
        /// Its op.
        op: String,
        /// The argument.
        arg: String,
        /// What it takes, as text.
        expected: &'static str,
        /// The method of [`super::OpBuilder`] to use.
        method: &'static str,
    },
    /// The number of tensors of an argument differs from an attribute.
    #[error(
        "node `{node}` ({op}): the number of tensors in argument `{arg}` is {found}, but attribute `{attr}` is {expected}"
    )]
    ListLength {
        /// The node.
        node: String,
        /// Its op.
        op: String,
        /// The argument.
        arg: String,
        /// The attribute.
        attr: String,
        /// Value of the attribute.
        expected: i64,
        /// Number of tensors.
        found: usize,
    },
    /// An argument has another type than the op takes.
    #[error(transparent)]
    ArgumentType(Box<TypeMismatch>),
    /// An attribute is missing, has another kind, or its value is not allowed.
    #[error("node `{node}` ({op}): attribute `{attr}` {problem}")]
    Attr {
        /// The node.
        node: String,
        /// Its op.
        op: String,
        /// The attribute.
        attr: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The shapes of the inputs do not match the op or each other.
    #[error("node `{node}` ({op}): {source}; input shapes are {inputs}")]
    Shape {
        /// The node.
        node: String,
        /// Its op.
        op: String,
        /// Shapes of all inputs.
        inputs: String,
        /// What does not match.
        r#source: ShapeError,
    },
    /// A node has too many outputs.
    #[error("node `{node}` ({op}): {found} outputs; at most {limit} are allowed")]
    TooManyOutputs {
        /// The node.
        node: String,
        /// Its op.
        op: String,
        /// Number of outputs that its attributes request.
        found: usize,
        /// Maximum number of outputs.
        limit: usize,
    },
    /// The values of a constant do not match its shape.
    #[error("node `{node}`: invalid constant: {source}")]
    Constant {
        /// The constant, or the node whose argument it is.
        node: String,
        /// What is wrong.
        r#source: LiteralError,
    },
    /// The host cannot read the tensor of a constant.
    #[error("node `{node}`: {source}")]
    Tensor {
        /// The constant.
        node: String,
        /// What is wrong.
        r#source: TensorError,
    },
    /// A handle belongs to another builder.
    #[error(
        "{place} belongs to another GraphBuilder; a handle is valid only for the builder that created it"
    )]
    Foreign {
        /// Use of the handle.
        place: String,
    },
    /// A value or operation of a body is used outside of it.
    #[error(
        "{place} belongs to {body} and exists only there; return the value as a result of the body"
    )]
    OtherBody {
        /// Use of the handle.
        place: String,
        /// The body, as text.
        body: String,
    },
    /// An operation in a body is colocated with one outside of it.
    #[error(
        "node `{node}` ({op}): the colocation target is outside of {body}; colocate inside of one body, or colocate the node that runs it"
    )]
    ColocatedOutside {
        /// The node.
        node: String,
        /// Its op.
        op: String,
        /// The body, as text.
        body: String,
    },
    /// A body returns another number of values than expected.
    #[error("node `{node}` ({op}): {body} returns {found} values, expected {expected}")]
    ResultCount {
        /// The node that runs the body.
        node: String,
        /// Its op.
        op: String,
        /// The body, as text.
        body: String,
        /// Expected number, with the reason.
        expected: String,
        /// Number of values that it returns.
        found: usize,
    },
    /// A body returns a value of another type than expected.
    #[error(
        "node `{node}` ({op}): result {result} of {body} is {found}, expected {expected} ({reason})"
    )]
    ResultType {
        /// The node that runs the body.
        node: String,
        /// Its op.
        op: String,
        /// The body, as text.
        body: Box<str>,
        /// Index of the result.
        result: usize,
        /// The expected type.
        expected: DType,
        /// Reason for the expected type.
        reason: Box<str>,
        /// Type of the result.
        found: DType,
    },
    /// A variable of a loop does not keep its shape.
    #[error(
        "node `{node}` ({op}): variable {variable} is {before} before an iteration and {after} after it; declare what is common to both by `WhileLoop::with_shape_invariants`"
    )]
    VariableShape {
        /// The loop.
        node: String,
        /// Its op.
        op: String,
        /// Index of the variable.
        variable: usize,
        /// What is known of its shape before an iteration.
        before: Box<PartialShape>,
        /// What is known of its shape after the iteration.
        after: Box<PartialShape>,
    },
    /// The arguments of a function are not those that its body takes.
    #[error("function `{function}`: {problem}")]
    Parameters {
        /// The function.
        function: String,
        /// What is wrong.
        problem: String,
    },
    /// A device name is invalid.
    #[error("{place}: {source}")]
    Device {
        /// The node or scope that requests it.
        place: String,
        /// What is wrong with its name.
        r#source: NameError,
    },
    /// A device function returned `None`.
    #[error(
        "node `{node}` ({op}): a device function returned `None`; return an empty string to request no device, or `NewOperation::device` to keep the requested one"
    )]
    NoDevice {
        /// The node.
        node: String,
        /// Its op.
        op: String,
    },
    /// The operation does not have this output.
    #[error("node `{node}` ({op}) has no output {slot}; its number of outputs is {n_outputs}")]
    NoSuchOutput {
        /// The node.
        node: String,
        /// Its op.
        op: String,
        /// The requested output.
        slot: u32,
        /// Number of outputs.
        n_outputs: usize,
    },
    /// The operation has no single output, so it has no value.
    #[error(
        "node `{node}` ({op}) has {n_outputs} outputs; end with `finish` and take them with `Scope::output`"
    )]
    NotOneOutput {
        /// The node.
        node: String,
        /// Its op.
        op: String,
        /// Number of outputs.
        n_outputs: usize,
    },
    /// The output has another type than requested.
    #[error("`{tensor}` ({op}) is {found}, not {expected}")]
    OutputType {
        /// `node:output`.
        tensor: String,
        /// The op that produces it.
        op: String,
        /// The requested type.
        expected: DType,
        /// Its type.
        found: DType,
    },
    /// The builder's `finish` was called.
    #[error("the graph is finished; its scopes can no longer be used")]
    Finished,
    /// The graph exceeds 32-bit ids.
    #[error(transparent)]
    Graph(#[from] GraphError),
}

/// An argument has another type than the op takes.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error(
    "node `{node}` ({op}): argument `{arg}` takes {}{expected}{reason}, but `{producer}` is {}{found}",
    reference(*.expected_ref), reference(*.found_ref)
)]
pub struct TypeMismatch {
    /// The node.
    pub node: String,
    /// Its op.
    pub op: String,
    /// The argument, with the position in its list.
    pub arg: String,
    /// The type it takes.
    pub expected: DType,
    /// Whether it takes a reference.
    pub expected_ref: bool,
    /// Reason for the expected type, in parentheses; may be empty.
    pub reason: String,
    /// `node:output` of the producer.
    pub producer: String,
    /// Type of the producer's output.
    pub found: DType,
    /// Whether the output is a reference.
    pub found_ref: bool,
}

fn suggest(suggestion: Option<&str>) -> String {
    suggestion.map_or_else(String::new, |name| format!(" (`{name}` is)"))
}

fn reference(is_ref: bool) -> &'static str {
    if is_ref { "a reference to " } else { "" }
}
