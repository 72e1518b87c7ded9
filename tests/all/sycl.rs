//! SYCL devices in sessions, on any OpenCL devices that this machine has.

use std::sync::Arc;
use std::sync::mpsc;
use std::thread;

use placewright::backend::default_factories;
use placewright::backend::opencl::SyclDeviceFactory;
use placewright::builder::GraphBuilder;
use placewright::device::CopyDone;
use placewright::device::DeviceError;
use placewright::device::DeviceFactory;
use placewright::device::DeviceFunction;
use placewright::device::DeviceOptions;
use placewright::device::DeviceSet;
use placewright::device::Kernel;
use placewright::device::KernelArg;
use placewright::device::KernelContext;
use placewright::device::KernelDef;
use placewright::device::KernelError;
use placewright::device::Launch;
use placewright::device::LaunchSite;
use placewright::device::ProgramSource;
use placewright::policy::PolicyRequest;
use placewright::policy::ShippedPolicy;
use placewright::session::Session;
use placewright::session::SessionBuilder;
use placewright::store::CacheFolder;
use placewright::tensor::DType;
use placewright::tensor::Tensor;
use placewright::trace::EventKind;
use placewright::trace::Recorder;
use placewright::trace::TransferWay;

mod dropped;
#[cfg(target_os = "linux")]
mod failing;
#[cfg(feature = "cuda")]
mod fused_matmuls;
#[cfg(feature = "cuda")]
mod fusion;
#[cfg(feature = "cli")]
mod invariance;
mod links;
#[cfg(target_os = "linux")]
mod lost;
mod variables;

const PREFIX: &str = "/job:localhost/replica:0/task:0";

/// Returns the number of SYCL devices, for tests that need one.
pub(crate) fn n_devices() -> usize {
    SyclDeviceFactory.list_physical().unwrap().len()
}

pub(crate) fn options(n_cpus: u32) -> DeviceOptions {
    let mut options = DeviceOptions::default()
        .with_intra_op_parallelism_threads(1)
        .with_device_count("CPU", n_cpus);
    let cache = CacheFolder::open(concat!(env!("CARGO_TARGET_TMPDIR"), "/programs"));
    options.program_cache = cache.ok().map(Arc::new);
    options
}

pub(crate) fn open(options: &DeviceOptions) -> Arc<DeviceSet> {
    Arc::new(default_factories().create_devices(options, PREFIX).unwrap())
}

pub(crate) fn session(b: GraphBuilder, devices: &Arc<DeviceSet>) -> SessionBuilder {
    Session::builder()
        .with_graph(Arc::new(b.finish()))
        .with_devices(Arc::clone(devices))
        .with_policy(priority())
}

/// TensorFlow's placement, which prefers SYCL devices.
pub(crate) fn priority() -> PolicyRequest {
    PolicyRequest::new(ShippedPolicy::find("priority").unwrap()).with_strict(true)
}

pub(crate) fn floats(n: usize) -> Tensor {
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    let values: Vec<f32> = (0..n).map(|i| i as f32 - 2.0).collect();
    Tensor::from_values([n], &values).unwrap()
}

#[test]
#[needs(Sycl)]
fn requesting_too_many_devices_is_rejected_with_their_names() {
    let n = n_devices();
    let mut options = options(1);
    options.device_count.insert("SYCL".to_owned(), 99);
    let error = default_factories()
        .create_devices(&options, PREFIX)
        .unwrap_err();
    assert!(matches!(error, DeviceError::InvalidArgument(_)), "{error}");
    let error = error.to_string();
    assert!(error.contains("99") && error.contains(&format!("OpenCL has {n}: ")));
    options.device_count.insert("SYCL".to_owned(), 1);
    assert_eq!(open(&options).len(), 2);
    options.device_count.insert("SYCL".to_owned(), 0);
    assert_eq!(open(&options).len(), 1);
}

#[test]
#[needs(Sycl)]
fn a_graph_spans_the_cpu_and_a_sycl_device() {
    let devices = open(&options(1));
    // Small tensors are copied, large ones shared with devices that use host memory.
    for n in [3, 100_000] {
        let b = GraphBuilder::new("graph");
        let x = b.placeholder::<f32>("x", [n]).unwrap();
        let sycl = b.device("/device:SYCL:0").unwrap();
        let positive = sycl.named("positive").relu(x).unwrap();
        let twice = sycl.named("twice").add(positive, positive).unwrap();
        let cpu = b.device("/device:CPU:0").unwrap();
        let negative = cpu.named("negative").neg(twice).unwrap();
        b.device("/device:SYCL:0")
            .unwrap()
            .named("y")
            .mul(negative, twice)
            .unwrap();
        let session = session(b, &devices).build().unwrap();
        for _ in 0..3 {
            let found = session
                .run(&[("x", floats(n))], &["y", "negative"])
                .unwrap();
            let expected: Vec<f32> = floats(n)
                .as_slice::<f32>()
                .unwrap()
                .iter()
                .map(|x| 2.0 * x.max(0.0))
                .collect();
            let y: Vec<f32> = expected.iter().map(|x| -(x * x)).collect();
            assert_eq!(found[0].as_slice::<f32>().unwrap(), y);
            let negative: Vec<f32> = expected.iter().map(|x| -x).collect();
            assert_eq!(found[1].as_slice::<f32>().unwrap(), negative);
        }
    }
}

