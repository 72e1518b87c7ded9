//! The report of how a session was built.

use std::time::Duration;
use std::time::Instant;

use serde::Serialize;
use tracing::Span;

use crate::placement::Replacement;
use crate::policy::PolicyReport;
use crate::serialize::as_ns;
use crate::trace::EventKind;
use crate::trace::Recorder;

/// How a session was built.
#[derive(Debug, Serialize)]
#[non_exhaustive]
pub struct SessionReport {
    /// The stages of building the session, in order, with their times.
    pub stages: Vec<StageTime>,
    /// Who placed the graph.
    pub placed_by: PlacedBy,
    /// The nodes that stay or move, if an earlier placement was to be kept.
    pub replacement: Option<Replacement>,
    /// The problems of measured rates that are not used
    /// ([`SessionBuilder::with_calibrations`](super::SessionBuilder::with_calibrations)).
    pub calibration_problems: Vec<String>,
}

/// One stage of the pipeline.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct StageTime {
    /// `import`, `discover`, `enumerate`, `place`.
    pub name: &'static str,
    /// Its duration.
    #[serde(rename = "elapsed_ns", serialize_with = "as_ns")]
    pub elapsed: Duration,
}

/// Who placed the graph.
#[derive(Debug, Serialize)]
#[non_exhaustive]
#[serde(rename_all = "snake_case")]
pub enum PlacedBy {
    /// A policy; the report names the one that answered.
    Policy(Box<PolicyReport>),
    /// A saved placement.
    Saved,
    /// The app, with its own proposal.
    App,
    /// Nobody: the app names no policy, and each node has one device that may run it.
    NoChoice,
}

impl SessionReport {
    /// Returns the policy's report, if a policy placed the graph.
    pub fn policy(&self) -> Option<&PolicyReport> {
        match &self.placed_by {
            PlacedBy::Policy(report) => Some(report),
            PlacedBy::Saved | PlacedBy::App | PlacedBy::NoChoice => None,
        }
    }
}

/// Times stages.
#[derive(Debug, Default)]
pub(super) struct StageClock {
    pub(super) stages: Vec<StageTime>,
    pub(super) recorder: Recorder,
}

impl StageClock {
    /// Runs a stage in its span and records its time.
    pub(super) fn time<T>(
        &mut self,
        name: &'static str,
        span: &Span,
        stage: impl FnOnce() -> T,
    ) -> T {
        let started = Instant::now();
        let outcome = span.in_scope(stage);
        let elapsed = started.elapsed();
        let kind = EventKind::Stage { name: name.into() };
        self.recorder.record(started, elapsed, kind);
        self.stages.push(StageTime { name, elapsed });
        outcome
    }
}

/// Records the policy calls of a report. The last one ended with the stage.
pub(super) fn record_policy(recorder: &Recorder, ended: Instant, report: &PolicyReport) {
    let call = |end: Instant, elapsed: Duration, policy: String, call: &'static str, outcome| {
        let start = end.checked_sub(elapsed).unwrap_or(end);
        let kind = EventKind::PolicyCall {
            policy,
            call: call.into(),
            outcome,
        };
        recorder.record(start, elapsed, kind);
        start
    };
    let answer = &report.answer;
    let outcome = match &answer.cut_off {
        _ if report.is_cached => "answered by the cache".to_owned(),
        Some(cut_off) => cut_off.to_string(),
        None => "answered".to_owned(),
    };
    let policy = report.answered_by.to_string();
    let mut start = call(ended, answer.elapsed, policy, "place", outcome);
    for failed in report.failed.iter().rev() {
        let outcome = failed.error.to_string();
        let policy = failed.rung.to_string();
        start = call(start, failed.elapsed, policy, failed.call, outcome);
    }
    if let Some(load) = &report.load {
        // The policy asked for, which is asked first.
        let loaded = report
            .failed
            .first()
            .map_or(&report.answered_by, |failed| &failed.rung);
        let elapsed = load.encode + load.compile + load.start;
        let how = if load.is_cached {
            "from the cache"
        } else {
            "compiled"
        };
        call(start, elapsed, loaded.to_string(), "load", how.to_owned());
    }
}
