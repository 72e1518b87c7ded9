//! Asks a policy where nodes go: in a sandbox, natively, or one after the other down a ladder.
//!
//! Takes [`crate::candidates::Candidates`]; gives a [`crate::candidates::Proposal`], which nobody trusts before
//! [`crate::placement`] has checked it. Wasmtime lives only here. Knows nothing of partitions and execution.

#[expect(
    unsafe_code,
    reason = "loading compiled policies that we wrote ourselves"
)]
mod engine;
mod error;
mod form;
mod interim;
mod limiter;
mod limits;
mod loaded;
mod messages;
mod online;
mod plan;
mod ticker;
mod v0_1;
mod view;

pub use engine::PolicyEngine;
pub use error::{Fault, PolicyError, PolicyErrorKind};
pub use form::{CONTRACT_VERSION, ContractVersion, WasmForm};
pub use limits::PolicyLimits;
pub use loaded::{CutOff, LoadReport, LoadedPolicy, PlaceOptions, PolicyAnswer};
pub use messages::{Message, Messages};
pub use online::OnlineSession;
pub use v0_1::{PolicyInfo, PolicySetting};
