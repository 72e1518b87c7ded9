//! Devices, kernels and their registries: the traits, and what is common to all backends. No backend.

mod attributes;
mod error;
mod factory;
mod intra_op;
mod kernel;
mod kernel_registry;
mod manager;
mod profile;
mod set;
mod traits;

pub use attributes::{DeviceAttributes, DeviceLocality, LocalLink};
pub use error::{DeviceError, KernelError};
pub use factory::{
    DeviceFactory, DeviceOptions, FactoryRegistry, PhysicalDevice, PhysicalListing, RegisterError,
    Registration,
};
pub use intra_op::IntraOpPool;
pub use kernel::{AsyncKernel, Done, Kernel, KernelConstruction, KernelContext};
pub(crate) use kernel::{Help, OutputSlot, OutputState, unset_output};
pub use kernel_registry::{KernelDef, KernelFactory, KernelLookupError, KernelRegistry};
pub use manager::DeviceManager;
pub use profile::{DeviceProfile, LinkProfile};
pub use set::{DeviceSet, UNREGISTERED_TYPE_PRIORITY};
pub use traits::{AllocatorAttributes, Device, KernelDevice};
