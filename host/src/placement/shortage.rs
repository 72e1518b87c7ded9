//! A memory that is too small for a plan: how much it lacks, what takes most of it, and what may
//! help. Takes the candidates, the devices of a plan and the [`Shortage`] that `memory` has found.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::Serialize;

use crate::candidates::Candidates;
use crate::candidates::short_device_name;
use crate::device::DEVICE_CPU;
use crate::device::Device;
use crate::graph::Graph;
use crate::graph::NONE;
use crate::graph::NodeId;
use crate::memory::MemoryHolder;
use crate::memory::fits;
use crate::memory::whole::Shortage;
use crate::names::DeviceId;
use crate::tensor::show_bytes;

/// More devices than this are counted rather than named.
const MAX_DEVICES_NAMED: usize = 8;

/// A memory that is too small for what a plan puts there: the constants that runs read, state, and
/// the tensors of the runs that may go on at one time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct MemoryShortage {
    /// Full name of the device.
    pub device: String,
    /// Bytes that the plan needs there.
    pub needed_bytes: u64,
    /// Bytes that plans may use there.
    pub capacity_bytes: u64,
    /// The part of the needed bytes that holds constants.
    pub constant_bytes: u64,
    /// The part that holds state, such as variables.
    pub state_bytes: u64,
    /// Peak bytes of one run.
    pub run_bytes: u64,
    /// Number of concurrent runs for which the memory must suffice.
    pub n_runs: u64,
    /// The three largest holders of the needed bytes, the largest first.
    pub holders: Vec<MemoryHolder>,
    /// Changes that may help, each without the others.
    pub remedies: Vec<MemoryRemedy>,
}

/// A change that may make a plan fit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum MemoryRemedy {
    /// Place nodes on devices of other memories, by another policy for example.
    Move {
        /// A node that fits there.
        node: String,
        /// Devices that may run it, with the bytes that the plan leaves free there.
        devices: Vec<(String, u64)>,
    },
    /// Allow fewer concurrent runs ([`crate::session::SessionBuilder::with_concurrent_runs`]).
    FewerRuns {
        /// The most runs for which this memory suffices.
        n_runs: u64,
    },
    /// Let plans use more of the memory ([`crate::device::DeviceOptions`]).
    RaiseCapacity {
        /// The devices that share the memory.
        devices: Vec<String>,
        /// The least capacity with which this memory suffices, in bytes.
        bytes: u64,
    },
    /// Use more devices of the same capacity. The capacity must be stated, since CPU devices share
    /// the machine's memory otherwise.
    MoreDevices {
        /// Their type.
        device_type: String,
        /// The number of devices with one more.
        n_devices: usize,
        /// The capacity of each, in bytes.
        capacity_bytes: u64,
    },
}

impl MemoryShortage {
    /// Describes a shortage of a plan, and searches for remedies.
    pub(super) fn new(candidates: &Candidates, devices: &[u32], shortage: Shortage) -> Self {
        let domains = &candidates.devices().memory_domain;
        let own = devices[shortage.node.index()];
        // The node may be on another device, if its tensor is copied to the memory.
        let device = match domains[own as usize] == shortage.domain {
            true => own,
            false => (0..)
                .zip(domains)
                .find(|&(_, &domain)| domain == shortage.domain)
                .map_or(own, |(device, _)| device),
        };
        Self {
            device: candidates.device_name(device).to_owned(),
            needed_bytes: shortage.needed_bytes(),
            capacity_bytes: shortage.capacity_bytes,
            constant_bytes: shortage.resident.constant_bytes,
            state_bytes: shortage.resident.state_bytes,
            run_bytes: shortage.run_bytes,
            n_runs: shortage.n_runs,
            remedies: remedies(candidates, devices, device, &shortage),
            holders: shortage.holders,
        }
    }

    /// Returns the number of bytes that are lacking.
    pub fn lacking_bytes(&self) -> u64 {
        self.needed_bytes.saturating_sub(self.capacity_bytes)
    }

    /// Returns the device and how much it lacks, without holders and remedies.
    pub fn summary(&self) -> String {
        format!(
            "{} lacks {} (the plan needs {} and may use {})",
            short_device_name(&self.device),
            show_bytes(self.lacking_bytes()),
            show_bytes(self.needed_bytes),
            show_bytes(self.capacity_bytes)
        )
    }
}

impl fmt::Display for MemoryShortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} lacks {}: the plan needs {} ({}) and may use {}; largest: {}",
            short_device_name(&self.device),
            show_bytes(self.lacking_bytes()),
            show_bytes(self.needed_bytes),
            parts(self),
            show_bytes(self.capacity_bytes),
            list(&self.holders, " and ")
        )?;
        if !self.remedies.is_empty() {
            write!(f, "; {}", list(&self.remedies, ", or "))?;
        }
        Ok(())
    }
}

