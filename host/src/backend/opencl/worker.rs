//! Submits a device's commands to the driver: orders them by the buffers that they use, and reports
//! failures and invalid inputs.

use std::iter;
use std::mem;
use std::sync::Arc;
use std::sync::mpsc;

use super::buffer::Failure;
use super::buffer::RawBuffer;
use super::ends::Ends;
use super::ends::Whose;
use super::ffi::Code;
use super::ffi::Context;
use super::ffi::Event;
use super::ffi::Mem;
use super::ffi::Progress;
use super::ffi::Queue;
use super::ffi::Value;
use super::lane::Execute;
use super::order::End;
use super::order::Of;
use super::order::Order;
use super::order::Work;
use super::pocl::Launches;
use super::pocl::Quirks;
use super::program::SyclFunction;
use super::stream::Argument;
use super::stream::Arrived;
use super::stream::Command;
use super::stream::Copied;
use super::stream::Shared;
use crate::device::DeviceError;
use crate::device::DeviceFunction;
use crate::device::RunNumber;
use crate::tensor::Buffer;
use crate::tensor::Tensor;

/// Number of commands after which the driver is flushed even if more are coming.
const COMMANDS_PER_FLUSH: u32 = 64;

/// Launches in flight are polled whenever their number is a multiple of this.
const LOOK_EVERY: usize = 64;

/// Maximum number of launches between two checks of the fault flags.
const FAULTS_MAX: usize = 1024;

/// Size of the flags in bytes: one u32 each.
const FAULTS_BYTES: usize = 4 * FAULTS_MAX;

/// The code for a read whose callback was dropped.
const NOTHING_READ: i32 = opencl3::error_codes::CL_OUT_OF_RESOURCES;

/// The state of the thread that executes commands.
#[derive(Debug)]
pub(super) struct Worker {
    queue: Queue,
    /// The launches of this process, if the driver must not run some of them at the same time.
    launches: Option<&'static Launches>,
    shared: Arc<Shared>,
    order: Order,
    n_unflushed: u32,
    ends: Ends,
    faults: Faults,
}

/// The fault flags since the last check.
#[derive(Debug)]
struct Faults {
    context: Arc<Context>,
    /// One u32 flag per launch, 0 unless its inputs are invalid. Allocated at first use.
    flags: Option<Arc<RawBuffer>>,
    used: Vec<(Work, Arc<str>)>,
}

impl Execute for Worker {
    type Command = Command;
    type Progress = Shared;

    fn take(&mut self, command: Command) {
        self.execute(command);
        self.shared.given.count();
        if self.n_unflushed >= COMMANDS_PER_FLUSH {
            self.flush();
        }
    }

    /// Flushes the driver's queue.
    fn flush(&mut self) {
        if mem::take(&mut self.n_unflushed) > 0
            && let Err(code) = self.queue.flush()
        {
            self.failed_for_all("starting its commands", code);
        }
    }

    /// Waits for the commands in flight. Failures are reported to the runs that ask for them.
    fn finish_all(&mut self) {
        self.n_unflushed = 0;
        let finished = self.queue.finish();
        self.look_at_ends();
        if let Err(code) = finished {
            self.failed_for_all("finishing its work", code);
        }
    }

    /// Removes commands that have ended. Polls the driver as little as possible: one command in the
    /// middle may cover all earlier ones.
    fn look_at_ends(&mut self) {
        loop {
            let middle = self.ends.middle();
            let Some(end) = middle.filter(|end| end.event.progress() == Progress::Done) else {
                break;
            };
            self.order.note_end(&end, true);
            // The commands after them have succeeded.
            let order = &self.order;
            if self.ends.forget(|end| order.is_known_to_have_ended(end)) == 0 {
                break;
            }
        }
        loop {
            let Some(end) = self.ends.first() else {
                return;
            };
            match end.event.progress() {
                Progress::Pending => return,
                Progress::Done => self.order.note_end(&end, true),
                Progress::Failed(code) => {
                    self.order.note_end(&end, false);
                    self.ends.has_failed(&end, code);
                }
            }
            self.ends.pop();
        }
    }
}

