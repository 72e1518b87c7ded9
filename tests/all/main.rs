//! What no single module can show, one module per subject.

mod devices;
#[path = "../support/fakes.rs"]
mod fakes;
mod misbehaving;
mod placement;
mod policy;
mod sample;
mod versions;
