//! Copies out of devices that end later than they start.

mod direct;
mod ends;

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::sync::Condvar;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;
use std::time::Instant;

use super::threads;
use crate::device::AllocatorAttributes;
use crate::device::CopyDone;
use crate::device::Device;
use crate::device::DeviceContext;
use crate::device::DeviceContextMap;
use crate::device::DeviceError;
use crate::device::DeviceSet;
use crate::device::Kernel;
use crate::device::KernelContext;
use crate::device::KernelDef;
use crate::device::KernelDevice;
use crate::device::KernelError;
use crate::execute::ExecuteError;
use crate::execute::Executor;
use crate::execute::ExecutorOptions;
use crate::execute::PreparedPlan;
use crate::execute::RunOptions;
use crate::execute::Scheduling;
use crate::execute::fake::FakeDevice;
use crate::execute::fake::FakeWorld;
use crate::execute::fake::Sketch;
use crate::execute::fake::in_front_of_a_fake_device;
use crate::graph::Graph;
use crate::graph::NodeId;
use crate::tensor::Buffer;
use crate::tensor::Tensor;
use crate::trace::EventKind;
use crate::trace::Recorder;
use crate::trace::TransferWay;

/// A copy that was started.
struct Copy {
    copies: Arc<dyn DeviceContext>,
    tensor: Tensor,
    done: CopyDone,
}

impl Copy {
    fn finish(self) {
        let Self {
            copies,
            tensor,
            done,
        } = self;
        let copied = copies.copy_to_host(&tensor);
        drop(tensor);
        done.call(copied);
    }
}

type Start = dyn Fn(Copy) + Send + Sync;

/// What comes of a copy from another device of this kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direct {
    Refused,
    Taken,
    Fails,
    Panics,
}

/// Copies to the host as a test says.
struct PortContext {
    copies: Arc<dyn DeviceContext>,
    start: Arc<Start>,
    direct: Direct,
    is_async: bool,
    shared_bytes_min: Option<usize>,
    /// Tensors that came from an arena.
    n_from_arenas: AtomicU64,
    is_cursed: AtomicBool,
    /// Copies for which a thread waited.
    n_waited: AtomicU64,
}

impl fmt::Debug for PortContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PortContext")
    }
}

impl DeviceContext for PortContext {
    fn copy_from_host(&self, tensor: &Tensor) -> Result<Tensor, KernelError> {
        let in_arena = tensor.buffer().is_some_and(Buffer::is_in_arena);
        self.n_from_arenas
            .fetch_add(u64::from(in_arena), Ordering::Relaxed);
        self.copies.copy_from_host(tensor)
    }
    fn copy_to_host(&self, tensor: &Tensor) -> Result<Tensor, KernelError> {
        self.n_waited.fetch_add(1, Ordering::Relaxed);
        self.copies.copy_to_host(tensor)
    }
    fn copies_are_async(&self) -> bool {
        assert!(!self.is_cursed.load(Ordering::Relaxed), "who knows");
        self.is_async
    }
    fn shared_bytes_min(&self) -> Option<usize> {
        self.shared_bytes_min
    }
    fn copy_to_host_async(&self, tensor: &Tensor, done: CopyDone) {
        (self.start)(Copy {
            copies: Arc::clone(&self.copies),
            tensor: tensor.clone(),
            done,
        });
    }
    fn copy_from_device(
        &self,
        tensor: &Tensor,
        source: &Arc<dyn DeviceContext>,
    ) -> Option<Result<Tensor, KernelError>> {
        let source: &dyn Any = &**source;
        let source = source.downcast_ref::<Self>()?;
        match self.direct {
            Direct::Refused => None,
            Direct::Taken => {
                let values = source.copies.copy_to_host(tensor).unwrap();
                Some(self.copies.copy_from_host(&values))
            }
            Direct::Fails => Some(Err(KernelError::invalid("no such peer"))),
            Direct::Panics => panic!("out of cheese"),
        }
    }
}

/// Which nodes have the context whose copies end later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ported {
    All,
    /// Those whose names start with `s`.
    Side,
}

