//! Graphs from a few calls.

use std::borrow::Cow;

use crate::NONE;
use crate::graph::EdgeKind;
use crate::source::Counts;
use crate::source::Csr;
use crate::source::DeviceSource;
use crate::source::Dims;
use crate::source::GraphSource;
use crate::source::Profile;
use crate::source::Strings;
use crate::testing::TestDevices;

/// Builds a [`TestGraph`] node by node, producers before consumers.
#[derive(Debug, Clone)]
pub struct GraphBuilder {
    n_classes: u32,
    cost_classes: Vec<u32>,
    /// All devices, most preferred first.
    preferred: Vec<u32>,
    names: Vec<String>,
    costs: Vec<f64>,
    edges: Vec<Edge>,
    candidates: Vec<Option<Vec<u32>>>,
    group: Vec<u32>,
    has_groups: bool,
    pinned: Vec<u32>,
    placement_hints: Vec<u8>,
    follow: Vec<u32>,
    executions: Vec<f64>,
    resident_bytes: Vec<u64>,
    workspace_bytes: Vec<u64>,
    is_preloaded: Vec<bool>,
    requested: Vec<String>,
}

#[derive(Debug, Clone, Copy)]
struct Edge {
    from: u32,
    to: u32,
    /// `None` = a control edge.
    bytes: Option<u64>,
}

/// A graph in memory. Every output of a node to a consumer is a tensor of its own.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "documented in the contract")]
pub struct TestGraph {
    pub counts: Counts,
    pub predecessors: Csr<'static>,
    pub successors: Csr<'static>,
    /// Beside the items of `successors`: positions in the columns of edges.
    pub(super) successor_edges: Vec<u32>,
    pub edge_tensors: Vec<u32>,
    pub edge_kinds: Vec<u8>,
    pub tensor_bytes: Vec<u64>,
    pub tensor_nodes: Vec<u32>,
    pub candidate_set: Vec<u32>,
    pub candidates: Csr<'static>,
    pub group: Vec<u32>,
    pub pinned: Vec<u32>,
    pub placement_hints: Vec<u8>,
    pub follow: Vec<u32>,
    pub executions: Vec<f64>,
    pub resident_bytes: Vec<u64>,
    pub workspace_bytes: Vec<u64>,
    pub cost_row: Vec<u32>,
    pub costs: Vec<f64>,
    pub cost_classes: Vec<u32>,
    pub names: Vec<String>,
    pub requested: Vec<String>,
}

impl GraphBuilder {
    /// An empty graph whose nodes may run on all of `devices`.
    pub fn new(devices: &TestDevices) -> Self {
        let mut preferred: Vec<u32> = (0..devices.count()).collect();
        preferred.sort_by_key(|&device| -devices.attributes[device as usize].type_preference);
        Self {
            n_classes: devices.cost_classes.iter().max().map_or(0, |last| last + 1),
            cost_classes: devices.cost_classes.clone(),
            preferred,
            names: Vec::new(),
            costs: Vec::new(),
            edges: Vec::new(),
            candidates: Vec::new(),
            group: Vec::new(),
            has_groups: false,
            pinned: Vec::new(),
            placement_hints: Vec::new(),
            follow: Vec::new(),
            executions: Vec::new(),
            resident_bytes: Vec::new(),
            workspace_bytes: Vec::new(),
            is_preloaded: Vec::new(),
            requested: Vec::new(),
        }
    }

    /// Adds a node that costs so much, in ns, on each device type of the cluster; returns its id.
    ///
    /// # Panics
    /// If the number of costs is not that of the cluster's device types.
    pub fn node(&mut self, name: &str, costs_ns: &[f64]) -> u32 {
        assert_eq!(
            costs_ns.len(),
            self.n_classes as usize,
            "one cost per device type"
        );
        let node = u32::try_from(self.names.len()).expect("test graphs are small");
        self.names.push(name.to_owned());
        self.costs.extend_from_slice(costs_ns);
        self.candidates.push(None);
        self.group.push(node);
        self.pinned.push(NONE);
        self.placement_hints.push(0);
        self.follow.push(NONE);
        self.executions.push(1.0);
        self.resident_bytes.push(0);
        self.workspace_bytes.push(0);
        self.is_preloaded.push(false);
        self.requested.push(String::new());
        node
    }

    /// A tensor of `bytes` from a node to a later one.
    pub fn edge(&mut self, from: u32, to: u32, bytes: u64) {
        self.add_edge(from, to, Some(bytes));
    }

    /// Order only.
    pub fn control_edge(&mut self, from: u32, to: u32) {
        self.add_edge(from, to, None);
    }

