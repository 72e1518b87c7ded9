//! `placewright devices`: the devices of this machine, and why other device types have none.

use std::fmt;
use std::io::Write;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use clap::ValueHint;
use serde::Serialize;

use super::Outcome;
use super::UsageError;
use super::args::DeviceArgs;
use super::cache;
use super::cluster::ClusterArgs;
use super::output::Output;
use super::output_file;
use super::progress::Progress;
use super::table::Table;
use super::timing::parse_seconds;
use super::units::count;
use super::units::show_bytes;
use super::units::show_ns;
use crate::cluster::ClusterSpec;
use crate::cost::CalibrateOptions;
use crate::cost::Calibration;
use crate::cost::Calibrations;
use crate::cost::MeasuredKernel;
use crate::cost::OTHERS_BUSY_MAX;
use crate::cost::calibrate_pair;
use crate::cost::calibrate_with_progress;
use crate::cost::computes_alike;
use crate::cost::pairs_with_direct_copies;
use crate::device::Device;
use crate::device::DeviceAttributes;
use crate::device::DeviceDetails;
use crate::device::DeviceError;
use crate::device::DeviceOptions;
use crate::device::DeviceRates;
use crate::device::DeviceSet;
use crate::device::FactoryRegistry;
use crate::device::HostLink;
use crate::device::KernelRegistry;
use crate::device::LinkRates;
use crate::device::NumaNode;
use crate::device::NumaTopology;
use crate::device::PhysicalListing;
use crate::device::SYSTEM_ROOT;
use crate::device::gpu::GpuOptions;
use crate::registry::Registry;

/// Prefix of the devices of this process, TensorFlow's for a local session.
pub(super) const PREFIX: &str = "/job:localhost/replica:0/task:0";

#[derive(Debug, Args)]
pub(super) struct DevicesArgs {
    #[command(flatten)]
    devices: DeviceArgs,
    /// Measure the rates of each device and of its link with the host.
    ///
    /// The rates, and the times of kernels by family and size, are kept in the cache folder; `run`
    /// and `place` plan with them from then on. It takes about a minute per device, which should be
    /// idle.
    #[arg(long, help_heading = "Devices", conflicts_with = "no_calibration")]
    calibrate: bool,
    /// Keep measured rates although other programs were computing meanwhile.
    #[arg(long, help_heading = "Devices", requires = "calibrate")]
    force: bool,
    /// Seconds of timings per device; with more, slow devices reach larger sizes.
    ///
    /// The default is 24. The first call of each kernel, in which a driver may compile it, comes on
    /// top.
    #[arg(long, value_name = "S", value_parser = parse_seconds, help_heading = "Devices", requires = "calibrate")]
    seconds: Option<Duration>,
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Describe these devices in a cluster file, with their measured rates.
    ///
    /// On any machine, `place --cluster` then expects what it expects here.
    #[arg(long, value_name = "F.toml", value_hint = ValueHint::FilePath, help_heading = "Cluster", conflicts_with = "cluster")]
    export_cluster: Option<PathBuf>,
}

/// Everything that `--json` prints.
#[derive(Debug, Serialize)]
struct Report {
    devices: Vec<DeviceRow>,
    /// Why there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    devices_error: Option<String>,
    without_devices: Vec<AbsentType>,
    types: Vec<TypeRow>,
    physical_devices: Vec<PhysicalRow>,
    /// Copies between two devices that do not pass through host memory.
    links: Vec<LinkRow>,
    /// Whether the devices are those of a cluster file.
    #[serde(skip)]
    is_on_paper: bool,
    numa_nodes: Vec<NumaNode>,
    /// Why NUMA nodes are unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    numa_error: Option<String>,
}

#[derive(Debug, Serialize)]
struct DeviceRow {
    #[serde(flatten)]
    attributes: DeviceAttributes,
    /// Bytes that placements may use.
    memory_capacity_bytes: u64,
    /// Equal for devices that share a chip.
    chip: u32,
    /// The chip's name; `null` if no other device shares the chip.
    chip_name: Option<String>,
    rates: DeviceRates,
    /// Measured rates, from this call or an earlier one.
    calibration: Option<Calibration>,
    /// Why `--calibrate` did not measure this device.
    #[serde(skip_serializing_if = "Option::is_none")]
    calibration_error: Option<String>,
}

