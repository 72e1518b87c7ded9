//! One operation of one run.
#![expect(
    unsafe_code,
    reason = "an operation reads and writes the values that the plan gives it, as `values` asks"
)]

mod later;
mod passing;

use std::cell::RefCell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use smallvec::SmallVec;

use super::compile::Operation;
use super::copy::{from_host, guarded, is_at_hand, kernel_device, lost, to_host};
use super::error::{ExecuteError, NodeSite};
use super::flow;
use super::prepare::{Action, Program};
use super::run::{Request, RunState};
use super::values::{InTransit, Times};
use crate::device::panic_message;
use crate::device::{
    AccessedTensors, DeviceContext, DeviceRun, Kernel, KernelContext, KernelDevice, KernelError,
    OutputSlot, OutputState, Surroundings, unset_output,
};
use crate::graph::NodeId;
use crate::plan::{MemorySpace, StepKind, Transfer, TransferId};
use crate::tensor::{DType, Tensor};
use crate::trace::{Event, EventKind, TransferWay};

pub(super) use passing::{
    end_dead, has_dead_input, kill, leave_after_loop, leave_inputs, merge, revive, waits_for_dead,
};

pub(super) use later::{
    LaterStart, copy_failed, end_copy, end_kernel, kernel_panicked, start_later,
};

/// Where feeds come from and fetches go.
const CALLER: &str = "the caller";

/// Executes a ready operation. A panic of code of an app or a device (a kernel, an allocator,
/// memory of a tensor that is read or dropped) becomes an error of the operation: the thread may be
/// a helper, whose end nothing would notice.
#[inline]
pub(super) fn execute(
    state: &RunState,
    request: &Request,
    rank: u32,
    events: &mut Vec<Event>,
) -> Result<(), ExecuteError> {
    catch_unwind(AssertUnwindSafe(|| {
        let execution = OpExecution::new(state, request, rank);
        if !execution.is_deferred() {
            state.program.flush()?;
        }
        if state.nanoseconds.is_empty() && !request.listeners.is_any() {
            execution.execute().map(|_| ())
        } else {
            execution.execute_and_report(events)
        }
    }))
    .unwrap_or_else(|panic| {
        Err(OpExecution::new(state, request, rank).panicked(panic_message(&*panic)))
    })
}

/// Executes a ready operation, and waits for its end if it ends later.
pub(super) fn execute_and_wait(
    state: &RunState,
    request: &Request,
    rank: u32,
    events: &mut Vec<Event>,
) -> Result<(), ExecuteError> {
    if state.program.is_async {
        let execution = OpExecution::new(state, request, rank);
        if let Some(ended) = later::start_and_wait(execution, events) {
            return ended;
        }
    }
    execute(state, request, rank, events)
}

/// The execution of one operation, with all that it needs. Passed by reference, and its common path
/// is inlined: copying what was written just before makes loads wait for the stores, 13 ns of the
/// 50 ns that an operation costs.
#[derive(Clone, Copy)]
struct OpExecution<'a> {
    state: &'a RunState,
    program: &'a Program,
    request: &'a Request,
    operation: &'a Operation,
    rank: u32,
}

impl Surroundings for OpExecution<'_> {
    fn node(&self) -> &str {
        match self.operation.kind {
            StepKind::Execute(node) => self.program.graph.node_name(node),
            _ => "",
        }
    }

    fn device_run(&self) -> Option<&DeviceRun> {
        self.state
            .device_run(self.operation.device)
            .map(|step| &**step)
    }

    fn context(&self) -> Option<&Arc<dyn DeviceContext>> {
        self.program.context(self.operation.step)
    }
}

/// An op execution that records the tensors that it allocates.
struct Recorded<'a> {
    execution: OpExecution<'a>,
    temporaries: RefCell<Vec<Tensor>>,
}

impl Surroundings for Recorded<'_> {
    fn node(&self) -> &str {
        self.execution.node()
    }

    fn device_run(&self) -> Option<&DeviceRun> {
        self.execution.device_run()
    }

    fn context(&self) -> Option<&Arc<dyn DeviceContext>> {
        self.execution.context()
    }

    fn temporaries(&self) -> Option<&RefCell<Vec<Tensor>>> {
        Some(&self.temporaries)
    }
}

