//! Plans devices on GPUs.

use super::MIB;
use super::error::GpuPlanError;
use super::memory::memory_limit;
use super::options::GpuEra;
use super::options::GpuOptions;
use super::physical::ComputeCapability;
use super::physical::PhysicalGpu;
use super::select::valid_gpus;
use super::select::visible_gpus;
use super::virtual_gpus::check_entries;
use crate::device::attributes::DeviceLocality;
use crate::device::attributes::LocalLink;

/// Maximum number of devices on one GPU. Each device has a link to each other one, so thousands
/// would be a mistake that fills memory.
const DEVICES_PER_GPU_MAX: usize = 256;

/// Maximum number of copy streams of a device.
const COPY_STREAMS_MAX: u32 = 4;

/// Strengths of links, as in TensorFlow.
const PEER_STRENGTH: i32 = 1;
const SAME_GPU_STRENGTH: i32 = 1000;

/// The GPU devices to create.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GpuPlan {
    /// In the order of their indices, `GPU:0` first.
    pub devices: Vec<PlannedGpu>,
    /// The GPUs that are left out and the options that are ignored, in sentences, for the log.
    pub notes: Vec<String>,
}

/// A device to create.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedGpu {
    /// Index in its name (TensorFlow's TF id).
    pub index: u32,
    /// Id of the GPU (TensorFlow's platform id).
    pub gpu: u32,
    /// Bytes that it may use.
    pub memory_limit_bytes: u64,
    /// Whether its memory is paged between the GPU and the host.
    pub uses_unified_memory: bool,
    /// Priority of its streams.
    pub stream_priority: i32,
    /// Number of streams for copies to other GPUs.
    pub n_copy_streams: u32,
    /// Its place in the machine, and its links.
    pub locality: DeviceLocality,
    /// Its description.
    pub physical_description: String,
}

/// A device before it has a number.
#[derive(Debug)]
struct Unnumbered {
    gpu: u32,
    memory_limit_bytes: u64,
    ordinal: i32,
    priority: i32,
}

/// Plans the devices of these GPUs, whose positions are their ids.
///
/// `device_count` is the maximum number of GPUs to use, not of devices; with 0, options are checked
/// only if they request devices. Kernels need `min_compute_capability`; a GPU without a compute
/// capability passes.
///
/// # Errors
/// [`GpuPlanError`], which names the option and the GPU. It is no error if there are no GPUs.
pub fn plan_gpus(
    gpus: &[PhysicalGpu],
    min_compute_capability: ComputeCapability,
    device_count: Option<u32>,
    options: &GpuOptions,
) -> Result<GpuPlan, GpuPlanError> {
    let mut notes = Vec::new();
    if gpus.is_empty() {
        return Ok(GpuPlan::default());
    }
    let n_most = n_most(device_count);
    let (visible, valid) = if n_most == 0 {
        (Vec::new(), Vec::new())
    } else {
        let visible = visible_gpus(&options.visible_device_list, gpus.len())?;
        let valid = valid_gpus(&visible, gpus, min_compute_capability, options, &mut notes);
        (visible, valid)
    };
    let used = &valid[..n_most.min(valid.len())];
    if !options.virtual_devices.is_empty() {
        check_entries(options, used.len(), &visible, &valid, gpus)?;
    }
    let mut devices = Vec::new();
    for (position, &gpu) in used.iter().enumerate() {
        let physical = &gpus[gpu as usize];
        split(position, gpu, physical, options, &mut devices, &mut notes)?;
    }
    // Stable: equal ordinals keep the order of declaration.
    devices.sort_by_key(|device| device.ordinal);
    let n_copy_streams = n_copy_streams(options, &mut notes);
    for &gpu in used {
        if gpus[gpu as usize].numa_node < 0 {
            notes.push(format!(
                "GPU {gpu}: its NUMA node is unknown, node 0 is assumed"
            ));
        }
    }
    let planned = (0u32..).zip(&devices).map(|(index, device)| {
        let physical = &gpus[device.gpu as usize];
        PlannedGpu {
            index,
            gpu: device.gpu,
            memory_limit_bytes: device.memory_limit_bytes,
            uses_unified_memory: options.wants_unified_memory(),
            stream_priority: device.priority,
            n_copy_streams,
            locality: locality(index, physical, &devices, options.era),
            physical_description: physical.description(device.gpu, options.era),
        }
    });
    Ok(GpuPlan {
        devices: planned.collect(),
        notes,
    })
}