impl Worker {
    pub(super) fn new(
        context: Arc<Context>,
        queue: Queue,
        quirks: Quirks,
        shared: Arc<Shared>,
    ) -> Self {
        Self {
            order: Order::new(Arc::clone(&shared), quirks.queues_are_alone),
            queue,
            launches: quirks.mixes_up_sizes.then(Launches::of_process),
            ends: shared.ends(),
            shared,
            n_unflushed: 0,
            faults: Faults {
                context,
                flags: None,
                used: Vec::new(),
            },
        }
    }

    fn failed_for_all(&mut self, doing: &str, code: Code) {
        let failure = Failure::new(self.shared.error(None, doing, code));
        self.ends.remember(Whose::All, failure);
    }

    fn failed(&mut self, work: Option<&Work>, doing: &str, code: Code) -> Failure {
        let site = work.map(|work| &*work.site);
        let failure = Failure::new(self.shared.error(site, doing, code));
        self.ends.remember(Whose::of(work), failure.clone());
        failure
    }

    /// Sets what the current command comes after; fails if there will be nothing to read.
    fn come_after<'a>(
        &mut self,
        mut reads: impl Iterator<Item = &'a RawBuffer> + Clone,
        writes: impl Iterator<Item = &'a RawBuffer>,
    ) -> Result<(), Failure> {
        for buffer in reads.clone() {
            buffer.before_reading(&mut self.order)?;
        }
        writes.for_each(|buffer| buffer.before_writing(&mut self.order));
        let failed = self.order.look(&self.queue);
        if failed.is_empty() {
            return Ok(());
        }
        for (end, code) in failed {
            if self.order.is_own(&end) {
                self.ends.has_failed(&end, code);
            } else {
                // Its own device records it.
                end.fail(code, None);
            }
        }
        // The failed command may have written something else than what is read.
        reads.try_for_each(RawBuffer::is_there)
    }

    fn execute(&mut self, command: Command) {
        self.order.clear();
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
                self.before_writing(&of);
                let waits = self.order.waits();
                let zeroed = self.queue.zero(&of.mem, len_bytes, waits);
                self.wrote(zeroed, &of, "zeroing memory");
            }
            Command::Copy {
                from,
                to,
                len_bytes,
                source,
            } => {
                if let Some(source) = &source {
                    // The other device may be waiting for commands of this one.
                    self.flush();
                    let (other, n_sent) = &source.after;
                    other.given.wait(*n_sent);
                }
                match self.come_after(iter::once(&*from), iter::once(&*to)) {
                    Ok(()) => {
                        let waits = self.order.waits();
                        let copied = self.queue.copy(&from.mem, &to.mem, len_bytes, waits);
                        if let Some(end) = self.wrote(copied, &to, "copying a tensor") {
                            from.is_read_until(&end, &self.order);
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
                        let end = self.ended(event, Of::Memory);
                        of.is_read_until(&end, &self.order);
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

    /// Records that `to` is written until the command's end, and returns that end.
    fn wrote(
        &mut self,
        outcome: Result<Event, Code>,
        to: &RawBuffer,
        doing: &str,
    ) -> Option<Arc<End>> {
        match outcome {
            Ok(event) => {
                let end = self.ended(event, Of::Memory);
                self.n_unflushed += 1;
                to.is_written_until(&end);
                Some(end)
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
        let outputs = || {
            arguments.iter().filter_map(|argument| match argument {
                Argument::Write(buffer) => Some(&**buffer),
                _ => None,
            })
        };
        let fault = match self.fault_slot(&work, arguments) {
            Ok(fault) => fault,
            Err(failure) => {
                outputs().for_each(|output| output.is_not_written(&failure));
                return;
            }
        };
        let inputs = arguments.iter().filter_map(|argument| match argument {
            Argument::Read(buffer) => Some(&**buffer),
            _ => None,
        });
        if let Err(failure) = self.come_after(inputs, outputs()) {
            // A launch that depends on failed work fails with it. The failure may have been
            // reported to another run only.
            self.ends
                .remember(Whose::of(Some(&work)), failure.of_others());
            outputs().for_each(|output| output.is_not_written(&failure));
            return;
        }
        let global = [0, 1, 2].map(|axis| groups[axis] * group_size[axis]);
        let (name, mut turn) = (function.name(), None);
        let launched = {
            let mut function = function.handle();
            let mut index = 0;
            let set = arguments.iter().try_for_each(|argument| {
                index += 1;
                match argument {
                    Argument::Read(buffer) | Argument::Write(buffer) => {
                        function.set(index - 1, Value::Mem(&buffer.mem))
                    }
                    Argument::Scalar(bytes) => function.set_value(index - 1, bytes),
                    Argument::Long(bytes) => function.set_value(index - 1, bytes),
                    Argument::Bytes(bytes) => function.set_value(index - 1, bytes),
                    Argument::Local(len_bytes) => function.set(index - 1, Value::Local(*len_bytes)),
                    Argument::Fault(_) => {
                        let Some((flags, slot)) = &fault else {
                            return Ok(());
                        };
                        function.set(index - 1, Value::Mem(&flags.mem))?;
                        index += 1;
                        function.set_value(index - 1, &slot.to_ne_bytes())
                    }
                }
            });
            let queue = &self.queue;
            set.and_then(|()| {
                if let Some(launches) = self.launches {
                    self.order.waits();
                    let comes_after = |end: &End| self.order.is_after(end);
                    // A failure is reported when the worker flushes.
                    let flush = || {
                        let _ = queue.flush();
                    };
                    turn = Some(launches.begin(name, group_size, global, comes_after, flush));
                }
                let waits = self.order.waits();
                queue.launch(function.function(), global, group_size, waits)
            })
        };
        let end = match launched {
            Ok(event) => {
                let end = self.ended(event, Of::Launch(work));
                if let Some(turn) = turn {
                    turn.accepted(&end);
                }
                end
            }
            Err(code) => {
                let doing = format!("launching `{}`", function.label());
                let failure = self.failed(Some(&work), &doing, code);
                outputs().for_each(|output| output.is_not_written(&failure));
                return;
            }
        };
        self.n_unflushed += 1;
        for argument in arguments {
            match argument {
                Argument::Read(buffer) => buffer.is_read_until(&end, &self.order),
                Argument::Write(buffer) => buffer.is_written_until(&end),
                _ => {}
            }
        }
    }

    /// Records a command that the driver has accepted, and returns its end.
    fn ended(&mut self, event: Event, of: Of) -> Arc<End> {
        let end = self.order.end(event, of);
        let n_in_flight = self.ends.push(Arc::clone(&end));
        if n_in_flight.is_multiple_of(LOOK_EVERY) {
            self.look_at_ends();
        }
        end
    }

    /// Returns a fault flag for a launch, which waits until the flag is 0.
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
            self.order.clear();
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
                let waits = self.order.waits();
                let zeroed = self.queue.zero(&flags.mem, FAULTS_BYTES, waits)?;
                flags.is_written_until(&self.ended(zeroed, Of::Memory));
                self.faults.flags = Some(Arc::clone(&flags));
                flags
            }
        };
        // Zeroing fails later only if the device is lost.
        let _ = flags.before_reading(&mut self.order);
        let slot = u32::try_from(self.faults.used.len()).unwrap_or(0);
        self.faults.used.push((work.clone(), Arc::clone(message)));
        Ok((flags, slot))
    }

    /// After all functions have ended, checks whether one has reported invalid inputs, and resets
    /// the flags to 0.
    fn look_at_faults(&mut self) -> Result<(), Code> {
        let Some(flags) = self
            .faults
            .flags
            .clone()
            .filter(|_| !self.faults.used.is_empty())
        else {
            return Ok(());
        };
        self.order.clear();
        let (sender, receiver) = mpsc::channel();
        let values = vec![0u8; FAULTS_BYTES];
        let then = move |read| drop(sender.send(read));
        let waits = self.order.waits();
        let read = self
            .queue
            .read(&flags.mem, values, |values| &mut values[..], waits, then);
        self.queue.finish()?;
        if let Some(read) = read
            && let Progress::Failed(code) = read.progress()
        {
            read.has_failed(code);
        }
        // The callback comes from a thread of the driver, soon if it has not come yet.
        let values: Vec<u8> = receiver.recv().unwrap_or(Err(Code(NOTHING_READ)))?;
        self.order.clear();
        let waits = self.order.waits();
        let zeroed = self.queue.zero(&flags.mem, FAULTS_BYTES, waits)?;
        flags.is_written_until(&self.ended(zeroed, Of::Memory));
        self.n_unflushed += 1;
        let used = mem::take(&mut self.faults.used);
        for ((work, message), value) in used.iter().zip(values.chunks_exact(4)) {
            if value != [0; 4] {
                let failure = Failure::new(DeviceError::Input {
                    device: self.shared.device.clone(),
                    node: work.site.node.clone(),
                    op: work.site.op.clone(),
                    message: message.to_string(),
                });
                self.ends.remember(Whose::of(Some(work)), failure);
            }
        }
        Ok(())
    }

    fn before_writing(&mut self, to: &RawBuffer) {
        // Nothing is read.
        let _ = self.come_after(iter::empty(), iter::once(to));
    }

    fn write(&mut self, from: Tensor, to: &RawBuffer) {
        self.before_writing(to);
        let waits = self.order.waits();
        let written = self.queue.write(&to.mem, from, tensor_bytes, waits);
        self.wrote(written, to, "copying from the host");
    }

    fn read(&mut self, from: &RawBuffer, to: Buffer, done: Copied) {
        if let Err(failure) = self.come_after(iter::once(from), iter::empty()) {
            return done(Err(failure.report()));
        }
        let then = self.reporting(from, |to| done(to.map(Arrived::Copied)));
        let waits = self.order.waits();
        let event = self.queue.read(&from.mem, to, buffer_bytes, waits, then);
        self.reads(from, event);
    }

    fn map(&mut self, of: &RawBuffer, len_bytes: usize, done: Copied) {
        let found = of
            .before_mapping(&mut self.order)
            .and_then(|()| self.come_after(iter::once(of), iter::empty()));
        if let Err(failure) = found {
            return done(Err(failure.report()));
        }
        let then = self.reporting(of, |mapped| done(mapped.map(Arrived::Mapped)));
        let waits = self.order.waits();
        let event = self.queue.map(&of.mem, len_bytes, waits, then);
        if let Some(end) = self.reads(of, event) {
            of.is_mapped_until(&end);
        }
    }

    /// Records that `from` is read until the command's end, and returns that end.
    fn reads(&mut self, from: &RawBuffer, event: Option<Event>) -> Option<Arc<End>> {
        let event = event?;
        self.n_unflushed += 1;
        let end = self.ended(event, Of::Answer);
        from.is_read_until(&end, &self.order);
        Some(end)
    }

    /// Wraps the callback of a copy so that it receives the cause of a failure: an earlier failed
    /// launch of the same run if there is one, otherwise the failed writer of the copied buffer.
    fn reporting<T, D>(
        &self,
        from: &RawBuffer,
        done: D,
    ) -> impl FnOnce(Result<T, Code>) + Send + use<T, D>
    where
        D: FnOnce(Result<T, DeviceError>) + Send,
    {
        let (shared, ends) = (Arc::clone(&self.shared), self.ends.clone());
        let (writer, number) = (from.writer(), self.order.number());
        move |ended| {
            done(ended.map_err(|code| {
                let reason = writer.and_then(|writer| ends.reason(&writer, number));
                reason.map_or_else(
                    || shared.error(None, "copying to the host", code),
                    |failure| failure.report(),
                )
            }));
        }
    }

    fn finish(&mut self, step: Option<RunNumber>) -> Result<(), DeviceError> {
        self.n_unflushed = 0;
        let finished = self.queue.finish();
        self.look_at_ends();
        let finished = finished.and_then(|()| self.look_at_faults());
        // The message names the node, if the failure has one.
        if let Some(failure) = self.ends.take_failure(step) {
            return Err(failure.report());
        }
        finished.map_err(|code| self.shared.error(None, "finishing its work", code))
    }
}

/// Returns the bytes of a host tensor; the sender has checked that it has bytes.
fn tensor_bytes(tensor: &Tensor) -> &[u8] {
    tensor.as_bytes().unwrap_or_default()
}

/// Returns the bytes of a buffer that only the host uses.
fn buffer_bytes(buffer: &mut Buffer) -> &mut [u8] {
    buffer.as_host_bytes_mut().unwrap_or_default()
}