impl<'a> OpExecution<'a> {
    #[inline]
    fn new(state: &'a RunState, request: &'a Request, rank: u32) -> Self {
        Self {
            state,
            program: &state.program,
            request,
            operation: &state.compiled.operations[rank as usize],
            rank,
        }
    }

    /// Executes the operation, reports it to the listeners, and measures it.
    #[cold]
    fn execute_and_report(&self, events: &mut Vec<Event>) -> Result<(), ExecuteError> {
        let listeners = &self.request.listeners;
        let start_ns = listeners.now_ns();
        let queue_wait_ns = start_ns.saturating_sub(listeners.ready_ns(self.rank));
        let bytes = match self.operation.kind {
            StepKind::Execute(node) => {
                let device = self.operation.device;
                let span = listeners.kernel_span(self.program, node, device, queue_wait_ns);
                let _entered = span.enter();
                let bytes = self.execute()?;
                if self.request.options.sync_kernels {
                    self.sync_device()?;
                }
                span.record("output_bytes", bytes);
                bytes
            }
            _ => self.execute()?,
        };
        self.report(start_ns, bytes, events);
        Ok(())
    }

    /// Waits for the device, so that the event of a kernel lasts as long as its work.
    fn sync_device(&self) -> Result<(), ExecuteError> {
        let device = kernel_device(&self.program.devices, self.operation.device);
        device.sync().map_err(|source| ExecuteError::Device {
            device: device.attributes().name.clone(),
            doing: "waiting for a kernel",
            source: Box::new(source),
        })
    }

    /// Reports the end of the operation to the listeners, and measures it.
    fn report(&self, start_ns: u64, bytes: u64, events: &mut Vec<Event>) {
        let listeners = &self.request.listeners;
        let queue_wait_ns = start_ns.saturating_sub(listeners.ready_ns(self.rank));
        let end_ns = listeners.now_ns();
        let times = Times {
            queue_wait_ns,
            start_ns,
            end_ns,
        };
        listeners.ended(
            end_ns,
            self.state.compiled.successors.row(self.rank as usize),
        );
        if let Some(nanoseconds) = self.state.nanoseconds.get(self.rank as usize) {
            let measured = u32::try_from(end_ns - start_ns).unwrap_or(u32::MAX);
            nanoseconds.store(measured, Ordering::Relaxed);
        }
        if listeners.is_recorded()
            && let Some((kind, since_ns)) = self.event(times, bytes)
        {
            events.push(Event {
                kind,
                start_ns: listeners.on_recorder_ns(since_ns),
                duration_ns: end_ns - since_ns,
            });
        }
    }

    /// Returns the event, and its start in ns since the run started.
    fn event(&self, times: Times, bytes: u64) -> Option<(EventKind, u64)> {
        let (run, device) = (self.request.listeners.run, self.operation.device);
        let kind = match self.operation.kind {
            StepKind::Execute(node) => EventKind::Kernel {
                run,
                node,
                fused: self.program.fused_nodes.get(&self.operation.step).cloned(),
                device,
                queue_wait_ns: times.queue_wait_ns,
                output_bytes: bytes,
            },
            StepKind::Send(id) => {
                // SAFETY: this executes the send.
                unsafe { self.state.values().transit(id.index()) }.sent = times;
                return None;
            }
            StepKind::Receive(id) => {
                let transfer = &self.program.plan.transfers()[id.index()];
                // SAFETY: this executes the receive.
                let &mut InTransit { sent, way, .. } =
                    unsafe { self.state.values().transit(id.index()) };
                let kind = EventKind::Transfer {
                    run,
                    payload: transfer.payload,
                    edge: transfer.edge,
                    source: transfer.source,
                    destination: transfer.destination,
                    way,
                    bytes,
                    queue_wait_ns: sent.queue_wait_ns,
                    send_ns: sent.end_ns - sent.start_ns,
                    receive_wait_ns: times.queue_wait_ns,
                };
                // A transfer lasts from the start of its send to the end of its receive.
                return Some((kind, sent.start_ns));
            }
            StepKind::Feed(feed) => EventKind::Feed {
                run,
                feed,
                tensor: self.program.plan.feeds()[feed as usize].tensor,
                destination: device,
                bytes,
            },
            StepKind::Fetch(fetch) => EventKind::Fetch {
                run,
                fetch,
                tensor: self.program.plan.fetches()[fetch as usize].tensor(),
                source: device,
                bytes,
            },
        };
        Some((kind, times.start_ns))
    }

