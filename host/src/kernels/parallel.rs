//! Threads that a loop inside one kernel may use, and what else its execution lends it.

use std::fmt;
use std::sync::Mutex;
use std::sync::OnceLock;
use std::sync::PoisonError;
use std::time::Duration;
use std::time::Instant;

use crate::device::Interrupts;
use crate::device::IntraOpPool;
use crate::device::KernelContext;
use crate::device::KernelDevice;
use crate::device::KernelError;
use crate::kernels::scratch::Scratch;

/// Work from which on threads are woken. Asking costs the caller some 3 us; a thread that sleeps
/// takes 10 us and more to come, and finds cold caches: kernels of 40 us were slower with its help
/// than without, measured on two cores.
const WORTH_WAKING_NS: u64 = 60_000;

/// Work from which on it is shown to the threads that attend, which takes less than 1 us.
const WORTH_SHOWING_NS: u64 = 4_000;

/// Work that a part of a loop should be at least.
const PART_NS: u64 = 1_500;

/// Parts per thread at most: they even out what each costs, when a helper comes, and what else the
/// machine does.
const PARTS_PER_THREAD: usize = 4;

/// Work from which on a loop asks now and then whether the run goes on.
const LONG_NS: u64 = 1_000_000;

/// What goes on between two such questions, where the loop says nothing else.
const PIECE: Duration = Duration::from_millis(10);

/// The same as a number.
const PIECE_NS: u64 = 10_000_000;

/// The same of products, whose parts each read all of one side.
const PRODUCT_PIECE_NS: u64 = 50_000_000;

/// What a grain of [`Threads::fill`] is worth.
const GRAIN_NS: usize = 20_000;

/// What an execution lends to the loops of its kernel: the device's threads, its memory for
/// scratch, and the question whether the run goes on. Asking for threads starts the pool, so small
/// work never does.
#[derive(Clone, Copy, Default)]
pub struct Threads<'a> {
    pool: Option<&'a IntraOpPool>,
    /// Whether threads of the pool may attend.
    has_spinning_workers: bool,
    interrupts: Option<&'a Interrupts>,
    device: Option<&'a dyn KernelDevice>,
}

impl<'a> Threads<'a> {
    /// The calling thread alone, in no run and on no device.
    pub const fn single() -> Self {
        Self {
            pool: None,
            has_spinning_workers: false,
            interrupts: None,
            device: None,
        }
    }

    /// Those of an execution: its device's pool, if it has one and the machine has cores that are
    /// not busy.
    pub fn of(context: &KernelContext<'a>) -> Self {
        let pool = || context.device().intra_op_pool();
        Self {
            pool: context.may_use_pool().then(pool).flatten(),
            has_spinning_workers: context.has_spinning_workers(),
            interrupts: context.interrupts(),
            device: Some(context.device()),
        }
    }

    /// The same without the pool: for what one thread of a loop does.
    #[must_use]
    pub fn alone(self) -> Self {
        Self {
            pool: None,
            has_spinning_workers: false,
            ..self
        }
    }

    /// `n` elements of memory, all 0, which count as the device's.
    ///
    /// # Errors
    /// [`KernelError::Tensor`] without room.
    pub fn scratch<T: bytemuck::Pod>(self, n: usize) -> Result<Scratch<T>, KernelError> {
        Scratch::new(self.device, n)
    }

    /// Whether the run is over, so that a loop may end and leave its result as it is. For loops
    /// that take longer than some 10 ms for one unit of [`Threads::fill`]; `fill` asks between
    /// units.
    pub fn is_interrupted(self) -> bool {
        self.interrupts.is_some_and(Interrupts::are_due)
    }

    /// Whether anything may end the run early.
    pub(crate) fn may_be_interrupted(self) -> bool {
        self.interrupts.is_some()
    }

    /// How many parts work of so many ns on one thread is worth being divided into: one, or some
    /// for each thread.
    pub(crate) fn parts_for(self, work_ns: u64) -> usize {
        let Some(pool) = self.pool else { return 1 };
        let has_spinning_workers = || self.has_spinning_workers && pool.has_spinning_workers();
        if work_ns < WORTH_WAKING_NS && (work_ns < WORTH_SHOWING_NS || !has_spinning_workers()) {
            return 1;
        }
        let n_worth = usize::try_from(work_ns / PART_NS).unwrap_or(usize::MAX);
        n_worth.min(PARTS_PER_THREAD * pool.n_threads())
    }

    /// The same of a product that may be divided further for nothing: so many that the run can end
    /// between two of them.
    pub(crate) fn pieces_for(self, work_ns: u64) -> usize {
        let n_parts = self.parts_for(work_ns);
        if !self.may_be_interrupted() {
            return n_parts;
        }
        let n_pieces = usize::try_from(work_ns / PRODUCT_PIECE_NS).unwrap_or(usize::MAX);
        n_parts.max(n_pieces)
    }

    /// Calls `body(part)` for each part of `0..n_parts`, on all threads that work of so many ns is
    /// worth; for fewer where the run ends meanwhile.
    pub(crate) fn for_each(self, work_ns: u64, n_parts: usize, body: impl Fn(usize) + Sync) {
        let is_long = work_ns >= LONG_NS;
        let body = |part: usize| {
            if !(is_long && self.is_interrupted()) {
                body(part);
            }
        };
        match self.pool {
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

    /// Calls `fill(start, part)` for parts of `out` that together are all of it, `start` being the
    /// index of the part's first element; where the run ends meanwhile, the rest is left as it
    /// is. Parts begin at multiples of `unit` elements. `grain` elements should be worth some 20 us
    /// of work; fewer than three grains stay on this thread, unless others attend.
    pub fn fill<T, F>(self, out: &mut [T], unit: usize, grain: usize, fill: F)
    where
        T: Send,
        F: Fn(usize, &mut [T]) + Sync,
    {
        let work_ns = out.len().saturating_mul(GRAIN_NS) / grain.max(1);
        let work_ns = u64::try_from(work_ns).unwrap_or(u64::MAX);
        match self.parts_for(work_ns) {
            0 | 1 if work_ns < LONG_NS => fill(0, out),
            0 | 1 => self.fill_pieces(0, out, unit, work_ns, &fill),
            n_parts => self.fill_parts(out, unit, n_parts, work_ns, &fill),
        }
    }

    /// The same where filling a part may fail.
    ///
    /// # Errors
    /// One of those that filling a part gave.
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
        let failure = OnceLock::new();
        self.fill(out, unit, grain, |start, part| {
            if failure.get().is_none()
                && let Err(error) = fill(start, part)
            {
                // Of several errors one is enough.
                let _ = failure.set(error);
            }
        });
        failure.into_inner().map_or(Ok(()), Err)
    }

    /// The parallel half of [`Threads::fill`]: made once per element type rather than once per
    /// loop, of which there are hundreds.
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
        let part_ns = work_ns / parts.len().max(1) as u64;
        self.for_each(work_ns, parts.len(), |part| {
            let mut chunk = parts[part].lock().unwrap_or_else(PoisonError::into_inner);
            self.fill_pieces(part * len, &mut chunk, unit, part_ns, fill);
        });
    }

    /// What one thread does of a loop: long work piece by piece, so that it ends when the run does.
    /// How long a unit takes is measured, as estimates are of common shapes.
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
        // A power of two, as vectors want; at first by the estimate, and rather less.
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

impl fmt::Debug for Threads<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Threads")
            .field("n_threads", &self.pool.map_or(1, IntraOpPool::n_threads))
            .field("has_spinning_workers", &self.has_spinning_workers)
            .finish()
    }
}
