//! Memory that tensors stand in, and who hands it out.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Identity of one memory (one allocator): a tensor whose memory is not its reader's must be
/// transferred first.
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

/// One allocation. Host memory shows its bytes; device memory (which is an opaque handle) shows
/// none.
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

/// A piece of an allocation.
///
/// Tensors that view one share it, and cloning shares it. The exception are the tensors that a run
/// shows to kernels: their bytes are a part of the run's arena, which other tensors take over when
/// this one is not needed any more. A clone of such a piece is a copy, so that nobody holds bytes
/// that change.
#[derive(Debug)]
pub struct Buffer {
    backing: Backing,
    memory_id: MemoryId,
    offset_bytes: usize,
    len_bytes: usize,
}

#[derive(Debug)]
enum Backing {
    Shared(Arc<dyn Memory>),
    Arena(Arc<Arena>),
}

impl Buffer {
    /// The whole of `memory`.
    pub fn new(memory: Arc<dyn Memory>) -> Self {
        Self {
            memory_id: memory.id(),
            len_bytes: memory.len_bytes(),
            offset_bytes: 0,
            backing: Backing::Shared(memory),
        }
    }

    /// Which memory the bytes are in.
    pub fn memory_id(&self) -> MemoryId {
        self.memory_id
    }

    /// The allocation; `None` for a part of a run's arena.
    pub fn memory(&self) -> Option<&Arc<dyn Memory>> {
        match &self.backing {
            Backing::Shared(memory) => Some(memory),
            Backing::Arena(_) => None,
        }
    }

    /// Whether this is a part of a run's arena, so that a clone is a copy.
    pub fn is_in_arena(&self) -> bool {
        matches!(self.backing, Backing::Arena(_))
    }

    /// Whether both are the same part of the same arena.
    pub(crate) fn is_same_part(&self, other: &Self) -> bool {
        match (&self.backing, &other.backing) {
            (Backing::Arena(own), Backing::Arena(others)) => {
                Arc::ptr_eq(own, others)
                    && self.offset_bytes == other.offset_bytes
                    && self.len_bytes == other.len_bytes
            }
            _ => false,
        }
    }

    /// Length, in bytes.
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// Where the piece starts in its allocation, in bytes.
    pub fn offset_bytes(&self) -> usize {
        self.offset_bytes
    }

    /// The bytes, where the host can read them.
    #[inline]
    pub fn as_host_bytes(&self) -> Option<&[u8]> {
        match &self.backing {
            Backing::Shared(memory) => memory
                .as_host_bytes()
                .map(|bytes| &bytes[self.offset_bytes..self.offset_bytes + self.len_bytes]),
            Backing::Arena(arena) => Some(arena.bytes(self.offset_bytes, self.len_bytes)),
        }
    }

    /// The same to write: only while nobody else holds the allocation.
    #[inline]
    pub fn as_host_bytes_mut(&mut self) -> Option<&mut [u8]> {
        match &mut self.backing {
            Backing::Shared(memory) => {
                let range = self.offset_bytes..self.offset_bytes + self.len_bytes;
                Arc::get_mut(memory)?
                    .as_host_bytes_mut()
                    .map(|bytes| &mut bytes[range])
            }
            Backing::Arena(arena) => Some(arena.bytes_mut(self.offset_bytes, self.len_bytes)),
        }
    }
}

impl Clone for Buffer {
    fn clone(&self) -> Self {
        match &self.backing {
            Backing::Shared(memory) => Self {
                backing: Backing::Shared(Arc::clone(memory)),
                ..*self
            },
            Backing::Arena(arena) => {
                let bytes = arena.bytes(self.offset_bytes, self.len_bytes);
                Self::new(Arc::new(HostMemory::from_bytes(self.memory_id, bytes)))
            }
        }
    }
}

/// One allocation for all tensors of a run on a device, which the host can read and write.
///
/// Its parts may overlap: who makes them says when each is in use.
#[derive(Debug)]
pub(crate) struct Arena {
    /// Holds the allocation, and is not looked into again.
    whole: Buffer,
    base: NonNull<u8>,
}

