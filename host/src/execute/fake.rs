//! Fake devices, kernels and graphs for the tests of this module and of the partitioner.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::candidates::{HostMemory, PlanColumns};
use crate::device::{
    AllocatorAttributes, Device, DeviceAttributes, DeviceBase, DeviceContext, DeviceRates,
    DeviceSet, IntraOpPool, Kernel, KernelContext, KernelDef, KernelDevice, KernelError,
    KernelRegistry,
};
use crate::graph::{AttrSet, AttrValue, Graph, GraphAssembler, Input, NodeSpec, Output, Work};
use crate::names::DeviceName;
use crate::partition::{Assignment, PartitionError, RunRequest, partition};
use crate::plan::ExecutionPlan;
use crate::tensor::{
    Allocator, AllocatorStats, Buffer, DType, HostAllocator, Literal, LiteralData, Memory,
    MemoryId, OutOfMemory, PartialShape, Shape, Tensor,
};

/// A device that rejects every tensor that is not in its own memory.
#[derive(Debug)]
pub(crate) struct FakeDevice {
    base: DeviceBase,
    context: Arc<dyn DeviceContext>,
    pub(crate) own: Arc<HostAllocator>,
    host: Arc<HostAllocator>,
    /// Whether its type is not CPU: the host cannot read its memory.
    is_opaque: bool,
    /// The memory that plans may use; `own` has no limit.
    capacity_bytes: AtomicU64,
    pool: IntraOpPool,
}

/// Host memory that does not expose its bytes.
#[derive(Debug)]
struct Opaque(Buffer);

#[derive(Debug)]
struct OpaqueAllocator(Arc<HostAllocator>);

impl Memory for Opaque {
    fn id(&self) -> MemoryId {
        self.0.memory_id()
    }
    fn len_bytes(&self) -> usize {
        self.0.len_bytes()
    }
    fn as_host_bytes(&self) -> Option<&[u8]> {
        None
    }
    fn as_host_bytes_mut(&mut self) -> Option<&mut [u8]> {
        None
    }
}

impl Allocator for OpaqueAllocator {
    fn name(&self) -> &str {
        self.0.name()
    }
    fn memory_id(&self) -> MemoryId {
        self.0.memory_id()
    }
    fn allocate(&self, len_bytes: usize) -> Result<Buffer, OutOfMemory> {
        Ok(Buffer::new(Arc::new(Opaque(self.0.allocate(len_bytes)?))))
    }
    fn stats(&self) -> AllocatorStats {
        self.0.stats()
    }
}

impl FakeDevice {
    pub(crate) fn new(device_type: &str, index: u32) -> Arc<Self> {
        let name = DeviceName::full("localhost", 0, 0, device_type, index);
        let attributes = DeviceAttributes::new(&name, device_type, 1 << 28);
        let own = HostAllocator::new(format!("{device_type}:{index}"), u64::MAX);
        let own = Arc::new(own);
        let is_opaque = device_type != "CPU";
        Arc::new(Self {
            base: DeviceBase::new(attributes).unwrap(),
            context: Arc::new(FakeContext {
                own: Arc::clone(&own),
                is_opaque,
            }),
            own,
            host: Arc::new(HostAllocator::new("host", u64::MAX)),
            is_opaque,
            capacity_bytes: AtomicU64::new(1 << 40),
            pool: IntraOpPool::new(2),
        })
    }

    /// Leaves plans too little memory for arenas.
    pub(crate) fn be_short_of_memory(&self) {
        self.capacity_bytes.store(1, Ordering::Relaxed);
    }

    /// Returns a copy of the values in this device's memory.
    pub(crate) fn tensor(&self, shape: &Shape, values: &[f32]) -> Tensor {
        let context = FakeContext {
            own: Arc::clone(&self.own),
            is_opaque: self.is_opaque,
        };
        context.tensor(shape, values)
    }

    /// Returns the values of a tensor in this device's memory.
    pub(crate) fn values(&self, tensor: &Tensor) -> Vec<f32> {
        values(tensor)
    }
}

