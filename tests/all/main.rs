//! What no single module can show: one module per subject, one binary, linked once.

#[cfg(feature = "cli")]
mod bench;
#[cfg(feature = "cli")]
mod builder;
mod calibration;
#[cfg(feature = "cli")]
mod cli;
mod devices;
#[cfg(all(feature = "opencl", feature = "cuda"))]
#[path = "../support/emulated_gpu/mod.rs"]
mod emulated;
#[cfg(all(feature = "opencl", feature = "cuda"))]
mod emulated_gpu;
#[path = "../support/fakes.rs"]
mod fakes;
#[cfg(feature = "cli")]
mod fusion;
#[cfg(all(feature = "opencl", feature = "cuda"))]
mod gpu;
#[cfg(feature = "cli")]
mod hard_requests;
#[cfg(feature = "graphdef")]
mod import;
mod kernel_choice;
mod misbehaving;
#[cfg(feature = "cli")]
#[path = "../support/npz.rs"]
mod npz;
#[cfg(feature = "cli")]
mod observability;
#[cfg(feature = "cli")]
mod own_device;
mod own_graph;
#[cfg(unix)]
mod packaging;
#[cfg(all(feature = "cli", feature = "opencl"))]
mod placed;
mod placement;
mod policy;
mod sample;
#[cfg(feature = "cli")]
mod session;
#[cfg(feature = "cli")]
mod session_lifecycle;
mod session_options;
#[path = "../support/strict_cpu.rs"]
mod strict_cpu;
#[cfg(feature = "opencl")]
mod sycl;
mod tidy;
mod versions;
