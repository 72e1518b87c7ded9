//! The devices that one graph may use.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use hashbrown::HashMap;

use crate::device::error::DeviceError;
use crate::device::rates::DeviceRates;
use crate::device::rates::LinkRates;
use crate::device::renamed::RenamedDevice;
use crate::device::topology::Topology;
use crate::device::traits::Device;
use crate::names::DeviceId;
use crate::names::DeviceName;
use crate::names::NameArena;

/// Priority of a device type that no factory of the registry creates.
pub const UNREGISTERED_TYPE_PRIORITY: i32 = -1;

/// Devices, in the order in which they were added; [`DeviceId`] is the position. TensorFlow
/// `DeviceSet`.
///
/// Created by [`super::FactoryRegistry::create_devices`], with the priorities of its factories, or
/// from existing devices. Immutable once shared.
#[derive(Clone, Default)]
pub struct DeviceSet {
    devices: Vec<Arc<dyn Device>>,
    /// Canonical and legacy spellings.
    spellings: NameArena,
    /// The device of each spelling.
    spelled: Vec<DeviceId>,
    type_priorities: BTreeMap<String, i32>,
    client_device: Option<DeviceId>,
    /// Rates of devices that differ from what they state; may have fewer entries than there are
    /// devices.
    rates: Vec<Option<DeviceRates>>,
    /// Links between two devices, by source and destination.
    links: BTreeMap<(DeviceId, DeviceId), LinkRates>,
    topology: Option<Arc<Topology>>,
    n_processors: Option<usize>,
    is_uncontended: bool,
}

impl DeviceSet {
    /// Creates a set of these devices, whose types have no priority yet.
    pub fn new(devices: impl IntoIterator<Item = Arc<dyn Device>>) -> Self {
        let mut set = Self::default();
        for device in devices {
            set.add(device);
        }
        set
    }

    /// Sets the priority of each device type: larger is preferred.
    #[must_use]
    pub fn with_type_priorities<S: Into<String>>(
        mut self,
        priorities: impl IntoIterator<Item = (S, i32)>,
    ) -> Self {
        self.type_priorities.extend(
            priorities
                .into_iter()
                .map(|(device_type, priority)| (device_type.into(), priority)),
        );
        self
    }

    /// Sets the priorities of device types to those of another set.
    #[must_use]
    pub fn with_type_priorities_of(mut self, other: &Self) -> Self {
        self.type_priorities.clone_from(&other.type_priorities);
        self
    }

    /// Returns the same devices under the same names, with their own resources and stateful
    /// kernels.
    ///
    /// # Errors
    /// [`DeviceError::InvalidArgument`] for a device without a full name.
    pub fn isolated(&self) -> Result<Self, DeviceError> {
        let devices = self.iter().map(|(_, device)| {
            let task = device.name().address_space().to_string();
            let isolated = RenamedDevice::isolated(&task, Arc::clone(device))?;
            Ok(Arc::new(isolated) as Arc<dyn Device>)
        });
        let devices: Vec<_> = devices.collect::<Result<_, DeviceError>>()?;
        let mut set = Self::new(devices).with_type_priorities_of(self);
        set.client_device = self.client_device;
        set.rates.clone_from(&self.rates);
        set.links.clone_from(&self.links);
        set.topology.clone_from(&self.topology);
        set.n_processors = self.n_processors;
        Ok(set)
    }

    /// Sets the rates of a device, instead of those that it states: for example measured ones. They
    /// belong to the set, not to the device, which other sessions may share.
    ///
    /// # Panics
    /// If there is no such device.
    #[must_use]
    pub fn with_rates(mut self, device: DeviceId, rates: DeviceRates) -> Self {
        assert!(device.index() < self.len(), "the device is one of the set");
        self.set_rates(device, Some(rates));
        self
    }

    fn set_rates(&mut self, device: DeviceId, rates: Option<DeviceRates>) {
        if self.rates.len() <= device.index() {
            self.rates.resize(device.index() + 1, None);
        }
        self.rates[device.index()] = rates;
    }

