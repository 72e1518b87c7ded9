//! One step of one run.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use smallvec::SmallVec;

use super::error::{ExecuteError, NodeSite};
use super::prepare::{Action, panic_message};
use super::run::{InTransit, Ready, Run};
use crate::device::{Kernel, KernelContext, KernelDevice, KernelError};
use crate::graph::NodeId;
use crate::names::DeviceId;
use crate::plan::{MemorySpace, Payload, Step, StepKind, Transfer, TransferId};
use crate::tensor::{DType, Shape, Tensor};
use crate::trace::{Event, EventKind};

/// Where fed tensors come from and fetched ones go.
const CALLER: &str = "the caller";

/// Executes a step that nothing is left to wait for. A panic of whatever an app or a device brings (a kernel, an allocator, a
/// tensor's memory that is read or dropped) is an error of the step: the thread may be a helper, whose end nobody would hear of.
pub(super) fn execute(
    run: &Run,
    ready: Ready,
    events: &mut Vec<Event>,
) -> Result<(), ExecuteError> {
    catch_unwind(AssertUnwindSafe(|| execute_unguarded(run, ready, events)))
        .unwrap_or_else(|panic| Err(panicked(run, ready, panic_message(&*panic))))
}

/// A panic outside of what is called to compute or to copy.
fn panicked(run: &Run, ready: Ready, message: String) -> ExecuteError {
    let (graph, plan) = (&run.prepared.graph, &run.prepared.plan);
    let step = plan.step(ready.step.0);
    let source = KernelError::invalid(format!("the step panicked: {message}"));
    match step.kind {
        StepKind::Execute(node) => ExecuteError::Panic {
            site: site(run, node, step),
            inputs: in_words(graph.data_inputs(node).map(|tensor| {
                let dtype = graph.tensor_dtypes()[tensor.index()];
                (dtype, graph.tensor_shape(tensor))
            })),
            message,
        },
        StepKind::Send(id) | StepKind::Receive(id) => {
            lost(run, &plan.transfers()[id.index()], source)
        }
        StepKind::Feed(feed) => feed_lost(run, step, feed, source),
        StepKind::Fetch(fetch) => fetch_lost(run, step, fetch, source),
    }
}

fn execute_unguarded(run: &Run, ready: Ready, events: &mut Vec<Event>) -> Result<(), ExecuteError> {
    let id = ready.step.0;
    let step = run.prepared.plan.step(id);
    let started = run.recorder.is_on().then(Instant::now);
    let kind = match step.kind {
        StepKind::Execute(node) => {
            let action = run.prepared.actions[id.index()]
                .as_ref()
                .expect("nodes have been prepared");
            let output_bytes = execute_node(run, node, step, action)?;
            let waited = match (ready.since, started) {
                (Some(since), Some(started)) => started.saturating_duration_since(since),
                _ => std::time::Duration::ZERO,
            };
            EventKind::Kernel {
                run: run.number,
                node,
                device: step.device,
                queue_wait_ns: u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX),
                output_bytes,
            }
        }
        StepKind::Send(transfer) => return send(run, step, transfer, started),
        StepKind::Receive(transfer) => {
            let (payload, sent_at, bytes) = receive(run, step, transfer)?;
            let transfer = &run.prepared.plan.transfers()[transfer.index()];
            let kind = EventKind::Transfer {
                run: run.number,
                payload,
                source: transfer.source,
                destination: transfer.destination,
                bytes,
            };
            // A transfer takes from the start of its send to the end of its receive.
            record(run, sent_at.or(started), kind, events);
            return Ok(());
        }
        StepKind::Feed(feed) => EventKind::Feed {
            run: run.number,
            feed,
            destination: step.device,
            bytes: take_feed(run, step, feed)?,
        },
        StepKind::Fetch(fetch) => EventKind::Fetch {
            run: run.number,
            fetch,
            source: step.device,
            bytes: hand_out(run, step, fetch)?,
        },
    };
    record(run, started, kind, events);
    Ok(())
}

fn record(run: &Run, started: Option<Instant>, kind: EventKind, events: &mut Vec<Event>) {
    if let Some(started) = started {
        let start_ns = run.recorder.at_ns(started);
        events.push(Event {
            kind,
            start_ns,
            duration_ns: run.recorder.now_ns() - start_ns,
        });
    }
}