/// The context of fake devices.
#[derive(Debug)]
struct FakeContext {
    own: Arc<HostAllocator>,
    is_opaque: bool,
}

impl FakeContext {
    fn tensor(&self, shape: &Shape, values: &[f32]) -> Tensor {
        let mut tensor = Tensor::zeros(&*self.own, DType::F32, shape.clone()).unwrap();
        tensor.as_slice_mut().unwrap().copy_from_slice(values);
        if !self.is_opaque {
            return tensor;
        }
        let opaque = Opaque(tensor.buffer().unwrap().clone());
        Tensor::from_buffer(DType::F32, shape.clone(), Buffer::new(Arc::new(opaque))).unwrap()
    }
}

impl DeviceContext for FakeContext {
    fn copy_from_host(&self, tensor: &Tensor) -> Result<Tensor, KernelError> {
        Ok(self.tensor(tensor.shape(), tensor.as_slice()?))
    }
    fn copy_to_host(&self, tensor: &Tensor) -> Result<Tensor, KernelError> {
        Ok(Tensor::from_values(
            tensor.shape().clone(),
            &values(tensor),
        )?)
    }
}

fn values(tensor: &Tensor) -> Vec<f32> {
    let buffer = tensor.buffer().unwrap();
    let opaque = buffer.memory().and_then(|memory| {
        let memory: &dyn std::any::Any = &**memory;
        memory.downcast_ref::<Opaque>()
    });
    let bytes = match opaque {
        Some(opaque) => opaque.0.as_host_bytes().unwrap(),
        None => tensor.as_bytes().unwrap(),
    };
    bytemuck::cast_slice(bytes).to_vec()
}

impl Device for FakeDevice {
    fn base(&self) -> &DeviceBase {
        &self.base
    }
    fn allocator(&self, attributes: AllocatorAttributes) -> Arc<dyn Allocator> {
        if attributes.on_host {
            Arc::clone(&self.host) as _
        } else if self.is_opaque {
            Arc::new(OpaqueAllocator(Arc::clone(&self.own)))
        } else {
            Arc::clone(&self.own) as _
        }
    }
    fn memory_capacity_bytes(&self) -> u64 {
        self.capacity_bytes.load(Ordering::Relaxed)
    }
    fn rates(&self) -> DeviceRates {
        DeviceRates::default_cpu(1)
    }
    fn as_kernel_device(&self) -> Option<&dyn KernelDevice> {
        Some(self)
    }
}

impl KernelDevice for FakeDevice {
    fn default_context(&self) -> &Arc<dyn DeviceContext> {
        &self.context
    }
    fn compute(
        &self,
        kernel: &dyn Kernel,
        context: &mut KernelContext<'_>,
    ) -> Result<(), KernelError> {
        for (index, tensor) in context.inputs().enumerate() {
            let own = Some(self.own.memory_id());
            if tensor.buffer().map(Buffer::memory_id) != own {
                return Err(KernelError::invalid(format!("input {index} is elsewhere")));
            }
        }
        kernel.compute(context)
    }
    fn intra_op_pool(&self) -> Option<&IntraOpPool> {
        Some(&self.pool)
    }
}

/// A wrapper of a fake device, its field `device`. It delegates everything except how it executes
/// nodes, and these methods.
macro_rules! in_front_of_a_fake_device {
    ($front:ty $(, $method:item)*) => {
        impl $crate::device::Device for $front {
            fn base(&self) -> &$crate::device::DeviceBase {
                self.device.base()
            }
            fn allocator(
                &self,
                attributes: $crate::device::AllocatorAttributes,
            ) -> ::std::sync::Arc<dyn $crate::tensor::Allocator> {
                self.device.allocator(attributes)
            }
            fn memory_capacity_bytes(&self) -> u64 {
                self.device.memory_capacity_bytes()
            }
            fn rates(&self) -> $crate::device::DeviceRates {
                self.device.rates()
            }
            fn as_kernel_device(&self) -> Option<&dyn $crate::device::KernelDevice> {
                Some(self)
            }
            $($method)*
        }
    };
}
pub(crate) use in_front_of_a_fake_device;

