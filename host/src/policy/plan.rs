//! The plan that a policy writes into: draft, what was offered, and what the policy said about it.

use std::cell::RefCell;

use placewright_guest::PlaceError;
use placewright_guest::source::{BudgetUnit, PlanSink, Violation};

use super::error::PolicyErrorKind;
use super::limits::PolicyLimits;
use super::loaded::{Dropped, PlaceOptions};
use super::messages::truncate;
use crate::candidates::{Candidates, Explanation, Proposal};
use crate::placement::Evaluator;

/// Bytes kept of a metric's name.
const METRIC_NAME_BYTES_MAX: usize = 64;
/// What a kept explanation costs beside its text, once and for each node that it is said of, so
/// that empty ones are bounded, too.
const EXPLANATION_BYTES_FIXED: usize = 64;
const EXPLANATION_BYTES_PER_NODE: usize = 32;

/// The host's side of one call's plan. The sandbox's imports and native policies write into the
/// same.
pub(super) struct PlanBook {
    explain_wanted: bool,
    explanation_bytes_max: usize,
    reason_bytes_max: usize,
    n_metrics_max: usize,
    pages: RefCell<Pages>,
}

struct Pages {
    evaluator: Evaluator,
    explanations: Vec<Explanation>,
    explanation_bytes: usize,
    metrics: Vec<(String, f64)>,
    result: PlanResult,
}

/// What is left of a plan when its call has ended.
#[derive(Debug, Default)]
pub(super) struct PlanResult {
    /// The last legal offer.
    proposal: Option<Proposal>,
    /// What the last illegal offer broke.
    refused: Option<Violation>,
    /// Legal offers.
    pub(super) n_offers: u64,
    pub(super) dropped: Dropped,
}

impl PlanResult {
    pub(super) fn has_offer(&self) -> bool {
        self.proposal.is_some()
    }

    /// The answer of a policy that returned, or was cut off after an offer.
    ///
    /// # Errors
    /// [`PolicyErrorKind::InvalidProposal`] or [`PolicyErrorKind::NoOffer`].
    pub(super) fn into_proposal(self) -> Result<Proposal, PolicyErrorKind> {
        let refused = self.refused;
        self.proposal.ok_or_else(|| {
            refused.map_or(PolicyErrorKind::NoOffer, |violation| {
                PolicyErrorKind::InvalidProposal { violation }
            })
        })
    }

    /// What it means that a policy returned an error. Most authors hand on the violation that
    /// `offer` gave them: then the rule that it breaks says more than their words.
    pub(super) fn kind_of(&self, error: PlaceError) -> PolicyErrorKind {
        match (error, &self.refused) {
            (PlaceError::Declined(reason), _) => PolicyErrorKind::Declined(reason),
            (PlaceError::Failed(_), Some(violation)) if self.proposal.is_none() => {
                PolicyErrorKind::InvalidProposal {
                    violation: violation.clone(),
                }
            }
            (PlaceError::Failed(reason), _) => PolicyErrorKind::Failed(reason),
        }
    }
}

impl PlanBook {
    pub(super) fn new(
        candidates: &Candidates,
        options: &PlaceOptions,
        limits: &PolicyLimits,
    ) -> Self {
        Self {
            explain_wanted: options.explain_wanted,
            explanation_bytes_max: limits.explanation_bytes,
            reason_bytes_max: limits.log_message_bytes,
            n_metrics_max: limits.metrics,
            pages: RefCell::new(Pages {
                evaluator: Evaluator::new(candidates),
                explanations: Vec::new(),
                explanation_bytes: 0,
                metrics: Vec::new(),
                result: PlanResult::default(),
            }),
        }
    }

    /// [`PlanSink::move_nodes`], returning how many nodes it looked at.
    pub(super) fn move_and_count(&self, nodes: &[u32], device: u32) -> usize {
        self.pages.borrow_mut().evaluator.move_nodes(nodes, device)
    }

