//! The clock for deadlines: a thread that increments an engine's epoch while calls run.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use wasmtime::{Engine, EngineWeak};

/// The length of a tick, which is about the precision of deadlines.
const TICK: Duration = Duration::from_millis(1);

/// Ticks while a [`Ticking`] exists, sleeps otherwise, ends when dropped.
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
    /// Starts the thread for an engine. The thread does not keep the engine alive.
    ///
    /// # Errors
    /// The system cannot start a thread.
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
            // A panic of the thread has no effect any more.
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
        // The state is two numbers, which are always valid.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tick(&self, engine: &EngineWeak) {
        let mut state = self.lock();
        // When it woke up, and the number of ticks since.
        let mut awake: Option<(Instant, u64)> = None;
        while !state.is_over {
            if state.n_users == 0 {
                awake = None;
                state = self
                    .changed
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            drop(state);
            let awake = awake.get_or_insert_with(|| (Instant::now(), 0));
            thread::sleep(TICK);
            let Some(engine) = engine.upgrade() else {
                return;
            };
            // A sleep takes longer than requested, on a busy machine much longer. Deadlines must
            // not.
            for _ in 0..due(awake.1, awake.0.elapsed()) {
                engine.increment_epoch();
                awake.1 += 1;
            }
            state = self.lock();
        }
    }
}

/// When a call ends. Epochs only decide when to check it: after a late tick several follow at once,
/// which must not end a call that started in between.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallEnd {
    At(Instant),
    /// This long after the first check: the clock was not read when the call started.
    Unmeasured(Duration),
    /// Beyond the range of the clock, or without a deadline.
    Never,
}

impl CallEnd {
    /// Returns the end of a call that starts now.
    pub(super) fn in_time(deadline: Duration) -> Self {
        Instant::now()
            .checked_add(deadline)
            .map_or(Self::Never, Self::At)
    }

    /// Returns how long the call may continue, or `None` if its time is over.
    pub(super) fn left(&mut self, now: Instant) -> Option<Duration> {
        match *self {
            Self::At(end) => end
                .checked_duration_since(now)
                .filter(|left| !left.is_zero()),
            Self::Unmeasured(deadline) => {
                *self = now.checked_add(deadline).map_or(Self::Never, Self::At);
                Some(deadline)
            }
            Self::Never => Some(Duration::MAX),
        }
    }

    /// Returns how long the call may continue in ns, rounded down to whole ticks: deadlines are no
    /// more precise, and policies get no finer clock. `u64::MAX` if there is no deadline.
    pub(super) fn left_ns(&mut self, now: Instant) -> u64 {
        if *self == Self::Never {
            return u64::MAX;
        }
        let left = self.left(now).unwrap_or_default();
        let n_ticks = left.as_nanos() / TICK.as_nanos();
        u64::try_from(n_ticks * TICK.as_nanos()).unwrap_or(u64::MAX)
    }
}

/// Returns the number of ticks that are due, `elapsed` after waking up and after `n_ticks`.
fn due(n_ticks: u64, elapsed: Duration) -> u64 {
    let n_ticks_due = elapsed.as_nanos() / TICK.as_nanos();
    u64::try_from(n_ticks_due)
        .unwrap_or(u64::MAX)
        .saturating_sub(n_ticks)
}

/// Returns the number of ticks after which at least `duration` has passed. The first tick may come
/// at once.
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
    fn a_late_tick_is_followed_by_those_that_it_missed() {
        assert_eq!(due(0, Duration::from_micros(1500)), 1);
        assert_eq!(due(1, Duration::from_millis(6)), 5);
        assert_eq!(due(6, Duration::from_millis(6)), 0);
    }

    #[test]
    fn ticks_that_came_at_once_do_not_end_a_call_early() {
        let start = Instant::now();
        let ms = Duration::from_millis;
        let mut end = CallEnd::At(start + ms(10));
        assert_eq!(end.left(start + ms(4)), Some(ms(6)));
        assert_eq!(end.left(start + ms(10)), None);
        let mut end = CallEnd::Unmeasured(ms(10));
        assert_eq!(end.left(start), Some(ms(10)));
        assert_eq!(end.left(start + ms(9)), Some(ms(1)));
        assert_eq!(end.left(start + ms(11)), None);
        assert_eq!(CallEnd::Never.left(start), Some(Duration::MAX));
    }

    #[test]
    fn what_policies_see_of_the_deadline_is_in_whole_ticks() {
        let start = Instant::now();
        let us = Duration::from_micros;
        let mut end = CallEnd::At(start + us(10_000));
        assert_eq!(end.left_ns(start), 10_000_000);
        assert_eq!(end.left_ns(start + us(1)), 9_000_000);
        assert_eq!(end.left_ns(start + us(9_999)), 0);
        assert_eq!(end.left_ns(start + us(20_000)), 0);
        assert_eq!(CallEnd::Never.left_ns(start), u64::MAX);
    }

    #[test]
    fn the_thread_ends_with_its_owner_even_while_in_use() {
        let ticker = Ticker::start(&Engine::default()).unwrap();
        let ticking = ticker.ticking();
        drop(ticker);
        drop(ticking);
    }
}
