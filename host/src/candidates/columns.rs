//! The columns that a policy may ask for.

use std::sync::Arc;

use crate::candidates::host_memory::HostMemory;
use crate::candidates::origin::Origin;
use crate::device::{DeviceSet, KernelRegistry, LinkProfile};
use crate::graph::{Csr, Graph, NodeId};
use crate::names::DeviceId;

/// Bits of [`NodeColumns::placement_hints`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PlacementHint(pub u8);

impl PlacementHint {
    /// No data inputs (control inputs do not count) and one output that is no reference: decided
    /// after all others.
    pub const GENERATOR: u8 = 1;
    /// `Shape`, `Size`, `Rank`: follows the producer of its input.
    pub const METADATA: u8 = 2;
    /// The op keeps state.
    pub const STATEFUL: u8 = 4;
    /// Calls a function.
    pub const FUNCTION_CALL: u8 = 8;
    /// The node's request was softened.
    pub const SOFTENED: u8 = 16;
    /// An `Identity` or `RefIdentity` that asks for no device, is pinned to none, and has one edge
    /// in and one out, between nodes whose requests are the same text: follows its producer
    /// (TensorFlow 2.21 `MatchIdentityOperation`).
    pub const MATCHING_IDENTITY: u8 = 32;
}

/// What placement knows of the nodes, beyond the graph. One entry per node unless said otherwise.
#[derive(Debug, Clone, Default)]
pub struct NodeColumns {
    /// Row of [`Self::sets`].
    pub candidate_set: Vec<u32>,
    /// The distinct candidate sets: device ids, most preferred first; never empty.
    pub sets: Csr,
    /// Colocation group, dense; a node alone has one of its own.
    pub group: Vec<u32>,
    /// Number of groups.
    pub n_groups: u32,
    /// Device fixed by the user or an earlier placement, or [`crate::graph::NONE`]. Other members
    /// of its group are not pinned themselves: that device is their only candidate.
    pub pinned: Vec<u32>,
    /// [`PlacementHint`] bits.
    pub placement_hints: Vec<u8>,
    /// For metadata ops and matching identities the producer of the first input, else
    /// [`crate::graph::NONE`].
    pub follow: Vec<u32>,
    /// Expected executions in one run, finite and not negative; empty = 1 for all.
    pub executions: Vec<f64>,
    /// The user's wish, larger first; empty = 0 for all.
    pub user_priority: Vec<i32>,
    /// Loop frame, or [`crate::graph::NONE`]; empty = none for all.
    pub frame: Vec<u32>,
    /// The graph's edge kinds with [`crate::graph::EdgeKind::HOST_MEMORY`] added, as if each
    /// consumer went to its most preferred device; per edge. Strings and resources are in host
    /// memory wherever they go.
    pub edge_kinds: Vec<u8>,
    /// Row of [`Self::costs`].
    pub cost_row: Vec<u32>,
    /// Cost of one execution in ns, rows x cost classes, row-major; +inf = cannot run there.
    pub costs: Vec<f64>,
    /// Measurements behind each entry of [`Self::costs`]; empty = estimated, all of them.
    pub cost_samples: Vec<u32>,
}

/// What placement knows of the devices. One entry per device unless said otherwise.
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
    /// Link domain x link domain, row-major. The diagonal is what two different devices of one
    /// domain pay.
    pub links: Vec<LinkProfile>,
    /// Pairs that differ from their domains' link: (source, destination, link), sorted.
    pub link_exceptions: Vec<(DeviceId, DeviceId, LinkProfile)>,
    /// Devices of one chip share a number.
    pub chips: Vec<u32>,
    /// Devices of one memory share a number and its capacity.
    pub memory_domain: Vec<u32>,
    /// Bytes that plans may use.
    pub memory_capacity_bytes: Vec<u64>,
    /// Of these, free now.
    pub memory_free_bytes: Vec<u64>,
    /// 0.0 idle .. 1.0 saturated.
    pub load: Vec<f64>,
    /// Whether rates were measured.
    pub is_calibrated: Vec<bool>,
    /// Compute queues.
    pub queues: Vec<u32>,
    /// Priority of the factory that made the device; larger is preferred.
    pub type_preference: Vec<i32>,
}

