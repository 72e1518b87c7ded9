//! Commands on their way to what executes them, in the order in which they were sent.
//!
//! Any thread posts commands, and only the holder of one lock executes them. This is a thread of
//! the lane's own ([`Lane::work`]), or a thread that waits for a command anyway
//! ([`Lane::execute_until`]), or one that would otherwise sleep ([`Lane::assist`]), or a sender
//! whose command takes no longer than waking another thread ([`Lane::take_at_once`]).
//!
//! A model checker runs this file under every order of its steps (`tests/loom`).

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::sync::AtomicBool;
use super::sync::AtomicUsize;
use super::sync::Condvar;
use super::sync::Mutex;
use super::sync::MutexGuard;
use super::sync::Ordering;
use super::sync::PoisonError;
use super::sync::spin_until;

/// Interval at which the idle thread polls commands in flight: some drivers do not report that a
/// command has failed.
const LOOK: Duration = Duration::from_millis(100);

/// Number of commands for which the thread is not called as long as their sender sends more. Waking
/// takes longer than sending them, and a sender that waits executes them itself. Nor does a thread
/// that is awake take them: short runs would keep it awake, and each would take several times as
/// long as on one thread.
pub(super) const LATER_MAX: usize = 8;

/// Executes commands.
pub(super) trait Execute {
    type Command;
    type Progress: Progress;

    /// Executes the next command, and counts it in its progress.
    fn take(&mut self, command: Self::Command);

    /// Starts what has been executed and not yet started: no command follows soon.
    fn flush(&mut self);

    /// Waits for the end of all executed commands.
    fn finish_all(&mut self);

    /// Looks which executed commands have ended.
    fn look_at_ends(&mut self);
}

/// What the executor has done, for threads that do not hold it.
pub(super) trait Progress {
    /// Returns whether the first `n` commands have been executed.
    fn has_done(&self, n: u64) -> bool;

    /// Returns whether the ends of executed commands must be looked for.
    fn is_in_flight(&self) -> bool;

    /// Records that a panic has ended the execution: no more commands are accepted.
    fn note_death(&self);

    /// Ends all waits for commands. The lane accepts no more by now.
    fn release(&self);
}

/// The queue of an executor's commands.
#[derive(Debug)]
pub(super) struct Lane<E: Execute> {
    progress: Arc<E::Progress>,
    inbox: Mutex<Inbox<E::Command>>,
    has_mail: Condvar,
    /// Number of commands in the inbox.
    n_waiting: AtomicUsize,
    /// Whether the thread must execute what is in the inbox. Written under the lock of the inbox,
    /// and read without it for spinning.
    is_called: AtomicBool,
    /// The holder of this lock takes commands out of the inbox and executes them in order.
    executor: Mutex<E>,
}

/// When the thread is called for a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wakes {
    /// The sender executes the command.
    Never,
    /// After [`LATER_MAX`] commands, by [`Lane::wake`], or by another command.
    Later,
    Now,
}

#[derive(Debug)]
struct Inbox<C> {
    commands: Vec<C>,
    /// Number of commands sent so far.
    n_sent: u64,
    /// No more commands will be sent.
    is_closed: bool,
    /// A panic has ended the execution of commands.
    is_dead: bool,
    /// The thread must be woken when it is called.
    is_asleep: bool,
    /// The thread sleeps for [`LOOK`] at most, and then looks at commands in flight.
    is_looking: bool,
}

impl<E: Execute> Lane<E> {
    pub(super) fn new(executor: E, progress: Arc<E::Progress>) -> Self {
        Self {
            progress,
            inbox: Mutex::new(Inbox {
                commands: Vec::new(),
                n_sent: 0,
                is_closed: false,
                is_dead: false,
                is_asleep: false,
                is_looking: false,
            }),
            has_mail: Condvar::new(),
            n_waiting: AtomicUsize::new(0),
            is_called: AtomicBool::new(false),
            executor: Mutex::new(executor),
        }
    }

    fn inbox(&self) -> MutexGuard<'_, Inbox<E::Command>> {
        // Nothing panics under the lock.
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of commands sent so far.
    pub(super) fn n_sent(&self) -> u64 {
        self.inbox().n_sent
    }

    /// Puts a command into the inbox, and returns its number.
    pub(super) fn post(&self, command: E::Command, wakes: Wakes) -> u64 {
        let mut inbox = self.inbox();
        inbox.n_sent += 1;
        let number = inbox.n_sent;
        if inbox.is_dead {
            drop(inbox);
            // Dropping its contents reports that the command is not executed, and may send another
            // command.
            drop(command);
            return number;
        }
        inbox.commands.push(command);
        let n_waiting = inbox.commands.len();
        self.n_waiting.store(n_waiting, Ordering::Relaxed);
        let calls = match wakes {
            Wakes::Never => false,
            Wakes::Later => n_waiting >= LATER_MAX,
            Wakes::Now => true,
        };
        if calls {
            self.call(inbox);
        }
        number
    }

    /// Calls the thread if there are commands.
    pub(super) fn wake(&self) {
        if self.n_waiting.load(Ordering::Relaxed) == 0 {
            return;
        }
        let inbox = self.inbox();
        if !inbox.commands.is_empty() {
            self.call(inbox);
        }
    }

    fn call(&self, inbox: MutexGuard<'_, Inbox<E::Command>>) {
        self.is_called.store(true, Ordering::Relaxed);
        let is_asleep = inbox.is_asleep;
        drop(inbox);
        if is_asleep {
            self.has_mail.notify_one();
        }
    }

