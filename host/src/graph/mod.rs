//! The model: a dataflow graph in columns. No devices, no protobuf.
//!
//! Comes from [`crate::import`] or, for apps that build their own, from [`GraphAssembler`]; goes to every later stage.

mod assemble;
mod attr;
mod columns;
mod function;
mod strings;

pub use assemble::{GraphAssembler, GraphError, Input, NodeSpec, Output, Work};
pub use attr::{AttrSet, AttrValue};
pub use columns::{BackEdge, Csr, EdgeKind, Graph, NONE, NodeClass, NodeId, TensorId};
pub use function::{Function, FunctionArg, FunctionNode};
pub use strings::Strings;
