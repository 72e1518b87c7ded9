//! Owns the devices of one process.

use std::sync::Arc;

use super::traits::Device;

/// The devices of one process, by name (TensorFlow `DeviceMgr`).
#[derive(Debug, Clone, Default)]
pub struct DeviceManager {
    devices: Vec<Arc<dyn Device>>,
}
