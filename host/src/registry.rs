//! Everything that an app can run, as one value: ops, device factories and kernels.
//!
//! A [`Registry`] combines registrars into the three registries that a session is built from. A
//! crate of devices, ops or kernels exports a [`Registrar`], which [`registrar!`](crate::registrar)
//! writes; the backends of this crate have one, too. This module does not depend on backends.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use crate::device::DeviceFactory;
use crate::device::FactoryRegistry;
use crate::device::KernelDef;
use crate::device::KernelRegistry;
use crate::device::RegisterError;
use crate::device::Registration;
use crate::ops::OpDef;
use crate::ops::OpDefError;
use crate::ops::OpRegistry;

/// Ops, device factories and kernels. A value, not process-wide state. [`Self::default`] contains
/// the shipped ones, and an app adds its own:
///
/// ```
/// use placewright::device::KernelDef;
/// use placewright::ops::OpDef;
/// use placewright::ops::OpDefError;
/// use placewright::registry::Registry;
///
/// fn halve() -> Result<OpDef, OpDefError> {
///     OpDef::new("Halve", &["x: float"], &["y: float"], &[])
/// }
///
/// placewright::registrar! {
///     /// What the crate `halves` brings.
///     pub const HALVES = {
///         op halve();
///         kernel KernelDef::new("Halve", "CPU");
///     }
/// }
///
/// let registry = Registry::default().with(HALVES)?;
/// assert!(registry.ops().get("Halve").is_some());
/// # Ok::<(), placewright::registry::RegistryError>(())
/// ```
///
/// [`SessionBuilder::with_registry`](crate::session::SessionBuilder::with_registry) takes one.
#[derive(Clone)]
pub struct Registry {
    ops: Arc<OpRegistry>,
    factories: FactoryRegistry,
    /// Beside those that come with the factories.
    kernels: Vec<KernelDef>,
    /// Names of the registrars that were taken.
    taken: BTreeSet<&'static str>,
}

/// The ops, device factories and kernels of a crate. A constant without state, which dependent
/// crates may include any number of times. [`registrar!`](crate::registrar) writes it.
#[derive(Debug, Clone, Copy)]
pub struct Registrar {
    name: &'static str,
    register: fn(&mut Registry) -> Result<(), RegistrationError>,
}

/// Why a registrar cannot be included.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("registrar {registrar}: {source}")]
pub struct RegistryError {
    /// Path of the registrar.
    pub registrar: &'static str,
    /// The reason.
    pub r#source: RegistrationError,
}

