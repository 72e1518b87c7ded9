//! The threads that devices lend to loops inside their kernels.

mod lease;
mod parallel_loop;
mod sync;

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

use parallel_loop::ParallelLoop;
use tracing::warn;

use crate::device::numa::pin_this_thread;
use crate::trace::targets;

/// How long a thread that attends looks for work after the last. ONNX Runtime's threads look for
/// longer; in a run, and from one run to the next of a caller that only runs, the pauses are of
/// some us.
const SPIN_TIME: Duration = Duration::from_micros(100);

/// Looks between two readings of the clock.
const N_LOOKS: u32 = 64;

/// The threads that devices lend to loops inside their kernels (TensorFlow
/// `intra_op_parallelism_threads`): a rayon pool, started when first asked for.
///
/// Waking a thread that sleeps takes longer than most kernels. So others may *attend*: look for
/// loops, busily, for 100 us after the last one. An executor asks for that where it has measured
/// that it pays.
#[derive(Debug)]
pub struct IntraOpPool {
    n_threads: usize,
    /// Processors that its threads run on; none = all.
    cpus: Arc<[u32]>,
    /// Whether the threads are an app's, which has not asked for more of them.
    is_lent: bool,
    threads: OnceLock<Option<Arc<rayon::ThreadPool>>>,
    workers: OnceLock<Vec<SpinningWorker>>,
    open_loops: Arc<OpenLoops>,
}

/// Where loops are shown to the threads that attend.
#[derive(Debug, Default)]
struct OpenLoops {
    /// The loops that go on.
    loops: Mutex<Vec<Arc<ParallelLoop>>>,
    /// Loops shown so far.
    n_added: AtomicU64,
    /// Threads that look at this moment.
    n_looking: AtomicUsize,
}

/// A thread that may attend. Not one of rayon's: what waits there for a part of its loop executes
/// whatever else there is to do, and would attend instead of going on.
#[derive(Debug)]
struct SpinningWorker {
    /// Whether it attends, or has been asked to.
    is_asked: Arc<AtomicBool>,
    /// Wakes it; dropped, ends it.
    ask: Option<Sender<KeepSpinning>>,
    thread: Option<JoinHandle<()>>,
}

/// Whether it is still wanted.
type KeepSpinning = Box<dyn Fn() -> bool + Send>;