#[derive(Debug, Serialize)]
struct LinkRow {
    source: String,
    destination: String,
    rates: LinkRates,
}

/// A device type with a factory or a placeholder, in the order in which devices are made.
#[derive(Debug, Serialize)]
struct TypeRow {
    device_type: String,
    priority: i32,
    is_pluggable: bool,
    is_placeholder: bool,
}

/// A physical device that a factory found.
#[derive(Debug, Serialize)]
struct PhysicalRow {
    name: String,
    description: String,
    details: DeviceDetails,
    /// Why there are no details.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// A device type of this build of which this machine has no device.
#[derive(Debug, Serialize)]
struct AbsentType {
    device_type: String,
    reason: String,
    /// What to do; `null` if the driver is installed and found no device.
    remedy: Option<String>,
}

impl DeviceArgs {
    /// Makes the library's options of the flags.
    ///
    /// # Errors
    /// [`UsageError`] for a count of a type that this build does not have (the library ignores it,
    /// as TensorFlow does), and for two values of one type or device.
    pub(super) fn to_options(&self, factories: &FactoryRegistry) -> Result<DeviceOptions> {
        check_once("--device-count", &self.device_count)?;
        check_once("--memory", &self.memory)?;
        if self.device_count.contains(&("CPU".to_owned(), 0)) {
            let problem = "--device-count: CPU=0 leaves no CPU device, and each session needs at least one; use CPU=1 or more";
            return Err(UsageError(problem.to_owned()).into());
        }
        let is_unknown = |device_type: &str| factories.factory(device_type).is_none();
        if let Some((device_type, _)) = self.device_count.iter().find(|(name, _)| is_unknown(name))
        {
            let remedy = factories.suggest_type(device_type);
            return Err(UsageError(format!(
                "--device-count: this program has no device type `{device_type}`; {remedy}"
            ))
            .into());
        }
        Ok(DeviceOptions {
            device_count: self.device_count.iter().cloned().collect(),
            memory_bytes: self.memory.iter().cloned().collect(),
            intra_op_parallelism_threads: self.intra_op_threads(),
            device_filters: self.device_filter.clone(),
            use_numa_affinity: self.numa_affinity,
            gpu: GpuOptions {
                visible_device_list: self.visible_gpus.clone(),
                per_process_memory_fraction: self.gpu_memory_fraction,
                use_unified_memory: self.gpu_unified_memory,
                allow_growth: self.gpu_allow_growth,
                n_compute_streams: self.gpu_streams,
                sync_every_op: self.sync_every_op,
                allow_tf32: self.gpu_allow_tf32,
                ..GpuOptions::default()
            },
            // A cache that cannot be used costs time, not the run.
            program_cache: cache::open().ok().flatten().map(Arc::new),
            ..DeviceOptions::default()
        })
    }
}

/// Checks that nothing is set to two different values.
fn check_once<T: PartialEq + fmt::Display>(flag: &str, given: &[(String, T)]) -> Result<()> {
    for (index, (name, value)) in given.iter().enumerate() {
        let other = given[..index]
            .iter()
            .find(|(earlier, other)| earlier == name && other != value);
        if let Some((_, other)) = other {
            return Err(UsageError(format!(
                "{flag}: `{name}` is set to {other} and to {value}; set it once"
            ))
            .into());
        }
    }
    Ok(())
}

/// Runs the command.
pub(super) fn run(args: &DevicesArgs, registry: &Registry, output: &mut Output) -> Result<Outcome> {
    if let Some(cluster) = args.cluster.read(&args.devices.memory)? {
        return on_paper(&cluster, output);
    }
    let factories = registry.factories();
    let options = args.devices.to_options(factories)?.completed_from_env()?;
    // An error of one part is shown with that part: the other parts may explain it.
    let (devices, error) = match factories.create_devices(&options, PREFIX) {
        Ok(devices) => (devices, None),
        // The flags are at fault.
        Err(DeviceError::InvalidArgument(problem)) => return Err(UsageError(problem).into()),
        Err(error) => (DeviceSet::default(), Some(error)),
    };
    let listings = factories.list_physical();
    let (numa_nodes, numa_error) = match NumaTopology::read(Path::new(SYSTEM_ROOT)) {
        Ok(topology) => (topology.nodes().to_vec(), None),
        Err(error) => (Vec::new(), Some(error.to_string())),
    };
    let shows_kernels = args.calibrate;
    let calibrated = if args.calibrate {
        let options = args
            .seconds
            .map_or_else(CalibrateOptions::default, |budget| {
                CalibrateOptions::default().with_budget(budget)
            });
        measure(&devices, &registry.kernels(), &options, args.force, output)
    } else {
        known(&devices, &args.devices, output)
    };
    if let Some(path) = &args.export_cluster {
        let cluster = ClusterSpec::of_devices(&devices, calibrated.calibrations.as_ref())?;
        let text = cluster.to_toml();
        output_file::write(path, |file| Ok(file.write_all(text.as_bytes())?))?;
    }
    let devices = &calibrated.devices;
    let report = Report {
        devices: device_rows(&calibrated),
        devices_error: error.as_ref().map(DeviceError::to_string),
        types: listings
            .iter()
            .map(|listing| TypeRow {
                device_type: listing.device_type.clone(),
                priority: listing.priority,
                is_pluggable: listing.is_pluggable,
                is_placeholder: listing.is_placeholder,
            })
            .collect(),
        physical_devices: physical_devices(factories, &listings),
        without_devices: listings.into_iter().filter_map(absent).collect(),
        links: link_rows(devices),
        is_on_paper: false,
        numa_nodes,
        numa_error,
    };
    show(&report, output)?;
    if shows_kernels {
        show_kernels(&report, output)?;
    }
    output.json(&report)?;
    error.map_or(Ok(Outcome::Done), |error| Err(error.into()))
}

/// Shows the devices of a cluster file.
fn on_paper(cluster: &ClusterSpec, output: &mut Output) -> Result<Outcome> {
    let devices = cluster.devices();
    let report = Report {
        devices: device_rows(&Calibrated {
            devices: DeviceSet::clone(devices),
            calibrations: None,
            found: vec![None; devices.len()],
            errors: vec![None; devices.len()],
        }),
        devices_error: None,
        types: Vec::new(),
        physical_devices: Vec::new(),
        without_devices: Vec::new(),
        links: link_rows(devices),
        is_on_paper: true,
        numa_nodes: Vec::new(),
        numa_error: None,
    };
    show(&report, output)?;
    output.json(&report)?;
    Ok(Outcome::Done)
}

fn device_rows(calibrated: &Calibrated) -> Vec<DeviceRow> {
    let devices = &calibrated.devices;
    let chips = devices.chips();
    devices
        .iter()
        .map(|(id, device)| DeviceRow {
            attributes: device.attributes().clone(),
            memory_capacity_bytes: device.memory_capacity_bytes(),
            chip: chips[id.index()],
            chip_name: device.chip().map(str::to_owned),
            rates: devices.rates(id),
            calibration: calibrated.found[id.index()].as_deref().cloned(),
            calibration_error: calibrated.errors[id.index()].clone(),
        })
        .collect()
}

/// Devices with their measured rates, and what is known of each.
#[derive(Debug)]
struct Calibrated {
    devices: DeviceSet,
    calibrations: Option<Calibrations>,
    found: Vec<Option<Arc<Calibration>>>,
    errors: Vec<Option<String>>,
}

/// Measures the devices, one after the other, and keeps the rates.
fn measure(
    devices: &DeviceSet,
    kernels: &KernelRegistry,
    options: &CalibrateOptions,
    keeps_all: bool,
    output: &Output,
) -> Calibrated {
    let calibrations = match cache::open() {
        Ok(Some(folder)) => Calibrations::in_folder(folder),
        Ok(None) => {
            output.note("there is no cache folder, so measured rates are shown and not kept; see `placewright cache`");
            Calibrations::new()
        }
        Err(err) => {
            output.note(format_args!(
                "{err:#}; measured rates are shown and not kept"
            ));
            Calibrations::new()
        }
    };
    let n_devices = u64::try_from(devices.len()).unwrap_or(u64::MAX);
    let progress = Progress::steps(n_devices, "measuring");
    let mut measured: Vec<(&Arc<dyn Device>, Calibration)> = Vec::new();
    let mut errors = Vec::new();
    for (_, device) in devices.iter() {
        let name = &device.attributes().name;
        let mut before = measured.iter();
        let found = match before.find(|(other, _)| computes_alike(&***other, &**device)) {
            Some((_, calibration)) => Ok(calibration.clone()),
            None => {
                let mut begins = |part: &'static str| {
                    progress.set_message(format!("measuring {name}: {part}"));
                };
                let found = calibrate_with_progress(&**device, kernels, options, &mut begins);
                found
                    .map_err(|error| error.to_string())
                    .and_then(|found| refuse_if_busy(found, name, keeps_all))
            }
        };
        errors.push(found.as_ref().err().cloned());
        if let Ok(calibration) = found {
            measured.push((device, calibration));
        }
        progress.advance();
    }
    progress.set_message("measuring copies between devices".to_owned());
    let mut links = Vec::new();
    for (first, second) in pairs_with_direct_copies(devices) {
        let (Some(first), Some(second)) = (devices.get(first), devices.get(second)) else {
            continue;
        };
        match calibrate_pair(&**first, &**second, options) {
            Ok(link) => links.extend(link.map(|link| (first, second, link))),
            Err(err) => output.note(err),
        }
    }
    drop(progress);
    for (device, calibration) in measured {
        if let Err(err) = calibrations.keep(&**device, calibration) {
            output.note(format_args!("{}: {err}", device.attributes().name));
        }
    }
    for (first, second, link) in links {
        if let Err(err) = calibrations.keep_link(&**first, &**second, link) {
            output.note(format_args!("{}: {err}", first.attributes().name));
        }
    }
    with_rates(devices, Some(&calibrations), errors, output)
}