    /// The legal devices of a node, most preferred first. For a node of a group, of the whole
    /// group.
    pub fn candidates(&mut self, node: u32, devices: &[u32]) {
        if !self.has_groups {
            self.candidates[node as usize] = Some(devices.to_vec());
            return;
        }
        let group = self.group[node as usize];
        for (other, candidates) in self.group.iter().zip(&mut self.candidates) {
            if *other == group {
                *candidates = Some(devices.to_vec());
            }
        }
    }

    /// Puts nodes, and the groups that they are in already, into one colocation group; all get the
    /// candidates of the first.
    pub fn group(&mut self, nodes: &[u32]) {
        let Some(&first) = nodes.first() else {
            return;
        };
        let (group, candidates) = (
            self.group[first as usize],
            self.candidates[first as usize].clone(),
        );
        self.has_groups = true;
        let joined: Vec<u32> = nodes
            .iter()
            .map(|&node| self.group[node as usize])
            .collect();
        for (of_node, legal) in self.group.iter_mut().zip(&mut self.candidates) {
            if joined.contains(of_node) {
                *of_node = group;
                legal.clone_from(&candidates);
            }
        }
    }

    /// Fixes the device of a node, and with it that of its group: as in the host, it is then their
    /// only candidate.
    pub fn pin(&mut self, node: u32, device: u32) {
        self.pinned[node as usize] = device;
    }

    /// [`crate::PlacementHint`] bits of a node.
    pub fn hints(&mut self, node: u32, bits: u8) {
        self.placement_hints[node as usize] = bits;
    }

    /// Makes a node a constant or a placeholder: its edges are [`EdgeKind::PRELOADED`], and nothing
    /// is moved from it.
    pub fn preloaded(&mut self, node: u32) {
        self.is_preloaded[node as usize] = true;
    }

    /// The device that the user requests for a node. It changes no candidates.
    pub fn request(&mut self, node: u32, device: &str) {
        device.clone_into(&mut self.requested[node as usize]);
    }

    /// Whom a metadata op or a matching identity follows.
    pub fn follow(&mut self, node: u32, producer: u32) {
        self.follow[node as usize] = producer;
    }

    /// Expected executions of a node in one run.
    pub fn executions(&mut self, node: u32, executions: f64) {
        self.executions[node as usize] = executions;
    }

    /// Bytes that stay on the node's device.
    pub fn resident_bytes(&mut self, node: u32, bytes: u64) {
        self.resident_bytes[node as usize] = bytes;
    }

    /// Bytes that one execution of the node needs beside its inputs and outputs.
    pub fn workspace_bytes(&mut self, node: u32, bytes: u64) {
        self.workspace_bytes[node as usize] = bytes;
    }

    /// The graph.
    ///
    /// # Panics
    /// If a group is pinned to two devices.
    pub fn build(mut self) -> TestGraph {
        self.spread_pins();
        let n_nodes = self.names.len();
        let mut edges = self.edges;
        edges.sort_by_key(|edge| edge.to);
        let by_consumer = edges.iter().map(|edge| (edge.to, edge.from));
        let predecessors = csr(n_nodes, by_consumer);
        let by_producer = edges.iter().map(|edge| (edge.from, edge.to));
        let successors = csr(n_nodes, by_producer);
        let positions = (0_u32..).zip(&edges).map(|(at, edge)| (edge.from, at));
        let successor_edges = csr(n_nodes, positions).items.into_owned();
        let mut tensor_bytes = Vec::new();
        let mut tensor_nodes = Vec::new();
        let mut edge_tensors = Vec::with_capacity(edges.len());
        let mut edge_kinds = Vec::with_capacity(edges.len());
        for edge in &edges {
            edge_tensors.push(match edge.bytes {
                None => NONE,
                Some(bytes) => {
                    tensor_bytes.push(bytes);
                    tensor_nodes.push(edge.from);
                    u32::try_from(tensor_bytes.len() - 1).expect("test graphs are small")
                }
            });
            let bit = |is_set: bool, bit: u8| if is_set { bit } else { 0 };
            edge_kinds.push(
                bit(edge.bytes.is_none(), EdgeKind::CONTROL)
                    | bit(self.is_preloaded[edge.from as usize], EdgeKind::PRELOADED),
            );
        }
        let mut sets: Vec<&[u32]> = vec![&self.preferred];
        let mut candidate_set = Vec::with_capacity(n_nodes);
        for candidates in &self.candidates {
            let set = candidates.as_ref().map_or(0, |candidates| {
                sets.iter()
                    .position(|set| set == candidates)
                    .unwrap_or_else(|| {
                        sets.push(candidates);
                        sets.len() - 1
                    })
            });
            candidate_set.push(u32::try_from(set).expect("test graphs are small"));
        }
        let rows = (0_u32..).zip(&sets);
        let candidates = csr(
            sets.len(),
            rows.flat_map(|(set, devices)| devices.iter().map(move |&device| (set, device))),
        );
        let mut dense = vec![NONE; n_nodes];
        let mut n_groups = 0;
        let mut group = Vec::with_capacity(n_nodes);
        for &of_node in &self.group {
            let number = &mut dense[of_node as usize];
            if *number == NONE {
                *number = n_groups;
                n_groups += 1;
            }
            group.push(*number);
        }
        let count = |n: usize| u32::try_from(n).expect("test graphs are small");
        TestGraph {
            counts: Counts {
                nodes: count(n_nodes),
                edges: count(edges.len()),
                tensors: count(tensor_bytes.len()),
                candidate_sets: count(sets.len()),
                groups: n_groups,
                cost_rows: count(n_nodes),
                cost_classes: self.n_classes,
            },
            predecessors,
            successors,
            successor_edges,
            edge_tensors,
            edge_kinds,
            tensor_bytes,
            tensor_nodes,
            candidate_set,
            candidates,
            group,
            pinned: self.pinned,
            placement_hints: self.placement_hints,
            follow: self.follow,
            executions: self.executions,
            resident_bytes: self.resident_bytes,
            workspace_bytes: self.workspace_bytes,
            cost_row: (0..count(n_nodes)).collect(),
            costs: self.costs,
            cost_classes: self.cost_classes,
            names: self.names,
            requested: self.requested,
        }
    }

