//! Nodes with contexts of their own, devices that go, and what a run has for itself alone.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;

use super::threads;
use crate::device::AllocatorAttributes;
use crate::device::Device;
use crate::device::DeviceAttributes;
use crate::device::DeviceContext;
use crate::device::DeviceContextMap;
use crate::device::DeviceError;
use crate::device::DeviceManager;
use crate::device::DeviceSet;
use crate::device::Kernel;
use crate::device::KernelContext;
use crate::device::KernelDef;
use crate::device::KernelDevice;
use crate::device::KernelError;
use crate::device::KernelRegistry;
use crate::device::RenamedDevice;
use crate::device::Resource;
use crate::device::SimpleDevice;
use crate::execute::ExecuteError;
use crate::execute::Executor;
use crate::execute::PreparedPlan;
use crate::execute::RunOptions;
use crate::execute::fake::FakeDevice;
use crate::execute::fake::FakeWorld;
use crate::execute::fake::Sketch;
use crate::execute::fake::in_front_of_a_fake_device;
use crate::graph::Graph;
use crate::graph::NodeId;
use crate::names::DeviceName;
use crate::tensor::DType;
use crate::tensor::Tensor;

type Log = Arc<Mutex<Vec<String>>>;

/// Logs which context copies what.
#[derive(Debug)]
struct LoggingContext {
    name: &'static str,
    copies: Arc<dyn DeviceContext>,
    log: Log,
}

impl DeviceContext for LoggingContext {
    fn copy_from_host(&self, tensor: &Tensor) -> Result<Tensor, KernelError> {
        self.log.lock().unwrap().push(format!("{} in", self.name));
        self.copies.copy_from_host(tensor)
    }
    fn copy_to_host(&self, tensor: &Tensor) -> Result<Tensor, KernelError> {
        self.log.lock().unwrap().push(format!("{} out", self.name));
        self.copies.copy_to_host(tensor)
    }
}

/// A fake GPU that gives the nodes whose names start with `s` a context of their own.
#[derive(Debug)]
struct Streaming {
    device: Arc<FakeDevice>,
    default: Arc<dyn DeviceContext>,
    side: Arc<dyn DeviceContext>,
    fails: AtomicBool,
}

in_front_of_a_fake_device!(Streaming);

impl KernelDevice for Streaming {
    fn default_context(&self) -> &Arc<dyn DeviceContext> {
        &self.default
    }
    fn fill_context_map(
        &self,
        graph: &Graph,
        nodes: &[NodeId],
    ) -> Result<DeviceContextMap, DeviceError> {
        if self.fails.load(Ordering::Relaxed) {
            return Err(DeviceError::InvalidArgument("no streams left".to_owned()));
        }
        let own = nodes
            .iter()
            .filter(|&&node| graph.node_name(node).starts_with('s'));
        Ok(own.map(|&node| (node, Arc::clone(&self.side))).collect())
    }
    fn compute(
        &self,
        kernel: &dyn Kernel,
        context: &mut KernelContext<'_>,
    ) -> Result<(), KernelError> {
        let is_side = Arc::ptr_eq(context.device_context(), &self.side);
        let expected = context.node().starts_with('s');
        if is_side != expected {
            return Err(KernelError::invalid("the wrong context"));
        }
        self.device.compute(kernel, context)
    }
}

struct Streams {
    device: Arc<Streaming>,
    executor: Executor,
    sketch: Sketch,
    log: Log,
}

impl Streams {
    fn new(text: &str, wrap: impl FnOnce(Arc<Streaming>) -> Arc<dyn Device>) -> Self {
        let world = FakeWorld::new(&["GPU", "CPU"]);
        let log = Log::default();
        let logging = |name| -> Arc<dyn DeviceContext> {
            Arc::new(LoggingContext {
                name,
                copies: Arc::clone(world.devices[0].default_context()),
                log: Arc::clone(&log),
            })
        };
        let device = Arc::new(Streaming {
            device: Arc::clone(&world.devices[0]),
            default: logging("default"),
            side: logging("side"),
            fails: AtomicBool::new(false),
        });
        let cpu = Arc::clone(&world.devices[1]) as Arc<dyn Device>;
        let devices = Arc::new(DeviceSet::new([wrap(Arc::clone(&device)), cpu]));
        let sketch = Sketch::parse(text);
        let registry = Arc::new(world.registry.clone());
        let executor = Executor::new(Arc::clone(&sketch.graph), devices, registry, &threads(1));
        Self {
            device,
            executor: executor.unwrap(),
            sketch,
            log,
        }
    }

