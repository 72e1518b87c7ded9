//! Errors of the importer.

use crate::graph::GraphError;
use crate::ops::ShapeError;
use crate::tensor::DType;
use crate::tensor::LiteralError;

/// Why a GraphDef cannot be imported: where it is wrong, what is wrong, and if possible the remedy.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// The file is empty or contains no nodes.
    #[error("the graph has no nodes")]
    Empty,
    /// The file has another format.
    #[error("this looks like {found}, not like a binary GraphDef; {remedy}")]
    OtherFormat {
        /// The format that it resembles.
        found: &'static str,
        /// The remedy.
        remedy: &'static str,
    },
    /// The file is larger than [`super::ImportOptions::size_bytes_max`].
    #[error(
        "the GraphDef has {size_bytes} bytes; the limit is {limit_bytes}; an app can raise it with `ImportOptions::size_bytes_max`"
    )]
    TooLarge {
        /// Its size.
        size_bytes: u64,
        /// The limit.
        limit_bytes: u64,
    },
    /// The graph has more nodes than [`super::ImportOptions::n_nodes_max`].
    #[error(
        "the GraphDef has more than {limit} nodes; node `{node}` is the first beyond the limit"
    )]
    TooManyNodes {
        /// The first beyond the limit.
        node: String,
        /// The limit.
        limit: usize,
    },
    /// The nodes together have more outputs, or list elements, than a file of this size can need.
    #[error("node `{node}` ({op}): too many {what} for a file of this size")]
    OutOfProportion {
        /// The node that exceeds the limit.
        node: String,
        /// Its op.
        op: String,
        /// Outputs, or list elements.
        what: &'static str,
    },
    /// The bytes are not protobuf, or the file is truncated.
    #[error("{place}, at byte {offset}: {problem}")]
    Malformed {
        /// The part of the graph, with the node's name if it can still be read.
        place: String,
        /// Start of that part in the file.
        offset: usize,
        /// What is wrong.
        problem: String,
    },
    /// The name is not allowed for a node.
    #[error("node {index} is called `{name}`, which is not a valid node name")]
    InvalidName {
        /// Its position in the file.
        index: usize,
        /// The name.
        name: String,
    },
    /// Two nodes have the same name.
    #[error("nodes {first} and {second} of the file have the same name, `{node}`")]
    DuplicateName {
        /// The name.
        node: String,
        /// Position of the first in the file.
        first: usize,
        /// Position of the second.
        second: usize,
    },
    /// The op is neither registered nor a function of the library.
    #[error(
        "node `{node}`: op `{op}` is not known{}; register it in the OpRegistry if it is your own",
        nor(others)
    )]
    UnknownOp {
        /// The node.
        node: String,
        /// The op.
        op: String,
        /// The other unknown ops of the graph or function that the node is in.
        others: Vec<String>,
    },
    /// An input is not `node:output`, `node` or `^node`, or is at a wrong position.
    #[error("node `{node}` ({op}): input {input} `{text}`: {problem}")]
    InvalidInput {
        /// The consumer.
        node: String,
        /// Its op.
        op: String,
        /// Index of the input.
        input: usize,
        /// The input as written in the file.
        text: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The number of data inputs differs from the op's.
    #[error("node `{node}` ({op}): {found} data inputs; the op takes {expected}")]
    InputCount {
        /// The node.
        node: String,
        /// Its op.
        op: String,
        /// Number that the op takes.
        expected: usize,
        /// Number that the node has.
        found: usize,
    },
    /// The producer's output has another type than the op takes.
    #[error(
        "node `{node}` ({op}): input {input} takes {}{expected}, but `{producer}` is {}{found}",
        reference(*.expected_ref), reference(*.found_ref)
    )]
    InputType {
        /// The consumer.
        node: String,
        /// Its op.
        op: String,
        /// Index of the input.
        input: usize,
        /// The type it takes.
        expected: DType,
        /// Whether it takes a reference.
        expected_ref: bool,
        /// `node:output` of the producer.
        producer: String,
        /// Type of the producer's output.
        found: DType,
        /// Whether the output is a reference.
        found_ref: bool,
    },
    /// A cycle that is not a loop of TensorFlow 1 (those close through `NextIteration` and
    /// `Merge`).
    #[error("the nodes {} form a cycle", cycle(.nodes, *.n_omitted))]
    Cycle {
        /// Names: each node feeds the next, and the last feeds the first.
        nodes: Vec<String>,
        /// Number of further nodes.
        n_omitted: usize,
    },
    /// An attribute is missing, malformed, of another kind, or not allowed.
    #[error("node `{node}` ({op}): attribute `{attr}` {source}")]
    Attr {
        /// The node.
        node: String,
        /// Its op.
        op: String,
        /// The attribute.
        attr: String,
        /// What is wrong.
        r#source: Box<AttrError>,
    },
    /// The shapes of the inputs do not match the op, each other, or the file.
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
    /// The options contain an input shape for a node that does not exist.
    #[error("the import options set the shape of `{0}`, which is not a placeholder of the graph")]
    NoSuchPlaceholder(String),
    /// Two different functions have the same name, or a function has the name of an op.
    #[error("function `{0}` of the library has the name of another function or op")]
    DuplicateFunction(String),
    /// The body or signature of a function is wrong.
    #[error("function `{function}`: {source}")]
    Function {
        /// The function.
        function: String,
        /// What is wrong in it.
        r#source: Box<ImportError>,
    },
    /// The signature of a function is invalid.
    #[error("the signature {0}")]
    Signature(String),
    /// The graph exceeds 32-bit ids.
    #[error(transparent)]
    Graph(#[from] GraphError),
}

