//! Write a placement policy for Placewright once; run it sandboxed as WebAssembly, or natively.
//!
//! A policy decides which device runs each node of a dataflow graph. It reads the graph and the
//! devices as columns of numbers ([`Graph`], [`DeviceSet`]), writes a device per node into a
//! [`Plan`], and offers it. The host checks every offer; the last legal one is the answer.
//!
//! A complete policy, with `crate-type = ["cdylib", "rlib"]` in its `Cargo.toml`:
//!
//! ```
//! use placewright_guest::testing::{GraphBuilder, cluster, place};
//! use placewright_guest::{Assignment, Config, ConfigError, CostMatrix, DeviceSet, Graph, PlaceError, Plan, Policy};
//! use placewright_guest::{Setting, export_policy, info};
//!
//! /// Every node on the device that is fastest for it, transfers ignored.
//! #[derive(Default)]
//! pub struct Fastest {
//!     ignore_below_ns: f64,
//! }
//!
//! impl Policy for Fastest {
//!     const NAME: &'static str = "fastest";
//!     const DESCRIPTION: &'static str = "each node where it runs fastest";
//!     const SETTINGS: &'static [Setting] = &[Setting {
//!         key: "ignore-below-ns",
//!         kind: "f64",
//!         default: "0",
//!         description: "nodes that gain less than this stay on their preferred device",
//!     }];
//!
//!     fn configure(&mut self, config: &Config) -> Result<(), ConfigError> {
//!         self.ignore_below_ns = config.parse("ignore-below-ns")?;
//!         Ok(())
//!     }
//!
//!     fn place(&mut self, graph: &Graph<'_>, devices: &DeviceSet<'_>, plan: &Plan<'_>, _seed: u64) -> Result<(), PlaceError> {
//!         let costs = CostMatrix::new(graph, devices);
//!         let mut assignment = Assignment::new(graph); // keeps groups together and pins in place
//!         for node in graph.nodes() {
//!             let cost = |device: u32| costs.row(graph.cost_row()[node as usize])[device as usize];
//!             let legal = graph.candidates_of(node); // most preferred first, never empty
//!             let mut best = legal[0];
//!             for &device in legal {
//!                 if cost(device) + self.ignore_below_ns < cost(best) {
//!                     best = device;
//!                 }
//!             }
//!             assignment.decide(node, best);
//!         }
//!         info!(plan, "placed {} nodes", graph.len());
//!         plan.offer_devices(assignment.devices())?;
//!         Ok(())
//!     }
//! }
//!
//! export_policy!(Fastest);
//!
//! // Its test, an ordinary one:
//! let devices = cluster("1xCPU,1xGPU");
//! let mut graph = GraphBuilder::new(&devices);
//! graph.node("small", &[40.0, 5_000.0]); // ns on CPU, GPU
//! graph.node("large", &[90_000.0, 6_000.0]);
//! let offer = place(&mut Fastest::default(), &graph.build(), &devices)?;
//! assert_eq!(offer.devices, [0, 1]);
//! # Ok::<(), PlaceError>(())
//! ```
//!
//! Built for `wasm32-unknown-unknown`, it is a core module that only imports the contract
//! `placewright:policy`: no clock, no files, no randomness. Built natively, it is an ordinary
//! crate: `native()`, which [`export_policy!`] defines, returns an instance that hosts run without
//! a sandbox. [`wrap`] runs one policy inside another.
//!
//! Policies should be deterministic: break ties by the smaller id, draw random numbers from the
//! seed, do not iterate over a `HashMap`. Then the sandboxed and the native build give the same
//! plan, bit for bit: neither uses fused multiply-add, and the host canonicalizes NaN.

pub mod algorithm;
mod bytes;
pub mod config;
pub mod devices;
#[cfg(not(target_arch = "wasm32"))]
pub mod estimate;
mod export;
pub mod graph;
pub mod log;
pub mod memory;
#[cfg(not(target_arch = "wasm32"))]
pub mod native;
pub mod plan;
pub mod policy;
pub mod schedule;
pub mod search;
pub mod source;
#[cfg(not(target_arch = "wasm32"))]
pub mod testing;
#[doc(hidden)]
#[cfg(target_arch = "wasm32")]
pub mod wasm;
pub mod wrap;

pub use algorithm::Assignment;
pub use algorithm::CostMatrix;
pub use algorithm::LinkMatrix;
pub use config::Bytes;
pub use config::Config;
pub use config::ConfigError;
pub use config::Setting;
pub use devices::DeviceSet;
pub use graph::EdgeKind;
pub use graph::Graph;
pub use graph::PlacementHint;
pub use memory::MemoryBudget;
pub use plan::BudgetUnit;
pub use plan::Plan;
pub use plan::Reasons;
pub use policy::Completion;
pub use policy::DeviceChange;
pub use policy::OnlinePolicy;
pub use policy::PlaceError;
pub use policy::Policy;
pub use policy::ReadyTask;
pub use source::Violation;

/// "None" in index columns: no device, no tensor or no answer.
pub const NONE: u32 = u32::MAX;

/// The version of the contract `placewright:policy` that this SDK uses.
pub const CONTRACT_VERSION: &str = "0.1.0";
