//! CPU devices and their factory.
//!
//! The factory turns device options into [`ThreadPoolDevice`]s and, with feature `kernels`,
//! registers their kernels.

use std::path::Path;
use std::sync::Arc;

use tracing::info;

use self::pools::SharedPools;
use crate::device::DEVICE_CPU;
use crate::device::Device;
use crate::device::DeviceError;
use crate::device::DeviceFactory;
use crate::device::DeviceLocality;
use crate::device::DeviceOptions;
use crate::device::HOST_PROCESSOR;
use crate::device::KernelRegistry;
use crate::device::NumaNode;
use crate::device::NumaTopology;
use crate::device::PhysicalDevice;
use crate::device::PinnedHostMemory;
use crate::device::SYSTEM_ROOT;
use crate::names::DeviceName;
use crate::trace::targets;

mod device;
#[cfg(feature = "kernels")]
mod fuse;
mod gpu_compatible;
#[cfg(feature = "kernels")]
mod kernels;
mod pools;

pub use device::ThreadPoolDevice;
#[cfg(feature = "cli")]
pub(crate) use device::system_memory_bytes;
pub use gpu_compatible::GpuCompatibleCpuDeviceFactory;

/// The type of these devices.
pub const DEVICE_TYPE: &str = DEVICE_CPU;

/// Priority of their factory, TensorFlow's.
pub const PRIORITY: i32 = 60;

/// More devices or threads than this are a mistake rather than a request.
const MAX_COUNT: usize = 4096;

/// The factory of CPU devices (TensorFlow `ThreadPoolDeviceFactory`). It creates
/// `device_count["CPU"]` devices, one by default, whatever the number of cores.
/// [`DeviceOptions::intra_op_pools`] decides how they share threads. Each device states the rates
/// of all its threads, and names the chip that it shares with the others. Each device has its own
/// memory space; tensors are copied between devices.
#[derive(Debug, Clone)]
pub struct ThreadPoolDeviceFactory {
    pools: Arc<SharedPools>,
}

impl Default for ThreadPoolDeviceFactory {
    fn default() -> Self {
        Self {
            pools: Arc::clone(SharedPools::of_process()),
        }
    }
}

impl ThreadPoolDeviceFactory {
    /// Like [`DeviceFactory::create`], but returns the devices as their own type.
    ///
    /// # Errors
    /// As [`DeviceFactory::create`].
    pub fn create_cpus(
        &self,
        options: &DeviceOptions,
        prefix: &str,
    ) -> Result<Vec<ThreadPoolDevice>, DeviceError> {
        let n_devices = options.device_count.get(DEVICE_TYPE).copied().unwrap_or(1);
        if usize::try_from(n_devices).is_ok_and(|n| n > MAX_COUNT) {
            return Err(DeviceError::InvalidArgument(format!(
                "device_count requests {n_devices} CPU devices; request at most {MAX_COUNT} (for more speed, raise intra_op_parallelism_threads or `--intra-op-threads` instead)"
            )));
        }
        if options.intra_op_parallelism_threads > MAX_COUNT {
            return Err(DeviceError::InvalidArgument(format!(
                "intra_op_parallelism_threads is {}; set at most {MAX_COUNT}, or 0 for one thread per core",
                options.intra_op_parallelism_threads
            )));
        }
        let nodes = if options.use_numa_affinity {
            let root = options.system_root.as_deref();
            let root = root.unwrap_or_else(|| Path::new(SYSTEM_ROOT));
            nodes_with_cpus(root)?
        } else {
            Vec::new()
        };
        let share = device::system_memory_bytes() / u64::from(n_devices.max(1));
        (0..n_devices)
            .map(|index| {
                let text = format!("{prefix}/device:{DEVICE_TYPE}:{index}");
                let name = DeviceName::parse_full(&text)
                    .ok()
                    .filter(DeviceName::is_fully_specified)
                    .ok_or_else(|| {
                        DeviceError::InvalidArgument(format!(
                            "`{prefix}` is not a valid prefix of device names; expected `/job:J/replica:R/task:T`"
                        ))
                    })?;
                let capacity = options.memory_bytes_of(&name)?.unwrap_or(share);
                let node = node_of(index, &nodes);
                let pool = self.pools.pool(options, node, nodes.len())?;
                let device = ThreadPoolDevice::new(&name, capacity, pool)?;
                Ok(match node {
                    Some(node) => device
                        .with_locality(DeviceLocality::on_numa_node(node.id))
                        .with_chip(format!("{HOST_PROCESSOR}, NUMA node {}", node.id)),
                    None => device.with_chip(HOST_PROCESSOR),
                })
            })
            .collect()
    }
}