    fn prepare(&self, fetches: &[&str]) -> Result<Arc<PreparedPlan>, ExecuteError> {
        let request = self.sketch.request(&["x"], fetches, &[]);
        let plan = self.sketch.partition(&[false, true], &request).unwrap();
        self.executor.prepare(&Arc::new(plan))
    }

    /// Values of the fetches, and the copies in and out, sorted.
    fn run(&self, fetches: &[&str]) -> (Vec<f32>, Vec<String>) {
        let prepared = self.prepare(fetches).unwrap();
        self.log.lock().unwrap().clear();
        let fed = Tensor::from_values([4], &[1.0f32; 4]).unwrap();
        let fetched = self
            .executor
            .run(&prepared, &[fed], &RunOptions::default())
            .unwrap();
        let values = fetched
            .iter()
            .map(|tensor| tensor.as_slice::<f32>().unwrap()[0]);
        let mut log = self.log.lock().unwrap().clone();
        log.sort();
        (values.collect(), log)
    }
}

#[test]
fn tensors_leave_a_device_by_the_context_of_the_node_that_made_them() {
    let text = "
        x = Placeholder() @ 0
        a = Neg(x) @ 0
        s = Sum(a, a) @ 0
        fa = Neg(a) @ 1
        fs = Neg(s) @ 1
    ";
    let renamed = |device: Arc<Streaming>| -> Arc<dyn Device> {
        // The fake kernels know their devices by name.
        Arc::new(RenamedDevice::new("/job:localhost/replica:0/task:0", device).unwrap())
    };
    for streams in [
        Streams::new(text, |device| device),
        Streams::new(text, renamed),
    ] {
        // Fetched, one by one; what is fed comes in by the default context.
        assert_eq!(
            streams.run(&["a"]),
            (vec![-1.0], vec!["default in".into(), "default out".into()])
        );
        assert_eq!(
            streams.run(&["s"]),
            (vec![-2.0], vec!["default in".into(), "side out".into()])
        );
        // Sent.
        assert_eq!(
            streams.run(&["fa"]),
            (vec![1.0], vec!["default in".into(), "default out".into()])
        );
        assert_eq!(
            streams.run(&["fs"]),
            (vec![2.0], vec!["default in".into(), "side out".into()])
        );
    }
}

#[test]
fn a_device_that_has_no_contexts_to_give_refuses_the_plan() {
    let streams = Streams::new("x = Placeholder() @ 0\n s = Neg(x) @ 0", |device| device);
    streams.device.fails.store(true, Ordering::Relaxed);
    let error = streams.prepare(&["s"]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "device /job:localhost/replica:0/task:0/device:GPU:0 failed at assigning contexts to nodes: no streams left"
    );
    streams.device.fails.store(false, Ordering::Relaxed);
    assert_eq!(streams.run(&["s"]).0, [-1.0]);
}

#[derive(Debug)]
struct Note(Arc<AtomicBool>);

impl Resource for Note {
    fn describe(&self) -> String {
        "a note".to_owned()
    }
}

impl Drop for Note {
    fn drop(&mut self) {
        assert!(!self.0.load(Ordering::Relaxed), "do not let go");
    }
}

/// Uses temporary memory, one piece after the other, and leaves a note in the run's container; a
/// negative input fails.
struct Scratch {
    device_numbers: Arc<Mutex<Vec<u64>>>,
    is_cursed: Arc<AtomicBool>,
}

