//! Functions of a graph's library: their bodies as graphs, and the lowering of the nodes that call
//! them.

pub(crate) mod body;
mod lower;

pub(crate) use lower::is_call;
pub use lower::{LowerError, has_calls, lower};
