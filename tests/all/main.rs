//! What no single module can show, one module per subject.

#[path = "../support/fakes.rs"]
mod fakes;
mod placement;
mod policy;
mod sample;
#[path = "../support/strict_cpu.rs"]
mod strict_cpu;
