//! A loop that the calling thread shares with a pool.
//!
//! The caller works from the start and never waits for a thread that has not come yet: on a machine that is busy otherwise, a loop
//! takes no longer than on one thread. Helpers that come when the loop is over find it closed and leave without touching what the
//! caller lent.
#![expect(
    unsafe_code,
    reason = "helpers outlive the loop that they are asked for, so its closure is lent to them without a lifetime"
)]

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::panic::catch_unwind;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering;
use std::thread;
use std::thread::Thread;

/// The bit of [`Loop::state`] that says that nobody may come any more; the others count the helpers inside.
const CLOSED: usize = 1 << (usize::BITS - 1);

/// Looks for the last helpers to leave before the caller sleeps: their parts are about as long as the caller's.
const SPINS: u32 = 2_000;

/// A loop under way.
struct Loop {
    /// What is called for each part. Lent: only who is inside, or the caller, may call it.
    body: *const (dyn Fn(usize) + Sync),
    n_parts: usize,
    /// The next part.
    next: AtomicUsize,
    state: AtomicUsize,
    caller: Thread,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: `body` is `Sync`, and it is called only between `enter` and `leave`, for whose end the caller waits.
unsafe impl Send for Loop {}
// SAFETY: as above; the other fields are `Sync`.
unsafe impl Sync for Loop {}

/// Calls `body(part)` once for each part of `0..n_parts`, on this thread and on those of the pool that are free.
///
/// # Panics
/// If `body` does.
pub(super) fn for_each(pool: &rayon::ThreadPool, n_parts: usize, body: &(dyn Fn(usize) + Sync)) {
    let body: *const (dyn Fn(usize) + Sync + '_) = body;
    // SAFETY: the types differ in the lifetime alone. Nobody calls it after `close`, which waits for all who do.
    let body: *const (dyn Fn(usize) + Sync + 'static) = unsafe { std::mem::transmute(body) };
    let work = Arc::new(Loop {
        body,
        n_parts,
        next: AtomicUsize::new(0),
        state: AtomicUsize::new(0),
        caller: thread::current(),
        panic: Mutex::default(),
    });
    let n_helpers = (pool.current_num_threads() - 1).min(n_parts.saturating_sub(1));
    for _ in 0..n_helpers {
        let work = Arc::clone(&work);
        pool.spawn(move || work.help());
    }
    work.work();
    work.close();
    let panic = work
        .panic
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .take();
    if let Some(panic) = panic {
        resume_unwind(panic);
    }
}

impl Loop {
    /// Works on parts until none is left. The caller, and who has entered, may call it.
    fn work(&self) {
        // SAFETY: the closure is lent to this thread.
        let body = unsafe { &*self.body };
        loop {
            let part = self.next.fetch_add(1, Ordering::Relaxed);
            if part >= self.n_parts {
                return;
            }
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| body(part))) {
                self.next.store(self.n_parts, Ordering::Relaxed);
                let mut first = self.panic.lock().unwrap_or_else(PoisonError::into_inner);
                first.get_or_insert(panic);
                return;
            }
        }
    }

    fn help(&self) {
        if self.enter() {
            self.work();
            self.leave();
        }
    }

    /// Whether the loop is still open, and waits for this thread from now on.
    fn enter(&self) -> bool {
        let enter = |state: usize| (state & CLOSED == 0).then_some(state + 1);
        self.state
            .fetch_update(Ordering::Acquire, Ordering::Relaxed, enter)
            .is_ok()
    }

    fn leave(&self) {
        // Taken before leaving: the loop may be gone after it.
        let caller = self.caller.clone();
        // Release: who waits for the count sees what this thread has written.
        if self.state.fetch_sub(1, Ordering::Release) == CLOSED + 1 {
            caller.unpark();
        }
    }

    /// Lets nobody in any more, and waits for those inside.
    fn close(&self) {
        self.state.fetch_or(CLOSED, Ordering::AcqRel);
        let mut n_looks = 0u32;
        while self.state.load(Ordering::Acquire) != CLOSED {
            if n_looks < SPINS {
                n_looks += 1;
                std::hint::spin_loop();
            } else {
                thread::park();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    fn pool() -> rayon::ThreadPool {
        rayon::ThreadPoolBuilder::new()
            .num_threads(3)
            .build()
            .unwrap()
    }

    #[test]
    fn every_part_is_done_once_whoever_does_it() {
        let pool = pool();
        for n_parts in [0, 1, 2, 7, 100] {
            for _ in 0..200 {
                let counts: Vec<AtomicU32> = (0..n_parts).map(|_| AtomicU32::new(0)).collect();
                for_each(&pool, n_parts, &|part| {
                    counts[part].fetch_add(1, Ordering::Relaxed);
                });
                assert!(
                    counts
                        .iter()
                        .all(|count| count.load(Ordering::Relaxed) == 1)
                );
            }
        }
    }

    #[test]
    fn helpers_take_parts_while_the_caller_is_busy() {
        // Each part waits for the other, so neither thread can do both.
        let barrier = std::sync::Barrier::new(2);
        for_each(&pool(), 2, &|_| {
            barrier.wait();
        });
    }

    #[test]
    fn loops_within_loops_end() {
        let pool = pool();
        let sum = AtomicU32::new(0);
        for_each(&pool, 5, &|_| {
            for_each(&pool, 5, &|_| {
                sum.fetch_add(1, Ordering::Relaxed);
            });
        });
        assert_eq!(sum.into_inner(), 25);
    }

    #[test]
    fn a_panic_reaches_the_caller_when_nobody_is_inside_any_more() {
        let pool = pool();
        let n_inside = AtomicU32::new(0);
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            for_each(&pool, 50, &|part| {
                n_inside.fetch_add(1, Ordering::SeqCst);
                let broken = part == 3;
                n_inside.fetch_sub(1, Ordering::SeqCst);
                assert!(!broken, "part 3 is broken");
            });
        }));
        assert_eq!(
            outcome.unwrap_err().downcast_ref::<&str>(),
            Some(&"part 3 is broken")
        );
        assert_eq!(n_inside.into_inner(), 0);
    }
}
