//! Building blocks of placement algorithms: costs per device, links per pair, ranks, one device per
//! group.

use crate::NONE;
use crate::devices::DeviceSet;
use crate::graph::Graph;
pub use crate::graph::Rows;
use crate::source::LinkCost;

/// The cost table with one column per device instead of per cost class.
#[derive(Debug, Clone)]
pub struct CostMatrix {
    n_devices: usize,
    values_ns: Vec<f64>,
}

impl CostMatrix {
    /// Expands the cost classes to devices: `cost rows x devices` numbers. For tables with many
    /// rows on thousands of devices, read [`Graph::costs`] instead.
    pub fn new(graph: &Graph<'_>, devices: &DeviceSet<'_>) -> Self {
        let n_classes = graph.counts().cost_classes as usize;
        let classes = devices.cost_classes();
        let mut values_ns = Vec::with_capacity(graph.counts().cost_rows as usize * classes.len());
        if n_classes > 0 {
            for row in graph.costs().chunks_exact(n_classes) {
                values_ns.extend(classes.iter().map(|&class| row[class as usize]));
            }
        }
        Self {
            n_devices: classes.len(),
            values_ns,
        }
    }

    /// Returns the cost in ns of one execution per device, for a row of [`Graph::cost_row`]. +inf
    /// means that it cannot run there.
    #[inline]
    pub fn row(&self, row: u32) -> &[f64] {
        let start = row as usize * self.n_devices;
        &self.values_ns[start..start + self.n_devices]
    }
}

/// Links between all pairs of link domains, as two tables of numbers.
#[derive(Debug, Clone)]
pub struct LinkMatrix {
    n_domains: usize,
    domain: Vec<u32>,
    latency_ns: Vec<f64>,
    ns_per_byte: Vec<f64>,
}

/// Up to this many devices, [`LinkMatrix::new`] reads the link of every pair.
const DEVICES_ASKED_PAIRWISE: usize = 64;

impl LinkMatrix {
    /// Reads the links between all pairs of devices, so that exceptions count (NVLink between two
    /// of eight cards); on more than 64 devices, the links of their domains.
    pub fn new(devices: &DeviceSet<'_>) -> Self {
        if devices.len() <= DEVICES_ASKED_PAIRWISE {
            Self::by_device(devices)
        } else {
            Self::by_domain(devices)
        }
    }

    /// Reads the host's links by domain, without the exceptions for single pairs
    /// ([`DeviceSet::link`]).
    pub fn by_domain(devices: &DeviceSet<'_>) -> Self {
        let links = devices.links();
        Self {
            n_domains: links.len().isqrt(),
            domain: devices.link_domains().to_vec(),
            latency_ns: links.iter().map(|link| link.latency_ns).collect(),
            ns_per_byte: links.iter().map(|link| link.ns_per_byte).collect(),
        }
    }

    /// Reads the links between all pairs of devices, including exceptions; the diagonal is free.
    /// Makes `devices x devices` host calls of about 0.1 us each, so it is meant for up to some
    /// dozens of devices.
    pub fn by_device(devices: &DeviceSet<'_>) -> Self {
        let pairs = devices
            .ids()
            .flat_map(|src| devices.ids().map(move |dst| (src, dst)));
        let links: Vec<LinkCost> = pairs.map(|(src, dst)| devices.link(src, dst)).collect();
        Self {
            n_domains: devices.len(),
            domain: devices.ids().collect(),
            latency_ns: links.iter().map(|link| link.latency_ns).collect(),
            ns_per_byte: links.iter().map(|link| link.ns_per_byte).collect(),
        }
    }

    /// Returns the number of rows and columns.
    pub fn n_domains(&self) -> usize {
        self.n_domains
    }

    /// Returns the domain of each device.
    pub fn domains(&self) -> &[u32] {
        &self.domain
    }

    /// Returns the latency in ns from a domain to each domain.
    #[inline]
    pub fn latency_from_ns(&self, domain: u32) -> &[f64] {
        let start = domain as usize * self.n_domains;
        &self.latency_ns[start..start + self.n_domains]
    }

