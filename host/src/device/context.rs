//! Copies between the host's memory and a device's.

use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::thread;

use super::error::DeviceError;
use super::error::KernelError;
use crate::graph::NodeId;
use crate::tensor::Allocator;
use crate::tensor::Tensor;
use crate::tensor::TensorError;

/// Copies tensors to and from a device's memory, in order with the device's work (TensorFlow
/// `DeviceContext`; on a GPU, a group of streams). It is reference-counted, and kernels may keep
/// it. [`Any`], so that a backend can recognize its own contexts.
pub trait DeviceContext: Any + Send + Sync + fmt::Debug {
    /// Returns a copy of a host tensor in the device's memory, which all work that is submitted
    /// from now on sees. The bytes may arrive after this has returned. The context then reads a
    /// clone of `tensor` until they have: the place of `tensor` may be reused at once (a clone of a
    /// tensor in a run's arena is a copy).
    ///
    /// # Errors
    /// If there is not enough memory, or the device is lost.
    fn copy_from_host(&self, tensor: &Tensor) -> Result<Tensor, KernelError>;

    /// Returns a copy of one of the device's tensors that the host can read, as all work submitted
    /// so far leaves it.
    ///
    /// # Errors
    /// If there is not enough memory, or the device is lost.
    fn copy_to_host(&self, tensor: &Tensor) -> Result<Tensor, KernelError>;

    /// Returns a copy of one of the device's tensors in the same memory.
    ///
    /// # Errors
    /// Those of a copy to the host and back, which is the default.
    fn copy_on_device(&self, tensor: &Tensor) -> Result<Tensor, KernelError> {
        self.copy_from_host(&self.copy_to_host(tensor)?)
    }

    /// Returns whether [`Self::copy_to_host_async`] may return before the copy has ended. Always
    /// the same for one context. If so, no thread of the executor waits for a copy out of this
    /// device. The executor then assumes that the device's work continues after a kernel has
    /// returned: the host does not read its memory in place, its tensors share no arenas, and
    /// [`super::Device::sync`] is called at the end of each run.
    fn copies_are_async(&self) -> bool {
        false
    }

    /// Returns the size, in bytes, from which [`Self::copy_from_host`] uses a tensor's own
    /// allocation in place; `None` if it always copies. Always the same for one context. The
    /// executor gives such tensors allocations of their own, outside of arenas.
    fn shared_bytes_min(&self) -> Option<usize> {
        None
    }

    /// Starts [`Self::copy_to_host`] (TensorFlow `CopyDeviceTensorToCPU`), and passes the result to
    /// `done`: from any thread, possibly before this returns, possibly after the run has ended.
    /// Work that is submitted afterwards must not disturb the copy. The caller keeps `tensor` until
    /// `done` is called or dropped, and may then drop it on the thread that does so. That thread
    /// executes nothing else: other threads continue with what depends on the copy. Like other
    /// work, the copy may begin only with the next [`super::KernelDevice::flush`] or `assist`.
    ///
    /// An error at the start is passed to `done`, too. By default, the calling thread waits for the
    /// copy.
    fn copy_to_host_async(&self, tensor: &Tensor, done: CopyDone) {
        done.call(self.copy_to_host(tensor));
    }

    /// Returns a copy, in this device's memory, of a tensor in the memory of the device of
    /// `source`, made without the host (TensorFlow `CopyTensor::ViaDMA`). It is a copy of the
    /// tensor as all work submitted to `source` so far leaves it; all work submitted to this device
    /// from now on sees it. Work that is submitted to either device afterwards must not disturb it,
    /// and may overwrite `tensor` if nothing else reads it. Returns at once; the devices keep the
    /// order, and keep both tensors as long as needed. `None` if there is no such copy, for example
    /// between drivers or for this tensor; it is then copied through the host.
    ///
    /// # Errors
    /// In `Some`: if there is not enough memory, or a device is lost. The run then fails; it does
    /// not try a copy through the host.
    fn copy_from_device(
        &self,
        tensor: &Tensor,
        source: &Arc<dyn DeviceContext>,
    ) -> Option<Result<Tensor, KernelError>> {
        let _ = (tensor, source);
        None
    }
}

/// Takes the result of a copy that [`DeviceContext::copy_to_host_async`] has started, once.
/// Dropping it without a call fails the copy, so that nothing waits forever.
pub struct CopyDone(Option<CopyCallback>);

type CopyCallback = Box<dyn FnOnce(Result<Tensor, KernelError>) + Send + 'static>;

impl CopyDone {
    /// Creates it from a callback that gets the host-readable tensor, or the error.
    pub fn new(callback: impl FnOnce(Result<Tensor, KernelError>) + Send + 'static) -> Self {
        Self(Some(Box::new(callback)))
    }

    /// Ends the copy.
    pub fn call(mut self, copied: Result<Tensor, KernelError>) {
        if let Some(callback) = self.0.take() {
            callback(copied);
        }
    }
}

impl Drop for CopyDone {
    fn drop(&mut self) {
        if let Some(callback) = self.0.take() {
            let lost = match thread::panicking() {
                true => "the device panicked before it reported the end of the copy",
                false => {
                    "the device has lost the copy: it dropped the callback instead of calling it"
                }
            };
            callback(Err(KernelError::invalid(lost)));
        }
    }
}

