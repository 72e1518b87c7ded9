//! Candidates: per node the legal devices in order of preference and their costs, and the type of a
//! policy's answer.
//!
//! [`enumerate()`] computes [`Candidates`] from a [`crate::graph::Graph`] and a
//! [`crate::device::DeviceSet`]. They are everything that a policy can see. This module does not
//! depend on policies; [`Proposal`] is here so that `policy` and `placement` do not depend on each
//! other.

mod allocation;
mod builder;
mod calls;
mod choose;
mod colocate;
mod columns;
mod conflict;
mod costs;
mod devices;
mod diagnose;
mod edge_kinds;
mod enumerate;
mod error;
mod executions;
mod explain;
mod facts;
mod groups;
mod hints;
mod host_memory;
mod host_only;
mod index;
mod inspect;
mod isolate;
mod legal;
mod measured;
mod op_arguments;
mod options;
mod origin;
mod proposal;
mod report;
mod restrict;
mod support;
// Public for tests and benchmarks only; it may change with any release.
#[doc(hidden)]
pub mod synthetic;
mod tie;
mod ties;
mod types;

pub use builder::CandidatesBuilder;
pub use columns::{Candidates, DeviceColumns, NodeColumns, PlacementHint};
pub(crate) use conflict::short_device_name;
pub use conflict::{Conflict, Constraint, Suggestion};
pub use diagnose::{UnsupportedNode, conflicts, unsupported_nodes};
pub use enumerate::enumerate;
pub use error::CandidatesError;
pub(crate) use host_memory::HostMemory;
pub use isolate::isolate_function_calls;
pub use options::{Argument, OpArguments, PlacementOptions};
pub(crate) use origin::Origin;
pub(crate) use origin::ops_of;
pub(crate) use proposal::PlanColumns;
pub use proposal::{Explanation, Proposal};
pub(crate) use restrict::Restriction;
