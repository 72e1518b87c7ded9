//! Errors of GPU options.

use super::physical::ComputeCapability;

/// Why the GPUs cannot be planned. TensorFlow's categories: [`Self::NotEnoughGpus`] and
/// [`Self::NotOneEntryPerGpu`] are `Unknown`, [`Self::NoUnifiedMemory`] is `Internal`, all others
/// are `InvalidArgument`.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum GpuPlanError {
    /// An entry in the list of visible GPUs is not a number.
    #[error(
        "`{entry}` in visible_device_list `{list}` is not a GPU id; write ids separated by commas, such as `0,1`"
    )]
    VisibleEntry {
        /// The entry.
        entry: String,
        /// The list.
        list: String,
    },
    /// The list of visible GPUs contains a GPU that does not exist.
    #[error(
        "visible_device_list `{list}` has GPU {id}, and there are {n_gpus} GPUs, numbered from 0"
    )]
    NoSuchGpu {
        /// The id.
        id: i32,
        /// Number of GPUs.
        n_gpus: usize,
        /// The list.
        list: String,
    },
    /// The list of visible GPUs contains a GPU twice.
    #[error("visible_device_list `{list}` has GPU {id} twice")]
    VisibleTwice {
        /// The id.
        id: u32,
        /// The list.
        list: String,
    },
    /// The memory fraction is not valid.
    #[error(
        "per_process_gpu_memory_fraction is {0}; give a positive number, or 0 for all memory but a reserve"
    )]
    BadFraction(f64),
    /// Both a memory fraction and limits of virtual devices are set.
    #[error("per_process_gpu_memory_fraction and virtual_devices are both set; set one of them")]
    FractionWithVirtualDevices,
    /// There are virtual devices for more GPUs than may be used.
    #[error(
        "virtual_devices has {n_entries} entries, and {n_usable} GPUs can be used; write one entry per GPU"
    )]
    NotEnoughGpus {
        /// Number of GPUs that may be used: valid ones, up to the device count.
        n_usable: usize,
        /// Number of entries.
        n_entries: usize,
    },
    /// The number of entries for virtual devices is not the number of listed GPUs.
    #[error(
        "visible_device_list has {n_listed} GPUs, and virtual_devices has {n_entries} entries; write one entry per GPU"
    )]
    NotOneEntryPerListedGpu {
        /// Number of GPUs in the list.
        n_listed: usize,
        /// Number of entries.
        n_entries: usize,
    },
    /// The number of entries for virtual devices is not the number of valid GPUs.
    #[error(
        "{n_valid} GPUs are valid, and virtual_devices has {n_entries} entries; write one entry per GPU, or list the GPUs in visible_device_list"
    )]
    NotOneEntryPerGpu {
        /// Number of valid GPUs.
        n_valid: usize,
        /// Number of entries.
        n_entries: usize,
    },
    /// Only some GPUs have ordinals or priorities.
    #[error(
        "virtual_devices: {what} are set for entry {with} and not for entry {without}; set them for all entries or for none"
    )]
    SetForSome {
        /// `device ordinals` or `priorities`.
        what: &'static str,
        /// An entry that has them.
        with: usize,
        /// An entry that does not.
        without: usize,
    },
    /// The number of ordinals or priorities is not the number of limits.
    #[error(
        "virtual_devices: entry {entry} has {n_limits} memory limits and {n} {what}; write as many of each"
    )]
    CountDiffers {
        /// `device ordinals` or `priorities`.
        what: &'static str,
        /// The entry.
        entry: usize,
        /// Number of its limits.
        n_limits: usize,
        /// Number of ordinals or priorities.
        n: usize,
    },
    /// The GPU does not support the priority.
    #[error(
        "virtual_devices: priority {priority} of entry {entry} is outside of the range {least}..={most} of GPU {gpu}"
    )]
    PriorityRange {
        /// The priority.
        priority: i32,
        /// The entry.
        entry: usize,
        /// Id of the GPU.
        gpu: u32,
        /// Smallest that it supports.
        least: i32,
        /// Largest that it supports.
        most: i32,
    },
    /// A memory limit is not valid.
    #[error("virtual_devices: memory limit {limit_mib} MiB of entry {entry} is not a valid size")]
    BadLimit {
        /// The limit.
        limit_mib: f32,
        /// The entry.
        entry: usize,
    },
    /// There are more devices on one GPU than are supported.
    #[error("{n} virtual devices on GPU {gpu} are too many; at most {max} are possible")]
    TooManyDevices {
        /// Number of requested devices.
        n: usize,
        /// Id of the GPU.
        gpu: u32,
        /// Maximum number of devices.
        max: usize,
    },
    /// More memory is requested than there is, on a GPU that cannot page.
    #[error(
        "GPU {gpu} (compute capability {}) has no unified memory for more than there is: that takes 6.0; unset use_unified_memory and ask for a fraction of at most 1",
        .capability.map_or("unknown".to_owned(), |capability| capability.to_string())
    )]
    NoUnifiedMemory {
        /// Id of the GPU.
        gpu: u32,
        /// Its compute capability.
        capability: Option<ComputeCapability>,
    },
}
