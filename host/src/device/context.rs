//! The way between the host's memory and a device's.

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

/// How tensors get into a device's memory and out of it, and in which order with the device's work
/// (TensorFlow `DeviceContext`; on a GPU, a group of streams). Counted references: kernels may keep
/// one. [`Any`], so that a backend knows contexts of its own kind again.
pub trait DeviceContext: Any + Send + Sync + fmt::Debug {
    /// A copy of a host tensor in the device's memory, seen by all work that is given to the device
    /// from now on. The bytes may arrive after this has returned; the context then reads a
    /// clone of `tensor` until they have, as its place may be another tensor's at once (a clone
    /// of what stands in a run's arena is a copy).
    ///
    /// # Errors
    /// If there is not enough memory, or the device is lost.
    fn copy_from_host(&self, tensor: &Tensor) -> Result<Tensor, KernelError>;

    /// A copy of one of the device's tensors that the host can read: what all work given to the
    /// device so far has made of it.
    ///
    /// # Errors
    /// If there is not enough memory, or the device is lost.
    fn copy_to_host(&self, tensor: &Tensor) -> Result<Tensor, KernelError>;

    /// A copy of one of the device's tensors in the same memory.
    ///
    /// # Errors
    /// As those of the two ways, which it goes unless the device knows a shorter one.
    fn copy_on_device(&self, tensor: &Tensor) -> Result<Tensor, KernelError> {
        self.copy_from_host(&self.copy_to_host(tensor)?)
    }

    /// Whether [`Self::copy_to_host_async`] may return before the copy has ended. Always the same
    /// for one context. The executor then lets no thread wait for a copy out of this device,
    /// takes its work for unfinished when a kernel has returned (the host does not read its
    /// memory in place, its tensors share no arenas), and calls [`super::Device::sync`] when a run
    /// has ended.
    fn copies_are_async(&self) -> bool {
        false
    }

    /// Starts what [`Self::copy_to_host`] does (TensorFlow `CopyDeviceTensorToCPU`), and hands the
    /// result to `done`: from whichever thread, also before this returns, also when the run is
    /// long over. Work that is given to the device afterwards must not disturb the copy. The
    /// caller keeps `tensor` until `done` was called or dropped, and may let it go then, on the
    /// thread that does so, which for the rest executes nothing: other threads go on with what has
    /// waited for the copy.
    ///
    /// An error of the start goes to `done`, too. Unless this says otherwise, the calling thread
    /// waits for the copy.
    fn copy_to_host_async(&self, tensor: &Tensor, done: CopyDone) {
        done.call(self.copy_to_host(tensor));
    }

    /// A copy in this device's memory of a tensor in the memory of the device of `source`, without
    /// a way through the host (TensorFlow `CopyTensor::ViaDMA`): of what all work given to
    /// `source` so far has made of it, seen by all work given to this device from now on, and
    /// not disturbed by work that is given to either afterwards, which may write over `tensor`
    /// where nobody else reads it. Returns at once; the devices keep the order, and both
    /// tensors as long as it takes. `None` where there is no such way, as between drivers, or
    /// none for this tensor: it then goes through the host.
    ///
    /// # Errors
    /// In `Some`: if there is not enough memory, or a device is lost. The run then fails; it does
    /// not try the way through the host.
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
/// Dropping it without a call is a failure of the copy: nobody waits for ever.
pub struct CopyDone(Option<CopyCallback>);

type CopyCallback = Box<dyn FnOnce(Result<Tensor, KernelError>) + Send + 'static>;

impl CopyDone {
    /// What is called with the tensor that the host can read, or with why there is none.
    pub fn new(callback: impl FnOnce(Result<Tensor, KernelError>) + Send + 'static) -> Self {
        Self(Some(Box::new(callback)))
    }

    /// The copy has ended.
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
                true => "the device panicked before it said that the copy has ended",
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

/// Copies between host memory that belongs to no device and host memory that belongs to one.
#[derive(Debug, Clone)]
pub struct HostMemoryContext {
    memory: Arc<dyn Allocator>,
}

impl HostMemoryContext {
    /// Of a device with this memory.
    pub fn new(memory: Arc<dyn Allocator>) -> Self {
        Self { memory }
    }
}

impl DeviceContext for HostMemoryContext {
    /// Always a copy, even of a tensor that stands in this memory: its bytes are then this device's
    /// alone.
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

    /// A copy outside every device's memory.
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

/// Contexts of nodes that have one of their own; all others have their device's default
/// ([`super::KernelDevice::fill_context_map`]).
pub type DeviceContextMap = HashMap<NodeId, Arc<dyn DeviceContext>>;

/// What an accelerator works with besides its default context (TensorFlow `AcceleratorDeviceInfo`).
#[derive(Debug, Clone)]
pub struct AcceleratorInfo {
    /// Which of the devices of its type this is, as the driver counts.
    pub id: u32,
    /// Where work goes that names no stream.
    pub stream: Arc<dyn Stream>,
    /// The context of nodes that have none of their own.
    pub default_context: Arc<dyn DeviceContext>,
    /// Says when streams have come so far.
    pub event_manager: Arc<dyn EventManager>,
}

/// Work of an accelerator that is done in the order in which it was given. [`Any`], so that an
/// event manager knows streams of its own kind again.
pub trait Stream: Any + Send + Sync + fmt::Debug {
    /// Returns when all work given so far is done.
    ///
    /// # Errors
    /// When the device is lost.
    fn synchronize(&self) -> Result<(), DeviceError>;
}

/// Watches streams (TensorFlow `EventMgr`).
pub trait EventManager: Send + Sync + fmt::Debug {
    /// Calls `callback` once when all work that was given to `stream` so far is done, on a thread
    /// that it must not hold up.
    ///
    /// # Errors
    /// When the device is lost; the callback is dropped then.
    fn then_execute(
        &self,
        stream: &Arc<dyn Stream>,
        callback: Box<dyn FnOnce() + Send>,
    ) -> Result<(), DeviceError>;
}

/// Tensors that a kernel has read or written, and whose memory stays as it is until the device is
/// done with them: the device drops this then (TensorFlow `TensorReferenceVector`).
#[derive(Debug, Default)]
pub struct AccessedTensors(pub(crate) Vec<Tensor>);

impl AccessedTensors {
    /// The tensors: inputs, outputs, temporaries.
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
