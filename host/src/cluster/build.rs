//! Makes devices, links and costs of a cluster file.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use hashbrown::HashMap;
use hashbrown::HashSet;
use toml::Spanned;

use super::catalogue;
use super::changes;
use super::changes::Changes;
use super::costs::ClusterCosts;
use super::costs::ProfileCosts;
use super::device::PaperDevice;
use super::error::ClusterSpecError;
use super::error::Place;
use super::file::ClusterFile;
use super::file::DeviceEntry;
use super::file::Forwarding;
use super::file::HostEntry;
use super::file::LinkProfile;
use super::file::Profile;
use crate::cost::Calibration;
use crate::cost::CostSource;
use crate::cost::KernelCosts;
use crate::cost::MeasuredKernel;
use crate::device::Device;
use crate::device::DeviceAttributes;
use crate::device::DeviceRates;
use crate::device::DeviceSet;
use crate::device::HostLink;
use crate::device::KernelRegistry;
use crate::device::LinkRates;
use crate::device::Port;
use crate::device::Topology;
use crate::device::TopologyDevice;
use crate::device::TopologyHost;
use crate::names::DeviceName;

/// Larger files are no clusters.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// More devices or hosts are refused: policies get a matrix of link domains.
const DEVICES_MAX: usize = 4096;

/// Copies within host memory, of devices that state none.
const COPIES: LinkRates = LinkRates {
    latency_ns: 1_000.0,
    ns_per_byte: 0.1,
};

/// Preference of device types whose profile states none, as TensorFlow's factories have it.
const PRIORITIES: [(&str, i32); 4] = [("TPU", 220), ("GPU", 210), ("SYCL", 200), ("CPU", 60)];
const PRIORITY_OF_OTHERS: i32 = 150;

/// A machine on paper.
#[derive(Debug, Clone)]
pub struct ClusterSpec {
    name: Option<String>,
    is_pipelined: bool,
    hosts: Vec<Host>,
    planned: Vec<Planned>,
    connections: Vec<(DeviceName, DeviceName, HostLink)>,
    file: Arc<ClusterFile>,
    built: Arc<Built>,
}

/// What is made of the rest.
#[derive(Debug)]
struct Built {
    devices: Arc<DeviceSet>,
    costs: Arc<ClusterCosts>,
}

#[derive(Debug, Clone)]
struct Host {
    network: Option<Arc<LinkProfile>>,
    inter_op_threads: Option<u32>,
    processors: Option<u32>,
}

/// A device before it is made.
#[derive(Debug, Clone)]
struct Planned {
    name: DeviceName,
    profile: Arc<Profile>,
    host: usize,
    memory_bytes: u64,
    host_link: Option<Arc<LinkProfile>>,
    copies: HostLink,
    /// Devices of one bus share the link to the host.
    bus: Option<String>,
    network: Option<(u32, Arc<LinkProfile>)>,
    /// By which its kernels take longer.
    factor: f64,
}

impl ClusterSpec {
    /// Reads a cluster file.
    ///
    /// # Errors
    /// [`ClusterSpecError`]; add the path to its message.
    pub fn read(path: &Path) -> Result<Self, ClusterSpecError> {
        let too_large = || {
            io::Error::other(format!(
                "it has more than {} MiB, which no cluster file needs",
                FILE_BYTES_MAX >> 20
            ))
        };
        if fs::metadata(path)?.len() > FILE_BYTES_MAX {
            return Err(too_large().into());
        }
        Self::parse(&fs::read_to_string(path)?)
    }

    /// Parses a cluster file.
    ///
    /// # Errors
    /// [`ClusterSpecError::Invalid`], which names the line.
    pub fn parse(text: &str) -> Result<Self, ClusterSpecError> {
        let file: ClusterFile =
            toml::from_str(text).map_err(|error| ClusterSpecError::Invalid {
                place: Place::of(text, error.span()),
                problem: error.message().to_owned(),
            })?;
        Reader {
            text,
            file: &Arc::new(file),
        }
        .cluster()
    }

    pub(super) fn of_file(file: ClusterFile) -> Result<Self, ClusterSpecError> {
        Reader {
            text: "",
            file: &Arc::new(file),
        }
        .cluster()
    }

    pub(super) fn file(&self) -> &ClusterFile {
        &self.file
    }

