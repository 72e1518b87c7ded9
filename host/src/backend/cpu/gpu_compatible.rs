//! CPU devices beside a GPU: host memory that the GPU copies from and to directly.

use std::sync::Arc;

use super::ThreadPoolDeviceFactory;
use crate::device::Device;
use crate::device::DeviceDetails;
use crate::device::DeviceError;
use crate::device::DeviceFactory;
use crate::device::DeviceOptions;
use crate::device::KernelRegistry;
use crate::device::PhysicalDevice;
use crate::device::PinnedHostMemory;

/// The factory of CPU devices whose `gpu_compatible` allocations are in pinned memory (TensorFlow
/// `GPUCompatibleCPUDeviceFactory`); with
/// [`DeviceOptions::force_gpu_compatible`](crate::device::DeviceOptions::force_gpu_compatible), all
/// allocations are. It replaces [`ThreadPoolDeviceFactory`] if another factory provides such
/// memory.
#[derive(Debug)]
pub struct GpuCompatibleCpuDeviceFactory {
    inner: ThreadPoolDeviceFactory,
    memory: Arc<dyn PinnedHostMemory>,
}

impl GpuCompatibleCpuDeviceFactory {
    /// Creates a factory for the devices of `inner`, with this memory. The two share pools.
    pub fn new(inner: ThreadPoolDeviceFactory, memory: Arc<dyn PinnedHostMemory>) -> Self {
        Self { inner, memory }
    }
}

impl DeviceFactory for GpuCompatibleCpuDeviceFactory {
    fn list_physical(&self) -> Result<Vec<PhysicalDevice>, DeviceError> {
        self.inner.list_physical()
    }

    fn details(&self, index: usize) -> Result<DeviceDetails, DeviceError> {
        self.inner.details(index)
    }

    fn create(
        &self,
        options: &DeviceOptions,
        prefix: &str,
    ) -> Result<Vec<Arc<dyn Device>>, DeviceError> {
        let devices = self.inner.create_cpus(options, prefix)?.into_iter();
        let devices = devices.map(|device| {
            let name = format!("{} (pinned)", device.attributes().name);
            let pinned = self.memory.allocator(&name, device.memory_capacity_bytes());
            let device = device.with_pinned_memory(pinned, options.force_gpu_compatible);
            Arc::new(device) as Arc<dyn Device>
        });
        Ok(devices.collect())
    }

