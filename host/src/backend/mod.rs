//! The code that makes devices; this file holds the one list of backends.
//!
//! In come device options, out go devices and the registrations of their kernels. A backend knows `device` and
//! `kernels`, and no graph beyond the attributes of the node whose kernel it makes.

use std::sync::Arc;

use crate::device::FactoryRegistry;

pub mod cpu;

/// The factories of all backends that this build has, at TensorFlow's priorities.
pub fn default_factories() -> FactoryRegistry {
    let mut registry = FactoryRegistry::empty();
    registry
        .register(
            cpu::DEVICE_TYPE,
            cpu::PRIORITY,
            Arc::new(cpu::ThreadPoolDeviceFactory),
        )
        .expect("each type stands once in this list");
    registry
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::DeviceOptions;

    #[test]
    fn the_default_is_one_cpu_device() {
        let set = default_factories()
            .create_devices(&DeviceOptions::default(), "/job:localhost/replica:0/task:0")
            .unwrap();
        let names: Vec<_> = set
            .iter()
            .map(|(_, device)| device.name().to_string())
            .collect();
        assert_eq!(names, ["/job:localhost/replica:0/task:0/device:CPU:0"]);
        assert_eq!(default_factories().priority("CPU"), 60);
    }
}
