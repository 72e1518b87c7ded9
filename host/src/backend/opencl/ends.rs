//! The ends of a device's commands, and what is said of those that have ended badly.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;

use super::buffer::Failure;
use super::ffi::Code;
use super::ffi::Progress;
use super::order::End;
use super::order::Work;
use crate::device::StepNumber;

/// Failures that are kept for runs that have not asked: they have failed otherwise, and never will.
const FAILURES_MAX: usize = 1024;

/// Who hears of a failure when the device's work is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Whose {
    /// This run alone.
    Run(StepNumber),
    /// No run: who uses what was not made hears of it anyway.
    Nobody,
    /// Every run.
    All,
}

impl Whose {
    pub(super) fn of(work: Option<&Work>) -> Self {
        let step = work.and_then(|work| work.step);
        step.map_or(Self::Nobody, Self::Run)
    }
}

/// For the worker, and for who is told of an end by the driver.
#[derive(Debug, Clone, Default)]
pub(super) struct Ends(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// Of all commands that may not have ended, in their order.
    in_flight: VecDeque<Arc<End>>,
    /// What nobody has heard of yet.
    failures: VecDeque<(Whose, Failure)>,
}

impl Ends {
    /// The driver, and who is told of an end, may be holding locks of their own: nobody asks them
    /// under this one.
    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics under the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether all commands are known to have ended.
    pub(super) fn is_empty(&self) -> bool {
        self.state().in_flight.is_empty()
    }

    /// One more command is under way; gives how many are.
    pub(super) fn push(&self, end: Arc<End>) -> usize {
        let in_flight = &mut self.state().in_flight;
        in_flight.push_back(end);
        in_flight.len()
    }

    pub(super) fn first(&self) -> Option<Arc<End>> {
        self.state().in_flight.front().cloned()
    }

    pub(super) fn middle(&self) -> Option<Arc<End>> {
        let in_flight = &self.state().in_flight;
        in_flight.get(in_flight.len() / 2).cloned()
    }

    /// Forgets the first of them.
    pub(super) fn pop(&self) {
        // Dropping it may release memory, which is not for others to wait for.
        let end = self.state().in_flight.pop_front();
        drop(end);
    }

    /// Forgets those at the front that have ended; gives how many.
    pub(super) fn forget(&self, has_ended: impl Fn(&End) -> bool) -> usize {
        let ended: Vec<Arc<End>> = {
            let in_flight = &mut self.state().in_flight;
            let n_ended = in_flight.iter().take_while(|end| has_ended(end)).count();
            in_flight.drain(..n_ended).collect()
        };
        // Dropped here, as in `pop`.
        ended.len()
    }

    /// Keeps a failure for whoever waits for the end of its run.
    pub(super) fn remember(&self, whose: Whose, failure: Failure) {
        let failures = &mut self.state().failures;
        // The first of a run is the reason of the others.
        let is_known = |(of, known): &(Whose, Failure)| *of == whose && !known.is_reported();
        let is_of_run = matches!(whose, Whose::Run(_));
        if failure.is_reported() || (is_of_run && failures.iter().any(is_known)) {
            return;
        }
        if failures.len() == FAILURES_MAX {
            failures.pop_front();
        }
        failures.push_back((whose, failure));
    }

    /// What nobody has heard of yet, for who waits for the end of a run, or of everything.
    pub(super) fn take_failure(&self, step: Option<StepNumber>) -> Option<Failure> {
        let is_asked = |of: Whose| match (of, step) {
            (Whose::Run(of), Some(step)) => of == step,
            (Whose::Nobody, Some(_)) => false,
            (Whose::All, _) | (_, None) => true,
        };
        let mut found = None;
        self.state().failures.retain(|(of, failure)| {
            let is_asked = is_asked(*of);
            if is_asked && !failure.is_reported() {
                found.get_or_insert_with(|| failure.clone());
            }
            !is_asked
        });
        found
    }

    /// Notes that a command has ended badly, and gives why. Whoever it has been for hears of it.
    pub(super) fn has_failed(&self, end: &End, code: Code) -> Failure {
        let whose = Whose::of(end.work());
        let reason = match end.failure() {
            Some(_) => None,
            None => self.first_of(whose, end.number()),
        };
        let failure = end.fail(code, reason.as_ref()).clone();
        if end.begin_report() {
            self.remember(whose, failure.clone());
        }
        failure
    }

    /// Why there is nothing to read where `writer` should have written, for a command of this
    /// number.
    pub(super) fn reason(&self, writer: &End, number: u64) -> Option<Failure> {
        if let Some(failure) = writer.failure() {
            return Some(failure.clone());
        }
        self.first_of(Whose::of(writer.work()), number)
            .or_else(|| match writer.event.progress() {
                Progress::Failed(code) => Some(self.has_failed(writer, code)),
                _ => None,
            })
    }

    /// What has failed first in a run, before the command of this number.
    fn first_of(&self, whose: Whose, number: u64) -> Option<Failure> {
        let Whose::Run(_) = whose else {
            return None;
        };
        let is_before = |end: &&Arc<End>| end.number() < number && Whose::of(end.work()) == whose;
        let (known, ends) = {
            let state = self.state();
            let known = state.failures.iter().find(|(of, _)| *of == whose);
            let ends: Vec<_> = state.in_flight.iter().filter(is_before).cloned().collect();
            (known.map(|(_, failure)| failure.clone()), ends)
        };
        known.or_else(|| {
            ends.iter().find_map(|end| match end.event.progress() {
                Progress::Failed(code) => Some(self.has_failed(end, code)),
                _ => None,
            })
        })
    }
}
