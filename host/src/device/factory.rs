//! Where devices come from.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use crate::device::error::DeviceError;
use crate::device::gpu::GpuOptions;
use crate::device::intra_op::IntraOpPool;
use crate::device::kernel_registry::KernelRegistry;
use crate::device::traits::Device;
use crate::names::DeviceName;
use crate::store::CacheFolder;
use crate::tensor::Allocator;

/// What a user asks of all factories.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct DeviceOptions {
    /// Devices per type: exact for CPU (default 1), an upper bound for GPU, exact for SYCL
    /// (TensorFlow `device_count`).
    pub device_count: BTreeMap<String, u32>,
    /// Threads for loops inside one kernel, per pool; 0 = one per core, or with
    /// [`Self::use_numa_affinity`] one per core of a node. Where devices share a pool that is
    /// there already, its number counts.
    pub intra_op_parallelism_threads: usize,
    /// Whose threads those are.
    pub intra_op_pools: IntraOpPools,
    /// Whether CPU devices are dealt out to NUMA nodes: device `i` says that it is on node `i`
    /// modulo their number, and its threads run there. TensorFlow's option. Worth it where
    /// each device's data stays on its node; a single device is faster without.
    pub use_numa_affinity: bool,
    /// Where the system tells of NUMA nodes and cards; `None` =
    /// [`SYSTEM_ROOT`](super::SYSTEM_ROOT). Tests and containers may have a copy elsewhere.
    pub system_root: Option<PathBuf>,
    /// Whether all memory of CPU devices is pinned, where a GPU brings such memory; TensorFlow's
    /// option. Copies to and from the GPU are faster; pinned memory is scarce, and slow to
    /// get.
    pub force_gpu_compatible: bool,
    /// Memory capacity in bytes by device (`CPU:0`, or any fuller spelling), where it shall differ
    /// from the device's own.
    pub memory_bytes: BTreeMap<String, u64>,
    /// Names, full or local, possibly partial. If any names a type, only factories of the types
    /// named are asked; CPU always is.
    pub device_filters: Vec<String>,
    /// What is asked of GPUs.
    pub gpu: GpuOptions,
    /// Where devices keep programs that they have compiled; `None` = they compile them in each
    /// process.
    pub program_cache: Option<Arc<CacheFolder>>,
}

/// Whose threads CPU devices lend to loops inside their kernels.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub enum IntraOpPools {
    /// One pool of the process for each number of threads that is asked for, with
    /// [`DeviceOptions::use_numa_affinity`] one per node: devices of all sessions share it, and
    /// it goes with the last of them.
    #[default]
    Shared,
    /// A pool for each device (TensorFlow `TF_OVERRIDE_GLOBAL_THREADPOOL`): devices do not wait for
    /// each other's loops, and compete for the cores.
    PerDevice,
    /// The app's own ([`IntraOpPool::from_rayon`]), for all devices.
    App(Arc<IntraOpPool>),
}

impl PartialEq for IntraOpPools {
    /// An app's pool equals itself alone.
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Shared, Self::Shared) | (Self::PerDevice, Self::PerDevice) => true,
            (Self::App(own), Self::App(others)) => Arc::ptr_eq(own, others),
            _ => false,
        }
    }
}

impl DeviceOptions {
    /// Adds the number of devices of one type to [`Self::device_count`].
    #[must_use]
    pub fn with_device_count(mut self, device_type: impl Into<String>, count: u32) -> Self {
        self.device_count.insert(device_type.into(), count);
        self
    }

    /// Sets [`Self::intra_op_parallelism_threads`].
    #[must_use]
    pub fn with_intra_op_parallelism_threads(mut self, n_threads: usize) -> Self {
        self.intra_op_parallelism_threads = n_threads;
        self
    }

    /// Sets [`Self::intra_op_pools`].
    #[must_use]
    pub fn with_intra_op_pools(mut self, pools: IntraOpPools) -> Self {
        self.intra_op_pools = pools;
        self
    }

