//! Tracks memory while a graph is placed. This approximates the host's rule `memory` before all
//! nodes have a device.
//!
//! Each node on its most preferred device that has room; constants are counted at their readers:
//!
//! ```
//! use placewright_guest::memory::{free_constants, place_constants};
//! use placewright_guest::{Assignment, DeviceSet, Graph, MemoryBudget, PlaceError, Plan, Policy};
//!
//! #[derive(Default)]
//! struct FirstWithRoom;
//!
//! impl Policy for FirstWithRoom {
//!     const NAME: &'static str = "first-with-room";
//!
//!     fn place(&mut self, graph: &Graph<'_>, devices: &DeviceSet<'_>, plan: &Plan<'_>, _seed: u64) -> Result<(), PlaceError> {
//!         let mut budget = MemoryBudget::new(graph, devices);
//!         let mut assignment = Assignment::new(graph);
//!         let is_free = free_constants(graph); // their own device changes nothing
//!         for node in graph.nodes().filter(|&node| !is_free[node as usize]) {
//!             let group = graph.group()[node as usize];
//!             let legal = graph.candidates_of(node);
//!             let has_room = |device: &&u32| budget.fits(group, **device);
//!             let wanted = *legal.iter().find(has_room).unwrap_or(&legal[0]);
//!             budget.take(group, assignment.decide(node, wanted));
//!         }
//!         let mut placed = assignment.devices().to_vec();
//!         place_constants(graph, &is_free, &mut placed);
//!         Ok(plan.offer_devices(&placed)?)
//!     }
//! }
//!
//! # use placewright_guest::testing::{GraphBuilder, cluster, place};
//! let devices = cluster("2xCPU").with_memory(0, 100);
//! let mut graph = GraphBuilder::new(&devices);
//! for name in ["a", "b"] {
//!     let weights = graph.constant("weights", 80);
//!     let node = graph.node(name, &[1.0]);
//!     graph.edge(weights, node, 80);
//! }
//! let offer = place(&mut FirstWithRoom, &graph.build(), &devices)?;
//! assert_eq!(offer.devices, [0, 0, 1, 1]);
//! # Ok::<(), PlaceError>(())
//! ```

mod streaming;

use crate::NONE;
use crate::algorithm::Assignment;
use crate::devices::DeviceSet;
use crate::graph::Graph;
use crate::plan::Plan;

pub use streaming::stream;

/// The free memory of the devices, per memory domain, while groups are placed.
///
/// Counts resident bytes and the largest workspace. A constant ([`Graph::constants`]) counts on
/// each device that reads it, wherever its own node is. The tensors of a run also need memory,
/// which depends on the whole plan: ask the host with [`Plan::peak_bytes_per_device`], and reserve
/// it with [`Self::reserve`].
#[derive(Debug, Clone)]
pub struct MemoryBudget {
    domain: Vec<u32>,
    /// Capacity less resident bytes.
    free_bytes: Vec<u64>,
    /// Largest workspace of the placed groups.
    workspace_bytes: Vec<u64>,
    /// State of each group.
    group_bytes: Vec<u64>,
    /// Largest workspace of each group.
    group_workspace_bytes: Vec<u64>,
    /// The constants that each group reads, group after group.
    reads: Vec<u32>,
    read_offsets: Vec<u32>,
    constant_bytes: Vec<u64>,
    /// Devices that hold each constant.
    held_on: Vec<Vec<u32>>,
    /// Resident bytes of the placed groups, per device.
    staying_bytes: Vec<u64>,
}

