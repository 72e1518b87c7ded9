//! Work submitted directly to a driver: the reference with which benchmarks compare a device.
//!
//! It has its own context and queue, kernels without tuning for several processors, and commands
//! that are ordered by their events. It uses none of the device's streams, pools and programs.

use std::sync::mpsc;
use std::time::Duration;
use std::time::Instant;

use super::discover;
use super::discover::DeviceFacts;
use super::ffi;
use super::ffi::Code;
use super::ffi::Context;
use super::ffi::Event;
use super::ffi::Function;
use super::ffi::Mem;
use super::ffi::Program;
use super::ffi::Queue;
use super::ffi::Value;
use super::ffi::Waits;
use crate::device::DeviceError;

/// A matmul whose work items compute tiles of 8 x 16 in registers, without local memory; a copy; a
/// nearly empty kernel.
const SOURCE: &str = r"
kernel void matmul(global const float *a, global const float16 *b, global float16 *c, uint k, uint n16)
{
    const uint column = get_global_id(0), row = 8 * get_global_id(1);
    float16 s0 = 0, s1 = 0, s2 = 0, s3 = 0, s4 = 0, s5 = 0, s6 = 0, s7 = 0;
    a += row * k;
    b += column;
    for (uint i = 0; i < k; i++, a++, b += n16) {
        const float16 x = *b;
        s0 = fma(a[0], x, s0);
        s1 = fma(a[k], x, s1);
        s2 = fma(a[2 * k], x, s2);
        s3 = fma(a[3 * k], x, s3);
        s4 = fma(a[4 * k], x, s4);
        s5 = fma(a[5 * k], x, s5);
        s6 = fma(a[6 * k], x, s6);
        s7 = fma(a[7 * k], x, s7);
    }
    c += row * n16 + column;
    c[0] = s0;
    c[n16] = s1;
    c[2 * n16] = s2;
    c[3 * n16] = s3;
    c[4 * n16] = s4;
    c[5 * n16] = s5;
    c[6 * n16] = s6;
    c[7 * n16] = s7;
}

kernel void copy(global const float *x, global float *y)
{
    y[get_global_id(0)] = x[get_global_id(0)];
}

kernel void tiny(global const float *x, global float *y)
{
    y[get_global_id(0)] = x[get_global_id(0)] + 1;
}
";

/// Rows and columns that a work item of the matmul computes.
const TILE: [usize; 2] = [8, 16];

/// Work items per group of the copy, if the device supports that many.
const COPY_GROUP: usize = 1024;

/// A driver's device, opened separately.
#[derive(Debug)]
pub(crate) struct Reference {
    description: String,
    /// Work items per group of the copy.
    copy_group: usize,
    context: Context,
    queue: Queue,
    program: Program,
}

/// Work that can be repeated: each call returns the time until all of it is done.
pub(crate) type Rounds<'a> = Box<dyn FnMut() -> Result<Duration, DeviceError> + 'a>;

impl Reference {
    /// Opens the OpenCL device of the SYCL device with this index.
    pub(crate) fn open(index: usize) -> Result<Self, DeviceError> {
        let found = discover::devices()?;
        let n_found = found.len();
        let facts = found.into_iter().nth(index).ok_or_else(|| {
            DeviceError::InvalidArgument(format!(
                "there is no SYCL device {index}, OpenCL has {n_found}"
            ))
        })?;
        let description = facts.description();
        Self::of(&facts).map_err(|code| failed(&description, "opening it", code))
    }

    fn of(facts: &DeviceFacts) -> Result<Self, Code> {
        let context = Context::new(&[facts.id])?;
        let queue = Queue::new(&context, facts.id)?;
        let program = Program::of_source(&context, SOURCE)?;
        program.build(facts.id, c"")?;
        Ok(Self {
            description: facts.description(),
            copy_group: COPY_GROUP.min(facts.traits.group_size_max),
            context,
            queue,
            program,
        })
    }

