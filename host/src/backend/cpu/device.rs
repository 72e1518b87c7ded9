//! The CPU device: memory, threads, copies.

use std::sync::Arc;

use crate::device::AllocatorAttributes;
use crate::device::Device;
use crate::device::DeviceAttributes;
use crate::device::DeviceBase;
use crate::device::DeviceContext;
use crate::device::DeviceError;
use crate::device::DeviceLocality;
use crate::device::DeviceRates;
use crate::device::HostMemoryContext;
use crate::device::IntraOpPool;
use crate::device::Kernel;
use crate::device::KernelContext;
use crate::device::KernelDevice;
use crate::device::KernelError;
#[cfg(feature = "kernels")]
use crate::device::PartitionGraph;
#[cfg(feature = "kernels")]
use crate::graph::Function;
use crate::names::DeviceName;
use crate::tensor::Allocator;
use crate::tensor::HostAllocator;
use crate::tensor::Literal;
use crate::tensor::MemoryId;
use crate::tensor::Tensor;

/// The memory limit that TensorFlow states for every CPU device, whatever the machine has.
const NOMINAL_MEMORY_LIMIT_BYTES: u64 = 256 << 20;

/// The memory assumed if the system does not report it.
const ASSUMED_MEMORY_BYTES: u64 = 4 << 30;

/// A CPU device (TensorFlow `ThreadPoolDevice`): runs kernels on the calling thread, with the help
/// of a pool.
#[derive(Debug)]
pub struct ThreadPoolDevice {
    base: DeviceBase,
    context: Arc<dyn DeviceContext>,
    /// The allocator of kernels' tensors.
    allocator: Arc<dyn Allocator>,
    /// The allocator of memory that GPUs copy from and to; the same one if there is no GPU.
    pinned: Arc<dyn Allocator>,
    /// The ids of both memories, for the check of every tensor of every kernel.
    memory_ids: [MemoryId; 2],
    capacity_bytes: u64,
    pool: Arc<IntraOpPool>,
    rates: DeviceRates,
    chip: Option<Arc<str>>,
}

impl ThreadPoolDevice {
    /// Creates a device of this name, with its own memory space of `capacity_bytes`.
    ///
    /// # Errors
    /// [`DeviceError::InvalidArgument`] for a name that does not parse to itself: an index without
    /// a type.
    pub fn new(
        name: &DeviceName,
        capacity_bytes: u64,
        pool: Arc<IntraOpPool>,
    ) -> Result<Self, DeviceError> {
        let attributes =
            DeviceAttributes::new(name, super::DEVICE_TYPE, NOMINAL_MEMORY_LIMIT_BYTES);
        let allocator = HostAllocator::new(attributes.name.clone(), capacity_bytes);
        let allocator: Arc<dyn Allocator> = Arc::new(allocator);
        let rates = DeviceRates::default_cpu(pool.n_threads());
        Ok(Self {
            base: DeviceBase::new(attributes)?,
            context: Arc::new(HostMemoryContext::new(Arc::clone(&allocator))),
            pinned: Arc::clone(&allocator),
            memory_ids: [allocator.memory_id(); 2],
            allocator,
            capacity_bytes,
            pool,
            rates,
            chip: None,
        })
    }

    /// Returns whether a tensor is in this device's memory. Strings are host memory on every
    /// device.
    fn holds(&self, tensor: &Tensor) -> bool {
        let [ordinary, pinned] = self.memory_ids;
        tensor.buffer().is_none_or(|buffer| {
            let id = buffer.memory_id();
            id == ordinary || id == pinned
        })
    }

    /// Sets the device's place in the machine.
    #[must_use]
    pub fn with_locality(mut self, locality: DeviceLocality) -> Self {
        self.base = self.base.with_locality(locality);
        self
    }

    /// Allocates tensors that should be compatible with GPUs, or all tensors, from `pinned`
    /// (TensorFlow `GPUCompatibleCPUDevice`). `pinned` is memory of this device, too: its kernels
    /// read and write it.
    #[must_use]
    pub fn with_pinned_memory(mut self, pinned: Arc<dyn Allocator>, for_all: bool) -> Self {
        if for_all {
            self.allocator = Arc::clone(&pinned);
            self.context = Arc::new(HostMemoryContext::new(Arc::clone(&pinned)));
        }
        self.pinned = pinned;
        self.memory_ids = [self.allocator.memory_id(), self.pinned.memory_id()];
        self
    }