/// The function of a fake kernel, called with its device and inputs.
pub(crate) type FakeOp =
    dyn Fn(&FakeDevice, &[Vec<f32>]) -> Result<Vec<f32>, KernelError> + Send + Sync;

struct FakeKernel {
    op: Arc<FakeOp>,
    devices: Arc<Vec<Arc<FakeDevice>>>,
}

impl Kernel for FakeKernel {
    fn compute(&self, context: &mut KernelContext<'_>) -> Result<(), KernelError> {
        let name = context.device().name();
        let device = self
            .devices
            .iter()
            .find(|device| device.name() == name)
            .unwrap();
        let inputs: Vec<Vec<f32>> = context
            .inputs()
            .map(|tensor| device.values(tensor))
            .collect();
        let shape = context
            .inputs()
            .next()
            .map_or(Shape::default(), |tensor| tensor.shape().clone());
        let values = (self.op)(device, &inputs)?;
        let output = device.tensor(&shape, &values);
        context.set_output(0, output)
    }
}

/// Devices with kernels: `Sum` adds its inputs, `Neg` negates, `Fail` fails, `Panic` panics; others
/// can be added.
pub(crate) struct FakeWorld {
    pub(crate) devices: Arc<Vec<Arc<FakeDevice>>>,
    pub(crate) registry: KernelRegistry,
}

impl FakeWorld {
    pub(crate) fn new(types: &[&str]) -> Self {
        let mut counts = std::collections::HashMap::<&str, u32>::new();
        let devices = types.iter().map(|&device_type| {
            let index = counts.entry(device_type).or_default();
            *index += 1;
            FakeDevice::new(device_type, *index - 1)
        });
        let mut world = Self {
            devices: Arc::new(devices.collect()),
            registry: KernelRegistry::empty(),
        };
        world.add("Sum", |_, inputs| {
            let mut sum = inputs[0].clone();
            for input in &inputs[1..] {
                sum.iter_mut()
                    .zip(input)
                    .for_each(|(sum, value)| *sum += value);
            }
            Ok(sum)
        });
        world.add("Neg", |_, inputs| {
            Ok(inputs[0].iter().map(|value| -value).collect())
        });
        world.add("Fail", |_, _| Err(KernelError::invalid("it is Tuesday")));
        world.add("Panic", |_, _| panic!("out of cheese"));
        world
    }

    pub(crate) fn add(
        &mut self,
        op: &str,
        f: impl Fn(&FakeDevice, &[Vec<f32>]) -> Result<Vec<f32>, KernelError> + Send + Sync + 'static,
    ) {
        let op_fn: Arc<FakeOp> = Arc::new(f);
        let devices = Arc::clone(&self.devices);
        self.registry
            .register(KernelDef::new(op, "DEFAULT").with_factory(move |_| {
                Ok(Box::new(FakeKernel {
                    op: Arc::clone(&op_fn),
                    devices: Arc::clone(&devices),
                }))
            }));
    }

    pub(crate) fn device_set(&self) -> Arc<DeviceSet> {
        Arc::new(DeviceSet::new(
            self.devices
                .iter()
                .map(|device| Arc::clone(device) as Arc<dyn Device>),
        ))
    }

    pub(crate) fn has_one_memory(&self) -> Vec<bool> {
        self.devices
            .iter()
            .map(|device| !device.is_opaque)
            .collect()
    }
}

/// One line per node, in order: `name = Op(input, input:slot, ^control) @ device`. Tensors are
/// `float [4]`; an op `Two..` has two outputs; a `Const` holds 1, 2, 3, 4.
pub(crate) struct Sketch {
    pub(crate) graph: Arc<Graph>,
    pub(crate) devices: Vec<u32>,
    pub(crate) start_order: Option<Vec<i32>>,
    pub(crate) streamed: Vec<u32>,
}

