//! SYCL devices: OpenCL devices, under the type name that TensorFlow gave them.
//!
//! The factory turns device options into [`SyclDevice`]s and registers the kernels of
//! `backend/source`. The OpenCL library is loaded when devices are first listed; a machine without
//! it has no SYCL devices.
//!
//! | file | what |
//! |---|---|
//! | `discover.rs` | which devices there are |
//! | `device.rs` | the device |
//! | `context.rs` | copies to and from its memory |
//! | `memory.rs` | allocator and pool |
//! | `buffer.rs` | what commands wait for |
//! | `stream.rs` | sends commands, and the thread that calls the driver |
//! | `lane.rs` | the queue of commands, and which thread executes them |
//! | `worker.rs` | gives commands to the driver: their order and failures |
//! | `ends.rs` | the ends of commands, and which failures are reported to whom |
//! | `order.rs` | which commands have ended, and what must be waited for |
//! | `command_counter.rs` | how many commands the driver has received |
//! | `pocl.rs` | what PoCL gets wrong |
//! | `program.rs` | compiled programs and their cache |
//! | `ffi.rs` | all calls into OpenCL |
//! | `reference.rs` | work given directly to the driver, for benchmarks |

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use crate::device::Device;
use crate::device::DeviceDetails;
use crate::device::DeviceError;
use crate::device::DeviceFactory;
use crate::device::DeviceLocality;
use crate::device::DeviceOptions;
use crate::device::KernelRegistry;
use crate::device::PhysicalDevice;
use crate::device::SYSTEM_ROOT;
use crate::device::pci_numa_node;
use crate::names::DeviceName;

mod buffer;
mod command_counter;
mod context;
mod device;
mod discover;
mod ends;
#[expect(unsafe_code, reason = "calls into OpenCL")]
mod ffi;
mod lane;
mod memory;
mod order;
mod pocl;
mod program;
#[cfg(feature = "cli")]
mod reference;
mod stream;
mod sync;
mod worker;

#[doc(hidden)]
pub use context::call_within_a_command;
pub use device::SyclDevice;
use discover::DeviceFacts;
use ffi::Context;
#[cfg(feature = "cli")]
pub(crate) use reference::Reference;

/// The type of these devices.
pub const DEVICE_TYPE: &str = "SYCL";

/// Priority of their factory, TensorFlow's.
pub const PRIORITY: i32 = 200;

/// The factory of SYCL devices (TensorFlow `SYCLDeviceFactory`). It creates one for each OpenCL
/// device, or exactly `device_count["SYCL"]`, if there are that many. GPUs come first, CPUs last.
/// Devices of one platform share an OpenCL context, so that tensors are copied between them without
/// passing through the host.
#[derive(Debug, Clone, Copy, Default)]
pub struct SyclDeviceFactory;

impl SyclDeviceFactory {
    /// Returns the OpenCL devices that the options request.
    fn wanted(options: &DeviceOptions) -> Result<Vec<DeviceFacts>, DeviceError> {
        let count = options.device_count.get(DEVICE_TYPE).copied();
        let found = match (count, discover::devices()) {
            // No devices were requested.
            (None, Err(DeviceError::Absent { .. })) => return Ok(Vec::new()),
            (_, found) => found?,
        };
        let Some(count) = count else {
            return Ok(found);
        };
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        if count > found.len() {
            let names: Vec<String> = found.iter().map(DeviceFacts::description).collect();
            return Err(DeviceError::InvalidArgument(format!(
                "device_count requests {count} SYCL devices, but OpenCL has {}: {}; request fewer",
                found.len(),
                names.join("; ")
            )));
        }
        Ok(found.into_iter().take(count).collect())
    }
}

/// Returns a card's place in the machine, if the system knows it.
fn locality(facts: &DeviceFacts, root: &Path) -> DeviceLocality {
    let node = facts
        .pci_address
        .as_ref()
        .and_then(|address| pci_numa_node(root, address).ok());
    node.map_or_else(DeviceLocality::default, DeviceLocality::on_numa_node)
}

impl DeviceFactory for SyclDeviceFactory {
    fn list_physical(&self) -> Result<Vec<PhysicalDevice>, DeviceError> {
        let found = discover::devices()?;
        let physical = (0..)
            .zip(&found)
            .map(|(index, facts): (u32, _)| PhysicalDevice {
                name: format!("/physical_device:{DEVICE_TYPE}:{index}"),
                description: facts.description(),
            });
        Ok(physical.collect())
    }

    fn details(&self, index: usize) -> Result<DeviceDetails, DeviceError> {
        let found = discover::devices()?;
        let facts = found.get(index).ok_or_else(|| {
            DeviceError::InvalidArgument(format!(
                "there is no SYCL device {index}, OpenCL has {}",
                found.len()
            ))
        })?;
        Ok(facts.details())
    }

    fn create(
        &self,
        options: &DeviceOptions,
        prefix: &str,
    ) -> Result<Vec<Arc<dyn Device>>, DeviceError> {
        // If no devices are requested, do not wait for drivers.
        if options.device_count.get(DEVICE_TYPE) == Some(&0) {
            return Ok(Vec::new());
        }
        let found = Self::wanted(options)?;
        let root = options.system_root.as_deref();
        let root = root.unwrap_or_else(|| Path::new(SYSTEM_ROOT));
        let mut contexts: HashMap<usize, Arc<Context>> = HashMap::new();
        let mut devices: Vec<Arc<dyn Device>> = Vec::new();
        for (index, facts) in (0..).zip(&found) {
            let text = format!("{prefix}/device:{DEVICE_TYPE}:{index}");
            let name = DeviceName::parse_full(&text)
                .map_err(|error| DeviceError::InvalidArgument(error.to_string()))?;
            let context = match contexts.get(&facts.platform_idx) {
                Some(context) => Arc::clone(context),
                None => {
                    let of_platform = found
                        .iter()
                        .filter(|other| other.platform_idx == facts.platform_idx);
                    let ids: Vec<_> = of_platform.map(|facts| facts.id).collect();
                    let context = Context::new(&ids).map_err(|code| DeviceError::Failed {
                        device: text.clone(),
                        message: format!(
                            "{} cannot create a context: {code}; check it with `clinfo`",
                            facts.description()
                        ),
                    })?;
                    let context = Arc::new(context);
                    contexts.insert(facts.platform_idx, Arc::clone(&context));
                    context
                }
            };
            let device = SyclDevice::open(
                &name,
                index,
                facts.clone(),
                context,
                options.memory_bytes_of(&name)?,
                locality(facts, root),
                options.program_cache.clone(),
            )?;
            devices.push(Arc::new(device));
        }
        Ok(devices)
    }

    fn register_kernels(&self, registry: &mut KernelRegistry) {
        super::source::register(registry, DEVICE_TYPE);
    }
}
