//! Prepares plans: everything that a plan needs and that does not change between runs.

mod constants;
mod contexts;
mod fuse;
mod kernels;
mod prepack;

use std::fmt;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use self::contexts::Contexts;
use self::fuse::FusedSteps;
pub(super) use self::kernels::KernelCache;
use super::error::ExecuteError;
use super::variant::Variants;
use crate::device::{DeviceSet, Kernel};
use crate::graph::{Graph, NodeId};
use crate::memory::PlannedMemory;
use crate::names::DeviceId;
use crate::ops::OpRegistry;
use crate::partition::Fused;
use crate::plan::{ExecutionPlan, MemorySpace, Settled, Step, StepId, StepKind};
use crate::tensor::{OutOfMemory, Tensor};
use crate::trace::FusedNodes;

/// How a node is executed.
#[derive(Clone)]
pub(super) enum Action {
    /// Calls a kernel.
    Kernel(Arc<dyn Kernel>),
    /// Outputs a constant. Boxed to keep the enum small, because every operation of every run reads
    /// it.
    Constant(Box<Tensor>),
    /// Passes the input to one of the outputs, and leaves the others dead.
    Switch,
    /// Passes on the live input.
    Merge,
    /// Passes the input into a loop, to the next iteration, or out of the loop.
    PassOn,
}

/// A plan with its kernels and constants, made by [`super::Executor::prepare`]. It serves any
/// number of runs, including concurrent ones.
pub struct PreparedPlan {
    pub(super) program: Arc<Program>,
    pub(super) variants: Variants,
}

/// The data that all runs of a plan share.
pub(super) struct Program {
    pub(super) graph: Arc<Graph>,
    /// The definitions of the graph's ops, if it was checked against them.
    pub(super) ops: Option<Arc<OpRegistry>>,
    pub(super) devices: Arc<DeviceSet>,
    pub(super) plan: Arc<ExecutionPlan>,
    /// Per step; `None` for steps that move tensors, and for constants that are not read in this
    /// memory.
    pub(super) actions: Vec<Option<Action>>,
    /// Per step the constant inputs as its kernel prepacked them; empty if it prepacked none.
    pub(super) prepacked: Vec<Box<[Option<Tensor>]>>,
    /// Per value whether it is in host memory.
    pub(super) is_on_host: Vec<bool>,
    /// The steps and values that are the same in all runs.
    pub(super) settled: Settled,
    /// Per value its tensor, if it is the same in all runs and a step of a run reads it:
    /// constants, on each device that reads them. A released tensor has only been read by kernels
    /// that prepacked it.
    pub(super) fixed: Vec<Option<Tensor>>,
    /// Per value whether it is fetched by the caller.
    pub(super) is_fetched: Vec<bool>,
    /// Per value whether a switch, a merge or a loop passes it on; empty if there are none.
    passed_on: Vec<bool>,
    /// Per `Merge` step the values of its output `value_index`, if something reads it.
    pub(super) merge_indices: FxHashMap<StepId, Box<[Tensor]>>,
    contexts: Contexts,
    /// The steps that execute fused nodes or a cluster.
    pub(super) fused: FusedSteps,
    /// The nodes of each such step, for events.
    pub(super) fused_nodes: FxHashMap<StepId, Arc<FusedNodes>>,
    /// Whether a kernel or a copy out of a device ends later than it starts.
    pub(super) is_async: bool,
    /// Number of concurrent runs to reserve memory for.
    pub(super) n_runs: u64,
}

impl PreparedPlan {
    /// Returns the plan, as rewritten by the devices.
    pub fn plan(&self) -> &Arc<ExecutionPlan> {
        &self.program.plan
    }
}

impl Program {
    /// Returns the op of the kernel that a step calls for a node: of this node, or of the fused
    /// nodes.
    pub(super) fn op(&self, step: StepId, node: NodeId) -> &str {
        match self.fused.get(&step) {
            Some(Fused::Nodes(fused)) => &fused.op,
            Some(Fused::Cluster(_)) | None => self.graph.op(node),
        }
    }

    /// Returns the error for a memory that is too small for the arenas of the concurrent runs.
    pub(super) fn out_of_memory(&self, memory: &PlannedMemory) -> ExecuteError {
        let device = self.devices.get(memory.device);
        let limit_bytes = device.map_or(0, |device| device.memory_capacity_bytes());
        let run_bytes = memory.run_bytes.saturating_add(memory.fetched_bytes);
        let run_bytes = usize::try_from(run_bytes).unwrap_or(usize::MAX);
        let device = self.device_name(memory.device).to_owned();
        ExecuteError::Arena {
            source: Box::new(OutOfMemory {
                allocator: device.clone(),
                requested_bytes: run_bytes,
                in_use_bytes: memory.constant_bytes.saturating_add(memory.prepacked_bytes),
                limit_bytes,
            }),
            device,
            bytes: run_bytes,
            failure: None,
        }
    }

    /// Returns whether a switch, a merge or a loop passes a value on.
    pub(super) fn is_passed_on(&self, value: usize) -> bool {
        self.passed_on.get(value).copied().unwrap_or(false)
    }

    pub(super) fn device_name(&self, device: DeviceId) -> &str {
        self.devices
            .get(device)
            .map_or("<no such device>", |device| &device.attributes().name)
    }
}