#[test]
#[needs(Sycl)]
fn a_tensor_beyond_the_largest_buffer_is_refused_before_it_is_allocated() {
    let devices = open(&options(1));
    let sycl = format!("{PREFIX}/device:SYCL:0");
    let device = devices.get(devices.find_by_name(&sycl).unwrap()).unwrap();
    let limit_bytes = device.max_allocation_bytes();
    assert!(limit_bytes < device.memory_capacity_bytes());
    let n = usize::try_from(limit_bytes / 4 + 1).unwrap();
    let b = GraphBuilder::new("graph");
    let x = b.placeholder::<f32>("x", [n]).unwrap();
    let on_sycl = b.device("/device:SYCL:0").unwrap();
    on_sycl.named("y").relu(x).unwrap();
    let error = session(b, &devices).build().unwrap_err().to_string();
    assert!(error.contains("node `y`: tensor `x:0` takes "), "{error}");
    assert!(error.contains(&sycl), "{error}");
}

#[test]
#[needs(SecondSycl)]
fn devices_of_one_platform_copy_directly_and_the_trace_shows_it() {
    let devices = open(&options(1));
    let platform = |index: usize| {
        let devices: Vec<_> = devices.iter().collect();
        let text = &devices[index].1.attributes().physical_description;
        text.split(", ").nth(3).map(str::to_owned)
    };
    let b = GraphBuilder::new("graph");
    let x = b.placeholder::<f32>("x", [50_000]).unwrap();
    let first = b.device("/device:SYCL:0").unwrap();
    let squared = first.named("squared").mul(x, x).unwrap();
    let second = b.device("/device:SYCL:1").unwrap();
    second.named("y").add(squared, squared).unwrap();
    let recorder = Recorder::on();
    let session = session(b, &devices)
        .with_recorder(recorder.clone())
        .build()
        .unwrap();
    for _ in 0..20 {
        let x = floats(50_000);
        let found = session.run(&[("x", x.clone())], &["y"]).unwrap();
        let x = x.as_slice::<f32>().unwrap();
        let y = found[0].as_slice::<f32>().unwrap();
        assert!(x.iter().zip(y).all(|(x, y)| *y == 2.0 * (x * x)));
    }
    let events = recorder.events();
    let ways = events.iter().filter_map(|event| match &event.kind {
        EventKind::Transfer { way, bytes, .. } => Some((*way, *bytes)),
        _ => None,
    });
    let ways: Vec<_> = ways.collect();
    assert_eq!(ways.len(), 20);
    // The CPU, then the SYCL devices.
    let expected = if platform(1) == platform(2) {
        TransferWay::Direct
    } else {
        TransferWay::Staged
    };
    assert!(
        ways.iter().all(|&way| way == (expected, 200_000)),
        "{ways:?}"
    );
}

#[test]
#[needs(Sycl)]
fn a_device_without_memory_ends_the_run_with_node_op_device_and_bytes_and_another_session_runs() {
    let mut options = options(1);
    let graph = || {
        let b = GraphBuilder::new("graph");
        let x = b.placeholder::<f32>("x", [Option::<usize>::None]).unwrap();
        let sycl = b.device("/device:SYCL:0").unwrap();
        let squared = sycl.named("squared").mul(x, x).unwrap();
        sycl.named("y").add(squared, squared).unwrap();
        b
    };
    // Fetched nodes are computed separately.
    let fetches = &["y", "squared"];
    options.memory_bytes.insert("SYCL:0".to_owned(), 1000);
    let small = session(graph(), &open(&options)).build().unwrap();
    let fed = small.run(&[("x", floats(60))], fetches).unwrap();
    assert_eq!(fed[0].as_slice::<f32>().unwrap()[4], 8.0);
    let error = small.run(&[("x", floats(130))], fetches).unwrap_err();
    let error = error.to_string();
    for part in ["squared", "Mul", "SYCL:0", "520 bytes", "520 of 1000"] {
        assert!(error.contains(part), "{error} lacks {part}");
    }
    // The failed run leaves nothing behind.
    assert!(small.run(&[("x", floats(60))], fetches).is_ok());
    options.memory_bytes.clear();
    let large = session(graph(), &open(&options)).build().unwrap();
    assert!(large.run(&[("x", floats(130))], fetches).is_ok());
}

