//! The device contexts by which the steps of a plan copy, and what follows from them.

use std::panic::AssertUnwindSafe;
use std::panic::catch_unwind;
use std::sync::Arc;
use std::time::Instant;

use super::KernelCache;
use super::Program;
use super::kernels::asked;
use super::kernels::kernel_device;
use crate::device::Device;
use crate::device::DeviceContext;
use crate::device::DeviceError;
use crate::device::KernelDevice;
use crate::device::panic_message;
use crate::execute::error::ExecuteError;
use crate::graph::NodeId;
use crate::names::DeviceId;
use crate::plan::ExecutionPlan;
use crate::plan::MemorySpace;
use crate::plan::Partition;
use crate::plan::Payload;
use crate::plan::StepId;
use crate::plan::StepKind;

/// The contexts of a plan's steps, and when their copies end.
#[derive(Debug, Default)]
pub(super) struct Contexts {
    /// Per step its context, if the node has one of its own; empty if no node has one.
    own: Vec<Option<Arc<dyn DeviceContext>>>,
    /// Per device whether it records the tensors that its kernels access; empty if no device does.
    is_recording: Vec<bool>,
    /// Per device whether its work may continue after its kernels have returned; empty if no
    /// device's does.
    is_deferred: Vec<bool>,
    /// Per step whether it is a copy that may end later than it starts; empty if no step is.
    copies_later: Vec<bool>,
    /// Per device the size, in bytes, from which it uses the host's tensors in place; `None` if it
    /// copies all.
    shared_bytes_min: Vec<Option<usize>>,
}

impl Contexts {
    /// Checks whether a step is a copy that may end later than it starts.
    pub(super) fn copies_later(&self, step: StepId) -> bool {
        flag(&self.copies_later, step.index())
    }

    fn ask(
        &mut self,
        plan: &ExecutionPlan,
        partition: &Partition,
        device: &dyn KernelDevice,
        n_devices: usize,
    ) {
        let index = partition.device.index();
        self.shared_bytes_min.resize(n_devices, None);
        self.shared_bytes_min[index] = device.default_context().shared_bytes_min();
        if device.records_accessed_tensors() {
            set(&mut self.is_recording, index, n_devices);
        }
        let mut is_deferred = is_deferred(device);
        for &id in &partition.steps {
            let own = self.own.get(id.index()).and_then(Option::as_ref);
            let context = own.unwrap_or_else(|| device.default_context());
            // Most steps have the default context, which was checked above.
            if (own.is_some() || is_deferred) && context.copies_are_async() {
                is_deferred = true;
                if source_space(plan, id) == Some(MemorySpace::Device) {
                    set(&mut self.copies_later, id.index(), plan.steps().len());
                }
            }
        }
        if is_deferred {
            set(&mut self.is_deferred, index, n_devices);
        }
    }
}

impl Program {
    /// Returns the context of the node that a step executes, or of the node that produced the
    /// tensor it transfers.
    #[inline]
    pub(in crate::execute) fn context(&self, step: StepId) -> Option<&Arc<dyn DeviceContext>> {
        self.contexts.own.get(step.index())?.as_ref()
    }

    /// Checks whether a device records the tensors that its kernels access.
    #[inline]
    pub(in crate::execute) fn is_recording(&self, device: DeviceId) -> bool {
        flag(&self.contexts.is_recording, device.index())
    }

    /// Checks whether a device's work may continue after a kernel has returned: the device records
    /// accessed tensors, or its contexts copy asynchronously.
    #[inline]
    pub(in crate::execute) fn is_deferred(&self, device: DeviceId) -> bool {
        flag(&self.contexts.is_deferred, device.index())
    }

    /// Returns the size, in bytes, from which a device uses the host's tensors in place; `None` if
    /// it copies all.
    pub(in crate::execute) fn shared_bytes_min(&self, device: DeviceId) -> Option<usize> {
        *self.contexts.shared_bytes_min.get(device.index())?
    }

    /// Starts what has been submitted to devices whose work may continue. Call it before the thread
    /// computes itself, or has nothing to do.
    #[inline]
    pub(in crate::execute) fn flush(&self) -> Result<(), ExecuteError> {
        match self.contexts.is_deferred.contains(&true) {
            true => self.flush_deferred(),
            false => Ok(()),
        }
    }

    #[cold]
    fn flush_deferred(&self) -> Result<(), ExecuteError> {
        self.deferred()
            .try_for_each(|device| start_work(device, |device| device.flush()))
    }

    /// Does the same on a thread that would otherwise sleep until the work ends: the thread does
    /// the work of the last such device, until `is_wanted` returns true.
    pub(in crate::execute) fn assist(
        &self,
        is_wanted: &dyn Fn() -> bool,
    ) -> Result<(), ExecuteError> {
        let mut devices = self.deferred().peekable();
        while let Some(device) = devices.next() {
            match devices.peek() {
                Some(_) => start_work(device, |device| device.flush())?,
                None => start_work(device, |device| device.assist(is_wanted))?,
            }
        }
        Ok(())
    }

