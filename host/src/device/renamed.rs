//! A device under another job, replica and task.

use std::sync::Arc;

use super::async_kernel::AsyncKernel;
use super::async_kernel::AsyncKernelContext;
use super::async_kernel::Done;
use super::attributes::DeviceAttributes;
use super::base::DeviceBase;
use super::context::AcceleratorInfo;
use super::context::AccessedTensors;
use super::context::DeviceContext;
use super::context::DeviceContextMap;
use super::error::DeviceError;
use super::error::KernelError;
use super::intra_op::IntraOpPool;
use super::kernel::Kernel;
use super::kernel_context::KernelContext;
use super::partition_graph::PartitionGraph;
use super::program::ProgramDevice;
use super::rates::DeviceRates;
use super::run::RunNumber;
use super::traits::AllocatorAttributes;
use super::traits::Device;
use super::traits::KernelDevice;
use crate::graph::Function;
use crate::graph::Graph;
use crate::graph::NodeId;
use crate::names::DeviceName;
use crate::tensor::Allocator;
use crate::tensor::Literal;
use crate::tensor::Tensor;

/// A device under the job, replica and task of another name (TensorFlow `RenamedDevice`): it has
/// the same memory and kernels, and the same resources unless it is isolated.
#[derive(Debug)]
pub struct RenamedDevice {
    base: DeviceBase,
    underlying: Arc<dyn Device>,
    pool: Option<Arc<IntraOpPool>>,
}

impl RenamedDevice {
    /// Names `underlying` by the job, replica and task of `new_base` and by its own type and index;
    /// a type or index in `new_base` is ignored. All other attributes are the same. It shares
    /// resources and stateful kernels with `underlying`.
    ///
    /// # Errors
    /// [`DeviceError::InvalidArgument`] unless `new_base` is a full name.
    pub fn new(new_base: &str, underlying: Arc<dyn Device>) -> Result<Self, DeviceError> {
        let base = DeviceBase::new(renamed(new_base, &underlying)?)?;
        Ok(Self {
            base: base.with_state_of(underlying.base()),
            underlying,
            pool: None,
        })
    }

    /// Does the same, with its own resources and stateful kernels (TensorFlow
    /// `isolate_session_state`).
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn isolated(new_base: &str, underlying: Arc<dyn Device>) -> Result<Self, DeviceError> {
        let mut base = DeviceBase::new(renamed(new_base, &underlying)?)?;
        if underlying.resource_manager().is_err() {
            base = base.without_resources();
        }
        Ok(Self {
            base,
            underlying,
            pool: None,
        })
    }

    /// Sets its own threads for loops inside kernels.
    #[must_use]
    pub fn with_intra_op_pool(mut self, pool: Arc<IntraOpPool>) -> Self {
        self.pool = Some(pool);
        self
    }

    /// Returns the renamed device.
    pub fn underlying(&self) -> &Arc<dyn Device> {
        &self.underlying
    }

    fn kernel_device(&self) -> &dyn KernelDevice {
        self.underlying
            .as_kernel_device()
            .expect("`as_kernel_device` gives this only for such a device")
    }
}

fn renamed(new_base: &str, underlying: &Arc<dyn Device>) -> Result<DeviceAttributes, DeviceError> {
    let new_base = DeviceName::parse_full(new_base)
        .map_err(|error| DeviceError::InvalidArgument(format!("renaming a device: {error}")))?;
    if new_base.job.is_none() {
        return Err(DeviceError::InvalidArgument(format!(
            "renaming a device: `{new_base}` names no job; expected `/job:J`, with `/replica:R/task:T` where they are not 0"
        )));
    }
    let own = underlying.name();
    let name = DeviceName {
        replica: new_base.replica.or(Some(0)),
        task: new_base.task.or(Some(0)),
        device_type: own.device_type.clone(),
        index: own.index,
        ..new_base
    };
    Ok(DeviceAttributes {
        name: name.to_string(),
        ..underlying.attributes().clone()
    })
}

impl Device for RenamedDevice {
    fn base(&self) -> &DeviceBase {
        &self.base
    }

