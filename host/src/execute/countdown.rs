//! Counts down to the last one.

use super::sync::AtomicU32;
use super::sync::Ordering;

/// How many are still to come: edges to an operation, or readers of a value.
#[derive(Debug)]
pub(super) struct Countdown(AtomicU32);

impl Countdown {
    pub(super) fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Starts to count, before any thread that counts hears of it.
    #[inline]
    pub(super) fn set(&self, n: u32) {
        self.0.store(n, Ordering::Relaxed);
    }

    /// Counts one; whether it was the last. Release and acquire: who counts the last one sees
    /// everything that the others did before they counted.
    #[inline]
    pub(super) fn count(&self) -> bool {
        self.0.fetch_sub(1, Ordering::AcqRel) == 1
    }
}
