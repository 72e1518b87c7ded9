//! From a request to a placement: asks the requested policy, and the next ones if it fails.

use std::fmt;
use std::time::{Duration, Instant};

use tracing::{debug_span, warn};

use serde::Serialize;

use super::builtin::ShippedPolicy;
use super::engine::PolicyEngine;
use super::error::{Fault, PolicyError, PolicyErrorKind};
use super::identity::policy_digest;
use super::loaded::{LoadReport, PlaceOptions, PolicyAnswer};
use super::messages::Messages;
use super::native::place_natively;
use super::source::PolicySource;
use super::telemetry;
use crate::candidates::Candidates;
use crate::placement::Digest;
use crate::placement::Infeasibility;
use crate::placement::Placement;
use crate::placement::Violation;
use crate::serialize::{as_ns, as_optional_string, as_string};
use crate::trace::targets;

/// The policies that are asked natively, in this order, if all others fail.
const LAST_RUNGS: [&str; 2] = ["heft", "priority"];

/// The policy to ask, and its options.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PolicyRequest {
    /// The policy.
    pub source: PolicySource,
    /// The configuration of the policy, keys and values.
    pub config: Vec<(String, String)>,
    /// Whether a failure of this policy is the result; otherwise the next rung of the ladder is
    /// asked.
    pub is_strict: bool,
    /// The seed, and whether to ask for reasons.
    pub options: PlaceOptions,
}

impl PolicyRequest {
    /// Creates a request for a policy with its default configuration. If it fails, the ladder
    /// continues.
    pub fn new(source: impl Into<PolicySource>) -> Self {
        Self {
            source: source.into(),
            config: Vec::new(),
            is_strict: false,
            options: PlaceOptions::default(),
        }
    }

    /// Adds a key and its value to [`Self::config`].
    #[must_use]
    pub fn with_setting(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.config.push((key.into(), value.into()));
        self
    }

    /// Sets [`Self::is_strict`].
    #[must_use]
    pub fn with_strict(mut self, is_strict: bool) -> Self {
        self.is_strict = is_strict;
        self
    }

    /// Sets [`Self::options`].
    #[must_use]
    pub fn with_options(mut self, options: PlaceOptions) -> Self {
        self.options = options;
        self
    }
}

/// A policy that was asked, and its form.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rung {
    /// The requested policy, in its sandbox.
    Sandboxed(String),
    /// A shipped policy, as a native build.
    Native(&'static str),
}

impl fmt::Display for Rung {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sandboxed(name) => f.write_str(name),
            Self::Native(name) => write!(f, "{name} (native)"),
        }
    }
}

/// A rung that failed.
#[derive(Debug, Serialize)]
#[non_exhaustive]
pub struct FailedRung {
    /// The policy that was asked.
    #[serde(serialize_with = "as_string")]
    pub rung: Rung,
    /// The step that failed: `load` or `place`.
    pub call: &'static str,
    /// What happened.
    pub error: PolicyError,
    /// The first rung that failed for the same cause, if it is not this one.
    #[serde(serialize_with = "as_optional_string")]
    pub same_cause_as: Option<Rung>,
    /// How long the step took.
    #[serde(rename = "elapsed_ns", serialize_with = "as_ns")]
    pub elapsed: Duration,
}

/// How a placement came about.
#[derive(Debug, Serialize)]
#[non_exhaustive]
pub struct PolicyReport {
    /// The policy that answered.
    #[serde(serialize_with = "as_string")]
    pub answered_by: Rung,
    /// The policies that failed before, in order. Empty if the requested policy answered.
    pub failed: Vec<FailedRung>,
    /// The answer, without the proposal, which became the placement.
    pub answer: PolicyAnswer,
    /// The load times of the sandboxed policy, if it was loaded. After a fallback, of the policy
    /// that failed.
    pub load: Option<LoadReport>,
    /// The policy's part of the placement's identity
    /// ([`crate::placement::PlacementIdentity::policy`]); `None` after a fallback.
    pub identity: Option<Digest>,
    /// Whether the answer came from a [`super::PlacementCache`]. Then no policy was asked, and the
    /// answer's time is the time of the lookup.
    pub is_cached: bool,
    /// The reason why the cache could not be used, or the answer not be stored.
    pub cache_problem: Option<String>,
}

