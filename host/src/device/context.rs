//! The way between the host's memory and a device's.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use super::error::DeviceError;
use super::error::KernelError;
use crate::graph::NodeId;
use crate::tensor::Allocator;
use crate::tensor::Tensor;
use crate::tensor::TensorError;

/// How tensors get into a device's memory and out of it, and in which order with the device's work (TensorFlow
/// `DeviceContext`; on a GPU, a group of streams). Counted references: kernels may keep one.
pub trait DeviceContext: Send + Sync + fmt::Debug {
    /// A copy of a host tensor in the device's memory, seen by all work that is given to the device from now on.
    ///
    /// # Errors
    /// Without room, or when the device is lost.
    fn copy_from_host(&self, tensor: &Tensor) -> Result<Tensor, KernelError>;

    /// A copy of one of the device's tensors that the host can read: what all work given to the device so far has made of it.
    ///
    /// # Errors
    /// Without room, or when the device is lost.
    fn copy_to_host(&self, tensor: &Tensor) -> Result<Tensor, KernelError>;

    /// A copy of one of the device's tensors in the same memory.
    ///
    /// # Errors
    /// As those of the two ways, which it goes unless the device knows a shorter one.
    fn copy_on_device(&self, tensor: &Tensor) -> Result<Tensor, KernelError> {
        self.copy_from_host(&self.copy_to_host(tensor)?)
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
    /// Always a copy, even of a tensor that stands in this memory: its bytes are then this device's alone.
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

/// Work of an accelerator that is done in the order in which it was given.
pub trait Stream: Send + Sync + fmt::Debug {
    /// Returns when all work given so far is done.
    ///
    /// # Errors
    /// When the device is lost.
    fn synchronize(&self) -> Result<(), DeviceError>;
}

/// Watches streams (TensorFlow `EventMgr`).
pub trait EventManager: Send + Sync + fmt::Debug {
    /// Calls `callback` once when all work that was given to `stream` so far is done, on a thread that it must not hold up.
    ///
    /// # Errors
    /// When the device is lost; the callback is dropped then.
    fn then_execute(
        &self,
        stream: &Arc<dyn Stream>,
        callback: Box<dyn FnOnce() + Send>,
    ) -> Result<(), DeviceError>;
}

/// Tensors that a kernel has read or written, and whose memory stays as it is until the device is done with them: the device
/// drops this then (TensorFlow `TensorReferenceVector`).
#[derive(Debug, Default)]
pub struct AccessedTensors(pub(crate) Vec<Tensor>);

impl AccessedTensors {
    /// The tensors: inputs, outputs, temporaries.
    pub fn tensors(&self) -> &[Tensor] {
        &self.0
    }
}