/// Takes down what is shown when it is dropped: the loop is over, or has panicked.
struct OpenLoop<'a> {
    open_loops: &'a OpenLoops,
    parallel_loop: Arc<ParallelLoop>,
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
            cpus: Arc::default(),
            is_lent: false,
            threads: OnceLock::new(),
            workers: OnceLock::new(),
            open_loops: Arc::default(),
        }
    }

    /// An app's own pool, which it may use for other work, too: nothing here waits for a thread of
    /// it that is busy. No thread is started beside it, so none attends. A kernel that panics
    /// on one of its threads fails its run, whatever the pool does with panics of its own work.
    pub fn from_rayon(threads: Arc<rayon::ThreadPool>) -> Self {
        let n_threads = threads.current_num_threads();
        Self {
            is_lent: true,
            threads: OnceLock::from(Some(threads)),
            ..Self::new(n_threads)
        }
    }

    /// The same, with threads that run on these processors alone; none = all. An app's own threads
    /// run where they did. Where the system refuses, an event of level WARN says so, and they
    /// run anywhere.
    #[must_use]
    pub fn with_cpus(mut self, cpus: &[u32]) -> Self {
        self.cpus = cpus.into();
        self
    }

    /// The processors that its threads run on; none = all.
    pub fn cpus(&self) -> &[u32] {
        &self.cpus
    }

    /// Number of threads that work on one loop at most, the caller's included.
    pub fn n_threads(&self) -> usize {
        self.n_threads
    }

    /// The threads, for loops that rayon shares out; `None` for a single thread, which the caller
    /// has already, and where the system refuses threads.
    pub fn rayon(&self) -> Option<&rayon::ThreadPool> {
        if self.n_threads == 1 {
            return None;
        }
        self.threads
            .get_or_init(|| {
                let cpus = Arc::clone(&self.cpus);
                let threads = rayon::ThreadPoolBuilder::new()
                    .num_threads(self.n_threads)
                    .thread_name(|index| format!("intra-op-{index}"))
                    .start_handler(move |_| pin_to(&cpus))
                    .build();
                threads.ok().map(Arc::new)
            })
            .as_deref()
    }

    /// Calls `body(part)` once for each part of `0..n_parts`, on this thread and on those of the
    /// pool that come. It never waits for one that has not come.
    ///
    /// # Panics
    /// If `body` does.
    pub fn for_each(&self, n_parts: usize, body: &(dyn Fn(usize) + Sync)) {
        let n_helpers = (self.n_threads - 1).min(n_parts.saturating_sub(1));
        parallel_loop::for_each(n_parts, body, |parallel_loop| {
            let added = self.open_loops.add(parallel_loop);
            let n_looking = self.open_loops.n_looking.load(Relaxed);
            if let Some(threads) = self.rayon() {
                for helper in n_looking..n_helpers {
                    let parallel_loop = Arc::clone(parallel_loop);
                    threads.spawn(move || parallel_loop.help(helper, n_helpers));
                }
            }
            added
        });
    }

    /// The same, without waking a thread that sleeps: those that attend come. It is worth it for
    /// work of some 4 us, `for_each` for some 60 us.
    ///
    /// # Panics
    /// If `body` does.
    pub fn for_each_spinning(&self, n_parts: usize, body: &(dyn Fn(usize) + Sync)) {
        parallel_loop::for_each(n_parts, body, |parallel_loop| {
            self.open_loops.add(parallel_loop)
        });
    }

    /// Whether threads look for work at this moment.
    pub fn has_spinning_workers(&self) -> bool {
        self.open_loops.n_looking.load(Relaxed) > 0
    }

    /// Asks threads to attend: one fewer than the pool has, as the caller works, too, and of those
    /// the first for whose number `make_condition()` says yes. Each leaves before its time when it
    /// says no.
    pub(crate) fn start_spinning<W>(&self, make_condition: impl Fn() -> W)
    where
        W: Fn(usize) -> bool + Send + 'static,
    {
        let workers = self.workers.get_or_init(|| self.start_workers());
        for (number, worker) in workers.iter().enumerate() {
            if worker.is_asked.load(Relaxed) || worker.is_asked.swap(true, Acquire) {
                continue;
            }
            let condition = make_condition();
            if !condition(number) {
                worker.is_asked.store(false, Relaxed);
                return;
            }
            worker.ask(Box::new(move || condition(number)));
        }
    }

    /// Starts the threads that may attend, as many of them as the system gives.
    fn start_workers(&self) -> Vec<SpinningWorker> {
        let n = if self.is_lent { 0 } else { self.n_threads - 1 };
        let hired = (0..n).map_while(|number| {
            SpinningWorker::start(number, n, &self.open_loops, &self.cpus).ok()
        });
        hired.collect()
    }
}

/// Lets the calling thread run on these processors alone; none = all.
fn pin_to(cpus: &[u32]) {
    if cpus.is_empty() {
        return;
    }
    if let Err(error) = pin_this_thread(cpus) {
        warn!(
            target: targets::DEVICE,
            ?cpus,
            error = %error,
            "a thread of a device cannot be kept on its processors, it runs on any"
        );
    }
}

impl SpinningWorker {
    fn start(
        number: usize,
        n: usize,
        open_loops: &Arc<OpenLoops>,
        cpus: &Arc<[u32]>,
    ) -> io::Result<Self> {
        let is_asked = Arc::new(AtomicBool::new(false));
        let (ask, requests) = mpsc::channel::<KeepSpinning>();
        let (asked, open_loops) = (Arc::clone(&is_asked), Arc::clone(open_loops));
        let cpus = Arc::clone(cpus);
        let thread = thread::Builder::new()
            .name(format!("intra-op-spin-{number}"))
            .spawn(move || {
                pin_to(&cpus);
                for is_wanted in requests {
                    open_loops.spin(number, n, is_wanted);
                    asked.store(false, Release);
                }
            })?;
        Ok(Self {
            is_asked,
            ask: Some(ask),
            thread: Some(thread),
        })
    }