/// Gives the bytes of the outputs.
fn execute_node(
    run: &Run,
    node: NodeId,
    step: &Step,
    action: &Action,
) -> Result<u64, ExecuteError> {
    let outputs = match action {
        Action::Constant(tensor) => vec![tensor.clone()],
        Action::Kernel(kernel) => {
            let inputs: Vec<Tensor> = step.inputs.iter().map(|&value| run.take(value)).collect();
            call(run, node, step, &**kernel, inputs)?
        }
    };
    check_outputs(run, node, step, &outputs)?;
    let bytes = outputs.iter().map(|tensor| tensor.len_bytes() as u64).sum();
    for (value, tensor) in step.outputs().zip(outputs) {
        run.put(value, tensor);
    }
    Ok(bytes)
}

/// Calls a kernel.
fn call(
    run: &Run,
    node: NodeId,
    step: &Step,
    kernel: &dyn Kernel,
    inputs: Vec<Tensor>,
) -> Result<Vec<Tensor>, ExecuteError> {
    let graph = &run.prepared.graph;
    let device = kernel_device(run, step.device);
    let on_host = &run.prepared.is_on_host[step.output_range()];
    // Kept for the error message: the kernel may consume its inputs.
    let shapes: SmallVec<[(DType, Shape); 3]> = inputs
        .iter()
        .map(|tensor| (tensor.dtype(), tensor.shape().clone()))
        .collect();
    let mut context = KernelContext::new(device, graph.node_name(node), inputs, on_host);
    let computed = catch_unwind(AssertUnwindSafe(|| device.compute(kernel, &mut context)));
    let failure = match computed {
        Ok(result) => match result.and_then(|()| context.into_outputs()) {
            Ok(outputs) => return Ok(outputs),
            Err(source) => Failure::Error(source),
        },
        Err(panic) => Failure::Panic(panic_message(&*panic)),
    };
    let inputs = in_words(shapes.iter().map(|(dtype, shape)| (*dtype, shape)));
    let site = site(run, node, step);
    Err(match failure {
        Failure::Error(source) => ExecuteError::Kernel {
            site,
            inputs,
            source: Box::new(source),
        },
        Failure::Panic(message) => ExecuteError::Panic {
            site,
            inputs,
            message,
        },
    })
}

/// `(float [4], int32 [])`.
fn in_words(tensors: impl Iterator<Item = (DType, impl fmt::Display)>) -> String {
    let tensors: Vec<String> = tensors
        .map(|(dtype, shape)| format!("{dtype} {shape}"))
        .collect();
    format!("({})", tensors.join(", "))
}

fn site(run: &Run, node: NodeId, step: &Step) -> Box<NodeSite> {
    let graph = &run.prepared.graph;
    Box::new(NodeSite {
        node: graph.node_name(node).to_owned(),
        op: graph.op(node).to_owned(),
        device: run.prepared.device_name(step.device).to_owned(),
    })
}

enum Failure {
    Error(KernelError),
    Panic(String),
}

/// Readers rely on the types that the graph states.
fn check_outputs(
    run: &Run,
    node: NodeId,
    step: &Step,
    outputs: &[Tensor],
) -> Result<(), ExecuteError> {
    let graph = &run.prepared.graph;
    for (slot, (tensor, output)) in graph.output_range(node).zip(outputs).enumerate() {
        let expected = graph.tensor_dtypes()[tensor];
        if output.dtype() != expected {
            return Err(ExecuteError::WrongOutput {
                site: site(run, node, step),
                slot,
                expected,
                found: output.dtype(),
            });
        }
    }
    Ok(())
}

/// Brings the tensor to where the host can read it; the other half of the way is the receiver's.
fn send(
    run: &Run,
    step: &Step,
    id: TransferId,
    sent_at: Option<Instant>,
) -> Result<(), ExecuteError> {
    let transfer = &run.prepared.plan.transfers()[id.index()];
    let tensor = match transfer.sent {
        None => None,
        Some(value) => Some(
            to_host(run, step.device, run.take(value))
                .map_err(|source| lost(run, transfer, source))?,
        ),
    };
    run.send(id, InTransit { tensor, sent_at });
    Ok(())
}

