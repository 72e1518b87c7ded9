//! The interface of devices: what every device has, and the two ways of executing.

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
use super::kernel_context::KernelContext;
use super::op_segment::OpSegment;
use super::partition_device::PartitionDevice;
use super::partition_graph::PartitionGraph;
use super::program::ProgramDevice;
use super::rates::DeviceRates;
use super::resource::ResourceManager;
use super::run::RunAllocator;
use super::run::RunNumber;
use crate::graph::Function;
use crate::graph::Graph;
use crate::graph::NodeId;
use crate::names::DeviceName;
use crate::tensor::Allocator;
use crate::tensor::Literal;
use crate::tensor::Tensor;

/// Selects one of a device's allocators (TensorFlow `AllocatorAttributes`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct AllocatorAttributes {
    /// Host memory rather than the device's own.
    pub on_host: bool,
    /// Host memory that a GPU can copy from without staging.
    pub gpu_compatible: bool,
}

/// The [`Device::chip`] of devices that compute with the host's processor, under any runtime.
pub const HOST_PROCESSOR: &str = "host processor";

/// A device. Sessions share it; every method may be called from any thread.
pub trait Device: Send + Sync + fmt::Debug {
    /// Returns attributes, name, resources and stateful kernels.
    fn base(&self) -> &DeviceBase;

    /// Returns the allocator of its tensors.
    fn allocator(&self, attributes: AllocatorAttributes) -> Arc<dyn Allocator>;

    /// Returns the bytes that plans may use on it. (`memory_limit_bytes` is TensorFlow's nominal
    /// limit.)
    fn memory_capacity_bytes(&self) -> u64;

    /// Returns the size of the largest tensor that it can allocate, in bytes. Placement does not
    /// offer it to nodes with larger tensors.
    fn max_allocation_bytes(&self) -> u64 {
        u64::MAX
    }

    /// Returns its stated rates: documented defaults, or what its driver reports. Plans use those
    /// of [`DeviceSet::rates`](super::DeviceSet::rates), which may be measured.
    fn rates(&self) -> DeviceRates;

    /// Returns the name of the chip that it computes with, which is equal for all devices of this
    /// process that share the chip: one chip under two runtimes, or two platforms on one card.
    /// [`HOST_PROCESSOR`] is the name of the host's processor; name other chips by something that
    /// is the same under every runtime, such as the bus address. Plans give the devices of one chip
    /// its time only once. `None` means that the device has its execution units for itself.
    fn chip(&self) -> Option<&str> {
        None
    }

    /// Returns with how many threads of its chip a kernel computes, if it computes with threads of
    /// the host: kernels of one chip then execute at the same time, and share its threads. `None`
    /// means that a kernel has the whole chip, or one of its queues, while it executes.
    fn chip_threads(&self) -> Option<usize> {
        None
    }

    /// Returns its description.
    fn attributes(&self) -> &DeviceAttributes {
        self.base().attributes()
    }

    /// Returns its parsed name, which is fully specified for devices that run graphs.
    fn name(&self) -> &DeviceName {
        self.base().name()
    }

    /// Returns its variables, tables and queues.
    ///
    /// # Errors
    /// [`DeviceError::InvalidArgument`] for a device of another process.
    fn resource_manager(&self) -> Result<&Arc<ResourceManager>, DeviceError> {
        self.base().resource_manager()
    }

    /// Returns the stateful kernels of the sessions that use it.
    fn op_segment(&self) -> &Arc<OpSegment> {
        self.base().op_segment()
    }

    /// Returns the allocator of temporary memory for one run. It is dropped at the end of the run,
    /// and returns its memory to the device. By default, host-visible memory is reused within the
    /// run, as a [`Memory`](crate::tensor::Memory) of another type; a device whose kernels need
    /// their own type returns its own allocator here.
    fn run_allocator(&self, attributes: AllocatorAttributes, run: RunNumber) -> Arc<dyn Allocator> {
        Arc::new(RunAllocator::new(self.allocator(attributes), run))
    }

    /// Returns whether it was removed from its manager; it then rejects runs.
    fn is_removed(&self) -> bool {
        self.base().is_removed()
    }

    /// Returns whether it belongs to this process.
    fn is_local(&self) -> bool {
        true
    }

    /// Returns its streams and events, if it has any.
    fn accelerator_info(&self) -> Option<&AcceleratorInfo> {
        None
    }

