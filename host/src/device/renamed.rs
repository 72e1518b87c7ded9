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
use super::kernel::KernelContext;
use super::partition_graph::PartitionGraph;
use super::profile::DeviceProfile;
use super::step::StepNumber;
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

/// A device under the job, replica and task of another name (TensorFlow `RenamedDevice`): the same memory and kernels, and the
/// same resources unless it is isolated.
#[derive(Debug)]
pub struct RenamedDevice {
    base: DeviceBase,
    underlying: Arc<dyn Device>,
    pool: Option<Arc<IntraOpPool>>,
}

impl RenamedDevice {
    /// `underlying`, named by the job, replica and task of `new_base` and its own type and index; a type or index in `new_base`
    /// does not matter. All other attributes are the same. It shares resources and stateful kernels with `underlying`.
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

    /// The same with resources and stateful kernels of its own (TensorFlow `isolate_session_state`).
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

    /// The same, with threads of its own for loops inside kernels.
    #[must_use]
    pub fn with_intra_op_pool(mut self, pool: Arc<IntraOpPool>) -> Self {
        self.pool = Some(pool);
        self
    }

    /// The device behind the name.
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
    let own = underlying.name();
    let name = DeviceName {
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

    fn profile(&self) -> DeviceProfile {
        self.underlying.profile()
    }

    fn step_allocator(
        &self,
        attributes: AllocatorAttributes,
        step: StepNumber,
    ) -> Arc<dyn Allocator> {
        self.underlying.step_allocator(attributes, step)
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

    fn intra_op_pool(&self) -> Option<&IntraOpPool> {
        match &self.pool {
            Some(pool) => (pool.n_threads() > 1).then_some(&**pool),
            None => self.kernel_device().intra_op_pool(),
        }
    }
}
