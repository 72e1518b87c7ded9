//! Describes the devices of this process as a cluster file.

use hashbrown::HashMap;
use toml::Spanned;

use super::build::ClusterSpec;
use super::error::ClusterSpecError;
use super::file::ClusterFile;
use super::file::Connection;
use super::file::DeviceEntry;
use super::file::HostEntry;
use super::file::LinkProfile;
use super::file::Profile;
use super::quantity::Quantity;
use crate::cost::Calibration;
use crate::cost::Calibrations;
use crate::device::Device;
use crate::device::DeviceRates;
use crate::device::DeviceSet;
use crate::device::HostLink;
use crate::device::LinkRates;
use crate::names::DeviceName;

/// Stands for a copy whose time does not grow with its size.
const UNLIMITED_BYTES_PER_S: f64 = 1e300;

impl ClusterSpec {
    /// Describes devices as a cluster: their rates and links, and what `calibrations` knows of them
    /// and their kernels. Plans for it cost what they cost on the devices themselves, except
    /// for what runs have taught of single kernels.
    ///
    /// # Errors
    /// [`ClusterSpecError::Invalid`] if there is no device of type CPU, or a device states a rate
    /// that is none.
    pub fn of_devices(
        devices: &DeviceSet,
        calibrations: Option<&Calibrations>,
    ) -> Result<Self, ClusterSpecError> {
        let measured = calibrations.map(|calibrations| calibrations.apply(devices).0);
        let devices = measured.as_ref().unwrap_or(devices);
        let mut export = Export::default();
        export.add_devices(devices, calibrations);
        export.add_connections(devices);
        Self::of_file(export.file)
    }

    /// Returns the cluster as a file, of which [`Self::parse`] makes an equal one. Changes are not
    /// in it.
    pub fn to_toml(&self) -> String {
        let text = toml::to_string(self.file());
        text.expect("a cluster file has only tables, lists, strings and numbers")
    }
}

/// Writes a cluster file.
#[derive(Default)]
struct Export {
    file: ClusterFile,
    links: Vec<(HostLink, String)>,
    profiles: Vec<(Profile, String)>,
}

impl Export {
    fn add_devices(&mut self, devices: &DeviceSet, calibrations: Option<&Calibrations>) {
        let mut hosts: Vec<(DeviceName, HostEntry)> = Vec::new();
        let mut next_index: HashMap<DeviceName, u32> = HashMap::new();
        for (id, device) in devices.iter() {
            let name = device.base().name();
            let calibration = calibrations.and_then(|all| all.find(&**device).ok().flatten());
            let profile = self.profile(&**device, devices.rates(id), calibration.as_deref());
            let host = name.address_space();
            let position = hosts.iter().position(|(known, _)| *known == host);
            let position = position.unwrap_or_else(|| {
                let entry = HostEntry {
                    job: name.job.as_deref().map(str::to_owned),
                    replica: name.replica.unwrap_or(0),
                    task: name.task,
                    processors: n_processors(devices),
                    ..HostEntry::default()
                };
                hosts.push((host, entry));
                hosts.len() - 1
            });
            let of_type = DeviceName {
                index: None,
                ..name.clone()
            };
            let next = next_index.entry(of_type).or_insert(0);
            let index = name.index.unwrap_or(0);
            hosts[position].1.devices.push(DeviceEntry {
                index: (index != *next).then_some(index),
                ..DeviceEntry::new(spanned(profile))
            });
            *next = index.saturating_add(1);
        }
        self.file.hosts = hosts.into_iter().map(|(_, host)| host).collect();
        let profiles = self.profiles.drain(..);
        self.file.profiles = profiles.map(|(profile, name)| (name, profile)).collect();
    }

