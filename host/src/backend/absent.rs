//! Device types for which this build has no backend: a factory that reports what is missing and
//! what to do.
//!
//! The report is returned wherever a device of the type is requested.

use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;

use crate::device::Device;
use crate::device::DeviceDetails;
use crate::device::DeviceError;
use crate::device::DeviceFactory;
use crate::device::DeviceOptions;
use crate::device::KernelRegistry;
use crate::device::PhysicalDevice;
use crate::device::pci_devices;
use crate::device::pci_numa_node;

/// A placeholder for the factory of a device type that a build lacks
/// ([`crate::device::FactoryRegistry::register_placeholder`]).
#[derive(Debug, Clone)]
pub struct AbsentDeviceFactory {
    device_type: String,
    what: String,
    remedy: String,
    /// The system folder, if cards on its bus could be devices of this type.
    cards_of: Option<PathBuf>,
}

/// Classes of cards that could be GPUs: display controllers, accelerators.
const GPU_CLASSES: [u32; 2] = [0x03, 0x12];

/// Vendors of GPUs for compute: NVIDIA, AMD. Most cards of other vendors only show the console of a
/// server.
const GPU_VENDORS: [u32; 2] = [0x10de, 0x1002];

impl AbsentDeviceFactory {
    /// Creates a factory for a type whose devices cannot be created because `what` is missing.
    /// `remedy` tells the user what to do. Both are parts of a sentence: `this build has no backend
    /// for GPUs`.
    pub fn new(
        device_type: impl Into<String>,
        what: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            device_type: device_type.into(),
            what: what.into(),
            remedy: remedy.into(),
            cards_of: None,
        }
    }

    /// Also names the cards on the PCI bus that could be GPUs. `root` is the system folder.
    pub(super) fn with_gpus_of(mut self, root: impl Into<PathBuf>) -> Self {
        self.cards_of = Some(root.into());
        self
    }

    /// Creates a factory for a type for which this build has no backend.
    pub(super) fn no_backend(device_type: &str, kind: &str) -> Self {
        Self::new(
            device_type,
            format!("this build has no backend for {kind}"),
            format!(
                "use CPU devices, or register a device factory for {device_type} (`Registry::with`)"
            ),
        )
    }

    /// Does the same for a type whose backend is behind a cargo feature.
    pub(super) fn no_feature(device_type: &str, kind: &str, feature: &str) -> Self {
        Self::new(
            device_type,
            format!("this build has no backend for {kind}"),
            format!("use CPU devices, or build `placewright` with its cargo feature `{feature}`"),
        )
    }

    fn absent<T>(&self) -> Result<T, DeviceError> {
        Err(DeviceError::Absent {
            device_type: self.device_type.clone(),
            what: self.what.clone()
                + &self
                    .cards_of
                    .as_deref()
                    .map_or_else(String::new, undriven_cards),
            remedy: self.remedy.clone(),
        })
    }
}

impl DeviceFactory for AbsentDeviceFactory {
    fn list_physical(&self) -> Result<Vec<PhysicalDevice>, DeviceError> {
        self.absent()
    }

    fn details(&self, _: usize) -> Result<DeviceDetails, DeviceError> {
        self.absent()
    }

    fn create(&self, _: &DeviceOptions, _: &str) -> Result<Vec<Arc<dyn Device>>, DeviceError> {
        self.absent()
    }

    fn register_kernels(&self, _: &mut KernelRegistry) {}
}

/// Returns the addresses of cards without a driver, as a part of a sentence. If the bus cannot be
/// read, returns an empty string: the message then does not mention cards.
pub(super) fn undriven_cards(root: &Path) -> String {
    let found = pci_devices(root, &GPU_CLASSES).unwrap_or_default();
    let gpus = found
        .iter()
        .filter(|card| GPU_VENDORS.contains(&card.vendor));
    let places = gpus.filter_map(|card| {
        let node = pci_numa_node(root, &card.address).ok()?;
        Some(format!("{} on NUMA node {node}", card.address))
    });
    let places: Vec<_> = places.collect();
    if places.is_empty() {
        return String::new();
    }
    format!(", such as the one at PCI address {}", places.join(", "))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn cards_without_a_driver_are_named_with_their_place() {
        let root = tempfile::tempdir().unwrap();
        let said = || {
            let absent = AbsentDeviceFactory::no_backend("GPU", "GPUs").with_gpus_of(root.path());
            absent.list_physical().unwrap_err().to_string()
        };
        assert!(!said().contains("PCI"), "{}", said());
        for (address, vendor, class, node) in [
            ("0000:3b:00.0", "0x10de", "0x030200", "1"),
            ("0000:5e:00.0", "0x1002", "0x120000", "-1"),
            ("0000:00:02.0", "0x1a03", "0x030000", "0"), // the console of a server
            ("0000:00:1f.0", "0x10de", "0x060100", "0"), // a bridge
        ] {
            let folder = root.path().join("bus/pci/devices").join(address);
            fs::create_dir_all(&folder).unwrap();
            for (file, text) in [("vendor", vendor), ("class", class), ("numa_node", node)] {
                fs::write(folder.join(file), text).unwrap();
            }
        }
        let cards = "0000:3b:00.0 on NUMA node 1, 0000:5e:00.0 on NUMA node 0;";
        assert!(said().contains(cards), "{}", said());
        assert!(!said().contains("0000:00"), "{}", said());
    }
}
