//! Measured rates: measured on any device with kernels, stored under the properties they depend on,
//! and used by plans.

#[cfg(feature = "cli")]
mod planned;

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering;
use std::time::Duration;

use placewright::cost::CalibrateError;
use placewright::cost::CalibrateOptions;
use placewright::cost::Calibration;
use placewright::cost::Calibrations;
use placewright::cost::CalibrationsError;
use placewright::cost::LinkDirection;
use placewright::cost::MeasuredLink;
use placewright::cost::Sample;
use placewright::cost::calibrate;
use placewright::device::AccessedTensors;
use placewright::device::AllocatorAttributes;
use placewright::device::Device;
use placewright::device::DeviceAttributes;
use placewright::device::DeviceBase;
use placewright::device::DeviceContext;
use placewright::device::DeviceError;
use placewright::device::DeviceRates;
use placewright::device::DeviceSet;
use placewright::device::HostLink;
use placewright::device::Kernel;
use placewright::device::KernelContext;
use placewright::device::KernelDef;
use placewright::device::KernelDevice;
use placewright::device::KernelError;
use placewright::device::KernelRegistry;
use placewright::device::LinkRates;
use placewright::device::RemoteDevice;
use placewright::device::RenamedDevice;
use placewright::device::SimpleDevice;
use placewright::names::DeviceId;
use placewright::names::DeviceName;
use placewright::store::CacheFolder;
use placewright::tensor::Allocator;
use placewright::tensor::DType;

use crate::fakes::FakeDevice;

const NPU: &str = "/job:localhost/replica:0/task:0/device:NPU:0";

/// Measures as briefly as possible: only the smallest sizes.
fn quick() -> CalibrateOptions {
    CalibrateOptions::default().with_budget(Duration::ZERO)
}

fn npu() -> Arc<dyn Device> {
    FakeDevice::new(NPU, "NPU").shared()
}

fn figures() -> Calibration {
    let link = |direction, latency_ns| MeasuredLink {
        direction,
        rates: LinkRates {
            latency_ns,
            ns_per_byte: 0.125,
        },
    };
    Calibration {
        flops_per_s: Some(3e12),
        elementwise_bytes_per_s: Some(2e11),
        reduction_bytes_per_s: Some(1.234e11),
        launch_ns: Some(1500.0),
        wait_ns: Some(0.5),
        kernels: Vec::new(),
        cold_ns: Some(40.0),
        reference_ns: None,
        others_busy: None,
        is_half_duplex: true,
        fused_row_min: Some(16),
        links: vec![
            link(LinkDirection::FromHost, 1000.0),
            link(LinkDirection::ToHost, 3000.0),
        ],
        samples: vec![Sample {
            of: "Relu of one number".to_owned(),
            ns: 1500.0,
            rate_per_s: 5.333e6,
        }],
        missing: vec!["sums: there is no kernel for it".to_owned()],
    }
}

fn in_folder(path: &Path) -> Calibrations {
    Calibrations::in_folder(CacheFolder::open(path).unwrap())
}

#[test]
fn stored_rates_are_read_again_and_attached_to_the_device_set() {
    let folder = tempfile::tempdir().unwrap();
    let device = npu();
    in_folder(folder.path()).keep(&*device, figures()).unwrap();
    // Simulates another process, with a new device.
    let (later, again) = (in_folder(folder.path()), npu());
    assert_ne!(
        device.attributes().incarnation,
        again.attributes().incarnation
    );
    assert_eq!(later.find(&*again).unwrap().as_deref(), Some(&figures()));
    let cpu = FakeDevice::new("/job:localhost/replica:0/task:0/device:CPU:0", "CPU").shared();
    let set = DeviceSet::new([cpu, Arc::clone(&again)]);
    let (set, problems) = later.apply(&set);
    assert!(problems.is_empty(), "{problems:?}");
    let expected = DeviceRates {
        flops_per_s: 3e12,
        memory_bytes_per_s: 2e11,
        launch_ns: 1500.0,
        is_calibrated: true,
        queues: 1,
        host_link: HostLink {
            from_host: LinkRates {
                latency_ns: 1000.0,
                ns_per_byte: 0.125,
            },
            to_host: LinkRates {
                latency_ns: 3000.0,
                ns_per_byte: 0.125,
            },
            is_half_duplex: true,
        },
    };
    assert_eq!(set.rates(DeviceId(1)), expected);
    assert_eq!(set.rates(DeviceId(0)), DeviceRates::default_cpu(1));
    // The rates belong to the set: another session with the same device plans without them.
    assert_eq!(again.rates(), DeviceRates::default_cpu(1));
    assert_eq!(set.isolated().unwrap().rates(DeviceId(1)), expected);
}

