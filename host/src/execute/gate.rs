//! How the threads of one run agree that it is over, and how the calling thread sleeps meanwhile.

use std::time::Instant;

use super::sync::AtomicBool;
use super::sync::AtomicUsize;
use super::sync::Condvar;
use super::sync::Mutex;
use super::sync::MutexGuard;
use super::sync::Ordering::Relaxed;
use super::sync::Ordering::SeqCst;
use super::sync::PoisonError;
use super::sync::between_write_and_read;
use super::sync::spin_until;

/// The number of threads inside the run, the number of remaining operations, and whether the caller
/// sleeps.
#[derive(Debug)]
pub(super) struct Gate {
    n_left: AtomicUsize,
    /// Threads that execute operations, or are about to.
    n_inside: AtomicUsize,
    has_failed: AtomicBool,
    /// Whether the caller sleeps until there is something for it to do.
    caller_sleeps: AtomicBool,
    sleep: Mutex<()>,
    wake: Condvar,
}

impl Gate {
    /// Creates the gate of a run of `n_operations` operations.
    pub(super) fn new(n_operations: usize) -> Self {
        Self {
            n_left: AtomicUsize::new(n_operations),
            n_inside: AtomicUsize::new(0),
            has_failed: AtomicBool::new(false),
            caller_sleeps: AtomicBool::new(false),
            sleep: Mutex::new(()),
            wake: Condvar::new(),
        }
    }

    /// Records that a thread begins to execute operations.
    pub(super) fn enter(&self) {
        self.n_inside.fetch_add(1, SeqCst);
    }

    /// Records that a thread has executed `n_ended` operations and executes no more until it enters
    /// again. The caller sees everything that the thread did when it sees the run over or idle.
    pub(super) fn leave(&self, n_ended: usize) {
        self.n_left.fetch_sub(n_ended, SeqCst);
        self.n_inside.fetch_sub(1, SeqCst);
        self.wake_caller();
    }

    /// Ends the run early.
    pub(super) fn fail(&self) {
        self.has_failed.store(true, SeqCst);
    }

    #[inline]
    pub(super) fn has_failed(&self) -> bool {
        self.has_failed.load(Relaxed)
    }

    pub(super) fn is_over(&self) -> bool {
        self.n_left.load(SeqCst) == 0 || self.has_failed.load(SeqCst)
    }

    /// Checks whether no thread executes operations.
    pub(super) fn is_idle(&self) -> bool {
        self.n_inside.load(SeqCst) == 0
    }

    /// Returns about how many threads execute operations.
    pub(super) fn n_inside(&self) -> usize {
        self.n_inside.load(Relaxed)
    }

    /// Wakes the caller if it sleeps, and returns whether it slept. Call it after making the
    /// condition true that the caller may wait for.
    pub(super) fn wake_caller(&self) -> bool {
        between_write_and_read();
        let is_asleep = self.caller_sleeps.load(SeqCst);
        if is_asleep {
            // Under the lock: the caller would miss it between its last check and its sleep.
            let _sleep = self.lock();
            self.wake.notify_one();
        }
        is_asleep
    }

    /// Sleeps until the condition holds. Only the caller of the run may call it.
    pub(super) fn sleep_until(&self, is_reached: impl Fn() -> bool) {
        if spin_until(&is_reached) {
            return;
        }
        let mut sleep = self.lock();
        // Set before the last check: a thread that makes the condition true after the check sees
        // that the caller sleeps.
        self.caller_sleeps.store(true, SeqCst);
        between_write_and_read();
        while !is_reached() {
            sleep = self
                .wake
                .wait(sleep)
                .unwrap_or_else(PoisonError::into_inner);
        }
        self.caller_sleeps.store(false, SeqCst);
    }

    /// Does the same, but only until `deadline`.
    pub(super) fn sleep_until_deadline(
        &self,
        is_reached: impl Fn() -> bool,
        deadline: Option<Instant>,
    ) {
        let Some(deadline) = deadline else {
            return self.sleep_until(is_reached);
        };
        let mut sleep = self.lock();
        self.caller_sleeps.store(true, SeqCst);
        between_write_and_read();
        while !is_reached() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let woken = self.wake.wait_timeout(sleep, left);
            (sleep, _) = woken.unwrap_or_else(PoisonError::into_inner);
        }
        self.caller_sleeps.store(false, SeqCst);
    }

    /// No code that may panic runs under the lock, so poisoning has no meaning.
    fn lock(&self) -> MutexGuard<'_, ()> {
        self.sleep.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
