//! How what one thread owns is lent to others, and taken back.

use super::sync::AtomicUsize;
use super::sync::Ordering::AcqRel;
use super::sync::Ordering::Acquire;
use super::sync::Ordering::Relaxed;
use super::sync::Ordering::Release;
use super::sync::Thread;
use super::sync::current;
use super::sync::park;
use super::sync::spin_until;

/// The bit of [`Lease::state`] that says that nobody may come any more; the others count the
/// threads inside.
const CLOSED: usize = 1 << (usize::BITS - 1);

/// Who uses what the thread that made it has lent.
#[derive(Debug)]
pub(super) struct Lease {
    state: AtomicUsize,
    owner: Thread,
}

impl Lease {
    /// Open, with nobody inside. The calling thread is the owner.
    pub(super) fn new() -> Self {
        Self {
            state: AtomicUsize::new(0),
            owner: current(),
        }
    }

    /// Whether it is still open; then the owner waits for this thread from now on.
    pub(super) fn enter(&self) -> bool {
        let mut state = self.state.load(Relaxed);
        while state & CLOSED == 0 {
            match self
                .state
                .compare_exchange_weak(state, state + 1, Acquire, Relaxed)
            {
                Ok(_) => return true,
                Err(changed) => state = changed,
            }
        }
        false
    }

    /// Ends what a successful [`Self::enter`] began. What this thread wrote, the owner sees when it
    /// has closed.
    pub(super) fn leave(&self) {
        // Taken before: what is lent may be gone right after.
        let owner = self.owner.clone();
        if self.state.fetch_sub(1, Release) == CLOSED + 1 {
            owner.unpark();
        }
    }

    /// For the owner: lets nobody in any more, and waits for those inside.
    pub(super) fn close(&self) {
        self.state.fetch_or(CLOSED, AcqRel);
        let have_all_left = || self.state.load(Acquire) == CLOSED;
        if spin_until(have_all_left) {
            return;
        }
        while !have_all_left() {
            park();
        }
    }
}
