//! Memory of a device: the allocator and its pool.
//!
//! Buffers return to a pool when their tensors are dropped, although the device may still use them:
//! the commands of the next owner wait for those ([`super::stream`]).

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;

use super::buffer::RawBuffer;
use super::discover::DeviceFacts;
use super::ffi::Context;
use super::ffi::Mapped;
use super::ffi::Mem;
use super::stream::Command;
use super::stream::Stream;
use crate::device::DeviceError;
use crate::device::KernelError;
use crate::tensor::Allocator;
use crate::tensor::AllocatorStats;
use crate::tensor::Buffer;
use crate::tensor::Memory;
use crate::tensor::MemoryId;
use crate::tensor::OutOfMemory;
use crate::tensor::Tensor;
use crate::tensor::TensorError;

/// Smallest buffer, in bytes.
const UNIT_BYTES: usize = 256;

/// Allocates the memory of one device, up to its capacity.
#[derive(Debug)]
pub(super) struct SyclAllocator {
    name: String,
    id: MemoryId,
    context: Arc<Context>,
    stream: Arc<Stream>,
    pool: Arc<Pool>,
    /// Whether the host and the device share memory.
    is_unified: bool,
    /// The alignment of host memory that can be shared.
    alignment_bytes: usize,
}

impl SyclAllocator {
    pub(super) fn new(
        name: &str,
        capacity_bytes: u64,
        context: Arc<Context>,
        stream: Arc<Stream>,
        facts: &DeviceFacts,
    ) -> Self {
        Self {
            name: name.to_owned(),
            id: MemoryId::new(),
            context,
            stream,
            pool: Arc::new(Pool {
                capacity_bytes,
                state: Mutex::default(),
            }),
            is_unified: facts.is_unified,
            alignment_bytes: facts.alignment_bytes,
        }
    }

    pub(super) fn capacity_bytes(&self) -> u64 {
        self.pool.capacity_bytes
    }

    pub(super) fn is_unified(&self) -> bool {
        self.is_unified
    }

    /// Returns whether the device can use these bytes of the host in place.
    pub(super) fn can_share(&self, bytes: &[u8]) -> bool {
        self.is_unified && bytes.as_ptr().addr().is_multiple_of(self.alignment_bytes)
    }

    /// Returns whether buffers of the other device are in the same OpenCL context, so that one
    /// device can copy from the other.
    pub(super) fn shares_context_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.context, &other.context)
    }

    /// Allocates uninitialised memory.
    pub(super) fn uninitialized(&self, len_bytes: usize) -> Result<Buffer, OutOfMemory> {
        let raw = self.raw(len_bytes)?;
        Ok(Buffer::new(Arc::new(SyclMemory {
            id: self.id,
            len_bytes,
            raw,
            pool: Arc::clone(&self.pool),
            is_pooled: true,
        })))
    }

    /// Wraps the bytes of a tensor on the host, for a device that shares host memory.
    pub(super) fn over_host(&self, tensor: &Tensor) -> Result<Buffer, KernelError> {
        let len_bytes = tensor.len_bytes();
        tensor.as_bytes()?; // Fails for tensors without bytes.
        self.pool
            .reserve(len_bytes)
            .map_err(|in_use| TensorError::from(self.full(len_bytes, in_use)))?;
        let mem = Mem::over(&self.context, tensor.clone(), |tensor| {
            tensor.as_bytes().unwrap_or_default()
        });
        match mem {
            Ok(mem) => Ok(Buffer::new(Arc::new(SyclMemory {
                id: self.id,
                len_bytes,
                raw: Arc::new(RawBuffer::new(mem, len_bytes)),
                pool: Arc::clone(&self.pool),
                is_pooled: false,
            }))),
            Err(code) => {
                self.pool.state().release(len_bytes);
                Err(DeviceError::Failed {
                    device: self.name.clone(),
                    message: format!("sharing {len_bytes} bytes of the host's memory: {code}"),
                }
                .into())
            }
        }
    }

    fn full(&self, requested_bytes: usize, in_use_bytes: u64) -> OutOfMemory {
        OutOfMemory {
            allocator: self.name.clone(),
            requested_bytes,
            in_use_bytes,
            limit_bytes: self.pool.capacity_bytes,
        }
    }

    fn raw(&self, len_bytes: usize) -> Result<Arc<RawBuffer>, OutOfMemory> {
        let class = class_bytes(len_bytes);
        let found = self
            .pool
            .take(len_bytes, class)
            .map_err(|in_use| self.full(len_bytes, in_use))?;
        if let Some(raw) = found {
            return Ok(raw);
        }
        let create = |len| {
            let mem = Mem::new(&self.context, len, self.is_unified)?;
            Ok::<_, super::ffi::Code>(Arc::new(RawBuffer::new(mem, len)))
        };
        // A driver without free memory may have some after unused buffers are released, or may
        // reject buffers of the class's length.
        let created = create(class).or_else(|_| {
            drop(self.pool.empty());
            create(class).or_else(|_| create(len_bytes.max(1)))
        });
        created.map_err(|_| {
            let mut state = self.pool.state();
            state.release(len_bytes);
            self.full(len_bytes, state.in_use_bytes)
        })
    }
}

