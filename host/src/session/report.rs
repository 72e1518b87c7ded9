//! What a session can tell of itself.

use std::time::Duration;
use std::time::Instant;

use serde::Serialize;
use tracing::Span;

use crate::placement::Replacement;
use crate::policy::PolicyReport;
use crate::serialize::as_ns;
use crate::trace::EventKind;
use crate::trace::Recorder;

/// How a session came about.
#[derive(Debug, Serialize)]
#[non_exhaustive]
pub struct SessionReport {
    /// The stages that ran until the session was there, in order, with their times.
    pub stages: Vec<StageTime>,
    /// Who placed the graph.
    pub placed_by: PlacedBy,
    /// What became of a placement of before, where one was to be kept.
    pub replacement: Option<Replacement>,
    /// What is wrong with measured rates that are therefore not used
    /// ([`SessionBuilder::with_calibrations`](super::SessionBuilder::with_calibrations)).
    pub calibration_problems: Vec<String>,
}

/// One stage of the pipeline.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct StageTime {
    /// `import`, `discover`, `enumerate`, `place`.
    pub name: &'static str,
    /// What it took.
    #[serde(rename = "elapsed_ns", serialize_with = "as_ns")]
    pub elapsed: Duration,
}

/// Who placed the graph.
#[derive(Debug, Serialize)]
#[non_exhaustive]
#[serde(rename_all = "snake_case")]
pub enum PlacedBy {
    /// A policy; the report says which one in the end.
    Policy(Box<PolicyReport>),
    /// A saved placement.
    Saved,
    /// The app, by a proposal of its own.
    App,
}

impl SessionReport {
    /// The policy's part, if a policy was asked.
    pub fn policy(&self) -> Option<&PolicyReport> {
        match &self.placed_by {
            PlacedBy::Policy(report) => Some(report),
            PlacedBy::Saved | PlacedBy::App => None,
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
    /// `span`: the stage's.
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

/// The calls into a policy, as the report tells of them: the last one ended when the stage did.
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
