//! Handles of resources, and the resources of handles.

use std::any::type_name;
use std::hash::DefaultHasher;
use std::hash::Hash;
use std::hash::Hasher;
use std::sync::Arc;

use super::container::ContainerInfo;
use super::error::ResourceError;
use super::manager::Resource;
use crate::device::error::KernelError;
use crate::device::kernel_context::KernelContext;
use crate::tensor::DType;
use crate::tensor::PartialShape;
use crate::tensor::ResourceHandle;

/// Returns a handle to a resource of type `R` on the device of this name.
pub fn make_resource_handle<R: Resource>(
    device: &str,
    info: &ContainerInfo,
    dtypes_and_shapes: Vec<(DType, PartialShape)>,
) -> ResourceHandle {
    ResourceHandle {
        device: device.to_owned(),
        container: info.container.clone(),
        name: info.name.clone(),
        type_hash: type_hash::<R>(),
        type_name: type_name::<R>().to_owned(),
        dtypes_and_shapes,
    }
}

fn type_hash<R: Resource>() -> u64 {
    // Without keys, so that it is the same in each process of one build.
    let mut hasher = DefaultHasher::new();
    type_name::<R>().hash(&mut hasher);
    hasher.finish()
}

impl KernelContext<'_> {
    /// Returns the handle in data input `index`, to a resource of type `R` on this device.
    ///
    /// # Errors
    /// [`KernelError::Tensor`] if the input is not a handle; [`ResourceError::OtherDevice`],
    /// [`ResourceError::OtherType`].
    pub fn resource_handle<R: Resource>(
        &self,
        index: usize,
    ) -> Result<&ResourceHandle, KernelError> {
        let handle = self.input(index)?.as_handle()?;
        let device = &self.device().attributes().name;
        if handle.device != *device {
            return Err(KernelError::Resource(ResourceError::OtherDevice {
                name: handle.name.clone(),
                handle_device: handle.device.clone(),
                device: device.clone(),
            }));
        }
        if handle.type_hash != type_hash::<R>() {
            return Err(KernelError::Resource(ResourceError::OtherType {
                name: handle.name.clone(),
                expected: type_name::<R>(),
                found: handle.type_name.clone(),
            }));
        }
        Ok(handle)
    }

    /// Returns the resource of the handle in data input `index`.
    ///
    /// # Errors
    /// As [`Self::resource_handle`], and if the resource does not exist.
    pub fn resource<R: Resource>(&self, index: usize) -> Result<Arc<R>, KernelError> {
        let handle = self.resource_handle::<R>(index)?;
        let manager = self.resource_manager()?;
        Ok(manager.lookup(&handle.container, &handle.name)?)
    }
}
