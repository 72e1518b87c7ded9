//! Devices and factories for tests.

use std::sync::Arc;

use placewright::device::Device;
use placewright::device::DeviceAttributes;
use placewright::device::DeviceDetails;
use placewright::device::DeviceError;
use placewright::device::DeviceFactory;
use placewright::device::DeviceOptions;
use placewright::device::DeviceRates;
use placewright::device::KernelRegistry;
use placewright::device::PhysicalDevice;
use placewright::device::SimpleDevice;
use placewright::names::DeviceName;

/// TensorFlow's nominal memory of a CPU.
const NOMINAL_MEMORY_BYTES: u64 = 256 << 20;

/// A device under construction: rates of one CPU thread and 1 GiB of memory, unless set otherwise.
#[derive(Debug)]
pub(crate) struct FakeDevice {
    attributes: DeviceAttributes,
    rates: DeviceRates,
    capacity_bytes: u64,
    chip: Option<&'static str>,
}

impl FakeDevice {
    /// Creates a device of this type, which may differ from the type in its name.
    ///
    /// # Panics
    /// If the name is malformed.
    pub(crate) fn new(name: &str, device_type: &str) -> Self {
        let name = DeviceName::parse_full(name).expect("tests spell names well");
        Self {
            attributes: DeviceAttributes::new(&name, device_type, NOMINAL_MEMORY_BYTES),
            rates: DeviceRates::default_cpu(1),
            capacity_bytes: 1 << 30,
            chip: None,
        }
    }

    /// Sets the rates.
    #[must_use]
    pub(crate) fn with_rates(mut self, rates: DeviceRates) -> Self {
        self.rates = rates;
        self
    }

    /// Sets the capacity.
    #[must_use]
    pub(crate) fn with_capacity_bytes(mut self, bytes: u64) -> Self {
        self.capacity_bytes = bytes;
        self
    }

    /// Sets the chip.
    #[must_use]
    pub(crate) fn with_chip(mut self, chip: &'static str) -> Self {
        self.chip = Some(chip);
        self
    }

    /// Sets the description.
    #[must_use]
    pub(crate) fn with_description(mut self, text: &str) -> Self {
        text.clone_into(&mut self.attributes.physical_description);
        self
    }

    /// Returns the device in the form that sets and managers take.
    ///
    /// # Panics
    /// If the name lacks parts.
    pub(crate) fn shared(self) -> Arc<dyn Device> {
        let device = SimpleDevice::new(self.attributes).expect("tests spell names well");
        let mut device = device.with_memory_capacity_bytes(self.capacity_bytes);
        if let Some(chip) = self.chip {
            device = device.with_chip(chip);
        }
        Arc::new(device.with_rates(self.rates))
    }
}

/// Creates a limited number of fake devices, named after a type.
#[derive(Debug)]
pub(crate) struct FakeFactory {
    /// The type that `device_count` limits.
    pub(crate) device_type: String,
    /// The type in the names of the created devices.
    pub(crate) named: String,
    /// Number of devices; `None` means that the driver is absent.
    pub(crate) n_physical: Option<u32>,
    /// Whether `device_count` is an exact number, as for CPU, rather than an upper bound.
    pub(crate) is_exact: bool,
}

impl FakeFactory {
    /// Creates a factory of `n` devices; `device_count` is an upper bound.
    pub(crate) fn of(device_type: &str, n: u32) -> Self {
        Self {
            device_type: device_type.to_owned(),
            named: device_type.to_owned(),
            n_physical: Some(n),
            is_exact: false,
        }
    }

    fn present(&self) -> Result<u32, DeviceError> {
        self.n_physical.ok_or_else(|| DeviceError::Absent {
            device_type: self.device_type.clone(),
            what: "libfake.so not found".to_owned(),
            remedy: "set LD_LIBRARY_PATH".to_owned(),
        })
    }
}

impl DeviceFactory for FakeFactory {
    fn list_physical(&self) -> Result<Vec<PhysicalDevice>, DeviceError> {
        let physical = |index| PhysicalDevice {
            name: format!("/physical_device:{}:{index}", self.named),
            description: String::new(),
        };
        Ok((0..self.present()?).map(physical).collect())
    }

    /// Returns the number of the device, and nothing for a CPU.
    fn details(&self, index: usize) -> Result<DeviceDetails, DeviceError> {
        let mut details = DeviceDetails::new();
        if self.device_type != "CPU" {
            let name = format!("Fake {} {index}", self.device_type);
            details.insert("device_name".to_owned(), name);
        }
        Ok(details)
    }

    fn create(
        &self,
        options: &DeviceOptions,
        prefix: &str,
    ) -> Result<Vec<Arc<dyn Device>>, DeviceError> {
        let present = self.present()?;
        let n = match options.device_count.get(&self.device_type) {
            Some(&wanted) if self.is_exact => wanted,
            Some(&wanted) => wanted.min(present),
            None => present,
        };
        let device = |index| {
            let name = format!("{prefix}/device:{}:{index}", self.named);
            FakeDevice::new(&name, &self.device_type).shared()
        };
        Ok((0..n).map(device).collect())
    }

    fn register_kernels(&self, _: &mut KernelRegistry) {}
}