    fn spread_pins(&mut self) {
        let mut of_group = vec![NONE; self.names.len()];
        for (&group, &pin) in self.group.iter().zip(&self.pinned) {
            let known = &mut of_group[group as usize];
            if pin != NONE {
                assert!([NONE, pin].contains(known), "a group has one pin");
                *known = pin;
            }
        }
        for (node, &group) in self.group.iter().enumerate() {
            let pin = of_group[group as usize];
            if pin != NONE {
                self.pinned[node] = pin;
                self.candidates[node] = Some(vec![pin]);
            }
        }
    }

    fn add_edge(&mut self, from: u32, to: u32, bytes: Option<u64>) {
        let n_nodes = self.names.len();
        assert!(
            from < to && (to as usize) < n_nodes,
            "edge {from} -> {to} of {n_nodes} nodes"
        );
        self.edges.push(Edge { from, to, bytes });
    }
}

impl TestGraph {
    /// The edges into a node, as positions in the columns of edges.
    pub(super) fn edges_into(&self, node: usize) -> std::ops::Range<usize> {
        self.predecessors.offsets[node] as usize..self.predecessors.offsets[node + 1] as usize
    }

    /// Bytes that an edge carries, 0 for control.
    pub(super) fn edge_bytes(&self, edge: usize) -> u64 {
        match self.edge_tensors[edge] {
            NONE => 0,
            tensor => self.tensor_bytes[tensor as usize],
        }
    }
}

/// Rows from (row, item) pairs, in the order of the pairs.
fn csr(n_rows: usize, pairs: impl Iterator<Item = (u32, u32)> + Clone) -> Csr<'static> {
    let mut offsets = vec![0_u32; n_rows + 1];
    for (row, _) in pairs.clone() {
        offsets[row as usize + 1] += 1;
    }
    for row in 0..n_rows {
        offsets[row + 1] += offsets[row];
    }
    let mut next = offsets.clone();
    let mut items = vec![0; offsets[n_rows] as usize];
    for (row, item) in pairs {
        items[next[row as usize] as usize] = item;
        next[row as usize] += 1;
    }
    Csr {
        offsets: offsets.into(),
        items: items.into(),
    }
}

fn borrowed<'a>(csr: &'a Csr<'_>) -> Csr<'a> {
    Csr {
        offsets: Cow::Borrowed(&csr.offsets),
        items: Cow::Borrowed(&csr.items),
    }
}

/// Joins strings, one after the other.
fn strings<'a>(all: impl Iterator<Item = &'a str>) -> Strings<'static> {
    let mut offsets = vec![0];
    let mut text = String::new();
    for one in all {
        text.push_str(one);
        offsets.push(u32::try_from(text.len()).expect("test graphs are small"));
    }
    Strings {
        offsets: offsets.into(),
        text: text.into(),
    }
}

impl GraphSource for TestGraph {
    fn counts(&self) -> Counts {
        self.counts
    }

