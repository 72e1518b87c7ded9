//! Operations that may end later than they start, on any thread: asynchronous kernels, and copies
//! out of devices that report their end. No thread waits for a single one.

use std::panic::AssertUnwindSafe;
use std::panic::catch_unwind;
use std::sync::Arc;
use std::sync::mpsc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use super::OpExecution;
use crate::device::AsyncKernel;
use crate::device::AsyncKernelContext;
use crate::device::DeviceContext;
use crate::device::Done;
use crate::device::KernelError;
use crate::device::panic_message;
use crate::execute::copy::{guarded, kernel_device};
use crate::execute::error::ExecuteError;
use crate::execute::prepare::Action;
use crate::execute::run::Request;
use crate::execute::run::RunState;
use crate::graph::NodeId;
use crate::plan::MemorySpace;
use crate::plan::StepKind;
use crate::tensor::Tensor;
use crate::trace::Event;
use crate::trace::TransferWay;

/// How often a thread that waits for an asynchronous kernel checks whether the run is cancelled.
const CHECK_INTERVAL: Duration = Duration::from_millis(1);

/// The operation to start.
pub(in crate::execute) enum LaterStart<'a> {
    /// A kernel.
    Kernel(&'a dyn AsyncKernel, Box<AsyncKernelContext>),
    /// A copy of this tensor to the host, by this context.
    Copy(&'a Arc<dyn DeviceContext>, Tensor),
    /// Nothing: the tensor was copied directly, and the operation has ended.
    Sent,
}

/// Returns what is needed to start an operation that may end later, at `start_ns`; `None` for all
/// other operations.
pub(in crate::execute) fn start_later<'a>(
    state: &'a RunState,
    request: &'a Request,
    rank: u32,
    start_ns: u64,
    events: &mut Vec<Event>,
) -> Option<Result<LaterStart<'a>, ExecuteError>> {
    let execution = OpExecution::new(state, request, rank);
    let start = catch_unwind(AssertUnwindSafe(|| match execution.operation.kind {
        StepKind::Execute(node) => execution.kernel_start(node).transpose(),
        StepKind::Send(_) | StepKind::Fetch(_) => {
            execution.copy_start(start_ns, events).transpose()
        }
        StepKind::Receive(_) | StepKind::Feed(_) => None,
    }));
    start.unwrap_or_else(|panic| Some(Err(execution.panicked(panic_message(&*panic)))))
}

/// Starts an asynchronous kernel and waits for its end, for operations in loops. `None` for all
/// other operations, which end when they return.
pub(super) fn start_and_wait(
    execution: OpExecution<'_>,
    events: &mut Vec<Event>,
) -> Option<Result<(), ExecuteError>> {
    let (state, request, rank) = (execution.state, execution.request, execution.rank);
    let StepKind::Execute(node) = execution.operation.kind else {
        return None;
    };
    let start_ns = match request.listeners.is_any() {
        true => request.listeners.now_ns(),
        false => 0,
    };
    let start = catch_unwind(AssertUnwindSafe(|| {
        execution.kernel_start(node).transpose()
    }));
    let start =
        start.unwrap_or_else(|panic| Some(Err(execution.panicked(panic_message(&*panic)))))?;
    let (kernel, context) = match start {
        Ok(LaterStart::Kernel(kernel, context)) => (kernel, *context),
        Ok(_) => unreachable!("this starts kernels only"),
        Err(error) => return Some(Err(error)),
    };
    let (sender, ended) = mpsc::channel();
    let done = Done::new(move |mut context: Option<AsyncKernelContext>, result| {
        let result = guarded(|| {
            if let Some(context) = &mut context {
                context.hand_accessed();
            }
            result
        });
        // The run may be over.
        let _ = sender.send((context, result));
    });
    let device = kernel_device(&state.program.devices, execution.operation.device);
    let started = catch_unwind(AssertUnwindSafe(|| {
        device.compute_async(kernel, context, done);
    }));
    if let Err(panic) = started {
        return Some(Err(execution.panicked(panic_message(&*panic))));
    }
    loop {
        match ended.recv_timeout(CHECK_INTERVAL) {
            Ok(result) => {
                return Some(end_kernel(state, request, rank, start_ns, result, events));
            }
            Err(RecvTimeoutError::Timeout) => {
                if let Err(interrupt) = request.check_interrupts() {
                    request.async_cancel.cancel();
                    return Some(Err(interrupt));
                }
            }
            // The callback was dropped, which has already reported a failure.
            Err(RecvTimeoutError::Disconnected) => {
                let lost = KernelError::invalid("the kernel dropped its callback");
                return Some(Err(execution.failed(node, &execution.inputs(), lost)));
            }
        }
    }
}