    /// Returns the bytes that it produced or moved; 0 for kernels unless events are recorded.
    #[inline]
    fn execute(&self) -> Result<u64, ExecuteError> {
        match self.operation.kind {
            StepKind::Execute(node) => self.execute_node(node),
            StepKind::Send(transfer) => self.send(transfer),
            StepKind::Receive(transfer) => self.receive(transfer),
            StepKind::Feed(feed) => self.take_feed(feed),
            StepKind::Fetch(fetch) => self.hand_out(fetch),
        }
    }

    #[inline]
    fn execute_node(&self, node: NodeId) -> Result<u64, ExecuteError> {
        let values = self.state.values();
        match &self.program.actions[self.operation.step.index()] {
            Some(Action::Kernel(kernel)) => self.call(node, &**kernel)?,
            Some(Action::Switch) => return self.switch(node),
            Some(Action::PassOn) => {
                return self.pass_on(self.state.compiled.inputs(self.operation)[0], 0);
            }
            Some(Action::Merge) => {
                let inputs = self.state.compiled.inputs(self.operation).iter();
                let sources: SmallVec<[(u32, u32); 4]> = (0..).zip(inputs.copied()).collect();
                self.merge(&sources, false);
                return Ok(0);
            }
            // A constant that depends on something.
            Some(Action::Constant(tensor)) => {
                // SAFETY: this executes the operation that writes them.
                let slots = unsafe { values.outputs(self.operation.outputs()) };
                slots[0].set_own(Tensor::clone(tensor));
            }
            None => unreachable!("every node has been prepared"),
        }
        let bytes = self.finish_outputs(node)?;
        self.leave_inputs();
        Ok(bytes)
    }

    /// Records that the inputs are no longer read.
    #[inline(always)]
    fn leave_inputs(&self) {
        if self.state.compiled.flow.is_some() {
            return self.leave_all_but_invariant();
        }
        for &input in self.state.compiled.inputs(self.operation) {
            // SAFETY: this executes an operation that reads it, once per entry, and no longer uses
            // it.
            drop(unsafe { self.state.values().leave(input) });
        }
    }

    /// Calls a kernel.
    #[inline(always)]
    fn call(&self, node: NodeId, kernel: &dyn Kernel) -> Result<(), ExecuteError> {
        if self.program.is_recording(self.operation.device) {
            return self.call_recorded(node, kernel);
        }
        self.call_within(node, kernel, self)
    }

    #[inline(always)]
    fn call_within(
        &self,
        node: NodeId,
        kernel: &dyn Kernel,
        around: &dyn Surroundings,
    ) -> Result<(), ExecuteError> {
        let values = self.state.values();
        let device = kernel_device(&self.program.devices, self.operation.device);
        let range = self.operation.outputs();
        let on_host = &self.program.is_on_host[range.clone()];
        let mut inputs: SmallVec<[&Tensor; 6]> = SmallVec::new();
        for &input in self.state.compiled.inputs(self.operation) {
            // SAFETY: this executes an operation that reads it.
            let input = unsafe { values.read(input) };
            inputs.push(input.expect("a value is written before it is read"));
        }
        // SAFETY: this executes the operation that writes them, and holds no other reference to
        // them: no node reads its own outputs.
        let slots = unsafe { values.outputs(range) };
        for slot in &mut *slots {
            slot.state = OutputState::Unset;
        }
        let prepacked = &self.program.prepacked[self.operation.step.index()];
        let help = self.request.help();
        let interrupts = Some(&self.request.interrupts);
        let mut context = KernelContext::on_slots(
            device, &inputs, prepacked, slots, on_host, help, interrupts, around,
        );
        self.compute(node, device, kernel, &inputs, &mut context)
    }

