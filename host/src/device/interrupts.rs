//! Whether a run goes on: what loops inside its kernels ask.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::cancel::CancelToken;

/// What ends a run before its operations do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Interrupt {
    /// The caller's token.
    Cancelled,
    /// That of its session.
    Closed,
    /// Its time.
    TimedOut,
}

/// What may end a run early. Once a loop inside a kernel has been told so, the run is over,
/// whatever the kernel makes of it: a loop that ends early need not say that its result is none.
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

    /// When the run's time ends.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// The tokens that end the run.
    pub(crate) fn tokens(&self) -> impl Iterator<Item = &CancelToken> {
        self.cancel.iter().chain([&self.closed])
    }

    /// What a token says; the clock is not looked at.
    #[inline]
    pub(crate) fn of_tokens(&self) -> Option<Interrupt> {
        let is_set = |token: &CancelToken| token.is_cancelled();
        if self.cancel.as_ref().is_some_and(is_set) {
            return Some(Interrupt::Cancelled);
        }
        is_set(&self.closed).then_some(Interrupt::Closed)
    }

    /// What a token or the clock says.
    #[inline]
    pub(crate) fn due(&self) -> Option<Interrupt> {
        let is_late = |deadline: Instant| Instant::now() >= deadline;
        self.of_tokens().or_else(|| {
            self.deadline
                .is_some_and(is_late)
                .then_some(Interrupt::TimedOut)
        })
    }

    /// Whether a loop of a kernel should end, as nobody wants its result any more. It costs up to
    /// 50 ns, so a loop asks every some ms.
    pub fn are_due(&self) -> bool {
        let are_due = self.is_noticed() || self.due().is_some();
        if are_due {
            self.is_noticed.store(true, Ordering::Relaxed);
        }
        are_due
    }

    /// Whether a loop has been told to end.
    #[inline]
    pub(crate) fn is_noticed(&self) -> bool {
        self.is_noticed.load(Ordering::Relaxed)
    }
}
