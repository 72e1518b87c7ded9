//! A device that can be lost: nothing can be read from it any more.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;

use placewright::device::AllocatorAttributes;
use placewright::device::Device;
use placewright::device::DeviceAttributes;
use placewright::device::DeviceBase;
use placewright::device::DeviceContext;
use placewright::device::DeviceRates;
use placewright::device::KernelDevice;
use placewright::device::KernelError;
use placewright::device::SimpleDevice;
use placewright::names::DeviceName;
use placewright::tensor::Allocator;
use placewright::tensor::Tensor;

/// A CPU device with an end.
#[derive(Debug)]
pub(crate) struct Mortal {
    inner: SimpleDevice,
    context: Arc<dyn DeviceContext>,
    is_lost: Arc<AtomicBool>,
}

#[derive(Debug)]
struct Context {
    inner: Arc<dyn DeviceContext>,
    is_lost: Arc<AtomicBool>,
}

impl Mortal {
    pub(crate) fn new(name: &str) -> Self {
        let name = DeviceName::parse_full(name).unwrap();
        let inner = SimpleDevice::new(DeviceAttributes::new(&name, "CPU", 1 << 30)).unwrap();
        let is_lost = Arc::new(AtomicBool::new(false));
        let context = Arc::new(Context {
            inner: Arc::clone(inner.default_context()),
            is_lost: Arc::clone(&is_lost),
        });
        Self {
            inner,
            context,
            is_lost,
        }
    }

    pub(crate) fn lose(&self) {
        self.is_lost.store(true, Ordering::Relaxed);
    }
}

impl Device for Mortal {
    fn base(&self) -> &DeviceBase {
        self.inner.base()
    }

    fn allocator(&self, attributes: AllocatorAttributes) -> Arc<dyn Allocator> {
        self.inner.allocator(attributes)
    }

    fn memory_capacity_bytes(&self) -> u64 {
        self.inner.memory_capacity_bytes()
    }

    fn rates(&self) -> DeviceRates {
        self.inner.rates()
    }

    fn as_kernel_device(&self) -> Option<&dyn KernelDevice> {
        Some(self)
    }
}

impl KernelDevice for Mortal {
    fn default_context(&self) -> &Arc<dyn DeviceContext> {
        &self.context
    }
}

impl DeviceContext for Context {
    fn copy_from_host(&self, tensor: &Tensor) -> Result<Tensor, KernelError> {
        self.inner.copy_from_host(tensor)
    }

    fn copy_to_host(&self, tensor: &Tensor) -> Result<Tensor, KernelError> {
        if self.is_lost.load(Ordering::Relaxed) {
            return Err(KernelError::invalid("the device is lost"));
        }
        self.inner.copy_to_host(tensor)
    }
}
