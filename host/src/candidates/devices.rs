//! Computes the columns of devices from a device set.

use crate::candidates::columns::DeviceColumns;
use crate::candidates::error::CandidatesError;
use crate::candidates::index::to_u32;
use crate::cost::CostClass;
use crate::cost::CostClasses;
use crate::cost::CostModel;
use crate::cost::LinkEnd;
use crate::device::DeviceSet;
use crate::device::LinkRates;
use crate::device::Topology;
use crate::names::DeviceId;

/// Returns the columns of devices, and the cost classes of the cost table's columns. Devices share
/// a chip if they name the same one. Each device has its own memory. Devices with equal transfer
/// costs share a link domain. `n_host_threads` nodes of CPU devices execute at one time; 0 means
/// one per processor.
pub(super) fn device_columns(
    devices: &DeviceSet,
    model: &CostModel,
    classes: CostClasses,
    n_host_threads: usize,
) -> (DeviceColumns, Vec<CostClass>) {
    let (link_domain, links) = match devices.topology() {
        Some(topology) => domains_of_topology(topology),
        None => domains_of_one_host(devices, model),
    };
    let n_domains = to_u32(links.len().isqrt());
    let of_class = |class: &u32| &classes.classes[*class as usize];
    let ordinals: Vec<u32> = (0..to_u32(devices.len())).collect();
    let capacity: Vec<u64> = devices
        .iter()
        .map(|(_, device)| device.memory_capacity_bytes())
        .collect();
    let of_this_machine = || std::thread::available_parallelism().map_or(1, usize::from);
    let n_processors = devices.n_processors().unwrap_or_else(of_this_machine);
    let n_host_threads = match n_host_threads {
        0 => n_processors,
        n_threads => n_threads,
    };
    let columns = DeviceColumns {
        n_cost_classes: to_u32(classes.classes.len()),
        link_domain,
        n_link_domains: n_domains,
        links,
        link_exceptions: devices.links().collect(),
        topology: devices.topology().cloned(),
        is_uncontended: devices.is_uncontended(),
        chips: devices.chips(),
        chip_threads: devices
            .iter()
            .map(|(_, device)| device.chip_threads().map_or(0, |n| to_u32(n.max(1))))
            .collect(),
        n_host_threads: to_u32(n_host_threads),
        n_processors: to_u32(n_processors),
        is_in_host_memory: devices
            .iter()
            .map(|(_, device)| device.attributes().has_one_memory())
            .collect(),
        is_half_duplex: devices
            .iter()
            .map(|(id, _)| devices.rates(id).host_link.is_half_duplex)
            .collect(),
        memory_domain: ordinals,
        memory_free_bytes: capacity.clone(),
        memory_capacity_bytes: capacity,
        load: vec![0.0; devices.len()],
        is_calibrated: classes
            .of_device
            .iter()
            .map(|class| of_class(class).rates.is_calibrated)
            .collect(),
        queues: devices
            .iter()
            .map(|(id, _)| devices.rates(id).queues.max(1))
            .collect(),
        type_preference: devices
            .iter()
            .map(|(_, device)| devices.type_priority(&device.attributes().device_type))
            .collect(),
        cost_class: classes.of_device,
    };
    (columns, classes.classes)
}

/// Returns the link domain of each device, and the matrix of links between domains, row-major.
fn domains_of_one_host(devices: &DeviceSet, model: &CostModel) -> (Vec<u32>, Vec<LinkRates>) {
    let mut domains: Vec<LinkEnd> = Vec::new();
    let link_domain = devices.iter().map(|(id, device)| {
        let end = LinkEnd::of(&**device, &devices.rates(id));
        let known = domains.iter().position(|known| *known == end);
        to_u32(known.unwrap_or_else(|| {
            domains.push(end);
            domains.len() - 1
        }))
    });
    let link_domain = link_domain.collect();
    let links = domains
        .iter()
        .flat_map(|&src| domains.iter().map(move |&dst| model.link(src, dst)));
    let links = links.collect();
    (link_domain, links)
}

/// Does the same for devices of several hosts.
fn domains_of_topology(topology: &Topology) -> (Vec<u32>, Vec<LinkRates>) {
    let is_alone = topology.has_one_device();
    // The first two devices of each domain.
    let mut domains: Vec<(DeviceId, Option<DeviceId>)> = Vec::new();
    let devices = (0..to_u32(topology.devices.len())).map(DeviceId);
    let link_domain = devices.map(|device| {
        let are_alike = |known: &(DeviceId, _)| topology.are_alike(known.0, device, &is_alone);
        match domains.iter().position(are_alike) {
            Some(known) => {
                domains[known].1.get_or_insert(device);
                to_u32(known)
            }
            None => {
                domains.push((device, None));
                to_u32(domains.len() - 1)
            }
        }
    });
    let link_domain = link_domain.collect();
    let links = domains.iter().enumerate().flat_map(|(row, &(source, _))| {
        domains
            .iter()
            .enumerate()
            .map(move |(column, &(first, second))| {
                // Within a domain, the link is that between two of its devices, if it has two.
                match (row == column, second) {
                    (true, Some(second)) => topology.link(source, second),
                    (true, None) => LinkRates {
                        latency_ns: 0.0,
                        ns_per_byte: 0.0,
                    },
                    (false, _) => topology.link(source, first),
                }
            })
    });
    let links = links.collect();
    (link_domain, links)
}

/// Rejects links with invalid costs, whether a device or an app stated them, since they would make
/// every estimate meaningless.
pub(super) fn check_links(
    columns: &DeviceColumns,
    devices: &DeviceSet,
) -> Result<(), CandidatesError> {
    let first_of_domain = |domain: usize| {
        let mut domains = columns.link_domain.iter();
        let device = domains.position(|&known| known as usize == domain);
        DeviceId(to_u32(device.unwrap_or_default()))
    };
    let of_domains = columns.links.iter().enumerate().map(|(index, &link)| {
        let n_domains = columns.n_link_domains as usize;
        ((index / n_domains, index % n_domains), link)
    });
    let is_duration = |ns: f64| !ns.is_nan() && ns >= 0.0;
    let is_bad = |link: &LinkRates| !is_duration(link.latency_ns) || !is_duration(link.ns_per_byte);
    let mut bad_domains = of_domains.filter(|(_, link)| is_bad(link));
    let stated = &columns.link_exceptions;
    let found = match stated.iter().find(|(_, _, link)| is_bad(link)) {
        Some(&found) => Some(found),
        None => bad_domains.next().map(|((source, destination), link)| {
            let (source, destination) = (first_of_domain(source), first_of_domain(destination));
            (source, destination, link)
        }),
    };
    let name = |device: DeviceId| {
        let device = devices.get(device);
        device.map_or_else(String::new, |device| device.attributes().name.clone())
    };
    match found {
        None => Ok(()),
        Some((source, destination, link)) => Err(CandidatesError::BadLink {
            source_device: name(source),
            destination_device: name(destination),
            latency_ns: link.latency_ns,
            ns_per_byte: link.ns_per_byte,
        }),
    }
}
