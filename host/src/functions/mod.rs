//! Functions of a graph's library: their bodies as graphs, and the lowering of the nodes that call
//! them.

pub(crate) mod body;
mod call;
mod constants;
mod lower;

pub(crate) use call::call_graph;
pub use lower::{LowerError, has_calls, lower};
pub(crate) use lower::{is_call, is_lowered_by};
