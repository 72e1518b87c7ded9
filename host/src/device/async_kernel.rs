//! Asynchronous kernels: no thread waits for their results.

use std::cell::RefCell;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::panic::catch_unwind;
use std::sync::Arc;
use std::thread;

use tracing::warn;

use super::cancel::CancelToken;
use super::context::AccessedTensors;
use super::context::DeviceContext;
use super::error::KernelError;
use super::kernel::Kernel;
use super::kernel_context::Help;
use super::kernel_context::KernelContext;
use super::kernel_creation::panic_message;
use super::output_slot::OutputSlot;
use super::run::DeviceRun;
use super::surroundings::Surroundings;
use super::traits::Device;
use crate::tensor::Tensor;
use crate::trace::targets;

/// A kernel that ends later than its start returns (a receive, a queue, a timer).
pub trait AsyncKernel: Kernel {
    /// Starts the kernel. It passes the result to [`Done::call`], from any thread, possibly before
    /// this returns. A kernel that waits for something must stop waiting when
    /// [`AsyncKernelContext::cancel_token`] is cancelled. It must register its callback without
    /// holding a lock that the callback takes: if the token is already cancelled, the callback is
    /// called at once.
    fn compute_async(&self, context: AsyncKernelContext, done: Done);
}

/// An execution that outlives the call that starts it: it owns its tensors.
pub struct AsyncKernelContext {
    device: Arc<dyn Device>,
    inputs: Vec<Tensor>,
    outputs: Vec<OutputSlot>,
    outputs_on_host: Vec<bool>,
    around: Around,
    cancel: CancelToken,
}

/// The environment of the execution.
struct Around {
    node: Arc<str>,
    run: Option<Arc<DeviceRun>>,
    context: Option<Arc<dyn DeviceContext>>,
    /// Tensors that the execution has allocated, if the device needs them.
    temporaries: RefCell<Vec<Tensor>>,
    is_recording: bool,
}

impl Surroundings for Around {
    fn node(&self) -> &str {
        &self.node
    }

    fn device_run(&self) -> Option<&DeviceRun> {
        self.run.as_deref()
    }

    fn context(&self) -> Option<&Arc<dyn DeviceContext>> {
        self.context.as_ref()
    }

    fn temporaries(&self) -> Option<&RefCell<Vec<Tensor>>> {
        self.is_recording.then_some(&self.temporaries)
    }
}

impl AsyncKernelContext {
    /// Creates an execution of node `node` on `device`, which must execute node by node.
    /// `outputs_on_host[i]`: whether output `i` is a host-memory argument.
    ///
    /// # Errors
    /// [`KernelError::InvalidArgument`] for a device that executes whole partitions.
    pub fn new(
        device: Arc<dyn Device>,
        node: impl Into<Arc<str>>,
        inputs: Vec<Tensor>,
        outputs_on_host: Vec<bool>,
    ) -> Result<Self, KernelError> {
        let Some(kernel_device) = device.as_kernel_device() else {
            return Err(KernelError::invalid(format!(
                "{} does not execute single nodes",
                device.attributes().name
            )));
        };
        let is_recording = kernel_device.records_accessed_tensors();
        let outputs = outputs_on_host.iter().map(|_| OutputSlot::default());
        Ok(Self {
            device,
            inputs,
            outputs: outputs.collect(),
            outputs_on_host,
            around: Around {
                node: node.into(),
                run: None,
                context: None,
                temporaries: RefCell::default(),
                is_recording,
            },
            cancel: CancelToken::new(),
        })
    }

    /// Makes it part of a run.
    pub(crate) fn in_run(
        mut self,
        run: Arc<DeviceRun>,
        context: Option<Arc<dyn DeviceContext>>,
        cancel: CancelToken,
    ) -> Self {
        self.around.run = Some(run);
        self.around.context = context;
        self.cancel = cancel;
        self
    }

    /// Returns inputs, outputs and device, as kernels see them.
    pub fn kernel_context(&mut self) -> KernelContext<'_> {
        let device = self.device.as_kernel_device();
        KernelContext::on_tensors(
            device.expect("`new` has looked"),
            &self.inputs,
            &[],
            &mut self.outputs,
            &self.outputs_on_host,
            Help::Pool,
            &self.around,
        )
    }

    /// Returns a token that is cancelled when the run ends without this execution.
    pub fn cancel_token(&self) -> &CancelToken {
        &self.cancel
    }

    /// Passes the tensors that the kernel accessed to a device that may still use them; once.
    pub(crate) fn hand_accessed(&mut self) {
        if !std::mem::take(&mut self.around.is_recording) {
            return;
        }
        let Some(device) = self.device.as_kernel_device() else {
            return;
        };
        let mut accessed = self.around.temporaries.take();
        accessed.extend(self.inputs.iter().cloned());
        accessed.extend(self.outputs.iter().filter_map(OutputSlot::tensor).cloned());
        let context = self.around.context.as_ref();
        let context = context.unwrap_or_else(|| device.default_context());
        device.consume_accessed_tensors(&**context, AccessedTensors(accessed));
    }
}

impl Drop for AsyncKernelContext {
    /// Also called if the kernel has lost it, or has ended after its run.
    fn drop(&mut self) {
        // The device's code and the app's may panic, and this may run while a kernel's panic
        // unwinds.
        let dropped = catch_unwind(AssertUnwindSafe(|| {
            self.hand_accessed();
            // A run that ends without this execution has left it the rest: what it made after that.
            match self.around.run.take().and_then(Arc::into_inner) {
                Some(mut run) => run.finish(&*self.device).map_err(|error| error.to_string()),
                None => Ok(()),
            }
        }));
        let problem = match dropped {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error,
            Err(panic) => panic_message(&*panic),
        };
        let device = &self.device.attributes().name;
        warn!(target: targets::EXECUTE, device, problem, "what a kernel used was not dropped");
    }
}

impl fmt::Debug for AsyncKernelContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncKernelContext")
            .field("node", &self.around.node)
            .field("device", &self.device.attributes().name)
            .field("inputs", &self.inputs)
            .finish_non_exhaustive()
    }
}

/// Takes the result of an asynchronous kernel, once. Dropping it without a call fails the kernel,
/// so that nothing waits forever.
pub struct Done(Option<Callback>);

type Callback =
    Box<dyn FnOnce(Option<AsyncKernelContext>, Result<(), KernelError>) + Send + 'static>;

impl Done {
    /// Creates it from a callback that gets the execution (`None` if the kernel has lost it) and
    /// the result.
    pub fn new(
        callback: impl FnOnce(Option<AsyncKernelContext>, Result<(), KernelError>) + Send + 'static,
    ) -> Self {
        Self(Some(Box::new(callback)))
    }

    /// Ends the kernel.
    pub fn call(mut self, context: AsyncKernelContext, result: Result<(), KernelError>) {
        if let Some(callback) = self.0.take() {
            callback(Some(context), result);
        }
    }
}

impl Drop for Done {
    fn drop(&mut self) {
        if let Some(callback) = self.0.take() {
            let lost = match thread::panicking() {
                true => "the asynchronous kernel panicked before it called its callback",
                false => "the asynchronous kernel has dropped its callback instead of calling it",
            };
            callback(None, Err(KernelError::invalid(lost)));
        }
    }
}

impl fmt::Debug for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Done")
    }
}
