//! The SYCL device: memory, commands, programs.

use std::sync::Arc;
use std::sync::mpsc;

use smallvec::SmallVec;

use super::DEVICE_TYPE;
use super::buffer::RawBuffer;
use super::context::SyclContext;
use super::context::parts;
use super::discover::DeviceClass;
use super::discover::DeviceFacts;
use super::ffi::Context;
use super::ffi::Queue;
use super::memory::SyclAllocator;
use super::program::Programs;
use super::program::SyclFunction;
use super::stream::Argument;
use super::stream::Command;
use super::stream::Stream;
use crate::backend::source::fuse;
use crate::device::AllocatorAttributes;
use crate::device::ComputeTraits;
use crate::device::Device;
use crate::device::DeviceAttributes;
use crate::device::DeviceBase;
use crate::device::DeviceContext;
use crate::device::DeviceError;
use crate::device::DeviceFunction;
use crate::device::DeviceLocality;
use crate::device::DeviceRates;
use crate::device::HOST_PROCESSOR;
use crate::device::HostLink;
use crate::device::KernelArg;
use crate::device::KernelDevice;
use crate::device::KernelError;
use crate::device::Launch;
use crate::device::LinkRates;
use crate::device::PartitionGraph;
use crate::device::ProgramDevice;
use crate::device::ProgramSource;
use crate::device::RunNumber;
use crate::graph::Function;
use crate::names::DeviceName;
use crate::store::CacheFolder;
use crate::tensor::Allocator;
use crate::tensor::DType;
use crate::tensor::HostAllocator;
use crate::tensor::Shape;
use crate::tensor::Tensor;
use crate::tensor::TensorError;

/// An OpenCL device (TensorFlow `SYCLDevice`). It runs kernels in C of the dialect, or in SPIR-V.
#[derive(Debug)]
pub struct SyclDevice {
    base: DeviceBase,
    facts: Arc<DeviceFacts>,
    opencl: Arc<Context>,
    stream: Arc<Stream>,
    memory: Arc<SyclAllocator>,
    /// Allocates kernel arguments that are in host memory.
    host: Arc<HostAllocator>,
    context: Arc<dyn DeviceContext>,
    programs: Programs,
}

impl SyclDevice {
    /// Opens a device in a context that contains it.
    pub(super) fn open(
        name: &DeviceName,
        index: u32,
        facts: DeviceFacts,
        opencl: Arc<Context>,
        capacity_bytes: Option<u64>,
        locality: DeviceLocality,
        cache: Option<Arc<CacheFolder>>,
    ) -> Result<Self, DeviceError> {
        let facts = Arc::new(facts);
        let mut attributes = DeviceAttributes::new(name, DEVICE_TYPE, facts.memory_bytes);
        // Starts like TensorFlow's description; then follows what distinguishes the devices.
        attributes.physical_description = format!(
            "device: {index}, name SYCL, {}, {}",
            facts.description(),
            facts.version
        );
        let name = attributes.name.clone();
        let queue = Queue::new(&opencl, facts.id).map_err(|code| DeviceError::Failed {
            device: name.clone(),
            message: format!("it cannot create a command queue: {code}"),
        })?;
        let stream = Arc::new(Stream::start(
            &name,
            Arc::clone(&opencl),
            queue,
            facts.quirks,
        )?);
        let memory = Arc::new(SyclAllocator::new(
            &name,
            capacity_bytes.unwrap_or(facts.memory_bytes),
            Arc::clone(&opencl),
            Arc::clone(&stream),
            &facts,
        ));
        let context = SyclContext::new(&name, Arc::clone(&memory), Arc::clone(&stream));
        Ok(Self {
            base: DeviceBase::new(attributes)?.with_locality(locality),
            programs: Programs::new(
                &name,
                Arc::clone(&facts),
                Arc::clone(&opencl),
                cache.filter(|_| !facts.quirks.keeps_programs),
            ),
            host: Arc::new(HostAllocator::new(format!("{name} (host)"), u64::MAX)),
            context: Arc::new(context),
            facts,
            opencl,
            stream,
            memory,
        })
    }

    /// Returns the buffer of a tensor of this device.
    fn raw(&self, tensor: &Tensor) -> Result<Arc<RawBuffer>, KernelError> {
        match parts(tensor) {
            Some((buffer, memory)) if buffer.memory_id() == self.memory.memory_id() => {
                Ok(Arc::clone(memory.raw()))
            }
            _ => Err(KernelError::invalid(format!(
                "a tensor ({tensor:?}) is not in the memory of {}; transfer it first",
                self.base
            ))),
        }
    }
}

impl Device for SyclDevice {
    fn base(&self) -> &DeviceBase {
        &self.base
    }

    fn allocator(&self, attributes: AllocatorAttributes) -> Arc<dyn Allocator> {
        if attributes.on_host {
            Arc::clone(&self.host) as Arc<dyn Allocator>
        } else {
            Arc::clone(&self.memory) as Arc<dyn Allocator>
        }
    }

    fn memory_capacity_bytes(&self) -> u64 {
        self.memory.capacity_bytes()
    }

    fn max_allocation_bytes(&self) -> u64 {
        self.facts.max_allocation_bytes
    }

