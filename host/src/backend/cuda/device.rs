//! The GPU device: memory, streams, programs.

use std::any::Any;
use std::sync::Arc;

use smallvec::SmallVec;

use super::DEVICE_TYPE;
use super::GpuMemoryStats;
use super::context::GpuContext;
use super::context::not_here;
use super::context::own_parts;
use super::driver::Argument;
use super::driver::DriverError;
use super::driver::FunctionHandle;
use super::driver::Grid;
use super::driver::Span;
use super::faults::Fault;
use super::group::Group;
use super::lane::Ticket;
use super::lane::Use;
use super::open_gpu::OpenGpu;
use super::open_gpu::device_error;
use super::streams::assign_streams;
use crate::backend::source::fuse;
use crate::device::AcceleratorInfo;
use crate::device::AllocatorAttributes;
use crate::device::ComputeTraits;
use crate::device::Device;
use crate::device::DeviceAttributes;
use crate::device::DeviceBase;
use crate::device::DeviceContext;
use crate::device::DeviceContextMap;
use crate::device::DeviceError;
use crate::device::DeviceFunction;
use crate::device::DeviceRates;
use crate::device::HostLink;
use crate::device::KernelArg;
use crate::device::KernelDevice;
use crate::device::KernelError;
use crate::device::Launch;
use crate::device::LaunchSite;
use crate::device::LinkRates;
use crate::device::PartitionGraph;
use crate::device::ProgramDevice;
use crate::device::ProgramSource;
use crate::device::Routines;
use crate::device::RunNumber;
use crate::device::gpu::PlannedGpu;
use crate::graph::Function;
use crate::graph::Graph;
use crate::graph::NodeId;
use crate::names::DeviceName;
use crate::store::CacheFolder;
use crate::tensor::Allocator;
use crate::tensor::DType;
use crate::tensor::HostAllocator;
use crate::tensor::Shape;
use crate::tensor::Tensor;
use crate::tensor::TensorError;

/// Single-precision lanes per multiprocessor, and their clock: the rates use these values until
/// the device is measured.
const LANES: f64 = 128.0;
const CLOCK_HZ: f64 = 1.5e9;

/// A GPU, or a part of one (TensorFlow `BaseGPUDevice`).
#[derive(Debug)]
pub struct GpuDevice {
    base: DeviceBase,
    group: Arc<Group>,
    /// Allocates kernel arguments that are in host memory.
    host: Arc<HostAllocator>,
    /// One per compute stream.
    contexts: Vec<Arc<dyn DeviceContext>>,
    accelerator: AcceleratorInfo,
    cache: Option<Arc<CacheFolder>>,
    options: GpuDeviceOptions,
}

/// Options of a device besides its plan.
#[derive(Debug, Clone, Copy)]
pub(super) struct GpuDeviceOptions {
    /// Whether to wait for each piece of work.
    pub(super) syncs_every_op: bool,
    /// Whether matmuls of `float` may use TensorFloat-32.
    pub(super) allows_tf32: bool,
}

/// A function on a GPU.
#[derive(Debug)]
struct GpuFunction {
    name: String,
    /// Names the function and its program in messages.
    label: String,
    handle: FunctionHandle,
    gpu: Arc<OpenGpu>,
}

impl DeviceFunction for GpuFunction {
    fn name(&self) -> &str {
        &self.name
    }
}

impl GpuDevice {
    /// Creates a planned device on a group of streams and memory.
    pub(super) fn new(
        name: &DeviceName,
        planned: &PlannedGpu,
        group: Arc<Group>,
        cache: Option<Arc<CacheFolder>>,
        options: GpuDeviceOptions,
    ) -> Result<Self, DeviceError> {
        let mut attributes = DeviceAttributes::new(name, DEVICE_TYPE, group.memory.limit_bytes());
        attributes
            .physical_description
            .clone_from(&planned.physical_description);
        let name = attributes.name.clone();
        let contexts: Vec<_> = (0..group.compute.len())
            .map(|compute| {
                Arc::new(GpuContext::new(&name, &group, compute)) as Arc<dyn DeviceContext>
            })
            .collect();
        let accelerator = AcceleratorInfo {
            id: planned.gpu,
            stream: Arc::new(super::streams::LaneStream::new(&name, &group.compute[0])),
            default_context: Arc::clone(&contexts[0]),
            event_manager: Arc::new(super::streams::LaneEvents::new(&group)),
        };
        Ok(Self {
            base: DeviceBase::new(attributes)?.with_locality(planned.locality.clone()),
            host: Arc::new(HostAllocator::new(format!("{name} (host)"), u64::MAX)),
            contexts,
            accelerator,
            group,
            cache,
            options,
        })
    }

