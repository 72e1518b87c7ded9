//! Kernels of devices that compile: C of one dialect, written once (`*.c`), the ops that call them
//! (`kernels/`), and functions that are written for a graph (`fusion/`).
//!
//! In go nodes and tensors of a [`ProgramDevice`], out go its launches. A source stands behind a
//! prelude that says the dialect in the device's language; nothing here knows which device that is,
//! beyond its [`ComputeTraits`](crate::device::ComputeTraits).

use crate::device::KernelRegistry;

mod call;
mod fusion;
mod kernels;

pub(super) use fusion::fuse;

/// The dialect in OpenCL C.
#[cfg(feature = "opencl")]
pub(super) const OPENCL_PRELUDE: &str = concat!(
    include_str!("prelude_opencl.h"),
    include_str!("prelude_common.h")
);

/// Adds all kernels for a device type.
pub(super) fn register(registry: &mut KernelRegistry, device_type: &'static str) {
    kernels::register(registry, device_type);
    fusion::register(registry, device_type);
}