impl PolicyReport {
    /// Returns whether another policy than the requested one answered.
    pub fn is_fallback(&self) -> bool {
        !self.failed.is_empty()
    }
}

/// The reason why there is no placement.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LadderError {
    /// The request is invalid: no such policy, no such setting. A fallback would hide a typing
    /// error.
    #[error(transparent)]
    Request(PolicyError),
    /// The requested policy failed, and the request is strict.
    #[error("{0} (strict: no other policy was asked)")]
    Strict(PolicyError),
    /// Every rung failed.
    #[error("no policy found a placement:{}", Failures(.0))]
    Exhausted(Vec<FailedRung>),
    /// Every rung failed, and no policy can do better.
    #[error("no plan fits into memory, whatever the policy: {proof}")]
    Infeasible {
        /// Why no plan fits.
        proof: Infeasibility,
        /// The policies that were asked.
        failed: Vec<FailedRung>,
    },
}

/// Asks the requested policy. If it fails, asks the native build of the policy (if it is a shipped
/// one), then `heft` and `priority` natively. The first answer that passes the check is the
/// placement.
///
/// # Errors
/// [`LadderError`].
pub fn place_with_ladder(
    engine: &PolicyEngine,
    candidates: &Candidates,
    request: &PolicyRequest,
) -> Result<(Placement, PolicyReport), LadderError> {
    let mut ladder = Ladder {
        engine,
        candidates,
        request,
        failed: Vec::new(),
        load: None,
    };
    let name = request.source.to_string();
    let span = debug_span!(target: targets::POLICY, "ask", policy = name);
    let done = span.in_scope(|| {
        let asked = ladder.ask_sandboxed(&name);
        ladder.step(Rung::Sandboxed(name), asked)
    })?;
    if let Some(done) = done {
        return Ok(done);
    }
    let mut rungs = Vec::new();
    if let PolicySource::Shipped(shipped) = request.source {
        rungs.push((shipped, request.config.as_slice()));
    }
    for name in LAST_RUNGS {
        // The policy of the same name is a rung already, with the request's configuration.
        if let Ok(policy) = ShippedPolicy::find(name)
            && rungs.iter().all(|(asked, _)| asked.name() != name)
        {
            rungs.push((policy, &[]));
        }
    }
    for (policy, config) in rungs {
        let _span = debug_span!(target: targets::POLICY, "ask", policy = policy.name()).entered();
        let asked = Asked::timed("place", || {
            let options = &request.options;
            place_natively(policy, config, candidates, options, engine.limits())
        });
        if let Some(done) = ladder.step(Rung::Native(policy.name()), asked)? {
            return Ok(done);
        }
    }
    let failed = ladder.failed;
    Err(match Infeasibility::prove(candidates) {
        Some(proof) => LadderError::Infeasible { proof, failed },
        None => LadderError::Exhausted(failed),
    })
}

/// The answer of a rung, and its time.
struct Asked {
    call: &'static str,
    elapsed: Duration,
    outcome: Result<PolicyAnswer, PolicyError>,
}

impl Asked {
    fn timed(call: &'static str, ask: impl FnOnce() -> Result<PolicyAnswer, PolicyError>) -> Self {
        let started = Instant::now();
        let outcome = ask();
        Self {
            call,
            elapsed: started.elapsed(),
            outcome,
        }
    }
}

struct Ladder<'a> {
    engine: &'a PolicyEngine,
    candidates: &'a Candidates,
    request: &'a PolicyRequest,
    failed: Vec<FailedRung>,
    load: Option<LoadReport>,
}

