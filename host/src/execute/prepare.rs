//! What a plan needs and does not change from run to run.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use rustc_hash::FxHashMap;

use super::error::{ExecuteError, NodeSite};
use crate::device::{
    AllocatorAttributes, DeviceSet, Kernel, KernelConstruction, KernelDevice, KernelError,
    KernelFactory, KernelRegistry,
};
use crate::graph::{Graph, NodeId};
use crate::names::DeviceId;
use crate::plan::{MemorySpace, Plan, Step, StepKind};
use crate::tensor::{DType, Tensor};

/// What executing a node comes to.
#[derive(Clone)]
pub(super) enum Action {
    /// A kernel to call.
    Kernel(Arc<dyn Kernel>),
    /// A constant to hand out.
    Constant(Tensor),
}

/// A plan with its kernels and constants. Made by [`super::Executor::prepare`]; good for any number of runs, also at
/// one time.
pub struct PreparedPlan {
    pub(super) graph: Arc<Graph>,
    pub(super) devices: Arc<DeviceSet>,
    pub(super) plan: Arc<Plan>,
    /// Per step; `None` for steps that move tensors.
    pub(super) actions: Vec<Option<Action>>,
    /// Per value whether it is in host memory.
    pub(super) is_on_host: Vec<bool>,
}

impl PreparedPlan {
    /// The plan.
    pub fn plan(&self) -> &Arc<Plan> {
        &self.plan
    }

    pub(super) fn device_name(&self, device: DeviceId) -> &str {
        self.devices
            .get(device)
            .map_or("<no such device>", |device| &device.attributes().name)
    }
}

impl fmt::Debug for PreparedPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PreparedPlan")
            .field("graph", &self.graph.name())
            .field("n_steps", &self.plan.steps().len())
            .finish_non_exhaustive()
    }
}

/// Kernels and constants of one graph, made when a plan first needs them.
pub(super) struct Workshop {
    graph: Arc<Graph>,
    devices: Arc<DeviceSet>,
    registry: Arc<KernelRegistry>,
    made: Mutex<FxHashMap<(NodeId, DeviceId), Action>>,
}

impl Workshop {
    pub(super) fn new(
        graph: Arc<Graph>,
        devices: Arc<DeviceSet>,
        registry: Arc<KernelRegistry>,
    ) -> Self {
        Self {
            graph,
            devices,
            registry,
            made: Mutex::default(),
        }
    }

    pub(super) fn devices(&self) -> &Arc<DeviceSet> {
        &self.devices
    }

    pub(super) fn graph(&self) -> &Arc<Graph> {
        &self.graph
    }

    pub(super) fn prepare(&self, plan: &Arc<Plan>) -> Result<PreparedPlan, ExecuteError> {
        if let Some(&(_, to)) = plan.back_edges().first() {
            return Err(self.control_flow(to));
        }
        for partition in plan.partitions() {
            let device = self
                .devices
                .get(partition.device)
                .ok_or(ExecuteError::ForeignPlan)?;
            if device.as_kernel_device().is_none() {
                return Err(ExecuteError::NotAKernelDevice {
                    device: device.attributes().name.clone(),
                    n_steps: partition.steps.len(),
                });
            }
        }
        let is_on_host: Vec<bool> = plan
            .values()
            .iter()
            .map(|value| value.space == MemorySpace::Host)
            .collect();
        let mut actions = Vec::with_capacity(plan.steps().len());
        for step in plan.steps() {
            actions.push(match step.kind {
                StepKind::Execute(node) => {
                    if !self.fits(node, step) {
                        return Err(ExecuteError::ForeignPlan);
                    }
                    let first_on_host = step
                        .outputs()
                        .next()
                        .is_some_and(|value| is_on_host[value.index()]);
                    Some(self.action(node, step.device, first_on_host)?)
                }
                _ => None,
            });
        }
        Ok(PreparedPlan {
            graph: Arc::clone(&self.graph),
            devices: Arc::clone(&self.devices),
            plan: Arc::clone(plan),
            actions,
            is_on_host,
        })
    }

    /// Whether the step can be one of this graph's.
    fn fits(&self, node: NodeId, step: &Step) -> bool {
        node.index() < self.graph.n_nodes()
            && self.graph.output_range(node).len() == step.n_outputs as usize
            && self.graph.data_inputs(node).count() == step.inputs.len()
    }