    /// Appends the commands of the inbox to those that the holder of the executor will execute.
    fn take_all(&self, commands: &mut VecDeque<E::Command>) {
        let mut inbox = self.inbox();
        commands.extend(inbox.commands.drain(..));
        self.n_waiting.store(0, Ordering::Relaxed);
        self.is_called.store(false, Ordering::Relaxed);
    }

    /// Lets the thread end once all commands are executed.
    pub(super) fn close(&self) {
        self.inbox().is_closed = true;
        self.has_mail.notify_one();
    }

    /// Executes a command at once if no other thread executes and no command is before it;
    /// otherwise returns it.
    pub(super) fn take_at_once(&self, command: E::Command) -> Option<E::Command> {
        let _dead = DeadIfPanicking(self);
        let Ok(mut executor) = self.executor.try_lock() else {
            return Some(command);
        };
        {
            let mut inbox = self.inbox();
            if inbox.is_dead || !inbox.commands.is_empty() {
                return Some(command);
            }
            // Every command sent from here on waits for the executor.
            inbox.n_sent += 1;
        }
        executor.take(command);
        executor.flush();
        None
    }

    /// Executes commands in place of the thread until there are none or `is_wanted`.
    pub(super) fn assist(&self, is_wanted: &dyn Fn() -> bool) {
        let _dead = DeadIfPanicking(self);
        let Ok(mut executor) = self.executor.try_lock() else {
            return self.wake();
        };
        let mut commands = VecDeque::new();
        while !is_wanted() {
            if commands.is_empty() {
                self.take_all(&mut commands);
            }
            match commands.pop_front() {
                Some(command) => executor.take(command),
                None => break,
            }
        }
        executor.flush();
        if !commands.is_empty() {
            // While no other thread can execute: later commands must not overtake these.
            let mut inbox = self.inbox();
            commands.extend(inbox.commands.drain(..));
            inbox.commands.extend(commands);
            self.n_waiting
                .store(inbox.commands.len(), Ordering::Relaxed);
        }
        drop(executor);
        self.wake();
        self.look();
    }

    /// Makes a sleeping thread look at commands in flight, since nobody has called it for them. It
    /// then looks for some time, so that runs that follow each other wake it rarely.
    fn look(&self) {
        if !self.progress.is_in_flight() {
            return;
        }
        let mut inbox = self.inbox();
        let must_wake = inbox.is_asleep && !inbox.is_looking;
        inbox.is_looking = true;
        drop(inbox);
        if must_wake {
            self.has_mail.notify_one();
        }
    }

    /// Runs the thread until the inbox is empty and closed.
    pub(super) fn work(&self) {
        while self.wait() {
            self.execute_until(u64::MAX);
        }
        self.finish_all();
    }

    /// Executes commands until there are none, or until `n_done` are done.
    pub(super) fn execute_until(&self, n_done: u64) {
        self.with_executor(|executor| self.execute_all(executor, n_done));
    }

    /// Waits for the end of all executed commands, with this thread's help if the driver needs it.
    pub(super) fn finish_all(&self) {
        self.with_executor(E::finish_all);
    }

    fn with_executor(&self, work: impl FnOnce(&mut E)) {
        let _dead = DeadIfPanicking(self);
        // An executor that has panicked has only lost the command that it was executing.
        let executor = self.executor.lock();
        work(&mut executor.unwrap_or_else(PoisonError::into_inner));
    }

    /// Waits until the thread is called for commands (`true`) or the queue is closed and empty
    /// (`false`).
    fn wait(&self) -> bool {
        spin_until(|| self.is_called.load(Ordering::Relaxed));
        let mut inbox = self.inbox();
        while !self.is_called.load(Ordering::Relaxed) && !inbox.is_closed {
            inbox.is_asleep = true;
            inbox.is_looking |= self.progress.is_in_flight();
            if !inbox.is_looking {
                let woken = self.has_mail.wait(inbox);
                inbox = woken.unwrap_or_else(PoisonError::into_inner);
                inbox.is_asleep = false;
                continue;
            }
            let woken = self.has_mail.wait_timeout(inbox, LOOK);
            let (mut woken, waited) = woken.unwrap_or_else(PoisonError::into_inner);
            woken.is_asleep = false;
            if waited.timed_out() {
                woken.is_looking = false;
                drop(woken);
                self.with_executor(E::look_at_ends);
                woken = self.inbox();
            }
            inbox = woken;
        }
        !inbox.commands.is_empty()
    }

    fn execute_all(&self, executor: &mut E, n_done: u64) {
        let mut commands = VecDeque::new();
        loop {
            self.take_all(&mut commands);
            for command in commands.drain(..) {
                executor.take(command);
            }
            let is_empty = self.n_waiting.load(Ordering::Relaxed) == 0;
            if is_empty || self.progress.has_done(n_done) {
                executor.flush();
                // The sender of further commands has woken the thread, or executes them itself.
                return;
            }
        }
    }
}

/// Ends the waits of others if the executing thread panics.
struct DeadIfPanicking<'a, E: Execute>(&'a Lane<E>);

impl<E: Execute> Drop for DeadIfPanicking<'_, E> {
    fn drop(&mut self) {
        if !thread::panicking() {
            return;
        }
        self.0.progress.note_death();
        let commands = {
            let mut inbox = self.0.inbox();
            inbox.is_dead = true;
            self.0.is_called.store(false, Ordering::Relaxed);
            mem::take(&mut inbox.commands)
        };
        self.0.progress.release();
        drop(commands);
    }
}