    /// Sets [`Self::use_numa_affinity`].
    #[must_use]
    pub fn with_numa_affinity(mut self, is_wanted: bool) -> Self {
        self.use_numa_affinity = is_wanted;
        self
    }

    /// Sets [`Self::system_root`].
    #[must_use]
    pub fn with_system_root(mut self, root: impl Into<PathBuf>) -> Self {
        self.system_root = Some(root.into());
        self
    }

    /// Sets [`Self::force_gpu_compatible`].
    #[must_use]
    pub fn with_force_gpu_compatible(mut self, is_wanted: bool) -> Self {
        self.force_gpu_compatible = is_wanted;
        self
    }

    /// Adds the capacity of one device to [`Self::memory_bytes`].
    #[must_use]
    pub fn with_memory_bytes(mut self, device: impl Into<String>, bytes: u64) -> Self {
        self.memory_bytes.insert(device.into(), bytes);
        self
    }

    /// Sets [`Self::device_filters`].
    #[must_use]
    pub fn with_device_filters<S: Into<String>>(
        mut self,
        filters: impl IntoIterator<Item = S>,
    ) -> Self {
        self.device_filters = filters.into_iter().map(Into::into).collect();
        self
    }

    /// Sets [`Self::gpu`].
    #[must_use]
    pub fn with_gpu(mut self, gpu: GpuOptions) -> Self {
        self.gpu = gpu;
        self
    }

    /// Sets [`Self::program_cache`].
    #[must_use]
    pub fn with_program_cache(mut self, folder: impl Into<Arc<CacheFolder>>) -> Self {
        self.program_cache = Some(folder.into());
        self
    }

    /// The same, with what the environment says where nothing was asked for: the number of threads
    /// (TensorFlow `TF_NUM_INTRAOP_THREADS`), whether each device has its own pool
    /// (`TF_OVERRIDE_GLOBAL_THREADPOOL`), whether GPUs' memory is taken as it is needed
    /// (`TF_FORCE_GPU_ALLOW_GROWTH`, which counts whatever was asked for), how many multiprocessors
    /// a GPU must have (`TF_MIN_GPU_MULTIPROCESSOR_COUNT`), and how much of its memory is left
    /// to others (`TF_DEVICE_MIN_SYS_MEMORY_IN_MB`). Sessions that make their devices, and the
    /// program, do this.
    ///
    /// # Errors
    /// [`DeviceError::InvalidArgument`] with the variable, for a value that is none.
    pub fn completed_from_env(self) -> Result<Self, DeviceError> {
        self.completed_from(|name| {
            let value = std::env::var_os(name)?;
            Some(value.to_string_lossy().into_owned())
        })
    }

