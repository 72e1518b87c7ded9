//! Resources of one kernel execution for its loops: threads, scratch memory and the interrupt
//! check.

use std::fmt;
use std::sync::Mutex;
use std::sync::OnceLock;
use std::sync::PoisonError;
use std::time::Duration;
use std::time::Instant;

use crate::device::Help;
use crate::device::Interrupts;
use crate::device::IntraOpPool;
use crate::device::KernelContext;
use crate::device::KernelDevice;
use crate::device::KernelError;
use crate::kernels::scratch::Scratch;

/// Minimum work for which sleeping threads are woken. The request costs the caller about 3 us. A
/// thread that sleeps takes 10 us and more to wake up, and its caches are cold: kernels of 40 us
/// were slower with its help than without, measured on two cores.
const WORTH_WAKING_NS: u64 = 60_000;

/// Minimum work that is offered to spinning workers, which costs less than 1 us.
const WORTH_SHOWING_NS: u64 = 4_000;

/// Minimum work of one part of a loop.
const PART_NS: u64 = 1_500;

/// Maximum number of parts per thread. Several parts even out differences in their cost, late
/// workers and other load on the machine.
const PARTS_PER_THREAD: usize = 4;

/// Minimum work of a loop that checks now and then whether the run was interrupted.
const LONG_NS: u64 = 1_000_000;

/// Work between two such checks, unless the loop says otherwise.
const PIECE: Duration = Duration::from_millis(10);

/// [`PIECE`] in nanoseconds.
const PIECE_NS: u64 = 10_000_000;

/// Work between two such checks of a matmul, whose parts each read all of one operand.
const MATMUL_PIECE_NS: u64 = 50_000_000;

/// Work of one grain of [`Threads::fill`].
const GRAIN_NS: usize = 20_000;

/// The elements of a grain, divided by this, take [`WORTH_SHOWING_NS`].
const PARTS_WORTH_SHOWING: usize = GRAIN_NS / WORTH_SHOWING_NS as usize;

/// Resources of one kernel execution for its loops: the threads of the device, its memory for
/// scratch, and the check whether the run was interrupted. The thread pool starts at the first loop
/// that needs it, so small work never starts it.
#[derive(Clone, Copy, Default)]
pub struct Threads<'a> {
    device: Option<&'a dyn KernelDevice>,
    /// Which threads of the device's pool may help.
    help: Help,
    interrupts: Option<&'a Interrupts>,
}

impl<'a> Threads<'a> {
    /// Returns the calling thread alone, outside any run and device.
    pub const fn single() -> Self {
        Self {
            device: None,
            help: Help::None,
            interrupts: None,
        }
    }

    /// Returns the resources of an execution: the pool of its device, if it has one and the machine
    /// has idle cores.
    #[inline]
    pub fn of(context: &KernelContext<'a>) -> Self {
        Self {
            device: Some(context.device()),
            help: context.help(),
            interrupts: context.interrupts(),
        }
    }