    fn deferred(&self) -> impl Iterator<Item = &dyn Device> {
        let partitions = self.plan.partitions().iter();
        let deferred = partitions.filter(|partition| self.is_deferred(partition.device));
        deferred.filter_map(|partition| Some(&**self.devices.get(partition.device)?))
    }

    /// Checks whether a step is a copy that may end later than it starts.
    pub(in crate::execute) fn copies_later(&self, step: StepId) -> bool {
        self.contexts.copies_later(step)
    }
}

/// Starts the work of a device of an app, which may panic.
fn start_work(
    device: &dyn Device,
    start: impl FnOnce(&dyn KernelDevice),
) -> Result<(), ExecuteError> {
    let Some(kernel_device) = device.as_kernel_device() else {
        return Ok(());
    };
    let started = catch_unwind(AssertUnwindSafe(|| start(kernel_device)));
    started.map_err(|panic| {
        let device = device.attributes().name.clone();
        ExecuteError::Device {
            doing: "starting submitted work",
            source: Box::new(DeviceError::Failed {
                device: device.clone(),
                message: format!("it panicked: {}", panic_message(&*panic)),
            }),
            device,
        }
    })
}

/// Does the same as [`Program::is_deferred`] for a device outside of a plan.
pub(super) fn is_deferred(device: &dyn KernelDevice) -> bool {
    device.records_accessed_tensors() || device.default_context().copies_are_async()
}

impl KernelCache {
    /// Collects the contexts of a plan from its devices.
    pub(super) fn contexts(&self, plan: &ExecutionPlan) -> Result<Contexts, ExecuteError> {
        let mut contexts = Contexts {
            own: self.own_contexts(plan)?,
            ..Contexts::default()
        };
        let n_devices = self.devices.len();
        for partition in plan.partitions() {
            let device = kernel_device(&self.devices, partition.device)?;
            asked(device, "reporting when its work is done", || {
                contexts.ask(plan, partition, device, n_devices);
                Ok(())
            })?;
        }
        Ok(contexts)
    }

    /// Returns per step the context that its device assigns to its node. For a transfer, it is the
    /// context that the sender assigns to the producer of the tensor.
    fn own_contexts(
        &self,
        plan: &ExecutionPlan,
    ) -> Result<Vec<Option<Arc<dyn DeviceContext>>>, ExecuteError> {
        let mut contexts = Vec::new();
        for partition in plan.partitions() {
            let device = kernel_device(&self.devices, partition.device)?;
            let nodes = partition
                .steps
                .iter()
                .filter_map(|&id| match plan.step(id).kind {
                    StepKind::Execute(node) => Some(node),
                    _ => None,
                });
            let nodes: Vec<NodeId> = nodes.collect();
            let started = Instant::now();
            let own = asked(device, "assigning contexts to nodes", || {
                device.fill_context_map(&self.graph, &nodes)
            })?;
            self.report(started, partition.device, "fill_context_map", None, || {
                let (n_own, n_nodes) = (own.len(), nodes.len());
                format!("{n_own} of {n_nodes} nodes have a context of their own")
            });
            if own.is_empty() {
                continue;
            }
            contexts.resize(plan.steps().len(), None);
            for &id in &partition.steps {
                let node = match plan.step(id).kind {
                    StepKind::Execute(node) => Some(node),
                    StepKind::Send(transfer) => match plan.transfers()[transfer.index()].payload {
                        Payload::Tensor(tensor) => Some(self.graph.producer(tensor).0),
                        Payload::Control(_) => None,
                    },
                    StepKind::Fetch(fetch) => {
                        let tensor = plan.fetches()[fetch as usize].tensor();
                        Some(self.graph.producer(tensor).0)
                    }
                    StepKind::Receive(_) | StepKind::Feed(_) => None,
                };
                contexts[id.index()] = node.and_then(|node| own.get(&node).cloned());
            }
        }
        Ok(contexts)
    }
}

/// Returns the memory from which a step copies a tensor to the host or to another device; `None`
/// for all other steps.
fn source_space(plan: &ExecutionPlan, id: StepId) -> Option<MemorySpace> {
    let step = plan.step(id);
    match step.kind {
        StepKind::Send(id) => {
            let transfer = &plan.transfers()[id.index()];
            transfer.sent.map(|_| transfer.source_space)
        }
        StepKind::Fetch(_) => {
            let value = step.inputs.first()?;
            Some(plan.values()[value.index()].space)
        }
        StepKind::Execute(_) | StepKind::Receive(_) | StepKind::Feed(_) => None,
    }
}

#[inline]
fn flag(flags: &[bool], index: usize) -> bool {
    flags.get(index).copied().unwrap_or(false)
}

fn set(flags: &mut Vec<bool>, index: usize, n: usize) {
    flags.resize(n, false);
    flags[index] = true;
}
