//! Cost classes: devices that cost the same share a column of the cost table.

use crate::device::DeviceProfile;
use crate::device::DeviceSet;

/// Devices of one type with one profile.
#[derive(Debug, Clone, PartialEq)]
pub struct CostClass {
    /// The type: it decides whether there is a kernel at all.
    pub device_type: String,
    /// The rates.
    pub profile: DeviceProfile,
}

impl CostClass {
    /// Whether these devices compute in host memory: those of type `CPU`.
    pub fn is_host(&self) -> bool {
        self.device_type == "CPU"
    }
}

/// The cost classes of a device set.
#[derive(Debug, Clone, Default)]
pub struct CostClasses {
    /// Class of each device, as an index into [`Self::classes`].
    pub of_device: Vec<u32>,
    /// The classes, in order of first use.
    pub classes: Vec<CostClass>,
}

impl CostClasses {
    /// The classes of these devices.
    pub fn of(devices: &DeviceSet) -> Self {
        let mut classes: Vec<CostClass> = Vec::new();
        let of_device = devices
            .iter()
            .map(|(_, device)| {
                let class = CostClass {
                    device_type: device.attributes().device_type.clone(),
                    profile: device.profile(),
                };
                let index = classes
                    .iter()
                    .position(|known| *known == class)
                    .unwrap_or_else(|| {
                        classes.push(class);
                        classes.len() - 1
                    });
                u32::try_from(index).expect("no more classes than devices")
            })
            .collect();
        Self { of_device, classes }
    }
}