    /// Returns the threads that may help. A virtual call, which loops over a few elements avoid.
    fn pool(self) -> Option<&'a IntraOpPool> {
        match self.help {
            Help::None => None,
            Help::Pool | Help::Spinning => self.device?.intra_op_pool(),
        }
    }

    /// Returns the number of threads that may share a loop, this one included.
    pub(crate) fn n_threads(self) -> usize {
        self.pool().map_or(1, IntraOpPool::n_threads)
    }

    /// Returns the same resources without the pool, for the body of a loop that already runs on
    /// several threads.
    #[must_use]
    pub fn alone(self) -> Self {
        Self {
            help: Help::None,
            ..self
        }
    }

    /// Returns the same resources for a loop whose body checks for interruption itself. Its parts
    /// are then not split into pieces, each of which might read the same operand again.
    #[must_use]
    pub(crate) fn uninterrupted(self) -> Self {
        Self {
            interrupts: None,
            ..self
        }
    }

    /// Allocates `n` zeroed elements of scratch memory. More than 64 MiB count against the device's
    /// memory.
    ///
    /// # Errors
    /// [`KernelError::Tensor`] if there is not enough memory.
    pub fn scratch<T: bytemuck::Pod>(self, n: usize) -> Result<Scratch<T>, KernelError> {
        Scratch::new(self.device, n)
    }

    /// Allocates `n` elements of scratch memory that have any value, otherwise as
    /// [`Self::scratch`].
    ///
    /// # Errors
    /// As [`Self::scratch`].
    pub(crate) fn unset_scratch<T: bytemuck::Pod>(
        self,
        n: usize,
    ) -> Result<Scratch<T>, KernelError> {
        Scratch::unset(self.device, n)
    }

    /// Returns whether the run was interrupted; a loop may then stop and leave its result
    /// incomplete. Needed by loops that take longer than about 10 ms for one unit of
    /// [`Threads::fill`]; `fill` checks between units.
    pub fn is_interrupted(self) -> bool {
        self.interrupts.is_some_and(Interrupts::are_due)
    }

    /// Returns whether anything can interrupt the run.
    pub(crate) fn may_be_interrupted(self) -> bool {
        self.interrupts.is_some()
    }

    /// Returns the number of parts into which `work_ns` of single-threaded work should be split:
    /// one, or a few per thread.
    pub(crate) fn parts_for(self, work_ns: u64) -> usize {
        if work_ns < WORTH_SHOWING_NS {
            return 1;
        }
        let Some(pool) = self.pool() else { return 1 };
        let has_spinning_workers = || self.help == Help::Spinning && pool.has_spinning_workers();
        if work_ns < WORTH_WAKING_NS && !has_spinning_workers() {
            return 1;
        }
        let n_worth = usize::try_from(work_ns / PART_NS).unwrap_or(usize::MAX);
        n_worth.min(PARTS_PER_THREAD * pool.n_threads())
    }

    /// Like [`Self::parts_for`] for a matmul, which can be split further at no cost: into enough
    /// parts that the run can be interrupted between two of them.
    pub(crate) fn pieces_for(self, work_ns: u64) -> usize {
        let n_parts = self.parts_for(work_ns);
        if !self.may_be_interrupted() {
            return n_parts;
        }
        let n_pieces = usize::try_from(work_ns / MATMUL_PIECE_NS).unwrap_or(usize::MAX);
        n_parts.max(n_pieces)
    }

    /// Calls `body(part)` for each part of `0..n_parts`, on as many threads as `work_ns` of work
    /// justifies. Parts are skipped once the run is interrupted.
    pub(crate) fn for_each(self, work_ns: u64, n_parts: usize, body: impl Fn(usize) + Sync) {
        let is_long = work_ns >= LONG_NS;
        let body = |part: usize| {
            if !(is_long && self.is_interrupted()) {
                body(part);
            }
        };
        match self.pool() {
            Some(pool) if n_parts > 1 => {
                if work_ns < WORTH_WAKING_NS {
                    pool.for_each_spinning(n_parts, &body);
                } else {
                    pool.for_each(n_parts, &body);
                }
            }
            _ => (0..n_parts).for_each(body),
        }
    }

    /// Calls `fill(start, part)` for parts that together cover `out`; `start` is the index of the
    /// part's first element. If the run is interrupted, the rest of `out` is left as it is. Parts
    /// begin at multiples of `unit` elements. `grain` elements should take about 20 us. Work of
    /// less than three grains stays on this thread, unless workers are spinning.
    #[inline]
    pub fn fill<T, F>(self, out: &mut [T], unit: usize, grain: usize, fill: F)
    where
        T: Send,
        F: Fn(usize, &mut [T]) + Sync,
    {
        // Less than `WORTH_SHOWING_NS` of work: an op on scalars costs some 40 ns in all.
        if out.len() <= grain / PARTS_WORTH_SHOWING {
            return fill(0, out);
        }
        self.fill_long(out, unit, grain, &fill);
    }

    /// The half of [`Threads::fill`] for work that may be worth sharing. It is compiled once per
    /// element type rather than once per loop, of which there are hundreds.
    fn fill_long<T: Send>(
        self,
        out: &mut [T],
        unit: usize,
        grain: usize,
        fill: &(dyn Fn(usize, &mut [T]) + Sync),
    ) {
        let work_ns = work_ns(out.len(), grain);
        match self.parts_for(work_ns) {
            0 | 1 => self.fill_pieces(0, out, unit, work_ns, fill),
            n_parts => {
                let len = out.len().div_ceil(n_parts).max(1);
                let len = len.next_multiple_of(unit.max(1));
                self.fill_parts(out, unit, len, work_ns, fill);
            }
        }
    }

    /// Like [`Self::try_fill`], with parts of `part_len(n_parts)` elements, where `n_parts` is what
    /// the work is worth. Parts begin at multiples of that.
    ///
    /// # Errors
    /// One of the errors that `fill` returned.
    pub(crate) fn try_fill_in<T, F>(
        self,
        out: &mut [T],
        grain: usize,
        part_len: impl FnOnce(usize) -> usize,
        fill: F,
    ) -> Result<(), KernelError>
    where
        T: Send,
        F: Fn(usize, &mut [T]) -> Result<(), KernelError> + Sync,
    {
        let work_ns = work_ns(out.len(), grain);
        let n_parts = self.parts_for(work_ns);
        if n_parts < 2 {
            return fill(0, out);
        }
        let len = part_len(n_parts).max(1);
        first_error(fill, |fill| self.fill_parts(out, len, len, work_ns, &fill))
    }

    /// Like [`Self::fill`], for a `fill` that may fail.
    ///
    /// # Errors
    /// One of the errors that `fill` returned.
    pub fn try_fill<T, F>(
        self,
        out: &mut [T],
        unit: usize,
        grain: usize,
        fill: F,
    ) -> Result<(), KernelError>
    where
        T: Send,
        F: Fn(usize, &mut [T]) -> Result<(), KernelError> + Sync,
    {
        first_error(fill, |fill| self.fill(out, unit, grain, fill))
    }

    /// The parallel half of [`Threads::fill`].
    fn fill_parts<T: Send>(
        self,
        out: &mut [T],
        unit: usize,
        len: usize,
        work_ns: u64,
        fill: &(dyn Fn(usize, &mut [T]) + Sync),
    ) {
        let parts: Vec<Mutex<&mut [T]>> = out.chunks_mut(len).map(Mutex::new).collect();
        let part_ns = work_ns / parts.len().max(1) as u64;
        self.for_each(work_ns, parts.len(), |part| {
            let mut chunk = parts[part].lock().unwrap_or_else(PoisonError::into_inner);
            self.fill_pieces(part * len, &mut chunk, unit, part_ns, fill);
        });
    }

    /// Runs one thread's part of a loop. Long work is split into pieces, with a check for
    /// interruption between them. The time of a unit is measured, because estimates assume common
    /// shapes.
    fn fill_pieces<T: Send>(
        self,
        start: usize,
        out: &mut [T],
        unit: usize,
        work_ns: u64,
        fill: &(dyn Fn(usize, &mut [T]) + Sync),
    ) {
        if work_ns < LONG_NS || !self.may_be_interrupted() {
            return fill(start, out);
        }
        let unit = unit.max(1);
        // A power of two, for vectorized loops; the first size comes from the estimate and is
        // rather too small.
        let n_first = out.len() as u64 / unit as u64 * (PIECE_NS / 64) / work_ns;
        let mut n_units = usize::try_from(n_first.max(1)).map_or(1, |n| 1 << n.ilog2());
        let (mut at, mut rest) = (start, out);
        while !rest.is_empty() && !self.is_interrupted() {
            let n = unit.saturating_mul(n_units).min(rest.len());
            let (piece, others) = rest.split_at_mut(n);
            let started = Instant::now();
            fill(at, piece);
            let elapsed = started.elapsed();
            if elapsed < PIECE / 2 {
                n_units = n_units.saturating_mul(2);
            } else if elapsed > PIECE * 2 {
                n_units = (n_units / 2).max(1);
            }
            (at, rest) = (at + n, others);
        }
    }
}

