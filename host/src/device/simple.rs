//! A device of any name and type.

use std::sync::Arc;

use super::attributes::DeviceAttributes;
use super::base::DeviceBase;
use super::context::DeviceContext;
use super::context::HostMemoryContext;
use super::error::DeviceError;
use super::profile::DeviceProfile;
use super::traits::AllocatorAttributes;
use super::traits::Device;
use super::traits::KernelDevice;
use crate::tensor::Allocator;
use crate::tensor::HostAllocator;

/// A device of any name and type that runs kernels on the calling thread, in host memory of its own: for placing on machines
/// that are not there, and for tests of policies and kernels.
#[derive(Debug)]
pub struct SimpleDevice {
    base: DeviceBase,
    memory: Arc<HostAllocator>,
    context: Arc<dyn DeviceContext>,
    profile: DeviceProfile,
}

impl SimpleDevice {
    /// A device with these attributes, the memory that they state, and the documented rates of one CPU thread.
    ///
    /// # Errors
    /// [`DeviceError::InvalidArgument`] unless `attributes.name` is a device's full name.
    pub fn new(attributes: DeviceAttributes) -> Result<Self, DeviceError> {
        let capacity_bytes = attributes.memory_limit_bytes;
        let memory = Arc::new(HostAllocator::new(attributes.name.clone(), capacity_bytes));
        Ok(Self {
            base: DeviceBase::new(attributes)?,
            profile: DeviceProfile::default_cpu(1),
            context: Arc::new(HostMemoryContext::new(Arc::clone(&memory) as _)),
            memory,
        })
    }

    /// The same, with these rates.
    #[must_use]
    pub fn with_profile(mut self, profile: DeviceProfile) -> Self {
        self.profile = profile;
        self
    }

    /// The same, with this much memory; what the attributes state stays.
    #[must_use]
    pub fn with_memory_capacity_bytes(mut self, bytes: u64) -> Self {
        let name = self.base.attributes().name.clone();
        self.memory = Arc::new(HostAllocator::new(name, bytes));
        self.context = Arc::new(HostMemoryContext::new(Arc::clone(&self.memory) as _));
        self
    }
}

impl Device for SimpleDevice {
    fn base(&self) -> &DeviceBase {
        &self.base
    }

    fn allocator(&self, _: AllocatorAttributes) -> Arc<dyn Allocator> {
        Arc::clone(&self.memory) as Arc<dyn Allocator>
    }

    fn memory_capacity_bytes(&self) -> u64 {
        self.memory.limit_bytes()
    }

    fn profile(&self) -> DeviceProfile {
        self.profile
    }

    fn as_kernel_device(&self) -> Option<&dyn KernelDevice> {
        Some(self)
    }
}

impl KernelDevice for SimpleDevice {
    fn default_context(&self) -> &Arc<dyn DeviceContext> {
        &self.context
    }
}
