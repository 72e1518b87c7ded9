//! A device that takes whole partitions and interprets them: it executes the nodes of a cluster one
//! after the other, with the kernels of CPU devices, as one step of the run. It refuses to prepare
//! nodes named `refused`, and panics at nodes named `panicking`.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;

use placewright::device::AllocatorAttributes;
use placewright::device::AsyncKernel;
use placewright::device::AsyncKernelContext;
use placewright::device::Cluster;
use placewright::device::ClusterError;
use placewright::device::ClusterSource;
use placewright::device::Device;
use placewright::device::DeviceBase;
use placewright::device::DeviceContext;
use placewright::device::DeviceError;
use placewright::device::DeviceFactory;
use placewright::device::DeviceOptions;
use placewright::device::DeviceRates;
use placewright::device::Done;
use placewright::device::Kernel;
use placewright::device::KernelContext;
use placewright::device::KernelDevice;
use placewright::device::KernelError;
use placewright::device::KernelRegistry;
use placewright::device::PartitionDevice;
use placewright::device::PhysicalDevice;
use placewright::device::create_kernel;
use placewright::graph::NodeId;
use placewright::tensor::Allocator;
use placewright::tensor::Tensor;

use crate::strict_cpu::StrictCpuFactory;

/// How often interpreters were called.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    /// Number of clusters that were prepared.
    pub(crate) n_prepared: AtomicUsize,
    /// Number of executions of clusters.
    pub(crate) n_executions: AtomicUsize,
    /// Number of nodes that they executed.
    pub(crate) n_nodes: AtomicUsize,
}

/// Creates strict CPU devices, of which every second one is an interpreter: the first of them ends
/// its steps in the call, the next one later on a thread of its own, and so on.
#[derive(Debug, Clone, Default)]
pub(crate) struct InterpreterFactory {
    pub(crate) calls: Arc<Calls>,
}

/// The device.
#[derive(Debug)]
struct Interpreter {
    /// Has memory, context and kernels.
    cpu: Arc<dyn Device>,
    registry: Arc<KernelRegistry>,
    ends_later: bool,
    calls: Arc<Calls>,
}

impl DeviceFactory for InterpreterFactory {
    fn list_physical(&self) -> Result<Vec<PhysicalDevice>, DeviceError> {
        StrictCpuFactory.list_physical()
    }

    fn create(
        &self,
        options: &DeviceOptions,
        prefix: &str,
    ) -> Result<Vec<Arc<dyn Device>>, DeviceError> {
        let mut registry = KernelRegistry::empty();
        StrictCpuFactory.register_kernels(&mut registry);
        let registry = Arc::new(registry);
        let cpus = StrictCpuFactory.create(options, prefix)?.into_iter();
        let devices = cpus.enumerate().map(|(index, cpu)| match index % 2 {
            0 => cpu,
            _ => Arc::new(Interpreter {
                cpu,
                registry: Arc::clone(&registry),
                ends_later: index % 4 == 3,
                calls: Arc::clone(&self.calls),
            }),
        });
        Ok(devices.collect())
    }

    fn register_kernels(&self, registry: &mut KernelRegistry) {
        StrictCpuFactory.register_kernels(registry);
    }
}

impl Device for Interpreter {
    fn base(&self) -> &DeviceBase {
        self.cpu.base()
    }

    fn allocator(&self, attributes: AllocatorAttributes) -> Arc<dyn Allocator> {
        self.cpu.allocator(attributes)
    }

    fn memory_capacity_bytes(&self) -> u64 {
        self.cpu.memory_capacity_bytes()
    }

    fn rates(&self) -> DeviceRates {
        self.cpu.rates()
    }

    fn as_kernel_device(&self) -> Option<&dyn KernelDevice> {
        Some(self)
    }
}

impl KernelDevice for Interpreter {
    fn default_context(&self) -> &Arc<dyn DeviceContext> {
        let cpu = self.cpu.as_kernel_device();
        cpu.expect("CPU devices execute kernels").default_context()
    }

