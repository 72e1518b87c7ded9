//! Threads that a loop inside one kernel may use.

use std::fmt;

use rayon::prelude::*;

use crate::device::KernelDevice;

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

    /// The pool of a device, if it has one.
    pub fn of(device: &'a dyn KernelDevice) -> Self {
        Self {
            device: Some(device),
        }
    }

    /// The pool; `None` = the calling thread alone.
    pub fn pool(self) -> Option<&'a rayon::ThreadPool> {
        self.device?.intra_op_pool()
    }

    /// Calls `fill(start, part)` for parts of `out` that together are all of it, `start` being the index of the part's
    /// first element. Parts begin at multiples of `unit` elements, and none is split off below `grain` elements, which
    /// should be worth some 20 us of work: handing work to another thread costs about 5 us.
    pub fn fill<T, F>(self, out: &mut [T], unit: usize, grain: usize, fill: F)
    where
        T: Send,
        F: Fn(usize, &mut [T]) + Sync,
    {
        let pool = (out.len() > grain).then(|| self.pool()).flatten();
        match pool {
            Some(pool) if pool.current_num_threads() > 1 => {
                fill_with(pool, out, unit, grain, &fill);
            }
            _ => fill(0, out),
        }
    }
}

/// The parallel half of [`Threads::fill`]: made once per element type rather than once per loop, of which there are
/// hundreds, each with all of the pool's machinery.
fn fill_with<T: Send>(
    pool: &rayon::ThreadPool,
    out: &mut [T],
    unit: usize,
    grain: usize,
    fill: &(dyn Fn(usize, &mut [T]) + Sync),
) {
    // A few parts per thread even out what each costs and what else the machine does.
    let part = out
        .len()
        .div_ceil(4 * pool.current_num_threads())
        .max(grain)
        .max(1)
        .next_multiple_of(unit.max(1));
    pool.install(|| {
        out.par_chunks_mut(part)
            .enumerate()
            .for_each(|(index, chunk)| fill(index * part, chunk));
    });
}

impl fmt::Debug for Threads<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Threads")
            .field("device", &self.device.map(|device| device.name()))
            .finish()
    }
}
