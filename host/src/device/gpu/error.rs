//! Why GPU options cannot be met.

use super::physical::ComputeCapability;

/// Why there is no plan for the GPUs. TensorFlow's categories: [`Self::NotEnoughGpus`] and
/// [`Self::NotOneEntryPerGpu`] are `Unknown`, [`Self::NoUnifiedMemory`] is `Internal`, all others
/// are `InvalidArgument`.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum GpuPlanError {
    /// Something in the list of visible GPUs is no number.
    #[error(
        "`{entry}` in visible_device_list `{list}` is no GPU id; write ids separated by commas, such as `0,1`"
    )]
    VisibleEntry {
        /// What.
        entry: String,
        /// The list.
        list: String,
    },
    /// The list of visible GPUs has one that is not there.
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
    /// The list of visible GPUs has one twice.
    #[error("visible_device_list `{list}` has GPU {id} twice")]
    VisibleTwice {
        /// The id.
        id: u32,
        /// The list.
        list: String,
    },
    /// No share of anything.
    #[error(
        "per_process_gpu_memory_fraction is {0}; give a positive number, or 0 for all memory but a reserve"
    )]
    BadFraction(f64),
    /// A share of the memory and limits of parts of it.
    #[error("per_process_gpu_memory_fraction and virtual_devices are both set; set one of them")]
    FractionWithVirtualDevices,
    /// Virtual devices for more GPUs than may be used.
    #[error(
        "virtual_devices has {n_entries} entries, and {n_usable} GPUs can be used; write one entry per GPU"
    )]
    NotEnoughGpus {
        /// GPUs that may be used: valid ones, as far as the device count allows.
        n_usable: usize,
        /// Entries.
        n_entries: usize,
    },
    /// Virtual devices for another number of GPUs than are listed.
    #[error(
        "visible_device_list has {n_listed} GPUs, and virtual_devices has {n_entries} entries; write one entry per GPU"
    )]
    NotOneEntryPerListedGpu {
        /// GPUs in the list.
        n_listed: usize,
        /// Entries.
        n_entries: usize,
    },
    /// Virtual devices for another number of GPUs than are valid.
    #[error(
        "{n_valid} GPUs are valid, and virtual_devices has {n_entries} entries; write one entry per GPU, or list the GPUs in visible_device_list"
    )]
    NotOneEntryPerGpu {
        /// Valid GPUs.
        n_valid: usize,
        /// Entries.
        n_entries: usize,
    },
    /// Ordinals or priorities for some GPUs only.
    #[error(
        "virtual_devices: {what} are set for entry {with} and not for entry {without}; set them for all entries or for none"
    )]
    SetForSome {
        /// `device ordinals` or `priorities`.
        what: &'static str,
        /// An entry that has them.
        with: usize,
        /// One that has not.
        without: usize,
    },
    /// Ordinals or priorities that do not go with the limits one by one.
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
        /// Number of what goes with them.
        n: usize,
    },
    /// A priority that the GPU does not have.
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
        /// Smallest that it has.
        least: i32,
        /// Largest that it has.
        most: i32,
    },
    /// A limit that no memory can have.
    #[error("virtual_devices: memory limit {limit_mib} MiB of entry {entry} is no size")]
    BadLimit {
        /// The limit.
        limit_mib: f32,
        /// The entry.
        entry: usize,
    },
    /// More devices on one GPU than this is made for.
    #[error("{n} virtual devices on GPU {gpu} are too many; at most {max} are possible")]
    TooManyDevices {
        /// Devices asked for.
        n: usize,
        /// Id of the GPU.
        gpu: u32,
        /// How many there may be.
        max: usize,
    },
    /// More memory than there is, on a GPU that cannot page.
    #[error(
        "GPU {gpu} (compute capability {}) has no unified memory for more than there is: that takes 6.0; unset use_unified_memory and ask for a fraction of at most 1",
        .capability.map_or("unknown".to_owned(), |capability| capability.to_string())
    )]
    NoUnifiedMemory {
        /// Id of the GPU.
        gpu: u32,
        /// What it can do.
        capability: Option<ComputeCapability>,
    },
}