impl MemoryBudget {
    /// Creates a budget with the whole capacity of every memory, less the pinned groups.
    pub fn new(graph: &Graph<'_>, devices: &DeviceSet<'_>) -> Self {
        let domain = devices.memory_domains().to_vec();
        let free_bytes = capacities(devices);
        let n_groups = graph.counts().groups as usize;
        let is_constant = graph.constants();
        let resident_bytes = graph.resident_bytes();
        let mut group_bytes = vec![0_u64; n_groups];
        let mut group_workspace_bytes = vec![0_u64; n_groups];
        let mut pairs: Vec<(u32, u32)> = Vec::new();
        for node in graph.nodes() {
            let (group, node_idx) = (graph.group()[node as usize], node as usize);
            if !is_constant[node_idx] {
                let sum = &mut group_bytes[group as usize];
                *sum = sum.saturating_add(resident_bytes[node_idx]);
            }
            let most = &mut group_workspace_bytes[group as usize];
            *most = graph.workspace_bytes()[node_idx].max(*most);
            let constants = constants_read(graph, &is_constant, node);
            pairs.extend(constants.map(|constant| (group, constant)));
        }
        pairs.sort_unstable();
        pairs.dedup();
        let mut read_offsets = vec![0_u32; n_groups + 1];
        for &(group, _) in &pairs {
            read_offsets[group as usize + 1] += 1;
        }
        for group in 0..n_groups {
            read_offsets[group + 1] += read_offsets[group];
        }
        let constant_bytes: Vec<u64> = is_constant
            .iter()
            .zip(resident_bytes)
            .map(|(&is_constant, &bytes)| if is_constant { bytes } else { 0 })
            .collect();
        let mut budget = Self {
            workspace_bytes: vec![0; free_bytes.len()],
            staying_bytes: vec![0; domain.len()],
            domain,
            free_bytes,
            group_bytes,
            group_workspace_bytes,
            reads: pairs.into_iter().map(|(_, constant)| constant).collect(),
            read_offsets,
            held_on: vec![Vec::new(); constant_bytes.len()],
            constant_bytes,
        };
        for (&group, &pin) in graph.group().iter().zip(graph.pinned()) {
            if pin != NONE {
                budget.take(group, pin);
            }
        }
        budget
    }

    /// Creates the same budget, less the bytes that are reserved on each device.
    pub fn with_reserved(graph: &Graph<'_>, devices: &DeviceSet<'_>, reserved: &[u64]) -> Self {
        let mut budget = Self::new(graph, devices);
        for (device, &bytes) in devices.ids().zip(reserved) {
            budget.reserve(device, bytes);
        }
        budget
    }

    /// Returns the same budget, in which [`Self::take`] never allocates: decisions online must not.
    #[must_use]
    pub fn without_allocations(mut self, n_devices: usize) -> Self {
        let of_constants = self.held_on.iter_mut().zip(&self.constant_bytes);
        for (held_on, _) in of_constants.filter(|(_, bytes)| **bytes > 0) {
            held_on.reserve(n_devices);
        }
        self
    }

    /// Returns whether a group fits on a device: its state, the constants that it reads and the
    /// device does not hold yet, and the workspace of each of its nodes.
    #[inline]
    pub fn fits(&self, group: u32, device: u32) -> bool {
        let domain = self.domain[device as usize] as usize;
        let workspace =
            self.group_workspace_bytes[group as usize].max(self.workspace_bytes[domain]);
        let missing = self.missing_constants(group, device);
        let missing = missing.map(|constant| self.constant_bytes[constant as usize]);
        let bytes = missing.fold(self.group_bytes[group as usize], u64::saturating_add);
        bytes.saturating_add(workspace) <= self.free_bytes[domain]
    }

    /// Returns the free bytes in the memory of a device, less the largest workspace.
    #[inline]
    pub fn free_bytes(&self, device: u32) -> u64 {
        let domain = self.domain[device as usize] as usize;
        self.free_bytes[domain].saturating_sub(self.workspace_bytes[domain])
    }

    /// Places a group on a device. Does nothing if the group is placed already, so it can be called
    /// for every member.
    #[inline]
    pub fn take(&mut self, group: u32, device: u32) {
        let mut bytes = std::mem::take(&mut self.group_bytes[group as usize]);
        let offsets = &self.read_offsets[group as usize..];
        for &constant in &self.reads[offsets[0] as usize..offsets[1] as usize] {
            let held_on = &mut self.held_on[constant as usize];
            if !held_on.contains(&device) {
                held_on.push(device);
                bytes = bytes.saturating_add(self.constant_bytes[constant as usize]);
            }
        }
        self.reserve(device, bytes);
        let staying = &mut self.staying_bytes[device as usize];
        *staying = staying.saturating_add(bytes);
        let largest = &mut self.workspace_bytes[self.domain[device as usize] as usize];
        *largest = self.group_workspace_bytes[group as usize].max(*largest);
    }

    /// Places every group as in a plan.
    pub fn take_all(&mut self, graph: &Graph<'_>, devices: &[u32]) {
        for (&group, &device) in graph.group().iter().zip(devices) {
            self.take(group, device);
        }
    }

