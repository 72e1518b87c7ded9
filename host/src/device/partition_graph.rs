//! The part of a plan that a device may rewrite.

use std::fmt;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;

use rustc_hash::FxHashMap;
use rustc_hash::FxHashSet;
use smallvec::SmallVec;

use super::kernel_registry::KernelRegistry;
use crate::graph::AttrSet;
use crate::graph::Graph;
use crate::graph::IDENTITY;
use crate::graph::NONE;
use crate::graph::NodeId;
use crate::names::DeviceId;
use crate::plan::ExecutionPlan;
use crate::plan::FusedStep;
use crate::plan::StepId;
use crate::plan::StepKind;
use crate::plan::ValueId;
use crate::tensor::Literal;

/// The nodes that a device executes in one plan, and the readers of their outputs
/// ([`super::KernelDevice::maybe_rewrite_graph`]).
///
/// The graph does not change; only the kernels that the plan calls are replaced.
pub struct PartitionGraph<'a> {
    graph: &'a Graph,
    plan: &'a ExecutionPlan,
    device: DeviceId,
    device_type: &'a str,
    registry: &'a KernelRegistry,
    index: &'a PlanIndex,
    plain_kernels: &'a PlainKernels,
    fused: Vec<FusedNode>,
    taken: FxHashSet<NodeId>,
}

/// Several nodes that one kernel computes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FusedNode {
    /// The nodes, in topological order. The kernel computes the outputs of the last one; the
    /// outputs of the others cannot be observed.
    pub nodes: Vec<NodeId>,
    /// The op of the kernel.
    pub op: String,
    /// Its attributes.
    pub attrs: AttrSet,
    /// Per data input of the kernel, the node and the input of it that it replaces.
    pub inputs: Vec<(NodeId, usize)>,
}

/// Why nodes cannot be fused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("fusing {nodes} into `{op}`: {problem}")]
pub struct FuseError {
    /// The nodes.
    pub nodes: String,
    /// The op of the fused node.
    pub op: String,
    /// What prevents it.
    pub problem: String,
}

/// The writer of each value of a plan, and the step that executes each node.
#[derive(Debug)]
pub(crate) struct PlanIndex {
    writers: Vec<StepId>,
    /// Per node, or [`NONE`].
    steps: Vec<u32>,
}

/// Answers of [`PartitionGraph::has_plain_kernel`], which are the same for all plans of a graph, a
/// device set and a registry: per node and device.
#[derive(Debug, Default)]
pub(crate) struct PlainKernels(Mutex<FxHashMap<(NodeId, DeviceId), bool>>);

impl PlanIndex {
    pub(crate) fn new(plan: &ExecutionPlan, graph: &Graph) -> Self {
        let mut index = Self {
            writers: vec![StepId(u32::MAX); plan.values().len()],
            steps: vec![NONE; graph.n_nodes()],
        };
        for (id, step) in plan.step_ids().map(StepId).zip(plan.steps()) {
            for value in step.outputs() {
                index.writers[value.index()] = id;
            }
            if let StepKind::Execute(node) = step.kind {
                index.steps[node.index()] = id.0;
            }
        }
        index
    }

    /// Returns the step that executes a node.
    fn step_of(&self, node: NodeId) -> Option<StepId> {
        let step = self.steps.get(node.index()).copied();
        step.filter(|&step| step != NONE).map(StepId)
    }
}

impl<'a> PartitionGraph<'a> {
    pub(crate) fn new(
        graph: &'a Graph,
        plan: &'a ExecutionPlan,
        device: (DeviceId, &'a str),
        registry: &'a KernelRegistry,
        index: &'a PlanIndex,
        plain_kernels: &'a PlainKernels,
    ) -> Self {
        let (device, device_type) = device;
        Self {
            graph,
            plan,
            device,
            device_type,
            registry,
            index,
            plain_kernels,
            fused: Vec::new(),
            taken: FxHashSet::default(),
        }
    }

    /// Returns the whole graph, for ops, attributes, types and shapes of nodes.
    pub fn graph(&self) -> &'a Graph {
        self.graph
    }

