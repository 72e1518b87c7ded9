//! Device types that this build has no backend for: rows that say so, and what to do.
//!
//! In goes what is missing, out comes that answer, wherever a device of the type is asked for.

use std::sync::Arc;

use crate::device::Device;
use crate::device::DeviceDetails;
use crate::device::DeviceError;
use crate::device::DeviceFactory;
use crate::device::DeviceOptions;
use crate::device::KernelRegistry;
use crate::device::PhysicalDevice;

/// Stands in for the factory of a type that a build lacks ([`crate::device::FactoryRegistry::register_placeholder`]).
#[derive(Debug, Clone)]
pub struct AbsentDeviceFactory {
    device_type: String,
    what: String,
    remedy: String,
}

impl AbsentDeviceFactory {
    /// Nothing makes devices of this type, because `what` is missing; `remedy` is what the user can do. Both are parts of a
    /// sentence: `this build has no backend for GPUs`.
    pub fn new(
        device_type: impl Into<String>,
        what: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            device_type: device_type.into(),
            what: what.into(),
            remedy: remedy.into(),
        }
    }

    /// A type for whose devices this build has no backend.
    pub(super) fn no_backend(device_type: &str, kind: &str) -> Self {
        Self::new(
            device_type,
            format!("this build has no backend for {kind}"),
            format!(
                "use CPU devices, or take the crate of one that registers a factory for {device_type} (`Registry::with`)"
            ),
        )
    }

    fn absent<T>(&self) -> Result<T, DeviceError> {
        Err(DeviceError::Absent {
            device_type: self.device_type.clone(),
            what: self.what.clone(),
            remedy: self.remedy.clone(),
        })
    }
}

impl DeviceFactory for AbsentDeviceFactory {
    fn list_physical(&self) -> Result<Vec<PhysicalDevice>, DeviceError> {
        self.absent()
    }

    fn details(&self, _: usize) -> Result<DeviceDetails, DeviceError> {
        self.absent()
    }

    fn create(&self, _: &DeviceOptions, _: &str) -> Result<Vec<Arc<dyn Device>>, DeviceError> {
        self.absent()
    }

    fn register_kernels(&self, _: &mut KernelRegistry) {}
}
