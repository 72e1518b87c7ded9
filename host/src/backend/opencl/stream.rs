//! The way to the thread that gives a device its commands, and the order in which the device may
//! execute them.
//!
//! In go commands from any thread, out go calls of the driver: from a thread of the device's, or
//! from one that waits for the end of a command anyway, or would have to wake that thread for
//! little. A driver may execute inside the call that enqueues (PoCL's `basic` does); the executor's
//! threads are not held up by that. Commands wait for each other through their buffers: who reads
//! one waits for who wrote it, who writes one waits for everybody before. That also orders the
//! lives of a buffer that goes back to the pool while commands that use it are still to be
//! executed.

use std::cell::Cell;
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
use super::program::SyclFunction;
use super::worker::Worker;
use crate::device::DeviceError;
use crate::device::LaunchSite;
use crate::device::StepNumber;
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
    /// Two: where the function says that its inputs are wrong, which is then the error.
    Fault(Arc<str>),
}

/// Takes a copy of a tensor, or why there is none.
pub(super) type Copied = Box<dyn FnOnce(Result<Arrived, DeviceError>) + Send>;

/// Where the bytes of a tensor have arrived.
#[derive(Debug)]
pub(super) enum Arrived {
    /// In memory of the host's own.
    Copied(Buffer),
    /// In the device's memory, which the host reads.
    Mapped(Mapped),
}

/// A tensor of another device, on its way to this one.
#[derive(Debug)]
pub(super) struct Source {
    /// The other device's stream, and how far it must have come: it makes what is read.
    pub(super) after: (Arc<Shared>, u64),
    /// Keeps the buffer from the other device's pool until it knows who reads it: the order of
    /// commands holds for one device only.
    pub(super) owner: Buffer,
}

/// What the device shall do.
pub(super) enum Command {
    Launch {
        site: Arc<LaunchSite>,
        step: Option<StepNumber>,
        function: Arc<SyclFunction>,
        groups: [usize; 3],
        group_size: [usize; 3],
        arguments: SmallVec<[Argument; 8]>,
    },
    /// The bytes of a tensor that the host can read, to the start of a buffer.
    Write { from: Tensor, to: Arc<RawBuffer> },
    Zero {
        of: Arc<RawBuffer>,
        len_bytes: usize,
    },
    Copy {
        from: Arc<RawBuffer>,
        to: Arc<RawBuffer>,
        len_bytes: usize,
        /// Where another device's tensor is read.
        source: Option<Source>,
    },
    /// The start of a buffer to memory of the host, as much as that holds.
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
        /// The tensor whose bytes the host has read: its buffer must not be another's before.
        owner: Buffer,
    },
    /// Wait for everything before; tell what failed in a run, or in any.
    Finish {
        step: Option<StepNumber>,
        done: Box<dyn FnOnce(Result<(), DeviceError>) + Send>,
    },
}

/// The way to a device's thread.
#[derive(Debug)]
pub(super) struct Stream {
    lane: Arc<Lane>,
    thread: Option<JoinHandle<()>>,
}

/// How often the thread looks at what is under way when there are no commands: a driver may tell
/// nobody that a command has failed.
const LOOK: Duration = Duration::from_millis(100);

/// How long the thread looks busily for the next command: waking it takes about as long.
const SPIN: Duration = Duration::from_micros(10);

/// Where commands are until they are given to the driver, and who does that: the thread, or
/// somebody who waits for them anyway.
#[derive(Debug)]
struct Lane {
    shared: Arc<Shared>,
    inbox: Mutex<Inbox>,
    has_mail: Condvar,
    /// Commands in the inbox, for who looks busily.
    n_waiting: AtomicUsize,
    /// Whoever holds this takes commands out of the inbox, and executes them in their order.
    worker: Mutex<Worker>,
    /// The worker's.
    ends: Ends,
}

#[derive(Debug, Default)]
struct Inbox {
    commands: Vec<Command>,
    /// All that have ever been sent.
    n_sent: u64,
    /// There will be no more.
    is_closed: bool,
    /// Nobody executes them any more, for somebody has died of a bug over them.
    is_dead: bool,
    /// The thread wants to be woken.
    is_asleep: bool,
}

impl Drop for Stream {
    /// Returns when the thread has ended, and with it the device's work: a process that exits takes
    /// the driver apart, which must not be at work then. On a thread of the driver's, or on
    /// this thread itself, that would wait for itself, as it might within a command of another
    /// device: this one may copy from that, and so wait until it has executed that very command.
    fn drop(&mut self) {
        self.lane.inbox().is_closed = true;
        self.lane.has_mail.notify_one();
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != thread::current().id()
            && !is_driver_thread()
            && !IS_AT_WORK.get()
        {
            // It panics on our own bugs only, and has said so.
            let _ = thread.join();
        }
    }
}

impl Lane {
    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        // Nothing panics under the lock.
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a command into the inbox, for somebody to execute, and gives its number.
    fn post(&self, command: Command, wakes: bool) -> u64 {
        let mut inbox = self.inbox();
        inbox.n_sent += 1;
        let number = inbox.n_sent;
        if inbox.is_dead {
            drop(inbox);
            // What it owns says that nothing comes of it, and may send another one.
            drop(command);
            return number;
        }
        inbox.commands.push(command);
        self.n_waiting
            .store(inbox.commands.len(), Ordering::Relaxed);
        let wakes = wakes && inbox.is_asleep;
        drop(inbox);
        if wakes {
            self.has_mail.notify_one();
        }
        number
    }

