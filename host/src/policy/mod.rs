//! Asks a policy where nodes go: in a sandbox, natively, or one after the other down a ladder.
//!
//! Takes [`crate::candidates::Candidates`]; gives a [`crate::candidates::Proposal`], which nobody
//! trusts before [`crate::placement`] has checked it. Wasmtime lives only here. Knows nothing of
//! partitions and execution.

mod builtin;
mod cache;
mod compiler;
mod effort;
#[expect(
    unsafe_code,
    reason = "loading compiled policies that we wrote ourselves"
)]
mod engine;
mod error;
mod form;
mod identity;
mod inspect;
mod ladder;
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
mod tell;
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