impl fmt::Display for MemoryRemedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Move { node, devices } => write!(
                f,
                "use another policy, or place `{node}` or other nodes on {}",
                free_devices(devices)
            ),
            Self::FewerRuns { n_runs: 1 } => {
                f.write_str("allow only 1 run at one time (`--concurrent-runs 1`)")
            }
            Self::FewerRuns { n_runs } => write!(
                f,
                "allow only {n_runs} runs at one time (`--concurrent-runs {n_runs}`)"
            ),
            Self::RaiseCapacity { devices, bytes } => {
                let size = flag_size(*bytes);
                let flags = devices.iter();
                let flags =
                    flags.map(|device| format!("--memory {}={size}", short_device_name(device)));
                write!(
                    f,
                    "raise the capacity (`{}`)",
                    flags.collect::<Vec<_>>().join(" ")
                )
            }
            Self::MoreDevices {
                device_type,
                n_devices,
                capacity_bytes,
            } => write!(
                f,
                "use at least {n_devices} devices of this capacity (`--device-count {device_type}={n_devices} --memory {device_type}={}`)",
                flag_size(*capacity_bytes)
            ),
        }
    }
}

/// `CPU:1 or CPU:2 (160.0 MiB free each)`, `CPU:1 (1.0 MiB free) or CPU:2 (2.0 MiB free)`.
fn free_devices(devices: &[(String, u64)]) -> String {
    let shown = &devices[..devices.len().min(MAX_DEVICES_NAMED)];
    let is_same = shown.iter().all(|(_, free)| *free == shown[0].1);
    let mut names: Vec<String> = shown
        .iter()
        .map(|(name, free)| match is_same {
            true => short_device_name(name).to_owned(),
            false => format!("{} ({} free)", short_device_name(name), show_bytes(*free)),
        })
        .collect();
    if devices.len() > shown.len() {
        names.push(format!("{} more", devices.len() - shown.len()));
    }
    let mut text = list(&names, " or ");
    if is_same && let Some((_, free)) = shown.first() {
        let each = if shown.len() > 1 { " each" } else { "" };
        text.push_str(&format!(" ({} free{each})", show_bytes(*free)));
    }
    text
}

/// `constants 157.7 MiB, each of 2 runs 84.2 MiB`; parts of no bytes are left out.
fn parts(shortage: &MemoryShortage) -> String {
    let runs = match shortage.n_runs {
        1 => "one run".to_owned(),
        n => format!("each of {n} runs"),
    };
    let parts = [
        ("constants", shortage.constant_bytes),
        ("state", shortage.state_bytes),
        (&runs, shortage.run_bytes),
    ];
    let parts = parts.iter().filter(|(_, bytes)| *bytes > 0);
    let parts = parts.map(|(name, bytes)| format!("{name} {}", show_bytes(*bytes)));
    parts.collect::<Vec<_>>().join(", ")
}

/// `a`, `a and b`, `a, b and c`.
pub(super) fn list(items: &[impl fmt::Display], before_last: &str) -> String {
    let mut items: Vec<String> = items.iter().map(ToString::to_string).collect();
    let last = items.pop().unwrap_or_default();
    match items.is_empty() {
        true => last,
        false => format!("{}{before_last}{last}", items.join(", ")),
    }
}

/// A size of at least so many bytes, as flags take it.
pub(super) fn flag_size(bytes: u64) -> String {
    match bytes {
        0..0x1_0000 => bytes.to_string(),
        0x1_0000..0x100_0000 => format!("{}KiB", bytes.div_ceil(1 << 10)),
        _ => format!("{}MiB", bytes.div_ceil(1 << 20)),
    }
}

/// Searches for changes that may make the plan fit on `device`, whose memory is too small.
fn remedies(
    candidates: &Candidates,
    devices: &[u32],
    device: u32,
    shortage: &Shortage,
) -> Vec<MemoryRemedy> {
    let mut remedies = Vec::new();
    let needed_bytes = shortage.needed_bytes();
    let lacking_bytes = needed_bytes.saturating_sub(shortage.capacity_bytes);
    let columns = candidates.devices();
    let mut free_bytes = 0u64;
    if let Some((node, others)) = movable(candidates, devices, shortage) {
        // Devices may share a memory.
        let memories: BTreeMap<u32, u64> = others
            .iter()
            .map(|&(device, free)| (columns.memory_domain[device as usize], free))
            .collect();
        free_bytes = memories.into_values().fold(0, u64::saturating_add);
        let others = others.into_iter();
        let others = others.map(|(device, free)| (candidates.device_name(device).to_owned(), free));
        remedies.push(MemoryRemedy::Move {
            node: candidates.graph().node_name(node).to_owned(),
            devices: others.collect(),
        });
    }
    let left = shortage
        .capacity_bytes
        .checked_sub(shortage.resident.bytes());
    let n_runs = left.and_then(|left| left.checked_div(shortage.run_bytes));
    if let Some(n_runs) = n_runs.filter(|n_runs| (1..shortage.n_runs).contains(n_runs)) {
        remedies.push(MemoryRemedy::FewerRuns { n_runs });
    }
    let shared = (0..).zip(&columns.memory_domain);
    let shared = shared.filter(|&(_, &domain)| domain == shortage.domain);
    let shared = shared.map(|(device, _)| candidates.device_name(device).to_owned());
    // A saturated sum fits nowhere.
    if fits(needed_bytes, u64::MAX) {
        remedies.push(MemoryRemedy::RaiseCapacity {
            devices: shared.collect(),
            bytes: needed_bytes,
        });
    }
    let largest = shortage.holders.first().map_or(0, |holder| holder.bytes);
    if free_bytes < lacking_bytes && largest <= shortage.capacity_bytes {
        remedies.extend(more_devices(candidates, device, shortage));
    }
    remedies
}

