//! Policies linked into the host: the same source as in the sandbox, over the same view, without its limits.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use placewright_guest::ConfigError;
use placewright_guest::log::Log;

use super::builtin::ShippedPolicy;
use super::engine::panic_text;
use super::error::{PolicyError, PolicyErrorKind};
use super::limits::PolicyLimits;
use super::loaded::{PlaceOptions, PolicyAnswer};
use super::messages::MessageBook;
use super::plan::PlanBook;
use super::view::View;
use crate::candidates::Candidates;

/// Asks a shipped policy, natively. Of the limits only those of messages, explanations and metrics apply.
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
    let messages = Arc::new(MessageBook::new(limits));
    let error = |kind| PolicyError::new(policy.name(), kind, messages.take());
    let log = Log::new(messages.clone());
    let mut instance = policy.native();
    instance.configure(config, &log).map_err(|refused| {
        error(match refused {
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
    let plan = PlanBook::new(candidates, options, limits);
    let view = View::new(candidates.clone());
    let started = Instant::now();
    // A panic must not take the host down: the sandboxed twin, which ran before, may have trapped for the same reason.
    // Instance, plan and view are dropped after one, so nobody sees them half changed.
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        instance.place(&view, &view, &plan, options.seed, &log)
    }));
    let elapsed = started.elapsed();
    match outcome {
        Ok(Ok(())) => {}
        Ok(Err(refused)) => return Err(error(plan.into_result().into_kind(refused))),
        Err(panic) => {
            return Err(error(PolicyErrorKind::Trap {
                call: "place",
                trap: "it panicked".to_owned(),
                message: panic_text(&*panic).map(ToOwned::to_owned),
                backtrace: Vec::new(),
            }));
        }
    }
    let result = plan.into_result();
    let (n_offers, dropped) = (result.n_offers, result.dropped);
    let proposal = result.into_proposal().map_err(error)?;
    Ok(PolicyAnswer {
        proposal,
        n_offers,
        cut_off: None,
        dropped,
        messages: messages.take(),
        fuel_used: None,
        peak_memory_bytes: None,
        elapsed,
    })
}
