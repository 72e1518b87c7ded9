//! Why a GraphDef cannot be imported.

use crate::graph::GraphError;
use crate::ops::ShapeError;
use crate::tensor::DType;
use crate::tensor::LiteralError;

/// Why a GraphDef cannot be imported: where it is wrong, what is wrong, and where there is one, the
/// remedy.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// No bytes at all, or none that belong to a graph.
    #[error("the graph has no nodes")]
    Empty,
    /// Another kind of file.
    #[error("this looks like {found}, not like a binary GraphDef; {remedy}")]
    OtherFormat {
        /// What it looks like.
        found: &'static str,
        /// What to do.
        remedy: &'static str,
    },
    /// Beyond [`super::ImportOptions::size_bytes_max`].
    #[error(
        "the GraphDef has {size_bytes} bytes, the limit is {limit_bytes}; an app raises it with `ImportOptions::size_bytes_max`"
    )]
    TooLarge {
        /// Its size.
        size_bytes: u64,
        /// The limit.
        limit_bytes: u64,
    },
    /// Beyond [`super::ImportOptions::n_nodes_max`].
    #[error(
        "the GraphDef has more than {limit} nodes, node `{node}` is the first beyond the limit"
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
        /// The node that goes too far.
        node: String,
        /// Its op.
        op: String,
        /// Outputs, or list elements.
        what: &'static str,
    },
    /// The bytes are no protobuf, or end early.
    #[error("{place}, at byte {offset}: {problem}")]
    Malformed {
        /// Which part of the graph, with the node's name where it can still be read.
        place: String,
        /// Where that part starts in the file.
        offset: usize,
        /// What is wrong.
        problem: String,
    },
    /// A name that no node may have.
    #[error("node {index} is called `{name}`, which is no name of a node")]
    InvalidName {
        /// Its position in the file.
        index: usize,
        /// The name.
        name: String,
    },
    /// Two nodes of one name.
    #[error("node `{node}` stands in the graph twice, as nodes {first} and {second} of the file")]
    DuplicateName {
        /// The name.
        node: String,
        /// Position of one in the file.
        first: usize,
        /// Position of the other.
        second: usize,
    },
    /// Neither a registered op nor a function of the library.
    #[error(
        "node `{node}`: op `{op}` is not known; register it in the OpRegistry if it is your own"
    )]
    UnknownOp {
        /// The node.
        node: String,
        /// The op.
        op: String,
    },
    /// An input that cannot be read as `node:output`, `node` or `^node`, or stands where it must
    /// not.
    #[error("node `{node}` ({op}): input {input} `{text}`: {problem}")]
    InvalidInput {
        /// The consumer.
        node: String,
        /// Its op.
        op: String,
        /// Which of its inputs.
        input: usize,
        /// What stands there.
        text: String,
        /// What is wrong with it.
        problem: String,
    },
    /// More or fewer data inputs than the op takes.
    #[error("node `{node}` ({op}): {found} data inputs, the op takes {expected}")]
    InputCount {
        /// The node.
        node: String,
        /// Its op.
        op: String,
        /// What the op takes.
        expected: usize,
        /// What the node has.
        found: usize,
    },
    /// The producer makes another type than the op takes.
    #[error(
        "node `{node}` ({op}): input {input} takes {}{expected}, `{producer}` gives {}{found}",
        reference(*.expected_ref), reference(*.found_ref)
    )]
    InputType {
        /// The consumer.
        node: String,
        /// Its op.
        op: String,
        /// Which of its inputs.
        input: usize,
        /// The type it takes.
        expected: DType,
        /// Whether it takes a reference.
        expected_ref: bool,
        /// `node:output` of the producer.
        producer: String,
        /// The type it gives.
        found: DType,
        /// Whether it gives a reference.
        found_ref: bool,
    },
    /// A cycle that is no loop of TensorFlow 1 (those close through `NextIteration` and `Merge`).
    #[error("the nodes {} form a cycle", cycle(.nodes, *.n_omitted))]
    Cycle {
        /// Names, each feeding the next and the last the first.
        nodes: Vec<String>,
        /// How many more there are.
        n_omitted: usize,
    },
    /// An attribute that is missing, malformed, of another kind, or not allowed.
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
    /// The shapes of the inputs do not fit the op, each other, or what the file says.
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
    /// An input shape of the options is for a node that is not there.
    #[error("a shape is given for input `{0}`, which is no placeholder of the graph")]
    NoSuchPlaceholder(String),
    /// Two different functions of one name, or one that is called like an op.
    #[error("function `{0}` of the library has the name of another function or op")]
    DuplicateFunction(String),
    /// Something in the body or signature of a function.
    #[error("function `{function}`: {source}")]
    Function {
        /// The function.
        function: String,
        /// What is wrong in it.
        r#source: Box<ImportError>,
    },
    /// A signature of a function that says nothing sensible.
    #[error("the signature {0}")]
    Signature(String),
    /// The graph grew beyond what 32-bit ids can name.
    #[error(transparent)]
    Graph(#[from] GraphError),
}

/// What is wrong with an attribute, in words that go on after "attribute `x`".
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum AttrError {
    /// The op requires it.
    #[error("is missing; the op takes {0}")]
    Missing(String),
    /// The op has none of this name, and its value is not what absence would mean.
    #[error("is no attribute of the op; a newer TensorFlow may have written it")]
    Unknown,
    /// Another kind, or a value that is not allowed.
    #[error("{0}")]
    Invalid(String),
    /// It stands for an attribute of a function, and there is no function around it.
    #[error("stands for attribute `{0}` of a function, and the node is in none")]
    Placeholder(String),
    /// The bytes are no attribute value.
    #[error("is malformed: {0}")]
    Malformed(String),
    /// A type number without a type here.
    #[error("names element type {0}, which is not supported")]
    UnknownDType(i32),
    /// Functions within functions within functions.
    #[error("nests functions more than {0} levels deep")]
    TooDeep(usize),
    /// A shape that is none.
    #[error("holds a shape that is none: {0}")]
    Shape(String),
    /// A constant whose values do not fit its type and shape.
    #[error("holds a constant that is none: {0}")]
    Constant(LiteralError),
    /// A function that is not in the library.
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
