//! Builds graphs with a few calls.

use crate::NONE;
use crate::graph::EdgeKind;
use crate::source::Counts;
use crate::source::Csr;
use crate::source::DeviceSource;
use crate::testing::TestDevices;
use crate::testing::TestGraph;
use crate::testing::graph::OP_CONST;
use crate::testing::graph::OP_TYPES;

/// Builds a [`TestGraph`] node by node, producers before consumers.
#[derive(Debug, Clone)]
pub struct GraphBuilder {
    /// The device type of each cost class, for messages.
    device_types: Vec<String>,
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
    op_type: Vec<String>,
    executions: Vec<f64>,
    flops: Vec<f64>,
    resident_bytes: Vec<u64>,
    workspace_bytes: Vec<u64>,
    user_priority: Vec<i32>,
    is_preloaded: Vec<bool>,
    is_constant: Vec<bool>,
    requested: Vec<String>,
}

#[derive(Debug, Clone, Copy)]
struct Edge {
    from: u32,
    to: u32,
    /// `None` means a control edge.
    bytes: Option<u64>,
}

impl GraphBuilder {
    /// Creates an empty graph whose nodes may run on all of `devices`.
    pub fn new(devices: &TestDevices) -> Self {
        let mut preferred: Vec<u32> = (0..devices.count()).collect();
        preferred.sort_by_key(|&device| -devices.attributes[device as usize].type_preference);
        let n_classes = devices.cost_classes.iter().max().map_or(0, |last| last + 1);
        let mut device_types = vec![String::new(); n_classes as usize];
        for (device, &class) in devices.attributes.iter().zip(&devices.cost_classes) {
            device_types[class as usize].clone_from(&device.device_type);
        }
        Self {
            device_types,
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
            op_type: Vec::new(),
            executions: Vec::new(),
            flops: Vec::new(),
            resident_bytes: Vec::new(),
            workspace_bytes: Vec::new(),
            user_priority: Vec::new(),
            is_preloaded: Vec::new(),
            is_constant: Vec::new(),
            requested: Vec::new(),
        }
    }

    /// Adds a node with its cost in ns on each device type of the cluster, and returns its id.
    ///
    /// # Panics
    /// If there is not exactly one cost per device type.
    #[track_caller]
    pub fn node(&mut self, name: &str, costs_ns: &[f64]) -> u32 {
        let types = &self.device_types;
        assert!(
            costs_ns.len() == types.len(),
            "node `{name}` has {} costs, the device types are {types:?}",
            costs_ns.len()
        );
        let node = u32::try_from(self.names.len()).expect("test graphs are small");
        self.names.push(name.to_owned());
        self.costs.extend_from_slice(costs_ns);
        self.candidates.push(None);
        self.group.push(node);
        self.pinned.push(NONE);
        self.placement_hints.push(0);
        self.follow.push(NONE);
        self.op_type.push(OP_TYPES[0].to_owned());
        self.executions.push(1.0);
        self.flops.push(0.0);
        self.resident_bytes.push(0);
        self.workspace_bytes.push(0);
        self.user_priority.push(0);
        self.is_preloaded.push(false);
        self.is_constant.push(false);
        self.requested.push(String::new());
        node
    }

    /// Adds a constant of `bytes`, and returns its id. As in the host, it takes no time, is never
    /// transferred, and takes memory on each device that reads it, not on its own.
    pub fn constant(&mut self, name: &str, bytes: u64) -> u32 {
        let node = self.node(name, &vec![0.0; self.device_types.len()]);
        self.op_type[node as usize] = OP_TYPES[OP_CONST as usize].to_owned();
        self.is_constant[node as usize] = true;
        self.preloaded(node);
        self.resident_bytes(node, bytes);
        node
    }

    /// Adds a tensor of `bytes` from a node to a later one.
    ///
    /// # Panics
    /// If there is no such node, or `to` is a constant or not after `from`.
    #[track_caller]
    pub fn edge(&mut self, from: u32, to: u32, bytes: u64) {
        self.add_edge(from, to, Some(bytes));
    }

    /// Adds an edge that only orders its nodes.
    ///
    /// # Panics
    /// As [`Self::edge`].
    #[track_caller]
    pub fn control_edge(&mut self, from: u32, to: u32) {
        self.add_edge(from, to, None);
    }

