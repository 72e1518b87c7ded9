//! Plans the GPU devices from the driver's description of the GPUs and the user's options, before
//! any GPU is opened.
//!
//! It takes [`PhysicalGpu`]s and [`GpuOptions`], and returns a [`GpuPlan`]: for each device its
//! GPU, memory limit and locality. It calls no driver, so the rules apply to each kind of GPU and
//! are tested without one. A backend lists its GPUs, calls [`plan_gpus`] with the options of its
//! factory ([`super::DeviceOptions::gpu`]), enables peer access, opens the devices of the plan in
//! order and logs the plan's notes. The caller is CUDA's backend (`backend/cuda`).
//!
//! The rules are TensorFlow's (`common_runtime/gpu/gpu_device.cc`); [`GpuEra`] selects the release,
//! as far as releases differ.

mod error;
mod memory;
mod options;
mod physical;
mod plan;
mod select;
mod virtual_gpus;

pub use error::GpuPlanError;
pub use memory::memory_limit;
pub use options::GpuEra;
pub use options::GpuOptions;
pub use options::VirtualGpus;
pub use physical::ComputeCapability;
pub use physical::PhysicalGpu;
pub use plan::GpuPlan;
pub use plan::PlannedGpu;
pub use plan::plan_gpus;
#[cfg(feature = "cuda")]
pub(crate) use plan::used_gpus;
#[cfg(feature = "cuda")]
pub(crate) use select::visible_gpus;

const MIB: u64 = 1 << 20;