/// Returns the GPUs that [`plan_gpus`] would create devices of, in their order. Other errors of the
/// options are not checked.
///
/// # Errors
/// [`GpuPlanError`] of the list of visible GPUs.
#[cfg(feature = "cuda")]
pub(crate) fn used_gpus(
    gpus: &[PhysicalGpu],
    min_compute_capability: ComputeCapability,
    device_count: Option<u32>,
    options: &GpuOptions,
) -> Result<Vec<u32>, GpuPlanError> {
    let visible = visible_gpus(&options.visible_device_list, gpus.len())?;
    let notes = &mut Vec::new();
    let mut used = valid_gpus(&visible, gpus, min_compute_capability, options, notes);
    used.truncate(n_most(device_count));
    Ok(used)
}

/// Returns the maximum number of GPUs to use.
fn n_most(device_count: Option<u32>) -> usize {
    device_count.map_or(usize::MAX, |n| n as usize)
}

/// Adds the devices of one GPU, which is at `position` among those used.
fn split(
    position: usize,
    gpu: u32,
    physical: &PhysicalGpu,
    options: &GpuOptions,
    devices: &mut Vec<Unnumbered>,
    notes: &mut Vec<String>,
) -> Result<(), GpuPlanError> {
    let few = |n: usize| match n {
        ..=DEVICES_PER_GPU_MAX => Ok(()),
        n => Err(GpuPlanError::TooManyDevices {
            n,
            gpu,
            max: DEVICES_PER_GPU_MAX,
        }),
    };
    let entry = options.virtual_devices.get(position);
    if let Some(entry) = entry.filter(|entry| !entry.memory_limits_mib.is_empty()) {
        few(entry.memory_limits_mib.len())?;
        let limits = entry.memory_limits_mib.iter().enumerate();
        devices.extend(limits.map(|(at, &limit)| Unnumbered {
            gpu,
            memory_limit_bytes: whole_mib(limit).saturating_mul(MIB),
            ordinal: entry.device_ordinals.get(at).copied().unwrap_or(0),
            priority: entry.priorities.get(at).copied().unwrap_or(0),
        }));
        return Ok(());
    }
    let n = options.n_virtual_devices_per_gpu.max(1);
    few(n as usize)?;
    let limit = memory_limit(gpu, physical, options, notes)?;
    devices.extend((0..n).map(|_| Unnumbered {
        gpu,
        memory_limit_bytes: limit / u64::from(n),
        ordinal: 0,
        priority: 0,
    }));
    Ok(())
}

/// Links lead to the devices of GPUs that this one can access, then to the others on the same GPU.
/// What TensorFlow does not have follows: the number of NVLinks to GPUs that this one can access,
/// because copies would not use others.
#[expect(
    clippy::cast_possible_wrap,
    reason = "indices count devices, of which there are few"
)]
fn locality(
    index: u32,
    physical: &PhysicalGpu,
    devices: &[Unnumbered],
    era: GpuEra,
) -> DeviceLocality {
    let gpu = devices[index as usize].gpu;
    let others = || (0u32..).zip(devices).filter(|&(other, _)| other != index);
    let link = |other: u32, kind: &str, strength| LocalLink {
        device_index: other as i32,
        kind: kind.to_owned(),
        strength,
    };
    let peers = others()
        .filter(|(_, device)| device.gpu != gpu && physical.peers.contains(&device.gpu))
        .map(|(other, _)| link(other, "StreamExecutor", PEER_STRENGTH));
    let same_gpu = others()
        .filter(|(_, device)| device.gpu == gpu)
        .map(|(other, _)| link(other, "SAME_DEVICE", SAME_GPU_STRENGTH));
    let n_nvlinks = |gpu: u32| {
        let mut found = physical.nvlinks.iter();
        let n = found.find(|(other, _)| *other == gpu).map(|(_, n)| *n);
        n.filter(|_| physical.peers.contains(&gpu))
    };
    let nvlinks = others().filter_map(|(other, device)| {
        let n = n_nvlinks(device.gpu)?;
        Some(link(other, "NVLINK", i32::try_from(n).unwrap_or(i32::MAX)))
    });
    let numa_node = physical.numa_node.max(0);
    DeviceLocality {
        bus_id: match (era, numa_node) {
            (GpuEra::V0, 2..) => 0,
            _ => numa_node.saturating_add(1),
        },
        numa_node,
        links: peers.chain(same_gpu).chain(nvlinks).collect(),
    }
}

fn n_copy_streams(options: &GpuOptions, notes: &mut Vec<String>) -> u32 {
    match options.n_copy_streams {
        0 => 1,
        n @ 1..=COPY_STREAMS_MAX => n,
        n => {
            notes.push(format!(
                "num_dev_to_dev_copy_streams is {n}, and 1 to {COPY_STREAMS_MAX} are possible; 1 is taken"
            ));
            1
        }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "limits are checked to be sizes, and rounded down"
)]
fn whole_mib(limit: f32) -> u64 {
    limit as u64
}

#[cfg(test)]
mod tests;
