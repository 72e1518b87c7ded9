//! CUDA: GPU devices, and the compiler of their programs.
//!
//! The factory turns device options into [`GpuDevice`]s and registers the kernels of
//! `backend/source`. CUDA's libraries are loaded when GPUs are first listed; a machine without them
//! has no GPU devices. The code that decides about order and memory uses a driver only through
//! [`driver::Driver`], and is tested on a driver that checks every call.
//!
//! | file | what |
//! |---|---|
//! | `factory.rs` | from options to devices |
//! | `device.rs` | the device |
//! | `context.rs` | copies to and from its memory |
//! | `routines.rs` | matmuls and convolutions by NVIDIA's libraries |
//! | `streams.rs` | the stream of each node, and the streams that apps see |
//! | `group.rs` | the streams and memory of a device, shared by all sessions |
//! | `lane.rs` | streams: what work waits for |
//! | `watcher.rs` | callbacks when a stream has reached a point |
//! | `memory.rs`, `bfc.rs` | memory of the GPU; which addresses a tensor gets |
//! | `pinned.rs` | memory of the host that a GPU reaches |
//! | `faults.rs` | functions that report wrong inputs |
//! | `open_gpu.rs` | an open GPU: events, programs, whether it answers |
//! | `driver.rs` | the interface to a driver |
//! | `c_string.rs` | strings from those libraries |
//! | `ffi.rs` | all calls into CUDA's driver |
//! | `cublaslt.rs`, `cudnn.rs` | all calls into NVIDIA's libraries of matmuls and convolutions |
//! | `nvml.rs` | which GPUs NVLinks connect |
//! | `compile.rs`, `nvrtc.rs` | programs of the dialect, compiled by NVRTC |
//! | `reference.rs` | work given directly to the driver, for benchmarks |

mod bfc;
#[expect(unsafe_code, reason = "reads what pointers lead to")]
mod c_string;
mod compile;
#[expect(
    unsafe_code,
    reason = "gives the GPU work on memory that goes back with its uses"
)]
mod context;
#[expect(unsafe_code, reason = "calls into cuBLASLt")]
mod cublaslt;
#[expect(unsafe_code, reason = "calls into cuDNN")]
mod cudnn;
#[expect(unsafe_code, reason = "as `context`")]
mod device;
// Public for tests only, which run the backend on an emulated driver; it may change with any
// release.
#[doc(hidden)]
pub mod driver;
mod factory;
mod faults;
#[expect(unsafe_code, reason = "calls into CUDA's driver")]
mod ffi;
mod group;
mod lane;
#[expect(unsafe_code, reason = "as `context`; gives memory back to the driver")]
mod memory;
mod nvml;
#[expect(unsafe_code, reason = "calls into NVRTC")]
mod nvrtc;
mod open_gpu;
#[expect(unsafe_code, reason = "memory of the driver's, as bytes")]
mod pinned;
#[cfg(feature = "cli")]
#[expect(
    unsafe_code,
    reason = "gives the GPU work on memory that it keeps until that is done"
)]
mod reference;
#[expect(unsafe_code, reason = "as `context`")]
mod routines;
mod streams;
mod watcher;

pub use bfc::GpuMemoryStats;
pub use compile::CompileError;
pub use compile::compile;
pub use device::GpuDevice;
pub use factory::GpuDeviceFactory;
pub use nvrtc::is_present;
#[cfg(feature = "cli")]
pub(crate) use reference::Reference;

/// The type of these devices.
pub const DEVICE_TYPE: &str = "GPU";

/// Priority of their factory, TensorFlow's.
pub const PRIORITY: i32 = 210;
