//! The thread that gives a device its commands, and the order in which the device may execute them.
//!
//! In go commands from any thread, out go calls of the driver from one. A driver may execute inside the call that enqueues (PoCL's
//! `basic` does); the executor's threads are not held up by that. Commands wait for each other through their buffers: who reads
//! one waits for who wrote it, who writes one waits for everybody before. That also orders the lives of a buffer that goes
//! back to the pool while commands that use it are still to be executed.

use std::collections::VecDeque;
use std::fmt;
use std::hint;
use std::mem;
use std::sync::Arc;
use std::sync::Condvar;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::mpsc;
use std::sync::mpsc::Receiver;
use std::sync::mpsc::Sender;
use std::sync::mpsc::TryRecvError;
use std::thread;
use std::thread::JoinHandle;
use std::time::Duration;
use std::time::Instant;

use smallvec::SmallVec;

use super::buffer::Failure;
use super::buffer::RawBuffer;
use super::ffi::Code;
use super::ffi::Context;
use super::ffi::Event;
use super::ffi::Mapped;
use super::ffi::Mem;
use super::ffi::Progress;
use super::ffi::Queue;
use super::ffi::Value;
use super::ffi::Waits;
use super::ffi::is_driver_thread;
use super::program::SyclFunction;
use crate::device::DeviceError;
use crate::device::LaunchSite;
use crate::device::StepNumber;
use crate::tensor::Buffer;
use crate::tensor::Tensor;

/// Commands after which the driver hears that it may begin, although more are coming.
const COMMANDS_PER_FLUSH: u32 = 64;

/// How long the thread looks busily for the next command: waking it takes about as long.
const SPIN: Duration = Duration::from_micros(10);

/// Commands whose end is not looked at before there are so many.
const IN_FLIGHT_MAX: usize = 64;

/// Failures that are kept for runs that have not asked: they have failed otherwise, and never will.
const FAILURES_MAX: usize = 1024;

/// Launches between two looks at whether one has found its inputs wrong.
const FAULTS_MAX: usize = 1024;

/// A word for each of them.
const FAULTS_BYTES: usize = 4 * FAULTS_MAX;

/// The code for a read that nobody has heard of again.
const NOTHING_READ: i32 = opencl3::error_codes::CL_OUT_OF_RESOURCES;

/// An argument on its way to the driver.
#[derive(Debug)]
pub(super) enum Argument {
    Read(Arc<RawBuffer>),
    Write(Arc<RawBuffer>),
    Word([u8; 4]),
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
    /// Keeps the buffer from the other device's pool until it knows who reads it: the order of commands holds for one device only.
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
    /// Until this is dropped.
    sender: Option<Sender<Command>>,
    thread: Option<JoinHandle<()>>,
    shared: Arc<Shared>,
}

impl Drop for Stream {
    /// Returns when the thread has ended, and with it the device's work: a process that exits takes the driver apart, which must not
    /// be at work then. On a thread of the driver's, or on this thread itself, that would wait for itself.
    fn drop(&mut self) {
        drop(self.sender.take());
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != thread::current().id()
            && !is_driver_thread()
        {
            // It panics on our own bugs only, and has said so.
            let _ = thread.join();
        }
    }
}

/// What both ends know.
#[derive(Debug)]
pub(super) struct Shared {
    device: String,
    /// Counted in the order of the commands: two devices that copy from each other wait for what was sent before, never for each
    /// other's waiting.
    n_sent: Mutex<u64>,
    n_enqueued: Mutex<u64>,
    has_enqueued: Condvar,
    /// Set once the device does not answer any more.
    lost: Mutex<Option<DeviceError>>,
}

impl Stream {
    /// `is_alone`: commands cannot wait for events of other queues. Starts the thread, which ends when the last who can send has gone and everything is done.
    pub(super) fn start(
        device: &str,
        context: Arc<Context>,
        queue: Queue,
        is_alone: bool,
    ) -> Result<Self, DeviceError> {
        let (sender, receiver) = mpsc::channel();
        let shared = Arc::new(Shared {
            device: device.to_owned(),
            n_sent: Mutex::new(0),
            n_enqueued: Mutex::new(0),
            has_enqueued: Condvar::new(),
            lost: Mutex::default(),
        });
        let worker = Worker {
            receiver,
            waits: Waits::of(&queue, is_alone),
            queue,
            shared: Arc::clone(&shared),
            n_unflushed: 0,
            in_flight: VecDeque::new(),
            failures: VecDeque::new(),
            faults: Faults {
                context,
                flags: None,
                used: Vec::new(),
            },
        };
        let name = device.rsplit('/').next().unwrap_or(device).to_owned();
        let thread = thread::Builder::new()
            .name(name)
            .spawn(move || worker.work())
            .map_err(|error| DeviceError::Failed {
                device: device.to_owned(),
                message: format!("there is no thread for its commands: {error}"),
            })?;
        Ok(Self {
            sender: Some(sender),
            thread: Some(thread),
            shared,
        })
    }

