//! Write a placement policy for Placewright once; run it sandboxed as WebAssembly, or natively.

pub mod algorithm;
pub mod config;
pub mod devices;
mod export;
pub mod graph;
pub mod log;
#[cfg(not(target_arch = "wasm32"))]
pub mod native;
pub mod plan;
pub mod policy;
pub mod source;
#[cfg(not(target_arch = "wasm32"))]
pub mod testing;
#[doc(hidden)]
#[cfg(target_arch = "wasm32")]
pub mod wasm;

pub use algorithm::Assignment;
pub use algorithm::CostMatrix;
pub use algorithm::LinkMatrix;
pub use algorithm::MemoryBudget;
pub use config::Config;
pub use config::ConfigError;
pub use config::Setting;
pub use devices::DeviceSet;
pub use graph::EdgeKind;
pub use graph::Graph;
pub use graph::PlacementHint;
pub use plan::Plan;
pub use policy::Completion;
pub use policy::DeviceChange;
pub use policy::OnlinePolicy;
pub use policy::PlaceError;
pub use policy::Policy;
pub use policy::ReadyTask;
pub use source::Violation;

/// "None" in index columns: no device, no tensor, no opinion.
pub const NONE: u32 = u32::MAX;

/// The version of the contract `placewright:policy` that this SDK speaks.
pub const CONTRACT_VERSION: &str = "0.1.0";
