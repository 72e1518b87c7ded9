//! What HEFT reads, laid out for its inner loops: costs and links with one column per device, bytes per edge, groups.

use placewright_guest::CostMatrix;
use placewright_guest::DeviceSet;
use placewright_guest::Graph;
use placewright_guest::LinkMatrix;
use placewright_guest::algorithm::Rows;
use placewright_guest::source::LinkCost;

/// Up to this many devices every pair is asked for its link, so that exceptions (NVLink between two of eight cards)
/// count; beyond, links are those of the domains.
const DEVICES_ASKED_PAIRWISE: usize = 64;

/// Larger cost tables are spread over the devices row by row, when needed.
const COST_ENTRIES_MAX: usize = 4 << 20;

/// Columns of devices are padded to a multiple of it with devices that can run nothing, so that loops need no remainder.
pub(crate) const LANES: usize = 4;

/// The graph and the devices.
pub(crate) struct Problem<'a> {
    pub(crate) n_nodes: usize,
    pub(crate) n_devices: usize,
    /// Number of devices with padding: the length of rows over devices.
    pub(crate) width: usize,
    pub(crate) predecessors: Rows<'a>,
    pub(crate) candidates: Rows<'a>,
    pub(crate) candidate_set: &'a [u32],
    pub(crate) group: &'a [u32],
    pub(crate) edge_bytes: Vec<f64>,
    /// Mean cost of each node over the devices that can run it.
    pub(crate) mean_work: Vec<f64>,
    pub(crate) mean_link: LinkCost,
    pub(crate) links: Links,
    /// Members of each group that has more than one.
    pub(crate) members: Members,
    /// Per candidate set: masks and preferences, where it is large enough for loops over all devices.
    pub(crate) dense_sets: Vec<Option<DenseSet>>,
    costs: Costs<'a>,
    executions: &'a [f64],
    cost_row: &'a [u32],
}

/// A candidate set as columns over all devices.
pub(crate) struct DenseSet {
    /// 0 for members, +inf for others; empty when all devices are members.
    pub(crate) mask: Vec<f64>,
    /// Position in the order of preference.
    pub(crate) preference: Vec<u32>,
}

/// What a transfer from a domain to each device costs.
pub(crate) struct Links {
    pub(crate) domain: Vec<u32>,
    width: usize,
    latency: Vec<f64>,
    ns_per_byte: Vec<f64>,
}

/// Rows of the groups that have more than one member.
#[derive(Default)]
pub(crate) struct Members {
    offsets: Vec<u32>,
    nodes: Vec<u32>,
}

struct Costs<'a> {
    matrix: Option<Vec<f64>>,
    table: &'a [f64],
    classes: &'a [u32],
    n_classes: usize,
}

impl<'a> Problem<'a> {
    pub(crate) fn new(graph: &'a Graph<'_>, devices: &'a DeviceSet<'_>) -> Self {
        let n_devices = devices.len();
        let width = n_devices.next_multiple_of(LANES);
        let links = if n_devices <= DEVICES_ASKED_PAIRWISE {
            LinkMatrix::by_device(devices)
        } else {
            LinkMatrix::by_domain(devices)
        };
        let candidates = graph.candidates();
        let costs = Costs::new(graph, devices, width);
        #[expect(clippy::cast_precision_loss, reason = "sizes are below 2^53")]
        let edge_bytes = graph
            .edge_bytes()
            .iter()
            .map(|&bytes| bytes as f64)
            .collect();
        Self {
            n_nodes: graph.len(),
            n_devices,
            width,
            predecessors: graph.predecessors(),
            candidates,
            candidate_set: graph.candidate_set(),
            group: graph.group(),
            edge_bytes,
            mean_work: mean_work(graph, &costs),
            mean_link: links.mean(),
            links: Links::new(&links, n_devices, width),
            members: Members::new(graph),
            dense_sets: dense_sets(candidates, n_devices, width),
            costs,
            executions: graph.executions(),
            cost_row: graph.cost_row(),
        }
    }

    /// Writes what a node costs on every device, all its executions together; +inf = cannot run there.
    #[inline]
    pub(crate) fn work(&self, node: u32, into: &mut [f64]) {
        let row = self.cost_row[node as usize] as usize;
        let executions = self.executions[node as usize];
        match &self.costs.matrix {
            Some(matrix) => {
                let row = &matrix[row * self.width..][..into.len()];
                for (cell, &cost) in into.iter_mut().zip(row) {
                    *cell = cost * executions;
                }
            }
            None => {
                let row = self.costs.row(row);
                for (cell, &class) in into.iter_mut().zip(self.costs.classes) {
                    *cell = row[class as usize] * executions;
                }
            }
        }
    }

    /// What a node costs on one device.
    #[inline]
    pub(crate) fn work_on(&self, node: u32, device: u32) -> f64 {
        let row = self.costs.row(self.cost_row[node as usize] as usize);
        row[self.costs.classes[device as usize] as usize] * self.executions[node as usize]
    }