    /// Returns the rates of a device from which costs are computed: those of
    /// [`Self::with_rates`], otherwise those that the device states.
    ///
    /// # Panics
    /// If there is no such device.
    pub fn rates(&self, device: DeviceId) -> DeviceRates {
        let stated = || self.devices[device.index()].rates();
        let own = self.rates.get(device.index());
        own.copied().flatten().unwrap_or_else(stated)
    }

    /// Sets the cost of transfers from one device to another that do not pass through host memory.
    /// Other transfers cost what the links between the devices and the host cost.
    ///
    /// # Panics
    /// If there is no such device.
    #[must_use]
    pub fn with_link(mut self, source: DeviceId, destination: DeviceId, link: LinkRates) -> Self {
        assert!(
            source.max(destination).index() < self.len(),
            "both devices are in the set"
        );
        self.links.insert((source, destination), link);
        self
    }

    /// Returns the links of [`Self::with_link`]: source, destination, link, in this order.
    pub fn links(&self) -> impl Iterator<Item = (DeviceId, DeviceId, LinkRates)> {
        let links = self.links.iter();
        links.map(|(&(source, destination), &link)| (source, destination, link))
    }

    /// Sets how the devices of several hosts are connected. The links of [`Self::with_link`] take
    /// precedence.
    ///
    /// # Panics
    /// If it does not have one entry per device, or names a host that it does not have.
    #[must_use]
    pub fn with_topology(mut self, topology: Topology) -> Self {
        assert_eq!(
            topology.devices.len(),
            self.len(),
            "a topology has an entry per device"
        );
        let n_hosts = topology.hosts.len();
        let mut devices = topology.devices.iter();
        assert!(
            devices.all(|device| (device.host as usize) < n_hosts),
            "each device is at a host"
        );
        self.topology = Some(Arc::new(topology));
        self
    }

    /// Returns how the devices of several hosts are connected, if it is set.
    pub fn topology(&self) -> Option<&Arc<Topology>> {
        self.topology.as_ref()
    }

    /// Lets transfers not slow each other down, as most published schedulers assume. Otherwise each
    /// link carries one transfer at a time.
    #[must_use]
    pub fn without_contention(mut self) -> Self {
        self.is_uncontended = true;
        self
    }

    /// Returns whether transfers do not slow each other down.
    pub fn is_uncontended(&self) -> bool {
        self.is_uncontended
    }

    /// Sets the number of processors of the host, which devices with threads share; by default that
    /// of this machine.
    #[must_use]
    pub fn with_processors(mut self, n_processors: usize) -> Self {
        self.n_processors = Some(n_processors);
        self
    }

    /// Returns the number of [`Self::with_processors`].
    pub fn n_processors(&self) -> Option<usize> {
        self.n_processors
    }

    /// Sets the device that holds the client's values.
    ///
    /// # Panics
    /// If there is no such device.
    #[must_use]
    pub fn with_client_device(mut self, device: DeviceId) -> Self {
        assert!(
            device.index() < self.len(),
            "the client device is one of the set"
        );
        self.client_device = Some(device);
        self
    }

    /// Adds a device. If two devices have the same name, lookups find the first.
    pub fn add(&mut self, device: Arc<dyn Device>) -> DeviceId {
        let id = DeviceId(u32::try_from(self.devices.len()).expect("far fewer than 2^32 devices"));
        for name in device.name().mapping_names() {
            let (_, is_new) = self.spellings.insert(&name).expect("far fewer than 4 GiB");
            if is_new {
                self.spelled.push(id);
            }
        }
        self.devices.push(device);
        id
    }

    /// Adds all devices of another set, with their rates and links in that set. Returns the id of
    /// the first one.
    pub(crate) fn add_all(&mut self, other: &Self) -> DeviceId {
        let first = DeviceId(u32::try_from(self.len()).expect("far fewer than 2^32 devices"));
        for (id, device) in other.iter() {
            let added = self.add(Arc::clone(device));
            self.set_rates(added, other.rates.get(id.index()).copied().flatten());
        }
        let moved = |id: DeviceId| DeviceId(first.0 + id.0);
        for (source, destination, link) in other.links() {
            let key = (moved(source), moved(destination));
            self.links.insert(key, link);
        }
        first
    }

    /// Returns the number of devices.
    pub fn len(&self) -> usize {
        self.devices.len()
    }