#[test]
fn devices_are_distinguished_only_by_what_rates_depend_on() {
    let calibrations = Calibrations::new();
    calibrations.keep(&*npu(), figures()).unwrap();
    let is_known = |device: &dyn Device| calibrations.find(device).unwrap().is_some();
    assert!(is_known(&*npu()));
    let elsewhere = "/job:worker/replica:1/task:2";
    let renamed = RenamedDevice::new(elsewhere, npu()).unwrap();
    assert!(is_known(&renamed), "under the name of another task");
    let sized = FakeDevice::new(NPU, "NPU").with_capacity_bytes(1 << 20);
    assert!(is_known(&*sized.shared()), "with less memory");
    let others = [
        FakeDevice::new(NPU, "GPU").shared(),
        FakeDevice::new("/job:localhost/replica:0/task:0/device:NPU:1", "NPU").shared(),
        FakeDevice::new(NPU, "NPU")
            .with_description("driver 2")
            .shared(),
        FakeDevice::new(NPU, "NPU").with_chip("card").shared(),
    ];
    for other in others {
        assert!(!is_known(&*other), "{:?}", calibrations.key(&*other));
    }
    let name = DeviceName::parse_full(NPU).unwrap();
    let remote = RemoteDevice::new(DeviceAttributes::new(&name, "NPU", 1 << 20)).unwrap();
    assert!(!is_known(&remote));
    let error = calibrations.keep(&remote, figures()).unwrap_err();
    assert!(matches!(error, CalibrationsError::Remote { .. }), "{error}");
}

#[test]
fn damaged_entries_are_named_and_the_device_keeps_its_stated_rates() {
    let folder = tempfile::tempdir().unwrap();
    in_folder(folder.path()).keep(&*npu(), figures()).unwrap();
    let entry = fs::read_dir(folder.path())
        .unwrap()
        .next()
        .unwrap()
        .unwrap();
    let mut bytes = fs::read(entry.path()).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(entry.path(), bytes).unwrap();
    let later = in_folder(folder.path());
    let (set, problems) = later.apply(&DeviceSet::new([npu()]));
    assert_eq!(set.rates(DeviceId(0)), DeviceRates::default_cpu(1));
    let strings: Vec<_> = problems.iter().map(ToString::to_string).collect();
    assert_eq!(strings.len(), 1);
    for part in [NPU, "damaged", "devices --calibrate"] {
        assert!(strings[0].contains(part), "{strings:?}");
    }
    // A new measurement replaces the entry.
    later.keep(&*npu(), figures()).unwrap();
    assert!(in_folder(folder.path()).find(&*npu()).unwrap().is_some());
}

#[test]
fn invalid_rates_are_not_stored() {
    let calibrations = Calibrations::new();
    let unsound = Calibration {
        launch_ns: Some(f64::NAN),
        ..figures()
    };
    let error = calibrations.keep(&*npu(), unsound).unwrap_err();
    assert!(error.to_string().contains(NPU), "{error}");
    assert!(calibrations.find(&*npu()).unwrap().is_none());
}

#[test]
fn links_between_devices_are_stored_for_both_directions() {
    let folder = tempfile::tempdir().unwrap();
    let numbered = |index: u32| {
        let name = format!("/job:localhost/replica:0/task:0/device:NPU:{index}");
        FakeDevice::new(&name, "NPU").shared()
    };
    let link = LinkRates {
        latency_ns: 700.0,
        ns_per_byte: 0.02,
    };
    let (first, second) = (numbered(0), numbered(1));
    let calibrations = in_folder(folder.path());
    calibrations.keep_link(&*second, &*first, link).unwrap();
    let unsound = LinkRates {
        ns_per_byte: f64::NAN,
        ..link
    };
    let error = calibrations.keep_link(&*first, &*second, unsound);
    assert!(matches!(error, Err(CalibrationsError::Unsound { .. })));

    let cpu = FakeDevice::new("/job:localhost/replica:0/task:0/device:CPU:0", "CPU").shared();
    let set = DeviceSet::new([cpu, numbered(0), numbered(1), numbered(2)]);
    let (set, problems) = in_folder(folder.path()).apply(&set);
    assert!(problems.is_empty(), "{problems:?}");
    let expected = [(1, 2), (2, 1)].map(|(from, to)| (DeviceId(from), DeviceId(to), link));
    assert_eq!(set.links().collect::<Vec<_>>(), expected);
    let isolated = set.isolated().unwrap();
    assert_eq!(isolated.links().collect::<Vec<_>>(), expected);
}

