//! The factories of a process, one per device type.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::sync::Arc;

use tracing::info;

use crate::device::error::DeviceError;
use crate::device::factory::DeviceDetails;
use crate::device::factory::DeviceFactory;
use crate::device::factory::DeviceOptions;
use crate::device::factory::FILTER_OPTION;
use crate::device::factory::MEMORY_OPTION;
use crate::device::factory::PhysicalDevice;
use crate::device::factory::parse_memory_key;
use crate::device::factory::parse_option;
use crate::device::kernel_registry::KernelRegistry;
use crate::device::set::DeviceSet;
use crate::device::set::UNREGISTERED_TYPE_PRIORITY;
use crate::device::traits::Device;
use crate::trace::targets;

/// Lists the enabled device types, separated by commas; unset or empty means all. TensorFlow's
/// variable.
pub const ENABLED_TYPES_VARIABLE: &str = "TF_ENABLED_DEVICE_TYPES";

/// The default priority of a factory, TensorFlow's.
pub const DEFAULT_FACTORY_PRIORITY: i32 = 50;

/// Priority of the CPU factory that allocates from a GPU's pinned memory (TensorFlow
/// `GPUCompatibleCPUDeviceFactory`): it replaces a CPU factory of lower priority.
pub const GPU_COMPATIBLE_CPU_PRIORITY: i32 = 70;

/// Why a factory cannot be registered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "device type {device_type} has a factory of priority {priority} already; register with another priority"
)]
pub struct RegisterError {
    /// The type.
    pub device_type: String,
    /// The priority that both have.
    pub priority: i32,
}

/// The result of a registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Registration {
    /// It is the first factory of its type.
    Added,
    /// It replaced one of lower priority, or a placeholder.
    Replaced,
    /// It was ignored: there is one of higher priority, or it is a placeholder and there is a
    /// factory.
    Outranked,
    /// It was ignored: its type is not enabled.
    Disabled,
}

/// The physical devices of one device type, as its factory lists them.
#[derive(Debug, Clone)]
pub struct PhysicalListing {
    /// The type.
    pub device_type: String,
    /// Priority of its factory.
    pub priority: i32,
    /// Whether the factory was registered as a plug-in.
    pub is_pluggable: bool,
    /// Whether the type has no factory here, only a placeholder that reports what is missing.
    pub is_placeholder: bool,
    /// The devices, or the reason why there are none, with its remedy.
    pub devices: Result<Vec<PhysicalDevice>, DeviceError>,
}

#[derive(Debug, Clone)]
struct Registered {
    priority: i32,
    role: Role,
    factory: Arc<dyn DeviceFactory>,
}

/// The kind of a registered factory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// A factory of this build, or of the app.
    Own,
    /// A factory of a plug-in.
    Plugin,
    /// A placeholder, which reports why there are no devices of this type; any factory replaces it.
    Placeholder,
}

/// The factories, one per device type. A value, not process-wide state;
/// `backend::default_factories` gives the usual one.
///
/// | TensorFlow's `DeviceFactory` | here |
/// |---|---|
/// | `Register` | [`Self::register`], [`Self::register_pluggable`] |
/// | `GetFactory` | [`Self::factory`] |
/// | `AddCpuDevices` | [`Self::create_cpu_devices`] |
/// | `AddDevices` | [`Self::create_devices`] |
/// | `NewDevice` | [`Self::new_device`] |
/// | `ListAllPhysicalDevices` | [`Self::physical_devices`]; [`Self::list_physical`] also says why a type has none |
/// | `ListPluggablePhysicalDevices` | [`Self::pluggable_physical_devices`] |
/// | `GetAnyDeviceDetails` | [`Self::device_details`] |
/// | `DevicePriority` | [`Self::priority`] |
/// | `IsPluggableDevice` | [`Self::is_pluggable`] |
/// | `CreateDevices`, `ListPhysicalDevices`, `GetDeviceDetails` of one type | [`DeviceFactory`] |
#[derive(Debug, Clone, Default)]
pub struct FactoryRegistry {
    factories: BTreeMap<String, Registered>,
    /// `None` means all.
    enabled_types: Option<BTreeSet<String>>,
}

impl FactoryRegistry {
    /// Returns a registry without factories.
    pub fn empty() -> Self {
        Self::default()
    }