    fn completed_from(
        mut self,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, DeviceError> {
        let wrong = |name: &str, value: &str, expected: &str| {
            Err(DeviceError::InvalidArgument(format!(
                "environment variable {name} is `{value}`; give {expected}, or unset it"
            )))
        };
        let set = |name| variable(name).filter(|value| !value.is_empty());
        let name = "TF_NUM_INTRAOP_THREADS";
        if self.intra_op_parallelism_threads == 0
            && !matches!(self.intra_op_pools, IntraOpPools::App(_))
            && let Some(value) = set(name)
        {
            let Ok(n) = value.parse() else {
                return wrong(name, &value, "a number of threads");
            };
            self.intra_op_parallelism_threads = n;
        }
        let name = "TF_OVERRIDE_GLOBAL_THREADPOOL";
        if self.intra_op_pools == IntraOpPools::Shared
            && let Some(value) = set(name)
        {
            match value.to_ascii_lowercase().as_str() {
                "1" | "true" => self.intra_op_pools = IntraOpPools::PerDevice,
                "0" | "false" => {}
                _ => return wrong(name, &value, "true or false"),
            }
        }
        let name = "TF_FORCE_GPU_ALLOW_GROWTH";
        if let Some(value) = set(name) {
            self.gpu.allow_growth = match value.to_ascii_lowercase().as_str() {
                "1" | "true" => true,
                "0" | "false" => false,
                _ => return wrong(name, &value, "true or false"),
            };
        }
        // What these say is looked at beside the GPUs that it is said of.
        let gpu = &mut self.gpu;
        for (own, name) in [
            (
                &mut gpu.min_multiprocessor_count,
                "TF_MIN_GPU_MULTIPROCESSOR_COUNT",
            ),
            (
                &mut gpu.min_system_memory_mib,
                "TF_DEVICE_MIN_SYS_MEMORY_IN_MB",
            ),
        ] {
            if own.is_none() {
                *own = set(name);
            }
        }
        Ok(self)
    }

    /// The capacity that [`Self::memory_bytes`] gives a device: that of the key that matches and
    /// sets most parts.
    ///
    /// # Errors
    /// [`DeviceError::InvalidArgument`] if a key is no device name, or if two keys that set equally
    /// many parts disagree.
    pub fn memory_bytes_of(&self, device: &DeviceName) -> Result<Option<u64>, DeviceError> {
        let mut best: Option<(usize, u64, &str)> = None;
        for (key, &bytes) in &self.memory_bytes {
            let spec = parse_option("memory", key)?;
            let n_parts = [
                spec.job.is_some(),
                spec.replica.is_some(),
                spec.task.is_some(),
                spec.device_type.is_some(),
                spec.index.is_some(),
            ]
            .into_iter()
            .filter(|&set| set)
            .count();
            if !spec.matches(device) {
                continue;
            }
            match best {
                Some((most, ..)) if n_parts < most => {}
                Some((most, others, other)) if n_parts == most && bytes != others => {
                    return Err(DeviceError::InvalidArgument(format!(
                        "device option memory: `{other}` and `{key}` are both {device}, with {others} and {bytes} bytes; say it once"
                    )));
                }
                _ => best = Some((n_parts, bytes, key)),
            }
        }
        Ok(best.map(|(_, bytes, _)| bytes))
    }
}

pub(super) fn parse_option(option: &str, text: &str) -> Result<DeviceName, DeviceError> {
    DeviceName::parse_full_or_local(text)
        .map_err(|error| DeviceError::InvalidArgument(format!("device option {option}: {error}")))
}

/// What a factory found, before anything is opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PhysicalDevice {
    /// `/physical_device:TYPE:i`.
    pub name: String,
    /// A description; empty for a CPU.
    pub description: String,
}

/// What is known of a physical device, by TensorFlow's keys: a GPU has a `device_name` and a
/// `compute_capability`, written `MAJOR.MINOR`. Empty for a CPU.
pub type DeviceDetails = BTreeMap<String, String>;

/// Memory of the host that a card copies from and to by itself, because the system does not move it
/// (pinned, page-locked). The driver of the card hands it out; CPU devices take allocators of it.
pub trait PinnedHostMemory: Send + Sync + fmt::Debug {
    /// An allocator of this name, with a memory of its own, that hands out `limit_bytes` at most.
    /// The host reads and writes what it hands out. Called once for each CPU device.
    fn allocator(&self, name: &str, limit_bytes: u64) -> Arc<dyn Allocator>;
}

/// Makes the devices of one type (TensorFlow `DeviceFactory`).
pub trait DeviceFactory: Send + Sync + fmt::Debug {
    /// What is there (TensorFlow `ListPhysicalDevices`). Cheap; may name devices that
    /// [`Self::create`] later cannot open.
    ///
    /// # Errors
    /// [`DeviceError::Absent`], with the remedy, where a driver is missing.
    #[doc(alias = "ListPhysicalDevices")]
    fn list_physical(&self) -> Result<Vec<PhysicalDevice>, DeviceError>;

