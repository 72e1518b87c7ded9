//! The factory of GPU devices.

use std::path::Path;
use std::sync::Arc;
use std::sync::OnceLock;

use tracing::info;
use tracing::warn;

use super::CompileError;
use super::DEVICE_TYPE;
use super::device::GpuDevice;
use super::device::GpuDeviceOptions;
use super::driver::Driver;
use super::driver::GpuFacts;
use super::ffi::CudaDriver;
use super::group::Gpus;
use super::open_gpu::OpenGpu;
use super::pinned::PinnedForCpus;
use crate::backend::absent::undriven_cards;
use crate::device::Device;
use crate::device::DeviceDetails;
use crate::device::DeviceError;
use crate::device::DeviceFactory;
use crate::device::DeviceOptions;
use crate::device::KernelRegistry;
use crate::device::PhysicalDevice;
use crate::device::PinnedHostMemory;
use crate::device::SYSTEM_ROOT;
use crate::device::gpu::ComputeCapability;
use crate::device::gpu::GpuOptions;
use crate::device::gpu::PhysicalGpu;
use crate::device::gpu::plan_gpus;
use crate::device::gpu::used_gpus;
use crate::device::gpu::visible_gpus;
use crate::device::pci_numa_node;
use crate::names::DeviceName;
use crate::trace::targets;

/// The oldest GPUs that compilers of CUDA 13 support (Turing).
const MIN_COMPUTE_CAPABILITY: ComputeCapability = ComputeCapability { major: 7, minor: 5 };

/// The factory of GPU devices (TensorFlow `BaseGPUDeviceFactory`). It creates one for each GPU, or
/// those that [`GpuOptions`] describe, on at most `device_count["GPU"]` GPUs. All sessions of the
/// process that use a device share its streams and memory.
#[derive(Debug, Clone)]
pub struct GpuDeviceFactory {
    gpus: Arc<Gpus>,
}

/// An open GPU; `None` if it must not be used.
type Opened = Option<Arc<OpenGpu>>;

impl Default for GpuDeviceFactory {
    /// Uses CUDA's driver.
    fn default() -> Self {
        // As in TensorFlow, one per process: two sessions must not both take all memory of a card.
        static GPUS: OnceLock<Arc<Gpus>> = OnceLock::new();
        let gpus = GPUS.get_or_init(|| Arc::new(Gpus::new(Arc::new(CudaDriver))));
        Self {
            gpus: Arc::clone(gpus),
        }
    }
}

impl GpuDeviceFactory {
    /// Creates a factory on another driver with the same model of streams.
    pub fn with_driver(driver: Arc<dyn Driver>) -> Self {
        Self {
            gpus: Arc::new(Gpus::new(driver)),
        }
    }

    /// Lists the driver's GPUs. If there is no driver, the error names the cards that need one.
    fn found_with_cards(&self, root: &Path) -> Result<Vec<GpuFacts>, DeviceError> {
        let mut found = self.gpus.driver.gpus();
        if let Err(DeviceError::Absent { what, .. }) = &mut found {
            let cards = undriven_cards(root);
            if !cards.is_empty() {
                *what += &format!(" for GPUs{cards}");
            }
        }
        found
    }

    /// Lists the driver's GPUs; empty if there is no driver and no GPUs were requested.
    fn found(&self, options: &DeviceOptions) -> Result<Vec<GpuFacts>, DeviceError> {
        let is_asked = options.device_count.contains_key(DEVICE_TYPE);
        match self.found_with_cards(root(options)) {
            Err(DeviceError::Absent { .. }) if !is_asked => Ok(Vec::new()),
            found => found,
        }
    }

    /// Adds the facts that only open GPUs report, for those that may be used.
    fn opened(
        &self,
        mut found: Vec<GpuFacts>,
        options: &DeviceOptions,
    ) -> Result<(Vec<PhysicalGpu>, Vec<Opened>), DeviceError> {
        let visible = visible_gpus(&options.gpu.visible_device_list, found.len())
            .map_err(|error| DeviceError::InvalidArgument(error.to_string()))?;
        let root = root(options);
        let mut open: Vec<Opened> = vec![None; found.len()];
        for &id in &visible {
            let facts = &mut found[id as usize];
            let gpu = self.gpus.open(id, facts, &visible)?;
            facts.physical.clone_from(&gpu.facts().physical);
            // The system folder is a setting of this session.
            let node = pci_numa_node(root, &facts.physical.pci_bus_id).ok();
            if let Some(node) = node.and_then(|node| i32::try_from(node).ok()) {
                facts.physical.numa_node = node;
            }
            open[id as usize] = Some(gpu);
        }
        let physical = found.into_iter().map(|facts| facts.physical);
        Ok((physical.collect(), open))
    }
}

/// Returns the system folder that lists cards.
fn root(options: &DeviceOptions) -> &Path {
    let root = options.system_root.as_deref();
    root.unwrap_or_else(|| Path::new(SYSTEM_ROOT))
}

