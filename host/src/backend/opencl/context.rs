//! Copies to and from a device's memory.

use std::any::Any;
use std::sync::Arc;
use std::sync::mpsc;

use super::memory::MappedMemory;
use super::memory::SyclAllocator;
use super::memory::SyclMemory;
use super::memory::memory_of;
use super::stream::Arrived;
use super::stream::Command;
use super::stream::Source;
use super::stream::Stream;
use crate::device::CopyDone;
use crate::device::DeviceContext;
use crate::device::DeviceError;
use crate::device::KernelError;
use crate::tensor::Allocator;
use crate::tensor::Buffer;
use crate::tensor::HostAllocator;
use crate::tensor::Tensor;
use crate::tensor::TensorError;

/// Tensors of at least this many bytes are shared with a device that uses host memory, rather than
/// copied: creating a buffer costs about as much as copying this.
const SHARED_BYTES_MIN: usize = 16 << 10;

/// Copying tensors of at most this many bytes takes less time than waking the device's thread for
/// it.
const SMALL_BYTES_MAX: usize = 16 << 10;

/// The only device context of a device: one queue orders all commands by the buffers that they read
/// and write.
#[derive(Debug)]
pub(super) struct SyclContext {
    name: String,
    memory: Arc<SyclAllocator>,
    stream: Arc<Stream>,
    /// Host memory for copies that the caller keeps.
    host: HostAllocator,
}

impl SyclContext {
    pub(super) fn new(name: &str, memory: Arc<SyclAllocator>, stream: Arc<Stream>) -> Self {
        Self {
            name: name.to_owned(),
            memory,
            stream,
            host: HostAllocator::new(format!("{name} (copies)"), u64::MAX),
        }
    }

    /// Allocates an uninitialised tensor of the same type and shape in the device's memory.
    fn like(&self, tensor: &Tensor) -> Result<Tensor, KernelError> {
        let buffer = self.memory.uninitialized(tensor.len_bytes());
        let buffer = buffer.map_err(TensorError::from)?;
        Ok(Tensor::from_buffer(
            tensor.dtype(),
            tensor.shape().clone(),
            buffer,
        )?)
    }

    /// Returns the buffer and memory of a tensor of this device.
    fn parts<'a>(&self, tensor: &'a Tensor) -> Result<(&'a Buffer, &'a SyclMemory), KernelError> {
        let own = parts(tensor).filter(|(buffer, _)| buffer.memory_id() == self.memory.memory_id());
        own.ok_or_else(|| {
            KernelError::invalid(format!(
                "a tensor ({tensor:?}) is not in the memory of {}; transfer it first",
                self.name
            ))
        })
    }

    /// Copies a tensor to the host. A tensor without device memory is returned at once.
    fn copy(&self, tensor: &Tensor, is_awaited: bool, done: CopyDone) {
        if tensor.buffer().is_none() {
            return done.call(Ok(tensor.clone()));
        }
        if tensor.len_bytes() == 0 {
            let empty = Tensor::from_bytes(tensor.dtype(), tensor.shape().clone(), &[]);
            return done.call(empty.map_err(KernelError::from));
        }
        self.start_copy(tensor, is_awaited, done);
    }

    /// Starts a copy to the host. `is_awaited`: the caller waits for it.
    fn start_copy(&self, tensor: &Tensor, is_awaited: bool, done: CopyDone) {
        let (buffer, memory) = match self.parts(tensor) {
            Ok(parts) => parts,
            Err(error) => return done.call(Err(error)),
        };
        let (dtype, shape) = (tensor.dtype(), tensor.shape().clone());
        let len_bytes = buffer.len_bytes();
        let from = Arc::clone(memory.raw());
        let (owner, stream) = (buffer.clone(), Arc::clone(&self.stream));
        let arrived = move |arrived: Result<Arrived, DeviceError>| {
            let tensor = arrived.map_err(KernelError::from).and_then(|arrived| {
                let buffer = match arrived {
                    Arrived::Copied(buffer) => buffer,
                    Arrived::Mapped(mapped) => {
                        Buffer::new(Arc::new(MappedMemory::new(mapped, owner, stream)))
                    }
                };
                Ok(Tensor::from_buffer(dtype, shape, buffer)?)
            });
            done.call(tensor);
        };
        let command = if self.memory.is_unified() && len_bytes >= SHARED_BYTES_MIN {
            Command::Map {
                of: from,
                len_bytes,
                done: Box::new(arrived),
            }
        } else {
            match self.host.allocate(len_bytes) {
                Ok(to) => Command::Read {
                    from,
                    to,
                    done: Box::new(arrived),
                },
                Err(full) => return arrived(Err(full.into())),
            }
        };
        let started = if is_awaited {
            self.stream.try_execute_and_finish(command)
        } else {
            self.stream.try_send_later(command)
        };
        if let Err((command, lost)) = started
            && let Command::Map { done, .. } | Command::Read { done, .. } = *command
        {
            done(Err(lost));
        }
    }
}