/// All that a policy may know about one placement. Made by [`crate::candidates`], immutable; shared
/// by the policy's sandbox, its native twin and the check, which therefore see the same. Cloning
/// shares.
#[derive(Debug, Clone)]
pub struct Candidates {
    graph: Arc<Graph>,
    device_set: Arc<DeviceSet>,
    nodes: Arc<NodeColumns>,
    devices: Arc<DeviceColumns>,
    options: Arc<[(String, String)]>,
    /// The candidate sets as bits, `words_per_set` words each.
    legal: Arc<[u64]>,
    words_per_set: usize,
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
        let words_per_set = devices.cost_class.len().div_ceil(64);
        let mut legal = vec![0u64; nodes.sets.n_rows() * words_per_set];
        for set in 0..nodes.sets.n_rows() {
            for &device in nodes.sets.row(set) {
                legal[set * words_per_set + device as usize / 64] |= 1 << (device % 64);
            }
        }
        Self {
            graph,
            device_set,
            nodes: Arc::new(nodes),
            devices: Arc::new(devices),
            options: options.into(),
            legal: legal.into(),
            words_per_set,
            host_memory,
            origin: Arc::new(Origin::Stated),
            kernels: None,
        }
    }

    /// The same, for a graph that is executed with these kernels: devices may compute several nodes
    /// with one, and what a run holds depends on that.
    #[must_use]
    pub fn with_kernels(mut self, kernels: Arc<KernelRegistry>) -> Self {
        self.kernels = Some(kernels);
        self
    }

    /// The kernels that execute the graph, where it is executed by this library.
    pub(crate) fn kernels(&self) -> Option<&Arc<KernelRegistry>> {
        self.kernels.as_ref()
    }

    /// Runs that memory must suffice for at one time; at least 1.
    pub(crate) fn n_concurrent_runs(&self) -> u64 {
        let n_runs = match &*self.origin {
            Origin::Enumerated { options, .. } => options.n_concurrent_runs,
            Origin::Stated => 1,
        };
        (n_runs as u64).max(1)
    }

    /// The same, not stated by an app but made so.
    pub(super) fn with_origin(mut self, origin: Origin) -> Self {
        self.origin = Arc::new(origin);
        self
    }

    /// What they were made from, beside graph and devices.
    pub(crate) fn origin(&self) -> &Origin {
        &self.origin
    }

    /// The same, of other columns for the nodes.
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

    /// Host-memory arguments of nodes on any device.
    pub(crate) fn host_memory(&self) -> &HostMemory {
        &self.host_memory
    }

    /// Whether a node may run on a device; false if there is no such device.
    ///
    /// # Panics
    /// If there is no such node.
    pub fn is_legal(&self, node: NodeId, device: u32) -> bool {
        let set = self.nodes.candidate_set[node.index()] as usize;
        let word = device as usize / 64;
        word < self.words_per_set
            && self.legal[set * self.words_per_set + word] >> (device % 64) & 1 != 0
    }

    /// The graph.
    pub fn graph(&self) -> &Arc<Graph> {
        &self.graph
    }

    /// The devices.
    pub fn device_set(&self) -> &Arc<DeviceSet> {
        &self.device_set
    }

    /// Number of devices.
    pub fn n_devices(&self) -> usize {
        self.devices.cost_class.len()
    }

    /// Columns of nodes.
    pub fn nodes(&self) -> &NodeColumns {
        &self.nodes
    }

    /// Columns of devices.
    pub fn devices(&self) -> &DeviceColumns {
        &self.devices
    }

    /// Open-ended facts: `allow-soft-placement`, `graph-name`.
    pub fn options(&self) -> &[(String, String)] {
        &self.options
    }

    /// Legal devices of a node, most preferred first.
    pub fn of_node(&self, node: NodeId) -> &[u32] {
        self.nodes
            .sets
            .row(self.nodes.candidate_set[node.index()] as usize)
    }

    /// Cost of one execution of a node on a device, in ns; +inf = cannot run there.
    ///
    /// # Panics
    /// If there is no such node or device.
    pub fn cost_ns(&self, node: NodeId, device: DeviceId) -> f64 {
        let row = self.nodes.cost_row[node.index()] as usize;
        let class = self.devices.cost_class[device.index()] as usize;
        self.nodes.costs[row * self.devices.n_cost_classes as usize + class]
    }

    /// Cost of all expected executions of a node in one run on a device, in ns. Nothing is executed
    /// for free, also where it could not run at all; never NaN.
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

    /// The link between two devices; free within one device.
    ///
    /// # Panics
    /// If there is no such device.
    pub fn link(&self, src: DeviceId, dst: DeviceId) -> LinkProfile {
        if src == dst {
            return LinkProfile {
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

    /// Full name of a device, for messages.
    pub fn device_name(&self, device: u32) -> &str {
        self.device_set
            .get(DeviceId(device))
            .map_or("<no such device>", |device| &device.attributes().name)
    }
}
