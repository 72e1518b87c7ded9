//! The CPU device: memory, threads, copies.

use std::sync::Arc;

use crate::device::AllocatorAttributes;
use crate::device::Device;
use crate::device::DeviceAttributes;
use crate::device::DeviceBase;
use crate::device::DeviceContext;
use crate::device::DeviceError;
use crate::device::DeviceLocality;
use crate::device::DeviceProfile;
use crate::device::HOST_PROCESSOR;
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

/// What TensorFlow says of every CPU device, whatever the machine has.
const NOMINAL_MEMORY_LIMIT_BYTES: u64 = 256 << 20;

/// What a machine is taken to have where it does not tell.
const ASSUMED_MEMORY_BYTES: u64 = 4 << 30;

/// A CPU device (TensorFlow `ThreadPoolDevice`): runs kernels on the calling thread, with the help
/// of a pool.
#[derive(Debug)]
pub struct ThreadPoolDevice {
    base: DeviceBase,
    context: Arc<dyn DeviceContext>,
    /// What kernels' tensors stand in.
    allocator: Arc<dyn Allocator>,
    /// What GPUs copy from and to; the same, where there are none.
    pinned: Arc<dyn Allocator>,
    /// Of both, for a look at every tensor of every kernel.
    memory_ids: [MemoryId; 2],
    capacity_bytes: u64,
    pool: Arc<IntraOpPool>,
    profile: DeviceProfile,
    is_host_processor: bool,
    n_sharing_rates: u32,
}

impl ThreadPoolDevice {
    /// A device of this name, with a memory of its own of `capacity_bytes`.
    ///
    /// # Errors
    /// [`DeviceError::InvalidArgument`] for a name that does not read as it prints: an index
    /// without a type.
    pub fn new(
        name: &DeviceName,
        capacity_bytes: u64,
        pool: Arc<IntraOpPool>,
    ) -> Result<Self, DeviceError> {
        let attributes =
            DeviceAttributes::new(name, super::DEVICE_TYPE, NOMINAL_MEMORY_LIMIT_BYTES);
        let allocator = HostAllocator::new(attributes.name.clone(), capacity_bytes);
        let allocator: Arc<dyn Allocator> = Arc::new(allocator);
        let profile = DeviceProfile::default_cpu(pool.n_threads());
        Ok(Self {
            base: DeviceBase::new(attributes)?,
            context: Arc::new(HostMemoryContext::new(Arc::clone(&allocator))),
            pinned: Arc::clone(&allocator),
            memory_ids: [allocator.memory_id(); 2],
            allocator,
            capacity_bytes,
            pool,
            profile,
            is_host_processor: false,
            n_sharing_rates: 1,
        })
    }

    /// Whether a tensor is in this device's memory. Strings are the host's, whatever the device.
    fn holds(&self, tensor: &Tensor) -> bool {
        let [ordinary, pinned] = self.memory_ids;
        tensor.buffer().is_none_or(|buffer| {
            let id = buffer.memory_id();
            id == ordinary || id == pinned
        })
    }

    /// The same, at this place of the machine.
    #[must_use]
    pub fn with_locality(mut self, locality: DeviceLocality) -> Self {
        self.base = self.base.with_locality(locality);
        self
    }

    /// The same, taking from `pinned` what is to be compatible with GPUs, or everything (TensorFlow
    /// `GPUCompatibleCPUDevice`). It is this device's memory, too: its kernels read and write
    /// it.
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

    /// The same, as one of `n_devices` that share the pool and the machine's memory bus: each is
    /// taken to have that part of their rates, or plans would count on as many machines as
    /// there are devices. A device that is busy alone is faster.
    #[must_use]
    pub fn as_one_of(mut self, n_devices: u32) -> Self {
        self.n_sharing_rates = n_devices.max(1);
        let n_devices = f64::from(self.n_sharing_rates);
        let whole = DeviceProfile::default_cpu(self.pool.n_threads());
        self.profile.flops_per_s = whole.flops_per_s / n_devices;
        self.profile.memory_bytes_per_s = whole.memory_bytes_per_s / n_devices;
        self
    }

    /// The same, as the only one that stands for the host's processor: whatever else computes with
    /// that processor, through another runtime, shares it with this device
    /// ([`HOST_PROCESSOR`]). Not for one of several, which have a part of it each and may compute
    /// at the same time.
    #[must_use]
    pub fn as_host_processor(mut self) -> Self {
        self.is_host_processor = true;
        self
    }
}

impl Device for ThreadPoolDevice {
    fn base(&self) -> &DeviceBase {
        &self.base
    }

    /// The same allocator for host and device: to a CPU device its own memory is the host's.
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

    fn profile(&self) -> DeviceProfile {
        self.profile
    }

    fn chip(&self) -> Option<&str> {
        self.is_host_processor.then_some(HOST_PROCESSOR)
    }

    fn n_sharing_rates(&self) -> u32 {
        self.n_sharing_rates
    }

    fn as_kernel_device(&self) -> Option<&dyn KernelDevice> {
        Some(self)
    }
}

impl KernelDevice for ThreadPoolDevice {
    fn default_context(&self) -> &Arc<dyn DeviceContext> {
        &self.context
    }

    /// Refuses inputs of another memory: a transfer is missing. The same for outputs, so that the
    /// kernel at fault is named rather than the next one.
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
                    "output {index} is not in the memory of {}; make it with `KernelContext::allocate_output`",
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
        super::kernels::fused::fuse(graph);
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
        // A single thread is the caller.
        (self.pool.n_threads() > 1).then_some(&*self.pool)
    }
}

/// Memory that this process may use, in bytes: the machine's, or less where a container has a
/// limit.
pub(crate) fn system_memory_bytes() -> u64 {
    let Ok(mut system) = sysinfo::System::new() else {
        return ASSUMED_MEMORY_BYTES;
    };
    system.refresh_memory_specifics(sysinfo::MemoryRefreshKind::nothing().with_ram());
    let container = system.cgroup_limits().map(|limits| limits.total_memory);
    memory_within(system.total_memory(), container)
}

/// 0 is what either says where it does not know.
fn memory_within(machine: u64, container: Option<u64>) -> u64 {
    let known = [Some(machine), container];
    let known = known.into_iter().flatten().filter(|&bytes| bytes > 0);
    known.min().unwrap_or(ASSUMED_MEMORY_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_that_is_known_counts() {
        assert_eq!(memory_within(8, Some(4)), 4);
        assert_eq!(memory_within(8, Some(u64::MAX)), 8);
        assert_eq!(memory_within(0, Some(4)), 4);
        assert_eq!(memory_within(8, None), 8);
        assert_eq!(memory_within(0, Some(0)), ASSUMED_MEMORY_BYTES);
    }
}