    fn allocator(&self, attributes: AllocatorAttributes) -> Arc<dyn Allocator> {
        self.underlying.allocator(attributes)
    }

    fn memory_capacity_bytes(&self) -> u64 {
        self.underlying.memory_capacity_bytes()
    }

    fn max_allocation_bytes(&self) -> u64 {
        self.underlying.max_allocation_bytes()
    }

    fn rates(&self) -> DeviceRates {
        self.underlying.rates()
    }

    fn chip(&self) -> Option<&str> {
        self.underlying.chip()
    }

    fn chip_threads(&self) -> Option<usize> {
        self.underlying.chip_threads()
    }

    fn run_allocator(&self, attributes: AllocatorAttributes, run: RunNumber) -> Arc<dyn Allocator> {
        self.underlying.run_allocator(attributes, run)
    }

    fn is_removed(&self) -> bool {
        self.base.is_removed() || self.underlying.is_removed()
    }

    fn is_local(&self) -> bool {
        self.underlying.is_local()
    }

    fn accelerator_info(&self) -> Option<&AcceleratorInfo> {
        self.underlying.accelerator_info()
    }

    fn sync(&self) -> Result<(), DeviceError> {
        self.underlying.sync()
    }

    fn sync_run(&self, run: RunNumber) -> Result<(), DeviceError> {
        self.underlying.sync_run(run)
    }

    fn as_kernel_device(&self) -> Option<&dyn KernelDevice> {
        self.underlying.as_kernel_device()?;
        Some(self)
    }
}

impl KernelDevice for RenamedDevice {
    fn default_context(&self) -> &Arc<dyn DeviceContext> {
        self.kernel_device().default_context()
    }

    fn fill_context_map(
        &self,
        graph: &Graph,
        nodes: &[NodeId],
    ) -> Result<DeviceContextMap, DeviceError> {
        self.kernel_device().fill_context_map(graph, nodes)
    }

    fn maybe_rewrite_graph(
        &self,
        library: &[Function],
        graph: &mut PartitionGraph<'_>,
    ) -> Result<(), DeviceError> {
        self.kernel_device().maybe_rewrite_graph(library, graph)
    }

    fn compute(
        &self,
        kernel: &dyn Kernel,
        context: &mut KernelContext<'_>,
    ) -> Result<(), KernelError> {
        self.kernel_device().compute(kernel, context)
    }

    fn compute_async(&self, kernel: &dyn AsyncKernel, context: AsyncKernelContext, done: Done) {
        self.kernel_device().compute_async(kernel, context, done);
    }

    fn make_tensor(
        &self,
        literal: &Literal,
        attributes: AllocatorAttributes,
    ) -> Result<Tensor, KernelError> {
        self.kernel_device().make_tensor(literal, attributes)
    }

    fn records_accessed_tensors(&self) -> bool {
        self.kernel_device().records_accessed_tensors()
    }

    fn consume_accessed_tensors(&self, context: &dyn DeviceContext, tensors: AccessedTensors) {
        self.kernel_device()
            .consume_accessed_tensors(context, tensors);
    }

    fn flush(&self) {
        self.kernel_device().flush();
    }

    fn assist(&self, is_wanted: &dyn Fn() -> bool) {
        self.kernel_device().assist(is_wanted);
    }

    fn as_program_device(&self) -> Option<&dyn ProgramDevice> {
        self.kernel_device().as_program_device()
    }

