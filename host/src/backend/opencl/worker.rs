//! Gives a driver a device's commands: their order by the buffers that they use, what failed, what is wrong with inputs.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::sync::mpsc;

use super::buffer::Failure;
use super::buffer::RawBuffer;
use super::ffi::Code;
use super::ffi::Context;
use super::ffi::Event;
use super::ffi::Mem;
use super::ffi::Progress;
use super::ffi::Queue;
use super::ffi::Value;
use super::order::End;
use super::order::Order;
use super::order::Work;
use super::program::SyclFunction;
use super::stream::Argument;
use super::stream::Arrived;
use super::stream::Command;
use super::stream::Copied;
use super::stream::Shared;
use crate::device::DeviceError;
use crate::device::StepNumber;
use crate::tensor::Buffer;
use crate::tensor::Tensor;

/// Commands after which the driver hears that it may begin, although more are coming.
const COMMANDS_PER_FLUSH: u32 = 64;

/// Launches under way are looked at whenever there are a multiple of so many.
const LOOK_EVERY: usize = 64;

/// Failures that are kept for runs that have not asked: they have failed otherwise, and never will.
const FAILURES_MAX: usize = 1024;

/// Launches between two looks at whether one has found its inputs wrong.
const FAULTS_MAX: usize = 1024;

/// A word for each of them.
const FAULTS_BYTES: usize = 4 * FAULTS_MAX;

/// The code for a read that nobody has heard of again.
const NOTHING_READ: i32 = opencl3::error_codes::CL_OUT_OF_RESOURCES;

/// Whoever executes commands has this.
#[derive(Debug)]
pub(super) struct Worker {
    queue: Queue,
    shared: Arc<Shared>,
    order: Order,
    n_unflushed: u32,
    /// All commands that may not have ended.
    in_flight: InFlight,
    /// What nobody has heard of yet.
    failures: VecDeque<(Option<StepNumber>, Failure)>,
    faults: Faults,
}

/// Ends of commands that may not have ended, in their order.
type InFlight = Arc<Mutex<VecDeque<Arc<End>>>>;

/// Where functions say that their inputs are wrong, since the last look.
#[derive(Debug)]
struct Faults {
    context: Arc<Context>,
    /// A word for each, 0 until something is wrong; made when the first asks for one.
    flags: Option<Arc<RawBuffer>>,
    used: Vec<(Work, Arc<str>)>,
}

impl Worker {
    /// `is_alone`: commands cannot wait for events of other queues.
    pub(super) fn new(
        context: Arc<Context>,
        queue: Queue,
        is_alone: bool,
        shared: Arc<Shared>,
    ) -> Self {
        Self {
            order: Order::new(is_alone),
            queue,
            shared,
            n_unflushed: 0,
            in_flight: InFlight::default(),
            failures: VecDeque::new(),
            faults: Faults {
                context,
                flags: None,
                used: Vec::new(),
            },
        }
    }

    /// Executes the next command.
    pub(super) fn take(&mut self, command: Command) {
        self.execute(command);
        self.shared.given.count();
        if self.n_unflushed >= COMMANDS_PER_FLUSH {
            self.flush();
        }
    }

    /// Waits for what is under way. What has failed says so to those who ask for it.
    pub(super) fn finish_all(&mut self) {
        self.n_unflushed = 0;
        match self.queue.finish() {
            Ok(()) => self.look_at_ends(),
            Err(code) => drop(self.failed(None, "finishing its work", code)),
        }
    }

