//! Branches and loops. The executor passes their tensors on itself, without a call of a kernel: the
//! registrations say which devices take such a node, with which types, and which of its arguments
//! are in host memory.

use super::Made;
use crate::device::KernelConstruction;
use crate::device::KernelError;

/// Ops that pass their input into a loop, to the next iteration, or out of the loop.
pub(in crate::backend) const PASSING: [&str; 6] = [
    "Enter",
    "RefEnter",
    "NextIteration",
    "RefNextIteration",
    "Exit",
    "RefExit",
];

/// TensorFlow `Switch`, `_SwitchN` and `Merge`, which decide what is dead: only an executor can.
pub(in crate::backend) fn of_executor(node: &KernelConstruction<'_>) -> Made {
    Err(KernelError::invalid(format!(
        "{} has no kernel to call: the executor decides which of its tensors are dead",
        node.op
    )))
}