impl Kernel for Scratch {
    fn compute(&self, context: &mut KernelContext<'_>) -> Result<(), KernelError> {
        let input = context.input(0)?;
        for _ in 0..10 {
            let mut temporary = context.allocate_temporary(DType::F32, [1 << 10].into())?;
            let values = temporary.as_slice_mut::<f32>().unwrap();
            assert!(values.iter().all(|&value| value == 0.0), "zeroed");
            values.fill(7.0);
        }
        let container = context.run_container()?;
        let manager = context.resource_manager()?;
        let note = Arc::new(Note(Arc::clone(&self.is_cursed)));
        manager.create(container, context.node(), note)?;
        let number = context.run_number().unwrap();
        self.device_numbers.lock().unwrap().push(number);
        assert!(manager.describe()[0].contains(&number.to_string()));
        let values = input.as_slice::<f32>()?;
        if values[0] < 0.0 {
            return Err(KernelError::invalid("it is Tuesday"));
        }
        context.fill_output(0, input.shape(), |output: &mut [f32]| {
            output.copy_from_slice(values);
            Ok(())
        })
    }
}

fn simple(index: u32) -> Arc<SimpleDevice> {
    let name = DeviceName::full("localhost", 0, 0, "TOY", index);
    Arc::new(SimpleDevice::new(DeviceAttributes::new(&name, "TOY", 1 << 20)).unwrap())
}

/// `Scratch` on devices of a type of the app's own.
struct Toys {
    executor: Executor,
    sketch: Sketch,
    n_devices: usize,
    numbers: Arc<Mutex<Vec<u64>>>,
    is_cursed: Arc<AtomicBool>,
}

impl Toys {
    fn new(devices: Vec<Arc<dyn Device>>) -> Self {
        let (numbers, is_cursed) = (
            Arc::<Mutex<Vec<u64>>>::default(),
            Arc::<AtomicBool>::default(),
        );
        let kernel_parts = (Arc::clone(&numbers), Arc::clone(&is_cursed));
        let mut registry = KernelRegistry::empty();
        registry.register(KernelDef::new("Scratch", "TOY").with_factory(move |_| {
            Ok(Box::new(Scratch {
                device_numbers: Arc::clone(&kernel_parts.0),
                is_cursed: Arc::clone(&kernel_parts.1),
            }))
        }));
        let last = devices.len() - 1;
        let text = format!("x = Placeholder() @ 0\n a = Scratch(x) @ 0\n b = Scratch(a) @ {last}");
        let sketch = Sketch::parse(&text);
        let n_devices = devices.len();
        let devices = Arc::new(DeviceSet::new(devices));
        let graph = Arc::clone(&sketch.graph);
        let executor = Executor::new(graph, devices, Arc::new(registry), &threads(1));
        Self {
            executor: executor.unwrap(),
            sketch,
            n_devices,
            numbers,
            is_cursed,
        }
    }

    fn prepare(&self, fetch: &str) -> Result<Arc<PreparedPlan>, ExecuteError> {
        let request = self.sketch.request(&["x"], &[fetch], &[]);
        let plan = self
            .sketch
            .partition(&vec![true; self.n_devices], &request)
            .unwrap();
        self.executor.prepare(&Arc::new(plan))
    }

    fn run(&self, prepared: &Arc<PreparedPlan>, x: f32) -> Result<Vec<f32>, ExecuteError> {
        let fed = Tensor::from_values([4], &[x; 4]).unwrap();
        let fetched = self
            .executor
            .run(prepared, &[fed], &RunOptions::default())?;
        Ok(fetched[0].as_slice().unwrap().to_vec())
    }
}

