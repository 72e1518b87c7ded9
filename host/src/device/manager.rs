//! Owns the devices of one process.

use std::fmt::Write as _;
use std::sync::Arc;

use hashbrown::HashMap;

use crate::device::error::DeviceError;
use crate::device::traits::Device;

/// The devices of one process, by name (TensorFlow `DeviceMgr`).
///
/// Each is known under four spellings: full, legacy full, local and legacy local. Of several devices under one spelling the
/// last has it, so the local ones mean the last device of that type and index. (A [`super::DeviceSet`] keeps the first.)
#[derive(Debug, Clone, Default)]
pub struct DeviceManager {
    devices: Vec<Arc<dyn Device>>,
    by_name: HashMap<String, usize>,
}

impl DeviceManager {
    /// A manager of these devices.
    pub fn new(devices: impl IntoIterator<Item = Arc<dyn Device>>) -> Self {
        let devices: Vec<_> = devices.into_iter().collect();
        let mut by_name = HashMap::new();
        for (index, device) in devices.iter().enumerate() {
            let name = device.name();
            for key in name
                .mapping_names()
                .into_iter()
                .chain(name.local_mapping_names())
            {
                by_name.insert(key, index);
            }
        }
        Self { devices, by_name }
    }

    /// The devices, in the order they were handed in.
    pub fn devices(&self) -> &[Arc<dyn Device>] {
        &self.devices
    }

    /// The device known under this spelling; nothing is parsed.
    ///
    /// # Errors
    /// [`DeviceError::InvalidArgument`] with the name, and the names there are.
    pub fn lookup(&self, name: &str) -> Result<&Arc<dyn Device>, DeviceError> {
        self.by_name
            .get(name)
            .map(|&index| &self.devices[index])
            .ok_or_else(|| {
                let known: Vec<_> = self
                    .devices
                    .iter()
                    .map(|device| device.attributes().name.as_str())
                    .collect();
                DeviceError::InvalidArgument(format!(
                    "`{name}` unknown device; devices are: {}",
                    known.join(", ")
                ))
            })
    }

    /// Number of devices of a type.
    pub fn n_devices_of_type(&self, device_type: &str) -> usize {
        self.devices
            .iter()
            .filter(|device| device.attributes().device_type == device_type)
            .count()
    }

    /// Whether a device of this incarnation is here.
    pub fn contains_incarnation(&self, incarnation: u64) -> bool {
        self.devices
            .iter()
            .any(|device| device.attributes().incarnation == incarnation)
    }

    /// `NAME -> DESCRIPTION`, one line per device that describes itself.
    pub fn mapping_text(&self) -> String {
        let mut text = String::new();
        for device in &self.devices {
            let attributes = device.attributes();
            if !attributes.physical_description.is_empty() {
                writeln!(
                    text,
                    "{} -> {}",
                    attributes.name, attributes.physical_description
                )
                .expect("writing to a string");
            }
        }
        text
    }

    /// The first CPU device of index 0.
    pub fn host_cpu(&self) -> Option<&Arc<dyn Device>> {
        self.devices.iter().find(|device| {
            device.attributes().device_type == "CPU" && device.name().index == Some(0)
        })
    }
}
