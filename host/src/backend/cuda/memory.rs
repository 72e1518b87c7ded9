//! Memory of a GPU: the allocator and the pieces that it returns.
//!
//! A piece is released when its tensor is dropped, although the GPU may still use it. Its uses are
//! recorded, and the work of its next owner comes after them ([`super::lane`]).

use std::any::Any;
use std::fmt;
use std::mem;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;

use tracing::warn;

use super::bfc;
use super::bfc::Bfc;
use super::bfc::GpuMemoryStats;
use super::driver::DriverErrorKind;
use super::driver::Span;
use super::lane::Clock;
use super::lane::Lane;
use super::lane::Use;
use super::lane::Uses;
use super::open_gpu::OpenGpu;
use crate::tensor::Allocator;
use crate::tensor::AllocatorStats;
use crate::tensor::Buffer;
use crate::tensor::Memory;
use crate::tensor::MemoryId;
use crate::tensor::OutOfMemory;
use crate::trace::targets;

/// Allocates memory of a GPU, up to a limit (TensorFlow `GPUBFCAllocator`).
#[derive(Debug)]
pub(super) struct GpuAllocator {
    name: String,
    id: MemoryId,
    limit_bytes: u64,
    /// The stream in which memory is zeroed.
    lane: Arc<Lane>,
    pool: Arc<Pool>,
}

/// The kind of memory of regions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Backing {
    /// The GPU's own memory.
    Own,
    /// Memory that is paged between the GPU and the host; there may be more than the GPU has
    /// (TensorFlow's unified memory).
    Managed,
}

struct Pool {
    gpu: Arc<OpenGpu>,
    backing: Backing,
    ranges: Mutex<Bfc<Clock>>,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("gpu", &self.gpu.id())
            .field("backing", &self.backing)
            .finish_non_exhaustive()
    }
}

impl Pool {
    fn ranges(&self) -> MutexGuard<'_, Bfc<Clock>> {
        // Nothing panics under the lock.
        self.ranges.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives free regions back to the driver, and returns whether there were any.
    fn give_back(&self, ranges: &mut Bfc<Clock>) -> bool {
        let regions = ranges.take_free_regions();
        let any = !regions.is_empty();
        for (address, _, uses) in regions {
            // The memory of a lost GPU is gone. If the driver does not report the end of its uses,
            // it is never used again.
            if uses.wait(&self.gpu).is_ok() {
                // SAFETY: the driver has returned the region, nobody has a piece of it, and its
                // last uses have ended.
                let _ = self.gpu.call(|driver| unsafe { driver.free(address) });
            }
        }
        any
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // Pieces keep the pool alive, so all of it is free.
        let options = bfc::Options {
            limit_bytes: 0,
            allow_growth: true,
            region_bytes_max: usize::MAX,
        };
        let ranges = self.ranges.get_mut();
        let ranges = ranges.unwrap_or_else(PoisonError::into_inner);
        let mut ranges = mem::replace(ranges, Bfc::new(options));
        self.give_back(&mut ranges);
    }
}

impl GpuAllocator {
    pub(super) fn new(
        name: String,
        lane: &Arc<Lane>,
        backing: Backing,
        options: bfc::Options,
    ) -> Self {
        Self {
            name,
            id: MemoryId::new(),
            limit_bytes: options.limit_bytes,
            lane: Arc::clone(lane),
            pool: Arc::new(Pool {
                gpu: Arc::clone(lane.gpu()),
                backing,
                ranges: Mutex::new(Bfc::new(options)),
            }),
        }
    }

    pub(super) fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    pub(super) fn memory_stats(&self) -> GpuMemoryStats {
        self.pool.ranges().stats()
    }

    /// Allocates uninitialised memory.
    ///
    /// # Errors
    /// [`OutOfMemory`] beyond the limit, or if the GPU has no more memory.
    pub(super) fn uninitialized(&self, len_bytes: usize) -> Result<Buffer, OutOfMemory> {
        let mut ranges = self.pool.ranges();
        let mut may_give_back = true;
        let chunk = loop {
            if let Some(chunk) = ranges.allocate(len_bytes) {
                break chunk;
            }
            if self.add_region(&mut ranges, len_bytes) {
                continue;
            }
            // The free memory may be in regions each of which is too short.
            if mem::take(&mut may_give_back) && self.pool.give_back(&mut ranges) {
                continue;
            }
            return Err(self.full(len_bytes, &ranges));
        };
        drop(ranges);
        Ok(Buffer::new(Arc::new(GpuMemory {
            id: self.id,
            span: Span {
                address: chunk.address,
                len_bytes,
            },
            uses: Uses::after(chunk.uses),
            pool: Arc::clone(&self.pool),
        })))
    }