    fn predecessors(&self) -> Csr<'_> {
        borrowed(&self.predecessors)
    }

    fn successors(&self) -> Csr<'_> {
        borrowed(&self.successors)
    }

    fn edge_tensors(&self) -> Cow<'_, [u32]> {
        Cow::Borrowed(&self.edge_tensors)
    }

    fn edge_kinds(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(&self.edge_kinds)
    }

    fn tensor_bytes(&self) -> Cow<'_, [u64]> {
        Cow::Borrowed(&self.tensor_bytes)
    }

    fn tensor_nodes(&self) -> Cow<'_, [u32]> {
        Cow::Borrowed(&self.tensor_nodes)
    }

    fn tensor_dtypes(&self) -> Cow<'_, [u32]> {
        // DT_FLOAT
        Cow::Owned(vec![1; self.tensor_bytes.len()])
    }

    fn tensor_dims(&self) -> Dims<'_> {
        let n = u32::try_from(self.tensor_bytes.len()).expect("test graphs are small");
        Dims {
            offsets: (0..=n).collect(),
            sizes: Cow::Owned(vec![-1; self.tensor_bytes.len()]),
        }
    }

    fn back_edges(&self) -> Cow<'_, [u32]> {
        Cow::Borrowed(&[])
    }

    fn op_type(&self) -> Cow<'_, [u32]> {
        Cow::Owned(vec![0; self.names.len()])
    }

    fn op_type_names(&self) -> Vec<String> {
        vec!["Test".to_owned()]
    }

    fn executions(&self) -> Cow<'_, [f64]> {
        Cow::Borrowed(&self.executions)
    }

    fn flops(&self) -> Cow<'_, [f64]> {
        Cow::Owned(vec![0.0; self.names.len()])
    }

    fn resident_bytes(&self) -> Cow<'_, [u64]> {
        Cow::Borrowed(&self.resident_bytes)
    }

    fn workspace_bytes(&self) -> Cow<'_, [u64]> {
        Cow::Borrowed(&self.workspace_bytes)
    }

    fn user_priority(&self) -> Cow<'_, [i32]> {
        Cow::Owned(vec![0; self.names.len()])
    }

    fn candidate_set(&self) -> Cow<'_, [u32]> {
        Cow::Borrowed(&self.candidate_set)
    }

    fn candidates(&self) -> Csr<'_> {
        borrowed(&self.candidates)
    }

    fn group(&self) -> Cow<'_, [u32]> {
        Cow::Borrowed(&self.group)
    }

    fn pinned(&self) -> Cow<'_, [u32]> {
        Cow::Borrowed(&self.pinned)
    }

    fn placement_hints(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(&self.placement_hints)
    }

    fn follow(&self) -> Cow<'_, [u32]> {
        Cow::Borrowed(&self.follow)
    }

    fn requested(&self) -> Strings<'_> {
        strings(self.requested.iter().map(String::as_str))
    }

    fn frame(&self) -> Cow<'_, [u32]> {
        Cow::Owned(vec![NONE; self.names.len()])
    }

    fn options(&self) -> Vec<(String, String)> {
        vec![("graph-name".to_owned(), "test".to_owned())]
    }

    fn cost_row(&self) -> Cow<'_, [u32]> {
        Cow::Borrowed(&self.cost_row)
    }

    fn costs(&self) -> Cow<'_, [f64]> {
        Cow::Borrowed(&self.costs)
    }

    fn cost_samples(&self) -> Cow<'_, [u32]> {
        Cow::Owned(vec![0; self.costs.len()])
    }

    fn cost(&self, node: u32, device: u32) -> f64 {
        let row = self.cost_row[node as usize] as usize;
        let class = self.cost_classes[device as usize] as usize;
        self.costs[row * self.counts.cost_classes as usize + class]
    }

    fn node_name(&self, node: u32) -> String {
        self.names[node as usize].clone()
    }

    fn node_names(&self) -> Strings<'_> {
        strings(self.names.iter().map(String::as_str))
    }

    fn last_run(&self) -> Option<Profile> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::cluster;

    #[test]
    fn groups_are_united_and_share_one_pin() {
        let devices = cluster("2xCPU");
        let mut builder = GraphBuilder::new(&devices);
        let [a, b, c, d] = ["a", "b", "c", "d"].map(|name| builder.node(name, &[1.0]));
        builder.group(&[a, b]);
        builder.group(&[c, a]);
        builder.pin(b, 1);
        let graph = builder.build();
        let group = |node: u32| graph.group[node as usize];
        assert_eq!((group(a), group(b)), (group(c), group(c)));
        assert_ne!(group(c), group(d));
        assert_eq!(graph.counts.groups, 2);
        assert_eq!(graph.pinned, [1, 1, 1, NONE]);
        let set = graph.candidate_set[a as usize] as usize;
        let legal =
            graph.candidates.offsets[set] as usize..graph.candidates.offsets[set + 1] as usize;
        assert_eq!(graph.candidates.items[legal], [1]);
    }

    #[test]
    #[should_panic(expected = "a group has one pin")]
    fn a_group_with_two_pins_is_a_mistake_of_the_test() {
        let mut builder = GraphBuilder::new(&cluster("2xCPU"));
        let (a, b) = (builder.node("a", &[1.0]), builder.node("b", &[1.0]));
        builder.group(&[a, b]);
        builder.pin(a, 0);
        builder.pin(b, 1);
        builder.build();
    }
}
