//! Native builds of the shipped policies: the same source as in the sandbox and the same view of
//! the graph, without the sandbox's limits.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use placewright_guest::ConfigError;
use placewright_guest::log::Log;
use tracing::{debug_span, field};

use super::builtin::ShippedPolicy;
use super::engine::panic_text;
use super::error::{PolicyError, PolicyErrorKind};
use super::limits::PolicyLimits;
use super::loaded::{CutOff, PlaceOptions, PolicyAnswer};
use super::messages::MessageBook;
use super::plan::PolicyPlan;
use super::telemetry;
use super::view::View;
use crate::candidates::Candidates;
use crate::trace::targets;

/// Asks the native build of a shipped policy. Only the limits of messages, explanations and metrics
/// apply.
///
/// # Errors
/// [`PolicyError`], as from the sandbox; a panic is a [`PolicyErrorKind::Trap`].
pub fn place_natively(
    policy: ShippedPolicy,
    config: &[(String, String)],
    candidates: &Candidates,
    options: &PlaceOptions,
    limits: &PolicyLimits,
) -> Result<PolicyAnswer, PolicyError> {
    let span = debug_span!(
        target: targets::POLICY,
        "call",
        policy = policy.name(),
        call = "place",
        is_native = true,
        nodes = candidates.graph().n_nodes(),
        outcome = field::Empty,
    );
    let _entered = span.enter();
    let outcome = call_place(policy, config, candidates, options, limits);
    telemetry::place_ended(&span, policy.name(), &outcome);
    outcome
}

fn call_place(
    policy: ShippedPolicy,
    config: &[(String, String)],
    candidates: &Candidates,
    options: &PlaceOptions,
    limits: &PolicyLimits,
) -> Result<PolicyAnswer, PolicyError> {
    let messages = Arc::new(MessageBook::new(limits));
    let error = |kind| PolicyError::new(policy.name(), kind, messages.take());
    let log = Log::new(messages.clone());
    let mut instance = policy.native();
    let plan = PolicyPlan::new(candidates, options, limits);
    let view = View::new(candidates.clone(), limits);
    // A panic must not end the host: the sandboxed build, which ran before, may have trapped for
    // the same reason. Instance, plan and view are dropped afterwards, so nobody sees them half
    // changed.
    catch_unwind(AssertUnwindSafe(|| instance.configure(config, &log)))
        .map_err(|panic| error(trap("configure", &*panic)))?
        .map_err(|refused| {
            error(match refused {
                // The user set nothing, so only the policy can be wrong.
                refused if config.is_empty() => PolicyErrorKind::Failed(format!(
                    "`configure` refuses the policy's defaults: {refused}"
                )),
                ConfigError::UnknownKey(key) => PolicyErrorKind::UnknownSetting {
                    key,
                    known: instance
                        .settings()
                        .iter()
                        .map(|setting| setting.key.to_owned())
                        .collect(),
                },
                refused => PolicyErrorKind::Config(refused.to_string()),
            })
        })?;
    let started = Instant::now();
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        instance.place(&view, &view, &plan, options.seed, &log)
    }));
    let elapsed = started.elapsed();
    let result = plan.into_result();
    let lost = |kind| error(kind).with_lost_offer(result.has_offer());
    let outcome = outcome.map_err(|panic| lost(trap("place", &*panic)))?;
    let cut_off = match outcome.map_err(|refused| result.kind_of(refused)) {
        Ok(()) => None,
        Err(kind) => match CutOff::of(&kind) {
            Some(cut_off) if result.has_offer() => Some(cut_off),
            _ => return Err(lost(kind)),
        },
    };
    let (n_offers, dropped) = (result.n_offers, result.dropped);
    let proposal = result.into_proposal().map_err(error)?;
    Ok(PolicyAnswer {
        proposal,
        n_offers,
        cut_off,
        dropped,
        messages: messages.take(),
        fuel_used: None,
        host_fuel_used: None,
        peak_memory_bytes: None,
        elapsed,
    })
}

fn trap(call: &'static str, panic: &(dyn Any + Send)) -> PolicyErrorKind {
    PolicyErrorKind::Trap {
        call,
        trap: "it panicked".to_owned(),
        message: panic_text(panic).map(ToOwned::to_owned),
        backtrace: Vec::new(),
    }
}
