//! Colocation groups: which nodes must share a device, and what each group asks for (TensorFlow `ColocationGraph`).

use hashbrown::HashMap;

use crate::candidates::error::CandidatesError;
use crate::candidates::inspect::CallGroups;
use crate::candidates::inspect::GroupLimits;
use crate::candidates::options::OpArguments;
use crate::candidates::support::Supports;
use crate::candidates::support::TypeTable;
use crate::candidates::support::is_xla;
use crate::candidates::support::to_u32;
use crate::graph::AttrValue;
use crate::graph::EdgeKind;
use crate::graph::Graph;
use crate::graph::NONE;
use crate::graph::NodeId;
use crate::names::DeviceName;
use crate::names::MergeMode;
use crate::tensor::DType;

/// Ops whose reference and resource inputs do not bind them to the producer's device (TensorFlow's input colocation
/// exemption registry).
const EXEMPT_OPS: [&str; 24] = [
    "PartitionedCall",
    "StatefulPartitionedCall",
    "RpcServerRegister",
    "FilterDataset",
    "FlatMapDataset",
    "GeneratorDataset",
    "GroupByReducerDataset",
    "GroupByWindowDataset",
    "InterleaveDataset",
    "MapAndBatchDataset",
    "MapDataset",
    "OneShotIterator",
    "ParallelInterleaveDataset",
    "ParallelInterleaveDatasetV2",
    "ParallelMapDataset",
    "ParallelMapDatasetV2",
    "ReduceDataset",
    "ScanDataset",
    "TakeWhileDataset",
    "ExperimentalGroupByReducerDataset",
    "ExperimentalGroupByWindowDataset",
    "ExperimentalMapAndBatchDataset",
    "ExperimentalParallelInterleaveDataset",
    "ExperimentalScanDataset",
];

/// A device that stands for several physical ones.
const COMPOSITE_TYPE: &str = "COMPOSITE";

/// What a group of more than one node asks for, or a node that was assigned before.
#[derive(Debug, Clone)]
pub(super) struct GroupState {
    pub(super) support: u32,
    pub(super) assigned: DeviceName,
    pub(super) resource: DeviceName,
    pub(super) requested: DeviceName,
}

/// Union-find over nodes; states stand at the roots. Only nodes that some rule touches have a state.
#[derive(Debug)]
pub(super) struct Groups<'a> {
    graph: &'a Graph,
    types: &'a TypeTable,
    /// Parsed requests, by requested id.
    requests: &'a [DeviceName],
    soft: bool,
    /// Empty as long as every node is alone.
    parent: Vec<u32>,
    rank: Vec<u8>,
    state_of: HashMap<u32, GroupState>,
}

impl<'a> Groups<'a> {
    pub(super) fn new(
        graph: &'a Graph,
        types: &'a TypeTable,
        requests: &'a [DeviceName],
        soft: bool,
    ) -> Self {
        Self {
            graph,
            types,
            requests,
            soft,
            parent: Vec::new(),
            rank: Vec::new(),
            state_of: HashMap::new(),
        }
    }

    /// Whether any node is not alone, or was assigned.
    pub(super) fn is_trivial(&self) -> bool {
        self.parent.is_empty()
    }

    /// Fixes a node to a device.
    pub(super) fn assign(&mut self, node: u32, device: &DeviceName, supports: &Supports) {
        self.prepare();
        let state = self.state_mut(node, supports);
        state.assigned = device.clone();
        state.requested = device.clone();
        state.resource = DeviceName::default();
    }

