//! An app's own device type: a simulated accelerator `NPU`, with a memory that the host cannot
//! read, and its own kernels. Everything treats it like a built-in type: names, placement,
//! policies, transfers, and the program.
//!
//! ```console
//! $ cargo run --example own_device
//! $ cargo run --example own_device -- devices
//! $ cargo run --example own_device -- run tests/models/tiny_add.pb --device /device:NPU:0 --soft-placement
//! ```

use std::any::Any;
use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use placewright::builder::BuildError;
use placewright::builder::GraphBuilder;
use placewright::device::AllocatorAttributes;
use placewright::device::Device;
use placewright::device::DeviceAttributes;
use placewright::device::DeviceBase;
use placewright::device::DeviceContext;
use placewright::device::DeviceDetails;
use placewright::device::DeviceError;
use placewright::device::DeviceFactory;
use placewright::device::DeviceOptions;
use placewright::device::DeviceRates;
use placewright::device::HostLink;
use placewright::device::Kernel;
use placewright::device::KernelContext;
use placewright::device::KernelDef;
use placewright::device::KernelDevice;
use placewright::device::KernelError;
use placewright::device::KernelRegistry;
use placewright::device::LinkRates;
use placewright::device::PhysicalDevice;
use placewright::graph::Graph;
use placewright::names::DeviceName;
use placewright::policy::PolicyRequest;
use placewright::policy::ShippedPolicy;
use placewright::registry::Registry;
use placewright::session::Session;
use placewright::tensor::Allocator;
use placewright::tensor::AllocatorStats;
use placewright::tensor::Buffer;
use placewright::tensor::DType;
use placewright::tensor::HostAllocator;
use placewright::tensor::Memory;
use placewright::tensor::MemoryId;
use placewright::tensor::OutOfMemory;
use placewright::tensor::Tensor;

/// Number of NPUs in the machine.
const N_NPUS: u32 = 2;

/// Memory of each NPU, in bytes.
const MEMORY_BYTES: u64 = 64 << 20;

placewright::registrar! {
    /// The devices of this app, whose factory registers their kernels. An app with a separate crate
    /// for its devices exports this constant there.
    pub(crate) const NPU = {
        device_factory "NPU", 230 => NpuFactory;
    }
}

#[allow(dead_code, reason = "the tests include this file and call the rest")]
#[expect(clippy::print_stdout, reason = "an example shows what it does")]
fn main() -> Result<ExitCode, Box<dyn Error>> {
    // With arguments, this is the program `placewright` with the devices of this app.
    if std::env::args_os().len() > 1 {
        return Ok(placewright::cli::main_with(Registry::default().with(NPU)?));
    }
    for outcome in run()? {
        println!("policy {}", outcome.policy);
        for (node, device) in &outcome.placed {
            println!("  {node:<8} {device}");
        }
        println!("  {} tensors cross devices", outcome.n_transfers);
        println!("  y = {:?}\n", outcome.y);
    }
    Ok(ExitCode::SUCCESS)
}

/// The outcome of the graph under one policy.
pub(crate) struct Outcome {
    /// The policy that placed it.
    pub(crate) policy: &'static str,
    /// Node and device.
    pub(crate) placed: Vec<(String, String)>,
    /// Number of tensors transferred between devices in a run.
    pub(crate) n_transfers: usize,
    /// `y`, for x = -1, 2, 3.
    pub(crate) y: Vec<f32>,
}

/// Places and runs a graph under each shipped policy.
pub(crate) fn run() -> Result<Vec<Outcome>, Box<dyn Error>> {
    let graph = Arc::new(graph()?);
    ["priority", "heft", "round-robin"]
        .into_iter()
        .map(|policy| outcome(&graph, policy))
        .collect()
}

/// `y = tanh(relu(x) + relu(x))`: NPUs have no kernel for `Tanh`, and the first `Relu` requests the
/// second NPU.
fn graph() -> Result<Graph, BuildError> {
    let b = GraphBuilder::new("graph");
    let x = b.placeholder::<f32>("x", [3])?;
    let positive = b.device("/device:NPU:1")?.named("positive").relu(x)?;
    let twice = b.named("twice").add(positive, positive)?;
    b.named("y").tanh(twice)?;
    Ok(b.finish())
}

