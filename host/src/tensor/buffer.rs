//! Memory of tensors, and allocators.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use memmap2::MmapMut;

/// Identity of a memory space (one allocator). A tensor in another memory space than its reader's
/// must be transferred first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MemoryId(u32);

impl MemoryId {
    /// Returns an identity that no other memory space of this process has.
    #[expect(clippy::new_without_default, reason = "each call gives another value")]
    pub fn new() -> Self {
        // Only identities: sessions share no other state through it.
        static NEXT: AtomicU32 = AtomicU32::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// One allocation. Host memory exposes its bytes; device memory, an opaque handle, does not.
pub trait Memory: Send + Sync + fmt::Debug + std::any::Any {
    /// Returns the memory space of this allocation.
    fn id(&self) -> MemoryId;
    /// Returns the length, in bytes.
    fn len_bytes(&self) -> usize;
    /// Returns the bytes, if the host can read them.
    fn as_host_bytes(&self) -> Option<&[u8]>;
    /// Returns the bytes for writing, if the host can write them; the caller holds the only
    /// reference.
    fn as_host_bytes_mut(&mut self) -> Option<&mut [u8]>;
}

/// The allocator has not enough free memory.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{allocator}: out of memory: asked for {requested_bytes} bytes, {in_use_bytes} of {limit_bytes} in use"
)]
pub struct OutOfMemory {
    /// Name of the allocator.
    pub allocator: String,
    /// Bytes requested.
    pub requested_bytes: usize,
    /// Bytes in use at the time.
    pub in_use_bytes: u64,
    /// Limit of the allocator.
    pub limit_bytes: u64,
}

/// Statistics of an allocator.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AllocatorStats {
    /// Bytes in use.
    pub in_use_bytes: u64,
    /// Maximum number of bytes in use at one time.
    pub peak_bytes: u64,
    /// Number of allocations so far.
    pub n_allocations: u64,
}

/// Allocates the memory of one device.
pub trait Allocator: Send + Sync + fmt::Debug {
    /// Returns the name for errors and reports, such as `cpu:0`.
    fn name(&self) -> &str;
    /// Returns the memory space of the allocations.
    fn memory_id(&self) -> MemoryId;
    /// Allocates `len_bytes` zeroed bytes, aligned to 64.
    ///
    /// # Errors
    /// [`OutOfMemory`] if the limit is exceeded, or the system refuses.
    fn allocate(&self, len_bytes: usize) -> Result<Buffer, OutOfMemory>;
    /// Does the same for a tensor that stays as long as a plan, such as a constant (TensorFlow
    /// `allocate_persistent`).
    ///
    /// # Errors
    /// As [`Self::allocate`].
    fn allocate_persistent(&self, len_bytes: usize) -> Result<Buffer, OutOfMemory> {
        self.allocate(len_bytes)
    }
    /// Returns the statistics.
    fn stats(&self) -> AllocatorStats;
}

/// A piece of an allocation.
///
/// Views of one tensor share the piece, and cloning shares it. The exception are tensors that a run
/// passes to kernels: their bytes are part of the run's arena, where other tensors reuse them
/// later. A clone of such a piece is a copy, so its bytes never change.
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
    /// Returns a buffer over all of `memory`.
    pub fn new(memory: Arc<dyn Memory>) -> Self {
        Self {
            memory_id: memory.id(),
            len_bytes: memory.len_bytes(),
            offset_bytes: 0,
            backing: Backing::Shared(memory),
        }
    }

    /// Returns the memory space of the bytes.
    pub fn memory_id(&self) -> MemoryId {
        self.memory_id
    }

    /// Returns the allocation; `None` for a part of a run's arena.
    pub fn memory(&self) -> Option<&Arc<dyn Memory>> {
        match &self.backing {
            Backing::Shared(memory) => Some(memory),
            Backing::Arena(_) => None,
        }
    }

    /// Returns whether this is a part of a run's arena, so that a clone is a copy.
    pub fn is_in_arena(&self) -> bool {
        matches!(self.backing, Backing::Arena(_))
    }

    /// Returns whether both are the same part of the same arena.
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

    /// Returns the length, in bytes.
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// Returns the start of the piece in its allocation, in bytes.
    pub fn offset_bytes(&self) -> usize {
        self.offset_bytes
    }

    /// Returns the bytes, if the host can read them.
    #[inline]
    pub fn as_host_bytes(&self) -> Option<&[u8]> {
        match &self.backing {
            Backing::Shared(memory) => memory
                .as_host_bytes()
                .map(|bytes| &bytes[self.offset_bytes..self.offset_bytes + self.len_bytes]),
            Backing::Arena(arena) => Some(arena.bytes(self.offset_bytes, self.len_bytes)),
        }
    }

    /// Returns the bytes for writing; `None` if the allocation is shared or not on the host.
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
/// Parts may overlap: the creator of the parts determines when each is in use.
#[derive(Debug)]
pub(crate) struct Arena {
    /// Keeps the allocation alive; not accessed otherwise.
    whole: Buffer,
    base: NonNull<u8>,
}

