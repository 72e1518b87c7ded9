//! The model checker's atomics and locks, under the names of `sync.rs` in `host/src/execute`,
//! `host/src/device/intra_op` and `host/src/backend/opencl`.

pub(super) use std::sync::PoisonError;

pub(super) use loom::sync::Condvar;
pub(super) use loom::sync::Mutex;
pub(super) use loom::sync::MutexGuard;
pub(super) use loom::sync::atomic::AtomicBool;
pub(super) use loom::sync::atomic::AtomicU32;
pub(super) use loom::sync::atomic::AtomicU64;
pub(super) use loom::sync::atomic::AtomicUsize;
pub(super) use loom::sync::atomic::Ordering;
pub(super) use loom::thread::Thread;
pub(super) use loom::thread::current;
pub(super) use loom::thread::park;

/// Checks once: the checker has no clock, and checking again changes nothing.
pub(super) fn spin_until(is_reached: impl Fn() -> bool) -> bool {
    is_reached()
}

/// The checker treats `SeqCst` accesses as `AcqRel`; only its fence is sequentially consistent.
pub(super) fn between_write_and_read() {
    loom::sync::atomic::fence(Ordering::SeqCst);
}