/// Why something cannot be registered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegistrationError {
    /// An op is malformed, or its name is already registered.
    #[error(transparent)]
    Op(#[from] OpDefError),
    /// The device type already has a factory of this priority.
    #[error(transparent)]
    DeviceFactory(#[from] RegisterError),
    /// Another registrar that this one includes cannot be included.
    #[error(transparent)]
    Registrar(#[from] Box<RegistryError>),
}

impl Registrar {
    /// Creates a registrar from its path and the function that registers its contents;
    /// [`registrar!`](crate::registrar) writes both.
    pub const fn new(
        name: &'static str,
        register: fn(&mut Registry) -> Result<(), RegistrationError>,
    ) -> Self {
        Self { name, register }
    }

    /// Returns its path, such as `my_crate::devices::NPU`.
    pub const fn name(&self) -> &'static str {
        self.name
    }
}

impl Registry {
    /// Creates an empty registry, for apps that define all of their ops, devices and kernels.
    pub fn empty() -> Self {
        Self::of_ops(OpRegistry::empty())
    }

    /// Creates a registry of these ops, without devices and kernels.
    pub fn of_ops(ops: impl Into<Arc<OpRegistry>>) -> Self {
        Self {
            ops: ops.into(),
            factories: FactoryRegistry::empty(),
            kernels: Vec::new(),
            taken: BTreeSet::new(),
        }
    }

    /// Adds the contents of a registrar. A registrar that was added before adds nothing new, so two
    /// crates may include a third one.
    ///
    /// # Errors
    /// [`RegistryError`] with the registrar's path if an op is malformed or already registered, or
    /// if a device type already has a factory of equal priority.
    pub fn with(mut self, registrar: Registrar) -> Result<Self, RegistryError> {
        self.take(registrar)?;
        Ok(self)
    }

    /// Like [`Self::with`], in place. After an error, a part of the contents may have been added.
    ///
    /// # Errors
    /// As [`Self::with`].
    pub fn take(&mut self, registrar: Registrar) -> Result<(), RegistryError> {
        if !self.taken.insert(registrar.name) {
            return Ok(());
        }
        (registrar.register)(self).map_err(|source| RegistryError {
            registrar: registrar.name,
            source,
        })
    }

    /// Adds an op.
    ///
    /// # Errors
    /// [`OpDefError::Duplicate`] if there is an op of this name.
    #[doc(alias = "REGISTER_OP")]
    pub fn register_op(&mut self, op: OpDef) -> Result<(), OpDefError> {
        Arc::make_mut(&mut self.ops).register(op)
    }

    /// Adds a device factory, by the rules of [`FactoryRegistry::register`].
    ///
    /// # Errors
    /// [`RegisterError`] if the type already has a factory of equal priority.
    #[doc(alias = "REGISTER_LOCAL_DEVICE_FACTORY")]
    pub fn register_device_factory(
        &mut self,
        device_type: impl Into<String>,
        priority: i32,
        factory: impl DeviceFactory + 'static,
    ) -> Result<Registration, RegisterError> {
        self.factories
            .register(device_type, priority, Arc::new(factory))
    }

    /// Adds a kernel to those of the device factories.
    #[doc(alias = "REGISTER_KERNEL_BUILDER")]
    pub fn register_kernel(&mut self, kernel: KernelDef) {
        self.kernels.push(kernel);
    }

    /// Returns the ops.
    pub fn ops(&self) -> &Arc<OpRegistry> {
        &self.ops
    }

    /// Returns the device factories.
    pub fn factories(&self) -> &FactoryRegistry {
        &self.factories
    }

    /// Returns the device factories, to register in other ways than
    /// [`Self::register_device_factory`].
    pub fn factories_mut(&mut self) -> &mut FactoryRegistry {
        &mut self.factories
    }

    /// Returns all kernels: first those of the factories of enabled types, then those that were
    /// registered one by one.
    pub fn kernels(&self) -> KernelRegistry {
        let mut kernels = self.factories.kernels();
        for kernel in &self.kernels {
            kernels.register(kernel.clone());
        }
        kernels
    }

    /// Disables the device types that the environment disables
    /// ([`FactoryRegistry::with_enabled_types_from_env`]).
    #[must_use]
    pub fn with_enabled_types_from_env(mut self) -> Self {
        self.factories = self.factories.with_enabled_types_from_env();
        self
    }

    /// Returns ops, factories, and the kernels that do not belong to factories.
    pub(crate) fn into_parts(self) -> (Arc<OpRegistry>, FactoryRegistry, Vec<KernelDef>) {
        (self.ops, self.factories, self.kernels)
    }
}

impl fmt::Debug for Registry {
    /// Prints the number of ops, since there are hundreds.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry")
            .field("n_ops", &self.ops.iter().len())
            .field("factories", &self.factories)
            .field("kernels", &self.kernels)
            .field("taken", &self.taken)
            .finish()
    }
}

