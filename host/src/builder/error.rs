//! Why a node cannot be added to a graph.

use crate::graph::GraphError;
use crate::names::NameError;
use crate::ops::ShapeError;
use crate::tensor::DType;
use crate::tensor::LiteralError;
use crate::tensor::TensorError;

/// Why a node cannot be added, or a handle not be used: where, what was expected and what was
/// found. The graph is as it was before.
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
        /// An op whose name differs by case alone.
        suggestion: Option<String>,
    },
    /// No node may be called so.
    #[error(
        "`{0}` is no name of a node or scope; letters, digits and `_ . - / >` are, where they do not start with `- / >`"
    )]
    InvalidName(String),
    /// More or fewer arguments than the op takes.
    #[error("node `{node}` ({op}): the number of arguments is {found}, the op takes {expected}")]
    ArgumentCount {
        /// The node.
        node: String,
        /// Its op.
        op: String,
        /// What the op takes, in words.
        expected: String,
        /// How many were given.
        found: usize,
    },
    /// A tensor where the op takes a list of tensors, or the other way round.
    #[error("node `{node}` ({op}): argument `{arg}` takes {expected}; give it with `{method}`")]
    ArgumentKind {
        /// The node.
        node: String,
        /// Its op.
        op: String,
        /// The argument.
        arg: String,
        /// What it takes, in words.
        expected: &'static str,
        /// The method of the node's builder.
        method: &'static str,
    },
    /// An argument has another number of tensors than an attribute says.
    #[error(
        "node `{node}` ({op}): the number of tensors in argument `{arg}` is {found}, attribute `{attr}` says {expected}"
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
        /// What it says.
        expected: i64,
        /// How many there are.
        found: usize,
    },
    /// An argument of another type than the op takes.
    #[error(transparent)]
    ArgumentType(Box<TypeMismatch>),
    /// An attribute that is missing, of another kind, or not allowed.
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
    /// The shapes of the inputs do not fit the op or each other.
    #[error("node `{node}` ({op}): {source}; input shapes are {inputs}")]
    Shape {
        /// The node.
        node: String,
        /// Its op.
        op: String,
        /// Shapes of all inputs.
        inputs: String,
        /// What does not fit.
        r#source: ShapeError,
    },
    /// More outputs than a node may have.
    #[error("node `{node}` ({op}): {found} outputs, the most is {limit}")]
    TooManyOutputs {
        /// The node.
        node: String,
        /// Its op.
        op: String,
        /// What its attributes ask for.
        found: usize,
        /// The most.
        limit: usize,
    },
    /// A constant whose values do not fit its shape.
    #[error("node `{node}`: a constant that is none: {source}")]
    Constant {
        /// The constant, or the node that it is an argument of.
        node: String,
        /// What is wrong.
        r#source: LiteralError,
    },
    /// A constant from a tensor that the host cannot read.
    #[error("node `{node}`: {source}")]
    Tensor {
        /// The constant.
        node: String,
        /// What is wrong.
        r#source: TensorError,
    },
    /// A handle of another builder.
    #[error(
        "{place} is a handle of another GraphBuilder; a handle is good for the builder that made it"
    )]
    Foreign {
        /// What it was given as.
        place: String,
    },
    /// A device that is none.
    #[error("{place}: {source}")]
    Device {
        /// The node or scope that asks for it.
        place: String,
        /// What is wrong with its name.
        r#source: NameError,
    },
    /// A device function that gave no device; one that wants none gives an empty text.
    #[error(
        "node `{node}` ({op}): a device function gave nothing; an empty text asks for no device, and the operation's own leaves it"
    )]
    NoDevice {
        /// The node.
        node: String,
        /// Its op.
        op: String,
    },
    /// An output that the operation does not have.
    #[error("node `{node}` ({op}) has no output {slot}, it has {n_outputs}")]
    NoSuchOutput {
        /// The node.
        node: String,
        /// Its op.
        op: String,
        /// The output asked for.
        slot: u32,
        /// How many it has.
        n_outputs: usize,
    },
    /// The value of an operation that has more than one output, or none.
    #[error(
        "node `{node}` ({op}) has {n_outputs} outputs; end with `finish` and take them with `Scope::output`"
    )]
    NotOneOutput {
        /// The node.
        node: String,
        /// Its op.
        op: String,
        /// How many it has.
        n_outputs: usize,
    },
    /// An output of another type than asked for.
    #[error("`{tensor}` ({op}) is {found}, not {expected}")]
    OutputType {
        /// `node:output`.
        tensor: String,
        /// The op that makes it.
        op: String,
        /// The type asked for.
        expected: DType,
        /// The type it has.
        found: DType,
    },
    /// The builder's `finish` was called.
    #[error("the graph is finished; nothing can be added to it, or asked of it, through a scope")]
    Finished,
    /// The graph grew beyond what 32-bit ids can name.
    #[error(transparent)]
    Graph(#[from] GraphError),
}

/// An argument of another type than the op takes.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error(
    "node `{node}` ({op}): argument `{arg}` takes {}{expected}{reason}, `{producer}` gives {}{found}",
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
    /// Why it takes that type, in parentheses, or nothing.
    pub reason: String,
    /// `node:output` of the producer.
    pub producer: String,
    /// The type it gives.
    pub found: DType,
    /// Whether it gives a reference.
    pub found_ref: bool,
}

fn suggest(suggestion: Option<&str>) -> String {
    suggestion.map_or_else(String::new, |name| format!(" (`{name}` is)"))
}

fn reference(is_ref: bool) -> &'static str {
    if is_ref { "a reference to " } else { "" }
}
