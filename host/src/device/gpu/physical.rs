//! A driver's description of a GPU.

use std::fmt;
use std::ops::RangeInclusive;

use super::options::GpuEra;

/// NVIDIA's version of the features of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ComputeCapability {
    /// The number before the point.
    pub major: u32,
    /// The number after it.
    pub minor: u32,
}

impl ComputeCapability {
    /// The first GPUs that page memory between GPU and host (Pascal).
    pub(super) const UNIFIED_MEMORY: Self = Self { major: 6, minor: 0 };
}

impl fmt::Display for ComputeCapability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// A GPU, as its driver describes it. Its position among all of them is its id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PhysicalGpu {
    /// Model.
    pub name: String,
    /// PCI address, `0000:01:00.0`.
    pub pci_bus_id: String,
    /// `None` if the driver does not have it (ROCm).
    pub compute_capability: Option<ComputeCapability>,
    /// Number of multiprocessors.
    pub n_multiprocessors: u32,
    /// All of its memory, in bytes.
    pub total_bytes: u64,
    /// The memory that is free now, in bytes.
    pub available_bytes: u64,
    /// NUMA node; negative means unknown.
    pub numa_node: i32,
    /// Ids of the GPUs whose memory it can access.
    pub peers: Vec<u32>,
    /// Ids of the GPUs that NVLinks connect it to, with the number of links; empty if unknown.
    pub nvlinks: Vec<(u32, u32)>,
    /// Priorities that its streams may have; smaller is more urgent.
    pub stream_priorities: RangeInclusive<i32>,
    /// Whether it is a Tegra, which shares its memory with the host.
    pub is_tegra: bool,
}

impl PhysicalGpu {
    /// Returns the physical description of a device on this GPU. TensorFlow includes the compute
    /// capability from 1.0 on.
    pub fn description(&self, id: u32, era: GpuEra) -> String {
        let Self {
            name, pci_bus_id, ..
        } = self;
        let start = format!("device: {id}, name: {name}, pci bus id: {pci_bus_id}");
        match self.compute_capability {
            Some(capability) if era != GpuEra::V0 => {
                format!("{start}, compute capability: {capability}")
            }
            _ => start,
        }
    }
}
