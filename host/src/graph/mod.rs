//! The model: a dataflow graph in columns. No devices, no protobuf.
//!
//! Graphs come from [`crate::import`], from [`crate::builder::GraphBuilder`] for apps that build
//! their own, or from [`GraphAssembler`] if ops have no definitions. Every later stage uses them.

mod assemble;
mod attr;
mod attr_from;
mod bodies;
mod columns;
mod find_bodies;
mod function;
mod ids;
mod signature;

pub use assemble::{GraphAssembler, GraphError, Input, NodeSpec, Output, Work};
pub use attr::{AttrSet, AttrValue};
pub use bodies::{Bodies, Body, BodyId, Guard, LoopError};
pub(crate) use bodies::{is_control_flow, is_enter, is_exit, is_merge, is_switch};
pub(crate) use columns::IDENTITY;
pub use columns::{BackEdge, Csr, EdgeKind, Graph, NodeClass};
pub use function::{Function, FunctionArg, FunctionNode};
pub use ids::{NONE, NodeId, TensorId};
pub use signature::{Argument, Signature, Stored, StoredVariable};

/// Returns whether a node may have this name. TensorFlow's rule: letters, digits and `_ . - / >`,
/// not starting with `- / >`.
pub(crate) fn is_node_name(name: &[u8]) -> bool {
    let is_inner = |byte: &u8| byte.is_ascii_alphanumeric() || b"_.-/>".contains(byte);
    match name {
        [first, rest @ ..] => {
            (first.is_ascii_alphanumeric() || b"_.".contains(first)) && rest.iter().all(is_inner)
        }
        [] => false,
    }
}
