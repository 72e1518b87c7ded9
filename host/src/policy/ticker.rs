//! The clock of deadlines: a thread that moves an engine's epoch on while calls run.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use wasmtime::{Engine, EngineWeak};

/// Length of a tick: deadlines are kept to about this precision.
const TICK: Duration = Duration::from_millis(1);

/// Ticks while somebody holds a [`Ticking`], sleeps otherwise, ends when dropped.
#[derive(Debug)]
pub(super) struct Ticker {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// Keeps the ticker awake.
#[derive(Debug)]
pub(super) struct Ticking {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    n_users: usize,
    is_over: bool,
}

impl Ticker {
    /// Starts the thread for an engine. It does not keep the engine alive.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub(super) fn start(engine: &Engine) -> std::io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let thread = thread::Builder::new()
            .name("placewright-tick".to_owned())
            .stack_size(64 << 10)
            .spawn({
                let (shared, engine) = (Arc::clone(&shared), engine.weak());
                move || shared.tick(&engine)
            })?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    /// Keeps it ticking until the guard is dropped.
    pub(super) fn ticking(&self) -> Ticking {
        self.shared.lock().n_users += 1;
        self.shared.changed.notify_all();
        Ticking {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.shared.lock().is_over = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic over there has nothing left to spoil.
            let _ = thread.join();
        }
    }
}

impl Drop for Ticking {
    fn drop(&mut self) {
        self.shared.lock().n_users -= 1;
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is two numbers, valid at any time.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tick(&self, engine: &EngineWeak) {
        let mut state = self.lock();
        while !state.is_over {
            if state.n_users == 0 {
                state = self
                    .changed
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            drop(state);
            thread::sleep(TICK);
            let Some(engine) = engine.upgrade() else {
                return;
            };
            engine.increment_epoch();
            state = self.lock();
        }
    }
}

/// Ticks after which at least `duration` has passed: the first one may come at once.
pub(super) fn ticks(duration: Duration) -> u64 {
    let ticks = duration.as_nanos().div_ceil(TICK.as_nanos());
    // Wasmtime adds them to the current epoch, which must not wrap around.
    u64::try_from(ticks).unwrap_or(u64::MAX).min(u64::MAX / 2) + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_is_never_early_and_never_wraps() {
        assert_eq!(ticks(Duration::ZERO), 1);
        assert_eq!(ticks(Duration::from_micros(1)), 2);
        assert_eq!(ticks(Duration::from_millis(10)), 11);
        assert_eq!(ticks(Duration::MAX), u64::MAX / 2 + 1);
    }

    #[test]
    fn the_thread_ends_with_its_owner_even_while_in_use() {
        let ticker = Ticker::start(&Engine::default()).unwrap();
        let ticking = ticker.ticking();
        drop(ticker);
        drop(ticking);
    }
}
