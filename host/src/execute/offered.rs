//! How many threads are worth waking for operations that have become ready.

use super::compile::Compiled;

/// Minimum work for which a parked thread is woken: waking costs 3 to 5 us, as measured.
pub(super) const WORTH_WAKING_NS: u64 = 10_000;

/// Operations that have become ready, by what they take: one thread submits all work that a device
/// does later.
#[derive(Debug, Default)]
pub(super) struct Offered {
    n_computed: usize,
    computed_ns: u64,
    /// The devices whose work is submitted.
    submitted_to: u64,
}

impl Offered {
    #[inline]
    pub(super) fn add(&mut self, compiled: &Compiled, rank: u32) {
        match compiled.submitted_to(rank) {
            0 => {
                self.n_computed += 1;
                self.computed_ns += compiled.cost_ns(rank).unwrap_or(WORTH_WAKING_NS);
            }
            device => self.submitted_to |= device,
        }
    }

    /// Returns how many threads can execute them at one time.
    pub(super) fn n_threads(&self) -> usize {
        self.n_computed + self.submitted_to.count_ones() as usize
    }

    /// Returns how many other threads can execute them, and their time, while this thread continues
    /// with an operation that has become ready, too, and that submits to `next_to`.
    #[inline]
    pub(super) fn for_others(&self, next_to: u64) -> (usize, u64) {
        match self.submitted_to & !next_to {
            0 => (self.n_computed, self.computed_ns),
            // A device should not wait for a thread that submits to another one.
            others => {
                let n_devices = others.count_ones() as usize;
                let offered_ns = self.computed_ns.max(WORTH_WAKING_NS);
                (self.n_computed + n_devices, offered_ns)
            }
        }
    }
}
