//! Callbacks when streams have reached a point (TensorFlow `EventMgr`). Each GPU has a thread for
//! them, because drivers call back while holding locks of their own.

use std::fmt;
use std::hint;
use std::mem;
use std::panic::AssertUnwindSafe;
use std::panic::catch_unwind;
use std::sync::Arc;
use std::sync::Condvar;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::thread;
use std::thread::JoinHandle;
use std::time::Duration;
use std::time::Instant;

use tracing::warn;

use super::driver::DriverError;
use super::lane::Lane;
use super::lane::Ticket;
use crate::trace::targets;

/// Called when work has ended, or with the error if it has failed.
type Callback = Box<dyn FnOnce(Result<(), DriverError>) + Send>;

/// How long the thread spins: usually it waits for a small copy.
const SPIN: Duration = Duration::from_micros(50);

/// How long it sleeps between polls: a fraction of the time since something last ended, so that
/// long waits become only slightly longer and no processor is kept busy. It never waits for one
/// stream: another may finish earlier, or there may be more to watch.
const PAUSE_MIN: Duration = Duration::from_micros(20);
const PAUSE_MAX: Duration = Duration::from_micros(500);
const PAUSE_PART: u32 = 16;

/// The thread, and the work that it waits for.
pub(super) struct Watcher {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    inbox: Mutex<Inbox>,
    has_mail: Condvar,
}

#[derive(Default)]
struct Inbox {
    watched: Vec<Watched>,
    is_closed: bool,
}

struct Watched {
    lane: Arc<Lane>,
    ticket: Ticket,
    callback: Callback,
}

impl fmt::Debug for Watcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watcher")
    }
}

impl Watcher {
    /// Starts the thread, which ends when this is dropped and all callbacks have been called.
    ///
    /// # Errors
    /// If the system cannot start a thread.
    pub(super) fn start(name: &str) -> std::io::Result<Self> {
        let shared = Arc::<Shared>::default();
        let thread = thread::Builder::new().name(name.to_owned()).spawn({
            let shared = Arc::clone(&shared);
            move || shared.work()
        })?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    /// Calls back once, when a stream has done its work up to this ticket.
    pub(super) fn then(&self, lane: &Arc<Lane>, ticket: Ticket, callback: Callback) {
        self.shared.inbox().watched.push(Watched {
            lane: Arc::clone(lane),
            ticket,
            callback,
        });
        self.shared.has_mail.notify_one();
    }
}

impl Drop for Watcher {
    /// Waits until all callbacks have been called, unless this is the thread itself: a callback may
    /// have held the last device.
    fn drop(&mut self) {
        self.shared.inbox().is_closed = true;
        self.shared.has_mail.notify_one();
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != thread::current().id()
        {
            // The thread panics only on bugs of our own, and has reported them.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        // Nothing panics under the lock.
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        let mut watched: Vec<Watched> = Vec::new();
        let mut since = Instant::now();
        loop {
            {
                let mut inbox = self.inbox();
                while watched.is_empty() && inbox.watched.is_empty() {
                    if inbox.is_closed {
                        return;
                    }
                    let woken = self.has_mail.wait(inbox);
                    inbox = woken.unwrap_or_else(PoisonError::into_inner);
                    since = Instant::now();
                }
                watched.append(&mut inbox.watched);
            }
            if call_back_ended(&mut watched) {
                since = Instant::now();
                continue;
            }
            let waited = since.elapsed();
            if waited < SPIN {
                hint::spin_loop();
                continue;
            }
            let inbox = self.inbox();
            if inbox.watched.is_empty() {
                let pause = (waited / PAUSE_PART).clamp(PAUSE_MIN, PAUSE_MAX);
                let woken = self.has_mail.wait_timeout(inbox, pause);
                let (inbox, _) = woken.unwrap_or_else(PoisonError::into_inner);
                if !inbox.watched.is_empty() {
                    since = Instant::now();
                }
            }
        }
    }
}

/// Calls back for work that has ended, and returns whether any has.
fn call_back_ended(watched: &mut Vec<Watched>) -> bool {
    let mut any = false;
    for one in mem::take(watched) {
        // Later work of a stream ends later: each stream is polled once, unless its first watched
        // work was queued last.
        let is_behind = watched
            .iter()
            .any(|other| Arc::ptr_eq(&other.lane, &one.lane) && other.ticket <= one.ticket);
        if is_behind && !one.lane.has_done(one.ticket) {
            watched.push(one);
            continue;
        }
        let ended = match one.lane.ask(one.ticket) {
            Ok(false) => {
                watched.push(one);
                continue;
            }
            Ok(true) => Ok(()),
            Err(error) => Err(error),
        };
        any = true;
        // An app's callback may panic; others still wait to be called.
        let called = catch_unwind(AssertUnwindSafe(|| (one.callback)(ended)));
        if called.is_err() {
            warn!(target: targets::DEVICE, "a callback at the end of a copy panicked");
        }
    }
    any
}