    fn name(&self) -> &str {
        &self.base.attributes().name
    }

    /// Returns the memory use.
    pub fn memory_stats(&self) -> GpuMemoryStats {
        self.group.memory.memory_stats()
    }

    fn failed(&self, doing: &str, error: &DriverError) -> DeviceError {
        device_error(self.name(), None, doing, error)
    }

    /// Waits for all work, and returns the first failure of a run, or of any.
    fn finish(&self, step: Option<RunNumber>) -> Result<(), DeviceError> {
        for lane in self.group.lanes() {
            lane.wait_for_all()
                .map_err(|error| self.failed("finishing its work", &error))?;
        }
        match self.group.faults.take(step) {
            Some(fault) => Err(self.input_error(&fault)),
            None => Ok(()),
        }
    }

    fn input_error(&self, fault: &Fault) -> DeviceError {
        DeviceError::Input {
            device: self.name().to_owned(),
            node: fault.site.node.clone(),
            op: fault.site.op.clone(),
            message: fault.message.to_string(),
        }
    }

    pub(super) fn context_of<'a>(
        &'a self,
        context: Option<&'a Arc<dyn DeviceContext>>,
    ) -> Result<&'a GpuContext, KernelError> {
        let context: &dyn Any = &**context.unwrap_or(&self.contexts[0]);
        let context = context.downcast_ref::<GpuContext>();
        context
            .filter(|context| context.is_of(&self.group))
            .ok_or_else(|| {
                KernelError::invalid(format!(
                    "the device context of a launch does not belong to {}",
                    self.base
                ))
            })
    }
}

impl Device for GpuDevice {
    fn base(&self) -> &DeviceBase {
        &self.base
    }

    fn allocator(&self, attributes: AllocatorAttributes) -> Arc<dyn Allocator> {
        match (attributes.on_host, attributes.gpu_compatible) {
            (false, _) => Arc::clone(&self.group.memory) as Arc<dyn Allocator>,
            (true, true) => Arc::clone(&self.group.pinned) as Arc<dyn Allocator>,
            (true, false) => Arc::clone(&self.host) as Arc<dyn Allocator>,
        }
    }

    fn memory_capacity_bytes(&self) -> u64 {
        self.group.memory.limit_bytes()
    }

    /// Documented defaults: 128 lanes at 1.5 GHz per multiprocessor; the memory's nominal rate, or
    /// 500 GB/s if the driver does not report it; a launch takes 3 us, a copy 10 us and 20 GB/s.
    fn rates(&self) -> DeviceRates {
        let facts = self.group.gpu.facts();
        let host_link = HostLink::same(LinkRates {
            latency_ns: 10_000.0,
            ns_per_byte: 0.05,
        });
        DeviceRates {
            flops_per_s: 2.0 * LANES * CLOCK_HZ * f64::from(facts.traits.n_compute_units),
            memory_bytes_per_s: facts.memory_bytes_per_s.unwrap_or(500e9),
            launch_ns: 3_000.0,
            is_calibrated: false,
            queues: 1,
            host_link,
        }
    }

    /// The card's bus address, shared by devices on one card and by the card under other runtimes.
    fn chip(&self) -> Option<&str> {
        Some(&self.group.gpu.facts().physical.pci_bus_id)
    }

    /// GPU memory is already pooled, and is released in the order of the GPU's work.
    fn run_allocator(&self, attributes: AllocatorAttributes, _: RunNumber) -> Arc<dyn Allocator> {
        self.allocator(attributes)
    }

    fn accelerator_info(&self) -> Option<&AcceleratorInfo> {
        Some(&self.accelerator)
    }

    fn sync(&self) -> Result<(), DeviceError> {
        self.finish(None)
    }

