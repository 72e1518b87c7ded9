//! What HEFT reads, laid out in the order in which it reads it.
//!
//! The second phase visits nodes by descending rank, which is no order of the graph's columns: a million nodes would mean some
//! fifteen cache misses each. So tasks, their costs and their edges are copied into the order of the ranks once, with loads
//! that do not wait for each other, and everything afterwards is read from front to back. A task is known by its position in
//! that order.
//!
//! Devices are put into an order of their own too, by cost class, so that a row over devices is filled run by run. A device is
//! known by its *slot* in that order, everywhere but at the edges of this crate: what comes from the host and goes to it.

use placewright_guest::DeviceSet;
use placewright_guest::Graph;
use placewright_guest::LinkMatrix;
use placewright_guest::NONE;
use placewright_guest::algorithm::descending;
use placewright_guest::algorithm::upward_ranks;

/// Up to this many devices every pair is asked for its link, so that exceptions (NVLink between two of eight cards)
/// count; beyond, links are those of the domains.
const DEVICES_ASKED_PAIRWISE: usize = 64;

/// Cost tables that stay in a processor's cache are not copied into the order of the tasks.
const COSTS_IN_CACHE: usize = 32 << 10;

/// Copies of more numbers than this would take too much of a sandbox's memory.
const COSTS_COPIED_MAX: usize = 16 << 20;

/// Rows over devices are padded to a multiple of it with devices that can run nothing, so that loops need no remainder.
pub(crate) const LANES: usize = 4;

/// The graph and the devices.
pub(crate) struct Problem<'a> {
    pub(crate) n_devices: usize,
    /// Number of devices with padding: the length of rows over devices.
    pub(crate) width: usize,
    /// The device of each slot.
    pub(crate) device_at: Vec<u32>,
    /// The slot of each device.
    pub(crate) slot_of: Vec<u32>,
    /// Legal slots, most preferred first, set after set.
    candidates: Vec<u32>,
    candidate_offsets: &'a [u32],
    /// By position.
    pub(crate) tasks: Vec<Task>,
    pub(crate) links: Links,
    /// Positions of the members of each group that has more than one.
    pub(crate) members: Members,
    /// Whether groups or pins take decisions away.
    pub(crate) is_constrained: bool,
    /// Per candidate set: masks and preferences, where it is large enough for loops over all devices.
    pub(crate) dense_sets: Vec<Option<DenseSet>>,
    edges: Vec<Edge>,
    costs: Costs<'a>,
}

/// A node, in the order of the ranks.
#[derive(Clone, Copy)]
pub(crate) struct Task {
    pub(crate) node: u32,
    pub(crate) set: u32,
    pub(crate) group: u32,
    /// Where its edges start; they end where those of the next task start.
    first_edge: u32,
    /// Its row of the costs.
    cost_row: u32,
    executions: f64,
}

/// An edge into a task.
#[derive(Clone, Copy)]
pub(crate) struct Edge {
    pub(crate) bytes: f64,
    /// Position of the producer.
    pub(crate) producer: u32,
}

/// A candidate set as columns over all devices.
pub(crate) struct DenseSet {
    /// 0 for members, +inf for others; empty when all devices are members.
    pub(crate) mask: Vec<f64>,
    /// Position in the order of preference.
    pub(crate) preference: Vec<u32>,
}

/// What a transfer from a device to each device costs.
pub(crate) struct Links {
    domain: Vec<u32>,
    width: usize,
    latency: Vec<f64>,
    ns_per_byte: Vec<f64>,
}

/// Rows of the groups that have more than one member.
#[derive(Default)]
pub(crate) struct Members {
    offsets: Vec<u32>,
    positions: Vec<u32>,
}

/// The cost table, by cost class, and which devices are of which class.
struct Costs<'a> {
    /// Rows in the order of tasks, or empty: then rows are those of `table`.
    copied: Vec<f64>,
    table: &'a [f64],
    /// Class of each slot.
    classes: Vec<u32>,
    n_classes: usize,
    /// Runs of neighbouring slots of one class: class, and where the run ends.
    runs: Vec<(u32, u32)>,
}

impl<'a> Problem<'a> {
    /// Ranks the nodes, the first phase of HEFT, and lays everything out in that order.
    pub(crate) fn new(graph: &'a Graph<'_>, devices: &'a DeviceSet<'_>) -> Self {
        let n_devices = devices.len();
        let width = n_devices.next_multiple_of(LANES);
        let mut device_at: Vec<u32> = devices.ids().collect();
        device_at.sort_by_key(|&device| devices.cost_classes()[device as usize]);
        let mut slot_of = vec![0; n_devices];
        for (slot, &device) in (0_u32..).zip(&device_at) {
            slot_of[device as usize] = slot;
        }
        let links = links(devices);
        let mut costs = Costs::new(graph, devices, &device_at);
        let order = descending(&ranks(graph, devices, &costs, &links));
        let (tasks, edges) = in_order(graph, &order);
        let tasks = costs.copy_in_order(tasks);
        let rows = graph.candidates();
        let to_slot = |&device: &u32| slot_of[device as usize];
        let candidates: Vec<u32> = rows.items.iter().map(to_slot).collect();
        let has_groups = graph.counts().groups as usize != graph.len();
        Self {
            n_devices,
            width,
            dense_sets: dense_sets(rows.offsets, &candidates, n_devices, width),
            candidates,
            candidate_offsets: rows.offsets,
            links: Links::new(&links, &device_at, width),
            members: if has_groups {
                Members::new(&tasks, graph.counts().groups as usize)
            } else {
                Members::default()
            },
            is_constrained: has_groups || graph.pinned().iter().any(|&pin| pin != NONE),
            device_at,
            slot_of,
            tasks,
            edges,
            costs,
        }
    }