    /// Enables only these types. They are separated by commas and matched exactly; an empty list
    /// enables all. Other factories are ignored, whether they were registered before or are
    /// registered later, and an event of level INFO names each. Without CPU no devices can be
    /// created.
    #[must_use]
    pub fn with_enabled_types(mut self, list: &str) -> Self {
        self.enabled_types = (!list.is_empty()).then(|| {
            list.split(',')
                .filter(|device_type| !device_type.is_empty())
                .map(str::to_owned)
                .collect()
        });
        for (device_type, registered) in &self.factories {
            if registered.role != Role::Placeholder && !self.is_enabled(device_type) {
                tell_disabled(device_type, registered.priority);
            }
        }
        self
    }

    /// Enables the types that [`ENABLED_TYPES_VARIABLE`] lists; does nothing if the variable is not
    /// set. The program does this, and so do sessions without factories of their own; an app with
    /// its own factories decides itself.
    #[must_use]
    pub fn with_enabled_types_from_env(self) -> Self {
        match std::env::var_os(ENABLED_TYPES_VARIABLE) {
            Some(list) => self.with_enabled_types(&list.to_string_lossy()),
            None => self,
        }
    }

    /// Registers a factory (TensorFlow `Register`). It replaces one of lower priority, and is
    /// ignored if there is one of higher priority. It replaces a placeholder regardless of
    /// priorities.
    ///
    /// # Errors
    /// [`RegisterError`] if the type has a factory of equal priority.
    #[doc(alias = "REGISTER_LOCAL_DEVICE_FACTORY")]
    pub fn register(
        &mut self,
        device_type: impl Into<String>,
        priority: i32,
        factory: Arc<dyn DeviceFactory>,
    ) -> Result<Registration, RegisterError> {
        self.insert(device_type.into(), priority, Role::Own, factory)
    }

    /// Registers a factory of a plug-in. TensorFlow gives such types priority 220.
    ///
    /// # Errors
    /// [`RegisterError`] if the type has a factory of equal priority.
    pub fn register_pluggable(
        &mut self,
        device_type: impl Into<String>,
        priority: i32,
        factory: Arc<dyn DeviceFactory>,
    ) -> Result<Registration, RegisterError> {
        self.insert(device_type.into(), priority, Role::Plugin, factory)
    }

    /// Registers a placeholder for the factory of a type that this build lacks: it creates nothing,
    /// and its errors say what is missing and what to do. Any factory replaces it, regardless of
    /// priorities, so an app with its own factory need not know about it; it never replaces a
    /// factory.
    ///
    /// # Errors
    /// [`RegisterError`] if the type has a placeholder of equal priority.
    pub fn register_placeholder(
        &mut self,
        device_type: impl Into<String>,
        priority: i32,
        placeholder: Arc<dyn DeviceFactory>,
    ) -> Result<Registration, RegisterError> {
        self.insert(device_type.into(), priority, Role::Placeholder, placeholder)
    }

    /// Returns the priority of a type's factory or placeholder (TensorFlow `DevicePriority`):
    /// larger is preferred; -1 if there is none.
    #[doc(alias = "DevicePriority")]
    pub fn priority(&self, device_type: &str) -> i32 {
        self.get(device_type)
            .map_or(UNREGISTERED_TYPE_PRIORITY, |registered| registered.priority)
    }

    /// Returns whether a type's factory came from a plug-in (TensorFlow `IsPluggableDevice`); false
    /// if there is none.
    #[doc(alias = "IsPluggableDevice")]
    pub fn is_pluggable(&self, device_type: &str) -> bool {
        self.get(device_type)
            .is_some_and(|registered| registered.role == Role::Plugin)
    }

    /// Returns whether other processes may call functions on a device (TensorFlow
    /// `Device::IsRemoteCallAllowed`): on CPUs, GPUs, TPUs and devices of plug-ins, and on devices
    /// of other processes of any type.
    #[doc(alias = "IsRemoteCallAllowed")]
    pub fn is_remote_call_allowed(&self, device: &dyn Device) -> bool {
        let device_type = &*device.attributes().device_type;
        !device.is_local()
            || matches!(device_type, "CPU" | "GPU" | "TPU" | "TPU_SYSTEM")
            || self.is_pluggable(device_type)
    }