/// Finds a node of the memory that fits into other memories, and the devices there that may run it.
fn movable(
    candidates: &Candidates,
    devices: &[u32],
    shortage: &Shortage,
) -> Option<(NodeId, Vec<(u32, u64)>)> {
    let domains = &candidates.devices().memory_domain;
    let graph = candidates.graph();
    // The memory itself has none.
    let most_free = shortage.free_bytes.iter().copied().max().unwrap_or(0);
    let free_of = |node: NodeId| -> Vec<(u32, u64)> {
        // Constants and feeds are held where they are read, so moving them alone changes nothing.
        if candidates.nodes().pinned[node.index()] != NONE || graph.is_preloaded(node) {
            return Vec::new();
        }
        let needed = bytes_of_node(graph, node, shortage.n_runs).max(1);
        if needed > most_free {
            return Vec::new();
        }
        let others = candidates.of_node(node).iter();
        let free = others.map(|&device| {
            let free = shortage.free_bytes.get(domains[device as usize] as usize);
            (device, free.copied().unwrap_or(0))
        });
        free.filter(|&(_, free)| free >= needed).collect()
    };
    let here = graph.nodes().zip(devices);
    let here = here.filter(|&(_, &device)| domains[device as usize] == shortage.domain);
    std::iter::once(shortage.node)
        .chain(here.map(|(node, _)| node))
        .map(|node| (node, free_of(node)))
        .find(|(_, free)| !free.is_empty())
}

/// Returns the bytes that a node needs in a memory of which it is the only user: its state and
/// constant inputs once, and its workspace, other inputs and outputs in each run.
fn bytes_of_node(graph: &Graph, node: NodeId, n_runs: u64) -> u64 {
    let mut once = graph.resident_bytes()[node.index()];
    let mut per_run = graph.workspace_bytes()[node.index()];
    for tensor in graph.data_inputs(node) {
        let sum = match graph.is_preloaded(graph.producer(tensor).0) {
            true => &mut once,
            false => &mut per_run,
        };
        *sum = sum.saturating_add(graph.tensor_bytes()[tensor.index()]);
    }
    let outputs = graph.tensor_bytes()[graph.output_range(node)].iter();
    let per_run = outputs.fold(per_run, |sum, &bytes| sum.saturating_add(bytes));
    once.saturating_add(per_run.saturating_mul(n_runs))
}

/// Suggests one more device of the type, if users choose how many there are and the node may run on
/// all.
fn more_devices(candidates: &Candidates, device: u32, shortage: &Shortage) -> Option<MemoryRemedy> {
    // The type is named because only the factory of CPU devices creates as many as users ask for
    // (`DeviceOptions::device_count`); other types have as many as the machine.
    let is_chosen = |device: &Arc<dyn Device>| {
        let attributes = device.attributes();
        attributes.device_type == DEVICE_CPU
            && short_device_name(&attributes.name) != attributes.name
    };
    let set = candidates.device_set();
    if !is_chosen(set.get(DeviceId(device))?) {
        return None;
    }
    let alike = set.iter().filter(|(_, device)| is_chosen(device));
    let alike: Vec<u32> = alike.map(|(id, _)| id.0).collect();
    let legal = candidates.of_node(shortage.node);
    // What the plan puts into all of them must fit, however it is divided.
    let domains = &candidates.devices().memory_domain;
    let used_bytes = |&device: &u32| {
        let domain = domains[device as usize];
        let free = shortage.free_bytes.get(domain as usize).copied();
        match domain == shortage.domain {
            true => shortage.needed_bytes(),
            false => shortage.capacity_bytes.saturating_sub(free.unwrap_or(0)),
        }
    };
    let used_bytes = alike.iter().map(used_bytes);
    let used_bytes = used_bytes.fold(0, u64::saturating_add);
    let least = used_bytes.div_ceil(shortage.capacity_bytes.max(1));
    let n_devices = usize::try_from(least).unwrap_or(usize::MAX);
    alike
        .iter()
        .all(|device| legal.contains(device))
        .then(|| MemoryRemedy::MoreDevices {
            device_type: DEVICE_CPU.to_owned(),
            n_devices: n_devices.max(alike.len() + 1),
            capacity_bytes: shortage.capacity_bytes,
        })
}
