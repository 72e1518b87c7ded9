//! What no single module can show: one module per subject.

#[path = "../support/strict_cpu.rs"]
mod strict_cpu;
