//! Pinned host memory: the source and target of copies, and the memory of flags that GPU functions
//! set for the host.
//!
//! Pinning memory is slow, so free memory is kept. This module does not know about streams: the
//! code that queues GPU work with such memory keeps it until the work has ended.

use std::any::Any;
use std::fmt;
use std::mem;
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::sync::atomic::AtomicU32;

use super::bfc;
use super::bfc::Bfc;
use super::driver::Span;
use super::open_gpu::OpenGpu;
use crate::device::PinnedHostMemory;
use crate::tensor::Allocator;
use crate::tensor::AllocatorStats;
use crate::tensor::Buffer;
use crate::tensor::HostMemory;
use crate::tensor::Memory;
use crate::tensor::MemoryId;
use crate::tensor::OutOfMemory;

/// There is nothing to wait for.
impl bfc::Uses for () {
    fn merge(&mut self, (): &Self) {}

    fn forget_ended(&mut self) {}
}

/// The largest region that is pinned in advance.
const REGION_BYTES_MAX: usize = 256 << 20;

/// The limits on free memory that stays pinned: a fraction of the limit, and at most this many
/// bytes. Pinning is slow, so less would slow down repeated fetches of large results; but the
/// system cannot use pinned memory for anything else.
const KEPT_PART: u64 = 4;
const KEPT_BYTES_MAX: usize = 1 << 30;

/// Allocates pinned memory, up to a limit.
#[derive(Debug)]
pub(super) struct PinnedAllocator {
    name: String,
    id: MemoryId,
    pool: Arc<Pool>,
}

struct Pool {
    gpu: Arc<OpenGpu>,
    kept_bytes: usize,
    ranges: Mutex<Bfc<()>>,
    /// The driver's regions.
    regions: Mutex<Vec<Region>>,
}

/// Pinned memory from the driver, freed with its pool.
#[derive(Debug)]
struct Region(NonNull<u8>, usize);

// SAFETY: an address, which any thread may free.
unsafe impl Send for Region {}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("gpu", &self.gpu.id())
            .finish_non_exhaustive()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // A lost GPU may have been restarted, and is no longer called. Few GPUs are lost in the
        // life of a process.
        if self.gpu.is_lost() {
            return;
        }
        let regions = self.regions.get_mut();
        for region in regions.unwrap_or_else(PoisonError::into_inner).drain(..) {
            // SAFETY: pieces keep the pool alive, so none exist; pieces used by GPU work were kept
            // until its end.
            unsafe { self.gpu.driver().free_pinned(region.0, region.1) };
        }
    }
}

impl Pool {
    fn ranges(&self) -> MutexGuard<'_, Bfc<()>> {
        // Nothing panics under the lock.
        self.ranges.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Frees regions that were removed from the ranges.
    fn give_back(&self, taken: Vec<(u64, usize, ())>) {
        for (address, ..) in taken {
            let region = {
                let regions = self.regions.lock();
                let mut regions = regions.unwrap_or_else(PoisonError::into_inner);
                let found = regions
                    .iter()
                    .position(|region| region.address() == address);
                found.map(|at| regions.swap_remove(at))
            };
            let Some(region) = region else {
                continue;
            };
            let given_back = self.gpu.call(|driver| {
                // SAFETY: no piece of it exists, and none can be allocated any more; pieces used by
                // GPU work were kept until its end.
                unsafe { driver.free_pinned(region.0, region.1) };
                Ok(())
            });
            // Leaked, as when the pool is dropped: few GPUs are lost.
            drop(given_back);
        }
    }
}

impl Region {
    /// Returns the address, as the ranges store it.
    fn address(&self) -> u64 {
        self.0.as_ptr().expose_provenance() as u64
    }
}

impl PinnedAllocator {
    pub(super) fn new(name: impl Into<String>, gpu: &Arc<OpenGpu>, limit_bytes: u64) -> Self {
        let kept_bytes = usize::try_from(limit_bytes / KEPT_PART).unwrap_or(usize::MAX);
        let kept_bytes = kept_bytes.min(KEPT_BYTES_MAX);
        let options = bfc::Options {
            limit_bytes,
            allow_growth: true,
            // A region larger than the kept memory would be pinned and freed with each piece.
            region_bytes_max: REGION_BYTES_MAX.min(kept_bytes / 2),
        };
        Self {
            name: name.into(),
            id: MemoryId::new(),
            pool: Arc::new(Pool {
                gpu: Arc::clone(gpu),
                kept_bytes,
                ranges: Mutex::new(Bfc::new(options)),
                regions: Mutex::default(),
            }),
        }
    }

