//! The columns that policies can read.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::candidates::host_memory::HostMemory;
use crate::candidates::origin::Origin;
use crate::device::{DeviceSet, KernelRegistry, LinkRates, Topology};
use crate::graph::{Csr, Graph, NodeId};
use crate::names::DeviceId;
use crate::trace::RunProfile;

/// Bits of [`NodeColumns::placement_hints`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PlacementHint(pub u8);

impl PlacementHint {
    /// A generator: no data inputs (control inputs do not count) and one output that is not a
    /// reference. Placed after all others.
    pub const GENERATOR: u8 = 1;
    /// A metadata op (`Shape`, `Size`, `Rank`), which follows the producer of its input.
    pub const METADATA: u8 = 2;
    /// The op keeps state.
    pub const STATEFUL: u8 = 4;
    /// The node calls a function.
    pub const FUNCTION_CALL: u8 = 8;
    /// Soft placement dropped a part of the node's request.
    pub const SOFTENED: u8 = 16;
    /// A matching identity, which follows its producer (TensorFlow 2.21 `MatchIdentityOperation`):
    /// an `Identity` or `RefIdentity` without request and pin, with one edge in and one out,
    /// between nodes with equal requests.
    pub const MATCHING_IDENTITY: u8 = 32;
}

/// Columns of nodes, in addition to the graph. One entry per node unless noted otherwise.
#[derive(Debug, Clone, Default)]
pub struct NodeColumns {
    /// Row of [`Self::sets`].
    pub candidate_set: Vec<u32>,
    /// The distinct candidate sets: device ids, most preferred first; never empty.
    pub sets: Csr,
    /// Colocation group, numbered densely; a single node has a group of its own.
    pub group: Vec<u32>,
    /// Number of groups.
    pub n_groups: u32,
    /// Device fixed by the user or an earlier placement, or [`crate::graph::NONE`]. Other members
    /// of its group are not pinned themselves: that device is their only candidate.
    pub pinned: Vec<u32>,
    /// [`PlacementHint`] bits.
    pub placement_hints: Vec<u8>,
    /// The producer of the first input of metadata ops and matching identities, else
    /// [`crate::graph::NONE`].
    pub follow: Vec<u32>,
    /// Expected executions in one run, finite and not negative; empty means 1 for all.
    pub executions: Vec<f64>,
    /// Priority set by the user, larger first; empty means 0 for all.
    pub user_priority: Vec<i32>,
    /// Loop frame, or [`crate::graph::NONE`]; empty means none for all.
    pub frame: Vec<u32>,
    /// Per loop frame the frame around it, or [`crate::graph::NONE`].
    pub frame_parents: Vec<u32>,
    /// Per edge the graph's edge kind, with [`crate::graph::EdgeKind::HOST_MEMORY`] as if each
    /// consumer were on its most preferred device. Strings and resources are in host memory on
    /// every device.
    pub edge_kinds: Vec<u8>,
    /// Row of [`Self::costs`].
    pub cost_row: Vec<u32>,
    /// Cost of one execution in ns, rows x cost classes, row-major; +inf = cannot run there.
    pub costs: Vec<f64>,
    /// Number of measurements behind each entry of [`Self::costs`]; empty if all are estimates.
    pub cost_samples: Vec<u32>,
    /// Where each entry of [`Self::costs`] comes from: a name, from 1; 0 for the rates of the
    /// device. Empty if all come from there.
    pub cost_sources: Vec<u8>,
    /// The names of the sources ([`crate::cost::CostSource::name`]).
    pub cost_source_names: Vec<String>,
}

