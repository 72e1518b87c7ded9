//! The end events of a device's commands, and the reports of failed commands.

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
use crate::device::RunNumber;

/// Maximum number of failures kept for runs that have not asked for them. Such runs have failed
/// otherwise, and never ask.
const FAILURES_MAX: usize = 1024;

/// The runs to which a failure is reported when they wait for the device's work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Whose {
    /// Only this run.
    Run(RunNumber),
    /// No run: users of the missing result receive the failure anyway.
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

/// Used by the worker, and by the driver's callbacks.
#[derive(Debug, Clone, Default)]
pub(super) struct Ends(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// The ends of all commands that may still be running, in order.
    in_flight: VecDeque<Arc<End>>,
    /// Failures that have not been reported.
    failures: VecDeque<(Whose, Failure)>,
}

impl Ends {
    /// The driver and its callbacks may hold their own locks: neither is called under this one.
    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics under the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether all commands are known to have ended.
    pub(super) fn is_empty(&self) -> bool {
        self.state().in_flight.is_empty()
    }

    /// Adds a command in flight, and returns the number of commands in flight.
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

    /// Removes the first command in flight.
    pub(super) fn pop(&self) {
        // Dropping it may release memory; that happens outside of the lock.
        let end = self.state().in_flight.pop_front();
        drop(end);
    }

    /// Removes the commands at the front that have ended, and returns their number.
    pub(super) fn forget(&self, has_ended: impl Fn(&End) -> bool) -> usize {
        let ended: Vec<Arc<End>> = {
            let in_flight = &mut self.state().in_flight;
            let n_ended = in_flight.iter().take_while(|end| has_ended(end)).count();
            in_flight.drain(..n_ended).collect()
        };
        // Dropped here, as in `pop`.
        ended.len()
    }

    /// Keeps a failure until its run is waited for.
    pub(super) fn remember(&self, whose: Whose, failure: Failure) {
        let failures = &mut self.state().failures;
        // The first failure of a run is the cause of the others.
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

    /// Takes an unreported failure of a run, or of any.
    pub(super) fn take_failure(&self, step: Option<RunNumber>) -> Option<Failure> {
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

    /// Records that a command has failed, and returns the failure, which is reported to its runs.
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

    /// Returns why `writer` has written nothing, for a command of this number.
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

    /// Returns the first failure of a run before the command of this number.
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
