//! Threads that a loop inside one kernel may use.

use std::fmt;
use std::sync::Mutex;
use std::sync::PoisonError;

use crate::device::KernelContext;
use crate::device::KernelDevice;
use crate::kernels::team;

/// Work from which on helpers are asked for. Asking costs the caller some 3 us; a thread that sleeps takes 10 us and more to come,
/// and finds cold caches: kernels of 40 us were slower with its help than without, measured on two cores.
const WORTH_HELP_NS: u64 = 60_000;

/// Parts per thread: they even out what each costs, when a helper comes, and what else the machine does.
const PARTS_PER_THREAD: usize = 4;

/// Grains of a loop from which on helpers are asked for.
const GRAINS_WORTH_HELP: usize = 3;

/// The threads that a device lends to loops inside its kernels. Asking starts the pool, so small work never does.
#[derive(Clone, Copy, Default)]
pub struct Threads<'a> {
    device: Option<&'a dyn KernelDevice>,
}

impl<'a> Threads<'a> {
    /// The calling thread alone.
    pub const fn single() -> Self {
        Self { device: None }
    }

    /// Those of an execution: its device's pool, if it has one and the machine has cores that are not busy.
    pub fn of(context: &KernelContext<'a>) -> Self {
        let device = context.device();
        Self {
            device: context.may_use_pool().then_some(device),
        }
    }

    /// The pool; `None` = the calling thread alone.
    fn pool(self) -> Option<&'a rayon::ThreadPool> {
        let pool = self.device?.intra_op_pool()?;
        (pool.current_num_threads() > 1).then_some(pool)
    }

    /// How many parts work of so many ns on one thread is worth being divided into: one, or some for each thread.
    pub(crate) fn parts_for(self, work_ns: u64) -> usize {
        if work_ns < WORTH_HELP_NS {
            return 1;
        }
        self.pool()
            .map_or(1, |pool| PARTS_PER_THREAD * pool.current_num_threads())
    }

    /// Calls `body(part)` for each part of `0..n_parts`, on all threads.
    pub(crate) fn for_each(self, n_parts: usize, body: impl Fn(usize) + Sync) {
        match self.pool() {
            Some(pool) if n_parts > 1 => team::for_each(pool, n_parts, &body),
            _ => (0..n_parts).for_each(body),
        }
    }

    /// Calls `fill(start, part)` for parts of `out` that together are all of it, `start` being the index of the part's
    /// first element. Parts begin at multiples of `unit` elements, and none is split off below `grain` elements, which
    /// should be worth some 20 us of work; fewer than three grains stay on this thread.
    pub fn fill<T, F>(self, out: &mut [T], unit: usize, grain: usize, fill: F)
    where
        T: Send,
        F: Fn(usize, &mut [T]) + Sync,
    {
        match (out.len() >= grain.saturating_mul(GRAINS_WORTH_HELP))
            .then(|| self.pool())
            .flatten()
        {
            Some(pool) => fill_with(pool, out, unit, grain, &fill),
            None => fill(0, out),
        }
    }
}

/// The parallel half of [`Threads::fill`]: made once per element type rather than once per loop, of which there are
/// hundreds.
fn fill_with<T: Send>(
    pool: &rayon::ThreadPool,
    out: &mut [T],
    unit: usize,
    grain: usize,
    fill: &(dyn Fn(usize, &mut [T]) + Sync),
) {
    let len = out
        .len()
        .div_ceil(PARTS_PER_THREAD * pool.current_num_threads())
        .max(grain)
        .max(1)
        .next_multiple_of(unit.max(1));
    let parts: Vec<Mutex<&mut [T]>> = out.chunks_mut(len).map(Mutex::new).collect();
    team::for_each(pool, parts.len(), &|part| {
        let mut chunk = parts[part].lock().unwrap_or_else(PoisonError::into_inner);
        fill(part * len, &mut chunk);
    });
}

impl fmt::Debug for Threads<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Threads")
            .field("device", &self.device.map(|device| device.name()))
            .finish()
    }
}
