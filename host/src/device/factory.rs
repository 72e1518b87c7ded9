//! Device options and factories.

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

/// The options of all device factories.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct DeviceOptions {
    /// Number of devices per type: exact for CPU (default 1), an upper bound for GPU, exact for
    /// SYCL (TensorFlow `device_count`).
    pub device_count: BTreeMap<String, u32>,
    /// Number of threads per pool for loops inside one kernel; 0 means one per core, or with
    /// [`Self::use_numa_affinity`] one per core of a node. Devices that share an existing pool use
    /// its number.
    pub intra_op_parallelism_threads: usize,
    /// Which pools provide those threads.
    pub intra_op_pools: IntraOpPools,
    /// Whether CPU devices are distributed over NUMA nodes (TensorFlow's option): device `i`
    /// reports node `i` modulo their number, and its threads run there. Useful if each device's
    /// data stays on its node; a single device is faster without it.
    pub use_numa_affinity: bool,
    /// The folder in which the system lists NUMA nodes and cards; `None` means
    /// [`SYSTEM_ROOT`](super::SYSTEM_ROOT). Tests and containers may have a copy elsewhere.
    pub system_root: Option<PathBuf>,
    /// Whether all memory of CPU devices is pinned, if a GPU provides such memory (TensorFlow's
    /// option). Copies to and from the GPU are faster; pinned memory is scarce, and slow to
    /// allocate.
    pub force_gpu_compatible: bool,
    /// Memory capacity in bytes by device (`CPU:0`, or a fuller name) or device type (`CPU`),
    /// instead of the device's own. The name with the most parts counts. It limits constants, state
    /// and tensors. Scratch memory of kernels counts only in pieces above 64 MiB.
    pub memory_bytes: BTreeMap<String, u64>,
    /// Device names, full or local, possibly partial. If any of them names a type, only factories
    /// of the named types create devices; CPU always does.
    pub device_filters: Vec<String>,
    /// Options of GPUs.
    pub gpu: GpuOptions,
    /// The folder in which devices cache compiled programs; `None` means that each process compiles
    /// them. PoCL keeps what it compiles in a folder of its own.
    pub program_cache: Option<Arc<CacheFolder>>,
}

/// Which pools provide the threads for loops inside kernels of CPU devices.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub enum IntraOpPools {
    /// One pool of the process for each requested number of threads, with
    /// [`DeviceOptions::use_numa_affinity`] one per node. Devices of all sessions share it; it ends
    /// with the last of them.
    #[default]
    Shared,
    /// A pool for each device (TensorFlow `TF_OVERRIDE_GLOBAL_THREADPOOL`): devices do not wait for
    /// each other's loops, but compete for the cores.
    PerDevice,
    /// The app's own ([`IntraOpPool::from_rayon`]), for all devices.
    App(Arc<IntraOpPool>),
}

impl PartialEq for IntraOpPools {
    /// An app's pool is equal only to itself.
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

    /// Completes the options from the environment, as far as they are not set: the number of
    /// threads (TensorFlow `TF_NUM_INTRAOP_THREADS`), whether each device has its own pool
    /// (`TF_OVERRIDE_GLOBAL_THREADPOOL`), whether memory of GPUs is allocated as needed
    /// (`TF_FORCE_GPU_ALLOW_GROWTH`, which overrides the option), how many multiprocessors a GPU
    /// must have (`TF_MIN_GPU_MULTIPROCESSOR_COUNT`), and how much of its memory is left to others
    /// (`TF_DEVICE_MIN_SYS_MEMORY_IN_MB`). The program calls this, and so do sessions that create
    /// their devices.
    ///
    /// # Errors
    /// [`DeviceError::InvalidArgument`] with the variable, if its value is invalid.
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
                "environment variable {name} is `{value}`; set it to {expected}, or unset it"
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