    /// Raises the `reserved` bytes of each device to the memory that the current plan needs beyond
    /// the resident bytes, by the host's estimate, plus a quarter: moving nodes away changes the
    /// needs of the others. Call it after the host has refused a plan, on a budget in which all
    /// groups are placed, and use the result for the next attempt.
    pub fn set_aside(&self, reserved: &mut [u64], plan: &Plan<'_>) {
        let peaks = plan.peak_bytes_per_device();
        for ((reserved, &staying), peak) in reserved.iter_mut().zip(&self.staying_bytes).zip(peaks)
        {
            let beyond = peak.saturating_sub(staying);
            *reserved = beyond.max(*reserved).saturating_add(beyond / 4 + 1);
        }
    }

    /// Returns the resident bytes of a device: state, and the constants that its nodes read.
    pub fn staying_bytes(&self, device: u32) -> u64 {
        self.staying_bytes[device as usize]
    }

    /// Reserves `bytes` of a device's memory for other uses. Stops at zero free bytes.
    #[inline]
    pub fn reserve(&mut self, device: u32, bytes: u64) {
        let free = &mut self.free_bytes[self.domain[device as usize] as usize];
        *free = free.saturating_sub(bytes);
    }

    /// Returns the constants that a group reads and a device does not hold.
    fn missing_constants(&self, group: u32, device: u32) -> impl Iterator<Item = u32> + '_ {
        let group = group as usize;
        let range = self.read_offsets[group] as usize..self.read_offsets[group + 1] as usize;
        let reads = self.reads[range].iter().copied();
        reads.filter(move |&constant| !self.held_on[constant as usize].contains(&device))
    }
}

/// Returns whether some memory might lack room for what stays there between runs, and for the
/// workspace of one node: it has room for less than all nodes that are not pinned elsewhere. If
/// not, a [`MemoryBudget`] refuses nothing.
pub fn is_tight(graph: &Graph<'_>, devices: &DeviceSet<'_>) -> bool {
    let sum = |sum: u64, bytes: u64| sum.saturating_add(bytes);
    let workspaces = graph.workspace_bytes().iter().copied();
    let resident = graph.resident_bytes().iter().copied();
    let all = resident.fold(workspaces.max().unwrap_or(0), sum);
    let (domains, capacities) = (devices.memory_domains(), capacities(devices));
    if capacities.iter().all(|&capacity| capacity >= all) {
        return false;
    }
    // Devices that read a pinned constant hold copies of it.
    let is_constant = graph.constants();
    let mut pinned = vec![0_u64; capacities.len()];
    let columns = graph.pinned().iter().zip(graph.resident_bytes());
    for (_, (&pin, &bytes)) in is_constant.iter().zip(columns).filter(|(is, _)| !**is) {
        if pin != NONE {
            let of_domain = &mut pinned[domains[pin as usize] as usize];
            *of_domain = sum(*of_domain, bytes);
        }
    }
    let all_pinned = pinned.iter().copied().fold(0, sum);
    capacities.iter().zip(pinned).any(|(&capacity, own)| {
        let elsewhere = all_pinned.saturating_sub(own);
        capacity < all.saturating_sub(elsewhere)
    })
}

/// Returns for each node the bytes of the constants ([`Graph::constants`]) that it reads. A device
/// holds a constant once for all its readers there, so sums over nodes count shared ones again:
/// [`MemoryBudget`] does not.
pub fn constant_bytes_read(graph: &Graph<'_>) -> Vec<u64> {
    let is_constant = graph.constants();
    let bytes = graph.resident_bytes();
    let of_node = |node: u32| {
        let mut read: Vec<u32> = constants_read(graph, &is_constant, node).collect();
        read.sort_unstable();
        read.dedup();
        let sizes = read.iter().map(|&constant| bytes[constant as usize]);
        sizes.fold(0, u64::saturating_add)
    };
    graph.nodes().map(of_node).collect()
}

/// Returns the constants that a node reads, one per edge, also behind identities; those do not run
/// and read none.
fn constants_read<'a>(
    graph: &'a Graph<'_>,
    is_constant: &'a [bool],
    node: u32,
) -> impl Iterator<Item = u32> + 'a {
    let tensors = &graph.edge_tensors()[graph.predecessors().range(node)];
    let producers = graph.predecessors().row(node).iter().zip(tensors);
    let runs = !is_constant[node as usize];
    let read = producers
        .filter(move |&(&from, &tensor)| runs && tensor != NONE && is_constant[from as usize]);
    read.map(|(&from, _)| {
        let mut constant = from;
        while let Some(&producer) = graph.predecessors().row(constant).first() {
            constant = producer;
        }
        constant
    })
}

