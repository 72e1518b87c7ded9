//! The synchronization primitives of the executor's lock-free parts. The package `tests/loom`
//! compiles those parts ([`super::countdown`], [`super::gate`], [`super::ready`]) with the
//! primitives of the model checker instead.

pub(super) use std::sync::Condvar;
pub(super) use std::sync::Mutex;
pub(super) use std::sync::MutexGuard;
pub(super) use std::sync::PoisonError;
pub(super) use std::sync::atomic::AtomicBool;
pub(super) use std::sync::atomic::AtomicU32;
pub(super) use std::sync::atomic::AtomicU64;
pub(super) use std::sync::atomic::AtomicUsize;
pub(super) use std::sync::atomic::Ordering;

use std::time::Duration;
use std::time::Instant;

/// How long a thread without work spins before it sleeps: about the cost of waking it.
const SPIN: Duration = Duration::from_micros(5);

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

/// Stands between a write to one location and a read of another, both `SeqCst`. If two threads do
/// this crosswise, at least one sees the other's write. Does nothing here, because `SeqCst`
/// accesses guarantee it. The model checker treats them as weaker than they are, so there it is a
/// fence.
#[inline]
pub(super) fn between_write_and_read() {}