    /// Returns the cluster with changes.
    ///
    /// # Errors
    /// [`ClusterSpecError::Change`] if they name a device that does not exist, a factor is not
    /// positive, or no CPU device is left.
    pub fn with_changes(&self, changes: &Changes) -> Result<Self, ClusterSpecError> {
        let mut changed = self.clone();
        let names = |planned: &[Planned], spec: &str| {
            changes::find(spec, planned.iter().map(|device| &device.name))
        };
        for (spec, factor) in &changes.slower {
            if !(factor.is_finite() && *factor > 0.0) {
                return Err(ClusterSpecError::Change(format!(
                    "{spec} cannot take {factor} times as long; the factor is positive"
                )));
            }
            for index in names(&changed.planned, spec)? {
                changed.planned[index].factor *= factor;
            }
        }
        for (spec, bytes) in &changes.memory_bytes {
            for index in names(&changed.planned, spec)? {
                changed.planned[index].memory_bytes = *bytes;
            }
        }
        let mut is_absent = vec![false; changed.planned.len()];
        for spec in &changes.without {
            for index in names(&changed.planned, spec)? {
                is_absent[index] = true;
            }
        }
        let mut absent = is_absent.iter();
        changed.planned.retain(|_| absent.next() != Some(&true));
        let exists = |name: &DeviceName| changed.planned.iter().any(|device| device.name == *name);
        changed
            .connections
            .retain(|(a, b, _)| exists(a) && exists(b));
        changed.build()
    }

    /// Returns the name that the file states.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Returns the devices.
    pub fn devices(&self) -> &Arc<DeviceSet> {
        &self.built.devices
    }

    /// Returns the costs of kernels on the devices, for
    /// [`PlacementOptions`](crate::candidates::PlacementOptions).
    pub fn costs(&self) -> Arc<dyn CostSource> {
        Arc::clone(&self.built.costs) as Arc<dyn CostSource>
    }

    /// Gives the device types of the cluster the kernels of the types that their profiles name.
    pub fn add_kernels(&self, kernels: &mut KernelRegistry) {
        let mut known: Vec<(&str, &str)> = Vec::new();
        for device in &self.planned {
            let to = device.profile.device_type.get_ref().as_str();
            let from = device.profile.kernels_of.as_deref().unwrap_or(to);
            if from != to && !known.contains(&(from, to)) {
                known.push((from, to));
                kernels.mirror(from, to);
            }
        }
    }

    /// Returns the number of threads that execute nodes of devices with threads, if the file states
    /// it: that of the host with the most.
    pub fn inter_op_threads(&self) -> Option<usize> {
        let of_hosts = self.hosts.iter().filter_map(|host| host.inter_op_threads);
        of_hosts.max().map(|n| n as usize)
    }

    fn build(mut self) -> Result<Self, ClusterSpecError> {
        let mut set = DeviceSet::default();
        let mut costs = ClusterCosts::default();
        // Devices with equal costs share them, and so a column of the cost table.
        let mut shared: HashMap<(*const Profile, u64), Option<Arc<dyn KernelCosts>>> =
            HashMap::new();
        let mut priorities: HashMap<&str, i32> = HashMap::new();
        for device in &self.planned {
            let profile = &device.profile;
            let device_type = profile.device_type.get_ref();
            let known = PRIORITIES.iter().find(|(of, _)| of == device_type);
            let default = known.map_or(PRIORITY_OF_OTHERS, |&(_, priority)| priority);
            let priority = profile.priority.unwrap_or(default);
            priorities.insert(device_type, priority);
            let rates = device.rates();
            let mut attributes =
                DeviceAttributes::new(&device.name, device_type.clone(), device.memory_bytes);
            attributes.physical_description = profile.description.clone().unwrap_or_default();
            // The same file makes the same plans.
            attributes.incarnation = 1;
            let invalid = |error: crate::device::DeviceError| ClusterSpecError::Invalid {
                place: Place::default(),
                problem: error.to_string(),
            };
            let chip = profile.chip.as_ref();
            let chip = chip.map(|chip| format!("{chip} of host {}", device.host));
            let threads = profile.threads.map(|n| n as usize);
            let made = PaperDevice::new(attributes, rates).map_err(invalid)?;
            set.add(Arc::new(made.with_chip(chip, threads)) as Arc<dyn Device>);
            let key = (Arc::as_ptr(profile), device.factor.to_bits());
            let of_profile = shared
                .entry(key)
                .or_insert_with(|| kernel_costs(profile, rates, device.factor));
            if let Some(known) = of_profile {
                let name = device.name.to_string();
                costs.of_device.insert(name, Arc::clone(known));
            }
        }
        if set.of_type("CPU").is_empty() {
            return Err(ClusterSpecError::Change(
                "the cluster has no device of type CPU, on which constants and feeds are; add one"
                    .to_owned(),
            ));
        }
        let mut set = set.with_type_priorities(priorities);
        for (first, second, link) in &self.connections {
            let id = |name: &DeviceName| set.find_by_name(&name.to_string());
            if let (Some(first), Some(second)) = (id(first), id(second)) {
                set = set.with_link(first, second, link.from_host);
                set = set.with_link(second, first, link.to_host);
            }
        }
        let n_processors = self.hosts.iter().filter_map(|host| host.processors);
        if let Some(n_processors) = n_processors.max() {
            set = set.with_processors(n_processors as usize);
        }
        if let Some(client) = set.of_type("CPU").first().copied() {
            set = set.with_client_device(client);
        }
        if self.needs_topology() {
            set = set.with_topology(self.topology());
        }
        self.built = Arc::new(Built {
            devices: Arc::new(set),
            costs: Arc::new(costs),
        });
        Ok(self)
    }