/// Returns an error instead of figures that were measured while other programs were computing.
fn refuse_if_busy(
    found: Calibration,
    device: &str,
    keeps_all: bool,
) -> Result<Calibration, String> {
    match found.others_busy {
        Some(n_busy) if n_busy > OTHERS_BUSY_MAX && !keeps_all => Err(format!(
            "{device} keeps its rates: other programs kept {n_busy:.1} processors busy while it \
             was measured; stop them and measure it again, or keep the figures with --force"
        )),
        _ => Ok(found),
    }
}

/// Returns the rates that were measured earlier.
fn known(devices: &DeviceSet, args: &DeviceArgs, output: &Output) -> Calibrated {
    let calibrations = cache::calibrations(args).unwrap_or_else(|err| {
        output.note(format_args!("{err:#}; measured rates are not used"));
        None
    });
    let errors = vec![None; devices.len()];
    with_rates(devices, calibrations.as_ref(), errors, output)
}

fn with_rates(
    devices: &DeviceSet,
    calibrations: Option<&Calibrations>,
    errors: Vec<Option<String>>,
    output: &Output,
) -> Calibrated {
    let Some(calibrations) = calibrations else {
        return Calibrated {
            devices: devices.clone(),
            calibrations: None,
            found: vec![None; devices.len()],
            errors,
        };
    };
    let (measured, problems) = calibrations.apply(devices);
    for problem in problems {
        output.note(problem);
    }
    let found = devices
        .iter()
        .map(|(_, device)| calibrations.find(&**device).ok().flatten());
    Calibrated {
        found: found.collect(),
        devices: measured,
        calibrations: Some(calibrations.clone()),
        errors,
    }
}

