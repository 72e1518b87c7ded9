//! A CPU device that catches missing transfers.
//!
//! CPU devices could read each other's memory by accident, and a missing transfer would go
//! unnoticed. [`StrictCpu`] gives its kernels poison instead of every tensor that is not in its own
//! memory: NaN for floats, bytes 0xAB for other types. So a missing transfer is a wrong result.
//! Shared by suites with `#[path]`.

#![allow(
    dead_code,
    reason = "each suite that includes this file uses a part of it"
)]

use std::sync::Arc;

use placewright::backend::cpu::ThreadPoolDevice;
use placewright::backend::cpu::ThreadPoolDeviceFactory;
use placewright::device::AllocatorAttributes;
use placewright::device::Device;
use placewright::device::DeviceBase;
use placewright::device::DeviceContext;
use placewright::device::DeviceError;
use placewright::device::DeviceFactory;
use placewright::device::DeviceOptions;
use placewright::device::DeviceRates;
use placewright::device::IntraOpPool;
use placewright::device::Kernel;
use placewright::device::KernelContext;
use placewright::device::KernelDevice;
use placewright::device::KernelError;
use placewright::device::KernelRegistry;
use placewright::device::PhysicalDevice;
use placewright::tensor::Allocator;
use placewright::tensor::DType;
use placewright::tensor::Literal;
use placewright::tensor::Tensor;

/// A CPU device whose kernels read only its own memory.
#[derive(Debug)]
pub(crate) struct StrictCpu {
    inner: ThreadPoolDevice,
}

/// Creates strict CPU devices, in place of [`ThreadPoolDeviceFactory`].
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct StrictCpuFactory;

impl StrictCpu {
    /// Returns poison for `tensor`, if it is in another memory than this device's.
    fn poison_for(&self, tensor: &Tensor) -> Result<Option<Tensor>, KernelError> {
        let allocator = self.allocator(AllocatorAttributes::default());
        // Strings belong to the host, whatever the device.
        if tensor
            .buffer()
            .is_none_or(|buffer| buffer.memory_id() == allocator.memory_id())
        {
            return Ok(None);
        }
        let mut poison = Tensor::zeros(&*allocator, tensor.dtype(), tensor.shape().clone())?;
        // All bits set is NaN in every floating-point format.
        let complex = matches!(tensor.dtype(), DType::Complex64 | DType::Complex128);
        let byte = if tensor.dtype().is_floating() || complex {
            0xFF
        } else {
            0xAB
        };
        poison
            .as_bytes_mut()
            .expect("the allocation is new, and the host's")
            .fill(byte);
        Ok(Some(poison))
    }
}

impl Device for StrictCpu {
    fn base(&self) -> &DeviceBase {
        self.inner.base()
    }

    fn allocator(&self, attributes: AllocatorAttributes) -> Arc<dyn Allocator> {
        self.inner.allocator(attributes)
    }

    fn memory_capacity_bytes(&self) -> u64 {
        self.inner.memory_capacity_bytes()
    }

    fn rates(&self) -> DeviceRates {
        self.inner.rates()
    }

    fn as_kernel_device(&self) -> Option<&dyn KernelDevice> {
        Some(self)
    }
}

impl KernelDevice for StrictCpu {
    fn default_context(&self) -> &Arc<dyn DeviceContext> {
        self.inner.default_context()
    }

    fn compute(
        &self,
        kernel: &dyn Kernel,
        context: &mut KernelContext<'_>,
    ) -> Result<(), KernelError> {
        for index in 0..context.n_inputs() {
            if let Some(poison) = self.poison_for(context.input(index)?)? {
                context.replace_input(index, poison)?;
            }
        }
        self.inner.compute(kernel, context)
    }

    fn make_tensor(
        &self,
        literal: &Literal,
        attributes: AllocatorAttributes,
    ) -> Result<Tensor, KernelError> {
        self.inner.make_tensor(literal, attributes)
    }

    fn intra_op_pool(&self) -> Option<&IntraOpPool> {
        self.inner.intra_op_pool()
    }
}

impl DeviceFactory for StrictCpuFactory {
    fn list_physical(&self) -> Result<Vec<PhysicalDevice>, DeviceError> {
        ThreadPoolDeviceFactory::default().list_physical()
    }

    fn create(
        &self,
        options: &DeviceOptions,
        prefix: &str,
    ) -> Result<Vec<Arc<dyn Device>>, DeviceError> {
        let devices = ThreadPoolDeviceFactory::default().create_cpus(options, prefix)?;
        Ok(devices
            .into_iter()
            .map(|inner| Arc::new(StrictCpu { inner }) as Arc<dyn Device>)
            .collect())
    }

    fn register_kernels(&self, registry: &mut KernelRegistry) {
        ThreadPoolDeviceFactory::default().register_kernels(registry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A kernel that forwards its input.
    struct Through;

    impl Kernel for Through {
        fn compute(&self, context: &mut KernelContext<'_>) -> Result<(), KernelError> {
            let tensor = context.input(0)?.clone();
            context.set_output(0, tensor)
        }
    }

    fn devices() -> Vec<Arc<dyn Device>> {
        let mut options = DeviceOptions::default();
        options.device_count.insert("CPU".to_owned(), 2);
        StrictCpuFactory
            .create(&options, "/job:localhost/replica:0/task:0")
            .unwrap()
    }

    fn seen_by_kernel(device: &dyn KernelDevice, tensor: &Tensor) -> Tensor {
        let mut context = KernelContext::new(device, "node", vec![tensor.clone()], &[false]);
        device.compute(&Through, &mut context).unwrap();
        context.into_outputs().unwrap().remove(0)
    }

    #[test]
    fn an_own_tensor_is_read_unchanged() {
        let devices = devices();
        let device = devices[0].as_kernel_device().unwrap();
        let fed = Tensor::from_values([2], &[1.0f32, 2.0]).unwrap();
        let own = device.default_context().copy_from_host(&fed).unwrap();
        assert_eq!(
            seen_by_kernel(device, &own).as_slice::<f32>().unwrap(),
            [1.0, 2.0]
        );
    }

    #[test]
    fn a_tensor_of_another_device_is_poison() {
        let devices = devices();
        let (first, second) = (
            devices[0].as_kernel_device().unwrap(),
            devices[1].as_kernel_device().unwrap(),
        );
        let floats = Tensor::from_values([2], &[1.0f32, 2.0]).unwrap();
        let foreign = first.default_context().copy_from_host(&floats).unwrap();
        let seen = seen_by_kernel(second, &foreign);
        assert!(seen.as_slice::<f32>().unwrap().iter().all(|x| x.is_nan()));
        // An app's feeds do not belong to a device, either.
        let integers = Tensor::from_values([2], &[1i32, 2]).unwrap();
        let seen = seen_by_kernel(second, &integers);
        assert!(seen.as_bytes().unwrap().iter().all(|&byte| byte == 0xAB));
        // The tensor itself is untouched: others may hold it.
        assert_eq!(foreign.as_slice::<f32>().unwrap(), [1.0, 2.0]);
    }
}