    /// Joins the ends of reference and resource edges, and of variant edges between dataset ops; edges of `calls`, which are in
    /// order, wait until their functions have been looked into.
    pub(super) fn join_edges(
        &mut self,
        supports: &mut Supports,
        arguments: Option<&dyn OpArguments>,
        calls: &[NodeId],
    ) -> Result<(), CandidatesError> {
        let graph = self.graph;
        let has_variants = graph.tensor_dtypes().contains(&DType::Variant);
        let kinds = graph.edge_kinds();
        if !has_variants && !kinds.iter().any(|kind| kind & EdgeKind::REFERENCE != 0) {
            return Ok(());
        }
        let is_call = |node: NodeId| calls.binary_search(&node).is_ok();
        for node in graph.nodes().filter(|&node| !is_call(node)) {
            for (slot, edge) in graph.predecessors().range(node.index()).enumerate() {
                let is_reference = kinds[edge] & EdgeKind::REFERENCE != 0;
                if graph.edge_tensors()[edge] == NONE || !(is_reference || has_variants) {
                    continue;
                }
                let producer = graph.predecessors().items[edge];
                if is_call(NodeId(producer)) {
                    continue;
                }
                let joins = if is_reference {
                    self.binds(node, slot, edge, arguments)
                } else {
                    let dtype = graph.tensor_dtypes()[graph.edge_tensors()[edge] as usize];
                    dtype == DType::Variant
                        && is_dataset(graph, node)
                        && is_dataset(graph, NodeId(producer))
                };
                if joins {
                    self.join_reference(producer, node.0, supports)?;
                }
            }
        }
        Ok(())
    }

    /// Joins what feeds a call with what reads its results, where the body of its function joins argument and result; the body's
    /// nodes ask for devices with them. The call itself may be anywhere.
    pub(super) fn join_call(
        &mut self,
        call: NodeId,
        found: &CallGroups,
        supports: &mut Supports,
    ) -> Result<(), CandidatesError> {
        let graph = self.graph;
        self.prepare();
        // Per group of the body: a neighbour of the call, and whether it takes a reference or resource.
        let mut members: Vec<Vec<(u32, bool)>> = vec![Vec::new(); found.groups.len()];
        let is_reference = |edge: usize| graph.edge_kinds()[edge] & EdgeKind::REFERENCE != 0;
        let inputs = graph.predecessors().range(call.index());
        for (edge, &group) in inputs.zip(&found.args) {
            if graph.edge_tensors()[edge] != NONE {
                let producer = graph.predecessors().items[edge];
                members[group as usize].push((producer, is_reference(edge)));
            }
        }
        let outputs = graph.output_range(call);
        for position in graph.successors().range(call.index()) {
            let edge = graph.successor_edges()[position] as usize;
            let tensor = graph.edge_tensors()[edge] as usize;
            let slot = tensor.checked_sub(outputs.start);
            // Control edges carry no tensor.
            let group = slot.and_then(|slot| found.results.get(slot));
            if let Some(&group) = group.filter(|_| outputs.contains(&tensor)) {
                let consumer = graph.successors().items[position];
                members[group as usize].push((consumer, is_reference(edge)));
            }
        }
        for (members, limits) in members.iter().zip(&found.groups) {
            let Some((&(first, _), others)) = members.split_first() else {
                continue;
            };
            for &(member, is_reference) in others {
                if is_reference {
                    self.join_reference(first, member, supports)?;
                } else {
                    self.join_plainly(first, member, call, supports)?;
                }
            }
            self.limit(first, limits, call, supports)?;
        }
        Ok(())
    }

    fn join_plainly(
        &mut self,
        first: u32,
        second: u32,
        call: NodeId,
        supports: &mut Supports,
    ) -> Result<(), CandidatesError> {
        let (a, b) = (self.root(first), self.root(second));
        if a == b {
            return Ok(());
        }
        self.state_mut(a, supports);
        self.state_mut(b, supports);
        self.join(a, b, supports)
            .map_err(|reason| CandidatesError::Conflict {
                first: self.name(first),
                second: self.name(second),
                first_request: self.request_of(a),
                second_request: self.request_of(b),
                reason: format!(
                    "the function that `{}` calls joins them, but {reason}",
                    self.name(call.0)
                )
                .into(),
            })
    }