fn absent(listing: PhysicalListing) -> Option<AbsentType> {
    let (reason, remedy) = match listing.devices {
        Ok(devices) if !devices.is_empty() => return None,
        Ok(_) => ("no such device on this machine".to_owned(), None),
        Err(DeviceError::Absent { what, remedy, .. }) => (what, Some(remedy)),
        Err(err) => (err.to_string(), None),
    };
    Some(AbsentType {
        device_type: listing.device_type,
        reason,
        remedy,
    })
}

fn link_rows(devices: &DeviceSet) -> Vec<LinkRow> {
    let name = |id| {
        let device = devices.get(id);
        device.map_or_else(String::new, |device| device.attributes().name.clone())
    };
    let links = devices.links();
    links
        .map(|(source, destination, rates)| LinkRow {
            source: name(source),
            destination: name(destination),
            rates,
        })
        .collect()
}

fn physical_devices(factories: &FactoryRegistry, listings: &[PhysicalListing]) -> Vec<PhysicalRow> {
    let mut rows = Vec::new();
    for listing in listings {
        let found = listing.devices.iter().flatten().enumerate();
        rows.extend(found.map(|(index, device)| {
            let factory = factories.factory(&listing.device_type);
            let details = factory.map(|factory| factory.details(index));
            let (details, error) = match details.transpose() {
                Ok(details) => (details.unwrap_or_default(), None),
                Err(error) => (DeviceDetails::default(), Some(error.to_string())),
            };
            PhysicalRow {
                name: device.name.clone(),
                description: device.description.clone(),
                details,
                error,
            }
        }));
    }
    rows
}