    /// Returns the ns per byte from a domain to each domain.
    #[inline]
    pub fn ns_per_byte_from(&self, domain: u32) -> &[f64] {
        let start = domain as usize * self.n_domains;
        &self.ns_per_byte[start..start + self.n_domains]
    }

    /// Returns the time in ns to transfer `bytes` from one device to another; 0 within one device.
    #[inline]
    #[expect(clippy::cast_precision_loss, reason = "sizes are below 2^53")]
    pub fn transfer_ns(&self, src: u32, dst: u32, bytes: u64) -> f64 {
        if src == dst {
            return 0.0;
        }
        let to = self.domain[dst as usize] as usize;
        let from = self.domain[src as usize];
        let latency_ns = self.latency_from_ns(from)[to];
        if bytes == 0 {
            // Zero times a rate of +inf would be NaN.
            return latency_ns;
        }
        latency_ns + self.ns_per_byte_from(from)[to] * bytes as f64
    }

    /// Returns the mean link over all ordered pairs of different devices, which ranks use before
    /// nodes are placed. Free if there is one device.
    #[expect(
        clippy::cast_precision_loss,
        reason = "numbers of devices are far below 2^53"
    )]
    pub fn mean(&self) -> LinkCost {
        let mut members = vec![0.0; self.n_domains];
        for &domain in &self.domain {
            members[domain as usize] += 1.0;
        }
        let n = self.domain.len() as f64;
        let mut sum = LinkCost::default();
        for (from, &n_from) in members.iter().enumerate() {
            for (to, &n_to) in members.iter().enumerate() {
                let pairs = if from == to {
                    n_from * (n_from - 1.0)
                } else {
                    n_from * n_to
                };
                let at = from * self.n_domains + to;
                if pairs > 0.0 {
                    sum.latency_ns += pairs * self.latency_ns[at];
                    sum.ns_per_byte += pairs * self.ns_per_byte[at];
                }
            }
        }
        let pairs = n * (n - 1.0);
        if pairs > 0.0 {
            sum.latency_ns /= pairs;
            sum.ns_per_byte /= pairs;
        }
        sum
    }
}

/// The members of the colocation groups that have more than one.
#[derive(Debug, Clone, Default)]
pub struct Members {
    offsets: Vec<u32>,
    nodes: Vec<u32>,
}

impl Members {
    /// Collects the members. Allocates nothing if no group has more than one.
    pub fn new(graph: &Graph<'_>) -> Self {
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
            let at = &mut next[group as usize];
            nodes[*at as usize] = node;
            *at += 1;
        }
        Self { offsets, nodes }
    }

    /// Returns the members of a group, or nothing if it has only one.
    #[inline]
    pub fn of(&self, group: u32) -> &[u32] {
        if self.nodes.is_empty() {
            return &[];
        }
        let group = group as usize;
        let range = self.offsets[group] as usize..self.offsets[group + 1] as usize;
        let members = &self.nodes[range];
        if members.len() > 1 { members } else { &[] }
    }
}

