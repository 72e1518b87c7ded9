//! The device registry and manager: what they accept, and what they reject.

use std::sync::Arc;

use placewright::Error;
use placewright::backend::default_factories;
use placewright::builder::GraphBuilder;
use placewright::device::Device;
use placewright::device::DeviceAttributes;
use placewright::device::DeviceError;
use placewright::device::DeviceManager;
use placewright::device::DeviceOptions;
use placewright::device::ENABLED_TYPES_VARIABLE;
use placewright::device::FactoryRegistry;
use placewright::device::PhysicalDevice;
use placewright::device::Registration;
use placewright::device::RemoteDevice;
use placewright::names::DeviceName;
use placewright::session::Session;

use crate::fakes::FakeDevice;
use crate::fakes::FakeFactory;
use crate::harness;

const PREFIX: &str = "/job:localhost/replica:0/task:0";

fn cpu() -> Arc<FakeFactory> {
    Arc::new(FakeFactory {
        is_exact: true,
        ..FakeFactory::of("CPU", 1)
    })
}

fn registry() -> FactoryRegistry {
    let mut registry = FactoryRegistry::empty();
    let gpu = Arc::new(FakeFactory::of("GPU", 2));
    assert_eq!(registry.register("CPU", 60, cpu()), Ok(Registration::Added));
    assert_eq!(registry.register("GPU", 210, gpu), Ok(Registration::Added));
    registry
}

fn count(device_type: &str, n: u32) -> DeviceOptions {
    let mut options = DeviceOptions::default();
    options.device_count.insert(device_type.to_owned(), n);
    options
}

fn names(registry: &FactoryRegistry, options: &DeviceOptions) -> Result<Vec<String>, DeviceError> {
    let set = registry.create_devices(options, PREFIX)?;
    let local = |name: &DeviceName| name.legacy_local_name().unwrap_or_default();
    Ok(set.iter().map(|(_, device)| local(device.name())).collect())
}

#[test]
fn cpu_comes_first_then_types_by_priority() {
    let mut registry = registry();
    let tpu = Arc::new(FakeFactory::of("ZPU", 1));
    registry.register("ZPU", 220, tpu).unwrap();
    let found = names(&registry, &count("CPU", 2)).unwrap();
    assert_eq!(found, ["CPU:0", "CPU:1", "ZPU:0", "GPU:0", "GPU:1"]);
    let set = registry
        .create_devices(&DeviceOptions::default(), PREFIX)
        .unwrap();
    assert_eq!(set.prioritized_types(), ["ZPU", "GPU", "CPU"]);
}

#[test]
fn counts_of_unknown_types_are_ignored() {
    let found = names(&registry(), &count("NOPE", 3)).unwrap();
    assert_eq!(found, ["CPU:0", "GPU:0", "GPU:1"]);
}

#[test]
fn a_set_without_cpu_is_refused_with_a_remedy() {
    let no_factory = names(&FactoryRegistry::empty(), &DeviceOptions::default());
    let no_device = names(&registry(), &count("CPU", 0));
    let disabled = names(
        &registry().with_enabled_types("GPU"),
        &DeviceOptions::default(),
    );
    for (result, remedy) in [
        (no_factory, "register one"),
        (no_device, "CPU=1"),
        (disabled, "TF_ENABLED_DEVICE_TYPES"),
    ] {
        match result {
            Err(DeviceError::NotFound(message)) => assert!(message.contains(remedy), "{message}"),
            other => panic!("expected not found, got {other:?}"),
        }
    }
}

#[test]
fn registrations_compete_by_priority() {
    let mut registry = registry();
    assert_eq!(
        registry.register("CPU", 70, cpu()),
        Ok(Registration::Replaced)
    );
    assert_eq!(
        registry.register("CPU", 60, cpu()),
        Ok(Registration::Outranked)
    );
    assert_eq!(registry.priority("CPU"), 70);
    let error = registry.register("CPU", 70, cpu()).unwrap_err().to_string();
    assert!(error.contains("CPU") && error.contains("70"), "{error}");
}

#[test]
fn only_enabled_types_exist() {
    let mut registry = registry().with_enabled_types("CPU");
    assert_eq!(
        names(&registry, &DeviceOptions::default()).unwrap(),
        ["CPU:0"]
    );
    assert_eq!(registry.priority("GPU"), -1);
    let other = Arc::new(FakeFactory::of("SYCL", 1));
    assert_eq!(
        registry.register("SYCL", 200, other),
        Ok(Registration::Disabled)
    );
    let all = self::registry().with_enabled_types("");
    assert_eq!(all.priority("GPU"), 210);
}

