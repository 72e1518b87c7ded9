//! Asks policies for placements: in a sandbox, natively, or one after the other on a ladder.
//!
//! Takes [`crate::candidates::Candidates`] and returns a [`crate::candidates::Proposal`], which is
//! not trusted until [`crate::placement`] has checked it. Only this module uses wasmtime. It does
//! not depend on partitions and execution.

mod builtin;
mod cache;
mod compiler;
mod effort;
#[expect(unsafe_code, reason = "loading policies that this library compiled")]
mod engine;
mod error;
mod form;
mod identity;
mod inspect;
mod ladder;
mod last_run;
mod limiter;
mod limits;
mod loaded;
mod messages;
mod metadata;
mod native;
mod online;
mod plan;
mod source;
mod stack;
mod structure;
mod telemetry;
mod ticker;
mod type_sizes;
mod v0_1;
mod view;

pub use builtin::ShippedPolicy;
pub use cache::PlacementCache;
pub use compiler::CompilerProcess;
pub use engine::PolicyEngine;
pub use error::{Fault, PolicyError, PolicyErrorKind};
pub use form::{CONTRACT_VERSION, ContractVersion, WasmForm};
pub use inspect::{LoadedInspection, PolicyInspection, inspect};
pub use ladder::{FailedRung, LadderError, PolicyReport, PolicyRequest, Rung, place_with_ladder};
pub use limits::PolicyLimits;
pub use loaded::{CutOff, Dropped, LoadReport, LoadedPolicy, PlaceOptions, PolicyAnswer};
pub use messages::{Message, Messages};
pub use native::place_natively;
pub use online::OnlineSession;
// Types of the SDK that this API shows; apps need not depend on it.
pub use placewright_guest::native::NativePolicy;
pub use placewright_guest::source::{LogLevel, Violation};
pub use placewright_guest::{Completion, DeviceChange, NONE, ReadyTask};
pub use source::PolicySource;
pub use v0_1::{PolicyInfo, PolicySetting};