fn outcome(graph: &Arc<Graph>, policy: &'static str) -> Result<Outcome, Box<dyn Error>> {
    let session = Session::builder()
        .with_graph(Arc::clone(graph))
        .with_registry(Registry::default().with(NPU)?)
        // The same devices on every machine.
        .with_device_count("SYCL", 0)
        .with_device_count("GPU", 0)
        .with_policy(PolicyRequest::new(ShippedPolicy::find(policy)?).with_strict(true))
        .build()?;
    let plan = session.plan(&["x"], &["y"], &[])?;
    let x = Tensor::from_values([3], &[-1.0f32, 2.0, 3.0])?;
    let fetched = session.run(&[("x", x)], &["y"])?;
    let (devices, placement) = (session.devices(), session.placement());
    let placed = graph.nodes().map(|node| {
        let device = placement.device(node);
        let (_, device) = devices
            .iter()
            .find(|&(id, _)| id == device)
            .expect("a placement names devices of its session");
        (
            graph.node_name(node).to_owned(),
            device.attributes().name.clone(),
        )
    });
    Ok(Outcome {
        policy,
        placed: placed.collect(),
        n_transfers: plan.transfers().len(),
        y: fetched[0].as_slice::<f32>()?.to_vec(),
    })
}

/// Finds and opens the devices.
#[derive(Debug)]
struct NpuFactory;

impl DeviceFactory for NpuFactory {
    fn list_physical(&self) -> Result<Vec<PhysicalDevice>, DeviceError> {
        let physical = |index| PhysicalDevice {
            name: format!("/physical_device:NPU:{index}"),
            description: description(index),
        };
        Ok((0..N_NPUS).map(physical).collect())
    }

    fn details(&self, _: usize) -> Result<DeviceDetails, DeviceError> {
        let name = ("device_name".to_owned(), "Simulated NPU".to_owned());
        Ok(DeviceDetails::from([name]))
    }

    /// Creates one device per NPU, or fewer if `device_count` limits them.
    fn create(
        &self,
        options: &DeviceOptions,
        prefix: &str,
    ) -> Result<Vec<Arc<dyn Device>>, DeviceError> {
        let wanted = options.device_count.get("NPU").copied().unwrap_or(N_NPUS);
        let open = |index| {
            let name = DeviceName::parse_full(&format!("{prefix}/device:NPU:{index}"))
                .map_err(|error| DeviceError::InvalidArgument(error.to_string()))?;
            let bytes = options.memory_bytes_of(&name)?.unwrap_or(MEMORY_BYTES);
            Ok(Arc::new(Npu::open(&name, index, bytes)?) as Arc<dyn Device>)
        };
        (0..wanted.min(N_NPUS)).map(open).collect()
    }

    fn register_kernels(&self, registry: &mut KernelRegistry) {
        for (op, function) in [
            ("Relu", Function::Unary(|x| x.max(0.0))),
            ("AddV2", Function::Binary(|x, y| x + y)),
        ] {
            let def = KernelDef::new(op, "NPU").with_types("T", &[DType::F32]);
            registry.register(def.with_factory(move |_| Ok(Box::new(Elementwise(function)))));
        }
    }
}

fn description(index: u32) -> String {
    format!("device: {index}, name: Simulated NPU")
}

/// An open device.
#[derive(Debug)]
struct Npu {
    base: DeviceBase,
    memory: Arc<NpuAllocator>,
    context: Arc<dyn DeviceContext>,
    /// Allocates kernel arguments that are in host memory.
    host: Arc<HostAllocator>,
}