/// What is wrong with an attribute, as text that continues "attribute `x`".
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum AttrError {
    /// The op requires it.
    #[error("is missing; the op takes {0}")]
    Missing(String),
    /// The op has no such attribute, and its value is not the one that absence implies.
    #[error("is not an attribute of the op; a newer TensorFlow may have written it")]
    Unknown,
    /// The attribute has another kind, or its value is not allowed.
    #[error("{0}")]
    Invalid(String),
    /// It refers to an attribute of a function, but the node is not in a function.
    #[error("refers to attribute `{0}` of a function, but the node is not in a function")]
    Placeholder(String),
    /// The bytes are not an attribute value.
    #[error("is malformed: {0}")]
    Malformed(String),
    /// The type number is not supported.
    #[error("names element type {0}, which is not supported")]
    UnknownDType(i32),
    /// Functions are nested too deeply.
    #[error("nests functions more than {0} levels deep")]
    TooDeep(usize),
    /// A shape is invalid.
    #[error("contains an invalid shape: {0}")]
    Shape(String),
    /// The values of a constant do not match its type and shape.
    #[error("contains an invalid constant: {0}")]
    Constant(LiteralError),
    /// A function is not in the library.
    #[error("names function `{0}`, which is not in the library")]
    UnknownFunction(String),
}

impl From<LiteralError> for AttrError {
    fn from(error: LiteralError) -> Self {
        Self::Constant(error)
    }
}

fn reference(is_ref: bool) -> &'static str {
    if is_ref { "a reference to " } else { "" }
}

fn cycle(nodes: &[String], n_omitted: usize) -> String {
    let names: Vec<_> = nodes.iter().map(|name| format!("`{name}`")).collect();
    let names = names.join(" -> ");
    if n_omitted == 0 {
        names
    } else {
        format!("{names} -> ({n_omitted} more)")
    }
}

/// Names further unknown ops.
fn nor(others: &[String]) -> String {
    if others.is_empty() {
        return String::new();
    }
    let names: Vec<String> = others.iter().map(|op| format!("`{op}`")).collect();
    format!(", nor are {}", names.join(", "))
}