    fn compute(
        &self,
        kernel: &dyn Kernel,
        context: &mut KernelContext<'_>,
    ) -> Result<(), KernelError> {
        let cpu = self.cpu.as_kernel_device();
        cpu.expect("CPU devices execute kernels")
            .compute(kernel, context)
    }

    fn as_partition_device(&self) -> Option<&dyn PartitionDevice> {
        Some(self)
    }
}

impl PartitionDevice for Interpreter {
    fn prepare(&self, cluster: &Cluster<'_>) -> Result<Box<dyn Kernel>, ClusterError> {
        self.calls.n_prepared.fetch_add(1, Relaxed);
        let graph = cluster.graph();
        let nodes = cluster.nodes().iter().enumerate();
        let nodes = nodes.map(|(index, &node)| {
            match graph.node_name(node) {
                "refused" => return Err(ClusterError::new(node, "not on an interpreter")),
                "panicking" => panic!("as the name says"),
                _ => {}
            }
            let kernel = create_kernel(&self.registry, None, graph, node, self);
            Ok(Node {
                id: node,
                name: graph.node_name(node).to_owned(),
                kernel: kernel.map_err(|error| ClusterError::new(node, error.to_string()))?,
                sources: cluster.sources(index).to_vec(),
                outputs_on_host: vec![false; graph.output_range(node).len()],
            })
        });
        let outputs = cluster.outputs().iter();
        let program = Arc::new(Interpreted {
            nodes: nodes.collect::<Result<_, ClusterError>>()?,
            outputs: outputs.map(|it| graph.producer(it.tensor)).collect(),
            calls: Arc::clone(&self.calls),
        });
        Ok(match self.ends_later {
            true => Box::new(EndsLater(program)),
            false => Box::new(EndsInTheCall(program)),
        })
    }
}

/// A cluster, ready to be executed.
struct Interpreted {
    nodes: Vec<Node>,
    /// Node and output of each tensor that leaves the cluster.
    outputs: Vec<(NodeId, usize)>,
    calls: Arc<Calls>,
}

struct Node {
    id: NodeId,
    name: String,
    kernel: Box<dyn Kernel>,
    sources: Vec<ClusterSource>,
    outputs_on_host: Vec<bool>,
}

impl Interpreted {
    fn execute(&self, context: &mut KernelContext<'_>) -> Result<(), KernelError> {
        self.calls.n_executions.fetch_add(1, Relaxed);
        let mut computed: HashMap<(NodeId, usize), Tensor> = HashMap::new();
        for node in &self.nodes {
            let inputs = node.sources.iter().map(|source| match *source {
                ClusterSource::Input(index) => Ok(context.input(index)?.clone()),
                ClusterSource::Node(node, output) => Ok(computed[&(node, output)].clone()),
            });
            let inputs: Vec<Tensor> = inputs.collect::<Result<_, KernelError>>()?;
            let outputs = context
                .compute_inner(&node.name, &*node.kernel, &inputs, &node.outputs_on_host)
                .map_err(|error| error.in_node(node.id))?;
            self.calls.n_nodes.fetch_add(1, Relaxed);
            let outputs = outputs.into_iter().enumerate();
            computed.extend(outputs.map(|(output, tensor)| ((node.id, output), tensor)));
        }
        for (index, output) in self.outputs.iter().enumerate() {
            context.set_output(index, computed[output].clone())?;
        }
        Ok(())
    }
}

struct EndsInTheCall(Arc<Interpreted>);

impl Kernel for EndsInTheCall {
    fn compute(&self, context: &mut KernelContext<'_>) -> Result<(), KernelError> {
        self.0.execute(context)
    }
}

struct EndsLater(Arc<Interpreted>);

impl Kernel for EndsLater {
    fn compute(&self, context: &mut KernelContext<'_>) -> Result<(), KernelError> {
        self.0.execute(context)
    }

    fn as_async(&self) -> Option<&dyn AsyncKernel> {
        Some(self)
    }
}

impl AsyncKernel for EndsLater {
    fn compute_async(&self, mut context: AsyncKernelContext, done: Done) {
        let cluster = Arc::clone(&self.0);
        thread::spawn(move || {
            let result = cluster.execute(&mut context.kernel_context());
            done.call(context, result);
        });
    }
}
