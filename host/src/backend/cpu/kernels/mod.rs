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

mod beam;
mod bincount;
pub(in crate::backend::cpu) mod bottleneck;
mod boxes;
mod cast;
mod channels_first;
mod checks;
mod codec;
mod color;
mod complex;
pub(in crate::backend::cpu) mod composite;
mod concat;
mod conv;
mod crop;
mod diagonal;
mod elements;
mod elementwise;
mod example;
mod fft;
mod fill;
pub(in crate::backend::cpu) mod fused;
mod gamma;
mod gather;
mod gradients;
mod histogram;
mod host;
mod image;
mod linalg;
mod logic;
mod math;
mod matrix;
#[cfg(feature = "graphdef")]
mod message;
mod nn;
mod norm;
mod pack;
mod pad;
mod partition;
mod patches;
mod quantize;
mod queue;
mod queues;
mod ragged;
mod ragged_variant;
mod random;
mod random_samples;
mod random_state;
mod recurrent;
mod reduce;
mod resample;
mod rows;
mod sampled;
#[cfg(feature = "graphdef")]
mod saver;
mod scatter;
mod search;
mod segment;
mod select;
mod sequence;
mod sets;
mod slice;
mod sparse;
mod sparse_cross;
mod sparse_join;
mod sparse_math;
mod sparse_segment;
mod string_pieces;
mod strings;
mod suppression;
mod table;
mod tables;
mod tensor_array;
mod tensor_list;
mod top_k;
mod unicode;
mod update_slice;
mod variable;
mod variable_scatter;
mod volume;

/// Adds all kernels of CPU devices.
pub(super) fn register(registry: &mut KernelRegistry) {
    host::register(registry);
    variable::register(registry);
    variable_scatter::register(registry);
    math::register(registry);
    elementwise::register(registry);
    example::register(registry);
    logic::register(registry);
    bottleneck::register(registry);
    boxes::register(registry);
    cast::register(registry);
    beam::register(registry);
    bincount::register(registry);
    checks::register(registry);
    codec::register(registry);
    color::register(registry);
    complex::register(registry);
    composite::register(registry);
    reduce::register(registry);
    resample::register(registry);
    rows::register(registry);
    sampled::register(registry);
    fft::register(registry);
    fill::register(registry);
    fused::register(registry);
    pack::register(registry);
    select::register(registry);
    concat::register(registry);
    conv::register(registry);
    crop::register(registry);
    diagonal::register(registry);
    gamma::register(registry);
    gather::register(registry);
    gradients::register(registry);
    histogram::register(registry);
    image::register(registry);
    linalg::register(registry);
    matrix::register(registry);
    #[cfg(feature = "graphdef")]
    message::register(registry);
    nn::register(registry);
    norm::register(registry);
    pad::register(registry);
    partition::register(registry);
    patches::register(registry);
    quantize::register(registry);
    queues::register(registry);
    ragged::register(registry);
    ragged_variant::register(registry);
    random::register(registry);
    random_samples::register(registry);
    random_state::register(registry);
    recurrent::register(registry);
    #[cfg(feature = "graphdef")]
    saver::register(registry);
    scatter::register(registry);
    search::register(registry);
    segment::register(registry);
    sequence::register(registry);
    sets::register(registry);
    slice::register(registry);
    sparse::register(registry);
    sparse_cross::register(registry);
    sparse_join::register(registry);
    sparse_math::register(registry);
    sparse_segment::register(registry);
    string_pieces::register(registry);
    strings::register(registry);
    suppression::register(registry);
    tables::register(registry);
    tensor_array::register(registry);
    tensor_list::register(registry);
    top_k::register(registry);
    unicode::register(registry);
    update_slice::register(registry);
    volume::register(registry);
}

/// Returns a registration for CPU devices.
fn def(op: &str) -> KernelDef {
    KernelDef::new(op, super::DEVICE_TYPE)
}
