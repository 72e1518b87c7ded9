//! The devices of one process.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::PoisonError;
use std::sync::RwLock;
use std::sync::RwLockReadGuard;
use std::sync::RwLockWriteGuard;

use hashbrown::HashMap;
use tracing::warn;

use super::attributes::DeviceAttributes;
use super::error::DeviceError;
use super::set::DeviceSet;
use super::traits::Device;
use crate::trace::targets;

/// The devices of one process, by name (TensorFlow `DeviceMgr` and `DynamicDeviceMgr`). Devices may
/// be added and removed while others use them. Dropping the manager releases the devices; their
/// resources stay as long as they are referenced (TensorFlow's manager clears them, because it owns
/// the devices).
///
/// Each device has four spellings: full, legacy full, local and legacy local. Of several devices
/// with one spelling the last is found, so a local spelling means the last device of that type and
/// index. (A [`super::DeviceSet`] finds the first.)
#[derive(Debug, Default)]
pub struct DeviceManager {
    state: RwLock<State>,
}

#[derive(Debug, Default)]
struct State {
    devices: Vec<Arc<dyn Device>>,
    by_name: HashMap<String, Arc<dyn Device>>,
}

impl DeviceManager {
    /// Creates a manager of these devices.
    pub fn new(devices: impl IntoIterator<Item = Arc<dyn Device>>) -> Self {
        Self {
            state: RwLock::new(State::of(devices.into_iter().collect())),
        }
    }

    /// Creates a manager of the devices of a set.
    pub fn of_set(set: &DeviceSet) -> Self {
        Self::new(set.iter().map(|(_, device)| Arc::clone(device)))
    }

    /// Returns the devices, in the order in which they were added.
    pub fn devices(&self) -> Vec<Arc<dyn Device>> {
        self.read().devices.clone()
    }

    /// Returns the devices' attributes, in the order in which they were added.
    pub fn list_device_attributes(&self) -> Vec<DeviceAttributes> {
        let state = self.read();
        let devices = state.devices.iter();
        devices.map(|device| device.attributes().clone()).collect()
    }

    /// Returns the device with this spelling; the name is not parsed.
    ///
    /// # Errors
    /// [`DeviceError::InvalidArgument`] with the name, and the existing names.
    pub fn lookup(&self, name: &str) -> Result<Arc<dyn Device>, DeviceError> {
        self.read().lookup(name)
    }

    /// Returns the number of devices of a type.
    pub fn n_devices_of_type(&self, device_type: &str) -> usize {
        self.read()
            .devices
            .iter()
            .filter(|device| device.attributes().device_type == device_type)
            .count()
    }

    /// Returns whether there is a device of this incarnation.
    pub fn contains_incarnation(&self, incarnation: u64) -> bool {
        self.read()
            .devices
            .iter()
            .any(|device| device.attributes().incarnation == incarnation)
    }