#[expect(
    unsafe_code,
    reason = "parts of one allocation are lent to different threads"
)]
// SAFETY: the bytes belong to `whole`, which any thread may drop; who makes parts keeps accesses
// apart.
unsafe impl Send for Arena {}
#[expect(unsafe_code, reason = "as above")]
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    /// `whole` as an arena; gives it back where the host cannot write it, or somebody else holds
    /// it.
    pub(crate) fn new(mut whole: Buffer) -> Result<Arc<Self>, Buffer> {
        let Some(bytes) = whole.as_host_bytes_mut() else {
            return Err(whole);
        };
        let base = NonNull::from(bytes).cast();
        Ok(Arc::new(Self { whole, base }))
    }

    /// The bytes from `offset_bytes` on; `None` beyond the end.
    ///
    /// # Safety
    /// As long as parts that overlap exist, who uses one (by reading or writing its bytes, or by
    /// keeping such a reference) has no overlap with what another thread, or another reference,
    /// uses at that time, unless all of them read.
    #[expect(unsafe_code, reason = "overlapping parts are what an arena is for")]
    pub(crate) unsafe fn part(
        self: &Arc<Self>,
        offset_bytes: usize,
        len_bytes: usize,
    ) -> Option<Buffer> {
        let end = offset_bytes.checked_add(len_bytes)?;
        (end <= self.whole.len_bytes).then(|| Buffer {
            backing: Backing::Arena(Arc::clone(self)),
            memory_id: self.whole.memory_id,
            offset_bytes,
            len_bytes,
        })
    }

    #[inline]
    #[expect(unsafe_code, reason = "as `part`")]
    fn bytes(&self, offset_bytes: usize, len_bytes: usize) -> &[u8] {
        // SAFETY: `part` has checked that these bytes lie in the allocation, which lives as long as
        // `self`.
        let start = unsafe { self.base.add(offset_bytes) };
        // SAFETY: as above; allocations are initialized; nobody writes them meanwhile, by the
        // contract of `part`.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), len_bytes) }
    }

    #[inline]
    #[expect(unsafe_code, reason = "as `part`")]
    #[expect(clippy::mut_from_ref, reason = "the caller has the part exclusively")]
    fn bytes_mut(&self, offset_bytes: usize, len_bytes: usize) -> &mut [u8] {
        // SAFETY: `part` has checked that these bytes lie in the allocation, which lives as long as
        // `self`.
        let start = unsafe { self.base.add(offset_bytes) };
        // SAFETY: as above; the part is borrowed exclusively, and no other part that overlaps is in
        // use, by the contract of `part`.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), len_bytes) }
    }
}

/// 128 bytes at a multiple of 128: the unit of host memory. Wide enough for every vector load, and
/// for what OpenCL drivers share with the host: Intel's copies whatever starts elsewhere.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(128))]
struct Line([u8; LINE_BYTES]);

/// Its size.
const LINE_BYTES: usize = 128;

/// Memory of the host.
pub struct HostMemory {
    id: MemoryId,
    lines: Box<[Line]>,
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

    /// So many bytes, all 0, outside every allocator's accounting.
    pub(crate) fn zeroed(id: MemoryId, len_bytes: usize) -> Self {
        let lines = vec![bytemuck::Zeroable::zeroed(); len_bytes.div_ceil(LINE_BYTES)];
        Self::over(id, lines.into(), len_bytes)
    }

    /// The same; `None` where the system has no room.
    pub(crate) fn try_zeroed(id: MemoryId, len_bytes: usize) -> Option<Self> {
        // Asks the system for zeroed pages, so large buffers are not written twice.
        let lines = bytemuck::allocation::try_zeroed_slice_box(len_bytes.div_ceil(LINE_BYTES));
        Some(Self::over(id, lines.ok()?, len_bytes))
    }

    fn over(id: MemoryId, lines: Box<[Line]>, len_bytes: usize) -> Self {
        Self {
            id,
            lines,
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

impl HostAllocator {
    /// Bytes that it hands out at most.
    pub fn limit_bytes(&self) -> u64 {
        self.limit_bytes
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
        let Some(mut memory) = HostMemory::try_zeroed(self.id, len_bytes) else {
            accounting
                .in_use_bytes
                .fetch_sub(requested, Ordering::Relaxed);
            return Err(refused(before));
        };
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