#[test]
#[needs(Sycl)]
fn integers_divided_by_zero_are_an_error_of_the_run_that_names_the_node() {
    let b = GraphBuilder::new("graph");
    let x = b.placeholder::<i32>("x", [3]).unwrap();
    let y = b.placeholder::<i32>("y", [3]).unwrap();
    let sycl = b.device("/device:SYCL:0").unwrap();
    sycl.named("quotient").floor_div(x, y).unwrap();
    let session = session(b, &open(&options(1))).build().unwrap();
    let run = |divisor: i32| {
        let x = Tensor::from_values([3], &[7, -7, 8]).unwrap();
        let y = Tensor::from_values([3], &[2, 2, divisor]).unwrap();
        let ran = session.run(&[("x", x), ("y", y)], &["quotient"]);
        ran.map_err(|error| error.to_string())
    };
    assert_eq!(run(4).unwrap()[0].as_slice::<i32>().unwrap(), [3, -4, 2]);
    let error = run(0).unwrap_err();
    for part in ["quotient", "FloorDiv", "SYCL:0", "division by zero"] {
        assert!(error.contains(part), "{error} lacks {part}");
    }
    // The next run is unaffected.
    assert_eq!(run(4).unwrap()[0].as_slice::<i32>().unwrap(), [3, -4, 2]);
}

/// An app's kernel: `y = function(x)`.
struct Custom {
    function: Arc<dyn DeviceFunction>,
    site: Arc<LaunchSite>,
}

impl Kernel for Custom {
    fn compute(&self, context: &mut KernelContext<'_>) -> Result<(), KernelError> {
        let device = context.device().as_program_device().unwrap();
        let x = context.input(0)?;
        let y = device.uninitialized(x.dtype(), x.shape().clone())?;
        let n = u32::try_from(x.shape().n_elements()).unwrap();
        device.launch(Launch {
            site: &self.site,
            step: context.run_number(),
            context: None,
            function: &self.function,
            groups: [x.shape().n_elements().div_ceil(64), 1, 1],
            group_size: [64, 1, 1],
            args: &[KernelArg::Read(x), KernelArg::Write(&y), KernelArg::U32(n)],
        })?;
        context.set_output(0, y)
    }
}

/// Registers `Relu` on SYCL devices as function `twice` of a program.
fn custom(source: ProgramSource) -> KernelDef {
    let def = KernelDef::new("Relu", "SYCL").with_types("T", &[DType::F32]);
    def.with_priority(1).with_factory(move |node| {
        let device = node.device.as_program_device().unwrap();
        Ok(Box::new(Custom {
            function: device.function(&source, "twice")?,
            site: Arc::new(LaunchSite {
                node: node.node.to_owned(),
                op: node.op.to_owned(),
            }),
        }))
    })
}

/// Returns the result of a session with the custom kernel for -2, -1, 0.
fn run_custom(source: ProgramSource) -> Result<Vec<f32>, String> {
    let b = GraphBuilder::new("graph");
    let x = b.placeholder::<f32>("x", [3]).unwrap();
    let sycl = b.device("/device:SYCL:0").unwrap();
    sycl.named("y").relu(x).unwrap();
    let session = session(b, &open(&options(1)))
        .with_kernels([custom(source)])
        .build()
        .unwrap();
    let found = session.run(&[("x", floats(3))], &["y"]);
    let found = found.map_err(|error| error.to_string())?;
    Ok(found[0].as_slice::<f32>().unwrap().to_vec())
}

#[test]
#[needs(Sycl)]
fn apps_provide_kernels_as_source_and_get_the_compilers_messages() {
    let source = |body: &'static str| ProgramSource::of_source("app.c", body).with("FACTOR", "2");
    let good = "KERNEL void twice(GLOBAL const f32 *x, GLOBAL f32 *y, Index n)
        { const Index i = GLOBAL_ID(0); if (i < n) y[i] = FACTOR * x[i]; }";
    assert_eq!(run_custom(source(good)).unwrap(), [-4.0, -2.0, 0.0]);
    let bad = "KERNEL void twice(GLOBAL const f32 *x) { undeclared = 1; }";
    let error = run_custom(source(bad)).unwrap_err();
    for part in ["`y`", "Relu", "SYCL:0", "app.c (FACTOR=2)", "undeclared"] {
        assert!(error.contains(part), "{error} lacks {part}");
    }
    let other = "KERNEL void thrice(GLOBAL const f32 *x) { }";
    let error = run_custom(source(other)).unwrap_err();
    assert!(error.contains("`twice`"), "{error}");
}

