//! What the lock-free parts of the executor are made of. The package `tests/loom` compiles those
//! parts ([`super::countdown`], [`super::gate`], [`super::ready`]) with the model checker's atomics
//! and locks in the place of these.

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

/// How long a thread that ran out of work looks for more before it sleeps: about what waking it
/// again would cost.
const SPIN: Duration = Duration::from_micros(5);

/// Looks for a while whether something is reached.
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

/// Between a write and a read of another place, both `SeqCst`: of two threads that do so crosswise,
/// one sees the other's write. Nothing to do, as the two accesses promise it. The model checker
/// takes them for weaker than they are, and has a fence here.
#[inline]
pub(super) fn between_write_and_read() {}
