//! Copies tensors between a device's memory and the host's.

use std::panic::AssertUnwindSafe;
use std::panic::catch_unwind;
use std::sync::Arc;

use super::error::ExecuteError;
use crate::device::DeviceContext;
use crate::device::DeviceSet;
use crate::device::KernelDevice;
use crate::device::KernelError;
use crate::device::panic_message;
use crate::graph::Graph;
use crate::names::DeviceId;
use crate::plan::MemorySpace;
use crate::plan::Transfer;
use crate::tensor::Tensor;
use crate::tensor::Variant;

/// Checks whether the host can read a tensor now. True for strings, which are always in host
/// memory, and for host-visible memory unless the device may still be writing to it.
pub(super) fn is_at_hand(space: MemorySpace, is_deferred: bool, tensor: &Tensor) -> bool {
    tensor.buffer().is_none_or(|buffer| {
        buffer.as_host_bytes().is_some() && (space == MemorySpace::Host || !is_deferred)
    })
}

/// Returns the tensor in host-readable memory; a copy unless it is there already.
pub(super) fn to_host(
    space: MemorySpace,
    is_deferred: bool,
    context: &Arc<dyn DeviceContext>,
    tensor: &Tensor,
) -> Result<Tensor, KernelError> {
    guarded(|| {
        let copy = |tensor: &Tensor| {
            if is_at_hand(space, is_deferred, tensor) {
                return Ok(tensor.clone());
            }
            context.copy_to_host(tensor)
        };
        match tensor.as_variants() {
            Ok(variants) => {
                let copies = variants.iter().map(|variant| variant.try_map(copy));
                let copies: Result<Vec<Variant>, KernelError> = copies.collect();
                Ok(Tensor::from_variants(tensor.shape().clone(), copies?)?)
            }
            Err(_) => copy(tensor),
        }
    })
}

/// Returns a copy of a host tensor in one of a device's memories.
pub(super) fn from_host(
    devices: &DeviceSet,
    device: DeviceId,
    space: MemorySpace,
    tensor: &Tensor,
) -> Result<Tensor, KernelError> {
    if let Ok(variants) = tensor.as_variants() {
        let copies = variants
            .iter()
            .map(|variant| variant.try_map(|element| from_host(devices, device, space, element)));
        let copies: Result<Vec<Variant>, KernelError> = copies.collect();
        return Ok(Tensor::from_variants(tensor.shape().clone(), copies?)?);
    }
    if space == MemorySpace::Host || tensor.buffer().is_none() {
        return Ok(tensor.clone());
    }
    guarded(|| {
        let context = kernel_device(devices, device).default_context();
        context.copy_from_host(tensor)
    })
}

/// Turns a panic of a device into an error.
pub(super) fn guarded<T>(copy: impl FnOnce() -> Result<T, KernelError>) -> Result<T, KernelError> {
    catch_unwind(AssertUnwindSafe(copy)).unwrap_or_else(|panic| {
        Err(KernelError::invalid(format!(
            "the device panicked: {}",
            panic_message(&*panic)
        )))
    })
}

/// Returns the error for a transfer that failed.
pub(super) fn lost(
    graph: &Graph,
    devices: &DeviceSet,
    transfer: &Transfer,
    source: KernelError,
) -> ExecuteError {
    let name = |device: DeviceId| {
        let device = devices.get(device);
        device.map_or_else(String::new, |device| device.attributes().name.clone())
    };
    let (from, to) = (name(transfer.source), name(transfer.destination));
    let what = transfer.payload.name(graph);
    let what = match transfer.payload.key(graph, transfer.edge, &from, &to) {
        Ok(key) => format!("transfer of `{what}` (key `{key}`)"),
        Err(_) => format!("transfer of `{what}`"),
    };
    ExecuteError::Transfer {
        what,
        source_device: from,
        destination_device: to,
        source: Box::new(source),
    }
}

#[inline]
pub(super) fn kernel_device(devices: &DeviceSet, device: DeviceId) -> &dyn KernelDevice {
    devices
        .get(device)
        .and_then(|device| device.as_kernel_device())
        .expect("preparing has checked that devices execute single nodes")
}
