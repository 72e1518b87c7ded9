//! A lease: other threads use what one thread owns, until the owner ends it.

use super::sync::AtomicUsize;
use super::sync::Ordering::AcqRel;
use super::sync::Ordering::Acquire;
use super::sync::Ordering::Relaxed;
use super::sync::Ordering::Release;
use super::sync::Thread;
use super::sync::current;
use super::sync::park;
use super::sync::spin_until;

/// The bit of [`Lease::state`] that marks a closed lease; the other bits count the threads inside.
const CLOSED: usize = 1 << (usize::BITS - 1);

/// The threads that use what the owner shares.
#[derive(Debug)]
pub(super) struct Lease {
    state: AtomicUsize,
    owner: Thread,
}

impl Lease {
    /// Creates an open lease without users. The calling thread is the owner.
    pub(super) fn new() -> Self {
        Self {
            state: AtomicUsize::new(0),
            owner: current(),
        }
    }

    /// Enters the lease if it is still open, and returns whether it was. The owner waits for this
    /// thread from then on.
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

    /// Leaves after a successful [`Self::enter`]. The owner sees what this thread wrote once it has
    /// closed the lease.
    pub(super) fn leave(&self) {
        // Cloned before: the shared data may be gone right after.
        let owner = self.owner.clone();
        if self.state.fetch_sub(1, Release) == CLOSED + 1 {
            owner.unpark();
        }
    }

    /// Closes the lease and waits for the threads inside. Only the owner may call it.
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