/// A fake device whose copies end later.
#[derive(Debug)]
struct Port {
    device: Arc<FakeDevice>,
    port: Arc<PortContext>,
    default: Arc<dyn DeviceContext>,
    ported: Ported,
    n_syncs: AtomicU64,
    is_lost: AtomicBool,
}

in_front_of_a_fake_device!(
    Port,
    fn sync(&self) -> Result<(), DeviceError> {
        self.n_syncs.fetch_add(1, Ordering::Relaxed);
        match self.is_lost.load(Ordering::Relaxed) {
            true => Err(DeviceError::InvalidArgument("fell off the bus".to_owned())),
            false => Ok(()),
        }
    }
);

impl KernelDevice for Port {
    fn default_context(&self) -> &Arc<dyn DeviceContext> {
        &self.default
    }
    fn fill_context_map(
        &self,
        graph: &Graph,
        nodes: &[NodeId],
    ) -> Result<DeviceContextMap, DeviceError> {
        let is_own = |node: &&NodeId| {
            self.ported == Ported::Side && graph.node_name(**node).starts_with('s')
        };
        let own = nodes.iter().filter(is_own);
        Ok(own
            .map(|&node| (node, Arc::clone(&self.port) as _))
            .collect())
    }
    fn compute(
        &self,
        kernel: &dyn Kernel,
        context: &mut KernelContext<'_>,
    ) -> Result<(), KernelError> {
        self.device.compute(kernel, context)
    }
}

/// A CPU, device 0, and devices whose copies end later.
struct Bench {
    /// Device 1.
    port: Arc<Port>,
    executor: Executor,
    sketch: Sketch,
    has_one_memory: Vec<bool>,
}

/// How its devices are.
#[derive(Debug, Clone, Copy)]
struct Kind {
    /// Of device 1; all nodes of others have such a context.
    ported: Ported,
    direct: Direct,
    is_async: bool,
    shared_bytes_min: Option<usize>,
}

impl Default for Kind {
    fn default() -> Self {
        Self {
            ported: Ported::All,
            direct: Direct::Refused,
            is_async: true,
            shared_bytes_min: None,
        }
    }
}

fn world() -> FakeWorld {
    FakeWorld::new(&["CPU", "GPU"])
}

impl Bench {
    fn new(
        text: &str,
        options: &ExecutorOptions,
        start: impl Fn(Copy) + Send + Sync + 'static,
    ) -> Self {
        Self::build(&world(), Kind::default(), text, options, start)
    }

    fn build(
        world: &FakeWorld,
        kind: Kind,
        text: &str,
        options: &ExecutorOptions,
        start: impl Fn(Copy) + Send + Sync + 'static,
    ) -> Self {
        let start: Arc<Start> = Arc::new(start);
        let port = |device: &Arc<FakeDevice>, ported| {
            let copies = device.default_context();
            let port = Arc::new(PortContext {
                copies: Arc::clone(copies),
                start: Arc::clone(&start),
                direct: kind.direct,
                is_async: kind.is_async,
                shared_bytes_min: kind.shared_bytes_min,
                n_from_arenas: AtomicU64::new(0),
                is_cursed: AtomicBool::new(false),
                n_waited: AtomicU64::new(0),
            });
            Arc::new(Port {
                device: Arc::clone(device),
                default: match ported {
                    Ported::All => Arc::clone(&port) as _,
                    Ported::Side => Arc::clone(copies),
                },
                port,
                ported,
                n_syncs: AtomicU64::new(0),
                is_lost: AtomicBool::new(false),
            })
        };
        let first = port(&world.devices[1], kind.ported);
        let mut devices: Vec<Arc<dyn Device>> =
            vec![Arc::clone(&world.devices[0]) as _, Arc::clone(&first) as _];
        for device in &world.devices[2..] {
            devices.push(port(device, Ported::All));
        }
        let sketch = Sketch::parse(text);
        let executor = Executor::new(
            Arc::clone(&sketch.graph),
            Arc::new(DeviceSet::new(devices)),
            Arc::new(world.registry.clone()),
            options,
        );
        Self {
            port: first,
            executor: executor.unwrap(),
            sketch,
            has_one_memory: world.has_one_memory(),
        }
    }

