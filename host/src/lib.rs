//! Placewright: heterogeneous placement runtime.
//!
//! Modules stand in dependency order: each names only modules listed before it; `tests/all/tidy.rs` holds them to it.

#![cfg_attr(not(test), warn(clippy::unwrap_used))]

pub mod tensor;

pub mod names;

pub mod graph;

pub mod ops;

#[cfg(feature = "graphdef")]
pub mod import;

pub mod plan;

pub mod trace;

pub mod store;

pub mod device;

#[cfg(feature = "kernels")]
pub mod kernels;

pub mod backend;

pub mod cost;

pub mod candidates;

pub mod placement;

pub mod partition;

pub mod execute;

pub mod policy;

pub mod error;

pub mod session;

#[cfg(feature = "cli")]
pub mod cli;

pub use error::Error;