/// Returns the mean time of each node, all its executions together, over the candidates that can
/// run it, in ns. Counts the devices of each cost class, so it takes `nodes x classes` steps.
#[inline(never)]
pub fn mean_work(graph: &Graph<'_>, devices: &DeviceSet<'_>) -> Vec<f64> {
    let (candidates, classes) = (graph.candidates(), devices.cost_classes());
    let n_classes = graph.counts().cost_classes as usize;
    let mut counts = vec![0.0; candidates.len() * n_classes];
    for set in (0_u32..).take(candidates.len()) {
        let row = &mut counts[set as usize * n_classes..][..n_classes];
        for &device in candidates.row(set) {
            row[classes[device as usize] as usize] += 1.0;
        }
    }
    let table = graph.costs();
    let mean = |((&row, &set), &executions): ((&u32, &u32), &f64)| {
        let costs = &table[row as usize * n_classes..][..n_classes];
        let counts = &counts[set as usize * n_classes..][..n_classes];
        let (mut sum, mut n) = (0.0, 0.0);
        for (&cost, &count) in costs.iter().zip(counts) {
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

/// Returns the upward rank of each node, in ns: the longest path from its start to the end of the
/// graph, with mean costs (Topcuoglu et al. 2002, eq. 8). `work_ns` is the mean cost per node,
/// `link` the mean link.
///
/// A producer's rank is never below its consumers' ranks, so in order of descending rank, ties by
/// smaller id, producers come first.
#[expect(clippy::cast_precision_loss, reason = "sizes are below 2^53")]
pub fn upward_ranks(graph: &Graph<'_>, work_ns: &[f64], link: LinkCost) -> Vec<f64> {
    let predecessors = graph.predecessors();
    let (tensors, bytes) = (graph.edge_tensors(), graph.tensor_bytes());
    let executions = graph.executions();
    // Until a node is visited, its entry contains the longest path after it.
    let mut rank = vec![0.0; graph.len()];
    for node in graph.nodes().rev() {
        let own = rank[node as usize] + work_ns[node as usize];
        rank[node as usize] = own;
        for edge in predecessors.range(node) {
            let size = match tensors[edge] {
                NONE => 0.0,
                tensor => bytes[tensor as usize] as f64,
            };
            // 0 times a rate of +inf would be NaN.
            let moved = if size > 0.0 {
                size * link.ns_per_byte
            } else {
                0.0
            };
            let producer = predecessors.items[edge] as usize;
            let times = executions[producer].max(f64::MIN_POSITIVE);
            let way = own + times * (link.latency_ns + moved);
            let behind = &mut rank[producer];
            if way > *behind {
                *behind = way;
            }
        }
    }
    rank
}

/// Returns node ids by descending key, ties by smaller id. Takes linear time if the keys are evenly
/// distributed, as ranks mostly are.
pub fn descending(keys: &[f64]) -> Vec<u32> {
    let before = |&a: &u32, &b: &u32| {
        let (key_a, key_b) = (keys[a as usize], keys[b as usize]);
        key_b.total_cmp(&key_a).then(a.cmp(&b))
    };
    let mut order: Vec<u32> = (0..).take(keys.len()).collect();
    let Some(buckets) = Buckets::new(keys) else {
        order.sort_unstable_by(before);
        return order;
    };
    let mut ends = vec![0_u32; keys.len() + 1];
    for &key in keys {
        ends[buckets.of(key) + 1] += 1;
    }
    for bucket in 0..keys.len() {
        ends[bucket + 1] += ends[bucket];
    }
    // Each bucket's entry moves from its start to its end.
    for (node, &key) in (0_u32..).zip(keys) {
        let at = &mut ends[buckets.of(key)];
        order[*at as usize] = node;
        *at += 1;
    }
    let mut start = 0;
    for &end in &ends {
        let end = end as usize;
        if end - start > 1 {
            order[start..end].sort_unstable_by(before);
        }
        start = end;
    }
    order
}

/// Intervals of equal length, one per key, in descending order.
struct Buckets {
    highest: f64,
    per_unit: f64,
    last: usize,
}

impl Buckets {
    /// Returns `None` if a comparison sort is faster: there are few keys, or their range is empty
    /// or NaN.
    #[expect(clippy::cast_precision_loss, reason = "nodes are below 2^32")]
    fn new(keys: &[f64]) -> Option<Self> {
        let (mut lowest, mut highest) = (f64::INFINITY, f64::NEG_INFINITY);
        let mut has_nan = false;
        for &key in keys {
            has_nan |= key.is_nan();
            lowest = if key < lowest { key } else { lowest };
            highest = if key > highest { key } else { highest };
        }
        let last = keys.len().checked_sub(1)?;
        let per_unit = last as f64 / (highest - lowest);
        let is_usable = keys.len() > 64 && !has_nan && per_unit.is_finite() && per_unit > 0.0;
        is_usable.then_some(Self {
            highest,
            per_unit,
            last,
        })
    }

    /// Returns the bucket of a key. It is never larger for a larger key: each operation is
    /// monotonic, rounding included.
    #[inline]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "between 0 and the number of keys"
    )]
    fn of(&self, key: f64) -> usize {
        (((self.highest - key) * self.per_unit) as usize).min(self.last)
    }
}

/// Returns all devices, most preferred first: in the order of the largest candidate set, then the
/// others by id.
pub fn most_preferred_first(graph: &Graph<'_>, devices: &DeviceSet<'_>) -> Vec<u32> {
    let candidates = graph.candidates();
    let sets = (0_u32..)
        .take(candidates.len())
        .map(|set| candidates.row(set));
    // The first of equally large ones.
    let largest = sets.reduce(|best, set| if set.len() > best.len() { set } else { best });
    let mut order = largest.unwrap_or_default().to_vec();
    let is_missing = |device: &u32| !order.contains(device);
    let others: Vec<u32> = devices.ids().filter(is_missing).collect();
    order.extend(others);
    order
}

/// Returns every node's most preferred device, with pins and groups respected: a legal start for
/// searches, unless memory is short.
pub fn preferred_devices(graph: &Graph<'_>) -> Vec<u32> {
    let mut assignment = Assignment::new(graph);
    for node in graph.nodes() {
        assignment.decide(node, graph.candidates_of(node)[0]);
    }
    assignment.of_node
}

/// The devices decided so far. The first member that is decided, or a pinned one, decides for its
/// whole group.
#[derive(Debug, Clone)]
pub struct Assignment<'a> {
    group: &'a [u32],
    of_group: Vec<u32>,
    of_node: Vec<u32>,
}

