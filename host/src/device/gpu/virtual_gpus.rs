//! Checks the entries of `virtual_devices` against the GPUs.

use super::error::GpuPlanError;
use super::options::GpuOptions;
use super::options::VirtualGpus;
use super::physical::PhysicalGpu;

/// Checks the entries, of which there is at least one, against the GPUs. The order of the checks is
/// TensorFlow's, so that of two mistakes the same one is reported.
///
/// # Errors
/// The first entry that does not match.
pub(super) fn check_entries(
    options: &GpuOptions,
    n_usable: usize,
    visible: &[u32],
    valid: &[u32],
    gpus: &[PhysicalGpu],
) -> Result<(), GpuPlanError> {
    let entries = &options.virtual_devices;
    let n_entries = entries.len();
    if options.per_process_memory_fraction > 0.0 {
        return Err(GpuPlanError::FractionWithVirtualDevices);
    }
    if n_usable < n_entries {
        return Err(GpuPlanError::NotEnoughGpus {
            n_usable,
            n_entries,
        });
    }
    if !options.visible_device_list.is_empty() && visible.len() != n_entries {
        return Err(GpuPlanError::NotOneEntryPerListedGpu {
            n_listed: visible.len(),
            n_entries,
        });
    }
    if valid.len() != n_entries {
        return Err(GpuPlanError::NotOneEntryPerGpu {
            n_valid: valid.len(),
            n_entries,
        });
    }
    let first = &entries[0];
    for (index, entry) in entries.iter().enumerate() {
        let (with, without) = match (&first.device_ordinals[..], &entry.device_ordinals[..]) {
            ([], [_, ..]) => (index, 0),
            ([_, ..], []) => (0, index),
            _ => continue,
        };
        return Err(GpuPlanError::SetForSome {
            what: "device ordinals",
            with,
            without,
        });
    }
    for (index, entry) in entries.iter().enumerate() {
        if !first.device_ordinals.is_empty() {
            same_count(index, entry, "device ordinals", &entry.device_ordinals)?;
        }
    }
    for (index, (entry, &gpu)) in entries.iter().zip(valid).enumerate() {
        check_priorities(index, first, entry, gpu, &gpus[gpu as usize])?;
    }
    for (index, entry) in entries.iter().enumerate() {
        for &limit_mib in &entry.memory_limits_mib {
            if !(0.0..f32::INFINITY).contains(&limit_mib) {
                return Err(GpuPlanError::BadLimit {
                    limit_mib,
                    entry: index,
                });
            }
        }
    }
    Ok(())
}

fn check_priorities(
    index: usize,
    first: &VirtualGpus,
    entry: &VirtualGpus,
    gpu: u32,
    physical: &PhysicalGpu,
) -> Result<(), GpuPlanError> {
    if first.priorities.is_empty() {
        if !entry.priorities.is_empty() {
            return Err(GpuPlanError::SetForSome {
                what: "priorities",
                with: index,
                without: 0,
            });
        }
        return Ok(());
    }
    same_count(index, entry, "priorities", &entry.priorities)?;
    let range = &physical.stream_priorities;
    match entry.priorities.iter().find(|it| !range.contains(it)) {
        None => Ok(()),
        Some(&priority) => Err(GpuPlanError::PriorityRange {
            priority,
            entry: index,
            gpu,
            least: *range.start(),
            most: *range.end(),
        }),
    }
}

fn same_count(
    index: usize,
    entry: &VirtualGpus,
    what: &'static str,
    numbers: &[i32],
) -> Result<(), GpuPlanError> {
    let n_limits = entry.memory_limits_mib.len();
    if numbers.len() == n_limits {
        return Ok(());
    }
    Err(GpuPlanError::CountDiffers {
        what,
        entry: index,
        n_limits,
        n: numbers.len(),
    })
}