/// PoCL tells maps of one buffer apart by their address, which is the same.
#[test]
#[needs(Sycl)]
fn a_tensor_is_read_several_times_at_once() {
    let devices = SyclDeviceFactory.create(&options(1), PREFIX).unwrap();
    for device in &devices {
        let context = device.as_kernel_device().unwrap().default_context();
        // Copying it takes long enough for the reads to be given to the driver.
        let there = context.copy_from_host(&floats(1_000_000)).unwrap();
        let (send, receive) = mpsc::channel();
        for _ in 0..100 {
            let copy = context.copy_on_device(&there).unwrap();
            for _ in 0..4 {
                let send = send.clone();
                let done = move |copied: Result<Tensor, KernelError>| {
                    let first = copied.map(|copied| copied.as_slice::<f32>().unwrap()[0]);
                    // The receiver is gone if the test has failed.
                    let _ = send.send(first);
                };
                context.copy_to_host_async(&copy, CopyDone::new(done));
            }
        }
        drop(send);
        device.sync().unwrap();
        let found: Vec<f32> = receive.iter().map(Result::unwrap).collect();
        assert_eq!(found, [-2.0; 400]);
    }
}

/// PoCL before 6.0 ends the process if such launches meet (`backend/opencl/pocl.rs`).
#[test]
#[needs(Sycl)]
fn launches_of_one_function_in_growing_sizes_meet_on_several_devices() {
    let (n_threads, n_sizes) = (4, 150);
    thread::scope(|scope| {
        for offset in 0..n_threads {
            scope.spawn(move || {
                let devices = open(&options(1));
                let b = GraphBuilder::new("graph");
                let x = b.placeholder::<f32>("x", [None]).unwrap();
                for index in 0..n_devices() {
                    let sycl = b.device(&format!("/device:SYCL:{index}")).unwrap();
                    sycl.named(format!("y{index}")).relu(x).unwrap();
                }
                let session = session(b, &devices).build().unwrap();
                let names: Vec<_> = (0..n_devices()).map(|index| format!("y{index}")).collect();
                let fetches: Vec<_> = names.iter().map(String::as_str).collect();
                for size in 0..n_sizes {
                    let n = 4096 * (n_threads * size + offset + 1);
                    let x = floats(n);
                    let expected: Vec<f32> = x
                        .as_slice::<f32>()
                        .unwrap()
                        .iter()
                        .map(|x| x.max(0.0))
                        .collect();
                    for y in &session.run(&[("x", x)], &fetches).unwrap() {
                        assert_eq!(y.as_slice::<f32>().unwrap(), expected);
                    }
                }
            });
        }
    });
}

#[test]
#[needs(Sycl)]
fn spirv_modules_run_if_the_driver_accepts_them_and_are_rejected_otherwise() {
    let module: &[u8] = include_bytes!("../fixtures/spirv/twice.spv");
    match run_custom(ProgramSource::of_spirv("twice.spv", module)) {
        Ok(found) => assert_eq!(found, [-4.0, -2.0, 0.0]),
        Err(error) => {
            for part in ["`y`", "twice.spv", "does not accept SPIR-V", "as source"] {
                assert!(error.contains(part), "{error} lacks {part}");
            }
        }
    }
    let error = run_custom(ProgramSource::of_spirv("broken", &module[..40])).unwrap_err();
    assert!(error.contains("broken"), "{error}");
}

#[test]
#[needs(Sycl)]
fn compiled_programs_are_kept_once_by_the_host_or_by_the_driver() {
    let folder = tempfile::tempdir().unwrap();
    let details = SyclDeviceFactory.details(0).unwrap();
    let is_pocl = details["platform_name"] == "Portable Computing Language";
    for _ in 0..2 {
        let mut options = options(1);
        let cache = CacheFolder::open(folder.path()).unwrap();
        options.program_cache = Some(Arc::new(cache));
        let b = GraphBuilder::new("graph");
        let x = b.placeholder::<f32>("x", [3]).unwrap();
        let sycl = b.device("/device:SYCL:0").unwrap();
        sycl.named("y").relu(x).unwrap();
        let session = session(b, &open(&options)).build().unwrap();
        let found = session.run(&[("x", floats(3))], &["y"]).unwrap();
        assert_eq!(found[0].as_slice::<f32>().unwrap(), [0.0, 0.0, 0.0]);
    }
    let entries = std::fs::read_dir(folder.path()).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name());
    let programs = names.filter(|name| name.to_string_lossy().starts_with("program"));
    assert_eq!(programs.count(), usize::from(!is_pocl));
}
