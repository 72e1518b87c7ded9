//! The queue to the thread that gives a device its commands, and the order in which the device may
//! execute them.
//!
//! Any thread sends commands. The device's thread passes them to the driver. So does a thread that
//! waits for the end of a command anyway, or that would otherwise sleep, or wake the device's
//! thread for little work. A driver may execute a command inside the call that enqueues it (PoCL's
//! `basic` does); this does not block the executor's threads. Commands wait for each other through
//! their buffers: a reader waits for the last writer, a writer waits for all earlier commands. This
//! also covers a buffer that returns to the pool while commands that use it are still pending.

use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt;
use std::hint;
use std::mem;
use std::sync::Arc;
use std::sync::Condvar;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering;
use std::thread;
use std::thread::JoinHandle;
use std::time::Duration;
use std::time::Instant;

use smallvec::SmallVec;

use super::buffer::RawBuffer;
use super::command_counter::CommandCounter;
use super::ends::Ends;
use super::ffi::Code;
use super::ffi::Context;
use super::ffi::Mapped;
use super::ffi::Queue;
use super::ffi::is_driver_thread;
use super::pocl::Quirks;
use super::program::SyclFunction;
use super::worker::Worker;
use crate::device::DeviceError;
use crate::device::LaunchSite;
use crate::device::RunNumber;
use crate::tensor::Buffer;
use crate::tensor::Tensor;

/// An argument on its way to the driver.
#[derive(Debug)]
pub(super) enum Argument {
    Read(Arc<RawBuffer>),
    Write(Arc<RawBuffer>),
    Scalar([u8; 4]),
    Long([u8; 8]),
    Bytes(Box<[u8]>),
    Local(usize),
    /// Two arguments: the fault flag of a function that checks its inputs, and the error for wrong
    /// inputs.
    Fault(Arc<str>),
}

/// Receives the copy of a tensor, or the error.
pub(super) type Copied = Box<dyn FnOnce(Result<Arrived, DeviceError>) + Send>;

/// Where the bytes of a tensor have arrived.
#[derive(Debug)]
pub(super) enum Arrived {
    /// In the host's own memory.
    Copied(Buffer),
    /// In the device's memory, which the host reads.
    Mapped(Mapped),
}

/// A tensor of another device, on its way to this one.
#[derive(Debug)]
pub(super) struct Source {
    /// The other device's stream, and the number of the command that writes the tensor.
    pub(super) after: (Arc<Shared>, u64),
    /// Keeps the buffer out of the other device's pool until that device knows its reader:
    /// commands are ordered within one device only.
    pub(super) owner: Buffer,
}

/// A command for the device.
pub(super) enum Command {
    Launch {
        site: Arc<LaunchSite>,
        step: Option<RunNumber>,
        function: Arc<SyclFunction>,
        groups: [usize; 3],
        group_size: [usize; 3],
        arguments: SmallVec<[Argument; 8]>,
    },
    /// Copies the bytes of a tensor that the host can read to the start of a buffer.
    Write { from: Tensor, to: Arc<RawBuffer> },
    Zero {
        of: Arc<RawBuffer>,
        len_bytes: usize,
    },
    Copy {
        from: Arc<RawBuffer>,
        to: Arc<RawBuffer>,
        len_bytes: usize,
        /// The source, if it is another device's tensor.
        source: Option<Source>,
    },
    /// Fills host memory from the start of a buffer.
    Read {
        from: Arc<RawBuffer>,
        to: Buffer,
        done: Copied,
    },
    Map {
        of: Arc<RawBuffer>,
        len_bytes: usize,
        done: Copied,
    },
    Unmap {
        of: Arc<RawBuffer>,
        mapped: Mapped,
        /// The tensor whose bytes the host has read: its buffer must not be reused before that.
        owner: Buffer,
    },
    /// Waits for all earlier commands; reports the failures of one run, or of any.
    Finish {
        step: Option<RunNumber>,
        done: Box<dyn FnOnce(Result<(), DeviceError>) + Send>,
    },
}

/// The queue to a device's thread.
#[derive(Debug)]
pub(super) struct Stream {
    lane: Arc<Lane>,
    thread: Option<JoinHandle<()>>,
}

/// Interval at which the idle thread polls commands in flight: some drivers do not report that a
/// command has failed.
const LOOK: Duration = Duration::from_millis(100);

/// Number of commands for which the thread is not woken as long as their sender sends more. Waking
/// takes longer than sending them, and a sender that waits executes them itself.
const LATER_MAX: usize = 8;

/// How long the thread spins for the next command: waking it takes about as long.
const SPIN: Duration = Duration::from_micros(10);

