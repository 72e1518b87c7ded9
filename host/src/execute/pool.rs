//! Threads that help runs.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, JoinHandle};

use super::error::ExecuteError;
use super::run::Run;

/// Threads that help runs: of one session, or of all that are given the same pool. Cloning shares;
/// the threads end with the last clone. Runs take turns in the order in which they asked for help,
/// and go on without it where all threads are busy: the thread that calls a run never waits for a
/// thread of the pool to begin.
///
/// ```
/// use placewright::execute::ExecutorOptions;
/// use placewright::execute::InterOpPool;
///
/// let pool = InterOpPool::new(2)?;
/// let options = || ExecutorOptions::default().with_inter_op_pool(pool.clone());
/// assert_eq!(options().inter_op_pool.map(|pool| pool.n_threads()), Some(2));
/// # Ok::<(), placewright::execute::ExecuteError>(())
/// ```
#[derive(Debug, Clone)]
pub struct InterOpPool(Arc<HelperPool>);

impl InterOpPool {
    /// A pool in which `n_threads` steps of one run may execute at one time, the caller's thread
    /// included (so 1 has no threads of its own); 0 = one per core.
    ///
    /// # Errors
    /// [`ExecuteError::Threads`] if the system has no threads to give.
    pub fn new(n_threads: usize) -> Result<Self, ExecuteError> {
        let n_threads = match n_threads {
            0 => thread::available_parallelism().map_or(1, usize::from),
            n_threads => n_threads,
        };
        let helpers = HelperPool::new(n_threads - 1)
            .map_err(|error| ExecuteError::Threads(error.to_string()))?;
        Ok(Self(Arc::new(helpers)))
    }

    /// Steps of one run that may execute at one time, the caller's thread included.
    pub fn n_threads(&self) -> usize {
        self.0.threads.len() + 1
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.0.shared
    }
}

/// Threads that wait for runs to help. Dropping it ends them once their runs need them no more.
#[derive(Debug)]
struct HelperPool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// Where runs ask for help.
#[derive(Debug, Default)]
pub(super) struct Shared {
    n_threads: AtomicUsize,
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// One entry per helper asked for. Weak: a run that is over before its helpers come must not
    /// be kept, with its tensors, until they do.
    requests: VecDeque<Weak<Run>>,
    is_closed: bool,
}

impl HelperPool {
    /// Starts `n_threads` threads.
    fn new(n_threads: usize) -> io::Result<Self> {
        let mut pool = Self {
            shared: Arc::default(),
            threads: Vec::with_capacity(n_threads),
        };
        for index in 0..n_threads {
            let shared = Arc::clone(&pool.shared);
            let thread = thread::Builder::new()
                .name(format!("inter-op-{index}"))
                .spawn(move || shared.serve())?;
            pool.threads.push(thread);
            pool.shared.n_threads.fetch_add(1, Ordering::Relaxed);
        }
        Ok(pool)
    }
}

impl Drop for HelperPool {
    fn drop(&mut self) {
        self.shared.lock().is_closed = true;
        self.shared.wake.notify_all();
        for thread in self.threads.drain(..) {
            if thread.thread().id() == thread::current().id() {
                // A kernel had the last clone. The thread ends when it looks for its next run.
                continue;
            }
            // A kernel's panic is caught where it runs; there is nobody left to tell of another
            // one.
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// Number of threads.
    pub(super) fn n_threads(&self) -> usize {
        self.n_threads.load(Ordering::Relaxed)
    }

    /// Asks for `n_helpers` threads.
    pub(super) fn ask(&self, run: &Arc<Run>, n_helpers: usize) {
        if n_helpers == 0 {
            return;
        }
        let mut state = self.lock();
        for _ in 0..n_helpers {
            state.requests.push_back(Arc::downgrade(run));
        }
        drop(state);
        for _ in 0..n_helpers {
            self.wake.notify_one();
        }
    }

    fn serve(&self) {
        loop {
            let mut state = self.lock();
            let run = loop {
                if let Some(run) = state.requests.pop_front() {
                    break run;
                }
                if state.is_closed {
                    return;
                }
                state = self
                    .wake
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
            };
            drop(state);
            // Steps catch their own panics. What is left are tensors that panic when the run is
            // dropped here; one such must not cost all later runs a helper.
            let _ = catch_unwind(AssertUnwindSafe(|| {
                if let Some(run) = run.upgrade() {
                    run.help(self);
                }
            }));
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