/// Returns for each node whether it is a free constant: a constant ([`Graph::constants`]) that is
/// not pinned and has no partners in its group. Its device only matters in reports.
pub fn free_constants(graph: &Graph<'_>) -> Vec<bool> {
    let mut n_members = vec![0_u32; graph.counts().groups as usize];
    for &group in graph.group() {
        n_members[group as usize] += 1;
    }
    let mut is_free = graph.constants();
    for (is_free, (&group, &pin)) in is_free
        .iter_mut()
        .zip(graph.group().iter().zip(graph.pinned()))
    {
        *is_free &= n_members[group as usize] == 1 && pin == NONE;
    }
    is_free
}

/// Places each free constant on the device of its first reader that is legal for it, so that
/// reports show where it is held. `devices` has one entry per node; all but those of the constants
/// are decided.
pub fn place_constants(graph: &Graph<'_>, is_free: &[bool], devices: &mut [u32]) {
    let successors = graph.successors();
    // Readers first: identities of constants are among them.
    for node in graph.nodes().rev().filter(|&node| is_free[node as usize]) {
        let legal = graph.candidates_of(node);
        let mut readers = successors
            .row(node)
            .iter()
            .map(|&reader| devices[reader as usize]);
        let reader = readers.find(|device| legal.contains(device));
        devices[node as usize] = reader.unwrap_or(legal[0]);
    }
}

/// Returns a device per node, in stages of nodes in import order: [`fill`] in the order of ids.
/// This is the fallback if memory is so short that only plans with few copies fit.
pub fn contiguous_stages(graph: &Graph<'_>, devices: &DeviceSet<'_>, plan: &Plan<'_>) -> Vec<u32> {
    let order: Vec<u32> = devices.ids().collect();
    fill(graph, devices, plan, &order)
}

/// Fills devices one after the other, in this order, with consecutive nodes, producers first: each
/// takes as many as its memory holds. Nodes that may not run there go to their most preferred
/// device. Asks the host about `16 * devices` times for the peaks of a plan. Only an offer shows
/// whether the plan fits.
pub fn fill(
    graph: &Graph<'_>,
    devices: &DeviceSet<'_>,
    plan: &Plan<'_>,
    order: &[u32],
) -> Vec<u32> {
    let capacity = capacities(devices);
    let domains = devices.memory_domains();
    let n_nodes = graph.len();
    let is_free = free_constants(graph);
    plan.set_start_order(&vec![0; n_nodes]);
    // End of each stage.
    let mut ends: Vec<usize> = Vec::new();
    for (position, &device) in order.iter().enumerate() {
        let start = ends.last().copied().unwrap_or(0);
        let is_last = position + 1 == order.len();
        if is_last || start == n_nodes {
            ends.push(n_nodes);
            continue;
        }
        let domain = domains[device as usize];
        let fits = |end: usize| {
            let mut ends = ends.clone();
            ends.push(end);
            plan.set_devices(&staged(graph, order, &ends));
            let peaks = plan.peak_bytes_per_device();
            let of_domain = peaks.iter().zip(domains);
            let of_domain = of_domain.filter(|&(_, &other)| other == domain);
            let needed = of_domain
                .map(|(&bytes, _)| bytes)
                .fold(0, u64::saturating_add);
            needed <= capacity[domain as usize]
        };
        // Searches for the largest number of nodes that fit. Assumes that any smaller number fits
        // too.
        let (mut fitting, mut too_many) = (start, n_nodes + 1);
        while too_many - fitting > 1 {
            let middle = fitting.midpoint(too_many);
            if fits(middle) {
                fitting = middle;
            } else {
                too_many = middle;
            }
        }
        ends.push(fitting);
    }
    let mut devices = staged(graph, order, &ends);
    place_constants(graph, &is_free, &mut devices);
    devices
}

