//! [`crate::candidates::Proposal`] to placement: the check, and the estimate behind it.
//!
//! [`check`] is the only way to a [`Placement`], so later stages need no checks of their own.
//! [`Evaluator`] is what a policy asks while it searches. Knows no policy and no file but a saved
//! placement's text.

mod check;
mod digest;
mod estimate;
mod evaluator;
mod identity;
mod keep;
mod legality;
mod memory;
mod saved;
mod shortage;
mod summary;
mod transfers;
mod violation;

pub use check::{Placement, check};
pub(crate) use digest::DigestWriter;
pub use digest::{Digest, DigestError};
pub use evaluator::Evaluator;
pub use identity::{IdentityDifference, PlacementIdentity};
pub use keep::{KeepError, Kept, MoveReason, MovedNode, Replacement};
pub use saved::{PlacementDiff, SavedPlacement, SavedPlacementError};
pub use shortage::{MemoryRemedy, MemoryShortage};
pub use summary::{DeviceSummary, PlacementSummary};
pub use transfers::RunTransfer;
pub use violation::Violation;

/// Ids and positions; graphs have fewer than 2^32 nodes.
fn to_u32(n: usize) -> u32 {
    u32::try_from(n).expect("graphs have fewer than 2^32 nodes")
}
