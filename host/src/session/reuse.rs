//! Earlier placements, in a session that is yet to be built.

use std::sync::Arc;

use super::builder::Assignment;
use super::builder::SessionBuilder;
use crate::candidates::Candidates;
use crate::placement::KeepError;
use crate::placement::Kept;
use crate::placement::Placement;
use crate::placement::SavedPlacement;
use crate::placement::SavedPlacementError;
use crate::policy::PlacementCache;

/// The earlier placement that a new one keeps as far as possible.
#[derive(Debug, Clone)]
pub(super) enum Before {
    Saved(Arc<SavedPlacement>),
    Placement(Arc<Placement>),
}

/// A saved placement that is used instead of a policy's.
#[derive(Debug, Clone)]
pub(super) struct Reused {
    pub(super) saved: SavedPlacement,
    is_verified: bool,
}

impl SessionBuilder {
    /// Sets a saved placement, instead of a policy's. [`Self::build`] verifies that it was made for
    /// this graph, these devices and these options ([`SavedPlacement::verify`]). Another method
    /// that sets the placement in addition is an error of [`Self::build`].
    #[must_use]
    pub fn with_saved_placement(mut self, saved: SavedPlacement) -> Self {
        let reused = Reused {
            saved,
            is_verified: true,
        };
        self.assignment
            .set("with_saved_placement", Assignment::Saved(reused));
        self
    }

    /// Sets a saved placement without verifying what it was made for: its names must fit, and it
    /// must keep the rules.
    #[must_use]
    pub fn with_unverified_placement(mut self, saved: SavedPlacement) -> Self {
        let reused = Reused {
            saved,
            is_verified: false,
        };
        self.assignment
            .set("with_unverified_placement", Assignment::Saved(reused));
        self
    }

    /// Sets a saved placement that is kept as far as possible: the policy decides only about nodes
    /// that are new or cannot stay ([`Kept`]). The session's report lists what has moved. Has no
    /// effect if no policy is asked.
    #[must_use]
    pub fn with_kept_placement(self, saved: SavedPlacement) -> Self {
        self.keeping(Before::Saved(Arc::new(saved)))
    }

    /// Sets the cache of placements that policies made; sessions may share one. By default, the
    /// policy is asked each time.
    #[must_use]
    pub fn with_placement_cache(mut self, cache: PlacementCache) -> Self {
        self.placement_cache = Some(cache);
        self
    }

    pub(super) fn keeping(mut self, before: Before) -> Self {
        self.before = Some(before);
        self
    }
}

impl Before {
    pub(super) fn keep(&self, candidates: &Candidates) -> Result<Kept, KeepError> {
        match self {
            Self::Saved(saved) => Kept::of_saved(candidates, saved),
            Self::Placement(placement) => Kept::of_placement(candidates, placement),
        }
    }
}

impl Reused {
    /// Checks names and rules first: their errors say more than that something differs.
    pub(super) fn resolve(
        &self,
        candidates: &Candidates,
    ) -> Result<Placement, SavedPlacementError> {
        let placement = self.saved.resolve(candidates)?;
        if self.is_verified {
            self.saved.verify(candidates)?;
        }
        Ok(placement)
    }
}
