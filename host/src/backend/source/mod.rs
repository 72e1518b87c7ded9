//! Kernels of devices that compile programs: C sources in one dialect (`*.c`), the ops that launch
//! them (`kernels/`), and functions generated for a graph (`fusion/`).
//!
//! The module takes nodes and tensors of a [`ProgramDevice`], and launches functions on it. Each
//! source follows a prelude that defines the dialect in the device's language. The module depends
//! on the device only through its [`ComputeTraits`](crate::device::ComputeTraits).

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