#[expect(unsafe_code, reason = "different threads use parts of one allocation")]
// SAFETY: the bytes belong to `whole`, which any thread may drop; the creator of the parts prevents
// conflicting accesses.
unsafe impl Send for Arena {}
#[expect(unsafe_code, reason = "as above")]
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    /// Makes `whole` an arena; returns it as the error if the host cannot write it, or it is
    /// shared.
    pub(crate) fn new(mut whole: Buffer) -> Result<Arc<Self>, Buffer> {
        let Some(bytes) = whole.as_host_bytes_mut() else {
            return Err(whole);
        };
        let base = NonNull::from(bytes).cast();
        Ok(Arc::new(Self { whole, base }))
    }

    /// Returns `len_bytes` bytes from `offset_bytes` on; `None` beyond the end.
    ///
    /// # Safety
    /// As long as overlapping parts exist, no part is used (by reading or writing its bytes, or by
    /// keeping such a reference) while another thread, or another reference, uses an overlapping
    /// one, unless all of them only read.
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
        // SAFETY: `part` has checked that these bytes are in the allocation, which lives as long as
        // `self`.
        let start = unsafe { self.base.add(offset_bytes) };
        // SAFETY: as above; allocations are initialized, and by the contract of `part` nothing
        // writes the bytes meanwhile.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), len_bytes) }
    }

    #[inline]
    #[expect(unsafe_code, reason = "as `part`")]
    #[expect(clippy::mut_from_ref, reason = "the caller has the part exclusively")]
    fn bytes_mut(&self, offset_bytes: usize, len_bytes: usize) -> &mut [u8] {
        // SAFETY: `part` has checked that these bytes are in the allocation, which lives as long as
        // `self`.
        let start = unsafe { self.base.add(offset_bytes) };
        // SAFETY: as above; the part is borrowed exclusively, and no other part that overlaps is in
        // use, by the contract of `part`.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), len_bytes) }
    }
}

/// 128 bytes at a multiple of 128: the unit of host memory. This is enough for every vector load,
/// and for OpenCL drivers that share memory with the host: Intel's copies memory with another
/// alignment.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(128))]
struct Line([u8; LINE_BYTES]);

/// Size of [`Line`].
const LINE_BYTES: usize = 128;

/// Host memory.
pub struct HostMemory {
    id: MemoryId,
    bytes: Bytes,
    len_bytes: usize,
    accounting: Option<Arc<Accounting>>,
}

/// Where host memory is. Both kinds are aligned to at least [`LINE_BYTES`].
enum Bytes {
    Heap(Box<[Line]>),
    /// Pages of their own, which go back to the system when they are freed.
    Pages(MmapMut),
}

/// Minimum size of persistent memory that has pages of its own. Freed weights of a network would
/// leave holes in the heap, each too small for the next one: ResNet-50 took half of its weights'
/// size more. Tensors of runs stay in the heap: for pages of their own, the system would zero them
/// in each run.
const PAGES_MIN_BYTES: usize = 256 << 10;

/// Size of a huge page on x86-64, and on ARM with pages of 4 KiB.
#[cfg(target_os = "linux")]
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Minimum size of a buffer that gets huge pages: a smaller one contains few whole ones.
#[cfg(target_os = "linux")]
const HUGE_PAGES_MIN_BYTES: usize = 2 * HUGE_PAGE_BYTES;

impl HostMemory {
    /// Copies `bytes`, outside every allocator's accounting.
    pub fn from_bytes(id: MemoryId, bytes: &[u8]) -> Self {
        let mut memory = Self::zeroed(id, bytes.len());
        memory.bytes_mut().copy_from_slice(bytes);
        memory
    }

    /// Returns zeroed memory, outside every allocator's accounting.
    pub(crate) fn zeroed(id: MemoryId, len_bytes: usize) -> Self {
        let lines = vec![bytemuck::Zeroable::zeroed(); len_bytes.div_ceil(LINE_BYTES)];
        Self::over(id, Bytes::Heap(lines.into()), len_bytes)
    }