    /// What nodes of a function ask for counts for a group outside. If no device type is left, choosing fails.
    fn limit(
        &mut self,
        node: u32,
        limits: &GroupLimits,
        call: NodeId,
        supports: &mut Supports,
    ) -> Result<(), CandidatesError> {
        let root = self.root(node);
        let mut state = self.state_mut(root, supports).clone();
        let mode = self.merge_mode();
        let (requested, resource) = (&limits.requested, &limits.resource);
        state
            .requested
            .merge(requested, mode)
            .and_then(|()| state.resource.merge(resource, MergeMode::Hard))
            .map_err(|error| CandidatesError::Conflict {
                first: self.name(node),
                second: self.name(call.0),
                first_request: self.request_of(root),
                second_request: requested.to_string(),
                reason: format!(
                    "nodes of the function that `{}` calls must share a device with `{}`: {error}",
                    self.name(call.0),
                    self.name(node)
                )
                .into(),
            })?;
        let supported = supports.intern(limits.supported.clone(), false);
        state.support = match supports.intersect(state.support, supported, self.types) {
            Some(common) => common,
            None => supports.intern(Vec::new(), false),
        };
        self.state_of.insert(root, state);
        Ok(())
    }

    /// Joins nodes that name a common group in their attribute `_class`; each also is in the group of its own name.
    pub(super) fn join_classes(&mut self, supports: &mut Supports) -> Result<(), CandidatesError> {
        let graph = self.graph;
        let named: Vec<Vec<&str>> = graph
            .classes()
            .iter()
            .map(|class| {
                class
                    .attrs
                    .get("_class")
                    .map_or_else(Vec::new, groups_named)
            })
            .collect();
        if named.iter().all(Vec::is_empty) {
            return Ok(());
        }
        self.prepare();
        // Nodes that are named by others but name no group themselves still are in the group of their own name.
        let mut representative: HashMap<&str, u32> = HashMap::new();
        let mut targets: HashMap<&str, ()> = HashMap::new();
        for name in named.iter().flatten() {
            targets.insert(name, ());
        }
        for node in graph.nodes() {
            let class = graph.class_ids()[node.index()] as usize;
            for name in &named[class] {
                self.join_class(&mut representative, name, node.0, supports)?;
            }
            let own = graph.node_name(node);
            if targets.contains_key(own) {
                self.join_class(&mut representative, own, node.0, supports)?;
            }
        }
        Ok(())
    }

    /// Drops XLA types from groups that do not ask for one.
    pub(super) fn drop_xla(&mut self, supports: &mut Supports) {
        for state in self.state_of.values_mut() {
            let asks = [&state.requested, &state.assigned, &state.resource]
                .iter()
                .any(|name| asks_for_xla(name));
            if !asks {
                state.support = supports.without_xla(state.support, self.types);
            }
        }
    }

    /// The node that stands for its group.
    pub(super) fn root(&mut self, node: u32) -> u32 {
        if self.parent.is_empty() {
            return node;
        }
        let mut root = node;
        while self.parent[root as usize] != root {
            root = self.parent[root as usize];
        }
        let mut next = node;
        while self.parent[next as usize] != root {
            next = std::mem::replace(&mut self.parent[next as usize], root);
        }
        root
    }

    /// State of a group, if it has one of its own.
    pub(super) fn state(&self, root: u32) -> Option<&GroupState> {
        self.state_of.get(&root)
    }

    /// A node's group, and what it asks for, also of a node that is alone; after [`Self::drop_xla`].
    pub(super) fn of_node(&mut self, node: u32, supports: &mut Supports) -> (u32, GroupState) {
        self.prepare();
        let root = self.root(node);
        if let Some(state) = self.state_of.get(&root) {
            return (root, state.clone());
        }
        let mut state = self.state_mut(root, supports).clone();
        if !asks_for_xla(&state.requested) {
            state.support = supports.without_xla(state.support, self.types);
        }
        self.state_of.insert(root, state.clone());
        (root, state)
    }

    /// How requests of users are merged.
    fn merge_mode(&self) -> MergeMode {
        if self.soft {
            MergeMode::Soft
        } else {
            MergeMode::Hard
        }
    }

