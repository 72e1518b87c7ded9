//! The input of HEFT, laid out in the order in which HEFT reads it.
//!
//! The second phase visits nodes by descending rank, which is not the order of the graph's columns.
//! With a million nodes, each node would cost some fifteen cache misses, one after the other. So
//! the next thousand tasks, their edges and their costs are first copied into a [`Window`], with
//! independent loads. The window is small enough to stay in a near cache.
//!
//! Devices are sorted by cost class. Within this crate a device is identified by its *slot* in that
//! order; only the host's input and the result use device ids.

use placewright_guest::DeviceSet;
use placewright_guest::Graph;
use placewright_guest::LinkMatrix;
use placewright_guest::NONE;
use placewright_guest::algorithm::Members;
use placewright_guest::algorithm::Rows;
use placewright_guest::algorithm::descending;
use placewright_guest::algorithm::mean_work;
use placewright_guest::algorithm::upward_ranks;
use placewright_guest::memory::free_constants;
use placewright_guest::schedule::lanes::LANES;
use placewright_guest::schedule::lanes::later;

/// Tasks per window.
pub(crate) const WINDOW: usize = 1024;

/// The graph and the devices.
pub(crate) struct Problem<'a> {
    /// Number of devices, padded: the length of rows over devices.
    pub(crate) width: usize,
    /// The device of each slot.
    pub(crate) device_at: Vec<u32>,
    /// The slot of each device.
    pub(crate) slot_of: Vec<u32>,
    /// Legal slots of each set, most preferred first, concatenated.
    candidates: Vec<u32>,
    candidate_offsets: &'a [u32],
    /// Nodes by descending rank.
    pub(crate) order: Vec<u32>,
    /// Rough estimate of the schedule's end.
    pub(crate) horizon: f64,
    pub(crate) links: Links,
    /// The members of each group that has more than one.
    pub(crate) members: Members,
    /// Whether each node is a constant that is not scheduled.
    pub(crate) is_free_constant: Vec<bool>,
    /// Whether each node is a constant. Its readers do not wait for it.
    is_constant: Vec<bool>,
    /// Whether groups or pins restrict the choice.
    pub(crate) is_constrained: bool,
    /// Masks and preferences of each candidate set that is large enough for loops over all
    /// devices.
    pub(crate) dense_sets: Vec<Option<DenseSet>>,
    nodes: Nodes<'a>,
    costs: Costs<'a>,
}

/// The graph's columns, per node.
struct Nodes<'a> {
    predecessors: Rows<'a>,
    edge_tensors: &'a [u32],
    tensor_bytes: &'a [u64],
    set: &'a [u32],
    group: &'a [u32],
    cost_row: &'a [u32],
    executions: &'a [f64],
}

/// Consecutive tasks in rank order.
#[derive(Default)]
pub(crate) struct Window {
    pub(crate) tasks: Vec<Task>,
    edges: Vec<Edge>,
    /// A row per task and a column per cost class: ns of all executions together.
    costs: Vec<f64>,
}

/// A node that is about to be placed.
#[derive(Clone, Copy)]
pub(crate) struct Task {
    pub(crate) node: u32,
    pub(crate) set: u32,
    pub(crate) group: u32,
    /// The task's index in the window.
    index: u32,
    /// The range of the task's edges in the window.
    first_edge: u32,
    end_edge: u32,
}

/// An edge into a task.
#[derive(Clone, Copy)]
pub(crate) struct Edge {
    pub(crate) bytes: f64,
    /// How often the tensor is transferred; positive, because 0 times an infinite cost is no
    /// number.
    pub(crate) times: f64,
    pub(crate) producer: u32,
}

/// A candidate set as columns over all devices.
pub(crate) struct DenseSet {
    /// 0 for members, +inf for others; empty when all devices are members.
    pub(crate) mask: Vec<f64>,
    /// Position in the order of preference.
    pub(crate) preference: Vec<u32>,
}

/// The cost of a transfer from one device to each device.
pub(crate) struct Links {
    /// Whether the rows are 0 for a transfer from a device to itself, as the rules require.
    pub(crate) is_free_at_home: bool,
    domain: Vec<u32>,
    width: usize,
    latency: Vec<f64>,
    ns_per_byte: Vec<f64>,
}

/// The cost table by cost class, and the class of each device.
struct Costs<'a> {
    table: &'a [f64],
    /// Cost class of each slot.
    classes: Vec<u32>,
    n_classes: usize,
}

