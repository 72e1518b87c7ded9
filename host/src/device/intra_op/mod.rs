//! The intra-op thread pool: threads that execute parallel loops inside kernels.

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

/// How long a worker spins after its last work. ONNX Runtime's threads spin longer. Within a run,
/// and between the runs of a caller that does nothing else, the pauses are a few us.
const SPIN_TIME: Duration = Duration::from_micros(100);

/// Checks between two clock readings.
const N_CHECKS: u32 = 64;

/// The thread pool that kernels of a device use for parallel loops (TensorFlow
/// `intra_op_parallelism_threads`): a rayon pool, started when first asked for.
///
/// Waking a sleeping thread takes longer than most kernels. So additional workers may *spin*: they
/// check for parallel loops for 100 us after the last one. An executor asks for that if it has
/// measured that it is faster.
#[derive(Debug)]
pub struct IntraOpPool {
    n_threads: usize,
    /// CPUs that its threads run on; empty means all.
    cpus: Arc<[u32]>,
    /// Whether the threads belong to an app. Then the pool starts no others.
    is_lent: bool,
    threads: OnceLock<Option<Arc<rayon::ThreadPool>>>,
    workers: OnceLock<Vec<SpinningWorker>>,
    open_loops: Arc<OpenLoops>,
}

/// The open parallel loops, which spinning workers check for work.
#[derive(Debug, Default)]
struct OpenLoops {
    /// The loops that execute.
    loops: Mutex<Vec<Arc<ParallelLoop>>>,
    /// Number of loops added so far.
    n_added: AtomicU64,
    /// Number of workers that spin at this moment.
    n_spinning: AtomicUsize,
}

/// A worker thread that may spin. It is not one of rayon's: a rayon thread that waits for a part of
/// its loop executes other jobs of its pool, and would spin instead of continuing its loop.
#[derive(Debug)]
struct SpinningWorker {
    /// Whether it spins, or has been asked to.
    is_asked: Arc<AtomicBool>,
    /// Wakes it; dropping the sender ends it.
    ask: Option<Sender<KeepSpinning>>,
    thread: Option<JoinHandle<()>>,
}

/// Returns whether the worker should continue to spin.
type KeepSpinning = Box<dyn Fn() -> bool + Send>;

/// Removes a loop from the open loops when it is dropped: the loop is over, or has panicked.
struct OpenLoop<'a> {
    open_loops: &'a OpenLoops,
    parallel_loop: Arc<ParallelLoop>,
}

impl IntraOpPool {
    /// Creates a pool of `n_threads` threads; 0 means one per core that this process may run on.
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

    /// Uses an app's own rayon pool. The app may use it for other work, too: no loop waits for a
    /// busy thread of it. No other threads are started, so no worker spins. If a kernel panics on
    /// one of its threads, its run fails, regardless of the pool's panic handler.
    pub fn from_rayon(threads: Arc<rayon::ThreadPool>) -> Self {
        let n_threads = threads.current_num_threads();
        Self {
            is_lent: true,
            threads: OnceLock::from(Some(threads)),
            ..Self::new(n_threads)
        }
    }

    /// Restricts the pool's threads to these CPUs; empty means all. Threads of an app are not
    /// changed. If the system refuses, the threads run on any CPU, and an event of level WARN
    /// reports it.
    #[must_use]
    pub fn with_cpus(mut self, cpus: &[u32]) -> Self {
        self.cpus = cpus.into();
        self
    }

    /// Returns the CPUs that its threads run on; empty means all.
    pub fn cpus(&self) -> &[u32] {
        &self.cpus
    }

    /// Returns the maximum number of threads that work on one loop, including the caller's.
    pub fn n_threads(&self) -> usize {
        self.n_threads
    }

    /// Returns the rayon pool, for loops that rayon distributes; `None` for a single thread, which
    /// is the caller's, and if the system cannot start the threads.
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

    /// Calls `body(part)` once for each part of `0..n_parts`, on this thread and on the pool's
    /// threads that join. It never waits for a thread that has not joined.
    ///
    /// # Panics
    /// If `body` does.
    pub fn for_each(&self, n_parts: usize, body: &(dyn Fn(usize) + Sync)) {
        let n_helpers = (self.n_threads - 1).min(n_parts.saturating_sub(1));
        parallel_loop::for_each(n_parts, body, |parallel_loop| {
            let added = self.open_loops.add(parallel_loop);
            let n_spinning = self.open_loops.n_spinning.load(Relaxed);
            if let Some(threads) = self.rayon() {
                for helper in n_spinning..n_helpers {
                    let parallel_loop = Arc::clone(parallel_loop);
                    threads.spawn(move || parallel_loop.help(helper, n_helpers));
                }
            }
            added
        });
    }