    /// Calls a kernel on a device that may still use the tensors when the kernel has returned.
    #[cold]
    fn call_recorded(&self, node: NodeId, kernel: &dyn Kernel) -> Result<(), ExecuteError> {
        let around = Recorded {
            execution: *self,
            temporaries: RefCell::default(),
        };
        let called = self.call_within(node, kernel, &around);
        // Also after a failure: part of the kernel may still execute.
        let device = kernel_device(&self.program.devices, self.operation.device);
        let context = around.context();
        let context = context.unwrap_or_else(|| device.default_context());
        let inputs = self.inputs();
        let handed = guarded(|| {
            self.hand_accessed(device, &**context, &inputs, around.temporaries.take());
            Ok(())
        });
        called.and_then(|()| handed.map_err(|source| self.failed(node, &inputs, source)))
    }

    #[inline(always)]
    fn compute(
        &self,
        node: NodeId,
        device: &dyn KernelDevice,
        kernel: &dyn Kernel,
        inputs: &[&Tensor],
        context: &mut KernelContext<'_>,
    ) -> Result<(), ExecuteError> {
        match catch_unwind(AssertUnwindSafe(|| device.compute(kernel, context))) {
            // A loop has ended early, so the outputs are incomplete.
            Ok(_) if self.request.interrupts.is_noticed() => self.request.check_interrupts(),
            Ok(Ok(())) => Ok(()),
            Ok(Err(source)) => Err(self.failed(node, inputs, source)),
            Err(panic) => Err(ExecuteError::Panic {
                site: self.site(node),
                inputs: describe_tensors(inputs),
                message: panic_message(&*panic),
            }),
        }
    }

    /// Passes the tensors that a kernel read and wrote to its device, which releases them later.
    #[cold]
    fn hand_accessed(
        &self,
        device: &dyn KernelDevice,
        context: &dyn DeviceContext,
        inputs: &[&Tensor],
        temporaries: Vec<Tensor>,
    ) {
        let mut accessed = temporaries;
        accessed.extend(inputs.iter().map(|&input| input.clone()));
        let prepacked = &self.program.prepacked[self.operation.step.index()];
        accessed.extend(prepacked.iter().flatten().cloned());
        // SAFETY: this executes the operation that writes them, and the kernel's reference is not
        // used any more.
        let slots = unsafe { self.state.values().outputs(self.operation.outputs()) };
        accessed.extend(slots.iter().filter_map(OutputSlot::tensor).cloned());
        device.consume_accessed_tensors(context, AccessedTensors(accessed));
    }

