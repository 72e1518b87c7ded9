//! Variables and tables that follow their nodes to other devices.

use std::sync::Arc;
use std::time::Instant;

use tracing::warn;

use super::placed::Placed;
use crate::device::ContainerInfo;
use crate::device::Device;
use crate::device::KernelError;
use crate::graph::NodeId;
use crate::tensor::DType;
use crate::trace::EventKind;
use crate::trace::targets;

/// Moves the state of all nodes of `old` whose device has another resource manager in `new`, which
/// has the same graph. Returns the nodes whose state could not be moved.
pub(super) fn follow(old: &Placed, new: &mut Placed) -> Vec<NodeId> {
    let graph = Arc::clone(old.graph());
    let mut lost = Vec::new();
    for node in graph.nodes().filter(|&node| graph.class(node).stateful) {
        let device = new.placement.device(node);
        let before = old.devices().get(old.placement.device(node));
        let after = new.devices().get(device);
        let (Some(from), Some(to)) = (before, after) else {
            continue;
        };
        if has_same_state(&**from, &**to) {
            continue;
        }
        let has_handle = graph
            .output_range(node)
            .any(|output| graph.tensor_dtypes()[output] == DType::Resource);
        let started = Instant::now();
        match has_handle.then(|| move_resources(old, node, &**from, &**to)) {
            Some(Ok(Some(bytes))) => {
                let kind = EventKind::Device {
                    device,
                    call: "move_state",
                    node: Some(node),
                    detail: format!("{bytes} bytes from {}", from.attributes().name).into(),
                };
                new.recorder.record_since(started, kind);
                note_bytes(new, node, bytes);
            }
            Some(Err(problem)) => {
                let name = graph.node_name(node);
                warn!(target: targets::SESSION, node = name, %problem, "state is lost");
                lost.push(node);
            }
            Some(Ok(None)) | None => lost.push(node),
        }
    }
    lost
}

fn has_same_state(from: &dyn Device, to: &dyn Device) -> bool {
    match (from.resource_manager(), to.resource_manager()) {
        (Ok(from), Ok(to)) => Arc::ptr_eq(from, to),
        (from, to) => from.is_err() && to.is_err(),
    }
}

/// Returns the bytes of the resources that a node's handle names; `None` if there are none, or if
/// one of them cannot leave its device.
fn move_resources(
    old: &Placed,
    node: NodeId,
    from: &dyn Device,
    to: &dyn Device,
) -> Result<Option<u64>, KernelError> {
    let (Some(from), Some(to)) = (from.as_kernel_device(), to.as_kernel_device()) else {
        return Ok(None);
    };
    let graph = old.graph();
    let (name, attrs) = (graph.node_name(node), graph.attrs(node));
    let (old_manager, new_manager) = (from.resource_manager()?, to.resource_manager()?);
    let source = ContainerInfo::resolve(old_manager, name, attrs, true)?;
    let target = ContainerInfo::resolve(new_manager, name, attrs, true)?;
    let mut bytes = None;
    for mut named in old_manager.of_name(&source.container, &source.name)? {
        let moved = named
            .resource
            .moved(&**from.default_context(), &**to.default_context());
        let Some(moved) = moved else {
            return Ok(None);
        };
        named.resource = moved?;
        *bytes.get_or_insert(0) += named.resource.memory_bytes();
        new_manager.adopt(&target.container, named)?;
    }
    Ok(bytes)
}

/// Adds the bytes to the report of the node, if its device has another name now.
fn note_bytes(new: &mut Placed, node: NodeId, bytes: u64) {
    let report = Arc::get_mut(&mut new.report);
    let replacement = report.and_then(|report| report.replacement.as_mut());
    let moved = replacement.map(|it| &mut it.moved).into_iter().flatten();
    for moved in moved.filter(|moved| moved.node == node) {
        moved.moved_state_bytes = Some(bytes);
    }
}