    /// What was offered. Explanations and metrics count whenever they came: a policy explains after
    /// its last offer, too.
    pub(super) fn into_result(self) -> PlanResult {
        let pages = self.pages.into_inner();
        PlanResult {
            proposal: pages.evaluator.into_proposal().map(|offered| Proposal {
                explanations: pages.explanations,
                metrics: pages.metrics,
                ..offered
            }),
            ..pages.result
        }
    }
}

impl PlanSink for PlanBook {
    fn set_devices(&self, device: &[u32]) {
        self.pages.borrow_mut().evaluator.set_devices(device);
    }

    fn devices(&self) -> Vec<u32> {
        self.pages.borrow().evaluator.devices().to_vec()
    }

    fn move_nodes(&self, nodes: &[u32], device: u32) {
        self.move_and_count(nodes, device);
    }

    fn makespan_ns(&self) -> f64 {
        self.pages.borrow_mut().evaluator.makespan_ns()
    }

    fn violation(&self) -> Option<Violation> {
        self.pages.borrow_mut().evaluator.violation().map(to_wire)
    }

    fn transfer_bytes(&self) -> u64 {
        self.pages.borrow_mut().evaluator.transfer_bytes()
    }

    fn peak_bytes_per_device(&self) -> Vec<u64> {
        self.pages.borrow_mut().evaluator.peak_bytes_per_device()
    }

    fn set_start_order(&self, order: &[i32]) {
        let order = Some(order.to_vec());
        self.pages.borrow_mut().evaluator.set_start_order(order);
    }

    fn set_queues(&self, queue: &[u32]) {
        let queue = Some(queue.to_vec());
        self.pages.borrow_mut().evaluator.set_queues(queue);
    }

    fn explain_wanted(&self) -> bool {
        self.explain_wanted
    }

    fn explain(&self, nodes: &[u32], reason: &str) {
        let pages = &mut *self.pages.borrow_mut();
        let reason = truncate(reason, self.reason_bytes_max);
        // A report says it of each node: a short call could stand for gigabytes.
        let times = nodes.len().max(1);
        let size_bytes = times
            .saturating_mul(EXPLANATION_BYTES_PER_NODE + reason.len())
            .saturating_add(EXPLANATION_BYTES_FIXED)
            .saturating_add(pages.explanation_bytes);
        if !self.explain_wanted || size_bytes > self.explanation_bytes_max {
            pages.result.dropped.explanations += 1;
            return;
        }
        pages.explanation_bytes = size_bytes;
        pages.explanations.push(Explanation {
            nodes: nodes.to_vec(),
            reason: reason.to_owned(),
        });
    }

    fn metric(&self, name: &str, value: f64) {
        let pages = &mut *self.pages.borrow_mut();
        let name = truncate(name, METRIC_NAME_BYTES_MAX);
        if let Some((_, known)) = pages.metrics.iter_mut().find(|(known, _)| known == name) {
            *known = value;
        } else if pages.metrics.len() < self.n_metrics_max {
            pages.metrics.push((name.to_owned(), value));
        } else {
            pages.result.dropped.metrics += 1;
        }
    }

    fn offer(&self) -> Result<(), Violation> {
        let pages = &mut *self.pages.borrow_mut();
        match pages.evaluator.offer() {
            Ok(()) => {
                pages.result.n_offers += 1;
                Ok(())
            }
            Err(violation) => {
                let violation = to_wire(violation);
                pages.result.refused = Some(violation.clone());
                Err(violation)
            }
        }
    }

    /// Native policies are not metered. The sandbox answers for the others itself.
    fn budget_left(&self) -> u64 {
        u64::MAX
    }

    fn budget_unit(&self) -> BudgetUnit {
        BudgetUnit::Unlimited
    }
}

/// A violation as it crosses to policies.
#[expect(clippy::needless_pass_by_value, reason = "so `map` reads well")]
pub(super) fn to_wire(violation: crate::placement::Violation) -> Violation {
    Violation {
        rule: violation.rule().to_owned(),
        node: violation.node().0,
        explanation: violation.to_string(),
    }
}
