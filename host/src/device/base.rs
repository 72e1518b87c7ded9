//! The common part of all devices.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;

use super::attributes::DeviceAttributes;
use super::attributes::DeviceLocality;
use super::error::DeviceError;
use super::op_segment::OpSegment;
use super::resource::ResourceManager;
use crate::names::DeviceName;

/// Attributes, parsed name, resources and stateful kernels of one device (TensorFlow `Device`'s own
/// members). Every device has one, and returns it from [`super::Device::base`].
#[derive(Debug)]
pub struct DeviceBase {
    attributes: DeviceAttributes,
    name: DeviceName,
    /// `None` if they are in another process.
    resources: Option<Arc<ResourceManager>>,
    op_segment: Arc<OpSegment>,
    is_removed: AtomicBool,
}

impl DeviceBase {
    /// Creates the base of a device with these attributes and no resources. Their default container
    /// is the job of the device's name.
    ///
    /// # Errors
    /// [`DeviceError::InvalidArgument`] unless `attributes.name` parses as a device name with full
    /// labels (`/job:J/...`); parts may be missing, as in TensorFlow.
    pub fn new(attributes: DeviceAttributes) -> Result<Self, DeviceError> {
        let name = DeviceName::parse_full(&attributes.name)
            .map_err(|error| DeviceError::InvalidArgument(format!("a device's name: {error}")))?;
        let job = name.job.as_deref();
        let resources = match job {
            Some(job) => ResourceManager::with_default_container(job),
            None => ResourceManager::new(),
        };
        Ok(Self {
            name,
            resources: Some(Arc::new(resources)),
            op_segment: Arc::default(),
            attributes,
            is_removed: AtomicBool::new(false),
        })
    }

    /// Sets the device's place in the machine.
    #[must_use]
    pub fn with_locality(mut self, locality: DeviceLocality) -> Self {
        self.attributes.locality = locality;
        self
    }

    /// Removes the resources, for a device of another process.
    #[must_use]
    pub fn without_resources(mut self) -> Self {
        self.resources = None;
        self
    }

    /// Shares the resources and stateful kernels of another device.
    #[must_use]
    pub(crate) fn with_state_of(mut self, other: &Self) -> Self {
        self.resources.clone_from(&other.resources);
        self.op_segment = Arc::clone(&other.op_segment);
        self
    }

    /// Returns the description of the device.
    pub fn attributes(&self) -> &DeviceAttributes {
        &self.attributes
    }

    /// Returns the parsed name.
    pub fn name(&self) -> &DeviceName {
        &self.name
    }

    /// Returns the variables, tables and queues of the device.
    ///
    /// # Errors
    /// [`DeviceError::InvalidArgument`] for a device of another process.
    pub fn resource_manager(&self) -> Result<&Arc<ResourceManager>, DeviceError> {
        self.resources.as_ref().ok_or_else(|| {
            DeviceError::InvalidArgument(format!(
                "the resources of {} are in the process that it belongs to; run ops that use them there",
                self.attributes.name
            ))
        })
    }

    /// Returns the stateful kernels of the sessions that use the device.
    pub fn op_segment(&self) -> &Arc<OpSegment> {
        &self.op_segment
    }

    /// Marks the device as removed: its users' next runs are rejected.
    pub fn mark_removed(&self) {
        self.is_removed.store(true, Ordering::Release);
    }

    /// Marks the device as present again.
    pub(crate) fn mark_added(&self) {
        self.is_removed.store(false, Ordering::Release);
    }

    /// Returns whether it was removed from its manager ([`super::DeviceManager::remove_devices`]).
    pub fn is_removed(&self) -> bool {
        self.is_removed.load(Ordering::Acquire)
    }
}

impl fmt::Display for DeviceBase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.attributes.name)
    }
}
