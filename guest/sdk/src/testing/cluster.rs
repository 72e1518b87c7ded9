//! Simulated devices of a cluster.

use std::borrow::Cow;

use crate::source::DeviceAttributes;
use crate::source::DeviceSource;
use crate::source::DeviceSpec;
use crate::source::LinkCost;

/// Devices with columns that tests may change. One cost class per device type, one link domain,
/// chip and memory per device.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "documented in the contract")]
pub struct TestDevices {
    pub attributes: Vec<DeviceAttributes>,
    pub cost_classes: Vec<u32>,
    pub link_domains: Vec<u32>,
    pub chips: Vec<u32>,
    pub memory_domains: Vec<u32>,
    pub memory_capacity: Vec<u64>,
    pub memory_free: Vec<u64>,
    pub loads: Vec<f64>,
    pub calibrated: Vec<u8>,
    pub queues: Vec<u32>,
    pub links: Vec<LinkCost>,
}

/// Creates devices from a string such as `"2xCPU,8xGPU"`: types in the order of their cost classes.
/// Each has 16 GiB; links cost 1 us and 0.1 ns per byte.
///
/// # Panics
/// If the string is malformed: this is for tests.
pub fn cluster(text: &str) -> TestDevices {
    let mut attributes = Vec::new();
    let mut cost_classes = Vec::new();
    for (class, part) in (0_u32..).zip(text.split(',')) {
        let (count, device_type) = part.split_once('x').expect("a part is COUNTxTYPE");
        let count: u32 = count.trim().parse().expect("COUNT is a number");
        for ordinal in 0..count {
            attributes.push(DeviceAttributes {
                name: format!("/job:localhost/replica:0/task:0/device:{device_type}:{ordinal}"),
                device_type: device_type.to_owned(),
                incarnation: 1,
                type_preference: match device_type {
                    "GPU" => 210,
                    "SYCL" => 200,
                    _ => 60,
                },
                ..DeviceAttributes::default()
            });
            cost_classes.push(class);
        }
    }
    let n = attributes.len();
    let ordinals: Vec<u32> = (0_u32..).take(n).collect();
    let devices = TestDevices {
        attributes,
        cost_classes,
        link_domains: ordinals.clone(),
        chips: ordinals.clone(),
        memory_domains: ordinals,
        memory_capacity: vec![16 << 30; n],
        memory_free: vec![16 << 30; n],
        loads: vec![0.0; n],
        calibrated: vec![0; n],
        queues: vec![1; n],
        links: Vec::new(),
    };
    devices.with_links(1_000.0, 0.1)
}

impl TestDevices {
    /// Sets the same cost between any two different devices.
    #[must_use]
    pub fn with_links(mut self, latency_ns: f64, ns_per_byte: f64) -> Self {
        let n = self.attributes.len();
        let link = LinkCost {
            latency_ns,
            ns_per_byte,
        };
        self.links = vec![link; n * n];
        for device in 0..n {
            self.links[device * n + device] = LinkCost::default();
        }
        self
    }

    /// Sets the capacity of one device, all of which is free.
    #[must_use]
    pub fn with_memory(mut self, device: u32, capacity_bytes: u64) -> Self {
        self.memory_capacity[device as usize] = capacity_bytes;
        self.with_memory_free(device, capacity_bytes)
    }

    /// Sets the free bytes of one device. The rule `memory` compares with the capacity.
    #[must_use]
    pub fn with_memory_free(mut self, device: u32, free_bytes: u64) -> Self {
        self.memory_free[device as usize] = free_bytes;
        self
    }

    fn matching(&self, accepts: impl Fn(&DeviceAttributes) -> bool) -> Vec<u32> {
        let mut found: Vec<u32> = (0..self.count())
            .filter(|&device| accepts(&self.attributes[device as usize]))
            .collect();
        found.sort_by_key(|&device| -self.attributes[device as usize].type_preference);
        found
    }
}

impl DeviceSource for TestDevices {
    fn count(&self) -> u32 {
        u32::try_from(self.attributes.len()).expect("test clusters are small")
    }

    fn attributes(&self, device: u32) -> Option<DeviceAttributes> {
        self.attributes.get(device as usize).cloned()
    }

    fn all(&self) -> Vec<DeviceAttributes> {
        self.attributes.clone()
    }