    /// What is known of device `index` of [`Self::list_physical`] (TensorFlow `GetDeviceDetails`).
    /// Asked for listings only; a factory that knows nothing has nothing to do.
    ///
    /// # Errors
    /// [`DeviceError::InvalidArgument`] if there are fewer devices; [`DeviceError::Absent`] where a
    /// driver is missing.
    #[doc(alias = "GetDeviceDetails")]
    fn details(&self, index: usize) -> Result<DeviceDetails, DeviceError> {
        let _ = index;
        Ok(DeviceDetails::new())
    }

    /// Opens devices, named `{prefix}/device:TYPE:i` (TensorFlow `CreateDevices`).
    ///
    /// # Errors
    /// [`DeviceError`], with a remedy.
    #[doc(alias = "CreateDevices")]
    fn create(
        &self,
        options: &DeviceOptions,
        prefix: &str,
    ) -> Result<Vec<Arc<dyn Device>>, DeviceError>;

    /// Adds the kernels of this device type.
    fn register_kernels(&self, registry: &mut KernelRegistry);

    /// Host memory that the devices which these options ask for copy from and to without staging;
    /// `None` where they need none, or none would be made. Asked before CPU devices are made,
    /// with the options that [`Self::create`] gets later.
    fn pinned_host_memory(&self, options: &DeviceOptions) -> Option<Arc<dyn PinnedHostMemory>> {
        let _ = options;
        None
    }

    /// For a factory of CPU devices: the one that makes them with `memory` for what GPUs copy.
    /// `None`: it makes no such devices.
    fn gpu_compatible(&self, memory: Arc<dyn PinnedHostMemory>) -> Option<Arc<dyn DeviceFactory>> {
        let _ = memory;
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn completed(
        options: DeviceOptions,
        variables: &[(&str, &str)],
    ) -> Result<DeviceOptions, String> {
        let find = |name: &str| variables.iter().find(|(other, _)| *other == name);
        options
            .completed_from(|name| find(name).map(|(_, value)| (*value).to_owned()))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn the_environment_says_what_options_leave_open() {
        let threads = ("TF_NUM_INTRAOP_THREADS", "3");
        let private = ("TF_OVERRIDE_GLOBAL_THREADPOOL", "True");
        let both = completed(DeviceOptions::default(), &[threads, private]).unwrap();
        assert_eq!(both.intra_op_parallelism_threads, 3);
        assert_eq!(both.intra_op_pools, IntraOpPools::PerDevice);
        let asked = DeviceOptions {
            intra_op_parallelism_threads: 2,
            ..DeviceOptions::default()
        };
        let asked = completed(asked, &[threads]).unwrap();
        assert_eq!(asked.intra_op_parallelism_threads, 2);
        let pool = IntraOpPools::App(Arc::new(IntraOpPool::new(2)));
        let own = DeviceOptions {
            intra_op_pools: pool.clone(),
            ..DeviceOptions::default()
        };
        let own = completed(own, &[threads, private]).unwrap();
        assert_eq!(own.intra_op_parallelism_threads, 0);
        assert_eq!(own.intra_op_pools, pool);
        let empty = [
            ("TF_NUM_INTRAOP_THREADS", ""),
            ("TF_OVERRIDE_GLOBAL_THREADPOOL", "0"),
        ];
        assert_eq!(
            completed(DeviceOptions::default(), &empty),
            Ok(DeviceOptions::default())
        );
    }

    #[test]
    fn nonsense_in_the_environment_names_the_variable_and_what_to_give() {
        for (name, value, expected) in [
            ("TF_NUM_INTRAOP_THREADS", "-1", "a number"),
            ("TF_NUM_INTRAOP_THREADS", "many", "a number"),
            ("TF_OVERRIDE_GLOBAL_THREADPOOL", "yes", "true or false"),
            ("TF_FORCE_GPU_ALLOW_GROWTH", "2", "true or false"),
        ] {
            let error = completed(DeviceOptions::default(), &[(name, value)]).unwrap_err();
            for part in [name, value, expected] {
                assert!(error.contains(part), "{error} lacks {part}");
            }
        }
    }
}