impl fmt::Debug for CopyDone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CopyDone")
    }
}

/// Copies between host memory that belongs to no device and the host memory of one device.
#[derive(Debug, Clone)]
pub struct HostMemoryContext {
    memory: Arc<dyn Allocator>,
}

impl HostMemoryContext {
    /// Creates the context of a device with this memory.
    pub fn new(memory: Arc<dyn Allocator>) -> Self {
        Self { memory }
    }
}

impl DeviceContext for HostMemoryContext {
    /// Always copies, even a tensor that is in this memory: the result is then not shared.
    fn copy_from_host(&self, tensor: &Tensor) -> Result<Tensor, KernelError> {
        // Strings and handles belong to the host, whatever the device.
        if tensor.buffer().is_none() {
            return Ok(tensor.clone());
        }
        let mut copy = Tensor::zeros(&*self.memory, tensor.dtype(), tensor.shape().clone())?;
        copy.as_bytes_mut()
            .ok_or(TensorError::NotOnHost)?
            .copy_from_slice(tensor.as_bytes()?);
        Ok(copy)
    }

    /// Returns a copy outside every device's memory.
    fn copy_to_host(&self, tensor: &Tensor) -> Result<Tensor, KernelError> {
        if tensor.buffer().is_none() {
            return Ok(tensor.clone());
        }
        Ok(Tensor::from_bytes(
            tensor.dtype(),
            tensor.shape().clone(),
            tensor.as_bytes()?,
        )?)
    }

    fn copy_on_device(&self, tensor: &Tensor) -> Result<Tensor, KernelError> {
        self.copy_from_host(tensor)
    }
}

/// The contexts of nodes that have their own; all others have their device's default
/// ([`super::KernelDevice::fill_context_map`]).
pub type DeviceContextMap = HashMap<NodeId, Arc<dyn DeviceContext>>;

/// What an accelerator has besides its default context (TensorFlow `AcceleratorDeviceInfo`).
#[derive(Debug, Clone)]
pub struct AcceleratorInfo {
    /// The driver's number of the device among those of its type.
    pub id: u32,
    /// The stream of work for which no stream is specified.
    pub stream: Arc<dyn Stream>,
    /// The context of nodes that have none of their own.
    pub default_context: Arc<dyn DeviceContext>,
    /// Calls back when streams have reached a point.
    pub event_manager: Arc<dyn EventManager>,
}

/// A stream: work of an accelerator that is done in the order in which it was submitted. [`Any`],
/// so that an event manager can recognize its own streams.
pub trait Stream: Any + Send + Sync + fmt::Debug {
    /// Waits until all work submitted so far is done.
    ///
    /// # Errors
    /// If the device is lost.
    fn synchronize(&self) -> Result<(), DeviceError>;
}

/// Watches streams (TensorFlow `EventMgr`).
pub trait EventManager: Send + Sync + fmt::Debug {
    /// Calls `callback` once when all work that was submitted to `stream` so far is done, on a
    /// thread that the callback must not block.
    ///
    /// # Errors
    /// If the device is lost; the callback is dropped then.
    fn then_execute(
        &self,
        stream: &Arc<dyn Stream>,
        callback: Box<dyn FnOnce() + Send>,
    ) -> Result<(), DeviceError>;
}

/// Tensors that a kernel has read or written, whose memory must not change until the device is done
/// with them; the device then drops this (TensorFlow `TensorReferenceVector`).
#[derive(Debug, Default)]
pub struct AccessedTensors(pub(crate) Vec<Tensor>);

impl AccessedTensors {
    /// Returns the tensors: inputs, outputs, temporaries.
    pub fn tensors(&self) -> &[Tensor] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::tensor::HostAllocator;

    fn context() -> Arc<dyn DeviceContext> {
        Arc::new(HostMemoryContext::new(Arc::new(HostAllocator::new(
            "own",
            u64::MAX,
        ))))
    }

    #[test]
    fn a_copy_ends_inside_the_call_unless_the_context_says_otherwise() {
        let (sender, copied) = mpsc::channel();
        let tensor = Tensor::from_values([2], &[1.0f32, 2.0]).unwrap();
        let done = CopyDone::new(move |copy| sender.send(copy).unwrap());
        context().copy_to_host_async(&tensor, done);
        let copy = copied.try_recv().unwrap().unwrap();
        assert_eq!(copy.as_slice::<f32>().unwrap(), [1.0, 2.0]);
        assert!(!context().copies_are_async());
    }

    #[test]
    fn a_callback_that_is_dropped_is_called_with_a_failure_once() {
        let (sender, copied) = mpsc::channel();
        drop(CopyDone::new(move |copy| sender.send(copy).unwrap()));
        let error = copied.try_recv().unwrap().unwrap_err().to_string();
        assert!(error.contains("lost the copy"), "{error}");
        assert!(copied.try_recv().is_err());
    }

    #[test]
    fn there_is_no_direct_way_unless_the_context_knows_one() {
        let tensor = Tensor::from_values([2], &[1.0f32, 2.0]).unwrap();
        assert!(context().copy_from_device(&tensor, &context()).is_none());
    }

    #[test]
    fn a_backend_knows_contexts_of_its_own_kind() {
        let source = context();
        let any: &dyn Any = &*source;
        assert!(any.is::<HostMemoryContext>());
    }
}
