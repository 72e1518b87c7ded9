//! What a plan needs and does not change from run to run.

mod contexts;

use std::cell::OnceCell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use rustc_hash::FxHashMap;

use self::contexts::Contexts;
use super::error::{ExecuteError, NodeSite};
use super::variant::Variants;
use crate::device::{
    AllocatorAttributes, DeviceError, DeviceSet, FusedNode, Kernel, KernelConstruction,
    KernelCreationError, KernelDevice, KernelError, KernelRegistry, check_constant, check_node,
    construct_kernel, create_kernel, panic_message,
};
use crate::graph::{Graph, NodeId, TensorId};
use crate::memory::{MemoryPlan, PlannedMemory, Settled, is_constant};
use crate::names::DeviceId;
use crate::ops::OpRegistry;
use crate::partition::{Rewritten, rewrite};
use crate::plan::{MemorySpace, Payload, Plan, Step, StepId, StepKind};
use crate::tensor::{DType, OutOfMemory, Tensor, TensorError};
use crate::trace::{EventKind, Recorder};

/// What executing a node comes to.
#[derive(Clone)]
pub(super) enum Action {
    /// A kernel to call.
    Kernel(Arc<dyn Kernel>),
    /// A constant to hand out; boxed, as every operation of every run looks at the kernels beside
    /// it.
    Constant(Box<Tensor>),
}

/// A plan with its kernels and constants. Made by [`super::Executor::prepare`]; good for any number
/// of runs, also at one time.
pub struct PreparedPlan {
    pub(super) program: Arc<Program>,
    pub(super) variants: Variants,
}

/// What all runs of a plan share.
pub(super) struct Program {
    pub(super) graph: Arc<Graph>,
    pub(super) devices: Arc<DeviceSet>,
    pub(super) plan: Arc<Plan>,
    /// Per step; `None` for steps that move tensors, and for constants that nobody reads in this
    /// memory.
    pub(super) actions: Vec<Option<Action>>,
    /// Per step the inputs that are the same in all runs, as its kernel packed them; empty where
    /// it packed none.
    pub(super) prepacked: Vec<Box<[Option<Tensor>]>>,
    /// Per value whether it is in host memory.
    pub(super) is_on_host: Vec<bool>,
    /// What is the same in all runs.
    pub(super) settled: Settled,
    /// Per value its tensor, where it is the same in all runs and some step of a run reads it:
    /// constants, on each device that reads them.
    pub(super) fixed: Vec<Option<Tensor>>,
    /// Per value whether it is handed to the caller.
    pub(super) is_fetched: Vec<bool>,
    contexts: Contexts,
    /// Steps whose kernel computes several nodes.
    pub(super) fused: FusedSteps,
    /// Whether a kernel or a copy out of a device ends later than its start.
    pub(super) is_async: bool,
    /// Runs that memory is kept for.
    pub(super) n_runs: u64,
}

impl PreparedPlan {
    /// The plan, as the devices have rewritten it.
    pub fn plan(&self) -> &Arc<Plan> {
        &self.program.plan
    }
}

impl Program {
    /// The op whose kernel a step calls.
    pub(super) fn op(&self, step: StepId, node: NodeId) -> &str {
        let fused = self.fused.get(&step);
        fused.map_or_else(|| self.graph.op(node), |fused| &fused.op)
    }

    /// The error for a memory that is too small for the arenas of its runs.
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
        }
    }

    pub(super) fn device_name(&self, device: DeviceId) -> &str {
        self.devices
            .get(device)
            .map_or("<no such device>", |device| &device.attributes().name)
    }
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

/// Kernels and constants of one graph, made when a plan first needs them.
pub(super) struct KernelCache {
    graph: Arc<Graph>,
    devices: Arc<DeviceSet>,
    registry: Arc<KernelRegistry>,
    /// Whose stateful kernels these are.
    session: Arc<str>,
    /// Hears what devices are asked for.
    recorder: Recorder,
    /// Runs of one plan that memory is kept for.
    n_runs: u64,
    /// Nodes of graphs that are not checked yet are held to these.
    pub(super) ops: Option<Arc<OpRegistry>>,
    made: Mutex<FxHashMap<KernelKey, Action>>,
    /// Constants in other memories than that of their node.
    copies: Mutex<FxHashMap<(TensorId, DeviceId, MemorySpace), Tensor>>,
    /// Constants as their readers packed them, by input; `None` where the reader takes them as
    /// they are.
    prepacked: Mutex<FxHashMap<(KernelKey, usize), Option<Tensor>>>,
}

