//! The queue to the thread that gives a device its commands, and the order in which the device may
//! execute them.
//!
//! Any thread sends commands. The device's thread passes them to the driver. So does a thread that
//! waits for the end of a command anyway, or that would otherwise sleep, or wake the device's
//! thread for little work ([`super::lane`]). A driver may execute a command inside the call that
//! enqueues it (PoCL's `basic` does); this does not block the executor's threads. Commands wait for
//! each other through their buffers: a reader waits for the last writer, a writer waits for all
//! earlier commands. This also covers a buffer that returns to the pool while commands that use it
//! are still pending.

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::thread;
use std::thread::JoinHandle;

use smallvec::SmallVec;

use super::buffer::RawBuffer;
use super::command_counter::CommandCounter;
use super::ends::Ends;
use super::ffi::Code;
use super::ffi::Context;
use super::ffi::Mapped;
use super::ffi::Queue;
use super::ffi::is_driver_thread;
use super::lane::Lane;
use super::lane::Progress;
use super::lane::Wakes;
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
    shared: Arc<Shared>,
    lane: Arc<Lane<Worker>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Stream {
    /// Waits for the thread, and hence for the device's work: a process that exits unloads the
    /// driver, which must be idle by then. A thread of the driver, or this thread itself, must not
    /// wait, because it would wait for itself. The same may happen within a command of another
    /// device: this device may copy from that one, and so wait for that very command.
    fn drop(&mut self) {
        self.lane.close();
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

/// State shared by both ends of the queue.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) device: String,
    /// Counts the commands that the driver has received.
    pub(super) given: CommandCounter,
    /// The device's record of ends.
    ends: Ends,
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
            ends: Ends::default(),
            lost: Mutex::default(),
        });
        let worker = Worker::new(context, queue, quirks, Arc::clone(&shared));
        let lane = Arc::new(Lane::new(worker, Arc::clone(&shared)));
        let name = device.rsplit('/').next().unwrap_or(device).to_owned();
        let thread = thread::Builder::new()
            .name(name)
            .spawn({
                let lane = Arc::clone(&lane);
                move || {
                    let _at_work = AtWork::begin();
                    lane.work();
                }
            })
            .map_err(|error| DeviceError::Failed {
                device: device.to_owned(),
                message: format!("cannot start the thread for its commands: {error}"),
            })?;
        Ok(Self {
            shared,
            lane,
            thread: Some(thread),
        })
    }

    /// Sends a command to the device.
    ///
    /// # Errors
    /// [`DeviceError::Lost`] if the device no longer responds.
    pub(super) fn send(&self, command: Command) -> Result<(), DeviceError> {
        self.shared.check()?;
        self.send_anyway(command);
        Ok(())
    }

    /// The same for a command that takes no longer than waking the thread: it is executed at once,
    /// or as by [`Self::send_later`].
    ///
    /// # Errors
    /// As [`Self::send`].
    pub(super) fn send_small(&self, command: Command) -> Result<(), DeviceError> {
        self.shared.check()?;
        // A driver that calls back may hold locks that its commands need.
        let left = if is_driver_thread() {
            Some(command)
        } else {
            let _at_work = AtWork::begin();
            self.lane.take_at_once(command)
        };
        if let Some(command) = left {
            self.lane.post(command, Wakes::Later);
        }
        Ok(())
    }

    /// The same for a command after which the caller sends more, waits, or calls [`Self::flush`].
    ///
    /// # Errors
    /// As [`Self::send`].
    pub(super) fn send_later(&self, command: Command) -> Result<(), DeviceError> {
        self.shared.check()?;
        self.lane.post(command, Wakes::Later);
        Ok(())
    }

    /// Makes sure that all commands are on their way to the driver.
    pub(super) fn flush(&self) {
        self.lane.wake();
    }

    /// The same for a caller that would otherwise sleep: it executes them until `is_wanted`.
    pub(super) fn assist(&self, is_wanted: &dyn Fn() -> bool) {
        // As in `send_small`.
        if is_driver_thread() {
            return self.flush();
        }
        let _at_work = AtWork::begin();
        self.lane.assist(is_wanted);
    }

    /// The same for a command whose end the caller waits for. The caller executes all commands up
    /// to it: two threads would only wake each other.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub(super) fn execute(&self, command: Command) -> Result<(), DeviceError> {
        self.shared.check()?;
        self.execute_now(command);
        Ok(())
    }

    fn execute_now(&self, command: Command) {
        let _at_work = AtWork::begin();
        let number = self.lane.post(command, Wakes::Never);
        self.lane.execute_until(number);
    }

    /// Like [`Self::send_later`], but returns the command on failure.
    pub(super) fn try_send_later(
        &self,
        command: Command,
    ) -> Result<(), (Box<Command>, DeviceError)> {
        match self.shared.check() {
            Ok(()) => {
                self.lane.post(command, Wakes::Later);
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
        match self.shared.check() {
            Ok(()) => {
                self.execute_now(command);
                let _at_work = AtWork::begin();
                self.lane.finish_all();
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
        (Arc::clone(&self.shared), self.lane.n_sent())
    }
}

impl Progress for Shared {
    fn has_done(&self, n: u64) -> bool {
        self.given.has_done(n)
    }

    fn is_in_flight(&self) -> bool {
        !self.ends.is_empty()
    }

    fn note_death(&self) {
        let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        lost.get_or_insert_with(|| DeviceError::Failed {
            device: self.device.clone(),
            message: "a panic (a bug) has ended its work; build a new session".to_owned(),
        });
    }

    fn release(&self) {
        self.given.release();
    }
}

impl Shared {
    /// Returns the commands that may not have ended, for threads that cannot wait for the worker.
    pub(super) fn ends(&self) -> Ends {
        self.ends.clone()
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
