//! Colocation groups: which nodes must share a device, and what each group asks for (TensorFlow `ColocationGraph`).

use hashbrown::HashMap;
use hashbrown::HashSet;

use crate::candidates::choose::Request;
use crate::candidates::inspect::CallGroups;
use crate::candidates::inspect::GroupLimits;
use crate::candidates::support::Supports;
use crate::candidates::support::TypeTable;
use crate::candidates::support::is_xla;
use crate::candidates::support::to_u32;
use crate::candidates::ties::Tie;
use crate::candidates::ties::call_members;
use crate::graph::Graph;
use crate::graph::NodeId;
use crate::names::DeviceName;
use crate::names::MergeMode;
use crate::tensor::DType;

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

impl GroupState {
    pub(super) fn request(&self) -> Request<'_> {
        Request {
            requested: &self.requested,
            assigned: &self.assigned,
            resource: &self.resource,
        }
    }
}

/// Groups whose assigned device counts before what they ask for. Soft placement may leave what a resource asks for beside what a
/// member is assigned to; whichever is placed first decides, and TensorFlow's placer then finds that the other one contradicts it,
/// or overrides it.
#[derive(Debug, Default)]
pub(super) struct Overrides(HashSet<u32>);

impl Overrides {
    /// Whether a member is placed before the one that is assigned elsewhere; asked of all members in node order.
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
    first_of_class: HashMap<&'a str, u32>,
    /// `None` = all count.
    kept: Option<&'a KeptLimits>,
}

/// The nodes whose requests and kernels count, where not those of all nodes do.
#[derive(Debug)]
pub(super) struct KeptLimits {
    pub(super) requests: HashSet<u32>,
    pub(super) kernels: HashSet<u32>,
    /// What the others support.
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

/// Two nodes that must share a device, and cannot.
#[derive(Debug)]
pub(super) struct Clash {
    pub(super) first: u32,
    pub(super) second: u32,
    /// What the first one's group asks for.
    pub(super) first_request: String,
    /// What the second one's group asks for.
    pub(super) second_request: String,
    /// Why they must share, and why they cannot.
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
            state_of: HashMap::new(),
            first_of_class: HashMap::new(),
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
        let state = self.state_mut(node, supports);
        state.assigned = device.clone();
        state.requested = device.clone();
        state.resource = DeviceName::default();
    }

    /// Joins what a tie ties.
    pub(super) fn join_tie(&mut self, tie: &Tie<'a>, supports: &mut Supports) -> Result<(), Clash> {
        self.prepare();
        match tie {
            Tie::Edge {
                producer, consumer, ..
            } => self.join_reference(*producer, *consumer, supports),
            Tie::Call { call, found } => self.join_call(*call, found, supports),
            Tie::Class { node, group, .. } => self.join_class(group, *node, supports),
        }
    }

    /// Joins what feeds a call with what reads its results, where the body of its function joins argument and result; the body's
    /// nodes ask for devices with them. The call itself may be anywhere.
    fn join_call(
        &mut self,
        call: NodeId,
        found: &CallGroups,
        supports: &mut Supports,
    ) -> Result<(), Clash> {
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
    ) -> Result<(), Clash> {
        let (a, b) = (self.root(first), self.root(second));
        if a == b {
            return Ok(());
        }
        self.state_mut(a, supports);
        self.state_mut(b, supports);
        self.join(a, b, supports).map_err(|reason| {
            let call = self.graph.node_name(call);
            let reason = format!("the function that `{call}` calls joins them, but {reason}");
            self.clash((first, a), (second, b), reason)
        })
    }

    /// What nodes of a function ask for counts for a group outside. If no device type is left, choosing fails.
    fn limit(
        &mut self,
        node: u32,
        limits: &GroupLimits,
        call: NodeId,
        supports: &mut Supports,
    ) -> Result<(), Clash> {
        let root = self.root(node);
        let mut state = self.state_mut(root, supports).clone();
        let mode = self.merge_mode();
        let (requested, resource) = (&limits.requested, &limits.resource);
        state
            .requested
            .merge(requested, mode)
            .and_then(|()| state.resource.merge(resource, MergeMode::Hard))
            .map_err(|error| Clash {
                first: node,
                second: call.0,
                first_request: self.request_of(root),
                second_request: requested.to_string(),
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
        self.state_of.insert(root, state);
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
        let (graph, requests, kept) = (self.graph, self.requests, self.kept);
        self.state_of.entry(node).or_insert_with(|| {
            let id = NodeId(node);
            let requested = if kept.is_none_or(|kept| kept.requests.contains(&node)) {
                requests[graph.requested_ids()[id.index()] as usize].clone()
            } else {
                DeviceName::default()
            };
            GroupState {
                support: match kept {
                    Some(kept) if !kept.kernels.contains(&node) => kept.all_types,
                    _ => supports.of_node(graph, id),
                },
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

    fn join_reference(
        &mut self,
        producer: u32,
        consumer: u32,
        supports: &mut Supports,
    ) -> Result<(), Clash> {
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
            return Err(Clash {
                first: producer,
                second: consumer,
                first_request: first.to_string(),
                second_request: second.to_string(),
                reason: format!(
                    "a reference or resource connection joins them, which have incompatible {what} devices"
                ),
            });
        }
        if !source.requested.is_compatible_with(&target.requested) {
            // The producer wins, also without soft placement, and the consumer's whole request is dropped.
            target.requested = source.requested;
            target.requested.ensure_specification(&target.assigned);
            target.requested.ensure_specification(&target.resource);
            self.state_of.insert(dst, target);
        }
        self.join(src, dst, supports).map_err(|reason| {
            let reason = format!(
                "a reference or resource connection joins nodes on two different devices: {reason}"
            );
            self.clash((producer, src), (consumer, dst), reason)
        })
    }

    fn join_class(
        &mut self,
        group: &'a str,
        node: u32,
        supports: &mut Supports,
    ) -> Result<(), Clash> {
        let first = *self.first_of_class.entry(group).or_insert(node);
        let (a, b) = (self.root(node), self.root(first));
        if a == b {
            return Ok(());
        }
        self.state_mut(a, supports);
        self.state_mut(b, supports);
        match self.join(a, b, supports) {
            Err(reason) if !self.soft => {
                let reason = format!("both are in colocation group `{group}`, but {reason}");
                Err(self.clash((node, a), (first, b), reason))
            }
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

    /// Two nodes with their groups.
    fn clash(&self, first: (u32, u32), second: (u32, u32), reason: String) -> Clash {
        Clash {
            first: first.0,
            second: second.0,
            first_request: self.request_of(first.1),
            second_request: self.request_of(second.1),
            reason,
        }
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
