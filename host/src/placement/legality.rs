//! The rules for proposals, in their fixed order.

use crate::candidates::Candidates;
use crate::candidates::PlanColumns;
use crate::graph::Graph;
use crate::graph::NONE;
use crate::graph::NodeId;
use crate::names::DeviceId;
use crate::placement::memory::Capacity;
use crate::placement::shortage::MemoryShortage;
use crate::placement::violation::Violation;
use crate::plan::is_constant;

/// More devices than this are counted rather than named.
const MAX_DEVICES_NAMED: usize = 8;

/// Finds the first broken rule. A legal plan with enough memory takes one pass over the nodes; the
/// search for the first rule and node starts only if that pass fails. `capacity` belongs to the
/// candidates' devices.
pub(super) fn first_violation(
    candidates: &Candidates,
    plan: PlanColumns<'_>,
    capacity: &Capacity,
) -> Result<(), Violation> {
    before_memory(candidates, plan)?;
    if let Some(shortage) = capacity.shortage(candidates, plan) {
        return Err(Violation::Memory {
            node: shortage.node,
            shortage: Box::new(MemoryShortage::new(candidates, plan.devices, shortage)),
        });
    }
    plan.queues.map_or(Ok(()), |queues| {
        check_queues(candidates, plan.devices, queues)
    })
}

/// Checks the rules that come before `memory`.
pub(super) fn before_memory(
    candidates: &Candidates,
    plan: PlanColumns<'_>,
) -> Result<(), Violation> {
    let n_nodes = candidates.graph().n_nodes();
    let lengths = [
        ("devices", Some(plan.devices.len())),
        ("start order", plan.start_order.map(<[i32]>::len)),
        ("queues", plan.queues.map(<[u32]>::len)),
    ];
    for (column, length) in lengths {
        if let Some(found) = length
            && found != n_nodes
        {
            return Err(Violation::Length {
                column,
                expected: n_nodes,
                found,
            });
        }
    }
    if !nodes_are_legal(candidates, plan.devices) {
        return Err(node_violation(candidates, plan.devices));
    }
    check_streamed(candidates.graph(), plan.streamed)
}

/// Checks the rule `streamed`: only constants that wait for nothing.
fn check_streamed(graph: &Graph, streamed: &[u32]) -> Result<(), Violation> {
    let n_nodes = graph.n_nodes();
    let is_free = |node: NodeId| is_constant(graph, node) && graph.is_preloaded(node);
    let may_be = |id: u32| (id as usize) < n_nodes && is_free(NodeId(id));
    match streamed.iter().find(|&&id| !may_be(id)) {
        None => Ok(()),
        Some(&id) => Err(Violation::Streamed {
            node: NodeId(if (id as usize) < n_nodes { id } else { 0 }),
            what: match graph.nodes().nth(id as usize) {
                Some(node) => format!("node `{}` (op {})", graph.node_name(node), graph.op(node)),
                None => format!("node {id}, which does not exist (the graph has {n_nodes})"),
            },
        }),
    }
}

/// Checks that every node is on an existing device that is a candidate, its pin, and that of its
/// group.
pub(super) fn nodes_are_legal(candidates: &Candidates, devices: &[u32]) -> bool {
    let columns = candidates.nodes();
    let mut of_group = vec![NONE; columns.n_groups as usize];
    let nodes = candidates.graph().nodes();
    nodes
        .zip(devices)
        .zip(columns.pinned.iter().zip(&columns.group))
        .all(|((node, &device), (&pinned, &group))| {
            let known = &mut of_group[group as usize];
            let in_group = *known == NONE || *known == device;
            *known = device;
            in_group && (pinned == NONE || pinned == device) && candidates.is_legal(node, device)
        })
}

/// Lists the devices that a node may run on.
pub(super) fn legal_names(candidates: &Candidates, node: NodeId) -> String {
    let all = candidates.of_node(node);
    let mut text: Vec<&str> = all
        .iter()
        .take(MAX_DEVICES_NAMED)
        .map(|&device| candidates.device_name(device))
        .collect();
    let rest = format!("and {} more", all.len().saturating_sub(MAX_DEVICES_NAMED));
    if all.len() > MAX_DEVICES_NAMED {
        text.push(&rest);
    }
    text.join(", ")
}

/// Finds the first broken rule of device, pinned, candidate and group, at its first node. Pins come
/// before candidates because a pinned node has no other candidate, and the message should name the
/// pin.
fn node_violation(candidates: &Candidates, devices: &[u32]) -> Violation {
    let graph = candidates.graph();
    let columns = candidates.nodes();
    let name = |node: NodeId| graph.node_name(node).to_owned();
    let device_name = |device: u32| candidates.device_name(device).to_owned();
    let placed = || graph.nodes().zip(devices.iter().copied());
    let n_devices = candidates.n_devices();
    if let Some((node, device)) = placed().find(|&(_, device)| device as usize >= n_devices) {
        return Violation::Device {
            node,
            name: name(node),
            device,
            n_devices,
            legal: legal_names(candidates, node),
        };
    }
    let pin = |node: NodeId| columns.pinned[node.index()];
    if let Some((node, device)) =
        placed().find(|&(node, device)| pin(node) != NONE && pin(node) != device)
    {
        return Violation::Pinned {
            node,
            name: name(node),
            device: device_name(device),
            pinned: device_name(pin(node)),
        };
    }
    if let Some((node, device)) =
        placed().find(|&(node, device)| !candidates.is_legal(node, device))
    {
        return Violation::Candidate {
            node,
            name: name(node),
            device: device_name(device),
            legal: legal_names(candidates, node),
        };
    }
    let mut first_of_group = vec![NONE; columns.n_groups as usize];
    for (node, device) in placed() {
        let first = &mut first_of_group[columns.group[node.index()] as usize];
        if *first == NONE {
            *first = node.0;
        } else if devices[*first as usize] != device {
            return Violation::Group {
                node,
                name: name(node),
                device: device_name(device),
                other: name(NodeId(*first)),
                other_device: device_name(devices[*first as usize]),
            };
        }
    }
    unreachable!("the caller has found that a rule is broken")
}

/// Checks the rule `queue` for one entry per node, on devices that exist.
pub(super) fn check_queues(
    candidates: &Candidates,
    devices: &[u32],
    queues: &[u32],
) -> Result<(), Violation> {
    let n_queues = &candidates.devices().queues;
    for ((node, &device), &queue) in candidates.graph().nodes().zip(devices).zip(queues) {
        if queue >= n_queues[DeviceId(device).index()] {
            return Err(Violation::Queue {
                node,
                name: candidates.graph().node_name(node).to_owned(),
                queue,
                device: candidates.device_name(device).to_owned(),
                n_queues: n_queues[device as usize],
            });
        }
    }
    Ok(())
}