    /// A plan that is fed `x`.
    fn prepare(&self, fetches: &[&str], targets: &[&str]) -> Arc<PreparedPlan> {
        let request = self.sketch.request(&["x"], fetches, targets);
        let plan = self
            .sketch
            .partition(&self.has_one_memory, &request)
            .unwrap();
        self.executor.prepare(&Arc::new(plan)).unwrap()
    }

    fn run(
        &self,
        prepared: &Arc<PreparedPlan>,
        x: f32,
        options: &RunOptions,
    ) -> Result<Vec<Vec<f32>>, ExecuteError> {
        let fed = Tensor::from_values([4], &[x; 4]).unwrap();
        let fetched = self.executor.run(prepared, &[fed], options)?;
        let values = fetched.iter().map(|tensor| tensor.as_slice().unwrap());
        Ok(values.map(<[f32]>::to_vec).collect())
    }

    /// Runs time after time: the fetches are these multiples of what is fed, and no thread has
    /// waited for a copy.
    fn check(&self, fetches: &[&str], expected: &[f32]) {
        let prepared = self.prepare(fetches, &[]);
        let n_waited = || self.port.port.n_waited.load(Ordering::Relaxed);
        let before = n_waited();
        for x in [1.0, 2.0, 3.0].repeat(5) {
            let fetched = self.run(&prepared, x, &RunOptions::default()).unwrap();
            let expected = expected.iter().map(|factor| vec![factor * x; 4]);
            assert_eq!(fetched, expected.collect::<Vec<_>>());
        }
        assert_eq!(n_waited(), before);
    }

    fn fail(&self, fetch: &str) -> ExecuteError {
        let prepared = self.prepare(&[fetch], &[]);
        self.run(&prepared, 1.0, &RunOptions::default())
            .unwrap_err()
    }

    fn in_use_bytes(&self) -> u64 {
        let memory = self.port.allocator(AllocatorAttributes::default());
        memory.stats().in_use_bytes
    }
}

/// Two tensors on the device, each read by the CPU.
const TWO: &str = "
    x = Placeholder() @ 1
    a = Neg(x) @ 1
    b = Sum(x, x) @ 1
    fa = Neg(a) @ 0
    fb = Neg(b) @ 0
    s = Sum(fa, fb) @ 0
    bad = Fail(x) @ 0
";

const CPU: &str = "/job:localhost/replica:0/task:0/device:CPU:0";
const GPU: &str = "/job:localhost/replica:0/task:0/device:GPU:0";

#[test]
fn a_copy_that_ends_on_another_thread_goes_on_here() {
    for n_threads in [1, 2] {
        let bench = Bench::new(TWO, &threads(n_threads), |copy| {
            thread::spawn(move || copy.finish());
        });
        bench.check(&["s"], &[-1.0]);
        bench.check(&["a", "b"], &[-1.0, 2.0]);
        bench.check(&["a", "s", "fb"], &[-1.0, -1.0, -2.0]);
    }
}

#[test]
fn a_copy_may_end_inside_the_call() {
    for n_threads in [1, 2] {
        let bench = Bench::new(TWO, &threads(n_threads), Copy::finish);
        bench.check(&["a", "s", "fb"], &[-1.0, -1.0, -2.0]);
    }
}

#[test]
fn two_copies_are_under_way_at_one_time() {
    // Each ends when the other has started; with one thread that thread must start both.
    for options in [
        threads(1),
        threads(2),
        threads(1).with_scheduling(Scheduling::Serial),
        threads(2).with_scheduling(Scheduling::Measured),
    ] {
        let under_way: Mutex<Vec<Copy>> = Mutex::default();
        let bench = Bench::new(TWO, &options, move |copy| {
            let mut under_way = under_way.lock().unwrap();
            under_way.push(copy);
            if under_way.len() == 2 {
                let copies = std::mem::take(&mut *under_way);
                drop(under_way);
                copies.into_iter().for_each(Copy::finish);
            }
        });
        bench.check(&["s"], &[-1.0]);
        bench.check(&["a", "b"], &[-1.0, 2.0]);
    }
}