/// Columns of devices. One entry per device unless noted otherwise.
#[derive(Debug, Clone, Default)]
pub struct DeviceColumns {
    /// Column of the cost table.
    pub cost_class: Vec<u32>,
    /// Number of cost classes.
    pub n_cost_classes: u32,
    /// Row and column of [`Self::links`].
    pub link_domain: Vec<u32>,
    /// Number of link domains.
    pub n_link_domains: u32,
    /// Link domain x link domain, row-major. The diagonal is the link between two different
    /// devices of one domain.
    pub links: Vec<LinkRates>,
    /// Pairs that differ from their domains' link: (source, destination, link), sorted.
    pub link_exceptions: Vec<(DeviceId, DeviceId, LinkRates)>,
    /// How the devices of several hosts are connected, if the device set states it.
    pub topology: Option<Arc<Topology>>,
    /// Whether transfers do not slow each other down.
    pub is_uncontended: bool,
    /// Devices of one chip share a number.
    pub chips: Vec<u32>,
    /// Threads of the chip that a kernel computes with ([`Device::chip_threads`]), or 0.
    ///
    /// [`Device::chip_threads`]: crate::device::Device::chip_threads
    pub chip_threads: Vec<u32>,
    /// Number of nodes of devices of type CPU that execute at one time.
    pub n_host_threads: u32,
    /// Threads of the host's processor.
    pub n_processors: u32,
    /// Whether the device computes in host memory.
    pub is_in_host_memory: Vec<bool>,
    /// Whether copies to the host and from it slow each other down.
    pub is_half_duplex: Vec<bool>,
    /// Devices of one memory share a number and its capacity.
    pub memory_domain: Vec<u32>,
    /// Bytes that plans may use.
    pub memory_capacity_bytes: Vec<u64>,
    /// The part of these bytes that is free now.
    pub memory_free_bytes: Vec<u64>,
    /// Load, from 0.0 (idle) to 1.0 (saturated).
    pub load: Vec<f64>,
    /// Whether its rates were measured.
    pub is_calibrated: Vec<bool>,
    /// Compute queues.
    pub queues: Vec<u32>,
    /// Priority of the factory that made the device; larger is preferred.
    pub type_preference: Vec<i32>,
}

impl DeviceColumns {
    /// Returns chips as policies see them: devices share a number if one slows the other down. If
    /// the processor has a thread for each of theirs, devices of one chip do not. The number of a
    /// chip is that of its first device.
    pub(crate) fn competing_chips(&self) -> Vec<u32> {
        #[derive(Default)]
        struct Use {
            first: u32,
            n_threads: u64,
            n_of_host: usize,
            has_queues: bool,
        }
        let devices = || (0u32..).zip(&self.chips);
        let mut uses: FxHashMap<u32, Use> = FxHashMap::default();
        for (device, &chip) in devices() {
            let threads = self.chip_threads[device as usize];
            let of_chip = uses.entry(chip).or_insert_with(|| Use {
                first: device,
                ..Use::default()
            });
            of_chip.n_threads += u64::from(threads);
            of_chip.n_of_host += usize::from(self.is_in_host_memory[device as usize]);
            of_chip.has_queues |= threads == 0;
        }
        let number = |(device, chip): (u32, &u32)| {
            let of_chip = &uses[chip];
            let is_enough = !of_chip.has_queues
                && of_chip.n_threads <= u64::from(self.n_processors)
                && of_chip.n_of_host <= self.n_host_threads as usize;
            if is_enough { device } else { of_chip.first }
        };
        devices().map(number).collect()
    }
}

/// Everything that a policy can see of one placement. Immutable; the policy's sandbox, its native
/// build and the check share it and therefore see the same. Clones share their contents.
#[derive(Debug, Clone)]
pub struct Candidates {
    graph: Arc<Graph>,
    device_set: Arc<DeviceSet>,
    nodes: Arc<NodeColumns>,
    devices: Arc<DeviceColumns>,
    options: Arc<[(String, String)]>,
    /// The candidate sets as bits, `u64s_per_set` u64 elements each.
    legal: Arc<[u64]>,
    u64s_per_set: usize,
    host_memory: Arc<HostMemory>,
    origin: Arc<Origin>,
    kernels: Option<Arc<KernelRegistry>>,
}