#[test]
fn what_a_run_has_for_itself_is_gone_when_it_ends_however_it_ends() {
    let underlying = simple(0);
    let renamed = |isolated: bool| -> Arc<dyn Device> {
        let device = Arc::clone(&underlying) as Arc<dyn Device>;
        let base = "/job:worker/replica:0/task:0";
        Arc::new(match isolated {
            true => RenamedDevice::isolated(base, device).unwrap(),
            false => RenamedDevice::new(base, device).unwrap(),
        })
    };
    for device in [
        Arc::clone(&underlying) as Arc<dyn Device>,
        renamed(false),
        renamed(true),
    ] {
        let toys = Toys::new(vec![Arc::clone(&device)]);
        let prepared = toys.prepare("b").unwrap();
        toys.run(&prepared, 1.0).unwrap();
        let stats = || underlying.allocator(AllocatorAttributes::default()).stats();
        let before = stats();
        for round in 1u8..10 {
            let x = if round % 3 == 0 {
                -1.0
            } else {
                f32::from(round)
            };
            let outcome = toys.run(&prepared, x);
            match x < 0.0 {
                true => assert!(outcome.unwrap_err().to_string().contains("Tuesday")),
                false => assert_eq!(outcome.unwrap(), [x; 4]),
            }
            assert_eq!(stats().in_use_bytes, before.in_use_bytes, "round {round}");
            assert_eq!(
                device.resource_manager().unwrap().describe(),
                Vec::<String>::new()
            );
            assert!(underlying.resource_manager().unwrap().describe().is_empty());
        }
        // Twenty temporaries a run, one at a time: one piece of memory, of 4096 bytes.
        assert!(
            stats().n_allocations - before.n_allocations <= 9 * 3,
            "{:?}",
            stats()
        );
        // Each run has a number, which both of its kernels see.
        let numbers = toys.numbers.lock().unwrap();
        let mut distinct = numbers.clone();
        distinct.dedup();
        assert_eq!((numbers.len(), distinct.len()), (2 + 6 * 2 + 3, 10));
    }
}

#[test]
fn a_resource_that_panics_when_it_is_dropped_fails_its_run() {
    let toys = Toys::new(vec![simple(0)]);
    let prepared = toys.prepare("a").unwrap();
    toys.is_cursed.store(true, Ordering::Relaxed);
    let error = toys.run(&prepared, 1.0).unwrap_err();
    assert!(
        matches!(error, ExecuteError::StepResources { .. }),
        "{error}"
    );
    assert!(error.to_string().contains("do not let go"), "{error}");
    toys.is_cursed.store(false, Ordering::Relaxed);
    assert_eq!(toys.run(&prepared, 2.0).unwrap(), [2.0; 4]);
}

#[test]
fn who_uses_a_removed_device_is_told() {
    let devices: Vec<Arc<dyn Device>> = vec![simple(0), simple(1)];
    let manager = DeviceManager::new(devices.clone());
    let toys = Toys::new(devices.clone());
    let (first, both) = (toys.prepare("a").unwrap(), toys.prepare("b").unwrap());
    assert!(toys.run(&both, 1.0).is_ok());
    manager.remove_devices(&devices[1..]).unwrap();
    let gone = ExecuteError::DeviceRemoved {
        device: "/job:localhost/replica:0/task:0/device:TOY:1".to_owned(),
    };
    assert_eq!(toys.run(&both, 1.0).unwrap_err(), gone);
    assert_eq!(toys.prepare("b").map(|_| ()).unwrap_err(), gone);
    // Plans that do not use it go on.
    assert!(toys.run(&first, 1.0).is_ok());
    assert!(toys.prepare("a").is_ok());
    // What the error advises.
    manager.add_devices(devices[1..].to_vec()).unwrap();
    assert!(toys.run(&both, 1.0).is_ok());
}

#[test]
fn a_renamed_device_goes_with_the_one_behind_it() {
    let device = simple(1) as Arc<dyn Device>;
    let manager = DeviceManager::new([Arc::clone(&device)]);
    let renamed = RenamedDevice::new("/job:worker/replica:0/task:3", Arc::clone(&device)).unwrap();
    let toys = Toys::new(vec![Arc::new(renamed)]);
    let prepared = toys.prepare("b").unwrap();
    assert!(toys.run(&prepared, 1.0).is_ok());
    manager.remove_devices(&[device]).unwrap();
    let gone = ExecuteError::DeviceRemoved {
        device: "/job:worker/replica:0/task:3/device:TOY:1".to_owned(),
    };
    assert_eq!(toys.run(&prepared, 1.0).unwrap_err(), gone);
}