/// Returns the nodes of each step that computes several.
fn fused_nodes(fused: &FusedSteps) -> FxHashMap<StepId, Arc<FusedNodes>> {
    let steps = fused.iter().map(|(&step, fused)| {
        let nodes = FusedNodes {
            op: match fused {
                Fused::Nodes(fused) => fused.op.clone(),
                Fused::Cluster(_) => String::new(),
            },
            nodes: fused.nodes().to_vec(),
        };
        (step, Arc::new(nodes))
    });
    steps.collect()
}

/// Returns per value whether a switch, a merge or a loop passes it on.
fn passed_on(program: &Program) -> Vec<bool> {
    let mut passed_on = Vec::new();
    for (step, action) in program.plan.steps().iter().zip(&program.actions) {
        let n_inputs = match action {
            Some(Action::Switch | Action::PassOn) => 1,
            Some(Action::Merge) => step.inputs.len(),
            _ => continue,
        };
        passed_on.resize(program.plan.values().len(), false);
        for value in step.inputs.iter().take(n_inputs) {
            passed_on[value.index()] = true;
        }
        passed_on[step.output_range()].fill(true);
    }
    for input in program.plan.back_inputs() {
        passed_on.resize(program.plan.values().len(), false);
        passed_on[input.value.index()] = true;
    }
    passed_on
}

impl fmt::Debug for PreparedPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PreparedPlan").field(&self.program).finish()
    }
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Program")
            .field("graph", &self.graph.name())
            .field("n_steps", &self.plan.steps().len())
            .finish_non_exhaustive()
    }
}

impl KernelCache {
    pub(super) fn prepare(&self, plan: &Arc<ExecutionPlan>) -> Result<PreparedPlan, ExecuteError> {
        Ok(PreparedPlan {
            program: Arc::new(self.program(plan)?),
            variants: Variants::default(),
        })
    }

    fn program(&self, plan: &Arc<ExecutionPlan>) -> Result<Program, ExecuteError> {
        for partition in plan.partitions() {
            let device = self
                .devices
                .get(partition.device)
                .ok_or(ExecuteError::ForeignPlan)?;
            if device.is_removed() {
                return Err(ExecuteError::DeviceRemoved {
                    device: device.attributes().name.clone(),
                });
            }
            if device.as_kernel_device().is_none() {
                return Err(ExecuteError::NotAKernelDevice {
                    device: device.attributes().name.clone(),
                    n_steps: partition.steps.len(),
                });
            }
        }
        // Checked before the devices get the plan, because they rely on its nodes.
        for step in plan.steps() {
            if let StepKind::Execute(node) = step.kind
                && !self.fits(node, step)
            {
                return Err(ExecuteError::ForeignPlan);
            }
        }
        let (plan, fused) = self.rewritten(plan)?;
        let contexts = self.contexts(&plan)?;
        let is_on_host: Vec<bool> = plan
            .values()
            .iter()
            .map(|value| value.space == MemorySpace::Host)
            .collect();
        let settled = Settled::of(&plan, &self.graph, |step| fused.contains_key(&step));
        let mut actions = Vec::with_capacity(plan.steps().len());
        for (id, step) in plan.step_ids().map(StepId).zip(plan.steps()) {
            actions.push(match step.kind {
                StepKind::Execute(node) if fused.contains_key(&id) => {
                    Some(self.fused_action(node, step.device, &fused[&id])?)
                }
                // What runs read of it is in `fixed`.
                StepKind::Execute(_) if settled.is_settled[id.index()] => None,
                StepKind::Execute(node) => {
                    let first_on_host = step
                        .outputs()
                        .next()
                        .is_some_and(|value| is_on_host[value.index()]);
                    Some(self.action(node, step.device, first_on_host)?)
                }
                _ => None,
            });
        }
        let is_async = plan.step_ids().map(StepId).any(|id| {
            contexts.copies_later(id) && !settled.is_settled[id.index()]
                || matches!(&actions[id.index()], Some(Action::Kernel(kernel)) if kernel.as_async().is_some())
        });
        let mut is_fetched = vec![false; plan.values().len()];
        for step in plan.steps() {
            if matches!(step.kind, StepKind::Fetch(_)) {
                for value in &step.inputs {
                    is_fetched[value.index()] = true;
                }
            }
        }
        let mut program = Program {
            graph: Arc::clone(&self.graph),
            ops: self.ops.clone().filter(|_| self.graph.is_checked()),
            devices: Arc::clone(&self.devices),
            contexts,
            fused_nodes: fused_nodes(&fused),
            fused,
            is_async,
            n_runs: self.n_runs,
            plan,
            prepacked: vec![Box::default(); actions.len()],
            actions,
            is_on_host,
            settled,
            fixed: Vec::new(),
            is_fetched,
            passed_on: Vec::new(),
            merge_indices: FxHashMap::default(),
        };
        program.fixed = vec![None; program.plan.values().len()];
        program.passed_on = passed_on(&program);
        program.merge_indices = self.merge_indices(&program)?;
        self.hold_constants(&mut program)?;
        Ok(program)
    }

    /// Checks whether the step's node, inputs and outputs match this graph.
    fn fits(&self, node: NodeId, step: &Step) -> bool {
        node.index() < self.graph.n_nodes()
            && self.graph.output_range(node).len() == step.n_outputs as usize
            && self.graph.data_inputs(node).count() == step.inputs.len()
            && self
                .graph
                .bodies()
                .is_ok_and(|bodies| bodies.of_node(node) == step.body)
    }
}