    /// Whether there is more than one host to which each device has a link of its own.
    fn needs_topology(&self) -> bool {
        let is_plain = |device: &Planned| device.network.is_none() && device.bus.is_none();
        self.hosts.len() > 1 || self.is_pipelined || !self.planned.iter().all(is_plain)
    }

    fn topology(&self) -> Topology {
        let mut topology = Topology {
            is_pipelined: self.is_pipelined,
            ..Topology::default()
        };
        let mut names = Vec::new();
        let mut port = |of: &str, to: &str, link: &LinkProfile| {
            let first = names.len();
            let rates = host_link(link);
            match link.half_duplex {
                true => names.push(format!("{of} and {to}")),
                false => names.extend([format!("{of} to {to}"), format!("{to} to {of}")]),
            }
            Port {
                out: rates.to_host,
                into: rates.from_host,
                link_out: to_u32(first),
                link_in: to_u32(names.len() - 1),
            }
        };
        for (index, host) in self.hosts.iter().enumerate() {
            let network = host.network.as_deref();
            topology.hosts.push(TopologyHost {
                network: network.map(|link| port(&self.host_name(index), "network", link)),
            });
        }
        let mut buses: HashMap<(usize, &str), Port> = HashMap::new();
        for device in &self.planned {
            let name = short_name(&device.name, self.hosts.len() > 1);
            let link = device.host_link.as_deref();
            let bus = link.map(|link| match &device.bus {
                None => port(&name, "host", link),
                Some(bus) => *buses
                    .entry((device.host, bus))
                    .or_insert_with(|| port(&format!("{bus} of {name}"), "host", link)),
            });
            let network = device.network.as_ref();
            topology.devices.push(TopologyDevice {
                host: to_u32(device.host),
                bus,
                network: network.map(|(of, link)| (*of, port(&name, "peers", link))),
                in_host: device.copies.to_host,
            });
        }
        topology.link_names = names;
        topology
    }

    fn host_name(&self, host: usize) -> String {
        let of_host = self.planned.iter().find(|device| device.host == host);
        of_host.map_or_else(
            || format!("host {host}"),
            |device| device.name.address_space().to_string(),
        )
    }
}

impl Planned {
    fn rates(&self) -> DeviceRates {
        let profile = &self.profile;
        let part = |of: &Option<Spanned<f64>>| of.as_ref().map_or(1.0, |part| *part.get_ref());
        let stated = [
            profile.f32,
            profile.bf16,
            profile.f16,
            profile.f64,
            profile.int8,
        ];
        let flops_per_s = stated.into_iter().flatten().next();
        let flops_per_s = flops_per_s.map_or(0.0, |rate| rate.value);
        let bytes_per_s = profile.memory_bandwidth.get_ref().value;
        DeviceRates {
            flops_per_s: flops_per_s * part(&profile.compute_efficiency) / self.factor,
            memory_bytes_per_s: bytes_per_s * part(&profile.memory_efficiency) / self.factor,
            launch_ns: profile.launch.value * self.factor,
            is_calibrated: true,
            queues: profile.queues.unwrap_or(1).max(1),
            host_link: match &self.host_link {
                Some(link) => host_link(link),
                None => self.copies,
            },
        }
    }
}