    /// Legal slots of a set, most preferred first.
    #[inline]
    pub(crate) fn candidates(&self, set: u32) -> &[u32] {
        let set = set as usize;
        let range = self.candidate_offsets[set] as usize..self.candidate_offsets[set + 1] as usize;
        &self.candidates[range]
    }

    /// The edges into the task at a position.
    #[inline]
    pub(crate) fn edges(&self, position: usize) -> &[Edge] {
        let end = match self.tasks.get(position + 1) {
            Some(next) => next.first_edge as usize,
            None => self.edges.len(),
        };
        &self.edges[self.tasks[position].first_edge as usize..end]
    }

    /// Writes what a task costs on every device, all its executions together; +inf = cannot run there.
    #[inline]
    pub(crate) fn work(&self, task: &Task, into: &mut [f64]) {
        let row = self.costs.row(task.cost_row);
        let mut start = 0;
        for &(class, end) in &self.costs.runs {
            into[start..end as usize].fill(row[class as usize] * task.executions);
            start = end as usize;
        }
    }

    /// What a task costs on one device.
    #[inline]
    pub(crate) fn work_on(&self, task: &Task, slot: u32) -> f64 {
        let class = self.costs.classes[slot as usize];
        self.costs.row(task.cost_row)[class as usize] * task.executions
    }

    /// A lower bound on what any task costs anywhere.
    pub(crate) fn shortest_task(&self) -> f64 {
        let least = |least: f64, value: f64| if value < least { value } else { least };
        let cost = self.costs.table.iter().copied().fold(f64::INFINITY, least);
        let executions = self.tasks.iter().map(|task| task.executions);
        let executions = executions.fold(f64::INFINITY, least);
        if cost.is_finite() && executions.is_finite() {
            cost * executions
        } else {
            0.0
        }
    }
}

impl Links {
    fn new(matrix: &LinkMatrix, device_at: &[u32], width: usize) -> Self {
        let domain_of = |&device: &u32| matrix.domains()[device as usize];
        let domain: Vec<u32> = device_at.iter().map(domain_of).collect();
        let mut links = Self {
            domain: domain.clone(),
            width,
            latency: Vec::with_capacity(matrix.n_domains() * width),
            ns_per_byte: Vec::with_capacity(matrix.n_domains() * width),
        };
        let spread = |row: &[f64], column: &mut Vec<f64>| {
            column.extend(domain.iter().map(|&to| row[to as usize]));
            column.resize(column.len().next_multiple_of(width), 0.0);
        };
        for domain in (0_u32..).take(matrix.n_domains()) {
            spread(matrix.latency_from_ns(domain), &mut links.latency);
            spread(matrix.ns_per_byte_from(domain), &mut links.ns_per_byte);
        }
        links
    }

    /// Latency and ns per byte from a device to each device; what stands at the device itself does not apply.
    #[inline]
    pub(crate) fn from(&self, slot: u32) -> (&[f64], &[f64]) {
        let start = self.domain[slot as usize] as usize * self.width;
        (
            &self.latency[start..start + self.width],
            &self.ns_per_byte[start..start + self.width],
        )
    }
}

impl Members {
    fn new(tasks: &[Task], n_groups: usize) -> Self {
        let mut offsets = vec![0_u32; n_groups + 1];
        for task in tasks {
            offsets[task.group as usize + 1] += 1;
        }
        for group in 0..n_groups {
            offsets[group + 1] += offsets[group];
        }
        let mut next = offsets.clone();
        let mut positions = vec![0; tasks.len()];
        for (position, task) in (0_u32..).zip(tasks) {
            let at = &mut next[task.group as usize];
            positions[*at as usize] = position;
            *at += 1;
        }
        Self { offsets, positions }
    }

    /// The members of a group if it has more than one, else nothing.
    #[inline]
    pub(crate) fn of(&self, group: u32) -> &[u32] {
        if self.positions.is_empty() {
            return &[];
        }
        let group = group as usize;
        let range = self.offsets[group] as usize..self.offsets[group + 1] as usize;
        let members = &self.positions[range];
        if members.len() > 1 { members } else { &[] }
    }
}

