//! The resources of one run on one device.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::OnceLock;
use std::sync::PoisonError;
use std::sync::Weak;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;

use super::error::DeviceError;
use super::resource::ResourceError;
use super::traits::AllocatorAttributes;
use super::traits::Device;
use crate::tensor::Allocator;
use crate::tensor::AllocatorStats;
use crate::tensor::Buffer;
use crate::tensor::Memory;
use crate::tensor::MemoryId;
use crate::tensor::OutOfMemory;

/// Number of a run, unique in its process (TensorFlow `step_id`).
pub type RunNumber = u64;

/// The resources of one run on one device: temporary memory, and a container for resources that end
/// with the run. Both are created when a kernel first needs them.
#[derive(Debug, Default)]
pub struct DeviceRun {
    number: AtomicU64,
    allocator: OnceLock<Arc<dyn Allocator>>,
    container: OnceLock<String>,
}

impl DeviceRun {
    /// Begins a run; the previous one has been finished.
    pub(crate) fn begin(&self, number: RunNumber) {
        self.number.store(number, Ordering::Relaxed);
    }

    /// Returns the same run without its memory, to end it while an asynchronous kernel still holds
    /// this.
    pub(crate) fn handed_on(&self) -> Self {
        Self {
            number: AtomicU64::new(self.number()),
            allocator: OnceLock::new(),
            container: self.container.clone(),
        }
    }

    /// Returns the number of the run.
    pub fn number(&self) -> RunNumber {
        self.number.load(Ordering::Relaxed)
    }

    /// Returns the allocator of the run's temporary memory on `device`.
    pub(crate) fn allocator(&self, device: &dyn Device) -> &Arc<dyn Allocator> {
        self.allocator
            .get_or_init(|| device.run_allocator(AllocatorAttributes::default(), self.number()))
    }

    /// Returns the container of the resource manager that is cleaned up when the run ends.
    pub fn container(&self) -> &str {
        self.container
            .get_or_init(|| format!("__per_step_{}", self.number()))
    }

    /// Describes the resources that the run has used, in the order in which they are released: the
    /// method of the device, and what there is to drop.
    pub(crate) fn describe_use(&self) -> impl Iterator<Item = (&'static str, String)> + use<> {
        let allocator = self.allocator.get();
        let container = self.container.get();
        [
            allocator.map(|memory| ("run_allocator", memory.name().to_owned())),
            container.map(|container| ("resource_manager.cleanup", container.clone())),
        ]
        .into_iter()
        .flatten()
    }

    /// Ends the run: returns temporary memory to the device, and drops the run's resources.
    pub(crate) fn finish(&mut self, device: &dyn Device) -> Result<(), StepError> {
        drop(self.allocator.take());
        if let Some(container) = self.container.take() {
            device.resource_manager()?.cleanup(&container)?;
        }
        Ok(())
    }
}

/// Why the resources of a run were not dropped.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StepError {
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error(transparent)]
    Resource(#[from] ResourceError),
}

/// Temporary memory of one run (TensorFlow `Device::GetStepAllocator`). Memory that kernels have
/// released is reused within the run. It is returned to the device when the allocator is dropped,
/// at the end of the run; memory that is still held then is returned when it is dropped.
pub struct RunAllocator {
    shared: Arc<Shared>,
}

struct Shared {
    name: String,
    device: Arc<dyn Allocator>,
    /// Released buffers, by length in bytes.
    free: Mutex<BTreeMap<usize, Vec<Buffer>>>,
}

/// A buffer that returns to the run's memory when it is dropped.
struct Lent {
    buffer: Option<Buffer>,
    home: Weak<Shared>,
}

impl RunAllocator {
    /// Creates the allocator of a run of this number, on memory of `device`.
    pub fn new(device: Arc<dyn Allocator>, run: RunNumber) -> Self {
        Self {
            shared: Arc::new(Shared {
                name: format!("{} (run {run})", device.name()),
                device,
                free: Mutex::default(),
            }),
        }
    }

    /// Returns the bytes of the run's memory that are not in use.
    pub fn free_bytes(&self) -> usize {
        let free = self.shared.free();
        free.iter()
            .map(|(bytes, buffers)| bytes * buffers.len())
            .sum()
    }
}

impl Shared {
    fn free(&self) -> MutexGuard<'_, BTreeMap<usize, Vec<Buffer>>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Allocator for RunAllocator {
    fn name(&self) -> &str {
        &self.shared.name
    }

