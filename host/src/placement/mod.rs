//! Checks a [`crate::candidates::Proposal`] and turns it into a placement.
//!
//! Only [`check`] creates a [`Placement`], so later stages need no checks of their own. Policies
//! use an [`Evaluator`] while they search. This module does not depend on policies, and reads no
//! files except the text of a saved placement.

mod check;
mod digest;
mod estimate;
mod evaluator;
mod explain;
mod identity;
mod infeasible;
mod keep;
mod legality;
mod memory;
mod saved;
mod shortage;
mod simulation;
mod summary;
mod transfers;
mod violation;

pub use check::{Placement, check};
pub(crate) use digest::DigestWriter;
pub use digest::{Digest, DigestError};
pub(crate) use estimate::MeasuredWork;
pub use evaluator::Evaluator;
pub use explain::{CandidateExplanation, Move, MoveOutcome, NodeExplanation};
pub use identity::{IdentityDifference, PlacementIdentity};
pub use infeasible::Infeasibility;
pub use keep::{KeepError, Kept, MoveReason, MovedNode, Replacement};
pub use saved::{PlacementDiff, SavedPlacement, SavedPlacementError};
pub use shortage::{MemoryRemedy, MemoryShortage};
pub use simulation::{SimulatedDevice, SimulatedLink, SimulatedTransfer, Simulation};
pub use summary::{DeviceSummary, PlacementSummary};
pub use transfers::RunTransfer;
pub use violation::Violation;

/// Converts an id or position; graphs have fewer than 2^32 nodes.
fn to_u32(n: usize) -> u32 {
    u32::try_from(n).expect("graphs have fewer than 2^32 nodes")
}