    /// Returns zeroed memory; `None` if the system refuses.
    pub(crate) fn try_zeroed(id: MemoryId, len_bytes: usize) -> Option<Self> {
        // Requests zeroed pages from the system, so that large buffers are not written twice.
        let lines = bytemuck::allocation::try_zeroed_slice_box(len_bytes.div_ceil(LINE_BYTES));
        let mut lines = lines.ok()?;
        prefer_huge_pages(bytemuck::cast_slice_mut(&mut lines));
        Some(Self::over(id, Bytes::Heap(lines), len_bytes))
    }

    /// Returns zeroed memory for a long time; `None` if the system refuses.
    fn try_persistent(id: MemoryId, len_bytes: usize) -> Option<Self> {
        if len_bytes < PAGES_MIN_BYTES {
            return Self::try_zeroed(id, len_bytes);
        }
        let mut pages = MmapMut::map_anon(len_bytes).ok()?;
        prefer_huge_pages(&mut pages);
        Some(Self::over(id, Bytes::Pages(pages), len_bytes))
    }

    fn over(id: MemoryId, bytes: Bytes, len_bytes: usize) -> Self {
        Self {
            id,
            bytes,
            len_bytes,
            accounting: None,
        }
    }

    fn bytes(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Heap(lines) => &bytemuck::cast_slice(lines)[..self.len_bytes],
            Bytes::Pages(pages) => pages,
        }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match &mut self.bytes {
            Bytes::Heap(lines) => &mut bytemuck::cast_slice_mut(lines)[..self.len_bytes],
            Bytes::Pages(pages) => pages,
        }
    }
}

/// Asks the system for huge pages under a large buffer that has not been written yet. With pages of
/// 4 KiB, a kernel that streams the weights of a network waits for the page table: ResNet-50 takes
/// 5 to 10 % longer in a virtual machine.
fn prefer_huge_pages(bytes: &mut [u8]) {
    #[cfg(target_os = "linux")]
    if bytes.len() >= HUGE_PAGES_MIN_BYTES {
        let range = bytes.as_mut_ptr_range();
        let first = range.start.addr().next_multiple_of(HUGE_PAGE_BYTES);
        let end = range.end.addr() / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
        let start = bytes.as_mut_ptr().with_addr(first).cast();
        #[expect(unsafe_code, reason = "advice about memory of this process")]
        // SAFETY: whole pages within the buffer; the advice does not change their contents.
        let advised =
            unsafe { rustix::mm::madvise(start, end - first, rustix::mm::Advice::LinuxHugepage) };
        // A system without huge pages has small ones.
        let _ = advised;
    }
    #[cfg(not(target_os = "linux"))]
    let _ = bytes;
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
        Some(self.bytes())
    }

    fn as_host_bytes_mut(&mut self) -> Option<&mut [u8]> {
        Some(self.bytes_mut())
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

/// Memory that has been given back: only its length is left.
#[derive(Debug)]
pub(super) struct ReleasedMemory {
    pub(super) id: MemoryId,
    pub(super) len_bytes: usize,
}

impl Memory for ReleasedMemory {
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

#[derive(Debug, Default)]
struct Accounting {
    in_use_bytes: AtomicU64,
    peak_bytes: AtomicU64,
    n_allocations: AtomicU64,
}

/// Allocates host memory up to a limit.
#[derive(Debug)]
pub struct HostAllocator {
    name: String,
    id: MemoryId,
    limit_bytes: u64,
    accounting: Arc<Accounting>,
}

impl HostAllocator {
    /// Returns an allocator with its own memory space; `u64::MAX` means no limit.
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
    /// Returns the limit, in bytes.
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
        self.accounted(len_bytes, HostMemory::try_zeroed)
    }

    fn allocate_persistent(&self, len_bytes: usize) -> Result<Buffer, OutOfMemory> {
        self.accounted(len_bytes, HostMemory::try_persistent)
    }

    fn stats(&self) -> AllocatorStats {
        AllocatorStats {
            in_use_bytes: self.accounting.in_use_bytes.load(Ordering::Relaxed),
            peak_bytes: self.accounting.peak_bytes.load(Ordering::Relaxed),
            n_allocations: self.accounting.n_allocations.load(Ordering::Relaxed),
        }
    }
}

impl HostAllocator {
    /// Creates memory, and counts it.
    fn accounted(
        &self,
        len_bytes: usize,
        create: fn(MemoryId, usize) -> Option<HostMemory>,
    ) -> Result<Buffer, OutOfMemory> {
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
        let Some(mut memory) = create(self.id, len_bytes) else {
            accounting
                .in_use_bytes
                .fetch_sub(requested, Ordering::Relaxed);
            return Err(refused(before));
        };
        memory.accounting = Some(Arc::clone(accounting));
        Ok(Buffer::new(Arc::new(memory)))
    }
}
