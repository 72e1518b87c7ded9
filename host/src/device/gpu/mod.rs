//! Which GPU devices there are to be: computed from what a driver says of the GPUs and from what
//! the user asks for, before any of them is opened.
//!
//! In come [`PhysicalGpu`]s and [`GpuOptions`], out goes a [`GpuPlan`]: device by device the GPU,
//! the memory limit, the locality. Calls no driver, so the rules hold for each kind of GPU and are
//! tested without one. A backend lists its GPUs, calls [`plan_gpus`] with the options that its
//! factory got ([`super::DeviceOptions::gpu`]), lets peers access each other's memory, opens
//! the devices of the plan in order and says the plan's notes. CUDA's (`backend/cuda`) is the
//! caller.
//!
//! The rules are TensorFlow's (`common_runtime/gpu/gpu_device.cc`); [`GpuEra`] says of which
//! release, where releases differ.

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