/// Returns the error for an asynchronous kernel that panicked when it was started.
pub(in crate::execute) fn kernel_panicked(
    state: &RunState,
    request: &Request,
    rank: u32,
    panic: &(dyn std::any::Any + Send),
) -> ExecuteError {
    OpExecution::new(state, request, rank).panicked(panic_message(panic))
}

/// Returns the error for a copy that failed.
pub(in crate::execute) fn copy_failed(
    state: &RunState,
    request: &Request,
    rank: u32,
    source: KernelError,
) -> ExecuteError {
    let execution = OpExecution::new(state, request, rank);
    match execution.operation.kind {
        StepKind::Send(id) => {
            execution.lost(&execution.program.plan.transfers()[id.index()], source)
        }
        StepKind::Fetch(fetch) => execution.fetch_lost(fetch, source),
        _ => unreachable!("only sends and fetches copy later"),
    }
}

/// Takes the outputs of an asynchronous kernel that has ended, and reports its end to the
/// listeners.
pub(in crate::execute) fn end_kernel(
    state: &RunState,
    request: &Request,
    rank: u32,
    start_ns: u64,
    (context, result): (Option<AsyncKernelContext>, Result<(), KernelError>),
    events: &mut Vec<Event>,
) -> Result<(), ExecuteError> {
    end(state, request, rank, start_ns, events, |execution| {
        let StepKind::Execute(node) = execution.operation.kind else {
            unreachable!("only nodes have kernels");
        };
        execution.take_outputs(node, context, result)
    })
}

/// Takes a tensor that was copied to the host, and reports the end of the copy to the listeners.
pub(in crate::execute) fn end_copy(
    state: &RunState,
    request: &Request,
    rank: u32,
    start_ns: u64,
    copied: Result<Tensor, KernelError>,
    events: &mut Vec<Event>,
) -> Result<(), ExecuteError> {
    end(state, request, rank, start_ns, events, |execution| {
        let copied = copied.map_err(|source| copy_failed(state, request, rank, source))?;
        Ok(execution.take_copy(copied))
    })
}