/// Writes a [`Registrar`](crate::registry::Registrar), which
/// [`Registry::with`](crate::registry::Registry::with) takes: a list of rows, each of which may
/// have attributes such as `#[cfg(feature = "..")]`.
///
/// | row | registers | TensorFlow |
/// |---|---|---|
/// | `op DEF;` | an op; `DEF` is a `Result<OpDef, OpDefError>` | `REGISTER_OP` |
/// | `device_factory TYPE, PRIORITY => FACTORY;` | a device factory; without `PRIORITY`, of priority 50 | `REGISTER_LOCAL_DEVICE_FACTORY` |
/// | `pluggable_device_factory TYPE, PRIORITY => FACTORY;` | a device factory of a plug-in | |
/// | `placeholder TYPE, PRIORITY => FACTORY;` | the reason why there is no such device | |
/// | `kernel DEF;` | a `KernelDef` | `REGISTER_KERNEL_BUILDER` |
/// | `kernels DEFS;` | anything that iterates over `KernelDef`s | |
/// | `registrar OTHER;` | the contents of another registrar | |
///
/// Kernels of a device type with a factory belong in the factory's
/// [`register_kernels`](crate::device::DeviceFactory::register_kernels), so that they are not
/// registered if the type is disabled.
#[macro_export]
macro_rules! registrar {
    ($(#[$attribute:meta])* $visibility:vis const $name:ident = { $($rows:tt)* }) => {
        $(#[$attribute])*
        $visibility const $name: $crate::registry::Registrar = $crate::registry::Registrar::new(
            concat!(module_path!(), "::", stringify!($name)),
            |registry| {
                $crate::registrar!(@rows registry; $($rows)*);
                Ok(())
            },
        );
    };
    (@rows $registry:ident;) => {
        let _ = $registry;
    };
    (@rows $registry:ident; $(#[$attribute:meta])* op $op:expr; $($rest:tt)*) => {
        $(#[$attribute])*
        $registry.register_op($op?)?;
        $crate::registrar!(@rows $registry; $($rest)*);
    };
    (@rows $registry:ident; $(#[$attribute:meta])*
     device_factory $device_type:expr => $factory:expr; $($rest:tt)*) => {
        $crate::registrar!(@rows $registry; $(#[$attribute])*
            device_factory $device_type, $crate::device::DEFAULT_FACTORY_PRIORITY => $factory; $($rest)*);
    };
    (@rows $registry:ident; $(#[$attribute:meta])*
     device_factory $device_type:expr, $priority:expr => $factory:expr; $($rest:tt)*) => {
        $(#[$attribute])*
        $registry.register_device_factory($device_type, $priority, $factory)?;
        $crate::registrar!(@rows $registry; $($rest)*);
    };
    (@rows $registry:ident; $(#[$attribute:meta])*
     pluggable_device_factory $device_type:expr, $priority:expr => $factory:expr; $($rest:tt)*) => {
        $(#[$attribute])*
        $registry.factories_mut().register_pluggable(
            $device_type,
            $priority,
            ::std::sync::Arc::new($factory),
        )?;
        $crate::registrar!(@rows $registry; $($rest)*);
    };
    (@rows $registry:ident; $(#[$attribute:meta])*
     placeholder $device_type:expr, $priority:expr => $factory:expr; $($rest:tt)*) => {
        $(#[$attribute])*
        $registry.factories_mut().register_placeholder(
            $device_type,
            $priority,
            ::std::sync::Arc::new($factory),
        )?;
        $crate::registrar!(@rows $registry; $($rest)*);
    };
    (@rows $registry:ident; $(#[$attribute:meta])* kernel $kernel:expr; $($rest:tt)*) => {
        $(#[$attribute])*
        $registry.register_kernel($kernel);
        $crate::registrar!(@rows $registry; $($rest)*);
    };
    (@rows $registry:ident; $(#[$attribute:meta])* kernels $kernels:expr; $($rest:tt)*) => {
        $(#[$attribute])*
        for kernel in $kernels {
            $registry.register_kernel(kernel);
        }
        $crate::registrar!(@rows $registry; $($rest)*);
    };
    (@rows $registry:ident; $(#[$attribute:meta])* registrar $other:expr; $($rest:tt)*) => {
        $(#[$attribute])*
        $registry.take($other).map_err(::std::boxed::Box::new)?;
        $crate::registrar!(@rows $registry; $($rest)*);
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::BACKENDS;
    use crate::backend::cpu::ThreadPoolDeviceFactory;
    use crate::device::Device;
    use crate::device::DeviceError;
    use crate::device::DeviceOptions;
    use crate::device::PhysicalDevice;

    /// The factory of a type whose kernels are those of a symbolic one, as XLA's are.
    #[derive(Debug)]
    struct Compiled;

    impl DeviceFactory for Compiled {
        fn list_physical(&self) -> Result<Vec<PhysicalDevice>, DeviceError> {
            Ok(Vec::new())
        }

        fn create(&self, _: &DeviceOptions, _: &str) -> Result<Vec<Arc<dyn Device>>, DeviceError> {
            Ok(Vec::new())
        }

        fn register_kernels(&self, registry: &mut KernelRegistry) {
            registry.mirror("XLA_NPU_JIT", "XLA_NPU");
        }
    }

    fn halve() -> Result<OpDef, OpDefError> {
        OpDef::new("Halve", &["x: float"], &["y: float"], &[])
    }

    fn many() -> Vec<KernelDef> {
        vec![
            KernelDef::new("Halve", "XLA_NPU_JIT").with_priority(2),
            KernelDef::new("Halve", "CPU"),
        ]
    }

    crate::registrar! {
        /// A device type with its op.
        pub(super) const NPU = {
            op halve();
            device_factory "XLA_NPU", 90 => Compiled;
            #[cfg(not(test))]
            op OpDef::new("Never", &[], &[], &[]);
            kernels many();
            kernel KernelDef::new("Abs", "XLA_NPU_JIT");
        }
    }

    crate::registrar! {
        const BOTH = {
            registrar NPU;
            registrar BACKENDS;
            pluggable_device_factory "XPU", 220 => Compiled;
            device_factory "YPU" => Compiled;
            registrar NPU;
        }
    }

    #[test]
    fn a_registrar_brings_ops_factories_and_kernels_once() {
        let registry = Registry::empty().with(BOTH).unwrap().with(NPU).unwrap();
        assert!(registry.ops().get("Halve").is_some());
        assert!(
            registry.ops().get("Never").is_none(),
            "its row is not compiled"
        );
        assert_eq!(registry.factories().priority("XLA_NPU"), 90);
        assert!(registry.factories().is_pluggable("XPU"));
        assert_eq!(registry.factories().priority("CPU"), 60);
        // Two that were registered, and the copy for the type whose factory mirrors, although
        // kernels come after factories.
        let kernels = registry.kernels();
        let mut types: Vec<_> = kernels
            .of_op("Halve")
            .iter()
            .map(|def| &def.device_type)
            .collect();
        types.sort();
        assert_eq!(types, ["CPU", "XLA_NPU", "XLA_NPU_JIT"]);
        assert!(
            NPU.name().ends_with("registry::tests::NPU"),
            "{}",
            NPU.name()
        );
    }

    #[test]
    fn what_cannot_be_registered_names_the_registrar() {
        crate::registrar! {
            const SAME_OP = { op halve(); }
        }
        crate::registrar! {
            const MALFORMED = { op OpDef::new("Op", &["no type"], &[], &[]); }
        }
        crate::registrar! {
            const SAME_PRIORITY = { device_factory "CPU", 60 => ThreadPoolDeviceFactory::default(); }
        }
        crate::registrar! {
            const OUTER = { registrar SAME_OP; }
        }
        let registry = Registry::default().with(NPU).unwrap();
        for (registrar, parts) in [
            (SAME_OP, ["SAME_OP", "Halve"]),
            (MALFORMED, ["MALFORMED", "no type"]),
            (SAME_PRIORITY, ["SAME_PRIORITY", "another priority"]),
            (OUTER, ["OUTER", "SAME_OP"]),
        ] {
            let error = registry.clone().with(registrar).unwrap_err().to_string();
            for part in parts {
                assert!(error.contains(part), "{error} lacks {part}");
            }
        }
    }

    #[test]
    fn the_default_is_the_backends_and_the_ops_that_ship() {
        let registry = Registry::default();
        assert_eq!(
            registry.ops().iter().len(),
            OpRegistry::default().iter().len()
        );
        let types = |factories: &FactoryRegistry| -> Vec<_> {
            let listings = factories.list_physical().into_iter();
            listings
                .map(|listing| (listing.device_type, listing.priority))
                .collect()
        };
        let expected = types(&crate::backend::default_factories());
        assert_eq!(types(registry.factories()), expected);
        assert!(expected.len() > 1);
        // Values: what one is given, another does not have.
        let more = registry.clone().with(NPU).unwrap();
        assert!(more.ops().get("Halve").is_some() && registry.ops().get("Halve").is_none());
    }
}
