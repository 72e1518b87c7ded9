//! Reports how calls into policies ended to the app's metrics and log.

use tracing::Span;
use tracing::field;
use tracing::warn;

use super::error::Fault;
use super::error::PolicyError;
use super::loaded::PolicyAnswer;
use crate::trace::meters;
use crate::trace::targets;

/// Reports the end of a call. `span` is the span of the call.
pub(super) fn call_ended<T>(span: &Span, call: &'static str, outcome: &Result<T, PolicyError>) {
    let label = match outcome {
        Ok(_) => "ok",
        Err(_) => "failed",
    };
    ended(span, call, label);
    if let Err(error) = outcome {
        failed(call, error);
    }
}

/// Reports the end of a call to `place`.
pub(super) fn place_ended(span: &Span, policy: &str, outcome: &Result<PolicyAnswer, PolicyError>) {
    let cut_off = outcome
        .as_ref()
        .ok()
        .and_then(|answer| answer.cut_off.as_ref());
    let Some(cut_off) = cut_off else {
        return call_ended(span, "place", outcome);
    };
    ended(span, "place", "cut-off");
    warn!(
        target: targets::POLICY,
        policy,
        call = "place",
        reason = %cut_off,
        "a policy was stopped; its last legal offer is the answer"
    );
}

fn ended(span: &Span, call: &'static str, outcome: &'static str) {
    span.record("outcome", outcome);
    meters::add_policy_calls(call, outcome, 1);
}

/// Reports a policy that gave no usable answer.
pub(super) fn failed(call: &'static str, error: &PolicyError) {
    let (reason, fault) = (error.kind.reason(), error.fault());
    if fault != Fault::User {
        meters::add_refusal(reason.to_owned());
    }
    warn!(
        target: targets::POLICY,
        policy = error.policy,
        call,
        reason,
        fault = field::display(fault),
        error = %error.kind,
        "a policy gave no usable answer"
    );
}

/// Counts the successful calls of one online run, and reports them when it is dropped: reporting
/// takes longer than a call.
#[derive(Debug, Default)]
pub(super) struct OnlineCalls(Vec<(&'static str, u64)>);

impl OnlineCalls {
    pub(super) fn add(&mut self, call: &'static str) {
        match self.0.iter_mut().find(|(name, _)| *name == call) {
            Some((_, n_calls)) => *n_calls += 1,
            None => self.0.push((call, 1)),
        }
    }
}

impl Drop for OnlineCalls {
    fn drop(&mut self) {
        for &(call, n_calls) in &self.0 {
            meters::add_policy_calls(call, "ok", n_calls);
        }
    }
}
