//! How devices of several hosts are connected.

use super::rates::LinkRates;
use crate::names::DeviceId;

/// The links between devices of several hosts: what a transfer costs, and which links it occupies.
/// A device set without a topology has one host, to which each device has a link of its own.
///
/// A device outside of host memory is connected with the memory of its host. Devices may be
/// connected with each other by a network of their own (NVLink). Hosts are connected by a network.
/// A transfer takes the network of its devices, if both are in one; otherwise it passes through the
/// memories of the hosts.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Topology {
    /// The hosts.
    pub hosts: Vec<TopologyHost>,
    /// One entry per device of the set.
    pub devices: Vec<TopologyDevice>,
    /// Whether parts of a tensor move on while others still arrive: a transfer over several links
    /// then takes as long as over the slowest of them. Otherwise each memory on the way stores the
    /// whole tensor first.
    pub is_pipelined: bool,
    /// Names of the links, by number.
    pub link_names: Vec<String>,
}

/// A host.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TopologyHost {
    /// Its connection with the other hosts. Without one, transfers to other hosts are impossible.
    pub network: Option<Port>,
}

/// The connections of a device.
#[derive(Debug, Clone, PartialEq)]
pub struct TopologyDevice {
    /// Its host, as an index.
    pub host: u32,
    /// The connection with the memory of its host; `None` if it computes in that memory.
    pub bus: Option<Port>,
    /// Network of devices and the connection with it. Networks are numbered.
    pub network: Option<(u32, Port)>,
    /// Transfers between this device and others of its host that compute in host memory.
    pub in_host: LinkRates,
}

/// The connection of a device or host with a network, bus or memory. Devices that share a
/// connection name the same links.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Port {
    /// Cost of transfers from the device.
    pub out: LinkRates,
    /// Cost of transfers to the device.
    pub into: LinkRates,
    /// Number of the link that transfers from the device occupy.
    pub link_out: u32,
    /// Number of the link that transfers to the device occupy. Equal to [`Self::link_out`] if
    /// transfers one way slow down those the other way.
    pub link_in: u32,
}

/// A link over which nothing can be transferred.
const IMPOSSIBLE: LinkRates = LinkRates {
    latency_ns: f64::INFINITY,
    ns_per_byte: f64::INFINITY,
};

impl Topology {
    /// Returns the cost of transfers between two different devices.
    ///
    /// # Panics
    /// If there is no such device.
    pub fn link(&self, source: DeviceId, destination: DeviceId) -> LinkRates {
        let (from, to) = (
            &self.devices[source.index()],
            &self.devices[destination.index()],
        );
        if let (Some((network, out)), Some((other, into))) = (from.network, to.network)
            && network == other
        {
            return slowest(out.out, into.into);
        }
        let buses = [from.bus.map(|port| port.out), to.bus.map(|port| port.into)];
        let mut way: Vec<LinkRates> = Vec::with_capacity(3);
        way.extend(buses[0]);
        if from.host == to.host {
            if buses == [None, None] {
                way.push(slowest(from.in_host, to.in_host));
            }
        } else {
            let ports = [from.host, to.host].map(|host| self.hosts[host as usize].network);
            way.push(match ports {
                [Some(out), Some(into)] => slowest(out.out, into.into),
                _ => IMPOSSIBLE,
            });
        }
        way.extend(buses[1]);
        self.along(&way)
    }

    fn along(&self, way: &[LinkRates]) -> LinkRates {
        let per_byte = way.iter().map(|link| link.ns_per_byte);
        LinkRates {
            latency_ns: way.iter().map(|link| link.latency_ns).sum(),
            ns_per_byte: match self.is_pipelined {
                true => per_byte.fold(0.0, f64::max),
                false => per_byte.sum(),
            },
        }
    }

    /// Returns whether two devices have equal links with all others: the same host and the same
    /// connections, or hosts that are alike and have one device each.
    pub(crate) fn are_alike(&self, first: DeviceId, second: DeviceId, is_alone: &[bool]) -> bool {
        let (a, b) = (&self.devices[first.index()], &self.devices[second.index()]);
        let rates = |port: Option<Port>| port.map(|port| (port.out, port.into));
        let networks =
            [a, b].map(|device| device.network.map(|(of, port)| (of, rates(Some(port)))));
        let hosts = [a, b].map(|device| device.host as usize);
        let are_hosts_alike = hosts[0] == hosts[1]
            || hosts.iter().all(|&host| is_alone[host])
                && rates(self.hosts[hosts[0]].network) == rates(self.hosts[hosts[1]].network);
        are_hosts_alike
            && rates(a.bus) == rates(b.bus)
            && networks[0] == networks[1]
            && a.in_host == b.in_host
    }

    /// Returns per host whether it has a single device.
    pub(crate) fn has_one_device(&self) -> Vec<bool> {
        let mut n_devices = vec![0u32; self.hosts.len()];
        for device in &self.devices {
            n_devices[device.host as usize] += 1;
        }
        n_devices.into_iter().map(|n| n == 1).collect()
    }
}

/// Returns the cost of one hop, whose two ends may state different rates.
fn slowest(first: LinkRates, second: LinkRates) -> LinkRates {
    LinkRates {
        latency_ns: first.latency_ns.max(second.latency_ns),
        ns_per_byte: first.ns_per_byte.max(second.ns_per_byte),
    }
}
