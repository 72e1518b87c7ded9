//! Placewright runs dataflow graphs on several devices; a small sandboxed WebAssembly component,
//! the *policy*, decides which device runs each op.
//!
//! Most apps need [`session::Session`] alone: graph in, placement and runs out. Those that write
//! their graphs in Rust take [`builder::GraphBuilder`]; those with ops, devices or kernels of their
//! own add them to a [`registry::Registry`]. Services that place graphs of their own and execute
//! them elsewhere take [`graph::GraphAssembler`], [`candidates`], [`policy`] and [`placement`],
//! without default features.
//!
//! Data flows one way. Each arrow is one function, each noun one type:
//!
//! | stage | module | takes | gives |
//! |---|---|---|---|
//! | import | `import` | GraphDef bytes | [`graph::Graph`] |
//! | or build | [`builder`] | calls from Rust | [`graph::Graph`] |
//! | discover | [`backend`], [`device`] | requested devices | [`device::DeviceSet`] |
//! | enumerate | [`candidates`], [`cost`] | graph, devices | [`candidates::Candidates`] |
//! | ask | [`policy`] | candidates | [`candidates::Proposal`], untrusted |
//! | check | [`placement`], [`memory`] | candidates, proposal | [`placement::Placement`] |
//! | cut | [`partition`] | placement, what is fed and fetched | [`plan::Plan`] |
//! | run | [`execute`], `kernels` | plan, feeds | fetches, [`trace::Event`]s |
//! | show | [`trace`] | events | summary, Chrome trace |
//!
//! Modules stand in dependency order: each names only modules listed before it, and a test holds
//! them to it. Features: `graphdef` reads TensorFlow's graphs, `kernels` executes on CPU devices,
//! `cli` is the program; all are on by default.

#![cfg_attr(not(test), warn(clippy::unwrap_used))]

mod serialize;

pub mod tensor;

pub mod names;

pub mod graph;

pub mod ops;

pub mod builder;

#[cfg(feature = "graphdef")]
pub mod import;

pub mod plan;

pub mod trace;

mod files;

pub mod store;

pub mod device;

pub mod registry;

// Public for tests only: its functions trust their callers, and change with any release.
#[cfg(feature = "kernels")]
#[doc(hidden)]
pub mod kernels;

pub mod backend;

pub mod cost;

pub mod candidates;

pub mod partition;

pub mod memory;

pub mod placement;

pub mod execute;

pub mod policy;

pub mod error;

pub mod session;

pub mod prelude;

#[cfg(feature = "cli")]
pub mod cli;

pub use error::Error;

/// The examples of README.md and GUIDE.md compile.
#[cfg(all(doctest, feature = "kernels"))]
#[doc = include_str!("../../README.md")]
mod readme {}
#[cfg(all(doctest, feature = "kernels"))]
#[doc = include_str!("../GUIDE.md")]
mod guide {}