impl<'a> Assignment<'a> {
    /// Creates an assignment in which only the groups of pinned nodes are decided.
    pub fn new(graph: &'a Graph<'_>) -> Self {
        let group = graph.group();
        let mut of_group = vec![NONE; graph.counts().groups as usize];
        for (node, &pin) in graph.pinned().iter().enumerate() {
            if pin != NONE {
                of_group[group[node] as usize] = pin;
            }
        }
        Self {
            group,
            of_group,
            of_node: vec![NONE; group.len()],
        }
    }

    /// Returns the device that the node must take because its group is decided, or [`NONE`].
    #[inline]
    pub fn forced(&self, node: u32) -> u32 {
        self.of_group[self.group[node as usize] as usize]
    }

    /// Returns the node's device, or [`NONE`] if the node itself is not decided.
    #[inline]
    pub fn device(&self, node: u32) -> u32 {
        self.of_node[node as usize]
    }

    /// Places a node on `device`, unless its group is decided already. Returns its device.
    #[inline]
    pub fn decide(&mut self, node: u32, device: u32) -> u32 {
        let of_group = &mut self.of_group[self.group[node as usize] as usize];
        if *of_group == NONE {
            *of_group = device;
        }
        self.of_node[node as usize] = *of_group;
        *of_group
    }

    /// Returns one device per node, for [`crate::Plan::set_devices`].
    pub fn devices(&self) -> &[u32] {
        &self.of_node
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compared(keys: &[f64]) -> Vec<u32> {
        let mut order: Vec<u32> = (0..).take(keys.len()).collect();
        order.sort_by(|&a, &b| keys[b as usize].total_cmp(&keys[a as usize]));
        order
    }

    #[test]
    fn descending_agrees_with_a_comparison_sort() {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            f64::from(u32::try_from(state >> 40).unwrap())
        };
        let spread: Vec<f64> = (0..5_000).map(|_| random()).collect();
        let with_ties: Vec<f64> = spread.iter().map(|key| key % 97.0 - 40.0).collect();
        let skewed: Vec<f64> = spread.iter().map(|key| (key / 1e5).exp()).collect();
        let mut huge = spread.clone();
        (huge[7], huge[8], huge[9]) = (f64::MAX, -f64::MAX, -0.0);
        let mut odd = spread.clone();
        (odd[1], odd[2], odd[3]) = (f64::NAN, f64::INFINITY, f64::NEG_INFINITY);
        let all = [
            spread,
            with_ties,
            skewed,
            huge,
            odd,
            vec![3.0; 100],
            vec![1.0, 2.0],
            vec![],
        ];
        for keys in all {
            assert_eq!(
                descending(&keys),
                compared(&keys),
                "{:?}",
                &keys[..keys.len().min(9)]
            );
        }
    }
}
