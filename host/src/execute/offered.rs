//! How many threads are worth waking for operations that have become ready.

use super::compile::Compiled;

/// Minimum work for which a parked thread is woken: waking costs 3 to 5 us, as measured.
pub(super) const WORTH_WAKING_NS: u64 = 10_000;

/// Operations that have become ready, by what they take: one thread submits all work that devices
/// do later.
#[derive(Debug, Default)]
pub(super) struct Offered {
    n_computed: usize,
    computed_ns: u64,
    is_any_submitted: bool,
}

impl Offered {
    #[inline]
    pub(super) fn add(&mut self, compiled: &Compiled, rank: u32) {
        if compiled.is_submitted(rank) {
            self.is_any_submitted = true;
        } else {
            self.n_computed += 1;
            self.computed_ns += compiled.cost_ns(rank).unwrap_or(WORTH_WAKING_NS);
        }
    }

    /// Returns how many threads can execute them at one time.
    pub(super) fn n_threads(&self) -> usize {
        self.n_computed + usize::from(self.is_any_submitted)
    }

    /// Returns how many other threads can execute them, and their time, while this thread continues
    /// with an operation that has become ready, too.
    #[inline]
    pub(super) fn for_others(&self, is_next_submitted: bool) -> (usize, u64) {
        if !self.is_any_submitted || is_next_submitted {
            return (self.n_computed, self.computed_ns);
        }
        // A device should not wait for a thread that computes.
        (self.n_computed + 1, self.computed_ns.max(WORTH_WAKING_NS))
    }
}
