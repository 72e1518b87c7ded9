//! The synchronization primitives of [`super::lane`] and [`super::command_counter`]. The package
//! `tests/loom` compiles both with the primitives of the model checker instead.

pub(super) use std::sync::Condvar;
pub(super) use std::sync::Mutex;
pub(super) use std::sync::MutexGuard;
pub(super) use std::sync::PoisonError;
pub(super) use std::sync::atomic::AtomicBool;
pub(super) use std::sync::atomic::AtomicU64;
pub(super) use std::sync::atomic::AtomicUsize;
pub(super) use std::sync::atomic::Ordering;

use std::time::Duration;
use std::time::Instant;

/// How long the thread spins for the next command: waking it takes about as long.
const SPIN: Duration = Duration::from_micros(10);

/// Spins until the condition holds; returns false if it does not hold in time.
pub(super) fn spin_until(is_reached: impl Fn() -> bool) -> bool {
    let started = Instant::now();
    while started.elapsed() < SPIN {
        if is_reached() {
            return true;
        }
        std::hint::spin_loop();
    }
    false
}

/// Stands between a write to one location and a read of another, both `SeqCst`. Does nothing here:
/// it is a fence for the model checker, which treats `SeqCst` accesses as weaker than they are.
#[inline]
pub(super) fn between_write_and_read() {}
