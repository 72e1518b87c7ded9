//! The inter-op thread pool: threads that help runs.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, JoinHandle};

use super::error::ExecuteError;
use super::run::Run;

/// A thread pool that helps runs: of one session, or of all sessions that share it. Cloning shares
/// the pool; its threads end with the last clone. Runs get helpers in the order in which they
/// asked. If all threads are busy, a run continues without helpers: the thread that calls a run
/// never waits for a thread of the pool to begin.
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
    /// Creates a pool in which `n_threads` steps of one run may execute concurrently, including the
    /// caller's thread (so 1 starts no threads); 0 means one per core.
    ///
    /// # Errors
    /// [`ExecuteError::Threads`] if the system cannot start the threads.
    pub fn new(n_threads: usize) -> Result<Self, ExecuteError> {
        let n_threads = match n_threads {
            0 => thread::available_parallelism().map_or(1, usize::from),
            n_threads => n_threads,
        };
        let helpers = HelperPool::new(n_threads - 1)
            .map_err(|error| ExecuteError::Threads(error.to_string()))?;
        Ok(Self(Arc::new(helpers)))
    }

    /// Returns how many steps of one run may execute concurrently, including the one on the
    /// caller's thread.
    pub fn n_threads(&self) -> usize {
        self.0.threads.len() + 1
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.0.shared
    }
}

/// Threads that wait for runs to help. Dropping the pool ends them once their runs no longer need
/// them.
#[derive(Debug)]
struct HelperPool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// The queue in which runs ask for helpers.
#[derive(Debug, Default)]
pub(super) struct Shared {
    n_threads: AtomicUsize,
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// One entry per requested helper. Weak, so that a run that ends before its helpers join is
    /// not kept alive with its tensors.
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
                // A kernel held the last clone. The thread ends when it looks for its next run.
                continue;
            }
            // A kernel's panic is caught in its step; any other panic has no receiver any more.
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// Returns the number of threads.
    pub(super) fn n_threads(&self) -> usize {
        self.n_threads.load(Ordering::Relaxed)
    }

    /// Asks for `n_helpers` helpers.
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
            // Steps catch their own panics. Tensors may still panic when the run is dropped here;
            // that must not end a helper thread.
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