impl<'a> Costs<'a> {
    fn new(graph: &'a Graph<'_>, devices: &DeviceSet<'_>, device_at: &[u32]) -> Self {
        let class_of = |&device: &u32| devices.cost_classes()[device as usize];
        let classes: Vec<u32> = device_at.iter().map(class_of).collect();
        let mut runs: Vec<(u32, u32)> = Vec::new();
        for (end, &class) in (1_u32..).zip(&classes) {
            match runs.last_mut() {
                Some(run) if run.0 == class => run.1 = end,
                _ => runs.push((class, end)),
            }
        }
        Self {
            copied: Vec::new(),
            table: graph.costs(),
            classes,
            n_classes: graph.counts().cost_classes as usize,
            runs,
        }
    }

    /// Copies the rows into the order of the tasks, where that pays, and points the tasks there.
    fn copy_in_order(&mut self, mut tasks: Vec<Task>) -> Vec<Task> {
        let size = tasks.len() * self.n_classes;
        if self.table.len() > COSTS_IN_CACHE && size <= COSTS_COPIED_MAX {
            let mut copied = Vec::with_capacity(size);
            for (position, task) in (0_u32..).zip(&mut tasks) {
                copied.extend_from_slice(self.row(task.cost_row));
                task.cost_row = position;
            }
            self.copied = copied;
        }
        tasks
    }

    #[inline]
    fn row(&self, row: u32) -> &[f64] {
        let table = if self.copied.is_empty() {
            self.table
        } else {
            &self.copied
        };
        &table[row as usize * self.n_classes..][..self.n_classes]
    }
}

fn links(devices: &DeviceSet<'_>) -> LinkMatrix {
    if devices.len() <= DEVICES_ASKED_PAIRWISE {
        LinkMatrix::by_device(devices)
    } else {
        LinkMatrix::by_domain(devices)
    }
}

/// The upward rank of each node.
fn ranks(
    graph: &Graph<'_>,
    devices: &DeviceSet<'_>,
    costs: &Costs<'_>,
    links: &LinkMatrix,
) -> Vec<f64> {
    let work = mean_work(graph, devices.cost_classes(), costs);
    upward_ranks(graph, &work, links.mean())
}

/// The ranks of a graph, for tests.
#[cfg(test)]
pub(crate) fn ranks_of(graph: &Graph<'_>, devices: &DeviceSet<'_>) -> Vec<f64> {
    let device_at: Vec<u32> = devices.ids().collect();
    let costs = Costs::new(graph, devices, &device_at);
    ranks(graph, devices, &costs, &links(devices))
}

/// Tasks and edges in the order of the ranks.
fn in_order(graph: &Graph<'_>, order: &[u32]) -> (Vec<Task>, Vec<Edge>) {
    let mut position_of = vec![0_u32; order.len()];
    for (position, &node) in (0_u32..).zip(order) {
        position_of[node as usize] = position;
    }
    let predecessors = graph.predecessors();
    let (tensors, tensor_bytes) = (graph.edge_tensors(), graph.tensor_bytes());
    let (sets, groups) = (graph.candidate_set(), graph.group());
    let (cost_rows, executions) = (graph.cost_row(), graph.executions());
    let mut tasks = Vec::with_capacity(order.len());
    let mut edges = Vec::with_capacity(tensors.len());
    let mut first_edge = 0;
    for &node in order {
        let node_idx = node as usize;
        tasks.push(Task {
            node,
            set: sets[node_idx],
            group: groups[node_idx],
            first_edge,
            cost_row: cost_rows[node_idx],
            executions: executions[node_idx],
        });
        let range = predecessors.range(node);
        first_edge += predecessors.offsets[node_idx + 1] - predecessors.offsets[node_idx];
        let producers = &predecessors.items[range.clone()];
        for (&producer, &tensor) in producers.iter().zip(&tensors[range]) {
            #[expect(clippy::cast_precision_loss, reason = "sizes are below 2^53")]
            let bytes = match tensor {
                NONE => 0.0,
                tensor => tensor_bytes[tensor as usize] as f64,
            };
            edges.push(Edge {
                bytes,
                producer: position_of[producer as usize],
            });
        }
    }
    (tasks, edges)
}

/// The mean over the candidates that can run the node, by way of how many of each cost class a set has.
fn mean_work(graph: &Graph<'_>, classes: &[u32], costs: &Costs<'_>) -> Vec<f64> {
    let candidates = graph.candidates();
    let n_classes = costs.n_classes;
    let mut counts = vec![0.0; candidates.len() * n_classes];
    for set in (0_u32..).take(candidates.len()) {
        let row = &mut counts[set as usize * n_classes..][..n_classes];
        for &device in candidates.row(set) {
            row[classes[device as usize] as usize] += 1.0;
        }
    }
    let mean = |((&row, &set), &executions): ((&u32, &u32), &f64)| {
        let counts = &counts[set as usize * n_classes..][..n_classes];
        let (mut sum, mut n) = (0.0, 0.0);
        for (&cost, &count) in costs.row(row).iter().zip(counts) {
            if count > 0.0 && cost < f64::INFINITY {
                sum += cost * count;
                n += count;
            }
        }
        if n > 0.0 { sum / n * executions } else { 0.0 }
    };
    let rows = graph.cost_row().iter().zip(graph.candidate_set());
    rows.zip(graph.executions()).map(mean).collect()
}

/// Columns for the sets that have at least a quarter of the devices; for smaller ones their list is the better way.
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