/// Places the nodes up to `ends[i]` on device `order[i]`, and the rest on the next device. Nodes
/// that may not run there go to their most preferred device.
fn staged(graph: &Graph<'_>, order: &[u32], ends: &[usize]) -> Vec<u32> {
    let mut assignment = Assignment::new(graph);
    let mut stage = 0;
    for node in graph.nodes() {
        while ends.get(stage).is_some_and(|&end| end <= node as usize) {
            stage += 1;
        }
        let device = order.get(stage).copied().unwrap_or(NONE);
        let legal = graph.candidates_of(node);
        let device = if legal.contains(&device) {
            device
        } else {
            legal[0]
        };
        assignment.decide(node, device);
    }
    assignment.devices().to_vec()
}

/// Divides a graph into consecutive parts, producers first: device `i` of `order` gets the part
/// `shares[i]` of all resident bytes (state, and constants with their first reader), or of all
/// nodes if the graph has none. Shares are relative to their sum. Nodes that may not run on the
/// device of their part go to their most preferred one. Only an offer shows whether the plan fits.
///
/// # Panics
/// If there is no device, or fewer shares than devices.
#[expect(
    clippy::cast_precision_loss,
    reason = "a division of bytes need not be exact"
)]
pub fn divide(graph: &Graph<'_>, order: &[u32], shares: &[f64]) -> Vec<u32> {
    let is_free = free_constants(graph);
    let is_constant = graph.constants();
    let mut is_counted = vec![false; graph.len()];
    let mut weights = vec![0.0; graph.len()];
    for node in graph.nodes().filter(|&node| !is_free[node as usize]) {
        let mut bytes = 0_u64;
        for constant in constants_read(graph, &is_constant, node) {
            if !std::mem::replace(&mut is_counted[constant as usize], true) {
                bytes = bytes.saturating_add(graph.resident_bytes()[constant as usize]);
            }
        }
        if !is_constant[node as usize] {
            bytes = bytes.saturating_add(graph.resident_bytes()[node as usize]);
        }
        weights[node as usize] = bytes as f64;
    }
    let mut total: f64 = weights.iter().sum();
    if total == 0.0 {
        weights.fill(1.0);
        total = weights.len() as f64;
    }
    let all: f64 = shares[..order.len()].iter().sum();
    let mut assignment = Assignment::new(graph);
    let (mut part, mut before) = (0, 0.0);
    // Where the current part ends.
    let mut end = total * shares[0] / all;
    for node in graph.nodes() {
        let weight = weights[node as usize];
        // A node belongs to the part in which its middle lies.
        while before + weight / 2.0 > end && part + 1 < order.len() {
            part += 1;
            end += total * shares[part] / all;
        }
        before += weight;
        let legal = graph.candidates_of(node);
        let device = order[part];
        let device = if legal.contains(&device) {
            device
        } else {
            legal[0]
        };
        assignment.decide(node, device);
    }
    let mut devices = assignment.devices().to_vec();
    place_constants(graph, &is_free, &mut devices);
    devices
}

/// Returns the capacity of every memory domain.
fn capacities(devices: &DeviceSet<'_>) -> Vec<u64> {
    let domains = devices.memory_domains();
    let n_domains = domains.iter().max().map_or(0, |&last| last as usize + 1);
    let mut capacity = vec![u64::MAX; n_domains];
    for (&domain, &bytes) in domains.iter().zip(devices.memory_capacity()) {
        let least = &mut capacity[domain as usize];
        *least = bytes.min(*least);
    }
    capacity
}

#[cfg(all(test, not(target_arch = "wasm32")))]
mod tests {
    use super::*;
    use crate::log::Log;
    use crate::testing::GraphBuilder;
    use crate::testing::TestPlan;
    use crate::testing::cluster;