/// Runs in a process whose environment enables only GPUs.
#[helper]
fn a_session_without_enabled_cpus() {
    let b = GraphBuilder::new("one");
    b.placeholder::<f32>("x", [1]).unwrap();
    let graph = Arc::new(b.finish());
    let session = || Session::builder().with_graph(Arc::clone(&graph));
    let error = session().build().unwrap_err();
    assert!(
        matches!(&error, Error::Device(DeviceError::NotFound(message)) if message.contains("CPU")),
        "{error}"
    );
    // Factories that the app passes in are not filtered: there are devices, though without kernels
    // in a build that has none.
    let own = session().with_factories(default_factories()).build();
    assert!(!matches!(own, Err(Error::Device(_))));
}

#[test]
fn a_session_without_factories_reads_the_enabled_types_from_the_environment() {
    let output = harness::helper("devices::a_session_without_enabled_cpus")
        .env(ENABLED_TYPES_VARIABLE, "GPU,cpu")
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
}

#[test]
fn physical_devices_are_numbered_from_the_cpu_and_have_details() {
    let mut registry = registry();
    let xpu = Arc::new(FakeFactory::of("XPU", 1));
    registry.register_pluggable("XPU", 220, xpu).unwrap();
    let listed = |devices: Result<Vec<PhysicalDevice>, DeviceError>| -> Vec<String> {
        let names = devices.unwrap().into_iter();
        names.map(|device| device.name).collect()
    };
    assert_eq!(
        listed(registry.physical_devices()),
        ["CPU:0", "XPU:0", "GPU:0", "GPU:1"].map(|name| format!("/physical_device:{name}"))
    );
    assert_eq!(
        listed(registry.pluggable_physical_devices()),
        ["/physical_device:XPU:0"]
    );
    let name = |index| {
        let details = registry.device_details(index)?;
        Ok(details.get("device_name").cloned())
    };
    assert_eq!(name(0), Ok(None));
    assert_eq!(name(1), Ok(Some("Fake XPU 0".to_owned())));
    assert_eq!(name(3), Ok(Some("Fake GPU 1".to_owned())));
    let Err(DeviceError::InvalidArgument(message)) = name(4) else {
        panic!("device 4 exists")
    };
    assert!(message.contains("device 4 ") && message.contains("there are 4"));
}

#[test]
fn listing_without_a_cpu_is_rejected_like_creation() {
    let empty = FactoryRegistry::empty();
    let disabled = registry().with_enabled_types("GPU");
    let mut blind = FactoryRegistry::empty();
    blind
        .register("CPU", 60, Arc::new(FakeFactory::of("CPU", 0)))
        .unwrap();
    for registry in [empty, disabled, blind] {
        let error = registry.physical_devices().unwrap_err();
        assert!(matches!(error, DeviceError::NotFound(_)), "{error}");
    }
}

#[test]
fn a_placeholder_names_what_is_missing_and_yields_to_any_factory() {
    let absent = || {
        Arc::new(FakeFactory {
            n_physical: None,
            ..FakeFactory::of("XPU", 0)
        })
    };
    let mut registry = registry();
    let placed = registry.register_placeholder("XPU", 210, absent());
    assert_eq!(placed, Ok(Registration::Added));
    assert_eq!(registry.priority("XPU"), 210);
    let listing = registry.list_physical();
    let xpu = listing.iter().find(|listing| listing.device_type == "XPU");
    assert!(xpu.unwrap().is_placeholder && xpu.unwrap().devices.is_err());
    let without = names(&registry, &DeviceOptions::default()).unwrap();
    assert_eq!(without, ["CPU:0", "GPU:0", "GPU:1"]);
    let error = names(&registry, &count("XPU", 1)).unwrap_err().to_string();
    assert!(error.contains("LD_LIBRARY_PATH"), "{error}");
    for priority in [10, 210, 300] {
        let mut registry = registry.clone();
        let own = Arc::new(FakeFactory::of("XPU", 1));
        assert_eq!(
            registry.register("XPU", priority, own),
            Ok(Registration::Replaced)
        );
        assert_eq!(registry.priority("XPU"), priority);
        let again = registry.register_placeholder("XPU", 999, absent());
        assert_eq!(again, Ok(Registration::Outranked));
        let found = names(&registry, &DeviceOptions::default()).unwrap();
        assert!(found.contains(&"XPU:0".to_owned()), "{found:?}");
    }
}

#[test]
fn an_absent_driver_is_reported_with_a_remedy() {
    let mut registry = registry();
    let absent = Arc::new(FakeFactory {
        n_physical: None,
        ..FakeFactory::of("SYCL", 0)
    });
    registry.register("SYCL", 200, absent).unwrap();
    let listing = registry.list_physical();
    assert_eq!(listing[0].device_type, "CPU");
    let sycl = listing.iter().find(|listing| listing.device_type == "SYCL");
    let reason = sycl.unwrap().devices.as_ref().unwrap_err().to_string();
    assert!(reason.contains("LD_LIBRARY_PATH"), "{reason}");
    // No device was requested, so the others are created; a request reports why there is none.
    assert_eq!(
        names(&registry, &DeviceOptions::default()).unwrap().len(),
        3
    );
    let error = names(&registry, &count("SYCL", 1)).unwrap_err();
    assert!(matches!(error, DeviceError::Absent { .. }), "{error}");
}

