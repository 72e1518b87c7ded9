//! Measures copies between a device's memory and the host's, as runs make them.

use std::sync::mpsc;
use std::sync::mpsc::Receiver;
use std::time::Duration;
use std::time::Instant;

use super::Bench;
use super::COPIES_BYTES;
use super::link_rates;
use super::rounded;
use super::size_text;
use crate::cost::calibration::LinkDirection;
use crate::cost::calibration::MeasuredLink;
use crate::cost::probe::ProbeError;
use crate::cost::probe::median_ns;
use crate::cost::probe::timed;
use crate::cost::probe::to_f64;
use crate::device::CopyDone;
use crate::device::DeviceContext;
use crate::device::KernelDevice;
use crate::device::KernelError;
use crate::tensor::Tensor;

/// Bytes that are copied both ways at one time.
const BOTH_WAYS_BYTES: usize = 16 << 20;

/// How long the executor spins.
const SPIN: Duration = Duration::from_micros(5);

/// The part of the shorter of two copies beyond which it has delayed the longer one: ways that
/// share a link add up, and separate ones overlap.
const HALF_DUPLEX: f64 = 0.7;

impl Bench<'_> {
    /// Measures copies of several sizes one way.
    pub(super) fn copies(&mut self, direction: LinkDirection) -> Result<(), ProbeError> {
        let (mut took, device) = (Duration::ZERO, self.device);
        let context = device.default_context();
        let mut times: Vec<(f64, f64)> = Vec::new();
        for bytes in COPIES_BYTES {
            if !times.is_empty() && !self.fits(bytes) {
                break;
            }
            let host = self.ones(&[bytes / 4])?;
            let share = self.budget / 4;
            let calls = self.calls(bytes);
            let (of, copied) = match direction {
                LinkDirection::FromHost => {
                    let copy = || context.copy_from_host(&host).map(drop);
                    ("from", timed(device, calls, share, copy))
                }
                LinkDirection::ToHost => {
                    let there = context.copy_from_host(&host)?;
                    let copy = || copy_to_host(device, &there).map(drop);
                    ("to", timed(device, calls, share, copy))
                }
            };
            let ns = match copied {
                Ok(copied) => {
                    took += copied.took;
                    rounded(copied.ns)
                }
                Err(error) if times.is_empty() => return Err(error.into()),
                Err(_) => break,
            };
            let rate = rounded(to_f64(bytes) / ns * 1e9);
            self.sample(
                format!("copy of {} {of} the host", size_text(bytes)),
                ns,
                rate,
            );
            times.push((to_f64(bytes), ns));
            if took > self.budget {
                break;
            }
        }
        let found = link_rates(&times);
        let links = &mut self.found.links;
        links.extend(found.map(|rates| MeasuredLink { direction, rates }));
        Ok(())
    }

    /// Compares copies both ways at one time with those one way, if the device copies on its own.
    pub(super) fn copies_both_ways(&mut self) -> Result<(), ProbeError> {
        let (device, context) = (self.device, self.device.default_context());
        let is_measured = self.found.links.len() == 2;
        if !is_measured || !context.copies_are_async() || !self.fits(BOTH_WAYS_BYTES) {
            return Ok(());
        }
        let host = self.ones(&[BOTH_WAYS_BYTES / 4])?;
        let there = context.copy_from_host(&host)?;
        let (calls, share) = (self.calls(BOTH_WAYS_BYTES), self.budget / 4);
        let to_host_ns = median_ns(device, calls, share, || {
            copy_to_host(device, &there).map(drop)
        })?;
        let from_host_ns = median_ns(device, calls, share, || {
            drop(context.copy_from_host(&host)?);
            Ok(device.sync()?)
        })?;
        let together_ns = median_ns(device, calls, share, || {
            let copied = start_copy_to_host(&**context, &there);
            drop(context.copy_from_host(&host)?);
            device.assist(&|| false);
            copied.wait()?;
            Ok(device.sync()?)
        })?;
        let bytes = to_f64(2 * BOTH_WAYS_BYTES);
        let of = format!("copies of {} both ways", size_text(BOTH_WAYS_BYTES));
        let rate = rounded(bytes / together_ns * 1e9);
        self.sample(of, rounded(together_ns), rate);
        let (shorter_ns, longer_ns) = match to_host_ns < from_host_ns {
            true => (to_host_ns, from_host_ns),
            false => (from_host_ns, to_host_ns),
        };
        self.found.is_half_duplex = together_ns > longer_ns + HALF_DUPLEX * shorter_ns;
        Ok(())
    }
}

/// A copy to the host that has been started.
struct StartedCopy(Receiver<Result<Tensor, KernelError>>);

impl StartedCopy {
    /// Waits as the executor does: it spins before it sleeps.
    fn wait(self) -> Result<Tensor, KernelError> {
        let started = Instant::now();
        while started.elapsed() < SPIN {
            match self.0.try_recv() {
                Ok(copied) => return copied,
                Err(_) => std::hint::spin_loop(),
            }
        }
        let lost = |_| Err(KernelError::invalid("the device has lost a copy"));
        self.0.recv().unwrap_or_else(lost)
    }
}

fn start_copy_to_host(context: &dyn DeviceContext, tensor: &Tensor) -> StartedCopy {
    let (sender, receiver) = mpsc::sync_channel(1);
    let done = CopyDone::new(move |copied| {
        // Nobody waits any more if another copy has failed.
        let _ = sender.send(copied);
    });
    context.copy_to_host_async(tensor, done);
    StartedCopy(receiver)
}

/// Copies as the executor does: it leaves the wait to the device if that copies on its own, and
/// assists it.
pub(super) fn copy_to_host(
    device: &dyn KernelDevice,
    tensor: &Tensor,
) -> Result<Tensor, KernelError> {
    let context = &**device.default_context();
    if !context.copies_are_async() {
        return context.copy_to_host(tensor);
    }
    let copied = start_copy_to_host(context, tensor);
    device.assist(&|| false);
    copied.wait()
}
