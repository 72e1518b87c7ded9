//! Branches and loops: operations that pass tensors on, and the ends of those that are dead.

use std::panic::AssertUnwindSafe;
use std::panic::catch_unwind;

use super::OpExecution;
use crate::device::KernelError;
use crate::device::OutputSlot;
use crate::device::OutputState;
use crate::device::panic_message;
use crate::execute::compile::PASSED_ON_BY_COPY_MAX;
use crate::execute::error::ExecuteError;
use crate::execute::run::Request;
use crate::execute::run::RunState;
use crate::graph::NodeId;
use crate::plan::StepKind;
use crate::tensor::DType;
use crate::tensor::Tensor;

/// Executes a `Merge` with these inputs: (index, value). `is_next`: they come from the previous
/// iteration of its loop. Returns whether one of them is live.
pub(in crate::execute) fn merge(
    state: &RunState,
    request: &Request,
    rank: u32,
    sources: &[(u32, u32)],
    is_next: bool,
) -> Result<bool, ExecuteError> {
    let execution = OpExecution::new(state, request, rank);
    let merged = catch_unwind(AssertUnwindSafe(|| execution.merge(sources, is_next)));
    let is_live = merged.map_err(|panic| execution.panicked(panic_message(&*panic)))?;
    // SAFETY: this executes the operation.
    unsafe { state.values().set_operation_dead(rank, !is_live) };
    Ok(is_live)
}

/// Returns whether an operation is dead because of a tensor that it reads. `all`: it is dead only
/// if all of them are.
#[inline]
pub(in crate::execute) fn has_dead_input(
    state: &RunState,
    request: &Request,
    rank: u32,
    all: bool,
) -> bool {
    OpExecution::new(state, request, rank).has_dead_input(all)
}

/// Returns whether one of these operations, for which operation `rank` waits, is dead.
#[inline]
pub(in crate::execute) fn waits_for_dead(state: &RunState, waits_for: &[u32]) -> bool {
    // SAFETY: the caller executes an operation that waits for them.
    let is_dead = |&rank: &u32| unsafe { state.values().is_operation_dead(rank) };
    waits_for.iter().any(is_dead)
}

/// Records that an operation is live, before it is executed.
#[inline]
pub(in crate::execute) fn revive(state: &RunState, rank: u32) {
    // SAFETY: the caller executes the operation.
    unsafe { state.values().set_operation_dead(rank, false) };
}

/// Ends an operation that is dead.
pub(in crate::execute) fn end_dead(
    state: &RunState,
    request: &Request,
    rank: u32,
) -> Result<(), ExecuteError> {
    let execution = OpExecution::new(state, request, rank);
    if let StepKind::Fetch(fetch) = execution.operation.kind {
        let tensor = execution.program.plan.fetches()[fetch as usize].tensor();
        let tensor = execution.program.graph.tensor_name(tensor);
        return Err(ExecuteError::DeadFetch { tensor });
    }
    kill(state, request, rank);
    leave_inputs(state, request, rank)
}

/// Marks an operation and its outputs as dead.
pub(in crate::execute) fn kill(state: &RunState, request: &Request, rank: u32) {
    OpExecution::new(state, request, rank).kill_outputs();
    // SAFETY: the caller executes the operation, or a loop that it is in.
    unsafe { state.values().set_operation_dead(rank, true) };
}

/// Records that an operation that is dead reads its live inputs no more.
pub(in crate::execute) fn leave_inputs(
    state: &RunState,
    request: &Request,
    rank: u32,
) -> Result<(), ExecuteError> {
    let execution = OpExecution::new(state, request, rank);
    // Tensors may belong to an app and panic when they are dropped.
    catch_unwind(AssertUnwindSafe(|| execution.leave_inputs()))
        .map_err(|panic| execution.panicked(panic_message(&*panic)))
}

/// Records that a loop reads a value of an enclosing body no more; once per reader in the loop.
pub(in crate::execute) fn leave_after_loop(
    state: &RunState,
    request: &Request,
    rank: u32,
    value: u32,
) -> Result<(), ExecuteError> {
    let leave = AssertUnwindSafe(|| {
        // SAFETY: the loop has ended, and `value` is one of those that it has read.
        drop(unsafe { state.values().leave(value) });
    });
    catch_unwind(leave).map_err(|panic| {
        let execution = OpExecution::new(state, request, rank);
        execution.panicked(panic_message(&*panic))
    })
}

/// Returns the output that the second input of a `Switch` selects: false and true, or a number, of
/// which one that is out of range means the last output.
fn selected(selector: &Tensor, n_outputs: u32) -> Result<u32, KernelError> {
    if selector.shape().n_elements() != 1 || selector.shape().rank() != 0 {
        return Err(KernelError::invalid(format!(
            "the second input must be a scalar, but it has shape {}",
            selector.shape()
        )));
    }
    let last = n_outputs.saturating_sub(1);
    if selector.dtype() == DType::Bool {
        let is_true = selector.as_bytes()?.first().is_some_and(|&byte| byte != 0);
        return Ok(u32::from(is_true).min(last));
    }
    let index = selector.as_slice::<i32>()?.first().copied().unwrap_or(-1);
    Ok(u32::try_from(index).unwrap_or(last).min(last))
}