/// Gives what came, when it left, and its bytes.
fn receive(
    run: &Run,
    step: &Step,
    id: TransferId,
) -> Result<(Payload, Option<Instant>, u64), ExecuteError> {
    let transfer = &run.prepared.plan.transfers()[id.index()];
    let InTransit { tensor, sent_at } = run.receive(id);
    let mut bytes = 0;
    if let (Some(tensor), Some(value)) = (tensor, transfer.received) {
        bytes = tensor.len_bytes() as u64;
        let arrived = from_host(run, step.device, transfer.destination_space, tensor)
            .map_err(|source| lost(run, transfer, source))?;
        run.put(value, arrived);
    }
    Ok((transfer.payload, sent_at, bytes))
}

fn take_feed(run: &Run, step: &Step, feed: u32) -> Result<u64, ExecuteError> {
    let tensor = run.feed(feed);
    let bytes = tensor.len_bytes() as u64;
    for value in step.outputs() {
        let space = run.prepared.plan.values()[value.index()].space;
        let arrived = from_host(run, step.device, space, tensor.clone())
            .map_err(|source| feed_lost(run, step, feed, source))?;
        run.put(value, arrived);
    }
    Ok(bytes)
}

fn hand_out(run: &Run, step: &Step, fetch: u32) -> Result<u64, ExecuteError> {
    let mut bytes = 0;
    for &value in &step.inputs {
        let tensor = to_host(run, step.device, run.take(value))
            .map_err(|source| fetch_lost(run, step, fetch, source))?;
        bytes += tensor.len_bytes() as u64;
        run.set_fetched(fetch, tensor);
    }
    Ok(bytes)
}

/// The tensor where the host can read it. Memory that the host reads anyway is shared, strings always are.
fn to_host(run: &Run, device: DeviceId, tensor: Tensor) -> Result<Tensor, KernelError> {
    let is_readable = tensor
        .buffer()
        .is_none_or(|buffer| buffer.as_host_bytes().is_some());
    if is_readable {
        return Ok(tensor);
    }
    guarded(|| kernel_device(run, device).copy_to_host(&tensor))
}

/// A copy of a host tensor in one of a device's memories.
fn from_host(
    run: &Run,
    device: DeviceId,
    space: MemorySpace,
    tensor: Tensor,
) -> Result<Tensor, KernelError> {
    if space == MemorySpace::Host || tensor.buffer().is_none() {
        return Ok(tensor);
    }
    guarded(|| kernel_device(run, device).copy_from_host(&tensor))
}

/// A panic of a device is its failure, not ours.
fn guarded(copy: impl FnOnce() -> Result<Tensor, KernelError>) -> Result<Tensor, KernelError> {
    catch_unwind(AssertUnwindSafe(copy)).unwrap_or_else(|panic| {
        Err(KernelError::invalid(format!(
            "the device panicked: {}",
            panic_message(&*panic)
        )))
    })
}

fn lost(run: &Run, transfer: &Transfer, source: KernelError) -> ExecuteError {
    let graph = &run.prepared.graph;
    let what = match transfer.payload {
        Payload::Tensor(tensor) => graph.tensor_name(tensor),
        Payload::Control(node) => format!("^{}", graph.node_name(node)),
    };
    ExecuteError::Transfer {
        what: format!("transfer of `{what}`"),
        source_device: run.prepared.device_name(transfer.source).to_owned(),
        destination_device: run.prepared.device_name(transfer.destination).to_owned(),
        source: Box::new(source),
    }
}

fn feed_lost(run: &Run, step: &Step, feed: u32, source: KernelError) -> ExecuteError {
    let tensor = run.prepared.plan.feeds()[feed as usize].tensor;
    ExecuteError::Transfer {
        what: format!("feed `{}`", run.prepared.graph.tensor_name(tensor)),
        source_device: CALLER.to_owned(),
        destination_device: run.prepared.device_name(step.device).to_owned(),
        source: Box::new(source),
    }
}

fn fetch_lost(run: &Run, step: &Step, fetch: u32, source: KernelError) -> ExecuteError {
    let tensor = run.prepared.plan.fetches()[fetch as usize].tensor();
    ExecuteError::Transfer {
        what: format!("fetch `{}`", run.prepared.graph.tensor_name(tensor)),
        source_device: run.prepared.device_name(step.device).to_owned(),
        destination_device: CALLER.to_owned(),
        source: Box::new(source),
    }
}

fn kernel_device(run: &Run, device: DeviceId) -> &dyn KernelDevice {
    run.prepared
        .devices
        .get(device)
        .and_then(|device| device.as_kernel_device())
        .expect("preparing has checked that devices execute single nodes")
}
