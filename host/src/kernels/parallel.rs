//! Threads that a loop inside one kernel may use.

use std::fmt;
use std::sync::Mutex;
use std::sync::PoisonError;

use crate::device::IntraOpPool;
use crate::device::KernelContext;

/// Work from which on threads are woken. Asking costs the caller some 3 us; a thread that sleeps takes 10 us and more to come,
/// and finds cold caches: kernels of 40 us were slower with its help than without, measured on two cores.
const WORTH_WAKING_NS: u64 = 60_000;

/// Work from which on it is shown to the threads that attend, which takes less than 1 us.
const WORTH_SHOWING_NS: u64 = 4_000;

/// Work that a part of a loop should be at least.
const PART_NS: u64 = 1_500;

/// Parts per thread at most: they even out what each costs, when a helper comes, and what else the machine does.
const PARTS_PER_THREAD: usize = 4;

/// What a grain of [`Threads::fill`] is worth.
const GRAIN_NS: usize = 20_000;

/// The threads that a device lends to loops inside its kernels. Asking starts the pool, so small work never does.
#[derive(Clone, Copy, Default)]
pub struct Threads<'a> {
    pool: Option<&'a IntraOpPool>,
    /// Whether threads of the pool may attend.
    is_attended: bool,
}

impl<'a> Threads<'a> {
    /// The calling thread alone.
    pub const fn single() -> Self {
        Self {
            pool: None,
            is_attended: false,
        }
    }

    /// Those of an execution: its device's pool, if it has one and the machine has cores that are not busy.
    pub fn of(context: &KernelContext<'a>) -> Self {
        let pool = || context.device().intra_op_pool();
        Self {
            pool: context.may_use_pool().then(pool).flatten(),
            is_attended: context.is_attended(),
        }
    }

    /// How many parts work of so many ns on one thread is worth being divided into: one, or some for each thread.
    pub(crate) fn parts_for(self, work_ns: u64) -> usize {
        let Some(pool) = self.pool else { return 1 };
        let is_attended = || self.is_attended && pool.is_attended();
        if work_ns < WORTH_WAKING_NS && (work_ns < WORTH_SHOWING_NS || !is_attended()) {
            return 1;
        }
        let n_worth = usize::try_from(work_ns / PART_NS).unwrap_or(usize::MAX);
        n_worth.min(PARTS_PER_THREAD * pool.n_threads())
    }

    /// Calls `body(part)` for each part of `0..n_parts`, on all threads that work of so many ns is worth.
    pub(crate) fn for_each(self, work_ns: u64, n_parts: usize, body: impl Fn(usize) + Sync) {
        match self.pool {
            Some(pool) if n_parts > 1 => {
                if work_ns < WORTH_WAKING_NS {
                    pool.for_each_attended(n_parts, &body);
                } else {
                    pool.for_each(n_parts, &body);
                }
            }
            _ => (0..n_parts).for_each(body),
        }
    }

    /// Calls `fill(start, part)` for parts of `out` that together are all of it, `start` being the index of the part's
    /// first element. Parts begin at multiples of `unit` elements. `grain` elements should be worth some 20 us of work; fewer than
    /// three grains stay on this thread, unless others attend.
    pub fn fill<T, F>(self, out: &mut [T], unit: usize, grain: usize, fill: F)
    where
        T: Send,
        F: Fn(usize, &mut [T]) + Sync,
    {
        let work_ns = out.len().saturating_mul(GRAIN_NS) / grain.max(1);
        let work_ns = u64::try_from(work_ns).unwrap_or(u64::MAX);
        match self.parts_for(work_ns) {
            0 | 1 => fill(0, out),
            n_parts => self.fill_parts(out, unit, n_parts, work_ns, &fill),
        }
    }

    /// The parallel half of [`Threads::fill`]: made once per element type rather than once per loop, of which there are
    /// hundreds.
    fn fill_parts<T: Send>(
        self,
        out: &mut [T],
        unit: usize,
        n_parts: usize,
        work_ns: u64,
        fill: &(dyn Fn(usize, &mut [T]) + Sync),
    ) {
        let len = out
            .len()
            .div_ceil(n_parts)
            .max(1)
            .next_multiple_of(unit.max(1));
        let parts: Vec<Mutex<&mut [T]>> = out.chunks_mut(len).map(Mutex::new).collect();
        self.for_each(work_ns, parts.len(), |part| {
            let mut chunk = parts[part].lock().unwrap_or_else(PoisonError::into_inner);
            fill(part * len, &mut chunk);
        });
    }
}

impl fmt::Debug for Threads<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Threads")
            .field("n_threads", &self.pool.map_or(1, IntraOpPool::n_threads))
            .field("is_attended", &self.is_attended)
            .finish()
    }
}