    /// Gives the device a command.
    ///
    /// # Errors
    /// [`DeviceError::Lost`] when it does not answer any more.
    pub(super) fn send(&self, command: Command) -> Result<(), DeviceError> {
        self.try_send(command).map_err(|(_, lost)| lost)
    }

    /// The same, giving the command back.
    pub(super) fn try_send(&self, command: Command) -> Result<(), (Box<Command>, DeviceError)> {
        match self.shared.check() {
            Ok(()) => {
                self.send_anyway(command);
                Ok(())
            }
            Err(lost) => Err((Box::new(command), lost)),
        }
    }

    /// The same for what must be told also to a device that does not answer: what is dropped, and what waits for an end.
    pub(super) fn send_anyway(&self, command: Command) {
        if let Some(sender) = &self.sender {
            let mut n_sent = self
                .shared
                .n_sent
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            // The thread lives as long as this; if it has died, what the command owns is dropped, which says so.
            let _ = sender.send(command);
            *n_sent += 1;
        }
    }

    /// What has been sent so far, for a command of another device that must come after it.
    pub(super) fn now(&self) -> (Arc<Shared>, u64) {
        let n_sent = self.shared.n_sent.lock();
        let n_sent = *n_sent.unwrap_or_else(PoisonError::into_inner);
        (Arc::clone(&self.shared), n_sent)
    }
}

impl Shared {
    fn check(&self) -> Result<(), DeviceError> {
        let lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        lost.clone().map_or(Ok(()), Err)
    }

    fn count(&self) {
        let mut n_enqueued = self
            .n_enqueued
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *n_enqueued += 1;
        self.has_enqueued.notify_all();
    }

