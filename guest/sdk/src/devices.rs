//! The devices as a policy sees them: columns of numbers, and names on request.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::fmt;
use std::ops::Range;

use crate::log::Log;
use crate::source::DeviceAttributes;
use crate::source::DeviceSource;
use crate::source::DeviceSpec;
use crate::source::LinkCost;

/// The devices of one placement. Borrowed for one call; device ids are `0..len()` and are valid
/// within that call or run.
pub struct DeviceSet<'a> {
    source: &'a dyn DeviceSource,
    log: &'a Log,
    count: u32,
    columns: Columns<'a>,
}

#[derive(Default)]
struct Columns<'a> {
    all: OnceCell<Vec<DeviceAttributes>>,
    prioritized_types: OnceCell<Vec<String>>,
    links: OnceCell<Vec<LinkCost>>,
    cost_classes: OnceCell<Cow<'a, [u32]>>,
    link_domains: OnceCell<Cow<'a, [u32]>>,
    chips: OnceCell<Cow<'a, [u32]>>,
    memory_domains: OnceCell<Cow<'a, [u32]>>,
    memory_capacity: OnceCell<Cow<'a, [u64]>>,
    memory_free: OnceCell<Cow<'a, [u64]>>,
    loads: OnceCell<Cow<'a, [f64]>>,
    calibrated: OnceCell<Cow<'a, [u8]>>,
    queues: OnceCell<Cow<'a, [u32]>>,
}

/// Defines a getter per column: documentation, name, entry type.
macro_rules! columns {
    ($($(#[$doc:meta])+ $name:ident: $entry:ty;)+) => {
        $(
            $(#[$doc])+
            pub fn $name(&self) -> &[$entry] {
                self.columns.$name.get_or_init(|| self.source.$name())
            }
        )+
    };
}

impl<'a> DeviceSet<'a> {
    /// Creates a view of the host's devices.
    pub fn new(source: &'a dyn DeviceSource, log: &'a Log) -> Self {
        Self {
            source,
            log,
            count: source.count(),
            columns: Columns::default(),
        }
    }

    /// Returns the number of devices.
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Returns whether there are no devices.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the device ids.
    pub fn ids(&self) -> Range<u32> {
        0..self.count
    }

    /// Returns names, types and localities of all devices. Takes a few ms for thousands of devices,
    /// once.
    pub fn attributes(&self) -> &[DeviceAttributes] {
        self.columns.all.get_or_init(|| self.source.all())
    }

    columns! {
        /// Per device: its column of the cost table.
        cost_classes: u32;
        /// Per device: its row and column of [`Self::links`].
        link_domains: u32;
        /// Per device: devices of one chip share a number and its compute.
        chips: u32;
        /// Per device: devices of one memory share a number and its capacity.
        memory_domains: u32;
        /// Per device: bytes that plans may use; the host refuses more.
        memory_capacity: u64;
        /// Per device: bytes free now.
        memory_free: u64;
        /// Per device: 0.0 idle .. 1.0 saturated, at the time of the call.
        loads: f64;
        /// Per device: 1 = rates measured, 0 = documented defaults.
        calibrated: u8;
        /// Per device: independent compute queues.
        queues: u32;
    }

    /// Returns the links, link domain x link domain, row major. The diagonal is the link between
    /// two different devices of one domain.
    pub fn links(&self) -> &[LinkCost] {
        self.columns.links.get_or_init(|| self.source.links())
    }

    /// Returns the link between two devices, including exceptions; free within one device. One host
    /// call. For all pairs, use [`crate::LinkMatrix`].
    pub fn link(&self, src: u32, dst: u32) -> LinkCost {
        if src == dst {
            LinkCost::default()
        } else {
            self.source.link(src, dst)
        }
    }

    /// Returns the device with a full name, in any spelling that the host accepts.
    pub fn by_name(&self, name: &str) -> Option<u32> {
        self.source.by_name(name)
    }

    /// Returns every match, most preferred first.
    pub fn by_spec(&self, spec: &DeviceSpec) -> Vec<u32> {
        self.source.by_spec(spec)
    }

    /// Returns every match of a string such as `/job:worker/device:GPU:*`, most preferred first.
    ///
    /// # Errors
    /// The string is malformed.
    pub fn by_spec_text(&self, spec: &str) -> Result<Vec<u32>, String> {
        self.source.by_spec_text(spec)
    }

    /// Returns the device types, most preferred first.
    pub fn prioritized_types(&self) -> &[String] {
        self.columns
            .prioritized_types
            .get_or_init(|| self.source.prioritized_types())
    }

    /// Returns the devices of a type.
    pub fn of_type(&self, device_type: &str) -> Vec<u32> {
        self.source.of_type(device_type)
    }

    /// Returns the device of the client, where feeds come from.
    pub fn client_device(&self) -> Option<u32> {
        self.source.client_device()
    }

    /// Returns the log of this call.
    pub fn log(&self) -> &Log {
        self.log
    }
}

impl fmt::Debug for DeviceSet<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceSet")
            .field("count", &self.count)
            .finish_non_exhaustive()
    }
}
