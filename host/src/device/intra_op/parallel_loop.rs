//! A loop that the calling thread shares with others.
//!
//! The caller works from the start and never waits for a thread that has not come yet: on a machine
//! that is busy otherwise, a loop takes no longer than on one thread. Helpers that come when the
//! loop is over find it closed and leave without touching what the caller lent.
#![expect(
    unsafe_code,
    reason = "helpers outlive the loop that they are asked for, so its closure is lent to them without a lifetime"
)]

use std::any::Any;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::panic::catch_unwind;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use super::lease::Lease;

/// A loop under way.
pub(super) struct ParallelLoop {
    /// What is called for each part. Lent: only who has entered, or the caller, may call it.
    body: *const (dyn Fn(usize) + Sync),
    lease: Lease,
    /// Per part whether somebody has it.
    is_taken: Box<[AtomicBool]>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: `body` is `Sync`, and it is called only between `enter` and `leave`, for whose end the
// caller waits.
unsafe impl Send for ParallelLoop {}
// SAFETY: as above; the other fields are `Sync`.
unsafe impl Sync for ParallelLoop {}

/// Calls `body(part)` once for each part of `0..n_parts`, on this thread and on those to whom `ask`
/// gives the parallel_loop. What `ask` makes is dropped when the loop is over.
///
/// # Panics
/// If `body` does, when no thread is in it any more.
pub(super) fn for_each<Asked>(
    n_parts: usize,
    body: &(dyn Fn(usize) + Sync),
    ask: impl FnOnce(&Arc<ParallelLoop>) -> Asked,
) {
    let body: *const (dyn Fn(usize) + Sync + '_) = body;
    // SAFETY: the types differ in the lifetime alone. Nobody calls it after `Loan` is dropped,
    // which waits for all who do.
    let body: *const (dyn Fn(usize) + Sync + 'static) = unsafe { std::mem::transmute(body) };
    let parallel_loop = Arc::new(ParallelLoop {
        body,
        lease: Lease::new(),
        is_taken: (0..n_parts).map(|_| AtomicBool::new(false)).collect(),
        panic: Mutex::default(),
    });
    let loan = Loan(&parallel_loop.lease);
    let asked = ask(&parallel_loop);
    parallel_loop.work(0..n_parts);
    drop(loan);
    drop(asked);
    let panic = parallel_loop
        .panic
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .take();
    if let Some(panic) = panic {
        resume_unwind(panic);
    }
}

/// Takes back what is lent when it is dropped: also where asking for help panics.
struct Loan<'a>(&'a Lease);

impl Drop for Loan<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl ParallelLoop {
    /// Whether there are parts that nobody has taken.
    pub(super) fn is_open(&self) -> bool {
        self.is_taken.iter().any(|is_taken| !is_taken.load(Relaxed))
    }

    /// Works on parts until none is left, unless the loop is over. The same parts go to the same
    /// helper in each loop of as many parts, as far as all are equally fast: their data may
    /// stand in its core's caches. The caller begins with the first parts, helper 0 of
    /// `n_helpers` with the last.
    pub(super) fn help(&self, helper: usize, n_helpers: usize) {
        let n_parts = self.is_taken.len();
        if self.lease.enter() {
            let first = n_parts - n_parts * helper / (n_helpers + 1);
            self.work((0..first).rev().chain((first..n_parts).rev()));
            self.lease.leave();
        }
    }

    /// Does the parts that nobody has taken, in this order. The caller, and who has entered, may
    /// call it.
    fn work(&self, parts: impl Iterator<Item = usize>) {
        // SAFETY: the closure is lent to this thread.
        let body = unsafe { &*self.body };
        for part in parts {
            let is_taken = &self.is_taken[part];
            if is_taken.load(Relaxed) || is_taken.swap(true, Relaxed) {
                continue;
            }
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| body(part))) {
                for is_taken in &self.is_taken {
                    is_taken.store(true, Relaxed);
                }
                let mut first = self.panic.lock().unwrap_or_else(PoisonError::into_inner);
                first.get_or_insert(panic);
                return;
            }
        }
    }
}

impl fmt::Debug for ParallelLoop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ParallelLoop")
            .field("n_parts", &self.is_taken.len())
            .finish_non_exhaustive()
    }
}
