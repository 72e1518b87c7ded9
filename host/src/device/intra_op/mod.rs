//! The threads that devices lend to loops inside their kernels.

mod lease;
mod sync;
mod team;

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::OnceLock;
use std::sync::PoisonError;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Acquire;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::Ordering::Release;
use std::time::Duration;
use std::time::Instant;

use team::Team;

/// How long a thread that attends looks for work after the last. ONNX Runtime's threads look for longer; in a run, and from one run
/// to the next of a caller that only runs, the pauses are of some us.
const ATTENDANCE: Duration = Duration::from_micros(100);

/// Looks between two readings of the clock.
const N_LOOKS: u32 = 64;

/// Threads that may attend: bits of [`Board::slots`].
const N_ATTENDANTS_MAX: usize = 64;

/// The threads that devices lend to loops inside their kernels (TensorFlow `intra_op_parallelism_threads`): a rayon pool, started
/// when first asked for.
///
/// Waking a thread that sleeps takes longer than most kernels. So threads may *attend*: look for loops, busily, for 100 us after the
/// last one. An executor asks for that where it has measured that it pays.
#[derive(Debug)]
pub struct IntraOpPool {
    n_threads: usize,
    threads: OnceLock<Option<rayon::ThreadPool>>,
    board: Arc<Board>,
}

/// Where loops are shown to the threads that attend.
#[derive(Debug, Default)]
struct Board {
    /// The loop that was shown last, while it goes on.
    team: Mutex<Option<Arc<Team>>>,
    /// Loops shown so far.
    n_shown: AtomicU64,
    /// Threads that look at this moment.
    n_looking: AtomicUsize,
    /// One bit per thread that attends, or has been asked to.
    slots: AtomicU64,
}

/// Takes down what is shown when it is dropped: the loop is over, or has panicked. Another caller's that was shown meanwhile goes on
/// with whom it has.
struct Shown<'a>(&'a Board);

impl IntraOpPool {
    /// A pool of `n_threads` threads; 0 = one per core that this process may run on.
    pub fn new(n_threads: usize) -> Self {
        let n_threads = match n_threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            n => n,
        };
        Self {
            n_threads,
            threads: OnceLock::new(),
            board: Arc::default(),
        }
    }

    /// Number of threads that work on one loop at most, the caller's included.
    pub fn n_threads(&self) -> usize {
        self.n_threads
    }

    /// The threads, for loops that rayon shares out; `None` for a single thread, which the caller has already, and where the system
    /// refuses threads.
    pub fn rayon(&self) -> Option<&rayon::ThreadPool> {
        if self.n_threads == 1 {
            return None;
        }
        self.threads
            .get_or_init(|| {
                rayon::ThreadPoolBuilder::new()
                    .num_threads(self.n_threads)
                    .thread_name(|index| format!("intra-op-{index}"))
                    .build()
                    .ok()
            })
            .as_ref()
    }

    /// Calls `body(part)` once for each part of `0..n_parts`, on this thread and on those of the pool that come. It never waits for
    /// one that has not come.
    ///
    /// # Panics
    /// If `body` does.
    pub fn for_each(&self, n_parts: usize, body: &(dyn Fn(usize) + Sync)) {
        let n_helpers = (self.n_threads - 1).min(n_parts.saturating_sub(1));
        let _shown = Shown(&self.board);
        team::for_each(n_parts, body, |team| {
            let n_looking = self.board.show(team);
            let Some(threads) = self.rayon() else { return };
            for helper in n_looking..n_helpers {
                let team = Arc::clone(team);
                threads.spawn(move || team.help(helper, n_helpers));
            }
        });
    }

    /// The same, without waking a thread that sleeps: those that attend come.
    pub(crate) fn for_each_attended(&self, n_parts: usize, body: &(dyn Fn(usize) + Sync)) {
        let _shown = Shown(&self.board);
        team::for_each(n_parts, body, |team| {
            self.board.show(team);
        });
    }

    /// Whether threads look for work at this moment.
    pub(crate) fn is_attended(&self) -> bool {
        self.board.n_looking.load(Relaxed) > 0
    }

    /// Asks all threads but one, which the caller stands for, to attend. Thread `i` of them leaves before its time when
    /// `make_wish()(i)` is false.
    pub(crate) fn gather<W>(&self, make_wish: impl Fn() -> W)
    where
        W: Fn(usize) -> bool + Send + 'static,
    {
        let n_wanted = (self.n_threads - 1).min(N_ATTENDANTS_MAX);
        while let Some(slot) = self.board.take_slot(n_wanted) {
            let Some(threads) = self.rayon() else { return };
            let (board, is_wanted) = (Arc::clone(&self.board), make_wish());
            threads.spawn(move || {
                board.attend(slot, n_wanted, || is_wanted(slot));
                board.slots.fetch_and(!(1 << slot), Relaxed);
            });
        }
    }
}

impl Board {
    /// The first slot below `n` that nobody has.
    fn take_slot(&self, n: usize) -> Option<usize> {
        let free = |slots: u64| slots.trailing_ones() as usize;
        let slots = self.slots.fetch_update(Relaxed, Relaxed, |slots| {
            (free(slots) < n).then(|| slots | 1 << free(slots))
        });
        slots.ok().map(free)
    }

    /// Shows a loop; how many threads look.
    fn show(&self, team: &Arc<Team>) -> usize {
        *self.lock() = Some(Arc::clone(team));
        self.n_shown.fetch_add(1, Release);
        self.n_looking.load(Relaxed)
    }