impl Ladder<'_> {
    fn ask_sandboxed(&mut self, name: &str) -> Asked {
        let started = Instant::now();
        let bytes = self.request.source.read(self.engine.limits());
        let loaded = bytes.and_then(|bytes| self.engine.load(name, &bytes, &self.request.config));
        match loaded {
            Ok(mut policy) => {
                self.load = Some(policy.load_report().clone());
                Asked::timed("place", || {
                    policy.place(self.candidates, &self.request.options)
                })
            }
            Err(error) => Asked {
                call: "load",
                elapsed: started.elapsed(),
                outcome: Err(error),
            },
        }
    }

    fn check(
        &self,
        rung: &Rung,
        mut answer: PolicyAnswer,
    ) -> Result<(Placement, PolicyAnswer), PolicyError> {
        let policy = rung.to_string();
        let _span = debug_span!(target: targets::POLICY, "check", policy).entered();
        let proposal = std::mem::take(&mut answer.proposal);
        let placement =
            crate::placement::check(self.candidates, proposal).map_err(|violation| {
                let kind = PolicyErrorKind::InvalidProposal { violation };
                let error = PolicyError::new(&policy, kind, Messages::default());
                telemetry::failed("place", &error);
                error
            })?;
        Ok((placement, answer))
    }

    /// Checks the answer of a rung. Returns `None` if the next rung has to be asked.
    fn step(
        &mut self,
        rung: Rung,
        asked: Asked,
    ) -> Result<Option<(Placement, PolicyReport)>, LadderError> {
        let checked = asked.outcome.and_then(|answer| self.check(&rung, answer));
        match checked {
            Ok((placement, answer)) => {
                if !self.failed.is_empty() {
                    warn!(
                        target: targets::POLICY,
                        asked = %self.request.source,
                        answered_by = %rung,
                        n_failed = self.failed.len(),
                        "the requested policy failed; another policy placed the graph"
                    );
                }
                let load = self.load.take();
                let asked = load.as_ref().filter(|_| self.failed.is_empty());
                let limits = self.engine.limits();
                let report = PolicyReport {
                    answered_by: rung,
                    identity: asked.map(|load| {
                        policy_digest(&load.wasm, self.request, limits, self.candidates)
                    }),
                    failed: std::mem::take(&mut self.failed),
                    answer,
                    load,
                    is_cached: false,
                    cache_problem: None,
                };
                Ok(Some((placement, report)))
            }
            // Only an error of the requested policy can be the user's fault.
            Err(error) if self.failed.is_empty() && error.fault() == Fault::User => {
                Err(LadderError::Request(error))
            }
            Err(error) if self.request.is_strict => Err(LadderError::Strict(error)),
            Err(error) => {
                let cause = error.kind.to_string();
                let first = self.failed.iter();
                let first = first.filter(|failed| failed.same_cause_as.is_none());
                let mut first = first.filter(|failed| failed.error.kind.to_string() == cause);
                self.failed.push(FailedRung {
                    same_cause_as: first.next().map(|failed| failed.rung.clone()),
                    rung,
                    call: asked.call,
                    error,
                    elapsed: asked.elapsed,
                });
                Ok(None)
            }
        }
    }
}

/// Each cause once, after the rungs that it made fail. Of several memories that are too small, the
/// first is described.
struct Failures<'a>(&'a [FailedRung]);

impl fmt::Display for Failures<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut has_shortage = false;
        let causes = self.0.iter().filter(|it| it.same_cause_as.is_none());
        let n_causes = causes.clone().count();
        for first in causes {
            let same = |it: &&FailedRung| it.same_cause_as.as_ref() == Some(&first.rung);
            let others = self.0.iter().filter(same).map(|it| it.rung.to_string());
            let mut rungs: Vec<String> = std::iter::once(first.rung.to_string())
                .chain(others)
                .collect();
            let last = rungs.pop().unwrap_or_default();
            f.write_str(if n_causes > 1 { "\n  " } else { " " })?;
            match rungs.is_empty() {
                true => write!(f, "{last}: ")?,
                false => write!(f, "{} and {last}: ", rungs.join(", "))?,
            }
            match &*first.error.kind {
                PolicyErrorKind::InvalidProposal {
                    violation: Violation::Memory { shortage, .. },
                } if std::mem::replace(&mut has_shortage, true) => {
                    write!(f, "{}", shortage.summary())?;
                }
                kind => write!(f, "{kind}")?,
            }
        }
        Ok(())
    }
}