#[test]
fn the_cpu_computes_while_a_copy_is_under_way() {
    for n_threads in [1, 2] {
        let under_way: Arc<(Mutex<Option<Copy>>, Condvar)> = Arc::default();
        let mut world = world();
        let shared = Arc::clone(&under_way);
        // Ends the copy, from inside a kernel; its send stands before the one that lets this kernel
        // start.
        world.add("End", move |_, inputs| {
            let (copy, started) = &*shared;
            let is_missing = |copy: &mut Option<Copy>| copy.is_none();
            let patience = Duration::from_secs(60);
            let waited = started.wait_timeout_while(copy.lock().unwrap(), patience, is_missing);
            let copy = waited.unwrap().0.take();
            copy.ok_or_else(|| KernelError::invalid("no copy was started"))?
                .finish();
            Ok(inputs[0].clone())
        });
        let text = "
            x = Placeholder() @ 1
            a = Neg(x) @ 1
            c = Const() @ 0
            fa = Neg(a) @ 0
            e = End(c, ^a) @ 0
            s = Sum(fa, fa, ^e) @ 0
        ";
        let bench = Bench::build(
            &world,
            Kind::default(),
            text,
            &threads(n_threads),
            move |copy| {
                let (under_way, started) = &*under_way;
                *under_way.lock().unwrap() = Some(copy);
                started.notify_all();
            },
        );
        bench.check(&["s"], &[2.0]);
    }
}

#[test]
fn a_fetch_alone_is_a_plan() {
    let (sender, copies) = mpsc::channel();
    let sender = Mutex::new(sender);
    let text = "x = Placeholder() @ 0\n c = Const() @ 1";
    let bench = Bench::new(text, &threads(1), move |copy| {
        sender.lock().unwrap().send(copy).unwrap();
    });
    let prepared = bench.prepare(&["c"], &[]);
    thread::scope(|scope| {
        let run = scope.spawn(|| bench.run(&prepared, 0.0, &RunOptions::default()));
        copies.recv().unwrap().finish();
        assert_eq!(run.join().unwrap().unwrap(), [[1.0, 2.0, 3.0, 4.0]]);
    });
    assert_eq!(bench.port.n_syncs.load(Ordering::Relaxed), 1);
}

#[test]
fn callers_share_a_device_that_copies_one_after_the_other() {
    let (sender, copies) = mpsc::channel::<Copy>();
    let sender = Mutex::new(sender);
    thread::spawn(move || copies.into_iter().for_each(Copy::finish));
    let bench = Bench::new(TWO, &threads(3), move |copy| {
        sender.lock().unwrap().send(copy).unwrap();
    });
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| bench.check(&["a", "s", "fb"], &[-1.0, -1.0, -2.0]));
        }
    });
    assert_eq!(bench.in_use_bytes(), 0);
}

#[test]
fn a_run_ends_with_its_devices_unless_nobody_wants_that() {
    for is_wanted in [true, false] {
        let options = threads(1).with_sync_on_finish(is_wanted);
        let bench = Bench::new(TWO, &options, Copy::finish);
        // Nothing is fetched: the plan has no copy that could fail.
        let prepared = bench.prepare(&[], &["a"]);
        let run = || bench.run(&prepared, 1.0, &RunOptions::default());
        run().unwrap();
        let n_syncs = bench.port.n_syncs.load(Ordering::Relaxed);
        assert_eq!(n_syncs, u64::from(is_wanted));
        bench.port.is_lost.store(true, Ordering::Relaxed);
        match is_wanted {
            true => assert_eq!(
                run().unwrap_err().to_string(),
                format!("device {GPU} failed at finishing the work of a run: fell off the bus")
            ),
            false => assert!(run().is_ok()),
        }
    }
}

#[test]
fn values_of_such_a_device_have_no_places_in_arenas() {
    let bench = Bench::new(TWO, &threads(1), Copy::finish);
    let prepared = bench.prepare(&["s"], &[]);
    // What runs take is known all the same: all three tensors at one time.
    let plan = bench.executor.memory_plan(&prepared);
    let run_bytes = plan.memories.iter().map(|memory| memory.run_bytes);
    assert_eq!(run_bytes.collect::<Vec<_>>()[1], 3 * 16, "{plan:?}");
    let memory = bench.port.allocator(AllocatorAttributes::default());
    for n_runs in 1..5 {
        bench.run(&prepared, 1.0, &RunOptions::default()).unwrap();
        let stats = memory.stats();
        // What is fed, and two outputs.
        assert_eq!((stats.in_use_bytes, stats.n_allocations), (0, 3 * n_runs));
    }
}

