//! Ids of nodes and tensors.

use std::fmt;

use serde::Serialize;

/// Absent entry of a column of indices.
pub const NONE: u32 = u32::MAX;

/// A node, `0..graph.n_nodes()`, in TensorFlow's import order: every edge except a loop's back edge
/// leads to a larger id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct NodeId(pub u32);

/// An output of a node, `0..graph.n_tensors()`; the outputs of one node are consecutive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TensorId(pub u32);

impl NodeId {
    /// Returns the id as an index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl TensorId {
    /// Returns the id as an index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
