//! Counts the commands of a device that its driver has received.

use super::sync::AtomicU64;
use super::sync::Condvar;
use super::sync::Mutex;
use super::sync::Ordering;
use super::sync::PoisonError;
use super::sync::between_write_and_read;

/// Counts commands in the order in which the driver receives them. If two devices copy from each
/// other, each waits only for earlier commands of the other, never for the other's waits.
#[derive(Debug, Default)]
pub(super) struct CommandCounter {
    n_done: AtomicU64,
    /// Number of waiting threads. It is 0 most of the time: counting must stay cheap.
    n_waiting: AtomicU64,
    gate: Mutex<()>,
    has_counted: Condvar,
}

impl CommandCounter {
    /// Counts one more command. Only one thread counts at a time.
    pub(super) fn count(&self) {
        // Both threads use both counters in the same order: either this thread sees the waiter, or
        // the waiter sees this number.
        self.n_done.fetch_add(1, Ordering::SeqCst);
        between_write_and_read();
        if self.n_waiting.load(Ordering::SeqCst) > 0 {
            drop(self.gate.lock().unwrap_or_else(PoisonError::into_inner));
            self.has_counted.notify_all();
        }
    }

    /// Returns whether `n` commands are done.
    pub(super) fn has_done(&self, n: u64) -> bool {
        self.n_done.load(Ordering::SeqCst) >= n
    }

    /// Ends all waits: the driver receives no more commands.
    pub(super) fn release(&self) {
        self.n_done.fetch_max(u64::MAX / 2, Ordering::SeqCst);
        drop(self.gate.lock().unwrap_or_else(PoisonError::into_inner));
        self.has_counted.notify_all();
    }

    /// Waits until `n` commands are done.
    pub(super) fn wait(&self, n: u64) {
        if self.has_done(n) {
            return;
        }
        let mut gate = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
        self.n_waiting.fetch_add(1, Ordering::SeqCst);
        between_write_and_read();
        while !self.has_done(n) {
            let woken = self.has_counted.wait(gate);
            gate = woken.unwrap_or_else(PoisonError::into_inner);
        }
        drop(gate);
        self.n_waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;

    use super::*;

    #[test]
    fn a_waiter_returns_when_its_number_is_reached() {
        const N: u64 = 2000;
        let counter = Arc::new(CommandCounter::default());
        let waiting: Vec<_> = (0..4)
            .map(|thread| {
                let counter = Arc::clone(&counter);
                thread::spawn(move || {
                    for n in (1..=N).filter(|n| n % 4 == thread) {
                        counter.wait(n);
                        assert!(counter.n_done.load(Ordering::SeqCst) >= n);
                    }
                })
            })
            .collect();
        for _ in 0..N {
            counter.count();
            thread::yield_now();
        }
        for thread in waiting {
            thread.join().expect("it does not panic");
        }
        counter.wait(N);
    }

    #[test]
    fn release_ends_all_waits() {
        let counter = Arc::new(CommandCounter::default());
        let waiting = thread::spawn({
            let counter = Arc::clone(&counter);
            move || counter.wait(1)
        });
        counter.release();
        waiting.join().expect("it does not panic");
        counter.wait(2);
    }
}
