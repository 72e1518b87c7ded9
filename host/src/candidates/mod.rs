//! Who may run what: per node the legal devices in order of preference, what each costs, and the
//! shape of an answer.
//!
//! Takes a [`crate::graph::Graph`] and a [`crate::device::DeviceSet`]; gives [`Candidates`], the
//! whole of what a policy may know. Knows no policy; [`Proposal`] stands here so that `policy` and
//! `placement` do not need each other.

mod body;
mod builder;
mod choose;
mod colocate;
mod columns;
mod costs;
mod devices;
mod diagnose;
mod enumerate;
mod error;
mod explain;
mod groups;
mod hints;
mod host_memory;
mod host_only;
mod inspect;
mod isolate;
mod op_arguments;
mod options;
mod origin;
mod proposal;
mod refusal;
mod report;
mod restrict;
mod support;
// Public for tests and benchmarks only; it may change with any release.
#[doc(hidden)]
pub mod synthetic;
mod ties;

pub use builder::CandidatesBuilder;
pub use columns::{Candidates, DeviceColumns, NodeColumns, PlacementHint};
pub use diagnose::{UnsupportedNode, refusals, unsupported_nodes};
pub use enumerate::enumerate;
pub use error::CandidatesError;
pub(crate) use host_memory::HostMemory;
pub use isolate::isolate_function_calls;
pub use options::{Argument, OpArguments, PlacementOptions};
pub(crate) use origin::Origin;
pub(crate) use origin::ops_of;
pub use proposal::{Explanation, Proposal};
pub use refusal::{Constraint, Refusal, Suggestion};
pub(crate) use restrict::Restriction;