    /// Returns the capacity that [`Self::memory_bytes`] sets for a device: that of the matching key
    /// with the most parts.
    ///
    /// # Errors
    /// [`DeviceError::InvalidArgument`] if a key is not a device name, or if two keys with equally
    /// many parts disagree.
    pub fn memory_bytes_of(&self, device: &DeviceName) -> Result<Option<u64>, DeviceError> {
        let mut best: Option<(usize, u64, &str)> = None;
        for (key, &bytes) in &self.memory_bytes {
            let spec = parse_memory_key(key)?;
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
                        "{MEMORY_OPTION}: `{other}` and `{key}` are both {device}, with {others} and {bytes} bytes; set it once"
                    )));
                }
                _ => best = Some((n_parts, bytes, key)),
            }
        }
        Ok(best.map(|(_, bytes, _)| bytes))
    }
}

/// How errors name [`DeviceOptions::memory_bytes`]: by the program's flag and the library's field.
pub(super) const MEMORY_OPTION: &str = "--memory (`DeviceOptions::memory_bytes`)";

/// How errors name [`DeviceOptions::device_filters`].
pub(super) const FILTER_OPTION: &str = "--device-filter (`DeviceOptions::device_filters`)";

pub(super) fn parse_option(option: &str, text: &str) -> Result<DeviceName, DeviceError> {
    DeviceName::parse_full_or_local(text)
        .map_err(|error| DeviceError::InvalidArgument(format!("{option}: {error}")))
}

/// Parses a key of [`DeviceOptions::memory_bytes`]: a device name, or a device type alone.
pub(super) fn parse_memory_key(key: &str) -> Result<DeviceName, DeviceError> {
    let is_type = key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    if is_type && !key.is_empty() {
        return parse_option(MEMORY_OPTION, &format!("/device:{key}:*"));
    }
    parse_option(MEMORY_OPTION, key)
}

/// A physical device, before it is opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PhysicalDevice {
    /// `/physical_device:TYPE:i`.
    pub name: String,
    /// A description; empty for a CPU.
    pub description: String,
}

/// Details of a physical device, by TensorFlow's keys: a GPU has a `device_name` and a
/// `compute_capability`, written `MAJOR.MINOR`. Empty for a CPU.
pub type DeviceDetails = BTreeMap<String, String>;

/// Host memory that a card copies from and to directly, because the system does not move it
/// (pinned, page-locked). The card's driver provides it; CPU devices get allocators of it.
pub trait PinnedHostMemory: Send + Sync + fmt::Debug {
    /// Returns an allocator of this name with its own memory space, of at most `limit_bytes`. The
    /// host reads and writes the memory. Called once for each CPU device.
    fn allocator(&self, name: &str, limit_bytes: u64) -> Arc<dyn Allocator>;
}

/// Creates the devices of one type (TensorFlow `DeviceFactory`).
pub trait DeviceFactory: Send + Sync + fmt::Debug {
    /// Lists the physical devices (TensorFlow `ListPhysicalDevices`). Cheap; may list devices that
    /// [`Self::create`] later cannot open.
    ///
    /// # Errors
    /// [`DeviceError::Absent`], with the remedy, if a driver is missing.
    #[doc(alias = "ListPhysicalDevices")]
    fn list_physical(&self) -> Result<Vec<PhysicalDevice>, DeviceError>;

    /// Returns the details of device `index` of [`Self::list_physical`] (TensorFlow
    /// `GetDeviceDetails`). Called for listings only; a factory without details need not implement
    /// it.
    ///
    /// # Errors
    /// [`DeviceError::InvalidArgument`] if there are fewer devices; [`DeviceError::Absent`] if a
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

    /// Registers the kernels of this device type.
    fn register_kernels(&self, registry: &mut KernelRegistry);

    /// Returns host memory that the devices requested by these options copy from and to without
    /// staging; `None` if they need none, or if no device would be created. Called before CPU
    /// devices are created, with the options that [`Self::create`] gets later.
    fn pinned_host_memory(&self, options: &DeviceOptions) -> Option<Arc<dyn PinnedHostMemory>> {
        let _ = options;
        None
    }

    /// For a factory of CPU devices: returns the factory whose devices allocate from `memory` what
    /// GPUs copy; `None` if there is none.
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