    fn action(
        &self,
        node: NodeId,
        device_id: DeviceId,
        on_host: bool,
    ) -> Result<Action, ExecuteError> {
        // Held while making: two plans that are prepared at one time must not make one constant twice.
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(action) = made.get(&(node, device_id)) {
            return Ok(action.clone());
        }
        let device = self
            .devices
            .get(device_id)
            .and_then(|device| device.as_kernel_device())
            .ok_or(ExecuteError::ForeignPlan)?;
        let action = self.make(node, device, on_host)?;
        made.insert((node, device_id), action.clone());
        Ok(action)
    }

    fn make(
        &self,
        node: NodeId,
        device: &dyn KernelDevice,
        on_host: bool,
    ) -> Result<Action, ExecuteError> {
        let op = self.graph.op(node);
        let site = || {
            Box::new(NodeSite {
                node: self.graph.node_name(node).to_owned(),
                op: op.to_owned(),
                device: device.attributes().name.clone(),
            })
        };
        if is_control_flow(op) {
            return Err(self.control_flow(node));
        }
        let attrs = self.graph.attrs(node);
        let failed = |source| ExecuteError::Prepare {
            site: site(),
            source: Box::new(source),
        };
        if op == "Const"
            && let Some(literal) = attrs.tensor("value")
        {
            let attributes = AllocatorAttributes {
                on_host,
                ..AllocatorAttributes::default()
            };
            return device
                .make_tensor(literal, attributes)
                .map(Action::Constant)
                .map_err(failed);
        }
        let device_type = &device.attributes().device_type;
        let def = self
            .registry
            .find(op, device_type, attrs)
            .map_err(|source| ExecuteError::Lookup {
                site: site(),
                source: Box::new(source),
            })?
            .ok_or_else(|| ExecuteError::NoKernel {
                site: site(),
                registered: self.registered(op),
            })?;
        let factory = def
            .factory
            .as_ref()
            .ok_or_else(|| ExecuteError::PlacementOnly { site: site() })?;
        let kernel = self.construct(node, device, factory).map_err(failed)?;
        if kernel.as_async().is_some() {
            // Running it as if it were none would block a thread that its author meant to be free.
            return Err(failed(KernelError::Unimplemented(
                "kernels that end later (`Kernel::as_async`); make one that waits for its result"
                    .to_owned(),
            )));
        }
        Ok(Action::Kernel(Arc::from(kernel)))
    }

    fn construct(
        &self,
        node: NodeId,
        device: &dyn KernelDevice,
        factory: &KernelFactory,
    ) -> Result<Box<dyn Kernel>, KernelError> {
        let dtypes = self.graph.tensor_dtypes();
        let input_dtypes: Vec<DType> = self
            .graph
            .data_inputs(node)
            .map(|tensor| dtypes[tensor.index()])
            .collect();
        let construction = KernelConstruction {
            node: self.graph.node_name(node),
            op: self.graph.op(node),
            attrs: self.graph.attrs(node),
            input_dtypes: &input_dtypes,
            output_dtypes: &dtypes[self.graph.output_range(node)],
            device,
        };
        catch_unwind(AssertUnwindSafe(|| factory(&construction))).unwrap_or_else(|panic| {
            Err(KernelError::invalid(format!(
                "the kernel panicked while it was made: {}",
                panic_message(&*panic)
            )))
        })
    }

    fn registered(&self, op: &str) -> String {
        let kernels = self.registry.of_op(op);
        if kernels.is_empty() {
            return "<no registered kernels>".to_owned();
        }
        kernels
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join("; ")
    }

    fn control_flow(&self, node: NodeId) -> ExecuteError {
        ExecuteError::ControlFlow {
            node: self.graph.node_name(node).to_owned(),
            op: self.graph.op(node).to_owned(),
        }
    }
}

impl fmt::Debug for Workshop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Workshop")
            .field("graph", &self.graph.name())
            .field("devices", &self.devices)
            .finish_non_exhaustive()
    }
}

/// Ops whose meaning is which tensors are dead. Executing them as if all were alive would give wrong numbers.
fn is_control_flow(op: &str) -> bool {
    let op = op.strip_prefix("Ref").unwrap_or(op);
    matches!(
        op,
        "Switch" | "_SwitchN" | "Merge" | "Enter" | "Exit" | "NextIteration" | "LoopCond"
    )
}

/// What a panic said.
pub(super) fn panic_message(panic: &(dyn Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned())
}
