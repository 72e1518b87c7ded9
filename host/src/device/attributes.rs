//! The description of a device.

use std::fmt;

use serde::Serialize;

use super::traits::Device;
use crate::names::DeviceName;

/// The type of devices that compute with the host's processor, in host memory (TensorFlow
/// `DEVICE_CPU`).
pub(crate) const DEVICE_CPU: &str = "CPU";

/// TensorFlow's `DeviceAttributes`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DeviceAttributes {
    /// Full canonical name, `/job:localhost/replica:0/task:0/device:CPU:0`.
    pub name: String,
    /// Type, by which kernels and preferences refer to it: `CPU`, `GPU`, `SYCL`. Independent of the
    /// type in the name.
    pub device_type: String,
    /// TensorFlow's nominal limit, in bytes: 256 MiB for a CPU. The limit for plans is
    /// [`super::Device::memory_capacity_bytes`].
    pub memory_limit_bytes: u64,
    /// Place of the device in the machine.
    pub locality: DeviceLocality,
    /// A number that changes whenever the device is created anew; never 0.
    pub incarnation: u64,
    /// Free text; empty for a CPU.
    pub physical_description: String,
}

/// Place of a device in the machine (TensorFlow `DeviceLocality`).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct DeviceLocality {
    /// Bus; 0 means unknown.
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
    /// Kind of link: TensorFlow's `StreamExecutor` (the memory of the other can be accessed) and
    /// `SAME_DEVICE` (of one GPU), or `NVLINK`.
    pub kind: String,
    /// Larger is better among links of one kind; for `NVLINK`, the number of links.
    pub strength: i32,
}

impl DeviceLocality {
    /// Returns the locality of this NUMA node. The bus is numbered one higher, as in TensorFlow, so
    /// that 0 stays unknown.
    pub fn on_numa_node(node: u32) -> Self {
        let numa_node = i32::try_from(node).unwrap_or(i32::MAX - 1);
        Self {
            bus_id: numa_node.saturating_add(1),
            numa_node,
            links: Vec::new(),
        }
    }
}

impl fmt::Display for DeviceAttributes {
    /// TensorFlow's `Device::DebugString`, in one line: the fields of the protocol buffer as its
    /// text format writes them, zeros and empty strings left out. `name:
    /// "/job:localhost/replica:0/task:0/device:CPU:0" device_type: "CPU" memory_limit: 268435456
    /// locality { bus_id: 1 } incarnation: 17`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "name: {:?} device_type: {:?}",
            self.name, self.device_type
        )?;
        if self.memory_limit_bytes != 0 {
            write!(f, " memory_limit: {}", self.memory_limit_bytes)?;
        }
        // TensorFlow always sets the message, also to nothing.
        write!(f, " locality {{ {}}}", self.locality)?;
        if self.incarnation != 0 {
            write!(f, " incarnation: {}", self.incarnation)?;
        }
        if !self.physical_description.is_empty() {
            write!(f, " physical_device_desc: {:?}", self.physical_description)?;
        }
        Ok(())
    }
}

impl fmt::Display for DeviceLocality {
    /// Writes the fields in the text format of protocol buffers, each followed by a space; nothing
    /// if all are zero.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, number) in [("bus_id", self.bus_id), ("numa_node", self.numa_node)] {
            if number != 0 {
                write!(f, "{name}: {number} ")?;
            }
        }
        if !self.links.is_empty() {
            write!(f, "links {{ ")?;
            for link in &self.links {
                write!(f, "link {{ ")?;
                if link.device_index != 0 {
                    write!(f, "device_id: {} ", link.device_index)?;
                }
                if !link.kind.is_empty() {
                    write!(f, "type: {:?} ", link.kind)?;
                }
                if link.strength != 0 {
                    write!(f, "strength: {} ", link.strength)?;
                }
                write!(f, "}} ")?;
            }
            write!(f, "}} ")?;
        }
        Ok(())
    }
}

impl fmt::Display for dyn Device + '_ {
    /// Writes the attributes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self.attributes(), f)
    }
}

impl DeviceAttributes {
    /// Returns the attributes of a device of this name, with a new incarnation, and without
    /// locality and description.
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

    /// Returns whether the device's own memory is host memory. Such a device has one memory space:
    /// host-memory arguments of kernels, strings and resources are in the same memory as
    /// everything else.
    ///
    /// As in TensorFlow (`MemoryTypesForNode`), this follows from the type, which is CPU for these
    /// devices, also for devices of other processes.
    pub fn has_one_memory(&self) -> bool {
        self.device_type == DEVICE_CPU
    }
}

/// Returns a random number, never 0, which TensorFlow reserves for "unknown".
fn new_incarnation() -> u64 {
    loop {
        // Without a source of randomness the address of a fresh allocation and the clock still tell
        // restarts apart.
        let drawn = getrandom::u64().unwrap_or_else(|_| {
            use std::hash::{BuildHasher, RandomState};
            RandomState::new().hash_one(std::time::SystemTime::now())
        });
        if drawn != 0 {
            return drawn;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_memory_follows_from_the_type_whatever_the_name_says() {
        let name = DeviceName::full("a", 0, 1, "CPU", 2);
        for (device_type, has_one_memory) in [("CPU", true), ("GPU", false), ("XLA_CPU", false)] {
            let attributes = DeviceAttributes::new(&name, device_type, 1024);
            assert_eq!(attributes.has_one_memory(), has_one_memory, "{device_type}");
        }
    }

    #[test]
    fn attributes_are_one_line_whatever_the_description() {
        let name = DeviceName::full("a", 0, 1, "GPU", 2);
        let mut attributes = DeviceAttributes::new(&name, "GPU", 1024);
        attributes.physical_description = "device: 2,\nname: \"X\"".to_owned();
        attributes.incarnation = 7;
        assert_eq!(
            attributes.to_string(),
            r#"name: "/job:a/replica:0/task:1/device:GPU:2" device_type: "GPU" memory_limit: 1024 locality { } incarnation: 7 physical_device_desc: "device: 2,\nname: \"X\"""#
        );
    }

    /// As `text_format.MessageToString(attributes, as_one_line=True)` of TensorFlow 2.21 writes
    /// them.
    #[test]
    fn attributes_tell_where_the_device_sits() {
        let name = DeviceName::local("GPU", 0);
        let mut attributes = DeviceAttributes::new(&name, "GPU", 0);
        attributes.incarnation = 5;
        attributes.locality = DeviceLocality::on_numa_node(1);
        let link = |device_index, kind: &str, strength| LocalLink {
            device_index,
            kind: kind.to_owned(),
            strength,
        };
        attributes.locality.links = vec![link(1, "NVLINK", 4), link(0, "SAME_DEVICE", 0)];
        assert_eq!(
            attributes.to_string(),
            r#"name: "/device:GPU:0" device_type: "GPU" locality { bus_id: 2 numa_node: 1 links { link { device_id: 1 type: "NVLINK" strength: 4 } link { type: "SAME_DEVICE" } } } incarnation: 5"#
        );
    }

    #[test]
    fn buses_are_numbered_from_one() {
        let locality = DeviceLocality::on_numa_node(1);
        assert_eq!((locality.numa_node, locality.bus_id), (1, 2));
        let last = DeviceLocality::on_numa_node(u32::MAX);
        assert!(last.bus_id > last.numa_node);
        assert_eq!(DeviceLocality::default().bus_id, 0);
    }
}