    /// Returns `n` matmuls of square matrices, each of which reads the previous result. `side` must
    /// be a multiple of 16.
    pub(crate) fn matmuls(&self, side: usize, n: usize) -> Result<Rounds<'_>, DeviceError> {
        let function = self.function("matmul")?;
        let [from, to, factor] = [
            self.memory(side * side)?,
            self.memory(side * side)?,
            self.memory(side * side)?,
        ];
        let [k, n16] = [side, side / TILE[1]].map(|n| u32::try_from(n).unwrap_or(u32::MAX));
        let global = [side / TILE[1], side / TILE[0], 1];
        Ok(self.rounds(n, [from, to], move |this, waits, from, to| {
            function.set(0, Value::Mem(from))?;
            function.set(1, Value::Mem(&factor))?;
            function.set(2, Value::Mem(to))?;
            function.set(3, Value::Bytes(&k.to_ne_bytes()))?;
            function.set(4, Value::Bytes(&n16.to_ne_bytes()))?;
            this.queue.launch(&function, global, [1, 1, 1], waits)
        }))
    }

    /// Returns `n` copies of `len` floats, a multiple of 1,024, by a kernel.
    pub(crate) fn copies(&self, len: usize, n: usize) -> Result<Rounds<'_>, DeviceError> {
        self.pairs("copy", len, self.copy_group, n)
    }

    /// Returns `n` kernels of one work item, each after the previous one.
    pub(crate) fn launches(&self, n: usize) -> Result<Rounds<'_>, DeviceError> {
        self.pairs("tiny", 1, 1, n)
    }

    /// Returns a copy of `len_bytes` bytes to the device.
    pub(crate) fn write(&self, len_bytes: usize) -> Result<Rounds<'_>, DeviceError> {
        let to = self.memory(len_bytes.div_ceil(4))?;
        Ok(Box::new(move || {
            let bytes = vec![1u8; len_bytes];
            let waits = Waits::default();
            let started = Instant::now();
            let written = self.queue.write(&to, bytes, |bytes| bytes, &waits);
            let finished = written.and_then(|_| self.queue.finish());
            self.time(started, "copying to it", finished)
        }))
    }

    /// Returns a copy of `len_bytes` bytes from the device.
    pub(crate) fn read(&self, len_bytes: usize) -> Result<Rounds<'_>, DeviceError> {
        let from = self.memory(len_bytes.div_ceil(4))?;
        Ok(Box::new(move || {
            let bytes = vec![1u8; len_bytes];
            let waits = Waits::default();
            let (sender, receiver) = mpsc::channel();
            let then = move |read: Result<Vec<u8>, Code>| drop(sender.send(read));
            let started = Instant::now();
            let read = self.queue.read(&from, bytes, |bytes| bytes, &waits, then);
            // A rejected copy fails at once.
            let refused = || receiver.try_recv().map_or(Ok(()), |read| read.map(drop));
            let finished = read.map_or_else(refused, |_| self.queue.finish());
            self.time(started, "copying from it", finished)
        }))
    }

    fn pairs(
        &self,
        name: &str,
        len: usize,
        group: usize,
        n: usize,
    ) -> Result<Rounds<'_>, DeviceError> {
        let function = self.function(name)?;
        let [from, to] = [self.memory(len)?, self.memory(len)?];
        Ok(self.rounds(n, [from, to], move |this, waits, from, to| {
            function.set(0, Value::Mem(from))?;
            function.set(1, Value::Mem(to))?;
            this.queue
                .launch(&function, [len, 1, 1], [group, 1, 1], waits)
        }))
    }

    /// Builds a chain of commands, each of which reads the previous result. The two buffers
    /// alternate.
    fn rounds<'a>(
        &'a self,
        n: usize,
        buffers: [Mem; 2],
        enqueue: impl Fn(&Self, &Waits, &Mem, &Mem) -> Result<Event, Code> + 'a,
    ) -> Rounds<'a> {
        Box::new(move || {
            let started = Instant::now();
            let mut waits = Waits::default();
            let mut all = || {
                let mut last: Option<Event> = None;
                for index in 0..n {
                    waits.clear();
                    if let Some(last) = &last {
                        waits.push(last);
                    }
                    let (from, to) = (&buffers[index % 2], &buffers[(index + 1) % 2]);
                    last = Some(enqueue(self, &waits, from, to)?);
                }
                self.queue.finish()
            };
            let finished = all();
            self.time(started, "executing kernels", finished)
        })
    }

    fn time(
        &self,
        started: Instant,
        doing: &str,
        finished: Result<(), Code>,
    ) -> Result<Duration, DeviceError> {
        finished.map_err(|code| failed(&self.description, doing, code))?;
        Ok(started.elapsed())
    }

    fn function(&self, name: &str) -> Result<Function, DeviceError> {
        let function = ffi::text(name).and_then(|name| Function::new(&self.program, &name));
        function.map_err(|code| failed(&self.description, name, code))
    }

    /// Allocates memory of `len` floats, all 1.
    fn memory(&self, len: usize) -> Result<Mem, DeviceError> {
        let made = || {
            let mem = Mem::new(&self.context, 4 * len, false)?;
            let ones = 1f32.to_ne_bytes().repeat(len);
            let waits = Waits::default();
            self.queue.write(&mem, ones, |ones| ones, &waits)?;
            self.queue.finish()?;
            Ok(mem)
        };
        made().map_err(|code| failed(&self.description, "filling memory", code))
    }
}

fn failed(device: &str, doing: &str, code: Code) -> DeviceError {
    DeviceError::Failed {
        device: device.to_owned(),
        message: format!("{doing}: {code}"),
    }
}
