//! The device seam: what every device has, and the two ways of executing.

use std::fmt;
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
use super::op_segment::OpSegment;
use super::partition_graph::PartitionGraph;
use super::profile::DeviceProfile;
use super::program::ProgramDevice;
use super::resource::ResourceManager;
use super::step::StepAllocator;
use super::step::StepNumber;
use crate::graph::Function;
use crate::graph::Graph;
use crate::graph::NodeId;
use crate::names::DeviceName;
use crate::tensor::Allocator;
use crate::tensor::Literal;
use crate::tensor::Tensor;

/// Which of a device's allocators (TensorFlow `AllocatorAttributes`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct AllocatorAttributes {
    /// Memory of the host rather than of the device.
    pub on_host: bool,
    /// Host memory that a GPU can copy from without staging.
    pub gpu_compatible: bool,
}

/// [`Device::chip`] of what computes with the host's own processor, through whichever runtime.
pub const HOST_PROCESSOR: &str = "host processor";

/// A device. Shared by sessions; every method may be called from any thread.
pub trait Device: Send + Sync + fmt::Debug {
    /// Attributes, name, resources and stateful kernels.
    fn base(&self) -> &DeviceBase;

    /// Memory for its tensors.
    fn allocator(&self, attributes: AllocatorAttributes) -> Arc<dyn Allocator>;

    /// Bytes that plans may use on it. (`memory_limit_bytes` is TensorFlow's nominal figure.)
    fn memory_capacity_bytes(&self) -> u64;

    /// The rates that it states: documented defaults, or what its driver tells. Plans take them
    /// from [`DeviceSet::profile`](super::DeviceSet::profile), where measured ones may stand in
    /// their place.
    fn profile(&self) -> DeviceProfile;

    /// The chip whose execution units it computes with, by a name that is equal for all devices of
    /// this process that share them: one chip seen through two runtimes, or two platforms on
    /// one card. [`HOST_PROCESSOR`] is the name of the host's own; others are best named by
    /// something that a chip keeps under every runtime, such as its address on the bus. Plans give
    /// the devices of one chip its time only once. `None`: the device has its units for itself,
    /// or states only its part of their rates ([`Self::n_sharing_rates`]).
    fn chip(&self) -> Option<&str> {
        None
    }

    /// How many devices, this one included, compute with the same threads, so that each states an
    /// equal part of their rates. What is measured of one of them, while the others are idle,
    /// is divided by this.
    fn n_sharing_rates(&self) -> u32 {
        1
    }

    /// What it says about itself.
    fn attributes(&self) -> &DeviceAttributes {
        self.base().attributes()
    }

    /// Its parsed name; fully specified for devices that run graphs.
    fn name(&self) -> &DeviceName {
        self.base().name()
    }

    /// Variables, tables and queues that stand on it.
    ///
    /// # Errors
    /// [`DeviceError::InvalidArgument`] for a device of another process.
    fn resource_manager(&self) -> Result<&Arc<ResourceManager>, DeviceError> {
        self.base().resource_manager()
    }

    /// Stateful kernels of the sessions that use it.
    fn op_segment(&self) -> &Arc<OpSegment> {
        self.base().op_segment()
    }

    /// Temporary memory for one run; what it has left goes back to the device when it is dropped,
    /// at the end of the run. Unless this says otherwise, memory that the host sees is used
    /// again within the run, behind a [`Memory`](crate::tensor::Memory) of the run's own: a
    /// device whose kernels look for their own type there gives its allocator here.
    fn step_allocator(
        &self,
        attributes: AllocatorAttributes,
        step: StepNumber,
    ) -> Arc<dyn Allocator> {
        Arc::new(StepAllocator::new(self.allocator(attributes), step))
    }

    /// Whether it was taken out of its manager; runs on it are refused then.
    fn is_removed(&self) -> bool {
        self.base().is_removed()
    }

    /// Whether it belongs to this process.
    fn is_local(&self) -> bool {
        true
    }

    /// Streams and events, for a device that has them.
    fn accelerator_info(&self) -> Option<&AcceleratorInfo> {
        None
    }