/// Returns the costs of kernels that the rates do not tell.
fn kernel_costs(
    profile: &Profile,
    rates: DeviceRates,
    factor: f64,
) -> Option<Arc<dyn KernelCosts>> {
    if !profile.kernels.is_empty() {
        let slower = |kernel: &MeasuredKernel| MeasuredKernel {
            ns: kernel.ns * factor,
            spread_ns: kernel.spread_ns * factor,
            hot_ns: kernel.hot_ns.map(|ns| ns * factor),
            ..kernel.clone()
        };
        return Some(Arc::new(Calibration {
            kernels: profile.kernels.iter().map(slower).collect(),
            launch_ns: Some(rates.launch_ns),
            fused_row_min: profile.fused_row_min,
            cold_ns: profile.cold.as_ref().map(|cold| cold.value * factor),
            ..Calibration::default()
        }));
    }
    let part = profile.compute_efficiency.as_ref();
    let part = part.map_or(1.0, |part| *part.get_ref());
    let costs = ProfileCosts::of(profile, rates, part / factor)?;
    Some(Arc::new(costs))
}

/// The rates of a link, of which the device is one end.
fn host_link(link: &LinkProfile) -> HostLink {
    let part = link.efficiency.as_ref().map_or(1.0, |part| *part.get_ref());
    let ns_per_byte = |bytes_per_s: f64| 1e9 / (bytes_per_s * part);
    let bandwidth = link.bandwidth.as_ref().map(|rate| rate.get_ref().value);
    let back = link.back_bandwidth.as_ref();
    let back = back.map(|rate| rate.get_ref().value).or(bandwidth);
    HostLink {
        from_host: LinkRates {
            latency_ns: link.latency.value,
            ns_per_byte: bandwidth.map_or(0.0, ns_per_byte),
        },
        to_host: LinkRates {
            latency_ns: link.back_latency.unwrap_or(link.latency).value,
            ns_per_byte: back.map_or(0.0, ns_per_byte),
        },
        is_half_duplex: link.half_duplex,
    }
}

/// `GPU:1`, with the task if there are several hosts.
fn short_name(name: &DeviceName, has_hosts: bool) -> String {
    let full = name.to_string();
    match has_hosts {
        true => full,
        false => full
            .rsplit_once("/device:")
            .map_or(full.clone(), |(_, local)| local.to_owned()),
    }
}

/// Clusters have few devices and links.
fn to_u32(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

/// Checks a file and resolves its names.
struct Reader<'a> {
    text: &'a str,
    file: &'a Arc<ClusterFile>,
}