    fn by_name(&self, name: &str) -> Option<u32> {
        (0..self.count()).find(|&device| self.attributes[device as usize].name == name)
    }

    /// Matches type and index only.
    fn by_spec(&self, spec: &DeviceSpec) -> Vec<u32> {
        self.matching(|device| {
            let has_type = spec
                .device_type
                .as_ref()
                .is_none_or(|device_type| *device_type == device.device_type);
            let has_index = spec
                .index
                .is_none_or(|index| device.name.ends_with(&format!(":{index}")));
            has_type && has_index
        })
    }

    /// Accepts strings of the form `/device:TYPE:*` and `/device:TYPE:INDEX`.
    fn by_spec_text(&self, spec: &str) -> Result<Vec<u32>, String> {
        let parts = spec
            .strip_prefix("/device:")
            .and_then(|rest| rest.split_once(':'));
        let Some((device_type, index)) = parts else {
            return Err(format!("`{spec}` is not of the form /device:TYPE:INDEX"));
        };
        Ok(self.by_spec(&DeviceSpec {
            device_type: Some(device_type.to_owned()),
            index: match index {
                "*" => None,
                index => Some(
                    index
                        .parse()
                        .map_err(|_| format!("`{index}` is not an index"))?,
                ),
            },
            ..DeviceSpec::default()
        }))
    }

    fn prioritized_types(&self) -> Vec<String> {
        let mut types: Vec<String> = Vec::new();
        for device in self.matching(|_| true) {
            let device_type = &self.attributes[device as usize].device_type;
            if !types.contains(device_type) {
                types.push(device_type.clone());
            }
        }
        types
    }

    fn of_type(&self, device_type: &str) -> Vec<u32> {
        self.matching(|device| device.device_type == device_type)
    }

    fn client_device(&self) -> Option<u32> {
        self.of_type("CPU").first().copied()
    }

    fn cost_classes(&self) -> Cow<'_, [u32]> {
        Cow::Borrowed(&self.cost_classes)
    }

    fn link_domains(&self) -> Cow<'_, [u32]> {
        Cow::Borrowed(&self.link_domains)
    }

    fn chips(&self) -> Cow<'_, [u32]> {
        Cow::Borrowed(&self.chips)
    }

    fn memory_domains(&self) -> Cow<'_, [u32]> {
        Cow::Borrowed(&self.memory_domains)
    }

    fn memory_capacity(&self) -> Cow<'_, [u64]> {
        Cow::Borrowed(&self.memory_capacity)
    }

    fn memory_free(&self) -> Cow<'_, [u64]> {
        Cow::Borrowed(&self.memory_free)
    }

    fn loads(&self) -> Cow<'_, [f64]> {
        Cow::Borrowed(&self.loads)
    }

    fn calibrated(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(&self.calibrated)
    }

    fn queues(&self) -> Cow<'_, [u32]> {
        Cow::Borrowed(&self.queues)
    }

    fn links(&self) -> Vec<LinkCost> {
        self.links.clone()
    }

    fn link(&self, src: u32, dst: u32) -> LinkCost {
        if src.max(dst) >= self.count() {
            return LinkCost {
                latency_ns: f64::INFINITY,
                ns_per_byte: 0.0,
            };
        }
        if src == dst {
            return LinkCost::default();
        }
        let n = self.links.len().isqrt();
        let domain = |device: u32| self.link_domains[device as usize] as usize;
        self.links[domain(src) * n + domain(dst)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::DeviceSet;
    use crate::log::Log;

    #[test]
    fn free_memory_is_the_capacity_until_it_is_set() {
        let devices = cluster("2xCPU").with_memory(0, 100).with_memory(1, 90);
        let devices = devices.with_memory_free(1, 40);
        let log = Log::silent();
        let devices = DeviceSet::new(&devices, &log);
        assert_eq!(devices.memory_capacity(), [100, 90]);
        assert_eq!(devices.memory_free(), [100, 40]);
    }

    #[test]
    fn a_device_that_does_not_exist_has_no_link() {
        let devices = cluster("2xCPU").with_links(7.0, 0.5);
        assert_eq!(DeviceSource::link(&devices, 0, 1).latency_ns, 7.0);
        assert_eq!(DeviceSource::link(&devices, 1, 2).latency_ns, f64::INFINITY);
        assert_eq!(DeviceSource::link(&devices, 2, 2).latency_ns, f64::INFINITY);
    }
}
