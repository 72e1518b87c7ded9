//! Copies to and from a GPU's memory.

use std::any::Any;
use std::collections::VecDeque;
use std::mem;
use std::num::NonZero;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering;

use super::driver::DriverError;
use super::driver::Span;
use super::group::Group;
use super::lane::Lane;
use super::lane::Ticket;
use super::lane::Use;
use super::memory::GpuMemory;
use super::memory::parts;
use super::open_gpu::OpenGpu;
use super::open_gpu::device_error;
use super::pinned::PinnedMemory;
use super::pinned::pinned_span;
use crate::device::CopyDone;
use crate::device::DeviceContext;
use crate::device::KernelError;
use crate::tensor::Allocator;
use crate::tensor::Buffer;
use crate::tensor::Tensor;
use crate::tensor::TensorError;

/// Pageable memory is copied to the GPU in pieces of this many bytes: while the card copies one,
/// the host copies the next into pinned memory.
const PIECE_BYTES: usize = 4 << 20;

/// Maximum number of pieces in flight, and of threads that copy them.
const PIECES_MAX: usize = 4;

/// Number of pieces from which several threads copy: starting them takes some 50 us.
const STAGED_BY_THREADS_MIN: usize = 4;

/// The device context of one compute stream of a GPU device.
#[derive(Debug)]
pub(super) struct GpuContext {
    name: String,
    group: Arc<Group>,
    /// Index of the compute stream within the group.
    compute: usize,
    /// Index of the next stream for copies from devices.
    next_copy: AtomicUsize,
}

impl GpuContext {
    pub(super) fn new(name: &str, group: &Arc<Group>, compute: usize) -> Self {
        Self {
            name: name.to_owned(),
            group: Arc::clone(group),
            compute,
            next_copy: AtomicUsize::new(0),
        }
    }

    /// Returns the stream of the nodes' kernels.
    pub(super) fn lane(&self) -> &Arc<Lane> {
        &self.group.compute[self.compute]
    }

    /// Returns scratch memory for kernels of this stream; `None` if memory is short.
    pub(super) fn scratch(&self) -> Option<&Buffer> {
        self.group.scratch(self.compute)
    }

    /// Returns the GPU, for work outside of the device.
    #[cfg(feature = "cli")]
    pub(super) fn gpu(&self) -> &Arc<OpenGpu> {
        &self.group.gpu
    }

    /// Returns whether this is a context of the group's device.
    pub(super) fn is_of(&self, group: &Arc<Group>) -> bool {
        Arc::ptr_eq(&self.group, group)
    }

    fn failed(&self, doing: &str, error: &DriverError) -> KernelError {
        device_error(&self.name, None, doing, error).into()
    }

    /// Allocates an uninitialised tensor of the same type and shape in the GPU's memory.
    fn like(&self, tensor: &Tensor) -> Result<Tensor, KernelError> {
        let buffer = self.group.uninitialized(&self.name, tensor.len_bytes())?;
        Ok(Tensor::from_buffer(
            tensor.dtype(),
            tensor.shape().clone(),
            buffer,
        )?)
    }