    /// Returns when all work submitted before has ended.
    ///
    /// # Errors
    /// When the device is lost.
    fn sync(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    /// The same at the end of a run, whose work alone decides the answer: several runs may use the
    /// device at one time, and what fails in one must be neither the other's error nor its own
    /// success. A device that cannot tell runs apart answers for all.
    ///
    /// # Errors
    /// When the device is lost, or work of the run has failed.
    fn sync_step(&self, step: StepNumber) -> Result<(), DeviceError> {
        let _ = step;
        self.sync()
    }

    /// The device as one that executes node by node, if it is one.
    fn as_kernel_device(&self) -> Option<&dyn KernelDevice> {
        None
    }
}

/// A device that executes node by node with kernels of the registry (CPU, GPU, SYCL, and devices
/// that apps add).
pub trait KernelDevice: Device {
    /// How tensors get in and out, for nodes that have no context of their own.
    fn default_context(&self) -> &Arc<dyn DeviceContext>;

    /// Contexts of those `nodes` of a graph that shall have one of their own (a GPU that gives
    /// nodes to several streams). Asked once per plan, before its kernels are made.
    ///
    /// # Errors
    /// [`DeviceError`], with which the plan is refused.
    fn fill_context_map(
        &self,
        graph: &Graph,
        nodes: &[NodeId],
    ) -> Result<DeviceContextMap, DeviceError> {
        let _ = (graph, nodes);
        Ok(DeviceContextMap::default())
    }

    /// Replaces nodes of its part of a plan by others that compute the same (fused kernels). Asked
    /// once per plan, after the cut and before kernels are made; `library` holds the functions
    /// of the graph. Results must not depend on whether this is called, beyond what a kernel's
    /// results may differ by on two devices (the order of sums, the last bits of functions).
    ///
    /// # Errors
    /// [`DeviceError`], with which the plan is refused.
    fn maybe_rewrite_graph(
        &self,
        library: &[Function],
        graph: &mut PartitionGraph<'_>,
    ) -> Result<(), DeviceError> {
        let _ = (library, graph);
        Ok(())
    }

    /// Runs a kernel to its end, on the calling thread; on an accelerator, up to where its work is
    /// given to the device.
    ///
    /// # Errors
    /// The kernel's.
    fn compute(
        &self,
        kernel: &dyn Kernel,
        context: &mut KernelContext<'_>,
    ) -> Result<(), KernelError> {
        kernel.compute(context)
    }

    /// Starts a kernel that ends later; `done` may be called from another thread, and before this
    /// returns.
    fn compute_async(&self, kernel: &dyn AsyncKernel, context: AsyncKernelContext, done: Done) {
        kernel.compute_async(context, done);
    }

    /// The tensor of a constant, in this device's memory unless `on_host` (TensorFlow
    /// `MakeTensorFromProto`).
    ///
    /// # Errors
    /// If there is not enough memory.
    fn make_tensor(
        &self,
        literal: &Literal,
        attributes: AllocatorAttributes,
    ) -> Result<Tensor, KernelError> {
        let host = literal.to_tensor(&*self.allocator(AllocatorAttributes {
            on_host: true,
            ..attributes
        }))?;
        if attributes.on_host {
            Ok(host)
        } else {
            self.default_context().copy_from_host(&host)
        }
    }

    /// Whether kernels' work may still be under way when [`Self::compute`] has returned, so that
    /// what they read and wrote must be handed to [`Self::consume_accessed_tensors`]. A device
    /// whose commands hold what they touch records nothing; that its work may be under way is
    /// then said by its contexts ([`DeviceContext::copies_are_async`]).
    fn records_accessed_tensors(&self) -> bool {
        false
    }

    /// Takes what a kernel has read and written; the device drops it when the work of `context` has
    /// come so far.
    fn consume_accessed_tensors(&self, context: &dyn DeviceContext, tensors: AccessedTensors) {
        let _ = (context, tensors);
    }

    /// The device as one that compiles programs, if it is one: for kernels that are not Rust.
    fn as_program_device(&self) -> Option<&dyn ProgramDevice> {
        None
    }

    /// Threads for loops inside a kernel; `None` = the kernel runs on the calling thread alone.
    fn intra_op_pool(&self) -> Option<&IntraOpPool> {
        None
    }
}