    /// Allocates memory with arbitrary, initialised bytes.
    ///
    /// # Errors
    /// [`OutOfMemory`] beyond the limit, or if the system cannot pin more.
    pub(super) fn uninitialized(&self, len_bytes: usize) -> Result<PinnedMemory, OutOfMemory> {
        let mut ranges = self.pool.ranges();
        let full = |ranges: &Bfc<()>| {
            let stats = ranges.stats();
            OutOfMemory {
                allocator: self.name.clone(),
                requested_bytes: len_bytes,
                in_use_bytes: stats.in_use_bytes as u64,
                limit_bytes: stats.limit_bytes as u64,
            }
        };
        let mut may_give_back = true;
        let chunk = loop {
            if let Some(chunk) = ranges.allocate(len_bytes) {
                break chunk;
            }
            let mut wanted = ranges.next_region(len_bytes);
            if wanted.is_none() && mem::take(&mut may_give_back) {
                // The free memory may be in regions each of which is too short.
                let taken = ranges.take_free_regions();
                self.pool.give_back(taken);
                wanted = ranges.next_region(len_bytes);
            }
            let region = loop {
                let Some(request) = wanted else {
                    return Err(full(&ranges));
                };
                let given = self
                    .pool
                    .gpu
                    .call(|driver| driver.allocate_pinned(request.wanted_bytes));
                match given {
                    Ok(start) => break (start, request.wanted_bytes),
                    Err(_) => wanted = request.smaller(),
                }
            };
            let (start, region_bytes) = region;
            let regions = self.pool.regions.lock();
            let mut regions = regions.unwrap_or_else(PoisonError::into_inner);
            regions.push(Region(start, region_bytes));
            drop(regions);
            // Regions of a driver do not overlap.
            let address = Region(start, region_bytes).address();
            if ranges.add_region(address, region_bytes).is_err() {
                return Err(full(&ranges));
            }
        };
        drop(ranges);
        Ok(PinnedMemory {
            id: self.id,
            address: chunk.address,
            len_bytes,
            pool: Arc::clone(&self.pool),
        })
    }
}

impl Allocator for PinnedAllocator {
    fn name(&self) -> &str {
        &self.name
    }

    fn memory_id(&self) -> MemoryId {
        self.id
    }

    fn allocate(&self, len_bytes: usize) -> Result<Buffer, OutOfMemory> {
        let mut memory = match self.uninitialized(len_bytes) {
            Ok(memory) => memory,
            // Within the limit, but the system cannot pin more, or the GPU is lost: pageable memory
            // is slower to copy, but better than none.
            Err(full) if full.in_use_bytes.saturating_add(len_bytes as u64) <= full.limit_bytes => {
                let memory = HostMemory::try_zeroed(self.id, len_bytes).ok_or(full)?;
                return Ok(Buffer::new(Arc::new(memory)));
            }
            Err(full) => return Err(full),
        };
        memory.bytes_mut().fill(0);
        Ok(Buffer::new(Arc::new(memory)))
    }

    fn stats(&self) -> AllocatorStats {
        self.pool.ranges().stats().into()
    }
}

/// A piece of pinned memory.
#[derive(Debug)]
pub(super) struct PinnedMemory {
    id: MemoryId,
    address: u64,
    len_bytes: usize,
    pool: Arc<Pool>,
}

impl PinnedMemory {
    pub(super) fn span(&self) -> Span {
        Span {
            address: self.address,
            len_bytes: self.len_bytes,
        }
    }

    fn start(&self) -> *mut u8 {
        let address = usize::try_from(self.address).unwrap_or_default();
        std::ptr::with_exposed_provenance_mut(address)
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: the pool has allocated these bytes to this piece only, and they are initialised.
        // While the GPU writes them, the submitter of that work has exclusive access to the piece.
        unsafe { slice::from_raw_parts(self.start(), self.len_bytes) }
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; the piece is borrowed exclusively, and is kept while the GPU reads it.
        unsafe { slice::from_raw_parts_mut(self.start(), self.len_bytes) }
    }

    /// Returns the bytes as u32 elements that GPU functions may write while the host reads them.
    pub(super) fn as_u32s(&self) -> &[AtomicU32] {
        // SAFETY: as above; the start is a multiple of 256, and elements that the GPU writes are
        // read atomically.
        unsafe { slice::from_raw_parts(self.start().cast(), self.len_bytes / 4) }
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        let surplus = {
            let mut ranges = self.pool.ranges();
            // It was allocated, and is freed only here.
            let _ = ranges.free(self.address, &());
            // The memory of a lost GPU stays until its last piece is dropped, and is then leaked:
            // the GPU may have been restarted.
            match self.pool.gpu.is_lost() {
                true => Vec::new(),
                false => ranges.take_surplus_regions(self.pool.kept_bytes),
            }
        };
        self.pool.give_back(surplus);
    }
}

impl Memory for PinnedMemory {
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

/// Returns the span by which a GPU accesses a buffer in pinned memory. The caller must keep the
/// buffer meanwhile.
pub(super) fn pinned_span(buffer: &Buffer, gpu: &OpenGpu) -> Option<Span> {
    let memory: &dyn Any = &**buffer.memory()?;
    let memory = memory.downcast_ref::<PinnedMemory>()?;
    // Memory pinned by a lost GPU counts as ordinary memory.
    if memory.pool.gpu.is_lost() || !memory.pool.gpu.is_of_driver_of(gpu) {
        return None;
    }
    Some(Span {
        address: memory.address + buffer.offset_bytes() as u64,
        len_bytes: buffer.len_bytes(),
    })
}

/// Pinned memory for CPU devices.
#[derive(Debug)]
pub(super) struct PinnedForCpus(pub(super) Arc<OpenGpu>);

impl PinnedHostMemory for PinnedForCpus {
    fn allocator(&self, name: &str, limit_bytes: u64) -> Arc<dyn Allocator> {
        Arc::new(PinnedAllocator::new(name, &self.0, limit_bytes))
    }
}
