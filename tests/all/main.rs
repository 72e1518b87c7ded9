//! What no single module can show, one module per subject.

mod devices;
#[path = "../support/fakes.rs"]
mod fakes;
mod placement;
#[path = "../support/strict_cpu.rs"]
mod strict_cpu;
