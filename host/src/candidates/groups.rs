//! Colocation groups: nodes that must share a device, and the request of each group (TensorFlow
//! `ColocationGraph`).

use hashbrown::HashMap;
use hashbrown::HashSet;

use crate::candidates::calls::CallGroups;
use crate::candidates::calls::GroupLimits;
use crate::candidates::choose::Request;
use crate::candidates::index::to_u32;
use crate::candidates::support::Supports;
use crate::candidates::tie::Tie;
use crate::candidates::tie::call_members;
use crate::candidates::types::TypeTable;
use crate::candidates::types::is_xla;
use crate::device::DEVICE_CPU;
use crate::graph::Graph;
use crate::graph::NONE;
use crate::graph::NodeId;
use crate::names::DeviceName;
use crate::names::MergeMode;
use crate::tensor::DType;

/// Type of devices that represent several physical ones.
const COMPOSITE_TYPE: &str = "COMPOSITE";

/// The request of a group of several nodes, or of a node that was assigned earlier.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct GroupState {
    pub(super) support: u32,
    pub(super) assigned: DeviceName,
    pub(super) resource: DeviceName,
    pub(super) requested: DeviceName,
}

impl GroupState {
    pub(super) fn request(&self) -> Request<'_> {
        Request {
            requested: &self.requested,
            assigned: &self.assigned,
            resource: &self.resource,
        }
    }
}

/// Groups whose assigned device takes precedence over their request. Soft placement may keep the
/// request of a resource next to the assigned device of a member. The node that is placed first
/// decides; TensorFlow's placer then finds that the other one contradicts it, or overrides it.
#[derive(Debug, Default)]
pub(super) struct Overrides(HashSet<u32>);

impl Overrides {
    /// Whether a member is placed before the one that is assigned to another device. Must be called
    /// for all members in node order.
    pub(super) fn contradicts(
        &mut self,
        root: u32,
        state: &GroupState,
        is_assigned: bool,
        is_generator: bool,
    ) -> bool {
        if state.requested.is_compatible_with(&state.assigned) {
            return false;
        }
        if is_assigned {
            self.0.insert(root);
        }
        !is_assigned && !is_generator && !self.0.contains(&root)
    }
}

/// Union-find over nodes, with states at the roots. Only nodes that some rule affects have a state.
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
    /// By node, an index into `states` or [`NONE`]; counts at roots.
    state_of: Vec<u32>,
    states: States,
    /// By number of the colocation group, the node that came first, or [`NONE`].
    first_of_class: Vec<u32>,
    /// The limits that count; `None` if all do.
    kept: Option<&'a KeptLimits>,
}

/// The nodes whose requests and kernels count, if not those of all nodes do.
#[derive(Debug)]
pub(super) struct KeptLimits {
    pub(super) requests: HashSet<u32>,
    pub(super) kernels: HashSet<u32>,
    /// Support of the other nodes.
    all_types: u32,
}

impl KeptLimits {
    pub(super) fn new(all_types: u32) -> Self {
        Self {
            requests: HashSet::new(),
            kernels: HashSet::new(),
            all_types,
        }
    }
}

/// Distinct states, numbered. Graphs have few, even with many groups, so that results for a pair of
/// states are computed once.
#[derive(Debug, Default)]
struct States {
    all: Vec<GroupState>,
    ids: HashMap<GroupState, u32>,
    /// States of single nodes.
    alone: HashMap<Alone, u32>,
    /// States of joined groups, by the states of both.
    joined: HashMap<(u32, u32), u32>,
}

/// The request of a node before it is tied to another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Alone {
    support: u32,
    /// Requested id, or [`NONE`] if its request does not count.
    request: u32,
    /// Whether the request applies to the resource that the node generates.
    asks_for_resource: bool,
}

impl States {
    fn intern(&mut self, state: GroupState) -> u32 {
        if let Some(&id) = self.ids.get(&state) {
            return id;
        }
        let id = to_u32(self.all.len());
        self.all.push(state.clone());
        self.ids.insert(state, id);
        id
    }
}

impl std::ops::Index<u32> for States {
    type Output = GroupState;

    fn index(&self, id: u32) -> &GroupState {
        &self.all[id as usize]
    }
}