    /// The cost of the cheapest node on the device that is fastest for it.
    pub(crate) fn shortest_task(&self) -> f64 {
        let least = |least: f64, &value: &f64| if value < least { value } else { least };
        let cost = self.costs.table.iter().fold(f64::INFINITY, least);
        let executions = self.executions.iter().fold(f64::INFINITY, least);
        if cost.is_finite() && executions.is_finite() {
            cost * executions
        } else {
            0.0
        }
    }
}

impl Links {
    fn new(matrix: &LinkMatrix, n_devices: usize, width: usize) -> Self {
        let spread = |row: &[f64]| {
            let mut spread: Vec<f64> = matrix
                .domains()
                .iter()
                .map(|&to| row[to as usize])
                .collect();
            spread.resize(width, 0.0);
            spread
        };
        let domains = 0..u32::try_from(matrix.n_domains()).unwrap_or(u32::MAX);
        let mut links = Self {
            domain: matrix.domains()[..n_devices].to_vec(),
            width,
            latency: Vec::with_capacity(matrix.n_domains() * width),
            ns_per_byte: Vec::with_capacity(matrix.n_domains() * width),
        };
        for domain in domains {
            links.latency.extend(spread(matrix.latency_from_ns(domain)));
            links
                .ns_per_byte
                .extend(spread(matrix.ns_per_byte_from(domain)));
        }
        links
    }

    /// Latency and ns per byte from a device to each device; what stands at the device itself does not apply.
    #[inline]
    pub(crate) fn from(&self, device: u32) -> (&[f64], &[f64]) {
        let start = self.domain[device as usize] as usize * self.width;
        (
            &self.latency[start..start + self.width],
            &self.ns_per_byte[start..start + self.width],
        )
    }
}

impl Members {
    fn new(graph: &Graph<'_>) -> Self {
        let n_groups = graph.counts().groups as usize;
        if n_groups == graph.len() {
            return Self::default();
        }
        let mut offsets = vec![0_u32; n_groups + 1];
        for &group in graph.group() {
            offsets[group as usize + 1] += 1;
        }
        for group in 0..n_groups {
            offsets[group + 1] += offsets[group];
        }
        let mut next = offsets.clone();
        let mut nodes = vec![0; graph.len()];
        for (node, &group) in (0_u32..).zip(graph.group()) {
            nodes[next[group as usize] as usize] = node;
            next[group as usize] += 1;
        }
        Self { offsets, nodes }
    }

    /// The members of a group if it has more than one, else nothing.
    #[inline]
    pub(crate) fn of(&self, group: u32) -> &[u32] {
        if self.nodes.is_empty() {
            return &[];
        }
        let group = group as usize;
        let members = &self.nodes[self.offsets[group] as usize..self.offsets[group + 1] as usize];
        if members.len() > 1 { members } else { &[] }
    }
}

impl<'a> Costs<'a> {
    fn new(graph: &'a Graph<'_>, devices: &'a DeviceSet<'_>, width: usize) -> Self {
        let n_rows = graph.counts().cost_rows as usize;
        let matrix = (n_rows * width <= COST_ENTRIES_MAX).then(|| {
            let costs = CostMatrix::new(graph, devices);
            let mut padded = Vec::with_capacity(n_rows * width);
            for row in 0..graph.counts().cost_rows {
                padded.extend_from_slice(costs.row(row));
                padded.resize((row as usize + 1) * width, f64::INFINITY);
            }
            padded
        });
        Self {
            matrix,
            table: graph.costs(),
            classes: devices.cost_classes(),
            n_classes: graph.counts().cost_classes as usize,
        }
    }

    #[inline]
    fn row(&self, row: usize) -> &'a [f64] {
        &self.table[row * self.n_classes..][..self.n_classes]
    }
}

/// The mean over the candidates that can run the node, by way of how many of each cost class a set has.
fn mean_work(graph: &Graph<'_>, costs: &Costs<'_>) -> Vec<f64> {
    let candidates = graph.candidates();
    let n_classes = costs.n_classes;
    let mut counts = vec![0.0; candidates.len() * n_classes];
    for set in 0..candidates.len() {
        let row = &mut counts[set * n_classes..][..n_classes];
        for &device in candidates.row(u32::try_from(set).unwrap_or(u32::MAX)) {
            row[costs.classes[device as usize] as usize] += 1.0;
        }
    }
    let mean = |((&row, &set), &executions): ((&u32, &u32), &f64)| {
        let counts = &counts[set as usize * n_classes..][..n_classes];
        let (mut sum, mut n) = (0.0, 0.0);
        for (&cost, &count) in costs.row(row as usize).iter().zip(counts) {
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
fn dense_sets(candidates: Rows<'_>, n_devices: usize, width: usize) -> Vec<Option<DenseSet>> {
    let dense = |set: u32| {
        let devices = candidates.row(set);
        if devices.len() * 4 < n_devices {
            return None;
        }
        let mut mask = vec![f64::INFINITY; width];
        let mut preference = vec![u32::MAX; width];
        for (position, &device) in (0_u32..).zip(devices) {
            mask[device as usize] = 0.0;
            preference[device as usize] = position;
        }
        if devices.len() == n_devices {
            mask.clear();
        }
        Some(DenseSet { mask, preference })
    };
    (0..u32::try_from(candidates.len()).unwrap_or(u32::MAX))
        .map(dense)
        .collect()
}
