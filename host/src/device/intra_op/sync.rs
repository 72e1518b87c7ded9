//! What [`super::lease`] is made of. The package `tests/loom` compiles it with the model checker's
//! atomics and threads in the place of these.

pub(super) use std::sync::atomic::AtomicUsize;
pub(super) use std::sync::atomic::Ordering;
pub(super) use std::thread::Thread;
pub(super) use std::thread::current;
pub(super) use std::thread::park;

/// Looks before a thread sleeps: what it waits for are parts about as long as its own.
const N_LOOKS: u32 = 2_000;

/// Looks for a while whether something is reached.
pub(super) fn spin_until(is_reached: impl Fn() -> bool) -> bool {
    for _ in 0..N_LOOKS {
        if is_reached() {
            return true;
        }
        std::hint::spin_loop();
    }
    false
}