    fn sync_run(&self, run: RunNumber) -> Result<(), DeviceError> {
        self.finish(Some(run))
    }

    fn as_kernel_device(&self) -> Option<&dyn KernelDevice> {
        Some(self)
    }
}

impl KernelDevice for GpuDevice {
    fn default_context(&self) -> &Arc<dyn DeviceContext> {
        &self.contexts[0]
    }

    fn fill_context_map(
        &self,
        graph: &Graph,
        nodes: &[NodeId],
    ) -> Result<DeviceContextMap, DeviceError> {
        let streams = assign_streams(graph, nodes, self.contexts.len());
        let contexts = streams
            .into_iter()
            .map(|(node, stream)| (node, Arc::clone(&self.contexts[stream])));
        Ok(contexts.collect())
    }

    fn maybe_rewrite_graph(
        &self,
        _: &[Function],
        graph: &mut PartitionGraph<'_>,
    ) -> Result<(), DeviceError> {
        fuse(graph, &self.group.gpu.facts().traits);
        Ok(())
    }

    fn as_program_device(&self) -> Option<&dyn ProgramDevice> {
        Some(self)
    }
}

impl ProgramDevice for GpuDevice {
    fn compute_traits(&self) -> &ComputeTraits {
        &self.group.gpu.facts().traits
    }

    fn function(
        &self,
        source: &ProgramSource,
        name: &str,
    ) -> Result<Arc<dyn DeviceFunction>, KernelError> {
        let gpu = &self.group.gpu;
        let handle = gpu.function(self.name(), self.cache.as_deref(), source, name)?;
        Ok(Arc::new(GpuFunction {
            name: name.to_owned(),
            label: format!("{name} of {source}"),
            handle,
            gpu: Arc::clone(gpu),
        }))
    }

    fn uninitialized(&self, dtype: DType, shape: Shape) -> Result<Tensor, KernelError> {
        let len_bytes = shape.size_bytes(dtype).map_err(TensorError::from)?;
        let buffer = self.group.uninitialized(self.name(), len_bytes)?;
        Ok(Tensor::from_buffer(dtype, shape, buffer)?)
    }

    fn routines(&self) -> Option<&dyn Routines> {
        Some(self)
    }

    fn launch(&self, launch: Launch<'_>) -> Result<(), KernelError> {
        let function: &dyn Any = &**launch.function;
        let function = function
            .downcast_ref::<GpuFunction>()
            .filter(|function| Arc::ptr_eq(&function.gpu, &self.group.gpu))
            .ok_or_else(|| {
                KernelError::invalid(format!(
                    "function `{}` belongs to another device than {}",
                    launch.function.name(),
                    self.base
                ))
            })?;
        let context = self.context_of(launch.context)?;
        if launch.groups.contains(&0) {
            return Ok(());
        }
        let grid = grid(&launch)?;
        self.launch_on(context, function, grid, &launch)
    }
}