    /// Lets the driver begin.
    pub(super) fn flush(&mut self) {
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
        // The first of a run is the reason of the others.
        let is_known =
            |(of, known): &(Option<StepNumber>, Failure)| *of == step && !known.is_told();
        if step.is_some() && self.failures.iter().any(is_known) {
            return;
        }
        if self.failures.len() == FAILURES_MAX {
            self.failures.pop_front();
        }
        self.failures.push_back((step, failure));
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
                of.before_writing(&mut self.order);
                let waits = self.order.waits(&self.queue);
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
                    // The other device may be waiting for what has been given to this one.
                    self.flush();
                    let (other, n_sent) = &source.after;
                    other.given.wait(*n_sent);
                }
                to.before_writing(&mut self.order);
                match from.before_reading(&mut self.order) {
                    Ok(()) => {
                        let waits = self.order.waits(&self.queue);
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
                        let end = self.ended(event, None);
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

    /// Notes that `to` is written until the command's end; gives that.
    fn wrote(
        &mut self,
        outcome: Result<Event, Code>,
        to: &RawBuffer,
        doing: &str,
    ) -> Option<Arc<End>> {
        match outcome {
            Ok(event) => {
                let end = self.ended(event, None);
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
                    if let Err(failure) = buffer.before_reading(&mut self.order) {
                        // What depends on work that failed fails with it. Who has heard of that may have been another run.
                        self.remember(work.step, failure.of_others());
                        outputs().for_each(|output| output.is_not_written(&failure));
                        return;
                    }
                }
                Argument::Write(buffer) => buffer.before_writing(&mut self.order),
                _ => {}
            }
        }
        let global = [0, 1, 2].map(|axis| groups[axis] * group_size[axis]);
        let launched = {
            let mut function = function.handle();
            let mut index = 0;
            let set = arguments.iter().try_for_each(|argument| {
                index += 1;
                match argument {
                    Argument::Read(buffer) | Argument::Write(buffer) => {
                        function.set(index - 1, Value::Mem(&buffer.mem))
                    }
                    Argument::Word(bytes) => function.set_value(index - 1, bytes),
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
                let waits = self.order.waits(queue);
                queue.launch(function.function(), global, group_size, waits)
            })
        };
        let end = match launched {
            Ok(event) => self.ended(event, Some(work)),
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
                Argument::Read(buffer) => buffer.is_read_until(&end, &self.order),
                Argument::Write(buffer) => buffer.is_written_until(&end),
                _ => {}
            }
        }
    }

    /// The end of a command that the driver has taken.
    fn ended(&mut self, event: Event, work: Option<Work>) -> Arc<End> {
        let end = self.order.end(event, work);
        let n_in_flight = {
            let mut in_flight = in_flight(&self.in_flight);
            in_flight.push_back(Arc::clone(&end));
            in_flight.len()
        };
        if n_in_flight.is_multiple_of(LOOK_EVERY) {
            self.look_at_ends();
        }
        end
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
                let waits = self.order.waits(&self.queue);
                let zeroed = self.queue.zero(&flags.mem, FAULTS_BYTES, waits)?;
                flags.is_written_until(&self.ended(zeroed, None));
                self.faults.flags = Some(Arc::clone(&flags));
                flags
            }
        };
        // Its zeroing never fails later without the device being lost.
        let _ = flags.before_reading(&mut self.order);
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
        self.order.clear();
        let (sender, receiver) = mpsc::channel();
        let words = vec![0u8; FAULTS_BYTES];
        let then = move |read| drop(sender.send(read));
        let waits = self.order.waits(&self.queue);
        self.queue
            .read(&flags.mem, words, |words| &mut words[..], waits, then);
        self.queue.finish()?;
        // The callback comes from a thread of the driver's, soon if not yet.
        let words: Vec<u8> = receiver.recv().unwrap_or(Err(Code(NOTHING_READ)))?;
        self.order.clear();
        let waits = self.order.waits(&self.queue);
        let zeroed = self.queue.zero(&flags.mem, FAULTS_BYTES, waits)?;
        flags.is_written_until(&self.ended(zeroed, None));
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

    /// Forgets commands that have ended. Asks the driver as little as that allows: one of the middle may tell of all before it.
    fn look_at_ends(&mut self) {
        loop {
            let middle = {
                let in_flight = in_flight(&self.in_flight);
                in_flight.get(in_flight.len() / 2).cloned()
            };
            let ended = middle.filter(|end| end.event.progress() == Progress::Done);
            let Some(end) = ended else {
                break;
            };
            self.order.note_end(&end, true);
            if self.forget_ended() == 0 {
                break;
            }
        }
        loop {
            let first = in_flight(&self.in_flight).front().cloned();
            let Some(end) = first else {
                return;
            };
            match end.event.progress() {
                Progress::Pending => return,
                Progress::Done => self.order.note_end(&end, true),
                Progress::Failed(code) => {
                    self.order.note_end(&end, false);
                    let doing = match end.work() {
                        Some(_) => "executing it",
                        None => "moving or filling memory",
                    };
                    end.fail(self.failed(end.work(), doing, code));
                }
            }
            in_flight(&self.in_flight).pop_front();
        }
    }