/// A device that receives the tensors used by kernels, like a device that is still working when
/// they return.
#[derive(Debug)]
struct Busy {
    inner: SimpleDevice,
    /// Number of tensors per kernel.
    taken: Mutex<Vec<usize>>,
    n_syncs: AtomicUsize,
}

impl Busy {
    fn new() -> Self {
        let name = DeviceName::parse_full(NPU).unwrap();
        let attributes = DeviceAttributes::new(&name, "NPU", 1 << 30);
        Self {
            inner: SimpleDevice::new(attributes).unwrap(),
            taken: Mutex::default(),
            n_syncs: AtomicUsize::new(0),
        }
    }
}

impl Device for Busy {
    fn base(&self) -> &DeviceBase {
        self.inner.base()
    }

    fn allocator(&self, attributes: AllocatorAttributes) -> Arc<dyn Allocator> {
        self.inner.allocator(attributes)
    }

    fn memory_capacity_bytes(&self) -> u64 {
        self.inner.memory_capacity_bytes()
    }

    fn rates(&self) -> DeviceRates {
        self.inner.rates()
    }

    fn sync(&self) -> Result<(), DeviceError> {
        self.n_syncs.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn as_kernel_device(&self) -> Option<&dyn KernelDevice> {
        Some(self)
    }
}

impl KernelDevice for Busy {
    fn default_context(&self) -> &Arc<dyn DeviceContext> {
        self.inner.default_context()
    }

    fn records_accessed_tensors(&self) -> bool {
        true
    }