    /// Documented defaults. CPU: 50 GFLOP/s per core under OpenCL, memory 10 GB/s, a launch 5 us, a
    /// copy 10 us and 20 GB/s. Card: 10 TFLOP/s, memory 500 GB/s, copies 20 GB/s.
    fn rates(&self) -> DeviceRates {
        let host_link = HostLink::same(LinkRates {
            latency_ns: 10_000.0,
            ns_per_byte: 0.05,
        });
        let is_cpu = self.facts.class == DeviceClass::Cpu;
        DeviceRates {
            flops_per_s: if is_cpu {
                50e9 * f64::from(self.facts.traits.n_compute_units)
            } else {
                10e12
            },
            memory_bytes_per_s: if is_cpu { 10e9 } else { 500e9 },
            launch_ns: 5_000.0,
            is_calibrated: false,
            queues: 1,
            host_link,
        }
    }

    /// The host's processor, which several runtimes may share, or the bus address of a card.
    fn chip(&self) -> Option<&str> {
        match self.facts.class {
            DeviceClass::Cpu => Some(HOST_PROCESSOR),
            _ => self.facts.pci_address.as_deref(),
        }
    }

    fn chip_threads(&self) -> Option<usize> {
        let is_host = self.facts.class == DeviceClass::Cpu;
        is_host.then(|| self.facts.traits.n_compute_units as usize)
    }

    /// Device memory is already pooled, and is released in the order of the device's work.
    fn run_allocator(&self, attributes: AllocatorAttributes, _: RunNumber) -> Arc<dyn Allocator> {
        self.allocator(attributes)
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

impl SyclDevice {
    /// Waits for all work, and returns the first failure of a run, or of any.
    fn finish(&self, step: Option<RunNumber>) -> Result<(), DeviceError> {
        let (sender, receiver) = mpsc::channel();
        let done = Box::new(move |finished| drop(sender.send(finished)));
        self.stream.execute(Command::Finish { step, done })?;
        receiver.recv().unwrap_or_else(|_| {
            Err(DeviceError::Failed {
                device: self.attributes().name.clone(),
                message: "the thread for its commands has ended".to_owned(),
            })
        })
    }
}

impl KernelDevice for SyclDevice {
    fn default_context(&self) -> &Arc<dyn DeviceContext> {
        &self.context
    }

    fn maybe_rewrite_graph(
        &self,
        _: &[Function],
        graph: &mut PartitionGraph<'_>,
    ) -> Result<(), DeviceError> {
        fuse(graph, &self.facts.traits);
        Ok(())
    }

    fn flush(&self) {
        self.stream.flush();
    }

    fn assist(&self, is_wanted: &dyn Fn() -> bool) {
        self.stream.assist(is_wanted);
    }

    fn as_program_device(&self) -> Option<&dyn ProgramDevice> {
        Some(self)
    }
}

impl ProgramDevice for SyclDevice {
    fn compute_traits(&self) -> &ComputeTraits {
        &self.facts.traits
    }

    fn function(
        &self,
        source: &ProgramSource,
        name: &str,
    ) -> Result<Arc<dyn DeviceFunction>, KernelError> {
        Ok(self.programs.function(source, name)?)
    }

    fn uninitialized(&self, dtype: DType, shape: Shape) -> Result<Tensor, KernelError> {
        let len_bytes = shape.size_bytes(dtype).map_err(TensorError::from)?;
        let buffer = self.memory.uninitialized(len_bytes);
        let buffer = buffer.map_err(TensorError::from)?;
        Ok(Tensor::from_buffer(dtype, shape, buffer)?)
    }

    fn launch(&self, launch: Launch<'_>) -> Result<(), KernelError> {
        let function = Arc::clone(launch.function) as Arc<dyn std::any::Any + Send + Sync>;
        let function = function
            .downcast::<SyclFunction>()
            .ok()
            .filter(|function| function.is_of(&self.opencl))
            .ok_or_else(|| {
                KernelError::invalid(format!(
                    "function `{}` belongs to another device than {}",
                    launch.function.name(),
                    self.base
                ))
            })?;
        let mut arguments: SmallVec<[Argument; 8]> = SmallVec::new();
        for arg in launch.args {
            arguments.push(match *arg {
                KernelArg::Read(tensor) => Argument::Read(self.raw(tensor)?),
                KernelArg::Write(tensor) => Argument::Write(self.raw(tensor)?),
                KernelArg::I32(number) => Argument::Scalar(number.to_ne_bytes()),
                KernelArg::U32(number) => Argument::Scalar(number.to_ne_bytes()),
                KernelArg::F32(number) => Argument::Scalar(number.to_ne_bytes()),
                KernelArg::I64(number) => Argument::Long(number.to_ne_bytes()),
                KernelArg::Bytes(bytes) => Argument::Bytes(bytes.into()),
                KernelArg::Local(len_bytes) => Argument::Local(len_bytes),
                KernelArg::Fault(message) => Argument::Fault(Arc::clone(message)),
            });
        }
        // Drivers reject launches without work items; there is nothing to do then.
        if launch.groups.contains(&0) {
            return Ok(());
        }
        let sizes = launch.groups.iter().zip(launch.group_size);
        if sizes
            .into_iter()
            .any(|(n, size)| n.checked_mul(size).is_none())
        {
            return Err(KernelError::invalid(format!(
                "{:?} groups of {:?} work items are more than can be counted",
                launch.groups, launch.group_size
            )));
        }
        self.stream.send_later(Command::Launch {
            site: Arc::clone(launch.site),
            step: launch.step,
            function,
            groups: launch.groups,
            group_size: launch.group_size,
            arguments,
        })?;
        Ok(())
    }
}