fn show(report: &Report, output: &mut Output) -> Result<()> {
    let mut table = Table::new([
        "device", "type", "chip", "capacity", "GFLOP/s", "GB/s", "launch", "transfer", "rates",
    ])
    .with_numbers(&[2, 3, 4, 5, 6]);
    for row in &report.devices {
        let rates = &row.rates;
        table.add_row([
            row.attributes.name.clone(),
            row.attributes.device_type.clone(),
            row.chip.to_string(),
            show_bytes(row.memory_capacity_bytes),
            format!("{:.0}", rates.flops_per_s / 1e9),
            format!("{:.1}", rates.memory_bytes_per_s / 1e9),
            show_ns(rates.launch_ns),
            show_host_link(rates.host_link),
            if report.is_on_paper {
                "stated".to_owned()
            } else if rates.is_calibrated {
                "measured".to_owned()
            } else if row.calibration.is_some() {
                "in part".to_owned()
            } else {
                "defaults".to_owned()
            },
        ]);
    }
    output.table(&table)?;
    for row in &report.devices {
        if let Some(error) = &row.calibration_error {
            output.line(error)?;
        }
        for missing in row.calibration.iter().flat_map(|found| &found.missing) {
            output.line(format_args!(
                "{}: not measured: {missing}",
                row.attributes.name
            ))?;
        }
    }
    for row in &report.devices {
        if !row.attributes.physical_description.is_empty() {
            output.line(format_args!(
                "{}: {}",
                row.attributes.name, row.attributes.physical_description
            ))?;
        }
    }
    for row in &report.devices {
        if let Some(links) = links_text(&row.attributes) {
            output.line(format_args!("{}: linked to {links}", row.attributes.name))?;
        }
    }
    for link in &report.links {
        output.line(format_args!(
            "{}: copies to {} cost {}",
            link.source,
            link.destination,
            show_link(link.rates)
        ))?;
    }
    output.line(count(report.devices.len(), "device"))?;
    let placeholders = report.types.iter().filter(|row| row.is_placeholder);
    let placeholders: Vec<&str> = placeholders.map(|row| row.device_type.as_str()).collect();
    if !placeholders.is_empty() {
        output.line(format_args!(
            "no backend in this program: {} (an app can bring one, see `Registry::with`)",
            placeholders.join(", ")
        ))?;
    }
    let others = report.without_devices.iter();
    for absent in others.filter(|absent| !placeholders.contains(&absent.device_type.as_str())) {
        let remedy = absent.remedy.as_deref();
        output.line(format_args!(
            "no {}: {}{}{}",
            absent.device_type,
            absent.reason,
            if remedy.is_some() { "; " } else { "" },
            remedy.unwrap_or_default()
        ))?;
    }
    for row in &report.physical_devices {
        if let Some(error) = &row.error {
            output.line(format_args!("no details of {}: {error}", row.name))?;
        }
    }
    if let Some(error) = &report.numa_error {
        output.line(format_args!("no NUMA nodes: {error}"))?;
    }
    Ok(())
}

