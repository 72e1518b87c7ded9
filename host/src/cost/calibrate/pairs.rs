//! Measures copies between the memories of two devices that do not pass through the host's.

use std::sync::Arc;

use super::COPIES_BYTES;
use super::CalibrateError;
use super::CalibrateOptions;
use super::link_rates;
use super::ones;
use super::rounded;
use crate::cost::probe::Calls;
use crate::cost::probe::timed;
use crate::cost::probe::to_f64;
use crate::device::Device;
use crate::device::DeviceContext;
use crate::device::KernelDevice;
use crate::device::KernelError;
use crate::device::LinkRates;
use crate::tensor::HostAllocator;
use crate::tensor::Tensor;

/// Measures copies from one device to another and back, each of which waits for the one before.
/// Returns the cost of one copy; `None` if copies between these devices pass through host memory,
/// where the links of both devices tell their cost.
///
/// # Errors
/// [`CalibrateError`] if a copy fails.
pub fn calibrate_pair(
    first: &dyn Device,
    second: &dyn Device,
    options: &CalibrateOptions,
) -> Result<Option<LinkRates>, CalibrateError> {
    let (Some(here), Some(there)) = (first.as_kernel_device(), second.as_kernel_device()) else {
        return Ok(None);
    };
    measured(here, there, options).map_err(|error| CalibrateError::Nothing {
        device: first.attributes().name.clone(),
        reasons: format!("copies to {}: {error}", second.attributes().name),
    })
}

fn measured(
    here: &dyn KernelDevice,
    there: &dyn KernelDevice,
    options: &CalibrateOptions,
) -> Result<Option<LinkRates>, KernelError> {
    let (near, far) = (here.default_context(), there.default_context());
    let host = HostAllocator::new("calibration", u64::MAX);
    let share = options.budget / 28;
    let mut times: Vec<(f64, f64)> = Vec::new();
    for bytes in COPIES_BYTES {
        let needed = u64::try_from(bytes).unwrap_or(u64::MAX).saturating_mul(8);
        let capacity = here.memory_capacity_bytes();
        if needed > capacity.min(there.memory_capacity_bytes()) {
            break;
        }
        let mut tensor = near.copy_from_host(&ones(&host, &[bytes / 4])?)?;
        // The first copy shows whether there are such copies.
        let Some(copied) = there_and_back(&tensor, near, far) else {
            return Ok(None);
        };
        copied?;
        let call = || {
            if let Some(back) = there_and_back(&tensor, near, far) {
                tensor = back?;
            }
            Ok(())
        };
        let calls = Calls { min: 1, max: 64 };
        let both_ways = timed(here, calls, share, call)?;
        there.sync()?;
        times.push((to_f64(bytes), rounded(both_ways.ns / 2.0)));
    }
    Ok(link_rates(&times))
}

fn there_and_back(
    tensor: &Tensor,
    near: &Arc<dyn DeviceContext>,
    far: &Arc<dyn DeviceContext>,
) -> Option<Result<Tensor, KernelError>> {
    match far.copy_from_device(tensor, near)? {
        Ok(there) => near.copy_from_device(&there, far),
        Err(error) => Some(Err(error)),
    }
}
