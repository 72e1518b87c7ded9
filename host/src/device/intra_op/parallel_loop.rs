//! A parallel loop that the calling thread shares with other threads.
//!
//! The caller works from the start and never waits for a thread that has not joined yet. So on a
//! busy machine a loop takes no longer than on one thread. Helpers that join after the end of the
//! loop find it closed and leave without accessing the caller's closure.
#![expect(
    unsafe_code,
    reason = "helpers may outlive the loop that they help with, so they get its closure without a lifetime"
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

/// A parallel loop in progress.
pub(super) struct ParallelLoop {
    /// Called for each part. Borrowed: only a thread that has entered the lease, or the caller,
    /// may call it.
    body: *const (dyn Fn(usize) + Sync),
    lease: Lease,
    /// Per part whether a thread has taken it.
    is_taken: Box<[AtomicBool]>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: `body` is `Sync`, and it is called only between `enter` and `leave`, and the caller waits
// for the `leave`.
unsafe impl Send for ParallelLoop {}
// SAFETY: as above; the other fields are `Sync`.
unsafe impl Sync for ParallelLoop {}

/// Calls `body(part)` once for each part of `0..n_parts`, on this thread and on those to which
/// `ask` passes the loop. The result of `ask` is dropped when the loop is over.
///
/// # Panics
/// If `body` panics, once no thread is in it any more.
pub(super) fn for_each<Asked>(
    n_parts: usize,
    body: &(dyn Fn(usize) + Sync),
    ask: impl FnOnce(&Arc<ParallelLoop>) -> Asked,
) {
    let body: *const (dyn Fn(usize) + Sync + '_) = body;
    // SAFETY: the types differ only in the lifetime. No thread calls it after `Loan` is dropped,
    // which waits for all threads that do.
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

/// Ends the lease when it is dropped, also if `ask` panics.
struct Loan<'a>(&'a Lease);

impl Drop for Loan<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl ParallelLoop {
    /// Checks whether there are parts that no thread has taken.
    pub(super) fn is_open(&self) -> bool {
        self.is_taken.iter().any(|is_taken| !is_taken.load(Relaxed))
    }

    /// Works on parts until none is left, unless the loop is over. The same parts go to the same
    /// helper in each loop with as many parts, as far as all threads are equally fast, because
    /// their data may be in the caches of its core. The caller begins with the first parts, helper
    /// 0 of `n_helpers` with the last.
    pub(super) fn help(&self, helper: usize, n_helpers: usize) {
        let n_parts = self.is_taken.len();
        if self.lease.enter() {
            let first = n_parts - n_parts * helper / (n_helpers + 1);
            self.work((0..first).rev().chain((first..n_parts).rev()));
            self.lease.leave();
        }
    }

    /// Executes the parts that no thread has taken, in this order. Only the caller, and threads
    /// that have entered, may call it.
    fn work(&self, parts: impl Iterator<Item = usize>) {
        // SAFETY: this thread holds the lease of the closure.
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
