//! The second way of executing: devices that take a whole part of a plan, instead of node by node.

use std::fmt;
use std::sync::Arc;

use super::kernel::Kernel;
use super::traits::KernelDevice;
use crate::graph::Graph;
use crate::graph::NodeId;
use crate::graph::TensorId;
use crate::tensor::Literal;

/// A device that prepares several nodes at once and executes them as a unit: a compiler such as
/// XLA, or a process on another machine.
///
/// The host divides the nodes of such a device into clusters: as few as possible, so that no
/// cluster waits for what another device computes from its own results. A cluster never spans two
/// loops, or two branches. The device gets each cluster in [`Self::prepare`], and the executor then
/// calls what it returned: one step per cluster and run, or per iteration of a loop. Constants,
/// control flow (`Switch`, `Merge`, ..), transfers, feeds and fetches stay with the executor.
///
/// [`KernelDef`](super::KernelDef)s without a factory declare which nodes the device takes.
/// [`KernelDevice::maybe_rewrite_graph`] is not called.
pub trait PartitionDevice: KernelDevice {
    /// Prepares a cluster, once per plan, after the executor has created constants. The kernel that
    /// is returned gets the tensors of [`Cluster::inputs`] as its inputs and sets an output for
    /// each tensor of [`Cluster::outputs`], in these orders. It may end later than its call returns
    /// ([`Kernel::as_async`]). Many runs may call it at one time.
    ///
    /// State that must outlive the plan (variables, queues) belongs to
    /// [`Device::resource_manager`](super::Device::resource_manager).
    ///
    /// # Errors
    /// [`ClusterError`], which names the node that cannot be prepared, if it is one node. An error
    /// in a run names its node by [`KernelError::in_node`](super::KernelError::in_node).
    fn prepare(&self, cluster: &Cluster<'_>) -> Result<Box<dyn Kernel>, ClusterError>;
}

/// Nodes that a [`PartitionDevice`] executes as a unit, with what enters and what leaves them.
#[derive(Clone, Copy)]
pub struct Cluster<'a> {
    graph: &'a Graph,
    nodes: &'a ClusterNodes,
}

/// A tensor that enters or leaves a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ClusterTensor {
    /// The tensor of the graph.
    pub tensor: TensorId,
    /// Whether it is in host memory, because it is a host-memory argument
    /// ([`KernelDef::with_host_memory`](super::KernelDef::with_host_memory)).
    pub is_on_host: bool,
    /// Whether it is the same in all runs. Always false for a tensor that leaves.
    pub is_constant: bool,
}

/// Where a node of a cluster finds a data input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ClusterSource {
    /// In an input of the cluster: an index into [`Cluster::inputs`].
    Input(usize),
    /// In an output of an earlier node of the cluster: the node, and which of its outputs.
    Node(NodeId, usize),
}

/// A cluster that cannot be prepared.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct ClusterError {
    /// The node that is the cause, if it is one.
    pub node: Option<NodeId>,
    /// What prevents it.
    pub message: String,
}

/// The nodes of a cluster, and how they are connected.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct ClusterNodes {
    /// In topological order.
    pub(crate) nodes: Vec<NodeId>,
    pub(crate) inputs: Vec<ClusterTensor>,
    pub(crate) outputs: Vec<ClusterTensor>,
    /// Per node the sources of its data inputs.
    pub(crate) sources: Vec<Vec<ClusterSource>>,
}

impl ClusterError {
    /// Creates the error for one node.
    pub fn new(node: NodeId, message: impl Into<String>) -> Self {
        Self {
            node: Some(node),
            message: message.into(),
        }
    }
}

impl<'a> Cluster<'a> {
    pub(crate) fn new(graph: &'a Graph, nodes: &'a ClusterNodes) -> Self {
        Self { graph, nodes }
    }

    /// Returns the whole graph, for ops, attributes, types and shapes of nodes.
    pub fn graph(&self) -> &'a Graph {
        self.graph
    }

    /// Returns the nodes, in topological order of data and control edges. Executing them in this
    /// order keeps the order of side effects.
    pub fn nodes(&self) -> &'a [NodeId] {
        &self.nodes.nodes
    }

    /// Returns the tensors that nodes read and that none of them computes, each once.
    pub fn inputs(&self) -> &'a [ClusterTensor] {
        &self.nodes.inputs
    }

    /// Returns the tensors that others read, each once. All are outputs of nodes of the cluster.
    pub fn outputs(&self) -> &'a [ClusterTensor] {
        &self.nodes.outputs
    }

    /// Returns the sources of the data inputs of `nodes()[index]`, in their order.
    ///
    /// # Panics
    /// If there is no such node.
    pub fn sources(&self, index: usize) -> &'a [ClusterSource] {
        &self.nodes.sources[index]
    }

    /// Returns the value of input `index` of the cluster, if it is constant. A run passes the
    /// tensor nevertheless.
    pub fn constant(&self, index: usize) -> Option<&'a Arc<Literal>> {
        let input = self.nodes.inputs.get(index)?;
        let constant = || self.graph.constant_of(input.tensor);
        let constant = input.is_constant.then(constant).flatten();
        constant.and_then(|node| self.graph.attrs(node).tensor("value"))
    }
}

impl fmt::Debug for Cluster<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster")
            .field("graph", &self.graph.name())
            .field("nodes", &self.nodes.nodes)
            .field("inputs", &self.nodes.inputs)
            .field("outputs", &self.nodes.outputs)
            .finish_non_exhaustive()
    }
}