    /// Executes a command at once if the thread sleeps and nobody else is at work; gives it back
    /// otherwise.
    fn take_at_once(&self, command: Command) -> Option<Command> {
        // A driver that calls may hold locks that this would want.
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
            // Whatever is sent from here on waits for the worker.
            inbox.n_sent += 1;
        }
        worker.take(command);
        worker.flush();
        None
    }

    /// The thread's work, until there is none and will be none.
    fn work(&self) {
        while self.wait() {
            self.execute_until(u64::MAX);
        }
        self.at_work(Worker::finish_all);
    }

    /// Does something as the one who executes commands.
    fn at_work(&self, work: impl FnOnce(&mut Worker)) {
        let _dead = DeadIfPanicking(self);
        let _at_work = AtWork::begin();
        // A worker that has panicked has lost the command that it had.
        let mut worker = self.worker.lock().unwrap_or_else(PoisonError::into_inner);
        work(&mut worker);
    }

    /// Returns when there are commands, `true`, or will be none.
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

    /// Executes commands until there are none, or so many of the device's are done.
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
                // Who has posted more has woken the thread, or comes here.
                return;
            }
        }
    }
}

thread_local! {
    static IS_AT_WORK: Cell<bool> = const { Cell::new(false) };
}

/// While this lives, its thread executes commands of some device's, or waits to.
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

/// Who waits for commands hears that nobody executes them, if somebody dies over them.
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

/// What both ends know.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) device: String,
    /// Commands that have been given to the driver.
    pub(super) given: CommandCounter,
    /// Set once the device does not answer any more, or nobody gives it commands.
    lost: Mutex<Option<DeviceError>>,
}

impl Stream {
    /// `is_alone`: commands cannot wait for events of other queues. Starts the thread, which ends
    /// when this is dropped and everything is done.
    pub(super) fn start(
        device: &str,
        context: Arc<Context>,
        queue: Queue,
        is_alone: bool,
    ) -> Result<Self, DeviceError> {
        let shared = Arc::new(Shared {
            device: device.to_owned(),
            given: CommandCounter::default(),
            lost: Mutex::default(),
        });
        let worker = Worker::new(context, queue, is_alone, Arc::clone(&shared));
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
                message: format!("there is no thread for its commands: {error}"),
            })?;
        Ok(Self {
            lane,
            thread: Some(thread),
        })
    }

    /// Gives the device a command.
    ///
    /// # Errors
    /// [`DeviceError::Lost`] when it does not answer any more.
    pub(super) fn send(&self, command: Command) -> Result<(), DeviceError> {
        self.try_send(command).map_err(|(_, lost)| lost)
    }

    /// The same for a command that takes the driver no longer than waking the thread takes, which
    /// is let sleep.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub(super) fn send_small(&self, command: Command) -> Result<(), DeviceError> {
        self.lane.shared.check()?;
        if let Some(command) = self.lane.take_at_once(command) {
            self.lane.post(command, true);
        }
        Ok(())
    }

    /// The same for a command whose end the caller waits for, and so executes all commands up to
    /// it: to have them executed would take two threads that wake each other.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub(super) fn execute(&self, command: Command) -> Result<(), DeviceError> {
        self.lane.shared.check()?;
        let number = self.lane.post(command, false);
        self.lane.execute_until(number);
        Ok(())
    }

    /// The same as [`Self::send`], giving the command back.
    pub(super) fn try_send(&self, command: Command) -> Result<(), (Box<Command>, DeviceError)> {
        match self.lane.shared.check() {
            Ok(()) => {
                self.send_anyway(command);
                Ok(())
            }
            Err(lost) => Err((Box::new(command), lost)),
        }
    }

    /// The same as [`Self::execute`], giving the command back, for a command that does not wait for
    /// the device itself: returns when the device has done everything, with the help of this
    /// thread where the driver wants some.
    pub(super) fn try_execute_and_finish(
        &self,
        command: Command,
    ) -> Result<(), (Box<Command>, DeviceError)> {
        match self.lane.shared.check() {
            Ok(()) => {
                let number = self.lane.post(command, false);
                self.lane.execute_until(number);
                self.lane.at_work(Worker::finish_all);
                Ok(())
            }
            Err(lost) => Err((Box::new(command), lost)),
        }
    }

    /// The same as [`Self::send`] for what must be told also to a device that does not answer: what
    /// is dropped, and what waits for an end.
    pub(super) fn send_anyway(&self, command: Command) {
        self.lane.post(command, true);
    }

    /// What has been sent so far, for a command of another device that must come after it.
    pub(super) fn now(&self) -> (Arc<Shared>, u64) {
        (Arc::clone(&self.lane.shared), self.lane.inbox().n_sent)
    }
}

impl Shared {
    /// Whoever executes commands has died of a bug.
    fn note_death(&self) {
        let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        lost.get_or_insert_with(|| DeviceError::Failed {
            device: self.device.clone(),
            message: "a panic, which is a bug, has ended its work; build the session anew"
                .to_owned(),
        });
    }

    fn check(&self) -> Result<(), DeviceError> {
        let lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        lost.clone().map_or(Ok(()), Err)
    }

    /// The error for a code of the driver's.
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