    fn prepare(&mut self) {
        if self.parent.is_empty() {
            self.parent = (0..to_u32(self.graph.n_nodes())).collect();
            self.rank = vec![0; self.graph.n_nodes()];
        }
    }

    fn state_mut(&mut self, node: u32, supports: &Supports) -> &mut GroupState {
        let (graph, requests) = (self.graph, self.requests);
        self.state_of.entry(node).or_insert_with(|| {
            let id = NodeId(node);
            let requested = requests[graph.requested_ids()[id.index()] as usize].clone();
            GroupState {
                support: supports.of_node(graph, id),
                assigned: DeviceName::default(),
                resource: if is_resource_generator(graph, id) {
                    requested.clone()
                } else {
                    DeviceName::default()
                },
                requested,
            }
        })
    }

    /// Whether a reference or resource edge binds its ends.
    fn binds(
        &self,
        node: NodeId,
        slot: usize,
        edge: usize,
        arguments: Option<&dyn OpArguments>,
    ) -> bool {
        let op = self.graph.op(node);
        if EXEMPT_OPS.contains(&op) {
            return false;
        }
        let tensor = self.graph.edge_tensors()[edge] as usize;
        if self.graph.tensor_dtypes()[tensor] == DType::Resource {
            return true;
        }
        // A reference that is consumed as a value, through an input that is no reference, does not bind.
        arguments
            .and_then(|arguments| arguments.input(op, self.graph.attrs(node), slot))
            .is_none_or(|argument| argument.is_ref)
    }

    fn join_reference(
        &mut self,
        producer: u32,
        consumer: u32,
        supports: &mut Supports,
    ) -> Result<(), CandidatesError> {
        self.prepare();
        let (src, dst) = (self.root(producer), self.root(consumer));
        if src == dst {
            return Ok(());
        }
        let source = self.state_mut(src, supports).clone();
        let mut target = self.state_mut(dst, supports).clone();
        if is_copied_to_parts(&source, &target) {
            return Ok(());
        }
        let refused = if !source.assigned.is_compatible_with(&target.assigned) {
            Some(("assigned", &source.assigned, &target.assigned))
        } else if !source.resource.is_compatible_with(&target.resource) {
            Some(("resource", &source.resource, &target.resource))
        } else {
            None
        };
        if let Some((what, first, second)) = refused {
            return Err(CandidatesError::Conflict {
                first: self.name(producer),
                second: self.name(consumer),
                first_request: first.to_string(),
                second_request: second.to_string(),
                reason: format!(
                    "a reference or resource connection joins them, which have incompatible {what} devices"
                )
.into(),
            });
        }
        if !source.requested.is_compatible_with(&target.requested) {
            // The producer wins, also without soft placement, and the consumer's whole request is dropped.
            target.requested = source.requested;
            target.requested.ensure_specification(&target.assigned);
            target.requested.ensure_specification(&target.resource);
            self.state_of.insert(dst, target);
        }
        self.join(src, dst, supports)
            .map_err(|reason| CandidatesError::Conflict {
                first: self.name(producer),
                second: self.name(consumer),
                first_request: self.request_of(src),
                second_request: self.request_of(dst),
                reason: format!(
                    "a reference or resource connection joins nodes on two different devices: {reason}"
                )
.into(),
            })
    }