/// Returns the memory of a tensor that is on any device of this backend.
pub(super) fn parts(tensor: &Tensor) -> Option<(&Buffer, &SyclMemory)> {
    let buffer = tensor.buffer()?;
    Some((buffer, memory_of(buffer)?))
}

/// Calls back from within a command of a SYCL device, after all earlier commands. Not part of the
/// API: only for tests, which cannot block a device in any other way.
///
/// # Errors
/// If the device is lost, or the context has another type.
#[doc(hidden)]
pub fn call_within_a_command(
    context: &Arc<dyn DeviceContext>,
    call: impl FnOnce() + Send + 'static,
) -> Result<(), DeviceError> {
    let context: &dyn Any = &**context;
    let context = context.downcast_ref::<SyclContext>().ok_or_else(|| {
        DeviceError::InvalidArgument("the context does not belong to a SYCL device".to_owned())
    })?;
    let done = Box::new(|_| call());
    context.stream.send(Command::Finish { step: None, done })
}

impl DeviceContext for SyclContext {
    fn copy_from_host(&self, tensor: &Tensor) -> Result<Tensor, KernelError> {
        // Strings and handles belong to the host, whatever the device.
        if tensor.buffer().is_none() {
            return Ok(tensor.clone());
        }
        let len_bytes = tensor.len_bytes();
        if len_bytes >= SHARED_BYTES_MIN && self.memory.can_share(tensor.as_bytes()?) {
            let buffer = self.memory.over_host(tensor)?;
            return Ok(Tensor::from_buffer(
                tensor.dtype(),
                tensor.shape().clone(),
                buffer,
            )?);
        }
        tensor.as_bytes()?;
        let copy = self.like(tensor)?;
        if len_bytes > 0 {
            let (_, memory) = self.parts(&copy)?;
            let write = Command::Write {
                from: tensor.clone(),
                to: Arc::clone(memory.raw()),
            };
            if len_bytes <= SMALL_BYTES_MAX {
                self.stream.send_small(write)?;
            } else {
                self.stream.send(write)?;
            }
        }
        Ok(copy)
    }

    fn copy_to_host(&self, tensor: &Tensor) -> Result<Tensor, KernelError> {
        let (sender, receiver) = mpsc::channel();
        // The receiver may be gone.
        let done = CopyDone::new(move |copied| drop(sender.send(copied)));
        self.copy(tensor, true, done);
        receiver.recv().unwrap_or_else(|_| {
            Err(KernelError::invalid(
                "the device has lost the copy: it dropped the callback instead of calling it",
            ))
        })
    }

    fn copy_on_device(&self, tensor: &Tensor) -> Result<Tensor, KernelError> {
        if tensor.buffer().is_none() {
            return Ok(tensor.clone());
        }
        let (_, from) = self.parts(tensor)?;
        let copy = self.like(tensor)?;
        if tensor.len_bytes() > 0 {
            let (_, to) = self.parts(&copy)?;
            self.stream.send(Command::Copy {
                from: Arc::clone(from.raw()),
                to: Arc::clone(to.raw()),
                len_bytes: tensor.len_bytes(),
                source: None,
            })?;
        }
        Ok(copy)
    }

    fn copies_are_async(&self) -> bool {
        true
    }

    fn shared_bytes_min(&self) -> Option<usize> {
        self.memory.is_unified().then_some(SHARED_BYTES_MIN)
    }

    fn copy_to_host_async(&self, tensor: &Tensor, done: CopyDone) {
        self.copy(tensor, false, done);
    }

    fn copy_from_device(
        &self,
        tensor: &Tensor,
        source: &Arc<dyn DeviceContext>,
    ) -> Option<Result<Tensor, KernelError>> {
        let source: &dyn Any = &**source;
        let source = source.downcast_ref::<Self>()?;
        if !self.memory.shares_context_with(&source.memory) {
            return None;
        }
        let (owner, from) = source.parts(tensor).ok()?;
        let copied = || {
            let copy = self.like(tensor)?;
            if tensor.len_bytes() > 0 {
                let (_, to) = self.parts(&copy)?;
                self.stream.send(Command::Copy {
                    from: Arc::clone(from.raw()),
                    to: Arc::clone(to.raw()),
                    len_bytes: tensor.len_bytes(),
                    source: Some(Source {
                        after: source.stream.now(),
                        owner: owner.clone(),
                    }),
                })?;
            }
            Ok(copy)
        };
        Some(copied())
    }
}