    fn ask(&self, condition: KeepSpinning) {
        if let Some(ask) = &self.ask {
            // It listens until the pool is dropped.
            let _ = ask.send(condition);
        }
    }
}

impl Drop for SpinningWorker {
    fn drop(&mut self) {
        self.ask = None;
        if let Some(thread) = self.thread.take() {
            // Panics of a loop's body go to the loop's caller.
            let _ = thread.join();
        }
    }
}

impl OpenLoops {
    /// Shows a loop, until what comes back is dropped.
    fn add(&self, parallel_loop: &Arc<ParallelLoop>) -> OpenLoop<'_> {
        self.lock().push(Arc::clone(parallel_loop));
        self.n_added.fetch_add(1, Release);
        OpenLoop {
            open_loops: self,
            parallel_loop: Arc::clone(parallel_loop),
        }
    }

    /// Helps with what is shown, as helper `number` of `n`, until nothing has been for a while.
    fn spin(&self, number: usize, n: usize, is_wanted: impl Fn() -> bool) {
        let mut n_seen = 0;
        let mut idle_since = Instant::now();
        self.n_looking.fetch_add(1, Relaxed);
        while is_wanted() && idle_since.elapsed() < SPIN_TIME {
            for _ in 0..N_LOOKS {
                let n_added = self.n_added.load(Acquire);
                if n_added == n_seen {
                    std::hint::spin_loop();
                    continue;
                }
                let open = self
                    .lock()
                    .iter()
                    .find(|parallel_loop| parallel_loop.is_open())
                    .cloned();
                let Some(parallel_loop) = open else {
                    n_seen = n_added;
                    continue;
                };
                self.n_looking.fetch_sub(1, Relaxed);
                parallel_loop.help(number, n);
                self.n_looking.fetch_add(1, Relaxed);
                idle_since = Instant::now();
            }
        }
        self.n_looking.fetch_sub(1, Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<ParallelLoop>>> {
        self.loops.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for OpenLoop<'_> {
    fn drop(&mut self) {
        let mut loops = self.open_loops.lock();
        loops.retain(|parallel_loop| !Arc::ptr_eq(parallel_loop, &self.parallel_loop));
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
        for has_spinning_workers in [false, true] {
            let pool = IntraOpPool::new(3);
            for n_parts in [0, 1, 2, 7, 100] {
                for _ in 0..200 {
                    let counts: Vec<AtomicU32> = (0..n_parts).map(|_| AtomicU32::new(0)).collect();
                    let body = |part: usize| {
                        counts[part].fetch_add(1, Relaxed);
                    };
                    if has_spinning_workers {
                        pool.start_spinning(|| |_| true);
                        pool.for_each_spinning(n_parts, &body);
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
        let condition = || {
            let is_wanted = Arc::clone(&is_wanted);
            move |_| is_wanted.load(Relaxed)
        };
        // The thread may leave, by the clock, between the look and the loop, which then is the
        // caller's alone.
        let comes = || {
            pool.start_spinning(condition);
            if !pool.has_spinning_workers() {
                return false;
            }
            let caller = thread::current().id();
            let is_alone = AtomicBool::new(true);
            pool.for_each_spinning(2, &|_| {
                if thread::current().id() == caller {
                    let started = Instant::now();
                    while is_alone.load(Relaxed) && started.elapsed() < SPIN_TIME {
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
        while pool.has_spinning_workers() {
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
        let n_conditions = AtomicU32::new(0);
        pool.start_spinning(|| {
            n_conditions.fetch_add(1, Relaxed);
            |number| number < 1
        });
        assert_eq!(
            n_conditions.into_inner(),
            2,
            "the first is, the second is not"
        );
        let asked = |pool: &IntraOpPool| {
            let workers = pool.workers.get().unwrap().iter();
            workers.skip(1).any(|other| other.is_asked.load(Relaxed))
        };
        assert!(!asked(&pool));
        IntraOpPool::new(1)
            .start_spinning(|| |_| unreachable!("a pool of one thread has none to ask"));
    }

    #[test]
    fn loops_of_several_callers_are_shown_at_one_time() {
        let open_loops = OpenLoops::default();
        parallel_loop::for_each(1, &|_| (), |outer| {
            let added = open_loops.add(outer);
            parallel_loop::for_each(1, &|_| (), |inner| open_loops.add(inner));
            let left = open_loops.lock();
            assert!(left.len() == 1 && Arc::ptr_eq(&left[0], outer));
            drop(left);
            added
        });
        assert!(open_loops.lock().is_empty());
    }

    #[test]
    fn an_apps_pool_works_and_starts_no_thread_beside_it() {
        let apps = rayon::ThreadPoolBuilder::new()
            .num_threads(3)
            .thread_name(|index| format!("app-{index}"))
            .build()
            .unwrap();
        let apps = Arc::new(apps);
        let pool = IntraOpPool::from_rayon(Arc::clone(&apps));
        assert_eq!(pool.n_threads(), 3);
        assert!(std::ptr::eq(pool.rayon().unwrap(), &*apps));
        // Each part waits for the other, so a thread of the app's must come.
        let barrier = Barrier::new(2);
        let caller = thread::current().id();
        let n_of_app = AtomicU32::new(0);
        pool.for_each(2, &|_| {
            barrier.wait();
            let this = thread::current();
            if this.id() != caller {
                assert!(this.name().unwrap().starts_with("app-"));
                n_of_app.fetch_add(1, Relaxed);
            }
        });
        assert_eq!(n_of_app.into_inner(), 1);
        pool.start_spinning(|| |_| -> bool { unreachable!("nobody is asked to attend") });
        assert!(!pool.has_spinning_workers());
    }

    #[test]
    fn a_panic_on_an_apps_thread_reaches_the_caller_and_the_pool_lives_on() {
        let apps = rayon::ThreadPoolBuilder::new().num_threads(2).build();
        let pool = IntraOpPool::from_rayon(Arc::new(apps.unwrap()));
        let barrier = Barrier::new(2);
        let caller = thread::current().id();
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            pool.for_each(2, &|_| {
                barrier.wait();
                assert!(thread::current().id() == caller, "on the app's thread");
            });
        }));
        assert_eq!(
            outcome.unwrap_err().downcast_ref::<&str>(),
            Some(&"on the app's thread")
        );
        // As a kernel does that shares its loop with rayon's own means.
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            pool.rayon().unwrap().install(|| panic!("inside rayon"))
        }));
        assert!(outcome.is_err());
        let sum = AtomicU32::new(0);
        pool.for_each(10, &|part| {
            sum.fetch_add(u32::try_from(part).unwrap(), Relaxed);
        });
        assert_eq!(sum.into_inner(), 45);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn threads_run_on_their_processors_alone() {
        use crate::device::numa::schedulable_cpus;

        let before = schedulable_cpus();
        let first = [before[0]];
        let pool = IntraOpPool::new(2).with_cpus(&first);
        let found = pool.rayon().unwrap().broadcast(|_| schedulable_cpus());
        assert_eq!(found, [first, first]);
        assert_eq!(schedulable_cpus(), before, "the caller runs where it did");
        // A processor that there is not: the system refuses, and the work is done all the same.
        let pool = IntraOpPool::new(2).with_cpus(&[1023]);
        if !before.contains(&1023) {
            let found = pool.rayon().unwrap().broadcast(|_| schedulable_cpus());
            assert_eq!(found, [before.clone(), before]);
        }
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
