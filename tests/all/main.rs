//! Tests that involve several modules: one file per subject, one binary with its own harness.

// Replaces Rust's attribute `test`.
#[macro_use(helper, test)]
extern crate placewright_test_macros;

mod api;
#[cfg(feature = "cli")]
mod bench;
#[cfg(feature = "cli")]
mod builder;
mod calibration;
#[cfg(feature = "cli")]
mod cli;
#[cfg(all(unix, feature = "cli"))]
mod compile_process;
#[cfg(feature = "cli")]
mod constants;
#[cfg(feature = "cli")]
mod control_flow;
mod devices;
#[cfg(feature = "cli")]
#[path = "../support/drive.rs"]
mod drive;
#[cfg(all(feature = "opencl", feature = "cuda"))]
#[path = "../support/emulated_gpu/mod.rs"]
mod emulated;
#[cfg(all(feature = "opencl", feature = "cuda"))]
mod emulated_gpu;
mod error_chains;
#[path = "../support/fakes.rs"]
mod fakes;
#[cfg(feature = "cli")]
mod fused_patterns;
#[cfg(feature = "cli")]
mod fusion;
#[cfg(all(feature = "opencl", feature = "cuda"))]
mod gpu;
#[cfg(feature = "cli")]
mod hard_requests;
mod harness;
#[cfg(feature = "kernels")]
mod history;
mod hostile_bytes;
mod hostile_metadata;
#[cfg(feature = "graphdef")]
mod import;
#[cfg(feature = "cli")]
#[path = "../support/interpreter.rs"]
mod interpreter;
mod kernel_choice;
#[cfg(feature = "cli")]
mod layers;
#[cfg(feature = "kernels")]
mod lists;
#[cfg(feature = "cli")]
mod loadable;
#[cfg(feature = "kernels")]
mod long_kernels;
mod misbehaving;
#[path = "../support/needs.rs"]
mod needs;
#[cfg(feature = "cli")]
#[path = "../support/npz.rs"]
mod npz;
#[cfg(feature = "cuda")]
mod nvidia;
#[cfg(feature = "cli")]
mod observability;
#[cfg(feature = "cli")]
mod optimize;
mod own_dag;
#[cfg(feature = "cli")]
mod own_device;
mod own_graph;
#[cfg(unix)]
mod packaging;
#[cfg(feature = "cli")]
mod partition_device;
#[cfg(all(feature = "cli", feature = "opencl"))]
mod placed;
mod placement;
mod policy;
#[cfg(feature = "cluster")]
mod published;
#[cfg(feature = "kernels")]
mod queues;
#[cfg(feature = "cli")]
mod random_networks;
#[cfg(feature = "cli")]
mod random_policies;
#[cfg(feature = "cli")]
mod random_programs;
#[cfg(feature = "kernels")]
mod reading;
mod sample;
#[cfg(feature = "cli")]
mod saved_models;
#[cfg(feature = "cli")]
mod session;
#[cfg(feature = "cli")]
mod session_lifecycle;
mod session_options;
#[cfg(feature = "cli")]
mod streaming;
#[path = "../support/strict_cpu.rs"]
mod strict_cpu;
#[cfg(feature = "opencl")]
mod sycl;
mod tidy;
#[cfg(feature = "cli")]
mod transfers;
mod versions;
#[cfg(feature = "cli")]
mod workers;

// Included sources of the host expect these names in their crate.
#[cfg(feature = "cuda")]
use placewright::device;

fn main() -> std::process::ExitCode {
    harness::main()
}