impl Allocator for SyclAllocator {
    fn name(&self) -> &str {
        &self.name
    }

    fn memory_id(&self) -> MemoryId {
        self.id
    }

    fn allocate(&self, len_bytes: usize) -> Result<Buffer, OutOfMemory> {
        let buffer = self.uninitialized(len_bytes)?;
        if len_bytes > 0
            && let Some(memory) = memory_of(&buffer)
        {
            // A lost device reports this to the reader of the memory.
            self.stream.send_anyway(Command::Zero {
                of: Arc::clone(&memory.raw),
                len_bytes,
            });
        }
        Ok(buffer)
    }

    fn stats(&self) -> AllocatorStats {
        let state = self.pool.state();
        AllocatorStats {
            in_use_bytes: state.in_use_bytes,
            peak_bytes: state.peak_bytes,
            n_allocations: state.n_allocations,
        }
    }
}

/// Rounds up the length of a buffer. There are eight steps between two powers of two, so that a
/// buffer fits many tensors and wastes at most an eighth.
fn class_bytes(len_bytes: usize) -> usize {
    let step = (len_bytes.checked_next_power_of_two().unwrap_or(UNIT_BYTES) / 16).max(UNIT_BYTES);
    len_bytes
        .max(1)
        .checked_next_multiple_of(step)
        .unwrap_or(len_bytes)
}

/// Free buffers, and the bytes in use.
#[derive(Debug)]
pub(super) struct Pool {
    capacity_bytes: u64,
    state: Mutex<PoolState>,
}

#[derive(Debug, Default)]
struct PoolState {
    /// Free buffers by length.
    free: BTreeMap<usize, Vec<Arc<RawBuffer>>>,
    free_bytes: u64,
    /// Requested bytes of tensors.
    in_use_bytes: u64,
    peak_bytes: u64,
    n_allocations: u64,
}

impl Pool {
    fn state(&self) -> MutexGuard<'_, PoolState> {
        // Nothing panics under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts `len_bytes`; if they do not fit, fails with the bytes in use.
    fn reserve(&self, len_bytes: usize) -> Result<(), u64> {
        let mut state = self.state();
        let before = state.in_use_bytes;
        let after = before.checked_add(len_bytes as u64);
        let after = after
            .filter(|&bytes| bytes <= self.capacity_bytes)
            .ok_or(before)?;
        state.in_use_bytes = after;
        state.peak_bytes = state.peak_bytes.max(after);
        state.n_allocations += 1;
        Ok(())
    }

    /// Counts `len_bytes`, and takes a free buffer of the class if there is one. If a new buffer is
    /// needed, free buffers of other classes are released until it fits.
    fn take(&self, len_bytes: usize, class: usize) -> Result<Option<Arc<RawBuffer>>, u64> {
        self.reserve(len_bytes)?;
        let mut state = self.state();
        if let Some(raw) = state.free.get_mut(&class).and_then(Vec::pop) {
            state.free_bytes -= class as u64;
            return Ok(Some(raw));
        }
        let mut dropped = Vec::new();
        while state.in_use_bytes.saturating_add(state.free_bytes) > self.capacity_bytes
            && let Some(raw) = state.pop_largest()
        {
            dropped.push(raw);
        }
        drop(state);
        drop(dropped);
        Ok(None)
    }