    /// Returns whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.devices.is_empty()
    }

    /// Returns the device with this id.
    pub fn get(&self, id: DeviceId) -> Option<&Arc<dyn Device>> {
        self.devices.get(id.index())
    }

    /// Returns all devices with their ids.
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

    /// Returns the device with exactly this name: its full name, canonical or legacy. Partial,
    /// local and reordered names find nothing; see [`Self::find_matching`].
    pub fn find_by_name(&self, name: &str) -> Option<DeviceId> {
        let spelling = self.spellings.find(name)?;
        Some(self.spelled[spelling as usize])
    }

    /// Returns the devices that a possibly partial name matches, in the order in which they were
    /// added.
    pub fn find_matching(&self, spec: &DeviceName) -> Vec<DeviceId> {
        self.iter()
            .filter(|(_, device)| spec.matches(device.name()))
            .map(|(id, _)| id)
            .collect()
    }

    /// Returns the devices of a type (their attribute, not their name), in the order in which they
    /// were added.
    pub fn of_type(&self, device_type: &str) -> Vec<DeviceId> {
        self.iter()
            .filter(|(_, device)| device.attributes().device_type == device_type)
            .map(|(id, _)| id)
            .collect()
    }

    /// Returns the number of each device's chip: devices with the same chip ([`Device::chip`]) have
    /// the number of the first of them, all others their own.
    pub fn chips(&self) -> Vec<u32> {
        let mut first_of_chip: HashMap<&str, u32> = HashMap::new();
        self.iter()
            .map(|(id, device)| match device.chip() {
                Some(chip) => *first_of_chip.entry(chip).or_insert(id.0),
                None => id.0,
            })
            .collect()
    }

    /// Returns the device that holds the client's values, if it is set.
    pub fn client_device(&self) -> Option<DeviceId> {
        self.client_device
    }

    /// Returns the priority of a device type: larger is preferred; [`UNREGISTERED_TYPE_PRIORITY`]
    /// if no factory creates it.
    pub fn type_priority(&self, device_type: &str) -> i32 {
        self.type_priorities
            .get(device_type)
            .copied()
            .unwrap_or(UNREGISTERED_TYPE_PRIORITY)
    }

    /// Returns all devices, most preferred first: by the priority of the type, then by name as a
    /// string (`GPU:10` before `GPU:2`).
    pub fn prioritized_devices(&self) -> Vec<(DeviceId, i32)> {
        let mut devices: Vec<_> = self
            .iter()
            .map(|(id, device)| (id, self.type_priority(&device.attributes().device_type)))
            .collect();
        self.sort_by_priority(&mut devices);
        devices
    }

    /// Returns the distinct device types, most preferred first: by priority, then by name.
    pub fn prioritized_types(&self) -> Vec<&str> {
        let mut types: Vec<&str> = self
            .devices
            .iter()
            .map(|device| device.attributes().device_type.as_str())
            .collect();
        types.sort_unstable();
        types.dedup();
        types.sort_by_key(|device_type| Reverse(self.type_priority(device_type)));
        types
    }

    /// Sorts (device, priority) pairs: larger priority first, then larger priority of the type,
    /// then by name as a string.
    pub fn sort_by_priority(&self, devices: &mut [(DeviceId, i32)]) {
        devices.sort_by_cached_key(|&(id, priority)| {
            let attributes = self.devices[id.index()].attributes();
            (
                Reverse(priority),
                Reverse(self.type_priority(&attributes.device_type)),
                attributes.name.clone(),
            )
        });
    }

    /// Sorts (type, priority) pairs: larger priority first, then larger priority of the type, then
    /// by name.
    pub fn sort_types_by_priority<S: AsRef<str>>(&self, types: &mut [(S, i32)]) {
        types.sort_by(|(a, x), (b, y)| {
            let (a, b) = (a.as_ref(), b.as_ref());
            y.cmp(x)
                .then_with(|| self.type_priority(b).cmp(&self.type_priority(a)))
                .then_with(|| a.cmp(b))
        });
    }
}

impl fmt::Debug for DeviceSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.devices.iter().map(|device| &device.attributes().name))
            .finish()
    }
}
