//! The device seam: what every device has, and the two ways of executing.

use std::fmt;
use std::sync::Arc;

use super::attributes::DeviceAttributes;
use super::error::{DeviceError, KernelError};
use super::intra_op::IntraOpPool;
use super::kernel::{Done, Kernel, KernelContext};
use super::profile::DeviceProfile;
use crate::names::DeviceName;
use crate::tensor::{Allocator, Literal, Tensor};

/// Which of a device's allocators (TensorFlow `AllocatorAttributes`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct AllocatorAttributes {
    /// Memory of the host rather than of the device.
    pub on_host: bool,
    /// Host memory that a GPU can copy from without staging.
    pub gpu_compatible: bool,
}

/// A device of one process. Shared by sessions; every method may be called from any thread.
pub trait Device: Send + Sync + fmt::Debug {
    /// What it says about itself.
    fn attributes(&self) -> &DeviceAttributes;

    /// Its parsed name, fully specified.
    fn name(&self) -> &DeviceName;

    /// Memory for its tensors.
    fn allocator(&self, attributes: AllocatorAttributes) -> Arc<dyn Allocator>;

    /// Bytes that plans may use on it. (`memory_limit_bytes` is TensorFlow's nominal figure.)
    fn memory_capacity_bytes(&self) -> u64;

    /// Rates that costs are computed from.
    fn profile(&self) -> DeviceProfile;

    /// Returns when all work submitted before has ended.
    ///
    /// # Errors
    /// When the device is lost.
    fn sync(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    /// The device as one that executes node by node, if it is one.
    fn as_kernel_device(&self) -> Option<&dyn KernelDevice> {
        None
    }
}

/// A device that executes node by node with kernels of the registry (CPU, GPU, SYCL, and devices that apps add).
pub trait KernelDevice: Device {
    /// Runs a kernel to its end, on the calling thread.
    ///
    /// # Errors
    /// The kernel's.
    fn compute(
        &self,
        kernel: &dyn Kernel,
        context: &mut KernelContext<'_>,
    ) -> Result<(), KernelError> {
        kernel.compute(context)
    }

    /// Starts a kernel; `done` is called exactly once, possibly from another thread, possibly before this returns.
    fn compute_async(&self, kernel: &dyn Kernel, mut context: KernelContext<'static>, done: Done) {
        match kernel.as_async() {
            Some(kernel) => kernel.compute_async(context, done),
            None => {
                let result = self.compute(kernel, &mut context);
                done(context, result);
            }
        }
    }

    /// The tensor of a constant, in this device's memory unless `on_host` (TensorFlow `MakeTensorFromProto`).
    ///
    /// # Errors
    /// Without room.
    fn make_tensor(
        &self,
        literal: &Literal,
        attributes: AllocatorAttributes,
    ) -> Result<Tensor, KernelError> {
        let host = literal.to_tensor(&*self.allocator(AllocatorAttributes {
            on_host: true,
            ..attributes
        }))?;
        if attributes.on_host {
            Ok(host)
        } else {
            self.copy_from_host(&host)
        }
    }

    /// A copy of a host tensor in this device's memory.
    ///
    /// # Errors
    /// Without room, or when the device is lost.
    fn copy_from_host(&self, tensor: &Tensor) -> Result<Tensor, KernelError>;

    /// A copy of one of this device's tensors in memory that the host can read.
    ///
    /// # Errors
    /// Without room, or when the device is lost.
    fn copy_to_host(&self, tensor: &Tensor) -> Result<Tensor, KernelError>;

    /// Threads for loops inside a kernel; `None` = the kernel runs on the calling thread alone.
    fn intra_op_pool(&self) -> Option<&IntraOpPool> {
        None
    }
}
