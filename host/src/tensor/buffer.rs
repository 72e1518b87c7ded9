//! Memory that tensors stand in, and who hands it out.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Identity of one memory (one allocator): a tensor whose memory is not its reader's must be transferred first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MemoryId(u32);

impl MemoryId {
    /// An identity that no other memory of this process has.
    #[expect(clippy::new_without_default, reason = "each call gives another value")]
    pub fn new() -> Self {
        // Identities only: no state is shared through it, so two sessions still never meet.
        static NEXT: AtomicU32 = AtomicU32::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// One allocation. Host memory shows its bytes; device memory (which is an opaque handle) shows none.
pub trait Memory: Send + Sync + fmt::Debug + std::any::Any {
    /// Which memory this allocation belongs to.
    fn id(&self) -> MemoryId;
    /// Length, in bytes.
    fn len_bytes(&self) -> usize;
    /// The bytes, where the host can read them.
    fn as_host_bytes(&self) -> Option<&[u8]>;
    /// The same to write; the caller holds the only reference.
    fn as_host_bytes_mut(&mut self) -> Option<&mut [u8]>;
}

/// The allocator has no room.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{allocator}: out of memory: asked for {requested_bytes} bytes, {in_use_bytes} of {limit_bytes} in use"
)]
pub struct OutOfMemory {
    /// Name of the allocator.
    pub allocator: String,
    /// What was asked for.
    pub requested_bytes: usize,
    /// What was out at the time.
    pub in_use_bytes: u64,
    /// What it may hand out.
    pub limit_bytes: u64,
}

/// What an allocator has handed out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AllocatorStats {
    /// Bytes out now.
    pub in_use_bytes: u64,
    /// Most bytes that were out at one time.
    pub peak_bytes: u64,
    /// Allocations so far.
    pub n_allocations: u64,
}

/// Hands out the memory of one device.
pub trait Allocator: Send + Sync + fmt::Debug {
    /// Name for errors and reports, such as `cpu:0`.
    fn name(&self) -> &str;
    /// The memory that allocations belong to.
    fn memory_id(&self) -> MemoryId;
    /// `len_bytes` bytes, zeroed, aligned to 64.
    ///
    /// # Errors
    /// [`OutOfMemory`] when the limit, or the system, has no room.
    fn allocate(&self, len_bytes: usize) -> Result<Buffer, OutOfMemory>;
    /// What is out.
    fn stats(&self) -> AllocatorStats;
}

/// A piece of an allocation, shared by the tensors that view it.
#[derive(Debug, Clone)]
pub struct Buffer {
    memory: Arc<dyn Memory>,
    offset_bytes: usize,
    len_bytes: usize,
}

impl Buffer {
    /// The whole of `memory`.
    pub fn new(memory: Arc<dyn Memory>) -> Self {
        let len_bytes = memory.len_bytes();
        Self {
            memory,
            offset_bytes: 0,
            len_bytes,
        }
    }

    /// Which memory the bytes are in.
    pub fn memory_id(&self) -> MemoryId {
        self.memory.id()
    }

    /// The allocation.
    pub fn memory(&self) -> &Arc<dyn Memory> {
        &self.memory
    }

    /// Length, in bytes.
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// Where the piece starts in its allocation, in bytes.
    pub fn offset_bytes(&self) -> usize {
        self.offset_bytes
    }

    /// A part of this piece; `None` if it would reach beyond the end.
    #[must_use]
    pub fn slice(&self, offset_bytes: usize, len_bytes: usize) -> Option<Self> {
        let end = offset_bytes.checked_add(len_bytes)?;
        (end <= self.len_bytes).then(|| Self {
            memory: Arc::clone(&self.memory),
            offset_bytes: self.offset_bytes + offset_bytes,
            len_bytes,
        })
    }

    /// The bytes, where the host can read them.
    pub fn as_host_bytes(&self) -> Option<&[u8]> {
        self.memory
            .as_host_bytes()
            .map(|bytes| &bytes[self.offset_bytes..self.offset_bytes + self.len_bytes])
    }

    /// The same to write: only while nobody else holds the allocation.
    pub fn as_host_bytes_mut(&mut self) -> Option<&mut [u8]> {
        let range = self.offset_bytes..self.offset_bytes + self.len_bytes;
        Arc::get_mut(&mut self.memory)?
            .as_host_bytes_mut()
            .map(|bytes| &mut bytes[range])
    }
}

