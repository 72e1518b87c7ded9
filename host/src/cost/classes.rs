//! Cost classes: devices with equal costs share a column of the cost table.

use crate::device::Device;
use crate::device::DeviceRates;
use crate::device::DeviceSet;
use crate::device::HostLink;
use crate::names::DeviceId;

/// The device type and kernel rates that the devices of one column of the cost table share.
#[derive(Debug, Clone, PartialEq)]
pub struct CostClass {
    /// The device type, which decides whether a kernel exists.
    pub device_type: String,
    /// Rates of the first device of the class. Other devices of the class may differ in link and
    /// queues, which do not affect execution time.
    pub rates: DeviceRates,
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
    /// Computes the classes of a device set.
    pub fn of(devices: &DeviceSet) -> Self {
        Self::of_alike(devices, |_, _| true)
    }

    /// Computes the classes of devices of which `are_alike` holds for any two in one class.
    pub(crate) fn of_alike(
        devices: &DeviceSet,
        are_alike: impl Fn(DeviceId, DeviceId) -> bool,
    ) -> Self {
        let mut classes: Vec<CostClass> = Vec::new();
        let mut first_devices: Vec<DeviceId> = Vec::new();
        let of_device = devices
            .iter()
            .map(|(id, device)| {
                let class = CostClass {
                    device_type: device.attributes().device_type.clone(),
                    rates: devices.rates(id),
                };
                let index = classes
                    .iter()
                    .zip(&first_devices)
                    .position(|(known, &first)| known.costs_as(&class) && are_alike(first, id))
                    .unwrap_or_else(|| {
                        classes.push(class);
                        first_devices.push(id);
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
        let (a, b) = (&self.rates, &other.rates);
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
    /// Whether the device computes in host memory, which devices of type `CPU` do.
    pub is_host: bool,
    /// Link between the device's memory and host memory.
    pub host_link: HostLink,
}

impl LinkEnd {
    /// Returns the end at a device with these rates.
    pub fn of(device: &dyn Device, rates: &DeviceRates) -> Self {
        Self {
            is_host: device.attributes().device_type == "CPU",
            host_link: rates.host_link,
        }
    }
}
