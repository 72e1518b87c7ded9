//! Options of GPUs.

/// The TensorFlow release whose rules apply, as far as releases differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
#[non_exhaustive]
pub enum GpuEra {
    /// Before TensorFlow 1.0.
    V0,
    /// From TensorFlow 1.0 to the first releases of 2.
    V1,
    /// Later releases of TensorFlow 2.
    #[default]
    V2Late,
}

/// TensorFlow `GPUOptions`, as far as they decide which devices there are. The default is one
/// device per GPU, with all of its memory except a reserve.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct GpuOptions {
    /// Ids of the GPUs that may be used, in this order, separated by commas (`3,1`); empty means
    /// all, in the driver's order.
    pub visible_device_list: String,
    /// Fraction of a GPU's memory that its device may use. 0 means all except a reserve; more than
    /// 1 means more than the GPU has, by unified memory.
    pub per_process_memory_fraction: f64,
    /// Whether memory of a GPU is allocated as needed, up to the device's limit. Otherwise all of
    /// it is allocated for the first tensor.
    pub allow_growth: bool,
    /// How to split the usable GPUs: one entry each, in the order in which they are used; empty
    /// means that they are not split.
    pub virtual_devices: Vec<VirtualGpus>,
    /// Number of devices with equal memory into which each GPU is split that has no limits in
    /// [`Self::virtual_devices`]; 0 and 1 mean that it is not split.
    pub n_virtual_devices_per_gpu: u32,
    /// Whether memory is shared with the host, so that devices may use more than the GPU has.
    pub use_unified_memory: bool,
    /// MiB of each GPU that its device leaves to others, regardless of other options; 0 means that
    /// those apply.
    pub system_memory_mib: u32,
    /// Number of streams for copies between GPUs, 1 to 4; 0 means 1.
    pub n_copy_streams: u32,
    /// Number of streams over which the kernels of one device are distributed; 0 means 1. With more
    /// streams, small kernels of independent branches run concurrently.
    pub n_compute_streams: u32,
    /// Whether the host waits for each kernel, so that an error on the GPU names its node
    /// (TensorFlow `sync_every_op`).
    pub sync_every_op: bool,
    /// Whether matmuls and convolutions of `float` may round their factors to TensorFloat-32, for
    /// speed.
    pub allow_tf32: bool,
    /// Value of the environment variable `TF_MIN_GPU_MULTIPROCESSOR_COUNT`, which the caller
    /// reads: GPUs with fewer multiprocessors are not used.
    pub min_multiprocessor_count: Option<String>,
    /// Value of the environment variable `TF_DEVICE_MIN_SYS_MEMORY_IN_MB`, which the caller reads.
    /// It overrides [`Self::system_memory_mib`].
    pub min_system_memory_mib: Option<String>,
    /// The release whose rules apply.
    pub era: GpuEra,
}

impl GpuOptions {
    /// Sets [`Self::visible_device_list`].
    #[must_use]
    pub fn with_visible_device_list(mut self, list: impl Into<String>) -> Self {
        self.visible_device_list = list.into();
        self
    }

    /// Sets [`Self::per_process_memory_fraction`].
    #[must_use]
    pub fn with_per_process_memory_fraction(mut self, fraction: f64) -> Self {
        self.per_process_memory_fraction = fraction;
        self
    }

    /// Sets [`Self::allow_growth`].
    #[must_use]
    pub fn with_allow_growth(mut self, is_allowed: bool) -> Self {
        self.allow_growth = is_allowed;
        self
    }

    /// Sets [`Self::virtual_devices`].
    #[must_use]
    pub fn with_virtual_devices(mut self, entries: impl IntoIterator<Item = VirtualGpus>) -> Self {
        self.virtual_devices = entries.into_iter().collect();
        self
    }

    /// Sets [`Self::n_virtual_devices_per_gpu`].
    #[must_use]
    pub fn with_virtual_devices_per_gpu(mut self, n_devices: u32) -> Self {
        self.n_virtual_devices_per_gpu = n_devices;
        self
    }

    /// Sets [`Self::use_unified_memory`].
    #[must_use]
    pub fn with_unified_memory(mut self, is_wanted: bool) -> Self {
        self.use_unified_memory = is_wanted;
        self
    }

    /// Sets [`Self::system_memory_mib`].
    #[must_use]
    pub fn with_system_memory_mib(mut self, mib: u32) -> Self {
        self.system_memory_mib = mib;
        self
    }

    /// Sets [`Self::n_copy_streams`].
    #[must_use]
    pub fn with_copy_streams(mut self, n_streams: u32) -> Self {
        self.n_copy_streams = n_streams;
        self
    }

    /// Sets [`Self::n_compute_streams`].
    #[must_use]
    pub fn with_compute_streams(mut self, n_streams: u32) -> Self {
        self.n_compute_streams = n_streams;
        self
    }

    /// Sets [`Self::sync_every_op`].
    #[must_use]
    pub fn with_sync_every_op(mut self, is_wanted: bool) -> Self {
        self.sync_every_op = is_wanted;
        self
    }

    /// Sets [`Self::allow_tf32`].
    #[must_use]
    pub fn with_tf32(mut self, is_allowed: bool) -> Self {
        self.allow_tf32 = is_allowed;
        self
    }

    /// Sets [`Self::era`].
    #[must_use]
    pub fn with_era(mut self, era: GpuEra) -> Self {
        self.era = era;
        self
    }

    /// Returns whether devices have unified memory: requested as such, or by a memory fraction
    /// above 1.
    pub fn wants_unified_memory(&self) -> bool {
        self.use_unified_memory || self.per_process_memory_fraction > 1.0
    }
}

/// The devices that one GPU is split into (TensorFlow `GPUOptions.Experimental.VirtualDevices`).
/// There are as many ordinals and priorities as limits, or none for any GPU.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct VirtualGpus {
    /// MiB per device, rounded down; empty means that the GPU is not split by limits.
    pub memory_limits_mib: Vec<f32>,
    /// Devices of all GPUs are numbered by their ordinals, then in the order of the entries.
    pub device_ordinals: Vec<i32>,
    /// Priorities of the devices' streams, in the range that the GPU supports.
    pub priorities: Vec<i32>,
}
