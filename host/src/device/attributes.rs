//! What a device says about itself.

use std::fmt;

use serde::Serialize;

use crate::names::DeviceName;

/// TensorFlow's `DeviceAttributes`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DeviceAttributes {
    /// Full canonical name, `/job:localhost/replica:0/task:0/device:CPU:0`.
    pub name: String,
    /// Type, as kernels and preferences know it: `CPU`, `GPU`, `SYCL`. Independent of the type in the name.
    pub device_type: String,
    /// TensorFlow's nominal limit, in bytes: 256 MiB for a CPU. What plans are held to is
    /// [`super::Device::memory_capacity_bytes`].
    pub memory_limit_bytes: u64,
    /// Where the device sits.
    pub locality: DeviceLocality,
    /// Changes whenever the device is made anew; never 0.
    pub incarnation: u64,
    /// Free text; empty for a CPU.
    pub physical_description: String,
}

/// Where a device sits (TensorFlow `DeviceLocality`).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct DeviceLocality {
    /// Bus; 0 = unknown.
    pub bus_id: i32,
    /// NUMA node.
    pub numa_node: i32,
    /// Direct connections.
    pub links: Vec<LocalLink>,
}

/// A direct connection to another device of the same type (TensorFlow `InterconnectLink`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LocalLink {
    /// Index of the other device among those of its type.
    pub device_index: i32,
    /// Kind of link, such as `StreamExecutor`.
    pub kind: String,
    /// Larger is better.
    pub strength: i32,
}

impl DeviceAttributes {
    /// Attributes of a device of this name, with a fresh incarnation, no locality and no description.
    pub fn new(name: &DeviceName, device_type: impl Into<String>, memory_limit_bytes: u64) -> Self {
        Self {
            name: name.to_string(),
            device_type: device_type.into(),
            memory_limit_bytes,
            locality: DeviceLocality::default(),
            incarnation: new_incarnation(),
            physical_description: String::new(),
        }
    }
}

impl fmt::Display for DeviceAttributes {
    /// One line: name, type, memory in bytes, incarnation in hexadecimal, and the description where there is one.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} ({}, {} bytes, incarnation {:016x})",
            self.name, self.device_type, self.memory_limit_bytes, self.incarnation
        )?;
        if !self.physical_description.is_empty() {
            write!(f, ": {}", self.physical_description)?;
        }
        Ok(())
    }
}

/// Random, and never 0, which TensorFlow reserves for "unknown".
fn new_incarnation() -> u64 {
    loop {
        // Without a source of randomness the address of a fresh allocation and the clock still tell restarts apart.
        let drawn = getrandom::u64().unwrap_or_else(|_| {
            use std::hash::{BuildHasher, RandomState};
            RandomState::new().hash_one(std::time::SystemTime::now())
        });
        if drawn != 0 {
            return drawn;
        }
    }
}