    fn register_kernels(&self, registry: &mut KernelRegistry) {
        self.inner.register_kernels(registry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend;
    use crate::device::AllocatorAttributes;
    use crate::device::FactoryRegistry;
    use crate::device::Kernel;
    use crate::device::KernelContext;
    use crate::device::KernelError;
    use crate::tensor::Allocator;
    use crate::tensor::HostAllocator;
    use crate::tensor::Tensor;

    /// A driver's memory, seen from the host.
    #[derive(Debug)]
    struct Driver;

    impl PinnedHostMemory for Driver {
        fn allocator(&self, name: &str, limit_bytes: u64) -> Arc<dyn Allocator> {
            Arc::new(HostAllocator::new(name, limit_bytes))
        }
    }

    /// A GPU's factory; its devices do not matter here.
    #[derive(Debug)]
    struct GpuFactory {
        is_present: bool,
    }

    impl DeviceFactory for GpuFactory {
        fn list_physical(&self) -> Result<Vec<PhysicalDevice>, DeviceError> {
            Ok(Vec::new())
        }

        fn create(&self, _: &DeviceOptions, _: &str) -> Result<Vec<Arc<dyn Device>>, DeviceError> {
            Ok(Vec::new())
        }

        fn register_kernels(&self, _: &mut KernelRegistry) {}

        fn pinned_host_memory(&self, _: &DeviceOptions) -> Option<Arc<dyn PinnedHostMemory>> {
            self.is_present
                .then(|| Arc::new(Driver) as Arc<dyn PinnedHostMemory>)
        }
    }

    fn factories(is_present: bool) -> FactoryRegistry {
        let mut factories = FactoryRegistry::empty();
        let cpu = ThreadPoolDeviceFactory::default();
        factories
            .register("CPU", backend::cpu::PRIORITY, Arc::new(cpu))
            .unwrap();
        factories
            .register("GPU", 210, Arc::new(GpuFactory { is_present }))
            .unwrap();
        factories
    }

    /// Returns the first CPU device, and the priority of its type.
    fn cpu(factories: &FactoryRegistry, options: &DeviceOptions) -> (Arc<dyn Device>, i32) {
        let prefix = "/job:localhost/replica:0/task:0";
        let set = factories.create_devices(options, prefix).unwrap();
        let priority = set.type_priority("CPU");
        let (_, device) = set.iter().next().unwrap();
        (Arc::clone(device), priority)
    }

    fn allocator(device: &dyn Device, gpu_compatible: bool) -> Arc<dyn Allocator> {
        device.allocator(AllocatorAttributes {
            on_host: true,
            gpu_compatible,
        })
    }

    #[test]
    fn gpu_compatible_memory_is_pinned_if_there_is_a_gpu() {
        let options = DeviceOptions::default();
        let (device, priority) = cpu(&factories(true), &options);
        assert_eq!(priority, 70);
        assert!(allocator(&*device, true).name().ends_with("(pinned)"));
        assert!(!allocator(&*device, false).name().ends_with("(pinned)"));
        let forced = DeviceOptions {
            force_gpu_compatible: true,
            ..options
        };
        let (device, _) = cpu(&factories(true), &forced);
        assert!(allocator(&*device, false).name().ends_with("(pinned)"));
    }

    #[test]
    fn without_a_usable_gpu_the_plain_factory_stays() {
        let none = DeviceOptions::default();
        let mut no_gpu = none.clone();
        no_gpu.device_count.insert("GPU".to_owned(), 0);
        let filtered = DeviceOptions {
            device_filters: vec!["/device:CPU:*".to_owned()],
            ..none.clone()
        };
        let disabled = factories(true).with_enabled_types("CPU");
        let mut own = factories(true);
        let apps = Arc::new(ThreadPoolDeviceFactory::default());
        own.register("CPU", 100, apps).unwrap();
        for (factories, options, priority) in [
            (&factories(false), &none, 60),
            (&factories(true), &no_gpu, 60),
            (&factories(true), &filtered, 60),
            (&disabled, &none, 60),
            (&own, &none, 100),
        ] {
            let (device, found) = cpu(factories, options);
            assert_eq!(found, priority);
            let pinned = allocator(&*device, true);
            assert_eq!(pinned.memory_id(), allocator(&*device, false).memory_id());
        }
    }

    /// Forwards its input.
    struct Through;

    impl Kernel for Through {
        fn compute(&self, context: &mut KernelContext<'_>) -> Result<(), KernelError> {
            let tensor = context.input(0)?.clone();
            context.set_output(0, tensor)
        }
    }

    #[test]
    fn kernels_read_pinned_memory_of_their_device_only() {
        let mut options = DeviceOptions::default();
        options.device_count.insert("CPU".to_owned(), 2);
        let set = factories(true)
            .create_devices(&options, "/job:localhost/replica:0/task:0")
            .unwrap();
        let devices: Vec<_> = set.iter().map(|(_, device)| device).collect();
        let pinned = |index: usize| {
            let allocator = allocator(&**devices[index], true);
            Tensor::zeros(&*allocator, crate::tensor::DType::F32, [2].into()).unwrap()
        };
        let compute = |input: Tensor| {
            let device = devices[0].as_kernel_device().unwrap();
            let mut context = KernelContext::new(device, "node", vec![input], &[false]);
            device.compute(&Through, &mut context)
        };
        assert_eq!(compute(pinned(0)), Ok(()));
        let error = compute(pinned(1)).unwrap_err().to_string();
        assert!(error.contains("input 0"), "{error}");
    }
}