/// Holds commands until the driver receives them, from the thread or from another thread that waits
/// for them anyway.
#[derive(Debug)]
struct Lane {
    shared: Arc<Shared>,
    inbox: Mutex<Inbox>,
    has_mail: Condvar,
    /// Number of commands in the inbox, for spinning.
    n_waiting: AtomicUsize,
    /// The holder of this lock takes commands out of the inbox and executes them in order.
    worker: Mutex<Worker>,
    /// The worker's record of ends.
    ends: Ends,
}

/// When a sleeping thread is woken for a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wakes {
    /// The sender executes the command.
    Never,
    /// After [`LATER_MAX`] commands, by [`Stream::flush`], or by another command.
    Later,
    Now,
}

#[derive(Debug, Default)]
struct Inbox {
    commands: Vec<Command>,
    /// Number of commands sent so far.
    n_sent: u64,
    /// No more commands will be sent.
    is_closed: bool,
    /// A panic has ended the execution of commands.
    is_dead: bool,
    /// The thread must be woken.
    is_asleep: bool,
}

impl Drop for Stream {
    /// Waits for the thread, and hence for the device's work: a process that exits unloads the
    /// driver, which must be idle by then. A thread of the driver, or this thread itself, must not
    /// wait, because it would wait for itself. The same may happen within a command of another
    /// device: this device may copy from that one, and so wait for that very command.
    fn drop(&mut self) {
        self.lane.inbox().is_closed = true;
        self.lane.has_mail.notify_one();
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != thread::current().id()
            && !is_driver_thread()
            && !IS_AT_WORK.get()
        {
            // The thread panics only on bugs of our own, and has reported them.
            let _ = thread.join();
        }
    }
}

impl Lane {
    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        // Nothing panics under the lock.
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a command into the inbox, and returns its number.
    fn post(&self, command: Command, wakes: Wakes) -> u64 {
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
        let wakes = match wakes {
            Wakes::Never => false,
            Wakes::Later => n_waiting >= LATER_MAX,
            Wakes::Now => true,
        };
        let wakes = wakes && inbox.is_asleep;
        drop(inbox);
        if wakes {
            self.has_mail.notify_one();
        }
        number
    }

    /// Wakes the thread if it sleeps although there are commands.
    fn wake(&self) {
        if self.n_waiting.load(Ordering::Relaxed) == 0 {
            return;
        }
        let inbox = self.inbox();
        let wakes = inbox.is_asleep && !inbox.commands.is_empty();
        drop(inbox);
        if wakes {
            self.has_mail.notify_one();
        }
    }

    /// Executes a command at once if the thread sleeps and no other thread executes; otherwise
    /// returns it.
    fn take_at_once(&self, command: Command) -> Option<Command> {
        // A driver that calls back may hold locks that this needs.
        if is_driver_thread() {
            return Some(command);
        }
        let _dead = DeadIfPanicking(self);
        let _at_work = AtWork::begin();
        let Ok(mut worker) = self.worker.try_lock() else {
            return Some(command);
        };
        {
            let mut inbox = self.inbox();
            if !inbox.is_asleep || inbox.is_dead || !inbox.commands.is_empty() {
                return Some(command);
            }
            // Every command sent from here on waits for the worker.
            inbox.n_sent += 1;
        }
        worker.take(command);
        worker.flush();
        None
    }

    /// Executes commands in place of the thread until there are none or `is_wanted`.
    fn assist(&self, is_wanted: &dyn Fn() -> bool) {
        // As in `take_at_once`.
        if is_driver_thread() {
            return self.wake();
        }
        let _dead = DeadIfPanicking(self);
        let _at_work = AtWork::begin();
        let Ok(mut worker) = self.worker.try_lock() else {
            return self.wake();
        };
        let mut commands = VecDeque::new();
        while !is_wanted() {
            if commands.is_empty() {
                let mut inbox = self.inbox();
                commands.extend(inbox.commands.drain(..));
                self.n_waiting.store(0, Ordering::Relaxed);
            }
            match commands.pop_front() {
                Some(command) => worker.take(command),
                None => break,
            }
        }
        worker.flush();
        if !commands.is_empty() {
            // While no other thread can execute: later commands must not overtake these.
            let mut inbox = self.inbox();
            commands.extend(inbox.commands.drain(..));
            inbox.commands.extend(commands);
            self.n_waiting
                .store(inbox.commands.len(), Ordering::Relaxed);
        }
        drop(worker);
        self.wake();
    }

    /// Runs the thread until the inbox is empty and closed.
    fn work(&self) {
        while self.wait() {
            self.execute_until(u64::MAX);
        }
        self.at_work(Worker::finish_all);
    }

