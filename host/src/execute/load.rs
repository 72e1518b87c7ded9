//! How busy the machine is with the runs of one executor.

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering;
use std::thread;

/// Counts the threads that execute operations. A hint: nothing is ordered by it.
#[derive(Debug)]
pub(super) struct Load {
    n_busy: AtomicUsize,
    n_cores: usize,
}

/// A thread that executes operations, until it is dropped.
#[derive(Debug)]
pub(super) struct Busy<'a>(&'a Load);

impl Load {
    pub(super) fn new() -> Self {
        Self {
            n_busy: AtomicUsize::new(0),
            n_cores: thread::available_parallelism().map_or(1, usize::from),
        }
    }

    /// This thread starts to execute operations.
    pub(super) fn enter(&self) -> Busy<'_> {
        self.n_busy.fetch_add(1, Ordering::Relaxed);
        Busy(self)
    }

    /// Whether a core has nothing to do: helpers inside a kernel would take turns with other
    /// kernels otherwise.
    #[inline]
    pub(super) fn has_free_core(&self) -> bool {
        self.has_core_for(0)
    }

    /// The same, while so many attend already.
    pub(super) fn has_core_for(&self, n_spinning: usize) -> bool {
        self.n_busy.load(Ordering::Relaxed) + n_spinning < self.n_cores
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.n_busy.fetch_sub(1, Ordering::Relaxed);
    }
}
