//! Cancellation.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::panic::catch_unwind;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::sync::Weak;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;

use tracing::warn;

use super::kernel_creation::panic_message;
use crate::trace::targets;

/// Cancels runs, and the waits of asynchronous kernels, from another thread. Clones share one
/// token.
#[derive(Clone, Default)]
pub struct CancelToken(Arc<Shared>);

#[derive(Default)]
struct Shared {
    is_cancelled: AtomicBool,
    callbacks: Mutex<Callbacks>,
}

#[derive(Default)]
struct Callbacks {
    next: u64,
    waiting: BTreeMap<u64, Box<dyn FnOnce() + Send>>,
}

/// A registered callback; dropping this removes it.
#[must_use = "dropping it takes the callback back"]
pub struct OnCancel {
    token: Weak<Shared>,
    number: u64,
}

impl CancelToken {
    /// Creates a token that is not cancelled.
    pub fn new() -> Self {
        Self::default()
    }

    /// Cancels the token for good, and calls the registered callbacks.
    pub fn cancel(&self) {
        self.0.is_cancelled.store(true, Ordering::Release);
        let waiting = std::mem::take(&mut self.0.lock().waiting);
        // Outside the lock: a callback may ask the token.
        for callback in waiting.into_values() {
            // One that panics must not keep the others from hearing.
            if let Err(panic) = catch_unwind(AssertUnwindSafe(callback)) {
                let message = panic_message(&*panic);
                warn!(target: targets::EXECUTE, message, "a callback of a cancellation panicked");
            }
        }
    }

    /// Returns whether the token is cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.0.is_cancelled.load(Ordering::Acquire)
    }

    /// Registers `callback`, which is called once when the token is cancelled, on the thread that
    /// cancels it; at once if it is already cancelled. Dropping the returned value removes the
    /// callback, unless it has begun.
    pub fn on_cancel(&self, callback: impl FnOnce() + Send + 'static) -> OnCancel {
        let mut callbacks = self.0.lock();
        let number = callbacks.next;
        callbacks.next += 1;
        // Looked at under the lock: `cancel` sets the flag before it takes the callbacks.
        if self.is_cancelled() {
            drop(callbacks);
            callback();
        } else {
            callbacks.waiting.insert(number, Box::new(callback));
        }
        OnCancel {
            token: Arc::downgrade(&self.0),
            number,
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Callbacks> {
        self.callbacks
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for OnCancel {
    fn drop(&mut self) {
        if let Some(token) = self.token.upgrade() {
            let taken_back = token.lock().waiting.remove(&self.number);
            // Outside the lock: what the callback holds may hold a token.
            drop(taken_back);
        }
    }
}

impl fmt::Debug for CancelToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CancelToken")
            .field("is_cancelled", &self.is_cancelled())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for OnCancel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OnCancel").field(&self.number).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    fn counted(token: &CancelToken) -> (Arc<AtomicU32>, OnCancel) {
        let count = Arc::new(AtomicU32::new(0));
        let shared = Arc::clone(&count);
        let waiting = token.on_cancel(move || {
            shared.fetch_add(1, Ordering::Relaxed);
        });
        (count, waiting)
    }

    #[test]
    fn callbacks_are_called_once() {
        let token = CancelToken::new();
        let (count, _waiting) = counted(&token);
        assert_eq!(count.load(Ordering::Relaxed), 0);
        token.cancel();
        token.clone().cancel();
        assert_eq!(count.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn one_that_panics_does_not_keep_the_others_from_hearing() {
        let token = CancelToken::new();
        let _panics = token.on_cancel(|| panic!("out of cheese"));
        let (count, _waiting) = counted(&token);
        token.cancel();
        assert_eq!(count.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn who_comes_late_is_called_at_once() {
        let token = CancelToken::new();
        token.cancel();
        let (count, _waiting) = counted(&token);
        assert_eq!(count.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn what_is_taken_back_is_not_called() {
        let token = CancelToken::new();
        let (count, waiting) = counted(&token);
        drop(waiting);
        token.cancel();
        assert_eq!(count.load(Ordering::Relaxed), 0);
        assert_eq!(Arc::strong_count(&count), 1);
    }
}