/// Negates, and writes to the place that the plan has for its output.
struct Filled;

impl Kernel for Filled {
    fn compute(&self, context: &mut KernelContext<'_>) -> Result<(), KernelError> {
        let input = context.input(0)?;
        let values = input.as_slice::<f32>()?;
        context.fill_output(0, input.shape(), |output: &mut [f32]| {
            for (negated, value) in output.iter_mut().zip(values) {
                *negated = -value;
            }
            Ok(())
        })
    }
}

/// A clone of a tensor in an arena is a copy, so what a device shares must not be in one. The
/// tensors here have 16 bytes.
#[test]
fn tensors_on_the_way_to_a_device_that_shares_them_are_not_in_arenas() {
    let mut world = world();
    world
        .registry
        .register(KernelDef::new("Filled", "CPU").with_factory(|_| Ok(Box::new(Filled))));
    let text = "
        x = Placeholder() @ 0
        a = Filled(x) @ 0
        b = Neg(a) @ 1
        c = Neg(b) @ 0
    ";
    for (shared_bytes_min, is_in_arena) in [(None, true), (Some(17), true), (Some(16), false)] {
        let kind = Kind {
            shared_bytes_min,
            ..Kind::default()
        };
        let bench = Bench::build(&world, kind, text, &threads(1), Copy::finish);
        let prepared = bench.prepare(&["c"], &[]);
        for x in 0..5u8 {
            let fetched = bench.run(&prepared, x.into(), &RunOptions::default());
            assert_eq!(fetched.unwrap(), [[-f32::from(x); 4]]);
        }
        let n_from_arenas = bench.port.port.n_from_arenas.load(Ordering::Relaxed);
        assert_eq!(n_from_arenas > 0, is_in_arena, "{shared_bytes_min:?}");
    }
}

#[test]
fn what_the_host_sees_of_such_a_device_is_copied_all_the_same() {
    let n_copies = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&n_copies);
    let world = FakeWorld::new(&["CPU", "CPU"]);
    let bench = Bench::build(&world, Kind::default(), TWO, &threads(1), move |copy| {
        counted.fetch_add(1, Ordering::Relaxed);
        copy.finish();
    });
    bench.check(&["a", "s"], &[-1.0, -1.0]);
    // `a` for the caller and for the CPU, `b` for the CPU.
    assert_eq!(n_copies.load(Ordering::Relaxed), 15 * 3);
}

#[test]
fn constants_are_made_where_they_are_read_and_copied_by_nobody() {
    let text = "
        x = Placeholder() @ 0
        c = Const() @ 1
        s = Sum(x, c) @ 0
    ";
    let bench = Bench::new(text, &threads(1), |_| panic!("no run copies anything"));
    let prepared = bench.prepare(&["s"], &[]);
    for x in [0.0, 1.0] {
        let fetched = bench.run(&prepared, x, &RunOptions::default()).unwrap();
        assert_eq!(fetched, [[1.0, 2.0, 3.0, 4.0].map(|c| c + x)]);
    }
    assert_eq!(bench.port.port.n_waited.load(Ordering::Relaxed), 0);
}

#[test]
fn a_device_that_panics_when_it_is_asked_refuses_the_plan() {
    let bench = Bench::new(TWO, &threads(1), Copy::finish);
    bench.port.port.is_cursed.store(true, Ordering::Relaxed);
    let request = bench.sketch.request(&["x"], &["a"], &[]);
    let plan = Arc::new(
        bench
            .sketch
            .partition(&bench.has_one_memory, &request)
            .unwrap(),
    );
    assert_eq!(
        bench.executor.prepare(&plan).unwrap_err().to_string(),
        format!(
            "device {GPU} failed at reporting when its work is done: {GPU}: it panicked: who knows"
        )
    );
    bench.port.port.is_cursed.store(false, Ordering::Relaxed);
    bench.check(&["a"], &[-1.0]);
}

