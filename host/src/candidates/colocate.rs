//! Colocation in a graph, or in the body of a function that it calls (TensorFlow
//! `ColocationGraph::Initialize`).

use std::ops::ControlFlow;

use crate::candidates::calls::CallInspector;
use crate::candidates::error::CandidatesError;
use crate::candidates::explain::Explainer;
use crate::candidates::facts::Facts;
use crate::candidates::groups::Groups;
use crate::candidates::index::to_u32;
use crate::candidates::options::PlacementOptions;
use crate::candidates::support::Supports;
use crate::candidates::ties::for_each_tie;
use crate::device::DeviceSet;
use crate::graph::Graph;
use crate::graph::NONE;
use crate::graph::NodeId;
use crate::names::DeviceName;

/// Computes supported types and colocation groups of a graph. Resource edges join before requests
/// of users, so the order matters.
///
/// # Errors
/// [`CandidatesError`] for a node without a kernel, and for nodes that must share a device but
/// cannot.
pub(super) fn colocation_groups<'g>(
    facts: &Facts<'g>,
    pinned: Option<&[u32]>,
    options: &PlacementOptions,
    inspector: &mut dyn CallInspector,
) -> Result<(Supports, Groups<'g>), CandidatesError> {
    let graph = facts.graph;
    let mut supports = Supports::of(facts)?;
    check_kernels(facts, pinned, options, &mut supports, |_, error| Err(error))?;
    let soft = options.allow_soft_placement;
    let mut groups = Groups::new(graph, facts.types, facts.requests, soft);
    for (node, &device) in graph.nodes().zip(pinned.unwrap_or_default()) {
        if device != NONE {
            groups.assign(node.0, facts.device_name(device), &supports);
        }
    }
    let mut n_ties = 0;
    let joined = for_each_tie(facts, inspector, |tie| {
        n_ties += 1;
        match groups.join_tie(&tie, &mut supports) {
            Ok(()) => ControlFlow::Continue(()),
            Err(conflict) => ControlFlow::Break(conflict),
        }
    })?;
    if let ControlFlow::Break(conflict) = joined {
        let node = conflict.first;
        let explainer = Explainer::new(facts, options, pinned, &supports, inspector, Some(n_ties));
        let found = explainer.ok().and_then(|mut them| them.conflict(node));
        return Err(facts.cannot_colocate(conflict).with_conflict(found));
    }
    groups.drop_xla(&mut supports);
    Ok((supports, groups))
}

/// Parses requested devices and merges them with the device scope; by requested id.
pub(super) fn parse_requests(
    graph: &Graph,
    scope: &DeviceName,
) -> Result<Vec<DeviceName>, CandidatesError> {
    graph
        .requested_devices()
        .iter()
        .enumerate()
        .map(|(id, text)| {
            let mut name = DeviceName::parse_full(text).map_err(|source| {
                let node = graph
                    .requested_ids()
                    .iter()
                    .position(|&requested| requested as usize == id);
                CandidatesError::MalformedRequest {
                    node: node.map_or_else(String::new, |node| {
                        graph.node_name(NodeId(to_u32(node))).to_owned()
                    }),
                    source,
                }
            })?;
            name.merge_unset(scope);
            Ok(name)
        })
        .collect()
}

/// Returns the local task; ops without kernels are presumed to have them in other tasks.
fn local_name(devices: &DeviceSet, options: &PlacementOptions) -> Option<DeviceName> {
    let local = devices.client_device().or(options.default_local_device)?;
    Some(devices.get(local)?.name().clone())
}

/// Checks that every node has a kernel on some device, and on its pinned device. A node without one
/// is presumed to have it in another task if it requests a device there; its types are then the
/// requested one, or all. Continues as long as `report` returns `Ok`.
pub(super) fn check_kernels(
    facts: &Facts<'_>,
    pinned: Option<&[u32]>,
    options: &PlacementOptions,
    supports: &mut Supports,
    mut report: impl FnMut(NodeId, CandidatesError) -> Result<(), CandidatesError>,
) -> Result<(), CandidatesError> {
    let lacks_some = supports.sets.iter().any(Vec::is_empty);
    if pinned.is_none() && !lacks_some {
        return Ok(());
    }
    let local = local_name(facts.devices, options);
    if lacks_some {
        supports.of_request = vec![NONE; facts.requests.len()];
    }
    for node in facts.graph.nodes() {
        let pin = pinned.map_or(NONE, |pinned| pinned[node.index()]);
        let support = supports.of_class[facts.graph.class_ids()[node.index()] as usize];
        if supports.sets[support as usize].is_empty() {
            let presumed = presume_elsewhere(facts, node, support, local.as_ref(), supports);
            let error = match presumed {
                Ok(true) => None,
                Ok(false) if pin != NONE => {
                    Some(facts.pin_without_kernel(node, pin, supports, support, options))
                }
                Ok(false) => Some(facts.no_kernel(node, supports.refused[support as usize])),
                Err(error) => Some(error),
            };
            if let Some(error) = error {
                report(node, error)?;
                continue;
            }
        }
        if pin != NONE {
            let support = supports.of_node(facts.graph, node);
            let device_type = facts.types.of_device[pin as usize];
            let mut supported = supports.sets[support as usize].iter();
            if !supported.any(|&(number, _)| number == device_type) {
                let error = facts.pin_without_kernel(node, pin, supports, support, options);
                report(node, error)?;
            }
        }
    }
    Ok(())
}

/// Whether a node without a kernel may have it in another task. Records the types of its request.
fn presume_elsewhere(
    facts: &Facts<'_>,
    node: NodeId,
    support: u32,
    local: Option<&DeviceName>,
    supports: &mut Supports,
) -> Result<bool, CandidatesError> {
    let request = facts.graph.requested_ids()[node.index()] as usize;
    let name = &facts.requests[request];
    let is_remote = local.is_some_and(|local| local.is_different_address_space(name));
    if !is_remote || supports.refused[support as usize] {
        return Ok(false);
    }
    if supports.of_request[request] == NONE {
        let presumed = supports.elsewhere(name.device_type.as_deref(), facts.types);
        if supports.sets[presumed as usize].is_empty() {
            return Err(facts.no_such_device(node, name));
        }
        supports.of_request[request] = presumed;
    }
    Ok(true)
}
