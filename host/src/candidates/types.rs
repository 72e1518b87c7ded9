//! Device types, as numbers.

use crate::candidates::index::to_u32;
use crate::device::DeviceSet;

/// Types that are used only on request, or if no other type has a kernel.
const XLA_TYPES: [&str; 6] = [
    "XLA_CPU",
    "XLA_GPU",
    "TPU",
    "XLA_CPU_JIT",
    "XLA_GPU_JIT",
    "XLA_TPU_JIT",
];

/// The device types of a set, most preferred first; a type's number is its position.
#[derive(Debug)]
pub(super) struct TypeTable {
    pub(super) names: Vec<String>,
    pub(super) priorities: Vec<i32>,
    pub(super) is_xla: Vec<bool>,
    /// Per type whether the own memory of its devices is host memory.
    pub(super) has_one_memory: Vec<bool>,
    pub(super) of_device: Vec<u32>,
}

impl TypeTable {
    pub(super) fn of(devices: &DeviceSet) -> Self {
        let names: Vec<String> = devices
            .prioritized_types()
            .into_iter()
            .map(str::to_owned)
            .collect();
        let number = |device_type: &str| {
            let position = names.iter().position(|name| name == device_type);
            to_u32(position.expect("every device's type is listed"))
        };
        Self {
            priorities: names
                .iter()
                .map(|name| devices.type_priority(name))
                .collect(),
            has_one_memory: names
                .iter()
                .map(|name| {
                    let mut of_type = devices.iter().map(|(_, device)| device.attributes());
                    of_type.any(|it| it.device_type == *name && it.has_one_memory())
                })
                .collect(),
            is_xla: names.iter().map(|name| is_xla(name)).collect(),
            of_device: devices
                .iter()
                .map(|(_, device)| number(&device.attributes().device_type))
                .collect(),
            names,
        }
    }

    pub(super) fn number(&self, device_type: &str) -> Option<u32> {
        self.names
            .iter()
            .position(|name| name == device_type)
            .map(to_u32)
    }
}

pub(super) fn is_xla(device_type: &str) -> bool {
    XLA_TYPES.contains(&device_type)
}

/// Device types with a kernel, and the kernels' priorities: largest priority first, then in the
/// order of the table.
pub(super) type SupportedTypes = Vec<(u32, i32)>;
