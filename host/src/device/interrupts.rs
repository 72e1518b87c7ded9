//! The conditions that end a run early, which loops inside kernels check.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::cancel::CancelToken;

/// Why a run ends before its operations have ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Interrupt {
    /// The caller has cancelled it.
    Cancelled,
    /// The session is closed.
    Closed,
    /// The time limit is exceeded.
    TimedOut,
}

/// The conditions that end a run early. Once a loop inside a kernel has noticed one of them, the
/// run is over, whatever the kernel returns: a loop that ends early need not report that its result
/// is incomplete.
#[derive(Debug)]
pub struct Interrupts {
    closed: CancelToken,
    cancel: Option<CancelToken>,
    deadline: Option<Instant>,
    is_noticed: AtomicBool,
}

impl Interrupts {
    pub(crate) fn new(
        closed: CancelToken,
        cancel: Option<CancelToken>,
        deadline: Option<Instant>,
    ) -> Self {
        Self {
            closed,
            cancel,
            deadline,
            is_noticed: AtomicBool::new(false),
        }
    }

    /// Returns the deadline of the run.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Returns the tokens that end the run.
    pub(crate) fn tokens(&self) -> impl Iterator<Item = &CancelToken> {
        self.cancel.iter().chain([&self.closed])
    }

    /// Returns the interrupt of a cancelled token, if there is one; does not read the clock.
    #[inline]
    pub(crate) fn of_tokens(&self) -> Option<Interrupt> {
        let is_set = |token: &CancelToken| token.is_cancelled();
        if self.cancel.as_ref().is_some_and(is_set) {
            return Some(Interrupt::Cancelled);
        }
        is_set(&self.closed).then_some(Interrupt::Closed)
    }

    /// Returns the interrupt of a cancelled token or of the deadline, if there is one.
    #[inline]
    pub(crate) fn due(&self) -> Option<Interrupt> {
        let is_late = |deadline: Instant| Instant::now() >= deadline;
        self.of_tokens().or_else(|| {
            self.deadline
                .is_some_and(is_late)
                .then_some(Interrupt::TimedOut)
        })
    }

    /// Returns whether a loop inside a kernel should end, because its result is no longer needed.
    /// It costs up to 50 ns, so check every few ms.
    pub fn are_due(&self) -> bool {
        let are_due = self.is_noticed() || self.due().is_some();
        if are_due {
            self.is_noticed.store(true, Ordering::Relaxed);
        }
        are_due
    }

    /// Returns whether a loop has noticed that it should end.
    #[inline]
    pub(crate) fn is_noticed(&self) -> bool {
        self.is_noticed.load(Ordering::Relaxed)
    }
}