    fn intra_op_pool(&self) -> Option<&IntraOpPool> {
        match &self.pool {
            Some(pool) => (pool.n_threads() > 1).then_some(&**pool),
            None => self.kernel_device().intra_op_pool(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Resource;
    use crate::device::SimpleDevice;

    struct Note;

    impl Resource for Note {
        fn describe(&self) -> String {
            "a note".to_owned()
        }
    }

    const BASE: &str = "/job:worker/replica:2/task:3/device:GPU:7";

    fn simple() -> Arc<dyn Device> {
        let name = DeviceName::full("localhost", 0, 0, "CPU", 1);
        let attributes = DeviceAttributes::new(&name, "CPU", 1 << 20);
        let device = SimpleDevice::new(attributes).unwrap();
        let device = device.with_chip("card 1");
        Arc::new(device.with_max_allocation_bytes(1 << 20))
    }

    #[test]
    fn only_job_replica_and_task_are_renamed() {
        let device = simple();
        let renamed = RenamedDevice::new(BASE, Arc::clone(&device)).unwrap();
        let expected = DeviceAttributes {
            name: "/job:worker/replica:2/task:3/device:CPU:1".to_owned(),
            ..device.attributes().clone()
        };
        assert_eq!(*renamed.attributes(), expected);
        assert_eq!(renamed.name().to_string(), expected.name);
        let error = RenamedDevice::new("worker", device)
            .unwrap_err()
            .to_string();
        assert!(error.starts_with("renaming a device: "), "{error}");
    }

    #[test]
    fn state_is_shared_unless_it_is_isolated() {
        let device = simple();
        let shared = RenamedDevice::new(BASE, Arc::clone(&device)).unwrap();
        let isolated = RenamedDevice::isolated(BASE, Arc::clone(&device)).unwrap();
        let manager = device.resource_manager().unwrap();
        manager.create("c", "n", Arc::new(Note)).unwrap();
        device.op_segment().add_hold("session");
        let found = |device: &dyn Device| {
            let manager = device.resource_manager().unwrap();
            let n_kernels = device.op_segment().n_kernels("session");
            (manager.lookup::<Note>("c", "n").is_ok(), n_kernels)
        };
        assert_eq!(found(&shared), (true, Some(0)));
        assert_eq!(found(&isolated), (false, None));
        // Each has its job as default.
        let default = |device: &dyn Device| {
            let manager = device.resource_manager().unwrap();
            manager.default_container().to_owned()
        };
        assert_eq!(default(&isolated), "worker");
        assert_eq!(default(&shared), "localhost");
    }

    #[test]
    fn memory_contexts_and_rates_are_those_of_the_device_behind() {
        let device = simple();
        for renamed in [
            RenamedDevice::new(BASE, Arc::clone(&device)).unwrap(),
            RenamedDevice::isolated(BASE, Arc::clone(&device)).unwrap(),
        ] {
            let own = AllocatorAttributes::default();
            let memory = renamed.allocator(own);
            let held = memory.allocate(256).unwrap();
            assert_eq!(held.memory_id(), device.allocator(own).memory_id());
            assert_eq!(device.allocator(own).stats().in_use_bytes, 256);
            assert_eq!(
                renamed.memory_capacity_bytes(),
                device.memory_capacity_bytes()
            );
            assert_eq!(renamed.max_allocation_bytes(), 1 << 20);
            assert_eq!(renamed.rates(), device.rates());
            assert_eq!(renamed.chip(), Some("card 1"));
            let kernels = |device: &dyn Device| {
                let device = device.as_kernel_device().unwrap();
                Arc::as_ptr(device.default_context()).cast::<()>()
            };
            assert_eq!(kernels(&renamed), kernels(&*device));
        }
    }

    #[test]
    fn a_pool_of_its_own_is_used_instead() {
        let renamed = |n_threads| {
            let pool = Arc::new(IntraOpPool::new(n_threads));
            let renamed = RenamedDevice::new(BASE, simple()).unwrap();
            let renamed = renamed.with_intra_op_pool(pool);
            renamed.intra_op_pool().map(IntraOpPool::n_threads)
        };
        assert_eq!(renamed(3), Some(3));
        // One thread is the calling one.
        assert_eq!(renamed(1), None);
    }

    #[test]
    fn it_goes_with_the_device_behind_and_not_the_other_way_round() {
        let device = simple();
        let renamed = RenamedDevice::new(BASE, Arc::clone(&device)).unwrap();
        renamed.base().mark_removed();
        assert!(renamed.is_removed() && !device.is_removed());
        let other = RenamedDevice::isolated(BASE, Arc::clone(&device)).unwrap();
        assert!(!other.is_removed());
        device.base().mark_removed();
        assert!(other.is_removed());
    }
}
