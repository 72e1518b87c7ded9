//! Who may run what: per node the legal devices in order of preference, what each costs, and the shape of an answer.
//!
//! Takes a [`crate::graph::Graph`] and a [`crate::device::DeviceSet`]; gives [`Candidates`], the whole of what a policy
//! may know. Knows no policy; [`Proposal`] stands here so that `policy` and `placement` do not need each other.

mod columns;
mod proposal;

pub use columns::{Candidates, DeviceColumns, NodeColumns, PlacementHint};
pub use proposal::{Explanation, Proposal};