/// 64 bytes at a multiple of 64: the unit of host memory, wide enough for every vector load.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// Memory of the host.
pub struct HostMemory {
    id: MemoryId,
    lines: Vec<Line>,
    len_bytes: usize,
    accounting: Option<Arc<Accounting>>,
}

impl HostMemory {
    /// `bytes`, copied, outside every allocator's accounting.
    pub fn from_bytes(id: MemoryId, bytes: &[u8]) -> Self {
        let mut memory = Self::zeroed(id, bytes.len());
        bytemuck::cast_slice_mut(&mut memory.lines)[..bytes.len()].copy_from_slice(bytes);
        memory
    }

    fn zeroed(id: MemoryId, len_bytes: usize) -> Self {
        // `vec!` of zeroes asks the system for zeroed pages, so large buffers are not written twice.
        Self {
            id,
            lines: vec![bytemuck::Zeroable::zeroed(); len_bytes.div_ceil(64)],
            len_bytes,
            accounting: None,
        }
    }
}

impl fmt::Debug for HostMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostMemory")
            .field("id", &self.id)
            .field("len_bytes", &self.len_bytes)
            .finish_non_exhaustive()
    }
}

impl Memory for HostMemory {
    fn id(&self) -> MemoryId {
        self.id
    }

    fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    fn as_host_bytes(&self) -> Option<&[u8]> {
        Some(&bytemuck::cast_slice(&self.lines)[..self.len_bytes])
    }

    fn as_host_bytes_mut(&mut self) -> Option<&mut [u8]> {
        Some(&mut bytemuck::cast_slice_mut(&mut self.lines)[..self.len_bytes])
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        if let Some(accounting) = &self.accounting {
            accounting
                .in_use_bytes
                .fetch_sub(self.len_bytes as u64, Ordering::Relaxed);
        }
    }
}

#[derive(Debug, Default)]
struct Accounting {
    in_use_bytes: AtomicU64,
    peak_bytes: AtomicU64,
    n_allocations: AtomicU64,
}

/// Hands out host memory up to a limit.
#[derive(Debug)]
pub struct HostAllocator {
    name: String,
    id: MemoryId,
    limit_bytes: u64,
    accounting: Arc<Accounting>,
}

impl HostAllocator {
    /// An allocator of a memory of its own; `u64::MAX` = no limit.
    pub fn new(name: impl Into<String>, limit_bytes: u64) -> Self {
        Self {
            name: name.into(),
            id: MemoryId::new(),
            limit_bytes,
            accounting: Arc::default(),
        }
    }
}

impl Allocator for HostAllocator {
    fn name(&self) -> &str {
        &self.name
    }

    fn memory_id(&self) -> MemoryId {
        self.id
    }

    fn allocate(&self, len_bytes: usize) -> Result<Buffer, OutOfMemory> {
        let requested = len_bytes as u64;
        let accounting = &self.accounting;
        let refused = |in_use_bytes| OutOfMemory {
            allocator: self.name.clone(),
            requested_bytes: len_bytes,
            in_use_bytes,
            limit_bytes: self.limit_bytes,
        };
        let before = accounting
            .in_use_bytes
            .try_update(Ordering::Relaxed, Ordering::Relaxed, |in_use| {
                in_use
                    .checked_add(requested)
                    .filter(|&sum| sum <= self.limit_bytes)
            })
            .map_err(refused)?;
        accounting
            .peak_bytes
            .fetch_max(before + requested, Ordering::Relaxed);
        accounting.n_allocations.fetch_add(1, Ordering::Relaxed);
        // The system's own refusal must be an answer, not an abort.
        let mut probe: Vec<Line> = Vec::new();
        if len_bytes > 1 << 30 && probe.try_reserve_exact(len_bytes.div_ceil(64)).is_err() {
            accounting
                .in_use_bytes
                .fetch_sub(requested, Ordering::Relaxed);
            return Err(refused(before));
        }
        drop(probe);
        let mut memory = HostMemory::zeroed(self.id, len_bytes);
        memory.accounting = Some(Arc::clone(accounting));
        Ok(Buffer::new(Arc::new(memory)))
    }

    fn stats(&self) -> AllocatorStats {
        AllocatorStats {
            in_use_bytes: self.accounting.in_use_bytes.load(Ordering::Relaxed),
            peak_bytes: self.accounting.peak_bytes.load(Ordering::Relaxed),
            n_allocations: self.accounting.n_allocations.load(Ordering::Relaxed),
        }
    }
}