    /// Helps with what is shown, as helper `slot` of `n_slots`, until nothing has been for a while.
    fn attend(&self, slot: usize, n_slots: usize, is_wanted: impl Fn() -> bool) {
        let mut n_seen = 0;
        let mut idle_since = Instant::now();
        self.n_looking.fetch_add(1, Relaxed);
        while is_wanted() && idle_since.elapsed() < ATTENDANCE {
            for _ in 0..N_LOOKS {
                let n_shown = self.n_shown.load(Acquire);
                if n_shown == n_seen {
                    std::hint::spin_loop();
                    continue;
                }
                n_seen = n_shown;
                let team = self.lock().clone();
                if let Some(team) = team {
                    self.n_looking.fetch_sub(1, Relaxed);
                    team.help(slot, n_slots);
                    self.n_looking.fetch_add(1, Relaxed);
                    idle_since = Instant::now();
                }
            }
        }
        self.n_looking.fetch_sub(1, Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<Team>>> {
        self.team.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Shown<'_> {
    fn drop(&mut self) {
        let team = self.0.lock().take();
        drop(team); // Without the lock.
    }
}

#[cfg(test)]
mod tests {
    use std::panic::AssertUnwindSafe;
    use std::panic::catch_unwind;
    use std::sync::Barrier;
    use std::sync::atomic::AtomicBool;
    use std::sync::atomic::AtomicU32;

    use super::*;

    #[test]
    fn every_part_is_done_once_whoever_does_it() {
        for is_attended in [false, true] {
            let pool = IntraOpPool::new(3);
            for n_parts in [0, 1, 2, 7, 100] {
                for _ in 0..200 {
                    let counts: Vec<AtomicU32> = (0..n_parts).map(|_| AtomicU32::new(0)).collect();
                    let body = |part: usize| {
                        counts[part].fetch_add(1, Relaxed);
                    };
                    if is_attended {
                        pool.gather(|| |_| true);
                        pool.for_each_attended(n_parts, &body);
                    } else {
                        pool.for_each(n_parts, &body);
                    }
                    assert!(counts.iter().all(|count| count.load(Relaxed) == 1));
                }
            }
        }
    }

    #[test]
    fn helpers_take_parts_while_the_caller_is_busy() {
        // Each part waits for the other, so neither thread can do both.
        let barrier = Barrier::new(2);
        IntraOpPool::new(3).for_each(2, &|_| {
            barrier.wait();
        });
    }

    #[test]
    fn threads_that_attend_come_without_being_woken_and_leave_when_unwanted() {
        let pool = IntraOpPool::new(2);
        let is_wanted = Arc::new(AtomicBool::new(true));
        let barrier = Barrier::new(2);
        let wish = || {
            let is_wanted = Arc::clone(&is_wanted);
            move |_| is_wanted.load(Relaxed)
        };
        // The thread may leave, by the clock, between the look and the loop, which then is the caller's alone.
        let comes = || {
            pool.gather(wish);
            if !pool.is_attended() {
                return false;
            }
            let caller = std::thread::current().id();
            let is_alone = AtomicBool::new(true);
            pool.for_each_attended(2, &|_| {
                if std::thread::current().id() == caller {
                    let started = Instant::now();
                    while is_alone.load(Relaxed) && started.elapsed() < ATTENDANCE {
                        std::hint::spin_loop();
                    }
                } else {
                    is_alone.store(false, Relaxed);
                }
            });
            !is_alone.into_inner()
        };
        let started = Instant::now();
        while !comes() {
            assert!(started.elapsed() < Duration::from_secs(60), "nobody came");
        }
        is_wanted.store(false, Relaxed);
        while pool.is_attended() {
            std::thread::yield_now();
        }
        // Whoever is gone is free for others.
        pool.for_each(2, &|_| {
            barrier.wait();
        });
    }

    #[test]
    fn no_more_threads_attend_than_the_pool_has_beside_the_caller() {
        let pool = IntraOpPool::new(3);
        assert_eq!(pool.board.take_slot(2), Some(0));
        assert_eq!(pool.board.take_slot(2), Some(1));
        assert_eq!(pool.board.take_slot(2), None);
        pool.board.slots.fetch_and(!1, Relaxed);
        assert_eq!(pool.board.take_slot(2), Some(0));
        IntraOpPool::new(1).gather(|| |_| unreachable!("a pool of one thread has none to ask"));
    }

    #[test]
    fn loops_within_loops_end() {
        let pool = IntraOpPool::new(3);
        let sum = AtomicU32::new(0);
        pool.for_each(5, &|_| {
            pool.for_each(5, &|_| {
                sum.fetch_add(1, Relaxed);
            });
        });
        assert_eq!(sum.into_inner(), 25);
    }

    #[test]
    fn a_panic_reaches_the_caller_when_nobody_is_inside_any_more() {
        let pool = IntraOpPool::new(3);
        let n_inside = AtomicU32::new(0);
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            pool.for_each(50, &|part| {
                n_inside.fetch_add(1, Relaxed);
                let broken = part == 3;
                n_inside.fetch_sub(1, Relaxed);
                assert!(!broken, "part 3 is broken");
            });
        }));
        assert_eq!(
            outcome.unwrap_err().downcast_ref::<&str>(),
            Some(&"part 3 is broken")
        );
        assert_eq!(n_inside.into_inner(), 0);
    }
}