    fn join_class<'n>(
        &mut self,
        representative: &mut HashMap<&'n str, u32>,
        name: &'n str,
        node: u32,
        supports: &mut Supports,
    ) -> Result<(), CandidatesError> {
        let first = *representative.entry(name).or_insert(node);
        let (a, b) = (self.root(node), self.root(first));
        if a == b {
            return Ok(());
        }
        self.state_mut(a, supports);
        self.state_mut(b, supports);
        match self.join(a, b, supports) {
            Err(reason) if !self.soft => Err(CandidatesError::Conflict {
                first: self.name(node),
                second: self.name(first),
                first_request: self.request_of(a),
                second_request: self.request_of(b),
                reason: format!("both are in colocation group `{name}`, but {reason}").into(),
            }),
            // Soft placement drops a colocation request that cannot be met.
            _ => Ok(()),
        }
    }

    /// Makes two groups one; on failure both are as they were. Both have states.
    fn join(&mut self, x: u32, y: u32, supports: &mut Supports) -> Result<(), String> {
        let (root, child) = if self.rank[x as usize] < self.rank[y as usize] {
            (y, x)
        } else {
            (x, y)
        };
        let old = self.state_of[&child].clone();
        let mut new = self.state_of[&root].clone();
        let mode = self.merge_mode();
        new.assigned
            .merge(&old.assigned, MergeMode::Hard)
            .and_then(|()| new.resource.merge(&old.resource, MergeMode::Hard))
            .and_then(|()| new.requested.merge(&old.requested, mode))
            .map_err(|error| error.to_string())?;
        new.requested.ensure_specification(&new.assigned);
        new.requested.ensure_specification(&new.resource);
        new.support = supports
            .intersect(new.support, old.support, self.types)
            .ok_or_else(|| {
                format!(
                    "no device type supports both of them and the nodes colocated with them: one group runs on [{}], the other on [{}]",
                    supports.names(new.support, self.types),
                    supports.names(old.support, self.types)
                )
            })?;
        if self.rank[root as usize] == self.rank[child as usize] {
            self.rank[root as usize] += 1;
        }
        self.parent[child as usize] = root;
        self.state_of.remove(&child);
        self.state_of.insert(root, new);
        Ok(())
    }

    fn name(&self, node: u32) -> String {
        self.graph.node_name(NodeId(node)).to_owned()
    }

    fn request_of(&self, root: u32) -> String {
        self.state_of
            .get(&root)
            .map(|state| state.requested.to_string())
            .unwrap_or_default()
    }
}

/// Whether a name asks for an XLA or composite type.
pub(super) fn asks_for_xla(name: &DeviceName) -> bool {
    name.device_type
        .as_deref()
        .is_some_and(|device_type| is_xla(device_type) || device_type == COMPOSITE_TYPE)
}

/// Whether an edge leads from a composite device, which stands for several, to a physical one: those need not be the same.
fn is_copied_to_parts(source: &GroupState, target: &GroupState) -> bool {
    let leads = |source: &DeviceName, target: &DeviceName| {
        source.device_type.as_deref() == Some(COMPOSITE_TYPE)
            && target
                .device_type
                .as_deref()
                .is_some_and(|device_type| device_type != COMPOSITE_TYPE)
    };
    leads(&source.assigned, &target.assigned)
        || leads(&source.resource, &target.resource)
        || leads(&source.requested, &target.requested)
}

/// No data inputs and one output, a reference or a resource.
fn is_resource_generator(graph: &Graph, node: NodeId) -> bool {
    let outputs = graph.output_range(node);
    outputs.len() == 1
        && graph.data_inputs(node).next().is_none()
        && (graph.tensor_dtypes()[outputs.start] == DType::Resource
            || graph
                .output(node, 0)
                .is_some_and(|tensor| graph.tensor_is_ref(tensor)))
}

/// One variant output, and named `...Dataset` or `...DatasetV` and a number.
fn is_dataset(graph: &Graph, node: NodeId) -> bool {
    let outputs = graph.output_range(node);
    let op = graph.op(node);
    let stem = op.trim_end_matches(|c: char| c.is_ascii_digit());
    let named = op.ends_with("Dataset") || (stem.len() < op.len() && stem.ends_with("DatasetV"));
    named && outputs.len() == 1 && graph.tensor_dtypes()[outputs.start] == DType::Variant
}

/// The `loc:@NAME` entries of a `_class` list; anything else is ignored, as in TensorFlow.
fn groups_named(class: &AttrValue) -> Vec<&str> {
    let AttrValue::List(values) = class else {
        return Vec::new();
    };
    values
        .iter()
        .filter_map(|value| match value {
            AttrValue::Bytes(bytes) => std::str::from_utf8(bytes).ok()?.strip_prefix("loc:@"),
            _ => None,
        })
        .collect()
}