impl<'a> Problem<'a> {
    /// Ranks the nodes, the first phase of HEFT, and lays out the input in rank order.
    pub(crate) fn new(graph: &'a Graph<'_>, devices: &'a DeviceSet<'_>) -> Self {
        let n_devices = devices.len();
        let width = n_devices.next_multiple_of(LANES);
        let mut device_at: Vec<u32> = devices.ids().collect();
        device_at.sort_by_key(|&device| devices.cost_classes()[device as usize]);
        let mut slot_of = vec![0; n_devices];
        for (slot, &device) in (0_u32..).zip(&device_at) {
            slot_of[device as usize] = slot;
        }
        let links = LinkMatrix::new(devices);
        let costs = Costs::new(graph, devices, &device_at);
        let work = mean_work(graph, devices);
        let ranks = upward_ranks(graph, &work, links.mean());
        let is_free_constant = free_constants(graph);
        let mut order = descending(&ranks);
        order.retain(|&node| !is_free_constant[node as usize]);
        let rows = graph.candidates();
        let to_slot = |&device: &u32| slot_of[device as usize];
        let candidates: Vec<u32> = rows.items.iter().map(to_slot).collect();
        let has_groups = graph.counts().groups as usize != graph.len();
        Self {
            width,
            dense_sets: dense_sets(rows.offsets, &candidates, n_devices, width),
            candidates,
            candidate_offsets: rows.offsets,
            links: Links::new(&links, &device_at, width),
            members: Members::new(graph),
            is_constrained: has_groups || graph.pinned().iter().any(|&pin| pin != NONE),
            device_at,
            slot_of,
            horizon: horizon(&work, &ranks, n_devices),
            is_constant: graph.constants(),
            is_free_constant,
            order,
            nodes: Nodes {
                predecessors: graph.predecessors(),
                edge_tensors: graph.edge_tensors(),
                tensor_bytes: graph.tensor_bytes(),
                set: graph.candidate_set(),
                group: graph.group(),
                cost_row: graph.cost_row(),
                executions: graph.executions(),
            },
            costs,
        }
    }

    /// Copies the tasks of some nodes into a window.
    #[inline(never)]
    pub(crate) fn look_ahead(&self, order: &[u32], window: &mut Window) {
        let Self { nodes, costs, .. } = self;
        window.tasks.clear();
        window.edges.clear();
        window.costs.clear();
        for (index, &node) in (0_u32..).zip(order) {
            let node_idx = node as usize;
            let first_edge = to_u32(window.edges.len());
            let range = nodes.predecessors.range(node);
            let producers = &nodes.predecessors.items[range.clone()];
            let edges = producers.iter().zip(&nodes.edge_tensors[range]);
            let edges = edges.filter(|(producer, _)| !self.is_constant[**producer as usize]);
            window.edges.extend(edges.map(|(&producer, &tensor)| {
                #[expect(clippy::cast_precision_loss, reason = "sizes are below 2^53")]
                let bytes = match tensor {
                    NONE => 0.0,
                    tensor => nodes.tensor_bytes[tensor as usize] as f64,
                };
                let times = nodes.executions[producer as usize].max(f64::MIN_POSITIVE);
                Edge {
                    bytes,
                    times,
                    producer,
                }
            }));
            window.tasks.push(Task {
                node,
                set: nodes.set[node_idx],
                group: nodes.group[node_idx],
                index,
                first_edge,
                end_edge: to_u32(window.edges.len()),
            });
            let executions = nodes.executions[node_idx];
            let row = costs.row(nodes.cost_row[node_idx]).iter();
            window.costs.extend(row.map(|&cost| cost * executions));
        }
    }

    /// Returns the legal slots of a set, most preferred first.
    #[inline]
    pub(crate) fn candidates(&self, set: u32) -> &[u32] {
        let set = set as usize;
        let range = self.candidate_offsets[set] as usize..self.candidate_offsets[set + 1] as usize;
        &self.candidates[range]
    }

    /// Writes the cost of a task of the window on every device, all its executions together. +inf
    /// means that it cannot run there.
    #[inline(never)]
    pub(crate) fn work(&self, window: &Window, task: &Task, into: &mut [f64]) {
        let n_classes = self.costs.n_classes;
        let row = &window.costs[task.index as usize * n_classes..][..n_classes];
        for (work, &class) in into.iter_mut().zip(&self.costs.classes) {
            *work = row[class as usize];
        }
    }

    /// Returns the cost of a node on one device.
    #[inline]
    pub(crate) fn work_on(&self, node: u32, slot: u32) -> f64 {
        let class = self.costs.classes[slot as usize];
        let row = self.costs.row(self.nodes.cost_row[node as usize]);
        row[class as usize] * self.nodes.executions[node as usize]
    }