fn end(
    state: &RunState,
    request: &Request,
    rank: u32,
    start_ns: u64,
    events: &mut Vec<Event>,
    take: impl FnOnce(&OpExecution<'_>) -> Result<u64, ExecuteError>,
) -> Result<(), ExecuteError> {
    catch_unwind(AssertUnwindSafe(|| {
        let execution = OpExecution::new(state, request, rank);
        let bytes = take(&execution)?;
        if !state.nanoseconds.is_empty() || request.listeners.is_any() {
            execution.report(start_ns, bytes, events);
        }
        Ok(())
    }))
    .unwrap_or_else(|panic| {
        Err(OpExecution::new(state, request, rank).panicked(panic_message(&*panic)))
    })
}

impl<'a> OpExecution<'a> {
    fn kernel_start(&self, node: NodeId) -> Result<Option<LaterStart<'a>>, ExecuteError> {
        let Some(Action::Kernel(kernel)) = &self.program.actions[self.operation.step.index()]
        else {
            return Ok(None);
        };
        let Some(kernel) = kernel.as_async() else {
            return Ok(None);
        };
        let context = self.async_context(node)?;
        Ok(Some(LaterStart::Kernel(kernel, Box::new(context))))
    }

    fn copy_start(
        &self,
        start_ns: u64,
        events: &mut Vec<Event>,
    ) -> Result<Option<LaterStart<'a>>, ExecuteError> {
        let plan = &self.program.plan;
        if !self.program.copies_later(self.operation.step) {
            return Ok(None);
        }
        let &[value] = self.state.compiled.inputs(self.operation) else {
            return Ok(None);
        };
        // SAFETY: this executes an operation that reads it.
        let tensor = unsafe { self.state.values().read(value) };
        let tensor = tensor.expect("a value is written before it is read");
        let space = plan.values()[value as usize].space;
        if space == MemorySpace::Host || tensor.buffer().is_none() {
            return Ok(None); // It is in host memory.
        }
        if let StepKind::Send(id) = self.operation.kind
            && let Some(copy) = self.direct_copy(&plan.transfers()[id.index()], tensor)?
        {
            self.hand_over(id, copy, TransferWay::Direct);
            if self.request.listeners.is_any() {
                self.report(start_ns, 0, events);
            }
            return Ok(Some(LaterStart::Sent));
        }
        // The copy may outlive the run, and with it the value.
        let tensor = tensor.clone();
        Ok(Some(LaterStart::Copy(self.device_context(), tensor)))
    }

    /// Takes the tensor that was copied to the host; returns its bytes.
    fn take_copy(&self, copied: Tensor) -> u64 {
        let bytes = copied.len_bytes() as u64;
        match self.operation.kind {
            StepKind::Send(id) => self.hand_over(id, copied, TransferWay::Staged),
            StepKind::Fetch(fetch) => {
                // SAFETY: this executes the fetch.
                unsafe { self.state.values().set_fetched(fetch, copied) };
                self.leave_inputs();
            }
            _ => unreachable!("only sends and fetches copy later"),
        }
        bytes
    }

    /// Returns the context of an asynchronous kernel, with copies of inputs that are in an arena.
    fn async_context(&self, node: NodeId) -> Result<AsyncKernelContext, ExecuteError> {
        let values = self.state.values();
        let inputs = self.state.compiled.inputs(self.operation).iter();
        let inputs = inputs.map(|&input| {
            // SAFETY: this executes an operation that reads it.
            let input = unsafe { values.read(input) };
            input.expect("a value is written before it is read").clone()
        });
        let inputs: Vec<Tensor> = inputs.collect();
        let device = self.program.devices.get(self.operation.device);
        let device = device.expect("preparing has checked the devices");
        let on_host = self.program.is_on_host[self.operation.outputs()].to_vec();
        let name = self.program.graph.node_name(node);
        let step = self.state.device_run(self.operation.device);
        let step = step.expect("devices of the plan have a step");
        let context = self.program.context(self.operation.step);
        AsyncKernelContext::new(Arc::clone(device), name, inputs, on_host)
            .map(|started| {
                started.in_run(
                    Arc::clone(step),
                    context.cloned(),
                    self.request.async_cancel.clone(),
                )
            })
            .map_err(|source| self.failed(node, &[], source))
    }

    /// Takes the outputs of an asynchronous kernel; returns their bytes.
    fn take_outputs(
        &self,
        node: NodeId,
        context: Option<AsyncKernelContext>,
        result: Result<(), KernelError>,
    ) -> Result<u64, ExecuteError> {
        let range = self.operation.outputs();
        let made = result.and_then(|()| match context {
            Some(mut context) => context.kernel_context().into_outputs(),
            None => Ok(Vec::new()),
        });
        let made = made.map_err(|source| self.failed(node, &self.inputs(), source))?;
        // SAFETY: this executes the operation that writes them.
        let slots = unsafe { self.state.values().outputs(range) };
        for (slot, tensor) in slots.iter_mut().zip(made) {
            slot.set_own(tensor);
        }
        let bytes = self.finish_outputs(node)?;
        self.leave_inputs();
        Ok(bytes)
    }
}
