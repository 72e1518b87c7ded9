//! Functions of a graph's library: their bodies as graphs.

pub(crate) mod body;
