//! The threads that devices lend to loops inside their kernels.

mod lease;
mod sync;
mod team;

use std::io;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::OnceLock;
use std::sync::PoisonError;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Acquire;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::Ordering::Release;
use std::sync::mpsc;
use std::sync::mpsc::Sender;
use std::thread;
use std::thread::JoinHandle;
use std::time::Duration;
use std::time::Instant;

use team::Team;

/// How long a thread that attends looks for work after the last. ONNX Runtime's threads look for longer; in a run, and from one run
/// to the next of a caller that only runs, the pauses are of some us.
const ATTENDANCE: Duration = Duration::from_micros(100);

/// Looks between two readings of the clock.
const N_LOOKS: u32 = 64;

/// The threads that devices lend to loops inside their kernels (TensorFlow `intra_op_parallelism_threads`): a rayon pool, started
/// when first asked for.
///
/// Waking a thread that sleeps takes longer than most kernels. So others may *attend*: look for loops, busily, for 100 us after the
/// last one. An executor asks for that where it has measured that it pays.
#[derive(Debug)]
pub struct IntraOpPool {
    n_threads: usize,
    threads: OnceLock<Option<rayon::ThreadPool>>,
    attendants: OnceLock<Vec<Attendant>>,
    board: Arc<Board>,
}

/// Where loops are shown to the threads that attend.
#[derive(Debug, Default)]
struct Board {
    /// The loops that go on.
    teams: Mutex<Vec<Arc<Team>>>,
    /// Loops shown so far.
    n_shown: AtomicU64,
    /// Threads that look at this moment.
    n_looking: AtomicUsize,
}

/// A thread that may attend. Not one of rayon's: what waits there for a part of its loop executes whatever else there is to do, and
/// would attend instead of going on.
#[derive(Debug)]
struct Attendant {
    /// Whether it attends, or has been asked to.
    is_asked: Arc<AtomicBool>,
    /// Wakes it; dropped, ends it.
    ask: Option<Sender<Wish>>,
    thread: Option<JoinHandle<()>>,
}

/// Whether it is still wanted.
type Wish = Box<dyn Fn() -> bool + Send>;

/// Takes down what is shown when it is dropped: the loop is over, or has panicked.
struct Shown<'a> {
    board: &'a Board,
    team: Arc<Team>,
}

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
            attendants: OnceLock::new(),
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
        team::for_each(n_parts, body, |team| {
            let shown = self.board.show(team);
            let n_looking = self.board.n_looking.load(Relaxed);
            if let Some(threads) = self.rayon() {
                for helper in n_looking..n_helpers {
                    let team = Arc::clone(team);
                    threads.spawn(move || team.help(helper, n_helpers));
                }
            }
            shown
        });
    }

    /// The same, without waking a thread that sleeps: those that attend come. It is worth it for work of some 4 us, `for_each` for
    /// some 60 us.
    ///
    /// # Panics
    /// If `body` does.
    pub fn for_each_attended(&self, n_parts: usize, body: &(dyn Fn(usize) + Sync)) {
        team::for_each(n_parts, body, |team| self.board.show(team));
    }

    /// Whether threads look for work at this moment.
    pub fn is_attended(&self) -> bool {
        self.board.n_looking.load(Relaxed) > 0
    }

    /// Asks threads to attend: one fewer than the pool has, as the caller works, too, and of those the first for whose number
    /// `make_wish()` says yes. Each leaves before its time when it says no.
    pub(crate) fn gather<W>(&self, make_wish: impl Fn() -> W)
    where
        W: Fn(usize) -> bool + Send + 'static,
    {
        let attendants = self.attendants.get_or_init(|| self.hire());
        for (number, attendant) in attendants.iter().enumerate() {
            if attendant.is_asked.load(Relaxed) || attendant.is_asked.swap(true, Acquire) {
                continue;
            }
            let wish = make_wish();
            if !wish(number) {
                attendant.is_asked.store(false, Relaxed);
                return;
            }
            attendant.ask(Box::new(move || wish(number)));
        }
    }

    /// Starts the threads that may attend, as many of them as the system gives.
    fn hire(&self) -> Vec<Attendant> {
        let n = self.n_threads - 1;
        let hired = (0..n).map_while(|number| Attendant::hire(number, n, &self.board).ok());
        hired.collect()
    }
}