/// What a kernel computes, and where.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct KernelKey {
    node: NodeId,
    device: DeviceId,
    /// How, where it computes other nodes, too: devices may fuse a node otherwise in another plan.
    fused: Option<Arc<FusedNode>>,
}

impl KernelKey {
    fn new(node: NodeId, device: DeviceId, fused: Option<&Arc<FusedNode>>) -> Self {
        Self {
            node,
            device,
            fused: fused.cloned(),
        }
    }
}

/// What steps compute that stand for several nodes.
type FusedSteps = FxHashMap<StepId, Arc<FusedNode>>;

/// What runs of a program need besides constants, found out when it is first asked for.
struct FreeMemory<'a> {
    program: &'a Program,
    plan: OnceCell<MemoryPlan>,
}

impl<'a> FreeMemory<'a> {
    fn new(program: &'a Program) -> Self {
        Self {
            program,
            plan: OnceCell::new(),
        }
    }

    /// Whether a device has free_memory for its runs beside what it holds now.
    fn suffices(&self, id: DeviceId, device: &dyn KernelDevice) -> bool {
        let plan = self
            .plan
            .get_or_init(|| MemoryPlan::new(self.program, true));
        let capacity = device.memory_capacity_bytes();
        let allocator = device.allocator(AllocatorAttributes::default());
        let free = capacity.saturating_sub(allocator.stats().in_use_bytes);
        let mut memories = plan.memories.iter();
        let memory = memories.find(|memory| memory.device == id && !memory.on_host);
        let one_run = memory.map_or(0, |memory| {
            memory.run_bytes.saturating_add(memory.fetched_bytes)
        });
        let needed = one_run.saturating_mul(self.program.n_runs);
        // What has no place yet may need as much as there is, so half of the memory is left for it.
        needed <= free && (plan.n_unplanned == 0 || free >= capacity / 2)
    }
}

impl KernelCache {
    pub(super) fn new(
        graph: Arc<Graph>,
        devices: Arc<DeviceSet>,
        registry: Arc<KernelRegistry>,
        session: Arc<str>,
        recorder: Recorder,
        n_concurrent_runs: usize,
    ) -> Self {
        Self {
            recorder,
            n_runs: (n_concurrent_runs as u64).max(1),
            graph,
            devices,
            registry,
            session,
            ops: None,
            made: Mutex::default(),
            copies: Mutex::default(),
            prepacked: Mutex::default(),
        }
    }

    pub(super) fn devices(&self) -> &Arc<DeviceSet> {
        &self.devices
    }

    pub(super) fn graph(&self) -> &Arc<Graph> {
        &self.graph
    }

    pub(super) fn prepare(&self, plan: &Arc<Plan>) -> Result<PreparedPlan, ExecuteError> {
        Ok(PreparedPlan {
            program: Arc::new(self.program(plan)?),
            variants: Variants::default(),
        })
    }

