//! The implementations of devices; this file has the one list of backends.
//!
//! A backend turns device options into devices and registers their kernels. It uses `device` and
//! `kernels`. Of a graph, it reads only the attributes of the node whose kernel it creates.
//!
//! A backend names no other backend. They share `types`, `plan` (attributes and shapes of nodes),
//! `host_kernels` and `fuse`; those for devices that compile programs also share `source`.

use crate::device::DEFAULT_FACTORY_PRIORITY;
use crate::device::FactoryRegistry;
use crate::device::SYSTEM_ROOT;
use crate::ops::OpRegistry;
use crate::registry::Registry;

#[cfg(feature = "kernels")]
#[macro_use]
mod types;

mod absent;
pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
#[cfg(feature = "kernels")]
mod fuse;
#[cfg(feature = "kernels")]
mod host_kernels;
#[cfg(feature = "opencl")]
pub mod opencl;
#[cfg(feature = "kernels")]
mod plan;
#[cfg(any(feature = "cuda", feature = "opencl"))]
mod source;

pub use absent::AbsentDeviceFactory;

crate::registrar! {
    /// All backends of this build at TensorFlow's priorities, and a placeholder for each of
    /// TensorFlow's device types that the build lacks.
    pub const BACKENDS = {
        device_factory cpu::DEVICE_TYPE, cpu::PRIORITY => cpu::ThreadPoolDeviceFactory::default();
        placeholder "GPU", 210 => AbsentDeviceFactory::no_feature("GPU", "GPUs", "cuda").with_gpus_of(SYSTEM_ROOT);
        placeholder "SYCL", 200 => AbsentDeviceFactory::no_feature("SYCL", "OpenCL devices", "opencl");
        placeholder "TPU", DEFAULT_FACTORY_PRIORITY => AbsentDeviceFactory::no_backend("TPU", "TPUs");
        placeholder "XLA_CPU", DEFAULT_FACTORY_PRIORITY => AbsentDeviceFactory::no_backend("XLA_CPU", "CPU devices that compile with XLA");
        placeholder "XLA_GPU", DEFAULT_FACTORY_PRIORITY => AbsentDeviceFactory::no_backend("XLA_GPU", "GPUs that compile with XLA");
        placeholder "XLA_EXEC", 40 => AbsentDeviceFactory::no_backend("XLA_EXEC", "executors of XLA");
    }
}

#[cfg(feature = "cuda")]
crate::registrar! {
    /// The backend of feature `cuda`.
    pub const CUDA_BACKEND = {
        device_factory cuda::DEVICE_TYPE, cuda::PRIORITY => cuda::GpuDeviceFactory::default();
    }
}

#[cfg(feature = "opencl")]
crate::registrar! {
    /// The backend of feature `opencl`.
    pub const OPENCL_BACKEND = {
        device_factory opencl::DEVICE_TYPE, opencl::PRIORITY => opencl::SyclDeviceFactory;
    }
}

/// Adds the backends of this build.
fn with_backends(registry: Registry) -> Registry {
    let registry = registry.with(BACKENDS);
    #[cfg(feature = "cuda")]
    let registry = registry.and_then(|registry| registry.with(CUDA_BACKEND));
    #[cfg(feature = "opencl")]
    let registry = registry.and_then(|registry| registry.with(OPENCL_BACKEND));
    registry.expect("each type is listed once")
}

impl Default for Registry {
    /// The default ops ([`OpRegistry::default`]) and backends ([`BACKENDS`]). A pure function: the
    /// environment is read by [`Registry::with_enabled_types_from_env`].
    fn default() -> Self {
        with_backends(Self::of_ops(OpRegistry::default()))
    }
}

/// The factories of [`BACKENDS`] alone. A pure function: the environment is read by
/// [`FactoryRegistry::with_enabled_types_from_env`].
pub fn default_factories() -> FactoryRegistry {
    let (_, factories, _) = with_backends(Registry::empty()).into_parts();
    factories
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::device::DeviceError;
    use crate::device::DeviceOptions;
    use crate::device::Registration;

    const PREFIX: &str = "/job:localhost/replica:0/task:0";

    fn created(
        factories: &FactoryRegistry,
        device_type: &str,
        n: u32,
    ) -> Result<Vec<String>, DeviceError> {
        let mut options = DeviceOptions::default();
        options.device_count.insert("SYCL".to_owned(), 0);
        options.device_count.insert(device_type.to_owned(), n);
        let set = factories.create_devices(&options, PREFIX)?;
        let names = set.iter().map(|(_, device)| device.name().to_string());
        Ok(names.collect())
    }

    #[test]
    fn the_default_is_one_cpu_device() {
        let mut options = DeviceOptions::default();
        // There may be any number of SYCL devices.
        options.device_count.insert("SYCL".to_owned(), 0);
        let set = default_factories()
            .create_devices(&options, PREFIX)
            .unwrap();
        let names: Vec<_> = set
            .iter()
            .map(|(_, device)| device.name().to_string())
            .collect();
        assert_eq!(names, ["/job:localhost/replica:0/task:0/device:CPU:0"]);
        assert_eq!(default_factories().priority("CPU"), 60);
    }

    #[test]
    fn types_without_a_backend_have_tensorflows_priority_and_a_remedy() {
        let factories = default_factories();
        assert_eq!(factories.priority("GPU"), 210);
        for (device_type, priority) in [
            #[cfg(not(feature = "cuda"))]
            ("GPU", 210),
            ("TPU", 50),
            ("XLA_CPU", 50),
            ("XLA_GPU", 50),
            ("XLA_EXEC", 40),
        ] {
            assert_eq!(factories.priority(device_type), priority, "{device_type}");
            assert_eq!(created(&factories, device_type, 0).unwrap().len(), 1);
            let error = created(&factories, device_type, 1).unwrap_err();
            assert!(matches!(error, DeviceError::Absent { .. }), "{error}");
            let text = error.to_string();
            let remedy = match device_type {
                "GPU" => "its cargo feature `cuda`",
                _ => "`Registry::with`",
            };
            assert!(
                text.contains(device_type) && text.contains(remedy),
                "{text}"
            );
        }
        let n = factories.physical_devices().unwrap().len();
        let error = factories.device_details(n).unwrap_err().to_string();
        assert!(error.contains(&format!("device {n} ")), "{error}");
    }

    #[test]
    fn an_apps_factory_takes_the_place_of_an_absent_one_at_any_priority() {
        for priority in [1, 210, 500] {
            let mut factories = default_factories();
            // The devices that this factory creates do not matter here.
            let own = Arc::new(cpu::ThreadPoolDeviceFactory::default());
            let outcome = factories.register("TPU", priority, own).unwrap();
            assert_eq!(outcome, Registration::Replaced);
            assert_eq!(factories.priority("TPU"), priority);
            let listing = factories.list_physical();
            assert!(
                listing
                    .iter()
                    .any(|row| row.device_type == "TPU" && row.devices.is_ok())
            );
        }
    }
}
