//! The op table of devices that compile: registrations, and what each kernel launches.
//!
//! One file per family. Shapes are worked out here, by the code that CPU kernels use; the arithmetic is in `../*.c`.

use crate::device::KernelDef;
use crate::device::KernelRegistry;

mod unary;

/// Registrations for one device type.
pub(super) struct Table<'a> {
    registry: &'a mut KernelRegistry,
    device_type: &'static str,
}

impl Table<'_> {
    /// The start of a registration.
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
    unary::register(&mut table);
}