    /// Sets the name of the chip that it computes with. Devices that share a thread pool, and other
    /// runtimes that compute with the same processor, have one name
    /// ([`HOST_PROCESSOR`](crate::device::HOST_PROCESSOR) for the whole processor).
    #[must_use]
    pub fn with_chip(mut self, chip: impl Into<Arc<str>>) -> Self {
        self.chip = Some(chip.into());
        self
    }
}

impl Device for ThreadPoolDevice {
    fn base(&self) -> &DeviceBase {
        &self.base
    }

    /// Returns the same allocator for host and device: the memory of a CPU device is host memory.
    fn allocator(&self, attributes: AllocatorAttributes) -> Arc<dyn Allocator> {
        Arc::clone(if attributes.gpu_compatible {
            &self.pinned
        } else {
            &self.allocator
        })
    }

    fn memory_capacity_bytes(&self) -> u64 {
        self.capacity_bytes
    }

    fn rates(&self) -> DeviceRates {
        self.rates
    }

    fn chip(&self) -> Option<&str> {
        self.chip.as_deref()
    }

    fn chip_threads(&self) -> Option<usize> {
        Some(self.pool.n_threads())
    }

    fn as_kernel_device(&self) -> Option<&dyn KernelDevice> {
        Some(self)
    }
}

impl KernelDevice for ThreadPoolDevice {
    fn default_context(&self) -> &Arc<dyn DeviceContext> {
        &self.context
    }

    /// Rejects inputs in the memory of another device: a transfer is missing. It also rejects such
    /// outputs, so that the kernel at fault is named rather than the next one.
    fn compute(
        &self,
        kernel: &dyn Kernel,
        context: &mut KernelContext<'_>,
    ) -> Result<(), KernelError> {
        for (index, tensor) in context.inputs().enumerate() {
            if !self.holds(tensor) {
                return Err(KernelError::invalid(format!(
                    "input {index} is not in the memory of {}; transfer it first (`DeviceContext::copy_from_host`)",
                    self.attributes().name
                )));
            }
        }
        kernel.compute(context)?;
        for index in 0..context.n_outputs() {
            if context
                .output(index)
                .is_some_and(|tensor| !self.holds(tensor))
            {
                return Err(KernelError::invalid(format!(
                    "output {index} is not in the memory of {}; allocate it with `KernelContext::allocate_output`",
                    self.attributes().name
                )));
            }
        }
        Ok(())
    }

    #[cfg(feature = "kernels")]
    fn maybe_rewrite_graph(
        &self,
        _: &[Function],
        graph: &mut PartitionGraph<'_>,
    ) -> Result<(), DeviceError> {
        super::fuse::fuse(graph);
        Ok(())
    }

    fn make_tensor(
        &self,
        literal: &Literal,
        attributes: AllocatorAttributes,
    ) -> Result<Tensor, KernelError> {
        Ok(literal.to_tensor(&*self.allocator(attributes))?)
    }

    fn intra_op_pool(&self) -> Option<&IntraOpPool> {
        // With one thread, the caller runs everything.
        (self.pool.n_threads() > 1).then_some(&*self.pool)
    }
}

/// Memory that this process may use, in bytes: the machine's, or less if a container has a limit.
pub(crate) fn system_memory_bytes() -> u64 {
    let Ok(mut system) = sysinfo::System::new() else {
        return ASSUMED_MEMORY_BYTES;
    };
    system.refresh_memory_specifics(sysinfo::MemoryRefreshKind::nothing().with_ram());
    let container = system.cgroup_limits().map(|limits| limits.total_memory);
    memory_within(system.total_memory(), container)
}

/// Returns the smaller limit; 0 means that a limit is unknown.
fn memory_within(machine: u64, container: Option<u64>) -> u64 {
    let known = [Some(machine), container];
    let known = known.into_iter().flatten().filter(|&bytes| bytes > 0);
    known.min().unwrap_or(ASSUMED_MEMORY_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_known_limit_counts() {
        assert_eq!(memory_within(8, Some(4)), 4);
        assert_eq!(memory_within(8, Some(u64::MAX)), 8);
        assert_eq!(memory_within(0, Some(4)), 4);
        assert_eq!(memory_within(8, None), 8);
        assert_eq!(memory_within(0, Some(0)), ASSUMED_MEMORY_BYTES);
    }
}