#[test]
fn a_node_may_have_a_context_of_its_own_whose_copies_end_later() {
    let n_copies = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&n_copies);
    let text = "
        x = Placeholder() @ 1
        a = Neg(x) @ 1
        s = Sum(a, a) @ 1
        fa = Neg(a) @ 0
        fs = Neg(s) @ 0
    ";
    let kind = Kind {
        ported: Ported::Side,
        ..Kind::default()
    };
    let bench = Bench::build(&world(), kind, text, &threads(1), move |copy| {
        counted.fetch_add(1, Ordering::Relaxed);
        thread::spawn(move || copy.finish());
    });
    bench.check(&["fa"], &[1.0]);
    assert_eq!(n_copies.load(Ordering::Relaxed), 0);
    assert_eq!(bench.port.n_syncs.load(Ordering::Relaxed), 0);
    bench.check(&["fa", "fs", "s", "a"], &[1.0, 2.0, -2.0, -1.0]);
    assert_eq!(n_copies.load(Ordering::Relaxed), 15 * 2);
    assert_eq!(bench.port.n_syncs.load(Ordering::Relaxed), 15);
}

#[test]
fn a_thread_submits_before_it_computes() {
    let log = Arc::new(Mutex::new(Vec::new()));
    let mut world = world();
    for op in ["OnCpu", "OnGpu"] {
        let log = Arc::clone(&log);
        world.add(op, move |_, inputs| {
            log.lock().unwrap().push(op);
            Ok(inputs[0].clone())
        });
    }
    // By rank, the GPU's nodes come after all others.
    let text = "
        x = Placeholder() @ 0
        a = OnCpu(x) @ 0
        b = OnCpu(a) @ 0
        c = OnCpu(b) @ 0
        g = OnGpu(a) @ 1
        h = OnGpu(g) @ 1
        back = OnCpu(h) @ 0
    ";
    let bench = Bench::build(&world, Kind::default(), text, &threads(1), Copy::finish);
    let prepared = bench.prepare(&["c", "back"], &[]);
    for _ in 0..5 {
        log.lock().unwrap().clear();
        bench.run(&prepared, 1.0, &RunOptions::default()).unwrap();
        let log = log.lock().unwrap();
        assert_eq!(log[..3], ["OnCpu", "OnGpu", "OnGpu"], "{log:?}");
    }
}

#[test]
fn a_transfer_is_recorded_from_the_start_of_its_copy_to_the_end() {
    let recorder = Recorder::on();
    let during = recorder.clone();
    let bench = Bench::new(TWO, &threads(1), move |copy| {
        let during = during.clone();
        thread::spawn(move || {
            let name = "copying".into();
            during.record_since(Instant::now(), EventKind::Stage { name });
            copy.finish();
        });
    });
    let prepared = bench.prepare(&["fa"], &[]);
    let options = RunOptions::default().with_recorder(recorder.clone());
    bench.run(&prepared, 1.0, &options).unwrap();
    let events = recorder.events();
    let find = |is_wanted: &dyn Fn(&EventKind) -> bool| {
        let found = events.iter().find(|event| is_wanted(&event.kind));
        found.unwrap()
    };
    let copying = find(&|kind| matches!(kind, EventKind::Stage { .. }));
    let transfer = find(&|kind| matches!(kind, EventKind::Transfer { .. }));
    let EventKind::Transfer {
        way,
        bytes,
        send_ns,
        ..
    } = transfer.kind
    else {
        unreachable!("it was looked for");
    };
    assert_eq!((way, bytes), (TransferWay::Staged, 16));
    assert!(transfer.start_ns <= copying.start_ns, "{events:?}");
    assert!(
        copying.end_ns() <= transfer.start_ns + send_ns,
        "{events:?}"
    );
    assert!(
        transfer.start_ns + send_ns <= transfer.end_ns(),
        "{events:?}"
    );
    let sync = find(&|kind| matches!(kind, EventKind::Device { call: "sync", .. }));
    assert!(sync.start_ns >= transfer.end_ns(), "{events:?}");
}