    /// Runs `work` as the thread that executes commands.
    fn at_work(&self, work: impl FnOnce(&mut Worker)) {
        let _dead = DeadIfPanicking(self);
        let _at_work = AtWork::begin();
        // A worker that has panicked has only lost the command it was executing.
        let mut worker = self.worker.lock().unwrap_or_else(PoisonError::into_inner);
        work(&mut worker);
    }

    /// Waits until there are commands (`true`) or the queue is closed (`false`).
    fn wait(&self) -> bool {
        let started = Instant::now();
        while started.elapsed() < SPIN {
            if self.n_waiting.load(Ordering::Relaxed) > 0 {
                return true;
            }
            hint::spin_loop();
        }
        let mut inbox = self.inbox();
        while inbox.commands.is_empty() && !inbox.is_closed {
            inbox.is_asleep = true;
            if self.ends.is_empty() {
                let woken = self.has_mail.wait(inbox);
                inbox = woken.unwrap_or_else(PoisonError::into_inner);
                inbox.is_asleep = false;
                continue;
            }
            let woken = self.has_mail.wait_timeout(inbox, LOOK);
            let (mut woken, waited) = woken.unwrap_or_else(PoisonError::into_inner);
            woken.is_asleep = false;
            if waited.timed_out() {
                drop(woken);
                self.at_work(Worker::look_at_ends);
                woken = self.inbox();
            }
            inbox = woken;
        }
        !inbox.commands.is_empty()
    }

    /// Executes commands until there are none, or until `n_done` are done.
    fn execute_until(&self, n_done: u64) {
        self.at_work(|worker| self.execute_all(worker, n_done));
    }

    fn execute_all(&self, worker: &mut Worker, n_done: u64) {
        let mut commands = Vec::new();
        loop {
            {
                let mut inbox = self.inbox();
                mem::swap(&mut inbox.commands, &mut commands);
                self.n_waiting.store(0, Ordering::Relaxed);
            }
            for command in commands.drain(..) {
                worker.take(command);
            }
            let is_empty = self.n_waiting.load(Ordering::Relaxed) == 0;
            if is_empty || self.shared.given.has_done(n_done) {
                worker.flush();
                // The sender of further commands has woken the thread, or executes them itself.
                return;
            }
        }
    }
}

thread_local! {
    static IS_AT_WORK: Cell<bool> = const { Cell::new(false) };
}

/// While this exists, its thread executes commands of a device, or waits to do so.
struct AtWork {
    was: bool,
}

impl AtWork {
    fn begin() -> Self {
        Self {
            was: IS_AT_WORK.replace(true),
        }
    }
}

impl Drop for AtWork {
    fn drop(&mut self) {
        IS_AT_WORK.set(self.was);
    }
}

/// Ends the waits of others if the executing thread panics.
struct DeadIfPanicking<'a>(&'a Lane);

impl Drop for DeadIfPanicking<'_> {
    fn drop(&mut self) {
        if !thread::panicking() {
            return;
        }
        self.0.shared.note_death();
        let commands = {
            let mut inbox = self.0.inbox();
            inbox.is_dead = true;
            mem::take(&mut inbox.commands)
        };
        self.0.shared.given.release();
        drop(commands);
    }
}

/// State shared by both ends of the queue.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) device: String,
    /// Counts the commands that the driver has received.
    pub(super) given: CommandCounter,
    /// Set once the device no longer responds, or its thread has ended.
    lost: Mutex<Option<DeviceError>>,
}

impl Stream {
    /// Starts the thread, which ends when this is dropped and all commands are done.
    pub(super) fn start(
        device: &str,
        context: Arc<Context>,
        queue: Queue,
        quirks: Quirks,
    ) -> Result<Self, DeviceError> {
        let shared = Arc::new(Shared {
            device: device.to_owned(),
            given: CommandCounter::default(),
            lost: Mutex::default(),
        });
        let worker = Worker::new(context, queue, quirks, Arc::clone(&shared));
        let lane = Arc::new(Lane {
            shared,
            inbox: Mutex::default(),
            has_mail: Condvar::new(),
            n_waiting: AtomicUsize::new(0),
            ends: worker.ends(),
            worker: Mutex::new(worker),
        });
        let name = device.rsplit('/').next().unwrap_or(device).to_owned();
        let thread = thread::Builder::new()
            .name(name)
            .spawn({
                let lane = Arc::clone(&lane);
                move || lane.work()
            })
            .map_err(|error| DeviceError::Failed {
                device: device.to_owned(),
                message: format!("cannot start the thread for its commands: {error}"),
            })?;
        Ok(Self {
            lane,
            thread: Some(thread),
        })
    }

    /// Sends a command to the device.
    ///
    /// # Errors
    /// [`DeviceError::Lost`] if the device no longer responds.
    pub(super) fn send(&self, command: Command) -> Result<(), DeviceError> {
        self.try_send(command).map_err(|(_, lost)| lost)
    }

