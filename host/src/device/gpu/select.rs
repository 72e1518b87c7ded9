//! Selects the GPUs to use, and their order.

use super::error::GpuPlanError;
use super::options::GpuEra;
use super::options::GpuOptions;
use super::physical::ComputeCapability;
use super::physical::PhysicalGpu;

/// Minimum number of multiprocessors of a GPU, unless the user sets another one.
const MIN_MULTIPROCESSORS: u32 = 8;

/// Returns the ids in the list of visible GPUs, in its order; all ids if the list is empty.
pub(crate) fn visible_gpus(list: &str, n_gpus: usize) -> Result<Vec<u32>, GpuPlanError> {
    if list.is_empty() {
        return Ok((0..).take(n_gpus).collect());
    }
    let mut ids = Vec::new();
    for entry in list.split(',') {
        let Ok(id) = entry.trim_ascii().parse::<i32>() else {
            return Err(GpuPlanError::VisibleEntry {
                entry: entry.to_owned(),
                list: list.to_owned(),
            });
        };
        let known = u32::try_from(id).ok().filter(|&id| (id as usize) < n_gpus);
        let Some(known) = known else {
            return Err(GpuPlanError::NoSuchGpu {
                id,
                n_gpus,
                list: list.to_owned(),
            });
        };
        ids.push(known);
    }
    let mut seen = vec![false; n_gpus];
    for &id in &ids {
        if std::mem::replace(&mut seen[id as usize], true) {
            return Err(GpuPlanError::VisibleTwice {
                id,
                list: list.to_owned(),
            });
        }
    }
    Ok(ids)
}

/// Returns the visible GPUs that meet the requirements. Adds to `notes` which do not, and why.
pub(super) fn valid_gpus(
    visible: &[u32],
    gpus: &[PhysicalGpu],
    min_compute_capability: ComputeCapability,
    options: &GpuOptions,
    notes: &mut Vec<String>,
) -> Vec<u32> {
    let min_multiprocessors = min_multiprocessors(visible, gpus, options, notes);
    let mut valid = visible.to_vec();
    valid.retain(|&id| {
        let gpu = &gpus[id as usize];
        let capability = gpu.compute_capability;
        if capability.is_some_and(|capability| capability < min_compute_capability) {
            notes.push(format!(
                "GPU {id} ({}) is not used: its compute capability {} is below {min_compute_capability}",
                gpu.name,
                capability.unwrap_or(min_compute_capability),
            ));
            return false;
        }
        if gpu.n_multiprocessors < min_multiprocessors {
            notes.push(format!(
                "GPU {id} ({}) is not used: it has {} multiprocessors, and {min_multiprocessors} are wanted; set \
                 TF_MIN_GPU_MULTIPROCESSOR_COUNT to use it",
                gpu.name, gpu.n_multiprocessors
            ));
            return false;
        }
        true
    });
    valid
}

fn min_multiprocessors(
    visible: &[u32],
    gpus: &[PhysicalGpu],
    options: &GpuOptions,
    notes: &mut Vec<String>,
) -> u32 {
    if options.era == GpuEra::V0 && visible.len() <= 1 {
        return 0;
    }
    match options.min_multiprocessor_count.as_deref() {
        None | Some("") => {}
        Some(text) => match text.trim_ascii().parse::<i32>().map(u32::try_from) {
            Ok(Ok(n)) => return n,
            _ => notes.push(format!(
                "TF_MIN_GPU_MULTIPROCESSOR_COUNT is `{text}`, which is not a number of multiprocessors; ignored"
            )),
        },
    }
    let most = visible
        .iter()
        .map(|&id| gpus[id as usize].n_multiprocessors)
        .max();
    match most {
        // Where all GPUs are small, the largest are good enough.
        Some(most) if options.era >= GpuEra::V2Late => most.min(MIN_MULTIPROCESSORS),
        _ => MIN_MULTIPROCESSORS,
    }
}
