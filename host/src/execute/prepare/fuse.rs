//! Steps that execute several nodes: fused nodes, and clusters of devices that take whole
//! partitions.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use rustc_hash::FxHashMap;

use super::Action;
use super::kernels::{KernelCache, KernelKey, kernel_device, refused};
use crate::device::{
    Cluster, ClusterError, ClusterNodes, FusedNode, Kernel, KernelConstruction,
    KernelCreationError, KernelDevice, KernelError, PlainKernels, check_node, construct_kernel,
    panic_message,
};
use crate::execute::error::{ExecuteError, NodeSite};
use crate::graph::NodeId;
use crate::names::DeviceId;
use crate::partition::{Fused, Rewritten, rewrite};
use crate::plan::{ExecutionPlan, StepId};
use crate::tensor::DType;
use crate::tensor::PartialShape;

/// The nodes of each step that executes fused nodes or a cluster.
pub(super) type FusedSteps = FxHashMap<StepId, Fused>;

impl KernelCache {
    /// Returns the plan as rewritten by its devices, and the fused nodes of each fused step.
    pub(super) fn rewritten(
        &self,
        plan: &Arc<ExecutionPlan>,
    ) -> Result<(Arc<ExecutionPlan>, FusedSteps), ExecuteError> {
        let on_fused = |started, device, node: &FusedNode| {
            let name = |&node: &NodeId| self.graph.node_name(node);
            self.report(
                started,
                device,
                "maybe_rewrite_graph",
                node.nodes.last(),
                || {
                    let names: Vec<_> = node.nodes.iter().map(name).collect();
                    format!("{} computes {}", node.op, names.join(", "))
                },
            );
        };
        let (graph, devices, registry) = (&self.graph, &self.devices, &self.registry);
        let plain_kernels = PlainKernels::default();
        let rewritten = rewrite(graph, devices, registry, plan, &plain_kernels, on_fused);
        let Rewritten { plan, fused } = rewritten.map_err(|(device, source)| {
            let device = self.devices.get(device);
            let name = device.map_or("", |device| &device.attributes().name);
            ExecuteError::Device {
                device: name.to_owned(),
                doing: "rewriting its part of the graph",
                source: Box::new(source),
            }
        })?;
        Ok((plan, fused.into_iter().collect()))
    }

    /// Returns the kernel of a step that executes fused nodes or a cluster.
    pub(super) fn fused_action(
        &self,
        node: NodeId,
        device_id: DeviceId,
        fused: &Fused,
    ) -> Result<Action, ExecuteError> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let key = KernelKey::new(node, device_id, Some(fused));
        if let Some(action) = made.get(&key) {
            return Ok(action.clone());
        }
        let device = kernel_device(&self.devices, device_id)?;
        for &node in fused.nodes() {
            check_node(self.ops.as_deref(), &self.graph, node).map_err(|source| {
                refused(
                    self.site(node, device),
                    KernelCreationError::NodeDef(source),
                )
            })?;
        }
        let started = Instant::now();
        let (call, kernel) = match fused {
            Fused::Nodes(fused) => ("create_kernel", self.fused_kernel(node, device, fused)?),
            Fused::Cluster(cluster) => ("prepare", self.prepare_cluster(node, device, cluster)?),
        };
        self.report(started, device_id, call, Some(&node), || match fused {
            Fused::Nodes(fused) => fused.op.clone(),
            Fused::Cluster(cluster) => format!("{} nodes", cluster.nodes.len()),
        });
        let action = Action::Kernel(Arc::from(kernel));
        made.insert(key, action.clone());
        Ok(action)
    }

    fn fused_kernel(
        &self,
        node: NodeId,
        device: &dyn KernelDevice,
        fused: &FusedNode,
    ) -> Result<Box<dyn Kernel>, ExecuteError> {
        let dtypes = self.graph.tensor_dtypes();
        let inputs = fused.inputs.iter().map(|&(node, index)| {
            let tensor = self.graph.data_inputs(node).nth(index);
            tensor.expect("fusing has checked the inputs")
        });
        let (input_dtypes, input_shapes): (Vec<DType>, Vec<PartialShape>) = inputs
            .map(|tensor| (dtypes[tensor.index()], self.graph.tensor_shape(tensor)))
            .unzip();
        let construction = KernelConstruction {
            node: self.graph.node_name(node),
            op: &fused.op,
            attrs: &fused.attrs,
            input_dtypes: &input_dtypes,
            input_shapes: &input_shapes,
            output_dtypes: &dtypes[self.graph.output_range(node)],
            device,
        };
        let site = || {
            Box::new(NodeSite {
                op: fused.op.clone(),
                ..*self.site(node, device)
            })
        };
        construct_kernel(&self.registry, None, &construction)
            .map_err(|source| refused(site(), source))
    }

    /// Has a device prepare a cluster. A panic of the device becomes its error.
    fn prepare_cluster(
        &self,
        last: NodeId,
        device: &dyn KernelDevice,
        cluster: &ClusterNodes,
    ) -> Result<Box<dyn Kernel>, ExecuteError> {
        let device_of_partitions = device.as_partition_device();
        let device_of_partitions = device_of_partitions.ok_or(ExecuteError::ForeignPlan)?;
        let asked = catch_unwind(AssertUnwindSafe(|| {
            device_of_partitions.prepare(&Cluster::new(&self.graph, cluster))
        }));
        let prepared = asked.unwrap_or_else(|panic| {
            Err(ClusterError {
                node: None,
                message: format!("the device panicked: {}", panic_message(&*panic)),
            })
        });
        prepared.map_err(|error| {
            let node = error.node.filter(|node| cluster.nodes.contains(node));
            let message = match node {
                Some(_) => error.message,
                None => format!(
                    "{} (cluster of {} nodes)",
                    error.message,
                    cluster.nodes.len()
                ),
            };
            ExecuteError::Prepare {
                site: self.site(node.unwrap_or(last), device),
                source: Box::new(KernelError::invalid(message)),
            }
        })
    }
}
