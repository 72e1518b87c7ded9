//! The kernel cache: kernels of one graph, created when a plan first needs them.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use rustc_hash::FxHashMap;

use super::Action;
use crate::device::{
    AllocatorAttributes, DeviceError, DeviceSet, KernelCreationError, KernelDevice, KernelError,
    KernelRegistry, check_constant, create_kernel, panic_message,
};
use crate::execute::error::{ExecuteError, NodeSite};
use crate::execute::prepare::Program;
use crate::graph::{Graph, NodeId, TensorId, is_merge, is_switch};
use crate::names::DeviceId;
use crate::ops::{OpRegistry, decides_dead_tensors};
use crate::partition::Fused;
use crate::plan::{MemorySpace, StepId, StepKind};
use crate::tensor::{DType, Literal, LiteralData, Shape, Tensor};
use crate::trace::{EventKind, Recorder};

/// A constant in a memory: the output of its node, and where it is.
pub(super) type ConstantKey = (TensorId, DeviceId, MemorySpace);

/// The kernels and constants of one graph, created when a plan first needs them.
pub(in crate::execute) struct KernelCache {
    pub(super) graph: Arc<Graph>,
    pub(super) devices: Arc<DeviceSet>,
    pub(super) registry: Arc<KernelRegistry>,
    /// The session that owns the stateful kernels.
    pub(super) session: Arc<str>,
    /// Records the calls into devices.
    pub(super) recorder: Recorder,
    /// Number of concurrent runs of one plan to reserve memory for.
    pub(super) n_runs: u64,
    /// The op definitions that nodes of unchecked graphs are checked against.
    pub(in crate::execute) ops: Option<Arc<OpRegistry>>,
    pub(super) made: Mutex<FxHashMap<KernelKey, Action>>,
    /// Constants by memory.
    pub(super) copies: Mutex<FxHashMap<ConstantKey, Tensor>>,
    /// Constants as their readers prepacked them; `None` if the readers use the constant as it is.
    pub(super) prepacked: Mutex<FxHashMap<PrepackedKey, Option<Tensor>>>,
}

/// Identifies a prepacked constant.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum PrepackedKey {
    /// In the form of this name ([`Kernel::prepacked_form`]).
    Form(ConstantKey, &'static str),
    /// As an input of one kernel.
    Input(KernelKey, usize),
}

/// Identifies a kernel: what it computes, and on which device.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct KernelKey {
    pub(super) node: NodeId,
    pub(super) device: DeviceId,
    /// The fused nodes or the cluster, if it computes several; they may differ in another plan.
    pub(super) fused: Option<Fused>,
}

impl KernelKey {
    pub(super) fn new(node: NodeId, device: DeviceId, fused: Option<&Fused>) -> Self {
        Self {
            node,
            device,
            fused: fused.cloned(),
        }
    }
}

impl KernelCache {
    pub(in crate::execute) fn new(
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

    pub(in crate::execute) fn devices(&self) -> &Arc<DeviceSet> {
        &self.devices
    }

    pub(in crate::execute) fn graph(&self) -> &Arc<Graph> {
        &self.graph
    }

    pub(super) fn action(
        &self,
        node: NodeId,
        device_id: DeviceId,
        on_host: bool,
    ) -> Result<Action, ExecuteError> {
        // Held during creation: two plans that are prepared concurrently must not create one
        // constant twice.
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
            Action::Switch | Action::Merge | Action::PassOn => {
                made.insert(key, action.clone());
                return Ok(action);
            }
            Action::Kernel(_) if self.is_kept(node) => "op_segment.find_or_create",
            Action::Kernel(_) => "create_kernel",
        };
        self.report(started, device_id, call, Some(&node), || match &action {
            Action::Constant(tensor) => format!("{tensor:?}, {} bytes", tensor.len_bytes()),
            Action::Kernel(_) if self.is_kept(node) => {
                format!("{} of session {}", self.graph.op(node), self.session)
            }
            _ => self.graph.op(node).to_owned(),
        });
        made.insert(key, action.clone());
        Ok(action)
    }

    /// Checks whether the device keeps the node's kernel. The state of a stateful kernel outlives
    /// this executor if the session's graph grows.
    fn is_kept(&self, node: NodeId) -> bool {
        let op = self.graph.op(node);
        self.graph.class(node).stateful && self.graph.find_function(op).is_none()
    }

