//! The clock of deadlines: a thread that moves an engine's epoch on while calls run.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

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
        // Since when it has been awake, and its ticks since then.
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
            // A sleep lasts longer than asked for, on a busy machine much longer; deadlines must
            // not.
            for _ in 0..due(awake.1, awake.0.elapsed()) {
                engine.increment_epoch();
                awake.1 += 1;
            }
            state = self.lock();
        }
    }
}

/// When a call is to end. Epochs only say when to look at it: a tick that was late is made up for
/// by several at once, which a call that started in between did not see pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallEnd {
    At(Instant),
    /// So long after the first look: nobody looked at the clock when the call started.
    Unmeasured(Duration),
    /// Beyond what the clock counts, or not by the clock.
    Never,
}

impl CallEnd {
    /// Of a call that starts now.
    pub(super) fn in_time(deadline: Duration) -> Self {
        Instant::now()
            .checked_add(deadline)
            .map_or(Self::Never, Self::At)
    }

    /// How long the call may go on; `None` = its time is over.
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

    /// Returns how long the call may go on in ns, rounded down to whole ticks: deadlines are no
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

/// Ticks still missing, `elapsed` after waking up and with `n_ticks` done.
fn due(n_ticks: u64, elapsed: Duration) -> u64 {
    let n_ticks_due = elapsed.as_nanos() / TICK.as_nanos();
    u64::try_from(n_ticks_due)
        .unwrap_or(u64::MAX)
        .saturating_sub(n_ticks)
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
