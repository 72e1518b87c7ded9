//! CUDA: GPU devices, and the compiler of their programs.
//!
//! In come device options, out go [`GpuDevice`]s and the registrations of the kernels in
//! `backend/source`. CUDA's libraries are loaded when somebody first asks what GPUs there are; a
//! machine without them has none. What decides about order and memory stands above
//! [`driver::Driver`], and is tested on one that checks every call.
//!
//! | file | what |
//! |---|---|
//! | `factory.rs` | from options to devices |
//! | `device.rs` | the device |
//! | `context.rs` | copies into its memory and out of it |
//! | `routines.rs` | products and convolutions by NVIDIA's libraries |
//! | `streams.rs` | which nodes go into which stream, and what apps see of streams |
//! | `group.rs` | what stands behind a device for all sessions |
//! | `lane.rs` | streams: what work waits for |
//! | `watcher.rs` | who is told when a stream has come so far |
//! | `memory.rs`, `bfc.rs` | memory of the GPU; which addresses a tensor gets |
//! | `pinned.rs` | memory of the host that a GPU reaches |
//! | `faults.rs` | functions that find their inputs wrong |
//! | `open_gpu.rs` | a GPU that is open: events, programs, whether it answers |
//! | `driver.rs` | what is asked of a driver |
//! | `c_text.rs` | texts of those libraries |
//! | `ffi.rs` | all calls into CUDA's driver |
//! | `cublaslt.rs`, `cudnn.rs` | all calls into NVIDIA's libraries of products and convolutions |
//! | `nvml.rs` | which GPUs NVLinks connect |
//! | `compile.rs`, `nvrtc.rs` | programs of the dialect, compiled by NVRTC |
//! | `yardstick.rs` | work given straight to the driver, for benchmarks |

mod bfc;
#[expect(unsafe_code, reason = "reads what pointers lead to")]
mod c_text;
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
// Public for tests only, which run the backend on an emulated driver; it may change with any release.
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
#[expect(unsafe_code, reason = "as `context`")]
mod routines;
mod streams;
mod watcher;
#[cfg(feature = "cli")]
#[expect(
    unsafe_code,
    reason = "gives the GPU work on memory that it keeps until that is done"
)]
mod yardstick;

pub use bfc::GpuMemoryStats;
pub use compile::CompileError;
pub use compile::compile;
pub use device::GpuDevice;
pub use factory::GpuDeviceFactory;
pub use nvrtc::is_present;
#[cfg(feature = "cli")]
pub(crate) use yardstick::Yardstick;

/// The type of these devices.
pub const DEVICE_TYPE: &str = "GPU";

/// Priority of their factory, TensorFlow's.
pub const PRIORITY: i32 = 210;