    /// Returns one line `NAME -> DESCRIPTION` per device that has a description.
    pub fn mapping_text(&self) -> String {
        let mut text = String::new();
        for device in &self.read().devices {
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

    /// Returns the first CPU device of index 0.
    pub fn host_cpu(&self) -> Option<Arc<dyn Device>> {
        self.read().host_cpu().map(Arc::clone)
    }

    /// Drops these containers of resources on every device; with an empty list, each device's
    /// default one. A container that does not exist is ignored; failures are logged.
    pub fn clear_containers(&self, containers: &[&str]) {
        for device in self.devices() {
            let cleared = device.resource_manager().map(|manager| {
                let default = [manager.default_container()];
                let names = if containers.is_empty() {
                    &default[..]
                } else {
                    containers
                };
                names.iter().try_for_each(|name| manager.cleanup(name))
            });
            let problem = match cleared {
                Ok(Ok(())) => continue,
                Ok(Err(error)) => error.to_string(),
                // A device of another process has its resources there.
                Err(_) if !device.is_local() => continue,
                Err(error) => error.to_string(),
            };
            let name = &device.attributes().name;
            warn!(target: targets::SESSION, device = name, problem, "containers were not cleared");
        }
    }

    /// Adds devices, in order. A device that was removed before becomes usable again.
    ///
    /// # Errors
    /// [`DeviceError::InvalidArgument`] for the first whose name is taken; those before it stay.
    pub fn add_devices(
        &self,
        devices: impl IntoIterator<Item = Arc<dyn Device>>,
    ) -> Result<(), DeviceError> {
        let mut state = self.write();
        for device in devices {
            let name = &device.attributes().name;
            let spellings = device.name().mapping_names();
            if spellings
                .iter()
                .any(|name| state.by_name.contains_key(name))
            {
                return Err(DeviceError::InvalidArgument(format!(
                    "a device named {name} already exists; remove it first, or give the new one another name"
                )));
            }
            device.base().mark_added();
            state.add(device);
        }
        Ok(())
    }

    /// Removes devices, all or none. Their users keep them, and get an error at the next run.
    ///
    /// # Errors
    /// [`DeviceError::InvalidArgument`] for a device that is not in the manager, and for the host's
    /// CPU, which cannot be removed.
    pub fn remove_devices(&self, devices: &[Arc<dyn Device>]) -> Result<(), DeviceError> {
        let mut state = self.write();
        state.remove(devices)
    }

    /// Does the same by any of their spellings.
    ///
    /// # Errors
    /// As [`Self::remove_devices`].
    pub fn remove_devices_by_name(&self, names: &[&str]) -> Result<(), DeviceError> {
        let mut state = self.write();
        let devices = names.iter().map(|name| state.lookup(name));
        let devices: Vec<_> = devices.collect::<Result<_, _>>()?;
        state.remove(&devices)
    }

    fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn of(devices: Vec<Arc<dyn Device>>) -> Self {
        let mut state = Self::default();
        for device in devices {
            state.add(device);
        }
        state
    }

    fn add(&mut self, device: Arc<dyn Device>) {
        let name = device.name();
        let spellings = name.mapping_names().into_iter();
        for spelling in spellings.chain(name.local_mapping_names()) {
            self.by_name.insert(spelling, Arc::clone(&device));
        }
        self.devices.push(device);
    }

    fn lookup(&self, name: &str) -> Result<Arc<dyn Device>, DeviceError> {
        self.by_name.get(name).map(Arc::clone).ok_or_else(|| {
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

    fn host_cpu(&self) -> Option<&Arc<dyn Device>> {
        self.devices.iter().find(|device| {
            device.attributes().device_type == "CPU" && device.name().index == Some(0)
        })
    }

    fn remove(&mut self, devices: &[Arc<dyn Device>]) -> Result<(), DeviceError> {
        let is_one_of = |device: &Arc<dyn Device>, others: &[Arc<dyn Device>]| {
            others.iter().any(|other| Arc::ptr_eq(device, other))
        };
        for device in devices {
            let name = &device.attributes().name;
            let problem = if !is_one_of(device, &self.devices) {
                "is not one of this manager's devices"
            } else if self
                .host_cpu()
                .is_some_and(|host| Arc::ptr_eq(host, device))
            {
                "is the host's CPU, which cannot be removed"
            } else {
                continue;
            };
            return Err(DeviceError::InvalidArgument(format!("{name} {problem}")));
        }
        let left = std::mem::take(&mut self.devices);
        let (removed, left): (Vec<_>, Vec<_>) = left
            .into_iter()
            .partition(|device| is_one_of(device, devices));
        for device in removed {
            device.base().mark_removed();
        }
        // Short names of a removed device mean the last of the others again.
        *self = Self::of(left);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::SimpleDevice;
    use crate::names::DeviceName;

    fn device(job: &str, device_type: &str, index: u32) -> Arc<dyn Device> {
        let name = DeviceName::full(job, 0, 0, device_type, index);
        let attributes = DeviceAttributes::new(&name, device_type, 1 << 20);
        Arc::new(SimpleDevice::new(attributes).unwrap())
    }

    fn is_same(found: &Arc<dyn Device>, expected: &Arc<dyn Device>) -> bool {
        Arc::ptr_eq(found, expected)
    }

    #[test]
    fn short_names_mean_the_remaining_device_again() {
        let (first, second) = (device("a", "TOY", 0), device("b", "TOY", 0));
        let manager = DeviceManager::new([Arc::clone(&first), Arc::clone(&second)]);
        assert!(is_same(&manager.lookup("/device:TOY:0").unwrap(), &second));
        manager
            .remove_devices(std::slice::from_ref(&second))
            .unwrap();
        assert!(is_same(&manager.lookup("/device:TOY:0").unwrap(), &first));
        let full = "/job:b/replica:0/task:0/device:TOY:0";
        let error = manager.lookup(full).unwrap_err().to_string();
        assert!(error.contains(full) && error.contains("/job:a/"), "{error}");
        assert!(second.is_removed() && !first.is_removed());
    }

    #[test]
    fn devices_are_removed_all_or_none() {
        let host = device("a", "CPU", 0);
        let (toy, stranger) = (device("a", "TOY", 0), device("a", "TOY", 1));
        let manager = DeviceManager::new([Arc::clone(&host), Arc::clone(&toy)]);
        for other in [&stranger, &host] {
            let both = [Arc::clone(&toy), Arc::clone(other)];
            let error = manager.remove_devices(&both).unwrap_err().to_string();
            assert!(error.starts_with(&other.attributes().name), "{error}");
        }
        assert!(
            manager
                .remove_devices_by_name(&["/device:TOY:0", "/device:TOY:9"])
                .is_err()
        );
        assert!(!toy.is_removed());
        assert_eq!(manager.devices().len(), 2);
        // One that is named twice goes once.
        manager
            .remove_devices_by_name(&["/device:TOY:0", &toy.attributes().name])
            .unwrap();
        assert!(toy.is_removed());
        assert_eq!(manager.devices().len(), 1);
    }

    #[test]
    fn a_device_that_is_added_again_can_be_used_again() {
        let (host, toy) = (device("a", "CPU", 0), device("a", "TOY", 0));
        let manager = DeviceManager::new([host, Arc::clone(&toy)]);
        let again = || manager.add_devices([Arc::clone(&toy)]);
        assert!(again().unwrap_err().to_string().contains("already exists"));
        manager.remove_devices(std::slice::from_ref(&toy)).unwrap();
        assert!(toy.is_removed());
        again().unwrap();
        assert!(!toy.is_removed());
        assert!(is_same(&manager.lookup("/device:TOY:0").unwrap(), &toy));
    }
}
