//! The devices that one graph may use.

use std::fmt;
use std::sync::Arc;

use super::traits::Device;
use crate::names::DeviceId;

/// Devices, in the order they were added; [`DeviceId`] is the position.
#[derive(Clone, Default)]
pub struct DeviceSet {
    devices: Vec<Arc<dyn Device>>,
}

impl DeviceSet {
    /// A set of these devices.
    pub fn new(devices: impl IntoIterator<Item = Arc<dyn Device>>) -> Self {
        Self {
            devices: devices.into_iter().collect(),
        }
    }

    /// Number of devices.
    pub fn len(&self) -> usize {
        self.devices.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.devices.is_empty()
    }

    /// The device of this id.
    pub fn get(&self, id: DeviceId) -> Option<&Arc<dyn Device>> {
        self.devices.get(id.index())
    }

    /// All devices with their ids.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a set holds far fewer than 2^32 devices"
    )]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (DeviceId, &Arc<dyn Device>)> {
        self.devices
            .iter()
            .enumerate()
            .map(|(index, device)| (DeviceId(index as u32), device))
    }
}

impl fmt::Debug for DeviceSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.devices.iter().map(|device| &device.attributes().name))
            .finish()
    }
}