    #[test]
    fn constants_take_memory_where_readers_behind_identities_are() {
        let devices = cluster("2xCPU").with_memory(0, 100).with_memory(1, 100);
        let mut builder = GraphBuilder::new(&devices);
        let weights = builder.constant("weights", 80);
        let mut passed = weights;
        for name in ["read", "again"] {
            let identity = builder.node(name, &[0.0]);
            builder.op_type(identity, "Identity");
            builder.preloaded(identity);
            builder.edge(passed, identity, 80);
            passed = identity;
        }
        let reader = builder.node("reader", &[1.0]);
        builder.edge(passed, reader, 80);
        let (early, late) = (builder.node("early", &[1.0]), builder.node("late", &[0.0]));
        builder.op_type(late, "Identity");
        builder.edge(weights, late, 80);
        builder.edge(early, late, 0);
        let graph = builder.build();
        let log = Log::silent();
        let view = Graph::new(&graph, &log);
        // `late` waits for a node that runs.
        assert_eq!(view.constants(), [true, true, true, false, false, false]);
        assert_eq!(free_constants(&view), view.constants());
        assert_eq!(constant_bytes_read(&view), [0, 0, 0, 80, 0, 80]);
        let mut placed = [0, 0, 0, 1, 0, 0];
        place_constants(&view, &free_constants(&view), &mut placed);
        assert_eq!(placed, [1, 1, 1, 1, 0, 0]);
        let set = DeviceSet::new(&devices, &log);
        let mut budget = MemoryBudget::new(&view, &set);
        for node in 0..3 {
            assert!(budget.fits(view.group()[node], 0));
            budget.take(view.group()[node], 0);
        }
        let group = view.group()[reader as usize];
        budget.take(group, 0);
        assert!(budget.fits(group, 0), "it is held there");
        let late = view.group()[late as usize];
        assert!(budget.fits(late, 0) && budget.fits(late, 1));
    }

    #[test]
    fn what_is_pinned_elsewhere_needs_no_memory() {
        let devices = cluster("2xCPU").with_memory(0, 100).with_memory(1, 150);
        let is_tight_with = |pin: u32, other_bytes: u64| {
            let mut builder = GraphBuilder::new(&devices);
            let (table, other) = (builder.node("table", &[1.0]), builder.node("other", &[1.0]));
            builder.resident_bytes(table, 120);
            builder.pin(table, pin);
            builder.resident_bytes(other, other_bytes);
            let log = Log::silent();
            let graph = builder.build();
            is_tight(&Graph::new(&graph, &log), &DeviceSet::new(&devices, &log))
        };
        assert!(!is_tight_with(1, 30));
        assert!(is_tight_with(1, 31), "both do not fit on the second");
        assert!(is_tight_with(0, 0), "the table does not fit on the first");
    }

    #[test]
    fn constants_take_memory_where_they_are_read() {
        let devices = cluster("2xCPU").with_memory(0, 100).with_memory(1, 150);
        let mut builder = GraphBuilder::new(&devices);
        let shared = builder.constant("shared", 80);
        let (a, b) = (builder.node("a", &[1.0]), builder.node("b", &[1.0]));
        let own = builder.constant("own", 60);
        let c = builder.node("c", &[1.0]);
        for (constant, reader, bytes) in [(shared, a, 80), (shared, b, 80), (own, c, 60)] {
            builder.edge(constant, reader, bytes);
        }
        builder.edge(own, c, 60); // read twice, held once
        builder.control_edge(shared, c);
        let test_graph = builder.build();
        let log = Log::silent();
        let (graph, set) = (
            Graph::new(&test_graph, &log),
            DeviceSet::new(&devices, &log),
        );
        let is_free = free_constants(&graph);
        assert_eq!(is_free, [true, false, false, true, false]);
        assert_eq!(constant_bytes_read(&graph), [0, 80, 80, 0, 60]);

        let group = |node: u32| graph.group()[node as usize];
        let mut budget = MemoryBudget::new(&graph, &set);
        assert!(is_tight(&graph, &set));
        budget.take(group(a), 0);
        assert_eq!((budget.free_bytes(0), budget.free_bytes(1)), (20, 150));
        assert!(budget.fits(group(b), 0), "`shared` is there");
        assert!(!budget.fits(group(c), 0), "`own` takes 60 bytes of 20");
        budget.take(group(b), 1);
        budget.take(group(c), 1);
        assert_eq!(
            (budget.staying_bytes(0), budget.staying_bytes(1)),
            (80, 140)
        );

        // The plan of a test counts the same.
        let sink = TestPlan::new(&test_graph, &devices);
        let plan = Plan::new(&sink, &log);
        let mut placed = [NONE, 0, 1, NONE, 1];
        place_constants(&graph, &is_free, &mut placed);
        assert_eq!(placed, [0, 0, 1, 1, 1]);
        plan.set_devices(&placed);
        assert_eq!(plan.peak_bytes_per_device(), [80, 140]);
        plan.offer().unwrap();
        plan.move_nodes(&[c], 0);
        let violation = plan.offer().unwrap_err();
        assert_eq!((violation.rule.as_str(), violation.node), ("memory", c));
        assert_eq!(plan.peak_bytes_per_device(), [140, 80]);
    }
}