/// Two nodes that must share a device but cannot.
#[derive(Debug)]
pub(super) struct GroupConflict {
    pub(super) first: u32,
    pub(super) second: u32,
    /// The request of the first node's group.
    pub(super) first_request: String,
    /// The request of the second node's group.
    pub(super) second_request: String,
    /// Why they must share a device, and why they cannot.
    pub(super) reason: String,
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
            state_of: Vec::new(),
            states: States::default(),
            first_of_class: Vec::new(),
            kept: None,
        }
    }

    /// Lifts the requests and kernels of all other nodes.
    pub(super) fn keep_only(&mut self, kept: &'a KeptLimits) {
        self.kept = Some(kept);
    }

    /// Whether any node is not alone, or was assigned.
    pub(super) fn is_trivial(&self) -> bool {
        self.parent.is_empty()
    }

    /// Fixes a node to a device.
    pub(super) fn assign(&mut self, node: u32, device: &DeviceName, supports: &Supports) {
        self.prepare();
        let state = GroupState {
            support: self.alone(node, supports).support,
            assigned: device.clone(),
            resource: DeviceName::default(),
            requested: device.clone(),
        };
        self.state_of[node as usize] = self.states.intern(state);
    }

    /// Joins the nodes of a tie.
    pub(super) fn join_tie(
        &mut self,
        tie: &Tie<'a>,
        supports: &mut Supports,
    ) -> Result<(), GroupConflict> {
        self.prepare();
        match tie {
            Tie::Edge {
                producer, consumer, ..
            } => self.join_reference(*producer, *consumer, supports),
            Tie::HostOnly { node, .. } => {
                self.limit_to_cpu(*node, supports);
                Ok(())
            }
            Tie::Call { call, found } => self.join_call(*call, found, supports),
            Tie::Class {
                node,
                group,
                number,
                ..
            } => self.join_class(group, *number, *node, supports),
        }
    }

    /// Joins producers of a call's arguments with readers of its results if the body of its
    /// function joins argument and result. Requests of the body's nodes count for them. The
    /// call itself may be on any device.
    fn join_call(
        &mut self,
        call: NodeId,
        found: &CallGroups,
        supports: &mut Supports,
    ) -> Result<(), GroupConflict> {
        let members = call_members(self.graph, call, found);
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
    ) -> Result<(), GroupConflict> {
        let (a, b) = (self.root(first), self.root(second));
        if a == b {
            return Ok(());
        }
        self.join(a, b, supports).map_err(|reason| {
            let call = self.graph.node_name(call);
            let reason = format!("the function that `{call}` calls joins them, but {reason}");
            self.conflict((first, a), (second, b), reason)
        })
    }

    /// Applies the requests of a function's nodes to a group outside. If no device type is left,
    /// choosing fails.
    fn limit(
        &mut self,
        node: u32,
        limits: &GroupLimits,
        call: NodeId,
        supports: &mut Supports,
    ) -> Result<(), GroupConflict> {
        let root = self.root(node);
        let id = self.state_id(root, supports);
        let mut state = self.states[id].clone();
        let mode = self.merge_mode();
        let (requested, resource) = (&limits.requested, &limits.resource);
        state
            .requested
            .merge(requested, mode)
            .and_then(|()| state.resource.merge(resource, MergeMode::Hard))
            .map_err(|error| GroupConflict {
                first: node,
                second: call.0,
                first_request: self.request_of(root),
                second_request: requested.request_text(),
                reason: format!(
                    "nodes of the function that `{}` calls must share a device with `{}`: {error}",
                    self.graph.node_name(call),
                    self.graph.node_name(NodeId(node))
                ),
            })?;
        let supported = supports.intern(limits.supported.clone(), false);
        state.support = match supports.intersect(state.support, supported, self.types) {
            Some(common) => common,
            None => supports.intern(Vec::new(), false),
        };
        self.state_of[root as usize] = self.states.intern(state);
        Ok(())
    }

    /// If no device type is left, choosing fails. The type is named because TensorFlow's rule names
    /// it (`AddHostOnlyDataTypesConstraints`), and kernels are registered for types.
    fn limit_to_cpu(&mut self, node: u32, supports: &mut Supports) {
        let root = self.root(node);
        let id = self.state_id(root, supports);
        let mut state = self.states[id].clone();
        state.support = supports.only(state.support, DEVICE_CPU, self.types);
        self.state_of[root as usize] = self.states.intern(state);
    }

    /// Drops XLA types from groups that do not ask for one.
    pub(super) fn drop_xla(&mut self, supports: &mut Supports) {
        let found = 0..self.states.all.len();
        let without: Vec<u32> = found
            .map(|id| {
                let state = without_xla(self.states.all[id].clone(), supports, self.types);
                self.states.intern(state)
            })
            .collect();
        if (0u32..).zip(&without).any(|(id, &without)| id != without) {
            for id in self.state_of.iter_mut().filter(|id| **id != NONE) {
                *id = without[*id as usize];
            }
        }
    }

    /// Returns the node that represents its group.
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

    /// Returns the state of a group, if it has its own.
    pub(super) fn state(&self, root: u32) -> Option<&GroupState> {
        self.numbered_state(root).map(|(_, state)| state)
    }

    /// Returns the state and its number, which is below [`Self::n_states`]; equal states have equal
    /// numbers.
    pub(super) fn numbered_state(&self, root: u32) -> Option<(u32, &GroupState)> {
        let id = self.state_of.get(root as usize).copied();
        id.filter(|&id| id != NONE).map(|id| (id, &self.states[id]))
    }

    /// Returns the number of distinct states.
    pub(super) fn n_states(&self) -> usize {
        self.states.all.len()
    }

    /// Returns a node's group and its request, also for a single node; call it after
    /// [`Self::drop_xla`].
    pub(super) fn of_node(&mut self, node: u32, supports: &mut Supports) -> (u32, GroupState) {
        let root = self.root(node);
        let state = match self.state(root) {
            Some(state) => state.clone(),
            None => {
                let state = self.state_alone(self.alone(root, supports));
                without_xla(state, supports, self.types)
            }
        };
        (root, state)
    }

    /// Returns how requests of users are merged.
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
            self.state_of = vec![NONE; self.graph.n_nodes()];
        }
    }

    /// Returns the number of a root's state, and creates the state if there is none.
    fn state_id(&mut self, root: u32, supports: &Supports) -> u32 {
        let known = self.state_of[root as usize];
        if known != NONE {
            return known;
        }
        let alone = self.alone(root, supports);
        let id = match self.states.alone.get(&alone) {
            Some(&id) => id,
            None => {
                let id = self.states.intern(self.state_alone(alone));
                self.states.alone.insert(alone, id);
                id
            }
        };
        self.state_of[root as usize] = id;
        id
    }

    fn alone(&self, node: u32, supports: &Supports) -> Alone {
        let (graph, id, kept) = (self.graph, NodeId(node), self.kept);
        let request = match kept {
            Some(kept) if !kept.requests.contains(&node) => NONE,
            _ => graph.requested_ids()[id.index()],
        };
        let requested = self.requests.get(request as usize);
        let asks = requested.is_some_and(DeviceName::has_details);
        Alone {
            support: match kept {
                Some(kept) if !kept.kernels.contains(&node) => kept.all_types,
                _ => supports.of_node(graph, id),
            },
            request,
            asks_for_resource: asks && is_resource_generator(graph, id),
        }
    }

    fn state_alone(&self, alone: Alone) -> GroupState {
        let requested = self.requests.get(alone.request as usize);
        let requested = requested.cloned().unwrap_or_default();
        GroupState {
            support: alone.support,
            assigned: DeviceName::default(),
            resource: if alone.asks_for_resource {
                requested.clone()
            } else {
                DeviceName::default()
            },
            requested,
        }
    }

    fn join_reference(
        &mut self,
        producer: u32,
        consumer: u32,
        supports: &mut Supports,
    ) -> Result<(), GroupConflict> {
        self.prepare();
        let (src, dst) = (self.root(producer), self.root(consumer));
        if src == dst {
            return Ok(());
        }
        let (of_source, of_target) = (self.state_id(src, supports), self.state_id(dst, supports));
        let (source, target) = (&self.states[of_source], &self.states[of_target]);
        if is_copied_to_parts(source, target) {
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
            return Err(GroupConflict {
                first: producer,
                second: consumer,
                first_request: first.request_text(),
                second_request: second.request_text(),
                reason: format!(
                    "a reference or resource edge joins them, but their {what} devices are incompatible"
                ),
            });
        }
        if !source.requested.is_compatible_with(&target.requested) {
            // The producer wins, also without soft placement, and the consumer's whole request is
            // dropped.
            let mut requested = source.requested.clone();
            requested.ensure_specification(&target.assigned);
            requested.ensure_specification(&target.resource);
            let target = GroupState {
                requested,
                ..target.clone()
            };
            self.state_of[dst as usize] = self.states.intern(target);
        }
        self.join(src, dst, supports).map_err(|reason| {
            let reason = format!(
                "a reference or resource edge connects nodes on two different devices: {reason}"
            );
            self.conflict((producer, src), (consumer, dst), reason)
        })
    }

    fn join_class(
        &mut self,
        group: &str,
        number: u32,
        node: u32,
        supports: &mut Supports,
    ) -> Result<(), GroupConflict> {
        let number = number as usize;
        if number >= self.first_of_class.len() {
            self.first_of_class.resize(number + 1, NONE);
        }
        let first = &mut self.first_of_class[number];
        if *first == NONE {
            *first = node;
        }
        let first = *first;
        let (a, b) = (self.root(node), self.root(first));
        if a == b {
            return Ok(());
        }
        match self.join(a, b, supports) {
            Err(reason) if !self.soft => {
                let reason = format!("both are in colocation group `{group}`, but {reason}");
                Err(self.conflict((node, a), (first, b), reason))
            }
            // Soft placement drops a colocation request that cannot be met.
            _ => Ok(()),
        }
    }

    /// Joins two groups, given by their roots; on failure both remain unchanged.
    fn join(&mut self, x: u32, y: u32, supports: &mut Supports) -> Result<(), String> {
        let (root, child) = if self.rank[x as usize] < self.rank[y as usize] {
            (y, x)
        } else {
            (x, y)
        };
        let states = (
            self.state_id(root, supports),
            self.state_id(child, supports),
        );
        let joined = match self.states.joined.get(&states) {
            Some(&joined) => joined,
            None => {
                let joined = self.joined(states.0, states.1, supports)?;
                let joined = self.states.intern(joined);
                self.states.joined.insert(states, joined);
                joined
            }
        };
        if self.rank[root as usize] == self.rank[child as usize] {
            self.rank[root as usize] += 1;
        }
        self.parent[child as usize] = root;
        self.state_of[root as usize] = joined;
        Ok(())
    }

    /// Computes the state of a group that another one joins.
    fn joined(&self, new: u32, old: u32, supports: &mut Supports) -> Result<GroupState, String> {
        let (mut new, old) = (self.states[new].clone(), &self.states[old]);
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
        Ok(new)
    }

    /// Describes the conflict of two nodes with their groups.
    fn conflict(&self, first: (u32, u32), second: (u32, u32), reason: String) -> GroupConflict {
        GroupConflict {
            first: first.0,
            second: second.0,
            first_request: self.request_of(first.1),
            second_request: self.request_of(second.1),
            reason,
        }
    }

    fn request_of(&self, root: u32) -> String {
        self.state(root)
            .map(|state| state.requested.request_text())
            .unwrap_or_default()
    }
}

/// Removes the XLA types, unless the group requests one.
fn without_xla(mut state: GroupState, supports: &mut Supports, types: &TypeTable) -> GroupState {
    let names = [&state.requested, &state.assigned, &state.resource];
    if !names.into_iter().any(asks_for_xla) {
        state.support = supports.without_xla(state.support, types);
    }
    state
}

/// Whether a name requests an XLA or composite type.
pub(super) fn asks_for_xla(name: &DeviceName) -> bool {
    name.device_type
        .as_deref()
        .is_some_and(|device_type| is_xla(device_type) || device_type == COMPOSITE_TYPE)
}

/// Whether an edge leads from a composite device, which represents several, to a physical one.
/// Those need not be the same.
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
