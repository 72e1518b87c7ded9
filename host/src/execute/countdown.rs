//! A counter that reports its last decrement.

use super::sync::AtomicU32;
use super::sync::Ordering;

/// The number of remaining edges to an operation, or of remaining readers of a value.
#[derive(Debug)]
pub(super) struct Countdown(AtomicU32);

impl Countdown {
    pub(super) fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Sets the counter, before any counting thread can reach it.
    #[inline]
    pub(super) fn set(&self, n: u32) {
        self.0.store(n, Ordering::Relaxed);
    }

    /// Decrements the counter and returns whether it reached zero. Uses release and acquire: the
    /// thread that counts the last one sees all writes that the others made before they counted.
    #[inline]
    pub(super) fn count(&self) -> bool {
        self.0.fetch_sub(1, Ordering::AcqRel) == 1
    }
}