    /// Returns the span of a tensor of this device.
    fn parts<'a>(&self, tensor: &'a Tensor) -> Result<(Span, &'a GpuMemory), KernelError> {
        own_parts(&self.group, tensor).ok_or_else(|| not_here(&self.name, tensor))
    }

    fn pinned(&self, len_bytes: usize) -> Result<PinnedMemory, KernelError> {
        let pinned = self.group.pinned.uninitialized(len_bytes);
        Ok(pinned.map_err(TensorError::from)?)
    }

    /// Copies from pinned memory, which is kept until the copy has ended.
    fn give_from_host(
        &self,
        from: Span,
        kept: Box<dyn Any + Send>,
        to: Span,
        memory: &GpuMemory,
    ) -> Result<Ticket, KernelError> {
        self.group
            .from_host
            .give(
                &[Use::Writes(memory.uses())],
                None,
                Some(kept),
                // SAFETY: the source is kept; the destination is released with its uses.
                |driver, stream| unsafe { driver.copy(stream, to, from) },
            )
            .map_err(|error| self.failed("copying from the host", &error))
    }

    /// Copies pageable memory through pinned memory. Returns after the bytes have been read.
    fn stage(&self, bytes: &[u8], to: Span, memory: &GpuMemory) -> Result<(), KernelError> {
        let n_pieces = bytes.len().div_ceil(PIECE_BYTES);
        if n_pieces < STAGED_BY_THREADS_MIN {
            return self.stage_pieces(bytes, to, memory, [0, 1]);
        }
        // One thread copies slower than the card does.
        let n_threads = std::thread::available_parallelism().map_or(1, NonZero::get);
        let n_threads = n_threads.min(PIECES_MAX);
        std::thread::scope(|scope| {
            let stage = move |part| self.stage_pieces(bytes, to, memory, [part, n_threads]);
            let start = |part| std::thread::Builder::new().spawn_scoped(scope, move || stage(part));
            let others: Vec<_> = (1..n_threads).map(|part| (part, start(part))).collect();
            let mut staged = stage(0);
            for (part, other) in others {
                let other = match other {
                    Ok(other) => other.join().unwrap_or_else(|panic| resume_unwind(panic)),
                    // The system starts no more threads.
                    Err(_) => stage(part),
                };
                staged = staged.and(other);
            }
            staged
        })
    }

    /// Copies every `step`-th piece from `first` on.
    fn stage_pieces(
        &self,
        bytes: &[u8],
        to: Span,
        memory: &GpuMemory,
        [first, step]: [usize; 2],
    ) -> Result<(), KernelError> {
        let in_flight_max = PIECES_MAX.div_ceil(step);
        let mut tickets = VecDeque::new();
        for (index, piece) in bytes
            .chunks(PIECE_BYTES)
            .enumerate()
            .skip(first)
            .step_by(step)
        {
            if tickets.len() == in_flight_max
                && let Some(ticket) = tickets.pop_front()
            {
                let waited = self.group.from_host.wait(ticket);
                waited.map_err(|error| self.failed("copying from the host", &error))?;
            }
            let mut pinned = self.pinned(piece.len())?;
            pinned.bytes_mut().copy_from_slice(piece);
            let to = Span {
                address: to.address + (index * PIECE_BYTES) as u64,
                len_bytes: piece.len(),
            };
            tickets.push_back(self.give_from_host(pinned.span(), Box::new(pinned), to, memory)?);
        }
        Ok(())
    }

    /// Starts a copy to the host; returns its ticket and the memory it is copied to.
    fn start_to_host(&self, tensor: &Tensor) -> Result<(Ticket, PinnedMemory), KernelError> {
        let (from, memory) = self.parts(tensor)?;
        let pinned = self.pinned(from.len_bytes)?;
        let to = pinned.span();
        let ticket = self
            .group
            .to_host
            .give(
                &[Use::Reads(memory.uses())],
                None,
                None,
                // SAFETY: the caller keeps the destination until the end; the source is released
                // with its uses.
                |driver, stream| unsafe { driver.copy(stream, to, from) },
            )
            .map_err(|error| self.failed("copying to the host", &error))?;
        Ok((ticket, pinned))
    }

    /// Returns a tensor that needs no copy: one without device memory is on the host already, and
    /// one without elements has nothing to copy.
    fn without_copy(tensor: &Tensor) -> Option<Result<Tensor, KernelError>> {
        if tensor.buffer().is_none() {
            return Some(Ok(tensor.clone()));
        }
        (tensor.len_bytes() == 0).then(|| {
            let empty = Tensor::from_bytes(tensor.dtype(), tensor.shape().clone(), &[]);
            empty.map_err(KernelError::from)
        })
    }
}

/// Returns the span and memory of a tensor of a group's device.
pub(super) fn own_parts<'a>(group: &Group, tensor: &'a Tensor) -> Option<(Span, &'a GpuMemory)> {
    let buffer = tensor.buffer()?;
    parts(buffer).filter(|_| buffer.memory_id() == group.memory.memory_id())
}

pub(super) fn not_here(name: &str, tensor: &Tensor) -> KernelError {
    KernelError::invalid(format!(
        "a tensor ({tensor:?}) is not in the memory of {name}; transfer it first"
    ))
}

/// Releases memory that a copy with an unknown end may still write. It is never used again, unless
/// the GPU has stopped working.
fn abandon(pinned: PinnedMemory, gpu: &OpenGpu) {
    if !gpu.is_lost() {
        mem::forget(pinned);
    }
}

/// Returns the bytes that have arrived in pinned memory as a tensor like `like`.
fn arrived(like: &Tensor, pinned: PinnedMemory) -> Result<Tensor, KernelError> {
    let buffer = Buffer::new(Arc::new(pinned));
    Ok(Tensor::from_buffer(
        like.dtype(),
        like.shape().clone(),
        buffer,
    )?)
}

