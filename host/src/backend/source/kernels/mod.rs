//! The op table of devices that compile programs: the registrations, and the launches of each
//! kernel.
//!
//! One file per family of ops. A kernel in this module plans its execution
//! ([`crate::backend::plan`]) and launches functions; the arithmetic is in `../*.c`.

use crate::device::KernelDef;
use crate::device::KernelRegistry;
use crate::tensor::DType;

mod along;
mod array;
mod bias;
pub(super) mod binary;
mod cast;
mod conv;
mod einsum;
pub(super) mod epilogue;
mod gather;
mod host;
mod matmul;
mod moved;
mod norm;
mod pad;
pub(super) mod reduce;
mod routine;
mod select;
mod softmax;
mod strided;
mod tiles;
pub(super) mod transposed;
pub(super) mod unary;
mod variable;
mod window;

/// Real types of programs; f16 and bf16 are computed as `float`. Some devices have no `double`.
pub(super) const REALS: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// Integers.
pub(super) const INTEGERS: [DType; 8] = [
    DType::I8,
    DType::I16,
    DType::I32,
    DType::I64,
    DType::U8,
    DType::U16,
    DType::U32,
    DType::U64,
];

/// Real types and integers.
pub(super) const NUMBERS: [DType; 11] = [
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::I8,
    DType::I16,
    DType::I32,
    DType::I64,
    DType::U8,
    DType::U16,
    DType::U32,
    DType::U64,
];

/// Number types with a sign.
pub(super) const SIGNED: [DType; 7] = [
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::I8,
    DType::I16,
    DType::I32,
    DType::I64,
];

/// Types whose elements are copied without being interpreted, as units of at most 8 bytes.
pub(super) const MOVED: [DType; 14] = [
    DType::F32,
    DType::F64,
    DType::F16,
    DType::BF16,
    DType::I8,
    DType::I16,
    DType::I32,
    DType::I64,
    DType::U8,
    DType::U16,
    DType::U32,
    DType::U64,
    DType::Bool,
    DType::Complex64,
];

/// Registrations for one device type.
pub(super) struct Table<'a> {
    registry: &'a mut KernelRegistry,
    device_type: &'static str,
}

impl Table<'_> {
    /// Returns a registration for the device type.
    pub(super) fn def(&self, op: &str) -> KernelDef {
        KernelDef::new(op, self.device_type)
    }

    pub(super) fn add(&mut self, def: KernelDef) {
        self.registry.register(def);
    }
}

/// Adds all kernels.
pub(super) fn register(registry: &mut KernelRegistry, device_type: &'static str) {
    let mut table = Table {
        registry,
        device_type,
    };
    bias::register(&mut table);
    conv::register(&mut table);
    einsum::register(&mut table);
    norm::register(&mut table);
    matmul::register(&mut table);
    softmax::register(&mut table);
    host::register(&mut table);
    array::register(&mut table);
    pad::register(&mut table);
    gather::register(&mut table);
    reduce::register(&mut table);
    along::register(&mut table);
    unary::register(&mut table);
    binary::register(&mut table);
    cast::register(&mut table);
    select::register(&mut table);
    window::register(&mut table);
    variable::register(&mut table);
}
