//! The memory that the devices of one GPU may use together.

use super::MIB;
use super::error::GpuPlanError;
use super::options::GpuEra;
use super::options::GpuOptions;
use super::physical::ComputeCapability;
use super::physical::PhysicalGpu;

/// GPUs with less memory are small and keep a smaller reserve.
const SMALL_BYTES: u64 = 2 << 30;

/// Returns the bytes for the devices of GPU `id`, unless they have limits of their own. Adds
/// ignored options to `notes`.
///
/// With [`GpuOptions::per_process_memory_fraction`] it is a fraction of the memory: of all of it,
/// or (before 1.0) of the free memory. Without, it is the free memory less a reserve for driver and
/// libraries; there is no reserve if it would leave nothing. TensorFlow's debug builds double the
/// reserve; here it does not depend on the build.
///
/// # Errors
/// [`GpuPlanError::NoUnifiedMemory`] and [`GpuPlanError::BadFraction`].
pub fn memory_limit(
    id: u32,
    gpu: &PhysicalGpu,
    options: &GpuOptions,
    notes: &mut Vec<String>,
) -> Result<u64, GpuPlanError> {
    let fraction = options.per_process_memory_fraction;
    if !(0.0..f64::INFINITY).contains(&fraction) {
        return Err(GpuPlanError::BadFraction(fraction));
    }
    let pages = gpu.compute_capability >= Some(ComputeCapability::UNIFIED_MEMORY);
    if options.wants_unified_memory() && !pages {
        return Err(GpuPlanError::NoUnifiedMemory {
            gpu: id,
            capability: gpu.compute_capability,
        });
    }
    let available = gpu.available_bytes;
    let limit = if fraction > 0.0 {
        let whole = match options.era {
            GpuEra::V0 => available,
            GpuEra::V1 | GpuEra::V2Late => gpu.total_bytes,
        };
        part(whole, fraction)
    } else {
        match reserve_bytes(gpu, options.era) {
            reserve if reserve < available => available - reserve,
            _ => available,
        }
    };
    if options.era < GpuEra::V2Late {
        return Ok(limit);
    }
    Ok(less_what_others_get(limit, id, available, options, notes))
}

/// There are two ways to set how much to leave to others; the later one applies.
fn less_what_others_get(
    mut limit: u64,
    id: u32,
    available: u64,
    options: &GpuOptions,
    notes: &mut Vec<String>,
) -> u64 {
    let mut leave = |mib: u64, what: &str| match mib.checked_mul(MIB) {
        Some(bytes) if bytes <= available => limit = available - bytes,
        _ => notes.push(format!(
            "GPU {id}: {what} asks to leave {mib} MiB, and {} MiB are free; ignored",
            available / MIB
        )),
    };
    if options.system_memory_mib > 0 {
        leave(
            u64::from(options.system_memory_mib),
            "gpu_system_memory_size_in_mb",
        );
    }
    const VARIABLE: &str = "TF_DEVICE_MIN_SYS_MEMORY_IN_MB";
    match options.min_system_memory_mib.as_deref() {
        None | Some("") => {}
        Some(text) => match text.trim().parse::<i64>().map(u64::try_from) {
            Ok(Ok(mib)) => leave(mib, VARIABLE),
            _ => notes.push(format!(
                "{VARIABLE} is `{text}`, which is not a number of MiB; ignored"
            )),
        },
    }
    limit
}

fn reserve_bytes(gpu: &PhysicalGpu, era: GpuEra) -> u64 {
    if gpu.is_tegra {
        return 1 << 30;
    }
    let available = gpu.available_bytes;
    if available < SMALL_BYTES {
        return match era {
            GpuEra::V0 => 200 * MIB,
            GpuEra::V1 | GpuEra::V2Late => 225 * MIB,
        };
    }
    match era {
        GpuEra::V0 | GpuEra::V1 => part(available, 0.05).max(300 * MIB),
        GpuEra::V2Late => match gpu.compute_capability.map_or(0, |it| it.major) {
            ..=6 => 500 * MIB,
            7 => 1050 * MIB,
            8 => 1536 * MIB,
            _ => 1800 * MIB,
        },
    }
}

/// `fraction * bytes`, rounded down.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "in doubles, as TensorFlow; the result is rounded down, and beyond 64 bits it saturates"
)]
fn part(bytes: u64, fraction: f64) -> u64 {
    (bytes as f64 * fraction) as u64
}