impl Candidates {
    pub(super) fn new(
        graph: Arc<Graph>,
        device_set: Arc<DeviceSet>,
        nodes: NodeColumns,
        devices: DeviceColumns,
        options: Vec<(String, String)>,
        host_memory: Arc<HostMemory>,
    ) -> Self {
        let u64s_per_set = devices.cost_class.len().div_ceil(64);
        let mut legal = vec![0u64; nodes.sets.n_rows() * u64s_per_set];
        for set in 0..nodes.sets.n_rows() {
            for &device in nodes.sets.row(set) {
                legal[set * u64s_per_set + device as usize / 64] |= 1 << (device % 64);
            }
        }
        Self {
            graph,
            device_set,
            nodes: Arc::new(nodes),
            devices: Arc::new(devices),
            options: options.into(),
            legal: legal.into(),
            u64s_per_set,
            host_memory,
            origin: Arc::new(Origin::Stated),
            kernels: None,
        }
    }

    /// Sets the kernels that execute the graph. Devices may fuse several nodes into one kernel,
    /// which changes the memory of a run.
    #[must_use]
    pub fn with_kernels(mut self, kernels: Arc<KernelRegistry>) -> Self {
        self.kernels = Some(kernels);
        self
    }

    /// Returns the kernels that execute the graph, if this library executes it.
    pub(crate) fn kernels(&self) -> Option<&Arc<KernelRegistry>> {
        self.kernels.as_ref()
    }

    /// Returns the number of concurrent runs for which memory must suffice; at least 1.
    pub(crate) fn n_concurrent_runs(&self) -> u64 {
        let n_runs = match &*self.origin {
            Origin::Enumerated { options, .. } => options.n_concurrent_runs,
            Origin::Stated => 1,
        };
        (n_runs as u64).max(1)
    }

    /// Sets the inputs of [`super::enumerate`], for candidates that an app has not stated itself.
    pub(super) fn with_origin(mut self, origin: Origin) -> Self {
        self.origin = Arc::new(origin);
        self
    }

    /// Returns the inputs other than graph and devices.
    pub(crate) fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Replaces the columns of nodes.
    pub(super) fn with_nodes(&self, nodes: NodeColumns) -> Self {
        let made = Self::new(
            Arc::clone(&self.graph),
            Arc::clone(&self.device_set),
            nodes,
            DeviceColumns::clone(&self.devices),
            self.options.to_vec(),
            Arc::clone(&self.host_memory),
        );
        Self {
            origin: Arc::clone(&self.origin),
            kernels: self.kernels.clone(),
            ..made
        }
    }

    /// Returns the host-memory arguments of nodes on any device.
    pub(crate) fn host_memory(&self) -> &HostMemory {
        &self.host_memory
    }

    /// Whether a node may run on a device; false if there is no such device.
    ///
    /// # Panics
    /// If there is no such node.
    pub fn is_legal(&self, node: NodeId, device: u32) -> bool {
        let set = self.nodes.candidate_set[node.index()] as usize;
        let element = device as usize / 64;
        element < self.u64s_per_set
            && self.legal[set * self.u64s_per_set + element] >> (device % 64) & 1 != 0
    }

    /// Whether an app has stated them ([`super::CandidatesBuilder`]). It executes the nodes itself,
    /// so no caller of this host feeds or fetches.
    pub(crate) fn are_stated(&self) -> bool {
        matches!(*self.origin, Origin::Stated)
    }

    /// Returns the graph.
    pub fn graph(&self) -> &Arc<Graph> {
        &self.graph
    }

    /// Returns the devices.
    pub fn device_set(&self) -> &Arc<DeviceSet> {
        &self.device_set
    }

    /// Returns the number of devices.
    pub fn n_devices(&self) -> usize {
        self.devices.cost_class.len()
    }

    /// Returns the columns of nodes.
    pub fn nodes(&self) -> &NodeColumns {
        &self.nodes
    }