    fn program(&self, plan: &Arc<Plan>) -> Result<Program, ExecuteError> {
        if let Some(&(_, to)) = plan.back_edges().first() {
            return Err(self.control_flow(to));
        }
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
        // Before devices see it: they rely on its nodes.
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
        let settled = Settled::of(&plan, |id, node| {
            is_constant(&self.graph, node) && !fused.contains_key(&id)
        });
        let mut actions = Vec::with_capacity(plan.steps().len());
        for (id, step) in plan.step_ids().map(StepId).zip(plan.steps()) {
            let is_unread = || !settled.is_held[step.output_range()].contains(&true);
            actions.push(match step.kind {
                StepKind::Execute(node) if fused.contains_key(&id) => {
                    Some(self.fused_action(node, step.device, &fused[&id])?)
                }
                StepKind::Execute(_) if settled.is_settled[id.index()] && is_unread() => None,
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
        let fixed = self.fixed(&plan, &settled, &actions)?;
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
            devices: Arc::clone(&self.devices),
            contexts,
            fused,
            is_async,
            n_runs: self.n_runs,
            plan,
            prepacked: vec![Box::default(); actions.len()],
            actions,
            is_on_host,
            settled,
            fixed,
            is_fetched,
        };
        program.prepacked = self.prepack(&program)?;
        Ok(program)
    }

    /// The plan as its devices want it, and which nodes a step executes besides its own.
    fn rewritten(&self, plan: &Arc<Plan>) -> Result<(Arc<Plan>, FusedSteps), ExecuteError> {
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
        let rewritten = rewrite(&self.graph, &self.devices, &self.registry, plan, told);
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

    /// Per value its tensor, where runs read it and it is the same in all of them.
    fn fixed(
        &self,
        plan: &Plan,
        settled: &Settled,
        actions: &[Option<Action>],
    ) -> Result<Vec<Option<Tensor>>, ExecuteError> {
        let mut fixed: Vec<Option<Tensor>> = vec![None; plan.values().len()];
        for (step, action) in plan.steps().iter().zip(actions) {
            let output = step.first_output as usize;
            if !settled.is_held[step.output_range()].contains(&true) {
                continue;
            }
            fixed[output] = match (step.kind, action) {
                (StepKind::Receive(id), _) => {
                    let transfer = &plan.transfers()[id.index()];
                    let Payload::Tensor(tensor) = transfer.payload else {
                        continue;
                    };
                    let (device, space) = (transfer.destination, transfer.destination_space);
                    Some(self.constant(tensor, device, space)?)
                }
                (_, Some(Action::Constant(tensor))) => Some(Tensor::clone(tensor)),
                _ => continue,
            };
        }
        Ok(fixed)
    }

    /// Has kernels prepacked_tensor those of their inputs that are the same in all runs, as long as
    /// the memory that runs need is left.
    fn prepack(&self, program: &Program) -> Result<Vec<Box<[Option<Tensor>]>>, ExecuteError> {
        let free_memory = FreeMemory::new(program);
        let steps = program.plan.steps().iter();
        let ids = program.plan.step_ids().map(StepId);
        let inputs_prepacked = ids
            .zip(steps)
            .zip(&program.actions)
            .map(|((id, step), action)| {
                let (StepKind::Execute(node), Some(Action::Kernel(kernel))) = (step.kind, action)
                else {
                    return Ok(Box::default());
                };
                let key = KernelKey::new(node, step.device, program.fused.get(&id));
                let mut inputs_prepacked: Vec<Option<Tensor>> = Vec::new();
                for (index, value) in step.inputs.iter().enumerate() {
                    if let Some(constant) = &program.fixed[value.index()]
                        && let Some(prepacked_tensor) =
                            self.prepacked_input(&key, &**kernel, index, constant, &free_memory)?
                    {
                        inputs_prepacked.resize(index, None);
                        inputs_prepacked.push(Some(prepacked_tensor));
                    }
                }
                Ok(inputs_prepacked.into_boxed_slice())
            });
        inputs_prepacked.collect()
    }

    fn prepacked_input(
        &self,
        key: &KernelKey,
        kernel: &dyn Kernel,
        index: usize,
        constant: &Tensor,
        free_memory: &FreeMemory<'_>,
    ) -> Result<Option<Tensor>, ExecuteError> {
        let mut prepacked = self
            .prepacked
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let key = (key.clone(), index);
        if let Some(prepacked_tensor) = prepacked.get(&key) {
            return Ok(prepacked_tensor.clone());
        }
        let (node, device_id) = (key.0.node, key.0.device);
        let device = kernel_device(&self.devices, device_id)?;
        let prepacked_tensor = catch_unwind(AssertUnwindSafe(|| {
            kernel.prepack_input(index, constant, device)
        }))
        .unwrap_or_else(|panic| {
            Err(KernelError::invalid(format!(
                "the kernel panicked while it packed input {index}: {}",
                panic_message(&*panic)
            )))
        });
        let prepacked_tensor = match prepacked_tensor {
            // Kernels read what is not prepacked, too, if more slowly.
            Err(KernelError::Tensor(TensorError::OutOfMemory(_))) => None,
            Err(source) => {
                return Err(ExecuteError::Prepare {
                    site: self.site(node, device),
                    source: Box::new(source),
                });
            }
            Ok(prepacked_tensor) => {
                prepacked_tensor.filter(|_| free_memory.suffices(device_id, device))
            }
        };
        prepacked.insert(key, prepacked_tensor.clone());
        Ok(prepacked_tensor)
    }

    fn site(&self, node: NodeId, device: &dyn KernelDevice) -> Box<NodeSite> {
        Box::new(NodeSite {
            node: self.graph.node_name(node).to_owned(),
            op: self.graph.op(node).to_owned(),
            device: device.attributes().name.clone(),
        })
    }

    /// A constant where its node is not, made there once: its own device need not hold it, nor have
    /// free_memory for it.
    fn constant(
        &self,
        tensor: TensorId,
        device_id: DeviceId,
        space: MemorySpace,
    ) -> Result<Tensor, ExecuteError> {
        let key = (tensor, device_id, space);
        let mut copies = self.copies.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(copy) = copies.get(&key) {
            return Ok(copy.clone());
        }
        let node = self.graph.producer(tensor).0;
        let device = kernel_device(&self.devices, device_id)?;
        let started = Instant::now();
        let made = self.make(node, device, space == MemorySpace::Host)?;
        let Action::Constant(constant) = made else {
            return Err(ExecuteError::ForeignPlan);
        };
        self.report(started, device_id, "make_tensor", Some(&node), || {
            format!("{constant:?}, {} bytes", constant.len_bytes())
        });
        copies.insert(key, Tensor::clone(&constant));
        Ok(*constant)
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
        // Held while making: two plans that are prepared at one time must not make one constant
        // twice.
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let key = KernelKey::new(node, device_id, None);
        if let Some(action) = made.get(&key) {
            return Ok(action.clone());
        }
        let device = kernel_device(&self.devices, device_id)?;
        let started = Instant::now();
        let action = self.make(node, device, on_host)?;
        let call = match &action {
            Action::Constant(_) => "make_tensor",
            Action::Kernel(_) if self.is_kept(node) => "op_segment.find_or_create",
            Action::Kernel(_) => "create_kernel",
        };
        self.report(started, device_id, call, Some(&node), || match &action {
            Action::Constant(tensor) => format!("{tensor:?}, {} bytes", tensor.len_bytes()),
            Action::Kernel(_) if self.is_kept(node) => {
                format!("{} of session {}", self.graph.op(node), self.session)
            }
            Action::Kernel(_) => self.graph.op(node).to_owned(),
        });
        made.insert(key, action.clone());
        Ok(action)
    }

    /// Whether the device keeps the node's kernel: what a stateful kernel remembers outlives this
    /// executor, when the session's graph grows.
    fn is_kept(&self, node: NodeId) -> bool {
        let op = self.graph.op(node);
        self.graph.class(node).stateful && self.graph.find_function(op).is_none()
    }

    fn report(
        &self,
        started: Instant,
        device: DeviceId,
        call: &'static str,
        node: Option<&NodeId>,
        detail: impl FnOnce() -> String,
    ) {
        if self.recorder.is_on() {
            let kind = EventKind::Device {
                device,
                call,
                node: node.copied(),
                detail: detail().into(),
            };
            self.recorder.record_since(started, kind);
        }
    }

    /// The kernel of several nodes.
    fn fused_action(
        &self,
        node: NodeId,
        device_id: DeviceId,
        fused: &Arc<FusedNode>,
    ) -> Result<Action, ExecuteError> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let key = KernelKey::new(node, device_id, Some(fused));
        if let Some(action) = made.get(&key) {
            return Ok(action.clone());
        }
        let device = kernel_device(&self.devices, device_id)?;
        for &node in &fused.nodes {
            check_node(self.ops.as_deref(), &self.graph, node).map_err(|source| {
                refused(
                    self.site(node, device),
                    KernelCreationError::NodeDef(source),
                )
            })?;
        }
        let dtypes = self.graph.tensor_dtypes();
        let inputs = fused.inputs.iter().map(|&(node, index)| {
            let tensor = self.graph.data_inputs(node).nth(index);
            dtypes[tensor.expect("fusing has looked at them").index()]
        });
        let input_dtypes: Vec<DType> = inputs.collect();
        let construction = KernelConstruction {
            node: self.graph.node_name(node),
            op: &fused.op,
            attrs: &fused.attrs,
            input_dtypes: &input_dtypes,
            output_dtypes: &dtypes[self.graph.output_range(node)],
            device,
        };
        let site = || {
            Box::new(NodeSite {
                op: fused.op.clone(),
                ..*self.site(node, device)
            })
        };
        let started = Instant::now();
        let kernel = construct_kernel(&self.registry, None, &construction)
            .map_err(|source| refused(site(), source))?;
        self.report(started, device_id, "create_kernel", Some(&node), || {
            fused.op.clone()
        });
        let action = Action::Kernel(Arc::from(kernel));
        made.insert(key, action.clone());
        Ok(action)
    }

    fn make(
        &self,
        node: NodeId,
        device: &dyn KernelDevice,
        on_host: bool,
    ) -> Result<Action, ExecuteError> {
        let op = self.graph.op(node);
        let site = || self.site(node, device);
        if is_control_flow(op) {
            return Err(self.control_flow(node));
        }
        let attrs = self.graph.attrs(node);
        let failed = |source| ExecuteError::Prepare {
            site: site(),
            source: Box::new(source),
        };
        let refused = |source| refused(site(), source);
        let ops = self.ops.as_deref();
        if op == "Const"
            && let Some(literal) = attrs.tensor("value")
        {
            check_constant(ops, &self.graph, node, literal).map_err(refused)?;
            let attributes = AllocatorAttributes {
                on_host,
                ..AllocatorAttributes::default()
            };
            return device
                .make_tensor(literal, attributes)
                .map(|tensor| Action::Constant(Box::new(tensor)))
                .map_err(failed);
        }
        let create = || {
            let kernel = create_kernel(&self.registry, ops, &self.graph, node, device);
            kernel.map(Arc::from).map_err(refused)
        };
        let kernel = if self.is_kept(node) {
            let name = self.graph.node_name(node);
            device
                .op_segment()
                .find_or_create::<ExecuteError>(&self.session, name, create)?
        } else {
            create()?
        };
        Ok(Action::Kernel(kernel))
    }

    fn control_flow(&self, node: NodeId) -> ExecuteError {
        ExecuteError::ControlFlow {
            node: self.graph.node_name(node).to_owned(),
            op: self.graph.op(node).to_owned(),
        }
    }
}

impl fmt::Debug for KernelCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KernelCache")
            .field("graph", &self.graph.name())
            .field("devices", &self.devices)
            .finish_non_exhaustive()
    }
}