impl DeviceFactory for GpuDeviceFactory {
    fn list_physical(&self) -> Result<Vec<PhysicalDevice>, DeviceError> {
        let found = self.found_with_cards(Path::new(SYSTEM_ROOT))?;
        let physical = (0u32..).zip(&found).map(|(id, facts)| PhysicalDevice {
            name: format!("/physical_device:{DEVICE_TYPE}:{id}"),
            description: format!(
                "{}, {}",
                facts.physical.description(id, GpuOptions::default().era),
                facts.driver
            ),
        });
        Ok(physical.collect())
    }

    fn details(&self, index: usize) -> Result<DeviceDetails, DeviceError> {
        let found = self.gpus.driver.gpus()?;
        let facts = found.get(index).ok_or_else(|| {
            DeviceError::InvalidArgument(format!(
                "there is no GPU {index}, the driver has {}",
                found.len()
            ))
        })?;
        let physical = &facts.physical;
        let mut details = DeviceDetails::from([
            ("device_name".to_owned(), physical.name.clone()),
            ("pci_bus_id".to_owned(), physical.pci_bus_id.clone()),
            ("driver_version".to_owned(), facts.driver.clone()),
        ]);
        if let Some(capability) = physical.compute_capability {
            details.insert("compute_capability".to_owned(), capability.to_string());
        }
        Ok(details)
    }

    fn create(
        &self,
        options: &DeviceOptions,
        prefix: &str,
    ) -> Result<Vec<Arc<dyn Device>>, DeviceError> {
        let count = options.device_count.get(DEVICE_TYPE).copied();
        // If no devices are requested, do not wait for drivers.
        if count == Some(0) {
            return Ok(Vec::new());
        }
        let found = self.found(options)?;
        if found.is_empty() {
            return Ok(Vec::new());
        }
        if !self.gpus.driver.can_compile() {
            if count.is_none() {
                warn!(target: targets::DEVICE, "no GPU devices are made: {}", CompileError::Absent);
                return Ok(Vec::new());
            }
            return Err(DeviceError::Absent {
                device_type: DEVICE_TYPE.to_owned(),
                what: "there is a driver, but no compiler for its programs".to_owned(),
                remedy: CompileError::Absent.to_string(),
            });
        }
        match self.make(found.clone(), options, prefix) {
            // The loss of a GPU has not been reported yet: the creation of devices finds it, and
            // the GPU is restarted.
            Err(DeviceError::Lost { .. }) => self.make(found, options, prefix),
            made => made,
        }
    }

    fn register_kernels(&self, registry: &mut KernelRegistry) {
        crate::backend::source::register(registry, DEVICE_TYPE);
    }

    /// Returns the memory of the first GPU that will have a device: memory pinned by one GPU is
    /// pinned for all. Invalid options are reported when the devices are created.
    fn pinned_host_memory(&self, options: &DeviceOptions) -> Option<Arc<dyn PinnedHostMemory>> {
        let count = options.device_count.get(DEVICE_TYPE).copied();
        if count == Some(0) || !self.gpus.driver.can_compile() {
            return None;
        }
        let found = self.gpus.driver.gpus().ok()?;
        let physical: Vec<_> = found.iter().map(|facts| facts.physical.clone()).collect();
        let used = used_gpus(&physical, MIN_COMPUTE_CAPABILITY, count, &options.gpu).ok()?;
        let &first = used.first()?;
        let facts = found.get(first as usize)?;
        let gpu = self.gpus.open(first, facts, &[]).ok()?;
        Some(Arc::new(PinnedForCpus(gpu)))
    }
}

impl GpuDeviceFactory {
    /// Creates the devices of a plan for these GPUs.
    fn make(
        &self,
        found: Vec<GpuFacts>,
        options: &DeviceOptions,
        prefix: &str,
    ) -> Result<Vec<Arc<dyn Device>>, DeviceError> {
        let count = options.device_count.get(DEVICE_TYPE).copied();
        let (physical, open) = self.opened(found, options)?;
        let plan = plan_gpus(&physical, MIN_COMPUTE_CAPABILITY, count, &options.gpu)
            .map_err(|error| DeviceError::InvalidArgument(error.to_string()))?;
        for note in &plan.notes {
            info!(target: targets::DEVICE, "{note}");
        }
        let mut devices: Vec<Arc<dyn Device>> = Vec::new();
        for mut planned in plan.devices {
            let text = format!("{prefix}/device:{DEVICE_TYPE}:{}", planned.index);
            let name = DeviceName::parse_full(&text)
                .map_err(|error| DeviceError::InvalidArgument(error.to_string()))?;
            if let Some(limit) = options.memory_bytes_of(&name)? {
                planned.memory_limit_bytes = limit;
            }
            let gpu = open.get(planned.gpu as usize).and_then(Option::as_ref);
            let Some(gpu) = gpu else {
                continue; // Plans contain visible GPUs only.
            };
            let n_compute = options.gpu.n_compute_streams.max(1);
            let group = self
                .gpus
                .group(gpu, &planned, n_compute, options.gpu.allow_growth)?;
            devices.push(Arc::new(GpuDevice::new(
                &name,
                &planned,
                group,
                options.program_cache.clone(),
                GpuDeviceOptions {
                    syncs_every_op: options.gpu.sync_every_op,
                    allows_tf32: options.gpu.allow_tf32,
                },
            )?));
        }
        Ok(devices)
    }
}
