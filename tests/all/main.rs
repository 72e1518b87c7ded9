//! What no single module can show, one module per subject.

mod devices;
#[path = "../support/fakes.rs"]
mod fakes;
#[cfg(feature = "graphdef")]
mod import;
mod misbehaving;
#[cfg(unix)]
mod packaging;
mod placement;
mod policy;
mod sample;
#[path = "../support/strict_cpu.rs"]
mod strict_cpu;
mod versions;