fn refused(site: Box<NodeSite>, source: KernelCreationError) -> ExecuteError {
    match source {
        KernelCreationError::Kernel(source) => ExecuteError::Prepare {
            site,
            source: Box::new(source),
        },
        source => ExecuteError::Create {
            site,
            source: Box::new(source),
        },
    }
}

/// What a device says when it is asked about a whole plan. A panic is its failure, not ours.
fn asked<T>(
    device: &dyn KernelDevice,
    doing: &'static str,
    ask: impl FnOnce() -> Result<T, DeviceError>,
) -> Result<T, ExecuteError> {
    let name = || device.attributes().name.clone();
    catch_unwind(AssertUnwindSafe(ask))
        .unwrap_or_else(|panic| {
            Err(DeviceError::Failed {
                device: name(),
                message: format!("it panicked: {}", panic_message(&*panic)),
            })
        })
        .map_err(|source| ExecuteError::Device {
            device: name(),
            doing,
            source: Box::new(source),
        })
}

fn kernel_device(devices: &DeviceSet, device: DeviceId) -> Result<&dyn KernelDevice, ExecuteError> {
    devices
        .get(device)
        .and_then(|device| device.as_kernel_device())
        .ok_or(ExecuteError::ForeignPlan)
}

/// Ops whose meaning is which tensors are dead. Executing them as if all were alive would give
/// wrong numbers.
fn is_control_flow(op: &str) -> bool {
    let op = op.strip_prefix("Ref").unwrap_or(op);
    matches!(
        op,
        "Switch" | "_SwitchN" | "Merge" | "Enter" | "Exit" | "NextIteration" | "LoopCond"
    )
}