impl GpuDevice {
    fn launch_on(
        &self,
        context: &GpuContext,
        function: &GpuFunction,
        grid: Grid,
        launch: &Launch<'_>,
    ) -> Result<(), KernelError> {
        let doing = || format!("launching `{}`", function.label);
        let failed = |error: DriverError| self.failed_at(launch.site, &doing(), &error);
        let numbers: SmallVec<[[u8; 8]; 12]> = launch.args.iter().map(number_bytes).collect();
        let mut uses: SmallVec<[Use<'_>; 8]> = SmallVec::new();
        let mut arguments: SmallVec<[Argument<'_>; 12]> = SmallVec::new();
        let mut fault = None;
        for (arg, number) in launch.args.iter().zip(&numbers) {
            match arg {
                KernelArg::Read(tensor) => {
                    let (span, memory) = self.parts(tensor)?;
                    uses.push(Use::Reads(memory.uses()));
                    arguments.push(Argument::Read(span));
                }
                KernelArg::Write(tensor) => {
                    let (span, memory) = self.parts(tensor)?;
                    uses.push(Use::Writes(memory.uses()));
                    arguments.push(Argument::Write(span));
                }
                KernelArg::I32(_) | KernelArg::U32(_) | KernelArg::F32(_) => {
                    arguments.push(Argument::Value(&number[..4]));
                }
                KernelArg::I64(_) => arguments.push(Argument::Value(number)),
                KernelArg::Bytes(bytes) => arguments.push(Argument::Value(bytes)),
                // Part of `Grid::shared_bytes`, not a parameter.
                KernelArg::Local(_) => {}
                KernelArg::Fault(message) => {
                    if fault
                        .replace((arguments.len(), Arc::clone(message)))
                        .is_some()
                    {
                        return Err(KernelError::invalid(format!(
                            "{} has two fault arguments; a launch has one fault flag",
                            function.label
                        )));
                    }
                }
            }
        }
        // Taken last, after all other checks.
        let mut slot = None;
        if let Some((index, message)) = fault {
            let (taken, span) = self.group.faults.take_slot().map_err(failed)?;
            slot = Some((taken, message));
            arguments.insert(index, Argument::Write(span));
            arguments.insert(index + 1, Argument::Value(&[0; 4]));
        }
        let given = context.lane().give(
            &uses,
            Some(launch.site),
            None,
            // SAFETY: kernels pass the arguments that their functions take; memory is released
            // with its uses, and fault flags when the launch has ended.
            |driver, stream| unsafe { driver.launch(stream, function.handle, grid, &arguments) },
        );
        if let Some((slot, message)) = slot {
            let fault = Fault {
                step: launch.step,
                site: Arc::clone(launch.site),
                message,
            };
            let ticket = given.as_ref().ok().copied();
            self.group.faults.given(slot, context.lane(), ticket, fault);
        }
        let ticket = given.map_err(failed)?;
        self.synced(context, ticket).map_err(failed)
    }

    /// Waits for a piece of work if the device waits for each one.
    pub(super) fn synced(&self, context: &GpuContext, ticket: Ticket) -> Result<(), DriverError> {
        if self.options.syncs_every_op {
            context.lane().wait(ticket)?;
        }
        Ok(())
    }

    /// Converts the error of a node's work.
    pub(super) fn failed_at(
        &self,
        site: &LaunchSite,
        doing: &str,
        error: &DriverError,
    ) -> KernelError {
        device_error(self.name(), Some(site), doing, error).into()
    }

    pub(super) fn group(&self) -> &Group {
        &self.group
    }

    pub(super) fn allows_tf32(&self) -> bool {
        self.options.allows_tf32
    }

    pub(super) fn parts<'a>(
        &self,
        tensor: &'a Tensor,
    ) -> Result<(Span, &'a super::memory::GpuMemory), KernelError> {
        own_parts(&self.group, tensor).ok_or_else(|| not_here(self.name(), tensor))
    }
}

/// Returns the bytes of a number in the GPU's layout.
fn number_bytes(arg: &KernelArg<'_>) -> [u8; 8] {
    let mut bytes = [0; 8];
    match arg {
        KernelArg::I32(number) => bytes[..4].copy_from_slice(&number.to_le_bytes()),
        KernelArg::U32(number) => bytes[..4].copy_from_slice(&number.to_le_bytes()),
        KernelArg::F32(number) => bytes[..4].copy_from_slice(&number.to_le_bytes()),
        KernelArg::I64(number) => bytes = number.to_le_bytes(),
        _ => {}
    }
    bytes
}

fn grid(launch: &Launch<'_>) -> Result<Grid, KernelError> {
    let too_many = || {
        KernelError::invalid(format!(
            "{:?} groups of {:?} work items exceed the limits of a GPU launch",
            launch.groups, launch.group_size
        ))
    };
    let narrow = |sizes: [usize; 3]| -> Result<[u32; 3], KernelError> {
        let mut out = [0; 3];
        for (slot, size) in out.iter_mut().zip(sizes) {
            *slot = u32::try_from(size).map_err(|_| too_many())?;
        }
        Ok(out)
    };
    let shared = launch.args.iter().map(|arg| match arg {
        KernelArg::Local(len_bytes) => *len_bytes,
        _ => 0,
    });
    Ok(Grid {
        groups: narrow(launch.groups)?,
        group_size: narrow(launch.group_size)?,
        shared_bytes: u32::try_from(shared.sum::<usize>()).map_err(|_| too_many())?,
    })
}
