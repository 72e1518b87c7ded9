//! Placements of before, in a session that is to come.

use super::builder::SessionBuilder;
use crate::candidates::Candidates;
use crate::placement::KeepError;
use crate::placement::Kept;
use crate::placement::Placement;
use crate::placement::SavedPlacement;
use crate::placement::SavedPlacementError;
use crate::policy::PlacementCache;

/// What of before stays in a new placement.
#[derive(Debug, Clone)]
pub(super) enum Before {
    Saved(SavedPlacement),
    Placement(Placement),
}

/// A placement that is used instead of asking a policy.
#[derive(Debug, Clone)]
pub(super) struct Reused {
    pub(super) saved: SavedPlacement,
    is_verified: bool,
}

impl SessionBuilder {
    /// A placement of before, instead of a policy's. [`Self::build`] verifies that it was made for
    /// this graph, these devices and these options ([`SavedPlacement::verify`]).
    #[must_use]
    pub fn with_saved_placement(self, saved: SavedPlacement) -> Self {
        self.with_reused(Reused {
            saved,
            is_verified: true,
        })
    }

    /// The same, whatever it was made for: as far as its names fit and it keeps the rules.
    #[must_use]
    pub fn with_unverified_placement(self, saved: SavedPlacement) -> Self {
        self.with_reused(Reused {
            saved,
            is_verified: false,
        })
    }

    /// A placement of before that is kept where it can be: the policy decides only on nodes that
    /// are new or cannot stay ([`Kept`]). What became of it is in the session's report. Without
    /// effect where no policy is asked.
    #[must_use]
    pub fn with_kept_placement(self, saved: SavedPlacement) -> Self {
        self.keeping(Before::Saved(saved))
    }

    /// Where answers of policies are kept; sessions may share one. Without, policies are asked each
    /// time.
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
    /// Names and rules come first: what they have to say is more than that something differs.
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