impl DeviceContext for GpuContext {
    fn copy_from_host(&self, tensor: &Tensor) -> Result<Tensor, KernelError> {
        // Strings and handles belong to the host, whatever the device.
        let Some(buffer) = tensor.buffer() else {
            return Ok(tensor.clone());
        };
        let bytes = tensor.as_bytes()?;
        let copy = self.like(tensor)?;
        if bytes.is_empty() {
            return Ok(copy);
        }
        let (to, memory) = self.parts(&copy)?;
        match pinned_span(buffer, &self.group.gpu) {
            Some(from) => {
                self.give_from_host(from, Box::new(tensor.clone()), to, memory)?;
            }
            None => self.stage(bytes, to, memory)?,
        }
        Ok(copy)
    }

    fn copy_to_host(&self, tensor: &Tensor) -> Result<Tensor, KernelError> {
        if let Some(there) = Self::without_copy(tensor) {
            return there;
        }
        let (ticket, pinned) = self.start_to_host(tensor)?;
        if let Err(error) = self.group.to_host.wait(ticket) {
            abandon(pinned, &self.group.gpu);
            return Err(self.failed("copying to the host", &error));
        }
        arrived(tensor, pinned)
    }

    fn copy_on_device(&self, tensor: &Tensor) -> Result<Tensor, KernelError> {
        if tensor.buffer().is_none() {
            return Ok(tensor.clone());
        }
        let (from, source) = self.parts(tensor)?;
        let copy = self.like(tensor)?;
        if from.len_bytes > 0 {
            let (to, memory) = self.parts(&copy)?;
            self.lane()
                .give(
                    &[Use::Reads(source.uses()), Use::Writes(memory.uses())],
                    None,
                    None,
                    // SAFETY: both are released with their uses.
                    |driver, stream| unsafe { driver.copy(stream, to, from) },
                )
                .map_err(|error| self.failed("copying", &error))?;
        }
        Ok(copy)
    }

    fn copies_are_async(&self) -> bool {
        true
    }

    fn copy_to_host_async(&self, tensor: &Tensor, done: CopyDone) {
        if let Some(there) = Self::without_copy(tensor) {
            return done.call(there);
        }
        let (ticket, pinned) = match self.start_to_host(tensor) {
            Ok(started) => started,
            Err(error) => return done.call(Err(error)),
        };
        let (dtype, shape, name) = (tensor.dtype(), tensor.shape().clone(), self.name.clone());
        let gpu = Arc::clone(&self.group.gpu);
        let callback = move |ended: Result<(), DriverError>| {
            let copied = match ended {
                Ok(()) => Tensor::from_buffer(dtype, shape, Buffer::new(Arc::new(pinned)))
                    .map_err(KernelError::from),
                Err(error) => {
                    abandon(pinned, &gpu);
                    Err(device_error(&name, None, "copying to the host", &error).into())
                }
            };
            done.call(copied);
        };
        self.group
            .watcher
            .then(&self.group.to_host, ticket, Box::new(callback));
    }

    fn copy_from_device(
        &self,
        tensor: &Tensor,
        source: &Arc<dyn DeviceContext>,
    ) -> Option<Result<Tensor, KernelError>> {
        let source: &dyn Any = &**source;
        let source = source.downcast_ref::<Self>()?;
        let (from, read) = own_parts(&source.group, tensor)?;
        if !self.group.gpu.reaches(read.gpu()) {
            return None;
        }
        if read.gpu().is_lost() {
            let lost = read.gpu().lost_to_others();
            return Some(Err(self.failed("copying from a device", &lost)));
        }
        let copied = || {
            let copy = self.like(tensor)?;
            if from.len_bytes == 0 {
                return Ok(copy);
            }
            let (to, written) = self.parts(&copy)?;
            let lanes = &self.group.from_devices;
            let index = self.next_copy.fetch_add(1, Ordering::Relaxed) % lanes.len();
            lanes[index]
                .give(
                    &[Use::Reads(read.uses()), Use::Writes(written.uses())],
                    None,
                    None,
                    // SAFETY: both are released with their uses.
                    |driver, stream| unsafe { driver.copy(stream, to, from) },
                )
                .map_err(|error| self.failed("copying from a device", &error))?;
            Ok(copy)
        };
        Some(copied())
    }
}