impl Sketch {
    pub(crate) fn parse(text: &str) -> Self {
        let mut assembler = GraphAssembler::new("sketch");
        let mut devices = Vec::new();
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let (name, rest) = line.split_once(" = ").unwrap();
            let (op, rest) = rest.split_once('(').unwrap();
            let (inputs, device) = rest.split_once(") @ ").unwrap();
            let inputs: Vec<Input> = inputs
                .split(", ")
                .filter(|input| !input.is_empty())
                .map(|input| match input.strip_prefix('^') {
                    Some(node) => Input::Control(assembler.find_node(node).unwrap()),
                    None => {
                        let (node, slot) = input.split_once(':').unwrap_or((input, "0"));
                        Input::Data {
                            node: assembler.find_node(node).unwrap(),
                            slot: slot.parse().unwrap(),
                        }
                    }
                })
                .collect();
            let output = Output {
                dtype: DType::F32,
                is_ref: false,
                shape: PartialShape::new(&[Some(4)]),
            };
            let outputs = vec![output; if op.starts_with("Two") { 2 } else { 1 }];
            let attrs = if op == "Const" {
                let bytes: Vec<u8> = bytemuck::cast_slice(&[1f32, 2.0, 3.0, 4.0]).to_vec();
                let data = LiteralData::Dense(Arc::new(bytes));
                let literal = Literal::new(DType::F32, [4].into(), data).unwrap();
                AttrSet::new([("value".into(), AttrValue::Tensor(Arc::new(literal)))])
            } else {
                AttrSet::default()
            };
            let spec = NodeSpec {
                name,
                op,
                inputs: &inputs,
                requested_device: "",
                attrs,
                outputs: &outputs,
                stateful: false,
                work: Work::default(),
            };
            assembler.add_node(&spec).unwrap();
            devices.push(device.parse().unwrap());
        }
        Self {
            graph: Arc::new(assembler.finish()),
            devices,
            start_order: None,
            streamed: Vec::new(),
        }
    }

    /// Makes all shapes of the graph unknown.
    pub(crate) fn forget_shapes(&mut self) {
        let mut assembler = GraphAssembler::new("sketch");
        for node in self.graph.nodes() {
            let inputs = self.graph.data_inputs(node).map(|tensor| {
                let (node, slot) = self.graph.producer(tensor);
                let slot = u32::try_from(slot).unwrap();
                Input::Data { node, slot }
            });
            let output = Output {
                dtype: DType::F32,
                is_ref: false,
                shape: PartialShape::unknown(),
            };
            let spec = NodeSpec {
                name: self.graph.node_name(node),
                op: self.graph.op(node),
                inputs: &inputs.collect::<Vec<_>>(),
                requested_device: "",
                attrs: self.graph.attrs(node).clone(),
                outputs: &vec![output; self.graph.output_range(node).len()],
                stateful: false,
                work: Work::default(),
            };
            assembler.add_node(&spec).unwrap();
        }
        self.graph = Arc::new(assembler.finish());
    }

    pub(crate) fn partition(
        &self,
        has_one_memory: &[bool],
        request: &RunRequest,
    ) -> Result<ExecutionPlan, PartitionError> {
        let assignment = Assignment {
            graph: &self.graph,
            columns: PlanColumns {
                start_order: self.start_order.as_deref(),
                streamed: &self.streamed,
                ..PlanColumns::of_devices(&self.devices)
            },
            has_one_memory,
            host_memory: &HostMemory::default(),
        };
        partition(&assignment, request)
    }

    /// `feeds` and `fetches` as `node` or `node:slot`, `targets` as nodes.
    pub(crate) fn request(&self, feeds: &[&str], fetches: &[&str], targets: &[&str]) -> RunRequest {
        let tensor = |name: &&str| {
            let (node, slot) = name.split_once(':').unwrap_or((name, "0"));
            let node = self.graph.find_node(node).unwrap();
            self.graph.output(node, slot.parse().unwrap()).unwrap()
        };
        RunRequest {
            feeds: feeds.iter().map(tensor).collect(),
            fetches: fetches.iter().map(tensor).collect(),
            targets: targets
                .iter()
                .map(|name| self.graph.find_node(name).unwrap())
                .collect(),
        }
    }
}