    /// Returns the name of the profile of a device. Equal devices share it.
    fn profile(
        &mut self,
        device: &dyn Device,
        rates: DeviceRates,
        calibration: Option<&Calibration>,
    ) -> String {
        let attributes = device.attributes();
        let link = self.link(rates.host_link);
        let (copies, host_link) = match attributes.has_one_memory() {
            true => (Some(link), None),
            false => (None, Some(link)),
        };
        let description = &attributes.physical_description;
        let kernels = calibration.map(|calibration| calibration.kernels.clone());
        let profile = Profile {
            description: (!description.is_empty()).then(|| description.clone()),
            f32: Some(Quantity::new(rates.flops_per_s)),
            queues: (rates.queues != 1).then_some(rates.queues),
            host_link: host_link.map(spanned),
            copies: copies.map(spanned),
            chip: device.chip().map(str::to_owned),
            threads: device.chip_threads().and_then(|n| u32::try_from(n).ok()),
            fused_row_min: calibration.and_then(|calibration| calibration.fused_row_min),
            cold: calibration.and_then(|calibration| calibration.cold_ns.map(Quantity::new)),
            kernels: kernels.unwrap_or_default(),
            ..Profile::new(
                spanned(attributes.device_type.clone()),
                Quantity::new(to_f64(device.memory_capacity_bytes())),
                spanned(Quantity::new(rates.memory_bytes_per_s)),
                Quantity::new(rates.launch_ns),
            )
        };
        let mut known = self.profiles.iter();
        if let Some((_, name)) = known.find(|(known, _)| *known == profile) {
            return name.clone();
        }
        let device_type = attributes.device_type.to_lowercase();
        let name = format!("{device_type}-{}", self.profiles.len());
        self.profiles.push((profile, name.clone()));
        name
    }

    /// Returns the name of a link with these rates.
    fn link(&mut self, rates: HostLink) -> String {
        let mut known = self.links.iter();
        if let Some((_, name)) = known.find(|(known, _)| *known == rates) {
            return name.clone();
        }
        let name = format!("link-{}", self.links.len());
        let bandwidth = |link: LinkRates| {
            let bytes_per_s = (1e9 / link.ns_per_byte).min(UNLIMITED_BYTES_PER_S);
            spanned(Quantity::new(bytes_per_s))
        };
        let (there, back) = (rates.from_host, rates.to_host);
        let profile = LinkProfile {
            bandwidth: (there.ns_per_byte > 0.0).then(|| bandwidth(there)),
            back_latency: (back.latency_ns != there.latency_ns)
                .then(|| Quantity::new(back.latency_ns)),
            back_bandwidth: (back.ns_per_byte != there.ns_per_byte).then(|| bandwidth(back)),
            half_duplex: rates.is_half_duplex,
            ..LinkProfile::new(Quantity::new(there.latency_ns))
        };
        self.links.push((rates, name.clone()));
        self.file.links.insert(name.clone(), profile);
        name
    }

    fn add_connections(&mut self, devices: &DeviceSet) {
        let links: Vec<_> = devices.links().collect();
        let find = |source, destination| {
            let mut links = links.iter();
            links.find(|link| (link.0, link.1) == (source, destination))
        };
        for &(source, destination, there) in &links {
            let back = find(destination, source);
            if back.is_some() && destination < source {
                continue;
            }
            let (Some(first), Some(second)) = (devices.get(source), devices.get(destination))
            else {
                continue;
            };
            let link = self.link(HostLink {
                from_host: there,
                to_host: back.map_or(there, |&(_, _, back)| back),
                is_half_duplex: false,
            });
            let names = [first, second].map(|device| device.attributes().name.clone());
            self.file.connections.push(Connection {
                between: spanned(names),
                link: spanned(link),
            });
        }
    }
}

/// Nothing refers to the places of what this module writes.
fn spanned<T>(value: T) -> Spanned<T> {
    Spanned::new(0..0, value)
}

fn n_processors(devices: &DeviceSet) -> Option<u32> {
    let of_machine = || std::thread::available_parallelism().ok();
    let known = devices.n_processors();
    u32::try_from(known.or_else(|| Some(of_machine()?.get()))?).ok()
}

#[expect(
    clippy::cast_precision_loss,
    reason = "memories are far smaller than 2^53 bytes"
)]
fn to_f64(bytes: u64) -> f64 {
    bytes as f64
}
