//! Imports a binary GraphDef into a [`crate::graph::Graph`]. No other module uses protobuf.
//!
//! The file is split into nodes (`wire`), and reference variables become resources (`references`).
//! Inputs are resolved and nodes ordered (`order`). Then the
//! attributes of each node are read (`attrs`, `tensor`), the node is checked against its op, and
//! its shapes are inferred (`nodes`). The file is untrusted: every malformed file gives an
//! [`ImportError`] that names the node, and memory stays in proportion to the file. Tensor contents
//! are slices of the file, so its bytes are kept as long as the graph.

use bytes::Bytes;
use hashbrown::HashMap;

use crate::graph::Graph;
use crate::ops::OpRegistry;
use crate::tensor::Literal;
use crate::tensor::PartialShape;

mod attrs;
mod error;
mod functions;
mod nodes;
mod order;
pub(crate) mod proto;
mod recognise;
mod references;
pub(crate) mod rewrite;
pub(crate) mod tensor;
#[cfg(test)]
mod tests;
mod wire;

pub use error::AttrError;
pub use error::ImportError;
pub(crate) use tensor::dtype as dtype_of;
pub(crate) use tensor::literal as literal_of;
pub(crate) use tensor::shape as shape_of;
pub(crate) use wire::Parts;

/// Options and limits of an import.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ImportOptions {
    /// Name of the graph, for reports.
    pub name: String,
    /// Maximum file size, in bytes. The default is protobuf's own limit, 2 GiB; a service that
    /// accepts untrusted files should set a lower one.
    pub size_bytes_max: u64,
    /// Maximum number of nodes. The default is 16 Mi; each takes a few hundred bytes.
    pub n_nodes_max: usize,
    /// Shapes of placeholders, merged with those in the file. For example, `[1, 224, 224, 3]` for
    /// a placeholder with an unknown batch size makes sizes, and thus costs, known throughout
    /// the graph.
    pub input_shapes: HashMap<String, PartialShape>,
}

impl Default for ImportOptions {
    fn default() -> Self {
        Self {
            name: "graph".to_owned(),
            size_bytes_max: 1 << 31,
            n_nodes_max: 1 << 24,
            input_shapes: HashMap::new(),
        }
    }
}

impl ImportOptions {
    /// Sets the name of the graph.
    #[must_use]
    pub fn with_name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Sets the maximum file size, in bytes.
    #[must_use]
    pub fn with_size_bytes_max(mut self, size_bytes_max: u64) -> Self {
        self.size_bytes_max = size_bytes_max;
        self
    }

    /// Sets the maximum number of nodes.
    #[must_use]
    pub fn with_n_nodes_max(mut self, n_nodes_max: usize) -> Self {
        self.n_nodes_max = n_nodes_max;
        self
    }

    /// Sets the shape of a placeholder.
    #[must_use]
    pub fn with_input_shape(mut self, name: impl Into<String>, shape: PartialShape) -> Self {
        self.input_shapes.insert(name.into(), shape);
        self
    }
}

/// Reads a binary GraphDef. Node ids are TensorFlow's import order.
///
/// ```no_run
/// use placewright::import::{ImportOptions, import_graph};
/// use placewright::ops::OpRegistry;
///
/// let bytes = std::fs::read("lenet.pb")?;
/// let graph = import_graph(bytes, &OpRegistry::default(), &ImportOptions::default().with_name("lenet"))?;
/// println!("{} nodes", graph.n_nodes());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`ImportError`], naming the node, if the file is not a well-formed graph of known ops.
pub fn import_graph(
    bytes: impl Into<Bytes>,
    ops: &OpRegistry,
    options: &ImportOptions,
) -> Result<Graph, ImportError> {
    let bytes: Bytes = bytes.into();
    let parts = split_file(&bytes, options)?;
    import_parts(&parts, HashMap::new(), bytes.len(), ops, options)
}

/// Splits a file that may be too large, or no GraphDef at all.
///
/// # Errors
/// [`ImportError`] if the bytes are too many, of another format, or malformed.
pub(crate) fn split_file(bytes: &Bytes, options: &ImportOptions) -> Result<Parts, ImportError> {
    if bytes.len() as u64 > options.size_bytes_max {
        return Err(ImportError::TooLarge {
            size_bytes: bytes.len() as u64,
            limit_bytes: options.size_bytes_max,
        });
    }
    recognise::refuse_other_formats(bytes)?;
    split(bytes, options)
}

/// Splits a GraphDef into nodes and functions. Reference variables become resources.
///
/// # Errors
/// [`ImportError`] if the bytes are malformed.
pub(crate) fn split(bytes: &Bytes, options: &ImportOptions) -> Result<Parts, ImportError> {
    let mut parts = wire::split(bytes, options)?;
    functions::drop_repeated(&mut parts.functions)?;
    references::to_resources(&mut parts.nodes);
    Ok(parts)
}

/// Imports nodes and functions. `values` are those of constants without the attribute `value`, by
/// their names. Limits are in proportion to the size of the file.
///
/// # Errors
/// As [`import_graph`].
pub(crate) fn import_parts(
    parts: &Parts,
    values: HashMap<String, Literal>,
    file_size_bytes: usize,
    ops: &OpRegistry,
    options: &ImportOptions,
) -> Result<Graph, ImportError> {
    if parts.nodes.is_empty() {
        return Err(ImportError::Empty);
    }
    check_input_shapes(&parts.nodes, options)?;
    let order = order::Order::new(&parts.nodes)?;
    let mut reader = attrs::AttrReader::new(file_size_bytes).with_values(values);
    let ops = functions::Ops::new(ops, &parts.functions, &mut reader)?;
    let version = parts.producer_version;
    let mut adder = nodes::NodeAdder::new(&ops, options, version, &order, reader, file_size_bytes);
    for &index in &order.nodes {
        adder
            .add(index, &parts.nodes[index as usize])
            .map_err(|error| ops.with_other_unknown(error, &parts.nodes))?;
    }
    adder.close_loops(&parts.nodes)?;
    let called = adder.take_called();
    for function in ops.read_functions(&parts.functions, called, &mut adder.reader)? {
        adder.assembler.graph_mut().add_function(function);
    }
    Ok(adder.assembler.finish())
}

/// Returns the producer version of a GraphDef; 0 if it has none. Nothing else is read.
///
/// # Errors
/// [`ImportError::Malformed`] if the bytes are not a protobuf message.
pub(crate) fn producer_version(bytes: &Bytes) -> Result<i32, ImportError> {
    wire::producer_version(bytes)
}

fn check_input_shapes(
    nodes: &[proto::NodeDef],
    options: &ImportOptions,
) -> Result<(), ImportError> {
    for name in options.input_shapes.keys() {
        let is_placeholder = |node: &proto::NodeDef| {
            node.name == name.as_bytes() && node.op.starts_with(b"Placeholder")
        };
        if !nodes.iter().any(is_placeholder) {
            return Err(ImportError::NoSuchPlaceholder(name.clone()));
        }
    }
    Ok(())
}