    /// Sets the legal devices of a node, most preferred first. If the node is in a group, sets
    /// those of the whole group.
    ///
    /// # Panics
    /// If there are no devices, or one is not in the cluster.
    #[track_caller]
    pub fn candidates(&mut self, node: u32, devices: &[u32]) {
        let name = &self.names[node as usize];
        assert!(!devices.is_empty(), "node `{name}` has no candidates");
        for &device in devices {
            self.check_device(node, device);
        }
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

    /// Puts nodes, with the groups that they are already in, into one colocation group. All members
    /// get the candidates of the first.
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

    /// Fixes the device of a node and of its group. As in the host, it is then their only
    /// candidate.
    ///
    /// # Panics
    /// If the device is not in the cluster.
    #[track_caller]
    pub fn pin(&mut self, node: u32, device: u32) {
        self.check_device(node, device);
        self.pinned[node as usize] = device;
    }

    /// Sets the [`crate::PlacementHint`] bits of a node.
    pub fn hints(&mut self, node: u32, bits: u8) {
        self.placement_hints[node as usize] = bits;
    }

    /// Marks the edges of a node as [`EdgeKind::PRELOADED`], as those of a placeholder: its tensor
    /// is never transferred. [`Self::constant`] adds constants.
    pub fn preloaded(&mut self, node: u32) {
        self.is_preloaded[node as usize] = true;
    }

    /// Sets the device that the user requests for a node. Does not change the candidates.
    pub fn request(&mut self, node: u32, device: &str) {
        device.clone_into(&mut self.requested[node as usize]);
    }

    /// Sets the producer that a metadata op or a matching identity follows.
    pub fn follow(&mut self, node: u32, producer: u32) {
        self.follow[node as usize] = producer;
    }

    /// Sets the op type of a node, `Test` by default.
    ///
    /// # Panics
    /// If the node is a constant and the op type is not `Const`, or the reverse:
    /// [`Self::constant`] adds constants.
    #[track_caller]
    pub fn op_type(&mut self, node: u32, op_type: &str) {
        let name = &self.names[node as usize];
        assert!(
            self.is_constant[node as usize] == (op_type == OP_TYPES[OP_CONST as usize]),
            "node `{name}` cannot get op type {op_type}: `constant` adds the nodes of op type Const"
        );
        op_type.clone_into(&mut self.op_type[node as usize]);
    }

    /// Sets the expected executions of a node in one run.
    pub fn executions(&mut self, node: u32, executions: f64) {
        self.executions[node as usize] = executions;
    }

    /// Sets the floating-point operations of one execution of a node. The costs do not depend on
    /// them.
    pub fn flops(&mut self, node: u32, flops: f64) {
        self.flops[node as usize] = flops;
    }

    /// Sets the bytes that stay on the node's device.
    pub fn resident_bytes(&mut self, node: u32, bytes: u64) {
        self.resident_bytes[node as usize] = bytes;
    }

    /// Sets the bytes that one execution of the node needs besides its inputs and outputs.
    pub fn workspace_bytes(&mut self, node: u32, bytes: u64) {
        self.workspace_bytes[node as usize] = bytes;
    }

    /// Sets the priority that the user requests for a node, larger first.
    pub fn user_priority(&mut self, node: u32, priority: i32) {
        self.user_priority[node as usize] = priority;
    }

    /// Builds the graph.
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
        let mut op_type_names = OP_TYPES.map(str::to_owned).to_vec();
        let mut op_type = Vec::with_capacity(n_nodes);
        for name in self.op_type {
            let known = op_type_names.iter().position(|known| *known == name);
            let number = known.unwrap_or_else(|| {
                op_type_names.push(name);
                op_type_names.len() - 1
            });
            op_type.push(u32::try_from(number).expect("test graphs are small"));
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
                cost_classes: count(self.device_types.len()),
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
            op_type,
            op_type_names,
            executions: self.executions,
            flops: self.flops,
            resident_bytes: self.resident_bytes,
            workspace_bytes: self.workspace_bytes,
            user_priority: self.user_priority,
            cost_row: (0..count(n_nodes)).collect(),
            cost_samples: vec![0; self.costs.len()],
            costs: self.costs,
            options: vec![("graph-name".to_owned(), "test".to_owned())],
            cost_classes: self.cost_classes,
            names: self.names,
            requested: self.requested,
        }
    }