    /// Returns the nodes that the device executes, in topological order.
    pub fn nodes(&self) -> impl Iterator<Item = NodeId> + use<'a> {
        let device = self.device;
        let nodes = self.plan.nodes();
        nodes.filter_map(move |(node, on)| (on == device).then_some(node))
    }

    /// Returns the node of this device that computes data input `index` of `node`, and which of its
    /// outputs that is; `None` if the tensor is fed or comes from elsewhere, and if there is no
    /// such input.
    pub fn input_node(&self, node: NodeId, index: usize) -> Option<(NodeId, usize)> {
        let value = self.read_value(node, index)?;
        let writer = self.plan.step(self.index.writers[value.index()]);
        match writer.kind {
            StepKind::Execute(node) => Some((node, value.index() - writer.first_output as usize)),
            _ => None,
        }
    }

    /// Returns the constant value of data input `index` of `node`, on whichever device and in
    /// whichever memory the constant is; `None` if the input is fed or not constant, and if there
    /// is no such input.
    pub fn constant_input(&self, node: NodeId, index: usize) -> Option<&'a Arc<Literal>> {
        let mut value = self.read_value(node, index)?;
        loop {
            match self.plan.step(self.index.writers[value.index()]).kind {
                StepKind::Execute(node) if self.graph.op(node) == "Const" => {
                    return self.graph.attrs(node).tensor("value");
                }
                StepKind::Execute(node) if self.graph.op(node) == IDENTITY => {
                    value = self.read_value(node, 0)?;
                }
                StepKind::Receive(id) => value = self.plan.transfers()[id.index()].sent?,
                _ => return None,
            }
        }
    }

    /// Returns whether only `reader` needs `node`: it reads each output that is read at all, and
    /// nothing else waits for it.
    pub fn is_read_only_by(&self, node: NodeId, reader: NodeId) -> bool {
        self.is_needed_only_by(node, |other| other == reader)
    }

    /// Returns whether other nodes need `node`, and `is_one` holds for all of them: they read each
    /// output that is read at all, and nothing else waits for it.
    pub fn is_needed_only_by(&self, node: NodeId, is_one: impl Fn(NodeId) -> bool) -> bool {
        let Some(step) = self.index.step_of(node) else {
            return false;
        };
        let successors = self.plan.successors().row(step.index());
        let is_inside = |&step: &u32| match self.plan.step(StepId(step)).kind {
            StepKind::Execute(node) => is_one(node),
            _ => false,
        };
        !successors.is_empty() && successors.iter().all(is_inside)
    }

    /// Returns whether a node is already part of a fused node.
    pub fn is_replaced(&self, node: NodeId) -> bool {
        self.taken.contains(&node)
    }

    /// Returns whether the kernel of a node has no label and priority 0, so that it is not one that
    /// an app has registered in place of the device's own.
    pub fn has_plain_kernel(&self, node: NodeId) -> bool {
        let known = self.plain_kernels.0.lock();
        let mut known = known.unwrap_or_else(PoisonError::into_inner);
        *known.entry((node, self.device)).or_insert_with(|| {
            let found = self.registry.find(
                self.graph.op(node),
                self.device_type,
                self.graph.attrs(node),
            );
            matches!(found, Ok(Some(def)) if def.priority == 0 && def.label.is_empty())
        })
    }

    /// Fuses several nodes, which one kernel computes.
    ///
    /// # Errors
    /// [`FuseError`] if no kernel for the op is registered; if one of the nodes is not this
    /// device's, or already fused, or stateful; if they are not in topological order; if anything
    /// else needs one of them other than the last; or if an input is not one that they have from
    /// outside.
    pub fn fuse(&mut self, fused: FusedNode) -> Result<(), FuseError> {
        if let Err(problem) = self.check(&fused) {
            let names: Vec<_> = fused
                .nodes
                .iter()
                .map(|&node| format!("`{}`", self.node_name(node)))
                .collect();
            return Err(FuseError {
                nodes: names.join(", "),
                op: fused.op,
                problem,
            });
        }
        self.taken.extend(&fused.nodes);
        self.fused.push(fused);
        Ok(())
    }

    /// Returns the fused nodes, each with the same for the plan.
    pub(crate) fn finish(self) -> Vec<(FusedNode, FusedStep)> {
        let Self {
            plan, index, fused, ..
        } = self;
        // `fuse` has checked that the nodes have steps.
        let step_of = |node: NodeId| StepId(index.steps[node.index()]);
        let steps = fused.iter().map(|fused| {
            let value = |&(node, input): &(NodeId, usize)| plan.step(step_of(node)).inputs[input];
            FusedStep {
                steps: fused.nodes.iter().map(|&node| step_of(node)).collect(),
                inputs: fused.inputs.iter().map(value).collect(),
                outputs: match fused.nodes.last() {
                    Some(&last) => plan.step(step_of(last)).outputs().collect(),
                    None => Vec::new(),
                },
            }
        });
        let steps: Vec<_> = steps.collect();
        fused.into_iter().zip(steps).collect()
    }

    fn node_name(&self, node: NodeId) -> &str {
        if node.index() < self.graph.n_nodes() {
            self.graph.node_name(node)
        } else {
            "no such node"
        }
    }

    fn read_value(&self, node: NodeId, index: usize) -> Option<ValueId> {
        let step = self.plan.step(self.index.step_of(node)?);
        step.inputs.get(index).copied()
    }

    fn check(&self, fused: &FusedNode) -> Result<(), String> {
        let Some((_, inner)) = fused.nodes.split_last() else {
            return Err("no node is named".to_owned());
        };
        match self
            .registry
            .find(&fused.op, self.device_type, &fused.attrs)
        {
            Ok(Some(_)) => {}
            Ok(None) => return Err(format!("no kernel for it on {}", self.device_type)),
            Err(error) => return Err(error.to_string()),
        }
        let mut previous = None;
        for &node in &fused.nodes {
            let name = self.node_name(node);
            let step = self.index.step_of(node);
            let Some(step) = step.filter(|&step| self.plan.step(step).device == self.device) else {
                return Err(format!("`{name}` is not in this partition"));
            };
            if self.taken.contains(&node) {
                return Err(format!("`{name}` is already fused"));
            }
            if self.graph.class(node).stateful {
                return Err(format!("`{name}` is stateful"));
            }
            if previous.is_some_and(|previous| previous >= step) {
                return Err(format!("`{name}` is not in topological order"));
            }
            previous = Some(step);
        }
        // Few nodes are fused: a list is searched faster than a set.
        let step_of = |&node: &NodeId| StepId(self.index.steps[node.index()]);
        let steps: SmallVec<[StepId; 4]> = fused.nodes.iter().map(step_of).collect();
        for node in inner {
            let step = step_of(node);
            let mut successors = self.plan.successors().row(step.index()).iter();
            if let Some(&other) = successors.find(|&&successor| !steps.contains(&StepId(successor)))
            {
                let waits = match self.plan.step(StepId(other)).kind {
                    StepKind::Execute(node) => format!("`{}`", self.node_name(node)),
                    StepKind::Send(_) => "another device".to_owned(),
                    _ => "the caller".to_owned(),
                };
                return Err(format!("{waits} needs `{}`, too", self.node_name(*node)));
            }
        }
        for &(node, index) in &fused.inputs {
            let value = fused
                .nodes
                .contains(&node)
                .then(|| self.read_value(node, index))
                .flatten();
            let Some(value) = value else {
                return Err(format!(
                    "input {index} of `{}` is not an input of these nodes",
                    self.node_name(node)
                ));
            };
            if steps.contains(&self.index.writers[value.index()]) {
                return Err(format!(
                    "input {index} of `{}` is computed by one of these nodes",
                    self.node_name(node)
                ));
            }
        }
        Ok(())
    }
}

impl fmt::Debug for PartitionGraph<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PartitionGraph")
            .field("graph", &self.graph.name())
            .field("device", &self.device)
            .field("fused", &self.fused)
            .finish_non_exhaustive()
    }
}
