//! The op table of CPU devices: the registrations (op, types, host-memory arguments) and their
//! kernels.
//!
//! One file per family of ops. A kernel in this module plans its execution
//! ([`crate::backend::plan`]), allocates the result and calls [`crate::kernels`]; it does no
//! arithmetic itself.

use crate::device::KernelDef;
use crate::device::KernelRegistry;

#[macro_use]
mod raw;

mod bincount;
mod cast;
mod checks;
mod complex;
mod concat;
mod conv;
mod elements;
mod elementwise;
mod fill;
pub(in crate::backend::cpu) mod fused;
mod gather;
mod host;
mod image;
mod logic;
mod math;
mod matrix;
mod nn;
mod norm;
mod pack;
mod pad;
mod ragged;
mod random;
mod random_samples;
mod random_state;
mod reduce;
mod select;
mod slice;
mod sparse;
mod sparse_segment;
mod string_pieces;
mod strings;
mod table;
mod tables;
mod tensor_array;
mod tensor_list;
mod unicode;
mod variable;

/// Adds all kernels of CPU devices.
pub(super) fn register(registry: &mut KernelRegistry) {
    host::register(registry);
    variable::register(registry);
    math::register(registry);
    elementwise::register(registry);
    logic::register(registry);
    cast::register(registry);
    bincount::register(registry);
    checks::register(registry);
    complex::register(registry);
    reduce::register(registry);
    fill::register(registry);
    fused::register(registry);
    pack::register(registry);
    select::register(registry);
    concat::register(registry);
    conv::register(registry);
    gather::register(registry);
    image::register(registry);
    matrix::register(registry);
    nn::register(registry);
    norm::register(registry);
    pad::register(registry);
    ragged::register(registry);
    random::register(registry);
    random_samples::register(registry);
    random_state::register(registry);
    slice::register(registry);
    sparse::register(registry);
    sparse_segment::register(registry);
    string_pieces::register(registry);
    strings::register(registry);
    tables::register(registry);
    tensor_array::register(registry);
    tensor_list::register(registry);
    unicode::register(registry);
}

/// Returns a registration for CPU devices.
fn def(op: &str) -> KernelDef {
    KernelDef::new(op, super::DEVICE_TYPE)
}