    /// Returns the columns of devices.
    pub fn devices(&self) -> &DeviceColumns {
        &self.devices
    }

    /// Returns open-ended properties: `allow-soft-placement`, `graph-name`, `stated-rates`.
    pub fn options(&self) -> &[(String, String)] {
        &self.options
    }

    /// Returns the legal devices of a node, most preferred first.
    pub fn of_node(&self, node: NodeId) -> &[u32] {
        self.nodes
            .sets
            .row(self.nodes.candidate_set[node.index()] as usize)
    }

    /// Returns the cost of one execution of a node on a device, in ns; +inf if it cannot run there.
    ///
    /// # Panics
    /// If there is no such node or device.
    pub fn cost_ns(&self, node: NodeId, device: DeviceId) -> f64 {
        self.nodes.costs[self.cost_index(node, device)]
    }

    /// Returns the number of measurements behind the cost of a node on a device; 0 if it follows
    /// from the rates of the device.
    ///
    /// # Panics
    /// If there is no such node or device.
    pub fn cost_samples(&self, node: NodeId, device: DeviceId) -> u32 {
        let index = self.cost_index(node, device);
        self.nodes.cost_samples.get(index).copied().unwrap_or(0)
    }

    /// Returns where the cost of a node on a device comes from: the name of a source
    /// ([`crate::cost::CostSource::name`]), or `rates` for the rates of the device.
    ///
    /// # Panics
    /// If there is no such node or device.
    pub fn cost_source(&self, node: NodeId, device: DeviceId) -> &str {
        let number = self.nodes.cost_sources.get(self.cost_index(node, device));
        let number = usize::from(number.copied().unwrap_or(0)).checked_sub(1);
        let name = number.and_then(|number| self.nodes.cost_source_names.get(number));
        name.map_or("rates", String::as_str)
    }

    fn cost_index(&self, node: NodeId, device: DeviceId) -> usize {
        let row = self.nodes.cost_row[node.index()] as usize;
        let class = self.devices.cost_class[device.index()] as usize;
        row * self.devices.n_cost_classes as usize + class
    }

    /// Returns the cost of all expected executions of a node in one run on a device, in ns. 0 if
    /// the node is not executed, even on a device that cannot run it; never NaN.
    ///
    /// # Panics
    /// If there is no such node or device.
    pub fn work_ns(&self, node: NodeId, device: DeviceId) -> f64 {
        let times = self.nodes.executions.get(node.index()).copied();
        match times {
            None => self.cost_ns(node, device),
            Some(0.0) => 0.0,
            Some(times) => times * self.cost_ns(node, device),
        }
    }

    /// Returns the measurements of earlier runs, if the options have any.
    pub fn profile(&self) -> Option<&RunProfile> {
        match &*self.origin {
            Origin::Enumerated { options, .. } => options.profile.as_deref(),
            Origin::Stated => None,
        }
    }

    /// Returns the link between two devices. It costs nothing within one device.
    ///
    /// # Panics
    /// If there is no such device.
    pub fn link(&self, src: DeviceId, dst: DeviceId) -> LinkRates {
        if src == dst {
            return LinkRates {
                latency_ns: 0.0,
                ns_per_byte: 0.0,
            };
        }
        let columns = &self.devices;
        if let Ok(index) = columns
            .link_exceptions
            .binary_search_by_key(&(src, dst), |&(src, dst, _)| (src, dst))
        {
            return columns.link_exceptions[index].2;
        }
        let domain = |device: DeviceId| columns.link_domain[device.index()] as usize;
        columns.links[domain(src) * columns.n_link_domains as usize + domain(dst)]
    }

    /// Returns the full name of a device, for messages.
    pub fn device_name(&self, device: u32) -> &str {
        self.device_set
            .get(DeviceId(device))
            .map_or("<no such device>", |device| &device.attributes().name)
    }
}