/// Shows what was measured per family of kernels.
fn show_kernels(report: &Report, output: &mut Output) -> Result<()> {
    let mut shown: Vec<&[MeasuredKernel]> = Vec::new();
    for row in &report.devices {
        let Some(found) = &row.calibration else {
            continue;
        };
        // Devices that share threads have the same figures.
        if found.kernels.is_empty() || shown.contains(&&*found.kernels) {
            continue;
        }
        shown.push(&found.kernels);
        output.line("")?;
        let head = [
            "kernels", "sizes", "shortest", "longest", "of", "rate", "spread",
        ];
        let mut table = Table::new(head).with_numbers(&[1, 2, 3, 5, 6]);
        for of_family in found.kernels.chunk_by(|a, b| a.family == b.family) {
            let (Some(first), Some(last)) = (of_family.first(), of_family.last()) else {
                continue;
            };
            let mut spreads: Vec<f64> = of_family
                .iter()
                .map(|kernel| kernel.spread_ns / kernel.ns.max(1.0))
                .collect();
            spreads.sort_by(f64::total_cmp);
            table.add_row([
                first.family.clone(),
                of_family.len().to_string(),
                show_ns(first.ns),
                show_ns(last.ns),
                last.of.clone(),
                format!("{:.1} G/s", last.work / last.ns.max(1.0)),
                format!("{:.1} %", 100.0 * spreads[spreads.len() / 2]),
            ]);
        }
        output.line(format_args!("{}:", row.attributes.name))?;
        output.table(&table)?;
        output.line(
            "rates in floating-point operations for matmuls and convolutions, else in bytes",
        )?;
    }
    Ok(())
}

/// Lists direct connections: `GPU:1 (StreamExecutor 1, NVLINK 18), GPU:2 (StreamExecutor 1)`. A GPU
/// may have hundreds of parts; JSON has all.
fn links_text(attributes: &DeviceAttributes) -> Option<String> {
    const PEERS_MAX: usize = 8;
    let links = &attributes.locality.links;
    let mut peers: Vec<i32> = links.iter().map(|link| link.device_index).collect();
    peers.sort_unstable();
    peers.dedup();
    let n_more = peers.len().saturating_sub(PEERS_MAX);
    peers.truncate(PEERS_MAX);
    let links_by_peer = peers.iter().map(|&peer| {
        let of_peer = links.iter().filter(|link| link.device_index == peer);
        let kinds: Vec<String> = of_peer
            .map(|link| format!("{} {}", link.kind, link.strength))
            .collect();
        format!("{}:{peer} ({})", attributes.device_type, kinds.join(", "))
    });
    let mut text = links_by_peer.collect::<Vec<_>>().join(", ");
    if n_more > 0 {
        text += &format!(" and {n_more} more");
    }
    (!links.is_empty()).then_some(text)
}

/// Shows both ways, if they differ.
fn show_host_link(link: HostLink) -> String {
    let (from_host, to_host) = (show_link(link.from_host), show_link(link.to_host));
    if from_host == to_host {
        return from_host;
    }
    format!("to it {from_host}, back {to_host}")
}

/// Shows latency and bandwidth. A device that shares its memory with the host copies nothing.
fn show_link(link: LinkRates) -> String {
    let latency = show_ns(link.latency_ns);
    if link.ns_per_byte > 0.0 {
        format!("{latency} + {:.1} GB/s", 1.0 / link.ns_per_byte)
    } else {
        latency
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::LocalLink;
    use crate::names::DeviceName;

    #[test]
    fn links_are_listed_by_peer_up_to_a_limit() {
        let name = DeviceName::full("a", 0, 0, "GPU", 0);
        let mut attributes = DeviceAttributes::new(&name, "GPU", 1);
        assert_eq!(links_text(&attributes), None);
        let link = |device_index, kind: &str, strength| LocalLink {
            device_index,
            kind: kind.to_owned(),
            strength,
        };
        attributes.locality.links = vec![
            link(2, "StreamExecutor", 1),
            link(1, "StreamExecutor", 1),
            link(1, "NVLINK", 18),
        ];
        assert_eq!(
            links_text(&attributes).as_deref(),
            Some("GPU:1 (StreamExecutor 1, NVLINK 18), GPU:2 (StreamExecutor 1)")
        );
        attributes.locality.links = (1..200).map(|at| link(at, "SAME_DEVICE", 1000)).collect();
        let text = links_text(&attributes).unwrap();
        assert!(
            text.ends_with("GPU:8 (SAME_DEVICE 1000) and 191 more"),
            "{text}"
        );
    }
}