    #[track_caller]
    fn check_device(&self, node: u32, device: u32) {
        let (name, n_devices) = (&self.names[node as usize], self.cost_classes.len());
        assert!(
            (device as usize) < n_devices,
            "node `{name}`: there is no device {device} among {n_devices}"
        );
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

    #[track_caller]
    fn add_edge(&mut self, from: u32, to: u32, bytes: Option<u64>) {
        let n_nodes = self.names.len();
        assert!(
            from < to && (to as usize) < n_nodes,
            "edge {from} -> {to} of {n_nodes} nodes"
        );
        assert!(
            !self.is_constant[to as usize],
            "edge {from} -> {to} enters a constant"
        );
        self.edges.push(Edge { from, to, bytes });
    }
}

/// Builds rows from (row, item) pairs, in the order of the pairs.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Graph;
    use crate::log::Log;
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
    fn columns_have_what_was_set() {
        let log = Log::silent();
        let mut builder = GraphBuilder::new(&cluster("1xCPU"));
        let [a, b, c] = ["a", "b", "c"].map(|name| builder.node(name, &[1.0]));
        let constant = builder.constant("constant", 8);
        builder.flops(b, 2e6);
        builder.user_priority(c, -3);
        builder.op_type(b, "MatMul");
        builder.op_type(c, "MatMul");
        let graph = builder.build();
        let graph = Graph::new(&graph, &log);
        assert_eq!(graph.flops(), [0.0, 2e6, 0.0, 0.0]);
        assert_eq!(graph.user_priority(), [0, 0, -3, 0]);
        let op_type =
            |node: u32| graph.op_type_names()[graph.op_type()[node as usize] as usize].as_str();
        assert_eq!(
            [a, b, c, constant].map(op_type),
            ["Test", "MatMul", "MatMul", "Const"]
        );
        assert_eq!(graph.op_type_names().len(), 3);
        assert_eq!(graph.constants(), [false, false, false, true]);
    }

    #[test]
    #[should_panic(expected = "node `n` has 1 costs, the device types are [\"CPU\", \"GPU\"]")]
    fn a_node_without_a_cost_per_device_type_panics() {
        GraphBuilder::new(&cluster("2xCPU,1xGPU")).node("n", &[1.0]);
    }

    #[test]
    #[should_panic(expected = "node `n` has no candidates")]
    fn a_node_without_candidates_panics() {
        let mut builder = GraphBuilder::new(&cluster("2xCPU"));
        let node = builder.node("n", &[1.0]);
        builder.candidates(node, &[]);
    }

    #[test]
    #[should_panic(expected = "node `n`: there is no device 7 among 2")]
    fn a_candidate_that_is_not_in_the_cluster_panics() {
        let mut builder = GraphBuilder::new(&cluster("2xCPU"));
        let node = builder.node("n", &[1.0]);
        builder.candidates(node, &[0, 7]);
    }

    #[test]
    #[should_panic(expected = "node `n`: there is no device 2 among 2")]
    fn a_pin_that_is_not_in_the_cluster_panics() {
        let mut builder = GraphBuilder::new(&cluster("2xCPU"));
        let node = builder.node("n", &[1.0]);
        builder.pin(node, 2);
    }

    #[test]
    #[should_panic(expected = "node `n` cannot get op type Const")]
    fn a_node_that_becomes_a_constant_panics() {
        let mut builder = GraphBuilder::new(&cluster("1xCPU"));
        let node = builder.node("n", &[1.0]);
        builder.op_type(node, "Const");
    }

    #[test]
    #[should_panic(expected = "edge 0 -> 1 enters a constant")]
    fn a_constant_with_an_input_panics() {
        let mut builder = GraphBuilder::new(&cluster("1xCPU"));
        let node = builder.node("node", &[1.0]);
        let constant = builder.constant("constant", 8);
        builder.control_edge(node, constant);
    }

    #[test]
    #[should_panic(expected = "a group has one pin")]
    fn a_group_with_two_pins_panics() {
        let mut builder = GraphBuilder::new(&cluster("2xCPU"));
        let (a, b) = (builder.node("a", &[1.0]), builder.node("b", &[1.0]));
        builder.group(&[a, b]);
        builder.pin(a, 0);
        builder.pin(b, 1);
        builder.build();
    }
}