impl Npu {
    fn open(name: &DeviceName, index: u32, memory_bytes: u64) -> Result<Self, DeviceError> {
        let mut attributes = DeviceAttributes::new(name, "NPU", memory_bytes);
        attributes.physical_description = description(index);
        let memory = NpuAllocator {
            name: attributes.name.clone(),
            id: MemoryId::new(),
            limit_bytes: memory_bytes,
            in_use_bytes: Arc::default(),
            peak_bytes: AtomicU64::new(0),
            n_allocations: AtomicU64::new(0),
        };
        let host = HostAllocator::new(format!("{} (host)", attributes.name), u64::MAX);
        let memory = Arc::new(memory);
        Ok(Self {
            base: DeviceBase::new(attributes)?,
            context: Arc::new(NpuContext(Arc::clone(&memory))),
            memory,
            host: Arc::new(host),
        })
    }
}

impl Device for Npu {
    fn base(&self) -> &DeviceBase {
        &self.base
    }

    fn allocator(&self, attributes: AllocatorAttributes) -> Arc<dyn Allocator> {
        if attributes.on_host {
            return Arc::clone(&self.host) as Arc<dyn Allocator>;
        }
        Arc::clone(&self.memory) as Arc<dyn Allocator>
    }

    fn memory_capacity_bytes(&self) -> u64 {
        self.memory.limit_bytes
    }

    fn rates(&self) -> DeviceRates {
        DeviceRates {
            flops_per_s: 2e12,
            memory_bytes_per_s: 100e9,
            launch_ns: 2_000.0,
            is_calibrated: false,
            queues: 1,
            host_link: HostLink::same(LinkRates {
                latency_ns: 5_000.0,
                ns_per_byte: 0.1,
            }),
        }
    }

    fn as_kernel_device(&self) -> Option<&dyn KernelDevice> {
        Some(self)
    }
}

impl KernelDevice for Npu {
    fn default_context(&self) -> &Arc<dyn DeviceContext> {
        &self.context
    }
}

/// Copies to and from one device's memory.
#[derive(Debug)]
struct NpuContext(Arc<NpuAllocator>);

impl DeviceContext for NpuContext {
    fn copy_from_host(&self, tensor: &Tensor) -> Result<Tensor, KernelError> {
        // Strings belong to the host, whatever the device.
        if tensor.buffer().is_none() {
            return Ok(tensor.clone());
        }
        let buffer = self.0.filled(tensor.as_bytes()?);
        let buffer = buffer.map_err(DeviceError::from)?;
        Ok(Tensor::from_buffer(
            tensor.dtype(),
            tensor.shape().clone(),
            buffer,
        )?)
    }

    fn copy_to_host(&self, tensor: &Tensor) -> Result<Tensor, KernelError> {
        if tensor.buffer().is_none() {
            return Ok(tensor.clone());
        }
        let bytes = read(tensor)?;
        Ok(Tensor::from_bytes(
            tensor.dtype(),
            tensor.shape().clone(),
            &bytes,
        )?)
    }
}

/// Allocates the memory of one device.
#[derive(Debug)]
struct NpuAllocator {
    name: String,
    id: MemoryId,
    limit_bytes: u64,
    in_use_bytes: Arc<AtomicU64>,
    peak_bytes: AtomicU64,
    n_allocations: AtomicU64,
}

impl NpuAllocator {
    /// Allocates memory of the device with these bytes. A driver would copy them there.
    fn filled(&self, bytes: &[u8]) -> Result<Buffer, OutOfMemory> {
        let len = bytes.len() as u64;
        let fits = |in_use: u64| {
            let sum = in_use.checked_add(len);
            sum.filter(|&sum| sum <= self.limit_bytes)
        };
        let before = self
            .in_use_bytes
            .fetch_update(Relaxed, Relaxed, fits)
            .map_err(|in_use_bytes| OutOfMemory {
                allocator: self.name.clone(),
                requested_bytes: bytes.len(),
                in_use_bytes,
                limit_bytes: self.limit_bytes,
            })?;
        self.peak_bytes.fetch_max(before + len, Relaxed);
        self.n_allocations.fetch_add(1, Relaxed);
        Ok(Buffer::new(Arc::new(NpuMemory {
            id: self.id,
            bytes: Mutex::new(bytes.into()),
            len_bytes: bytes.len(),
            in_use_bytes: Arc::clone(&self.in_use_bytes),
        })))
    }
}

