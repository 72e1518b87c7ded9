//! What every device is made of.

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

/// Attributes, parsed name, resources and stateful kernels of one device: the part that all devices
/// have in common (TensorFlow `Device`'s own members). A device holds one and shows it with
/// [`super::Device::base`].
#[derive(Debug)]
pub struct DeviceBase {
    attributes: DeviceAttributes,
    name: DeviceName,
    /// `None`: they are in another process.
    resources: Option<Arc<ResourceManager>>,
    op_segment: Arc<OpSegment>,
    is_removed: AtomicBool,
}

impl DeviceBase {
    /// Of a device with these attributes, with no resources yet. Their default container is the job
    /// of the device's name.
    ///
    /// # Errors
    /// [`DeviceError::InvalidArgument`] unless `attributes.name` reads as a device's name with its
    /// full labels (`/job:J/...`); parts may be missing, as in TensorFlow.
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

    /// The same, at another place of the machine.
    #[must_use]
    pub fn with_locality(mut self, locality: DeviceLocality) -> Self {
        self.attributes.locality = locality;
        self
    }

    /// The same, for a device whose resources are in another process.
    #[must_use]
    pub fn without_resources(mut self) -> Self {
        self.resources = None;
        self
    }

    /// The same, with the resources and stateful kernels of another device.
    #[must_use]
    pub(crate) fn with_state_of(mut self, other: &Self) -> Self {
        self.resources.clone_from(&other.resources);
        self.op_segment = Arc::clone(&other.op_segment);
        self
    }

    /// What the device says about itself.
    pub fn attributes(&self) -> &DeviceAttributes {
        &self.attributes
    }

    /// The name of the attributes, parsed.
    pub fn name(&self) -> &DeviceName {
        &self.name
    }

    /// Variables, tables and queues that stand on the device.
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

    /// Stateful kernels of the sessions that use the device.
    pub fn op_segment(&self) -> &Arc<OpSegment> {
        &self.op_segment
    }

    /// Tells those who use the device that it is no longer there: their next run is refused.
    pub fn mark_removed(&self) {
        self.is_removed.store(true, Ordering::Release);
    }

    /// It is there again.
    pub(crate) fn mark_added(&self) {
        self.is_removed.store(false, Ordering::Release);
    }

    /// Whether it was taken out of its manager ([`super::DeviceManager::remove_devices`]).
    pub fn is_removed(&self) -> bool {
        self.is_removed.load(Ordering::Acquire)
    }
}

impl fmt::Display for DeviceBase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.attributes.name)
    }
}
