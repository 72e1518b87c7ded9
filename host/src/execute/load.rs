//! How many threads of one executor's runs are busy.

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering;
use std::thread;

/// A count of the threads that execute operations. It is a hint and orders no memory accesses.
#[derive(Debug)]
pub(super) struct Load {
    n_busy: AtomicUsize,
    n_cores: usize,
}

/// A guard of a thread that executes operations, until it is dropped.
#[derive(Debug)]
pub(super) struct Busy<'a>(&'a Load);

impl Load {
    pub(super) fn new() -> Self {
        Self {
            n_busy: AtomicUsize::new(0),
            n_cores: thread::available_parallelism().map_or(1, usize::from),
        }
    }

    /// Counts the calling thread as busy.
    pub(super) fn enter(&self) -> Busy<'_> {
        self.n_busy.fetch_add(1, Ordering::Relaxed);
        Busy(self)
    }

    /// Checks whether a core is idle. Otherwise helpers inside a kernel would compete with other
    /// kernels.
    #[inline]
    pub(super) fn has_free_core(&self) -> bool {
        self.has_core_for(0)
    }

    /// Checks whether a core is idle besides those of `n_spinning` spinning workers.
    pub(super) fn has_core_for(&self, n_spinning: usize) -> bool {
        self.n_busy.load(Ordering::Relaxed) + n_spinning < self.n_cores
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.n_busy.fetch_sub(1, Ordering::Relaxed);
    }
}