    /// Removes all free buffers.
    fn empty(&self) -> Vec<Arc<RawBuffer>> {
        let mut state = self.state();
        state.free_bytes = 0;
        std::mem::take(&mut state.free)
            .into_values()
            .flatten()
            .collect()
    }
}

impl PoolState {
    fn release(&mut self, len_bytes: usize) {
        self.in_use_bytes = self.in_use_bytes.saturating_sub(len_bytes as u64);
    }

    fn pop_largest(&mut self) -> Option<Arc<RawBuffer>> {
        while let Some(mut largest) = self.free.last_entry() {
            let (raw, class) = (largest.get_mut().pop(), *largest.key());
            if largest.get().is_empty() {
                largest.remove();
            }
            if let Some(raw) = raw {
                self.free_bytes -= class as u64;
                return Some(raw);
            }
        }
        None
    }
}

/// One tensor's memory.
pub(super) struct SyclMemory {
    id: MemoryId,
    len_bytes: usize,
    raw: Arc<RawBuffer>,
    pool: Arc<Pool>,
    is_pooled: bool,
}

impl SyclMemory {
    pub(super) fn raw(&self) -> &Arc<RawBuffer> {
        &self.raw
    }
}

impl Memory for SyclMemory {
    fn id(&self) -> MemoryId {
        self.id
    }

    fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    fn as_host_bytes(&self) -> Option<&[u8]> {
        None
    }

    fn as_host_bytes_mut(&mut self) -> Option<&mut [u8]> {
        None
    }
}

impl Drop for SyclMemory {
    fn drop(&mut self) {
        let mut state = self.pool.state();
        state.release(self.len_bytes);
        let class = self.raw.len_bytes as u64;
        let kept = state.in_use_bytes.saturating_add(state.free_bytes);
        if self.is_pooled && kept.saturating_add(class) <= self.pool.capacity_bytes {
            state.free_bytes += class;
            let raw = Arc::clone(&self.raw);
            state.free.entry(raw.len_bytes).or_default().push(raw);
        }
    }
}

impl fmt::Debug for SyclMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SyclMemory")
            .field("id", &self.id)
            .field("len_bytes", &self.len_bytes)
            .finish_non_exhaustive()
    }
}

/// Returns the device memory of a buffer, if it has any.
pub(super) fn memory_of(buffer: &Buffer) -> Option<&SyclMemory> {
    let memory: &dyn Any = &**buffer.memory()?;
    memory.downcast_ref()
}

/// Bytes in a device's memory that the host reads in place.
#[derive(Debug)]
pub(super) struct MappedMemory {
    id: MemoryId,
    mapped: Option<Mapped>,
    /// The mapped tensor of the device.
    owner: Option<Buffer>,
    stream: Arc<Stream>,
}

impl MappedMemory {
    pub(super) fn new(mapped: Mapped, owner: Buffer, stream: Arc<Stream>) -> Self {
        Self {
            id: MemoryId::new(),
            mapped: Some(mapped),
            owner: Some(owner),
            stream,
        }
    }
}

impl Memory for MappedMemory {
    fn id(&self) -> MemoryId {
        self.id
    }

    fn len_bytes(&self) -> usize {
        self.owner.as_ref().map_or(0, Buffer::len_bytes)
    }

    fn as_host_bytes(&self) -> Option<&[u8]> {
        self.mapped.as_ref().map(Mapped::bytes)
    }

    /// None: others may be reading, and the device's tensor must not change.
    fn as_host_bytes_mut(&mut self) -> Option<&mut [u8]> {
        None
    }
}

impl Drop for MappedMemory {
    fn drop(&mut self) {
        if let (Some(mapped), Some(owner)) = (self.mapped.take(), self.owner.take())
            && let Some(memory) = memory_of(&owner)
        {
            let of = Arc::clone(memory.raw());
            self.stream
                .send_anyway(Command::Unmap { of, mapped, owner });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_buffers_waste_an_eighth_at_most() {
        for len in (1..5000).chain([1 << 20, (1 << 20) + 1, 3_000_000, usize::MAX]) {
            let class = class_bytes(len);
            assert!(class >= len);
            assert!(
                class <= UNIT_BYTES.max(len.saturating_add(len / 8 + UNIT_BYTES)),
                "{len} {class}"
            );
        }
    }
}
