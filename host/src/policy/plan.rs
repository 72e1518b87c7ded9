//! The plan that a policy writes: the draft, the last legal offer, explanations and metrics.

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
/// The bytes that an explanation counts besides its string, once and for each of its nodes, so that
/// empty explanations are limited too.
const EXPLANATION_BYTES_FIXED: usize = 64;
const EXPLANATION_BYTES_PER_NODE: usize = 32;
/// As many characters of a violation suffice to recognize it in a policy's message.
const VIOLATION_CHARS_COMPARED: usize = 60;

/// The host's side of one call's plan, for the sandbox's imports and for native policies.
pub(super) struct PolicyPlan {
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

/// The result of a plan when its call has ended.
#[derive(Debug, Default)]
pub(super) struct PlanResult {
    /// The last legal offer.
    proposal: Option<Proposal>,
    /// The rule that the last illegal offer broke.
    refused: Option<crate::placement::Violation>,
    /// The number of legal offers.
    pub(super) n_offers: u64,
    pub(super) dropped: Dropped,
}

impl PlanResult {
    pub(super) fn has_offer(&self) -> bool {
        self.proposal.is_some()
    }

    /// Returns the answer of a policy that returned, or was stopped after an offer.
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

    /// Classifies an error that the policy returned. Most policies return the violation of `offer`:
    /// then the rule says more than their message. Any other message, such as the traceback of an
    /// exception, is kept.
    pub(super) fn kind_of(&self, error: PlaceError) -> PolicyErrorKind {
        match (error, &self.refused) {
            (PlaceError::Declined(reason), _) => PolicyErrorKind::Declined(reason),
            (PlaceError::Failed(reason), Some(violation))
                if self.proposal.is_none() && quotes(&reason, violation) =>
            {
                PolicyErrorKind::InvalidProposal {
                    violation: violation.clone(),
                }
            }
            (PlaceError::Failed(reason), _) => PolicyErrorKind::Failed(reason),
        }
    }
}

/// Whether a policy's message contains a violation. Languages and limits may have truncated it.
fn quotes(reason: &str, violation: &crate::placement::Violation) -> bool {
    let text = violation.to_string();
    let start: String = text.chars().take(VIOLATION_CHARS_COMPARED).collect();
    reason.is_empty() || reason.contains(&start)
}

impl PolicyPlan {
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

    /// As [`PlanSink::move_nodes`]. Returns the number of nodes that it visited.
    pub(super) fn move_and_count(&self, nodes: &[u32], device: u32) -> usize {
        self.pages.borrow_mut().evaluator.move_nodes(nodes, device)
    }

    /// Returns the result. Explanations and metrics count at any time: a policy may explain after
    /// its last offer.
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

impl PlanSink for PolicyPlan {
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
        let violation = self.pages.borrow_mut().evaluator.violation();
        violation.as_ref().map(to_wire)
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

    fn set_streamed(&self, constants: &[u32]) {
        self.pages.borrow_mut().evaluator.set_streamed(constants);
    }

    fn explain_wanted(&self) -> bool {
        self.explain_wanted
    }

    fn explain(&self, nodes: &[u32], reason: &str) {
        if !self.explain_wanted {
            return;
        }
        let pages = &mut *self.pages.borrow_mut();
        let reason = truncate(reason, self.reason_bytes_max);
        // A report repeats the reason for each node: a short call could become gigabytes.
        let times = nodes.len().max(1);
        let size_bytes = times
            .saturating_mul(EXPLANATION_BYTES_PER_NODE + reason.len())
            .saturating_add(EXPLANATION_BYTES_FIXED)
            .saturating_add(pages.explanation_bytes);
        if size_bytes > self.explanation_bytes_max {
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
                let refused = to_wire(&violation);
                pages.result.refused = Some(violation);
                Err(refused)
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
fn to_wire(violation: &crate::placement::Violation) -> Violation {
    Violation {
        rule: violation.rule().to_owned(),
        node: violation.node().0,
        explanation: violation.to_string(),
    }
}
