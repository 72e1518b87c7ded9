//! Fuses chains of elementwise ops, and reductions of rows among them, into one function each.
//!
//! Launching a small kernel costs more than its arithmetic, and a kernel reads from memory what the
//! previous one has written. So each region of a device's nodes ([`PartitionGraph`]) with a single
//! result becomes one kernel: `region` finds the region, `expression` describes its computation,
//! `program` writes the function in the dialect, and `kernel` launches it. Before that, matmuls and
//! convolutions are fused with a bias and an activation (`kernels/epilogue.rs`), and with
//! transpositions around them (`transposes`, `kernels/transposed.rs`).

mod expression;
mod kernel;
mod program;
mod region;
mod transposes;

pub(super) use kernel::register;
pub(super) use program::with_functions_of_lanes;

use super::kernels::epilogue;
use crate::backend::fuse::Epilogues;
use crate::backend::fuse::fuse_epilogues;
use crate::device::ComputeTraits;
use crate::device::PartitionGraph;
use crate::graph::NodeId;
use crate::ops::IntTensor;

/// The op of fused nodes. It is not a TensorFlow op and never occurs in a graph.
const OP: &str = "_FusedElementwise";

/// Maximum number of tensors that a fused function reads: drivers allow at least a kilobyte of
/// arguments.
const INPUTS_MAX: usize = 12;

/// Maximum rank of tensors of a region.
const RANK_MAX: usize = 8;

/// Fuses nodes of a device that compiles programs. Matmuls are first fused with the nodes that
/// follow them, because their sums are in registers.
pub(in crate::backend) fn fuse(graph: &mut PartitionGraph<'_>, traits: &ComputeTraits) {
    let epilogues = Epilogues {
        types: &epilogue::TYPES,
        added_types: &[],
        has_depthwise: false,
        is_activation: epilogue::is_activation,
    };
    fuse_epilogues(graph, epilogues);
    transposes::fuse(graph);
    region::fuse(graph, traits);
}

/// Returns the integers of a node's data input `index`, if a constant produces them.
fn constant_ints(graph: &PartitionGraph<'_>, node: NodeId, index: usize) -> Option<Vec<i64>> {
    IntTensor::from_literal(graph.constant_input(node, index)?)?.to_ints()
}
