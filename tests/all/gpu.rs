//! GPU devices on a driver that emulates GPUs and checks every call: the commands of a session must
//! have an order that no schedule of the streams can break. This is evidence about order, memory
//! and numbers, but not that anything runs on a GPU.

use std::sync::Arc;

use placewright::backend::cpu::ThreadPoolDeviceFactory;
use placewright::backend::cuda::GpuDeviceFactory;
use placewright::device::DeviceError;
use placewright::device::DeviceOptions;
use placewright::device::DeviceSet;
use placewright::device::FactoryRegistry;

use crate::emulated::EmulatedConfig;
use crate::emulated::EmulatedDriver;
use crate::sycl::floats;
use crate::sycl::session;

#[cfg(feature = "cli")]
mod bench;
#[cfg(feature = "cli")]
mod cards;
#[cfg(feature = "cli")]
mod invariance;
mod memory;
mod routines;
mod streams;
mod support_table;
mod trouble;

const PREFIX: &str = "/job:localhost/replica:0/task:0";

/// Emulated GPUs, and the factories of a registry with these and CPUs.
pub(crate) struct Machine {
    pub(crate) driver: Arc<EmulatedDriver>,
    factories: FactoryRegistry,
}

impl Machine {
    /// Creates a machine for tests that need a SYCL device, which executes the kernels of emulated
    /// GPUs.
    pub(crate) fn new(config: EmulatedConfig) -> Self {
        let driver = Arc::new(EmulatedDriver::new(config).unwrap());
        let mut factories = FactoryRegistry::empty();
        let cpu = ThreadPoolDeviceFactory::default();
        factories.register("CPU", 60, Arc::new(cpu)).unwrap();
        let gpu = GpuDeviceFactory::with_driver(Arc::clone(&driver) as _);
        factories.register("GPU", 210, Arc::new(gpu)).unwrap();
        Self { driver, factories }
    }

    pub(crate) fn open(&self, options: &DeviceOptions) -> Arc<DeviceSet> {
        Arc::new(self.try_open(options).unwrap())
    }

    fn try_open(&self, options: &DeviceOptions) -> Result<DeviceSet, DeviceError> {
        self.factories.create_devices(options, PREFIX)
    }

    /// Checks that there was no violation, and that everything is freed once the devices are
    /// dropped.
    pub(crate) fn check(self) {
        let Self { driver, factories } = self;
        assert_eq!(driver.violations(), [""; 0]);
        drop(factories);
        assert_eq!(driver.violations(), [""; 0]);
        assert_eq!(driver.live_bytes(), 0);
        assert_eq!(driver.live_managed_bytes(), 0);
        assert_eq!(driver.live_pinned_bytes(), 0);
        assert_eq!(driver.n_live_streams(), 0);
        assert_eq!(driver.n_live_events(), 0);
    }
}

pub(crate) fn options(n_cpus: u32) -> DeviceOptions {
    let mut options = DeviceOptions::default()
        .with_intra_op_parallelism_threads(1)
        .with_device_count("CPU", n_cpus);
    // Otherwise a region is as large as a GPU, which does not matter for most of these tests.
    options.gpu.allow_growth = true;
    options
}

#[test]
#[needs(Sycl)]
fn devices_are_named_and_described_as_tensorflow_does() {
    let machine = Machine::new(EmulatedConfig {
        n_gpus: 2,
        n_nvlinks: 18,
        ..EmulatedConfig::default()
    });
    let root = tempfile::tempdir().unwrap();
    let card = root.path().join("bus/pci/devices/0000:01:00.0");
    std::fs::create_dir_all(&card).unwrap();
    std::fs::write(card.join("numa_node"), "1").unwrap();
    let mut options = options(1);
    options.system_root = Some(root.path().to_owned());
    let devices = machine.open(&options);
    // Each GPU accesses the other, including the one that was opened earlier for its pinned memory.
    assert_eq!(machine.driver.n_calls("enable_peer"), 2);
    let gpus: Vec<_> = devices
        .iter()
        .map(|(_, device)| device)
        .filter(|device| device.attributes().device_type == "GPU")
        .collect();
    assert_eq!(gpus.len(), 2);
    assert_eq!(gpus[0].attributes().locality.numa_node, 1);
    let attributes = gpus[1].attributes();
    assert_eq!(attributes.name, format!("{PREFIX}/device:GPU:1"));
    assert_eq!(
        attributes.physical_description,
        "device: 1, name: emulated, pci bus id: 0000:02:00.0, compute capability: 9.0"
    );
    // 1 GiB is a small GPU: 225 MiB are reserved.
    assert_eq!(attributes.memory_limit_bytes, (1024 - 225) << 20);
    let links = &attributes.locality.links;
    let links = links
        .iter()
        .map(|link| (link.device_index, link.kind.as_str(), link.strength));
    let links: Vec<_> = links.collect();
    assert_eq!(links, [(0, "StreamExecutor", 1), (0, "NVLINK", 18)]);
    assert_eq!(devices.type_priority("GPU"), 210);
    // With GPUs, CPU devices have pinned memory.
    assert_eq!(devices.type_priority("CPU"), 70);
    drop(devices);
    machine.check();
}