    /// Waits until all work submitted before has ended.
    ///
    /// # Errors
    /// If the device is lost.
    fn sync(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Does the same at the end of a run, and reports failures of that run only: several runs may
    /// use the device at one time. A device that cannot tell runs apart reports failures of any.
    ///
    /// # Errors
    /// If the device is lost, or work of the run has failed.
    fn sync_run(&self, run: RunNumber) -> Result<(), DeviceError> {
        let _ = run;
        self.sync()
    }

    /// Returns the device as one on which this process executes nodes, if it is one.
    fn as_kernel_device(&self) -> Option<&dyn KernelDevice> {
        None
    }
}

/// A device on which the executor of this process executes nodes: one by one with kernels of the
/// registry (CPU, GPU, SYCL, and most devices of apps), or several as a unit
/// ([`PartitionDevice`]).
pub trait KernelDevice: Device {
    /// Returns the context by which tensors are copied, for nodes that have no context of their
    /// own.
    fn default_context(&self) -> &Arc<dyn DeviceContext>;

    /// Assigns contexts to those `nodes` of a graph that are to have their own, for example on a
    /// GPU that distributes nodes over several streams. Called once per plan, before its kernels
    /// are created.
    ///
    /// # Errors
    /// [`DeviceError`]; the plan is then rejected.
    fn fill_context_map(
        &self,
        graph: &Graph,
        nodes: &[NodeId],
    ) -> Result<DeviceContextMap, DeviceError> {
        let _ = (graph, nodes);
        Ok(DeviceContextMap::default())
    }

    /// Replaces nodes of its part of a plan by others that compute the same (fused kernels). Called
    /// once per plan, after partitioning and before kernels are created; `library` holds the
    /// functions of the graph. The results may differ from those without this call only as far as
    /// the results of one kernel may differ between two devices (the order of sums, the last bits
    /// of functions).
    ///
    /// # Errors
    /// [`DeviceError`]; the plan is then rejected.
    fn maybe_rewrite_graph(
        &self,
        library: &[Function],
        graph: &mut PartitionGraph<'_>,
    ) -> Result<(), DeviceError> {
        let _ = (library, graph);
        Ok(())
    }

    /// Runs a kernel to its end on the calling thread; on an accelerator, until its work is
    /// submitted.
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

    /// Starts an asynchronous kernel. `done` may be called from any thread, also before this
    /// returns.
    fn compute_async(&self, kernel: &dyn AsyncKernel, context: AsyncKernelContext, done: Done) {
        kernel.compute_async(context, done);
    }

    /// Returns the tensor of a constant, in this device's memory unless `on_host` (TensorFlow
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

    /// Returns whether work of a kernel may continue when [`Self::compute`] has returned, so that
    /// the tensors it accesses must be passed to [`Self::consume_accessed_tensors`]. A device whose
    /// commands keep their tensors returns false; its contexts then report that its work may
    /// continue ([`DeviceContext::copies_are_async`]).
    fn records_accessed_tensors(&self) -> bool {
        false
    }

    /// Takes the tensors that a kernel has read and written. The device drops them when the work of
    /// `context` has reached this point.
    fn consume_accessed_tensors(&self, context: &dyn DeviceContext, tensors: AccessedTensors) {
        let _ = (context, tensors);
    }

    /// Starts the work that kernels and copies have submitted. A device may delay the start of
    /// small work as long as its submitting thread submits more, and as long as nobody waits for
    /// the work. The executor calls this before a thread computes itself, or has nothing to do.
    /// Does nothing by default: most devices start work when it is submitted.
    fn flush(&self) {}

    /// Gives submitted work to the driver on this thread, in place of a thread of the device, until
    /// there is none or `is_wanted` returns true. The executor calls this instead of
    /// [`Self::flush`] if the thread would sleep until the work ends. Flushes by default.
    fn assist(&self, is_wanted: &dyn Fn() -> bool) {
        let _ = is_wanted;
        self.flush();
    }

    /// Returns the device as one that takes whole partitions, if it is one. The executor then asks
    /// the registry for no kernel of its nodes.
    fn as_partition_device(&self) -> Option<&dyn PartitionDevice> {
        None
    }

    /// Returns the device as one that compiles programs, if it is one: for kernels that are not
    /// Rust.
    fn as_program_device(&self) -> Option<&dyn ProgramDevice> {
        None
    }

    /// Returns the threads for loops inside a kernel; `None` means that the kernel runs on the
    /// calling thread alone.
    fn intra_op_pool(&self) -> Option<&IntraOpPool> {
        None
    }
}