/// Returns the NUMA nodes among which CPU devices are distributed.
fn nodes_with_cpus(root: &Path) -> Result<Vec<NumaNode>, DeviceError> {
    let topology = NumaTopology::read(root)?;
    let nodes: Vec<_> = topology.nodes_with_cpus().into_iter().cloned().collect();
    if nodes.is_empty() {
        info!(
            target: targets::DEVICE,
            root = %root.display(),
            "the system reports no NUMA node with processors; CPU devices are not bound to one"
        );
    }
    Ok(nodes)
}

/// Returns the node of CPU device `index`; `None` without nodes.
fn node_of(index: u32, nodes: &[NumaNode]) -> Option<&NumaNode> {
    let n_nodes = u32::try_from(nodes.len()).unwrap_or(u32::MAX);
    if n_nodes == 0 {
        return None;
    }
    let position = index % n_nodes;
    let node = nodes.get(position as usize);
    if index >= n_nodes {
        info!(
            target: targets::DEVICE,
            device = index,
            numa_node = node.map(|node| node.id),
            n_nodes,
            "there are more CPU devices than NUMA nodes; several devices share one"
        );
    }
    node
}

impl DeviceFactory for ThreadPoolDeviceFactory {
    fn list_physical(&self) -> Result<Vec<PhysicalDevice>, DeviceError> {
        Ok(vec![PhysicalDevice {
            name: format!("/physical_device:{DEVICE_TYPE}:0"),
            description: String::new(),
        }])
    }

    fn create(
        &self,
        options: &DeviceOptions,
        prefix: &str,
    ) -> Result<Vec<Arc<dyn Device>>, DeviceError> {
        let devices = self.create_cpus(options, prefix)?;
        Ok(devices
            .into_iter()
            .map(|device| Arc::new(device) as Arc<dyn Device>)
            .collect())
    }

    fn register_kernels(&self, registry: &mut KernelRegistry) {
        #[cfg(feature = "kernels")]
        kernels::register(registry);
        #[cfg(not(feature = "kernels"))]
        let _ = registry;
    }