    fn inputs(&self) -> Vec<&'a Tensor> {
        let values = self.state.values();
        let inputs = self.state.compiled.inputs(self.operation).iter();
        // SAFETY: this executes an operation that reads them.
        let read = |&input: &u32| unsafe { values.read(input) };
        inputs.filter_map(read).collect()
    }

    #[cold]
    fn failed(&self, node: NodeId, inputs: &[&Tensor], source: KernelError) -> ExecuteError {
        let (node, source) = self.failed_node(node, source);
        ExecuteError::Kernel {
            site: self.site(node),
            inputs: describe_tensors(inputs),
            source: Box::new(source),
        }
    }

    /// Returns the node that has failed, which is another one if the step executes a cluster.
    fn failed_node(&self, node: NodeId, source: KernelError) -> (NodeId, KernelError) {
        match source {
            KernelError::InNode {
                node: inner,
                source,
            } => {
                let executed = self.program.fused.get(&self.operation.step);
                let is_executed = executed.is_some_and(|it| it.nodes().contains(&inner));
                self.failed_node(if is_executed { inner } else { node }, *source)
            }
            source => (node, source),
        }
    }

    /// Checks the outputs of a kernel. Readers rely on the dtypes that the graph specifies.
    #[inline(always)]
    fn finish_outputs(&self, node: NodeId) -> Result<u64, ExecuteError> {
        let range = self.operation.outputs();
        // SAFETY: this executes the operation that writes them, and the kernel's reference is gone.
        let slots = unsafe { self.state.values().outputs(range.clone()) };
        if slots.iter().any(|slot| slot.state != OutputState::Planned) {
            return self.examine_outputs(node);
        }
        // As planned: dtypes and shapes are right, and nothing has to be released.
        if !self.request.listeners.is_any() {
            return Ok(0);
        }
        let tensors = slots.iter().filter_map(OutputSlot::tensor);
        Ok(tensors.map(|tensor| tensor.len_bytes() as u64).sum())
    }

    #[cold]
    fn examine_outputs(&self, node: NodeId) -> Result<u64, ExecuteError> {
        let values = self.state.values();
        let dtypes = self.program.graph.tensor_dtypes();
        let mut bytes = 0;
        for (slot, value) in self.operation.outputs().enumerate() {
            // SAFETY: this executes the operation that writes it.
            let output = unsafe { &values.outputs(value..value + 1)[0] };
            let Some(output_tensor) = output.tensor() else {
                return Err(self.failed(node, &self.inputs(), unset_output(slot)));
            };
            let tensor = self.program.plan.values()[value].tensor;
            let (expected, found) = (dtypes[tensor.index()], output_tensor.dtype());
            if found != expected {
                return Err(ExecuteError::WrongOutput {
                    site: self.site(node),
                    slot,
                    expected,
                    found,
                });
            }
            bytes += output_tensor.len_bytes() as u64;
            if output.state == OutputState::Own {
                // SAFETY: this executes the operation that writes it.
                unsafe { values.observe(value, output_tensor.shape()) };
                // SAFETY: as above, and `output` is not used any more.
                unsafe { values.expect_readers(value, self.state.compiled.n_readers[value]) };
            }
        }
        Ok(bytes)
    }

    /// Returns the context by which the device of this operation copies.
    fn device_context(&self) -> &'a Arc<dyn DeviceContext> {
        let context = self.program.context(self.operation.step);
        let device = || kernel_device(&self.program.devices, self.operation.device);
        context.unwrap_or_else(|| device().default_context())
    }

    fn is_deferred(&self) -> bool {
        self.program.is_deferred(self.operation.device)
    }

    /// Checks whether the host can read a tensor of this operation's device now.
    fn is_at_hand(&self, space: MemorySpace, tensor: &Tensor) -> Result<bool, KernelError> {
        guarded(|| Ok(is_at_hand(space, self.is_deferred(), tensor)))
    }

    /// Copies the tensor to host-readable memory. The receive copies it from there.
    fn send(&self, id: TransferId) -> Result<u64, ExecuteError> {
        let transfer = &self.program.plan.transfers()[id.index()];
        let values = self.state.values();
        let Some(sent) = transfer.sent else {
            return Ok(0);
        };
        // SAFETY: this executes an operation that reads it.
        let tensor = unsafe { values.read(sent.0) }.expect("a value is written before it is sent");
        let is_at_hand = self
            .is_at_hand(transfer.source_space, tensor)
            .map_err(|source| self.lost(transfer, source))?;
        // SAFETY: as above.
        if is_at_hand && unsafe { values.is_planned(sent.0) } {
            // SAFETY: this executes the send.
            unsafe { values.transit(id.index()) }.way = TransferWay::Host;
            return Ok(0); // The receiver reads it in place; the place is kept until then.
        }
        if !is_at_hand && let Some(copy) = self.direct_copy(transfer, tensor)? {
            self.hand_over(id, copy, TransferWay::Direct);
            return Ok(0);
        }
        let on_host = to_host(
            transfer.source_space,
            self.is_deferred(),
            self.device_context(),
            tensor,
        )
        .map_err(|source| self.lost(transfer, source))?;
        let way = match is_at_hand {
            true => TransferWay::Host,
            false => TransferWay::Staged,
        };
        self.hand_over(id, on_host, way);
        Ok(0)
    }

    /// Returns a copy that the receiver's context makes directly from the source memory, if it can.
    #[cold]
    fn direct_copy(
        &self,
        transfer: &Transfer,
        tensor: &Tensor,
    ) -> Result<Option<Tensor>, ExecuteError> {
        let spaces = (transfer.source_space, transfer.destination_space);
        if spaces != (MemorySpace::Device, MemorySpace::Device) {
            return Ok(None);
        }
        guarded(|| {
            let destination = kernel_device(&self.program.devices, transfer.destination);
            let context = destination.default_context();
            context
                .copy_from_device(tensor, self.device_context())
                .transpose()
        })
        .map_err(|source| self.lost(transfer, source))
    }

    /// Puts a tensor in transit. The caller must hold no reference to the tensor that is sent.
    fn hand_over(&self, id: TransferId, tensor: Tensor, way: TransferWay) {
        // SAFETY: this executes the send.
        let transit = unsafe { self.state.values().transit(id.index()) };
        (transit.tensor, transit.way) = (Some(tensor), way);
        self.leave_inputs();
    }

    /// Returns the bytes received.
    fn receive(&self, id: TransferId) -> Result<u64, ExecuteError> {
        let transfer = &self.program.plan.transfers()[id.index()];
        let values = self.state.values();
        let (Some(sent), Some(received)) = (transfer.sent, transfer.received) else {
            return Ok(0);
        };
        // SAFETY: this executes the receive.
        let transit = unsafe { values.transit(id.index()) };
        let bytes = match (transit.tensor.take(), transit.way) {
            (Some(arrived), TransferWay::Direct) => {
                let bytes = arrived.len_bytes() as u64;
                self.set_arrived(received.index(), arrived);
                bytes
            }
            (came, _) => {
                let tensor = match &came {
                    Some(tensor) => tensor,
                    // SAFETY: the plan keeps what is sent until it is received.
                    None => unsafe { values.read(sent.0) }.expect("a receive waits for its send"),
                };
                self.bring(received.index(), transfer.destination_space, tensor)
                    .map_err(|source| self.lost(transfer, source))?
            }
        };
        // SAFETY: this executes the receive.
        unsafe { values.transit(id.index()) }.bytes = bytes;
        Ok(bytes)
    }

    fn take_feed(&self, feed: u32) -> Result<u64, ExecuteError> {
        let tensor = &self.request.feeds[feed as usize];
        for value in self.operation.outputs() {
            let space = self.program.plan.values()[value].space;
            self.bring(value, space, tensor)
                .map_err(|source| self.feed_lost(feed, source))?;
        }
        Ok(tensor.len_bytes() as u64)
    }

    /// Copies a host-readable tensor into the place of a value.
    fn bring(&self, value: usize, space: MemorySpace, tensor: &Tensor) -> Result<u64, KernelError> {
        let values = self.state.values();
        // SAFETY: this executes the operation that writes it.
        let slot = unsafe { &mut values.outputs(value..value + 1)[0] };
        if let Some(planned) = &mut slot.planned
            && planned.shape() == tensor.shape()
            && planned.dtype() == tensor.dtype()
            && let Some(bytes) = planned.as_bytes_mut()
        {
            guarded(|| {
                bytes.copy_from_slice(tensor.as_bytes()?);
                Ok(())
            })?;
            slot.state = OutputState::Planned;
        } else {
            let arrived = from_host(&self.program.devices, self.operation.device, space, tensor)?;
            self.set_arrived(value, arrived);
        }
        Ok(tensor.len_bytes() as u64)
    }

    /// Sets a value to a tensor that has its own allocation.
    fn set_arrived(&self, value: usize, arrived: Tensor) {
        let values = self.state.values();
        // SAFETY: this executes the operation that writes it.
        unsafe { values.observe(value, arrived.shape()) };
        // SAFETY: as above, and there is no other reference to it.
        let slot = unsafe { &mut values.outputs(value..value + 1)[0] };
        slot.set_own(arrived);
        // SAFETY: as above, and `slot` is not used any more.
        unsafe { values.expect_readers(value, self.state.compiled.n_readers[value]) };
    }

    fn hand_out(&self, fetch: u32) -> Result<u64, ExecuteError> {
        let values = self.state.values();
        let mut n_bytes = 0;
        for &value in self.state.compiled.inputs(self.operation) {
            // SAFETY: this executes an operation that reads it.
            let tensor = unsafe { values.read(value) };
            let tensor = tensor.expect("a value is written before it is read");
            n_bytes += tensor.len_bytes() as u64;
            let space = self.program.plan.values()[value as usize].space;
            let is_at_hand = self
                .is_at_hand(space, tensor)
                .map_err(|source| self.fetch_lost(fetch, source))?;
            let tensor = if is_at_hand {
                let shared = tensor.clone();
                // SAFETY: this executes an operation that reads it, and no longer uses it.
                unsafe { values.leave(value) }.unwrap_or(shared)
            } else {
                let on_host = to_host(space, self.is_deferred(), self.device_context(), tensor)
                    .map_err(|source| self.fetch_lost(fetch, source))?;
                // SAFETY: this executes an operation that reads it, and no longer uses it.
                drop(unsafe { values.leave(value) });
                on_host
            };
            // SAFETY: this executes the fetch.
            unsafe { values.set_fetched(fetch, tensor) };
        }
        Ok(n_bytes)
    }

    /// Returns the error for a panic outside of kernels and copies.
    #[cold]
    fn panicked(&self, message: String) -> ExecuteError {
        let (graph, plan) = (&self.program.graph, &self.program.plan);
        let source = KernelError::invalid(format!("the step panicked: {message}"));
        match self.operation.kind {
            StepKind::Execute(node) => ExecuteError::Panic {
                site: self.site(node),
                inputs: describe(graph.data_inputs(node).map(|tensor| {
                    let dtype = graph.tensor_dtypes()[tensor.index()];
                    (dtype, graph.tensor_shape(tensor))
                })),
                message,
            },
            StepKind::Send(id) | StepKind::Receive(id) => {
                self.lost(&plan.transfers()[id.index()], source)
            }
            StepKind::Feed(feed) => self.feed_lost(feed, source),
            StepKind::Fetch(fetch) => self.fetch_lost(fetch, source),
        }
    }

    fn site(&self, node: NodeId) -> Box<NodeSite> {
        let graph = &self.program.graph;
        Box::new(NodeSite {
            node: graph.node_name(node).to_owned(),
            op: self.program.op(self.operation.step, node).to_owned(),
            device: self.program.device_name(self.operation.device).to_owned(),
            function: graph.function_of(node).map(str::to_owned),
            iteration: flow::describe_iteration(self.state, self.operation.step),
        })
    }

    fn lost(&self, transfer: &Transfer, source: KernelError) -> ExecuteError {
        lost(&self.program.graph, &self.program.devices, transfer, source)
    }

    fn feed_lost(&self, feed: u32, source: KernelError) -> ExecuteError {
        let tensor = self.program.plan.feeds()[feed as usize].tensor;
        ExecuteError::Transfer {
            what: format!("feed `{}`", self.program.graph.tensor_name(tensor)),
            source_device: CALLER.to_owned(),
            destination_device: self.program.device_name(self.operation.device).to_owned(),
            source: Box::new(source),
        }
    }

    fn fetch_lost(&self, fetch: u32, source: KernelError) -> ExecuteError {
        let tensor = self.program.plan.fetches()[fetch as usize].tensor();
        ExecuteError::Transfer {
            what: format!("fetch `{}`", self.program.graph.tensor_name(tensor)),
            source_device: self.program.device_name(self.operation.device).to_owned(),
            destination_device: CALLER.to_owned(),
            source: Box::new(source),
        }
    }
}

/// `(float [4], int32 [])`.
fn describe(tensors: impl Iterator<Item = (DType, impl fmt::Display)>) -> String {
    let tensors: Vec<String> = tensors
        .map(|(dtype, shape)| format!("{dtype} {shape}"))
        .collect();
    format!("({})", tensors.join(", "))
}

fn describe_tensors(tensors: &[&Tensor]) -> String {
    describe(
        tensors
            .iter()
            .map(|tensor| (tensor.dtype(), tensor.shape())),
    )
}