    /// Forgets commands that are known to have ended, and well: what has come after them has.
    fn forget_ended(&self) -> usize {
        let mut in_flight = in_flight(&self.in_flight);
        let n_before = in_flight.len();
        while let Some(end) = in_flight.front()
            && self.order.is_known_to_have_ended(end)
        {
            in_flight.pop_front();
        }
        n_before - in_flight.len()
    }

    fn write(&mut self, from: Tensor, to: &RawBuffer) {
        to.before_writing(&mut self.order);
        let waits = self.order.waits(&self.queue);
        let written = self.queue.write(&to.mem, from, tensor_bytes, waits);
        self.wrote(written, to, "copying from the host");
    }

    fn read(&mut self, from: &RawBuffer, to: Buffer, done: Copied) {
        if let Err(failure) = from.before_reading(&mut self.order) {
            return done(Err(failure.tell()));
        }
        let then = self.telling(from, |to| done(to.map(Arrived::Copied)));
        let waits = self.order.waits(&self.queue);
        let event = self.queue.read(&from.mem, to, buffer_bytes, waits, then);
        self.reads(from, event);
    }

    fn map(&mut self, of: &RawBuffer, len_bytes: usize, done: Copied) {
        if let Err(failure) = of.before_reading(&mut self.order) {
            return done(Err(failure.tell()));
        }
        let then = self.telling(of, |mapped| done(mapped.map(Arrived::Mapped)));
        let waits = self.order.waits(&self.queue);
        let event = self.queue.map(&of.mem, len_bytes, waits, then);
        self.reads(of, event);
    }

    fn reads(&mut self, from: &RawBuffer, event: Option<Event>) {
        if let Some(event) = event {
            self.n_unflushed += 1;
            let end = self.ended(event, None);
            from.is_read_until(&end, &self.order);
        }
    }

    /// What takes the end of a copy and says why it failed: the launch of the same run that failed before, if that is the reason, else who wrote
    /// what is copied.
    fn telling<T, D>(
        &self,
        from: &RawBuffer,
        done: D,
    ) -> impl FnOnce(Result<T, Code>) + Send + use<T, D>
    where
        D: FnOnce(Result<T, DeviceError>) + Send,
    {
        let (shared, ends) = (Arc::clone(&self.shared), Arc::clone(&self.in_flight));
        let (writer, number) = (from.writer(), self.order.number());
        move |ended| {
            done(ended.map_err(|code| {
                let step = |end: &End| end.work().and_then(|work| work.step);
                let of_run = writer.as_ref().map(|writer| step(writer));
                let failed = |end: &Arc<End>| {
                    let is_one = end.is_before(number) && Some(step(end)) == of_run;
                    is_one && matches!(end.event.progress(), Progress::Failed(_))
                };
                // The driver, which this asks, may be holding locks of its own.
                let ends: Vec<Arc<End>> = in_flight(&ends).iter().cloned().collect();
                let first = ends.into_iter().find(failed);
                let Some(end) = first.or(writer) else {
                    return shared.error(None, "copying to the host", code);
                };
                if let Some(failure) = end.failure() {
                    return failure.tell();
                }
                match (end.work(), end.event.progress()) {
                    (Some(work), Progress::Failed(code)) => {
                        shared.error(Some(&work.site), "executing it", code)
                    }
                    _ => shared.error(None, "copying to the host", code),
                }
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

/// Nothing panics under the lock.
fn in_flight(ends: &InFlight) -> MutexGuard<'_, VecDeque<Arc<End>>> {
    ends.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the host reads of a tensor, which has been looked at before it was sent here.
fn tensor_bytes(tensor: &Tensor) -> &[u8] {
    tensor.as_bytes().unwrap_or_default()
}

/// Where the host writes in a buffer that nobody else has.
fn buffer_bytes(buffer: &mut Buffer) -> &mut [u8] {
    buffer.as_host_bytes_mut().unwrap_or_default()
}