impl Attendant {
    fn hire(number: usize, n: usize, board: &Arc<Board>) -> io::Result<Self> {
        let is_asked = Arc::new(AtomicBool::new(false));
        let (ask, wishes) = mpsc::channel::<Wish>();
        let (asked, board) = (Arc::clone(&is_asked), Arc::clone(board));
        let thread = thread::Builder::new()
            .name(format!("attendant-{number}"))
            .spawn(move || {
                for is_wanted in wishes {
                    board.attend(number, n, is_wanted);
                    asked.store(false, Release);
                }
            })?;
        Ok(Self {
            is_asked,
            ask: Some(ask),
            thread: Some(thread),
        })
    }

    fn ask(&self, wish: Wish) {
        if let Some(ask) = &self.ask {
            // It listens until the pool is dropped.
            let _ = ask.send(wish);
        }
    }
}

impl Drop for Attendant {
    fn drop(&mut self) {
        self.ask = None;
        if let Some(thread) = self.thread.take() {
            // Panics of a loop's body go to the loop's caller.
            let _ = thread.join();
        }
    }
}

impl Board {
    /// Shows a loop, until what comes back is dropped.
    fn show(&self, team: &Arc<Team>) -> Shown<'_> {
        self.lock().push(Arc::clone(team));
        self.n_shown.fetch_add(1, Release);
        Shown {
            board: self,
            team: Arc::clone(team),
        }
    }

    /// Helps with what is shown, as helper `number` of `n`, until nothing has been for a while.
    fn attend(&self, number: usize, n: usize, is_wanted: impl Fn() -> bool) {
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
                let open = self.lock().iter().find(|team| team.is_open()).cloned();
                let Some(team) = open else {
                    n_seen = n_shown;
                    continue;
                };
                self.n_looking.fetch_sub(1, Relaxed);
                team.help(number, n);
                self.n_looking.fetch_add(1, Relaxed);
                idle_since = Instant::now();
            }
        }
        self.n_looking.fetch_sub(1, Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Team>>> {
        self.teams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Shown<'_> {
    fn drop(&mut self) {
        let mut teams = self.board.lock();
        teams.retain(|team| !Arc::ptr_eq(team, &self.team));
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
            let caller = thread::current().id();
            let is_alone = AtomicBool::new(true);
            pool.for_each_attended(2, &|_| {
                if thread::current().id() == caller {
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
            thread::yield_now();
        }
        // Whoever is gone is free for others.
        pool.for_each(2, &|_| {
            barrier.wait();
        });
    }

    #[test]
    fn who_is_not_wanted_is_not_asked() {
        let pool = IntraOpPool::new(4);
        let n_wishes = AtomicU32::new(0);
        pool.gather(|| {
            n_wishes.fetch_add(1, Relaxed);
            |number| number < 1
        });
        assert_eq!(n_wishes.into_inner(), 2, "the first is, the second is not");
        let asked = |pool: &IntraOpPool| {
            let attendants = pool.attendants.get().unwrap().iter();
            attendants.skip(1).any(|other| other.is_asked.load(Relaxed))
        };
        assert!(!asked(&pool));
        IntraOpPool::new(1).gather(|| |_| unreachable!("a pool of one thread has none to ask"));
    }

    #[test]
    fn loops_of_several_callers_are_shown_at_one_time() {
        let board = Board::default();
        team::for_each(1, &|_| (), |outer| {
            let shown = board.show(outer);
            team::for_each(1, &|_| (), |inner| board.show(inner));
            let left = board.lock();
            assert!(left.len() == 1 && Arc::ptr_eq(&left[0], outer));
            drop(left);
            shown
        });
        assert!(board.lock().is_empty());
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