impl Allocator for NpuAllocator {
    fn name(&self) -> &str {
        &self.name
    }

    fn memory_id(&self) -> MemoryId {
        self.id
    }

    fn allocate(&self, len_bytes: usize) -> Result<Buffer, OutOfMemory> {
        self.filled(&vec![0; len_bytes])
    }

    fn stats(&self) -> AllocatorStats {
        AllocatorStats {
            in_use_bytes: self.in_use_bytes.load(Relaxed),
            peak_bytes: self.peak_bytes.load(Relaxed),
            n_allocations: self.n_allocations.load(Relaxed),
        }
    }
}

/// One allocation. The simulation stores its bytes in host memory, but does not expose them.
#[derive(Debug)]
struct NpuMemory {
    id: MemoryId,
    bytes: Mutex<Box<[u8]>>,
    len_bytes: usize,
    in_use_bytes: Arc<AtomicU64>,
}

impl Memory for NpuMemory {
    fn id(&self) -> MemoryId {
        self.id
    }

    fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    fn as_host_bytes(&self) -> Option<&[u8]> {
        None
    }

    fn as_host_bytes_mut(&mut self) -> Option<&mut [u8]> {
        None
    }
}

impl Drop for NpuMemory {
    fn drop(&mut self) {
        self.in_use_bytes.fetch_sub(self.len_bytes as u64, Relaxed);
    }
}

/// Returns the allocation that contains a tensor.
fn memory_of(tensor: &Tensor) -> Result<(&Buffer, &NpuMemory), KernelError> {
    let found = tensor.buffer().and_then(|buffer| {
        let memory: &dyn Any = &**buffer.memory()?;
        Some((buffer, memory.downcast_ref::<NpuMemory>()?))
    });
    found.ok_or_else(|| KernelError::invalid("the tensor is not in the memory of an NPU"))
}

/// Returns the bytes of a tensor of the device. A driver would copy them to the host.
fn read(tensor: &Tensor) -> Result<Vec<u8>, KernelError> {
    let (buffer, memory) = memory_of(tensor)?;
    let bytes = memory.bytes.lock().unwrap_or_else(PoisonError::into_inner);
    let start = buffer.offset_bytes();
    Ok(bytes[start..start + buffer.len_bytes()].to_vec())
}

/// What the device's processor computes for each element.
#[derive(Debug, Clone, Copy)]
enum Function {
    Unary(fn(f32) -> f32),
    Binary(fn(f32, f32) -> f32),
}

/// A kernel of the device.
struct Elementwise(Function);

impl Kernel for Elementwise {
    fn compute(&self, context: &mut KernelContext<'_>) -> Result<(), KernelError> {
        let x = context.input(0)?;
        let read =
            |index| -> Result<Vec<f32>, KernelError> { Ok(floats(&read(context.input(index)?)?)) };
        let values: Vec<f32> = match self.0 {
            Function::Unary(function) => read(0)?.into_iter().map(function).collect(),
            Function::Binary(function) => {
                let y = context.input(1)?;
                if x.shape() != y.shape() {
                    return Err(KernelError::Unimplemented(format!(
                        "broadcasting of {} and {} on an NPU",
                        x.shape(),
                        y.shape()
                    )));
                }
                let pairs = read(0)?.into_iter().zip(read(1)?);
                pairs.map(|(x, y)| function(x, y)).collect()
            }
        };
        let output = context.allocate_output(0, DType::F32, x.shape().clone())?;
        {
            let (_, memory) = memory_of(&output)?;
            let mut bytes = memory.bytes.lock().unwrap_or_else(PoisonError::into_inner);
            for (out, value) in bytes.chunks_exact_mut(4).zip(values) {
                out.copy_from_slice(&value.to_ne_bytes());
            }
        }
        context.set_output(0, output)
    }
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    let words = bytes.chunks_exact(4);
    words
        .map(|word| f32::from_ne_bytes(word.try_into().expect("chunks of four")))
        .collect()
}
