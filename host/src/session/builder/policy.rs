//! Who places the nodes of a session: a policy, an earlier placement, or the app.

use std::sync::Arc;
use std::time::Instant;

use tracing::debug_span;

use super::SessionBuilder;
use crate::candidates::Candidates;
use crate::candidates::Proposal;
use crate::error::Error;
use crate::graph::Graph;
use crate::placement;
use crate::placement::KeepError;
use crate::placement::Kept;
use crate::placement::Placement;
use crate::placement::Replacement;
use crate::placement::SavedPlacement;
use crate::placement::SavedPlacementError;
use crate::policy;
use crate::policy::PlacementCache;
use crate::policy::PolicyEngine;
use crate::policy::PolicyRequest;
use crate::policy::ShippedPolicy;
use crate::session::one_of::OneOf;
use crate::session::report::PlacedBy;
use crate::session::report::StageClock;
use crate::session::report::record_policy;
use crate::trace::targets;

/// The policy that is asked if the app names none.
const DEFAULT_POLICY: &str = "auto";

/// The policy with its sandbox, or what places the nodes in its stead.
#[derive(Debug, Clone, Default)]
pub(in crate::session) struct PolicySetup {
    request: Option<PolicyRequest>,
    assignment: OneOf<Assignment>,
    engine: Option<PolicyEngine>,
    cache: Option<PlacementCache>,
    /// An earlier placement, which the new one keeps as far as possible.
    pub(in crate::session) before: Option<Before>,
}

/// A complete assignment of devices, in place of a policy's.
#[derive(Debug, Clone)]
enum Assignment {
    Saved(Reused),
    Proposal(Proposal),
}

/// The earlier placement that a new one keeps as far as possible.
#[derive(Debug, Clone)]
pub(in crate::session) enum Before {
    Saved(Arc<SavedPlacement>),
    Placement(Arc<Placement>),
}

/// A saved placement that is used instead of a policy's.
#[derive(Debug, Clone)]
struct Reused {
    saved: SavedPlacement,
    is_verified: bool,
}

/// # Who places the nodes
impl SessionBuilder {
    /// Sets the policy that places the graph, instead of `auto`; TensorFlow's placement is that of
    /// `priority`. If each node has only one device, a session without this call asks no policy
    /// ([`PlacedBy::NoChoice`]). If the policy fails, other policies place the graph
    /// ([`crate::policy::place_with_ladder`]), unless the request is strict.
    /// [`SessionReport::policy`](crate::session::SessionReport::policy) names the policy that
    /// answered, and those that failed.
    ///
    /// If [`Self::with_saved_placement`], [`Self::with_unverified_placement`] or
    /// [`Self::with_proposal`] places the graph, the policy is asked only when
    /// [`Session::replace_devices`](crate::session::Session::replace_devices) places it again.
    #[must_use]
    pub fn with_policy(mut self, request: PolicyRequest) -> Self {
        self.policy.request = Some(request);
        self
    }

    /// Sets the sandbox that runs the policy, with its limits and its cache; sessions may share
    /// one. The default is [`PolicyEngine::of_process`], which compiles a shipped policy once per
    /// process; [`PolicyEngine::with_cache`] keeps compiled policies in a folder.
    #[must_use]
    pub fn with_policy_engine(mut self, engine: PolicyEngine) -> Self {
        self.policy.engine = Some(engine);
        self
    }

    /// Sets the app's own assignment, instead of a policy's. It is checked like a policy's.
    #[must_use]
    pub fn with_proposal(mut self, proposal: Proposal) -> Self {
        self.policy
            .assignment
            .set("with_proposal", Assignment::Proposal(proposal));
        self
    }

    /// Sets a saved placement, instead of a policy's. [`Self::build`] verifies that it was made for
    /// this graph, these devices and these options ([`SavedPlacement::verify`]). Another method
    /// that sets the placement in addition is an error of [`Self::build`].
    #[must_use]
    pub fn with_saved_placement(mut self, saved: SavedPlacement) -> Self {
        let reused = Reused {
            saved,
            is_verified: true,
        };
        self.policy
            .assignment
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
        self.policy
            .assignment
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
        self.policy.cache = Some(cache);
        self
    }

    pub(in crate::session) fn keeping(mut self, before: Before) -> Self {
        self.policy.before = Some(before);
        self
    }
}

impl PolicySetup {
    /// Checks that only one method has set the placement.
    pub(in crate::session) fn check(&self) -> Result<(), Error> {
        self.assignment.check("the placement")
    }

    /// Asks a policy, even if a saved placement or the app placed the graph before.
    pub(in crate::session) fn use_policy(&mut self) {
        self.assignment = OneOf::default();
    }