    pub(super) fn make(
        &self,
        node: NodeId,
        device: &dyn KernelDevice,
        on_host: bool,
    ) -> Result<Action, ExecuteError> {
        let op = self.graph.op(node);
        let site = || self.site(node, device);
        if decides_dead_tensors(op) {
            return self.control_flow(node, device);
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

    pub(super) fn report(
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

    pub(super) fn site(&self, node: NodeId, device: &dyn KernelDevice) -> Box<NodeSite> {
        Box::new(NodeSite {
            node: self.graph.node_name(node).to_owned(),
            op: self.graph.op(node).to_owned(),
            device: device.attributes().name.clone(),
            function: self.graph.function_of(node).map(str::to_owned),
            iteration: None,
        })
    }

    /// Returns how the executor itself executes a node that decides which tensors are dead. Its
    /// kernels are only registered to say which devices take it.
    fn control_flow(
        &self,
        node: NodeId,
        device: &dyn KernelDevice,
    ) -> Result<Action, ExecuteError> {
        let op = self.graph.op(node);
        let inputs = self.graph.all_data_inputs(node);
        let dtype = |tensor: TensorId| self.graph.tensor_dtypes()[tensor.index()];
        let outputs = &self.graph.tensor_dtypes()[self.graph.output_range(node)];
        let invalid = |problem: String| ExecuteError::Prepare {
            site: self.site(node, device),
            source: Box::new(KernelError::invalid(problem)),
        };
        let (action, passed, n_inputs) = if is_switch(op) {
            if outputs.is_empty() {
                return Err(invalid("it has no outputs".to_owned()));
            }
            let selector = if op == "_SwitchN" {
                DType::I32
            } else {
                DType::Bool
            };
            if inputs.get(1).is_some_and(|&input| dtype(input) != selector) {
                return Err(invalid(format!(
                    "its second input must be a scalar {selector}"
                )));
            }
            (Action::Switch, outputs, 2)
        } else if is_merge(op) {
            if inputs.is_empty() || !matches!(outputs.len(), 1 | 2) {
                let found = (inputs.len(), outputs.len());
                return Err(invalid(format!(
                    "a Merge has inputs and one or two outputs, not {} and {}",
                    found.0, found.1
                )));
            }
            if let Some(&index) = outputs.get(1).filter(|&&index| index != DType::I32) {
                return Err(invalid(format!(
                    "its output `value_index` is int32, not {index}"
                )));
            }
            (Action::Merge, &outputs[..1], inputs.len())
        } else {
            (Action::PassOn, outputs, 1)
        };
        if inputs.len() != n_inputs || matches!(action, Action::PassOn) && outputs.len() != 1 {
            return Err(invalid(format!(
                "the node has inputs: {}, outputs: {}; a {op} takes inputs: {n_inputs}",
                inputs.len(),
                outputs.len()
            )));
        }
        let n_passed = if matches!(action, Action::Merge) {
            n_inputs
        } else {
            1
        };
        for &input in &inputs[..n_passed] {
            if let Some(other) = passed.iter().find(|&&output| output != dtype(input)) {
                return Err(invalid(format!(
                    "it passes on a tensor of type {} as {other}",
                    dtype(input)
                )));
            }
        }
        Ok(action)
    }

    /// Returns the values of the output `value_index` of each `Merge` of which it is read.
    pub(super) fn merge_indices(
        &self,
        program: &Program,
    ) -> Result<FxHashMap<StepId, Box<[Tensor]>>, ExecuteError> {
        let mut indices = FxHashMap::default();
        let steps = program.plan.step_ids().map(StepId);
        for ((id, step), action) in steps.zip(program.plan.steps()).zip(&program.actions) {
            let (Some(Action::Merge), StepKind::Execute(node)) = (action, step.kind) else {
                continue;
            };
            let Some(output) = step.outputs().nth(1) else {
                continue;
            };
            let value = &program.plan.values()[output.index()];
            if value.n_readers == 0 {
                continue;
            }
            let device = kernel_device(&self.devices, step.device)?;
            let attributes = AllocatorAttributes {
                on_host: value.space == MemorySpace::Host,
                ..AllocatorAttributes::default()
            };
            let n_inputs = step.inputs.len() + program.plan.back_inputs_of(id).len();
            let made = (0..n_inputs).map(|index| {
                let index = i32::try_from(index).unwrap_or(i32::MAX);
                let data = LiteralData::Dense(Arc::new(index.to_le_bytes()));
                let literal = Literal::new(DType::I32, Shape::scalar(), data);
                let literal = literal.map_err(|error| KernelError::invalid(error.to_string()))?;
                device.make_tensor(&literal, attributes)
            });
            let made: Result<Box<[Tensor]>, KernelError> = made.collect();
            let made = made.map_err(|source| ExecuteError::Prepare {
                site: self.site(node, device),
                source: Box::new(source),
            })?;
            indices.insert(id, made);
        }
        Ok(indices)
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

pub(super) fn refused(site: Box<NodeSite>, source: KernelCreationError) -> ExecuteError {
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

/// Calls a device about a whole plan. A panic of the device becomes its error.
pub(super) fn asked<T>(
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

pub(super) fn kernel_device(
    devices: &DeviceSet,
    device: DeviceId,
) -> Result<&dyn KernelDevice, ExecuteError> {
    devices
        .get(device)
        .and_then(|device| device.as_kernel_device())
        .ok_or(ExecuteError::ForeignPlan)
}