    /// Returns when so many commands have been given to the driver.
    fn wait(&self, n_sent: u64) {
        let n_enqueued = self
            .n_enqueued
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let waited = self.has_enqueued.wait_while(n_enqueued, |n| *n < n_sent);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// The error for a code of the driver's.
    fn error(&self, site: Option<&LaunchSite>, doing: &str, code: Code) -> DeviceError {
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

/// The thread's side.
struct Worker {
    receiver: Receiver<Command>,
    queue: Queue,
    shared: Arc<Shared>,
    /// Of the command at hand.
    waits: Waits,
    n_unflushed: u32,
    /// Launches that may not have ended.
    in_flight: VecDeque<(Arc<Event>, Work)>,
    /// What nobody has heard of yet.
    failures: VecDeque<(Option<StepNumber>, Failure)>,
    faults: Faults,
}

/// Whose a launch is.
#[derive(Debug, Clone)]
struct Work {
    site: Arc<LaunchSite>,
    step: Option<StepNumber>,
}

/// Where functions say that their inputs are wrong, since the last look.
struct Faults {
    context: Arc<Context>,
    /// A word for each, 0 until something is wrong; made when the first asks for one.
    flags: Option<Arc<RawBuffer>>,
    used: Vec<(Work, Arc<str>)>,
}

impl Worker {
    fn work(mut self) {
        while let Some(command) = self.next() {
            self.execute(command);
            self.shared.count();
            if self.n_unflushed >= COMMANDS_PER_FLUSH {
                self.flush();
            }
        }
        // What is under way uses memory that goes with this.
        let _ = self.queue.finish();
    }

    /// The next command; `None` when there will be none.
    fn next(&mut self) -> Option<Command> {
        match self.receiver.try_recv() {
            Ok(command) => return Some(command),
            Err(TryRecvError::Disconnected) => return None,
            Err(TryRecvError::Empty) => self.flush(),
        }
        let started = Instant::now();
        while started.elapsed() < SPIN {
            match self.receiver.try_recv() {
                Ok(command) => return Some(command),
                Err(TryRecvError::Disconnected) => return None,
                Err(TryRecvError::Empty) => hint::spin_loop(),
            }
        }
        self.receiver.recv().ok()
    }

    fn flush(&mut self) {
        if mem::take(&mut self.n_unflushed) > 0
            && let Err(code) = self.queue.flush()
        {
            self.failed(None, "starting its commands", code);
        }
    }

    fn failed(&mut self, work: Option<&Work>, doing: &str, code: Code) -> Failure {
        let site = work.map(|work| &*work.site);
        let failure = Failure::new(self.shared.error(site, doing, code));
        self.remember(work.and_then(|work| work.step), failure.clone());
        failure
    }

    /// Keeps a failure for whoever waits for the end of its run.
    fn remember(&mut self, step: Option<StepNumber>, failure: Failure) {
        if self.failures.len() == FAILURES_MAX {
            self.failures.pop_front();
        }
        self.failures.push_back((step, failure));
    }

    fn execute(&mut self, command: Command) {
        self.waits.clear();
        match command {
            Command::Launch {
                site,
                step,
                function,
                groups,
                group_size,
                arguments,
            } => {
                self.launch(
                    Work { site, step },
                    &function,
                    groups,
                    group_size,
                    &arguments,
                );
            }
            Command::Write { from, to } => self.write(from, &to),
            Command::Zero { of, len_bytes } => {
                of.before_writing(&mut self.waits);
                let zeroed = self.queue.zero(&of.mem, len_bytes, &self.waits);
                self.wrote(zeroed, &of, "zeroing memory");
            }
            Command::Copy {
                from,
                to,
                len_bytes,
                source,
            } => {
                if let Some(source) = &source {
                    // The other device may be waiting for what has been given to this one.
                    self.flush();
                    let (other, n_sent) = &source.after;
                    other.wait(*n_sent);
                }
                to.before_writing(&mut self.waits);
                match from.before_reading(&mut self.waits) {
                    Ok(()) => {
                        let copied = self.queue.copy(&from.mem, &to.mem, len_bytes, &self.waits);
                        if let Some(event) = self.wrote(copied, &to, "copying a tensor") {
                            from.is_read_until(&event);
                        }
                    }
                    Err(failure) => to.is_not_written(&failure),
                }
                drop(source.map(|source| source.owner));
            }
            Command::Read { from, to, done } => self.read(&from, to, done),
            Command::Map {
                of,
                len_bytes,
                done,
            } => self.map(&of, len_bytes, done),
            Command::Unmap { of, mapped, owner } => {
                match self.queue.unmap(&of.mem, mapped) {
                    Ok(event) => {
                        self.n_unflushed += 1;
                        of.is_read_until(&Arc::new(event));
                    }
                    Err(code) => {
                        self.failed(None, "unmapping memory", code);
                    }
                }
                drop(owner);
            }
            Command::Finish { step, done } => {
                let finished = self.finish(step);
                done(finished);
            }
        }
    }

    /// Notes that `to` is written until the event; gives it back.
    fn wrote(
        &mut self,
        outcome: Result<Event, Code>,
        to: &RawBuffer,
        doing: &str,
    ) -> Option<Arc<Event>> {
        match outcome {
            Ok(event) => {
                let event = Arc::new(event);
                self.n_unflushed += 1;
                to.is_written_until(&event);
                Some(event)
            }
            Err(code) => {
                let failure = self.failed(None, doing, code);
                to.is_not_written(&failure);
                None
            }
        }
    }

    fn launch(
        &mut self,
        work: Work,
        function: &SyclFunction,
        groups: [usize; 3],
        group_size: [usize; 3],
        arguments: &[Argument],
    ) {
        let fault = match self.fault_slot(&work, arguments) {
            Ok(fault) => fault,
            Err(failure) => {
                for argument in arguments {
                    if let Argument::Write(output) = argument {
                        output.is_not_written(&failure);
                    }
                }
                return;
            }
        };
        let outputs = || {
            arguments.iter().filter_map(|argument| match argument {
                Argument::Write(buffer) => Some(buffer),
                _ => None,
            })
        };
        for argument in arguments {
            match argument {
                Argument::Read(buffer) => {
                    if let Err(failure) = buffer.before_reading(&mut self.waits) {
                        // What depends on work that failed fails with it, without a word of its own.
                        outputs().for_each(|output| output.is_not_written(&failure));
                        return;
                    }
                }
                Argument::Write(buffer) => buffer.before_writing(&mut self.waits),
                _ => {}
            }
        }
        let global = [0, 1, 2].map(|axis| groups[axis] * group_size[axis]);
        let launched = {
            let function = function.handle();
            let mut index = 0;
            let set = arguments.iter().try_for_each(|argument| {
                let value = match argument {
                    Argument::Read(buffer) | Argument::Write(buffer) => Value::Mem(&buffer.mem),
                    Argument::Word(bytes) => Value::Bytes(bytes),
                    Argument::Long(bytes) => Value::Bytes(bytes),
                    Argument::Bytes(bytes) => Value::Bytes(bytes),
                    Argument::Local(len_bytes) => Value::Local(*len_bytes),
                    Argument::Fault(_) => {
                        let Some((flags, slot)) = &fault else {
                            return Ok(());
                        };
                        function.set(index, Value::Mem(&flags.mem))?;
                        index += 2;
                        return function.set(index - 1, Value::Bytes(&slot.to_ne_bytes()));
                    }
                };
                index += 1;
                function.set(index - 1, value)
            });
            let (queue, waits) = (&self.queue, &self.waits);
            set.and_then(|()| queue.launch(&function, global, group_size, waits))
        };
        let event = match launched {
            Ok(event) => Arc::new(event),
            Err(code) => {
                let doing = format!("launching `{}`", function.text());
                let failure = self.failed(Some(&work), &doing, code);
                outputs().for_each(|output| output.is_not_written(&failure));
                return;
            }
        };
        self.n_unflushed += 1;
        for argument in arguments {
            match argument {
                Argument::Read(buffer) => buffer.is_read_until(&event),
                Argument::Write(buffer) => buffer.is_written_until(&event),
                _ => {}
            }
        }
        self.in_flight.push_back((event, work));
        if self.in_flight.len() >= IN_FLIGHT_MAX {
            self.look_at_ends();
        }
    }

    /// A word for a launch that may find its inputs wrong, and waits for its being 0.
    fn fault_slot(
        &mut self,
        work: &Work,
        arguments: &[Argument],
    ) -> Result<Option<(Arc<RawBuffer>, u32)>, Failure> {
        let mut messages = arguments.iter().filter_map(|argument| match argument {
            Argument::Fault(message) => Some(message),
            _ => None,
        });
        let Some(message) = messages.next() else {
            return Ok(None);
        };
        let fault = self.new_fault_slot(work, message);
        fault.map(Some).map_err(|code| {
            self.waits.clear();
            self.failed(Some(work), "preparing to check its inputs", code)
        })
    }

    fn new_fault_slot(
        &mut self,
        work: &Work,
        message: &Arc<str>,
    ) -> Result<(Arc<RawBuffer>, u32), Code> {
        if self.faults.used.len() == FAULTS_MAX {
            self.queue.finish()?;
            self.look_at_faults()?;
        }
        let flags = match &self.faults.flags {
            Some(flags) => Arc::clone(flags),
            None => {
                let mem = Mem::new(&self.faults.context, FAULTS_BYTES, true)?;
                let flags = Arc::new(RawBuffer::new(mem, FAULTS_BYTES));
                let zeroed = self.queue.zero(&flags.mem, FAULTS_BYTES, &self.waits)?;
                flags.is_written_until(&Arc::new(zeroed));
                self.faults.flags = Some(Arc::clone(&flags));
                flags
            }
        };
        // Its zeroing never fails later without the device being lost.
        let _ = flags.before_reading(&mut self.waits);
        let slot = u32::try_from(self.faults.used.len()).unwrap_or(0);
        self.faults.used.push((work.clone(), Arc::clone(message)));
        Ok((flags, slot))
    }

    /// Whether a function has said that its inputs are wrong, when all have ended. The words are 0 again afterwards.
    fn look_at_faults(&mut self) -> Result<(), Code> {
        let Some(flags) = self
            .faults
            .flags
            .clone()
            .filter(|_| !self.faults.used.is_empty())
        else {
            return Ok(());
        };
        self.waits.clear();
        let (sender, receiver) = mpsc::channel();
        let words = vec![0u8; FAULTS_BYTES];
        let then = move |read| drop(sender.send(read));
        self.queue
            .read(&flags.mem, words, |words| &mut words[..], &self.waits, then);
        self.queue.finish()?;
        // The callback comes from a thread of the driver's, soon if not yet.
        let words: Vec<u8> = receiver.recv().unwrap_or(Err(Code(NOTHING_READ)))?;
        let zeroed = self.queue.zero(&flags.mem, FAULTS_BYTES, &self.waits)?;
        flags.is_written_until(&Arc::new(zeroed));
        self.n_unflushed += 1;
        let used = mem::take(&mut self.faults.used);
        for ((work, message), word) in used.iter().zip(words.chunks_exact(4)) {
            if word != [0; 4] {
                let failure = Failure::new(DeviceError::Input {
                    device: self.shared.device.clone(),
                    node: work.site.node.clone(),
                    op: work.site.op.clone(),
                    message: message.to_string(),
                });
                self.remember(work.step, failure);
            }
        }
        Ok(())
    }

    /// Forgets launches that have ended, in the order in which they were given.
    fn look_at_ends(&mut self) {
        while let Some((event, work)) = self.in_flight.front() {
            match event.progress() {
                Progress::Pending => return,
                Progress::Done => {}
                Progress::Failed(code) => {
                    let work = work.clone();
                    self.failed(Some(&work), "executing it", code);
                }
            }
            self.in_flight.pop_front();
        }
    }

    fn write(&mut self, from: Tensor, to: &RawBuffer) {
        to.before_writing(&mut self.waits);
        let written = self.queue.write(&to.mem, from, tensor_bytes, &self.waits);
        self.wrote(written, to, "copying from the host");
    }

    fn read(&mut self, from: &RawBuffer, to: Buffer, done: Copied) {
        if let Err(failure) = from.before_reading(&mut self.waits) {
            return done(Err(failure.tell()));
        }
        let then = self.telling(|to| done(to.map(Arrived::Copied)));
        let event = self
            .queue
            .read(&from.mem, to, buffer_bytes, &self.waits, then);
        self.reads(from, event);
    }

    fn map(&mut self, of: &RawBuffer, len_bytes: usize, done: Copied) {
        if let Err(failure) = of.before_reading(&mut self.waits) {
            return done(Err(failure.tell()));
        }
        let then = self.telling(|mapped| done(mapped.map(Arrived::Mapped)));
        let event = self.queue.map(&of.mem, len_bytes, &self.waits, then);
        self.reads(of, event);
    }

    fn reads(&mut self, from: &RawBuffer, event: Option<Event>) {
        if let Some(event) = event {
            self.n_unflushed += 1;
            from.is_read_until(&Arc::new(event));
        }
    }

    /// What takes the end of a copy and says why it failed: the launch that it waited for, if that is the reason.
    fn telling<T, D>(&self, done: D) -> impl FnOnce(Result<T, Code>) + Send + use<T, D>
    where
        D: FnOnce(Result<T, DeviceError>) + Send,
    {
        let (shared, sites) = (Arc::clone(&self.shared), self.in_flight.clone());
        move |ended| {
            done(ended.map_err(|code| {
                for (event, work) in &sites {
                    if let Progress::Failed(code) = event.progress() {
                        return shared.error(Some(&work.site), "executing it", code);
                    }
                }
                shared.error(None, "copying to the host", code)
            }));
        }
    }

    fn finish(&mut self, step: Option<StepNumber>) -> Result<(), DeviceError> {
        self.n_unflushed = 0;
        let finished = self.queue.finish();
        self.look_at_ends();
        let finished = finished.and_then(|()| self.look_at_faults());
        let is_asked = |of: Option<StepNumber>| step.is_none() || of.is_none() || of == step;
        let mut found = None;
        self.failures.retain(|(of, failure)| {
            let is_asked = is_asked(*of);
            if is_asked && !failure.is_told() {
                found.get_or_insert_with(|| failure.clone());
            }
            !is_asked
        });
        if let Err(code) = finished {
            return Err(self.shared.error(None, "finishing its work", code));
        }
        found.map_or(Ok(()), |failure| Err(failure.tell()))
    }
}

/// What the host reads of a tensor, which has been looked at before it was sent here.
fn tensor_bytes(tensor: &Tensor) -> &[u8] {
    tensor.as_bytes().unwrap_or_default()
}

/// Where the host writes in a buffer that nobody else has.
fn buffer_bytes(buffer: &mut Buffer) -> &mut [u8] {
    buffer.as_host_bytes_mut().unwrap_or_default()
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