/// Returns the time of `n` elements, of which `grain` take [`GRAIN_NS`].
fn work_ns(n: usize, grain: usize) -> u64 {
    let work_ns = n.saturating_mul(GRAIN_NS) / grain.max(1);
    u64::try_from(work_ns).unwrap_or(u64::MAX)
}

/// Runs a loop over parts whose body may fail. One of several errors is enough; later parts are
/// skipped.
fn first_error<T>(
    body: impl Fn(usize, &mut [T]) -> Result<(), KernelError> + Sync,
    run: impl FnOnce(&(dyn Fn(usize, &mut [T]) + Sync)),
) -> Result<(), KernelError> {
    let failure = OnceLock::new();
    run(&|start, part| {
        if failure.get().is_none()
            && let Err(error) = body(start, part)
        {
            let _ = failure.set(error);
        }
    });
    failure.into_inner().map_or(Ok(()), Err)
}

/// Returns the size of equal parts of `n` elements, a multiple of `unit`, such that `n_threads`
/// have nearly the same to do. There are `n_threads` parts to `n_parts`, and the more the better,
/// because threads may be late.
pub(crate) fn even_part(n: usize, unit: usize, n_parts: usize, n_threads: usize) -> usize {
    let n_parts = (n_threads.max(1)..=n_parts).rev();
    let sizes = n_parts.map(|n_parts| n.div_ceil(n_parts).next_multiple_of(unit));
    let best = sizes.min_by_key(|&size| longest_share(n, size, n_threads));
    best.unwrap_or(n)
}

/// Returns how many of `n` elements one of `n_threads` has to do at least, in parts of `size`.
pub(crate) fn longest_share(n: usize, size: usize, n_threads: usize) -> usize {
    let (n_whole, rest) = (n / size.max(1), n % size.max(1));
    let least = n_whole / n_threads.max(1) * size + rest;
    least.max(n_whole.div_ceil(n_threads.max(1)) * size)
}

impl fmt::Debug for Threads<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Threads")
            .field("n_threads", &self.pool().map_or(1, IntraOpPool::n_threads))
            .field("help", &self.help)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_have_nearly_the_same_to_do() {
        let all = |n: usize, unit| {
            (2..5).for_each(|n_threads| {
                let size = even_part(n, unit, 8 * n_threads, n_threads);
                let longest = longest_share(n, size, n_threads);
                assert!(size.is_multiple_of(unit) && longest >= n.div_ceil(n_threads));
                let most = (n.div_ceil(n_threads) + unit).max(n / 7 * 2);
                assert!(longest <= most, "{n} {unit} {n_threads}: {longest}");
            });
        };
        (1..300).for_each(|n| all(n, 1));
        (1..20_000).step_by(7).for_each(|n| all(n, 24));
        assert_eq!(even_part(28, 1, 8, 2), 7);
        assert_eq!(longest_share(196, 24, 2), 100);
    }
}
