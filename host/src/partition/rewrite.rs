//! Lets devices rewrite their part of a plan: nodes that one kernel computes become one step, and
//! so does each cluster of a device that takes whole partitions.

use std::panic::AssertUnwindSafe;
use std::panic::catch_unwind;
use std::sync::Arc;
use std::time::Instant;

use super::cluster::clusters;
use crate::device::ClusterNodes;
use crate::device::DeviceError;
use crate::device::DeviceSet;
use crate::device::FusedNode;
use crate::device::KernelRegistry;
use crate::device::PartitionGraph;
use crate::device::PlainKernels;
use crate::device::PlanIndex;
use crate::device::panic_message;
use crate::graph::Graph;
use crate::graph::NodeId;
use crate::names::DeviceId;
use crate::plan::ExecutionPlan;
use crate::plan::StepId;

/// A plan as its devices have rewritten it.
pub(crate) struct Rewritten {
    pub(crate) plan: Arc<ExecutionPlan>,
    /// The steps that execute fused nodes or a cluster, with these nodes.
    pub(crate) fused: Vec<(StepId, Fused)>,
}

/// What a step executes that does not execute one node by its own kernel.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Fused {
    /// Nodes that one kernel of the registry computes.
    Nodes(Arc<FusedNode>),
    /// Nodes that a [`crate::device::PartitionDevice`] prepares.
    Cluster(Arc<ClusterNodes>),
}

impl Fused {
    /// Returns the nodes, in topological order.
    pub(crate) fn nodes(&self) -> &[NodeId] {
        match self {
            Self::Nodes(fused) => &fused.nodes,
            Self::Cluster(cluster) => &cluster.nodes,
        }
    }
}

/// Asks each device of a plan to rewrite its part (TensorFlow `Device::MaybeRewriteGraph`). Calls
/// `on_fused` for each set of nodes that one kernel will compute, with the time at which the device
/// was asked. The nodes of devices that take whole partitions become clusters. `plain_kernels`
/// belongs to the graph, the devices and the registry; a caller with many plans keeps it.
///
/// # Errors
/// The device that failed, and its error; a panic of the device becomes an error.
pub(crate) fn rewrite(
    graph: &Graph,
    devices: &DeviceSet,
    registry: &KernelRegistry,
    plan: &Arc<ExecutionPlan>,
    plain_kernels: &PlainKernels,
    mut on_fused: impl FnMut(Instant, DeviceId, &FusedNode),
) -> Result<Rewritten, (DeviceId, DeviceError)> {
    let index = PlanIndex::new(plan, graph);
    let (mut nodes, mut steps) = (Vec::new(), Vec::new());
    let mut has_clusters = false;
    for partition in plan.partitions() {
        let id = partition.device;
        let device = devices.get(id);
        let Some(device) = device.and_then(|device| device.as_kernel_device()) else {
            continue;
        };
        if device.as_partition_device().is_some() {
            has_clusters = true;
            continue;
        }
        let started = Instant::now();
        let device_type = device.attributes().device_type.as_str();
        let device_id = (id, device_type);
        let mut part = PartitionGraph::new(graph, plan, device_id, registry, &index, plain_kernels);
        catch_unwind(AssertUnwindSafe(|| {
            device.maybe_rewrite_graph(graph.functions(), &mut part)
        }))
        .unwrap_or_else(|panic| {
            Err(DeviceError::Failed {
                device: device.attributes().name.clone(),
                message: format!("it panicked: {}", panic_message(&*panic)),
            })
        })
        .map_err(|source| (id, source))?;
        for (node, step) in part.finish() {
            on_fused(started, id, &node);
            nodes.push(Fused::Nodes(Arc::new(node)));
            steps.push(step);
        }
    }
    if has_clusters {
        let is_clustered = |device: DeviceId| {
            let device = devices.get(device);
            let device = device.and_then(|device| device.as_kernel_device());
            device.is_some_and(|device| device.as_partition_device().is_some())
        };
        for (cluster, step) in clusters(graph, plan, is_clustered) {
            nodes.push(Fused::Cluster(Arc::new(cluster)));
            steps.push(step);
        }
    }
    if steps.is_empty() {
        return Ok(Rewritten {
            plan: Arc::clone(plan),
            fused: Vec::new(),
        });
    }
    let (plan, executed) = plan.with_fused(&steps);
    Ok(Rewritten {
        plan: Arc::new(plan),
        fused: executed.into_iter().zip(nodes).collect(),
    })
}