    fn full(&self, requested_bytes: usize, ranges: &Bfc<Clock>) -> OutOfMemory {
        OutOfMemory {
            allocator: self.name.clone(),
            requested_bytes,
            in_use_bytes: ranges.stats().in_use_bytes as u64,
            limit_bytes: self.limit_bytes,
        }
    }

    /// Requests a region from the driver, and returns whether there is a new one. If others use the
    /// GPU, too, there may be less memory than the limit.
    fn add_region(&self, ranges: &mut Bfc<Clock>, len_bytes: usize) -> bool {
        let mut wanted = ranges.next_region(len_bytes);
        while let Some(request) = wanted {
            let len_bytes = request.wanted_bytes;
            let given = self.pool.gpu.call(|driver| match self.pool.backing {
                Backing::Own => driver.allocate(len_bytes),
                Backing::Managed => driver.allocate_managed(len_bytes),
            });
            match given {
                // Regions of a driver do not overlap.
                Ok(address) => return ranges.add_region(address, len_bytes).is_ok(),
                Err(error) if error.kind == DriverErrorKind::OutOfMemory => {
                    wanted = request.smaller();
                }
                Err(error) => {
                    // The caller only learns that memory is short; the log has the reason.
                    warn!(target: targets::DEVICE, allocator = %self.name, len_bytes, %error, "the driver cannot allocate memory");
                    return false;
                }
            }
        }
        false
    }
}

impl Allocator for GpuAllocator {
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
            let span = memory.span;
            // SAFETY: the span is that of `buffer`, and is released with its uses.
            let zeroed = self.lane.give(
                &[Use::Writes(&memory.uses)],
                None,
                None,
                |driver, stream| unsafe { driver.zero(stream, span) },
            );
            // A lost GPU reports this to the reader of the memory.
            if zeroed.is_err() && !self.pool.gpu.is_lost() {
                return Err(self.full(len_bytes, &self.pool.ranges()));
            }
        }
        Ok(buffer)
    }

    fn stats(&self) -> AllocatorStats {
        self.pool.ranges().stats().into()
    }
}

/// One tensor's memory.
#[derive(Debug)]
pub(super) struct GpuMemory {
    id: MemoryId,
    span: Span,
    uses: Uses,
    pool: Arc<Pool>,
}

impl GpuMemory {
    pub(super) fn uses(&self) -> &Uses {
        &self.uses
    }

    /// Returns the GPU that it belongs to.
    pub(super) fn gpu(&self) -> &Arc<OpenGpu> {
        &self.pool.gpu
    }
}

impl Memory for GpuMemory {
    fn id(&self) -> MemoryId {
        self.id
    }

    fn len_bytes(&self) -> usize {
        self.span.len_bytes
    }

    fn as_host_bytes(&self) -> Option<&[u8]> {
        None
    }

    fn as_host_bytes_mut(&mut self) -> Option<&mut [u8]> {
        None
    }
}

impl Drop for GpuMemory {
    fn drop(&mut self) {
        let uses = mem::take(&mut self.uses).into_clock();
        // It was allocated, and is freed only here.
        let _ = self.pool.ranges().free(self.span.address, &uses);
    }
}

/// Returns the GPU memory of a buffer, if it has any.
pub(super) fn memory_of(buffer: &Buffer) -> Option<&GpuMemory> {
    let memory: &dyn Any = &**buffer.memory()?;
    memory.downcast_ref()
}

/// Returns the span of a buffer and its memory, if it is in a GPU's memory.
pub(super) fn parts(buffer: &Buffer) -> Option<(Span, &GpuMemory)> {
    let memory = memory_of(buffer)?;
    let span = Span {
        address: memory.span.address + buffer.offset_bytes() as u64,
        len_bytes: buffer.len_bytes(),
    };
    Some((span, memory))
}