    /// Returns the factory of a type, or its placeholder (TensorFlow `GetFactory`).
    #[doc(alias = "GetFactory")]
    pub fn factory(&self, device_type: &str) -> Option<&Arc<dyn DeviceFactory>> {
        self.get(device_type).map(|registered| &registered.factory)
    }

    /// Suggests what to write instead of a type that has no factory, as part of a message.
    pub(crate) fn suggest_type(&self, unknown: &str) -> String {
        let known: Vec<&str> = self.in_order().map(|(name, _)| name).collect();
        match known.iter().find(|it| it.eq_ignore_ascii_case(unknown)) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("types are {}", known.join(", ")),
        }
    }

    /// Lists the physical devices per type: CPU first, then by priority and name. Opens nothing.
    pub fn list_physical(&self) -> Vec<PhysicalListing> {
        self.in_order()
            .map(|(device_type, registered)| PhysicalListing {
                device_type: device_type.to_owned(),
                priority: registered.priority,
                is_pluggable: registered.role == Role::Plugin,
                is_placeholder: registered.role == Role::Placeholder,
                devices: registered.factory.list_physical(),
            })
            .collect()
    }

    /// Returns all physical devices, in the order of [`Self::list_physical`] (TensorFlow
    /// `ListAllPhysicalDevices`). A type whose driver is absent has none.
    ///
    /// # Errors
    /// [`DeviceError::NotFound`] without a CPU factory, or if it lists nothing; any other error of
    /// a factory.
    #[doc(alias = "ListAllPhysicalDevices")]
    pub fn physical_devices(&self) -> Result<Vec<PhysicalDevice>, DeviceError> {
        let mut all = self.cpu_factory()?.factory.list_physical()?;
        if all.is_empty() {
            return Err(DeviceError::NotFound(
                "the CPU factory lists no CPU; register one that does".to_owned(),
            ));
        }
        for (_, registered) in self.in_order().filter(|&(name, _)| name != "CPU") {
            all.extend(present(registered)?);
        }
        Ok(all)
    }

    /// Returns the physical devices of plug-ins only (TensorFlow `ListPluggablePhysicalDevices`).
    ///
    /// # Errors
    /// Those of the factories; an absent driver is not an error.
    #[doc(alias = "ListPluggablePhysicalDevices")]
    pub fn pluggable_physical_devices(&self) -> Result<Vec<PhysicalDevice>, DeviceError> {
        let mut all = Vec::new();
        for (_, registered) in self.in_order() {
            if registered.role == Role::Plugin {
                all.extend(present(registered)?);
            }
        }
        Ok(all)
    }

    /// Returns the details of device `index` of [`Self::physical_devices`] (TensorFlow
    /// `GetAnyDeviceDetails`).
    ///
    /// # Errors
    /// [`DeviceError::InvalidArgument`] with the index, if there are fewer devices; those of
    /// [`Self::physical_devices`] and of [`DeviceFactory::details`].
    #[doc(alias = "GetAnyDeviceDetails")]
    pub fn device_details(&self, index: usize) -> Result<DeviceDetails, DeviceError> {
        self.cpu_factory()?;
        let mut n_before = 0;
        for (_, registered) in self.in_order() {
            let n = present(registered)?.len();
            if index < n_before + n {
                return registered.factory.details(index - n_before);
            }
            n_before += n;
        }
        Err(DeviceError::InvalidArgument(format!(
            "physical device {index} does not exist, there are {n_before}, numbered from 0"
        )))
    }

    /// Opens the devices of all types, named `{prefix}/device:TYPE:i` (TensorFlow `AddDevices`):
    /// CPU first, then by priority and name. The prefix of a local session is
    /// `/job:localhost/replica:0/task:0`. A `device_count` of a type without factory is ignored. A
    /// type whose driver is absent has no devices; this is an error if `device_count` requests
    /// some.
    ///
    /// # Errors
    /// [`DeviceError::NotFound`] without a CPU factory or CPU device; a factory's error;
    /// [`DeviceError::InvalidArgument`] for a malformed filter, or a `memory_bytes` key that names
    /// no device.
    #[doc(alias = "AddDevices")]
    pub fn create_devices(
        &self,
        options: &DeviceOptions,
        prefix: &str,
    ) -> Result<DeviceSet, DeviceError> {
        let wanted = WantedTypes::of(options)?;
        let (cpu_priority, cpus) = self.make_cpus(options, &wanted, prefix)?;
        let priorities = self.in_order().map(|(device_type, registered)| {
            let is_cpu = device_type == "CPU";
            let priority = if is_cpu {
                cpu_priority
            } else {
                registered.priority
            };
            (device_type, priority)
        });
        let mut set = DeviceSet::new(cpus).with_type_priorities(priorities);
        for (device_type, registered) in self.in_order() {
            if device_type == "CPU" || !wanted.contains(device_type) {
                continue;
            }
            let asked_for = options
                .device_count
                .get(device_type)
                .is_some_and(|&n| n > 0);
            match registered.factory.create(options, prefix) {
                Ok(devices) => {
                    for device in devices {
                        set.add(device);
                    }
                }
                Err(DeviceError::Absent { .. }) if !asked_for => {}
                Err(error) => return Err(error),
            }
        }
        for key in options.memory_bytes.keys() {
            if set.find_matching(&parse_memory_key(key)?).is_empty() {
                let names: Vec<_> = set
                    .iter()
                    .map(|(_, device)| device.attributes().name.as_str())
                    .collect();
                return Err(DeviceError::InvalidArgument(format!(
                    "{MEMORY_OPTION}: `{key}` matches no device; devices are: {}",
                    names.join(", ")
                )));
            }
        }
        Ok(set)
    }

    /// Opens the CPU devices only (TensorFlow `AddCpuDevices`).
    ///
    /// # Errors
    /// [`DeviceError::NotFound`] without a CPU factory, or if it creates no device; the factory's
    /// error.
    #[doc(alias = "AddCpuDevices")]
    pub fn create_cpu_devices(
        &self,
        options: &DeviceOptions,
        prefix: &str,
    ) -> Result<Vec<Arc<dyn Device>>, DeviceError> {
        let (_, cpus) = self.make_cpus(options, &WantedTypes::of(options)?, prefix)?;
        Ok(cpus)
    }

    /// Creates a set of existing devices, with this registry's type priorities.
    pub fn device_set(&self, devices: impl IntoIterator<Item = Arc<dyn Device>>) -> DeviceSet {
        DeviceSet::new(devices).with_type_priorities(
            self.in_order()
                .map(|(device_type, registered)| (device_type, registered.priority)),
        )
    }

    /// Opens one device of a type, regardless of `device_count` (TensorFlow `NewDevice`); `None`
    /// without a factory.
    ///
    /// # Errors
    /// The factory's; a placeholder's error says what is missing.
    #[doc(alias = "NewDevice")]
    pub fn new_device(
        &self,
        device_type: &str,
        options: &DeviceOptions,
        prefix: &str,
    ) -> Result<Option<Arc<dyn Device>>, DeviceError> {
        let Some(registered) = self.get(device_type) else {
            return Ok(None);
        };
        let mut options = options.clone();
        options.device_count.insert(device_type.to_owned(), 1);
        let devices = registered.factory.create(&options, prefix)?;
        Ok(devices.into_iter().next())
    }

    /// Returns the kernels of all enabled types.
    pub fn kernels(&self) -> KernelRegistry {
        let mut kernels = KernelRegistry::empty();
        for (_, registered) in self.in_order() {
            registered.factory.register_kernels(&mut kernels);
        }
        kernels
    }

    fn insert(
        &mut self,
        device_type: String,
        priority: i32,
        role: Role,
        factory: Arc<dyn DeviceFactory>,
    ) -> Result<Registration, RegisterError> {
        let new = Registered {
            priority,
            role,
            factory,
        };
        if !self.is_enabled(&device_type) {
            if new.role != Role::Placeholder {
                tell_disabled(&device_type, new.priority);
            }
            return Ok(Registration::Disabled);
        }
        let Some(old) = self.factories.get(&device_type) else {
            self.factories.insert(device_type, new);
            return Ok(Registration::Added);
        };
        match (old.role, new.role) {
            (Role::Placeholder, Role::Own | Role::Plugin) => {
                self.factories.insert(device_type, new);
                return Ok(Registration::Replaced);
            }
            (Role::Own | Role::Plugin, Role::Placeholder) => return Ok(Registration::Outranked),
            _ => {}
        }
        match new.priority.cmp(&old.priority) {
            std::cmp::Ordering::Greater => {
                self.factories.insert(device_type, new);
                Ok(Registration::Replaced)
            }
            std::cmp::Ordering::Less => Ok(Registration::Outranked),
            std::cmp::Ordering::Equal => Err(RegisterError {
                device_type,
                priority: new.priority,
            }),
        }
    }

    /// Creates the CPU devices; returns them with the priority of their factory.
    fn make_cpus(
        &self,
        options: &DeviceOptions,
        wanted: &WantedTypes,
        prefix: &str,
    ) -> Result<(i32, Vec<Arc<dyn Device>>), DeviceError> {
        let registered = self.cpu_factory()?;
        let (priority, factory) = self
            .gpu_compatible(registered, options, wanted)
            .unwrap_or_else(|| (registered.priority, Arc::clone(&registered.factory)));
        let devices = factory.create(options, prefix)?;
        if devices.is_empty() {
            return Err(DeviceError::NotFound(
                "the CPU factory made no CPU device; ask for at least one (device count CPU=1)"
                    .to_owned(),
            ));
        }
        Ok((priority, devices))
    }

    /// Returns the factory that replaces a CPU factory if devices of another type will be created
    /// that provide pinned memory.
    fn gpu_compatible(
        &self,
        cpu: &Registered,
        options: &DeviceOptions,
        wanted: &WantedTypes,
    ) -> Option<(i32, Arc<dyn DeviceFactory>)> {
        if cpu.priority >= GPU_COMPATIBLE_CPU_PRIORITY {
            return None;
        }
        let will_be_there = |device_type: &str| {
            device_type != "CPU"
                && wanted.contains(device_type)
                && options.device_count.get(device_type) != Some(&0)
        };
        let memory = self
            .in_order()
            .filter(|&(device_type, _)| will_be_there(device_type))
            .find_map(|(_, registered)| registered.factory.pinned_host_memory(options))?;
        let factory = cpu.factory.gpu_compatible(memory)?;
        Some((GPU_COMPATIBLE_CPU_PRIORITY, factory))
    }

    fn cpu_factory(&self) -> Result<&Registered, DeviceError> {
        self.get("CPU").ok_or_else(|| {
            DeviceError::NotFound(if self.is_enabled("CPU") {
                "no factory for device type CPU; register one, or start from the default registry"
                    .to_owned()
            } else {
                format!("device type CPU is not among the enabled types; add it to {ENABLED_TYPES_VARIABLE}")
            })
        })
    }

    fn is_enabled(&self, device_type: &str) -> bool {
        self.enabled_types
            .as_ref()
            .is_none_or(|types| types.contains(device_type))
    }

    fn get(&self, device_type: &str) -> Option<&Registered> {
        self.factories
            .get(device_type)
            .filter(|_| self.is_enabled(device_type))
    }

    fn in_order(&self) -> impl Iterator<Item = (&str, &Registered)> {
        let mut factories: Vec<(&str, &Registered)> = self
            .factories
            .iter()
            .filter(|(device_type, _)| self.is_enabled(device_type))
            .map(|(device_type, registered)| (device_type.as_str(), registered))
            .collect();
        factories.sort_by_key(|&(device_type, registered)| {
            (device_type != "CPU", Reverse(registered.priority))
        });
        factories.into_iter()
    }
}

/// The types that device filters select; all if no filter names a type.
struct WantedTypes(BTreeSet<Arc<str>>);

impl WantedTypes {
    fn of(options: &DeviceOptions) -> Result<Self, DeviceError> {
        let mut types = BTreeSet::new();
        for filter in &options.device_filters {
            types.extend(parse_option(FILTER_OPTION, filter)?.device_type);
        }
        Ok(Self(types))
    }

    fn contains(&self, device_type: &str) -> bool {
        self.0.is_empty() || self.0.contains(device_type)
    }
}

/// Returns the devices that a factory lists; none if its driver is absent.
fn present(registered: &Registered) -> Result<Vec<PhysicalDevice>, DeviceError> {
    match registered.factory.list_physical() {
        Err(DeviceError::Absent { .. }) => Ok(Vec::new()),
        listed => listed,
    }
}

fn tell_disabled(device_type: &str, priority: i32) {
    info!(
        target: targets::DEVICE,
        device_type,
        priority,
        "device type is not enabled ({ENABLED_TYPES_VARIABLE}), its factory is ignored"
    );
}