    fn gpu_compatible(&self, memory: Arc<dyn PinnedHostMemory>) -> Option<Arc<dyn DeviceFactory>> {
        Some(Arc::new(GpuCompatibleCpuDeviceFactory::new(
            self.clone(),
            memory,
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::AllocatorAttributes;
    use crate::device::IntraOpPool;
    use crate::device::Kernel;
    use crate::device::KernelContext;
    use crate::device::KernelDevice;
    use crate::device::KernelError;
    use crate::tensor::Tensor;

    const PREFIX: &str = "/job:localhost/replica:0/task:0";

    fn options(n_devices: u32) -> DeviceOptions {
        let mut options = DeviceOptions::default();
        options.device_count.insert("CPU".to_owned(), n_devices);
        options
    }

    #[test]
    fn device_count_is_exact_and_may_exceed_the_cores() {
        let devices = ThreadPoolDeviceFactory::default()
            .create(&options(64), PREFIX)
            .unwrap();
        assert_eq!(devices.len(), 64);
        let attributes = devices[63].attributes();
        assert_eq!(attributes.name, format!("{PREFIX}/device:CPU:63"));
        assert_eq!(attributes.device_type, "CPU");
        assert_eq!(attributes.memory_limit_bytes, 268_435_456);
        assert_eq!(attributes.physical_description, "");
        assert_ne!(attributes.incarnation, devices[0].attributes().incarnation);
        assert!(
            ThreadPoolDeviceFactory::default()
                .create(&options(0), PREFIX)
                .unwrap()
                .is_empty()
        );
        assert_eq!(
            ThreadPoolDeviceFactory::default()
                .list_physical()
                .unwrap()
                .len(),
            1
        );
    }

    #[test]
    fn absurd_options_are_rejected_with_a_remedy() {
        let refused = |options: &DeviceOptions, prefix: &str| {
            ThreadPoolDeviceFactory::default()
                .create(options, prefix)
                .unwrap_err()
                .to_string()
        };
        assert!(refused(&options(u32::MAX), PREFIX).contains("at most 4096"));
        let threads = DeviceOptions {
            intra_op_parallelism_threads: 1 << 20,
            ..DeviceOptions::default()
        };
        assert!(refused(&threads, PREFIX).contains("0 for one thread per core"));
        assert!(refused(&options(1), "/job:a").contains("/job:J/replica:R/task:T"));
    }

    #[test]
    fn memory_is_shared_evenly_unless_options_say_otherwise() {
        let mut options = options(2);
        options.memory_bytes.insert("CPU:1".to_owned(), 1000);
        let devices = ThreadPoolDeviceFactory::default()
            .create(&options, PREFIX)
            .unwrap();
        assert_eq!(
            devices[0].memory_capacity_bytes(),
            device::system_memory_bytes() / 2
        );
        assert_eq!(devices[1].memory_capacity_bytes(), 1000);
        let allocator = devices[1].allocator(AllocatorAttributes::default());
        assert!(allocator.allocate(1000).is_ok());
        let error = allocator.allocate(1001).unwrap_err().to_string();
        assert!(error.contains("CPU:1") && error.contains("1001"), "{error}");
    }

    #[test]
    fn a_copy_to_another_device_is_a_copy_in_its_own_memory() {
        let devices = ThreadPoolDeviceFactory::default()
            .create_cpus(&options(2), PREFIX)
            .unwrap();
        let ids: Vec<_> = devices
            .iter()
            .map(|device| device.allocator(AllocatorAttributes::default()).memory_id())
            .collect();
        assert_ne!(ids[0], ids[1]);
        let fed = Tensor::from_values([3], &[1.0f32, 2.0, 3.0]).unwrap();
        let first = devices[0].default_context().copy_from_host(&fed).unwrap();
        let second = devices[1].default_context().copy_from_host(&first).unwrap();
        assert_eq!(first.buffer().unwrap().memory_id(), ids[0]);
        assert_eq!(second.buffer().unwrap().memory_id(), ids[1]);
        assert_ne!(
            first.as_bytes().unwrap().as_ptr(),
            second.as_bytes().unwrap().as_ptr()
        );
        let back = devices[1].default_context().copy_to_host(&second).unwrap();
        assert_eq!(back.as_slice::<f32>().unwrap(), [1.0, 2.0, 3.0]);
        assert_ne!(back.buffer().unwrap().memory_id(), ids[1]);
    }

    /// Forwards its input, or a tensor allocated elsewhere.
    struct Through {
        makes_its_own: bool,
    }

    impl Kernel for Through {
        fn compute(&self, context: &mut KernelContext<'_>) -> Result<(), KernelError> {
            let tensor = if self.makes_its_own {
                Tensor::from_values([1], &[2.0f32])?
            } else {
                context.input(0)?.clone()
            };
            context.set_output(0, tensor)
        }
    }

    #[test]
    fn kernels_use_the_memory_of_their_device_only() {
        let devices = ThreadPoolDeviceFactory::default()
            .create_cpus(&options(2), PREFIX)
            .unwrap();
        let device = &devices[1];
        let compute = |makes_its_own, input: &Tensor| {
            let inputs = vec![input.clone()];
            let mut context = KernelContext::new(device, "node", inputs, &[false]);
            device.compute(&Through { makes_its_own }, &mut context)
        };
        let fed = Tensor::from_values([1], &[1.0f32]).unwrap();
        let own = device.default_context().copy_from_host(&fed).unwrap();
        assert_eq!(compute(false, &own), Ok(()));
        for foreign in [
            &fed,
            &devices[0].default_context().copy_from_host(&fed).unwrap(),
        ] {
            let error = compute(false, foreign).unwrap_err().to_string();
            assert!(
                error.contains("input 0") && error.contains("CPU:1"),
                "{error}"
            );
        }
        let error = compute(true, &own).unwrap_err().to_string();
        assert!(
            error.contains("output 0") && error.contains("allocate_output"),
            "{error}"
        );
    }

    #[test]
    fn devices_of_one_call_share_one_pool_and_a_single_thread_needs_none() {
        let mut options = options(2);
        options.intra_op_parallelism_threads = 3;
        let devices = ThreadPoolDeviceFactory::default()
            .create_cpus(&options, PREFIX)
            .unwrap();
        let pools: Vec<_> = devices
            .iter()
            .map(|device| device.intra_op_pool().unwrap())
            .collect();
        assert_eq!(pools[0].n_threads(), 3);
        // Each has all threads while the other one is idle.
        let whole = crate::device::DeviceRates::default_cpu(3);
        assert!(devices.iter().all(|device| device.rates() == whole));
        assert!(std::ptr::eq(pools[0], pools[1]));
        options.intra_op_parallelism_threads = 1;
        let devices = ThreadPoolDeviceFactory::default()
            .create_cpus(&options, PREFIX)
            .unwrap();
        assert!(devices[0].intra_op_pool().is_none());
    }

    #[test]
    fn devices_of_one_thread_pool_are_one_chip() {
        let root = two_nodes();
        let factory = ThreadPoolDeviceFactory::default();
        let chips = |options: &DeviceOptions| -> Vec<Option<String>> {
            let devices = factory.create(options, PREFIX).unwrap();
            let devices = devices.iter();
            devices
                .map(|device| device.chip().map(str::to_owned))
                .collect()
        };
        let host = Some(HOST_PROCESSOR.to_owned());
        assert_eq!(chips(&options(2)), [host.clone(), host]);
        let node = |id: u32| Some(format!("{HOST_PROCESSOR}, NUMA node {id}"));
        let on_nodes = on_nodes(3, root.path());
        assert_eq!(chips(&on_nodes), [node(0), node(4), node(0)]);
        let devices = factory.create_cpus(&on_nodes, PREFIX).unwrap();
        for device in devices {
            let n_threads = device.intra_op_pool().map_or(1, IntraOpPool::n_threads);
            assert_eq!(device.chip_threads(), Some(n_threads));
        }
    }

    /// Creates a system folder with two nodes that have processors, and one that has none.
    fn two_nodes() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (node, cpus) in [("node0", "0"), ("node1", ""), ("node4", "1-3")] {
            let folder = root.path().join("devices/system/node").join(node);
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("cpulist"), cpus).unwrap();
        }
        root
    }

    fn on_nodes(n_devices: u32, root: &Path) -> DeviceOptions {
        DeviceOptions {
            use_numa_affinity: true,
            system_root: Some(root.to_owned()),
            ..options(n_devices)
        }
    }

    #[test]
    fn with_affinity_devices_are_distributed_over_nodes_with_processors() {
        let root = two_nodes();
        let create = |options: &DeviceOptions| {
            let factory = ThreadPoolDeviceFactory::default();
            factory.create(options, PREFIX).unwrap()
        };
        let places = |devices: &[Arc<dyn Device>]| -> Vec<(i32, i32)> {
            let localities = devices.iter().map(|device| &device.attributes().locality);
            localities
                .map(|locality| (locality.numa_node, locality.bus_id))
                .collect()
        };
        let devices = create(&on_nodes(3, root.path()));
        assert_eq!(places(&devices), [(0, 1), (4, 5), (0, 1)]);
        let plain = DeviceOptions {
            use_numa_affinity: false,
            ..on_nodes(2, root.path())
        };
        assert_eq!(places(&create(&plain)), [(0, 0), (0, 0)]);
    }

    #[test]
    fn a_machine_without_nodes_needs_no_affinity_and_a_broken_one_is_named() {
        let empty = tempfile::tempdir().unwrap();
        let factory = ThreadPoolDeviceFactory::default();
        let devices = factory.create(&on_nodes(2, empty.path()), PREFIX).unwrap();
        assert_eq!(devices[1].attributes().locality, DeviceLocality::default());
        let broken = two_nodes();
        let file = broken.path().join("devices/system/node/node0/cpulist");
        std::fs::write(file, "some").unwrap();
        let error = factory
            .create(&on_nodes(1, broken.path()), PREFIX)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("node0/cpulist") && error.contains("`some`"),
            "{error}"
        );
    }

    #[test]
    fn devices_on_one_node_share_its_pool_and_others_have_their_own() {
        let root = two_nodes();
        let mut options = on_nodes(3, root.path());
        options.intra_op_parallelism_threads = 2;
        let factory = ThreadPoolDeviceFactory::default();
        let devices = factory.create_cpus(&options, PREFIX).unwrap();
        let pool = |index: usize| devices[index].intra_op_pool().unwrap();
        assert!(std::ptr::eq(pool(0), pool(2)));
        assert!(!std::ptr::eq(pool(0), pool(1)));
        // Devices of another session of the process share the pool if they request the same number
        // of threads.
        let other = ThreadPoolDeviceFactory::default();
        let again = other.create_cpus(&options, PREFIX).unwrap();
        assert!(std::ptr::eq(pool(0), again[0].intra_op_pool().unwrap()));
        options.intra_op_parallelism_threads = 3;
        let more = other.create_cpus(&options, PREFIX).unwrap();
        assert!(!std::ptr::eq(pool(0), more[0].intra_op_pool().unwrap()));
    }
}