    fn consume_accessed_tensors(&self, _: &dyn DeviceContext, tensors: AccessedTensors) {
        self.taken.lock().unwrap().push(tensors.tensors().len());
    }
}

/// Returns one zero per element of its first input, by way of a temporary; or panics; or returns an
/// error.
struct Zeros(Check);

/// Checks a number of elements.
type Check = fn(usize) -> Result<(), KernelError>;

impl Kernel for Zeros {
    fn compute(&self, context: &mut KernelContext<'_>) -> Result<(), KernelError> {
        let shape = context.input(0)?.shape().clone();
        (self.0)(shape.n_elements())?;
        context.allocate_temporary(DType::F32, shape.clone())?;
        let output = context.allocate_output(0, DType::F32, shape)?;
        context.set_output(0, output)
    }
}

fn registry(ops: &[(&str, Check)]) -> KernelRegistry {
    let mut registry = KernelRegistry::empty();
    for &(op, check) in ops {
        let def = KernelDef::new(op, "NPU").with_types("T", &[DType::F32]);
        registry.register(def.with_factory(move |_| Ok(Box::new(Zeros(check)))));
    }
    registry
}

#[test]
fn a_device_that_is_still_at_work_gets_every_tensor_and_is_waited_for() {
    let device = Busy::new();
    let found = calibrate(&device, &registry(&[("Relu", |_| Ok(()))]), &quick()).unwrap();
    assert!(found.launch_ns.is_some_and(|ns| ns > 0.0), "{found:?}");
    assert!(found.elementwise_bytes_per_s.is_some_and(|rate| rate > 0.0));
    let taken = device.taken.into_inner().unwrap();
    assert!(taken.len() > 64, "a chain of launches, and more");
    // Input, temporary, output.
    assert!(taken.iter().all(|&n| n == 3), "{taken:?}");
    // Each timing starts and ends with a synchronization.
    assert!(device.n_syncs.into_inner() >= 2 * found.samples.len());
}

/// Forwards its input.
struct Same;

impl Kernel for Same {
    fn compute(&self, context: &mut KernelContext<'_>) -> Result<(), KernelError> {
        let input = context.input(0)?.clone();
        context.set_output(0, input)
    }
}

/// Writes to the output that the context provides, which must not be shared.
struct Filled;

impl Kernel for Filled {
    fn compute(&self, context: &mut KernelContext<'_>) -> Result<(), KernelError> {
        let shape = context.input(0)?.shape().clone();
        context.fill_output::<f32>(0, &shape, |values| {
            values.fill(0.0);
            Ok(())
        })
    }
}

#[test]
fn outputs_may_reuse_memory_that_nobody_holds() {
    let mut registry = KernelRegistry::empty();
    let def = |op| KernelDef::new(op, "NPU").with_types("T", &[DType::F32]);
    registry.register(def("Relu").with_factory(|_| Ok(Box::new(Same))));
    registry.register(def("Mul").with_factory(|_| Ok(Box::new(Filled))));
    let device = FakeDevice::new(NPU, "NPU").shared();
    let found = calibrate(&*device, &registry, &quick()).unwrap();
    let missing = found.missing.join("\n");
    assert_eq!(found.missing.len(), 2, "matmuls and sums: {missing}");
    let is_there = |op: &str| found.samples.iter().any(|it| it.of.starts_with(op));
    assert!(is_there("Mul of [4096]") && is_there("Relu of [4096]"));
    let allocator = device.allocator(AllocatorAttributes::default());
    assert_eq!(allocator.stats().in_use_bytes, 0, "nothing is left behind");
}

#[test]
fn rates_without_a_kernel_stay_as_stated_and_are_named() {
    let device = npu();
    let found = calibrate(&*device, &registry(&[("Relu", |_| Ok(()))]), &quick()).unwrap();
    assert_eq!(
        (found.flops_per_s, found.reduction_bytes_per_s),
        (None, None)
    );
    let missing = found.missing.join("\n");
    for part in [
        "matmuls: the device has no kernel for it",
        "sums: the device has no kernel for it",
    ] {
        assert!(missing.contains(part), "{missing}");
    }
    let stated = device.rates();
    let rates = found.rates(stated);
    assert_eq!(rates.flops_per_s, stated.flops_per_s);
    assert_ne!(rates.launch_ns, stated.launch_ns);
    assert!(!rates.is_calibrated, "a rate is still a default");
    // Without any kernel, copies to and from the device can still be measured.
    let found = calibrate(&*device, &KernelRegistry::empty(), &quick()).unwrap();
    assert_eq!(found.missing.len(), 5);
    for direction in [LinkDirection::FromHost, LinkDirection::ToHost] {
        let link = found.link(&direction).unwrap();
        assert!(link.latency_ns > 0.0 && link.ns_per_byte >= 0.0, "{link:?}");
    }
    let rates = found.rates(stated);
    assert_eq!(rates.launch_ns, stated.launch_ns);
    assert_ne!(rates.host_link, stated.host_link);
}

#[test]
fn kernels_that_panic_or_fail_are_skipped() {
    let panics = |n| {
        if n == 1 {
            Ok(())
        } else {
            panic!("only one at a time")
        }
    };
    let refuses = |_| Err(KernelError::invalid("it is Tuesday"));
    let found = calibrate(
        &*npu(),
        &registry(&[("Relu", panics), ("MatMul", refuses)]),
        &quick(),
    )
    .unwrap();
    assert!(found.launch_ns.is_some() && found.elementwise_bytes_per_s.is_none());
    let missing = found.missing.join("\n");
    for part in [
        "elementwise ops: its kernel panicked: only one at a time",
        "matmuls: it is Tuesday",
    ] {
        assert!(missing.contains(part), "{missing}");
    }
}

#[test]
fn a_kernel_that_fails_at_a_larger_size_counts_below_it() {
    let small: Check = |n| {
        if n <= 1 << 16 {
            Ok(())
        } else {
            Err(KernelError::invalid("too large"))
        }
    };
    let generous = CalibrateOptions::default().with_budget(Duration::from_secs(600));
    let device = FakeDevice::new(NPU, "NPU").with_capacity_bytes(64 << 20);
    let found = calibrate(&*device.shared(), &registry(&[("Relu", small)]), &generous).unwrap();
    let relu = |text: &&Sample| text.of.starts_with("Relu of [");
    assert_eq!(found.samples.iter().filter(relu).count(), 2);
    assert!(found.elementwise_bytes_per_s.is_some());
}

#[test]
fn devices_without_kernels_or_memory_keep_their_stated_rates() {
    let name = DeviceName::parse_full(NPU).unwrap();
    let remote = RemoteDevice::new(DeviceAttributes::new(&name, "NPU", 1 << 20)).unwrap();
    let error = calibrate(&remote, &KernelRegistry::empty(), &quick()).unwrap_err();
    assert!(matches!(error, CalibrateError::NoKernelDevice { .. }));
    assert!(error.to_string().starts_with(NPU), "{error}");
    let full = FakeDevice::new(NPU, "NPU").with_capacity_bytes(0).shared();
    let error = calibrate(&*full, &registry(&[("Relu", |_| Ok(()))]), &quick()).unwrap_err();
    assert!(matches!(error, CalibrateError::Nothing { .. }));
    assert!(error.to_string().contains("out of memory"), "{error}");
}