    /// Does the same as [`Self::for_each`] without waking threads: only spinning workers join. It
    /// pays for work of about 4 us, `for_each` for about 60 us.
    ///
    /// # Panics
    /// If `body` does.
    pub fn for_each_spinning(&self, n_parts: usize, body: &(dyn Fn(usize) + Sync)) {
        parallel_loop::for_each(n_parts, body, |parallel_loop| {
            self.open_loops.add(parallel_loop)
        });
    }

    /// Checks whether workers spin at this moment.
    pub fn has_spinning_workers(&self) -> bool {
        self.open_loops.n_spinning.load(Relaxed) > 0
    }

    /// Asks workers to spin: at most one fewer than the pool has threads, because the caller works,
    /// too, and only the first workers whose number `make_condition()` accepts. Each stops early
    /// when the condition becomes false.
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

    /// Starts the workers that may spin, as many as the system can start.
    fn start_workers(&self) -> Vec<SpinningWorker> {
        let n = if self.is_lent { 0 } else { self.n_threads - 1 };
        let hired = (0..n).map_while(|number| {
            SpinningWorker::start(number, n, &self.open_loops, &self.cpus).ok()
        });
        hired.collect()
    }
}

/// Restricts the calling thread to these CPUs; empty means all.
fn pin_to(cpus: &[u32]) {
    if cpus.is_empty() {
        return;
    }
    if let Err(error) = pin_this_thread(cpus) {
        warn!(
            target: targets::DEVICE,
            ?cpus,
            error = %error,
            "cannot pin a worker thread to the device's CPUs, it runs on any CPU"
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
            // It receives until the pool is dropped.
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
    /// Adds a loop until the returned guard is dropped.
    fn add(&self, parallel_loop: &Arc<ParallelLoop>) -> OpenLoop<'_> {
        self.lock().push(Arc::clone(parallel_loop));
        self.n_added.fetch_add(1, Release);
        OpenLoop {
            open_loops: self,
            parallel_loop: Arc::clone(parallel_loop),
        }
    }

    /// Spins as worker `number` of `n`, and helps with open loops, until there has been none for a
    /// while.
    fn spin(&self, number: usize, n: usize, is_wanted: impl Fn() -> bool) {
        let mut n_seen = 0;
        let mut idle_since = Instant::now();
        self.n_spinning.fetch_add(1, Relaxed);
        while is_wanted() && idle_since.elapsed() < SPIN_TIME {
            for _ in 0..N_CHECKS {
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
                self.n_spinning.fetch_sub(1, Relaxed);
                parallel_loop.help(number, n);
                self.n_spinning.fetch_add(1, Relaxed);
                idle_since = Instant::now();
            }
        }
        self.n_spinning.fetch_sub(1, Relaxed);
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
    fn every_part_is_done_once_by_any_thread() {
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
    fn spinning_workers_join_without_being_woken_and_stop_when_unwanted() {
        let pool = IntraOpPool::new(2);
        let is_wanted = Arc::new(AtomicBool::new(true));
        let barrier = Barrier::new(2);
        let condition = || {
            let is_wanted = Arc::clone(&is_wanted);
            move |_| is_wanted.load(Relaxed)
        };
        // The worker may stop by the clock between the check and the loop. Then the caller executes
        // the loop alone.
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
            assert!(
                started.elapsed() < Duration::from_secs(60),
                "no worker joined"
            );
        }
        is_wanted.store(false, Relaxed);
        while pool.has_spinning_workers() {
            thread::yield_now();
        }
        // A worker that has stopped is free for other loops.
        pool.for_each(2, &|_| {
            barrier.wait();
        });
    }

    #[test]
    fn an_unwanted_worker_is_not_asked() {
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
    fn loops_of_several_callers_are_open_at_one_time() {
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
        pool.start_spinning(|| |_| -> bool { unreachable!("no worker is asked to spin") });
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
        // Like a kernel that uses the rayon pool directly.
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
    fn threads_run_on_their_cpus_alone() {
        use crate::device::numa::schedulable_cpus;

        let before = schedulable_cpus();
        let first = [before[0]];
        let pool = IntraOpPool::new(2).with_cpus(&first);
        let found = pool.rayon().unwrap().broadcast(|_| schedulable_cpus());
        assert_eq!(found, [first, first]);
        assert_eq!(schedulable_cpus(), before, "the caller runs where it did");
        // A CPU that does not exist: the system refuses, and the work is done all the same.
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
    fn a_panic_reaches_the_caller_when_no_thread_is_inside_any_more() {
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