    /// Keeps what a saved placement places, and asks a policy about the rest.
    pub(in crate::session) fn keep_saved(&mut self) {
        if let Some(Assignment::Saved(reused)) = self.assignment.take() {
            self.before = Some(Before::Saved(Arc::new(reused.saved)));
        }
    }

    /// Returns whether the app has placed the nodes of its own graph, by their ids.
    pub(in crate::session) fn has_proposal(&self) -> bool {
        matches!(self.assignment.get(), Some(Assignment::Proposal(_)))
    }

    /// Returns whether a saved placement names a node that passes have removed from `given`: it was
    /// made for the graph as it was given.
    pub(in crate::session) fn names_removed(&self, given: &Graph, optimized: &Graph) -> bool {
        let Some(Assignment::Saved(reused)) = self.assignment.get() else {
            return false;
        };
        let is_removed = |name: &str| optimized.find_node(name).is_none();
        let mut names = given.nodes().map(|node| given.node_name(node));
        names.any(|name| is_removed(name) && reused.saved.devices.contains_key(name))
    }

    /// Returns why another graph cannot be placed in the same way, if it cannot.
    pub(in crate::session) fn is_bound_to_graph(&self) -> Option<&'static str> {
        match self.assignment.get()? {
            Assignment::Saved(_) => {
                Some("a saved placement places it; build another session with a policy")
            }
            Assignment::Proposal(_) => {
                Some("the app has placed it; build another session with the larger graph")
            }
        }
    }

    /// Places the nodes; returns also what has moved, if an earlier placement was kept.
    pub(in crate::session) fn place(
        &mut self,
        candidates: &Candidates,
        clock: &mut StageClock,
    ) -> Result<(Placement, PlacedBy, Option<Replacement>), Error> {
        let span = debug_span!(target: targets::SESSION, "place");
        match self.assignment.take() {
            Some(Assignment::Saved(reused)) => {
                let placement = clock.time("place", &span, || reused.resolve(candidates))?;
                return Ok((placement, PlacedBy::Saved, None));
            }
            Some(Assignment::Proposal(proposal)) => {
                let check = || placement::check(candidates, proposal);
                let placement = clock.time("place", &span, check)?;
                return Ok((placement, PlacedBy::App, None));
            }
            None => {}
        }
        let request = match self.request.take() {
            Some(request) => request,
            None => {
                if let Some(proposal) = without_choice(candidates)
                    && self.before.is_none()
                {
                    let check = || placement::check(candidates, proposal);
                    // If it does not fit, the policies' error says more.
                    if let Ok(placement) = clock.time("place", &span, check) {
                        return Ok((placement, PlacedBy::NoChoice, None));
                    }
                }
                PolicyRequest::new(ShippedPolicy::find(DEFAULT_POLICY)?)
            }
        };
        let engine = self.engine.take();
        let (before, cache) = (self.before.take(), self.cache.take());
        let ask = || -> Result<_, Error> {
            let engine = match engine {
                Some(engine) => engine,
                None => PolicyEngine::of_process()?,
            };
            let Some(before) = before else {
                let (placement, report) = match cache {
                    Some(cache) => cache.place(&engine, candidates, &request)?,
                    None => policy::place_with_ladder(&engine, candidates, &request)?,
                };
                return Ok((placement, report, None));
            };
            let kept = before.keep(candidates)?;
            let (placement, mut report) =
                policy::place_with_ladder(&engine, kept.candidates(), &request)?;
            // The policy has not placed the whole graph.
            report.identity = None;
            let (placement, replacement) = kept.settle(placement)?;
            Ok((placement, report, Some(replacement)))
        };
        let (placement, report, replacement) = clock.time("place", &span, ask)?;
        record_policy(&clock.recorder, Instant::now(), &report);
        Ok((placement, PlacedBy::Policy(Box::new(report)), replacement))
    }
}

/// Returns each node's only device; `None` if a node has several.
fn without_choice(candidates: &Candidates) -> Option<Proposal> {
    let graph = candidates.graph();
    let only = graph.nodes().map(|node| match candidates.of_node(node) {
        &[device] => Some(device),
        _ => None,
    });
    Some(Proposal {
        devices: only.collect::<Option<_>>()?,
        ..Proposal::default()
    })
}

impl Before {
    fn keep(&self, candidates: &Candidates) -> Result<Kept, KeepError> {
        match self {
            Self::Saved(saved) => Kept::of_saved(candidates, saved),
            Self::Placement(placement) => Kept::of_placement(candidates, placement),
        }
    }
}

impl Reused {
    /// Checks names and rules first: their errors say more than that something differs.
    fn resolve(&self, candidates: &Candidates) -> Result<Placement, SavedPlacementError> {
        let placement = self.saved.resolve(candidates)?;
        if self.is_verified {
            self.saved.verify(candidates)?;
        }
        Ok(placement)
    }
}