    fn memory_id(&self) -> MemoryId {
        self.shared.device.memory_id()
    }

    fn allocate(&self, len_bytes: usize) -> Result<Buffer, OutOfMemory> {
        let again = {
            let mut free = self.shared.free();
            free.get_mut(&len_bytes).and_then(Vec::pop)
        };
        let buffer = match again {
            // Memory comes zeroed; only what the host can write is kept, see `Lent`.
            Some(mut buffer) => match buffer.as_host_bytes_mut() {
                Some(bytes) => {
                    bytes.fill(0);
                    buffer
                }
                None => self.shared.device.allocate(len_bytes)?,
            },
            None => self.allocate_anew(len_bytes)?,
        };
        // Kernels look for their device's own type behind memory that the host does not see, and
        // nobody here could zero it for the next one.
        if buffer.as_host_bytes().is_none() {
            return Ok(buffer);
        }
        Ok(Buffer::new(Arc::new(Lent {
            buffer: Some(buffer),
            home: Arc::downgrade(&self.shared),
        })))
    }

    fn stats(&self) -> AllocatorStats {
        self.shared.device.stats()
    }
}

impl RunAllocator {
    fn allocate_anew(&self, len_bytes: usize) -> Result<Buffer, OutOfMemory> {
        self.shared.device.allocate(len_bytes).or_else(|full| {
            // What the run keeps for later may be what is missing.
            let kept = std::mem::take(&mut *self.shared.free());
            if kept.is_empty() {
                return Err(full);
            }
            drop(kept);
            self.shared.device.allocate(len_bytes)
        })
    }
}

impl Lent {
    fn buffer(&self) -> &Buffer {
        self.buffer.as_ref().expect("it is there until the drop")
    }
}

impl Memory for Lent {
    fn id(&self) -> MemoryId {
        self.buffer().memory_id()
    }

    fn len_bytes(&self) -> usize {
        self.buffer().len_bytes()
    }

    fn as_host_bytes(&self) -> Option<&[u8]> {
        self.buffer().as_host_bytes()
    }

    fn as_host_bytes_mut(&mut self) -> Option<&mut [u8]> {
        self.buffer.as_mut()?.as_host_bytes_mut()
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let Some(mut buffer) = self.buffer.take() else {
            return;
        };
        // Device memory cannot be zeroed from here, so it is not kept.
        if let Some(home) = self.home.upgrade()
            && buffer.as_host_bytes_mut().is_some()
        {
            home.free()
                .entry(buffer.len_bytes())
                .or_default()
                .push(buffer);
        }
    }
}

impl fmt::Debug for RunAllocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RunAllocator")
            .field(&self.shared.name)
            .finish()
    }
}

impl fmt::Debug for Lent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Lent").field(&self.buffer).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::HostAllocator;

    fn device(limit_bytes: u64) -> Arc<HostAllocator> {
        Arc::new(HostAllocator::new("cpu:0", limit_bytes))
    }

    #[test]
    fn memory_is_used_again_within_a_run_and_comes_zeroed() {
        let device = device(1 << 20);
        let run = RunAllocator::new(Arc::clone(&device) as _, 7);
        let mut first = run.allocate(256).unwrap();
        first.as_host_bytes_mut().unwrap().fill(9);
        drop(first);
        assert_eq!(run.free_bytes(), 256);
        let again = run.allocate(256).unwrap();
        assert!(again.as_host_bytes().unwrap().iter().all(|&byte| byte == 0));
        assert_eq!(device.stats().n_allocations, 1);
    }

    #[test]
    fn all_memory_goes_back_when_the_run_ends() {
        let device = device(1 << 20);
        let run = RunAllocator::new(Arc::clone(&device) as _, 7);
        drop(run.allocate(256).unwrap());
        let kept = run.allocate(128).unwrap();
        assert!(device.stats().in_use_bytes >= 384);
        drop(run);
        assert!((128..384).contains(&device.stats().in_use_bytes));
        assert_eq!(kept.as_host_bytes().unwrap().len(), 128);
        drop(kept);
        assert_eq!(device.stats().in_use_bytes, 0);
    }

    #[test]
    fn what_is_kept_for_later_makes_room() {
        let device = device(512);
        let run = RunAllocator::new(Arc::clone(&device) as _, 7);
        drop(run.allocate(384).unwrap());
        let other = run.allocate(256).unwrap();
        assert_eq!(other.len_bytes(), 256);
        let full = run.allocate(512).unwrap_err();
        assert_eq!(full.requested_bytes, 512);
    }
}
