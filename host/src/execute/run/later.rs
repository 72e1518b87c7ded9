//! Operations that may end later than they start, on any thread.

use std::panic::AssertUnwindSafe;
use std::panic::catch_unwind;
use std::sync::Arc;
use std::sync::Weak;

use tracing::warn;

use super::Run;
use crate::device::AsyncKernel;
use crate::device::AsyncKernelContext;
use crate::device::CopyDone;
use crate::device::DeviceContext;
use crate::device::Done;
use crate::device::panic_message;
use crate::execute::copy::guarded;
use crate::execute::copy::kernel_device;
use crate::execute::error::ExecuteError;
use crate::execute::offered::Offered;
use crate::execute::step;
use crate::execute::step::LaterStart;
use crate::tensor::Tensor;
use crate::trace::Event;
use crate::trace::targets;

/// The state of an operation that may end later than it starts.
pub(super) enum Started {
    /// It ends later, or has already ended.
    Later,
    /// It has ended, and the thread that started it must count it.
    Ended,
}

impl Run {
    /// Starts an operation that may end later, if it is one. It then ends on any thread, which
    /// counts it as ended.
    pub(super) fn start_later(
        &self,
        rank: u32,
        events: &mut Vec<Event>,
    ) -> Option<Result<Started, ExecuteError>> {
        let start_ns = match self.request.listeners.is_any() {
            true => self.request.listeners.now_ns(),
            false => 0,
        };
        let start = step::start_later(&self.state, &self.request, rank, start_ns, events)?;
        Some(start.and_then(|start| {
            match start {
                LaterStart::Kernel(kernel, context) => {
                    self.start_kernel(rank, start_ns, kernel, *context)?;
                }
                LaterStart::Copy(context, tensor) => {
                    self.start_copy(rank, start_ns, &**context, tensor)?;
                }
                LaterStart::Sent => return Ok(Started::Ended),
            }
            Ok(Started::Later)
        }))
    }

    fn start_kernel(
        &self,
        rank: u32,
        start_ns: u64,
        kernel: &dyn AsyncKernel,
        context: AsyncKernelContext,
    ) -> Result<(), ExecuteError> {
        let run = Weak::clone(&self.own);
        let done = Done::new(move |mut context: Option<AsyncKernelContext>, result| {
            // Before other owners release the tensors. The device's code may panic, and the run
            // waits for this callback.
            let result = guarded(|| {
                if let Some(context) = &mut context {
                    context.hand_accessed();
                }
                result
            });
            // A run that is over ignores the result.
            if let Some(run) = run.upgrade() {
                run.end_later(rank, |events| {
                    let (state, request) = (&run.state, &run.request);
                    step::end_kernel(state, request, rank, start_ns, (context, result), events)
                });
            }
        });
        let device = self.state.compiled.operations[rank as usize].device;
        let device = kernel_device(&self.state.program.devices, device);
        let started = catch_unwind(AssertUnwindSafe(|| {
            device.compute_async(kernel, context, done);
        }));
        // A kernel that panics has dropped its callback, which has already failed the run, unless
        // the kernel leaked it.
        started.map_err(|panic| step::kernel_panicked(&self.state, &self.request, rank, &*panic))
    }

    fn start_copy(
        &self,
        rank: u32,
        start_ns: u64,
        context: &dyn DeviceContext,
        tensor: Tensor,
    ) -> Result<(), ExecuteError> {
        let run = Weak::clone(&self.own);
        let kept = tensor.clone();
        let done = CopyDone::new(move |copied| {
            // A tensor may belong to an app and panic when it is dropped. That must not affect the
            // device's thread.
            let ended = catch_unwind(AssertUnwindSafe(|| {
                let copied = guarded(|| {
                    drop(kept);
                    copied
                });
                // A run that is over ignores the result.
                if let Some(run) = run.upgrade() {
                    run.end_later(rank, |events| {
                        let (state, request) = (&run.state, &run.request);
                        step::end_copy(state, request, rank, start_ns, copied, events)
                    });
                }
            }));
            if let Err(panic) = ended {
                let problem = panic_message(&*panic);
                warn!(target: targets::EXECUTE, problem, "the result of a copy that its run did not wait for could not be dropped");
            }
        });
        // As above: a device that panics has dropped its callback.
        let started = guarded(|| {
            context.copy_to_host_async(&tensor, done);
            drop(tensor);
            Ok(())
        });
        started.map_err(|source| step::copy_failed(&self.state, &self.request, rank, source))
    }

    /// Ends an operation that was started before: `end` takes its results, unless the run has
    /// failed.
    fn end_later(
        self: &Arc<Self>,
        rank: u32,
        end: impl FnOnce(&mut Vec<Event>) -> Result<(), ExecuteError>,
    ) {
        self.gate.enter();
        if self.gate.has_failed() {
            self.gate.leave(0);
            return;
        }
        let mut events = Vec::new();
        match end(&mut events) {
            // The thread belongs to the device, so other threads execute what has become ready.
            Ok(()) if self.is_in_order() => {
                // The caller executes it: leaving the gate wakes it.
                if let Some(next) = self.successor_in_order(rank) {
                    self.state.add_ready(next);
                }
            }
            Ok(()) => {
                let compiled = &self.state.compiled;
                let mut offered = Offered::default();
                for &successor in compiled.successors.row(rank as usize) {
                    if self.counts_to_ready(successor) {
                        self.state.add_ready(successor);
                        offered.add(compiled, successor);
                    }
                }
                let n_threads = offered.n_threads();
                if let Some(helpers) = self.helpers.as_ref().filter(|_| n_threads > 0) {
                    // The caller takes one, unless it is executing an operation.
                    let n_left = n_threads - usize::from(self.gate.wake_caller());
                    self.ask(helpers, helpers.n_threads().min(n_left));
                }
            }
            Err(failure) => self.fail(failure),
        }
        self.request.listeners.hand_on(events);
        self.gate.leave(1);
    }
}