    /// Returns a lower bound on the cost of any task on any device.
    pub(crate) fn shortest_task(&self) -> f64 {
        let least = |least: f64, value: f64| if value < least { value } else { least };
        let cost = self.costs.table.iter().copied().fold(f64::INFINITY, least);
        let executions = self.nodes.executions.iter().copied();
        let executions = executions.fold(f64::INFINITY, least);
        if cost.is_finite() && executions.is_finite() {
            cost * executions
        } else {
            0.0
        }
    }
}

impl Window {
    /// Returns the edges into a task.
    #[inline]
    pub(crate) fn edges(&self, task: &Task) -> &[Edge] {
        &self.edges[task.first_edge as usize..task.end_edge as usize]
    }
}

impl Links {
    fn new(matrix: &LinkMatrix, device_at: &[u32], width: usize) -> Self {
        let domain_of = |&device: &u32| matrix.domains()[device as usize];
        let domain: Vec<u32> = device_at.iter().map(domain_of).collect();
        let is_free = |domain| {
            let to_itself = domain as usize;
            matrix.latency_from_ns(domain)[to_itself] == 0.0
                && matrix.ns_per_byte_from(domain)[to_itself] == 0.0
        };
        let mut links = Self {
            is_free_at_home: domain.iter().all(|&domain| is_free(domain)),
            domain: domain.clone(),
            width,
            latency: Vec::with_capacity(matrix.n_domains() * width),
            ns_per_byte: Vec::with_capacity(matrix.n_domains() * width),
        };
        // Devices that are not connected have an infinite rate; zero bytes times infinity would be
        // NaN.
        let finite = |value: f64| value.min(f64::MAX);
        let spread = |row: &[f64], column: &mut Vec<f64>| {
            column.extend(domain.iter().map(|&to| finite(row[to as usize])));
            column.resize(column.len().next_multiple_of(width), 0.0);
        };
        for domain in (0_u32..).take(matrix.n_domains()) {
            spread(matrix.latency_from_ns(domain), &mut links.latency);
            spread(matrix.ns_per_byte_from(domain), &mut links.ns_per_byte);
        }
        links
    }

    /// Returns latency and ns per byte from a device to each device. The entry of the device itself
    /// does not apply unless it is 0.
    #[inline]
    pub(crate) fn from(&self, slot: u32) -> (&[f64], &[f64]) {
        let start = self.domain[slot as usize] as usize * self.width;
        (
            &self.latency[start..start + self.width],
            &self.ns_per_byte[start..start + self.width],
        )
    }
}

impl<'a> Costs<'a> {
    fn new(graph: &'a Graph<'_>, devices: &DeviceSet<'_>, device_at: &[u32]) -> Self {
        let class_of = |&device: &u32| devices.cost_classes()[device as usize];
        let classes: Vec<u32> = device_at.iter().map(class_of).collect();
        Self {
            table: graph.costs(),
            classes,
            n_classes: graph.counts().cost_classes as usize,
        }
    }

    #[inline]
    fn row(&self, row: u32) -> &'a [f64] {
        &self.table[row as usize * self.n_classes..][..self.n_classes]
    }
}

/// Returns 1.5 times the longest path through the graph, or 1.5 times all work divided among the
/// devices if that is longer.
#[expect(clippy::cast_precision_loss, reason = "a rough number")]
fn horizon(work: &[f64], ranks: &[f64], n_devices: usize) -> f64 {
    let longest = ranks.iter().copied().fold(0.0, later);
    let shared: f64 = work.iter().sum::<f64>() / n_devices as f64;
    1.5 * later(longest, shared)
}

/// Returns the ranks of a graph, for tests.
#[cfg(test)]
pub(crate) fn ranks_of(graph: &Graph<'_>, devices: &DeviceSet<'_>) -> Vec<f64> {
    let work = mean_work(graph, devices);
    upward_ranks(graph, &work, LinkMatrix::new(devices).mean())
}

/// Builds columns for the sets that contain at least a quarter of the devices; for smaller sets,
/// their list is faster.
fn dense_sets(
    offsets: &[u32],
    candidates: &[u32],
    n_devices: usize,
    width: usize,
) -> Vec<Option<DenseSet>> {
    let dense = |bounds: &[u32]| {
        let slots = &candidates[bounds[0] as usize..bounds[1] as usize];
        if slots.len() * 4 < n_devices {
            return None;
        }
        let mut mask = vec![f64::INFINITY; width];
        let mut preference = vec![u32::MAX; width];
        for (position, &slot) in (0_u32..).zip(slots) {
            mask[slot as usize] = 0.0;
            preference[slot as usize] = position;
        }
        if slots.len() == n_devices {
            mask.clear();
        }
        Some(DenseSet { mask, preference })
    };
    offsets.windows(2).map(dense).collect()
}

fn to_u32(index: usize) -> u32 {
    u32::try_from(index).expect("a graph has fewer than 2^32 edges")
}
