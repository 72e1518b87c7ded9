//! Where devices come from.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::error::DeviceError;
use super::kernel_registry::KernelRegistry;
use super::traits::Device;

/// What a user asks of all factories.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DeviceOptions {
    /// Devices per type: exact for CPU (default 1), an upper bound for GPU, exact for SYCL (TensorFlow `device_count`).
    pub device_count: BTreeMap<String, u32>,
    /// Threads for loops inside one kernel, per device; 0 = one per core.
    pub intra_op_parallelism_threads: usize,
    /// Memory capacity in bytes by device (`CPU:0`, or any fuller spelling), where it shall differ from the device's own.
    pub memory_bytes: BTreeMap<String, u64>,
}

/// What a factory found, before anything is opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PhysicalDevice {
    /// `/physical_device:TYPE:i`.
    pub name: String,
    /// What is known of it, in words; empty for a CPU.
    pub description: String,
}

/// Makes the devices of one type.
pub trait DeviceFactory: Send + Sync + fmt::Debug {
    /// What is there. Cheap; may name devices that [`Self::create`] later cannot open.
    ///
    /// # Errors
    /// [`DeviceError::Absent`], with the remedy, where a driver is missing.
    fn list_physical(&self) -> Result<Vec<PhysicalDevice>, DeviceError>;

    /// Opens devices, named `{prefix}/device:TYPE:i`.
    ///
    /// # Errors
    /// [`DeviceError`], in words that a user can act on.
    fn create(
        &self,
        options: &DeviceOptions,
        prefix: &str,
    ) -> Result<Vec<Arc<dyn Device>>, DeviceError>;

    /// Adds the kernels of this device type.
    fn register_kernels(&self, registry: &mut KernelRegistry);
}

/// Why a factory cannot be registered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "device type {device_type} has a factory of priority {priority} already; register with another priority"
)]
pub struct RegisterError {
    /// The type.
    pub device_type: String,
    /// The priority that both have.
    pub priority: i32,
}

/// The factories, one per device type. A value with a default, not process-wide state.
#[derive(Debug, Clone, Default)]
pub struct FactoryRegistry {
    factories: BTreeMap<String, (i32, Arc<dyn DeviceFactory>)>,
}
