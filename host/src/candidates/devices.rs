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
    let mut domains: Vec<LinkEnd> = Vec::new();
    let link_domain = devices
        .iter()
        .map(|(id, device)| {
            let end = LinkEnd::of(&**device, &devices.rates(id));
            let index = domains
                .iter()
                .position(|known| *known == end)
                .unwrap_or_else(|| {
                    domains.push(end);
                    domains.len() - 1
                });
            to_u32(index)
        })
        .collect();
    let links: Vec<LinkRates> = domains
        .iter()
        .flat_map(|&src| domains.iter().map(move |&dst| model.link(src, dst)))
        .collect();
    let n_domains = to_u32(domains.len());
    let of_class = |class: &u32| &classes.classes[*class as usize];
    let ordinals: Vec<u32> = (0..to_u32(devices.len())).collect();
    let capacity: Vec<u64> = devices
        .iter()
        .map(|(_, device)| device.memory_capacity_bytes())
        .collect();
    let n_processors = std::thread::available_parallelism().map_or(1, usize::from);
    let n_host_threads = match n_host_threads {
        0 => n_processors,
        n_threads => n_threads,
    };
    let columns = DeviceColumns {
        n_cost_classes: to_u32(classes.classes.len()),
        link_domain,
        n_link_domains: n_domains,
        links,
        link_exceptions: Vec::new(),
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
