//! Cost classes: devices that cost the same share a column of the cost table.

use crate::device::Device;
use crate::device::DeviceProfile;
use crate::device::DeviceSet;
use crate::device::LinkProfile;

/// What the devices of one column of the cost table have in common: their type, and the rates of
/// their kernels.
#[derive(Debug, Clone, PartialEq)]
pub struct CostClass {
    /// The type: it decides whether there is a kernel at all.
    pub device_type: String,
    /// Rates of the first device of the class. The others may differ from it in link and queues,
    /// which cost no execution time.
    pub profile: DeviceProfile,
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
            .map(|(id, device)| {
                let class = CostClass {
                    device_type: device.attributes().device_type.clone(),
                    profile: devices.profile(id),
                };
                let index = classes
                    .iter()
                    .position(|known| known.costs_as(&class))
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

impl CostClass {
    fn costs_as(&self, other: &Self) -> bool {
        let (a, b) = (&self.profile, &other.profile);
        self.device_type == other.device_type
            && a.flops_per_s == b.flops_per_s
            && a.memory_bytes_per_s == b.memory_bytes_per_s
            && a.launch_ns == b.launch_ns
            && a.is_calibrated == b.is_calibrated
    }
}

/// One end of a link between devices.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinkEnd {
    /// Whether the device computes in host memory: it is of type `CPU`.
    pub is_host: bool,
    /// Between the device's memory and the host's.
    pub host_link: LinkProfile,
}

impl LinkEnd {
    /// The end at a device with this profile.
    pub fn of(device: &dyn Device, profile: &DeviceProfile) -> Self {
        Self {
            is_host: device.attributes().device_type == "CPU",
            host_link: profile.host_link,
        }
    }
}
