//! The synchronization primitives of [`super::lease`]. The package `tests/loom` compiles it with
//! the primitives of the model checker instead.

pub(super) use std::sync::atomic::AtomicUsize;
pub(super) use std::sync::atomic::Ordering;
pub(super) use std::thread::Thread;
pub(super) use std::thread::current;
pub(super) use std::thread::park;

/// Checks before a thread sleeps: it waits for parts about as long as its own.
const N_CHECKS: u32 = 2_000;

/// Spins until the condition holds; returns false if it does not hold in time.
pub(super) fn spin_until(is_reached: impl Fn() -> bool) -> bool {
    for _ in 0..N_CHECKS {
        if is_reached() {
            return true;
        }
        std::hint::spin_loop();
    }
    false
}
