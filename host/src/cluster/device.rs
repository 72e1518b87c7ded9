//! Devices that exist on paper only.

use std::sync::Arc;

use crate::device::AllocatorAttributes;
use crate::device::Device;
use crate::device::DeviceAttributes;
use crate::device::DeviceBase;
use crate::device::DeviceError;
use crate::device::DeviceRates;
use crate::tensor::Allocator;
use crate::tensor::HostAllocator;

/// A device of a cluster file. Graphs are placed on it, and nothing can run on it.
#[derive(Debug)]
pub(super) struct PaperDevice {
    base: DeviceBase,
    allocator: Arc<HostAllocator>,
    rates: DeviceRates,
    chip: Option<String>,
    chip_threads: Option<usize>,
}

impl PaperDevice {
    pub(super) fn new(
        attributes: DeviceAttributes,
        rates: DeviceRates,
    ) -> Result<Self, DeviceError> {
        Ok(Self {
            allocator: Arc::new(HostAllocator::new(attributes.name.clone(), 0)),
            base: DeviceBase::new(attributes)?.without_resources(),
            rates,
            chip: None,
            chip_threads: None,
        })
    }

    pub(super) fn with_chip(mut self, chip: Option<String>, threads: Option<usize>) -> Self {
        (self.chip, self.chip_threads) = (chip, threads);
        self
    }
}

impl Device for PaperDevice {
    fn base(&self) -> &DeviceBase {
        &self.base
    }

    /// Returns an allocator without memory.
    fn allocator(&self, _: AllocatorAttributes) -> Arc<dyn Allocator> {
        Arc::clone(&self.allocator) as Arc<dyn Allocator>
    }

    fn memory_capacity_bytes(&self) -> u64 {
        self.attributes().memory_limit_bytes
    }

    fn rates(&self) -> DeviceRates {
        self.rates
    }

    fn chip(&self) -> Option<&str> {
        self.chip.as_deref()
    }

    fn chip_threads(&self) -> Option<usize> {
        self.chip_threads
    }

    fn is_local(&self) -> bool {
        false
    }
}
