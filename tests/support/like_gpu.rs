//! An OpenCL device that has its kernels written as for a GPU.
//!
//! Kernels of devices that compile choose by the kind of processor: on a GPU groups of work items share rows and sums through the memory of
//! the group, and neighbours read neighbours. No test machine need have one: this device says that it is one, and computes with the
//! driver's CPU. It shows that those ways compute the right numbers; that they are fast on a GPU, it does not show.
//!
//! Another one has NVRTC compile them for a GPU, and executes nothing. It shows that they compile; that they run, it does not show. Shared by
//! suites with `#[path]`.

#![allow(
    dead_code,
    reason = "each suite that includes this file uses a part of it"
)]

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::Mutex;

use placewright::backend::cuda;
use placewright::backend::opencl::SyclDeviceFactory;
use placewright::device::AllocatorAttributes;
use placewright::device::ComputeTraits;
use placewright::device::Device;
use placewright::device::DeviceBase;
use placewright::device::DeviceContext;
use placewright::device::DeviceError;
use placewright::device::DeviceFactory;
use placewright::device::DeviceFunction;
use placewright::device::DeviceOptions;
use placewright::device::DeviceProfile;
use placewright::device::KernelDevice;
use placewright::device::KernelError;
use placewright::device::KernelRegistry;
use placewright::device::Launch;
use placewright::device::PartitionGraph;
use placewright::device::PhysicalDevice;
use placewright::device::ProcessorKind;
use placewright::device::ProgramDevice;
use placewright::device::ProgramSource;
use placewright::device::StepNumber;
use placewright::graph::Function;
use placewright::tensor::Allocator;
use placewright::tensor::DType;
use placewright::tensor::Shape;
use placewright::tensor::Tensor;

/// Hopper, with the instructions that it alone has.
const ARCHITECTURE: &str = "sm_90a";

/// What NVRTC has made of programs.
type Cubins = HashMap<ProgramSource, Result<Vec<u8>, cuda::CompileError>>;

/// A SYCL device with the traits of a GPU.
#[derive(Debug)]
struct LikeGpu {
    inner: Arc<dyn Device>,
    traits: ComputeTraits,
    /// What has been compiled, if nothing is executed.
    compiled: Option<Mutex<Cubins>>,
}

/// A function that is not executed.
#[derive(Debug)]
struct Compiled(String);

impl DeviceFunction for Compiled {
    fn name(&self) -> &str {
        &self.0
    }
}

/// Makes the first SYCL device, as one like a GPU.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct LikeGpuFactory {
    compiles_only: bool,
}

impl LikeGpuFactory {
    /// Its programs are compiled for a GPU, and not executed.
    pub(crate) fn compiling() -> Self {
        Self {
            compiles_only: true,
        }
    }
}

impl LikeGpu {
    fn new(inner: Arc<dyn Device>, compiles_only: bool) -> Option<Self> {
        let traits = inner.as_kernel_device()?.as_program_device()?;
        let traits = ComputeTraits {
            kind: ProcessorKind::Gpu,
            vector_width_f32: 1,
            ..traits.compute_traits().clone()
        };
        let compiled = compiles_only.then(Mutex::default);
        Some(Self {
            inner,
            traits,
            compiled,
        })
    }

    fn kernel_device(&self) -> &dyn KernelDevice {
        let device = self.inner.as_kernel_device();
        device.expect("`new` has looked")
    }

    fn program_device(&self) -> &dyn ProgramDevice {
        let device = self.kernel_device().as_program_device();
        device.expect("`new` has looked")
    }
}

impl Device for LikeGpu {
    fn base(&self) -> &DeviceBase {
        self.inner.base()
    }

    fn allocator(&self, attributes: AllocatorAttributes) -> Arc<dyn Allocator> {
        self.inner.allocator(attributes)
    }

    fn memory_capacity_bytes(&self) -> u64 {
        self.inner.memory_capacity_bytes()
    }

    fn profile(&self) -> DeviceProfile {
        self.inner.profile()
    }

    fn sync(&self) -> Result<(), DeviceError> {
        self.inner.sync()
    }

    fn sync_step(&self, step: StepNumber) -> Result<(), DeviceError> {
        self.inner.sync_step(step)
    }

    fn as_kernel_device(&self) -> Option<&dyn KernelDevice> {
        Some(self)
    }
}

impl KernelDevice for LikeGpu {
    fn default_context(&self) -> &Arc<dyn DeviceContext> {
        self.kernel_device().default_context()
    }

    fn maybe_rewrite_graph(
        &self,
        library: &[Function],
        graph: &mut PartitionGraph<'_>,
    ) -> Result<(), DeviceError> {
        self.kernel_device().maybe_rewrite_graph(library, graph)
    }

    fn as_program_device(&self) -> Option<&dyn ProgramDevice> {
        Some(self)
    }
}

impl ProgramDevice for LikeGpu {
    fn compute_traits(&self) -> &ComputeTraits {
        &self.traits
    }

    fn function(
        &self,
        source: &ProgramSource,
        name: &str,
    ) -> Result<Arc<dyn DeviceFunction>, KernelError> {
        let Some(compiled) = &self.compiled else {
            return self.program_device().function(source, name);
        };
        let mut compiled = compiled.lock().unwrap();
        let cubin = compiled
            .entry(source.clone())
            .or_insert_with(|| cuda::compile(source, ARCHITECTURE));
        match cubin {
            // Symbols of an ELF file are texts in it.
            Ok(cubin)
                if cubin
                    .windows(name.len())
                    .any(|part| part == name.as_bytes()) =>
            {
                Ok(Arc::new(Compiled(name.to_owned())))
            }
            Ok(_) => Err(KernelError::invalid(format!("{source} has no {name}"))),
            Err(error) => Err(KernelError::invalid(error.to_string())),
        }
    }

    fn uninitialized(&self, dtype: DType, shape: Shape) -> Result<Tensor, KernelError> {
        self.program_device().uninitialized(dtype, shape)
    }

    fn launch(&self, launch: Launch<'_>) -> Result<(), KernelError> {
        if self.compiled.is_some() {
            return Ok(());
        }
        self.program_device().launch(launch)
    }
}

impl DeviceFactory for LikeGpuFactory {
    fn list_physical(&self) -> Result<Vec<PhysicalDevice>, DeviceError> {
        if self.compiles_only && !cuda::is_present() {
            let absent = cuda::CompileError::Absent.to_string();
            return Err(DeviceError::InvalidArgument(absent));
        }
        SyclDeviceFactory.list_physical()
    }

    fn create(
        &self,
        options: &DeviceOptions,
        prefix: &str,
    ) -> Result<Vec<Arc<dyn Device>>, DeviceError> {
        let mut options = options.clone();
        options.device_count.insert("SYCL".to_owned(), 1);
        let devices = SyclDeviceFactory.create(&options, prefix)?;
        let devices = devices
            .into_iter()
            .filter_map(|device| LikeGpu::new(device, self.compiles_only));
        Ok(devices
            .map(|device| Arc::new(device) as Arc<dyn Device>)
            .collect())
    }

    fn register_kernels(&self, registry: &mut KernelRegistry) {
        SyclDeviceFactory.register_kernels(registry);
    }
}
