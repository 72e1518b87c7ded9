//! Placewright executes dataflow graphs on several devices. A small sandboxed WebAssembly
//! component, the *policy*, decides which device runs each op.
//!
//! Most apps need only [`session::Session`]: it takes a graph, places it and runs it. [`prelude`]
//! has the names that most apps use.
//!
#![cfg_attr(feature = "kernels", doc = "```")]
#![cfg_attr(not(feature = "kernels"), doc = "```text")]
//! use placewright::prelude::*;
//!
//! let b = GraphBuilder::new("app");
//! let x = b.placeholder::<f32>("x", [3])?;
//! b.named("y").relu(x)?;
//! let session = Session::builder()
//!     .with_graph(b.finish())
//!     // Without these, a session also uses all OpenCL and CUDA devices of the machine.
//!     .with_device_count("SYCL", 0)
//!     .with_device_count("GPU", 0)
//!     // The default is `auto`. A path such as `my_policy.wasm` also works.
//!     .with_policy(PolicyRequest::new(PolicySource::parse("heft")?))
//!     .build()?;
//! let x = Tensor::from_values([3], &[-1f32, 2.0, 3.0])?;
//! let fetched = session.run(&[("x", x)], &["y"])?;
//! assert_eq!(fetched[0].as_slice::<f32>()?, [0.0, 2.0, 3.0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Apps with their own ops, devices or kernels add them to a [`registry::Registry`]. Services that
//! place their own graphs and execute them elsewhere use [`graph::GraphAssembler`], [`candidates`],
//! [`policy`] and [`placement`], without default features:
//!
//! ```toml
//! [dependencies]
//! placewright = { path = "../placewright/host", default-features = false }
//! ```
//!
//! `GUIDE.md`, next to this crate's `Cargo.toml`, continues: limits of policies, pins, reports, own
//! ops and devices, logs and metrics. The folder `examples` has programs. The crate
//! `placewright-fixtures` (`tests/fixtures` in the repository) has policies that misbehave, for the
//! tests of apps.
//!
//! Data flows in one direction. Each stage is one function from one type to the next:
//!
//! | stage | module | input | output |
//! |---|---|---|---|
//! | import | `import`, `saved_model` | GraphDef bytes, a SavedModel | [`graph::Graph`] |
//! | or build | [`builder`] | calls from Rust | [`graph::Graph`] |
//! | discover | [`backend`], [`device`] | requested devices | [`device::DeviceSet`] |
//! | enumerate | [`candidates`], [`cost`] | graph, devices | [`candidates::Candidates`] |
//! | ask | [`policy`] | candidates | [`candidates::Proposal`], untrusted |
//! | check | [`placement`], [`memory`] | candidates, proposal | [`placement::Placement`] |
//! | partition | [`partition`] | placement, feeds, fetches | [`plan::ExecutionPlan`] |
//! | run | [`execute`], `kernels` | plan, feeds | fetches, [`trace::Event`]s |
//! | show | [`trace`] | events | summary, Chrome trace |
//!
//! The modules below are in dependency order: each names only modules listed before it, and a test
//! checks this. Features: `graphdef` reads TensorFlow's graphs, `kernels` executes on CPU devices,
//! `cli` is the program, `cuda` and `opencl` add devices; all are on by default.

#![cfg_attr(not(test), warn(clippy::unwrap_used))]

mod serialize;

pub mod tensor;

pub mod names;

pub mod graph;

pub mod ops;

pub mod functions;

pub mod builder;

#[cfg(feature = "graphdef")]
pub mod import;

pub mod plan;

pub mod trace;

mod files;

#[cfg(feature = "graphdef")]
pub mod checkpoint;

#[cfg(feature = "graphdef")]
pub mod saved_model;

pub mod store;

pub mod device;

pub mod registry;

// Public for tests only: its functions trust their callers, and change with any release.
#[cfg(feature = "kernels")]
#[doc(hidden)]
pub mod kernels;

pub mod backend;

pub mod optimize;

pub mod cost;

#[cfg(feature = "cluster")]
pub mod cluster;

pub mod candidates;

#[cfg(feature = "cluster")]
pub mod dag;

pub mod partition;

pub mod memory;

pub mod placement;

pub mod execute;

pub mod policy;

pub mod error;

pub mod session;

#[cfg(feature = "cluster")]
pub mod comparison;

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
