//! Devices, kernels and their registries: the traits, and the common parts of all backends. No
//! backend is here.

mod async_kernel;
mod attributes;
mod base;
mod cancel;
mod context;
mod error;
mod factory;
mod factory_registry;
pub mod gpu;
mod interrupts;
mod intra_op;
mod kernel;
mod kernel_context;
mod kernel_creation;
mod kernel_registry;
mod manager;
mod numa;
mod op_segment;
mod output_slot;
mod partition_device;
mod partition_graph;
mod program;
mod rates;
mod remote;
mod renamed;
mod resource;
mod routines;
mod run;
mod set;
mod simple;
mod status;
mod surroundings;
mod topology;
mod traits;

pub use async_kernel::{AsyncKernel, AsyncKernelContext, Done};
pub(crate) use attributes::DEVICE_CPU;
pub use attributes::{DeviceAttributes, DeviceLocality, LocalLink};
pub use base::DeviceBase;
pub use cancel::{CancelToken, OnCancel};
pub use context::{
    AcceleratorInfo, AccessedTensors, CopyDone, DeviceContext, DeviceContextMap, EventManager,
    HostMemoryContext, Stream,
};
pub use error::{DeviceError, KernelError};
pub use factory::{
    DeviceDetails, DeviceFactory, DeviceOptions, IntraOpPools, PhysicalDevice, PinnedHostMemory,
};
pub use factory_registry::{
    DEFAULT_FACTORY_PRIORITY, ENABLED_TYPES_VARIABLE, FactoryRegistry, GPU_COMPATIBLE_CPU_PRIORITY,
    PhysicalListing, RegisterError, Registration,
};
pub(crate) use interrupts::Interrupt;
pub use interrupts::Interrupts;
pub use intra_op::IntraOpPool;
pub use kernel::{Kernel, KernelConstruction};
pub use kernel_context::KernelContext;
pub(crate) use kernel_context::{Help, unset_output};
pub use kernel_creation::KernelCreationError;
pub(crate) use kernel_creation::check_constant;
pub(crate) use kernel_creation::check_node;
pub(crate) use kernel_creation::construct_kernel;
pub use kernel_creation::create_kernel;
pub(crate) use kernel_creation::panic_message;
pub use kernel_registry::KernelMatch;
pub use kernel_registry::{KernelDef, KernelFactory, KernelLookupError, KernelRegistry};
pub use manager::DeviceManager;
pub use numa::{
    NumaNode, NumaTopology, PciDevice, SYSTEM_ROOT, TopologyError, parse_cpu_list, pci_devices,
    pci_numa_node, schedulable_cpus,
};
pub use op_segment::{NoSuchSession, OpSegment};
pub(crate) use output_slot::{OutputSlot, OutputState};
pub(crate) use partition_device::ClusterNodes;
pub use partition_device::{Cluster, ClusterError, ClusterSource, ClusterTensor, PartitionDevice};
pub use partition_graph::{FuseError, FusedNode, PartitionGraph};
pub(crate) use partition_graph::{PlainKernels, PlanIndex};
pub use program::{
    ComputeTraits, DeviceFunction, KernelArg, Launch, LaunchSite, ProcessorKind, ProgramCode,
    ProgramDevice, ProgramSource,
};
pub use rates::{DeviceRates, HostLink, LinkRates};
pub use remote::{
    DiscoveryOptions, GetStatusDone, LEAVE_OUT_TPUS_VARIABLE, Once, RemoteDevice, Worker,
    WorkerCache, devices_from_attributes, discover_devices, new_remote_devices,
};
pub use renamed::RenamedDevice;
pub use resource::{ContainerInfo, Resource, ResourceError, ResourceManager, make_resource_handle};
pub use routines::{
    Activation, RoutineConvolution, RoutineMatmul, RoutineMatrices, RoutineSite, RoutineWindow,
    Routines,
};
pub use run::{DeviceRun, RunAllocator, RunNumber};
pub use set::{DeviceSet, UNREGISTERED_TYPE_PRIORITY};
pub use simple::SimpleDevice;
pub use status::StatusCode;
pub(crate) use surroundings::Surroundings;
pub use topology::{Port, Topology, TopologyDevice, TopologyHost};
pub use traits::{AllocatorAttributes, Device, HOST_PROCESSOR, KernelDevice};
