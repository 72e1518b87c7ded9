//! The types that most apps need, in one line: `use placewright::prelude::*;`.
//!
//! Contains the session with its options, graphs, devices, policies and placements: what an app
//! needs to build or assemble a graph, describe devices, limit and ask policies, and read their
//! answers. Types for special purposes are only in their modules.

pub use crate::Error;
pub use crate::builder::GraphBuilder;
pub use crate::builder::Scope;
pub use crate::builder::Value;
pub use crate::candidates::Candidates;
pub use crate::candidates::CandidatesBuilder;
pub use crate::candidates::PlacementOptions;
pub use crate::candidates::Proposal;
pub use crate::device::CancelToken;
pub use crate::device::DeviceAttributes;
pub use crate::device::DeviceOptions;
pub use crate::device::DeviceRates;
pub use crate::device::DeviceSet;
pub use crate::device::HostLink;
pub use crate::device::LinkRates;
pub use crate::device::SimpleDevice;
pub use crate::execute::ExecuteError;
pub use crate::execute::RunOptions;
pub use crate::graph::AttrSet;
pub use crate::graph::Graph;
pub use crate::graph::GraphAssembler;
pub use crate::graph::Input;
pub use crate::graph::NodeId;
pub use crate::graph::NodeSpec;
pub use crate::graph::Output;
pub use crate::graph::Work;
pub use crate::names::DeviceId;
pub use crate::names::DeviceName;
pub use crate::placement::Evaluator;
pub use crate::placement::Placement;
pub use crate::placement::SavedPlacement;
pub use crate::policy::CompilerProcess;
pub use crate::policy::Completion;
pub use crate::policy::DeviceChange;
pub use crate::policy::LoadedPolicy;
pub use crate::policy::OnlineSession;
pub use crate::policy::PlaceOptions;
pub use crate::policy::PolicyEngine;
pub use crate::policy::PolicyLimits;
pub use crate::policy::PolicyRequest;
pub use crate::policy::PolicySource;
pub use crate::policy::ReadyTask;
pub use crate::policy::ShippedPolicy;
pub use crate::policy::place_with_ladder;
pub use crate::registry::Registry;
pub use crate::session::Callable;
pub use crate::session::Session;
pub use crate::session::SessionBuilder;
pub use crate::store::CacheFolder;
pub use crate::tensor::DType;
pub use crate::tensor::PartialShape;
pub use crate::tensor::Shape;
pub use crate::tensor::Tensor;
pub use crate::tensor::TensorError;
pub use crate::trace::Recorder;