#[test]
fn memory_is_assigned_by_the_most_specific_key() {
    let mut options = DeviceOptions::default();
    options.memory_bytes.insert("GPU:1".to_owned(), 5);
    options.memory_bytes.insert("/device:GPU:*".to_owned(), 7);
    let bytes = |index| options.memory_bytes_of(&DeviceName::full("a", 0, 0, "GPU", index));
    assert_eq!((bytes(0), bytes(1)), (Ok(Some(7)), Ok(Some(5))));
    assert_eq!(
        options.memory_bytes_of(&DeviceName::local("CPU", 0)),
        Ok(None)
    );
    assert!(registry().create_devices(&options, PREFIX).is_ok());
    options.memory_bytes.insert("/gpu:1".to_owned(), 6);
    let error = options.memory_bytes_of(&DeviceName::full("a", 0, 0, "GPU", 1));
    let error = error.unwrap_err().to_string();
    assert!(error.contains("`/gpu:1` and `GPU:1`"), "{error}");
    // A type alone is less specific than a name.
    let mut options = DeviceOptions::default();
    options.memory_bytes.insert("GPU:1".to_owned(), 5);
    options.memory_bytes.insert("GPU".to_owned(), 7);
    let bytes = |index| options.memory_bytes_of(&DeviceName::full("a", 0, 0, "GPU", index));
    assert_eq!((bytes(0), bytes(1)), (Ok(Some(7)), Ok(Some(5))));
    for key in ["GPU:9", "nonsense"] {
        let mut options = DeviceOptions::default();
        options.memory_bytes.insert(key.to_owned(), 1);
        let error = registry()
            .create_devices(&options, PREFIX)
            .unwrap_err()
            .to_string();
        assert!(error.contains(key), "{error}");
    }
}

#[test]
fn a_manager_knows_four_forms_of_a_name_and_the_last_device_wins() {
    let device = |task: u32, text: &str| {
        let name = format!("/job:a/replica:0/task:{task}/device:Foo:0");
        FakeDevice::new(&name, "Foo")
            .with_description(text)
            .shared()
    };
    let manager = DeviceManager::new([device(0, "first"), device(1, "")]);
    let found = |name: &str| {
        let device = manager.lookup(name).unwrap();
        device.name().task
    };
    assert_eq!(found("/job:a/replica:0/task:0/device:Foo:0"), Some(0));
    assert_eq!(found("/job:a/replica:0/task:0/foo:0"), Some(0));
    assert_eq!(found("/device:Foo:0"), Some(1));
    assert_eq!(found("Foo:0"), Some(1));
    for unknown in ["/foo:0", "foo:0", "/job:a/replica:0/task:0/Foo:0", ""] {
        let error = manager.lookup(unknown).unwrap_err().to_string();
        assert!(error.contains(&format!("`{unknown}`")), "{error}");
    }
    assert_eq!(manager.n_devices_of_type("Foo"), 2);
    let listed = manager.list_device_attributes();
    let listed = listed.iter().map(|attributes| &*attributes.name);
    let manager_names = manager.devices();
    assert!(
        listed.eq(manager_names
            .iter()
            .map(|device| &*device.attributes().name))
    );
    assert_eq!(
        manager.mapping_text(),
        "/job:a/replica:0/task:0/device:Foo:0 -> first\n"
    );
    assert!(manager.host_cpu().is_none());
    let incarnation = manager.devices()[0].attributes().incarnation;
    assert!(manager.contains_incarnation(incarnation) && !manager.contains_incarnation(0));
}

#[test]
fn remote_function_calls_reach_known_types_plugins_and_other_processes() {
    let mut registry = registry();
    let plugin = Arc::new(FakeFactory::of("NPU", 1));
    registry.register_pluggable("NPU", 220, plugin).unwrap();
    let toy = Arc::new(FakeFactory::of("TOY", 1));
    registry.register("TOY", 50, toy).unwrap();
    let is_allowed = |device: &dyn Device| registry.is_remote_call_allowed(device);
    let set = registry
        .create_devices(&DeviceOptions::default(), PREFIX)
        .unwrap();
    let allowed: Vec<_> = set
        .iter()
        .filter(|(_, device)| is_allowed(&***device))
        .collect();
    let types: Vec<_> = allowed
        .iter()
        .map(|(_, device)| &*device.attributes().device_type)
        .collect();
    assert_eq!(types, ["CPU", "NPU", "GPU", "GPU"]);
    let worker = "/job:worker/replica:0/task:3/device:TOY:0";
    let remote = RemoteDevice::new(DeviceAttributes::new(
        &DeviceName::parse_full(worker).unwrap(),
        "TOY",
        0,
    ));
    assert!(is_allowed(&remote.unwrap()));
}
