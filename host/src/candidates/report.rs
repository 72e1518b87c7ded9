//! Creates [`CandidatesError`]s with the parts of graph, devices and kernels that users need.
//!
//! These are methods of [`Facts`], whose own file is [`super::facts`]: the stages between the two
//! read the facts, and only their callers create errors.

use crate::candidates::error::CandidatesError;
use crate::candidates::facts::Facts;
use crate::candidates::groups::GroupConflict;
use crate::candidates::groups::GroupState;
use crate::candidates::groups::Groups;
use crate::candidates::options::PlacementOptions;
use crate::candidates::support::Supports;
use crate::graph::NodeId;
use crate::names::DeviceName;

/// More members than this are counted rather than named.
const MAX_MEMBERS_NAMED: usize = 20;

impl Facts<'_> {
    /// Creates the error of a node without a kernel: it is invalid, or no kernel is registered.
    pub(super) fn no_kernel(&self, node: NodeId, has_mismatch: bool) -> CandidatesError {
        let graph = self.graph;
        if let Some(arguments) = self.arguments
            && let Err(source) = arguments.check_node(graph, node)
        {
            return CandidatesError::NodeDef {
                node: graph.node_name(node).to_owned(),
                op: graph.op(node).to_owned(),
                source: Box::new(source),
            };
        }
        let dtypes = graph.tensor_dtypes();
        let inputs: Vec<_> = graph
            .data_inputs(node)
            .map(|tensor| dtypes[tensor.index()].name())
            .collect();
        let outputs: Vec<_> = dtypes[graph.output_range(node)]
            .iter()
            .map(|dtype| dtype.name())
            .collect();
        CandidatesError::NoKernel {
            node: graph.node_name(node).to_owned(),
            op: graph.op(node).to_owned(),
            dtypes: format!("{} -> {}", inputs.join(", "), outputs.join(", ")),
            device_types: self.types.names.join(", "),
            has_mismatch,
            registered: self.registered(node),
        }
    }

    pub(super) fn pin_without_kernel(
        &self,
        node: NodeId,
        device: u32,
        supports: &Supports,
        support: u32,
        options: &PlacementOptions,
    ) -> CandidatesError {
        let op = self.graph.op(node);
        let mut assigned = options.assigned_devices.iter();
        if assigned.any(|(assigned, _)| *assigned == node) {
            return CandidatesError::AssignedDevice {
                node: self.graph.node_name(node).to_owned(),
                op: op.to_owned(),
                reason: format!(
                    "its assigned device `{}` has no kernel for the op, only [{}] have one; registered:{}",
                    self.device_name(device),
                    supports.names(support, self.types),
                    self.registered(node)
                )
                .into(),
            };
        }
        CandidatesError::PinNotLegal {
            node: self.graph.node_name(node).to_owned(),
            device: self.device_name(device).to_string(),
            reason: format!(
                "op `{op}` has no kernel there, only on [{}]",
                supports.names(support, self.types)
            ),
        }
    }

    /// Creates the error of two nodes that must share a device but cannot.
    pub(super) fn cannot_colocate(&self, conflict: GroupConflict) -> CandidatesError {
        let name = |node| self.graph.node_name(NodeId(node)).to_owned();
        CandidatesError::CannotColocate {
            first: name(conflict.first),
            second: name(conflict.second),
            first_request: conflict.first_request.into(),
            second_request: conflict.second_request.into(),
            reason: conflict.reason.into(),
            conflict: None,
        }
    }

    /// Creates the error of a request that no device matches.
    pub(super) fn no_such_device(&self, node: NodeId, request: &DeviceName) -> CandidatesError {
        let mut available = self.device_names();
        available.sort_unstable();
        CandidatesError::NoSuchDevice {
            node: self.graph.node_name(node).to_owned(),
            request: request.request_text(),
            available: available.join(", "),
            conflict: None,
        }
    }

    /// Creates the error of a group member that is placed before another member that is assigned to
    /// another device.
    fn assigned_elsewhere(&self, node: NodeId, state: &GroupState) -> CandidatesError {
        CandidatesError::AssignedDevice {
            node: self.graph.node_name(node).to_owned(),
            op: self.graph.op(node).to_owned(),
            reason: format!(
                "its colocation group requests `{}`, but a later node of the group is assigned to `{}`; request that device, or none",
                state.requested.request_text(), state.assigned
            )
            .into(),
        }
    }

    /// Creates the error of a node without a candidate, because of its request or its group's.
    pub(super) fn no_candidate(
        &self,
        node: NodeId,
        groups: &mut Groups<'_>,
        supports: &Supports,
    ) -> CandidatesError {
        let graph = self.graph;
        let own = &self.requests[graph.requested_ids()[node.index()] as usize];
        let root = groups.root(node.0);
        let (group_request, support) = match groups.state(root) {
            Some(state) if !state.requested.is_compatible_with(&state.assigned) => {
                return self.assigned_elsewhere(node, state);
            }
            Some(state) => (state.requested.clone(), state.support),
            None => (own.clone(), supports.of_node(graph, node)),
        };
        let name = graph.node_name(node).to_owned();
        if *own != group_request {
            return CandidatesError::GroupRequest {
                node: name,
                request: own.request_text(),
                group_request: group_request.request_text(),
                devices: self.device_names().join(", ").into(),
                group: self.describe_group(root, groups, supports).into(),
                conflict: None,
            };
        }
        if self.devices.find_matching(own).is_empty() {
            return self.no_such_device(node, own);
        }
        CandidatesError::NoKernelForRequest {
            node: name,
            op: graph.op(node).to_owned(),
            request: own.request_text(),
            supported: supports.names(support, self.types).into(),
            registered: self.registered(node),
            conflict: None,
        }
    }

    fn registered(&self, node: NodeId) -> Box<str> {
        self.kernels.listing(self.graph.op(node)).into()
    }

    /// Formats a group: `OpType: types` per op, then `name (OpType) request` per member.
    fn describe_group(&self, root: u32, groups: &mut Groups<'_>, supports: &Supports) -> String {
        let mut ops: Vec<String> = Vec::new();
        let mut members: Vec<String> = Vec::new();
        let mut n_members = 0;
        for node in self.graph.nodes() {
            if groups.root(node.0) != root {
                continue;
            }
            n_members += 1;
            let op = self.graph.op(node);
            let types = supports.names(supports.of_node(self.graph, node), self.types);
            let line = format!("{op}: {types}");
            if !ops.contains(&line) {
                ops.push(line);
            }
            if members.len() < MAX_MEMBERS_NAMED {
                let request = &self.requests[self.graph.requested_ids()[node.index()] as usize];
                let name = self.graph.node_name(node);
                let request = request.request_text();
                members.push(format!("{name} ({op}) {request}").trim_end().to_owned());
            }
        }
        if n_members > members.len() {
            members.push(format!("and {} more", n_members - members.len()));
        }
        format!("{}; members: {}", ops.join(", "), members.join(", "))
    }
}