    /// The same for a command that takes no longer than waking the thread: it is executed at once,
    /// or as by [`Self::send_later`].
    ///
    /// # Errors
    /// As [`Self::send`].
    pub(super) fn send_small(&self, command: Command) -> Result<(), DeviceError> {
        self.lane.shared.check()?;
        if let Some(command) = self.lane.take_at_once(command) {
            self.lane.post(command, Wakes::Later);
        }
        Ok(())
    }

    /// The same for a command after which the caller sends more, waits, or calls [`Self::flush`].
    ///
    /// # Errors
    /// As [`Self::send`].
    pub(super) fn send_later(&self, command: Command) -> Result<(), DeviceError> {
        self.lane.shared.check()?;
        self.lane.post(command, Wakes::Later);
        Ok(())
    }

    /// Makes sure that all commands are on their way to the driver.
    pub(super) fn flush(&self) {
        self.lane.wake();
    }

    /// The same for a caller that would otherwise sleep: it executes them until `is_wanted`.
    pub(super) fn assist(&self, is_wanted: &dyn Fn() -> bool) {
        self.lane.assist(is_wanted);
    }

    /// The same for a command whose end the caller waits for. The caller executes all commands up
    /// to it: two threads would only wake each other.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub(super) fn execute(&self, command: Command) -> Result<(), DeviceError> {
        self.lane.shared.check()?;
        let number = self.lane.post(command, Wakes::Never);
        self.lane.execute_until(number);
        Ok(())
    }

    /// Like [`Self::send`], but returns the command on failure.
    pub(super) fn try_send(&self, command: Command) -> Result<(), (Box<Command>, DeviceError)> {
        match self.lane.shared.check() {
            Ok(()) => {
                self.send_anyway(command);
                Ok(())
            }
            Err(lost) => Err((Box::new(command), lost)),
        }
    }

    /// Like [`Self::execute`], but returns the command on failure, for a command that does not wait
    /// for the device itself. Returns when the device has finished all commands, with this thread's
    /// help if the driver needs it.
    pub(super) fn try_execute_and_finish(
        &self,
        command: Command,
    ) -> Result<(), (Box<Command>, DeviceError)> {
        match self.lane.shared.check() {
            Ok(()) => {
                let number = self.lane.post(command, Wakes::Never);
                self.lane.execute_until(number);
                self.lane.at_work(Worker::finish_all);
                Ok(())
            }
            Err(lost) => Err((Box::new(command), lost)),
        }
    }

    /// Like [`Self::send`], for commands that must be handled even if the device does not respond:
    /// drops, and waits for an end.
    pub(super) fn send_anyway(&self, command: Command) {
        self.lane.post(command, Wakes::Now);
    }

    /// Returns the number of commands sent so far, for a command of another device that must come
    /// after them.
    pub(super) fn now(&self) -> (Arc<Shared>, u64) {
        // The other device waits until the driver has them.
        self.flush();
        (Arc::clone(&self.lane.shared), self.lane.inbox().n_sent)
    }
}

impl Shared {
    /// Records that the thread that executes commands has panicked.
    fn note_death(&self) {
        let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        lost.get_or_insert_with(|| DeviceError::Failed {
            device: self.device.clone(),
            message: "a panic (a bug) has ended its work; build a new session".to_owned(),
        });
    }

    fn check(&self) -> Result<(), DeviceError> {
        let lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        lost.clone().map_or(Ok(()), Err)
    }

    /// Converts a driver's code to an error.
    pub(super) fn error(&self, site: Option<&LaunchSite>, doing: &str, code: Code) -> DeviceError {
        let error = self.describe(site, doing, code);
        if matches!(error, DeviceError::Lost { .. }) {
            let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
            lost.get_or_insert_with(|| error.clone());
        }
        error
    }

    fn describe(&self, site: Option<&LaunchSite>, doing: &str, code: Code) -> DeviceError {
        let device = self.device.clone();
        let message = format!("{doing}: {code}");
        if code.is_loss() {
            let message = match site {
                Some(site) => format!("node `{}` (op {}): {message}", site.node, site.op),
                None => message,
            };
            return DeviceError::Lost { device, message };
        }
        match site {
            Some(site) => DeviceError::Work {
                device,
                node: site.node.clone(),
                op: site.op.clone(),
                message,
            },
            None => DeviceError::Failed { device, message },
        }
    }
}

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Launch { .. } => "Launch",
            Self::Write { .. } => "Write",
            Self::Zero { .. } => "Zero",
            Self::Copy { .. } => "Copy",
            Self::Read { .. } => "Read",
            Self::Map { .. } => "Map",
            Self::Unmap { .. } => "Unmap",
            Self::Finish { .. } => "Finish",
        })
    }
}
