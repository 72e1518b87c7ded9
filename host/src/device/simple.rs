//! A device of any name and type.

use std::sync::Arc;

use super::attributes::DeviceAttributes;
use super::base::DeviceBase;
use super::context::DeviceContext;
use super::context::HostMemoryContext;
use super::error::DeviceError;
use super::rates::DeviceRates;
use super::traits::AllocatorAttributes;
use super::traits::Device;
use super::traits::KernelDevice;
use crate::tensor::Allocator;
use crate::tensor::HostAllocator;

/// A device of any name and type whose memory the host can read. Kernels run on the calling
/// thread. It serves as an app's own device, as a device of a machine that is not present, and in
/// tests of policies and kernels.
#[derive(Debug)]
pub struct SimpleDevice {
    base: DeviceBase,
    memory: Arc<HostAllocator>,
    context: Arc<dyn DeviceContext>,
    rates: DeviceRates,
    chip: Option<String>,
    max_allocation_bytes: u64,
}

impl SimpleDevice {
    /// Creates a device with these attributes, the memory that they state, and the documented rates
    /// of one CPU thread.
    ///
    /// # Errors
    /// [`DeviceError::InvalidArgument`] unless `attributes.name` is a full device name.
    pub fn new(attributes: DeviceAttributes) -> Result<Self, DeviceError> {
        let capacity_bytes = attributes.memory_limit_bytes;
        let memory = Arc::new(HostAllocator::new(attributes.name.clone(), capacity_bytes));
        Ok(Self {
            base: DeviceBase::new(attributes)?,
            rates: DeviceRates::default_cpu(1),
            chip: None,
            max_allocation_bytes: u64::MAX,
            context: Arc::new(HostMemoryContext::new(Arc::clone(&memory) as _)),
            memory,
        })
    }

    /// Sets its rates.
    #[must_use]
    pub fn with_rates(mut self, rates: DeviceRates) -> Self {
        self.rates = rates;
        self
    }

    /// Makes it one of the devices that share this chip ([`Device::chip`]).
    #[must_use]
    pub fn with_chip(mut self, chip: impl Into<String>) -> Self {
        self.chip = Some(chip.into());
        self
    }

    /// Sets its largest allocation ([`Device::max_allocation_bytes`]).
    #[must_use]
    pub fn with_max_allocation_bytes(mut self, bytes: u64) -> Self {
        self.max_allocation_bytes = bytes;
        self
    }

    /// Sets its memory capacity. The attributes do not change.
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

    fn max_allocation_bytes(&self) -> u64 {
        self.max_allocation_bytes
    }

    fn rates(&self) -> DeviceRates {
        self.rates
    }

    fn chip(&self) -> Option<&str> {
        self.chip.as_deref()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Kernel;
    use crate::device::KernelContext;
    use crate::device::KernelError;
    use crate::names::DeviceName;
    use crate::tensor::DType;
    use crate::tensor::Tensor;

    fn attributes(device_type: &str) -> DeviceAttributes {
        let name = DeviceName::full("localhost", 0, 0, "NPU", 3);
        DeviceAttributes::new(&name, device_type, 1024)
    }

    #[test]
    fn it_is_what_its_attributes_say_whatever_the_type() {
        let device = SimpleDevice::new(attributes("ACCELERATOR")).unwrap();
        assert_eq!(device.name().device_type.as_deref(), Some("NPU"));
        assert_eq!(device.attributes().device_type, "ACCELERATOR");
        assert!(device.is_local() && !device.is_removed());
        let mut badly_named = attributes("NPU");
        badly_named.name = "NPU:3".to_owned();
        let error = SimpleDevice::new(badly_named).unwrap_err();
        assert!(error.to_string().contains("`NPU:3`"), "{error}");
    }

    #[test]
    fn memory_ends_where_the_attributes_or_the_app_say() {
        let own = AllocatorAttributes::default();
        let device = SimpleDevice::new(attributes("NPU")).unwrap();
        let half = device.allocator(own).allocate(512).unwrap();
        assert!(device.allocator(own).allocate(513).is_err());
        drop(half);
        device.allocator(own).allocate(1024).unwrap();
        let larger = device.with_memory_capacity_bytes(4096);
        assert_eq!(larger.memory_capacity_bytes(), 4096);
        assert_eq!(larger.attributes().memory_limit_bytes, 1024);
        larger.allocator(own).allocate(4096).unwrap();
        assert!(larger.allocator(own).allocate(4097).is_err());
    }

    /// Doubles each number.
    struct Double;

    impl Kernel for Double {
        fn compute(&self, context: &mut KernelContext<'_>) -> Result<(), KernelError> {
            let input = context.input(0)?.clone();
            let values = input.as_slice::<f32>()?;
            context.fill_output::<f32>(0, input.shape(), |outputs| {
                for (output, value) in outputs.iter_mut().zip(values) {
                    *output = 2.0 * value;
                }
                Ok(())
            })
        }
    }

    #[test]
    fn kernels_run_in_its_memory() {
        let device = SimpleDevice::new(attributes("NPU")).unwrap();
        let memory = device.allocator(AllocatorAttributes::default());
        let mut input = Tensor::zeros(&*memory, DType::F32, [2].into()).unwrap();
        input
            .as_slice_mut::<f32>()
            .unwrap()
            .copy_from_slice(&[1.0, -3.0]);
        let kernels = device.as_kernel_device().unwrap();
        let mut context = KernelContext::new(kernels, "node", vec![input], &[false]);
        kernels.compute(&Double, &mut context).unwrap();
        let output = context.into_outputs().unwrap().remove(0);
        assert_eq!(output.as_slice::<f32>().unwrap(), [2.0, -6.0]);
        let buffer = output.buffer().unwrap();
        assert_eq!(buffer.memory_id(), memory.memory_id());
    }
}