impl Reader<'_> {
    fn invalid<T>(&self, at: &Spanned<T>, problem: impl Into<String>) -> ClusterSpecError {
        ClusterSpecError::Invalid {
            place: Place::of(self.text, Some(at.span())),
            problem: problem.into(),
        }
    }

    fn cluster(&self) -> Result<ClusterSpec, ClusterSpecError> {
        if self.file.hosts.is_empty() {
            return Err(ClusterSpecError::Invalid {
                place: Place::default(),
                problem: "the cluster has no host; add `[[host]]` with its devices".to_owned(),
            });
        }
        for link in self.file.links.values() {
            self.check_link(link)?;
        }
        for profile in self.file.profiles.values() {
            self.check_profile(profile)?;
        }
        let mut cluster = ClusterSpec {
            name: self.file.name.clone(),
            is_pipelined: self.file.forwarding == Forwarding::Pipelined,
            hosts: Vec::new(),
            planned: Vec::new(),
            connections: Vec::new(),
            file: Arc::clone(self.file),
            built: Arc::new(Built {
                devices: Arc::default(),
                costs: Arc::default(),
            }),
        };
        let mut profiles: HashMap<&str, Arc<Profile>> = HashMap::new();
        let mut next_task: HashMap<(&str, u32), u32> = HashMap::new();
        let mut n_networks = 0;
        let mut names: HashSet<DeviceName> = HashSet::new();
        for entry in &self.file.hosts {
            let n_hosts = self.count(entry.count.as_ref())?;
            let network = entry.network.as_ref();
            let network = network.map(|name| self.link(name)).transpose()?;
            let job = entry.job.as_deref().unwrap_or("localhost");
            let next = next_task.entry((job, entry.replica)).or_insert(0);
            let first = entry.task.unwrap_or(*next);
            *next = first.checked_add(to_u32(n_hosts)).ok_or_else(|| {
                let problem = "tasks are numbers below 2^32; start with a smaller one".to_owned();
                match &entry.count {
                    Some(count) => self.invalid(count, problem),
                    None => ClusterSpecError::Invalid {
                        place: Place::default(),
                        problem,
                    },
                }
            })?;
            let n_of_host: usize = entry.devices.iter().try_fold(0, |sum, device| {
                let n = self.count(device.count.as_ref())?;
                Ok::<_, ClusterSpecError>(n.saturating_add(sum))
            })?;
            let n_devices = n_of_host.saturating_mul(n_hosts);
            if n_devices.saturating_add(cluster.planned.len()) > DEVICES_MAX {
                let counts = entry.devices.iter().map(|device| device.count.as_ref());
                let most = counts.chain([entry.count.as_ref()]).flatten();
                let most = most.max_by_key(|count| *count.get_ref());
                let problem = format!("the cluster has more than {DEVICES_MAX} devices");
                return Err(match most {
                    Some(count) => self.invalid(count, problem),
                    None => ClusterSpecError::Invalid {
                        place: Place::default(),
                        problem,
                    },
                });
            }
            for task in (0..n_hosts).map(|index| first.saturating_add(to_u32(index))) {
                let host = cluster.hosts.len();
                cluster.hosts.push(Host {
                    network: network.clone(),
                    inter_op_threads: entry.inter_op_threads,
                    processors: entry.processors,
                });
                let address = (job, entry.replica, task);
                let added = self.devices(entry, address, host, &mut profiles, &mut n_networks)?;
                for device in added {
                    if !names.insert(device.name.clone()) {
                        return Err(ClusterSpecError::Invalid {
                            place: Place::default(),
                            problem: format!("two devices are named {}", device.name),
                        });
                    }
                    cluster.planned.push(device);
                }
            }
        }
        for connection in &self.file.connections {
            let link = host_link(&*self.link(&connection.link)?);
            let [first, second] = connection.between.get_ref().clone().map(|name| {
                let known = |planned: &&Planned| planned.name.to_string() == name;
                cluster.planned.iter().find(known).ok_or_else(|| {
                    self.invalid(&connection.between, format!("no device is named {name}"))
                })
            });
            let (first, second) = (first?.name.clone(), second?.name.clone());
            if first == second {
                let problem = "a connection is between two devices, not one";
                return Err(self.invalid(&connection.between, problem));
            }
            cluster.connections.push((first, second, link));
        }
        let is_reachable = |host: &Host| host.network.is_some();
        if cluster.hosts.len() > 1 && !cluster.hosts.iter().all(is_reachable) {
            return Err(ClusterSpecError::Invalid {
                place: Place::default(),
                problem: "a host has no `network`, so nothing can be transferred between it and \
                          the others; name a link, such as `network = \"ethernet-100g\"`"
                    .to_owned(),
            });
        }
        cluster.build()
    }

    /// Returns the devices of one host.
    fn devices<'f>(
        &'f self,
        entry: &'f HostEntry,
        (job, replica, task): (&str, u32, u32),
        host: usize,
        profiles: &mut HashMap<&'f str, Arc<Profile>>,
        n_networks: &mut u32,
    ) -> Result<Vec<Planned>, ClusterSpecError> {
        let mut planned = Vec::new();
        let mut n_of_type: HashMap<String, u32> = HashMap::new();
        for device in &entry.devices {
            let name = device.profile.get_ref().as_str();
            let profile = match profiles.get(name) {
                Some(known) => Arc::clone(known),
                None => {
                    let found = Arc::new(self.profile(&device.profile)?.clone());
                    profiles.insert(name, Arc::clone(&found));
                    found
                }
            };
            let device_type = profile.device_type.get_ref().clone();
            let (host_link, copies) = self.links_of(device, &profile)?;
            let network = match device.peer_link.as_ref().or(profile.peer_link.as_ref()) {
                Some(link) if self.count(device.count.as_ref())? > 1 => {
                    *n_networks += 1;
                    Some((*n_networks - 1, self.link(link)?))
                }
                _ => None,
            };
            let memory = device.memory.unwrap_or(profile.memory);
            if let Some(first) = device.index {
                n_of_type.insert(device_type.clone(), first);
            }
            for _ in 0..self.count(device.count.as_ref())? {
                let index = n_of_type.entry(device_type.clone()).or_insert(0);
                planned.push(Planned {
                    name: DeviceName::full(job, replica, task, &device_type, *index),
                    profile: Arc::clone(&profile),
                    host,
                    memory_bytes: to_u64(memory.value),
                    host_link: host_link.clone(),
                    copies,
                    bus: device.bus.clone(),
                    network: network.clone(),
                    factor: 1.0,
                });
                *index = index.saturating_add(1);
            }
        }
        Ok(planned)
    }

    /// Returns the link of a device to its host, and the cost of copies within host memory.
    fn links_of(
        &self,
        device: &DeviceEntry,
        profile: &Profile,
    ) -> Result<(Option<Arc<LinkProfile>>, HostLink), ClusterSpecError> {
        let is_cpu = profile.device_type.get_ref() == "CPU";
        let named = device.link.as_ref().or(profile.host_link.as_ref());
        let copies = match &profile.copies {
            Some(link) => host_link(&*self.link(link)?),
            None => HostLink::same(COPIES),
        };
        match named {
            Some(link) if is_cpu => Err(self.invalid(
                link,
                "a device of type CPU computes in host memory and has no link to it",
            )),
            None if !is_cpu => Err(self.invalid(
                &device.profile,
                "it has no link to its host; name one, such as `link = \"pcie-4-x16\"`",
            )),
            named => {
                let link = named.map(|name| self.link(name)).transpose()?;
                Ok((link, copies))
            }
        }
    }

    fn count(&self, count: Option<&Spanned<u32>>) -> Result<usize, ClusterSpecError> {
        match count {
            None => Ok(1),
            Some(count) if *count.get_ref() == 0 => {
                Err(self.invalid(count, "the count is at least 1; remove the entry instead"))
            }
            Some(count) => Ok(*count.get_ref() as usize),
        }
    }

    fn profile(&self, name: &Spanned<String>) -> Result<&Profile, ClusterSpecError> {
        let known = &catalogue::file().profiles;
        let found = self.file.profiles.get(name.get_ref());
        found.or_else(|| known.get(name.get_ref())).ok_or_else(|| {
            let own = self.file.profiles.keys();
            let all: Vec<&str> = own.chain(known.keys()).map(String::as_str).collect();
            self.invalid(name, unknown("profile", name.get_ref(), &all))
        })
    }

    fn link(&self, name: &Spanned<String>) -> Result<Arc<LinkProfile>, ClusterSpecError> {
        let known = &catalogue::file().links;
        let found = self.file.links.get(name.get_ref());
        let found = found.or_else(|| known.get(name.get_ref())).ok_or_else(|| {
            let own = self.file.links.keys();
            let all: Vec<&str> = own.chain(known.keys()).map(String::as_str).collect();
            self.invalid(name, unknown("link", name.get_ref(), &all))
        })?;
        Ok(Arc::new(found.clone()))
    }

    fn check_link(&self, link: &LinkProfile) -> Result<(), ClusterSpecError> {
        for rate in [&link.bandwidth, &link.back_bandwidth]
            .into_iter()
            .flatten()
        {
            if rate.get_ref().value <= 0.0 {
                return Err(self.invalid(rate, "a bandwidth is positive"));
            }
        }
        self.check_part(link.efficiency.as_ref())
    }

    fn check_profile(&self, profile: &Profile) -> Result<(), ClusterSpecError> {
        let rate = &profile.memory_bandwidth;
        if rate.get_ref().value <= 0.0 {
            return Err(self.invalid(rate, "a bandwidth is positive"));
        }
        let rates = [
            profile.f32,
            profile.bf16,
            profile.f16,
            profile.f64,
            profile.int8,
        ];
        if rates.iter().all(Option::is_none) {
            let problem = "a profile states a rate of products, such as `f32 = \"67 TFLOP/s\"`";
            return Err(self.invalid(&profile.device_type, problem));
        }
        let device_type = &profile.device_type;
        let name = DeviceName::full("localhost", 0, 0, device_type.get_ref(), 0).to_string();
        if DeviceName::parse_full(&name).is_err() {
            let problem = "a device type has letters, digits and underscores";
            return Err(self.invalid(device_type, problem));
        }
        self.check_part(profile.compute_efficiency.as_ref())?;
        self.check_part(profile.memory_efficiency.as_ref())
    }

    fn check_part(&self, part: Option<&Spanned<f64>>) -> Result<(), ClusterSpecError> {
        match part {
            Some(part) if !(*part.get_ref() > 0.0 && *part.get_ref() <= 1.0) => {
                Err(self.invalid(part, "an efficiency is above 0 and at most 1"))
            }
            _ => Ok(()),
        }
    }
}

fn unknown(what: &str, name: &str, all: &[&str]) -> String {
    let mut all = all.to_vec();
    all.sort_unstable();
    format!("there is no {what} {name:?}; known are {}", all.join(", "))
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "quantities are finite and not negative, and the conversion saturates"
)]
fn to_u64(bytes: f64) -> u64 {
    bytes.round() as u64
}