impl<'a> OpExecution<'a> {
    /// As [`Self::leave_inputs`], except for values that later iterations of a loop read again.
    pub(super) fn leave_all_but_invariant(&self) {
        for (entry, &input) in self.inputs_to_leave() {
            if !self.stays(entry) {
                // SAFETY: as in `leave_inputs`.
                drop(unsafe { self.state.values().leave(input) });
            }
        }
    }

    pub(super) fn inputs_to_leave(&self) -> impl Iterator<Item = (usize, &'a u32)> {
        let compiled = &self.state.compiled;
        (self.operation.input_range().start..).zip(compiled.inputs(self.operation))
    }

    /// Returns whether an input is read again by later iterations of a loop.
    pub(super) fn stays(&self, entry: usize) -> bool {
        let flow = &self.state.compiled.flow;
        flow.as_ref().is_some_and(|flow| flow.stays(entry))
    }

    /// Passes the first input to the output that the second one selects.
    pub(super) fn switch(&self, node: NodeId) -> Result<u64, ExecuteError> {
        let compiled = &self.state.compiled;
        let &[data, selector] = compiled.inputs(self.operation) else {
            unreachable!("preparing has checked the inputs");
        };
        let values = self.state.values();
        // SAFETY: this executes an operation that reads it.
        let tensor =
            unsafe { values.read(selector) }.expect("a value is written before it is read");
        let n_outputs = self.operation.n_outputs;
        let taken = selected(tensor, n_outputs)
            .map_err(|source| self.failed(node, &self.inputs(), source))?;
        // SAFETY: this executes the operation that writes them.
        let slots = unsafe { values.outputs(self.operation.outputs()) };
        slots.iter_mut().for_each(OutputSlot::kill);
        if !self.stays(self.operation.input_range().start + 1) {
            // SAFETY: this executes an operation that reads it, and no longer uses it.
            drop(unsafe { values.leave(selector) });
        }
        self.pass_on(data, taken as usize)
    }

    /// Makes the first input of the operation its output `slot`.
    pub(super) fn pass_on(&self, input: u32, slot: usize) -> Result<u64, ExecuteError> {
        let leaves = !self.stays(self.operation.input_range().start);
        Ok(self.pass(input, leaves, self.operation.first_output as usize + slot))
    }

    /// Makes a value that this operation reads one that it writes. Small tensors are copied to the
    /// place of the output; others change hands. Returns the bytes.
    pub(super) fn pass(&self, from: u32, leaves: bool, to: usize) -> u64 {
        let values = self.state.values();
        // SAFETY: this executes an operation that reads it.
        let tensor = unsafe { values.read(from) }.expect("a value is written before it is read");
        let n_bytes = tensor.len_bytes();
        // SAFETY: this executes the operation that writes it, and no node reads its own outputs.
        let slot = unsafe { &mut values.outputs(to..to + 1)[0] };
        slot.own = None;
        if n_bytes <= PASSED_ON_BY_COPY_MAX
            && let Some(planned) = &mut slot.planned
            && planned.shape() == tensor.shape()
            && planned.dtype() == tensor.dtype()
            && let Some(bytes) = planned.as_bytes_mut()
            && let Ok(source) = tensor.as_bytes()
        {
            bytes.copy_from_slice(source);
            slot.state = OutputState::Planned;
            if leaves {
                // SAFETY: this executes an operation that reads it, and no longer uses it.
                drop(unsafe { values.leave(from) });
            }
        } else {
            // A clone of a part of an arena is a copy.
            let shared = tensor.clone();
            // SAFETY: as above.
            let last = leaves.then(|| unsafe { values.leave(from) }).flatten();
            self.set_arrived(to, last.unwrap_or(shared));
        }
        n_bytes as u64
    }

    /// Passes on the first live one of these sources: (index of the input, value). `is_next`: they
    /// come from the previous iteration of a loop, otherwise they are the inputs of the operation.
    /// Returns whether one is live; otherwise the outputs are dead.
    pub(super) fn merge(&self, sources: &[(u32, u32)], is_next: bool) -> bool {
        let values = self.state.values();
        // SAFETY: this executes an operation that reads them.
        let is_live = |&(_, value): &(u32, u32)| !unsafe { values.is_dead(value) };
        let live = sources.iter().position(is_live);
        let output = self.operation.first_output as usize;
        if live.is_none() {
            self.kill_outputs();
        }
        let entries = self.operation.input_range().start..;
        for (position, (&(index, value), entry)) in sources.iter().zip(entries).enumerate() {
            let leaves = is_next || !self.stays(entry);
            if live == Some(position) {
                self.pass(value, leaves, output);
                if let Some(indices) = self.program.merge_indices.get(&self.operation.step) {
                    self.set_arrived(output + 1, indices[index as usize].clone());
                }
            } else if leaves {
                // SAFETY: as above, and it is not used any more.
                drop(unsafe { values.leave(value) });
            }
        }
        live.is_some()
    }

    pub(super) fn kill_outputs(&self) {
        // SAFETY: this executes the operation that writes them.
        let slots = unsafe { self.state.values().outputs(self.operation.outputs()) };
        slots.iter_mut().for_each(OutputSlot::kill);
    }

    /// Returns whether an input is dead, or with `all`, whether all are.
    pub(super) fn has_dead_input(&self, all: bool) -> bool {
        let mut inputs = self.state.compiled.inputs(self.operation).iter();
        // SAFETY: this executes an operation that reads it.
        let is_dead = |&input: &u32| unsafe { self.state.values().is_dead(input) };
        match all {
            true => inputs.all(is_dead),
            false => inputs.any(is_dead),
        }
    }
}
